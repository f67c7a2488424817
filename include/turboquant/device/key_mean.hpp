#pragma once

#include <turboquant/base/float16.hpp>
#include <turboquant/device/kokkos_compat.hpp>
#include <turboquant/device/memory_words.hpp>
#include <turboquant/device/row_view.hpp>
#include <turboquant/device/tile_format.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

/// @file
/// The key mean of a tile (`KeyCentring::tile_mean`).
///
/// It is a robust mean: token t of those it is made of belongs to group t % 8, and a number of the
/// mean is the median of the groups' means, the middle two averaged. Up to three groups with tokens
/// of any size leave it among the means of the others, so that a lone outlier does not move the
/// centre of its 63 neighbours; of normal keys its variance is 1.4 times that of the mean. Stored
/// as fp16, of which the largest magnitude, 65504, is kept: what the fp16 number lacks stays in the
/// key, because the stored number is what is subtracted. A bias of b leaves at most b / 4096.
///
/// All ways to compute it give the same bits: sums of floats in token order, each term times 1/8,
/// which is exact and keeps them finite.

namespace turboquant::detail {

/// Number of groups of tokens.
inline constexpr std::size_t key_mean_groups = 8;

/// The mean of a group, within the range of fp16.
/// @param sum   of the group's numbers times 1/8
/// @param count tokens of all groups
/// @return infinity for a group without tokens
[[nodiscard]] inline TURBOQUANT_FUNCTION float key_mean_of_group(float sum, std::size_t count,
                                                                 std::size_t group) noexcept {
  const std::size_t tokens = (count + key_mean_groups - 1 - group) / key_mean_groups;
  if (tokens == 0) {
    return std::numeric_limits<float>::infinity();
  }
  const float mean = sum / (0.125F * static_cast<float>(tokens));
  // The order makes a NaN finite.
  const float bounded = mean > -float16_max ? mean : -float16_max;
  return bounded < float16_max ? bounded : float16_max;
}

/// The median of the groups that have tokens, in every one of `Width` columns.
/// @param means (8, Width), infinite for groups without tokens; sorted afterwards
template <std::size_t Width>
TURBOQUANT_FUNCTION void key_mean_medians(std::size_t count, float (*means)[Width],
                                          float16* out) noexcept {
  constexpr std::uint8_t pairs[19][2] = {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 2}, {1, 3}, {4, 6},
                                         {5, 7}, {1, 2}, {5, 6}, {0, 4}, {1, 5}, {2, 6}, {3, 7},
                                         {2, 4}, {3, 5}, {1, 2}, {3, 4}, {5, 6}};
  TURBOQUANT_UNROLL_IN_KERNELS
  for (std::size_t pair = 0; pair < 19; ++pair) {
    float* const a = means[pairs[pair][0]];
    float* const b = means[pairs[pair][1]];
    for (std::size_t i = 0; i < Width; ++i) {
      const float x = a[i];
      const float y = b[i];
      a[i] = x < y ? x : y;
      b[i] = x < y ? y : x;
    }
  }
  const std::size_t groups = count < key_mean_groups ? count : key_mean_groups;
  for (std::size_t i = 0; i < Width; ++i) {
    float lower = 0.0F;
    float upper = 0.0F;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t group = 0; group < key_mean_groups; ++group) {
      lower = group == (groups - 1) / 2 && groups > 0 ? means[group][i] : lower;
      upper = group == groups / 2 && groups > 0 ? means[group][i] : upper;
    }
    const float16 half = float16::from_float(0.5F * lower + 0.5F * upper);
    out[i] = half.bits == 0x8000U ? float16{} : half;
  }
}

/// One number of the mean.
/// @param read called with a token; its key's number
template <class Read>
[[nodiscard]] TURBOQUANT_FUNCTION float16 key_mean_number(std::size_t count,
                                                          const Read& read) noexcept {
  float means[key_mean_groups][1];
  TURBOQUANT_UNROLL_IN_KERNELS
  for (std::size_t group = 0; group < key_mean_groups; ++group) {
    float sum = 0.0F;
    for (std::size_t token = group; token < count; token += key_mean_groups) {
      sum += 0.125F * read(token);
    }
    means[group][0] = key_mean_of_group(sum, count, group);
  }
  float16 number;
  key_mean_medians<1>(count, means, &number);
  return number;
}

/// The mean from sums over the groups.
/// @param sums (8, dim), terms times 1/8
/// @param out  (dim) fp16
inline TURBOQUANT_FUNCTION void key_mean_of_sums(std::size_t count, std::size_t dim,
                                                 const float* sums, unsigned char* out) noexcept {
  constexpr std::size_t width = 8;  // dimensions are multiples of it
  for (std::size_t first = 0; first < dim; first += width) {
    float means[key_mean_groups][width];
    for (std::size_t group = 0; group < key_mean_groups; ++group) {
      for (std::size_t i = 0; i < width; ++i) {
        means[group][i] = key_mean_of_group(sums[group * dim + first + i], count, group);
      }
    }
    float16 numbers[width];
    key_mean_medians<width>(count, means, numbers);
    for (std::size_t i = 0; i < width; ++i) {
      store_half(out + 2 * (first + i), numbers[i]);
    }
  }
}

/// The mean of rows [0, count) of a head, row after row.
/// @param row  (dim), working memory
/// @param sums (8 * dim), working memory
/// @param out  (dim) fp16
inline TURBOQUANT_FUNCTION void key_mean_of_rows(const RowView& rows, int head, std::size_t count,
                                                 std::size_t dim, float* row, float* sums,
                                                 unsigned char* out) noexcept {
  for (std::size_t i = 0; i < key_mean_groups * dim; ++i) {
    sums[i] = 0.0F;
  }
  for (std::size_t token = 0; token < count; ++token) {
    rows.read_row(static_cast<std::int64_t>(token), head, dim, row);
    float* const sum = sums + token % key_mean_groups * dim;
    for (std::size_t d = 0; d < dim; ++d) {
      sum[d] += 0.125F * row[d];
    }
  }
  key_mean_of_sums(count, dim, sums, out);
}

/// Subtracts a stored mean from vectors, element i of lane l at `[i * Lanes + l]`.
/// @param mean (dim) fp16
template <std::size_t Lanes>
TURBOQUANT_FUNCTION void subtract_key_mean(const unsigned char* mean, std::size_t dim,
                                           float* vectors) noexcept {
  for (std::size_t d = 0; d < dim; ++d) {
    const float number = load_half(mean + 2 * d);
    if (number != 0.0F) {  // a difference would lose subnormal keys where they are flushed
      for (std::size_t lane = 0; lane < Lanes; ++lane) {
        vectors[d * Lanes + lane] -= number;
      }
    }
  }
}

/// What the mean adds to the logits of a query with all tokens of a tile.
/// @param query (key_dim), not rotated, scaled like the logits
[[nodiscard]] inline TURBOQUANT_FUNCTION float key_mean_logit(const TileFormat& format,
                                                              const unsigned char* tile,
                                                              const float* query) noexcept {
  const unsigned char* const mean = tile + format.key_mean_offset();
  float lanes[8] = {};
  for (std::size_t d = 0; d < static_cast<std::size_t>(format.key_dim); d += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) {
      lanes[lane] += query[d + lane] * load_half(mean + 2 * (d + lane));
    }
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

}  // namespace turboquant::detail
