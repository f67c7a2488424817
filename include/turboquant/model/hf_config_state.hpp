#pragma once

#include <turboquant/model/hf_config_fields.hpp>
#include <turboquant/model/recurrent_state.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace turboquant::detail {

/// A size that some files write as the string "auto", which means: derive it.
inline std::optional<std::int64_t> size_or_auto(const ConfigFields& fields,
                                                std::initializer_list<std::string_view> names) {
  const std::string_view name = fields.first_present(names);
  if (name.empty() || (fields.find(name)->is_string() && fields.string(name) == "auto")) {
    return std::nullopt;
  }
  return fields.size(name);
}

/// The element type of recurrent matrices where the file states it.
inline std::optional<CacheDType> stated_state_dtype(const ConfigFields& fields) {
  const std::string_view name =
      fields.first_present({"mamba_ssm_cache_dtype", "mamba_ssm_dtype", "ssm_dtype"});
  return name.empty() ? std::nullopt : find_cache_dtype(*fields.string(name));
}

inline std::optional<RecurrentGeometry> gated_delta_net_geometry(const ConfigFields& fields) {
  const auto value_heads = fields.size("linear_num_value_heads");
  const auto key_heads = fields.size("linear_num_key_heads");
  const auto key_dim = fields.size("linear_key_head_dim");
  const auto value_dim = fields.size("linear_value_head_dim");
  const auto kernel = fields.size("linear_conv_kernel_dim");
  if (!value_heads || !key_heads || !key_dim || !value_dim || !kernel) {
    return std::nullopt;
  }
  RecurrentGeometry geometry;
  geometry.kind = RecurrentKind::gated_delta_net;
  geometry.num_heads = *value_heads;
  geometry.num_key_heads = *key_heads;
  geometry.key_head_dim = *key_dim;
  geometry.value_head_dim = *value_dim;
  geometry.conv_kernel = *kernel;
  geometry.state_dtype = CacheDType::float32;
  return geometry;
}

inline std::optional<RecurrentGeometry> kimi_delta_geometry(const ConfigFields& fields) {
  const std::optional<ConfigFields> nested = fields.object("linear_attn_config");
  if (!nested) {
    return std::nullopt;
  }
  const auto heads = nested->size("num_heads");
  const auto width = nested->size("head_dim");
  const auto kernel = nested->size("short_conv_kernel_size");
  if (!heads || !width || !kernel) {
    return std::nullopt;
  }
  RecurrentGeometry geometry;
  geometry.kind = RecurrentKind::kimi_delta;
  geometry.num_heads = *heads;
  geometry.key_head_dim = *width;
  geometry.conv_kernel = *kernel;
  geometry.state_dtype = CacheDType::float32;
  return geometry;
}

inline std::optional<RecurrentGeometry> short_convolution_geometry(const ConfigFields& fields) {
  const auto taps = fields.size("conv_L_cache");
  const auto channels = fields.size({"conv_dim", "hidden_size", "block_dim"});
  if (!taps || !channels) {
    return std::nullopt;
  }
  RecurrentGeometry geometry;
  geometry.kind = RecurrentKind::short_convolution;
  geometry.inner_size = *channels;
  geometry.conv_kernel = *taps;
  return geometry;
}

/// RecurrentGemma. Widths that the file leaves out are its class's.
inline std::optional<RecurrentGeometry> rg_lru_geometry(const ConfigFields& fields) {
  const auto channels = fields.size({"lru_width", "hidden_size"});
  if (!channels) {
    return std::nullopt;
  }
  RecurrentGeometry geometry;
  geometry.kind = RecurrentKind::rg_lru;
  geometry.inner_size = *channels;
  geometry.conv_kernel = fields.size("conv1d_width").value_or(4);
  return geometry;
}

inline std::optional<RecurrentGeometry> rwkv4_geometry(const ConfigFields& fields) {
  const auto channels = fields.size("hidden_size");
  if (!channels) {
    return std::nullopt;
  }
  RecurrentGeometry geometry;
  geometry.kind = RecurrentKind::rwkv4;
  geometry.inner_size = *channels;
  return geometry;
}

