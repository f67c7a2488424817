#pragma once

#include <turboquant/device/key_mean.hpp>
#include <turboquant/device/row_view.hpp>
#include <turboquant/device/tile_codec.hpp>
#include <turboquant/device/tile_store.hpp>
#include <turboquant/math/metadata.hpp>
#include <turboquant/math/normalised_vector.hpp>
#include <turboquant/math/value_group.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

/// @file
/// The steps of encoding `Lanes` tokens at a time with one token per lane: all loops over lanes are
/// independent, so a processor's vector unit takes the lanes, and a device thread takes one. Every
/// lane performs the arithmetic of `MseQuantizer`, `InnerProductQuantizer` and `ValueQuantizer` in
/// the same order: same bits always.

namespace turboquant::detail {

inline constexpr std::size_t max_tile_dim = 576;

/// Working memory of one encoder; element i of lane l is at `[i * Lanes + l]`.
/// @tparam Dim the largest dimension
template <std::size_t Lanes, std::size_t Dim = max_tile_dim>
struct EncoderScratch {
  alignas(64) float vector[Dim * Lanes];  ///< the rotated vector times 2^-exponent
  alignas(64) float levels[Dim * Lanes];  ///< the levels of its codes
  alignas(64) float spare[Dim * Lanes];
  alignas(64) std::uint8_t codes[Dim * Lanes];
  std::int32_t exponent[Lanes];
  double squared[Lanes];
  float16 scale[Lanes];
};

/// `ordered_dot` in every lane.
template <std::size_t Lanes>
TURBOQUANT_FUNCTION void ordered_dot_lanes(const float* a, const float* b, std::size_t count,
                                           double* out) noexcept {
  constexpr std::size_t width = 16;
  double sums[width * Lanes] = {};
  for (std::size_t i = 0; i < count; ++i) {
    double* __restrict sum = sums + i % width * Lanes;
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      sum[lane] +=
          static_cast<double>(a[i * Lanes + lane]) * static_cast<double>(b[i * Lanes + lane]);
    }
  }
  for (std::size_t half = width / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half * Lanes; ++i) {
      sums[i] += sums[i + half * Lanes];
    }
  }
  for (std::size_t lane = 0; lane < Lanes; ++lane) {
    out[lane] = sums[lane];
  }
}

/// `normalise` in every lane of `scratch.vector`.
template <std::size_t Lanes, std::size_t Dim>
TURBOQUANT_FUNCTION void normalise_lanes(std::size_t dim,
                                         EncoderScratch<Lanes, Dim>& scratch) noexcept {
  std::uint32_t largest[Lanes] = {};
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      const std::uint32_t magnitude =
          std::bit_cast<std::uint32_t>(scratch.vector[i * Lanes + lane]) & 0x7FFFFFFFU;
      largest[lane] = magnitude > largest[lane] ? magnitude : largest[lane];
    }
  }
  float first[Lanes];
  float second[Lanes];
  bool tiny = false;
  for (std::size_t lane = 0; lane < Lanes; ++lane) {
    const int exponent = largest[lane] == 0 ? 0 : binary_exponent(largest[lane]);
    const int half = -exponent / 2;
    scratch.exponent[lane] = exponent;
    first[lane] = power_of_two(half);
    second[lane] = power_of_two(-exponent - half);
    tiny = tiny || exponent < -60;
  }
  if (tiny) {
    for (std::size_t i = 0; i < dim * Lanes; ++i) {
      const double x = exact_double(scratch.vector[i]);
      scratch.vector[i] =
          without_tiny(static_cast<float>(std::ldexp(x, -scratch.exponent[i % Lanes])));
    }
  } else {
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t lane = 0; lane < Lanes; ++lane) {
        float& x = scratch.vector[i * Lanes + lane];
        x = without_tiny((x * first[lane]) * second[lane]);
      }
    }
  }
  ordered_dot_lanes<Lanes>(scratch.vector, scratch.vector, dim, scratch.squared);
}

