#pragma once

#include <turboquant/model/hf_config_defaults.hpp>
#include <turboquant/model/hf_config_fields.hpp>
#include <turboquant/model/model_config.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace turboquant::detail {

/// Largest accepted number of layers; real models have fewer than 300.
inline constexpr std::int64_t max_config_layers = 10'000;

/// Layers as one convention of a file states them.
struct LayerList {
  std::vector<LayerConfig> layers{};
  std::string rule{};
  std::vector<std::string> notes{};
};

/// What every rule reads.
struct RuleInput {
  const ConfigFields& fields;
  std::string model_type;
  std::optional<std::int64_t> stated_layers;  ///< num_hidden_layers or one of its other spellings
  std::int64_t num_mtp_layers;

  /// The stated number of layers, else the class's.
  [[nodiscard]] std::int64_t num_layers(std::string_view rule) const {
    const auto layers = or_default(stated_layers, class_defaults(model_type).num_layers);
    require(layers.has_value(), ErrorCode::format, "parse_model_config: ", fields.path(),
            " has no num_hidden_layers, which ", rule, " needs");
    return *layers;
  }
  [[nodiscard]] bool is_type(std::initializer_list<std::string_view> names) const {
    return is_among(model_type, names);
  }
};

inline LayerConfig full_layer() {
  return LayerConfig{.attention = AttentionKind::full};
}
inline LayerConfig recurrent_layer() {
  return LayerConfig{.has_recurrent_state = true};
}
inline LayerConfig parallel_layer() {
  return LayerConfig{.attention = AttentionKind::full, .has_recurrent_state = true};
}

/// The layer that a type name stands for, or nothing for an unknown name.
inline std::optional<LayerConfig> layer_of_type(std::string_view type) {
  struct Known {
    std::string_view type;
    LayerConfig layer;
  };
  constexpr AttentionKind full = AttentionKind::full;
  static const std::array known{
      Known{"full_attention", {.attention = full}},
      Known{"attention", {.attention = full}},
      Known{"global_attention", {.attention = full}},
      Known{"global", {.attention = full}},
      Known{"sliding_attention", {.attention = AttentionKind::sliding}},
      Known{"sliding_window_attention", {.attention = AttentionKind::sliding}},
      Known{"local_attention", {.attention = AttentionKind::sliding}},
      Known{"local", {.attention = AttentionKind::sliding}},
      Known{"chunked_attention", {.attention = AttentionKind::chunked}},
      Known{"indexed_attention", {.attention = full, .is_sparse = true}},
      Known{"deepseek_sparse_attention", {.attention = full, .is_sparse = true}},
      Known{"minimax_m3_sparse", {.attention = full, .is_sparse = true}},
      Known{"minicpm4", {.attention = full, .is_sparse = true}},
      Known{"linear_attention", {.has_recurrent_state = true}},
      Known{"lightning_attention", {.has_recurrent_state = true}},
      Known{"lightning-attn", {.has_recurrent_state = true}},
      Known{"kda", {.has_recurrent_state = true}},
      Known{"mamba", {.has_recurrent_state = true}},
      Known{"mamba2", {.has_recurrent_state = true}},
      Known{"recurrent", {.has_recurrent_state = true}},
      Known{"conv", {.has_recurrent_state = true}},
      Known{"hybrid", {.attention = full, .has_recurrent_state = true}},
      Known{"hybrid_sliding", {.attention = AttentionKind::sliding, .has_recurrent_state = true}},
      Known{"mlp", {}},
      Known{"moe", {}}};
  for (const Known& k : known) {
    if (k.type == type) {
      return k.layer;
    }
  }
  return std::nullopt;
}

/// Checks a per-layer list against the layer count; entries for MTP layers after it are cut off.
template <class T>
void fit_list(const RuleInput& in, std::string_view field, std::vector<T>& list) {
  const auto length = static_cast<std::int64_t>(list.size());
  require(length > 0 && length <= max_config_layers, ErrorCode::format,
          "parse_model_config: ", in.fields.path(), ".", field, " has ", length,
          " entries, expected 1..", max_config_layers);
  if (!in.stated_layers || length == *in.stated_layers) {
    return;
  }
  require(length == *in.stated_layers + in.num_mtp_layers, ErrorCode::format,
          "parse_model_config: ", in.fields.path(), ".", field, " has ", length,
          " entries, expected num_hidden_layers = ", *in.stated_layers);
  list.resize(static_cast<std::size_t>(*in.stated_layers));
}

