#pragma once

// What a cache keeps, as a line of text: a preset of the library or exact rows, then changes to it.

#include "model.hpp"

#include <turboquant/model/presets.hpp>
#include <turboquant/runtime/layer_options.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llama_ab {

/// How the layers of one cache are kept.
struct CachePlan {
  std::string name;  ///< as it was written
  /// Nothing for exact rows.
  std::optional<turboquant::TileCodecOptions> codec{};
  bool single_precision = false;  ///< rows are float instead of bfloat16
  std::int64_t window = 128;
  std::int64_t sinks = 0;
  std::int64_t exact_first = 0;  ///< so many first layers stay exact
  std::int64_t exact_last = 0;   ///< likewise the last ones

  [[nodiscard]] bool exact() const noexcept { return !codec.has_value(); }

  /// The options of every layer of a model.
  [[nodiscard]] std::vector<turboquant::LayerOptions> layers(const ModelConfig& config) const {
    std::vector<turboquant::LayerOptions> result;
    for (std::int64_t i = 0; i < config.layers; ++i) {
      turboquant::LayerOptions layer;
      layer.capture.shape = {static_cast<int>(config.kv_heads), static_cast<int>(config.key_dim),
                             static_cast<int>(config.value_dim)};
      layer.capture.window_capacity = window;
      layer.capture.sinks = sinks;
      layer.capture.block_size = static_cast<std::int64_t>(turboquant::TileFormat::tokens);
      if (i >= exact_first && i < config.layers - exact_last) {
        layer.codec = codec;
      }
      result.push_back(layer);
    }
    return result;
  }
};

inline constexpr std::string_view plan_help =
    "bf16, f32 or a preset, then any of: +kb=2|3|4 key bits, +vb=2|3|4 value bits, +mse or +qjl "
    "keys, "
    "+rotated values, +g=N value group, +rule=plain|unit|least_squares|unbiased of keys, "
    "+vrule=... of rotated values, +seed=N, +window=N, +sinks=N, +first=N and +last=N exact "
    "layers";

namespace detail {

template <class Number>
[[nodiscard]] Number plan_number(std::string_view text, std::string_view item, Number most) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  require(parsed.ec == std::errc() && parsed.ptr == end && value >= 0 && value <= most,
          ErrorCode::invalid_argument, "--cache: ", turboquant::detail::in_quotes(item),
          ": expected an integer from 0 to ", most);
  return value;
}

[[nodiscard]] inline turboquant::ScaleRule plan_rule(std::string_view text, std::string_view item) {
  using enum turboquant::ScaleRule;
  for (const auto& [name, rule] :
       {std::pair{"plain", plain}, std::pair{"unit", unit},
        std::pair{"least_squares", least_squares}, std::pair{"unbiased", unbiased}}) {
    if (text == name) {
      return rule;
    }
  }
  turboquant::fail(ErrorCode::invalid_argument, "--cache: ", turboquant::detail::in_quotes(item),
                   ": expected plain, unit, least_squares or unbiased");
}

/// The tile codec that a preset names, for heads of these sizes.
[[nodiscard]] inline turboquant::TileCodecOptions codec_of_preset(std::string_view name,
                                                                  const ModelConfig& config) {
  const turboquant::CacheCodec preset = turboquant::find_cache_preset(name);
  turboquant::TileCodecOptions codec;
  codec.format.key_codec = preset.key_codec;
  codec.format.key_bits = preset.key_bits;
  codec.format.key_dim = static_cast<int>(config.key_dim);
  codec.format.value_codec = preset.value_codec;
  codec.format.value_bits = preset.value_bits;
  codec.format.value_dim = static_cast<int>(config.value_dim);
  codec.format.value_group = preset.value_group > 0 ? static_cast<int>(preset.value_group)
                                                    : static_cast<int>(config.value_dim);
  codec.key_scale_rule =
      preset.norm_correction ? turboquant::ScaleRule::unit : turboquant::ScaleRule::unbiased;
  return codec;
}

}  // namespace detail

/// Reads a plan, for example "tq_k3v4+rotated+sinks=4".
/// @throws turboquant::Error(invalid_argument) naming the part that is wrong, Error(unsupported)
/// for a format that tiles do not have
[[nodiscard]] inline CachePlan parse_plan(std::string_view text, const ModelConfig& config) {
  using turboquant::KeyCodec;
  using turboquant::ValueCodec;
  CachePlan plan;
  plan.name = text;
  const std::size_t first = text.find('+');
  const std::string_view base = text.substr(0, first);
  plan.single_precision = base == "f32";
  if (base != "bf16" && base != "f32") {
    plan.codec = detail::codec_of_preset(base, config);
  }
  constexpr std::int64_t most = std::int64_t{1} << 20U;
  for (std::size_t at = first; at != std::string_view::npos;) {
    const std::size_t next = text.find('+', at + 1);
    const std::string_view item =
        text.substr(at + 1, next == std::string_view::npos ? next : next - at - 1);
    at = next;
    const std::size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : item.substr(equals + 1);
    const auto number = [&](std::int64_t limit) {
      return detail::plan_number<std::int64_t>(value, item, limit);
    };
    require(plan.codec.has_value(), ErrorCode::invalid_argument,
            "--cache: ", turboquant::detail::in_quotes(text), ": exact rows take no changes");
    turboquant::TileFormat& format = plan.codec->format;
    if (key == "kb") {
      format.key_bits = static_cast<int>(number(8));
    } else if (key == "vb") {
      format.value_bits = static_cast<int>(number(8));
    } else if (item == "mse") {
      format.key_codec = KeyCodec::mse;
    } else if (item == "qjl") {
      format.key_codec = KeyCodec::inner_product;
    } else if (item == "rotated") {
      format.value_codec = ValueCodec::codebook;
      format.value_group = format.value_dim;
    } else if (key == "g") {
      format.value_codec = ValueCodec::grouped;
      format.value_group = static_cast<int>(number(1024));
    } else if (key == "rule") {
      plan.codec->key_scale_rule = detail::plan_rule(value, item);
    } else if (key == "vrule") {
      plan.codec->value_scale_rule = detail::plan_rule(value, item);
    } else if (key == "seed") {
      plan.codec->seed = detail::plan_number<std::uint64_t>(value, item, UINT64_MAX);
    } else if (key == "window") {
      plan.window = number(most);
    } else if (key == "sinks") {
      plan.sinks = number(most);
    } else if (key == "first") {
      plan.exact_first = number(most);
    } else if (key == "last") {
      plan.exact_last = number(most);
    } else {
      turboquant::fail(ErrorCode::invalid_argument,
                       "--cache: ", turboquant::detail::in_quotes(item), " is unknown; expected ",
                       plan_help);
    }
  }
  if (plan.codec) {
    turboquant::require_supported(plan.codec->format);
  }
  return plan;
}

}  // namespace llama_ab
