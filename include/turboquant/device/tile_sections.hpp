#pragma once

#include <turboquant/device/kokkos_compat.hpp>
#include <turboquant/device/tile_words.hpp>

#include <cstddef>

namespace turboquant::detail {

/// Where a tile has what; made on the host, because arithmetic with formats is long.
struct TileSections {
  KeySection keys{};
  ValueSection values{};
  std::size_t key_scales = 0;
  std::size_t value_scales = 0;
  std::size_t value_zeros = 0;
  std::size_t key_mean = 0;

  explicit TileSections(const TileFormat& format)
      : keys(key_codes(format)),
        values(value_codes(format)),
        key_scales(format.key_scales_offset()),
        value_scales(format.value_scales_offset()),
        value_zeros(format.value_zeros_offset()),
        key_mean(format.key_mean_offset()) {}

  /// Where the fp16 number of a token is, for keys and values of `Dim` coordinates.
  /// @tparam Tokens as `RegisterTeamEncoder` has them
  /// @param offset of a section of such numbers
  template <std::size_t Dim, std::size_t Tokens>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION unsigned char* half_at(std::size_t offset,
                                                                   bool of_values,
                                                                   std::size_t token,
                                                                   unsigned char* tile) const {
    if (keys.sub_tiles.order == TileOrder::host) {
      return tile + offset + 2 * token;
    }
    constexpr std::size_t most = mma_order::sub_tile_tokens(Dim, Dim, Tokens);
    if constexpr (Tokens < 64 && most > 16) {
      if (keys.sub_tiles.tokens == 16) {
        return half_in<16>(offset, of_values, token, tile);
      }
    }
    return half_in<most>(offset, of_values, token, tile);
  }

 private:
  /// In mma order, of sub-tiles of `Tokens`.
  template <std::size_t Tokens>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION unsigned char* half_in(std::size_t offset,
                                                                   bool of_values,
                                                                   std::size_t token,
                                                                   unsigned char* tile) const {
    const std::size_t place = of_values ? mma_order::value_half(Tokens, token % Tokens)
                                        : mma_order::key_half(Tokens, token % Tokens);
    return tile + token / Tokens * keys.sub_tiles.bytes + offset + 2 * place;
  }
};

}  // namespace turboquant::detail
