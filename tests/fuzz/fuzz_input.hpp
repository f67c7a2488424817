#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

/// The bytes of one fuzz input, taken from the front; zeros follow the last one.
class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] const std::uint8_t* data() const { return data_; }

  template <class T>
  [[nodiscard]] T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const std::size_t count = size_ < sizeof(T) ? size_ : sizeof(T);
    if (count > 0) {
      std::memcpy(&value, data_, count);
      data_ += count;
      size_ -= count;
    }
    return value;
  }
  /// 0 to `bound` - 1, from one byte.
  [[nodiscard]] std::size_t below(std::size_t bound) { return take<std::uint8_t>() % bound; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

/// Ends the program, as a fuzzer expects of a broken promise.
inline void expect(bool condition) {
  if (!condition) {
    std::abort();
  }
}

/// The body of a target: returns 0, or ends the program.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
