#pragma once

#include <turboquant/model/hf_config_rules.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace turboquant::detail {

/// Llama 4: layers with rotary embedding attend within a chunk, those without over everything.
/// SmolLM3 uses the same fields for the embedding, and windows for the layers without, if at all.
/// Mistral Large 4's layers without keep latents without a part for positions.
inline std::optional<LayerList> rule_no_rope(const RuleInput& in) {
  const bool llama4 = in.is_type({"llama4", "llama4_text"});
  const bool smollm3 = in.is_type({"smollm3"});
  const bool stated =
      !in.fields.first_present({"no_rope_layers", "no_rope_layer_interval"}).empty();
  if (in.is_type({"mistral_large4_text"}) || !(llama4 || smollm3 || stated)) {
    return std::nullopt;
  }
  const bool windowed = smollm3 && in.fields.has("sliding_window") &&
                        in.fields.boolean("use_sliding_window").value_or(false);
  const LayerConfig with_rope = smollm3 || in.fields.is_null("attention_chunk_size")
                                    ? full_layer()
                                    : LayerConfig{.attention = AttentionKind::chunked};
  const LayerConfig without =
      windowed ? LayerConfig{.attention = AttentionKind::sliding} : full_layer();
  // An empty list is how the class spells "derive it".
  const nlohmann::json* listed = in.fields.find("no_rope_layers");
  std::optional<LayerList> list;
  if (listed == nullptr || !listed->empty()) {
    list = rule_numbers(in, "no_rope_layers", without, with_rope);
  }
  if (!list) {
    const auto interval = in.fields.integer("no_rope_layer_interval", 1, max_config_layers);
    const std::int64_t step = interval.value_or(4);
    list = list_from_period(in.num_layers("no_rope_layer_interval"), step, step - 1, without,
                            with_rope,
                            interval ? "no_rope_layer_interval"
                                     : "no_rope_layer_interval 4: default of " + in.model_type);
  }
  return list;
}

inline std::int64_t default_window_pattern(const RuleInput& in) {
  if (in.is_type({"gemma2", "gemma2_text", "gpt_oss", "vaultgemma"})) {
    return 2;
  }
  if (in.is_type({"cohere2", "olmo3", "exaone4"})) {
    return 4;
  }
  if (in.is_type({"gemma3n", "gemma3n_text"})) {
    return 5;
  }
  return in.is_type({"gemma3", "gemma3_text"}) || is_gemma4(in.model_type) ? 6 : 0;
}

/// Gemma 2/3, Cohere 2, EXAONE 4: every n-th layer is full, the others are windowed where there is
/// a window. A text pattern of L and G repeats, and its last layer is full.
inline std::optional<LayerList> rule_window_pattern(const RuleInput& in) {
  const std::string_view field =
      in.fields.first_present({"sliding_window_pattern", "_sliding_window_pattern"});
  const LayerConfig windowed{.attention = in.fields.is_null("sliding_window")
                                              ? AttentionKind::full
                                              : AttentionKind::sliding};
  const nlohmann::json* value = field.empty() ? nullptr : in.fields.find(field);
  if (value != nullptr && value->is_string()) {
    const std::string pattern = *in.fields.string(field);
    require(!pattern.empty() && pattern.find_first_not_of("LG") == std::string::npos,
            ErrorCode::format, "parse_model_config: ", in.fields.path(), ".", field, " is \"",
            printable(pattern, 60), "\", expected characters L and G");
    LayerList list;
    list.rule = std::string(field) + " as text";
    const auto num_layers = static_cast<std::size_t>(in.num_layers(field));
    for (std::size_t i = 0; i < num_layers; ++i) {
      const bool local = pattern[i % pattern.size()] == 'L' && i + 1 != num_layers;
      list.layers.push_back(local ? windowed : full_layer());
    }
    return list;
  }
  const std::int64_t class_default = default_window_pattern(in);
  if (value == nullptr && class_default == 0) {
    return std::nullopt;
  }
  const std::int64_t step =
      value == nullptr ? class_default : *in.fields.integer(field, 1, max_config_layers);
  return list_from_period(
      in.num_layers("sliding_window_pattern"), step, step - 1, full_layer(), windowed,
      value == nullptr
          ? "sliding_window_pattern " + std::to_string(step) + ": default of " + in.model_type
          : std::string(field));
}

