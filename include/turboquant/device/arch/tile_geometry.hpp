#pragma once

#include <turboquant/device/attention_operations.hpp>
#include <turboquant/device/tile_words.hpp>
#include <turboquant/math/softmax_state.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// The running softmax of vector units: per row an output, padded to whole vectors, and sums that
/// stay spread over the lanes of one vector until `finish_lanes`.
struct LaneState {
  static constexpr std::size_t lanes = 16;

  std::size_t rows = 0;
  std::size_t padded_dim = 0;
  std::size_t groups = 0;  ///< value groups with a zero point; 0 for codebook values
  float* base = nullptr;

  LaneState(const TileTables& tables, int num_rows, std::byte* state) noexcept
      : rows(static_cast<std::size_t>(num_rows)),
        padded_dim((static_cast<std::size_t>(tables.format.value_dim) + lanes - 1) / lanes * lanes),
        groups(tables.format.value_codec == ValueCodec::grouped ? tables.format.value_groups() : 0),
        base(reinterpret_cast<float*>(state)) {}

  [[nodiscard]] std::size_t row_floats() const noexcept {
    return padded_dim + lanes * groups + lanes;
  }
  [[nodiscard]] std::size_t bytes() const noexcept {
    return (rows * (row_floats() + 1)) * sizeof(float);
  }
  [[nodiscard]] float* output(std::size_t row) const noexcept { return base + row * row_floats(); }
  /// (groups, lanes), sums of weight times zero point.
  [[nodiscard]] float* zeros(std::size_t row) const noexcept { return output(row) + padded_dim; }
  /// (lanes), sums of weights.
  [[nodiscard]] float* sums(std::size_t row) const noexcept { return zeros(row) + lanes * groups; }
  [[nodiscard]] float& maximum(std::size_t row) const noexcept {
    return base[rows * row_floats() + row];
  }
};

inline std::size_t lane_state_bytes(const TileTables& tables, int rows) noexcept {
  return LaneState(tables, rows, nullptr).bytes();
}

inline void reset_lanes(const TileTables& tables, int rows, std::byte* state) noexcept {
  const LaneState at(tables, rows, state);
  for (std::size_t i = 0; i < at.rows * at.row_floats(); ++i) {
    at.base[i] = 0.0F;
  }
  for (std::size_t row = 0; row < at.rows; ++row) {
    at.maximum(row) = negative_infinity;
  }
}

inline float lane_sum(const float* lanes) noexcept {
  float sum[LaneState::lanes];
  for (std::size_t i = 0; i < LaneState::lanes; ++i) {
    sum[i] = lanes[i];
  }
  for (std::size_t half = LaneState::lanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) {
      sum[i] += sum[i + half];
    }
  }
  return sum[0];
}

inline void finish_lanes(const TileTables& tables, const FinishArguments& out) noexcept {
  const LaneState at(tables, out.rows, const_cast<std::byte*>(out.state));
  const auto dim = static_cast<std::size_t>(tables.format.value_dim);
  const std::size_t group_size =
      at.groups == 0 ? dim : static_cast<std::size_t>(tables.format.value_group);
  for (std::size_t row = 0; row < at.rows; ++row) {
    for (std::size_t first = 0; first < dim; first += group_size) {
      const float zero =
          at.groups == 0 ? 0.0F : lane_sum(at.zeros(row) + first / group_size * LaneState::lanes);
      for (std::size_t d = first; d < first + group_size; ++d) {
        out.output[row * dim + d] = at.output(row)[d] + zero;
      }
    }
    out.sum[row] = lane_sum(at.sums(row));
    out.maximum[row] = at.maximum(row);
  }
}

/// Whether every vector of 16 dimensions lies inside one value group and keys are codes, as the
/// integer tile operations need.
[[nodiscard]] inline bool fits_integer_operations(const TileFormat& format) noexcept {
  return format.key_codec != KeyCodec::float8 &&
         (format.value_group % 16 == 0 || format.value_groups() == 1);
}

/// The largest power-of-two exponent k with bound * 2^k < 2^15; `bound` is positive.
[[nodiscard]] inline int weight_exponent(float bound) noexcept {
  const auto exponent = static_cast<int>(std::bit_cast<std::uint32_t>(bound) >> 23U) - 127;
  const int k = 14 - exponent;
  return k > 126 ? 126 : k;
}

[[nodiscard]] inline float exact_power_of_two(int exponent) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23U);
}

}  // namespace turboquant::detail
