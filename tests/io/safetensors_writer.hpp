#pragma once

// Writes safetensors files, right and wrong ones, for tests.

#include <stdlib.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace turboquant::test {

/// A directory that disappears with its object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "turboquant_test_").string() +
                       std::string(6, 'X');
    if (mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("no temporary directory");
    }
    path_ = name;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }

  /// Writes `bytes` and returns the path.
  [[nodiscard]] std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream stream(path_ / name, std::ios::binary | std::ios::trunc);
    stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!stream.flush()) {
      throw std::runtime_error("cannot write " + file(name));
    }
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

/// `value` as `count` little-endian bytes.
inline std::string little_endian(std::uint64_t value, std::size_t count) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) {
    bytes += static_cast<char>(value >> (8 * i) & 0xFF);
  }
  return bytes;
}

/// Header length, header, data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  return little_endian(header.size(), 8) + std::string(header) + std::string(data);
}

/// Collects tensors and writes a valid file of them.
class SafetensorsWriter {
 public:
  void add(const std::string& name, const std::string& type, const std::vector<std::int64_t>& shape,
           std::string_view bytes) {
    std::string extents;
    for (const std::int64_t extent : shape) {
      extents += (extents.empty() ? "" : ",") + std::to_string(extent);
    }
    header_ += (header_.empty() ? "" : ",") +
               ("\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":[") + extents +
               "],\"data_offsets\":[" + std::to_string(data_.size()) + "," +
               std::to_string(data_.size() + bytes.size()) + "]}";
    data_ += bytes;
  }

  void add_floats(const std::string& name, const std::vector<std::int64_t>& shape,
                  const std::vector<float>& values) {
    std::string bytes;
    for (const float value : values) {
      bytes += little_endian(std::bit_cast<std::uint32_t>(value), 4);
    }
    add(name, "F32", shape, bytes);
  }

  void add_integers(const std::string& name, const std::vector<std::int64_t>& values) {
    std::string bytes;
    for (const std::int64_t value : values) {
      bytes += little_endian(static_cast<std::uint64_t>(value), 8);
    }
    add(name, "I64", {static_cast<std::int64_t>(values.size())}, bytes);
  }

  [[nodiscard]] std::string header() const { return "{" + header_ + "}"; }
  [[nodiscard]] const std::string& data() const { return data_; }
  [[nodiscard]] std::string bytes() const { return safetensors_bytes(header(), data_); }

 private:
  std::string header_;
  std::string data_;
};

}  // namespace turboquant::test
