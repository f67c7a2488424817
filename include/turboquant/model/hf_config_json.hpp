#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/base/regular_file.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace turboquant {

/// Bounds on a configuration file, so that a hostile one costs little memory and no stack.
struct JsonLimits {
  std::size_t max_bytes = std::size_t{8} << 20;
  std::size_t max_depth = 64;
  std::size_t max_values = 1'000'000;
};

namespace detail {

/// Text with bare NaN, Infinity and -Infinity quoted, and where that was done.
struct StrictJson {
  std::string text;
  std::vector<std::size_t> quoted_at;  ///< offsets in the original text, ascending
};

/// Length of the bare NaN, Infinity or -Infinity at `at`, or 0; a word before ':' is a bare key.
inline std::size_t non_finite_word(std::string_view text, std::size_t at) {
  for (const std::string_view name : {"NaN", "Infinity", "-Infinity"}) {
    if (text.substr(at, name.size()) == name) {
      const std::size_t next = text.find_first_not_of(" \t\r\n", at + name.size());
      return next != std::string_view::npos && text[next] == ':' ? 0 : name.size();
    }
  }
  return 0;
}

/// Python writes non-finite numbers as bare words, which JSON does not know. They become strings,
/// so that a field read as a number still refuses them.
inline StrictJson quote_non_finite(std::string_view text) {
  StrictJson strict;
  strict.text.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (in_string) {
      const std::size_t length = c == '\\' && i + 1 < text.size() ? 2 : 1;
      in_string = c != '"';
      strict.text.append(text.substr(i, length));
      i += length;
      continue;
    }
    const std::size_t word = non_finite_word(text, i);
    if (word != 0) {
      strict.quoted_at.push_back(i);
      strict.text.append(1, '"').append(text.substr(i, word)).append(1, '"');
      i += word;
      continue;
    }
    in_string = c == '"';
    strict.text.push_back(c);
    ++i;
  }
  return strict;
}

/// "line L, column C (byte B)" of an offset, all counted from 1.
inline std::string text_position(std::string_view text, std::size_t offset) {
  offset = (std::min)(offset, text.size());
  const std::string_view before = text.substr(0, offset);
  const auto line = static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
  const std::size_t line_start = before.rfind('\n');
  const std::size_t column =
      line_start == std::string_view::npos ? offset : offset - line_start - 1;
  return "line " + std::to_string(line) + ", column " + std::to_string(column + 1) + " (byte " +
         std::to_string(offset + 1) + ")";
}

/// Reads characters and counts them, so that an event knows where the parser stands.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, std::size_t* count) : at_(at), count_(count) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    ++*count_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) {
    return a.at_ == b.at_;
  }
  friend bool operator!=(const CountingIterator& a, const CountingIterator& b) {
    return a.at_ != b.at_;
  }

 private:
  const char* at_;
  std::size_t* count_;
};

/// `text` with everything but printable ASCII replaced, at most `limit` characters.
inline std::string printable(std::string_view text, std::size_t limit) {
  std::string shown(text.substr(0, limit));
  for (char& c : shown) {
    c = c >= ' ' && c <= '~' ? c : '?';
  }
  return text.size() > limit ? shown + "..." : shown;
}

/// Builds a document from parser events; refuses depth, size and duplicate keys as they appear.
/// Event names are the parser's.
class JsonBuilder {
 public:
  using Json = nlohmann::json;

  JsonBuilder(const JsonLimits& limits, Json& root) : limits_(limits), root_(root) {}

  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

