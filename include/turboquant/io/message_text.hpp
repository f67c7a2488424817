#pragma once

/// @file
/// How messages show names and shapes that come from a file.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace turboquant::detail {

/// `text` between quotes on one line: control bytes become '?', and what exceeds `limit` bytes is
/// cut.
[[nodiscard]] inline std::string in_quotes(std::string_view text, std::size_t limit = 80) {
  std::string result = "'";
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    result += byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  result += text.size() > limit ? "...'" : "'";
  return result;
}

/// "(1024, 3, 64)".
[[nodiscard]] inline std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string result = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    result += i == 0 ? "" : ", ";
    result += std::to_string(shape[i]);
  }
  result += ")";
  return result;
}

}  // namespace turboquant::detail
