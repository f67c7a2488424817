#pragma once

#include <turboquant/base/config.hpp>

#include <cstddef>

namespace turboquant {

/// Sum of `a[i] * b[i]` in double, in the library's fixed order: 16 interleaved partial sums, then
/// a binary tree (lane l takes lane l + 8, + 4, + 2, + 1).
///
/// The product of two floats is exact in double, so fused and separate multiply-adds agree and the
/// result has the same bits always, on 16 lanes of any width. O(count).
[[nodiscard]] inline double ordered_dot(const float* a, const float* b,
                                        std::size_t count) noexcept {
  constexpr std::size_t width = 16;
  double lanes[width] = {};
  std::size_t i = 0;
  for (; i + width <= count; i += width) {
    for (std::size_t lane = 0; lane < width; ++lane) {
      lanes[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  for (std::size_t lane = 0; i + lane < count; ++lane) {
    lanes[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
  }
  for (std::size_t half = width / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) {
      lanes[lane] += lanes[lane + half];
    }
  }
  return lanes[0];
}

}  // namespace turboquant
