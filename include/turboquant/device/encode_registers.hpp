#pragma once

#include <turboquant/device/kokkos_compat.hpp>
#include <turboquant/device/tile_encoder.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

/// @file
/// Algorithm 1 on one vector that a device thread holds in its registers: all loops have constant
/// bounds. The arithmetic is that of `quantise_lanes` in the same order: same bits always, on
/// devices that keep subnormal numbers.

namespace turboquant::detail {

struct alignas(16) FourFloats {
  float numbers[4];
};

/// Whether a rotation is the plain kind that `rotate_registers` knows.
[[nodiscard]] inline bool fits_registers(const HadamardTransform& rotation) noexcept {
  return rotation.source == nullptr && (rotation.dim == 64 || rotation.dim == 128) &&
         reinterpret_cast<std::uintptr_t>(rotation.signs) % alignof(FourFloats) == 0;
}

/// Reads one vector of floats, 16-byte aligned.
template <std::size_t Dim>
TURBOQUANT_FUNCTION void load_registers(const float* row, float (&x)[Dim]) noexcept {
  const auto* fours = reinterpret_cast<const FourFloats*>(row);
  TURBOQUANT_UNROLL_IN_KERNELS
  for (std::size_t i = 0; i < Dim; i += 4) {
    const FourFloats four = fours[i / 4];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t j = 0; j < 4; ++j) {
      x[i + j] = four.numbers[j];
    }
  }
}

/// The tree of `ordered_dot` over its 16 partial sums.
[[nodiscard]] inline TURBOQUANT_FUNCTION double sum_registers(double (&sums)[16]) noexcept {
  TURBOQUANT_UNROLL_IN_KERNELS
  for (std::size_t half = 8; half > 0; half /= 2) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t i = 0; i < half; ++i) {
      sums[i] += sums[i + half];
    }
  }
  return sums[0];
}

/// `ordered_dot` of a vector with itself.
template <std::size_t Dim>
[[nodiscard]] TURBOQUANT_FUNCTION double squared_registers(const float (&x)[Dim]) noexcept {
  double sums[16] = {};
  TURBOQUANT_UNROLL_IN_KERNELS
  for (std::size_t i = 0; i < Dim; ++i) {
    sums[i % 16] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  return sum_registers(sums);
}

/// Subtracts a mean from a vector that gains from it.
/// @param mean (Dim), 16-byte aligned
/// @return whether it does
template <std::size_t Dim>
TURBOQUANT_FUNCTION bool subtract_registers(const float* mean, float (&x)[Dim]) noexcept {
  double product[16] = {};
  double square[16] = {};
  const auto* fours = reinterpret_cast<const FourFloats*>(mean);
  TURBOQUANT_UNROLL_IN_KERNELS
  for (std::size_t i = 0; i < Dim; i += 4) {
    const FourFloats four = fours[i / 4];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t j = 0; j < 4; ++j) {
      const auto number = static_cast<double>(four.numbers[j]);
      product[(i + j) % 16] += static_cast<double>(x[i + j]) * number;
      square[(i + j) % 16] += number * number;
    }
  }
  if (!gains_from_mean(sum_registers(product), sum_registers(square))) {
    return false;
  }
  TURBOQUANT_UNROLL_IN_KERNELS
  for (std::size_t i = 0; i < Dim; i += 4) {
    const FourFloats four = fours[i / 4];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t j = 0; j < 4; ++j) {
      x[i + j] = minus_mean(x[i + j], four.numbers[j]);
    }
  }
  return true;
}

/// Brings the largest magnitude to [1, 2).
/// @return the power of two that was divided by
template <std::size_t Dim>
TURBOQUANT_FUNCTION int normalise_registers(float (&x)[Dim]) noexcept {
  std::uint32_t largest = 0;
  TURBOQUANT_UNROLL_IN_KERNELS
  for (std::size_t i = 0; i < Dim; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFU;
    largest = magnitude > largest ? magnitude : largest;
  }
  const int exponent = largest == 0 ? 0 : binary_exponent(largest);
  const int half = -exponent / 2;
  const float first = power_of_two(half);
  const float second = power_of_two(-exponent - half);
  TURBOQUANT_UNROLL_IN_KERNELS
  for (std::size_t i = 0; i < Dim; ++i) {
    x[i] = without_tiny((x[i] * first) * second);
  }
  return exponent;
}

