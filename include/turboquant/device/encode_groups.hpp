#pragma once

#include <turboquant/device/encode_search.hpp>
#include <turboquant/device/tile_encoder.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

/// @file
/// Min-max groups of numbers in registers.

namespace turboquant::detail {

inline constexpr float float_infinity = std::numeric_limits<float>::infinity();

/// The stored numbers of a min-max group; from a quotient in float where that is certain.
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION GroupNumbers group_numbers(float lowest, float highest,
                                                                     int top, bool odd_token) {
  GroupNumbers numbers;
  const float range = highest - lowest;
  if (!rounds_surely(range * reciprocal_of_float(static_cast<float>(top)), 0x1p-21F,
                     numbers.scale) ||
      range > 0x1p100F) {
    return {lowest, highest, top, odd_token};
  }
  numbers.magnitude = float_of_half(numbers.scale.bits);
  numbers.mirrored = odd_token;
  numbers.scale.bits = static_cast<std::uint16_t>(numbers.scale.bits | (odd_token ? 0x8000U : 0U));
  float edge = odd_token ? highest : lowest;
  edge = larger_of(smaller_of(edge, float16_max), -float16_max);
  numbers.zero = half_of_float(edge);
  numbers.zero.bits = numbers.zero.bits == 0x8000U ? std::uint16_t{0} : numbers.zero.bits;
  return numbers;
}

/// `value_code` of 8 numbers at a time.
///
/// Steps in float are wrong by less than 2^-17 up to the largest code, which is half of what they
/// are rounded to; a number that this puts onto the border between two codes is compared with it in
/// double. Rows of few bits often are at a border exactly.
class GroupCodes {
 public:
  KOKKOS_FORCEINLINE_FUNCTION GroupCodes(const GroupNumbers& numbers, int top)
      : zero_(float_of_half(numbers.zero.bits)),
        highest_(static_cast<float>(top)),
        numbers_(numbers),
        top_(top) {
    const float inverse =
        numbers.magnitude > 0 ? reciprocal_of_float(numbers.magnitude * highest_) : 0.0F;
    factor_ = numbers.mirrored ? -inverse : inverse;
  }

  /// Eight codes of 4 bits each.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION std::uint32_t codes(const float (&x)[8]) const {
    std::uint32_t steps[8];
    std::uint32_t least = ~0U;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < 8; ++i) {
      steps[i] = steps_to(x[i]);
      const std::uint32_t beyond = steps[i] << 16U;
      least = beyond < least ? beyond : least;
    }
    const std::uint32_t codes = bytes_of<2>(steps[0], steps[2], steps[4], steps[6]) +
                                (bytes_of<2>(steps[1], steps[3], steps[5], steps[7]) << 4U);
    return least != 0 ? codes : corrected(x, codes);
  }

 private:
  /// The steps up to a number and a half: whole ones in the third byte, 2^-16 ones below.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION std::uint32_t steps_to(float x) const {
    constexpr float rounder = 128.5F;
    return std::bit_cast<std::uint32_t>(between_0_and_1((x - zero_) * factor_) * highest_ +
                                        rounder);
  }

  /// The same codes, those of numbers that are close to a border made again.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION std::uint32_t corrected(const float (&x)[8],
                                                                    std::uint32_t codes) const {
    std::uint32_t close = 0;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (unsigned i = 0; i < 8; ++i) {
      close |= steps_to(x[i]) << 16U != 0 ? 0U : 1U << i;
    }
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (; close != 0; close &= close - 1) {
      const auto at = static_cast<unsigned>(std::bit_width(close & (~close + 1))) - 1;
      float number = x[0];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (unsigned j = 1; j < 8; ++j) {
        number = at == j ? x[j] : number;
      }
      const auto code = static_cast<std::uint32_t>(exact_code(number));
      codes = (codes & ~(15U << (4 * at))) | (code << (4 * at));
    }
    return codes;
  }

  /// `value_code` of a number.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int exact_code(float number) const {
    const double divisor = numbers_.divisor();
    const double distance = static_cast<double>(number) - static_cast<double>(zero_);
    // The border that is meant, and how far beyond it the number is.
    const int lower = static_cast<int>(between_0_and_1((number - zero_) * factor_) * highest_);
    const double beyond = std::fma(-(lower + 0.5), divisor, distance);
    const double doubt = 0x1p-40 * std::fabs(divisor);
    if (beyond == 0 || std::fabs(beyond) > doubt) {
      return lower + (divisor > 0 ? beyond >= 0 : beyond <= 0);
    }
    return value_code(distance, divisor, top_);
  }

  float zero_;
  float highest_;
  float factor_ = 0;
  GroupNumbers numbers_;
  int top_;
};

}  // namespace turboquant::detail
