#pragma once

#include <turboquant/device/arch/device_lanes.hpp>
#include <turboquant/device/key_mean.hpp>
#include <turboquant/device/tile_encoder.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

/// @file
/// Algorithm 1 on one vector that `Lanes` lanes hold in their registers: all loops have constant
/// bounds. Of every 4 Lanes coordinates a lane has 4 in a row, so that it reads 8 or 16 bytes at a
/// time and has whole partial sums of `ordered_dot`. The arithmetic is that of `quantise_lanes` in
/// the same order; where a shorter way is surely rounded to the same stored number, it is taken.
/// Same bits always, on devices that keep subnormal numbers.

namespace turboquant::detail {

struct alignas(16) FourFloats {
  float numbers[4];
};

/// Whether a rotation is the plain kind that `LaneVector` knows.
[[nodiscard]] inline bool fits_registers(const HadamardTransform& rotation) noexcept {
  return rotation.source == nullptr &&
         (rotation.dim == 64 || rotation.dim == 128 || rotation.dim == 256) &&
         reinterpret_cast<std::uintptr_t>(rotation.signs) % alignof(FourFloats) == 0;
}

/// One lane's share of a vector of `Dim` coordinates.
/// @tparam Lanes 1, 2 or 4
template <std::size_t Dim, int Lanes>
struct LaneVector {
  static constexpr int size = static_cast<int>(Dim) / Lanes;
  static constexpr int step = 4 * Lanes;  ///< coordinates between two runs of four
  static constexpr int partial_sums = 16 / Lanes;
  static_assert(size % 16 == 0 || (Lanes > 1 && size % 4 == 0));

  float x[size];

  /// Coordinate of number i.
  [[nodiscard]] static constexpr TURBOQUANT_FUNCTION int coordinate(int lane, int i) noexcept {
    return i / 4 * step + 4 * lane + i % 4;
  }

  /// `ordered_dot` of numbers that `product(i)` multiplies in double.
  template <class Product>
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION double ordered_sum(const Product& product) {
    double sums[partial_sums] = {};
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < size; ++i) {
      sums[i % partial_sums] += product(i);
    }
    // The tree: first what differs in bit 3 of the coordinate, then in bits 2, 1 and 0.
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int half = 8; half > 0; half /= 2) {
      if (half >= 4 && half < 4 * Lanes) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int i = 0; i < partial_sums && i < 4; ++i) {
          sums[i] += from_lane_xor(sums[i], half / 4);
        }
      } else {
        const int apart = half >= 4 ? half / Lanes : half;
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int i = 0; i < apart; ++i) {
          sums[i] += sums[i + apart];
        }
      }
    }
    return sums[0];
  }

  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION double squared() const {
    return ordered_sum(
        [&](int i) { return static_cast<double>(x[i]) * static_cast<double>(x[i]); });
  }

  /// Subtracts a mean from a vector that gains from it.
  /// @param mean (Dim), 16-byte aligned
  /// @return whether it does
  KOKKOS_FORCEINLINE_FUNCTION bool subtract(const float* mean, int lane) {
    const auto number = [&](int i) { return mean[coordinate(lane, i)]; };
    const double product = ordered_sum(
        [&](int i) { return static_cast<double>(x[i]) * static_cast<double>(number(i)); });
    const double square = ordered_sum(
        [&](int i) { return static_cast<double>(number(i)) * static_cast<double>(number(i)); });
    if (!gains_from_mean(product, square)) {
      return false;
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < size; ++i) {
      x[i] = minus_mean(x[i], number(i));
    }
    return true;
  }

  /// Brings the largest magnitude to [1, 2).
  /// @param may_be_tiny whether a number can be less than 2^-64 of the largest one
  /// @return the power of two that was divided by
  KOKKOS_FORCEINLINE_FUNCTION int normalise(bool may_be_tiny) {
    float largest = 0;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < size; ++i) {
      const float magnitude = x[i] < 0 ? -x[i] : x[i];
      largest = magnitude > largest ? magnitude : largest;
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int mask = 1; mask < Lanes; mask *= 2) {
      const float other = from_lane_xor(largest, mask);
      largest = other > largest ? other : largest;
    }
    const int exponent =
        largest == 0.0F ? 0 : binary_exponent(std::bit_cast<std::uint32_t>(largest));
    // One exact factor where it is a normal number; what becomes subnormal on the way is tiny.
    const int first = -exponent > 127 ? 127 : (-exponent < -126 ? -126 : -exponent);
    const float factor = power_of_two(first);
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < size; ++i) {
      x[i] *= factor;
    }
    if (any_lane(first != -exponent)) {
      const float second = power_of_two(-exponent - first);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < size; ++i) {
        x[i] *= second;
      }
    }
    if (may_be_tiny) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < size; ++i) {
        x[i] = without_tiny(x[i]);
      }
    }
    return exponent;
  }

  /// `HadamardTransform::forward` of a rotation that fits registers.
  /// @param signs  (rounds, Dim), 16-byte aligned
  /// @param factor `hadamard_factor` of dimension and rounds
  KOKKOS_FORCEINLINE_FUNCTION void rotate(const float* signs, std::size_t rounds, float factor,
                                          int lane) {
    for (std::size_t round = 0; round < rounds; ++round) {
      const auto* fours = reinterpret_cast<const FourFloats*>(signs + round * Dim);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < size; i += 4) {
        const FourFloats four = fours[coordinate(lane, i) / 4];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int e = 0; e < 4; ++e) {
          x[i + e] *= four.numbers[e];
        }
      }
      add_and_subtract<1>();
      add_and_subtract<2>();
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int mask = 1; mask < Lanes; mask *= 2) {
        const float sign = (lane & mask) != 0 ? -1.0F : 1.0F;
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int i = 0; i < size; ++i) {
          const float other = from_lane_xor(x[i], mask);
          x[i] = sign * x[i] + other;  // the product is exact
        }
      }
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int width = 4; width < size; width *= 2) {
        butterflies(width);
      }
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < size; ++i) {
      x[i] *= factor;
    }
  }

 private:
  KOKKOS_FORCEINLINE_FUNCTION void butterflies(int width) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < size / 2; ++i) {
      const int at = i / width * 2 * width + i % width;
      const float a = x[at];
      const float b = x[at + width];
      x[at] = a + b;
      x[at + width] = a - b;
    }
  }
  template <int Width>
  KOKKOS_FORCEINLINE_FUNCTION void add_and_subtract() {
    butterflies(Width);
  }
};

