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

/// Changes words of a tile that no one else changes at the same time.
struct PlainWords {
  /// Clears the bits of `clear`, then sets those of `set`.
  TURBOQUANT_FUNCTION void operator()(unsigned char* at, std::uint32_t clear,
                                      std::uint32_t set) const noexcept {
    store_word(at, (load_word(at) & ~clear) | set);
  }
};

}  // namespace turboquant::detail
