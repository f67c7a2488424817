#pragma once

#include <turboquant/model/hf_config_defaults.hpp>
#include <turboquant/model/hf_config_layers.hpp>
#include <turboquant/model/hf_config_overrides.hpp>
#include <turboquant/model/model_config.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace turboquant::detail {

inline std::optional<std::int64_t> stated_hidden_size(const ConfigFields& fields) {
  const std::optional<std::int64_t> stated =
      fields.agreed_size({"hidden_size", "n_embd", "n_embed", "d_model", "model_dim"});
  return stated ? stated : fields.size("hidden_dim");
}

/// Query heads where the file gives one number.
inline std::optional<std::int64_t> stated_heads(const ConfigFields& fields) {
  const std::optional<std::int64_t> stated =
      fields.agreed_size({"num_attention_heads", "n_head", "n_heads"});
  return stated ? stated : fields.size("num_heads");
}

/// Whether all query heads read one KV head, whatever number of KV heads stands beside it.
inline bool is_multi_query(const ConfigFields& fields, std::string_view model_type) {
  const bool class_default = model_type == "falcon" || model_type == "gpt_bigcode";
  if (fields.boolean("multi_query").value_or(class_default)) {
    return !fields.boolean("new_decoder_architecture").value_or(false);
  }
  const std::optional<ConfigFields> attention = fields.object("attn_config");
  return attention && attention->string("attn_type") == "multiquery_attention";
}

