#pragma once

#include <turboquant/device/arch/device_floats.hpp>
#include <turboquant/device/encode_rows.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

/// @file
/// Codes and scale of a rotated vector; see `encode_registers.hpp`.

namespace turboquant::detail {

/// Byte `Byte` of four numbers.
template <std::uint32_t Byte>
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION std::uint32_t bytes_of(std::uint32_t a, std::uint32_t b,
                                                                 std::uint32_t c, std::uint32_t d) {
  constexpr std::uint32_t both = Byte | (4 + Byte) << 4U;
  return pick_bytes<0x5410>(pick_bytes<both>(a, b), pick_bytes<both>(c, d));
}
/// A byte of ones for every negative number of four.
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION std::uint32_t sign_bytes(float a, float b, float c,
                                                                   float d) {
  return pick_bytes<0x5410>(sign_bytes(a, b), sign_bytes(c, d));
}

/// What a search adds up, over the coordinates y of the rotated vector and their levels q.
struct SearchSums {
  float projection = 0;  ///< <|y|, |q|> times the factor, right to 32 2^-24
  float squares = 0;     ///< |q|^2, right to 16 2^-24, where asked for
};

/// `search_cells` for `Bits` bits.
template <int Bits>
class CellSearch {
 public:
  static constexpr int half = 1 << (Bits - 1);
  static constexpr auto mask = static_cast<std::uint32_t>(half - 1);

  /// @param multiplier what the rotation left to multiply by
  /// @param squares    whether to add up the squares of levels
  KOKKOS_FORCEINLINE_FUNCTION CellSearch(const KernelCodebook& codebook, float multiplier,
                                         float factor, bool squares)
      : multiplier_(multiplier), factor_(factor), with_squares_(squares) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < half; ++j) {
      // The nearest float that has the number of the level in its last bits.
      const auto number = static_cast<std::uint32_t>(j);
      const auto bits = std::bit_cast<std::uint32_t>(codebook.levels[half + j]);
      level_[j] = ((bits - number + half / 2) & ~mask) | number;
      boundary_[j] = j + 1 < half ? codebook.boundaries[half + j] : 0;
    }
  }

  /// Eight codes of 4 bits each.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION std::uint32_t codes(const float (&x)[8]) {
    float scaled[8];
    std::uint32_t picked[8];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < 8; ++i) {
      const float rotated = x[i] * multiplier_;
      // The sum makes -0 positive. A boundary belongs to the cell above it: where a negative number
      // equals one, its magnitude has to be less.
      const auto bits = std::bit_cast<std::int32_t>(rotated * factor_ + 0.0F);
      scaled[i] = std::bit_cast<float>(bits + (bits >> 31));
      const float magnitude = std::fabs(scaled[i]);
      picked[i] = level_[0];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j + 1 < half; ++j) {
        picked[i] = magnitude >= boundary_[j] ? level_[j + 1] : picked[i];
      }
      projection_[i] += magnitude * std::bit_cast<float>(picked[i]);
    }
    if (with_squares_) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < 8; ++i) {
        squares_[i % 2] += std::bit_cast<float>(picked[i]) * std::bit_cast<float>(picked[i]);
      }
    }
    const auto codes_of = [&](int first) {
      const std::uint32_t numbers =
          bytes_of<0>(picked[first], picked[first + 2], picked[first + 4], picked[first + 6]);
      const std::uint32_t signs =
          sign_bytes(scaled[first], scaled[first + 2], scaled[first + 4], scaled[first + 6]);
      return (numbers & (mask * 0x01010101U)) ^ (signs & ((2 * mask + 1) * 0x01010101U));
    };
    // The upper half of the codes belongs to positive numbers.
    return (codes_of(0) + (codes_of(1) << 4U)) ^ ((mask + 1) * 0x11111111U);
  }

  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION SearchSums sums() const {
    return {((projection_[0] + projection_[1]) + (projection_[2] + projection_[3])) +
                ((projection_[4] + projection_[5]) + (projection_[6] + projection_[7])),
            squares_[0] + squares_[1]};
  }

 private:
  float multiplier_;
  float factor_;
  bool with_squares_;
  float boundary_[half];
  std::uint32_t level_[half];
  float projection_[8] = {};
  float squares_[2] = {};
};

