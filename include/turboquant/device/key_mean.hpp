#pragma once

#include <turboquant/device/kokkos_compat.hpp>
#include <turboquant/device/memory_words.hpp>
#include <turboquant/device/row_view.hpp>
#include <turboquant/device/tile_format.hpp>
#include <turboquant/math/median_of_means.hpp>

#include <cstddef>
#include <cstdint>

/// @file
/// The key mean of a tile (`KeyCentring::tile_mean`): the `median_of_means` of the keys that begin
/// the tile, so that a lone outlier does not move the centre of its 63 neighbours.
///
/// As fp16 it has the range of key scales, and it may be coarse, because the stored number is what
/// is subtracted: of a bias of b at most b / 4096 stays in the keys. A key that the subtraction
/// would make longer, such as that of an attention sink, is stored as it is. All ways to compute
/// both give the same bits.

namespace turboquant::detail {

/// One number of the mean.
/// @param read called with a token; its key's number
template <class Read>
[[nodiscard]] TURBOQUANT_FUNCTION float16 key_mean_number(std::size_t count,
                                                          const Read& read) noexcept {
  float sums[mean_groups] = {};
  TURBOQUANT_KEEP_LOOP_IN_KERNELS
  for (std::size_t first = 0; first < count; first += mean_groups) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t group = 0; group < mean_groups; ++group) {
      if (first + group < count) {
        sums[group] += 0.125F * read(first + group);
      }
    }
  }
  float means[mean_groups][1];
  TURBOQUANT_UNROLL_IN_KERNELS
  for (std::size_t group = 0; group < mean_groups; ++group) {
    means[group][0] = mean_of_group(sums[group], count, group);
  }
  float16 number;
  median_of_groups<1>(count, means, &number);
  return number;
}

/// The mean from sums over the groups.
/// @param sums (8, dim), terms times 1/8
/// @param out  (dim) fp16
inline TURBOQUANT_FUNCTION void key_mean_of_sums(std::size_t count, std::size_t dim,
                                                 const float* sums, unsigned char* out) noexcept {
  median_of_means(count, dim, sums,
                  [out](std::size_t d, float16 number) { store_half(out + 2 * d, number); });
}

/// The mean of rows [0, count) of a head, row after row.
/// @param row  (dim), working memory
/// @param sums (8 * dim), working memory
/// @param out  (dim) fp16
inline TURBOQUANT_FUNCTION void key_mean_of_rows(const RowView& rows, int head, std::size_t count,
                                                 std::size_t dim, float* row, float* sums,
                                                 unsigned char* out) noexcept {
  for (std::size_t i = 0; i < mean_groups * dim; ++i) {
    sums[i] = 0.0F;
  }
  for (std::size_t token = 0; token < count; ++token) {
    rows.read_row(static_cast<std::int64_t>(token), head, dim, row);
    add_to_group(token, dim, row, sums);
  }
  key_mean_of_sums(count, dim, sums, out);
}

/// Whether a key minus the mean is no longer than the key: |x - m|^2 <= |x|^2.
/// @param product <x, m>
/// @param square  |m|^2
[[nodiscard]] constexpr TURBOQUANT_FUNCTION bool gains_from_mean(double product,
                                                                 double square) noexcept {
  return 2 * product >= square;
}

/// `x` minus a number of the mean; a difference would lose subnormal keys where they are flushed.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION float minus_mean(float x, float number) noexcept {
  return number != 0.0F ? x - number : x;
}

/// Whether the codes of a key are those of the key minus the mean.
/// @param tile of a format with means
[[nodiscard]] inline TURBOQUANT_FUNCTION bool is_centred(const TileFormat& format,
                                                         const unsigned char* tile,
                                                         std::size_t token) noexcept {
  return format.key_codec == KeyCodec::float8 ||
         (tile[format.key_scale_byte(token) + 1] & 0x80U) == 0;
}

/// Marks a key as stored without the mean.
inline TURBOQUANT_FUNCTION void mark_not_centred(const TileFormat& format, std::size_t token,
                                                 unsigned char* tile) noexcept {
  tile[format.key_scale_byte(token) + 1] |= 0x80U;
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