  bool null() { return add(Json(nullptr)); }
  bool boolean(bool value) { return add(Json(value)); }
  bool number_integer(Json::number_integer_t value) { return add(Json(value)); }
  bool number_unsigned(Json::number_unsigned_t value) { return add(Json(value)); }
  bool number_float(Json::number_float_t value, const std::string&) { return add(Json(value)); }
  bool string(std::string& value) { return add(Json(std::move(value))); }
  bool binary(Json::binary_t&) { return refuse("binary value"); }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    if (open_.back()->contains(name)) {
      return refuse("duplicate key \"" + printable(name, 80) + "\"");
    }
    key_ = std::move(name);
    return true;
  }

  template <class Exception>
  bool parse_error(std::size_t, const std::string&, const Exception& error) {
    const std::string_view text = error.what();
    const std::size_t column = text.find("column ");
    const bool placed = column != std::string_view::npos;
    const std::size_t mark = placed ? text.find(": ", column) : text.find("] ");
    return refuse(printable(text.substr(mark == std::string_view::npos ? 0 : mark + 2), 160));
  }

 private:
  bool refuse(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  Json* place(Json&& value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    Json& slot = parent[key_];
    slot = std::move(value);
    return &slot;
  }

  bool add(Json&& value) {
    if (++num_values_ > limits_.max_values) {
      return refuse("more than " + std::to_string(limits_.max_values) + " values");
    }
    place(std::move(value));
    return true;
  }

  bool open(Json&& value) {
    if (open_.size() >= limits_.max_depth) {
      return refuse("nested deeper than " + std::to_string(limits_.max_depth) + " levels");
    }
    if (++num_values_ > limits_.max_values) {
      return refuse("more than " + std::to_string(limits_.max_values) + " values");
    }
    open_.push_back(place(std::move(value)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  JsonLimits limits_;
  Json& root_;
  std::vector<Json*> open_{};
  std::string key_{};
  std::string problem_{};
  std::size_t num_values_ = 0;
};

/// The bytes of a file, at most one more than `limits.max_bytes`, so that a larger one is refused
/// without holding it.
/// @throws Error(io)
inline std::string read_json_text(std::string_view where, const std::filesystem::path& path,
                                  const JsonLimits& limits = {}) {
  require_regular_file(where, path);
  std::ifstream stream(path, std::ios::binary);
  require(stream.is_open(), ErrorCode::io, where, ": cannot open ", path.string());
  std::string text(limits.max_bytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  require(!stream.bad(), ErrorCode::io, where, ": cannot read ", path.string());
  text.resize(static_cast<std::size_t>(stream.gcount()));
  return text;
}

/// Parses `text` (UTF-8, with or without a byte order mark) into an object.
/// Never recurses; memory is bounded by `limits`.
/// @throws Error(format) with a position, naming what is wrong.
inline nlohmann::json parse_json_object(std::string_view where, std::string_view text,
                                        const JsonLimits& limits = {}) {
  require(text.size() <= limits.max_bytes, ErrorCode::format, where, ": text is ", text.size(),
          " bytes, expected at most ", limits.max_bytes);
  constexpr std::string_view utf8_mark = "\xEF\xBB\xBF";
  if (text.substr(0, utf8_mark.size()) == utf8_mark) {
    text.remove_prefix(utf8_mark.size());
  }
  const bool wide_mark = text.substr(0, 2) == "\xFF\xFE" || text.substr(0, 2) == "\xFE\xFF";
  require(!wide_mark && text.substr(0, 2).find('\0') == std::string_view::npos, ErrorCode::format,
          where, ": text starts with bytes of UTF-16 or UTF-32, expected UTF-8");
  require(text.find_first_not_of(" \t\r\n") != std::string_view::npos, ErrorCode::format, where,
          ": text is empty, expected a JSON object");
  // The parser would take a zero byte for the end.
  const std::size_t zero = text.find('\0');
  require(zero == std::string_view::npos, ErrorCode::format, where, ": malformed JSON at ",
          text_position(text, zero == std::string_view::npos ? 0 : zero), ": a zero byte");

  const StrictJson strict = quote_non_finite(text);
  nlohmann::json document;
  JsonBuilder builder(limits, document);
  std::size_t num_read = 0;
  const char* const first = strict.text.data();
  const bool parsed =
      nlohmann::json::sax_parse(CountingIterator(first, &num_read),
                                CountingIterator(first + strict.text.size(), &num_read), &builder);
  if (!parsed) {
    // Each quoted word before the stop put two characters more into the parsed text.
    std::size_t inserted = 0;
    for (const std::size_t at : strict.quoted_at) {
      inserted += at + inserted < num_read ? 2 : 0;
    }
    const std::size_t offset = num_read - (std::min)(num_read, inserted + 1);
    fail(ErrorCode::format, where, ": malformed JSON at ", text_position(text, offset), ": ",
         builder.problem());
  }
  require(document.is_object(), ErrorCode::format, where, ": root is ", document.type_name(),
          ", expected an object");
  return document;
}

}  // namespace detail
}  // namespace turboquant
