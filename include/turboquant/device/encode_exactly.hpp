#pragma once

#include <turboquant/device/encode_registers.hpp>
#include <turboquant/device/key_mean.hpp>
#include <turboquant/device/tile_encoder.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

/// @file
/// The arithmetic of the host's encoders on one vector, by all lanes of a hardware vector: for the
/// few vectors that the short ways of `encode_registers.hpp` cannot decide. Same bits always.

namespace turboquant::detail {

/// A vector in the registers of all lanes of a hardware vector: numbers in a row in each.
/// @tparam Width lanes of the hardware vector
template <std::size_t Dim, int Width>
class ExactVector {
 public:
  /// Bytes of scratch memory: terms of sums, or codes, and 16 sums.
  static constexpr std::size_t bytes = (Dim + 16) * sizeof(double);

  /// @param memory `bytes`, 16-byte aligned
  explicit TURBOQUANT_FUNCTION ExactVector(unsigned char* memory)
      : memory_(memory), lane_(lane_index<Width>()) {}

  TURBOQUANT_FUNCTION void load(const RowView& rows, int head, std::size_t token) {
    const std::int64_t first = rows.offset(static_cast<std::int64_t>(token), head);
    for_all([&](int i) { x_[i] = rows.read(first + coordinate(i)); });
  }

  /// Subtracts a mean if the vector gains from it.
  /// @param mean (Dim)
  /// @return whether it does
  TURBOQUANT_FUNCTION bool subtract(const float* mean) {
    const auto number = [&](int i) { return static_cast<double>(mean[coordinate(i)]); };
    const double product =
        ordered_sum([&](int i) { return static_cast<double>(x_[i]) * number(i); });
    const double square = ordered_sum([&](int i) { return number(i) * number(i); });
    if (!gains_from_mean(product, square)) {
      return false;
    }
    for_all([&](int i) { x_[i] = minus_mean(x_[i], mean[coordinate(i)]); });
    return true;
  }

  /// Algorithm 1.
  /// @return the stored scale; the codes are there afterwards
  TURBOQUANT_FUNCTION float16 quantise(const HadamardTransform& rotation, float rotation_factor,
                                       const KernelCodebook& codebook, ScaleRule rule) {
    const int exponent = normalise();
    const auto number = [&](int i) { return static_cast<double>(x_[i]); };
    LevelSums sums;
    sums.squared = ordered_sum([&](int i) { return number(i) * number(i); });
    rotate(rotation, rotation_factor);
    std::uint32_t codes[size];
    find_codes(codebook, unit_variance_factor(sums.squared, Dim), codes);
    float levels[size];
    for_all([&](int i) { levels[i] = codebook.levels[codes[i]]; });
    const auto level = [&](int i) { return static_cast<double>(levels[i]); };
    if (needs_projection(rule)) {
      sums.projection = ordered_sum([&](int i) { return number(i) * level(i); });
    }
    if (needs_level_squares(rule)) {
      sums.level_squared = ordered_sum([&](int i) { return level(i) * level(i); });
    }
    sync_lanes();
    for_all([&](int i) { memory_[coordinate(i)] = static_cast<unsigned char>(codes[i]); });
    sync_lanes();
    return vector_scale(rule, Dim, sums, exponent);
  }

  /// A word of 8 codes of 4 bits each.
  [[nodiscard]] TURBOQUANT_FUNCTION std::uint32_t word(std::size_t number) const {
    std::uint32_t codes = 0;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (unsigned i = 0; i < 8; ++i) {
      codes |= static_cast<std::uint32_t>(memory_[8 * number + i]) << (4 * i);
    }
    return codes;
  }

 private:
  static constexpr int size = static_cast<int>(Dim) / Width;  ///< numbers of a lane

  [[nodiscard]] TURBOQUANT_FUNCTION int coordinate(int i) const { return size * lane_ + i; }