/// Codes and levels of `vector * factor`.
///
/// Symmetric codebooks need only their positive half: the magnitude picks the level, the sign its
/// side. A boundary belongs to the cell above it, so negative numbers must exceed a boundary and
/// others may equal it.
template <std::size_t Lanes, std::size_t Dim>
TURBOQUANT_FUNCTION void search_cells(const KernelCodebook& codebook, const float* factor,
                                      std::size_t dim,
                                      EncoderScratch<Lanes, Dim>& scratch) noexcept {
  const int half = 1 << static_cast<unsigned>(codebook.bits - 1);
  std::int32_t boundary[7] = {};
  std::int32_t level[8] = {};
  for (int j = 0; j < half; ++j) {
    level[j] = std::bit_cast<std::int32_t>(codebook.levels[half + j]);
    if (j + 1 < half) {
      boundary[j] = std::bit_cast<std::int32_t>(codebook.boundaries[half + j]);
    }
  }
  for (std::size_t i = 0; i < dim; ++i) {
    std::int32_t magnitude[Lanes];
    std::int32_t negative[Lanes];  // -1 or 0
    std::int32_t picked[Lanes];
    std::int32_t above[Lanes] = {};
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      // The sum makes -0 positive. Finite magnitudes compare as their bits; one more where equality
      // counts.
      const float scaled = scratch.vector[i * Lanes + lane] * factor[lane] + 0.0F;
      const auto bits = std::bit_cast<std::int32_t>(scaled);
      negative[lane] = bits >> 31;
      magnitude[lane] = (bits & 0x7FFFFFFF) + 1 + negative[lane];
      picked[lane] = level[0];
    }
    for (int j = 0; j + 1 < half; ++j) {
      for (std::size_t lane = 0; lane < Lanes; ++lane) {
        const bool reached = magnitude[lane] > boundary[j];
        above[lane] += reached ? 1 : 0;
        picked[lane] = reached ? level[j + 1] : picked[lane];
      }
    }
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      const std::int32_t sign = negative[lane] & static_cast<std::int32_t>(0x80000000U);
      scratch.levels[i * Lanes + lane] = std::bit_cast<float>(picked[lane] | sign);
      scratch.codes[i * Lanes + lane] =
          static_cast<std::uint8_t>((above[lane] ^ negative[lane]) + half);
    }
  }
}

/// Sums over a normalised rotated vector y and its levels q.
struct LevelSums {
  double squared = 0;        ///< |y|^2
  double projection = 0;     ///< <y, q>
  double level_squared = 0;  ///< |q|^2
};

[[nodiscard]] constexpr TURBOQUANT_FUNCTION bool needs_projection(ScaleRule rule) noexcept {
  return rule == ScaleRule::least_squares || rule == ScaleRule::unbiased;
}
[[nodiscard]] constexpr TURBOQUANT_FUNCTION bool needs_level_squares(ScaleRule rule) noexcept {
  return rule == ScaleRule::least_squares || rule == ScaleRule::unit;
}

/// The scale of a vector that gives these sums.
[[nodiscard]] inline TURBOQUANT_FUNCTION double scale_of_sums(ScaleRule rule, std::size_t dim,
                                                              const LevelSums& sums) noexcept {
  switch (rule) {
    case ScaleRule::plain: return std::sqrt(sums.squared / static_cast<double>(dim));
    case ScaleRule::unit: return std::sqrt(sums.squared / sums.level_squared);
    case ScaleRule::least_squares: return sums.projection / sums.level_squared;
    case ScaleRule::unbiased: break;
  }
  return sums.squared > 0 ? sums.squared / sums.projection : 0.0;
}

/// What is stored of the scale of a vector that was multiplied by 2^-exponent.
[[nodiscard]] inline TURBOQUANT_FUNCTION float16 stored_vector_scale(double scale,
                                                                     int exponent) noexcept {
  return float16::from_float(stored_scale(std::ldexp(scale, exponent), MetadataType::float16));
}

/// The stored scale of a vector that was multiplied by 2^-exponent.
[[nodiscard]] inline TURBOQUANT_FUNCTION float16 vector_scale(ScaleRule rule, std::size_t dim,
                                                              const LevelSums& sums,
                                                              int exponent) noexcept {
  return stored_vector_scale(scale_of_sums(rule, dim, sums), exponent);
}

/// What brings the coordinates of a vector of `dim` to unit variance.
[[nodiscard]] inline TURBOQUANT_FUNCTION float unit_variance_factor(double squared,
                                                                    std::size_t dim) noexcept {
  const double root_mean_square = std::sqrt(squared / static_cast<double>(dim));
  return static_cast<float>(squared > 0 ? 1 / root_mean_square : 0.0);
}

/// What coordinates are multiplied by before the search.
template <std::size_t Lanes, std::size_t Dim>
TURBOQUANT_FUNCTION void code_factors(std::size_t dim, const EncoderScratch<Lanes, Dim>& scratch,
                                      float* factor) noexcept {
  for (std::size_t lane = 0; lane < Lanes; ++lane) {
    factor[lane] = unit_variance_factor(scratch.squared[lane], dim);
  }
}