/// Codes of a rotated vector, 8 in a word.
template <int Bits, std::size_t Dim, int Lanes>
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION SearchSums
search_vector(CellSearch<Bits> search, const LaneVector<Dim, Lanes>& vector,
              std::uint32_t (&words)[LaneVector<Dim, Lanes>::words]) {
  using Vector = LaneVector<Dim, Lanes>;
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int word = 0; word < Vector::words; ++word) {
    float x[8];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int e = 0; e < 8; ++e) {
      x[e] = vector.x[8 * word + e];
    }
    words[word] = search.codes(x);
  }
  const SearchSums sums = search.sums();
  return {Vector::over_lanes(sums.projection), Vector::over_lanes(sums.squares)};
}

/// The sums of a rotated vector and its codes, right to 2^-44.
template <std::size_t Dim, int Lanes>
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION LevelSums
sums_of_codes(const KernelCodebook& codebook, float multiplier, double squared,
              const LaneVector<Dim, Lanes>& vector,
              const std::uint32_t (&words)[LaneVector<Dim, Lanes>::words]) {
  using Vector = LaneVector<Dim, Lanes>;
  double projection = 0;
  double level_squared = 0;
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int i = 0; i < Vector::size; ++i) {
    const std::uint32_t code = (words[i / 8] >> static_cast<unsigned>(4 * (i % 8))) & 15U;
    const auto level = static_cast<double>(codebook.levels[code]);
    projection += static_cast<double>(vector.x[i] * multiplier) * level;
    level_squared += level * level;
  }
  return {squared, Vector::over_lanes(projection), Vector::over_lanes(level_squared)};
}

/// A vector before its rotation.
struct RoughNorm {
  float largest = 0;
  double squared = 0;  ///< right to 2^-46
};

/// Algorithm 1 of a vector in registers that were multiplied by `normalising_factor`. All lanes of
/// the hardware vector call together.
/// @param signs           (rounds, size) `ButterflySigns` of the rotation, 16-byte aligned
/// @param rotation_factor its `hadamard_factor`
/// @param words           8 codes of the lane each
/// @param scale           the stored scale
/// @return whether scale and codes are certain
template <std::size_t Dim, int Lanes>
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION bool quantise_vector(
    const float* signs, int rounds, float rotation_factor, const KernelCodebook& codebook,
    ScaleRule rule, int part, const RoughNorm& norm, const LaneExchange<Dim, Lanes>& exchange,
    LaneVector<Dim, Lanes>& vector, std::uint32_t (&words)[LaneVector<Dim, Lanes>::words],
    float16& scale) {
  const bool zero = norm.largest == 0.0F;
  const int exponent = normal_exponent(norm.largest);
  const double squared = norm.squared * double_power_of_two(-2 * exponent);
  float factor = 0;
  bool certain = factor_of_squares<Dim>(zero ? 1.0 : squared, factor) &&
                 (zero || has_normal_exponent(norm.largest));
  factor = zero ? 0.0F : factor;
  vector.rotate(signs, rounds, part, exchange);
  const float multiplier = rotation_factor * 0x1p62F *
                           signs[static_cast<std::size_t>(rounds) * ButterflySigns::size(Dim) - 1];
  const auto search = [&]<int Bits>() {
    return search_vector(CellSearch<Bits>(codebook, multiplier, factor, needs_level_squares(rule)),
                         vector, words);
  };
  SearchSums sums;
  switch (codebook.bits) {
    case 2: sums = search.template operator()<2>(); break;
    case 3: sums = search.template operator()<3>(); break;
    default: sums = search.template operator()<4>();
  }
  const auto length = static_cast<float>(squared);
  float about = 0;
  switch (rule) {
    case ScaleRule::plain: about = reciprocal_of_float(factor); break;
    case ScaleRule::unit: about = length * reciprocal_root_of_float(length * sums.squares); break;
    case ScaleRule::least_squares:
      about = sums.projection * reciprocal_of_float(factor * sums.squares);
      break;
    case ScaleRule::unbiased: about = length * factor * reciprocal_of_float(sums.projection); break;
  }
  about *= power_of_two(exponent);
  about = zero ? 0.0F : (about > float16_min_subnormal ? about : float16_min_subnormal);
  const float error = needs_level_squares(rule) ? 0x3p-20F : 0x9p-22F;
  const bool sure = rounds_surely(about, error, scale);
  if (any_lane(!sure)) {
    constexpr double doubt = 0x1p-40;
    const double exact =
        scale_of_sums(rule, Dim, sums_of_codes(codebook, multiplier, squared, vector, words));
    const float16 lower = stored_vector_scale(exact - doubt * exact, exponent);
    const float16 upper = stored_vector_scale(exact + doubt * exact, exponent);
    scale = sure ? scale : lower;
    certain = certain && (sure || lower.bits == upper.bits);
  }
  return certain;
}

}  // namespace turboquant::detail
