#pragma once

#include <turboquant/device/memory_words.hpp>
#include <turboquant/device/mma_order.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail::mma_order {

/// The selectors of one section of one sub-tile, by dwords.
struct Selectors {
  unsigned width = 0;  ///< bits per code, 1 to 4
  bool table = false;  ///< whether codes index a table: keys and codebook values
  std::size_t count = 0;

  /// Selectors in dwords; the others are byte planes.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t packed() const noexcept {
    return packed_selectors(width, count);
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t words() const noexcept {
    return packed() * width / 4;
  }

  /// The nibbles of a selector, code n at bits 4 n and up.
  [[nodiscard]] TURBOQUANT_FUNCTION std::uint32_t read(const unsigned char* section,
                                                       std::size_t lane,
                                                       std::size_t selector) const noexcept {
    const auto word = [&](std::size_t index) {
      return load_word(section + word_byte(lane, index, words()));
    };
    if (selector >= packed()) {
      return read_planes(section + lane, selector);
    }
    const auto part = static_cast<unsigned>(selector % 4);
    switch (width) {
      case 1: return (word(selector / 4) >> part) & 0x11111111U;
      case 2:
        return table ? (word(selector / 2) >> (selector % 2 * 2)) & 0x33333333U
                     : spread_pairs(word(selector / 2) >> (selector % 2 * 4));
      case 3: {
        const std::size_t quarter = packed() / 4;
        const std::size_t first = selector / 4;
        return part < 3 ? word(first + part * quarter) & 0x77777777U
                        : ((word(first) >> 3U) & 0x11111111U) |
                              ((word(first + quarter) >> 2U) & 0x22222222U) |
                              ((word(first + 2 * quarter) >> 1U) & 0x44444444U);
      }
      default: return table ? join_signs(word(selector)) : word(selector);
    }
  }

  /// Replaces the nibbles under `mask`, which is 0 or 15 for each.
  /// @param change called as (address of a word, bits to clear, bits to set)
  template <class Words>
  TURBOQUANT_FUNCTION void write(unsigned char* section, std::size_t lane, std::size_t selector,
                                 std::uint32_t mask, std::uint32_t nibbles,
                                 const Words& change) const noexcept {
    const auto replace = [&](std::size_t index, std::uint32_t bits, std::uint32_t to) {
      change(section + word_byte(lane, index, words()), bits, to & bits);
    };
    if (selector >= packed()) {
      return write_planes(section, lane, selector, mask, nibbles, change);
    }
    const auto part = static_cast<unsigned>(selector % 4);
    switch (width) {
      case 1: return replace(selector / 4, (mask & 0x11111111U) << part, nibbles << part);
      case 2: {
        const std::uint32_t codes = mask & 0x33333333U;
        const auto shift = static_cast<unsigned>(selector % 2 * (table ? 2 : 4));
        return table ? replace(selector / 2, codes << shift, nibbles << shift)
                     : replace(selector / 2, gather_pairs(codes) << shift,
                               gather_pairs(nibbles) << shift);
      }
      case 3: {
        const std::size_t quarter = packed() / 4;
        const std::size_t first = selector / 4;
        if (part < 3) {
          return replace(first + part * quarter, mask & 0x77777777U, nibbles);
        }
        replace(first, (mask & 0x11111111U) << 3U, nibbles << 3U);
        replace(first + quarter, (mask & 0x22222222U) << 2U, nibbles << 2U);
        return replace(first + 2 * quarter, (mask & 0x44444444U) << 1U, nibbles << 1U);
      }
      default:
        return table ? replace(selector, part_signs(mask), part_signs(nibbles))
                     : replace(selector, mask, nibbles);
    }
  }

