#pragma once

#include <turboquant/base/config.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace turboquant {

namespace detail {

/// `size^(-rounds/2)` in double, divided in turn so that every user rounds the same number.
[[nodiscard]] inline TURBOQUANT_FUNCTION double hadamard_factor(std::size_t size,
                                                                std::size_t rounds) noexcept {
  double factor = 1;
  for (std::size_t round = 0; round < rounds; ++round) {
    factor /= std::sqrt(static_cast<double>(size));
  }
  return factor;
}

/// Rounds of the transform of `size` coordinates.
[[nodiscard]] TURBOQUANT_FUNCTION constexpr std::size_t hadamard_rounds(std::size_t size) noexcept {
  if (size < 40) {
    return size > 4 ? 8 : 16;
  }
  const bool power_of_two = (size & (size - 1)) == 0;
  return power_of_two && size >= 256 ? 2 : 3;
}

/// The next block of a permuted round when `rest` coordinates are left: the highest binary digit of
/// `rest`.
///
/// A dimension that is a power of two is cut unevenly, 8 = 4 + 2 + 1 + 1: equal blocks with signs
/// and permutations mix slowly (8, 16) or never, because they generate a finite group (4).
[[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t hadamard_block(std::size_t dim,
                                                                       std::size_t rest) noexcept {
  const bool uneven = (dim & (dim - 1)) == 0 && rest > 1;
  const std::size_t limit = uneven ? rest - 1 : rest;
  std::size_t block = 1;
  while (block <= limit / 2) {
    block *= 2;
  }
  return block;
}

/// Walsh-Hadamard transform along the first axis of `x` (size, Lanes), `size` a power of two.
///
/// Every lane goes through the additions of `walsh_hadamard` in the same order, two stages a pass.
template <std::size_t Lanes>
TURBOQUANT_FUNCTION void walsh_hadamard_lanes(float* x, std::size_t size) noexcept {
  std::size_t width = 1;
  for (; width * 4 <= size; width *= 4) {
    for (std::size_t group = 0; group < size; group += 4 * width) {
      for (std::size_t i = group; i < group + width; ++i) {
        float* __restrict x0 = x + i * Lanes;
        float* __restrict x1 = x + (i + width) * Lanes;
        float* __restrict x2 = x + (i + 2 * width) * Lanes;
        float* __restrict x3 = x + (i + 3 * width) * Lanes;
        for (std::size_t lane = 0; lane < Lanes; ++lane) {
          const float a = x0[lane] + x1[lane];
          const float b = x0[lane] - x1[lane];
          const float c = x2[lane] + x3[lane];
          const float d = x2[lane] - x3[lane];
          x0[lane] = a + c;
          x1[lane] = b + d;
          x2[lane] = a - c;
          x3[lane] = b - d;
        }
      }
    }
  }
  for (; width < size; width *= 2) {
    for (std::size_t group = 0; group < size; group += 2 * width) {
      for (std::size_t i = group; i < group + width; ++i) {
        float* __restrict x0 = x + i * Lanes;
        float* __restrict x1 = x + (i + width) * Lanes;
        for (std::size_t lane = 0; lane < Lanes; ++lane) {
          const float a = x0[lane] + x1[lane];
          const float b = x0[lane] - x1[lane];
          x0[lane] = a;
          x1[lane] = b;
        }
      }
    }
  }
}

}  // namespace detail

/// The tables of a `HadamardRotation` where a kernel can read them, and the transform itself on
/// `Lanes` vectors at once: array element i of vector l is `x[i * Lanes + l]`.
///
/// Gives the bits of `HadamardRotation::apply` and `apply_inverse` in every lane. Trivially
/// copyable; does not own its tables.
struct HadamardTransform {
  std::size_t dim = 0;
  std::size_t rounds = 0;
  const float* signs = nullptr;  ///< (rounds, dim), +1 or -1
  const std::uint32_t* source =
      nullptr;  ///< (rounds, dim), permutations; null for powers of two from 64 on

  /// `x = R x`.
  /// @param x       (dim, Lanes)
  /// @param scratch (dim, Lanes)
  template <std::size_t Lanes>
  TURBOQUANT_FUNCTION void forward(float* x, float* scratch) const noexcept {
    for (std::size_t round = 0; round < rounds; ++round) {
      const float* sign = signs + round * dim;
      if (source == nullptr) {
        for (std::size_t i = 0; i < dim; ++i) {
          multiply<Lanes>(x + i * Lanes, sign[i], x + i * Lanes);
        }
        detail::walsh_hadamard_lanes<Lanes>(x, dim);
        continue;
      }
      for (std::size_t i = 0; i < dim * Lanes; ++i) {
        scratch[i] = x[i];
      }
      const std::uint32_t* from = source + round * dim;
      for (std::size_t i = 0; i < dim; ++i) {
        multiply<Lanes>(scratch + from[i] * Lanes, sign[i], x + i * Lanes);
      }
      transform_blocks<Lanes>(x);
    }
    if (source == nullptr) {
      scale<Lanes>(x, dim, rounds);
    }
  }

  /// `x = R^T x`.
  /// @param x       (dim, Lanes)
  /// @param scratch (dim, Lanes)
  template <std::size_t Lanes>
  TURBOQUANT_FUNCTION void inverse(float* x, float* scratch) const noexcept {
    for (std::size_t round = rounds; round-- > 0;) {
      const float* sign = signs + round * dim;
      if (source == nullptr) {
        detail::walsh_hadamard_lanes<Lanes>(x, dim);
        for (std::size_t i = 0; i < dim; ++i) {
          multiply<Lanes>(x + i * Lanes, sign[i], x + i * Lanes);
        }
        continue;
      }
      transform_blocks<Lanes>(x);
      const std::uint32_t* to = source + round * dim;
      for (std::size_t i = 0; i < dim; ++i) {
        multiply<Lanes>(x + i * Lanes, sign[i], scratch + to[i] * Lanes);
      }
      for (std::size_t i = 0; i < dim * Lanes; ++i) {
        x[i] = scratch[i];
      }
    }
    if (source == nullptr) {
      scale<Lanes>(x, dim, rounds);
    }
  }

 private:
  template <std::size_t Lanes>
  static TURBOQUANT_FUNCTION void multiply(const float* in, float factor, float* out) noexcept {
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      out[lane] = in[lane] * factor;
    }
  }

  template <std::size_t Lanes>
  static TURBOQUANT_FUNCTION void scale(float* x, std::size_t size,
                                        std::size_t num_rounds) noexcept {
    const auto factor = static_cast<float>(detail::hadamard_factor(size, num_rounds));
    for (std::size_t i = 0; i < size * Lanes; ++i) {
      x[i] *= factor;
    }
  }

  template <std::size_t Lanes>
  TURBOQUANT_FUNCTION void transform_blocks(float* x) const noexcept {
    for (std::size_t rest = dim; rest > 0;) {
      const std::size_t block = detail::hadamard_block(dim, rest);
      detail::walsh_hadamard_lanes<Lanes>(x, block);
      scale<Lanes>(x, block, 1);
      x += block * Lanes;
      rest -= block;
    }
  }
};

}  // namespace turboquant
