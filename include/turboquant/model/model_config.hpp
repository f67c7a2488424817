#pragma once

#include <turboquant/model/argument_checks.hpp>
#include <turboquant/model/cache_dtype.hpp>
#include <turboquant/model/recurrent_state.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace turboquant {

/// The most layers a model may have; larger counts are mistakes.
inline constexpr std::int64_t max_model_layers = 10000;

/// What a layer's attention keeps.
enum class AttentionKind {
  none,     ///< no token cache: recurrent, MLP or expert layer
  full,     ///< keys and values of every token
  sliding,  ///< of the newest `window` tokens
  chunked,  ///< of the current chunk of `window` tokens
};

[[nodiscard]] constexpr std::string_view to_string(AttentionKind kind) noexcept {
  switch (kind) {
    case AttentionKind::none: return "none";
    case AttentionKind::full: return "full";
    case AttentionKind::sliding: return "sliding";
    case AttentionKind::chunked: return "chunked";
  }
  return "unknown";
}

/// One decoder layer as the cache sees it.
struct LayerConfig {
  AttentionKind attention = AttentionKind::none;
  bool has_recurrent_state = false;  ///< alone, or beside attention in parallel hybrids
  bool is_mla = false;               ///< attention over a latent
  bool is_sparse = false;            ///< keeps every token, an indexer picks which are read
  bool has_learned_sinks = false;    ///< one learned logit per query head joins every softmax
  std::optional<std::int64_t> num_kv_heads{};
  std::optional<std::int64_t> head_size{};
  std::optional<std::int64_t> head_size_v{};
  std::optional<std::int64_t> window{};  ///< tokens, for sliding and chunked attention
  std::optional<std::int64_t>
      kv_source{};  ///< the earlier layer whose cache the attention reads instead of its own
};

/// Widths of multi-head latent attention.
struct MlaGeometry {
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_rope_head_dim = 0;
  std::optional<std::int64_t> qk_nope_head_dim{};
  std::optional<std::int64_t> v_head_dim{};

  /// Elements cached per token: latent + rope part.
  /// @throws Error(invalid_argument) for a negative width, Error(overflow)
  [[nodiscard]] std::int64_t latent_width() const {
    return detail::named_add("MlaGeometry", {"kv_lora_rank", kv_lora_rank},
                             {"qk_rope_head_dim", qk_rope_head_dim});
  }
  /// Key width of one head after expansion, where the file states it.
  /// @throws Error(invalid_argument) for a negative width, Error(overflow)
  [[nodiscard]] std::optional<std::int64_t> expanded_key_width() const {
    if (!qk_nope_head_dim) {
      return std::nullopt;
    }
    return detail::named_add("MlaGeometry", {"qk_nope_head_dim", *qk_nope_head_dim},
                             {"qk_rope_head_dim", qk_rope_head_dim});
  }
};

/// Whether there is anything to compress.
enum class AttentionPresence {
  full,           ///< at least one layer attends over the whole history
  windowed_only,  ///< only sliding or chunked layers
  none,           ///< no attention at all, stated by the configuration itself
};

/// A model's layers and widths, read from its configuration file or filled in by hand.
struct ModelConfig {
  std::string model_type{};
  std::vector<LayerConfig> layers{};
  std::string layer_rule{};                ///< which convention of the file produced `layers`
  std::vector<std::string> notes{};        ///< what a reader of the plan should know
  std::vector<std::int64_t> mtp_layers{};  ///< multi-token-prediction layers, after the main stack
  std::optional<std::int64_t> hidden_size{};
  std::optional<std::int64_t> num_attention_heads{};
  std::optional<std::int64_t> max_position_embeddings{};
  std::optional<double> attention_scale{};  ///< where the model overrides 1 / sqrt(head_size)
  /// Attention logits become `cap * tanh(logit / cap)`: `AttentionOptions::logits_soft_cap`.
  std::optional<double> attn_logit_softcapping{};
  CacheDType dtype = CacheDType::bfloat16;
  std::optional<MlaGeometry> mla{};
  std::optional<RecurrentGeometry> recurrent{};

  [[nodiscard]] std::int64_t num_layers() const noexcept {
    return static_cast<std::int64_t>(layers.size());
  }

