#pragma once

#include <turboquant/base/float16.hpp>

#include <cstdint>
#include <cstring>
#include <memory>

/// @file
/// Words and halves of tiles, whose addresses are multiples of their size: devices would otherwise
/// move single bytes.

namespace turboquant::detail {

/// What every tile's address is a multiple of, in bytes.
inline constexpr std::uintptr_t tile_alignment = 4;

[[nodiscard]] inline TURBOQUANT_FUNCTION std::uint32_t load_word(const unsigned char* at) noexcept {
  std::uint32_t word = 0;
  std::memcpy(&word, std::assume_aligned<4>(at), 4);
  return word;
}

inline TURBOQUANT_FUNCTION void store_word(unsigned char* at, std::uint32_t word) noexcept {
  std::memcpy(std::assume_aligned<4>(at), &word, 4);
}

[[nodiscard]] inline TURBOQUANT_FUNCTION float load_half(const unsigned char* at) noexcept {
  float16 half;
  std::memcpy(&half.bits, std::assume_aligned<2>(at), 2);
  return half.to_float();
}

inline TURBOQUANT_FUNCTION void store_half(unsigned char* at, float16 half) noexcept {
  std::memcpy(std::assume_aligned<2>(at), &half.bits, 2);
}

/// Bits 0 to 7 to the lowest bits of nibbles 0 to 7.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION std::uint32_t spread_byte(std::uint32_t x) noexcept {
  x = (x | (x << 12U)) & 0x000F000FU;
  x = (x | (x << 6U)) & 0x03030303U;
  return (x | (x << 3U)) & 0x11111111U;
}
/// The lowest bits of nibbles 0 to 7 as bits 0 to 7: inverse of `spread_byte`.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION std::uint32_t gather_byte(
    std::uint32_t nibbles) noexcept {
  std::uint32_t x = nibbles & 0x11111111U;
  x = (x | (x >> 3U)) & 0x03030303U;
  x = (x | (x >> 6U)) & 0x000F000FU;
  return (x | (x >> 12U)) & 0xFFU;
}

/// Changes words of a tile that no one else changes at the same time.
struct PlainWords {
  /// Clears the bits of `clear`, then sets those of `set`.
  TURBOQUANT_FUNCTION void operator()(unsigned char* at, std::uint32_t clear,
                                      std::uint32_t set) const noexcept {
    store_word(at, (load_word(at) & ~clear) | set);
  }
};

}  // namespace turboquant::detail
