#pragma once

#include <turboquant/model/argument_checks.hpp>
#include <turboquant/model/model_config.hpp>
#include <turboquant/model/presets.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace turboquant {

/// How the tokens of one layer are stored in tiles.
struct LayerCodec {
  KeyCodec key_codec = KeyCodec::mse;
  int key_bits = 3;  ///< mse 2, 3 or 4; inner_product 3 or 4, the sign included; float8 8
  ValueCodec value_codec = ValueCodec::codebook;
  int value_bits = 4;  ///< 2, 3 or 4, with both value codecs
  std::int64_t value_group =
      0;  ///< grouped values: dimensions of a group, a multiple of 8; 0 = all
  bool norm_correction = false;  ///< mse keys: decoded keys keep their length (`ScaleRule::unit`)
  KeyCentring key_centring = KeyCentring::none;

  friend constexpr bool operator==(const LayerCodec&, const LayerCodec&) noexcept = default;
};

/// The codec of every layer of a model; nothing for a layer that stays exact or has no cache.
struct BitPlan {
  std::vector<std::optional<LayerCodec>> layers{};  ///< (num_layers)

  friend bool operator==(const BitPlan&, const BitPlan&) = default;
};

/// What one layer keeps of a token: kv_heads keys and values; 0 heads for a layer without a cache.
struct LayerShape {
  std::int64_t kv_heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;

  friend constexpr bool operator==(const LayerShape&, const LayerShape&) noexcept = default;
};

namespace detail {

inline void require_plan_layers(const char* caller, std::int64_t num_layers) {
  require_between(caller, "num_layers", num_layers, 0, max_model_layers,
                  ErrorCode::invalid_argument);
}

}  // namespace detail

/// Checks every field of a codec that does not depend on the dimensions of a head.
/// @param caller, layer how messages call it: "caller: layers[layer].field", or "caller: field"
/// @throws Error(invalid_argument) for a number that is no enumerator, Error(unsupported) for bits
/// that tiles do not have; each names the field, its value and what is supported.
inline void require_valid(const LayerCodec& codec, const char* caller = "LayerCodec",
                          std::optional<std::int64_t> layer = {}) {
  const auto fail_field = [&](ErrorCode code, const char* field, std::int64_t value,
                              const char* expected) {
    const std::string of = layer ? "layers[" + std::to_string(*layer) + "]." : std::string();
    fail(code, caller, ": ", of, field, " is ", value, ", expected ", expected);
  };
  const auto check_field = [&](bool good, const char* field, std::int64_t value,
                               const char* expected) {
    if (!good) {
      fail_field(ErrorCode::unsupported, field, value, expected);
    }
  };
  const auto enumerator = [&](const char* field, int value, int last, const char* names) {
    if (value > last) {
      fail_field(ErrorCode::invalid_argument, field, value, names);
    }
  };
  enumerator("key_codec", static_cast<int>(codec.key_codec), static_cast<int>(KeyCodec::float8),
             "mse, inner_product or float8");
  enumerator("key_centring", static_cast<int>(codec.key_centring),
             static_cast<int>(KeyCentring::tile_mean), "none or tile_mean");
  enumerator("value_codec", static_cast<int>(codec.value_codec),
             static_cast<int>(ValueCodec::codebook), "grouped or codebook");
  switch (codec.key_codec) {
    case KeyCodec::mse:
      check_field(codec.key_bits >= 2 && codec.key_bits <= 4, "key_bits", codec.key_bits,
                  "2, 3 or 4 for mse keys");
      break;
    case KeyCodec::inner_product:
      check_field(codec.key_bits == 3 || codec.key_bits == 4, "key_bits", codec.key_bits,
                  "3 or 4 for inner_product keys");
      break;
    case KeyCodec::float8:
      check_field(codec.key_bits == 8, "key_bits", codec.key_bits, "8 for float8 keys");
      break;
  }
  check_field(codec.value_bits >= 2 && codec.value_bits <= 4, "value_bits", codec.value_bits,
              "2, 3 or 4");
  check_field(codec.value_group >= 0 && codec.value_group <= 1024 && codec.value_group % 8 == 0,
              "value_group", codec.value_group, "0 (the whole head) or a multiple of 8 up to 1024");
  check_field(codec.value_group == 0 || codec.value_codec == ValueCodec::grouped, "value_group",
              codec.value_group, "0 for codebook values");
  check_field(!codec.norm_correction || codec.key_codec == KeyCodec::mse, "norm_correction", 1,
              "0 for keys that are not mse");
}