  /// Indices of the layers that attend over the whole history, ascending.
  [[nodiscard]] std::vector<std::int64_t> full_attention_layers() const {
    return indices_of(
        [](const LayerConfig& layer) { return layer.attention == AttentionKind::full; });
  }

  /// Indices of the layers with a recurrent state, ascending.
  [[nodiscard]] std::vector<std::int64_t> recurrent_layers() const {
    return indices_of([](const LayerConfig& layer) { return layer.has_recurrent_state; });
  }

  /// True when any layer keeps a recurrent state; windows alone do not make a hybrid.
  [[nodiscard]] bool is_hybrid() const noexcept {
    for (const LayerConfig& layer : layers) {
      if (layer.has_recurrent_state) {
        return true;
      }
    }
    return false;
  }

  [[nodiscard]] AttentionPresence attention_presence() const noexcept {
    AttentionPresence presence = AttentionPresence::none;
    for (const LayerConfig& layer : layers) {
      if (layer.attention == AttentionKind::full) {
        return AttentionPresence::full;
      }
      if (layer.attention != AttentionKind::none) {
        presence = AttentionPresence::windowed_only;
      }
    }
    return presence;
  }

  /// The layer whose cache `layer` reads: itself, or the source it shares. A layer without
  /// attention reads none but its own, whatever its `kv_source`.
  /// @throws Error(out_of_range) for an index outside the model or a source that is itself shared.
  [[nodiscard]] std::int64_t cache_owner(std::int64_t layer) const {
    require(layer >= 0 && layer < num_layers(), ErrorCode::out_of_range,
            "ModelConfig::cache_owner: layer is ", layer, ", expected 0..", num_layers() - 1);
    const LayerConfig& reader = layers[static_cast<std::size_t>(layer)];
    const std::optional<std::int64_t> source = reader.kv_source;
    if (!source || reader.attention == AttentionKind::none) {
      return layer;
    }
    require(*source >= 0 && *source < num_layers() &&
                !layers[static_cast<std::size_t>(*source)].kv_source,
            ErrorCode::out_of_range, "ModelConfig::cache_owner: kv_source of layer ", layer, " is ",
            *source, ", expected a layer that owns its cache");
    return *source;
  }

 private:
  template <class Predicate>
  [[nodiscard]] std::vector<std::int64_t> indices_of(Predicate predicate) const {
    std::vector<std::int64_t> indices;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (predicate(layers[i])) {
        indices.push_back(static_cast<std::int64_t>(i));
      }
    }
    return indices;
  }
};

/// Makes full attention of every layer whose window or chunk holds `tokens` tokens or more, because
/// it keeps all of so many: windowed latent attention becomes latent attention, layers that read
/// another's cache go with it.
/// @return the number of layers changed. O(layers), deterministic.
inline std::int64_t widen_windows(ModelConfig& model, std::int64_t tokens) {
  std::int64_t changed = 0;
  for (LayerConfig& layer : model.layers) {
    const bool windowed =
        layer.attention == AttentionKind::sliding || layer.attention == AttentionKind::chunked;
    if (windowed && layer.window && *layer.window >= tokens) {
      layer.attention = AttentionKind::full;
      layer.window.reset();
      layer.is_mla = model.mla.has_value();
      ++changed;
    }
  }
  return changed;
}

/// A dense model: every layer attends over the whole history.
/// @throws Error(invalid_argument) for a layer count outside 0..10,000 or widths below 1.
[[nodiscard]] inline ModelConfig dense_model(std::int64_t num_layers, std::int64_t num_kv_heads,
                                             std::int64_t head_size) {
  require(num_layers >= 0 && num_layers <= max_model_layers, ErrorCode::invalid_argument,
          "dense_model: num_layers is ", num_layers, ", expected 0..", max_model_layers);
  detail::require_positive("dense_model", "num_kv_heads", num_kv_heads);
  detail::require_positive("dense_model", "head_size", head_size);
  LayerConfig layer;
  layer.attention = AttentionKind::full;
  layer.num_kv_heads = num_kv_heads;
  layer.head_size = head_size;
  ModelConfig model;
  model.model_type = "dense";
  model.layer_rule = "dense_model";
  model.layers.assign(static_cast<std::size_t>(num_layers), layer);
  return model;
}

}  // namespace turboquant
