#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/math/haar_rotation.hpp>

#include <Eigen/Core>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace turboquant {

/// The quantized Johnson-Lindenstrauss sketch of the paper: S has independent standard normal
/// entries.
///
/// With sign(S r) stored, `sqrt(pi/2) / dim |r| S^T sign(S r)` is an unbiased estimate of r over S.
/// Determinism: S has the same bits always; products are Eigen's, the same for the same build. They
/// are templates so that they are compiled only where they are used. A move is a copy.
class GaussianSketch {
 public:
  /// Tells signs of this sketch from those of another class with the same seed.
  static constexpr int kind = 1;

  /// @param dim  3 to 4,096
  /// @param seed selects S
  /// @throws Error(invalid_argument) for `dim`.
  GaussianSketch(int dim, std::uint64_t seed) : seed_(seed) {
    require(dim >= 3 && dim <= 4096, ErrorCode::invalid_argument, "GaussianSketch: dim is ", dim,
            ", expected 3 to 4096");
    constexpr std::uint64_t stream = 0x516A6C53;  // apart from the streams of other generators
    matrix_ = detail::rounded(detail::gaussian_matrix(dim, seed, stream), dim);
  }

  GaussianSketch(const GaussianSketch&) = default;
  GaussianSketch& operator=(const GaussianSketch&) = default;

  [[nodiscard]] int dim() const noexcept { return static_cast<int>(matrix_.rows()); }
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }

  /// The factor that makes `factor |r| S^T sign(S r)` unbiased: sqrt(pi / 2) / dim.
  [[nodiscard]] double factor() const noexcept { return std::sqrt(1.57079632679489661923) / dim(); }

  /// `out = S in`. @param in (dim) @param out (dim)
  template <std::convertible_to<std::span<const float>> Values>
  void apply(const Values& in, std::span<float> out) const {
    multiply(matrix_, in, out);
  }

  /// `out = S^T in`. @param in (dim) @param out (dim)
  template <std::convertible_to<std::span<const float>> Values>
  void apply_transpose(const Values& in, std::span<float> out) const {
    multiply(matrix_.transpose(), in, out);
  }

 private:
  template <class Matrix>
  void multiply(const Matrix& matrix, std::span<const float> in, std::span<float> out) const {
    const auto d = static_cast<std::size_t>(dim());
    require(in.size() == d && out.size() == d, ErrorCode::shape_mismatch,
            "GaussianSketch: in.size() is ", in.size(), " and out.size() is ", out.size(),
            ", expected dim = ", dim());
    const Eigen::VectorXf product = matrix * Eigen::Map<const Eigen::VectorXf>(in.data(), dim());
    Eigen::Map<Eigen::VectorXf>(out.data(), dim()) = product;
  }

  std::uint64_t seed_;
  HaarRotation::Matrix matrix_;
};

}  // namespace turboquant
