#pragma once

#include <turboquant/math/codebook.hpp>
#include <turboquant/math/quadrature.hpp>

#include <cmath>
#include <cstddef>
#include <forward_list>
#include <mutex>
#include <span>
#include <vector>

namespace turboquant {

/// The optimal scalar codebook for one coordinate of a uniform unit vector, with its distortion.
struct LloydMaxCodebook {
  int dim = 0;
  /// Centroids of unit-vector coordinates: multiply by the vector's norm.
  Codebook<double> codebook;
  /// E[(u_i - Q(u_i))^2] of one coordinate; `dim` times this is the relative error of a vector
  /// (D_mse).
  double mse_per_coordinate = 0;
};

namespace detail {

/// The density of one coordinate x of a uniform unit vector in R^d is proportional to (1 -
/// x^2)^((d-3)/2). With x = 2t / (1 + t^2) the integrand is rational and smooth up to t = 1 for
/// every d >= 3, so that a Gauss rule needs neither special functions nor endpoint care. A product
/// that a sum would absorb is an explicit `std::fma`, so that no compiler flag changes a bit of the
/// result.
class SphereCoordinate {
 public:
  explicit SphereCoordinate(int dim) noexcept
      : dim_(dim), panel_(2 / std::sqrt(static_cast<double>(dim))) {}

  struct Moments {
    double mass = 0;     ///< integral of f
    double first = 0;    ///< integral of x f
    double squared = 0;  ///< integral of (x - center)^2 f
  };

  /// Integrals over [lower, upper], a part of [0, 1], of the density without its constant.
  [[nodiscard]] Moments integrate(double lower, double upper, double center) const noexcept {
    // Beyond 14 standard deviations the density is below 1e-40 of its peak.
    const double reach = std::fmin(upper, std::fma(7.0, panel_, lower));
    const double t_lower = half_angle(lower);
    const double t_width = half_angle(reach) - t_lower;
    const int panels = 1 + static_cast<int>((reach - lower) / panel_ * 2);
    const double step = t_width / panels;
    const GaussLegendre16& rule = gauss_legendre16();
    Moments sum;
    for (int p = 0; p < panels; ++p) {
      const double middle = std::fma(step, p + 0.5, t_lower);
      for (std::size_t i = 0; i < GaussLegendre16::count; ++i) {
        const double t = std::fma(step / 2, rule.nodes[i], middle);
        const double inverse = 1 / std::fma(t, t, 1.0);
        const double cosine = std::fma(-t, t, 1.0) * inverse;
        const double width = rule.weights[i] * step * inverse;
        const double density = power(cosine, dim_ - 2);
        const double deviation = std::fma(2 * t, inverse, -center);
        sum.mass = std::fma(width, density, sum.mass);
        sum.first = std::fma(width * density, 2 * t * inverse, sum.first);
        sum.squared = std::fma(width * density * deviation, deviation, sum.squared);
      }
    }
    return sum;
  }

  /// The density without its constant.
  [[nodiscard]] double density(double x) const noexcept {
    const double cosine2 = std::fma(-x, x, 1.0);
    const double root = std::sqrt(cosine2);
    return dim_ == 3 ? 1.0 : power(root, dim_ - 3);
  }

 private:
  static double half_angle(double x) noexcept { return x / (1 + std::sqrt(std::fma(-x, x, 1.0))); }

  static double power(double base, int exponent) noexcept {
    double result = 1;
    for (; exponent > 0; exponent >>= 1) {
      if ((exponent & 1) != 0) {
        result *= base;
      }
      base *= base;
    }
    return result;
  }

  int dim_;
  double panel_;
};

/// Solves the two Lloyd conditions (centroid = conditional mean, boundary = midpoint) on the
/// positive half.
class LloydMaxSolver {
 public:
  LloydMaxSolver(int dim, int bits)
      : dim_(dim), coordinate_(dim), half_(std::size_t{1} << static_cast<unsigned>(bits - 1)) {}

  [[nodiscard]] LloydMaxCodebook solve() {
    start();
    // Newton's method on F_i = c_i - E[x | cell i]; its Jacobian is tridiagonal. A few fixed-point
    // steps first bring the start into the region where it converges quadratically.
    for (int iteration = 0; iteration < 20; ++iteration) {
      evaluate();
      for (std::size_t i = 0; i < half_; ++i) {
        centroids_[i] = means_[i];
      }
    }
    double previous = 1;
    for (int iteration = 0; iteration < 60; ++iteration) {
      evaluate();
      const double change = newton_step();
      if (change < 1e-15 || (change < 1e-12 && change >= previous)) {
        break;
      }
      previous = change;
    }
    double squared = 0;
    double mass = 0;
    for (std::size_t i = 0; i < half_; ++i) {
      const auto cell = coordinate_.integrate(lower(i), upper(i), centroids_[i]);
      squared += cell.squared;
      mass += cell.mass;
    }
    return {dim_, Codebook<double>(std::span<const double>(centroids_)), squared / mass};
  }

 private:
  [[nodiscard]] double lower(std::size_t i) const noexcept {
    return i == 0 ? 0.0 : (centroids_[i - 1] + centroids_[i]) / 2;
  }
  [[nodiscard]] double upper(std::size_t i) const noexcept {
    return i + 1 == half_ ? 1.0 : (centroids_[i] + centroids_[i + 1]) / 2;
  }