/// `HadamardTransform::forward` of a rotation that fits registers.
/// @param factor `hadamard_factor` of dimension and rounds
template <std::size_t Dim>
TURBOQUANT_FUNCTION void rotate_registers(const HadamardTransform& rotation, float factor,
                                          float (&x)[Dim]) noexcept {
  for (std::size_t round = 0; round < rotation.rounds; ++round) {
    const auto* signs = reinterpret_cast<const FourFloats*>(rotation.signs + round * Dim);
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t i = 0; i < Dim; i += 4) {
      const FourFloats four = signs[i / 4];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (std::size_t j = 0; j < 4; ++j) {
        x[i + j] *= four.numbers[j];
      }
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t width = 1; width < Dim; width *= 2) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (std::size_t i = 0; i < Dim / 2; ++i) {
        const std::size_t at = i / width * 2 * width + i % width;
        const float a = x[at];
        const float b = x[at + width];
        x[at] = a + b;
        x[at + width] = a - b;
      }
    }
  }
  TURBOQUANT_UNROLL_IN_KERNELS
  for (std::size_t i = 0; i < Dim; ++i) {
    x[i] *= factor;
  }
}

/// `search_cells` for `Bits` bits, code n of 8 dimensions at bits 4 n, and the `ordered_dot` of the
/// levels with the vector or with themselves.
template <int Bits, bool Squares, std::size_t Dim>
[[nodiscard]] TURBOQUANT_FUNCTION double search_registers(
    const KernelCodebook& codebook, float factor, const float (&x)[Dim],
    std::uint32_t (&nibbles)[Dim / 8]) noexcept {
  constexpr int half = 1 << (Bits - 1);
  std::int32_t boundary[half];
  float level[half];
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int j = 0; j < half; ++j) {
    level[j] = codebook.levels[half + j];
    boundary[j] =
        j + 1 < half ? std::bit_cast<std::int32_t>(codebook.boundaries[half + j]) : 0x7FFFFFFF;
  }
  double sums[16] = {};
  TURBOQUANT_UNROLL_IN_KERNELS
  for (std::size_t i = 0; i < Dim; ++i) {
    const auto bits = std::bit_cast<std::int32_t>(x[i] * factor + 0.0F);
    const std::int32_t negative = bits >> 31;
    const std::int32_t magnitude = (bits & 0x7FFFFFFF) + 1 + negative;
    std::int32_t above = 0;
    float picked = level[0];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j + 1 < half; ++j) {
      const bool reached = magnitude > boundary[j];
      above += reached ? 1 : 0;
      picked = reached ? level[j + 1] : picked;
    }
    const float signed_level = negative != 0 ? -picked : picked;
    const float other = Squares ? signed_level : x[i];
    sums[i % 16] += static_cast<double>(other) * static_cast<double>(signed_level);
    const auto code = static_cast<std::uint32_t>((above ^ negative) + half);
    nibbles[i / 8] = (i % 8 == 0 ? 0U : nibbles[i / 8]) | (code << (4 * (i % 8)));
  }
  return sum_registers(sums);
}

template <bool Squares, std::size_t Dim>
[[nodiscard]] TURBOQUANT_FUNCTION double search_registers(
    const KernelCodebook& codebook, float factor, const float (&x)[Dim],
    std::uint32_t (&nibbles)[Dim / 8]) noexcept {
  switch (codebook.bits) {
    case 2: return search_registers<2, Squares>(codebook, factor, x, nibbles);
    case 3: return search_registers<3, Squares>(codebook, factor, x, nibbles);
    default: return search_registers<4, Squares>(codebook, factor, x, nibbles);
  }
}

