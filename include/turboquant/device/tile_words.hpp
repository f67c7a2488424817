#pragma once

#include <turboquant/device/memory_words.hpp>
#include <turboquant/device/mma_words.hpp>
#include <turboquant/device/tile_format.hpp>

#include <cstddef>
#include <cstdint>

/// @file
/// Reading and writing the fields of a tile by words, for kernels that handle all dimensions of a
/// dword at once. The position of every single bit is defined by `TileFormat`; a test compares the
/// two.

namespace turboquant::detail {

using host_order::nibble_shift;

/// Where the sub-tiles of a tile are.
struct SubTiles {
  TileOrder order = TileOrder::host;
  std::size_t tokens = TileFormat::tokens;
  std::size_t bytes = 0;

  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t start(std::size_t token) const noexcept {
    return token / tokens * bytes;
  }
};

[[nodiscard]] constexpr TURBOQUANT_FUNCTION SubTiles sub_tiles(const TileFormat& format) noexcept {
  return {format.order, format.sub_tile_tokens(), format.sub_tile_bytes()};
}

/// Nibbles `index` (0 to 3) of four words of 3-bit codes in three words that are `stride` bytes
/// apart: the spare bits of the three hold the fourth.
[[nodiscard]] TURBOQUANT_FUNCTION inline std::uint32_t read_shared_words(
    const unsigned char* words, std::size_t stride, std::size_t index) noexcept {
  if (index < 3) {
    return load_word(words + index * stride) & 0x77777777U;
  }
  return ((load_word(words) >> 3U) & 0x11111111U) |
         ((load_word(words + stride) >> 2U) & 0x22222222U) |
         ((load_word(words + 2 * stride) >> 1U) & 0x44444444U);
}
/// Inverse of `read_shared_words`.
/// @param merge  `merge(at, bits)` changes a word
template <class Merge>
TURBOQUANT_FUNCTION void write_shared_words(unsigned char* words, std::size_t stride,
                                            std::size_t index, std::uint32_t nibbles,
                                            const Merge& merge) noexcept {
  if (index < 3) {
    return merge(words + index * stride, nibbles);
  }
  merge(words, (nibbles & 0x11111111U) << 3U);
  merge(words + stride, (nibbles & 0x22222222U) << 2U);
  merge(words + 2 * stride, (nibbles & 0x44444444U) << 1U);
}

/// One section of key codes (or signs: width 1) of a tile.
struct KeySection {
  std::size_t offset = 0;
  unsigned width = 0;  ///< bits per code: 1, 2, 3, 4 or 8
  std::size_t dim = 0;
  SubTiles sub_tiles{};

  /// Host order: dimensions stored in dwords; the others follow as byte planes.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t word_dims() const noexcept {
    return width >= 4 ? dim : dim / 32 * 32;
  }

  /// The 8 codes of group `group` of 8 dimensions of a token as nibbles in `nibble_shift` order.
  /// Works on words and on byte planes; not for fp8.
  [[nodiscard]] TURBOQUANT_FUNCTION std::uint32_t read_nibbles(const unsigned char* tile,
                                                               std::size_t group,
                                                               std::size_t token) const noexcept {
    if (sub_tiles.order == TileOrder::mma) {
      return read_selectors(tile, group, token);
    }
    const unsigned char* section = tile + offset;
    if (8 * group >= word_dims()) {
      return read_planes(section, group, token);
    }
    const unsigned char* words = section + 4 * token;
    const std::size_t stride = 4 * TileFormat::tokens;
    switch (width) {
      case 1: return (load_word(words + group / 4 * stride) >> (group % 4)) & 0x11111111U;
      case 2: return (load_word(words + group / 2 * stride) >> (2 * (group % 2))) & 0x33333333U;
      case 3: return read_shared_words(words + group / 4 * 3 * stride, stride, group % 4);
      default: return load_word(words + group * stride);
    }
  }

  /// Writes the 8 codes of group `group` of a token; in host order its bits are zero before.
  /// Inverse of `read_nibbles`.
  template <class Words = PlainWords>
  TURBOQUANT_FUNCTION void write_nibbles(unsigned char* tile, std::size_t group, std::size_t token,
                                         std::uint32_t nibbles,
                                         const Words& change = {}) const noexcept {
    if (sub_tiles.order == TileOrder::mma) {
      write_selectors(tile, group, token, nibbles, change);
      return;
    }
    unsigned char* section = tile + offset;
    if (8 * group >= word_dims()) {
      write_planes(section, group, token, nibbles);
      return;
    }
    unsigned char* words = section + 4 * token;
    const std::size_t stride = 4 * TileFormat::tokens;
    const auto merge = [&](unsigned char* at, std::uint32_t bits) { change(at, 0, bits); };
    switch (width) {
      case 1: return merge(words + group / 4 * stride, nibbles << (group % 4));
      case 2: return merge(words + group / 2 * stride, nibbles << (2 * (group % 2)));
      case 3:
        return write_shared_words(words + group / 4 * 3 * stride, stride, group % 4, nibbles,
                                  merge);
      default: return merge(words + group * stride, nibbles);
    }
  }

