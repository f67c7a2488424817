#pragma once

#include <turboquant/device/encode_registers.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

/// @file
/// Min-max groups of a vector that lanes hold in their registers; see `encode_registers.hpp`.

namespace turboquant::detail {

/// The stored numbers of a min-max group: those of `GroupNumbers`, without a division in double
/// where the float is surely rounded to the same half.
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION GroupNumbers group_numbers(float lowest, float highest,
                                                                     int top, bool odd_token) {
  const float about = (highest - lowest) / static_cast<float>(top);
  const float edge = odd_token ? highest : lowest;
  if (!rounds_surely(about) || !(edge > -65000.0F && edge < 65000.0F)) {
    return {lowest, highest, top, odd_token};
  }
  GroupNumbers numbers;
  const float16 scale = float16::from_float(about);
  numbers.magnitude = scale.to_float();
  numbers.mirrored = odd_token;
  numbers.scale.bits = static_cast<std::uint16_t>(scale.bits | (odd_token ? 0x8000U : 0U));
  numbers.zero = float16::from_float(edge);
  numbers.zero.bits = numbers.zero.bits == 0x8000U ? std::uint16_t{0} : numbers.zero.bits;
  return numbers;
}

/// `value_code` of the numbers [First, First + Size) of a lane.
///
/// Steps in float are wrong by less than 2^-18 up to the largest code. A group with a number that
/// close to a border between two codes is coded again by `group_by_division`.
/// @return whether it has to be
template <int First, int Size, std::size_t Dim, int Lanes>
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION bool group_codes_of_lane(
    const GroupNumbers& numbers, int top, const LaneVector<Dim, Lanes>& vector,
    std::uint32_t (&codes)[Dim / 4 / Lanes]) {
  const float zero = numbers.zero.to_float();
  const float inverse = numbers.magnitude > 0 ? 1.0F / numbers.magnitude : 0.0F;
  const float factor = numbers.mirrored ? -inverse : inverse;
  const auto highest = static_cast<float>(top);
  constexpr float rounder = 12582912.0F;  // sums with it end in the nearest integer
  constexpr auto rounder_bits = std::bit_cast<std::uint32_t>(rounder);
  constexpr float margin = 0x1p-17F;
  float farthest = 0;  // from the integer that a number is rounded to
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int i = First; i < First + Size; ++i) {
    const float steps = (vector.x[i] - zero) * factor;
    const float positive = steps > 0 ? steps : 0.0F;  // also where 0 * infinity is no number
    const float bounded = positive < highest ? positive : highest;
    const float rounded = bounded + rounder;
    const float rest = bounded - (rounded - rounder);
    const float distance = rest < 0 ? -rest : rest;
    farthest = distance > farthest ? distance : farthest;
    const std::uint32_t code = std::bit_cast<std::uint32_t>(rounded) - rounder_bits;
    codes[i / 4] = (i % 4 == 0 ? 0U : codes[i / 4]) + (code << static_cast<unsigned>(4 * (i % 4)));
  }
  return farthest > 0.5F - margin;
}

/// The same codes, slowly.
template <int First, int Size, std::size_t Dim, int Lanes>
KOKKOS_FORCEINLINE_FUNCTION void group_by_division(const GroupNumbers& numbers, int top,
                                                   const LaneVector<Dim, Lanes>& vector,
                                                   std::uint32_t (&codes)[Dim / 4 / Lanes]) {
  const double zero = static_cast<double>(numbers.zero.to_float());
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int i = First; i < First + Size; ++i) {
    const int code = value_code(static_cast<double>(vector.x[i]) - zero, numbers.divisor(), top);
    codes[i / 4] = (i % 4 == 0 ? 0U : codes[i / 4]) |
                   (static_cast<std::uint32_t>(code) << static_cast<unsigned>(4 * (i % 4)));
  }
}

/// Smallest and largest of the numbers [First, First + Size) of all lanes.
template <int First, int Size, std::size_t Dim, int Lanes>
KOKKOS_FORCEINLINE_FUNCTION void range_of_lanes(const LaneVector<Dim, Lanes>& vector, float& lowest,
                                                float& highest) {
  lowest = highest = vector.x[First];
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int i = First + 1; i < First + Size; ++i) {
    lowest = vector.x[i] < lowest ? vector.x[i] : lowest;
    highest = vector.x[i] > highest ? vector.x[i] : highest;
  }
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int mask = 1; mask < Lanes; mask *= 2) {
    const float low = from_lane_xor(lowest, mask);
    const float high = from_lane_xor(highest, mask);
    lowest = low < lowest ? low : lowest;
    highest = high > highest ? high : highest;
  }
}

}  // namespace turboquant::detail
