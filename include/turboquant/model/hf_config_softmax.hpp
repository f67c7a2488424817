#pragma once

#include <turboquant/model/hf_config_defaults.hpp>
#include <turboquant/model/hf_config_fields.hpp>
#include <turboquant/model/hf_config_mla.hpp>
#include <turboquant/model/model_config.hpp>

#include <algorithm>
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
inline std::optional<double> stated_attention_scale(const ConfigFields& fields,
                                                    std::string_view model_type) {
  if (const std::optional<double> scale = positive_number(fields, "attention_multiplier")) {
    return scale;
  }
  if (const std::optional<double> scalar = positive_number(fields, "query_pre_attn_scalar")) {
    return 1.0 / std::sqrt(*scalar);
  }
  if (fields.boolean("scale_attn_weights") == false) {
    return 1.0;
  }
  if (model_type.substr(0, 4) == "grok") {
    return positive_number(fields, "attn_output_multiplier");
  }
  const std::optional<ConfigFields> attention = fields.object("attn_config");
  return attention ? positive_number(*attention, "softmax_scale") : std::nullopt;
}

/// Whether a class leaves logits as they are, whatever factor its file states.
inline bool has_unit_scale(std::string_view model_type) {
  return is_gemma4(model_type) || is_among(model_type, {"diffusion_gemma", "diffusion_gemma_text",
                                                        "gemma3n", "gemma3n_text", "gpt_neo"});
}

/// The factor of classes that do not take 1 / sqrt(head_size) where their file is silent.
inline std::optional<double> class_attention_scale(std::string_view model_type) {
  if (is_among(model_type, {"gemma2", "gemma3", "gemma3_text", "vaultgemma"})) {
    return 1.0 / 16;
  }
  if (is_among(model_type, {"granite", "granite4_vision_text", "granite_swa", "granitemoe",
                            "granitemoe_swa", "granitemoehybrid", "granitemoeshared"})) {
    return 1.0;
  }
  return model_type == "granite_docling_text" ? std::optional<double>(1.0 / 64) : std::nullopt;
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

/// The factor where logits are divided by the whole width of a head, not by its root: by switches
/// of width-independent training, in Phi-3-small beside a multiplier, and in Inkling always.
inline std::optional<double> by_width_scale(const ConfigFields& fields, std::string_view model_type,
                                            std::int64_t width) {
  const double inverse = 1.0 / static_cast<double>(width);
  if (model_type == "phi3small") {
    const double factor = positive_number(fields, "mup_attn_multiplier").value_or(1.0);
    return fields.boolean("mup_use_scaling").value_or(true)
               ? std::optional<double>(factor * inverse)
               : std::nullopt;
  }
  const bool by_width = fields.boolean("mup_scale_qk_dot_by_d")
                            .value_or(fields.boolean("scale_qk_dot_by_d").value_or(false));
  return by_width || model_type == "inkling_text" ? std::optional<double>(inverse) : std::nullopt;
}

/// The factor of logits where it is not 1 / sqrt(head_size). Zamba's heads span two rows and are
/// scaled as half as wide ones.
inline std::optional<double> parse_attention_scale(const ConfigFields& fields,
                                                   const ModelConfig& model) {
  const std::optional<double> stated = stated_attention_scale(fields, model.model_type);
  if (has_unit_scale(model.model_type)) {
    return 1.0;
  }
  if (stated) {
    return stated;
  }
  if (model.mla) {
    return latent_attention_scale(fields, model);
  }
  if (const std::optional<std::int64_t> width = common_head_size(model)) {
    if (const auto scale = by_width_scale(fields, model.model_type, *width)) {
      return scale;
    }
    if (model.model_type == "zamba" || model.model_type == "zamba2") {
      return 1.0 / std::sqrt(static_cast<double>(*width) / 2.0);
    }
  }
  return class_attention_scale(model.model_type);
}

/// The cap on logits: stated, in Grok under a name of its own, or the class's.
inline std::optional<double> parse_logit_cap(const ConfigFields& fields,
                                             std::string_view model_type) {
  if (const auto cap = positive_number(fields, "attn_logit_softcapping")) {
    return cap;
  }
  if (const auto cap = positive_number(fields, "max_attn_value")) {
    return cap;
  }
  const bool capped = is_among(model_type, {"gemma2", "vaultgemma"});
  return capped && !fields.is_null("attn_logit_softcapping") ? std::optional<double>(50.0)
                                                             : std::nullopt;
}

/// Marks the layers with learned sinks: of all layers, or of windowed ones, where the class has
/// them, unless the file says otherwise.
inline void apply_sinks(const ConfigFields& fields, ModelConfig& model) {
  const bool everywhere =
      is_among(model.model_type, {"deepseek_v4", "flint", "gpt_oss", "granite_swa",
                                  "granitemoe_swa", "hy_v4", "hy_v4_vl_text"});
  const bool full = fields.boolean("add_full_attention_sink_bias").value_or(everywhere);
  const bool windowed = fields.boolean("add_swa_attention_sink_bias")
                            .value_or(everywhere || model.model_type == "mimo_v2_flash");
  for (LayerConfig& layer : model.layers) {
    layer.has_learned_sinks = layer.attention != AttentionKind::none &&
                              (layer.attention == AttentionKind::full ? full : windowed);
  }
}

/// What attention has beside rows: the factor of its logits, a cap on them, and learned sinks. What
/// one number for all layers and tokens cannot say is noted.
inline void parse_softmax(const ConfigFields& fields, ModelConfig& model) {
  model.attention_scale = parse_attention_scale(fields, model);
  model.attn_logit_softcapping = parse_logit_cap(fields, model.model_type);
  apply_sinks(fields, model);
  if (model.mla && !model.attention_scale) {
    model.notes.push_back(
        "the file states no qk_nope_head_dim: the attention scale of latent attention is not "
        "known");
  }
  if (fields.boolean("scale_attn_by_inverse_layer_idx").value_or(false)) {
    model.notes.push_back(
        "scale_attn_by_inverse_layer_idx: layer i divides its logits by i + 1 "
        "beside the attention scale");
  }
  if (is_among(model.model_type, {"inkling2_text", "inkling2_loop_text"})) {
    model.notes.push_back("every token computes the logits of its own sinks: they are not learned");
  }
}

}  // namespace turboquant::detail
