#pragma once

#include <turboquant/base/config.hpp>

#include <bit>
#include <cstdint>

namespace turboquant {

/// 8-bit float with 4 exponent and 3 mantissa bits, bias 7, no infinities ("e4m3fn" of the OCP
/// 8-bit floating point specification): finite up to 448, NaN is 0x7F and 0xFF.
struct float8_e4m3 {
  std::uint8_t bits = 0;

  /// The nearest value, ties to even; magnitudes above 448 (and infinity) saturate to 448, NaN
  /// stays NaN.
  [[nodiscard]] static constexpr TURBOQUANT_FUNCTION float8_e4m3 from_float(float value) noexcept {
    const auto f = std::bit_cast<std::uint32_t>(value);
    const auto sign = (f >> 24U) & 0x80U;
    const auto magnitude = f & 0x7FFFFFFFU;
    std::uint32_t code = 0;
    if (magnitude > 0x7F800000U) {
      code = 0x7FU;
    } else if (magnitude >= 0x43E00000U) {  // 448 and above
      code = 0x7EU;
    } else if (magnitude >= 0x3C800000U) {  // normal: at least 2^-6
      const auto rebased = magnitude - 0x3C000000U;
      code = (rebased + 0x7FFFFU + ((rebased >> 20U) & 1U)) >> 20U;
    } else if (magnitude > 0x3A800000U) {  // subnormal: above 2^-10, whose tie goes to zero
      const auto mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
      const auto shift = 141U - (magnitude >> 23U);  // in units of 2^-9
      const auto tie = (1U << (shift - 1U)) - 1U;
      code = (mantissa + tie + ((mantissa >> shift) & 1U)) >> shift;
    }
    return {static_cast<std::uint8_t>(sign | code)};
  }

  /// The exact value.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION float to_float() const noexcept {
    const auto sign = static_cast<std::uint32_t>(bits & 0x80U) << 24U;
    const auto magnitude = static_cast<std::uint32_t>(bits & 0x7FU);
    if (magnitude == 0x7FU) {
      return std::bit_cast<float>(sign | 0x7FC00000U);
    }
    if (magnitude >= 8U) {
      return std::bit_cast<float>(sign | ((magnitude << 20U) + 0x3C000000U));
    }
    const float units = static_cast<float>(magnitude) * 0.001953125F;  // 2^-9
    return sign != 0 ? -units : units;
  }

  friend constexpr bool operator==(float8_e4m3, float8_e4m3) noexcept = default;
};

static_assert(sizeof(float8_e4m3) == 1);

/// The largest finite e4m3 value.
inline constexpr float float8_e4m3_max = 448.0F;

}  // namespace turboquant
