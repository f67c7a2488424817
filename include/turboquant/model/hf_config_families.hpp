#pragma once

#include <turboquant/model/hf_config_rules.hpp>
#include <turboquant/model/model_config.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace turboquant::detail {

/// The object that gives hybrid models of flash-linear-attention their attention layers.
inline std::optional<ConfigFields> attn_object(const ConfigFields& fields) {
  const nlohmann::json* value = fields.find("attn");
  return value != nullptr && value->is_object() ? fields.object("attn") : std::nullopt;
}

/// flash-linear-attention: `attn.layers` attend with heads and a window of their own, the others
/// are recurrent.
inline std::optional<LayerList> rule_attn_object(const RuleInput& in) {
  const std::optional<ConfigFields> attn = attn_object(in.fields);
  if (!attn || !attn->has("layers")) {
    return std::nullopt;
  }
  LayerConfig layer = full_layer();
  const std::int64_t heads = attn->required_size({"num_heads"});
  layer.num_kv_heads = attn->size("num_kv_heads").value_or(heads);
  require(heads % *layer.num_kv_heads == 0, ErrorCode::format, "parse_model_config: ", attn->path(),
          " has num_heads = ", heads, " and num_kv_heads = ", *layer.num_kv_heads,
          ", expected a whole number of query heads for every KV head");
  if (const auto hidden = in.fields.size("hidden_size")) {
    require(*hidden % heads == 0, ErrorCode::format, "parse_model_config: ", attn->path(),
            ".num_heads is ", heads, ", expected a divisor of hidden_size = ", *hidden);
    layer.head_size = *hidden / heads;
  }
  layer.window = attn->size("window_size");
  if (layer.window) {
    layer.attention = AttentionKind::sliding;
  }
  const std::int64_t num_layers = in.num_layers("attn.layers");
  LayerList list = list_from_indices(
      in, "attn.layers", *attn->integers("layers", 0, num_layers - 1), layer, recurrent_layer());
  return list;
}

/// Ring and Ling with linear attention: the last layer of each group attends, and so do those after
/// the last whole group.
inline std::optional<LayerList> rule_layer_group(const RuleInput& in) {
  const auto group = in.fields.integer("layer_group_size", 1, max_config_layers);
  if (!group) {
    return std::nullopt;
  }
  const std::int64_t num_layers = in.num_layers("layer_group_size");
  LayerList list = list_from_period(num_layers, *group, *group - 1, full_layer(), recurrent_layer(),
                                    "layer_group_size");
  for (std::int64_t i = num_layers - num_layers % *group; i < num_layers; ++i) {
    list.layers[static_cast<std::size_t>(i)] = full_layer();
  }
  return list;
}

/// AFMoE: the last of every n layers is full; decoders of ModernBERT: the first. The others are
/// windowed, the latter by half of local_attention, which counts both directions.
inline std::optional<LayerList> rule_global_every(const RuleInput& in) {
  const bool modern_bert = in.is_type({"modernbert-decoder"});
  if (!modern_bert && !in.is_type({"afmoe"})) {
    return std::nullopt;
  }
  constexpr std::string_view field = "global_attn_every_n_layers";
  const auto stated = in.fields.integer(field, 1, max_config_layers);
  const std::int64_t step = stated.value_or(modern_bert ? 3 : 4);
  LayerConfig windowed{.attention = AttentionKind::sliding};
  if (modern_bert) {
    windowed.window = in.fields.integer("local_attention", 2, 1 << 30).value_or(128) / 2;
  }
  return list_from_period(
      in.num_layers(field), step, modern_bert ? 0 : step - 1, full_layer(), windowed,
      stated ? std::string(field)
             : std::string(field) + " " + std::to_string(step) + ": default of " + in.model_type);
}

/// Baichuan-M1: the listed layers are windowed, the others full.
inline std::optional<LayerList> rule_sliding_window_layers(const RuleInput& in) {
  constexpr std::string_view field = "sliding_window_layers";
  if (!in.fields.has(field)) {
    return std::nullopt;
  }
  LayerList list =
      list_from_indices(in, field, *in.fields.integers(field, 0, in.num_layers(field) - 1),
                        LayerConfig{.attention = AttentionKind::sliding}, full_layer());
  if (in.fields.has("conv_window")) {
    list.notes.push_back(
        "conv_window: the last keys and values before the convolution are not "
        "counted");
  }
  return list;
}

/// MiniMax-M3: every layer keeps every token, and in those marked 1 an indexer picks what is read.
inline std::optional<LayerList> rule_sparse_attention(const RuleInput& in) {
  const std::optional<ConfigFields> sparse = in.fields.object("sparse_attention_config");
  return sparse ? rule_numbers({*sparse, in.model_type, in.stated_layers, in.num_mtp_layers},
                               "sparse_attention_freq", full_layer(),
                               LayerConfig{.attention = AttentionKind::full, .is_sparse = true})
                : std::nullopt;
}

/// LongCat-Flash: each of num_layers layers attends twice and keeps two caches, which are layers of
/// their own here.
inline std::optional<LayerList> rule_double_attention(const RuleInput& in) {
  if (!in.is_type({"longcat_flash", "longcat_flash_ngram"})) {
    return std::nullopt;
  }
  const auto pairs = in.fields.integer("num_layers", 1, max_config_layers / 2);
  require(pairs.has_value(), ErrorCode::format, "parse_model_config: ", in.fields.path(),
          " has no num_layers, which ", in.model_type, " needs");
  LayerList list = list_from_period(2 * *pairs, 1, 0, full_layer(), full_layer(),
                                    "two attentions for each of num_layers");
  list.notes.push_back("layers 2i and 2i + 1 are the two attentions of the model's layer i");
  return list;
}

