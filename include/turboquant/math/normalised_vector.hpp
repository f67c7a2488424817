#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/math/ordered_sum.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace turboquant {

namespace detail {

/// The exponent of the largest power of two that does not exceed a finite positive float, given as
/// its bits.
[[nodiscard]] inline TURBOQUANT_FUNCTION int binary_exponent(std::uint32_t magnitude) noexcept {
  // Subnormals: 2^-149 times an integer.
  return magnitude >= 0x800000U ? static_cast<int>(magnitude >> 23U) - 127
                                : static_cast<int>(std::bit_width(magnitude)) - 150;
}

/// 2^exponent, -126 <= exponent <= 127.
[[nodiscard]] inline TURBOQUANT_FUNCTION float power_of_two(int exponent) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23U);
}

/// `x` with magnitudes below 2^-64 replaced by 0.
[[nodiscard]] inline TURBOQUANT_FUNCTION float without_tiny(float x) noexcept {
  const auto bits = std::bit_cast<std::int32_t>(x);
  return std::bit_cast<float>((bits & 0x7FFFFFFF) >= (127 - 64) << 23 ? bits : 0);
}

/// `x` as a double, also where the processor reads subnormal floats as 0.
[[nodiscard]] inline TURBOQUANT_FUNCTION double exact_double(float x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7F800000U) != 0) {
    return x;
  }
  const double magnitude = (bits & 0x7FFFFFU) * 0x1p-149;
  return bits >> 31U != 0 ? -magnitude : magnitude;
}

/// Bits of the largest magnitude of `x`; as an integer, so that neither NaN nor subnormal numbers
/// are special.
[[nodiscard]] inline std::uint32_t largest_magnitude_bits(std::span<const float> x) noexcept {
  constexpr std::size_t width = 32;
  std::array<std::int32_t, width> lanes{};
  std::size_t i = 0;
  for (; i + width <= x.size(); i += width) {
    for (std::size_t lane = 0; lane < width; ++lane) {
      const auto magnitude = std::bit_cast<std::int32_t>(x[i + lane]) & 0x7FFFFFFF;
      lanes[lane] = magnitude > lanes[lane] ? magnitude : lanes[lane];
    }
  }
  std::int32_t largest = 0;
  for (const float value : x.subspan(i)) {
    largest = (std::max)(largest, std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF);
  }
  for (const std::int32_t magnitude : lanes) {
    largest = (std::max)(largest, magnitude);
  }
  return static_cast<std::uint32_t>(largest);
}

}  // namespace detail

/// The largest |x[i]|, exactly; 0 for an empty vector, NaN where there is one.
[[nodiscard]] inline float largest_magnitude(std::span<const float> x) noexcept {
  return std::bit_cast<float>(detail::largest_magnitude_bits(x));
}

/// Checks that a batch of vectors has whole rows and finite elements only.
/// @param vectors (count, dim)
/// @return count
/// @throws Error(shape_mismatch) when the size is no multiple of `dim`, Error(non_finite) naming
/// the first
///         vector and coordinate that is NaN or infinite.
inline std::size_t require_finite_rows(const char* caller, std::span<const float> vectors,
                                       int dim) {
  const auto d = static_cast<std::size_t>(dim);
  require(vectors.size() % d == 0, ErrorCode::shape_mismatch, caller, ": vectors.size() is ",
          vectors.size(), ", expected a multiple of dim = ", dim);
  if (detail::largest_magnitude_bits(vectors) >= 0x7F800000U) [[unlikely]] {
    for (std::size_t i = 0; i < vectors.size(); ++i) {
      require(std::isfinite(vectors[i]), ErrorCode::non_finite, caller, ": vectors[", i / d, "][",
              i % d, "] is ", vectors[i], ", expected a finite number");
    }
  }
  return vectors.size() / d;
}

/// A vector brought near 1 by an exact power of two, and its length.
struct NormalisedVector {
  int exponent = 0;    ///< the vector was multiplied by 2^-exponent
  double squared = 0;  ///< sum of squares of the multiplied vector; 0 for a zero vector
};

/// Writes `x * 2^-exponent` with the largest magnitude in [1, 2), so that nothing over- or
/// underflows later and multiplying the input by a power of two changes only `exponent`.
///
/// Coordinates below 2^-64 after that are written as 0: no later step then meets a subnormal
/// number, so that a processor set to flush those gives the same result.
/// @param x   (dim), finite
/// @param out (dim), may be `x` itself
/// Same bits always.
inline NormalisedVector normalise(std::span<const float> x, float* out) noexcept {
  const std::uint32_t largest = detail::largest_magnitude_bits(x);
  NormalisedVector result;
  if (largest == 0) {
    std::fill(out, out + x.size(), 0.0F);
    return result;
  }
  result.exponent = detail::binary_exponent(largest);
  if (result.exponent >= -60) {  // no subnormal coordinate reaches 2^-64
    const int first = -result.exponent / 2;
    const float factor1 = detail::power_of_two(first);
    const float factor2 = detail::power_of_two(-result.exponent - first);
    for (std::size_t i = 0; i < x.size(); ++i) {
      out[i] = detail::without_tiny((x[i] * factor1) * factor2);
    }
  } else {
    for (std::size_t i = 0; i < x.size(); ++i) {
      out[i] = detail::without_tiny(
          static_cast<float>(std::ldexp(detail::exact_double(x[i]), -result.exponent)));
    }
  }
  result.squared = ordered_dot(out, out, x.size());
  return result;
}

}  // namespace turboquant