/// What a list that wins over another stated number of layers is worth telling.
inline std::string stale_count_note(std::string_view field, std::int64_t length,
                                    std::int64_t stated) {
  return std::string(field) + " has " + std::to_string(length) +
         " layers and num_hidden_layers says " + std::to_string(stated) + ": " +
         std::string(field) + " is used";
}

/// Names of layer types. In Nemotron-H, not num_hidden_layers but the list is authoritative.
inline std::optional<LayerList> rule_type_names(const RuleInput& in, std::string_view field) {
  std::optional<std::vector<std::string>> types = in.fields.strings(field);
  if (!types) {
    return std::nullopt;
  }
  LayerList list;
  list.rule = field;
  const auto length = static_cast<std::int64_t>(types->size());
  const bool authoritative =
      in.is_type({"nemotron_h"}) && in.stated_layers.value_or(length) != length;
  if (authoritative) {
    list.notes.push_back(stale_count_note(field, length, *in.stated_layers));
  }
  fit_list(authoritative ? RuleInput{in.fields, in.model_type, std::nullopt, 0} : in, field,
           *types);
  for (std::size_t i = 0; i < types->size(); ++i) {
    const std::optional<LayerConfig> layer = layer_of_type((*types)[i]);
    require(layer.has_value(), ErrorCode::unsupported, "parse_model_config: ", in.fields.path(),
            ".", field, "[", i, "] is \"", printable((*types)[i], 60),
            "\", expected a known layer type such as full_attention, sliding_attention, "
            "chunked_attention, linear_attention, mamba, conv, hybrid, mlp or moe");
    list.layers.push_back(*layer);
  }
  return list;
}

/// A list of numbers, one per layer, whose value tells the kind.
inline std::optional<LayerList> rule_numbers(const RuleInput& in, std::string_view field,
                                             const LayerConfig& zero, const LayerConfig& one) {
  std::optional<std::vector<std::int64_t>> numbers = in.fields.integers(field, 0, 1);
  if (!numbers) {
    return std::nullopt;
  }
  fit_list(in, field, *numbers);
  LayerList list;
  list.rule = field;
  for (const std::int64_t number : *numbers) {
    list.layers.push_back(number == 0 ? zero : one);
  }
  return list;
}

/// Nemotron-H: one character per layer.
inline std::optional<std::vector<LayerConfig>> layers_of_pattern(const ConfigFields& fields,
                                                                 std::string_view field) {
  const std::optional<std::string> pattern = fields.string(field);
  if (!pattern) {
    return std::nullopt;
  }
  const auto length = static_cast<std::int64_t>(pattern->size());
  require(length > 0 && length <= max_config_layers, ErrorCode::format,
          "parse_model_config: ", fields.path(), ".", field, " has ", length,
          " characters, expected 1..", max_config_layers);
  std::vector<LayerConfig> layers;
  for (const char c : *pattern) {
    require(c == 'M' || c == '*' || c == '-' || c == 'E', ErrorCode::format,
            "parse_model_config: ", fields.path(), ".", field, "[", layers.size(), "] is '",
            printable(std::string_view(&c, 1), 1), "', expected M, *, - or E");
    layers.push_back(c == 'M' ? recurrent_layer() : c == '*' ? full_layer() : LayerConfig{});
  }
  return layers;
}

/// The pattern, not num_hidden_layers, is authoritative.
inline std::optional<LayerList> rule_pattern(const RuleInput& in, std::string_view field) {
  std::optional<std::vector<LayerConfig>> layers = layers_of_pattern(in.fields, field);
  if (!layers) {
    return std::nullopt;
  }
  LayerList list{std::move(*layers), std::string(field), {}};
  const auto length = static_cast<std::int64_t>(list.layers.size());
  if (in.stated_layers && *in.stated_layers != length) {
    list.notes.push_back(stale_count_note(field, length, *in.stated_layers));
  }
  return list;
}

/// Layers of which the listed ones are `listed` and the others `rest`.
inline LayerList list_from_indices(const RuleInput& in, std::string_view field,
                                   const std::vector<std::int64_t>& indices,
                                   const LayerConfig& listed, const LayerConfig& rest) {
  LayerList list;
  list.rule = field;
  list.layers.assign(static_cast<std::size_t>(in.num_layers(field)), rest);
  std::set<std::int64_t> seen;
  for (const std::int64_t index : indices) {
    require(seen.insert(index).second, ErrorCode::format, "parse_model_config: ", in.fields.path(),
            ".", field, " lists layer ", index, " twice, expected each layer once");
    list.layers[static_cast<std::size_t>(index)] = listed;
  }
  return list;
}

