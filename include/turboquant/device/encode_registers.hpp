#pragma once

#include <turboquant/device/arch/device_floats.hpp>
#include <turboquant/device/butterfly_signs.hpp>
#include <turboquant/device/encode_lanes.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

/// @file
/// Algorithm 1 on one vector that `Lanes` lanes hold in their registers: all loops have constant
/// bounds. Rotation and search are those of `quantise_lanes` bit for bit. Sums decide a rounding
/// only, so they are taken roughly: where that is too close to a rounding's edge, they are taken
/// again in double, and a vector whose rounding even these do not decide is reported, so that
/// `encode_exactly.hpp` encodes it again. Same bits always, on devices that keep subnormal numbers.

namespace turboquant::detail {

/// The halves on both sides of a number that is right to a relative error.
/// @param x     at least 0
/// @param error at most 2^-12
/// @return whether they are the same one, `half`
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION bool rounds_surely(float x, float error, float16& half) {
  const auto bounded = [](float y) { return y < float16_max ? y : float16_max; };
  half = half_of_float(bounded(x - error * x));
  return half.bits == half_of_float(bounded(x + error * x)).bits;
}

/// `unit_variance_factor` of a sum that is right to 2^-46, for a dimension that is a power of two.
///
/// One step of Newton's method in double is right to 2^-42.
/// @param squared 1 to 2^60
/// @return whether the factor's rounding is certain
template <std::size_t Dim>
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION bool factor_of_squares(double squared, float& factor) {
  const double mean = squared * (1.0 / static_cast<double>(Dim));
  const auto start = static_cast<double>(reciprocal_root_of_float(static_cast<float>(mean)));
  const double root = start * (1.5 - 0.5 * mean * start * start);
  factor = static_cast<float>(root);
  const auto rest = static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(root)) & 0x1FFFFFFFU;
  constexpr std::uint32_t margin = 1U << 13U;
  return rest - (0x10000000U - margin) > 2 * margin;
}

/// Whether a vector with that largest magnitude can be brought to [2^-62, 2^-61) by one float, so
/// that what is less than 2^-64 of it becomes subnormal and nothing else does.
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION bool has_normal_exponent(float largest) {
  return largest >= 0x1p-62F && largest < 0x1p65F;
}
/// The binary exponent of such a magnitude, 0 of others.
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int normal_exponent(float largest) {
  const auto exponent = static_cast<int>(std::bit_cast<std::uint32_t>(largest) >> 23U) - 127;
  return has_normal_exponent(largest) ? exponent : 0;
}
/// What a vector is multiplied by before its rotation, with `normal_product`.
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float normalising_factor(float largest) {
  return power_of_two(-62 - normal_exponent(largest));
}
/// 2^exponent for the exponents of normal doubles.
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION double double_power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52U);
}

/// One lane's share of a vector of `Dim` coordinates: 8 of every 8 Lanes.
/// @tparam Lanes 1, 2 or 4
template <std::size_t Dim, int Lanes>
struct LaneVector {
  static constexpr int size = static_cast<int>(Dim) / Lanes;
  static constexpr int run = 8;             ///< coordinates in a row
  static constexpr int words = size / run;  ///< of 8 codes
  static_assert(Lanes == 1 || Lanes == 2 || Lanes == 4);

  float x[size];

  /// Coordinate of number i.
  [[nodiscard]] static constexpr TURBOQUANT_FUNCTION int coordinate(int part, int i) noexcept {
    return i / run * run * Lanes + run * part + i % run;
  }

  /// The largest of all lanes of the vector.
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION float largest_of_lanes(float largest) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int mask = 1; mask < Lanes; mask *= 2) {
      largest = larger_of(largest, from_lane_xor(largest, mask));
    }
    return largest;
  }
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION float smallest_of_lanes(float smallest) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int mask = 1; mask < Lanes; mask *= 2) {
      smallest = smaller_of(smallest, from_lane_xor(smallest, mask));
    }
    return smallest;
  }
  /// `sum` of all lanes of the vector.
  template <class T>
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION T over_lanes(T sum) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int mask = 1; mask < Lanes; mask *= 2) {
      sum += from_lane_xor(sum, mask);
    }
    return sum;
  }

  /// The rounds of `HadamardTransform::forward` of a rotation that fits registers but for the
  /// factor at the end and the sign that all coordinates have in common.
  /// @param signs    (rounds, size) of `ButterflySigns`, 16-byte aligned
  /// @param exchange of the lanes of the vector
  template <class Exchange>
  KOKKOS_FORCEINLINE_FUNCTION void rotate(const float* signs, int rounds, int part,
                                          const Exchange& exchange) {
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int round = 0; round < rounds; ++round) {
      const float* const table =
          signs + static_cast<std::size_t>(round) * ButterflySigns::size(Dim);
      within_runs(table + run * part);
      if constexpr (Lanes > 1) {
        exchange.gather(*this);
        stages<run, run * Lanes, 1>(table, part);
        exchange.deal(*this);
      }
      stages<run * Lanes, static_cast<int>(Dim), Lanes>(table, 0);
    }
  }

 private:
  /// The stages of widths 1, 2 and 4.
  /// @param table of the lane's first run
  KOKKOS_FORCEINLINE_FUNCTION void within_runs(const float* table) {
    struct alignas(16) Record {
      float one[4];
      float two[2];
      float four;
      float none;
    };
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int first = 0; first < size; first += run) {
      const Record u = *reinterpret_cast<const Record*>(table + first * Lanes);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < 4; ++i) {
        butterfly(first + 2 * i, 1, u.one[i]);
      }
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < 4; ++i) {
        butterfly(first + i / 2 * 4 + i % 2, 2, u.two[i / 2]);
      }
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < 4; ++i) {
        butterfly(first + i, 4, u.four);
      }
    }
  }

  /// The stages of widths `Width` to `End` / 2 between numbers `Width` / `Stride` apart.
  /// @param part of the vector that the lane has, of those that share no signs
  template <int Width, int End, int Stride>
  KOKKOS_FORCEINLINE_FUNCTION void stages(const float* table, int part) {
    if constexpr (Width < End) {
      constexpr int distance = Width / Stride;
      constexpr int blocks = size / 2 / distance;  // that share a sign
      constexpr int together = blocks < 4 ? blocks : 4;
      struct alignas(4 * together) Signs {
        float u[together];
      };
      const float* const of_part = table + ButterflySigns::stage(Dim, Width) + part * blocks;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int block = 0; block < blocks; block += together) {
        const Signs signs = *reinterpret_cast<const Signs*>(of_part + block);
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int i = 0; i < together * distance; ++i) {
          butterfly((block + i / distance) * 2 * distance + i % distance, distance,
                    signs.u[i / distance]);
        }
      }
      stages<2 * Width, End, Stride>(table, part);
    }
  }

  KOKKOS_FORCEINLINE_FUNCTION void butterfly(int at, int distance, float u) {
    const float a = x[at];
    const float b = x[at + distance];
    x[at] = a + u * b;  // the product is exact
    x[at + distance] = a - u * b;
  }
};

}  // namespace turboquant::detail
