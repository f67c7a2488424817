#pragma once

#include <turboquant/device/key_words.hpp>
#include <turboquant/device/value_words.hpp>

#include <cstddef>

/// @file
/// Reading and writing the fields of a tile by words, for kernels that handle all dimensions of a
/// dword at once. The position of every single bit is defined by `TileFormat`; a test compares the
/// two.

namespace turboquant::detail {

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