inline std::optional<LayerList> rule_index_list(const RuleInput& in, std::string_view field,
                                                const LayerConfig& listed) {
  if (!in.fields.has(field)) {
    return std::nullopt;
  }
  const auto indices = in.fields.integers(field, 0, in.num_layers(field) - 1);
  return list_from_indices(in, field, *indices, listed, recurrent_layer());
}

/// Kimi Linear: two lists that together name every layer, counted from 0 or from 1. Which one is
/// told by membership: only one base makes the lists cover the layers.
inline std::optional<LayerList> rule_linear_attn_config(const RuleInput& in) {
  const std::optional<ConfigFields> nested = in.fields.object("linear_attn_config");
  if (!nested || !nested->has("full_attn_layers")) {
    return std::nullopt;
  }
  const std::int64_t num_layers = in.num_layers("linear_attn_config");
  const auto full = nested->integers("full_attn_layers", 0, num_layers);
  const auto linear = nested->integers("kda_layers", 0, num_layers);
  std::set<std::int64_t> all(full->begin(), full->end());
  std::size_t listed = full->size();
  if (linear) {
    all.insert(linear->begin(), linear->end());
    listed += linear->size();
  }
  require(all.size() == listed, ErrorCode::format, "parse_model_config: ", nested->path(),
          " lists a layer twice, expected each layer in one of full_attn_layers and kda_layers");
  require(!linear || static_cast<std::int64_t>(listed) == num_layers, ErrorCode::format,
          "parse_model_config: ", nested->path(), " lists ", listed,
          " layers, expected num_hidden_layers = ", num_layers);
  const bool has_zero = all.count(0) != 0;
  const bool has_last = all.count(num_layers) != 0;
  require(has_zero != has_last, ErrorCode::format, "parse_model_config: ", nested->path(),
          " holds ", has_zero ? "both 0 and " : "neither 0 nor ", num_layers,
          ", expected layers counted from 0 or from 1");
  const std::int64_t base = has_last ? 1 : 0;
  std::vector<std::int64_t> indices;
  for (const std::int64_t layer : *full) {
    indices.push_back(layer - base);
  }
  LayerList list =
      list_from_indices(in, "linear_attn_config", indices, full_layer(), recurrent_layer());
  list.rule = "linear_attn_config.full_attn_layers, counted from " + std::to_string(base);
  return list;
}

/// Layers i with `i % period == offset` are attention.
inline LayerList list_from_period(std::int64_t num_layers, std::int64_t period, std::int64_t offset,
                                  const LayerConfig& selected, const LayerConfig& rest,
                                  std::string rule) {
  LayerList list;
  list.rule = std::move(rule);
  for (std::int64_t i = 0; i < num_layers; ++i) {
    list.layers.push_back(i % period == offset ? selected : rest);
  }
  return list;
}

/// Jamba and Zamba, whose classes know a period and an offset where a file does not.
inline std::optional<LayerList> rule_attn_period(const RuleInput& in) {
  const auto period = in.fields.integer("attn_layer_period", 1, max_config_layers);
  const auto offset = in.fields.integer("attn_layer_offset", 0, max_config_layers);
  const bool jamba = in.is_type({"jamba"});
  const bool known = jamba || in.is_type({"zamba"});
  if (!period && !known) {
    return std::nullopt;
  }
  const std::int64_t step = period.value_or(jamba ? 8 : 6);
  const std::int64_t first = offset.value_or(known ? 4 : 0);
  require(first < step, ErrorCode::format, "parse_model_config: ", in.fields.path(),
          ".attn_layer_offset is ", first, origin(offset || !known, in.model_type),
          ", expected less than attn_layer_period = ", step,
          origin(period.has_value(), in.model_type));
  const std::int64_t num_layers = in.num_layers("attn_layer_period");
  if (in.is_type({"zamba"})) {
    // Zamba's blocks are mamba, mamba, hybrid, and then periodic from layer 3 on.
    LayerList list = list_from_period(num_layers, step, (first + 3) % step, parallel_layer(),
                                      recurrent_layer(), "attn_layer_period after three layers");
    for (std::int64_t i = 0; i < std::min<std::int64_t>(3, num_layers); ++i) {
      list.layers[static_cast<std::size_t>(i)] = i == 2 ? parallel_layer() : recurrent_layer();
    }
    return list;
  }
  return list_from_period(num_layers, step, first, full_layer(), recurrent_layer(),
                          period && (offset || !known)
                              ? "attn_layer_period and attn_layer_offset"
                              : "attn_layer_period " + std::to_string(step) + ", offset " +
                                    std::to_string(first) + ": default of " + in.model_type);
}

