#pragma once

#include <turboquant/base/random.hpp>
#include <turboquant/device/tile_codec.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace turboquant::test {

constexpr TileFormat make_format(KeyCodec keys, int key_bits, int key_dim, ValueCodec values,
                                 int value_bits, int value_dim, int group,
                                 TileOrder order = TileOrder::host) {
  TileFormat format;
  format.key_codec = keys;
  format.key_bits = key_bits;
  format.key_dim = key_dim;
  format.value_codec = values;
  format.value_bits = value_bits;
  format.value_dim = value_dim;
  format.value_group = group;
  format.order = order;
  return format;
}

constexpr TileCodecOptions make_options(KeyCodec keys, int key_bits, int key_dim, ValueCodec values,
                                        int value_bits, int value_dim, int group) {
  TileCodecOptions options;
  options.format = make_format(keys, key_bits, key_dim, values, value_bits, value_dim, group);
  options.seed = 42;
  return options;
}

/// All options, then all of them without key means with tiles of 32 and of 16 tokens.
inline std::vector<TileCodecOptions> in_all_sizes(const std::vector<TileCodecOptions>& options) {
  std::vector<TileCodecOptions> all = options;
  for (const int tokens : {32, 16}) {
    for (TileCodecOptions smaller : options) {
      smaller.format.tile_tokens = tokens;
      if (!smaller.format.centres_keys()) {
        all.push_back(smaller);
      }
    }
  }
  return all;
}

/// Rows with everything that quantizers treat specially: outliers, zeros, ties, constants, tiny and
/// huge rows.
inline std::vector<float> hard_rows(std::size_t rows, std::size_t dim, std::uint64_t stream) {
  const CounterRng rng(11, stream);
  std::vector<float> out(rows * dim);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t d = 0; d < dim; ++d) {
      const std::uint64_t i = 2 * (row * dim + d);
      const double radius = std::sqrt(-2 * std::log(rng.uniform(i)));
      auto x = static_cast<float>(radius * std::cos(6.283185307179586 * rng.uniform(i + 1)));
      switch (row % 16) {
        case 3: x = d % 7 == 0 ? 40 * x : x; break;
        case 4: x = 0; break;
        case 5: x = d == 0 ? 1.0F : 0.0F; break;
        case 6: x = 1.5F; break;
        case 7: x *= 1e-30F; break;
        case 8: x *= 1e30F; break;
        case 9: x *= 1e-42F; break;
        case 10: x = static_cast<float>(d % 16) * 0.5F; break;
        case 11: x = std::round(x * 4) / 8; break;
        case 12: x = d % 2 == 0 ? -0.0F : 0.0F; break;
        case 13: x += 100; break;
        default: break;
      }
      out[row * dim + d] = x;
    }
  }
  return out;
}

}  // namespace turboquant::test