/// `unit_variance_factor` for a dimension that is a power of two.
///
/// One step of Newton's method in double is right to 2^-42; only numbers that close to the middle
/// of two floats are divided.
template <std::size_t Dim>
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float factor_of_squares(double squared) {
  const double mean = squared * (1.0 / static_cast<double>(Dim));
  const auto about = static_cast<float>(mean);
  if (about > 0x1p-60F && about < 0x1p60F) {
    const auto start = static_cast<double>(1.0F / std::sqrt(about));
    const double root = start * (1.5 - 0.5 * mean * start * start);
    const auto rest = static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(root)) & 0x1FFFFFFFU;
    constexpr std::uint32_t margin = 1U << 13U;
    if (rest - (0x10000000U - margin) > 2 * margin) {
      return static_cast<float>(root);
    }
  }
  return unit_variance_factor(squared, Dim);
}

/// Whether numbers within 2^-18 of `x` are all rounded to one half, and a normal one.
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION bool rounds_surely(float x) {
  constexpr std::uint32_t margin = 1U << 6U;
  const std::uint32_t rest = std::bit_cast<std::uint32_t>(x) & 0x1FFFU;
  return x > 0x1p-13F && x < 32768.0F && rest - (0x1000U - margin) > 2 * margin;
}

/// What a search for codes adds up.
enum class LevelSum {
  roughly,     ///< |vector| times levels in float, right to 2^-19
  projection,  ///< `ordered_dot` of vector and levels
  squares,     ///< `ordered_dot` of levels with themselves
};

