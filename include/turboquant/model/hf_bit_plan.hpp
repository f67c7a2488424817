#pragma once

#include <turboquant/base/regular_file.hpp>
#include <turboquant/model/bit_plan.hpp>
#include <turboquant/model/hf_config_fields.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <ios>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace turboquant {

namespace detail {

inline constexpr std::string_view bit_plan_format = "turboquant bit plan";
inline constexpr std::int64_t bit_plan_version = 1;

/// @throws Error(format) for a field that is none of `names`
inline void require_known_fields(const char* caller, const ConfigFields& fields,
                                 const nlohmann::json& object,
                                 std::initializer_list<std::string_view> names) {
  for (const auto& item : object.items()) {
    const bool known = std::find(names.begin(), names.end(), item.key()) != names.end();
    require(known, ErrorCode::format, caller, ": ", fields.path(), " has a field \"",
            printable(item.key(), 40), "\", expected ", ConfigFields::joined(names));
  }
}

/// The number of the name that a field holds.
template <std::size_t N>
std::size_t read_name(const char* caller, const ConfigFields& fields, std::string_view field,
                      const std::array<std::string_view, N>& names) {
  const std::optional<std::string> name = fields.string(field);
  require(name.has_value(), ErrorCode::format, caller, ": ", fields.path(), " has no ", field);
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == *name) {
      return i;
    }
  }
  std::string expected;
  for (const std::string_view known : names) {
    expected += (expected.empty() ? "" : " or ") + std::string(known);
  }
  fail(ErrorCode::format, caller, ": ", fields.path(), ".", field, " is \"", printable(*name, 40),
       "\", expected ", expected);
}

inline LayerCodec read_layer_codec(const char* caller, const nlohmann::json& object,
                                   std::int64_t layer) {
  const ConfigFields fields(object, "layers[" + std::to_string(layer) + "]", caller);
  require_known_fields(caller, fields, object,
                       {"key_codec", "key_bits", "value_codec", "value_bits", "value_group",
                        "norm_correction", "key_centring"});
  const auto bits = [&](std::string_view field) {
    const std::optional<std::int64_t> value = fields.integer(field, 1, 8);
    require(value.has_value(), ErrorCode::format, caller, ": ", fields.path(), " has no ", field);
    return static_cast<int>(*value);
  };
  LayerCodec codec;
  codec.key_codec = static_cast<KeyCodec>(read_name(caller, fields, "key_codec", key_codec_names));
  codec.key_bits = bits("key_bits");
  codec.value_codec =
      static_cast<ValueCodec>(read_name(caller, fields, "value_codec", value_codec_names));
  codec.value_bits = bits("value_bits");
  codec.value_group = fields.integer("value_group", 0, 1024).value_or(0);
  codec.norm_correction = fields.boolean("norm_correction").value_or(false);
  if (fields.has("key_centring")) {
    codec.key_centring =
        static_cast<KeyCentring>(read_name(caller, fields, "key_centring", key_centring_names));
  }
  require_valid(codec, caller, layer);
  return codec;
}

}  // namespace detail

/// Reads a plan that `to_json` has written:
/// `{"format": "turboquant bit plan", "version": 1, "layers": [{"key_codec": "mse", "key_bits": 3,
/// "value_codec": "codebook", "value_bits": 4}, null]}`, for grouped values with `"value_group"`,
/// for mse keys with `"norm_correction"` where wanted, with `"key_centring": "tile_mean"` for key
/// means; null is a layer that stays exact or has no
/// cache.
///
/// Unknown fields, duplicate keys, other versions and more than 10,000 layers are refused, and text
/// beyond 8 MiB, 64 levels or a million values. Never recurses. Deterministic.
/// @throws Error(format) for malformed text, with its position, or a field outside its domain, by
/// name; Error(unsupported) for another version and for bits that tiles do not have
[[nodiscard]] inline BitPlan parse_bit_plan(std::string_view json_text) {
  constexpr const char* caller = "parse_bit_plan";
  const nlohmann::json document = detail::parse_json_object(caller, json_text);
  const detail::ConfigFields fields(document, "plan", caller);
  const std::string format = fields.string("format").value_or("");
  require(format == detail::bit_plan_format, ErrorCode::format, caller, ": plan.format is \"",
          detail::printable(format, 40), "\", expected \"", detail::bit_plan_format, "\"");
  const std::optional<std::int64_t> stated = fields.integer("version", 0, std::int64_t{1} << 31U);
  require(stated.has_value(), ErrorCode::format, caller, ": plan has no version");
  require(*stated == detail::bit_plan_version, ErrorCode::unsupported, caller, ": plan.version is ",
          *stated, ", expected ", detail::bit_plan_version);
  detail::require_known_fields(caller, fields, document, {"format", "version", "layers"});
  const nlohmann::json* const layers = fields.find("layers");
  require(layers != nullptr && layers->is_array(), ErrorCode::format, caller,
          ": plan.layers is no array, expected one entry a layer");
  require(layers->size() <= static_cast<std::size_t>(max_model_layers), ErrorCode::format, caller,
          ": plan.layers has ", layers->size(), " entries, expected at most ", max_model_layers);
  BitPlan plan;
  for (const nlohmann::json& layer : *layers) {
    const auto index = static_cast<std::int64_t>(plan.layers.size());
    require(layer.is_null() || layer.is_object(), ErrorCode::format, caller, ": plan.layers[",
            index, "] is ", layer.type_name(), ", expected an object or null");
    plan.layers.push_back(layer.is_null()
                              ? std::nullopt
                              : std::optional(detail::read_layer_codec(caller, layer, index)));
  }
  return plan;
}

