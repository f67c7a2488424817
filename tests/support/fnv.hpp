#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace turboquant::test {

/// 64-bit FNV-1a hash of bytes, for goldens that pin every bit of an array.
class Fnv {
 public:
  template <class T>
  void add(std::span<const T> values) noexcept {
    static_assert(std::is_trivially_copyable_v<T>);
    for (const T& value : values) {
      unsigned char bytes[sizeof(T)];
      std::memcpy(bytes, &value, sizeof(T));
      for (const unsigned char byte : bytes) {
        hash_ = (hash_ ^ byte) * 0x100000001B3U;
      }
    }
  }

  template <class T>
  void add_value(const T& value) noexcept {
    add(std::span<const T>(&value, 1));
  }

  [[nodiscard]] std::uint64_t value() const noexcept { return hash_; }

 private:
  std::uint64_t hash_ = 0xCBF29CE484222325U;
};

}  // namespace turboquant::test
