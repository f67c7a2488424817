#pragma once

// A text file as a model reads it: the lines of a paragraph are joined, an empty line parts
// paragraphs.

#include <turboquant/base/error.hpp>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <ios>
#include <sstream>
#include <string>
#include <system_error>

namespace llama_ab {

/// @param wrapped lines; trailing carriage returns are ignored
[[nodiscard]] inline std::string joined_paragraphs(const std::string& wrapped) {
  std::istringstream lines(wrapped);
  std::string text;
  std::string line;
  bool open = false;
  while (std::getline(lines, line)) {
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    if (line.empty()) {
      open = false;
      continue;
    }
    text += text.empty() ? "" : open ? " " : "\n\n";
    text += line;
    open = true;
  }
  return text;
}

/// @throws turboquant::Error(io), Error(format) for an empty file or one of more than 64 MiB
[[nodiscard]] inline std::string read_text(const std::string& path) {
  constexpr std::size_t most = std::size_t{64} << 20U;
  std::error_code ignored;
  std::ifstream stream(path, std::ios::binary);
  turboquant::require(stream.good() && !std::filesystem::is_directory(path, ignored),
                      turboquant::ErrorCode::io, path, ": cannot be opened for reading");
  std::string wrapped(most + 1, '\0');
  stream.read(wrapped.data(), static_cast<std::streamsize>(wrapped.size()));
  turboquant::require(!stream.bad(), turboquant::ErrorCode::io, path, ": cannot be read");
  wrapped.resize(static_cast<std::size_t>(stream.gcount()));
  turboquant::require(wrapped.size() <= most, turboquant::ErrorCode::format, path,
                      ": has more than ", most, " bytes");
  std::string text = joined_paragraphs(wrapped);
  turboquant::require(!text.empty(), turboquant::ErrorCode::format, path, ": has no text");
  return text;
}

}  // namespace llama_ab