/// Reads a plan from a file.
/// @throws Error(invalid_argument) for a path that is empty or has a NUL inside, Error(io) for one
/// that names no regular file or when it cannot be read, and what `parse_bit_plan` throws
[[nodiscard]] inline BitPlan load_bit_plan(const std::filesystem::path& path) {
  const std::string text = detail::read_json_text("load_bit_plan", path);
  const ErrorContext context(path.string(), ": ");
  return parse_bit_plan(text);
}

/// A plan as text, one layer a line; the same text always.
/// @throws what `require_valid` throws
[[nodiscard]] inline std::string to_json(const BitPlan& plan) {
  require_valid(plan, "to_json");
  std::string text = "{\n  \"format\": \"" + std::string(detail::bit_plan_format) +
                     "\",\n  \"version\": " + std::to_string(detail::bit_plan_version) +
                     ",\n  \"layers\": [";
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    text += i == 0 ? "\n    " : ",\n    ";
    const std::optional<LayerCodec>& codec = plan.layers[i];
    if (!codec) {
      text += "null";
      continue;
    }
    const auto key = static_cast<std::size_t>(codec->key_codec);
    const auto value = static_cast<std::size_t>(codec->value_codec);
    text += "{\"key_codec\": \"" + std::string(detail::key_codec_names[key]) +
            "\", \"key_bits\": " + std::to_string(codec->key_bits) + ", \"value_codec\": \"" +
            std::string(detail::value_codec_names[value]) +
            "\", \"value_bits\": " + std::to_string(codec->value_bits);
    if (codec->value_group != 0) {
      text += ", \"value_group\": " + std::to_string(codec->value_group);
    }
    text += codec->norm_correction ? ", \"norm_correction\": true" : "";
    if (codec->key_centring != KeyCentring::none) {
      const auto centring = static_cast<std::size_t>(codec->key_centring);
      text += ", \"key_centring\": \"" + std::string(detail::key_centring_names[centring]) + "\"";
    }
    text += "}";
  }
  return text + (plan.layers.empty() ? "]\n}\n" : "\n  ]\n}\n");
}

namespace detail {

/// Writes text to a file that did not exist; the name is `path` with a number and ".partial".
/// @return the file, or nothing where it cannot be written
[[nodiscard]] inline std::optional<std::filesystem::path> write_beside(
    const std::filesystem::path& path, const std::string& text) {
  for (int number = 0; number < 1000; ++number) {
    std::filesystem::path partial = path;
    partial += "." + std::to_string(number) + ".partial";
    std::FILE* const file = std::fopen(partial.string().c_str(), "wbx");
    if (file != nullptr) {
      const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
      if (std::fclose(file) == 0 && written) {
        return partial;
      }
      std::error_code ignored;
      std::filesystem::remove(partial, ignored);
      return std::nullopt;
    }
    if (std::error_code error; !std::filesystem::exists(partial, error)) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

/// Gives a file new contents; whether it succeeded. A regular file is replaced as a whole, also
/// behind symbolic links, and keeps its permissions; devices and pipes are written to.
[[nodiscard]] inline bool replace_contents(const std::filesystem::path& path,
                                           const std::string& text) {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::weakly_canonical(path, error);
  if (error) {
    return false;
  }
  const std::filesystem::file_status status = std::filesystem::status(target, error);
  const bool exists = std::filesystem::exists(status);
  if (exists) {
    // Also refuses folders and files that may not be written.
    std::ofstream stream(target, std::ios::binary | std::ios::app);
    if (!stream) {
      return false;
    }
    if (!std::filesystem::is_regular_file(status)) {
      stream << text;
      return stream.flush().good();
    }
  }
  const std::optional<std::filesystem::path> partial = write_beside(target, text);
  if (!partial) {
    return false;
  }
  if (exists) {
    std::filesystem::permissions(*partial, status.permissions(), error);
  }
  std::filesystem::rename(*partial, target, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(*partial, ignored);
  }
  return !error;
}

}  // namespace detail

/// Writes a plan to a file. A regular file is replaced as a whole, so that a failed call leaves
/// what was there; until then, the plan is in a new file beside it.
/// @throws Error(invalid_argument) for a path that is empty or has a NUL inside, Error(io) when it
/// cannot be written, and what `to_json` throws
inline void save_bit_plan(const std::filesystem::path& path, const BitPlan& plan) {
  detail::require_whole_path("save_bit_plan", path);
  require(detail::replace_contents(path, to_json(plan)), ErrorCode::io,
          "save_bit_plan: cannot write ", path.string());
}

}  // namespace turboquant
