#pragma once

#include <turboquant/device/mma_words.hpp>
#include <turboquant/device/sub_tiles.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

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
    const std::size_t stride = 4 * sub_tiles.tokens;
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
    const std::size_t stride = 4 * sub_tiles.tokens;
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
    return section + (words + (group - word_dims() / 8) * width) * sub_tiles.tokens + token;
  }

  [[nodiscard]] TURBOQUANT_FUNCTION std::uint32_t read_planes(const unsigned char* section,
                                                              std::size_t group,
                                                              std::size_t token) const noexcept {
    const unsigned char* at = plane(section, group, token);
    std::uint32_t nibbles = 0;
    for (unsigned bit = 0; bit < width; ++bit) {
      for (std::size_t n = 0; n < 8; ++n) {
        nibbles |= ((static_cast<std::uint32_t>(at[bit * sub_tiles.tokens]) >> n) & 1U)
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
      at[bit * sub_tiles.tokens] = static_cast<unsigned char>(byte);
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

}  // namespace turboquant::detail