inline std::optional<LayerList> rule_interval(const RuleInput& in) {
  const auto interval = in.fields.integer("full_attention_interval", 1, max_config_layers);
  const bool class_default = !interval && in.is_type({"qwen3_next", "qwen3_5", "qwen3_5_text",
                                                      "qwen3_5_moe", "qwen3_5_moe_text"});
  if (!interval && !class_default) {
    return std::nullopt;
  }
  const std::int64_t step = interval.value_or(4);
  return list_from_period(in.num_layers("full_attention_interval"), step, step - 1, full_layer(),
                          recurrent_layer(),
                          class_default ? "full_attention_interval 4: default of " + in.model_type
                                        : "full_attention_interval");
}

/// PLaMo 2: layer i is attention where i % mamba_step == mamba_step / 2; a model too short for the
/// pattern has attention in its last layer. With attention_window_size only the layers that
/// full_attention_idx lists see everything.
inline std::optional<LayerList> rule_mamba_step(const RuleInput& in) {
  const auto step = in.fields.integer("mamba_step", 2, max_config_layers);
  if (!step) {
    return std::nullopt;
  }
  const std::int64_t num_layers = in.num_layers("mamba_step");
  LayerList list;
  if (!in.fields.boolean("mamba_enabled").value_or(true)) {
    list = list_from_period(num_layers, 1, 0, full_layer(), full_layer(), "mamba_enabled false");
  } else if (num_layers <= *step / 2) {
    list = list_from_indices(in, "mamba_step", {num_layers - 1}, full_layer(), recurrent_layer());
  } else {
    list = list_from_period(num_layers, *step, *step / 2, full_layer(), recurrent_layer(),
                            "mamba_step");
  }
  const auto full = in.fields.integers("full_attention_idx", 0, num_layers - 1);
  for (std::int64_t i = 0; in.fields.has("attention_window_size") && i < num_layers; ++i) {
    LayerConfig& layer = list.layers[static_cast<std::size_t>(i)];
    const bool listed = full && std::find(full->begin(), full->end(), i) != full->end();
    if (layer.attention == AttentionKind::full && !listed) {
      layer.attention = AttentionKind::sliding;
    }
  }
  return list;
}

/// SambaY (Phi-4-flash): layer i is recurrent where i % mb_per_layer == 0. In phi4flash the first
/// half's attention is windowed, layer n/2 + 1 owns the only full cache, later attention layers
/// read it, and later recurrent positions are gates without a state.
inline std::optional<LayerList> rule_mb_per_layer(const RuleInput& in) {
  const auto step = in.fields.integer("mb_per_layer", 0, max_config_layers);
  if (!step) {
    return std::nullopt;
  }
  const std::int64_t num_layers = in.num_layers("mb_per_layer");
  if (*step == 0) {
    return list_from_period(num_layers, 1, 0, full_layer(), full_layer(), "mb_per_layer 0");
  }
  LayerList list =
      list_from_period(num_layers, *step, 0, recurrent_layer(), full_layer(), "mb_per_layer");
  if (!in.is_type({"phi4flash"})) {
    return list;
  }
  const std::int64_t middle = num_layers / 2;
  for (std::int64_t i = 0; i < num_layers; ++i) {
    LayerConfig& layer = list.layers[static_cast<std::size_t>(i)];
    if (layer.has_recurrent_state) {
      layer.has_recurrent_state = i < middle + 2;
    } else if (i <= middle && in.fields.has("sliding_window")) {
      layer.attention = AttentionKind::sliding;
    } else if (i >= middle + 2) {
      require(list.layers[static_cast<std::size_t>(middle + 1)].attention == AttentionKind::full,
              ErrorCode::format, "parse_model_config: num_hidden_layers is ", num_layers,
              ", expected phi4flash layer ", middle + 1, " to be attention");
      layer.kv_source = middle + 1;
    }
  }
  list.rule = "mb_per_layer with the shared cache of layer " + std::to_string(middle + 1);
  return list;
}

}  // namespace turboquant::detail
