#pragma once

#include <turboquant/model/hf_config_fields.hpp>
#include <turboquant/model/model_config.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace turboquant::detail {

/// The field in which any model may state what single layers have instead of the model's numbers.
inline constexpr std::string_view layer_override_field = "per_layer_config";

/// What single layers override, by layer. Keys are decimal numbers, with or without leading zeros.
inline std::map<std::int64_t, ConfigFields> layer_overrides(const ConfigFields& fields,
                                                            std::int64_t num_layers) {
  std::map<std::int64_t, ConfigFields> overrides;
  const auto all = fields.object(layer_override_field);
  for (const std::string& key : all ? all->names() : std::vector<std::string>{}) {
    const bool digits =
        !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos;
    const std::int64_t layer = digits ? std::stoll(key) : num_layers;
    require(layer < num_layers, ErrorCode::format, "parse_model_config: ", all->path(),
            " has the key \"", printable(key, 40), "\", expected a layer in 0..", num_layers - 1);
    const auto layer_fields = all->object(key);
    require(layer_fields.has_value(), ErrorCode::format, "parse_model_config: ", all->path(), ".",
            key, " is null, expected an object");
    require(overrides.emplace(layer, *layer_fields).second, ErrorCode::format,
            "parse_model_config: ", all->path(), " has layer ", layer,
            " twice, expected each layer once");
  }
  return overrides;
}

/// Whether a layer may override a field that no cache depends on.
inline bool is_beside_cache(std::string_view name) {
  return is_among(name,
                  {"intermediate_size", "moe_intermediate_size", "num_experts", "num_local_experts",
                   "n_routed_experts", "num_experts_per_tok", "top_k_experts", "hidden_act",
                   "rope_parameters", "use_double_wide_mlp", "enable_moe_block",
                   "num_attention_heads"});  // the last is compared with the KV heads
}

/// Gives layers the KV heads, the width and the window that they override; a window only where the
/// layer has one.
/// @throws Error(unsupported) for a field whose effect on a cache is not known.
inline void apply_layer_overrides(const ConfigFields& fields, ModelConfig& model) {
  for (const auto& [index, overrides] : layer_overrides(fields, model.num_layers())) {
    LayerConfig& layer = model.layers[static_cast<std::size_t>(index)];
    for (const std::string& name : overrides.names()) {
      const bool sizes_rows = name == "head_dim" || name == "num_key_value_heads";
      const bool windowed = layer.attention == AttentionKind::sliding;
      const bool skips_nothing =
          name == "skip" && overrides.strings(name).value_or(std::vector<std::string>{}).empty();
      if (sizes_rows && !model.mla) {
        (name == "head_dim" ? layer.head_size : layer.num_kv_heads) =
            overrides.required_size({name});
      } else if (name == "sliding_window" && windowed && overrides.has(name)) {
        layer.window = overrides.size(name);
      } else {
        const bool no_window = name == "sliding_window" && !overrides.has(name) &&
                               layer.attention != AttentionKind::sliding;
        require(skips_nothing || no_window || is_beside_cache(name), ErrorCode::unsupported,
                "parse_model_config: ", overrides.path(), " overrides ", printable(name, 60),
                ": what that layer keeps is not known");
      }
    }
  }
}

}  // namespace turboquant::detail
