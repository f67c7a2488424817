#pragma once

#include <turboquant/model/layer_policy.hpp>
#include <turboquant/model/model_checks.hpp>
#include <turboquant/model/page_spec.hpp>

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace turboquant {

/// A layer that reads the cache of another one and owns none.
struct SharedCache {
  std::int64_t source = 0;
  /// Tokens of this layer's window or chunk, where it sees fewer of them than the source does.
  std::optional<std::int64_t> window{};
};

/// The token cache of one layer. The alternative decides the backend and the bytes together, so a
/// compressed spec on the default backend, or a skipped layer without a concrete element type,
/// cannot be written down.
using AttentionCache = std::variant<std::monostate, TQFullAttentionSpec, FullAttentionSpec,
                                    SlidingWindowSpec, MLAAttentionSpec, SharedCache>;

/// What one layer keeps: a token cache, a recurrent state, both (parallel hybrids) or neither.
struct LayerCache {
  AttentionCache attention{};
  std::optional<MambaSpec> state{};
  bool skipped = false;  ///< full attention left uncompressed by the skip list
};

/// "turboquant" for compressed layers, "default" for every other token cache, "none" without one.
[[nodiscard]] inline std::string_view attention_backend(const AttentionCache& cache) noexcept {
  if (std::holds_alternative<TQFullAttentionSpec>(cache)) {
    return "turboquant";
  }
  return std::holds_alternative<std::monostate>(cache) ? "none" : "default";
}

/// Options of `assign_layer_caches`.
struct LayerCacheOptions {
  std::optional<CacheCodec> codec{};  ///< nothing = no compression (the baseline)
  /// Codecs of single layers by absolute index, overriding `codec`.
  std::vector<std::pair<std::int64_t, CacheCodec>> layer_codecs{};
  SkipList skip{};               ///< absolute indices; the name "sliding_window" is accepted
  std::int64_t block_size = 16;  ///< tokens of a page before unification
  std::int64_t tensor_parallel = 1;
  std::int64_t num_speculative_tokens = 0;
  std::optional<CacheDType> dense_dtype{};  ///< of uncompressed caches; default the model's
  /// Bytes of one recurrent state per rank, for models whose file does not give its shape.
  std::optional<std::int64_t> recurrent_state_bytes{};
};

namespace detail {

/// KV heads of one rank: an even share, or one replicated head.
inline std::int64_t kv_heads_per_rank(std::int64_t layer, std::optional<std::int64_t> heads,
                                      std::int64_t ranks) {
  require(
      heads.has_value(), ErrorCode::invalid_argument, "assign_layer_caches: layer ", layer,
      " has no num_kv_heads, expected num_key_value_heads or num_attention_heads in the config");
  require(*heads > 0 && (*heads % ranks == 0 || ranks % *heads == 0), ErrorCode::invalid_argument,
          "assign_layer_caches: num_kv_heads of layer ", layer, " is ", *heads,
          ", expected a multiple or a divisor of tensor_parallel = ", ranks);
  return std::max<std::int64_t>(1, *heads / ranks);
}

/// Ranks share the query heads evenly, whatever they do with KV heads.
inline void require_shared_heads(const ModelConfig& model, std::int64_t ranks) {
  const bool attends = model.attention_presence() != AttentionPresence::none;
  require(!attends || model.num_attention_heads.value_or(ranks) % ranks == 0,
          ErrorCode::invalid_argument, "assign_layer_caches: num_attention_heads is ",
          model.num_attention_heads.value_or(ranks),
          ", expected a multiple of tensor_parallel = ", ranks);
}

/// Checks every size of a layer's cache; messages name the layer.
inline void require_page_sizes(std::string_view where, std::int64_t layer,
                               const LayerCache& cache) {
  const ErrorContext context(where, ": layer ", layer, ": ");
  std::visit(
      [](const auto& attention) {
        if constexpr (requires { attention.page_size_bytes(); }) {
          static_cast<void>(attention.page_size_bytes());
        }
      },
      cache.attention);
  if (cache.state) {
    static_cast<void>(cache.state->page_size_bytes());
  }
}

inline std::int64_t require_width(std::int64_t layer, std::optional<std::int64_t> width) {
  require(width.has_value(), ErrorCode::invalid_argument, "assign_layer_caches: layer ", layer,
          " has no head_size, expected head_dim, or hidden_size and num_attention_heads, in the "
          "config");
  return *width;
}

inline std::optional<CacheCodec> codec_of_layer(const LayerCacheOptions& options,
                                                std::int64_t layer) {
  for (const auto& [index, codec] : options.layer_codecs) {
    if (index == layer) {
      return codec;
    }
  }
  return options.codec;
}

/// Marks the owners of every skipped layer; a skipped reader protects the cache that it reads.
inline std::vector<bool> skipped_owners(const ModelConfig& model, const SkipList& skip) {
  for (const std::string& name : skip.names) {
    require(name == "sliding_window", ErrorCode::invalid_argument,
            "assign_layer_caches: skip entry is \"", name,
            "\", expected a layer index or \"sliding_window\"");
  }
  std::vector<bool> skipped(model.layers.size(), false);
  for (const std::int64_t layer : skip.layers) {
    require(layer >= 0 && layer < model.num_layers(), ErrorCode::out_of_range,
            "assign_layer_caches: skip layer is ", layer, ", expected an absolute index 0..",
            model.num_layers() - 1);
    const LayerConfig& config = model.layers[static_cast<std::size_t>(layer)];
    require(config.attention != AttentionKind::none || !config.has_recurrent_state,
            ErrorCode::invalid_argument, "assign_layer_caches: skip layer is ", layer,
            ", a recurrent layer; expected an absolute index of a layer with attention");
    skipped[static_cast<std::size_t>(model.cache_owner(layer))] = true;
  }
  return skipped;
}

inline AttentionCache attention_cache(const ModelConfig& model, std::int64_t index, bool skipped,
                                      const LayerCacheOptions& options) {
  const LayerConfig& layer = model.layers[static_cast<std::size_t>(index)];
  const CacheDType dtype = options.dense_dtype.value_or(model.dtype);
  if (layer.attention == AttentionKind::none) {
    return {};
  }
  if (layer.kv_source) {
    const std::int64_t source = model.cache_owner(index);
    const LayerConfig& owner = model.layers[static_cast<std::size_t>(source)];
    const bool sees_fewer = layer.attention != AttentionKind::full &&
                            (layer.attention != owner.attention || layer.window != owner.window);
    return SharedCache{source, sees_fewer ? layer.window : std::nullopt};
  }
  if (layer.is_mla) {
    require(model.mla.has_value(), ErrorCode::invalid_argument, "assign_layer_caches: layer ",
            index,
            " uses latent attention, expected kv_lora_rank and qk_rope_head_dim in the config");
    MLAAttentionSpec spec;
    spec.block_size = options.block_size;
    spec.head_size = model.mla->latent_width();
    spec.dtype = dtype;
    return spec;
  }
  const std::int64_t heads = kv_heads_per_rank(index, layer.num_kv_heads, options.tensor_parallel);
  const std::int64_t width = require_width(index, layer.head_size);
  const std::int64_t width_v = layer.head_size_v.value_or(width);
  if (layer.attention != AttentionKind::full) {
    require(layer.window.has_value(), ErrorCode::invalid_argument, "assign_layer_caches: layer ",
            index, " has no window, expected sliding_window or attention_chunk_size in the config");
    SlidingWindowSpec spec;
    spec.block_size = options.block_size;
    spec.num_kv_heads = heads;
    spec.head_size = width;
    spec.head_size_v = width_v;
    spec.dtype = dtype;
    spec.sliding_window = *layer.window;
    spec.chunked = layer.attention == AttentionKind::chunked;
    return spec;
  }
  const std::optional<CacheCodec> codec = codec_of_layer(options, index);
  if (codec && !skipped) {
    const TurboQuantConfig config(*codec, width, width_v);
    require(config.encodable_head_sizes(), ErrorCode::unsupported, "assign_layer_caches: layer ",
            index, " has head_size ", width, " and head_size_v ", width_v, ", which ", codec->name,
            " cannot encode, expected ", config.rotates_keys() ? 3 : 1, "..",
            TurboQuantConfig::max_encodable_head_size, " and ", config.rotates_values() ? 3 : 1,
            "..", TurboQuantConfig::max_encodable_head_size, " (skip the layer or use no codec)");
    return TQFullAttentionSpec{options.block_size, heads, config, {}};
  }
  FullAttentionSpec spec;
  spec.block_size = options.block_size;
  spec.num_kv_heads = heads;
  spec.head_size = width;
  spec.head_size_v = width_v;
  spec.dtype = dtype;
  return spec;
}

inline MambaSpec state_cache(const ModelConfig& model, const LayerCacheOptions& options) {
  if (options.recurrent_state_bytes) {
    MambaSpec spec;
    spec.arrays.push_back({{*options.recurrent_state_bytes}, CacheDType::int8});
    spec.num_speculative_blocks = options.num_speculative_tokens;
    return spec;
  }
  require(
      model.recurrent.has_value(), ErrorCode::invalid_argument,
      "assign_layer_caches: the shape of the recurrent state is unknown, expected the model's "
      "linear_*, mamba_*, ssm_*, conv_* or lru_* sizes in the config, or recurrent_state_bytes");
  return recurrent_state_spec(*model.recurrent,
                              {options.tensor_parallel, options.num_speculative_tokens, 1});
}

}  // namespace detail

/// Gives every layer its cache.
///
/// Only full attention is compressed: windows bound themselves and stay exact, latents and
/// recurrent states have no codec here. A skipped layer keeps the model's element type on the
/// default backend; skipping the target of shared layers skips its readers, and skipping a reader
/// skips its target. O(layers), deterministic.
/// @throws Error(invalid_argument | out_of_range) for a skip entry that is unknown, outside the
/// model or a recurrent layer, for widths the config does not give, for heads the ranks cannot
/// share, for a codec assigned twice, to a skipped layer, or to a layer that has no full attention
/// of its own, for windows without tokens, for a `kv_source` whose cache the layer cannot read, and
/// for more than 10,000 layers; Error(overflow) for pages beyond 64 bits; Error(unsupported) for
/// head sizes that the codec cannot encode.
[[nodiscard]] inline std::vector<LayerCache> assign_layer_caches(const ModelConfig& model,
                                                                 const LayerCacheOptions& options) {
  detail::require_positive("assign_layer_caches", "block_size", options.block_size);
  detail::require_positive("assign_layer_caches", "tensor_parallel", options.tensor_parallel);
  detail::require_positive("assign_layer_caches", "recurrent_state_bytes",
                           options.recurrent_state_bytes.value_or(1));
  detail::require_not_negative("assign_layer_caches", "num_speculative_tokens",
                               options.num_speculative_tokens);
  detail::require_model("assign_layer_caches", model);
  detail::require_shared_heads(model, options.tensor_parallel);
  for (const auto& [index, codec] : options.layer_codecs) {
    require(index >= 0 && index < model.num_layers(), ErrorCode::out_of_range,
            "assign_layer_caches: layer_codecs names layer ", index, ", expected 0..",
            model.num_layers() - 1);
    const LayerConfig& layer = model.layers[static_cast<std::size_t>(index)];
    require(layer.attention == AttentionKind::full && !layer.kv_source && !layer.is_mla,
            ErrorCode::invalid_argument, "assign_layer_caches: layer_codecs gives layer ", index,
            " the codec ", codec.name, ", expected a full-attention layer with a cache of its own");
  }
  const std::vector<bool> skipped = detail::skipped_owners(model, options.skip);
  std::vector<bool> has_codec(model.layers.size(), false);
  for (const auto& [index, codec] : options.layer_codecs) {
    const auto at = static_cast<std::size_t>(index);
    require(!has_codec[at], ErrorCode::invalid_argument,
            "assign_layer_caches: layer_codecs names layer ", index,
            " twice, expected each layer once");
    require(!skipped[at], ErrorCode::invalid_argument,
            "assign_layer_caches: layer_codecs gives layer ", index, " the codec ", codec.name,
            " and the skip list leaves it uncompressed, expected one of the two");
    has_codec[at] = true;
  }
  std::vector<LayerCache> caches(model.layers.size());
  for (std::int64_t i = 0; i < model.num_layers(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const auto owner = static_cast<std::size_t>(model.cache_owner(i));
    caches[at].attention = detail::attention_cache(model, i, skipped[owner], options);
    caches[at].skipped = model.layers[at].attention == AttentionKind::full && skipped[owner];
    if (model.layers[at].has_recurrent_state) {
      caches[at].state = detail::state_cache(model, options);
    }
    detail::require_page_sizes("assign_layer_caches", i, caches[at]);
  }
  return caches;
}

}  // namespace turboquant