/// The first layer with a window where a switch turns windows on: stated, or the class's. Qwen 3's
/// mixture of experts has no such field.
inline std::int64_t first_windowed_layer(const RuleInput& in) {
  if (in.is_type({"qwen3_moe"})) {
    return 0;
  }
  const auto stated = in.fields.integer("max_window_layers", 0, max_config_layers);
  if (stated) {
    return *stated;
  }
  if (in.is_type({"qwen2", "qwen3", "qwen2_5_omni_text"})) {
    return 28;
  }
  if (in.is_type({"dots1"})) {
    return 62;
  }
  return in.is_type({"qwen2_vl_text", "qwen2_5_vl_text"}) ? 80 : 0;
}

/// Every layer attends; windows apply where the file, or the class for it, switches them on.
inline LayerList rule_dense(const RuleInput& in) {
  const std::int64_t num_layers = in.num_layers("a dense model");
  LayerList list = list_from_period(num_layers, 1, 0, full_layer(), full_layer(), "dense");
  const bool off_by_default = in.model_type.substr(0, 4) == "qwen";
  const bool has_window =
      in.fields.has("sliding_window") ||
      (class_defaults(in.model_type).window != 0 && !in.fields.is_null("sliding_window"));
  if (!has_window || !in.fields.boolean("use_sliding_window").value_or(!off_by_default)) {
    return list;
  }
  if (in.is_type({"step3p5", "laguna", "mellum", "cohere_compass_text"})) {
    list.rule = "dense: without a list, no layer of " + in.model_type + " has a window";
    return list;
  }
  require(!in.is_type({"qwen2_moe"}), ErrorCode::unsupported,
          "parse_model_config: ", in.fields.path(),
          " has use_sliding_window and no layer_types, and versions of the class of qwen2_moe "
          "differ in which layers that means");
  if (in.is_type({"llama"})) {
    list.notes.push_back(
        "sliding_window is no field of the class of llama: layers are windowed because engines "
        "keep windowed caches");
  }
  const std::int64_t first_windowed = first_windowed_layer(in);
  for (std::int64_t i = first_windowed; i < num_layers; ++i) {
    list.layers[static_cast<std::size_t>(i)].attention = AttentionKind::sliding;
  }
  list.rule = first_windowed == 0 ? "dense, sliding_window in every layer"
                                  : "dense, sliding_window from max_window_layers on";
  if (!in.fields.has("sliding_window") ||
      (first_windowed != 0 && !in.fields.has("max_window_layers"))) {
    list.rule += ": default of " + in.model_type;
  }
  return list;
}

/// Tokens of a window where the file states one. MiMo-V2-Flash's sliding_window_size, which goes
/// before sliding_window, does not count the token that attends; all others do.
inline std::optional<std::int64_t> stated_window(const ConfigFields& fields,
                                                 std::string_view model_type) {
  if (model_type == "mimo_v2_flash") {
    if (const std::optional<std::int64_t> earlier = fields.size("sliding_window_size")) {
      return *earlier + 1;
    }
  }
  const auto stated = fields.agreed_size({"sliding_window", "sliding_window_size"});
  return stated ? stated : fields.size({"attention_window_size", "window_size"});
}

/// Tokens of every windowed layer that has none yet: the file's, else the class's, but none where
/// the file says null.
inline void apply_windows(const ConfigFields& fields, ModelConfig& model) {
  const std::int64_t class_default = class_defaults(model.model_type).window;
  for (LayerConfig& layer : model.layers) {
    if (layer.attention == AttentionKind::sliding && !layer.window) {
      layer.window = or_default(stated_window(fields, model.model_type),
                                fields.is_null("sliding_window") ? 0 : class_default);
    } else if (layer.attention == AttentionKind::chunked) {
      layer.window = or_default(fields.size("attention_chunk_size"),
                                fields.is_null("attention_chunk_size") ? 0 : class_default);
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

}  // namespace turboquant::detail
