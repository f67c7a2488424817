#pragma once

// A text file as a model reads it: the lines of a paragraph are joined, an empty line parts
// paragraphs.

#include <turboquant/base/error.hpp>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

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

/// @throws turboquant::Error(io), Error(format) for an empty file
[[nodiscard]] inline std::string read_text(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  turboquant::require(stream.good(), turboquant::ErrorCode::io, path,
                      ": cannot be opened for reading");
  const std::string wrapped{std::istreambuf_iterator<char>(stream),
                            std::istreambuf_iterator<char>()};
  turboquant::require(!stream.bad(), turboquant::ErrorCode::io, path, ": cannot be read");
  std::string text = joined_paragraphs(wrapped);
  turboquant::require(!text.empty(), turboquant::ErrorCode::format, path, ": has no text");
  return text;
}

}  // namespace llama_ab
