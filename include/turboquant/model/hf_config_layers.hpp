#pragma once

#include <turboquant/model/hf_config_families.hpp>
#include <turboquant/model/hf_config_rules.hpp>
#include <turboquant/model/hf_config_windows.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace turboquant::detail {

/// Fields that only models with recurrent layers have.
inline std::string_view recurrent_signal(const ConfigFields& fields) {
  return fields.first_present({"mamba_d_state",
                               "mamba_d_conv",
                               "mamba_d_ssm",
                               "mamba_n_heads",
                               "mamba_num_heads",
                               "mamba_expand",
                               "mamba_enabled",
                               "n_mamba_heads",
                               "ssm_state_size",
                               "ssm_cfg",
                               "state_size",
                               "time_step_rank",
                               "linear_num_value_heads",
                               "linear_num_key_heads",
                               "linear_conv_kernel_dim",
                               "linear_attn_config",
                               "conv_L_cache",
                               "lru_width",
                               "hybrid_block_ids",
                               "attn_mode",
                               "expand_k",
                               "expand_v",
                               "lightning_nh"});
}

/// Fields which say that layers differ, in a way that no rule here reads.
inline std::string_view layout_signal(const ConfigFields& fields) {
  return fields.first_present({"attention_types", "attention_window", "full_attention_idx",
                               "global_attn_every_n_layers", "global_attn_idx", "local_attention",
                               "compress_ratios"});
}

/// Classes whose layers differ in a way that no rule here derives: only a list can tell.
inline bool has_mixed_layers(std::string_view model_type) {
  return is_among(model_type, {"bailing_hybrid",
                               "bailing_moe_linear",
                               "beam",
                               "cohere2_moe",
                               "cwm",
                               "deepseek_v4",
                               "diffusion_gemma_text",
                               "dory",
                               "dots3_note_text",
                               "exaone_moe",
                               "flint",
                               "glm5_next_text",
                               "granite_swa",
                               "granitemoe_swa",
                               "inkling2_loop_text",
                               "inkling2_text",
                               "inkling_text",
                               "kimi_linear",
                               "kolibri1",
                               "lara_mini",
                               "lfm3",
                               "mimo_v2_flash",
                               "minicpm_sala",
                               "minimax_m1",
                               "minimax_text_01",
                               "muse_glimmer_text",
                               "muse_spark_text",
                               "nemotron_h",
                               "neomme",
                               "olmo_hybrid",
                               "phi4flash",
                               "plamo2",
                               "qwen4_exp_text",
                               "recurrent_gemma",
                               "samba",
                               "unlimited_ocr_text",
                               "zamba2",
                               "zaya"});
}

/// MiMo: 0 is full and 1 is windowed attention; elsewhere the same field is a layer pattern.
inline std::optional<LayerList> rule_hybrid_layer_pattern(const RuleInput& in) {
  const nlohmann::json* value = in.fields.find("hybrid_layer_pattern");
  if (value != nullptr && value->is_string()) {
    return rule_pattern(in, "hybrid_layer_pattern");
  }
  return rule_numbers(in, "hybrid_layer_pattern", full_layer(),
                      LayerConfig{.attention = AttentionKind::sliding});
}

/// RecurrentGemma: a short list of types repeated over the layers; its attention is windowed.
inline std::optional<LayerList> rule_block_types(const RuleInput& in) {
  const auto types = in.fields.strings("block_types");
  if (!types) {
    return std::nullopt;
  }
  require(!types->empty(), ErrorCode::format, "parse_model_config: ", in.fields.path(),
          ".block_types has 0 entries, expected at least 1");
  LayerList list;
  list.rule = "block_types, repeated";
  const auto num_layers = static_cast<std::size_t>(in.num_layers("block_types"));
  for (std::size_t i = 0; i < num_layers; ++i) {
    const std::string& type = (*types)[i % types->size()];
    require(type == "recurrent" || type == "attention", ErrorCode::unsupported,
            "parse_model_config: ", in.fields.path(), ".block_types holds \"", printable(type, 60),
            "\", expected recurrent or attention");
    const AttentionKind kind =
        in.fields.has("attention_window_size") || in.is_type({"recurrent_gemma"})
            ? AttentionKind::sliding
            : AttentionKind::full;
    list.layers.push_back(type == "recurrent" ? recurrent_layer() : LayerConfig{.attention = kind});
  }
  return list;
}

