#pragma once

#include <turboquant/base/config.hpp>

#include <bit>
#include <cstdint>

namespace turboquant {

/// IEEE 754 binary16 as stored in caches; arithmetic happens in float.
///
/// Conversions use integer operations only, so every compiler, flag and backend gives the same
/// bits.
struct float16 {
  std::uint16_t bits = 0;

  /// The nearest half, ties to even; beyond 65520 infinity, NaN stays NaN (quiet).
  [[nodiscard]] static constexpr TURBOQUANT_FUNCTION float16 from_float(float value) noexcept;

  /// The exact value.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION float to_float() const noexcept;

  friend constexpr bool operator==(float16, float16) noexcept = default;
};

/// bfloat16: the upper half of a binary32 number.
struct bfloat16 {
  std::uint16_t bits = 0;

  /// The nearest bfloat16, ties to even; NaN stays NaN (quiet).
  [[nodiscard]] static constexpr TURBOQUANT_FUNCTION bfloat16 from_float(float value) noexcept {
    const auto f = std::bit_cast<std::uint32_t>(value);
    if ((f & 0x7FFFFFFFU) > 0x7F800000U) {
      return {static_cast<std::uint16_t>((f >> 16U) | 0x0040U)};
    }
    return {static_cast<std::uint16_t>((f + 0x7FFFU + ((f >> 16U) & 1U)) >> 16U)};
  }

  /// The exact value.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION float to_float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
  }

  friend constexpr bool operator==(bfloat16, bfloat16) noexcept = default;
};

static_assert(sizeof(float16) == 2 && sizeof(bfloat16) == 2);

/// The largest finite half.
inline constexpr float float16_max = 65504.0F;
/// The smallest positive half, 2^-24.
inline constexpr float float16_min_subnormal = 5.9604644775390625e-8F;

constexpr TURBOQUANT_FUNCTION float16 float16::from_float(float value) noexcept {
  const auto f = std::bit_cast<std::uint32_t>(value);
  const auto sign = (f >> 16U) & 0x8000U;
  const auto magnitude = f & 0x7FFFFFFFU;
  std::uint32_t half = 0;
  if (magnitude > 0x7F800000U) {
    half = 0x7E00U | ((magnitude >> 13U) & 0x3FFU);
  } else if (magnitude >= 0x477FF000U) {  // 65520 and above round to infinity
    half = 0x7C00U;
  } else if (magnitude >= 0x38800000U) {  // normal: at least 2^-14
    const auto rebased = magnitude - 0x38000000U;
    half = (rebased + 0xFFFU + ((rebased >> 13U) & 1U)) >> 13U;
  } else if (magnitude > 0x33000000U) {  // subnormal: above 2^-25, whose tie goes to zero
    const auto exponent = magnitude >> 23U;
    const auto mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
    const auto shift = 126U - exponent;  // in units of 2^-24
    const auto tie = (1U << (shift - 1U)) - 1U;
    half = (mantissa + tie + ((mantissa >> shift) & 1U)) >> shift;
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

constexpr TURBOQUANT_FUNCTION float float16::to_float() const noexcept {
  const auto sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16U;
  const auto exponent = static_cast<std::uint32_t>(bits >> 10U) & 0x1FU;
  const auto mantissa = static_cast<std::uint32_t>(bits & 0x3FFU);
  if (exponent == 0x1FU) {
    return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13U));
  }
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (mantissa << 13U));
  }
  if (mantissa == 0) {
    return std::bit_cast<float>(sign);
  }
  const auto leading = static_cast<std::uint32_t>(std::bit_width(mantissa)) - 1U;
  return std::bit_cast<float>(sign | ((leading + 103U) << 23U) |
                              ((mantissa << (23U - leading)) & 0x7FFFFFU));
}

}  // namespace turboquant
