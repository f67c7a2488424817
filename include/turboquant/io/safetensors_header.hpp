#pragma once

/// @file
/// The header of a safetensors file: which tensors it holds, of which type and shape, and where.
///
/// Layout of a file: an unsigned 64-bit little-endian length N, N bytes of JSON that begin with
/// '{', then the data. The JSON maps each tensor's name to its `dtype`, `shape` and `data_offsets`
/// [begin, end), counted from the first data byte; the name `__metadata__` maps strings to strings.
/// Data is row-major and little-endian; the tensors cover it without gap or overlap.

#include <turboquant/base/error.hpp>
#include <turboquant/io/message_text.hpp>
#include <turboquant/io/tensor_entry.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace turboquant {

/// The checked contents of a header.
struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;             ///< in the order of their bytes
  std::map<std::string, std::string> metadata;  ///< `__metadata__`
};

/// The longest header that is read, in bytes; the limit of the format.
inline constexpr std::int64_t safetensors_max_header_bytes = 100'000'000;

/// The most extents that a shape may have.
inline constexpr std::size_t safetensors_max_rank = 16;

namespace detail {

/// Receives the events of the JSON parser, which does not recurse, and keeps only checked entries:
/// no tree is built, and the three levels of a header are the only ones that are entered.
class SafetensorsSax {
 public:
  using Json = nlohmann::json;

  SafetensorsSax(SafetensorsHeader& header, std::string_view source)
      : header_(header), source_(source) {}

  bool null() { return wrong_kind("null"); }
  bool boolean(bool value) { return wrong_kind(value ? "true" : "false"); }
  bool binary(Json::binary_t& /*value*/) { return wrong_kind("binary"); }

  bool number_integer(Json::number_integer_t value) {
    check_number_place();
    // The parser calls this for a minus sign only.
    reject(place(), " is ", value == 0 ? "-" : "", value,
           " (negative), expected a non-negative integer");
  }

  bool number_unsigned(Json::number_unsigned_t value) {
    check_number_place();
    if (value > static_cast<std::uint64_t>((std::numeric_limits<std::int64_t>::max)())) {
      reject_huge(std::to_string(value));
    }
    check_count();
    numbers_.push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool number_float(Json::number_float_t /*value*/, const std::string& digits) {
    check_number_place();
    if (digits.find_first_of(".eE") == std::string::npos) {
      reject_huge(in_quotes(digits, 40));
    }
    reject(place(), " is ", in_quotes(digits, 40),
           " (with a fraction or exponent), expected a plain integer");
  }

  bool string(std::string& value) {
    if (depth_ == 2 && in_metadata_) {
      header_.metadata[field_] = std::move(value);
    } else if (depth_ == 2 && field_ == "dtype") {
      if (std::find(sub_byte_tensor_types.begin(), sub_byte_tensor_types.end(), value) !=
          sub_byte_tensor_types.end()) {
        fail(ErrorCode::unsupported, source_, ": ", place(), " is ", in_quotes(value),
             ", whose elements are smaller than a byte, expected one of ", known_types());
      }
      const auto* const type = std::find_if(tensor_types.begin(), tensor_types.end(),
                                            [&](const TensorType& t) { return t.name == value; });
      if (type == tensor_types.end()) {
        reject(place(), " is ", in_quotes(value), " (unknown), expected one of ", known_types());
      }
      entry_.type = *type;
    } else {
      wrong_kind("a string");
    }
    return true;
  }

  bool start_object(std::size_t /*size*/) {
    check_depth();
    if (depth_ >= 2) {
      wrong_kind("an object");
    }
    ++depth_;
    if (depth_ == 2) {
      in_metadata_ = entry_.name == "__metadata__";
      fields_.clear();
    }
    return true;
  }

  bool key(std::string& name) {
    if (depth_ == 1) {
      if (!names_.insert(name).second) {
        reject("tensor ", in_quotes(name), " appears twice, expected distinct names");
      }
      entry_ = {};
      entry_.name = std::move(name);
      return true;
    }
    if (!in_metadata_ && name != "dtype" && name != "shape" && name != "data_offsets") {
      reject("tensor ", in_quotes(entry_.name), " has the unknown field ", in_quotes(name),
             ", expected dtype, shape and data_offsets");
    }
    if (!fields_.insert(name).second) {
      reject("tensor ", in_quotes(entry_.name), " has the field ", in_quotes(name),
             " twice, expected it once");
    }
    field_ = std::move(name);
    return true;
  }

  bool end_object() {
    --depth_;
    if (depth_ == 1 && !in_metadata_) {
      for (const char* const required : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.contains(required)) {
          reject("tensor ", in_quotes(entry_.name), " has no ", required,
                 ", expected dtype, shape and data_offsets");
        }
      }
      header_.tensors.push_back(std::move(entry_));
    }
    return true;
  }

