#pragma once

#include <turboquant/model/bit_plan.hpp>
#include <turboquant/runtime/layer_options.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace turboquant {

/// The tile codec of a layer codec for heads of these sizes.
/// @param seed of the rotations
/// @throws Error(invalid_argument), Error(unsupported) for a codec or sizes that tiles do not have
[[nodiscard]] inline TileCodecOptions tile_codec_options(const LayerCodec& codec,
                                                         std::int64_t key_dim,
                                                         std::int64_t value_dim,
                                                         std::uint64_t seed = 0) {
  static_cast<void>(slot_bytes(codec, key_dim, value_dim));  // checks everything
  TileCodecOptions options;
  options.seed = seed;
  options.key_scale_rule = codec.norm_correction ? ScaleRule::unit : ScaleRule::unbiased;
  options.format.key_codec = codec.key_codec;
  options.format.key_bits = codec.key_bits;
  options.format.key_dim = static_cast<int>(key_dim);
  options.format.key_centring = codec.key_centring;
  options.format.value_codec = codec.value_codec;
  options.format.value_bits = codec.value_bits;
  options.format.value_dim = static_cast<int>(value_dim);
  options.format.value_group =
      static_cast<int>(codec.value_group == 0 ? value_dim : codec.value_group);
  return options;
}

/// `layers` with the codecs of a plan, for `CacheManagerOptions::layers`: a layer without a codec
/// in the plan stays exact. Shapes, windows, sinks and pages are those of `layers`, the tiles of a
/// layer that has a codec, too; a layer that had none gets the largest tiles that divide its pages.
/// @param layers (num_layers)
/// @param plan   (num_layers)
/// @param seed   of the rotations, the same in every layer
/// @throws Error(shape_mismatch) for another number of layers, Error(invalid_argument) for a codec
/// where a layer has no cache of its own, Error(unsupported) for sizes that tiles do not have, key
/// means in tiles of fewer than 64 tokens and pages that no tile divides; each names the layer
[[nodiscard]] inline std::vector<LayerOptions> with_bit_plan(std::vector<LayerOptions> layers,
                                                             const BitPlan& plan,
                                                             std::uint64_t seed = 0) {
  constexpr const char* caller = "with_bit_plan";
  require_valid(plan, caller);
  require(plan.layers.size() == layers.size(), ErrorCode::shape_mismatch, caller, ": the plan has ",
          plan.layers.size(), " layers, expected those of the model, ", layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const ErrorContext context(caller, ": layers[", i, "]: ");
    LayerOptions& layer = layers[i];
    const std::optional<TileCodecOptions> before = std::exchange(layer.codec, std::nullopt);
    if (plan.layers[i]) {
      require(layer.has_cache && !layer.source, ErrorCode::invalid_argument,
              "it has a codec in the plan, expected none for a layer without a cache of its own");
      const KVShape& shape = layer.capture.shape;
      const std::int64_t pages = layer.capture.block_size;
      layer.codec = tile_codec_options(*plan.layers[i], shape.key_dim, shape.value_dim, seed);
      if (before) {
        layer.codec->format.tile_tokens = before->format.tile_tokens;
      } else if (pages > 0) {  // a flat history has none
        layer.codec->format.tile_tokens = largest_tile(pages);
      }
      require_supported(layer.codec->format);
    }
  }
  return layers;
}

/// What the layers keep of a token, for `bytes_per_token`.
[[nodiscard]] inline std::vector<LayerShape> layer_shapes(const std::vector<LayerOptions>& layers) {
  std::vector<LayerShape> shapes;
  for (const LayerOptions& layer : layers) {
    const KVShape& shape = layer.capture.shape;
    shapes.push_back(layer.has_cache && !layer.source
                         ? LayerShape{shape.kv_heads, shape.key_dim, shape.value_dim}
                         : LayerShape{});
  }
  return shapes;
}

}  // namespace turboquant
