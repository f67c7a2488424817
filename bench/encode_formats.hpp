#pragma once

/// @file
/// The formats that the benches of encoding time, on processors and on accelerators.

#include <turboquant/device/tile_codec.hpp>

namespace turboquant_bench {

struct NamedFormat {
  const char* name;
  turboquant::KeyCodec key_codec;
  int key_bits;
  turboquant::ValueCodec value_codec;
  int value_bits;
  int value_group;  ///< 0: one group
  turboquant::KeyCentring key_centring = turboquant::KeyCentring::none;

  /// Of keys and values of `dim` coordinates.
  [[nodiscard]] turboquant::TileCodecOptions options(
      int dim, turboquant::TileOrder order = turboquant::TileOrder::host) const {
    turboquant::TileCodecOptions options;
    options.format.key_codec = key_codec;
    options.format.key_bits = key_bits;
    options.format.key_dim = dim;
    options.format.value_codec = value_codec;
    options.format.value_bits = value_bits;
    options.format.value_dim = dim;
    options.format.value_group = value_group == 0 ? dim : value_group;
    options.format.key_centring = key_centring;
    options.format.order = order;
    return options;
  }
};

namespace formats {

using turboquant::KeyCentring;
using turboquant::KeyCodec;
using turboquant::ValueCodec;

inline constexpr NamedFormat k3v4{"K3V4", KeyCodec::mse, 3, ValueCodec::grouped, 4, 0};
inline constexpr NamedFormat k3v4_g32{"K3V4_g32", KeyCodec::mse, 3, ValueCodec::grouped, 4, 32};
inline constexpr NamedFormat k4v4{"K4V4", KeyCodec::mse, 4, ValueCodec::grouped, 4, 0};
inline constexpr NamedFormat k2v2{"K2V2", KeyCodec::mse, 2, ValueCodec::grouped, 2, 0};
inline constexpr NamedFormat k3v3_rotated{
    "K3V3_rotated", KeyCodec::mse, 3, ValueCodec::codebook, 3, 0};
inline constexpr NamedFormat ip4v4{"IP4V4", KeyCodec::inner_product, 4, ValueCodec::grouped, 4, 0};
inline constexpr NamedFormat f8v4{"F8V4", KeyCodec::float8, 8, ValueCodec::grouped, 4, 0};
inline constexpr NamedFormat k3v4_mean{
    "K3V4_mean", KeyCodec::mse, 3, ValueCodec::grouped, 4, 0, KeyCentring::tile_mean};

}  // namespace formats
}  // namespace turboquant_bench
