#pragma once

#include <cmath>
#include <cstddef>

namespace turboquant::detail {

/// Gauss-Legendre rule with 16 nodes on [-1, 1], exact for polynomials up to degree 31.
struct GaussLegendre16 {
  static constexpr std::size_t count = 16;
  // No std::array: nvcc 13.0 fails where one type is named by two constants.
  double nodes[count] = {};
  double weights[count] = {};

  /// Nodes are the roots of the Legendre polynomial P16, found by Newton's method from equally
  /// spaced angles; weights are 2 / ((1 - x^2) P16'(x)^2). IEEE operations and `std::fma` only.
  GaussLegendre16() noexcept {
    for (std::size_t i = 0; i < count / 2; ++i) {
      // Between consecutive roots of P16 the angle changes by about pi / 16.5.
      const double angle = 3.14159265358979323846 * (static_cast<double>(i) + 0.75) / 16.5;
      const double a2 = angle * angle;
      double x = 1;
      for (int k = 24; k >= 2; k -= 2) {
        x = std::fma(-(a2 / ((k - 1.0) * k)), x, 1.0);
      }
      double derivative = 1;
      for (int iteration = 0; iteration < 8; ++iteration) {
        double p0 = 1;
        double p1 = x;
        for (int n = 2; n <= 16; ++n) {
          const double a = (2.0 * n - 1) / n;
          const double b = (n - 1.0) / n;
          const double p2 = std::fma(a * x, p1, -(b * p0));
          p0 = p1;
          p1 = p2;
        }
        derivative = 16 * std::fma(x, p1, -p0) / std::fma(x, x, -1.0);
        x -= p1 / derivative;
      }
      const double weight = 2 / (std::fma(-x, x, 1.0) * derivative * derivative);
      nodes[i] = -x;
      nodes[count - 1 - i] = x;
      weights[i] = weight;
      weights[count - 1 - i] = weight;
    }
  }
};

/// The rule, computed once.
[[nodiscard]] inline const GaussLegendre16& gauss_legendre16() noexcept {
  static const GaussLegendre16 rule;
  return rule;
}

}  // namespace turboquant::detail
