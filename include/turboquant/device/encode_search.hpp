#pragma once

#include <turboquant/device/encode_rows.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

/// @file
/// Codes and scale of a rotated vector; see `encode_registers.hpp`. The search reads the vector
/// from its slot in scratch memory, so that a loop over 8 coordinates does: straight code for all
/// of them would not stay in the instruction cache.

namespace turboquant::detail {

/// Byte 0 of four numbers.
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION std::uint32_t low_bytes(std::uint32_t a, std::uint32_t b,
                                                                  std::uint32_t c,
                                                                  std::uint32_t d) {
  return pick_bytes<0x5410>(pick_bytes<0x0040>(a, b), pick_bytes<0x0040>(c, d));
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
          low_bytes(picked[first], picked[first + 2], picked[first + 4], picked[first + 6]);
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

/// Codes of a rotated vector, through the token's slot, whose room is free.
/// @param put called with the number of a word and its 8 codes
template <int Bits, std::size_t Dim, int Lanes, class Put>
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION SearchSums
search_vector(CellSearch<Bits> search, int part, const LaneVector<Dim, Lanes>& vector,
              unsigned char* slot, const Put& put) {
  using Vector = LaneVector<Dim, Lanes>;
  constexpr int room = TokenSlot<Dim, Lanes>::room / 4 / Lanes;  // numbers of a lane at a time
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int first = 0; first < Vector::size; first += room) {
    const auto fours = [&](int run) {
      return reinterpret_cast<FourFloats*>(slot) + 2 * (run * Lanes + part);
    };
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < room; i += 4) {
      const float* const x = vector.x + first + i;
      fours(i / 8)[i / 4 % 2] = {{x[0], x[1], x[2], x[3]}};
    }
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int run = 0; run < room / 8; run += 2) {
      float x[2][8];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < 16; i += 4) {
        const FourFloats four = fours(run + i / 8)[i / 4 % 2];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int e = 0; e < 4; ++e) {
          x[i / 8][i % 8 + e] = four.numbers[e];
        }
      }
      const int word = (first / 8 + run) * Lanes + part;
      const std::uint32_t codes = search.codes(x[0]);
      put(word, codes);
      put(word + Lanes, search.codes(x[1]));
    }
  }
  const SearchSums sums = search.sums();
  return {Vector::over_lanes(sums.projection), Vector::over_lanes(sums.squares)};
}

/// A vector before its rotation.
struct RoughNorm {
  float largest = 0;
  double squared = 0;  ///< right to 2^-46
};

/// Algorithm 1 of a vector in registers that were multiplied by `normalising_factor`. All lanes of
/// the hardware vector call together.
/// @param signs           (rounds, Dim) `ButterflySigns` of the rotation, 16-byte aligned
/// @param rotation_factor its `hadamard_factor`
/// @param slot            the token's; its room is free
/// @param scale           the stored scale
/// @return whether scale and codes are certain
template <std::size_t Dim, int Lanes, class Put>
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION bool quantise_vector(
    const float* signs, int rounds, float rotation_factor, const KernelCodebook& codebook,
    ScaleRule rule, int part, const RoughNorm& norm, LaneVector<Dim, Lanes>& vector,
    unsigned char* slot, const Put& put, float16& scale) {
  const bool zero = norm.largest == 0.0F;
  const int exponent = normal_exponent(norm.largest);
  const double squared = norm.squared * double_power_of_two(-2 * exponent);
  float factor = 0;
  bool certain = factor_of_squares<Dim>(zero ? 1.0 : squared, factor) &&
                 (zero || has_normal_exponent(norm.largest));
  factor = zero ? 0.0F : factor;
  vector.rotate(signs, rounds, part);
  float multiplier = rotation_factor * 0x1p62F;
  for (int round = 1; round <= rounds; ++round) {
    multiplier *= signs[static_cast<std::size_t>(round) * Dim - 1];
  }
  const auto search = [&]<int Bits>() {
    return search_vector(CellSearch<Bits>(codebook, multiplier, factor, needs_level_squares(rule)),
                         part, vector, slot, put);
  };
  sync_lanes();  // the slot's lanes have taken what was in it
  SearchSums sums;
  switch (codebook.bits) {
    case 2: sums = search.template operator()<2>(); break;
    case 3: sums = search.template operator()<3>(); break;
    default: sums = search.template operator()<4>();
  }
  const auto length = static_cast<float>(squared);
  float about = 0;
  switch (rule) {
    case ScaleRule::plain: about = 1.0F / factor; break;
    case ScaleRule::unit: about = std::sqrt(length / sums.squares); break;
    case ScaleRule::least_squares: about = sums.projection / (factor * sums.squares); break;
    case ScaleRule::unbiased: about = length * factor / sums.projection; break;
  }
  about *= power_of_two(exponent);
  about = zero ? 0.0F : (about > float16_min_subnormal ? about : float16_min_subnormal);
  const float error = needs_level_squares(rule) ? 0x3p-20F : 0x9p-22F;
  return rounds_surely(about, error, scale) && certain;
}

}  // namespace turboquant::detail