  bool start_array(std::size_t /*size*/) {
    check_depth();
    if (depth_ != 2 || in_metadata_ || field_ == "dtype") {
      wrong_kind("an array");
    }
    ++depth_;
    numbers_.clear();
    return true;
  }

  bool end_array() {
    --depth_;
    if (field_ == "shape") {
      entry_.shape = numbers_;
      return true;
    }
    if (numbers_.size() != 2) {
      reject("tensor ", in_quotes(entry_.name), ": data_offsets has ", numbers_.size(),
             " numbers, expected 2 (begin and end)");
    }
    entry_.begin = numbers_[0];
    entry_.end = numbers_[1];
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const Json::exception& error) {
    // The parser's text opens with its own class and position.
    std::string_view text = error.what();
    const std::size_t cause = text.find("syntax error");
    text.remove_prefix(cause != std::string_view::npos ? cause : text.find(' ') + 1);
    reject("the header is not valid JSON at its byte ", position, ": ", in_quotes(text, 160));
  }

 private:
  template <class... Parts>
  [[noreturn]] void reject(const Parts&... parts) const {
    fail(ErrorCode::format, source_, ": ", parts...);
  }

  [[noreturn]] void reject_huge(const std::string& digits) const {
    fail(ErrorCode::overflow, source_, ": ", place(), " is ", digits,
         ", which exceeds the 64-bit limit 9223372036854775807");
  }

  /// Rejects a value of a kind that has no business where it stands.
  [[noreturn]] bool wrong_kind(const char* kind) const {
    const char* expected = "an array of integers";
    if (depth_ == 1) {
      expected = "an object";
    } else if (depth_ == 3) {
      expected = "an integer";
    } else if (in_metadata_ || field_ == "dtype") {
      expected = "a string";
    }
    reject(place(), " is ", kind, ", expected ", expected);
  }

  void check_number_place() const {
    if (depth_ != 3) {
      wrong_kind("a number");
    }
  }

  void check_count() const {
    if (field_ == "shape" && numbers_.size() == safetensors_max_rank) {
      reject("tensor ", in_quotes(entry_.name), ": shape has more than ", safetensors_max_rank,
             " extents");
    }
    if (field_ == "data_offsets" && numbers_.size() == 2) {
      reject("tensor ", in_quotes(entry_.name),
             ": data_offsets has more than 2 numbers, expected begin and end");
    }
  }

  void check_depth() const {
    if (depth_ == 3) {
      reject(place(), " is nested deeper than the 3 levels of a header");
    }
  }

  /// Names the value that is being read: "tensor 'x': shape[1]".
  [[nodiscard]] std::string place() const {
    std::string text = "metadata";
    if (!in_metadata_ || depth_ == 1) {
      text = "tensor ";
      text += in_quotes(entry_.name);
    }
    if (depth_ > 1) {
      text += ": ";
      text += in_metadata_ ? in_quotes(field_) : field_;
    }
    if (depth_ == 3) {
      text += "[";
      text += std::to_string(numbers_.size());
      text += "]";
    }
    return text;
  }

  [[nodiscard]] static std::string known_types() {
    std::string text;
    for (const TensorType& type : tensor_types) {
      text += text.empty() ? "" : " ";
      text += type.name;
    }
    return text;
  }

