#pragma once

#include <turboquant/model/hf_config_layers.hpp>
#include <turboquant/model/hf_config_state.hpp>
#include <turboquant/model/model_config.hpp>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace turboquant {

namespace detail {

/// The object that describes the language model: a nested one where the file has it, else the root.
inline ConfigFields text_fields(const ConfigFields& root) {
  for (const std::string_view name : {"text_config", "llm_config", "language_config"}) {
    if (const std::optional<ConfigFields> nested = root.object(name)) {
      return *nested;
    }
  }
  if (const std::optional<ConfigFields> thinker = root.object("thinker_config")) {
    if (const std::optional<ConfigFields> nested = thinker->object("text_config")) {
      return *nested;
    }
  }
  return root;
}

/// Multi-token-prediction layers that the file appends to the main stack.
inline std::int64_t count_mtp_layers(const ConfigFields& fields) {
  const std::string_view name = fields.first_present(
      {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers"});
  const std::optional<std::int64_t> stated =
      name.empty() ? std::nullopt : fields.integer(name, 0, max_config_layers);
  if (stated) {
    return *stated;
  }
  const std::optional<std::string> pattern = fields.string("mtp_hybrid_override_pattern");
  require(!pattern || static_cast<std::int64_t>(pattern->size()) <= max_config_layers,
          ErrorCode::format, "parse_model_config: ", fields.path(),
          ".mtp_hybrid_override_pattern has ", pattern ? pattern->size() : 0,
          " characters, expected at most ", max_config_layers);
  return pattern ? static_cast<std::int64_t>(pattern->size()) : 0;
}

inline void apply_windows(const ConfigFields& fields, std::vector<LayerConfig>& layers) {
  for (LayerConfig& layer : layers) {
    if (layer.attention == AttentionKind::sliding) {
      layer.window =
          fields.size({"sliding_window", "sliding_window_size", "attention_window_size"});
    } else if (layer.attention == AttentionKind::chunked) {
      layer.window = fields.size("attention_chunk_size");
    }
  }
}

/// The last `num_kv_shared_layers` layers read the cache of the last earlier layer of their kind.
inline void apply_kv_sharing(const ConfigFields& fields, std::vector<LayerConfig>& layers) {
  const auto num_layers = static_cast<std::int64_t>(layers.size());
  const std::int64_t shared = fields.integer("num_kv_shared_layers", 0, num_layers - 1).value_or(0);
  for (std::int64_t i = num_layers - shared; i < num_layers; ++i) {
    LayerConfig& layer = layers[static_cast<std::size_t>(i)];
    if (layer.attention == AttentionKind::none) {
      continue;
    }
    std::int64_t source = num_layers - shared - 1;
    while (source >= 0 && layers[static_cast<std::size_t>(source)].attention != layer.attention) {
      --source;
    }
    require(source >= 0, ErrorCode::format, "parse_model_config: ", fields.path(),
            ".num_kv_shared_layers is ", shared, ", expected an earlier ",
            to_string(layer.attention), " layer for layer ", i, " to share with");
    layer.kv_source = source;
  }
}

inline std::optional<MlaGeometry> parse_mla(const ConfigFields& fields) {
  const std::optional<std::int64_t> rank = fields.size("kv_lora_rank");
  if (!rank) {
    return std::nullopt;
  }
  const std::optional<std::int64_t> rope = fields.integer("qk_rope_head_dim", 0, 1 << 20);
  require(rope.has_value(), ErrorCode::format, "parse_model_config: ", fields.path(),
          " has kv_lora_rank and no qk_rope_head_dim");
  return MlaGeometry{*rank, *rope, fields.size("qk_nope_head_dim"), fields.size("v_head_dim")};
}

/// KV heads where the file gives one number: the stated one, 1 for multi-query, else the query
/// heads.
inline std::optional<std::int64_t> uniform_kv_heads(const ConfigFields& fields,
                                                    std::optional<std::int64_t> query_heads) {
  const std::string_view name = fields.first_present(
      {"num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "multi_query_group_num"});
  if (!name.empty()) {
    return fields.size(name);
  }
  if (const std::optional<ConfigFields> attention = fields.object("attn_config")) {
    if (const std::optional<std::int64_t> heads = attention->size("kv_n_heads")) {
      return heads;
    }
  }
  const bool multi_query = fields.boolean("multi_query").value_or(false) &&
                           !fields.boolean("new_decoder_architecture").value_or(false);
  return multi_query ? std::optional<std::int64_t>(1) : query_heads;
}

/// An explicit width, else hidden_size / num_attention_heads.
inline std::optional<std::int64_t> uniform_head_size(const ConfigFields& fields,
                                                     std::optional<std::int64_t> hidden,
                                                     std::optional<std::int64_t> query_heads) {
  const std::optional<std::int64_t> stated =
      fields.size({"head_dim", "attention_head_dim", "hidden_size_per_head", "kv_channels"});
  if (stated || !hidden || !query_heads) {
    return stated;
  }
  require(*hidden % *query_heads == 0, ErrorCode::format, "parse_model_config: ", fields.path(),
          " has hidden_size ", *hidden, " and ", *query_heads,
          " attention heads and no head_dim, expected a multiple");
  return *hidden / *query_heads;
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
  const auto heads =
      listed.empty() ? uniform_kv_heads(fields, model.num_attention_heads) : std::nullopt;
  const auto width = uniform_head_size(fields, model.hidden_size, model.num_attention_heads);
  const auto width_v = model.mla ? std::nullopt : fields.size("v_head_dim");
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    LayerConfig& layer = model.layers[i];
    if (layer.attention == AttentionKind::none) {
      continue;
    }
    const bool full = layer.attention == AttentionKind::full;
    layer.is_mla = full && model.mla.has_value();
    if (!layer.num_kv_heads) {
      const auto special =
          fields.size(full ? "num_global_key_value_heads" : "swa_num_key_value_heads");
      layer.num_kv_heads = special ? special : heads;
    }
    if (!listed.empty()) {
      require(listed[i] > 0, ErrorCode::format, "parse_model_config: ", fields.path(), ".",
              list_field, "[", i, "] is 0, expected KV heads for an attention layer");
      layer.num_kv_heads = listed[i];
    }
    const auto special_width = fields.size(full ? "global_head_dim" : "swa_head_dim");
    layer.head_size = special_width ? special_width : width;
    const auto special_v = full ? std::nullopt : fields.size("swa_v_head_dim");
    layer.head_size_v = special_v ? special_v : width_v;
  }
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
  const auto listed = query_head_list(fields, model.layers.size());
  const auto windowed = fields.size("swa_num_attention_heads");
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
    require(!queries || (*queries > 0 && *queries % *layer.num_kv_heads == 0), ErrorCode::format,
            "parse_model_config: ", fields.path(), " gives layer ", i,
            " num_attention_heads = ", queries.value_or(0),
            " and num_key_value_heads = ", *layer.num_kv_heads,
            ", expected a whole number of query heads for every KV head");
  }
}

inline CacheDType parse_model_dtype(const ConfigFields& fields, const ConfigFields& root,
                                    std::vector<std::string>& notes) {
  for (const ConfigFields* source : {&fields, &root}) {
    const std::string_view name = source->first_present({"dtype", "torch_dtype"});
    if (!name.empty()) {
      const std::string stated = *source->string(name);
      if (const std::optional<CacheDType> dtype = find_cache_dtype(stated)) {
        return *dtype;
      }
      notes.push_back("element type \"" + printable(stated, 40) +
                      "\" is not a cache type: bfloat16 is assumed");
      return CacheDType::bfloat16;
    }
  }
  notes.push_back("the file states no element type: bfloat16 is assumed");
  return CacheDType::bfloat16;
}

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

inline std::optional<double> parse_attention_scale(const ConfigFields& fields) {
  if (const std::optional<double> scale = positive_number(fields, "attention_multiplier")) {
    return scale;
  }
  const std::optional<double> scalar = positive_number(fields, "query_pre_attn_scalar");
  return scalar ? std::optional<double>(1.0 / std::sqrt(*scalar)) : std::nullopt;
}

}  // namespace detail

/// Reads a Hugging Face config.json.
///
/// The language model's object (`text_config` and its other spellings) is read where there is one;
/// the root then only supplies `model_type` and the element type, because its other fields may
/// describe another tower, and `vision_config` is never read. An explicit null equals an absent
/// field. Bare NaN and Infinity are accepted where no number is needed. Integers must be JSON
/// integers: 4.0 and "4" are errors. Duplicate keys are errors. A byte order mark is accepted. Text
/// beyond 8 MiB, 64 levels or a million values, and more than 10,000 layers, are refused.
/// `ModelConfig::layer_rule` names the convention that produced the layers. Deterministic.
/// @throws Error(format) for malformed text (with its position) or a field outside its domain (by
///         name); Error(unsupported) for an unknown layer type and for a model with recurrent
///         fields whose attention layers nothing names (listing what was looked for).
[[nodiscard]] inline ModelConfig parse_model_config(std::string_view json_text) {
  const nlohmann::json document = detail::parse_json_object("parse_model_config", json_text);
  const detail::ConfigFields root(document, "config");
  const detail::ConfigFields fields = detail::text_fields(root);

  ModelConfig model;
  const std::optional<std::string> nested_type = fields.string("model_type");
  model.model_type = nested_type ? *nested_type : root.string("model_type").value_or("");
  const std::string_view layers_name = fields.first_present(
      {"num_hidden_layers", "num_transformer_layers", "n_layer", "n_layers", "num_layers"});
  const std::int64_t num_mtp = detail::count_mtp_layers(fields);
  const detail::RuleInput input{fields, model.model_type,
                                layers_name.empty()
                                    ? std::nullopt
                                    : fields.integer(layers_name, 1, detail::max_config_layers),
                                num_mtp};
  detail::LayerList list = detail::identify_layers(input);
  model.layers = std::move(list.layers);
  model.layer_rule = std::move(list.rule);
  model.notes = std::move(list.notes);
  for (std::int64_t i = 0; i < num_mtp; ++i) {
    model.mtp_layers.push_back(model.num_layers() + i);
  }
  if (const auto cross = fields.integers("cross_attention_layers", 0, model.num_layers() - 1)) {
    for (const std::int64_t layer : *cross) {
      model.layers[static_cast<std::size_t>(layer)] = LayerConfig{};
    }
    model.notes.push_back("cross_attention_layers keep no text tokens and are left out");
  }

  for (const LayerConfig& layer : model.layers) {
    if (layer.is_sparse) {
      model.notes.push_back("sparse attention: the indexer's own key cache is not counted");
      break;
    }
  }

  model.hidden_size = fields.size({"hidden_size", "n_embd", "d_model", "model_dim"});
  model.num_attention_heads =
      fields.size({"num_attention_heads", "n_head", "n_heads", "num_heads"});
  model.max_position_embeddings =
      fields.size({"max_position_embeddings", "n_positions", "max_seq_len", "seq_length"});
  model.dtype = detail::parse_model_dtype(fields, root, model.notes);
  model.attention_scale = detail::parse_attention_scale(fields);
  model.mla = detail::parse_mla(fields);
  detail::apply_windows(fields, model.layers);
  detail::apply_kv_sharing(fields, model.layers);
  detail::apply_widths(fields, model);
  detail::require_head_groups(fields, model);
  if (model.is_hybrid()) {
    model.recurrent = detail::parse_recurrent_geometry(fields, model.model_type, model.dtype);
  }
  return model;
}

/// Reads the config.json at `path`, or in it when `path` is a directory.
/// @throws Error(io) when the file cannot be read, and whatever `parse_model_config` throws.
[[nodiscard]] inline ModelConfig load_model_config(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::path file =
      std::filesystem::is_directory(path, ignored) ? path / "config.json" : path;
  return parse_model_config(detail::read_json_text("load_model_config", file));
}

}  // namespace turboquant
