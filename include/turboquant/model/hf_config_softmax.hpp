#pragma once

#include <turboquant/model/hf_config_defaults.hpp>
#include <turboquant/model/hf_config_fields.hpp>
#include <turboquant/model/model_config.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace turboquant::detail {

/// A positive number that a float holds without losing digits.
inline std::optional<double> positive_number(const ConfigFields& fields, std::string_view name) {
  constexpr double least = (std::numeric_limits<float>::min)();
  constexpr double most = (std::numeric_limits<float>::max)();
  const std::optional<double> value = fields.number(name);
  require(!value || (*value >= least && *value <= most), ErrorCode::format,
          "parse_model_config: ", fields.path(), ".", name, " is ", value.value_or(0.0),
          ", expected a positive number in the range of float");
  return value;
}

/// The factor that a file states under a name of its own.
inline std::optional<double> stated_attention_scale(const ConfigFields& fields) {
  if (const std::optional<double> scale = positive_number(fields, "attention_multiplier")) {
    return scale;
  }
  if (const std::optional<double> scalar = positive_number(fields, "query_pre_attn_scalar")) {
    return 1.0 / std::sqrt(*scalar);
  }
  if (fields.boolean("scale_attn_weights") == false) {
    return 1.0;
  }
  const std::optional<ConfigFields> attention = fields.object("attn_config");
  return attention ? positive_number(*attention, "softmax_scale") : std::nullopt;
}

/// The factor of classes that do not take 1 / sqrt(head_size) where their file is silent.
inline std::optional<double> class_attention_scale(std::string_view model_type) {
  struct Known {
    std::string_view model_type;
    double scale;
  };
  static constexpr std::array known{
      Known{"gemma2", 1.0 / 16},      Known{"gemma3", 1.0 / 16},     Known{"gemma3_text", 1.0 / 16},
      Known{"vaultgemma", 1.0 / 16},  Known{"gemma3n", 1.0},         Known{"gemma3n_text", 1.0},
      Known{"gpt_neo", 1.0},          Known{"granite", 1.0},         Known{"granitemoe", 1.0},
      Known{"granitemoeshared", 1.0}, Known{"granitemoehybrid", 1.0}};
  for (const Known& k : known) {
    if (k.model_type == model_type) {
      return k.scale;
    }
  }
  return is_gemma4(model_type) ? std::optional<double>(1.0) : std::nullopt;
}

/// The width of a head where all attention layers have the same one.
inline std::optional<std::int64_t> common_head_size(const ModelConfig& model) {
  std::optional<std::int64_t> common;
  for (const LayerConfig& layer : model.layers) {
    if (layer.attention != AttentionKind::none) {
      if (!layer.head_size || (common && *common != *layer.head_size)) {
        return std::nullopt;
      }
      common = layer.head_size;
    }
  }
  return common;
}

/// The factor of logits where it is not 1 / sqrt(head_size). Zamba's heads span two rows and are
/// scaled as half as wide ones; a switch of width-independent training divides by the whole width.
inline std::optional<double> parse_attention_scale(const ConfigFields& fields,
                                                   const ModelConfig& model) {
  if (const std::optional<double> stated = stated_attention_scale(fields)) {
    return stated;
  }
  const std::optional<std::int64_t> width = common_head_size(model);
  const auto by_width = fields.boolean("mup_scale_qk_dot_by_d");
  if (width && by_width.value_or(fields.boolean("scale_qk_dot_by_d").value_or(false))) {
    return 1.0 / static_cast<double>(*width);
  }
  if (width && (model.model_type == "zamba" || model.model_type == "zamba2")) {
    return 1.0 / std::sqrt(static_cast<double>(*width) / 2.0);
  }
  return class_attention_scale(model.model_type);
}

/// What attention has beside rows: the factor of its logits, a cap on them, and learned sinks.
inline void parse_softmax(const ConfigFields& fields, ModelConfig& model) {
  model.attention_scale = parse_attention_scale(fields, model);
  if (fields.boolean("scale_attn_by_inverse_layer_idx").value_or(false)) {
    model.notes.push_back(
        "scale_attn_by_inverse_layer_idx: layer i divides its logits by i + 1 "
        "beside the attention scale");
  }
  const bool capped = model.model_type == "gemma2" || model.model_type == "vaultgemma";
  model.attn_logit_softcapping = positive_number(fields, "attn_logit_softcapping");
  if (!model.attn_logit_softcapping && capped && !fields.is_null("attn_logit_softcapping")) {
    model.attn_logit_softcapping = 50.0;
  }
  const bool everywhere = model.model_type == "gpt_oss";
  const bool full = fields.boolean("add_full_attention_sink_bias").value_or(everywhere);
  const bool windowed = fields.boolean("add_swa_attention_sink_bias").value_or(everywhere);
  for (LayerConfig& layer : model.layers) {
    layer.has_learned_sinks = layer.attention != AttentionKind::none &&
                              (layer.attention == AttentionKind::full ? full : windowed);
  }
}

}  // namespace turboquant::detail
