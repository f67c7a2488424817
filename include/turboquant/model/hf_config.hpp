#pragma once

#include <turboquant/model/hf_config_layers.hpp>
#include <turboquant/model/hf_config_refusals.hpp>
#include <turboquant/model/hf_config_softmax.hpp>
#include <turboquant/model/hf_config_state.hpp>
#include <turboquant/model/hf_config_widths.hpp>
#include <turboquant/model/model_config.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
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
  require_no_other_language_model(root);
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

/// Tokens of every windowed layer that has none yet: the file's, else the class's.
inline void apply_windows(const ConfigFields& fields, ModelConfig& model) {
  for (LayerConfig& layer : model.layers) {
    if (layer.attention == AttentionKind::sliding && !layer.window) {
      layer.window = or_default(fields.size({"sliding_window", "sliding_window_size",
                                             "attention_window_size", "window_size"}),
                                class_defaults(model.model_type).window);
    } else if (layer.attention == AttentionKind::chunked) {
      layer.window = fields.size("attention_chunk_size");
    }
  }
}

/// The factor by which the file stretches rotary positions; 1 where it states none.
inline double rope_factor(const ConfigFields& fields) {
  double factor = 1.0;
  for (const std::string_view name : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* rope = fields.find(name);
    if (rope != nullptr && rope->is_object() && rope->contains("full_attention")) {
      rope = &(*rope)["full_attention"];
    }
    if (rope != nullptr && rope->is_object() && rope->contains("factor") &&
        (*rope)["factor"].is_number()) {
      factor = (std::max)(factor, (*rope)["factor"].get<double>());
    }
  }
  return factor;
}

/// A window that holds the longest sequence is none. Some files state the length before rotary
/// positions are stretched, so that a factor counts; PLaMo 2 runs beyond the length that it states.
inline void widen_to_longest(const ConfigFields& fields, ModelConfig& model) {
  if (!model.max_position_embeddings || model.model_type == "plamo2") {
    return;
  }
  const double longest = static_cast<double>(*model.max_position_embeddings) * rope_factor(fields);
  if (longest > static_cast<double>(std::int64_t{1} << 31)) {
    return;
  }
  const std::int64_t changed = widen_windows(model, static_cast<std::int64_t>(longest));
  if (changed > 0) {
    model.notes.push_back(std::to_string(changed) +
                          " layers have a window of at least the model's longest sequence: full "
                          "attention");
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

}  // namespace detail

/// Reads a Hugging Face config.json.
///
/// The language model's object (`text_config` and its other spellings) is read where there is one;
/// the root then only supplies `model_type` and the element type, because its other fields may
/// describe another tower, and `vision_config` is never read. Numbers that the file leaves out are
/// its class's where that is known, else they stay unknown. An explicit null equals an absent
/// field, but not for `num_key_value_heads` (as many as query heads) and `attn_logit_softcapping`
/// (none) where the class has a number. Bare NaN and Infinity are accepted where no number is
/// needed. Integers must be JSON integers: 4.0 and "4" are errors. Duplicate keys are errors. A
/// byte order mark is accepted. Text beyond 8 MiB, 64 levels or a million values, and more than
/// 10,000 layers, are refused. `ModelConfig::layer_rule` names the convention that produced the
/// layers. Deterministic.
/// @throws Error(format) for malformed text (with its position) or a field outside its domain (by
///         name); Error(unsupported) for an unknown layer type and for a model with fields of
///         recurrent or unequal layers whose attention layers nothing names (listing what was
///         looked for).
[[nodiscard]] inline ModelConfig parse_model_config(std::string_view json_text) {
  const nlohmann::json document = detail::parse_json_object("parse_model_config", json_text);
  const detail::ConfigFields root(document, "config");
  const detail::ConfigFields fields = detail::text_fields(root);

  ModelConfig model;
  const std::optional<std::string> nested_type = fields.string("model_type");
  model.model_type = nested_type ? *nested_type : root.string("model_type").value_or("");
  detail::require_one_cached_sequence(root, fields, model.model_type);
  const std::string_view layers_name = detail::layer_count_field(fields);
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
  if (const auto cross = fields.integers("cross_attention_layers", 0, model.num_layers() - 1)) {
    for (const std::int64_t layer : *cross) {
      model.layers[static_cast<std::size_t>(layer)] = LayerConfig{};
    }
    model.notes.push_back("cross_attention_layers keep no text tokens and are left out");
  }

  const detail::ClassDefaults defaults = detail::class_defaults(model.model_type);
  if (layers_name.empty() && model.num_layers() == defaults.num_layers) {
    model.notes.push_back(
        "the file states no number of layers: " + std::to_string(defaults.num_layers) +
        " as in the class of " + model.model_type);
  }
  const bool has_indexer = !fields.first_present({"index_topk", "index_head_dim"}).empty();
  bool is_sparse = false;
  for (LayerConfig& layer : model.layers) {
    layer.is_sparse = layer.is_sparse || (has_indexer && layer.attention == AttentionKind::full);
    is_sparse = is_sparse || layer.is_sparse;
  }
  if (is_sparse) {
    model.notes.push_back("sparse attention: the indexer's own key cache is not counted");
  }

  model.hidden_size = detail::or_default(
      fields.size({"hidden_size", "n_embd", "n_embed", "d_model", "model_dim", "hidden_dim"}),
      defaults.hidden_size);
  model.num_attention_heads = detail::or_default(
      fields.size({"num_attention_heads", "n_head", "n_heads", "num_heads"}), defaults.num_heads);
  model.max_position_embeddings = fields.size({"max_position_embeddings", "max_position_embedding",
                                               "n_positions", "max_seq_len", "seq_length"});
  model.dtype = detail::parse_model_dtype(fields, root, model.notes);
  model.mla = detail::parse_mla(fields);
  detail::apply_layer_overrides(fields, model);
  detail::apply_windows(fields, model);
  detail::apply_kv_sharing(fields, model.model_type, model.layers);
  detail::apply_widths(fields, model);
  detail::require_head_groups(fields, model);
  detail::parse_softmax(fields, model);
  detail::widen_to_longest(fields, model);
  detail::repeat_layers(fields, model);
  for (std::int64_t i = 0; i < num_mtp; ++i) {
    model.mtp_layers.push_back(model.num_layers() + i);
  }
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
