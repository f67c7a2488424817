#pragma once

#include <turboquant/device/encode_tiles.hpp>
#include <turboquant/device/tile_decoder.hpp>
#include <turboquant/runtime/bit_plan_layers.hpp>
#include <turboquant/runtime/calibration_attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace turboquant {

struct CalibrationOptions {
  /// The newest so many tokens that a query sees stay exact, as in a cache's window. 0 measures
  /// the codec alone.
  std::int64_t exact_window = 0;
  std::int64_t sinks = 0;  ///< the first so many tokens stay exact
  std::uint64_t seed = 0;  ///< of the rotations; the cache's
};

namespace detail {

/// Rows as they come back from tiles of a codec.
struct DecodedRows {
  std::vector<float> keys;    ///< (tokens, kv_heads, key_dim)
  std::vector<float> values;  ///< (tokens, kv_heads, value_dim)
};

/// Encodes rows into tiles and decodes them again. The first tile begins at token `begin`, behind
/// exact sinks; tokens before it are not written.
template <class Exec>
DecodedRows through_tiles(const CalibrationRows& rows, const TileCodecOptions& options,
                          std::size_t begin) {
  using Space = typename Exec::memory_space;
  const Exec exec;
  const TileCodec<Space> codec(options);
  const auto heads = static_cast<std::size_t>(rows.shape.kv_heads);
  const auto key_dim = static_cast<std::size_t>(rows.shape.key_dim);
  const auto value_dim = static_cast<std::size_t>(rows.shape.value_dim);
  const std::size_t tokens = rows.tokens() - begin;
  const std::size_t of_tile = codec.format().tokens();
  const std::size_t tiles = (tokens + of_tile - 1) / of_tile;
  const std::size_t tile_bytes = codec.format().bytes();
  const Kokkos::View<std::byte*, Space> bytes("turboquant::measure_codec_errors::tiles",
                                              tiles * heads * tile_bytes);
  const Kokkos::View<EncodeJob*, Space> jobs("turboquant::measure_codec_errors::jobs", tiles);
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    const std::size_t first = tile * of_tile;
    EncodeJob& job = jobs(tile);
    job.keys = dense_rows(rows.keys.data() + (begin + first) * heads * key_dim,
                          static_cast<int>(heads), static_cast<int>(key_dim));
    job.values = dense_rows(rows.values.data() + (begin + first) * heads * value_dim,
                            static_cast<int>(heads), static_cast<int>(value_dim));
    job.tile = bytes.data() + tile * heads * tile_bytes;
    job.head_stride = static_cast<std::int64_t>(tile_bytes);
    job.count = static_cast<int>((std::min)(of_tile, tokens - first));
    job.clear_from = 0;
  }
  encode_tiles(exec, codec, static_cast<int>(heads), Kokkos::View<const EncodeJob*, Space>(jobs));
  exec.fence();
  DecodedRows decoded{std::vector<float>(rows.keys.size()), std::vector<float>(rows.values.size())};
  std::vector<float> scratch(2 * (std::max)(key_dim, value_dim));
  for (std::size_t token = 0; token < tokens; ++token) {
    for (std::size_t head = 0; head < heads; ++head) {
      const std::byte* const tile = bytes.data() + (token / of_tile * heads + head) * tile_bytes;
      const std::size_t slot = token % of_tile;
      const std::size_t row = (begin + token) * heads + head;
      decode_key(codec.tables(), tile, slot, decoded.keys.data() + row * key_dim, scratch.data());
      decode_value(codec.tables(), tile, slot, decoded.values.data() + row * value_dim,
                   scratch.data());
    }
  }
  return decoded;
}

[[nodiscard]] inline bool same_keys(const LayerCodec& a, const LayerCodec& b) noexcept {
  return a.key_codec == b.key_codec && a.key_bits == b.key_bits &&
         a.norm_correction == b.norm_correction && a.key_centring == b.key_centring;
}
[[nodiscard]] inline bool same_values(const LayerCodec& a, const LayerCodec& b) noexcept {
  return a.value_codec == b.value_codec && a.value_bits == b.value_bits &&
         a.value_group == b.value_group;
}

}  // namespace detail

