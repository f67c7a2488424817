#pragma once

// What a cache keeps, as a line of text: a preset of the library, a bit plan or exact rows, then
// changes to it.

#include "model.hpp"

#include <turboquant/model/hf_bit_plan.hpp>
#include <turboquant/model/presets.hpp>
#include <turboquant/runtime/bit_plan_layers.hpp>
#include <turboquant/runtime/layer_options.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llama_ab {

/// How the layers of one cache are kept.
struct CachePlan {
  std::string name;  ///< as it was written
  /// Nothing for exact rows.
  std::optional<turboquant::TileCodecOptions> codec{};
  bool single_precision = false;  ///< rows are float instead of bfloat16
  /// The codec of every layer, where the name is that of a file.
  std::optional<turboquant::BitPlan> bits{};
  bool key_means = false;  ///< whether every tile keeps a mean of its keys
  std::uint64_t seed = 0;  ///< of the rotations
  std::int64_t window = 128;
  std::int64_t sinks = 0;
  std::int64_t exact_first = 0;  ///< so many first layers stay exact
  std::int64_t exact_last = 0;   ///< likewise the last ones

  [[nodiscard]] bool exact() const noexcept { return !codec && !bits; }

  /// The options of every layer of a model.
  [[nodiscard]] std::vector<turboquant::LayerOptions> layers(const ModelConfig& config) const {
    std::vector<turboquant::LayerOptions> result;
    for (std::int64_t i = 0; i < config.layers; ++i) {
      turboquant::LayerOptions layer;
      layer.capture.shape = {static_cast<int>(config.kv_heads), static_cast<int>(config.key_dim),
                             static_cast<int>(config.value_dim)};
      layer.capture.window_capacity = window;
      layer.capture.sinks = sinks;
      layer.capture.block_size = static_cast<std::int64_t>(turboquant::TileFormat::max_tokens);
      layer.codec = codec;
      result.push_back(layer);
    }
    if (bits) {
      result = turboquant::with_bit_plan(std::move(result), *bits);
    }
    for (std::int64_t i = 0; i < config.layers; ++i) {
      std::optional<turboquant::TileCodecOptions>& options =
          result[static_cast<std::size_t>(i)].codec;
      if (i < exact_first || i >= config.layers - exact_last) {
        options.reset();
      }
      if (options) {
        options->seed = seed;
        if (key_means) {
          options->format.key_centring = turboquant::KeyCentring::tile_mean;
        }
      }
    }
    return result;
  }
};

inline constexpr std::string_view plan_help =
    "bf16, f32, a preset or @FILE (a bit plan), then any of: +kb=2|3|4 key bits, +vb=2|3|4 value "
    "bits, +mse or +qjl keys, +rotated values, +g=N value group, "
    "+rule=plain|unit|least_squares|unbiased of keys, +vrule=... of rotated values, +mean of the "
    "keys of a tile, +seed=N, +window=N exact newest tokens (128), +sinks=N exact first ones, "
    "+first=N and +last=N exact layers";

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
  codec.format.key_centring = preset.key_centring;
  codec.key_scale_rule =
      preset.norm_correction ? turboquant::ScaleRule::unit : turboquant::ScaleRule::unbiased;
  return codec;
}

/// One change: "key=value", or a key alone.
struct PlanItem {
  std::string_view text;
  std::string_view key;
  std::string_view value;

  explicit PlanItem(std::string_view item)
      : text(item),
        key(item.substr(0, item.find('='))),
        value(key.size() < item.size() ? item.substr(key.size() + 1) : std::string_view()) {}

  [[nodiscard]] std::int64_t number(std::int64_t most) const {
    return plan_number<std::int64_t>(value, text, most);
  }
};

/// Changes what does not depend on how tokens are stored.
/// @return whether the item is such a change
inline bool change_cache(CachePlan& plan, const PlanItem& item) {
  constexpr std::int64_t most = std::int64_t{1} << 20U;
  if (item.text == "mean") {
    plan.key_means = true;
  } else if (item.key == "seed") {
    plan.seed = plan_number<std::uint64_t>(item.value, item.text, UINT64_MAX);
  } else if (item.key == "window") {
    plan.window = item.number(most);
  } else if (item.key == "sinks") {
    plan.sinks = item.number(most);
  } else if (item.key == "first") {
    plan.exact_first = item.number(most);
  } else if (item.key == "last") {
    plan.exact_last = item.number(most);
  } else {
    return false;
  }
  return true;
}

