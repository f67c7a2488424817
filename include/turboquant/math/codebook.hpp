#pragma once

#include <turboquant/base/error.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace turboquant {

/// A symmetric scalar codebook: `levels()` centroids in ascending order and the cell boundaries
/// between them.
///
/// `centroids()[i] == -centroids()[levels() - 1 - i]` bitwise, the middle boundary is exactly 0,
/// boundaries are midpoints. Cell `i` is `[boundaries()[i - 1], boundaries()[i])`, so a value on a
/// boundary (0 and -0 too) belongs to the upper cell. A move is a copy.
/// @tparam Real float or double
template <class Real>
class Codebook {
 public:
  /// Builds the full codebook from its positive half.
  /// @param positive ascending positive centroids: 2^(bits-1) of them for `bits` in 1..8
  /// @throws Error(invalid_argument) when the count is no power of two up to 128, the order is
  /// broken or a centroid
  ///         exceeds half of the largest Real.
  explicit Codebook(std::span<const Real> positive) {
    const std::size_t half = positive.size();
    require(half >= 1 && half <= 128 && (half & (half - 1)) == 0, ErrorCode::invalid_argument,
            "Codebook: positive.size() is ", half, ", expected a power of two from 1 to 128");
    constexpr Real largest =
        (std::numeric_limits<Real>::max)() / 2;  // so that midpoints stay finite
    for (std::size_t i = 0; i < half; ++i) {
      const Real below = i == 0 ? Real{0} : positive[i - 1];
      require(positive[i] > below && positive[i] <= largest, ErrorCode::invalid_argument,
              "Codebook: positive[", i, "] is ", positive[i], ", expected more than ", below,
              " and at most ", largest);
    }
    while ((std::size_t{1} << static_cast<unsigned>(bits_)) < 2 * half) {
      ++bits_;
    }
    centroids_.resize(2 * half);
    boundaries_.resize(2 * half - 1);
    for (std::size_t i = 0; i < half; ++i) {
      centroids_[half + i] = positive[i];
      centroids_[half - 1 - i] = -positive[i];
    }
    boundaries_[half - 1] = Real{0};
    for (std::size_t i = 1; i < half; ++i) {
      const Real midpoint = (positive[i - 1] + positive[i]) / 2;
      boundaries_[half - 1 + i] = midpoint;
      boundaries_[half - 1 - i] = -midpoint;
    }
  }

  Codebook(const Codebook&) = default;
  Codebook& operator=(const Codebook&) = default;

  [[nodiscard]] int bits() const noexcept { return bits_; }
  [[nodiscard]] std::size_t levels() const noexcept { return centroids_.size(); }
  /// (levels), ascending.
  [[nodiscard]] std::span<const Real> centroids() const noexcept { return centroids_; }
  /// (levels - 1), ascending.
  [[nodiscard]] std::span<const Real> boundaries() const noexcept { return boundaries_; }

  /// The cell of `x`: the number of boundaries that are at most `x`; 0 for NaN. O(levels).
  [[nodiscard]] std::uint8_t encode(Real x) const noexcept {
    unsigned code = 0;
    for (const Real boundary : boundaries_) {
      code += x >= boundary ? 1U : 0U;
    }
    return static_cast<std::uint8_t>(code);
  }

  /// The same codebook with every centroid multiplied by `factor > 0` (boundaries stay midpoints).
  template <class Other = Real>
  [[nodiscard]] Codebook<Other> scaled(double factor) const {
    std::vector<Other> positive;
    positive.reserve(levels() / 2);
    for (std::size_t i = levels() / 2; i < levels(); ++i) {
      positive.push_back(static_cast<Other>(static_cast<double>(centroids_[i]) * factor));
    }
    return Codebook<Other>(std::span<const Other>(positive));
  }

 private:
  int bits_ = 0;
  std::vector<Real> centroids_;
  std::vector<Real> boundaries_;
};

}  // namespace turboquant