/// Layer `reader` reads the cache of the last layer up to `last` that attends in the same way.
/// @param stated  how a message calls the field that says so
inline void share_earlier_cache(const ConfigFields& fields, std::string_view stated,
                                std::vector<LayerConfig>& layers, std::int64_t reader,
                                std::int64_t last) {
  LayerConfig& layer = layers[static_cast<std::size_t>(reader)];
  if (layer.attention == AttentionKind::none) {
    return;
  }
  std::int64_t source = last;
  while (source >= 0 && layers[static_cast<std::size_t>(source)].attention != layer.attention) {
    --source;
  }
  require(source >= 0, ErrorCode::format, "parse_model_config: ", fields.path(), stated,
          ", expected an earlier ", to_string(layer.attention), " layer for layer ", reader,
          " to share with");
  layer.kv_source = source;
}

/// Mistral Large 4: the layer whose cache each layer reads, itself or an earlier one that reads its
/// own.
inline void apply_kv_source_list(const ConfigFields& fields, std::vector<LayerConfig>& layers) {
  constexpr std::string_view name = "kv_source_layers";
  const auto num_layers = static_cast<std::int64_t>(layers.size());
  const auto sources = fields.integers(name, 0, num_layers - 1);
  if (!sources) {
    return;
  }
  require(static_cast<std::int64_t>(sources->size()) == num_layers, ErrorCode::format,
          "parse_model_config: ", fields.path(), ".", name, " has ", sources->size(),
          " entries, expected ", num_layers);
  for (std::int64_t i = 0; i < num_layers; ++i) {
    const std::int64_t source = (*sources)[static_cast<std::size_t>(i)];
    require(source <= i && (*sources)[static_cast<std::size_t>(source)] == source,
            ErrorCode::format, "parse_model_config: ", fields.path(), ".", name, "[", i, "] is ",
            source, ", expected ", i, " or an earlier layer that reads its own cache");
    if (source != i) {
      layers[static_cast<std::size_t>(i)].kv_source = source;
    }
  }
}

/// Layers that read an earlier layer's cache: as listed, the last num_kv_shared_layers (Gemma 3n)
/// or num_kv_reuse_layers (AFM), or all but the first of each cla_share_factor (Hunyuan-Large).
inline void apply_kv_sharing(const ConfigFields& fields, std::string_view model_type,
                             std::vector<LayerConfig>& layers) {
  apply_kv_source_list(fields, layers);
  const auto num_layers = static_cast<std::int64_t>(layers.size());
  const bool reuse = fields.has("num_kv_reuse_layers");
  const std::string_view field = reuse ? "num_kv_reuse_layers" : "num_kv_shared_layers";
  const std::int64_t class_default = class_defaults(model_type).num_kv_shared_layers;
  const std::int64_t shared = or_default(fields.integer(field, 0, num_layers - 1),
                                         class_default < num_layers ? class_default : 0)
                                  .value_or(0);
  const std::string last_ones = "." + std::string(field) + " is " + std::to_string(shared) +
                                origin(fields.has(field), model_type);
  for (std::int64_t i = num_layers - shared; i < num_layers; ++i) {
    share_earlier_cache(fields, last_ones, layers, i, num_layers - shared - 1);
  }
  if (fields.boolean("use_cla").value_or(false)) {
    const std::int64_t factor =
        fields.integer("cla_share_factor", 1, max_config_layers).value_or(1);
    const std::string groups = ".cla_share_factor is " + std::to_string(factor);
    for (std::int64_t i = 0; i < num_layers; ++i) {
      if (i % factor != 0) {
        share_earlier_cache(fields, groups, layers, i, i - i % factor);
      }
    }
  }
  // Where several conventions meet, a source may itself read an earlier cache.
  for (LayerConfig& layer : layers) {
    if (layer.kv_source) {
      const auto source = static_cast<std::size_t>(*layer.kv_source);
      layer.kv_source = layers[source].kv_source.value_or(*layer.kv_source);
    }
  }
}

/// Ouro: every step runs through all layers and keeps caches of its own, which are layers of their
/// own here, step after step.
inline void repeat_layers(const ConfigFields& fields, ModelConfig& model) {
  const auto num_layers = model.num_layers();
  const std::int64_t steps = fields.integer("total_ut_steps", 1, max_config_layers).value_or(1);
  require(num_layers * steps <= max_config_layers, ErrorCode::format,
          "parse_model_config: ", fields.path(), ".total_ut_steps is ", steps, " for ", num_layers,
          " layers, expected at most ", max_config_layers, " caches");
  for (std::int64_t i = num_layers; i < num_layers * steps; ++i) {
    LayerConfig layer = model.layers[static_cast<std::size_t>(i % num_layers)];
    if (layer.kv_source) {
      *layer.kv_source += i / num_layers * num_layers;
    }
    model.layers.push_back(layer);
  }
  if (steps > 1) {
    model.notes.push_back("total_ut_steps: layers " + std::to_string(num_layers) + "s to " +
                          std::to_string(num_layers) + "s + " + std::to_string(num_layers - 1) +
                          " are those of step s");
  }
}

}  // namespace turboquant::detail
