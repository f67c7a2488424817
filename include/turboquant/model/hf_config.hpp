#pragma once

#include <turboquant/model/hf_config_defaults.hpp>
#include <turboquant/model/hf_config_layers.hpp>
#include <turboquant/model/hf_config_mla.hpp>
#include <turboquant/model/hf_config_refusals.hpp>
#include <turboquant/model/hf_config_softmax.hpp>
#include <turboquant/model/hf_config_state.hpp>
#include <turboquant/model/hf_config_widths.hpp>
#include <turboquant/model/hf_config_windows.hpp>
#include <turboquant/model/model_config.hpp>

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

/// Multi-token-prediction layers that the file appends to the main stack. MiniMax-M2 counts modules
/// of several layers, which a switch turns off.
inline std::int64_t count_mtp_layers(const ConfigFields& fields) {
  const auto stated = fields.agreed_integer(
      {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers"}, 0,
      max_config_layers);
  if (stated) {
    return *stated;
  }
  if (const auto modules = fields.integer("num_mtp_modules", 0, max_config_layers)) {
    const auto each = fields.integer("mtp_transformer_layers", 1, max_config_layers).value_or(1);
    require(*modules * each <= max_config_layers, ErrorCode::format,
            "parse_model_config: ", fields.path(), ".num_mtp_modules is ", *modules, " of ", each,
            " layers, expected at most ", max_config_layers, " layers");
    return fields.boolean("use_mtp").value_or(true) ? *modules * each : 0;
  }
  const auto pattern = layers_of_pattern(fields, "mtp_hybrid_override_pattern");
  return pattern ? static_cast<std::int64_t>(pattern->size()) : 0;
}

/// The number of layers that the file states. xLSTM has a field of its own, and LongCat-Flash's
/// num_hidden_layers counts the attentions of num_layers.
inline std::optional<std::int64_t> stated_layer_count(const ConfigFields& fields,
                                                      std::string_view model_type) {
  if (model_type == "xlstm" && fields.has("num_blocks")) {
    return fields.integer("num_blocks", 1, max_config_layers);
  }
  const std::string_view name = layer_count_field(fields);
  const bool apart = is_longcat_flash(model_type);
  return name.empty() ? std::nullopt
         : apart      ? fields.integer(name, 1, max_config_layers)
                      : fields.agreed_integer(layer_count_fields(), 1, max_config_layers);
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
/// field, but not for `num_key_value_heads` (as many as query heads), `sliding_window`,
/// `attention_chunk_size` and `attn_logit_softcapping` (none) where the class has a number. Bare
/// NaN and Infinity are accepted where no number is needed. Integers must be JSON integers: 4.0 and
/// "4" are errors. Duplicate keys are errors, and so are two spellings of one number that differ,
/// and a `kv_lora_rank` of null beside other widths of latents. A byte order mark is accepted. Text
/// beyond 8 MiB, 64 levels or a million values, and more than 10,000 layers, are refused.
/// `ModelConfig::layer_rule` names the convention that produced the layers. Deterministic.
/// @throws Error(format) for malformed text (with its position) or a field outside its domain (by
///         name); Error(unsupported) for an unknown layer type, for a model with fields of
///         recurrent or unequal layers whose attention layers nothing names (listing what was
///         looked for), and for models that keep no cache or more than one sequence's: encoders,
///         encoders with a decoder, a language model in an object of an unknown name.
[[nodiscard]] inline ModelConfig parse_model_config(std::string_view json_text) {
  const nlohmann::json document = detail::parse_json_object("parse_model_config", json_text);
  const detail::ConfigFields root(document, "config");
  const detail::ConfigFields fields = detail::text_fields(root);

  ModelConfig model;
  const std::optional<std::string> nested_type = fields.string("model_type");
  model.model_type = nested_type ? *nested_type : root.string("model_type").value_or("");
  detail::require_one_cached_sequence(root, fields, model.model_type);
  const std::int64_t num_mtp = detail::count_mtp_layers(fields);
  const detail::RuleInput input{fields, model.model_type,
                                detail::stated_layer_count(fields, model.model_type), num_mtp};
  detail::LayerList list = detail::identify_layers(input);
  model.layers = std::move(list.layers);
  model.layer_rule = std::move(list.rule);
  model.notes = std::move(list.notes);
  const auto cross = fields.integers("cross_attention_layers", 0, model.num_layers() - 1);
  if (cross && !cross->empty()) {
    for (const std::int64_t layer : *cross) {
      model.layers[static_cast<std::size_t>(layer)] = LayerConfig{};
    }
    model.notes.push_back("cross_attention_layers keep no text tokens and are left out");
  }

  const detail::ClassDefaults defaults = detail::class_defaults(model.model_type);
  if (!input.stated_layers && model.num_layers() == defaults.num_layers) {
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

  model.hidden_size = detail::or_default(detail::stated_hidden_size(fields), defaults.hidden_size);
  model.num_attention_heads = detail::or_default(detail::stated_heads(fields), defaults.num_heads);
  model.max_position_embeddings = fields.size({"max_position_embeddings", "max_position_embedding",
                                               "n_positions", "max_seq_len", "seq_length"});
  model.dtype = detail::parse_model_dtype(fields, root, model.notes);
  model.mla = detail::parse_mla(fields, model.model_type);
  detail::note_latents(model, model.notes);
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
/// @throws Error(invalid_argument) for a path that is empty or has a NUL inside, Error(io) for one
/// that names no regular file or when it cannot be read, and whatever `parse_model_config` throws.
[[nodiscard]] inline ModelConfig load_model_config(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::path file =
      std::filesystem::is_directory(path, ignored) ? path / "config.json" : path;
  return parse_model_config(detail::read_json_text("load_model_config", file));
}

}  // namespace turboquant
