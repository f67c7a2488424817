#pragma once

#include <turboquant/device/memory_words.hpp>
#include <turboquant/device/tile_format.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

using host_order::nibble_shift;

/// Where the sub-tiles of a tile are.
struct SubTiles {
  TileOrder order = TileOrder::host;
  std::size_t tokens = TileFormat::max_tokens;
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

}  // namespace turboquant::detail
