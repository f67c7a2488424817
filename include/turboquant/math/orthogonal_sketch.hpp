#pragma once

#include <turboquant/math/lloyd_max.hpp>

#include <cstdint>
#include <span>
#include <utility>

namespace turboquant {

/// A sign sketch whose matrix is a random rotation: the same bits per vector as `GaussianSketch`
/// with 2.75 times less variance of inner products. A move is a copy.
///
/// @tparam Rotation `HaarRotation` or `HadamardRotation`
template <class Rotation>
class OrthogonalSketch {
 public:
  /// Tells signs of this sketch from those of another class with the same seed; 0 where the
  /// rotation has no `kind`.
  static constexpr int kind = [] {
    if constexpr (requires { Rotation::kind; }) {
      return 1 + Rotation::kind;
    } else {
      return 0;
    }
  }();

  explicit OrthogonalSketch(Rotation rotation)
      : rotation_(std::move(rotation)),
        factor_(1 / (rotation_.dim() * mean_absolute_coordinate(rotation_.dim()))) {}

  OrthogonalSketch(const OrthogonalSketch&) = default;
  OrthogonalSketch& operator=(const OrthogonalSketch&) = default;

  [[nodiscard]] int dim() const noexcept { return rotation_.dim(); }
  /// The rotation's, where it has one.
  [[nodiscard]] std::uint64_t seed() const noexcept requires requires(const Rotation& rotation) {
    rotation.seed();
  }
  { return rotation_.seed(); }

  /// The factor that makes `factor |r| S^T sign(S r)` unbiased for Haar S: 1 / (dim E|u_1|), u
  /// uniform on the sphere. The Gaussian constant in its place is too large by E|u_1| sqrt(pi dim /
  /// 2), 0.2 % at 128.
  [[nodiscard]] double factor() const noexcept { return factor_; }

  /// `out = S in`. @param in (dim) @param out (dim)
  void apply(std::span<const float> in, std::span<float> out) const { rotation_.apply(in, out); }

  /// `out = S^T in`. @param in (dim) @param out (dim)
  void apply_transpose(std::span<const float> in, std::span<float> out) const {
    rotation_.apply_inverse(in, out);
  }

 private:
  Rotation rotation_;
  double factor_;
};

}  // namespace turboquant
