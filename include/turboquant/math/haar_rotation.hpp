#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/math/exact_functions.hpp>

#include <Eigen/Core>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace turboquant {

namespace detail {

/// Row-major n x n standard normals of one stream.
[[nodiscard]] inline std::vector<double> gaussian_matrix(int n, std::uint64_t seed,
                                                         std::uint64_t stream) {
  const auto size = static_cast<std::size_t>(n) * static_cast<std::size_t>(n);
  std::vector<double> matrix(size);
  const CounterRng rng(seed, stream);
  for (std::size_t i = 0; i < size; ++i) {
    matrix[i] = normal(rng, i);
  }
  return matrix;
}

/// Replaces the columns of a row-major n x n matrix by their Gram-Schmidt orthonormalisation
/// (modified, right-looking): the Q of the QR factorisation whose R has a positive diagonal. Every
/// product that feeds a sum is an explicit `std::fma` in a fixed order, so the result has the same
/// bits on every compiler and instruction set, which a library factorisation with SIMD reductions
/// does not give.
inline void orthonormalise_columns(std::vector<double>& a, std::size_t n) {
  std::vector<double> dots(n);
  for (std::size_t k = 0; k < n; ++k) {
    double norm2 = 0;
    for (std::size_t i = 0; i < n; ++i) {
      norm2 = std::fma(a[i * n + k], a[i * n + k], norm2);
    }
    const double norm = std::sqrt(norm2);
    for (std::size_t i = 0; i < n; ++i) {
      a[i * n + k] /= norm;
    }
    for (std::size_t j = k + 1; j < n; ++j) {
      dots[j] = 0;
    }
    for (std::size_t i = 0; i < n; ++i) {
      const double q = a[i * n + k];
      const double* row = a.data() + i * n;
      for (std::size_t j = k + 1; j < n; ++j) {
        dots[j] = std::fma(q, row[j], dots[j]);
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      const double q = -a[i * n + k];
      double* row = a.data() + i * n;
      for (std::size_t j = k + 1; j < n; ++j) {
        row[j] = std::fma(q, dots[j], row[j]);
      }
    }
  }
}

using FloatMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// A row-major n x n matrix with its entries rounded to float.
[[nodiscard]] inline FloatMatrix rounded(const std::vector<double>& entries, int n) {
  FloatMatrix matrix(n, n);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    matrix.data()[i] = static_cast<float>(entries[i]);
  }
  return matrix;
}

}  // namespace detail

/// A Haar-distributed orthogonal matrix: the Q factor of a Gaussian matrix, signs fixed by a
/// positive diagonal of R (Mezzadri, "How to generate random matrices from the classical compact
/// groups", 2007).
///
/// Determinism: the matrix has the same bits always; `apply` multiplies with Eigen and gives the
/// same bits for the same build. The products are templates so that Eigen's are compiled only where
/// they are used. A move is a copy.
class HaarRotation {
 public:
  /// Tells codes of this rotation from those of another class with the same seed.
  static constexpr int kind = 2;

  /// @param dim  3 to 4,096
  /// @param seed selects the matrix
  /// @throws Error(invalid_argument) for `dim`.
  /// O(dim^3) once.
  HaarRotation(int dim, std::uint64_t seed) : seed_(seed) {
    require(dim >= 3 && dim <= 4096, ErrorCode::invalid_argument, "HaarRotation: dim is ", dim,
            ", expected 3 to 4096");
    constexpr std::uint64_t stream = 0x48616172;  // apart from the streams of other generators
    std::vector<double> q = detail::gaussian_matrix(dim, seed, stream);
    const auto n = static_cast<std::size_t>(dim);
    detail::orthonormalise_columns(q, n);
    detail::orthonormalise_columns(
        q, n);  // once more removes the loss of orthogonality of the first pass
    matrix_ = detail::rounded(q, dim);
  }

  HaarRotation(const HaarRotation&) = default;
  HaarRotation& operator=(const HaarRotation&) = default;

  using Matrix = detail::FloatMatrix;

  [[nodiscard]] int dim() const noexcept { return static_cast<int>(matrix_.rows()); }
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
  /// (dim, dim), row-major.
  [[nodiscard]] const Matrix& matrix() const noexcept { return matrix_; }

  /// `out = R in`. Sizes as in `HadamardRotation::apply`. O(dim^2).
  template <std::convertible_to<std::span<const float>> Values>
  void apply(const Values& in, std::span<float> out) const {
    const std::span<const float> values = in;
    check_sizes("HaarRotation::apply", values.size(), out.size());
    const Eigen::VectorXf product = matrix_ * vector(values);
    copy(product, out);
  }

  /// `out = R^T in`. Sizes as in `HadamardRotation::apply_inverse`. O(dim^2).
  template <std::convertible_to<std::span<const float>> Values>
  void apply_inverse(const Values& in, std::span<float> out) const {
    const std::span<const float> values = in;
    check_sizes("HaarRotation::apply_inverse", values.size(), out.size());
    const Eigen::VectorXf product = matrix_.transpose() * vector(values);
    copy(product, out);
  }

 private:
  static Eigen::Map<const Eigen::VectorXf> vector(std::span<const float> x) {
    return {x.data(), static_cast<Eigen::Index>(x.size())};
  }
  static void copy(const Eigen::VectorXf& from, std::span<float> to) {
    Eigen::Map<Eigen::VectorXf>(to.data(), from.size()) = from;
  }
  void check_sizes(const char* caller, std::size_t in, std::size_t out) const {
    const auto d = static_cast<std::size_t>(dim());
    require(in == d && out == d, ErrorCode::shape_mismatch, caller, ": in.size() is ", in,
            " and out.size() is ", out, ", expected dim = ", dim());
  }

  Matrix matrix_;
  std::uint64_t seed_;
};

}  // namespace turboquant
