#pragma once

#include <turboquant/device/arch/cuda_mma_registers.hpp>

#include <string>

namespace turboquant::detail::cuda {

/// Whether the kernels of tiles of 64 tokens, or of fewer, take value groups of 32 beside 3-bit
/// keys and 4-bit values.
[[nodiscard]] constexpr bool compiles_groups(int tile_tokens, int dim) noexcept {
  return tile_tokens == 64 || dim == 128;
}
/// Whether they take other bits than those, with one value group.
[[nodiscard]] constexpr bool compiles_other_bits(int tile_tokens, int dim) noexcept {
  return tile_tokens == 64 ? dim != 96 && dim != 192 : dim == 128;
}

/// Why the matrix-unit kernel cannot take tiles of a format; empty if it can. Every format that it
/// takes is a kernel of its own to compile, so the list is short.
[[nodiscard]] inline std::string mma_refusal(const TileFormat& format) {
  const int dim = format.key_dim;
  if (format.order != TileOrder::mma) {
    return "tiles are in host order";
  }
  if (format.key_codec != KeyCodec::mse) {
    return "keys are not mse codes";
  }
  if (format.centres_keys()) {
    return "tiles have a key mean";
  }
  if (format.value_codec != ValueCodec::grouped) {
    return "values are not grouped";
  }
  if (format.value_dim != dim ||
      (dim != 64 && dim != 96 && dim != 128 && dim != 192 && dim != 256)) {
    return "dimensions are not 64, 96, 128, 192 or 256 for keys and values alike";
  }
  if (format.tile_tokens != 64 && (dim == 96 || dim == 192)) {
    return "with tiles of 16 or 32 tokens only 64, 128 or 256 dimensions are compiled";
  }
  const bool whole = format.value_group == format.value_dim;
  if (!whole && format.value_group != 32) {
    return "value groups are neither 32 nor all dimensions";
  }
  if (!whole && !compiles_groups(format.tile_tokens, dim)) {
    return "with tiles of 16 or 32 tokens value groups of 32 are compiled for 128 dimensions only";
  }
  const int bits = 10 * format.key_bits + format.value_bits;
  if (bits != 34 && bits != 32 && bits != 44 && bits != 22) {
    return "bits of keys and values are not 3/4, 3/2, 4/4 or 2/2";
  }
  if (bits != 34 && (!whole || !compiles_other_bits(format.tile_tokens, dim))) {
    return "with bits other than 3/4 only one value group and 64, 128 or 256 dimensions are "
           "compiled, with tiles of 16 or 32 tokens only 128";
  }
  return {};
}

/// Calls `call(shape)` with the `MmaShape` of a format of these tiles.
template <int Dim, int TileTokens, class Call>
void with_mma_bits(const TileFormat& format, const Call& call) {
  if constexpr (compiles_groups(TileTokens, Dim)) {
    if (format.value_group != format.value_dim) {
      return call(MmaShape<3, 4, Dim, 32, TileTokens>{});
    }
  }
  if constexpr (compiles_other_bits(TileTokens, Dim)) {
    switch (10 * format.key_bits + format.value_bits) {
      case 32: return call(MmaShape<3, 2, Dim, Dim, TileTokens>{});
      case 44: return call(MmaShape<4, 4, Dim, Dim, TileTokens>{});
      case 22: return call(MmaShape<2, 2, Dim, Dim, TileTokens>{});
      default: break;
    }
  }
  call(MmaShape<3, 4, Dim, Dim, TileTokens>{});
}

/// Calls `call(shape)` with the `MmaShape` of a format that `mma_refusal` lets pass.
template <class Call>
void with_mma_shape(const TileFormat& format, const Call& call) {
  const auto any_tiles = [&]<int Dim>() {
    switch (format.tile_tokens) {
      case 16: return with_mma_bits<Dim, 16>(format, call);
      case 32: return with_mma_bits<Dim, 32>(format, call);
      default: return with_mma_bits<Dim, 64>(format, call);
    }
  };
  switch (format.key_dim) {
    case 64: return any_tiles.template operator()<64>();
    case 96: return with_mma_bits<96, 64>(format, call);
    case 128: return any_tiles.template operator()<128>();
    case 192: return with_mma_bits<192, 64>(format, call);
    default: return any_tiles.template operator()<256>();
  }
}

}  // namespace turboquant::detail::cuda
