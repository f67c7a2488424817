#pragma once

// Numbers in arguments. CLI11 alone would clamp what does not fit 64 bits, and wrap what is
// negative.

#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace program {

/// All of `text` as an integer, or nothing.
template <class Integer>
[[nodiscard]] std::optional<Integer> parse_integer(std::string_view text) {
  Integer number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return number;
}

/// Lets integers from `least` to `most` pass.
template <class Integer>
[[nodiscard]] CLI::Validator integer(Integer least = (std::numeric_limits<Integer>::min)(),
                                     Integer most = (std::numeric_limits<Integer>::max)()) {
  const std::string range =
      "an integer from " + std::to_string(least) + " to " + std::to_string(most);
  return CLI::Validator(
      [=](const std::string& text) {
        const std::optional<Integer> number = parse_integer<Integer>(text);
        return number && *number >= least && *number <= most
                   ? std::string()
                   : "\"" + text + "\", expected " + range;
      },
      "");
}

/// Lets names of files pass, which are not empty.
[[nodiscard]] inline CLI::Validator file_name() {
  return CLI::Validator(
      [](const std::string& text) {
        return text.empty() ? std::string("\"\", expected the name of a file") : std::string();
      },
      "");
}

}  // namespace program
