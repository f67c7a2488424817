#pragma once

#include <turboquant/model/hf_config_json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace turboquant::detail {

inline bool is_among(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Typed access to one object of a configuration file. An absent field and an explicit null are the
/// same; a field of the wrong type is an error that names it.
class ConfigFields {
 public:
  using Json = nlohmann::json;

  /// @param object must outlive the reader; `path` is how messages call it ("config.text_config").
  /// @param where  function that messages start with; a literal
  ConfigFields(const Json& object, std::string path, const char* where = "parse_model_config")
      : object_(&object), path_(std::move(path)), where_(where) {}

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// The field's value, or null when it is absent or null.
  [[nodiscard]] const Json* find(std::string_view name) const {
    const auto field = object_->find(std::string(name));
    return field == object_->end() || field->is_null() ? nullptr : &*field;
  }
  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }
  /// Whether the field is there and null: for the few that mean something else than an absent one.
  [[nodiscard]] bool is_null(std::string_view name) const {
    const auto field = object_->find(std::string(name));
    return field != object_->end() && field->is_null();
  }

  /// The names of all fields, in the order of their characters.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> list;
    for (const auto& field : object_->items()) {
      list.push_back(field.key());
    }
    return list;
  }

  /// The first of `names` that is present, or an empty view.
  [[nodiscard]] std::string_view first_present(
      std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      if (has(name)) {
        return name;
      }
    }
    return {};
  }

  /// An integer in `low..high`. Floats (4.0), strings ("4") and booleans are errors.
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view name, std::int64_t low,
                                                    std::int64_t high) const {
    const Json* value = find(name);
    return value == nullptr ? std::nullopt
                            : std::optional<std::int64_t>(as_integer(name, *value, low, high));
  }
  /// A positive size of at most 2^31 - 1.
  [[nodiscard]] std::optional<std::int64_t> size(std::string_view name) const {
    return integer(name, 1, max_size);
  }
  /// A size under the first present of several spellings.
  [[nodiscard]] std::optional<std::int64_t> size(
      std::initializer_list<std::string_view> names) const {
    const std::string_view name = first_present(names);
    return name.empty() ? std::nullopt : size(name);
  }
  /// An integer in `low..high` under any of several spellings, which must not contradict each
  /// other.
  [[nodiscard]] std::optional<std::int64_t> agreed_integer(
      std::initializer_list<std::string_view> names, std::int64_t low, std::int64_t high) const {
    const std::string_view first = first_present(names);
    const auto value = first.empty() ? std::optional<std::int64_t>() : integer(first, low, high);
    for (const std::string_view name : names) {
      const auto other = value ? integer(name, low, high) : value;
      require(!other || *other == *value, ErrorCode::format, where_, ": ", path_, ".", name, " is ",
              other.value_or(0), " beside ", first, " = ", value.value_or(0),
              ", expected one number");
    }
    return value;
  }
  /// A size under any of several spellings, which must not contradict each other.
  [[nodiscard]] std::optional<std::int64_t> agreed_size(
      std::initializer_list<std::string_view> names) const {
    return agreed_integer(names, 1, max_size);
  }
  /// A size that the file must give.
  [[nodiscard]] std::int64_t required_size(std::initializer_list<std::string_view> names) const {
    const std::optional<std::int64_t> value = size(names);
    require(value.has_value(), ErrorCode::format, where_, ": ", path_, " has no ", joined(names));
    return *value;
  }

  /// A finite number.
  [[nodiscard]] std::optional<double> number(std::string_view name) const {
    const Json* value = find(name);
    if (value == nullptr) {
      return std::nullopt;
    }
    require(value->is_number() && std::isfinite(value->get<double>()), ErrorCode::format, where_,
            ": ", path_, ".", name, " is ", shown(*value), ", expected a finite number");
    return value->get<double>();
  }

  [[nodiscard]] std::optional<bool> boolean(std::string_view name) const {
    const Json* value = find(name);
    if (value == nullptr) {
      return std::nullopt;
    }
    require(value->is_boolean(), ErrorCode::format, where_, ": ", path_, ".", name, " is ",
            shown(*value), ", expected true or false");
    return value->get<bool>();
  }

  [[nodiscard]] std::optional<std::string> string(std::string_view name) const {
    const Json* value = find(name);
    if (value == nullptr) {
      return std::nullopt;
    }
    require(value->is_string(), ErrorCode::format, where_, ": ", path_, ".", name, " is ",
            shown(*value), ", expected a string");
    return value->get<std::string>();
  }

  /// An array of integers in `low..high`.
  [[nodiscard]] std::optional<std::vector<std::int64_t>> integers(std::string_view name,
                                                                  std::int64_t low,
                                                                  std::int64_t high) const {
    const Json* value = array(name);
    if (value == nullptr) {
      return std::nullopt;
    }
    std::vector<std::int64_t> list;
    for (const Json& item : *value) {
      list.push_back(as_integer(item_name(name, list.size()), item, low, high));
    }
    return list;
  }

  [[nodiscard]] std::optional<std::vector<std::string>> strings(std::string_view name) const {
    const Json* value = array(name);
    if (value == nullptr) {
      return std::nullopt;
    }
    std::vector<std::string> list;
    for (const Json& item : *value) {
      require(item.is_string(), ErrorCode::format, where_, ": ", path_, ".",
              item_name(name, list.size()), " is ", shown(item), ", expected a string");
      list.push_back(item.get<std::string>());
    }
    return list;
  }

  /// A nested object.
  [[nodiscard]] std::optional<ConfigFields> object(std::string_view name) const {
    const Json* value = find(name);
    if (value == nullptr) {
      return std::nullopt;
    }
    require(value->is_object(), ErrorCode::format, where_, ": ", path_, ".", name, " is ",
            shown(*value), ", expected an object");
    return ConfigFields(*value, path_ + "." + std::string(name), where_);
  }

  /// An array of objects.
  [[nodiscard]] std::optional<std::vector<ConfigFields>> objects(std::string_view name) const {
    const Json* value = array(name);
    if (value == nullptr) {
      return std::nullopt;
    }
    std::vector<ConfigFields> list;
    for (const Json& item : *value) {
      const std::string label = item_name(name, list.size());
      require(item.is_object(), ErrorCode::format, where_, ": ", path_, ".", label, " is ",
              shown(item), ", expected an object");
      list.push_back(ConfigFields(item, path_ + "." + label, where_));
    }
    return list;
  }

  /// Names separated by " or ".
  [[nodiscard]] static std::string joined(std::initializer_list<std::string_view> names) {
    std::string text;
    for (const std::string_view name : names) {
      text += text.empty() ? "" : " or ";
      text += name;
    }
    return text;
  }

 private:
  static constexpr std::int64_t max_size = (std::int64_t{1} << 31) - 1;

  [[nodiscard]] const Json* array(std::string_view name) const {
    const Json* value = find(name);
    require(value == nullptr || value->is_array(), ErrorCode::format, where_, ": ", path_, ".",
            name, " is ", value == nullptr ? "" : shown(*value), ", expected an array");
    return value;
  }

  [[nodiscard]] std::int64_t as_integer(std::string_view name, const Json& value, std::int64_t low,
                                        std::int64_t high) const {
    const bool too_large =
        value.is_number_unsigned() &&
        value.get<std::uint64_t>() >
            static_cast<std::uint64_t>((std::numeric_limits<std::int64_t>::max)());
    require(value.is_number_integer() && !too_large, ErrorCode::format, where_, ": ", path_, ".",
            name, " is ", shown(value), ", expected an integer ", low, "..", high);
    const auto number = value.get<std::int64_t>();
    require(number >= low && number <= high, ErrorCode::format, where_, ": ", path_, ".", name,
            " is ", number, ", expected ", low, "..", high);
    return number;
  }

  [[nodiscard]] static std::string item_name(std::string_view name, std::size_t index) {
    return std::string(name) + "[" + std::to_string(index) + "]";
  }

  [[nodiscard]] static std::string shown(const Json& value) {
    if (value.is_structured()) {
      return value.is_array() ? "an array" : "an object";
    }
    return printable(value.dump(-1, ' ', true, Json::error_handler_t::replace), 60);
  }

  const Json* object_;
  std::string path_;
  const char* where_;
};

}  // namespace turboquant::detail