/// Changes how tokens are stored.
/// @return whether the item is such a change
inline bool change_codec(turboquant::TileCodecOptions& codec, const PlanItem& item) {
  using turboquant::KeyCodec;
  using turboquant::ValueCodec;
  turboquant::TileFormat& format = codec.format;
  if (item.key == "kb") {
    format.key_bits = static_cast<int>(item.number(8));
  } else if (item.key == "vb") {
    format.value_bits = static_cast<int>(item.number(8));
  } else if (item.text == "mse") {
    format.key_codec = KeyCodec::mse;
  } else if (item.text == "qjl") {
    format.key_codec = KeyCodec::inner_product;
  } else if (item.text == "rotated") {
    format.value_codec = ValueCodec::codebook;
    format.value_group = format.value_dim;
  } else if (item.key == "g") {
    format.value_codec = ValueCodec::grouped;
    format.value_group = static_cast<int>(item.number(1024));
  } else if (item.key == "rule") {
    codec.key_scale_rule = plan_rule(item.value, item.text);
  } else if (item.key == "vrule") {
    codec.value_scale_rule = plan_rule(item.value, item.text);
  } else {
    return false;
  }
  return true;
}

}  // namespace detail

/// Reads a plan, for example "tq_k3v4+rotated+sinks=4".
/// @throws turboquant::Error(invalid_argument) naming the part that is wrong, Error(unsupported)
/// for a format that tiles do not have, and what `load_bit_plan` throws
[[nodiscard]] inline CachePlan parse_plan(std::string_view text, const ModelConfig& config) {
  using turboquant::detail::in_quotes;
  CachePlan plan;
  plan.name = text;
  std::size_t at = text.find('+');
  const std::string_view base = text.substr(0, at);
  plan.single_precision = base == "f32";
  std::vector<std::string_view> seen;
  if (base.substr(0, 1) == "@") {
    plan.bits = turboquant::load_bit_plan(std::string(base.substr(1)));
    require(static_cast<std::int64_t>(plan.bits->layers.size()) == config.layers,
            ErrorCode::shape_mismatch, "--cache: ", in_quotes(base), " has ",
            plan.bits->layers.size(), " layers, expected the model's ", config.layers);
  } else if (base != "bf16" && base != "f32") {
    plan.codec = detail::codec_of_preset(base, config);
  }
  while (at != std::string_view::npos) {
    const std::size_t begin = at + 1;
    at = text.find('+', begin);
    const detail::PlanItem item(text.substr(begin, at == std::string_view::npos ? at : at - begin));
    require(!plan.exact(), ErrorCode::invalid_argument, "--cache: ", in_quotes(text),
            ": exact rows take no changes");
    // What a change is about: of mse, qjl and so on there can be one.
    const std::string_view about = item.text == "mse" || item.text == "qjl"    ? "keys"
                                   : item.text == "rotated" || item.key == "g" ? "values"
                                                                               : item.key;
    require(std::find(seen.begin(), seen.end(), about) == seen.end(), ErrorCode::invalid_argument,
            "--cache: ", in_quotes(text), ": ", in_quotes(item.text),
            " changes what another change has set");
    seen.push_back(about);
    const bool known =
        detail::change_cache(plan, item) || (plan.codec && detail::change_codec(*plan.codec, item));
    require(known, ErrorCode::invalid_argument, "--cache: ", in_quotes(item.text), " is unknown",
            plan.codec ? "" : " or not for a bit plan", "; expected ", plan_help);
  }
  const auto changed = [&](std::string_view about) {
    return std::find(seen.begin(), seen.end(), about) != seen.end();
  };
  if (plan.codec) {
    const turboquant::TileFormat& format = plan.codec->format;
    turboquant::require_supported(format);
    require(!changed("rule") || format.key_codec == turboquant::KeyCodec::mse,
            ErrorCode::invalid_argument, "--cache: ", in_quotes(text), ": +rule is for mse keys");
    require(!changed("vrule") || format.value_codec == turboquant::ValueCodec::codebook,
            ErrorCode::invalid_argument, "--cache: ", in_quotes(text),
            ": +vrule is for rotated values");
  }
  require(plan.exact_first + plan.exact_last <= config.layers, ErrorCode::out_of_range,
          "--cache: ", in_quotes(text), ": ", plan.exact_first + plan.exact_last,
          " layers stay exact, expected at most the model's ", config.layers);
  return plan;
}

}  // namespace llama_ab