  SafetensorsHeader& header_;
  std::string_view source_;
  int depth_ = 0;
  bool in_metadata_ = false;
  TensorEntry entry_;
  std::string field_;
  std::vector<std::int64_t> numbers_;
  std::set<std::string, std::less<>> names_;
  std::set<std::string, std::less<>> fields_;
};

/// Rejects what the JSON parser would pass over: it takes a NUL for the end of its input and any
/// white space for padding.
inline void check_header_bytes(std::string_view json, std::string_view source) {
  const std::size_t nul = json.find('\0');
  require(nul == std::string_view::npos, ErrorCode::format, source,
          ": the header is not valid JSON at its byte ", nul + 1,
          ": a NUL, expected JSON padded with spaces only");
  const std::size_t last = json.find_last_not_of(' ');
  const char end = last == std::string_view::npos ? ' ' : json[last];
  require(end != '\t' && end != '\n' && end != '\r', ErrorCode::format, source,
          ": the header ends in white space of code ", static_cast<int>(end), " at its byte ",
          last + 1, ", expected JSON padded with spaces only");
}

/// Checks that the bytes of a tensor are those of its shape, inside the data; sets `num_elements`.
inline void check_tensor_entry(TensorEntry& entry, std::int64_t data_bytes,
                               std::string_view source) {
  const std::int64_t limit = (std::numeric_limits<std::int64_t>::max)() / entry.type.bits;
  // One extent of 0 leaves no elements, wherever it stands.
  const bool empty = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
  std::int64_t count = empty ? 0 : 1;
  for (const std::int64_t extent : entry.shape) {
    require(empty || count <= limit / extent, ErrorCode::overflow, source, ": tensor ",
            in_quotes(entry.name), ": shape ", shape_text(entry.shape), " of ", entry.type.name,
            " exceeds 64 bits");
    count *= extent;
  }
  const std::int64_t bytes = count * entry.type.bits / 8;
  require(entry.begin <= entry.end, ErrorCode::format, source, ": tensor ", in_quotes(entry.name),
          ": data_offsets begin at ", entry.begin, " and end at ", entry.end,
          ", expected begin <= end");
  require(bytes == entry.end - entry.begin, ErrorCode::shape_mismatch, source, ": tensor ",
          in_quotes(entry.name), ": data_offsets span ", entry.end - entry.begin,
          " bytes, expected ", bytes, " for shape ", shape_text(entry.shape), " of ",
          entry.type.name);
  require(entry.end <= data_bytes, ErrorCode::format, source, ": tensor ", in_quotes(entry.name),
          " ends at data byte ", entry.end, ", but the file holds only ", data_bytes,
          " (truncated, or a wrong offset)");
  entry.num_elements = count;
}

/// Checks that the tensors, which it sorts by place, cover the data without gap or overlap.
inline void check_tensor_places(std::vector<TensorEntry>& tensors, std::int64_t data_bytes,
                                std::string_view source) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::int64_t covered = 0;
  const TensorEntry* previous = nullptr;
  for (const TensorEntry& entry : tensors) {
    require(entry.begin >= covered, ErrorCode::format, source, ": tensor ", in_quotes(entry.name),
            " begins at data byte ", entry.begin, " and overlaps tensor ",
            in_quotes(previous == nullptr ? "" : previous->name), ", which ends at ", covered);
    require(entry.begin == covered, ErrorCode::format, source, ": the data bytes from ", covered,
            " to ", entry.begin, ", before tensor ", in_quotes(entry.name),
            ", belong to no tensor");
    covered = entry.end;
    previous = &entry;
  }
  require(covered == data_bytes, ErrorCode::format, source, ": ", data_bytes - covered,
          " bytes follow the last tensor, which ends at data byte ", covered);
}

}  // namespace detail

/// Parses and checks the JSON of a header whose file holds `data_bytes` bytes after it.
///
/// Rejected: anything but a header of the documented form; padding other than spaces; duplicate
/// names and fields; numbers that are negative, fractional or beyond 64 bits; types that are
/// unknown or smaller than a byte; byte ranges that disagree with the shape, leave the data,
/// overlap, or do not cover it.
/// @param json        the header, UTF-8, beginning with '{'; spaces may follow
/// @param data_bytes  bytes of the file after the header, >= 0
/// @param source      how messages name the file
/// @throws Error(invalid_argument) for negative `data_bytes`, Error(unsupported) for a type smaller
///         than a byte, Error(format, overflow or shape_mismatch) for every other fault, one line
///         naming `source`, the tensor and the value.
/// Complexity: O(json.size()) memory, O(n log n) time in the number of tensors; deterministic.
[[nodiscard]] inline SafetensorsHeader parse_safetensors_header(std::string_view json,
                                                                std::int64_t data_bytes,
                                                                std::string_view source) {
  require(data_bytes >= 0, ErrorCode::invalid_argument, "parse_safetensors_header: data_bytes is ",
          data_bytes, ", expected 0 or more");
  require(!json.empty() && json.front() == '{', ErrorCode::format, source,
          ": the header begins with ",
          json.empty() ? "nothing" : detail::in_quotes(json.substr(0, 1)), ", expected '{'");
  detail::check_header_bytes(json, source);
  SafetensorsHeader header;
  detail::SafetensorsSax sax(header, source);
  // Every error inside throws; the result only repeats that none occurred.
  require(nlohmann::json::sax_parse(json.begin(), json.end(), &sax), ErrorCode::format, source,
          ": the header is not valid JSON");
  for (TensorEntry& entry : header.tensors) {
    detail::check_tensor_entry(entry, data_bytes, source);
  }
  detail::check_tensor_places(header.tensors, data_bytes, source);
  return header;
}

}  // namespace turboquant