/// Algorithm 1: codes of `x`, which is destroyed, code n of 8 at bits 4 n; and the stored scale.
/// @param rotation        one that fits registers
/// @param rotation_factor its `hadamard_factor`
template <std::size_t Dim>
TURBOQUANT_FUNCTION float16 quantise_registers(const HadamardTransform& rotation,
                                               float rotation_factor,
                                               const KernelCodebook& codebook, ScaleRule rule,
                                               float (&x)[Dim],
                                               std::uint32_t (&nibbles)[Dim / 8]) noexcept {
  LevelSums sums;
  const int exponent = normalise_registers(x);
  sums.squared = squared_registers(x);
  rotate_registers(rotation, rotation_factor, x);
  const float factor = unit_variance_factor(sums.squared, Dim);
  sums.projection = search_registers<false>(codebook, factor, x, nibbles);
  if (needs_level_squares(rule)) {
    sums.level_squared = search_registers<true>(codebook, factor, x, nibbles);
  }
  return vector_scale(rule, Dim, sums, exponent);
}

/// `value_code` of the numbers [first, first + Size) of a vector.
///
/// Steps in float are wrong by less than 2^-18 up to the largest code. A group with a number that
/// close to a border between two codes is coded again by `group_by_division`.
/// @return whether it has to be
template <std::size_t First, std::size_t Size, std::size_t Dim>
[[nodiscard]] TURBOQUANT_FUNCTION bool group_registers(const GroupNumbers& numbers, int top,
                                                       const float (&x)[Dim],
                                                       std::uint32_t (&nibbles)[Dim / 8]) noexcept {
  const float zero = numbers.zero.to_float();
  const float inverse = numbers.magnitude > 0 ? 1.0F / numbers.magnitude : 0.0F;
  const float factor = numbers.mirrored ? -inverse : inverse;
  const auto highest = static_cast<float>(top);
  constexpr float margin = 0x1p-17F;
  bool close = false;
  TURBOQUANT_UNROLL_IN_KERNELS
  for (std::size_t i = First; i < First + Size; ++i) {
    const float steps = (x[i] - zero) * factor + 0.5F;
    const float positive = steps > 0 ? steps : 0.0F;  // also where 0 * infinity is no number
    const float bounded = positive < highest + 1 ? positive : highest + 1;
    const auto below = static_cast<std::int32_t>(bounded);
    // A number above the largest code's border is as far from the next one as it is; the border at
    // 0 is none.
    const float rest = bounded - static_cast<float>(below);
    close =
        close || (rest < margin && below > 0 && below <= top) || (rest > 1 - margin && below < top);
    const int code = below < top ? below : top;
    nibbles[i / 8] =
        (i % 8 == 0 ? 0U : nibbles[i / 8]) | (static_cast<std::uint32_t>(code) << (4 * (i % 8)));
  }
  return close;
}

/// The same codes, slowly.
/// @param row   the vector in memory
/// @param words nibble words of the vector's token
template <class Words>
TURBOQUANT_FUNCTION void group_by_division(const GroupNumbers& numbers, int top, const float* row,
                                           std::size_t first, std::size_t size,
                                           const Words& words) noexcept {
  const double zero = static_cast<double>(numbers.zero.to_float());
  for (std::size_t i = first; i < first + size; i += 8) {
    std::uint32_t nibbles = 0;
    for (std::size_t n = 0; n < 8; ++n) {
      const int code = value_code(static_cast<double>(row[i + n]) - zero, numbers.divisor(), top);
      nibbles |= static_cast<std::uint32_t>(code) << (4 * n);
    }
    words(i / 8, nibbles);
  }
}

/// Smallest and largest of the numbers [first, first + Size) of a vector.
template <std::size_t First, std::size_t Size, std::size_t Dim>
TURBOQUANT_FUNCTION void range_registers(const float (&x)[Dim], float& lowest,
                                         float& highest) noexcept {
  lowest = highest = x[First];
  TURBOQUANT_UNROLL_IN_KERNELS
  for (std::size_t i = First + 1; i < First + Size; ++i) {
    lowest = x[i] < lowest ? x[i] : lowest;
    highest = x[i] > highest ? x[i] : highest;
  }
}

}  // namespace turboquant::detail