/// Stored scales.
/// @param projection    (Lanes), for the rules that need them
/// @param level_squared (Lanes), for the rules that need them
template <std::size_t Lanes, std::size_t Dim>
TURBOQUANT_FUNCTION void code_scales(std::size_t dim, ScaleRule rule, const double* projection,
                                     const double* level_squared,
                                     EncoderScratch<Lanes, Dim>& scratch) noexcept {
  for (std::size_t lane = 0; lane < Lanes; ++lane) {
    scratch.scale[lane] =
        vector_scale(rule, dim, {scratch.squared[lane], projection[lane], level_squared[lane]},
                     scratch.exponent[lane]);
  }
}

/// Smallest and largest number of every lane.
template <std::size_t Lanes>
TURBOQUANT_FUNCTION void range_lanes(const float* x, std::size_t size, float* lowest,
                                     float* highest) noexcept {
  for (std::size_t lane = 0; lane < Lanes; ++lane) {
    lowest[lane] = x[lane];
    highest[lane] = x[lane];
  }
  for (std::size_t i = 1; i < size; ++i) {
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      const float value = x[i * Lanes + lane];
      lowest[lane] = value < lowest[lane] ? value : lowest[lane];
      highest[lane] = value > highest[lane] ? value : highest[lane];
    }
  }
}

/// `value_code` of one group in every lane.
///
/// A product with the reciprocal differs from the quotient by less than 2^-48, so only numbers that
/// close to a border between two codes are divided; the codes are those of `value_code`.
template <std::size_t Lanes>
TURBOQUANT_FUNCTION void group_codes(const float* x, std::size_t size, const double* zero,
                                     const double* divisor, int top, std::uint8_t* codes) noexcept {
  constexpr double margin = 0x1p-40;
  double inverse[Lanes];
  bool close[Lanes] = {};
  for (std::size_t lane = 0; lane < Lanes; ++lane) {
    inverse[lane] = 1 / divisor[lane];
  }
  const auto highest = static_cast<double>(top);
  for (std::size_t i = 0; i < size; ++i) {
    std::int32_t code[Lanes];
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      const double steps =
          (static_cast<double>(x[i * Lanes + lane]) - zero[lane]) * inverse[lane] + 0.5;
      const double positive = steps > 0 ? steps : 0;
      const double bounded = positive < highest ? positive : highest;
      code[lane] = static_cast<std::int32_t>(bounded);
      // Distance above the code's lower border: near 0 or near 1 means near a border. The border
      // below the largest code is one too.
      const double rest = bounded - static_cast<double>(code[lane]);
      close[lane] = close[lane] || (rest < margin && bounded > 0 && positive < highest + margin) ||
                    rest > 1 - margin;
    }
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      codes[i * Lanes + lane] = static_cast<std::uint8_t>(code[lane]);
    }
  }
  for (std::size_t lane = 0; lane < Lanes; ++lane) {
    if (close[lane]) {
      for (std::size_t i = 0; i < size; ++i) {
        const double distance = static_cast<double>(x[i * Lanes + lane]) - zero[lane];
        codes[i * Lanes + lane] =
            static_cast<std::uint8_t>(value_code(distance, divisor[lane], top));
      }
    }
  }
}

/// The steps of an encoder in plain C++. An instruction set may have its own, which give the same
/// bits.
/// @tparam Dim the largest dimension
template <std::size_t Lanes, std::size_t Dim = max_tile_dim>
struct PortableEncodeSteps {
  static constexpr std::size_t lanes = Lanes;
  using Scratch = EncoderScratch<Lanes, Dim>;

