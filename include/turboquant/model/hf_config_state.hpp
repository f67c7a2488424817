#pragma once

#include <turboquant/model/hf_config_defaults.hpp>
#include <turboquant/model/hf_config_fields.hpp>
#include <turboquant/model/recurrent_state.hpp>

#include <array>
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
  geometry.state_size = fields.size("attention_hidden_size").value_or(0);
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

/// What classes of mamba2 layers take for heads that their file leaves out.
struct Mamba2Class {
  std::string_view model_type;
  std::int64_t num_heads;
  std::int64_t head_dim;  ///< 0: channels / heads
  std::int64_t num_groups;
  bool fills_channels;  ///< whether heads must fill the channels that expand and hidden_size give
};

inline std::optional<Mamba2Class> mamba2_class(std::string_view model_type) {
  static constexpr std::array known{Mamba2Class{"bamba", 128, 0, 1, true},
                                    Mamba2Class{"falcon_h1", 128, 0, 1, true},
                                    Mamba2Class{"granitemoehybrid", 128, 0, 1, true},
                                    Mamba2Class{"mamba2", 128, 64, 8, true},
                                    Mamba2Class{"nemotron_h", 128, 64, 8, false},
                                    Mamba2Class{"plamo2", 0, 0, 0, false},
                                    Mamba2Class{"zamba2", 8, 0, 1, true}};
  return entry_of_class(known, model_type);
}

/// Channels of state-space layers as the file gives them apart from heads: stated, or expand times
/// the model's width.
inline std::optional<std::int64_t> mamba_channels(const ConfigFields& fields,
                                                  std::string_view model_type, bool has_class) {
  // Falcon-Mamba states the product of another expansion than its own; Mamba's class ignores it.
  const auto stated =
      fields.size(model_type == "falcon_mamba" ? "intermediate_size" : "mamba_d_ssm");
  const auto expand = or_default(fields.size({"mamba_expand", "expand"}), has_class ? 2 : 0);
  const auto hidden =
      or_default(fields.size("hidden_size"),
                 model_type == "mamba2" ? 4096 : class_defaults(model_type).hidden_size);
  return stated || !expand || !hidden ? stated
                                      : std::optional<std::int64_t>(checked_mul(*expand, *hidden));
}

/// Mamba of both versions: layers with heads are mamba2, but for Zamba's.
/// @throws Error(format) for heads that do not fill the channels of a class whose heads must.
inline std::optional<RecurrentGeometry> mamba_geometry(const ConfigFields& fields,
                                                       std::string_view model_type) {
  const auto state = fields.size({"mamba_d_state", "ssm_state_size", "state_size"});
  const auto kernel = fields.size({"mamba_d_conv", "conv_kernel"});
  if (!state || !kernel) {
    return std::nullopt;
  }
  const std::optional<Mamba2Class> known = mamba2_class(model_type);
  const bool pure = model_type == "mamba2";
  const auto stated_number =
      pure ? fields.size("num_heads")
           : fields.size({"mamba_n_heads", "mamba_num_heads", "n_mamba_heads"});
  const auto stated_width = pure ? fields.size("head_dim")
                                 : size_or_auto(fields, {"mamba_d_head", "mamba_head_dim",
                                                         "mamba_headdim", "hidden_size_per_head"});
  const auto heads = or_default(stated_number, known ? known->num_heads : 0);
  const auto width = or_default(stated_width, known ? known->head_dim : 0);
  std::optional<std::int64_t> inner = mamba_channels(fields, model_type, known.has_value());
  if (heads && width) {
    const std::int64_t filled = checked_mul(*heads, *width);
    const bool must_fill =
        fields.has("mamba_d_ssm") || (known && known->fills_channels && fields.has("hidden_size"));
    require(!must_fill || !inner || filled == *inner, ErrorCode::format,
            "parse_model_config: ", fields.path(), " has ", *heads, " state-space heads",
            origin(stated_number.has_value(), model_type), " of ", *width,
            origin(stated_width.has_value(), model_type),
            ", expected their product to be the number of channels, ", inner.value_or(0));
    inner = filled;
  }
  if (!inner) {
    return std::nullopt;
  }
  RecurrentGeometry geometry;
  geometry.state_size = *state;
  geometry.conv_kernel = *kernel;
  geometry.inner_size = *inner;
  if (!heads || model_type == "zamba") {
    geometry.kind = RecurrentKind::mamba1;
    return geometry;
  }
  geometry.kind = RecurrentKind::mamba2;
  geometry.num_heads = *heads;
  require(width || *inner % *heads == 0, ErrorCode::format, "parse_model_config: ", fields.path(),
          " has ", *inner, " state-space channels and ", *heads, " heads",
          origin(stated_number.has_value(), model_type), ", expected a multiple of the heads");
  geometry.value_head_dim = width.value_or(*inner / *heads);
  geometry.num_groups = fields.size({"mamba_n_groups", "n_groups", "mamba_ngroups"})
                            .value_or(known ? known->num_groups : 1);
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
