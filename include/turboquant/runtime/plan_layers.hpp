#pragma once

#include <turboquant/model/layer_cache.hpp>
#include <turboquant/runtime/bit_plan_layers.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace turboquant {

namespace detail {

/// @throws Error(unsupported) for sizes beyond an int
[[nodiscard]] inline KVShape planned_shape(std::int64_t kv_heads, std::int64_t key_dim,
                                           std::int64_t value_dim) {
  const auto number = [](const char* name, std::int64_t value) {
    require(value >= 1 && value <= 1024, ErrorCode::unsupported, name, " is ", value,
            ", expected 1 to 1024");
    return static_cast<int>(value);
  };
  return {number("num_kv_heads", kv_heads), number("head_size", key_dim),
          number("head_size_v", value_dim)};
}

/// The options of one planned layer; an overload for every alternative.
struct PlannedLayer {
  const CaptureOptions& defaults;
  std::uint64_t seed;

  [[nodiscard]] LayerOptions operator()(std::monostate) const {
    LayerOptions layer{defaults};
    layer.has_cache = false;
    return layer;
  }
  [[nodiscard]] LayerOptions operator()(const SharedCache& cache) const {
    require(!cache.window, ErrorCode::unsupported, "it sees ", cache.window.value_or(0),
            " tokens of the cache of layer ", cache.source, ", which sees more, expected the same");
    LayerOptions layer{defaults};
    layer.source = cache.source;
    return layer;
  }
  [[nodiscard]] LayerOptions operator()(const TQFullAttentionSpec& spec) const {
    const TurboQuantConfig& config = spec.config;
    LayerOptions layer =
        exact(planned_shape(spec.num_kv_heads, config.head_size(), config.head_size_v()), 0);
    layer.codec = tile_codec_options(layer_codec(config.codec()), config.head_size(),
                                     config.head_size_v(), seed);
    layer.capture.block_size = spec.block_size;
    layer.codec->format.tile_tokens = largest_tile(spec.block_size);
    require_supported(layer.codec->format);
    return layer;
  }
  [[nodiscard]] LayerOptions operator()(const FullAttentionSpec& spec) const {
    return exact(
        planned_shape(spec.num_kv_heads, spec.head_size, spec.head_size_v.value_or(spec.head_size)),
        0);
  }
  [[nodiscard]] LayerOptions operator()(const SlidingWindowSpec& spec) const {
    require(!spec.chunked, ErrorCode::unsupported, "it has chunked attention over chunks of ",
            spec.sliding_window, " tokens, expected a sliding window or full attention");
    return exact(
        planned_shape(spec.num_kv_heads, spec.head_size, spec.head_size_v.value_or(spec.head_size)),
        spec.sliding_window);
  }
  [[nodiscard]] LayerOptions operator()(const MLAAttentionSpec& spec) const {
    fail(ErrorCode::unsupported, "it keeps a latent of ", spec.head_size,
         " numbers, expected keys and values");
  }

 private:
  [[nodiscard]] LayerOptions exact(const KVShape& shape, std::int64_t window) const {
    LayerOptions layer{defaults};
    layer.capture.shape = shape;
    layer.capture.sliding_window = window;
    return layer;
  }
};

}  // namespace detail

/// The layers of a manager, `CacheManagerOptions::layers`, for planned caches: heads, sizes,
/// codecs, pages, windows and shared caches as planned.
///
/// Compressed layers have pages of the planned `block_size` in the largest tiles that divide it.
/// Recurrent states are not a manager's.
/// @param caches   (num_layers), of `plan_cache` or `assign_layer_caches`
/// @param defaults exact window, sinks and rollback of every layer; the rest is the plan's
/// @param seed     of the rotations, the same in every layer
/// @throws Error(unsupported) naming the layer, for latent attention, for chunked attention, which
/// a manager's sliding windows are not, for a shared cache of which it sees less than its source,
/// for sizes and codecs that tiles do not have and for block sizes that are no multiple of 16.
/// O(layers).
[[nodiscard]] inline std::vector<LayerOptions> planned_layers(std::span<const LayerCache> caches,
                                                              const CaptureOptions& defaults = {},
                                                              std::uint64_t seed = 0) {
  std::vector<LayerOptions> layers;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    const ErrorContext context("planned_layers: caches[", i, "]: ");
    layers.push_back(std::visit(detail::PlannedLayer{defaults, seed}, caches[i].attention));
  }
  return layers;
}

}  // namespace turboquant
