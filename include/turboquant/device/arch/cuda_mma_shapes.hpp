#pragma once

#include <turboquant/device/arch/cuda_mma_registers.hpp>

#include <string>

namespace turboquant::detail::cuda {

/// Why the matrix-unit kernel cannot take tiles of a format; empty if it can. Every format that it
/// takes is a kernel of its own to compile, so the list is short.
[[nodiscard]] inline std::string mma_refusal(const TileFormat& format) {
  const int dim = format.key_dim;
  if (format.order != TileOrder::mma) {
    return "tiles are in host order";
  }
  if (format.tile_tokens != 64) {
    return "tiles have fewer than 64 tokens";
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
  const bool whole = format.value_group == format.value_dim;
  if (!whole && format.value_group != 32) {
    return "value groups are neither 32 nor all dimensions";
  }
  const int bits = 10 * format.key_bits + format.value_bits;
  if (bits != 34 && bits != 32 && bits != 44 && bits != 22) {
    return "bits of keys and values are not 3/4, 3/2, 4/4 or 2/2";
  }
  if (bits != 34 && (!whole || dim == 96 || dim == 192)) {
    return "with bits other than 3/4 only one value group and 64, 128 or 256 dimensions are "
           "compiled";
  }
  return {};
}

/// Calls `call(shape)` with the `MmaShape` of a format that `mma_refusal` lets pass.
template <class Call>
void with_mma_shape(const TileFormat& format, const Call& call) {
  const bool whole = format.value_group == format.value_dim;
  const auto three_four = [&]<int Dim>() {
    whole ? call(MmaShape<3, 4, Dim, Dim>{}) : call(MmaShape<3, 4, Dim, 32>{});
  };
  const auto others = [&]<int Dim>() {
    switch (10 * format.key_bits + format.value_bits) {
      case 34: return three_four.template operator()<Dim>();
      case 32: return call(MmaShape<3, 2, Dim, Dim>{});
      case 44: return call(MmaShape<4, 4, Dim, Dim>{});
      default: return call(MmaShape<2, 2, Dim, Dim>{});
    }
  };
  switch (format.key_dim) {
    case 64: return others.template operator()<64>();
    case 96: return three_four.template operator()<96>();
    case 128: return others.template operator()<128>();
    case 192: return three_four.template operator()<192>();
    default: return others.template operator()<256>();
  }
}

}  // namespace turboquant::detail::cuda
