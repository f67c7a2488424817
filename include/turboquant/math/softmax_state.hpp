#pragma once

#include <turboquant/base/error.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace turboquant {

inline constexpr float negative_infinity = -std::numeric_limits<float>::infinity();
inline constexpr double log2_e = 1.4426950408889634;
inline constexpr double natural_log_of_2 = 0.69314718055994531;

/// 2^x for x <= 0 within 2 units in the last place; exactly 1 at 0, exactly 0 below -126 (and for
/// -infinity).
///
/// Polynomial of degree 6 through the Chebyshev nodes of [-1/2, 1/2] (2e-9), rescaled by an exact
/// power of two.
[[nodiscard]] inline TURBOQUANT_FUNCTION float exp2_negative(float x) noexcept {
  if (!(x >= -126.0F)) {
    return 0.0F;
  }
  const float n = std::floor(x + 0.5F);
  const float r = x - n;
  float p = 1.54614447e-4F;
  p = p * r + 1.340042818e-3F;
  p = p * r + 9.618056679e-3F;
  p = p * r + 5.550327227e-2F;
  p = p * r + 2.402265092e-1F;
  p = p * r + 6.931472067e-1F;
  p = p * r + 1.0F;
  return p * std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<int>(n) + 127) << 23U);
}

/// Softmax of part of the keys, ready to be merged: how much a part's output weighs, and the
/// log-sum-exp of both.
struct MergeWeights {
  float first = 0;
  float second = 0;
  float lse = negative_infinity;

  /// One number of the merged output. A part of weight 0 adds nothing whatever it holds, NaN and
  /// infinity included.
  [[nodiscard]] TURBOQUANT_FUNCTION float merge(float first_output,
                                                float second_output) const noexcept {
    // Products of floats are exact in double, so a fused multiply-add gives the same bits.
    const double a = first == 0.0F ? 0.0 : double{first} * double{first_output};
    const double b = second == 0.0F ? 0.0 : double{second} * double{second_output};
    return static_cast<float>(a + b);
  }
};

/// Weights with which the normalised outputs of two disjoint sets of keys add up to the output over
/// their union.
///
/// @param first_lse  natural log of the sum of exp(logit) over the first set; -infinity for an
/// empty one. NaN and +infinity are not a log-sum-exp of finite logits; kernels cannot throw, so
/// they give a NaN in `lse` or in a weight (`merge_attention` refuses them).
/// @param second_lse of the second set
/// With one set empty the other's weight is exactly 1 and its log-sum-exp unchanged; with both
/// empty all is zero and -infinity. Commutative.
[[nodiscard]] inline TURBOQUANT_FUNCTION MergeWeights merge_weights(float first_lse,
                                                                    float second_lse) noexcept {
  if (second_lse == negative_infinity) {
    return {first_lse == negative_infinity ? 0.0F : 1.0F, 0.0F, first_lse};
  }
  if (first_lse == negative_infinity) {
    return {0.0F, 1.0F, second_lse};
  }
  const bool first_is_larger = first_lse >= second_lse;
  const double larger = first_is_larger ? double{first_lse} : double{second_lse};
  const double smaller = first_is_larger ? double{second_lse} : double{first_lse};
  const double ratio = std::exp(smaller - larger);
  const auto high = static_cast<float>(1 / (1 + ratio));
  const auto low = static_cast<float>(ratio / (1 + ratio));
  const auto lse = static_cast<float>(larger + std::log1p(ratio));
  return first_is_larger ? MergeWeights{high, low, lse} : MergeWeights{low, high, lse};
}

/// Merges the attention output over a second set of keys into that over a first one.
///
/// @param output       (dim), normalised output over the first set; becomes the output over both
/// @param lse          its log-sum-exp (natural log); becomes that of both
/// @param other_output (dim), over the second set, disjoint from the first
/// @param other_lse    of the second set
/// A set with a log-sum-exp of -infinity is empty and adds nothing, whatever its output holds: the
/// other one's output and log-sum-exp are kept bitwise; over two empty sets the output is 0.
/// @throws Error(shape_mismatch) for outputs of different sizes, Error(invalid_argument) for a
/// log-sum-exp that is NaN or +infinity; nothing is changed then.
/// Same bits always for the same order of merges.
inline void merge_attention(std::span<float> output, float& lse,
                            std::span<const float> other_output, float other_lse) {
  require(output.size() == other_output.size(), ErrorCode::shape_mismatch,
          "merge_attention: other_output.size() is ", other_output.size(),
          ", expected output.size() = ", output.size());
  constexpr float infinity = (std::numeric_limits<float>::infinity)();
  require(lse < infinity, ErrorCode::invalid_argument, "merge_attention: lse is ", lse,
          ", expected a number or -infinity");
  require(other_lse < infinity, ErrorCode::invalid_argument, "merge_attention: other_lse is ",
          other_lse, ", expected a number or -infinity");
  if (other_lse == negative_infinity && lse != negative_infinity) {
    return;
  }
  const MergeWeights weights = merge_weights(lse, other_lse);
  for (std::size_t i = 0; i < output.size(); ++i) {
    output[i] = lse == negative_infinity && other_lse != negative_infinity
                    ? other_output[i]
                    : weights.merge(output[i], other_output[i]);
  }
  lse = weights.lse;
}

}  // namespace turboquant
