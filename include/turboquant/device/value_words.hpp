#pragma once

#include <turboquant/device/mma_words.hpp>
#include <turboquant/device/sub_tiles.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// The value codes of a tile.
struct ValueSection {
  std::size_t offset = 0;
  unsigned width = 0;  ///< bits per code: 2, 3 or 4
  std::size_t dim = 0;
  SubTiles sub_tiles{};
  bool table = false;  ///< whether codes index a table

  /// Host order: first dword of dimension `dim`'s column, and the dwords between two rows.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t column(std::size_t d) const noexcept {
    return d / 32 * sub_tiles.tokens * width + d % 32;
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t row_words(std::size_t d) const noexcept {
    const std::size_t rest = dim - d / 32 * 32;
    return rest < 32 ? rest : 32;
  }

  /// The lower pairs of 8 nibbles side by side.
  [[nodiscard]] static constexpr TURBOQUANT_FUNCTION std::uint32_t join_pairs(
      std::uint32_t nibbles) noexcept {
    std::uint32_t x = (nibbles | (nibbles >> 2U)) & 0x0F0F0F0FU;
    x = (x | (x >> 4U)) & 0x00FF00FFU;
    return (x | (x >> 8U)) & 0x0000FFFFU;
  }

  /// Codes of tokens 8 * group .. 8 * group + 7 of one dimension as nibbles, the lowest token in
  /// the lowest nibble.
  [[nodiscard]] TURBOQUANT_FUNCTION std::uint32_t read_nibbles(const unsigned char* tile,
                                                               std::size_t group,
                                                               std::size_t d) const noexcept {
    if (sub_tiles.order == TileOrder::mma) {
      return read_selectors(tile, group, d);
    }
    if (host_order::has_value_planes(width, sub_tiles.tokens)) {
      return read_planes(tile, group, d);
    }
    const unsigned char* words = tile + offset + 4 * column(d);
    const std::size_t stride = 4 * row_words(d);
    switch (width) {
      case 2: {
        std::uint32_t x = (load_word(words + group / 2 * stride) >> (16 * (group % 2))) & 0xFFFFU;
        x = (x | (x << 8U)) & 0x00FF00FFU;
        x = (x | (x << 4U)) & 0x0F0F0F0FU;
        return (x | (x << 2U)) & 0x33333333U;
      }
      case 3: return read_shared_words(words + group / 4 * 3 * stride, stride, group % 4);
      default: return load_word(words + group * stride);
    }
  }

  /// Adds the codes of 8 tokens to a tile; the bits of the tokens with a non-zero nibble are zero
  /// before.
  template <class Words = PlainWords>
  TURBOQUANT_FUNCTION void write_nibbles(unsigned char* tile, std::size_t group, std::size_t d,
                                         std::uint32_t nibbles,
                                         const Words& change = {}) const noexcept {
    if (sub_tiles.order == TileOrder::mma) {
      write_selectors(tile, group, d, nibbles, nibbles, change);
      return;
    }
    if (host_order::has_value_planes(width, sub_tiles.tokens)) {
      return write_planes(tile, group, d, nibbles, change);
    }
    unsigned char* words = tile + offset + 4 * column(d);
    const std::size_t stride = 4 * row_words(d);
    const auto merge = [&](unsigned char* at, std::uint32_t bits) { change(at, 0, bits); };
    switch (width) {
      case 2: return merge(words + group / 2 * stride, join_pairs(nibbles) << (16 * (group % 2)));
      case 3:
        return write_shared_words(words + group / 4 * 3 * stride, stride, group % 4, nibbles,
                                  merge);
      default: return merge(words + group * stride, nibbles);
    }
  }

  /// Zeroes the codes of the tokens of group `group` of 8 whose bit in `keep` is 0.
  TURBOQUANT_FUNCTION void keep_tokens(unsigned char* tile, std::size_t group, std::size_t d,
                                       unsigned keep) const noexcept {
    std::uint32_t mask = 0;
    for (unsigned token = 0; token < 8; ++token) {
      mask |= ((keep >> token) & 1U) != 0 ? 0xFU << (4 * token) : 0U;
    }
    if (sub_tiles.order == TileOrder::mma) {
      write_selectors(tile, group, d, ~mask, 0, PlainWords());
      return;
    }
    const std::uint32_t kept = read_nibbles(tile, group, d) & mask;
    clear_group(tile, group, d);
    write_nibbles(tile, group, d, kept);
  }