/// Bamba lists its attention layers. Falcon-H1's class does not read the list: all layers attend.
inline std::optional<LayerList> rule_attn_layer_indices(const RuleInput& in) {
  return in.is_type({"falcon_h1"}) ? std::nullopt
                                   : rule_index_list(in, "attn_layer_indices", full_layer());
}

/// Nemotron-NAS: attention per block, or none, or replaced by a linear map.
inline std::optional<LayerList> rule_block_configs(const RuleInput& in) {
  const auto blocks = in.fields.objects("block_configs");
  if (!blocks) {
    return std::nullopt;
  }
  const auto length = static_cast<std::int64_t>(blocks->size());
  require(length > 0 && length <= max_config_layers && length == in.stated_layers.value_or(length),
          ErrorCode::format, "parse_model_config: ", in.fields.path(), ".block_configs has ",
          length, " entries, expected num_hidden_layers = ", in.stated_layers.value_or(1));
  const auto heads = in.fields.size("num_attention_heads");
  LayerList list;
  list.rule = "block_configs";
  for (const ConfigFields& block : *blocks) {
    const std::optional<ConfigFields> attention = block.object("attention");
    require(attention.has_value(), ErrorCode::format, "parse_model_config: ", block.path(),
            " has no attention");
    LayerConfig layer;
    require(!attention->has("window_length"), ErrorCode::unsupported,
            "parse_model_config: ", attention->path(),
            " has a window_length, expected null: what "
            "such a block keeps is not known");
    if (!attention->boolean("no_op").value_or(false) &&
        !attention->boolean("replace_with_linear").value_or(false)) {
      layer = full_layer();
      const auto group = attention->size("n_heads_in_group");
      if (group && heads) {
        require(*heads % *group == 0, ErrorCode::format, "parse_model_config: ", attention->path(),
                ".n_heads_in_group is ", *group,
                ", expected a divisor of num_attention_heads = ", *heads);
        layer.num_kv_heads = *heads / *group;
      } else {
        layer.num_kv_heads = attention->size("num_key_value_heads");
      }
    }
    list.layers.push_back(layer);
  }
  return list;
}

/// The field that lists KV heads per layer, if one does.
inline std::string_view kv_head_list_field(const ConfigFields& fields) {
  for (const std::string_view name :
       {"num_key_value_heads", "num_kv_heads", "num_key_value_heads_per_layer"}) {
    const nlohmann::json* value = fields.find(name);
    if (value != nullptr && value->is_array()) {
      return name;
    }
  }
  return {};
}

inline std::optional<LayerList> rule_kv_head_list(const RuleInput& in) {
  const std::string_view field = kv_head_list_field(in.fields);
  if (field.empty()) {
    return std::nullopt;
  }
  std::vector<std::int64_t> heads = *in.fields.integers(field, 0, 1 << 20);
  fit_list(in, field, heads);
  const bool recurrent = in.is_type({"lfm2", "lfm2_moe"}) || !recurrent_signal(in.fields).empty();
  LayerList list;
  list.rule = std::string(field) + " per layer";
  for (const std::int64_t count : heads) {
    list.layers.push_back(count > 0 ? full_layer() : recurrent ? recurrent_layer() : LayerConfig{});
  }
  return list;
}

