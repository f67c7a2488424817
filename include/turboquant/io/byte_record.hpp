#pragma once

#include <turboquant/base/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

/// @file
/// Numbers one after another, little-endian on every machine and without padding.

namespace turboquant::detail {

/// FNV-1a over 64 bits: tells damaged bytes from whole ones, not forged ones. O(bytes).
[[nodiscard]] inline std::uint64_t checksum_of(std::span<const std::byte> bytes) noexcept {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const std::byte byte : bytes) {
    hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001B3U;
  }
  return hash;
}

class ByteWriter {
 public:
  void number(std::uint64_t value) {
    for (unsigned i = 0; i < 8; ++i) {
      bytes_.push_back(static_cast<std::byte>((value >> (8 * i)) & 0xFFU));
    }
  }
  void number(std::int64_t value) { number(static_cast<std::uint64_t>(value)); }
  void append(const void* from, std::size_t count) {
    const auto* first = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), first, first + count);
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::vector<std::byte>&& take() noexcept { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads what a `ByteWriter` wrote; every read names its field for messages.
class ByteReader {
 public:
  /// @param caller the public function that reads, a literal
  ByteReader(const char* caller, std::span<const std::byte> bytes)
      : caller_(caller), bytes_(bytes) {}

  [[nodiscard]] const char* caller() const noexcept { return caller_; }
  [[nodiscard]] std::size_t left() const noexcept { return bytes_.size() - at_; }

  /// @throws Error(format) where the bytes end before
  [[nodiscard]] std::uint64_t unsigned_number(const char* field) {
    const std::span<const std::byte> from = take(8, field);
    std::uint64_t value = 0;
    for (std::size_t i = from.size(); i-- > 0;) {
      value = value << 8U | static_cast<std::uint64_t>(from[i]);
    }
    return value;
  }
  [[nodiscard]] std::int64_t number(const char* field) {
    return static_cast<std::int64_t>(unsigned_number(field));
  }
  /// A number from `least` to `most`.
  [[nodiscard]] std::int64_t number(const char* field, std::int64_t least, std::int64_t most) {
    const std::int64_t value = number(field);
    require(value >= least && value <= most, ErrorCode::format, caller_, ": ", field, " is ", value,
            ", expected ", least, " to ", most);
    return value;
  }
  /// @throws Error(format) where the bytes end before
  [[nodiscard]] std::span<const std::byte> take(std::size_t count, const char* field) {
    require(count <= left(), ErrorCode::format, caller_, ": the bytes end at ", bytes_.size(),
            ", expected ", count, " of ", field, " from byte ", at_, " on");
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }

 private:
  const char* caller_;
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

}  // namespace turboquant::detail
