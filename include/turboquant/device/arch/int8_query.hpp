#pragma once

#include <turboquant/device/attention_operations.hpp>
#include <turboquant/math/integer_grid.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace turboquant::detail {

/// Queries as bytes for integer dot products with levels of an integer grid.
///
/// Rows are taken in blocks of 4, 2 or 1. A row is one limb of 8 bits or two (255 * high + low);
/// the limbs of a block are its *columns*: limb l of row r is column l * rows + r. A dword is one
/// column x 4 dimensions; the dwords of the columns of a block lie side by side. Levels are looked
/// up with an offset that makes them unsigned; `start` takes it back.
struct Int8Block {
  static constexpr int most_rows = 4;
  static constexpr int most_columns = 8;

  std::int32_t start[most_columns];  ///< -offset * sum of the column's bytes
  float scale[most_rows];  ///< logit per unit of the integer dot product, before the stored scale
  std::int32_t padding[4];
  // std::int32_t dwords[dim / 4][columns] follows.

  [[nodiscard]] const std::int32_t* dwords() const noexcept {
    return reinterpret_cast<const std::int32_t*>(this + 1);
  }
  [[nodiscard]] std::int32_t* dwords() noexcept {
    return reinterpret_cast<std::int32_t*>(this + 1);
  }
};
static_assert(sizeof(Int8Block) == 64);

/// What a unit of the high limb is worth.
inline constexpr float int8_limb_base = 255.0F;

/// How many rows the block that begins at `row` takes; a block of 3 has a fourth row of zeros.
[[nodiscard]] inline int block_rows(int rows, int row) noexcept {
  const int left = rows - row;
  return left >= 3 ? 4 : left;
}

[[nodiscard]] inline std::size_t int8_block_bytes(int dim) noexcept {
  return sizeof(Int8Block) +
         static_cast<std::size_t>(dim / 4 * Int8Block::most_columns) * sizeof(std::int32_t);
}

/// Bytes of all blocks of `rows` queries.
[[nodiscard]] inline std::size_t int8_query_bytes(int rows, int dim) noexcept {
  return static_cast<std::size_t>((rows + 3) / 4) * int8_block_bytes(dim);
}

/// The block that begins at row `row`, a multiple of 4.
[[nodiscard]] inline const Int8Block& int8_block(const std::byte* query, int row,
                                                 int dim) noexcept {
  return *reinterpret_cast<const Int8Block*>(query + static_cast<std::size_t>(row / 4) *
                                                         int8_block_bytes(dim));
}

/// Rounds queries to bytes.
/// @param queries (rows, dim)
/// @param factor  logit per unit of (query times integer level)
/// @param offset  what the look-up adds to a level
/// @param limbs   1 or 2
inline void prepare_int8(const float* queries, int rows, int dim, double factor, int offset,
                         int limbs, std::byte* out) noexcept {
  std::memset(out, 0, int8_query_bytes(rows, dim));
  for (int first = 0; first < rows; first += 4) {
    auto& block = *reinterpret_cast<Int8Block*>(out + static_cast<std::size_t>(first / 4) *
                                                          int8_block_bytes(dim));
    const int columns = limbs * block_rows(rows, first);
    auto* bytes = reinterpret_cast<std::int8_t*>(block.dwords());
    for (int r = 0; r < 4 && first + r < rows; ++r) {
      const float* query = queries + static_cast<std::ptrdiff_t>(first + r) * dim;
      float largest = 0;
      for (int d = 0; d < dim; ++d) {
        largest = std::fmax(largest, std::fabs(query[d]));
      }
      const float limit = limbs == 1 ? 127.0F : 127.0F * int8_limb_base + 127.0F;
      // The reciprocal must stay finite; a query this small has no effect on any logit.
      const float inverse = largest >= 1e-30F ? limit / largest : 0.0F;
      block.scale[r] =
          inverse > 0 ? static_cast<float>(factor / static_cast<double>(inverse)) : 0.0F;
      for (int d = 0; d < dim; ++d) {
        const float scaled = std::nearbyint(query[d] * inverse);
        const int value = scaled >= -limit && scaled <= limit ? static_cast<int>(scaled) : 0;
        // Rounded to the nearest, so that both limbs are in [-127, 127].
        const int high = limbs == 1 ? value : (value + 127 * 256) / 255 - 127;
        const int parts[2] = {high, value - 255 * high};
        for (int limb = 0; limb < limbs; ++limb) {
          const int column = limb * (columns / limbs) + r;
          bytes[(d / 4 * columns + column) * 4 + d % 4] = static_cast<std::int8_t>(parts[limb]);
          block.start[column] -= offset * parts[limb];
        }
      }
    }
  }
}

}  // namespace turboquant::detail