/// Families whose files may leave the list out, because their class defines it.
inline std::optional<LayerList> rule_model_type(const RuleInput& in) {
  const auto every = [&](const LayerConfig& layer, std::string reason) {
    return list_from_period(in.num_layers("model_type " + in.model_type), 1, 0, layer, layer,
                            "model_type " + in.model_type + ": " + std::move(reason));
  };
  if (in.is_type({"falcon_h1"})) {
    return every(parallel_layer(), "attention and state space in every layer");
  }
  if (in.is_type({"minimax"})) {
    return list_from_period(in.num_layers("model_type minimax"), 2, 0, full_layer(),
                            recurrent_layer(), "model_type minimax: even layers are full");
  }
  if (in.is_type({"bamba", "granitemoehybrid"})) {
    return every(recurrent_layer(), "no attention list means no attention layer");
  }
  if (in.is_type({"lfm2", "lfm2_moe"})) {
    return every(full_layer(), "no attention list means attention in every layer");
  }
  if (in.is_type({"mamba",
                  "mamba2",
                  "falcon_mamba",
                  "rwkv",
                  "rwkv5",
                  "rwkv6",
                  "rwkv7",
                  "xlstm",
                  "abc",
                  "comba",
                  "delta_net",
                  "gated_deltanet",
                  "gated_deltaproduct",
                  "gla",
                  "gsa",
                  "hgrn",
                  "hgrn2",
                  "kda",
                  "lightnet",
                  "linear_attn",
                  "mesa_net",
                  "retnet"})) {
    return every(recurrent_layer(), "attention-free");
  }
  return std::nullopt;
}

/// The layers by the first convention that the file uses; explicit lists come before derived ones.
inline LayerList identify_layers(const RuleInput& in) {
  std::optional<LayerList> list = rule_type_names(in, "layer_types");
  const auto next = [&](auto rule) {
    if (!list) {
      list = rule();
    }
  };
  next([&] { return rule_type_names(in, "layers_block_type"); });
  next([&] { return rule_type_names(in, "mixer_types"); });
  next([&] { return rule_type_names(in, "attention_layers"); });
  next([&] { return rule_numbers(in, "attn_type_list", recurrent_layer(), full_layer()); });
  next([&] { return rule_pattern(in, "hybrid_override_pattern"); });
  next([&] { return rule_hybrid_layer_pattern(in); });
  next([&] { return rule_block_types(in); });
  next([&] { return rule_linear_attn_config(in); });
  next([&] { return rule_index_list(in, "full_attn_idxs", full_layer()); });
  next([&] { return rule_attn_layer_indices(in); });
  next([&] { return rule_index_list(in, "hybrid_layer_ids", parallel_layer()); });
  next([&] { return rule_sliding_window_layers(in); });
  next([&] { return rule_sparse_attention(in); });
  next([&] { return rule_attn_object(in); });
  next([&] { return rule_double_attention(in); });
  next([&] { return rule_attn_period(in); });
  next([&] { return rule_mamba_step(in); });
  next([&] { return rule_mb_per_layer(in); });
  next([&] { return rule_interval(in); });
  next([&] { return rule_layer_group(in); });
  next([&] { return rule_global_every(in); });
  next([&] { return rule_no_rope(in); });
  next([&] { return rule_window_pattern(in); });
  next([&] { return rule_block_configs(in); });
  next([&] { return rule_kv_head_list(in); });
  next([&] { return rule_model_type(in); });
  if (list) {
    if (has_wide_full_layers(in.model_type) &&
        list->layers.back().attention != AttentionKind::full) {
      list->layers.back() = full_layer();
      list->notes.push_back("the last layer is full: the class of " + in.model_type +
                            " makes it so");
    }
    return *list;
  }
  const std::string_view recurrent = recurrent_signal(in.fields);
  const std::string_view signal = recurrent.empty() ? layout_signal(in.fields) : recurrent;
  const bool mixed = has_mixed_layers(in.model_type);
  require(
      signal.empty() && !mixed, ErrorCode::unsupported, "parse_model_config: ", in.fields.path(),
      signal.empty()      ? " has model_type "
      : recurrent.empty() ? " has the field "
                          : " has the recurrent field ",
      signal.empty() ? std::string_view(in.model_type) : signal,
      " but nothing that names its attention layers; looked for layer_types, layers_block_type, "
      "mixer_types, attention_layers, attn_type_list, hybrid_override_pattern, "
      "hybrid_layer_pattern, block_types, linear_attn_config, full_attn_idxs, attn_layer_indices, "
      "hybrid_layer_ids, sliding_window_layers, attn.layers, attn_layer_period, mamba_step, "
      "mb_per_layer, full_attention_interval, layer_group_size, num_key_value_heads as a list");
  return rule_dense(in);
}

}  // namespace turboquant::detail