  /// Reads rows [first, first + count) of a head into lanes; the other lanes become 0.
  static TURBOQUANT_FUNCTION void load(const RowView& rows, int head, std::size_t first,
                                       std::size_t count, std::size_t dim,
                                       Scratch& scratch) noexcept {
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      if (lane < count) {
        rows.read_row(static_cast<std::int64_t>(first + lane), head, dim, scratch.vector + lane,
                      Lanes);
      } else {
        for (std::size_t d = 0; d < dim; ++d) {
          scratch.vector[d * Lanes + lane] = 0.0F;
        }
      }
    }
  }
  /// The mean of rows [0, count) of a head as fp16 numbers.
  static TURBOQUANT_FUNCTION void key_mean(const RowView& rows, int head, std::size_t count,
                                           std::size_t dim, Scratch& scratch,
                                           unsigned char* out) noexcept {
    if constexpr (Lanes >= mean_groups) {
      key_mean_of_rows(rows, head, count, dim, scratch.spare, scratch.levels, out);
    } else {
      static_cast<void>(scratch);
      for (std::size_t d = 0; d < dim; ++d) {
        const auto at = static_cast<std::int64_t>(d);
        store_half(out + 2 * d, key_mean_number(count, [&](std::size_t token) {
                     return rows.read(rows.offset(static_cast<std::int64_t>(token), head) + at);
                   }));
      }
    }
  }
  /// Subtracts a stored mean from the vectors that gain from it, or from all.
  /// @param mean (dim) fp16
  /// @param kept (Lanes), whether a vector stays as it is
  static TURBOQUANT_FUNCTION void subtract_mean(const unsigned char* mean, std::size_t dim,
                                                bool from_all, Scratch& scratch,
                                                bool* kept) noexcept {
    double product[Lanes];
    double square[Lanes];
    float* const numbers = scratch.spare;
    for (std::size_t d = 0; d < dim; ++d) {
      const float number = load_half(mean + 2 * d);
      for (std::size_t lane = 0; lane < Lanes; ++lane) {
        numbers[d * Lanes + lane] = number;
      }
    }
    ordered_dot_lanes<Lanes>(scratch.vector, numbers, dim, product);
    ordered_dot_lanes<Lanes>(numbers, numbers, dim, square);
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      kept[lane] = !from_all && !gains_from_mean(product[lane], square[lane]);
    }
    for (std::size_t d = 0; d < dim; ++d) {
      for (std::size_t lane = 0; lane < Lanes; ++lane) {
        float& x = scratch.vector[d * Lanes + lane];
        x = kept[lane] ? x : minus_mean(x, numbers[d * Lanes + lane]);
      }
    }
  }
  static TURBOQUANT_FUNCTION void normalise(std::size_t dim, Scratch& scratch) noexcept {
    normalise_lanes(dim, scratch);
  }
  static TURBOQUANT_FUNCTION void forward(const HadamardTransform& rotation,
                                          Scratch& scratch) noexcept {
    rotation.forward<Lanes>(scratch.vector, scratch.spare);
  }
  static TURBOQUANT_FUNCTION void factors(std::size_t dim, const Scratch& scratch,
                                          float* factor) noexcept {
    code_factors(dim, scratch, factor);
  }
  static TURBOQUANT_FUNCTION void search(const KernelCodebook& codebook, const float* factor,
                                         std::size_t dim, Scratch& scratch) noexcept {
    search_cells(codebook, factor, dim, scratch);
  }
  static TURBOQUANT_FUNCTION void dot(const float* a, const float* b, std::size_t count,
                                      double* out) noexcept {
    ordered_dot_lanes<Lanes>(a, b, count, out);
  }
  static TURBOQUANT_FUNCTION void scales(std::size_t dim, ScaleRule rule, const double* projection,
                                         const double* level_squared, Scratch& scratch) noexcept {
    code_scales(dim, rule, projection, level_squared, scratch);
  }
  template <class Words>
  static TURBOQUANT_FUNCTION void store_keys(const KeySection& section, const std::uint8_t* codes,
                                             LaneSlots slots, const Words& words,
                                             unsigned char* tile) noexcept {
    store_key_codes<Lanes>(section, codes, slots, words, tile);
  }
  /// Encodes min-max groups straight from their rows, where the instruction set has a way.
  static TURBOQUANT_FUNCTION bool grouped_rows(const TileFormat& /*format*/,
                                               const RowView& /*rows*/, int /*head*/,
                                               std::size_t /*first*/, LaneSlots /*slots*/,
                                               unsigned char* /*tile*/) noexcept {
    return false;
  }
  static TURBOQUANT_FUNCTION void range(const float* x, std::size_t size, float* lowest,
                                        float* highest) noexcept {
    range_lanes<Lanes>(x, size, lowest, highest);
  }
  static TURBOQUANT_FUNCTION void group_codes(const float* x, std::size_t size, const double* zero,
                                              const double* divisor, int top,
                                              std::uint8_t* codes) noexcept {
    detail::group_codes<Lanes>(x, size, zero, divisor, top, codes);
  }
};

}  // namespace turboquant::detail
