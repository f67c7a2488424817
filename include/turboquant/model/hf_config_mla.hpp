#pragma once

#include <turboquant/model/hf_config_defaults.hpp>
#include <turboquant/model/hf_config_fields.hpp>
#include <turboquant/model/model_config.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace turboquant::detail {

/// A class whose attention keeps latents, and the widths that it takes where its file is silent.
struct MlaClass {
  std::string_view model_type;
  std::int64_t kv_lora_rank;  ///< 0: none that is known
  std::int64_t qk_rope_head_dim;
  std::int64_t qk_nope_head_dim;
  std::int64_t v_head_dim;
  bool reads_mscale = true;  ///< whether mscale_all_dim of rotary positions changes its logits
};

inline std::optional<MlaClass> mla_class(std::string_view model_type) {
  static constexpr std::array known{MlaClass{"axk1", 512, 64, 128, 128},
                                    MlaClass{"axk2", 128, 32, 64, 64},
                                    MlaClass{"bailing_hybrid", 512, 64, 128, 128},
                                    MlaClass{"deepseek_v2", 512, 64, 128, 128},
                                    MlaClass{"deepseek_v3", 512, 64, 128, 128},
                                    MlaClass{"deepseek_v32", 512, 64, 128, 128},
                                    MlaClass{"dots3_note_text", 512, 64, 128, 128, false},
                                    MlaClass{"glm4_moe_lite", 512, 64, 192, 256},
                                    MlaClass{"glm5_next_text", 512, 0, 256, 256, false},
                                    MlaClass{"glm_moe_dsa", 512, 64, 192, 256},
                                    MlaClass{"hy_v4", 512, 64, 192, 256},
                                    MlaClass{"hy_v4_vl_text", 512, 64, 192, 256},
                                    MlaClass{"kimi_k2", 512, 64, 128, 128},
                                    MlaClass{"kimi_linear", 512, 64, 128, 128, false},
                                    MlaClass{"longcat_flash", 512, 64, 128, 128},
                                    MlaClass{"longcat_flash_ngram", 0, 0, 0, 0},
                                    MlaClass{"minicpm3", 256, 32, 64, 64},
                                    MlaClass{"mistral4", 256, 64, 64, 128},
                                    MlaClass{"mistral_large4_text", 512, 64, 64, 128},
                                    MlaClass{"sarvam_mla", 512, 64, 128, 128},
                                    MlaClass{"youtu", 512, 64, 128, 128}};
  return entry_of_class(known, model_type);
}

/// The width of latents: stated, or the class's. A file with the other widths of latent attention
/// and without this one cannot be right, whatever its class.
inline std::optional<std::int64_t> parse_kv_lora_rank(const ConfigFields& fields,
                                                      const std::optional<MlaClass>& known) {
  constexpr std::string_view name = "kv_lora_rank";
  if (const std::optional<std::int64_t> stated = fields.size(name)) {
    return stated;
  }
  const std::string_view beside =
      known ? fields.first_present(
                  {"q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})
      : fields.boolean("use_mla").value_or(false) ? std::string_view("use_mla")
      : fields.integer("qk_nope_head_dim", 0, 1 << 20).value_or(0) > 0 &&
              fields.integer("qk_rope_head_dim", 0, 1 << 20).value_or(0) > 0
          ? std::string_view("qk_nope_head_dim and qk_rope_head_dim")
          : std::string_view();
  require(beside.empty() || !fields.is_null(name), ErrorCode::format,
          "parse_model_config: ", fields.path(), ".", name, " is null beside ", beside,
          ", expected the width of latents, or use_mla false");
  const std::int64_t rank = known ? known->kv_lora_rank : 0;
  require(rank > 0 || (beside.empty() && !known), ErrorCode::format,
          "parse_model_config: ", fields.path(), " has no ", name, ", which ",
          known ? known->model_type : beside, " needs, or use_mla false");
  return rank > 0 ? std::optional<std::int64_t>(rank) : std::nullopt;
}

/// Whether keys and values come from a latent: by `kv_lora_rank` or the class, unless `use_mla`
/// says no.
inline std::optional<MlaGeometry> parse_mla(const ConfigFields& fields,
                                            std::string_view model_type) {
  if (!fields.boolean("use_mla").value_or(true)) {
    return std::nullopt;
  }
  const std::optional<MlaClass> known = mla_class(model_type);
  const std::optional<std::int64_t> rank = parse_kv_lora_rank(fields, known);
  if (!rank) {
    return std::nullopt;
  }
  const bool has_widths = known && known->kv_lora_rank > 0;
  std::optional<std::int64_t> rope = fields.integer("qk_rope_head_dim", 0, 1 << 20);
  if (!rope && has_widths) {
    rope = known->qk_rope_head_dim;
  }
  require(rope.has_value(), ErrorCode::format, "parse_model_config: ", fields.path(),
          " has kv_lora_rank and no qk_rope_head_dim");
  return MlaGeometry{
      *rank, *rope,
      or_default(fields.size("qk_nope_head_dim"), has_widths ? known->qk_nope_head_dim : 0),
      or_default(fields.size("v_head_dim"), has_widths ? known->v_head_dim : 0)};
}

/// What latents keep that one width for all layers cannot say.
inline void note_latents(const ModelConfig& model, std::vector<std::string>& notes) {
  if (model.mla && model.model_type == "mistral_large4_text") {
    notes.push_back(
        "layers without rotary positions keep qk_rope_head_dim numbers a token less than counted");
  }
}

/// What stretched rotary positions multiply queries and keys of latent attention by: YaRN's
/// 0.1 * mscale_all_dim * ln(factor) + 1 where the file states mscale_all_dim.
inline double rotary_magnitude(const ConfigFields& fields, std::string_view model_type) {
  const std::optional<MlaClass> known = mla_class(model_type);
  if (known && !known->reads_mscale) {
    return 1.0;
  }
  const auto magnitude = [](double factor, double mscale) {
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
  };
  for (const std::string_view name : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* value = fields.find(name);
    if (value == nullptr || !value->is_object() || value->empty()) {
      continue;
    }
    const ConfigFields rope = *fields.object(name);
    const std::string_view type = rope.first_present({"rope_type", "type"});
    const double mscale = rope.number("mscale_all_dim").value_or(0.0);
    if (type.empty() || rope.string(type) == "default" || mscale == 0.0) {
      return 1.0;
    }
    const std::optional<double> factor = rope.number("factor");
    require(factor.has_value(), ErrorCode::format, "parse_model_config: ", rope.path(),
            " has mscale_all_dim and no factor");
    return magnitude(*factor, mscale);
  }
  return model_type == "mistral4" ? magnitude(128.0, 1.0) : 1.0;
}

/// The factor of logits of latent attention: by the width of the keys that latents stand for.
inline std::optional<double> latent_attention_scale(const ConfigFields& fields,
                                                    const ModelConfig& model) {
  const bool own_width = is_longcat_flash(model.model_type);
  const std::optional<std::int64_t> stated =
      own_width ? fields.size("qk_head_dim") : std::optional<std::int64_t>();
  const std::optional<std::int64_t> width = stated ? stated : model.mla->expanded_key_width();
  if (!width) {
    return std::nullopt;
  }
  const double magnitude = rotary_magnitude(fields, model.model_type);
  return magnitude * magnitude / std::sqrt(static_cast<double>(*width));
}

}  // namespace turboquant::detail
