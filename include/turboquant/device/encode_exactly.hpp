#pragma once

#include <turboquant/device/encode_registers.hpp>
#include <turboquant/device/key_mean.hpp>
#include <turboquant/device/tile_encoder.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

/// @file
/// The arithmetic of the host's encoders on one vector in scratch memory, by all lanes of a
/// hardware vector: for the few vectors whose rounding the short ways of `encode_registers.hpp`
/// cannot decide. Same bits always.

namespace turboquant::detail {

/// A vector in scratch memory and the lanes that work on it.
/// @tparam Width lanes of the hardware vector
template <int Width>
class ExactVector {
 public:
  [[nodiscard]] static constexpr TURBOQUANT_FUNCTION std::size_t bytes(std::size_t dim) noexcept {
    return 16 * sizeof(double) + dim * sizeof(float);
  }

  /// @param memory `bytes(dim)`, 16-byte aligned
  TURBOQUANT_FUNCTION ExactVector(unsigned char* memory, std::size_t dim)
      : sums_(reinterpret_cast<double*>(memory)),
        x_(reinterpret_cast<float*>(memory + 16 * sizeof(double))),
        dim_(static_cast<int>(dim)),
        lane_(lane_index<Width>()) {}

  TURBOQUANT_FUNCTION void load(const RowView& rows, int head, std::size_t token) const {
    const std::int64_t first = rows.offset(static_cast<std::int64_t>(token), head);
    sync_lanes();
    for_all(dim_, [&](int i) { x_[i] = rows.read(first + i); });
    sync_lanes();
  }

  /// Subtracts a mean if the vector gains from it.
  /// @return whether it does
  TURBOQUANT_FUNCTION bool subtract(const float* mean) const {
    const double product = ordered_sum(
        [&](int i) { return static_cast<double>(x_[i]) * static_cast<double>(mean[i]); });
    const double square = ordered_sum(
        [&](int i) { return static_cast<double>(mean[i]) * static_cast<double>(mean[i]); });
    if (!gains_from_mean(product, square)) {
      return false;
    }
    for_all(dim_, [&](int i) { x_[i] = minus_mean(x_[i], mean[i]); });
    sync_lanes();
    return true;
  }

  /// Algorithm 1.
  /// @param put called with the number of a word and its 8 codes of 4 bits each
  /// @return the stored scale
  template <class Put>
  TURBOQUANT_FUNCTION float16 quantise(const HadamardTransform& rotation, float rotation_factor,
                                       const KernelCodebook& codebook, ScaleRule rule,
                                       const Put& put) const {
    const int exponent = normalise();
    const auto number = [&](int i) { return static_cast<double>(x_[i]); };
    LevelSums sums;
    sums.squared = ordered_sum([&](int i) { return number(i) * number(i); });
    rotate(rotation, rotation_factor);
    const float factor = unit_variance_factor(sums.squared, rotation.dim);
    const auto code_of = [&](int i) { return code(codebook, x_[i] * factor + 0.0F); };
    for_all(dim_ / 8, [&](int word) {
      std::uint32_t codes = 0;
      for (int i = 0; i < 8; ++i) {
        codes |= code_of(8 * word + i) << static_cast<unsigned>(4 * i);
      }
      put(word, codes);
    });
    const auto level = [&](int i) { return static_cast<double>(codebook.levels[code_of(i)]); };
    if (needs_projection(rule)) {
      sums.projection = ordered_sum([&](int i) { return number(i) * level(i); });
    }
    if (needs_level_squares(rule)) {
      sums.level_squared = ordered_sum([&](int i) { return level(i) * level(i); });
    }
    return vector_scale(rule, rotation.dim, sums, exponent);
  }

 private:
  template <class Body>
  TURBOQUANT_FUNCTION void for_all(int count, const Body& body) const {
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int i = lane_; i < count; i += Width) {
      body(i);
    }
  }

  /// `ordered_dot` of what `product` gives; the vector does not change meanwhile.
  template <class Product>
  [[nodiscard]] TURBOQUANT_FUNCTION double ordered_sum(const Product& product) const {
    sync_lanes();
    for_all(16, [&](int first) {
      double sum = 0;
      for (int i = first; i < dim_; i += 16) {
        sum += product(i);
      }
      sums_[first] = sum;
    });
    sync_lanes();
    double sums[16];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < 16; ++i) {
      sums[i] = sums_[i];
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
  [[nodiscard]] TURBOQUANT_FUNCTION int normalise() const {
    float largest = 0;
    for_all(dim_, [&](int i) {
      const float magnitude = std::fabs(x_[i]);
      largest = magnitude > largest ? magnitude : largest;
    });
    for (int mask = 1; mask < Width; mask *= 2) {
      const float other = from_lane_xor(largest, mask);
      largest = other > largest ? other : largest;
    }
    const int exponent =
        largest == 0.0F ? 0 : binary_exponent(std::bit_cast<std::uint32_t>(largest));
    for_all(dim_, [&](int i) {
      x_[i] = without_tiny(static_cast<float>(std::ldexp(exact_double(x_[i]), -exponent)));
    });
    sync_lanes();
    return exponent;
  }

  TURBOQUANT_FUNCTION void rotate(const HadamardTransform& rotation, float factor) const {
    for (std::size_t round = 0; round < rotation.rounds; ++round) {
      const float* const sign = rotation.signs + round * rotation.dim;
      for_all(dim_, [&](int i) { x_[i] *= sign[i]; });
      TURBOQUANT_KEEP_LOOP_IN_KERNELS
      for (int width = 1; width < dim_; width *= 2) {
        sync_lanes();
        for_all(dim_ / 2, [&](int i) {
          const int at = i + (i & ~(width - 1));
          const float a = x_[at];
          const float b = x_[at + width];
          x_[at] = a + b;
          x_[at + width] = a - b;
        });
      }
      sync_lanes();
    }
    for_all(dim_, [&](int i) { x_[i] *= factor; });
    sync_lanes();
  }

  /// The code of `search_cells`.
  [[nodiscard]] static TURBOQUANT_FUNCTION std::uint32_t code(const KernelCodebook& codebook,
                                                              float scaled) {
    const int half = 1 << static_cast<unsigned>(codebook.bits - 1);
    const auto bits = std::bit_cast<std::int32_t>(scaled);
    const std::int32_t negative = bits >> 31;
    const std::int32_t magnitude = (bits & 0x7FFFFFFF) + 1 + negative;
    int above = 0;
    for (int j = half; j + 1 < 2 * half; ++j) {
      above += magnitude > std::bit_cast<std::int32_t>(codebook.boundaries[j]) ? 1 : 0;
    }
    return static_cast<std::uint32_t>((above ^ negative) + half);
  }

  double* sums_;
  float* x_;
  int dim_;
  int lane_;
};

}  // namespace turboquant::detail