/// KV heads where the file gives one number: 1 for multi-query attention, else the stated number.
inline std::optional<std::int64_t> stated_kv_heads(const ConfigFields& fields,
                                                   std::string_view model_type) {
  if (is_multi_query(fields, model_type)) {
    return 1;
  }
  const std::optional<std::int64_t> stated = fields.agreed_size(
      {"num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "num_attention_groups"});
  if (stated) {
    return stated;
  }
  // ChatGLM states a number of groups even where a switch turns them off.
  if (fields.boolean("multi_query_attention").value_or(model_type != "chatglm")) {
    if (const auto groups = fields.size("multi_query_group_num")) {
      return groups;
    }
  }
  const std::optional<ConfigFields> attention = fields.object("attn_config");
  return attention ? attention->size("kv_n_heads") : std::nullopt;
}

/// The stated number, else the class's, else the query heads. An explicit null means the query
/// heads.
inline std::optional<std::int64_t> uniform_kv_heads(const ConfigFields& fields,
                                                    const ModelConfig& model) {
  if (const auto stated = stated_kv_heads(fields, model.model_type)) {
    return stated;
  }
  const std::int64_t class_default = class_defaults(model.model_type).num_kv_heads;
  return class_default == 0 || fields.is_null("num_key_value_heads")
             ? model.num_attention_heads
             : std::optional<std::int64_t>(class_default);
}

/// Whether the file says that every query head has its KV head without giving their number.
inline bool states_as_many_kv_heads(const ConfigFields& fields) {
  if (fields.is_null("num_key_value_heads") || fields.boolean("multi_query") == false ||
      fields.boolean("multi_query_attention") == false) {
    return true;
  }
  const std::optional<ConfigFields> attention = fields.object("attn_config");
  return attention && attention->string("attn_type") == "multihead_attention";
}

/// Tells when layers have as many KV heads as query heads although neither file nor class says so.
/// @param heads  what layers without a number of their own have
inline void note_assumed_kv_heads(const ConfigFields& fields, std::optional<std::int64_t> heads,
                                  ModelConfig& model) {
  if (!heads || has_as_many_kv_heads(model.model_type) || states_as_many_kv_heads(fields) ||
      stated_kv_heads(fields, model.model_type)) {
    return;
  }
  const bool assumed =
      std::any_of(model.layers.begin(), model.layers.end(), [&](const LayerConfig& layer) {
        return layer.attention != AttentionKind::none && !layer.is_mla &&
               layer.num_kv_heads == heads;
      });
  if (assumed) {
    model.notes.push_back("the file states no number of KV heads: " + std::to_string(*heads) +
                          ", as many as query heads, are assumed");
  }
}

/// The width of a head where the file gives one. Files of latent attention give several, each of
/// another part.
inline std::optional<std::int64_t> stated_head_size(const ConfigFields& fields,
                                                    const ModelConfig& model) {
  if (model.model_type == "zamba" || model.model_type == "zamba2") {
    return fields.size("attention_head_dim");
  }
  const auto stated = model.mla
                          ? fields.size({"head_dim", "attention_head_dim", "kv_channels"})
                          : fields.agreed_size({"head_dim", "attention_head_dim", "kv_channels"});
  return stated ? stated : fields.size("hidden_size_per_head");
}

/// An explicit width, else the class's, else hidden_size / num_attention_heads, nothing where one
/// of these is the class's and the other does not divide it. Zamba's attention reads two rows side
/// by side, so that its heads are twice as wide.
inline std::optional<std::int64_t> uniform_head_size(const ConfigFields& fields,
                                                     const ModelConfig& model) {
  const bool zamba = model.model_type == "zamba" || model.model_type == "zamba2";
  const auto stated =
      or_default(stated_head_size(fields, model), class_defaults(model.model_type).head_dim);
  if (stated || !model.hidden_size || !model.num_attention_heads) {
    return stated;
  }
  const std::int64_t row = checked_mul(*model.hidden_size, zamba ? 2 : 1);
  const std::int64_t heads = *model.num_attention_heads;
  if (row % heads == 0) {
    return row / heads;
  }
  // Latents have a width of their own; a number of the file and one of its class need not fit.
  require(model.mla || !stated_hidden_size(fields) || !stated_heads(fields), ErrorCode::format,
          "parse_model_config: ", fields.path(), " has hidden_size ", *model.hidden_size, " and ",
          heads, " attention heads and no head_dim, expected a multiple");
  return std::nullopt;
}

/// Value width where it differs from the key's. Files with a switch for latent attention state the
/// latter's width even where it is off, and 0 where there is none.
inline std::optional<std::int64_t> uniform_head_size_v(const ConfigFields& fields,
                                                       const ModelConfig& model) {
  if (model.mla || fields.boolean("use_mla").has_value()) {
    return std::nullopt;
  }
  const std::optional<std::int64_t> width = fields.integer("v_head_dim", 0, 1 << 20);
  return width == 0 ? std::nullopt : width;
}

/// A size of windowed layers under one of its spellings at the top, or in
/// `attention_other_setting`.
inline std::optional<std::int64_t> windowed_size(const ConfigFields& fields,
                                                 std::initializer_list<std::string_view> names,
                                                 std::string_view nested_name) {
  if (const std::optional<std::int64_t> stated = fields.size(names)) {
    return stated;
  }
  const std::optional<ConfigFields> nested = fields.object("attention_other_setting");
  return nested ? nested->size(nested_name) : std::nullopt;
}

/// KV heads and width that full layers have beside the model's: everywhere under their own names,
/// in Gemma 4 and DiffusionGemma with a width of the class, and neither beside overrides. Gemma 4
/// has KV heads of its own there where a switch is on.
struct FullLayerWidths {
  std::optional<std::int64_t> num_kv_heads{};
  std::optional<std::int64_t> head_size{};
};

inline FullLayerWidths full_layer_widths(const ConfigFields& fields, const ModelConfig& model) {
  FullLayerWidths full{fields.size("num_global_key_value_heads"), fields.size("global_head_dim")};
  if (has_wide_full_layers(model.model_type)) {
    if (fields.has(layer_override_field)) {
      return {};
    }
    full.head_size = full.head_size.value_or(512);
    if (is_gemma4(model.model_type) && !fields.boolean("attention_k_eq_v").value_or(false)) {
      full.num_kv_heads.reset();
    }
  }
  return full;
}

/// KV heads of windowed layers: stated, in MiMo-V2-Flash twice those of full layers, in Inkling a
/// number of the class, else those of full layers.
inline std::optional<std::int64_t> windowed_kv_heads(const ConfigFields& fields,
                                                     const ModelConfig& model,
                                                     std::optional<std::int64_t> heads) {
  const auto stated = windowed_size(fields, {"swa_num_key_value_heads", "num_swa_key_value_heads"},
                                    "num_attention_groups");
  if (!stated && heads && model.model_type == "mimo_v2_flash") {
    return 2 * *heads;
  }
  const std::int64_t class_default =
      model.model_type == "inkling_text"                                    ? 16
      : is_among(model.model_type, {"inkling2_text", "inkling2_loop_text"}) ? 8
                                                                            : 0;
  const auto own = or_default(stated, class_default);
  return own ? own : heads;
}

inline void apply_widths(const ConfigFields& fields, ModelConfig& model) {
  const std::string_view list_field = kv_head_list_field(fields);
  std::vector<std::int64_t> listed;
  if (!list_field.empty()) {
    listed = *fields.integers(list_field, 0, 1 << 20);
    require(listed.size() >= model.layers.size(), ErrorCode::format,
            "parse_model_config: ", fields.path(), ".", list_field, " has ", listed.size(),
            " entries, expected ", model.num_layers());
  }
  const auto heads = listed.empty() ? uniform_kv_heads(fields, model) : std::nullopt;
  const auto windowed = windowed_kv_heads(fields, model, heads);
  const auto width = uniform_head_size(fields, model);
  const auto width_v = uniform_head_size_v(fields, model);
  const FullLayerWidths full_widths = full_layer_widths(fields, model);
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    LayerConfig& layer = model.layers[i];
    if (layer.attention == AttentionKind::none) {
      continue;
    }
    const bool full = layer.attention == AttentionKind::full;
    layer.is_mla = full && model.mla.has_value();
    if (!layer.num_kv_heads) {
      layer.num_kv_heads = !full                      ? windowed
                           : full_widths.num_kv_heads ? full_widths.num_kv_heads
                                                      : heads;
    }
    if (!listed.empty()) {
      require(listed[i] > 0, ErrorCode::format, "parse_model_config: ", fields.path(), ".",
              list_field, "[", i, "] is 0, expected KV heads for an attention layer");
      layer.num_kv_heads = listed[i];
    }
    if (!layer.head_size) {
      const auto special =
          full ? full_widths.head_size : windowed_size(fields, {"swa_head_dim"}, "head_dim");
      layer.head_size = special ? special : width;
    }
    const auto special_v = full ? std::nullopt : fields.size("swa_v_head_dim");
    layer.head_size_v = special_v ? special_v : width_v;
  }
  note_assumed_kv_heads(fields, heads, model);
}

/// Query heads per layer where the file lists them, else nothing.
inline std::optional<std::vector<std::int64_t>> query_head_list(const ConfigFields& fields,
                                                                std::size_t num_layers) {
  for (const std::string_view name : {"num_query_heads", "num_attention_heads_per_layer"}) {
    const nlohmann::json* value = fields.find(name);
    if (value != nullptr && value->is_array()) {
      std::vector<std::int64_t> heads = *fields.integers(name, 0, 1 << 20);
      require(heads.size() >= num_layers, ErrorCode::format, "parse_model_config: ", fields.path(),
              ".", name, " has ", heads.size(), " entries, expected ", num_layers);
      return heads;
    }
  }
  return std::nullopt;
}

/// Every KV head serves the same number of query heads. Latent attention has no KV heads.
inline void require_head_groups(const ConfigFields& fields, const ModelConfig& model) {
  if (attn_object(fields)) {
    return;  // its rule has compared the heads
  }
  const auto listed = query_head_list(fields, model.layers.size());
  const auto windowed = windowed_size(
      fields, {"swa_num_attention_heads", "num_swa_attention_heads"}, "num_attention_heads");
  const auto overrides = layer_overrides(fields, model.num_layers());
  const std::int64_t class_kv_heads = class_defaults(model.model_type).num_kv_heads;
  const bool from_file =
      !kv_head_list_field(fields).empty() || stated_kv_heads(fields, model.model_type).has_value();
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const LayerConfig& layer = model.layers[i];
    if (layer.attention == AttentionKind::none || layer.is_mla || !layer.num_kv_heads) {
      continue;
    }
    std::optional<std::int64_t> queries = model.num_attention_heads;
    if (listed) {
      queries = (*listed)[i];
    } else if (windowed && layer.attention != AttentionKind::full) {
      queries = windowed;
    }
    const auto own = overrides.find(static_cast<std::int64_t>(i));
    if (own != overrides.end() && own->second.has("num_attention_heads")) {
      queries = own->second.size("num_attention_heads");
    }
    require(!queries || (*queries > 0 && *queries % *layer.num_kv_heads == 0), ErrorCode::format,
            "parse_model_config: ", fields.path(), " gives layer ", i,
            " num_attention_heads = ", queries.value_or(0),
            origin(queries != model.num_attention_heads || stated_heads(fields), model.model_type),
            " and num_key_value_heads = ", *layer.num_kv_heads,
            origin(from_file || *layer.num_kv_heads != class_kv_heads, model.model_type),
            ", expected a whole number of query heads for every KV head");
  }
}

}  // namespace turboquant::detail