  /// Starts from equal mass of the cube root of the density, the asymptotically optimal point
  /// density (Panter and Dite). The cube root belongs to the same family with dimension 3 + (dim -
  /// 3) / 3.
  void start() {
    const SphereCoordinate root(3 + (dim_ - 3) / 3);
    constexpr int steps = 4096;
    const double reach = std::fmin(1.0, 14 / std::sqrt(static_cast<double>(dim_)));
    std::vector<double> cumulative(steps + 1, 0.0);
    for (int i = 0; i < steps; ++i) {
      cumulative[static_cast<std::size_t>(i) + 1] =
          std::fma(root.density(reach * (i + 0.5) / steps), reach / steps,
                   cumulative[static_cast<std::size_t>(i)]);
    }
    centroids_.resize(half_);
    means_.resize(half_);
    mass_.resize(half_);
    std::size_t at = 0;
    for (std::size_t i = 0; i < half_; ++i) {
      const double target =
          cumulative.back() * (static_cast<double>(i) + 0.5) / static_cast<double>(half_);
      while (cumulative[at + 1] < target) {
        ++at;
      }
      const double part = (target - cumulative[at]) / (cumulative[at + 1] - cumulative[at]);
      centroids_[i] = reach * (static_cast<double>(at) + part) / steps;
    }
  }

  void evaluate() {
    for (std::size_t i = 0; i < half_; ++i) {
      const auto cell = coordinate_.integrate(lower(i), upper(i), centroids_[i]);
      mass_[i] = cell.mass;
      means_[i] = cell.first / cell.mass;
    }
  }

  /// One Newton step; returns the largest relative change.
  double newton_step() {
    std::vector<double> diagonal(half_);
    std::vector<double> above(half_);
    std::vector<double> below(half_);
    std::vector<double> change(half_);
    for (std::size_t i = 0; i < half_; ++i) {
      // d mean / d upper = f(upper) (upper - mean) / mass, d mean / d lower = f(lower) (mean -
      // lower) / mass, and each inner boundary moves by half of each neighbour. The boundary at 0
      // stays.
      const double low =
          i == 0 ? 0.0 : coordinate_.density(lower(i)) * (means_[i] - lower(i)) / mass_[i] / 2;
      const double high =
          i + 1 == half_ ? 0.0
                         : coordinate_.density(upper(i)) * (upper(i) - means_[i]) / mass_[i] / 2;
      diagonal[i] = 1 - low - high;
      below[i] = -low;
      above[i] = -high;
      change[i] = centroids_[i] - means_[i];
    }
    for (std::size_t i = 1; i < half_; ++i) {
      const double factor = below[i] / diagonal[i - 1];
      diagonal[i] = std::fma(-factor, above[i - 1], diagonal[i]);
      change[i] = std::fma(-factor, change[i - 1], change[i]);
    }
    double largest = 0;
    for (std::size_t i = half_; i-- > 0;) {
      const double right = i + 1 == half_ ? 0.0 : change[i + 1];
      change[i] = std::fma(-above[i], right, change[i]) / diagonal[i];
      largest = std::fmax(largest, std::fabs(change[i]) / centroids_[i]);
    }
    for (std::size_t i = 0; i < half_; ++i) {
      centroids_[i] -= change[i];
    }
    return largest;
  }

  int dim_;
  SphereCoordinate coordinate_;
  std::size_t half_;
  std::vector<double> centroids_;
  std::vector<double> means_;
  std::vector<double> mass_;
};

inline void require_sphere(const char* caller, int dim) {
  require(dim >= 3 && dim <= (1 << 20), ErrorCode::invalid_argument, caller, ": dim is ", dim,
          ", expected 3 to 1048576");
}

}  // namespace detail

/// The Lloyd-Max codebook of one coordinate of a uniform unit vector in R^dim (Lloyd 1982, Max
/// 1960).
/// @param dim  3 to 1,048,576
/// @param bits 1 to 8
/// @throws Error(invalid_argument) outside those ranges.
/// Both Lloyd conditions hold to 1e-13 relative up to dim = 2,048. O(2^bits) per Newton step. Same
/// bits always.
[[nodiscard]] inline LloydMaxCodebook solve_lloyd_max(int dim, int bits) {
  detail::require_sphere("solve_lloyd_max", dim);
  require(bits >= 1 && bits <= 8, ErrorCode::invalid_argument, "solve_lloyd_max: bits is ", bits,
          ", expected 1 to 8");
  return detail::LloydMaxSolver(dim, bits).solve();
}

/// `solve_lloyd_max(dim, bits)` from a cache of the process; safe to call from any thread, one of
/// which solves while others wait.
///
/// The entry lives until the process ends, and holds no device memory.
[[nodiscard]] inline const LloydMaxCodebook& lloyd_max(int dim, int bits) {
  static std::mutex mutex;
  // Never destroyed, so that destructors of other static objects may still ask.
  static auto& cache = *new std::forward_list<LloydMaxCodebook>;
  const std::lock_guard<std::mutex> lock(mutex);
  for (const LloydMaxCodebook& entry : cache) {
    if (entry.dim == dim && entry.codebook.bits() == bits) {
      return entry;
    }
  }
  return cache.emplace_front(solve_lloyd_max(dim, bits));
}

/// E|u_1| of a uniform unit vector in R^dim, Gamma(dim/2) / (sqrt(pi) Gamma((dim+1)/2)): the 1-bit
/// centroid.
/// @param dim 3 to 1,048,576
/// @throws Error(invalid_argument) for `dim`.
[[nodiscard]] inline double mean_absolute_coordinate(int dim) {
  detail::require_sphere("mean_absolute_coordinate", dim);
  return lloyd_max(dim, 1).codebook.centroids()[1];
}

}  // namespace turboquant
