#pragma once

/// @file
/// How messages show names and shapes that come from a file.

#include <turboquant/base/message.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace turboquant::detail {

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