  /// Calls with the number of every number of the lane.
  template <class Body>
  static KOKKOS_FORCEINLINE_FUNCTION void for_all(const Body& body) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < size; ++i) {
      body(i);
    }
  }

  /// `ordered_dot` of what `term` gives.
  template <class Term>
  [[nodiscard]] TURBOQUANT_FUNCTION double ordered_sum(const Term& term) const {
    auto* const terms = reinterpret_cast<double*>(memory_);
    double* const sums_of_16 = terms + Dim;
    sync_lanes();
    for_all([&](int i) { terms[coordinate(i)] = term(i); });
    sync_lanes();
    for (int first = lane_; first < 16; first += Width) {
      double sum = 0;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < static_cast<int>(Dim); i += 16) {
        sum += terms[first + i];
      }
      sums_of_16[first] = sum;
    }
    sync_lanes();
    double sums[16];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < 16; ++i) {
      sums[i] = sums_of_16[i];
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int half = 8; half > 0; half /= 2) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < half; ++i) {
        sums[i] += sums[i + half];
      }
    }
    return sums[0];
  }

  /// `normalise` of the vector; the exponent.
  [[nodiscard]] TURBOQUANT_FUNCTION int normalise() {
    float largest = 0;
    for_all([&](int i) {
      const float magnitude = std::fabs(x_[i]);
      largest = magnitude > largest ? magnitude : largest;
    });
    largest = max_of_magnitudes<Width>(largest);
    const int exponent =
        largest == 0.0F ? 0 : binary_exponent(std::bit_cast<std::uint32_t>(largest));
    for_all([&](int i) {
      x_[i] = without_tiny(static_cast<float>(std::ldexp(exact_double(x_[i]), -exponent)));
    });
    return exponent;
  }

  TURBOQUANT_FUNCTION void rotate(const HadamardTransform& rotation, float factor) {
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (std::size_t round = 0; round < rotation.rounds; ++round) {
      const float* const sign = rotation.signs + round * Dim;
      for_all([&](int i) { x_[i] *= sign[coordinate(i)]; });
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int width = 1; width < size; width *= 2) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int i = 0; i < size / 2; ++i) {
          const int at = i + (i & ~(width - 1));
          const float a = x_[at];
          const float b = x_[at + width];
          x_[at] = a + b;
          x_[at + width] = a - b;
        }
      }
      TURBOQUANT_KEEP_LOOP_IN_KERNELS
      for (int mask = 1; mask < Width; mask *= 2) {
        const float own = (lane_ & mask) != 0 ? -1.0F : 1.0F;
        for_all([&](int i) {
          const float other = from_lane_xor(x_[i], mask);
          x_[i] = own * x_[i] + other;  // the product is exact
        });
      }
    }
    for_all([&](int i) { x_[i] *= factor; });
  }

  /// The codes of `search_cells`.
  TURBOQUANT_FUNCTION void find_codes(const KernelCodebook& codebook, float factor,
                                      std::uint32_t (&codes)[size]) const {
    const int half = 1 << static_cast<unsigned>(codebook.bits - 1);
    std::int32_t magnitude[size];
    std::int32_t negative[size];
    std::int32_t above[size] = {};
    for_all([&](int i) {
      const auto bits = std::bit_cast<std::int32_t>(x_[i] * factor + 0.0F);
      negative[i] = bits >> 31;
      magnitude[i] = (bits & 0x7FFFFFFF) + 1 + negative[i];
    });
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int j = half; j + 1 < 2 * half; ++j) {
      const auto boundary = std::bit_cast<std::int32_t>(codebook.boundaries[j]);
      for_all([&](int i) { above[i] += magnitude[i] > boundary ? 1 : 0; });
    }
    for_all([&](int i) { codes[i] = static_cast<std::uint32_t>((above[i] ^ negative[i]) + half); });
  }

  unsigned char* memory_;
  float x_[size];
  int lane_;
};

}  // namespace turboquant::detail
