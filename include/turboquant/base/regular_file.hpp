#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/base/message.hpp>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace turboquant::detail {

/// Refuses an empty path, and one with a NUL inside: the operating system would take the part
/// before it.
inline void require_whole_path(std::string_view where, const std::filesystem::path& path) {
  const std::string text = path.string();
  require(!text.empty(), ErrorCode::invalid_argument, where,
          ": path is empty, expected that of a file");
  const std::size_t nul = text.find('\0');
  require(nul == std::string::npos, ErrorCode::invalid_argument, where, ": path is ",
          in_quotes(text, 400), " with a NUL at its byte ", nul + 1, ", expected none");
}

/// Why a path cannot be read as a file with a length and an end, which pipes and devices do not
/// have; empty where it can.
[[nodiscard]] inline std::string why_no_regular_file(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return error ? error.message() : std::string("no such file");
  }
  return std::filesystem::is_regular_file(status) ? "" : "it is not a regular file";
}

/// @throws Error(invalid_argument) for a path that is empty or has a NUL inside, Error(io) for one
/// that names no regular file
inline void require_regular_file(std::string_view where, const std::filesystem::path& path) {
  require_whole_path(where, path);
  const std::string why = why_no_regular_file(path);
  require(why.empty(), ErrorCode::io, where, ": cannot open ", path.string(), ": ", why);
}

}  // namespace turboquant::detail
