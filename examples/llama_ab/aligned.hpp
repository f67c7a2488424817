#pragma once

// Arrays whose first number lies at a multiple of 64 bytes. Vectorised sums begin at such places,
// so that the same numbers give the same bits in every run.

#include <cstddef>
#include <new>
#include <vector>

namespace llama_ab {

template <class T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t alignment{64};

  AlignedAllocator() = default;
  template <class Other>
  explicit AlignedAllocator(const AlignedAllocator<Other>&) noexcept {}

  [[nodiscard]] T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), alignment));
  }
  void deallocate(T* memory, std::size_t) noexcept { ::operator delete(memory, alignment); }

  friend bool operator==(const AlignedAllocator&, const AlignedAllocator&) noexcept { return true; }
};

using Floats = std::vector<float, AlignedAllocator<float>>;

}  // namespace llama_ab
