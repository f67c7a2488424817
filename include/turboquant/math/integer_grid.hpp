#pragma once

#include <turboquant/math/codebook.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace turboquant {

/// A symmetric codebook for unit-variance coordinates whose centroids are small integers times one
/// step, so that int8, fp16, bf16 and float kernels compute with the same levels.
struct IntegerGrid {
  int bits = 0;
  /// Positive levels in ascending order, the first `2^(bits-1)` in use; the others are their
  /// negatives.
  std::array<std::int8_t, 8> positive_levels{};
  /// Standard deviations of a coordinate per level unit.
  double step = 0;

  /// Signed level of `code`; code 0 is the most negative level, as in `Codebook`.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION int level(unsigned code) const noexcept {
    const unsigned half = 1U << static_cast<unsigned>(bits - 1);
    return code >= half ? positive_levels[code - half] : -positive_levels[half - 1 - code];
  }
};

/// The library's integer grid: one per bit width, the same for every head dimension and backend.
///
/// Levels and steps minimise E[(z - Q(z))^2] for a standard normal z over small integers. The
/// excess over the Lloyd-Max optimum is 0.00005 % (2 bits), 0.039 % (3) and 0.055 % (4). Adjacent
/// 3-bit levels offset to unsigned stay below 128, so that a pairwise 16-bit product sum with an
/// int8 query cannot saturate.
/// @param bits 1 to 4
/// @throws Error(invalid_argument) for other widths.
[[nodiscard]] constexpr IntegerGrid integer_grid(int bits) {
  require(bits >= 1 && bits <= 4, ErrorCode::invalid_argument, "integer_grid: bits is ", bits,
          ", expected 1 to 4");
  switch (bits) {
    case 1: return {1, {1}, 0.79788456080286536};
    case 2: return {2, {3, 10}, 0.151035};
    case 3: return {3, {7, 22, 39, 62}, 0.0346365};
    default: return {4, {5, 15, 25, 36, 48, 62, 79, 104}, 0.0262171};
  }
}

/// The grid as a codebook for unit-variance coordinates.
[[nodiscard]] inline Codebook<double> grid_codebook(const IntegerGrid& grid) {
  std::vector<double> positive;
  for (std::size_t i = 0; i < (std::size_t{1} << static_cast<unsigned>(grid.bits - 1)); ++i) {
    positive.push_back(grid.positive_levels[i] * grid.step);
  }
  return Codebook<double>(std::span<const double>(positive));
}

}  // namespace turboquant