 private:
  // mma order: nibbles n of a selector and the word's nibbles differ in their places only.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION mma_order::Selectors selectors() const noexcept {
    return {width, true, mma_order::selectors(sub_tiles.tokens, dim)};
  }
  [[nodiscard]] TURBOQUANT_FUNCTION std::uint32_t read_selectors(const unsigned char* tile,
                                                                 std::size_t group,
                                                                 std::size_t token) const noexcept {
    const unsigned char* section = tile + sub_tiles.start(token) + offset;
    std::uint32_t nibbles = 0;
    for (std::size_t n = 0; n < 8; n += 4) {
      const mma_order::Nibble at =
          mma_order::key_nibble(sub_tiles.tokens, dim, token % sub_tiles.tokens, 8 * group + n);
      const std::uint32_t four = selectors().read(section, at.lane, at.selector) >> (4 * at.nibble);
      for (unsigned i = 0; i < 4; ++i) {
        nibbles |= ((four >> (4 * i)) & 15U) << nibble_shift(n + i);
      }
    }
    return nibbles;
  }
  template <class Words>
  TURBOQUANT_FUNCTION void write_selectors(unsigned char* tile, std::size_t group,
                                           std::size_t token, std::uint32_t nibbles,
                                           const Words& change) const noexcept {
    unsigned char* section = tile + sub_tiles.start(token) + offset;
    for (std::size_t n = 0; n < 8; n += 4) {
      const mma_order::Nibble at =
          mma_order::key_nibble(sub_tiles.tokens, dim, token % sub_tiles.tokens, 8 * group + n);
      std::uint32_t four = 0;
      for (unsigned i = 0; i < 4; ++i) {
        four |= ((nibbles >> nibble_shift(n + i)) & 15U) << (4 * i);
      }
      selectors().write(section, at.lane, at.selector, 0xFFFFU << (4 * at.nibble),
                        four << (4 * at.nibble), change);
    }
  }

  [[nodiscard]] TURBOQUANT_FUNCTION const unsigned char* plane(const unsigned char* section,
                                                               std::size_t group,
                                                               std::size_t token) const noexcept {
    const std::size_t words = word_dims() / 8 * width;
    return section + (words + (group - word_dims() / 8) * width) * TileFormat::tokens + token;
  }

  [[nodiscard]] TURBOQUANT_FUNCTION std::uint32_t read_planes(const unsigned char* section,
                                                              std::size_t group,
                                                              std::size_t token) const noexcept {
    const unsigned char* at = plane(section, group, token);
    std::uint32_t nibbles = 0;
    for (unsigned bit = 0; bit < width; ++bit) {
      for (std::size_t n = 0; n < 8; ++n) {
        nibbles |= ((static_cast<std::uint32_t>(at[bit * TileFormat::tokens]) >> n) & 1U)
                   << (nibble_shift(n) + bit);
      }
    }
    return nibbles;
  }

  TURBOQUANT_FUNCTION void write_planes(unsigned char* section, std::size_t group,
                                        std::size_t token, std::uint32_t nibbles) const noexcept {
    unsigned char* at = section + (plane(section, group, token) - section);
    for (unsigned bit = 0; bit < width; ++bit) {
      unsigned byte = 0;
      for (std::size_t n = 0; n < 8; ++n) {
        byte |= ((nibbles >> (nibble_shift(n) + bit)) & 1U) << n;
      }
      at[bit * TileFormat::tokens] = static_cast<unsigned char>(byte);
    }
  }
};

[[nodiscard]] constexpr TURBOQUANT_FUNCTION KeySection
key_codes(const TileFormat& format) noexcept {
  return {format.key_codes_offset(), static_cast<unsigned>(format.key_code_bits()),
          static_cast<std::size_t>(format.key_dim), sub_tiles(format)};
}

[[nodiscard]] constexpr TURBOQUANT_FUNCTION KeySection
key_signs(const TileFormat& format) noexcept {
  return {format.key_signs_offset(), 1, static_cast<std::size_t>(format.key_dim),
          sub_tiles(format)};
}

/// The value codes of a tile.
struct ValueSection {
  std::size_t offset = 0;
  unsigned width = 0;  ///< bits per code: 2, 3 or 4
  std::size_t dim = 0;
  SubTiles sub_tiles{};
  bool table = false;  ///< whether codes index a table

  /// Host order: first dword of dimension `dim`'s column, and the dwords between two rows.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t column(std::size_t d) const noexcept {
    return d / 32 * 64 * width + d % 32;
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

  TURBOQUANT_FUNCTION void clear_group(unsigned char* tile, std::size_t group,
                                       std::size_t d) const noexcept {
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

/// One fp16 number per token.
struct HalfSection {
  std::size_t offset = 0;
  bool of_values = false;
  SubTiles sub_tiles{};

  /// First byte of the number of a token.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t byte(std::size_t token) const noexcept {
    if (sub_tiles.order == TileOrder::host) {
      return offset + 2 * token;
    }
    const std::size_t in_sub = token % sub_tiles.tokens;
    return sub_tiles.start(token) + offset +
           2 * (of_values ? mma_order::value_half(sub_tiles.tokens, in_sub)
                          : mma_order::key_half(sub_tiles.tokens, in_sub));
  }
};

[[nodiscard]] constexpr TURBOQUANT_FUNCTION HalfSection
key_scales(const TileFormat& format) noexcept {
  return {format.key_scales_offset(), false, sub_tiles(format)};
}
[[nodiscard]] constexpr TURBOQUANT_FUNCTION HalfSection
residual_scales(const TileFormat& format) noexcept {
  return {format.residual_scales_offset(), false, sub_tiles(format)};
}
[[nodiscard]] constexpr TURBOQUANT_FUNCTION HalfSection value_scales(const TileFormat& format,
                                                                     std::size_t group) noexcept {
  return {format.value_scales_offset() + 2 * group * format.sub_tile_tokens(), true,
          sub_tiles(format)};
}
[[nodiscard]] constexpr TURBOQUANT_FUNCTION HalfSection value_zeros(const TileFormat& format,
                                                                    std::size_t group) noexcept {
  return {format.value_zeros_offset() + 2 * group * format.sub_tile_tokens(), true,
          sub_tiles(format)};
}

}  // namespace turboquant::detail
