#pragma once

#include <turboquant/base/float16.hpp>

#include <cstddef>
#include <limits>

/// @file
/// A robust mean of vectors, as fp16: vector t belongs to group t % 8, and a number of the result
/// is the median of the groups' means, the middle two averaged.
///
/// Up to three groups with vectors of any size leave it among the means of the others. Of normal
/// vectors its variance is 1.4 times that of the mean. Same bits for every way of adding up: sums
/// of floats in the order of the vectors, each term times 1/8, which is exact and keeps them
/// finite.

namespace turboquant {

/// Number of groups of `median_of_means`.
inline constexpr std::size_t mean_groups = 8;

namespace detail {

/// The mean of a group, within the range of fp16.
/// @param sum   of the group's numbers times 1/8
/// @param count vectors of all groups
/// @return infinity for a group without vectors
[[nodiscard]] inline TURBOQUANT_FUNCTION float mean_of_group(float sum, std::size_t count,
                                                             std::size_t group) noexcept {
  const std::size_t vectors = (count + mean_groups - 1 - group) / mean_groups;
  if (vectors == 0) {
    return std::numeric_limits<float>::infinity();
  }
  const float mean = sum / (0.125F * static_cast<float>(vectors));
  // The order makes a NaN finite.
  const float bounded = mean > -float16_max ? mean : -float16_max;
  return bounded < float16_max ? bounded : float16_max;
}

/// The median of the groups that have vectors, in every one of `Width` columns.
/// @param means (8, Width), infinite for groups without vectors; sorted afterwards
template <std::size_t Width>
TURBOQUANT_FUNCTION void median_of_groups(std::size_t count, float (*means)[Width],
                                          float16* out) noexcept {
  const auto sort = [means](std::size_t a, std::size_t b) {
    for (std::size_t i = 0; i < Width; ++i) {
      const float x = means[a][i];
      const float y = means[b][i];
      means[a][i] = x < y ? x : y;
      means[b][i] = x < y ? y : x;
    }
  };
  // Batcher's network; called with constants, so that a device keeps the numbers in registers.
  sort(0, 1), sort(2, 3), sort(4, 5), sort(6, 7);
  sort(0, 2), sort(1, 3), sort(4, 6), sort(5, 7);
  sort(1, 2), sort(5, 6);
  sort(0, 4), sort(1, 5), sort(2, 6), sort(3, 7);
  sort(2, 4), sort(3, 5);
  sort(1, 2), sort(3, 4), sort(5, 6);
  const std::size_t groups = count < mean_groups ? count : mean_groups;
  for (std::size_t i = 0; i < Width; ++i) {
    float lower = 0.0F;
    float upper = 0.0F;
    for (std::size_t group = 0; group < mean_groups; ++group) {
      lower = 2 * group + 1 == groups || 2 * group + 2 == groups ? means[group][i] : lower;
      upper = 2 * group == groups || 2 * group + 1 == groups ? means[group][i] : upper;
    }
    const float16 half = float16::from_float(0.5F * lower + 0.5F * upper);
    out[i] = groups == 0 || half.bits == 0x8000U ? float16{} : half;
  }
}

}  // namespace detail

/// The median of means from sums over the groups.
/// @param count vectors of all groups
/// @param sums  (8, dim), of the groups' numbers times 1/8
/// @param store called as `store(d, number)` for every dimension
/// O(dim). Same bits always.
template <class Store>
TURBOQUANT_FUNCTION void median_of_means(std::size_t count, std::size_t dim, const float* sums,
                                         const Store& store) noexcept {
  constexpr std::size_t width = 8;
  for (std::size_t done = 0; done < dim; done += width) {
    // The last columns once more where dim is no multiple of 8.
    const std::size_t columns = dim < width ? dim : width;
    const std::size_t first = dim - done < width ? dim - columns : done;
    float means[mean_groups][width] = {};
    for (std::size_t group = 0; group < mean_groups; ++group) {
      for (std::size_t i = 0; i < columns; ++i) {
        means[group][i] = detail::mean_of_group(sums[group * dim + first + i], count, group);
      }
    }
    float16 numbers[width];
    detail::median_of_groups<width>(count, means, numbers);
    for (std::size_t i = 0; i < columns; ++i) {
      store(first + i, numbers[i]);
    }
  }
}

/// Adds vector number `index` to the sums of `median_of_means`.
/// @param sums (8, dim), zeros before the first vector
inline TURBOQUANT_FUNCTION void add_to_group(std::size_t index, std::size_t dim,
                                             const float* vector, float* sums) noexcept {
  float* const sum = sums + index % mean_groups * dim;
  for (std::size_t d = 0; d < dim; ++d) {
    sum[d] += 0.125F * vector[d];
  }
}

}  // namespace turboquant