inline std::optional<RecurrentGeometry> lightning_geometry(const ConfigFields& fields) {
  const auto heads = fields.size("num_attention_heads");
  const auto width = fields.size("head_dim");
  if (!heads || !width) {
    return std::nullopt;
  }
  RecurrentGeometry geometry;
  geometry.kind = RecurrentKind::lightning;
  geometry.num_heads = *heads;
  geometry.key_head_dim = *width;
  return geometry;
}

inline std::optional<RecurrentGeometry> mamba_geometry(const ConfigFields& fields,
                                                       std::string_view model_type) {
  const auto state = fields.size({"mamba_d_state", "ssm_state_size", "state_size"});
  const auto kernel = fields.size({"mamba_d_conv", "conv_kernel"});
  const auto expand = fields.size({"mamba_expand", "expand"});
  const auto hidden = fields.size("hidden_size");
  // Falcon-Mamba states the product of another expansion than its own; Mamba's class ignores it.
  std::optional<std::int64_t> inner =
      fields.size(model_type == "falcon_mamba" ? "intermediate_size" : "mamba_d_ssm");
  if (!state || !kernel) {
    return std::nullopt;
  }
  RecurrentGeometry geometry;
  geometry.state_size = *state;
  geometry.conv_kernel = *kernel;
  const bool pure = model_type == "mamba2";
  std::optional<std::int64_t> heads =
      fields.size({"mamba_n_heads", "mamba_num_heads", "n_mamba_heads"});
  std::optional<std::int64_t> width = size_or_auto(
      fields, {"mamba_d_head", "mamba_head_dim", "mamba_headdim", "hidden_size_per_head"});
  if (pure) {
    heads = fields.size("num_heads");
    width = fields.size("head_dim");
  }
  if (!inner && heads && width) {
    inner = checked_mul(*heads, *width);
  }
  if (!inner && expand && hidden) {
    inner = checked_mul(*expand, *hidden);
  }
  if (!inner) {
    return std::nullopt;
  }
  geometry.inner_size = *inner;
  if (!heads || model_type == "zamba") {
    geometry.kind = RecurrentKind::mamba1;
    return geometry;
  }
  geometry.kind = RecurrentKind::mamba2;
  geometry.num_heads = *heads;
  require(width || *inner % *heads == 0, ErrorCode::format, "parse_model_config: ", fields.path(),
          " has ", *inner, " state-space channels and ", *heads,
          " heads, expected a multiple of the heads");
  geometry.value_head_dim = width.value_or(*inner / *heads);
  const std::int64_t default_groups = model_type == "plamo2" ? 0 : 1;
  geometry.num_groups =
      fields.size({"mamba_n_groups", "n_groups", "mamba_ngroups"}).value_or(default_groups);
  geometry.chunk_size = fields.size({"mamba_chunk_size", "chunk_size"});
  return geometry;
}

/// The sizes of the model's recurrent state, or nothing when the file leaves one out.
/// @throws Error(format) for a field of the wrong type.
inline std::optional<RecurrentGeometry> parse_recurrent_geometry(const ConfigFields& fields,
                                                                 std::string_view model_type,
                                                                 CacheDType dtype) {
  std::optional<RecurrentGeometry> geometry;
  if (fields.has("linear_num_value_heads")) {
    geometry = gated_delta_net_geometry(fields);
  } else if (fields.has("linear_attn_config")) {
    geometry = kimi_delta_geometry(fields);
  } else if (fields.has("conv_L_cache")) {
    geometry = short_convolution_geometry(fields);
  } else if (fields.has("attn_type_list") || model_type.substr(0, 7) == "minimax") {
    geometry = lightning_geometry(fields);
  } else if (fields.has("lru_width") || model_type == "recurrent_gemma") {
    geometry = rg_lru_geometry(fields);
  } else if (model_type == "rwkv") {
    geometry = rwkv4_geometry(fields);
  } else {
    geometry = mamba_geometry(fields, model_type);
  }
  if (geometry) {
    geometry->conv_dtype = dtype;
    const bool always_float32 = geometry->kind == RecurrentKind::gated_delta_net ||
                                geometry->kind == RecurrentKind::kimi_delta ||
                                geometry->kind == RecurrentKind::rg_lru ||
                                geometry->kind == RecurrentKind::rwkv4;
    geometry->state_dtype =
        stated_state_dtype(fields).value_or(always_float32 ? CacheDType::float32 : dtype);
  }
  return geometry;
}

}  // namespace turboquant::detail