/// Checks every codec of a plan.
/// @throws what `require_valid` of a codec throws; Error(invalid_argument) for more than 10,000
/// layers. O(layers).
inline void require_valid(const BitPlan& plan, const char* caller = "BitPlan") {
  detail::require_plan_layers(caller, static_cast<std::int64_t>(plan.layers.size()));
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    if (plan.layers[i]) {
      require_valid(*plan.layers[i], caller, static_cast<std::int64_t>(i));
    }
  }
}

/// The plan that stores `num_layers` layers alike.
/// @throws what `require_valid` throws
[[nodiscard]] inline BitPlan uniform_plan(std::int64_t num_layers, const LayerCodec& codec) {
  detail::require_plan_layers("uniform_plan", num_layers);
  require_valid(codec, "uniform_plan");
  return {std::vector<std::optional<LayerCodec>>(static_cast<std::size_t>(num_layers), codec)};
}

/// `plan` with at least `key_bits` for the keys of its first `n` layers: errors there pass through
/// every later layer. A layer that has more, stays exact or has fp8 keys is left as it is, so that
/// no layer gets fewer bits than it had.
/// @param n 0 or more; all layers from their number on
/// @throws Error(invalid_argument) for a negative n, Error(unsupported) for key bits that the codec
/// of such a layer does not have. O(layers).
[[nodiscard]] inline BitPlan initial_layers_key_bits(BitPlan plan, std::int64_t n, int key_bits) {
  constexpr const char* caller = "initial_layers_key_bits";
  require(n >= 0, ErrorCode::invalid_argument, caller, ": n is ", n, ", expected 0 or more");
  require(key_bits >= 2 && key_bits <= 4, ErrorCode::unsupported, caller, ": key_bits is ",
          key_bits, ", expected 2, 3 or 4");
  require_valid(plan, caller);
  const auto count =
      (std::min)(plan.layers.size(), static_cast<std::size_t>((std::min)(n, max_model_layers)));
  for (std::size_t i = 0; i < count; ++i) {
    if (plan.layers[i]) {
      plan.layers[i]->key_bits = (std::max)(plan.layers[i]->key_bits, key_bits);
    }
  }
  return plan;
}

/// The page-level codec of the same bytes, for `TQFullAttentionSpec` and `LayerCacheOptions`. Named
/// like the preset that it equals, otherwise "bit_plan".
/// @throws what `require_valid` throws
[[nodiscard]] inline CacheCodec cache_codec(const LayerCodec& codec) {
  require_valid(codec, "cache_codec");
  CacheCodec result{"bit_plan",       codec.key_codec,   codec.key_bits,       codec.value_codec,
                    codec.value_bits, codec.value_group, codec.norm_correction};
  result.even_slot = false;  // tiles have no padding
  result.key_centring = codec.key_centring;
  for (const CacheCodec& preset : cache_presets) {
    if (preset.key_codec == result.key_codec && preset.key_bits == result.key_bits &&
        preset.value_codec == result.value_codec && preset.value_bits == result.value_bits &&
        preset.value_group == result.value_group &&
        preset.norm_correction == result.norm_correction &&
        preset.key_centring == result.key_centring) {
      result.name = preset.name;
      result.summary = preset.summary;
    }
  }
  return result;
}

/// A preset as tiles store it.
/// @throws Error(unsupported) for bits or groups that tiles do not have
[[nodiscard]] inline LayerCodec layer_codec(const CacheCodec& preset) {
  const LayerCodec codec{preset.key_codec,   preset.key_bits,    preset.value_codec,
                         preset.value_bits,  preset.value_group, preset.norm_correction,
                         preset.key_centring};
  require_valid(codec, "layer_codec");
  return codec;
}

