#pragma once

#include <turboquant/base/random.hpp>

#include <cmath>
#include <cstdint>

/// @file
/// Elementary functions from IEEE operations and explicit `std::fma` only, so that their bits do
/// not depend on the C library, on contraction or on vectorisation. Used where tables and matrices
/// are generated.

namespace turboquant {

/// `log(x)` for finite `x > 0`, relative error below 5e-16; the same bits everywhere.
/// Series: log m = 2 atanh((m - 1) / (m + 1)) on m in [sqrt(1/2), sqrt(2)).
[[nodiscard]] inline double exact_log(double x) noexcept {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752440) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1);
  const double s2 = s * s;
  double sum = 1.0 / 25;
  for (int k = 23; k >= 1; k -= 2) {
    sum = std::fma(sum, s2, 1.0 / k);
  }
  constexpr double ln2 = 0.69314718055994530942;
  return std::fma(static_cast<double>(exponent), ln2, 2 * (s * sum));
}

/// Sine and cosine of one angle.
struct SinCos {
  double sin;
  double cos;
};

/// `sin(pi t)` and `cos(pi t)` for t in [0, 2), absolute error below 4e-16; the same bits
/// everywhere.
[[nodiscard]] inline SinCos exact_sincospi(double t) noexcept {
  const int quarter = static_cast<int>(std::floor(std::fma(t, 2.0, 0.5)));
  const double r = std::fma(static_cast<double>(quarter), -0.5, t);  // [-1/4, 1/4]
  constexpr double pi = 3.14159265358979323846;
  const double x = pi * r;
  const double x2 = x * x;
  double sine = 1;
  double cosine = 1;
  for (int k = 20; k >= 2; k -= 2) {
    const double n = k;
    sine = std::fma(-(x2 / (n * (n + 1))), sine, 1.0);
    cosine = std::fma(-(x2 / ((n - 1) * n)), cosine, 1.0);
  }
  sine *= x;
  switch (quarter & 3) {
    case 0: return {sine, cosine};
    case 1: return {cosine, -sine};
    case 2: return {-sine, -cosine};
    default: return {-cosine, sine};
  }
}

/// Standard normal number `index` of a stream (Box-Muller); the same bits everywhere.
[[nodiscard]] inline double normal(const CounterRng& rng, std::uint64_t index) noexcept {
  const std::uint64_t pair = index / 2;
  const double radius = std::sqrt(-2 * exact_log(rng.uniform(2 * pair)));
  const SinCos angle = exact_sincospi(2 * rng.uniform(2 * pair + 1));
  return radius * (index % 2 == 0 ? angle.cos : angle.sin);
}

}  // namespace turboquant