/// `search_cells` for `Bits` bits and a sum over all lanes.
/// @param codes 4 codes of 4 bits each for every run of four coordinates
template <int Bits, LevelSum Sum, std::size_t Dim, int Lanes>
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION double search_lanes(
    const KernelCodebook& codebook, float factor, const LaneVector<Dim, Lanes>& vector,
    std::uint32_t (&codes)[Dim / 4 / Lanes]) {
  using Vector = LaneVector<Dim, Lanes>;
  constexpr int half = 1 << (Bits - 1);
  constexpr std::uint32_t mask = (1U << static_cast<unsigned>(Bits)) - 1U;
  std::int32_t boundary[half];
  std::uint32_t level[half];
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int j = 0; j < half; ++j) {
    level[j] = std::bit_cast<std::uint32_t>(codebook.levels[half + j]);
    if (Sum == LevelSum::roughly) {
      level[j] = (level[j] & ~mask) | static_cast<std::uint32_t>(j);
    }
    boundary[j] =
        j + 1 < half ? std::bit_cast<std::int32_t>(codebook.boundaries[half + j]) : 0x7FFFFFFF;
  }
  float rough[4] = {};
  // The level of number i; with `roughly` its number is in its last bits.
  const auto find = [&](int i, std::int32_t& negative) {
    const auto bits = std::bit_cast<std::int32_t>(vector.x[i] * factor + 0.0F);
    negative = bits >> 31;
    const std::int32_t magnitude = (bits & 0x7FFFFFFF) + 1 + negative;
    std::uint32_t picked = level[0];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j + 1 < half; ++j) {
      picked = magnitude > boundary[j] ? level[j + 1] : picked;
    }
    return picked;
  };
  if constexpr (Sum == LevelSum::roughly) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Vector::size; ++i) {
      std::int32_t negative = 0;
      const std::uint32_t picked = find(i, negative);
      const float magnitude = vector.x[i] < 0 ? -vector.x[i] : vector.x[i];
      rough[i % 4] += magnitude * std::bit_cast<float>(picked);
      const std::uint32_t code = (picked ^ static_cast<std::uint32_t>(negative)) & mask;
      codes[i / 4] =
          (i % 4 == 0 ? 0U : codes[i / 4]) | (code << static_cast<unsigned>(4 * (i % 4)));
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Vector::size / 4; ++i) {
      codes[i] ^= static_cast<std::uint32_t>(half) * 0x1111U;
    }
    float sum = (rough[0] + rough[1]) + (rough[2] + rough[3]);
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int lanes = 1; lanes < Lanes; lanes *= 2) {
      sum += from_lane_xor(sum, lanes);
    }
    return static_cast<double>(sum);
  } else {
    return Vector::ordered_sum([&](int i) {
      std::int32_t negative = 0;
      const auto positive = static_cast<double>(std::bit_cast<float>(find(i, negative)));
      const double signed_level = negative != 0 ? -positive : positive;
      return (Sum == LevelSum::squares ? signed_level : static_cast<double>(vector.x[i])) *
             signed_level;
    });
  }
}

/// Algorithm 1: codes of a vector, which is destroyed, and the stored scale. All lanes of the
/// hardware vector call together.
/// @param rotation        one that fits registers
/// @param rotation_factor its `hadamard_factor`
template <int Bits, std::size_t Dim, int Lanes>
KOKKOS_FORCEINLINE_FUNCTION float16 quantise_vector(const HadamardTransform& rotation,
                                                    float rotation_factor,
                                                    const KernelCodebook& codebook, ScaleRule rule,
                                                    bool may_be_tiny, int lane,
                                                    LaneVector<Dim, Lanes>& vector,
                                                    std::uint32_t (&codes)[Dim / 4 / Lanes]) {
  LevelSums sums;
  const int exponent = vector.normalise(may_be_tiny);
  sums.squared = vector.squared();
  vector.rotate(rotation.signs, rotation.rounds, rotation_factor, lane);
  const float factor = factor_of_squares<Dim>(sums.squared);
  const auto rough =
      static_cast<float>(search_lanes<Bits, LevelSum::roughly>(codebook, factor, vector, codes));
  const float about = static_cast<float>(sums.squared) / rough *
                      (exponent > -60 && exponent < 60 ? power_of_two(exponent) : 0.0F);
  float16 scale = float16::from_float(about);
  if (any_lane(rule != ScaleRule::unbiased || !rounds_surely(about))) {
    if (needs_projection(rule)) {
      sums.projection = search_lanes<Bits, LevelSum::projection>(codebook, factor, vector, codes);
    }
    if (needs_level_squares(rule)) {
      sums.level_squared = search_lanes<Bits, LevelSum::squares>(codebook, factor, vector, codes);
    }
    scale = vector_scale(rule, Dim, sums, exponent);
  }
  return scale;
}

}  // namespace turboquant::detail