 private:
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION mma_order::Selectors selectors() const noexcept {
    return {width, table, mma_order::selectors(sub_tiles.tokens, dim)};
  }
  [[nodiscard]] TURBOQUANT_FUNCTION std::uint32_t read_selectors(const unsigned char* tile,
                                                                 std::size_t group,
                                                                 std::size_t d) const noexcept {
    const unsigned char* section = tile + sub_tiles.start(8 * group) + offset;
    std::uint32_t nibbles = 0;
    for (std::size_t t = 0; t < 8; ++t) {
      const mma_order::Nibble at =
          mma_order::value_nibble(table, dim, 8 * group % sub_tiles.tokens + t, d);
      const std::uint32_t codes = selectors().read(section, at.lane, at.selector);
      nibbles |= ((codes >> (4 * at.nibble)) & 15U) << (4 * t);
    }
    return nibbles;
  }
  /// Replaces the codes of the tokens whose nibble in `which` is not 0.
  template <class Words>
  TURBOQUANT_FUNCTION void write_selectors(unsigned char* tile, std::size_t group, std::size_t d,
                                           std::uint32_t which, std::uint32_t nibbles,
                                           const Words& change) const noexcept {
    unsigned char* section = tile + sub_tiles.start(8 * group) + offset;
    for (std::size_t t = 0; t < 8; ++t) {
      if (((which >> (4 * t)) & 15U) != 0) {
        const mma_order::Nibble at =
            mma_order::value_nibble(table, dim, 8 * group % sub_tiles.tokens + t, d);
        const std::uint32_t code = (nibbles >> (4 * t)) & 15U;
        selectors().write(section, at.lane, at.selector, 15U << (4 * at.nibble),
                          code << (4 * at.nibble), change);
      }
    }
  }

  /// The byte of 8 tokens of one dimension in the first of three planes, and the bytes to the next.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t plane_byte(std::size_t group,
                                                                     std::size_t d) const noexcept {
    return offset + 4 * (column(d) - d % 32) + 2 * (d % 32) + group;
  }
  [[nodiscard]] TURBOQUANT_FUNCTION std::uint32_t read_planes(const unsigned char* tile,
                                                              std::size_t group,
                                                              std::size_t d) const noexcept {
    const unsigned char* at = tile + plane_byte(group, d);
    std::uint32_t nibbles = 0;
    for (unsigned bit = 0; bit < 3; ++bit, at += 2 * row_words(d)) {
      nibbles |= spread_byte(*at) << bit;
    }
    return nibbles;
  }
  template <class Words>
  TURBOQUANT_FUNCTION void write_planes(unsigned char* tile, std::size_t group, std::size_t d,
                                        std::uint32_t nibbles, const Words& change) const noexcept {
    for (unsigned bit = 0; bit < 3; ++bit) {
      const std::uint32_t bits = gather_byte(nibbles >> bit);
      const std::size_t at = plane_byte(group, d) + bit * 2 * row_words(d);
      change(tile + at / 4 * 4, 0, bits << (8 * (at % 4)));
    }
  }

  TURBOQUANT_FUNCTION void clear_group(unsigned char* tile, std::size_t group,
                                       std::size_t d) const noexcept {
    if (host_order::has_value_planes(width, sub_tiles.tokens)) {
      for (std::size_t bit = 0; bit < 3; ++bit) {
        tile[plane_byte(group, d) + bit * 2 * row_words(d)] = 0;
      }
      return;
    }
    unsigned char* words = tile + offset + 4 * column(d);
    const std::size_t stride = 4 * row_words(d);
    const auto mask = [](unsigned char* at, std::uint32_t kept) {
      store_word(at, load_word(at) & kept);
    };
    if (width == 2) {
      mask(words + group / 2 * stride, group % 2 == 0 ? 0xFFFF0000U : 0x0000FFFFU);
    } else if (width == 4) {
      mask(words + group * stride, 0);
    } else if (group % 4 < 3) {
      mask(words + (group / 4 * 3 + group % 4) * stride, 0x88888888U);
    } else {
      for (std::size_t row = 0; row < 3; ++row) {
        mask(words + (group / 4 * 3 + row) * stride, 0x77777777U);
      }
    }
  }
};

[[nodiscard]] constexpr TURBOQUANT_FUNCTION ValueSection
value_codes(const TileFormat& format) noexcept {
  return {format.value_codes_offset(), static_cast<unsigned>(format.value_bits),
          static_cast<std::size_t>(format.value_dim), sub_tiles(format),
          format.value_codec == ValueCodec::codebook};
}

}  // namespace turboquant::detail