/// What every codec does to the attention output of one layer on captured rows: the squared
/// relative error, sum of |approximate - exact|^2 over sum of |exact|^2, over all queries and
/// heads.
///
/// Rows go through the very tiles of the cache; attention over what comes back is in double, and so
/// are all sums, in one order whatever the number of threads. Errors of independent origin add up
/// in this measure, which is what `allocate_bits` assumes of layers.
/// @tparam Exec  a host execution space; a parameter so that the kernels of the encoder are
/// compiled only where this is used
/// @param rows   of a calibration prompt
/// @param codecs any number, for example `default_codec_choices()`
/// @param options exact tokens, fewer than the last query sees
/// @return (codecs.size()), finite, 0 or more
/// @throws Error(shape_mismatch), Error(out_of_range), Error(non_finite), Error(invalid_argument)
/// for rows outside their domain, Error(unsupported) for a codec or sizes that tiles do not have,
/// Error(not_initialized) before Kokkos runs.
/// O(queries query_heads tokens (key_codecs key_dim + codecs value_dim)). Same bits for one build
/// and C library.
template <class Exec = Kokkos::DefaultHostExecutionSpace>
[[nodiscard]] std::vector<double> measure_codec_errors(const CalibrationRows& rows,
                                                       std::span<const LayerCodec> codecs,
                                                       const CalibrationOptions& options = {}) {
  constexpr const char* caller = "measure_codec_errors";
  require_initialized(caller);
  detail::require_calibration_rows(caller, rows);
  for (const auto& [name, value] :
       {std::pair{"exact_window", options.exact_window}, std::pair{"sinks", options.sinks}}) {
    require(value >= 0, ErrorCode::invalid_argument, caller, ": ", name, " is ", value,
            ", expected 0 or more");
  }
  const std::int64_t last =
      *std::max_element(rows.query_positions.begin(), rows.query_positions.end());
  require(options.exact_window <= last && options.sinks <= last - options.exact_window,
          ErrorCode::out_of_range, caller, ": exact_window and sinks are ", options.exact_window,
          " and ", options.sinks, " tokens, expected fewer than the ", last + 1,
          " that the last query sees: all of them would be exact");
  detail::CalibrationAttention attention(rows, options.exact_window, options.sinks);
  // Each way to store keys and each way to store values goes through tiles once.
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    const ErrorContext context(caller, ": codecs[", i, "]: ");
    const TileCodecOptions tile =
        tile_codec_options(codecs[i], rows.shape.key_dim, rows.shape.value_dim, options.seed);
    const auto first_with = [&](const auto& same) {
      return static_cast<std::size_t>(
          std::find_if(codecs.begin(), codecs.end(),
                       [&](const LayerCodec& other) { return same(other, codecs[i]); }) -
          codecs.begin());
    };
    const std::size_t keys = first_with(detail::same_keys);
    const std::size_t values = first_with(detail::same_values);
    if (keys == i || values == i) {
      detail::DecodedRows decoded = detail::through_tiles<Exec>(
          rows, tile, (std::min)(static_cast<std::size_t>(options.sinks), rows.tokens()));
      if (keys == i) {
        attention.add_keys(i, decoded.keys);
      }
      if (values == i) {
        attention.add_values(i, std::move(decoded.values));
      }
    }
    attention.add_pair(keys, values);
  }
  std::vector<double> errors = attention.squared_errors(Exec());
  for (std::size_t i = 0; i < errors.size(); ++i) {
    require(std::isfinite(errors[i]), ErrorCode::non_finite, caller, ": the error of codecs[", i,
            "] is ", errors[i],
            ", expected a finite number: the exact output is zero, or too large");
  }
  return errors;
}

}  // namespace turboquant
