#pragma once

#include <turboquant/device/arch/device_lanes.hpp>
#include <turboquant/device/encode_lanes.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

/// @file
/// Algorithm 1 on one vector that `Lanes` lanes hold in their registers: all loops have constant
/// bounds. Rotation and search are those of `quantise_lanes` bit for bit. Sums decide a rounding
/// only, so they are taken roughly, and a vector that is too close to a rounding's edge is
/// reported: `encode_exactly.hpp` encodes it again. Same bits always, on devices that keep
/// subnormal numbers.

namespace turboquant::detail {

/// Whether a rotation is the plain kind that `LaneVector` knows.
[[nodiscard]] inline bool fits_registers(const HadamardTransform& rotation) noexcept {
  return rotation.source == nullptr &&
         (rotation.dim == 64 || rotation.dim == 128 || rotation.dim == 256);
}

/// The signs of a rotation as butterflies take them, (rounds, dim).
///
/// `s a + t b` and `s a - t b` are `s (a + u b)` and `s (a - u b)` with u = s t, so that both
/// numbers have the sign s before the next stage, where the same holds. A round of dim coordinates
/// has dim / 2 factors u for its first stage, dim / 4 for the next and so on; the last number is
/// the sign that all coordinates have in the end.
class ButterflySigns {
 public:
  /// Where the factors of the stage of that width begin.
  [[nodiscard]] static constexpr TURBOQUANT_FUNCTION std::size_t stage(std::size_t dim,
                                                                       std::size_t width) noexcept {
    return dim - dim / width;
  }

  /// Number `i` of a round.
  TURBOQUANT_FUNCTION ButterflySigns(std::size_t dim, std::size_t i) noexcept {
    const auto left = static_cast<std::uint32_t>(dim - i);  // numbers from here on
    const std::size_t half = std::size_t{1} << static_cast<unsigned>(std::bit_width(left - 1));
    width_ = left > 1 ? dim / half : 0;  // of the stage, which has half / 2 numbers
    first_ = 2 * width_ * (half - left);
  }
  /// @param signs (dim) of the round
  [[nodiscard]] TURBOQUANT_FUNCTION float product(const float* signs) const noexcept {
    return width_ == 0 ? signs[0] : signs[first_] * signs[first_ + width_];
  }

 private:
  std::size_t first_ = 0;
  std::size_t width_ = 0;
};

/// The halves on both sides of a number that is right to a relative error.
/// @param x     at least 0
/// @param error at most 2^-12
/// @return whether they are the same one, `half`
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION bool rounds_surely(float x, float error, float16& half) {
  const auto bounded = [](float y) { return y < float16_max ? y : float16_max; };
  half = float16::from_float(bounded(x - error * x));
  return half.bits == float16::from_float(bounded(x + error * x)).bits;
}

/// `unit_variance_factor` of a sum that is right to 2^-46, for a dimension that is a power of two.
///
/// One step of Newton's method in double is right to 2^-42.
/// @param squared 1 to 2^60
/// @return whether the factor's rounding is certain
template <std::size_t Dim>
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION bool factor_of_squares(double squared, float& factor) {
  const double mean = squared * (1.0 / static_cast<double>(Dim));
  const auto start = static_cast<double>(1.0F / std::sqrt(static_cast<float>(mean)));
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
  return has_normal_exponent(largest) ? binary_exponent(std::bit_cast<std::uint32_t>(largest)) : 0;
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
  /// @param signs (rounds, Dim) of `ButterflySigns`, 16-byte aligned
  KOKKOS_FORCEINLINE_FUNCTION void rotate(const float* signs, int rounds, int part) {
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int round = 0; round < rounds; ++round) {
      const float* const table = signs + static_cast<std::size_t>(round) * Dim;
      butterflies<1>(table, part);
      butterflies<2>(table, part);
      butterflies<4>(table, part);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int mask = 1; mask < Lanes; mask *= 2) {
        across_lanes(table, part, mask);
      }
      butterflies<8>(table, part);
      butterflies<16>(table, part);
      butterflies<32>(table, part);
      butterflies<64>(table, part);
      butterflies<128>(table, part);
    }
  }

 private:
  /// Stages between numbers of a lane; `Width` is their distance there.
  template <int Width>
  KOKKOS_FORCEINLINE_FUNCTION void butterflies(const float* table, int part) {
    if constexpr (Width < size) {
      constexpr int spread = Width < run ? 1 : Lanes;  // of coordinates
      constexpr std::size_t stage = ButterflySigns::stage(Dim, Width * spread);
      constexpr int pairs = size / 2 / Width;                      // blocks of two
      constexpr int together = Width < run ? run / 2 / Width : 1;  // whose signs are in a row
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int pair = 0; pair < pairs; pair += together) {
        float u[together];
        const int first = Width < run ? pair / together * together * Lanes + together * part : pair;
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int i = 0; i < together; ++i) {
          u[i] = table[stage + static_cast<std::size_t>(first + i)];
        }
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int i = 0; i < together * Width; ++i) {
          const int at = (pair + i / Width) * 2 * Width + i % Width;
          const float a = x[at];
          const float b = x[at + Width];
          x[at] = a + u[i / Width] * b;  // the product is exact
          x[at + Width] = a - u[i / Width] * b;
        }
      }
    }
  }

  /// The stage between coordinates that differ in a bit of the lane.
  KOKKOS_FORCEINLINE_FUNCTION void across_lanes(const float* table, int part, int mask) {
    const bool second = (part & mask) != 0;
    const float sign = second ? -1.0F : 1.0F;
    const float* const of_part =
        table +
        ButterflySigns::stage(Dim, static_cast<std::size_t>(run) * static_cast<std::size_t>(mask)) +
        part / (2 * mask);
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < size; i += run) {
      const float u = second ? of_part[i / run * (Lanes / 2 / mask)] : 1.0F;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int e = i; e < i + run; ++e) {
        const float own = x[e] * u;
        x[e] = from_lane_xor(own, mask) + sign * own;
      }
    }
  }
};

}  // namespace turboquant::detail