  /// Writes selectors `4 * quad` to `4 * quad + 3` of a lane, which are packed.
  TURBOQUANT_FUNCTION void write_quad(unsigned char* section, std::size_t lane, std::size_t quad,
                                      const std::uint32_t (&nibbles)[4]) const noexcept {
    const auto put = [&](std::size_t index, std::uint32_t word) {
      store_word(section + word_byte(lane, index, words()), word);
    };
    switch (width) {
      case 1:
        return put(quad, nibbles[0] | (nibbles[1] << 1U) | (nibbles[2] << 2U) | (nibbles[3] << 3U));
      case 2:
        if (table) {
          put(2 * quad, nibbles[0] | (nibbles[1] << 2U));
          return put(2 * quad + 1, nibbles[2] | (nibbles[3] << 2U));
        }
        put(2 * quad, gather_pairs(nibbles[0]) | (gather_pairs(nibbles[1]) << 4U));
        return put(2 * quad + 1, gather_pairs(nibbles[2]) | (gather_pairs(nibbles[3]) << 4U));
      case 3: {
        const std::size_t quarter = packed() / 4;
        put(quad, nibbles[0] | ((nibbles[3] & 0x11111111U) << 3U));
        put(quad + quarter, nibbles[1] | ((nibbles[3] & 0x22222222U) << 2U));
        return put(quad + 2 * quarter, nibbles[2] | ((nibbles[3] & 0x44444444U) << 1U));
      }
      default:
        for (std::size_t i = 0; i < 4; ++i) {
          put(4 * quad + i, table ? part_signs(nibbles[i]) : nibbles[i]);
        }
    }
  }

 private:
  /// @param column the lane's byte of the section's first row of 32
  [[nodiscard]] TURBOQUANT_FUNCTION std::uint32_t read_planes(const unsigned char* column,
                                                              std::size_t selector) const noexcept {
    std::uint32_t nibbles = 0;
    for (unsigned bit = 0; bit < width; ++bit) {
      nibbles |= spread_byte(column[plane_byte(width, packed(), selector, bit)]) << bit;
    }
    return nibbles;
  }
  template <class Words>
  TURBOQUANT_FUNCTION void write_planes(unsigned char* section, std::size_t lane,
                                        std::size_t selector, std::uint32_t mask,
                                        std::uint32_t nibbles, const Words& change) const noexcept {
    const std::uint32_t bits = gather_byte(mask);
    const auto shift = static_cast<unsigned>(8 * (lane % 4));
    for (unsigned bit = 0; bit < width; ++bit) {
      change(section + plane_byte(width, packed(), selector, bit) + lane / 4 * 4, bits << shift,
             (gather_byte(nibbles >> bit) & bits) << shift);
    }
  }

  /// Bit pairs 0 and 1 of each byte to its two nibbles, and back.
  static constexpr TURBOQUANT_FUNCTION std::uint32_t spread_pairs(std::uint32_t x) noexcept {
    return (x & 0x03030303U) | ((x & 0x0C0C0C0CU) << 2U);
  }
  static constexpr TURBOQUANT_FUNCTION std::uint32_t gather_pairs(std::uint32_t x) noexcept {
    return (x & 0x03030303U) | ((x & 0x30303030U) >> 2U);
  }

  /// Bit 3 of nibbles 0 to 7 from bits 7, 15, 23, 31, 3, 11, 19, 27, and back.
  static constexpr TURBOQUANT_FUNCTION std::uint32_t join_signs(std::uint32_t x) noexcept {
    std::uint32_t nibbles = x & 0x77777777U;
    for (unsigned n = 0; n < 4; ++n) {
      nibbles |= ((x >> (8 * n + 7)) & 1U) << (4 * n + 3);
      nibbles |= ((x >> (8 * n + 3)) & 1U) << (4 * n + 19);
    }
    return nibbles;
  }
  static constexpr TURBOQUANT_FUNCTION std::uint32_t part_signs(std::uint32_t nibbles) noexcept {
    // Bits 3, 7, 11 and 15 to bits 3, 11, 19 and 27.
    const auto spread = [](std::uint32_t x) {
      x = (x | (x << 8U)) & 0x00880088U;
      return (x | (x << 4U)) & 0x08080808U;
    };
    return (nibbles & 0x77777777U) | (spread(nibbles & 0x8888U) << 4U) |
           spread((nibbles >> 16U) & 0x8888U);
  }
};

}  // namespace turboquant::detail::mma_order