/// Bytes of one token and kv head in a tile, the same as `TileFormat::slot_bytes()`.
/// @throws what `require_valid` throws; Error(unsupported) for dimensions that tiles do not have:
/// multiples of 8 from 16 to 576, and a group that divides the value dimension. O(1).
[[nodiscard]] inline std::int64_t slot_bytes(const LayerCodec& codec, std::int64_t key_dim,
                                             std::int64_t value_dim) {
  require_valid(codec, "slot_bytes");
  for (const auto& [name, dim] :
       {std::pair{"key_dim", key_dim}, std::pair{"value_dim", value_dim}}) {
    require(dim >= 16 && dim <= 576 && dim % 8 == 0, ErrorCode::unsupported, "slot_bytes: ", name,
            " is ", dim, ", expected a multiple of 8 from 16 to 576");
  }
  require(codec.value_group == 0 || value_dim % codec.value_group == 0, ErrorCode::unsupported,
          "slot_bytes: value_group is ", codec.value_group,
          ", expected a divisor of value_dim = ", value_dim);
  return TurboQuantConfig(cache_codec(codec), key_dim, value_dim).slot_size();
}

/// Bytes of one token in one layer: its kv heads compressed, or as rows of `element_bytes` per
/// number where the layer stays exact, or 0 without heads.
/// @throws what `slot_bytes` throws; Error(invalid_argument) for a codec without heads, heads
/// without dimensions, negative sizes or no element bytes; Error(overflow).
[[nodiscard]] inline std::int64_t layer_bytes_per_token(const std::optional<LayerCodec>& codec,
                                                        const LayerShape& shape,
                                                        std::int64_t element_bytes = 2) {
  constexpr const char* caller = "layer_bytes_per_token";
  detail::require_positive(caller, "element_bytes", element_bytes);
  detail::require_not_negative(caller, "kv_heads", shape.kv_heads);
  if (shape.kv_heads == 0) {
    require(!codec, ErrorCode::invalid_argument, caller,
            ": kv_heads is 0, expected kv heads where there is a codec");
    detail::require_not_negative(caller, "key_dim", shape.key_dim);
    detail::require_not_negative(caller, "value_dim", shape.value_dim);
    return 0;
  }
  detail::require_positive(caller, "key_dim", shape.key_dim);
  detail::require_positive(caller, "value_dim", shape.value_dim);
  if (codec) {
    return detail::named_mul(caller, {"kv_heads", shape.kv_heads},
                             {"slot_bytes", slot_bytes(*codec, shape.key_dim, shape.value_dim)});
  }
  const std::int64_t numbers = detail::named_mul(
      caller, {"kv_heads", shape.kv_heads},
      {"numbers of a head",
       detail::named_add(caller, {"key_dim", shape.key_dim}, {"value_dim", shape.value_dim})});
  return detail::named_mul(caller, {"numbers of a token", numbers},
                           {"element_bytes", element_bytes});
}

/// Bytes of one token in all layers; windows, sinks and room in last tiles come on top.
/// @param shapes (num_layers)
/// @throws Error(shape_mismatch) for another number of layers, and what `layer_bytes_per_token`
/// throws. O(layers).
[[nodiscard]] inline std::int64_t bytes_per_token(const BitPlan& plan,
                                                  std::span<const LayerShape> shapes,
                                                  std::int64_t element_bytes = 2) {
  require_valid(plan, "bytes_per_token");
  require(shapes.size() == plan.layers.size(), ErrorCode::shape_mismatch,
          "bytes_per_token: shapes.size() is ", shapes.size(),
          ", expected that of the plan's layers, ", plan.layers.size());
  std::int64_t total = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const ErrorContext context("bytes_per_token: layer ", i, ": ");
    const std::int64_t bytes = layer_bytes_per_token(plan.layers[i], shapes[i], element_bytes);
    total = detail::named_add("bytes_per_token", {"bytes of earlier layers", total},
                              {"bytes of this one", bytes});
  }
  return total;
}

}  // namespace turboquant
