// Blocked attention with an online softmax, in the fastest of the forms that Eigen offers: per
// block of tokens a matrix-vector product for each query head of the group or, from 8 heads on, one
// matrix product for all of them (which packs the keys first).
//
// Compiled twice. The second time the build renames Eigen's namespace (-DEigen=...), so that
// functions of the two instruction sets never share a name.

#include "eigen_attention.hpp"

#include <Eigen/Core>

#include <bit>
#include <cmath>
#include <cstdint>

namespace turboquant_bench::TURBOQUANT_BENCH_EIGEN {

namespace {

using Columns = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Tokens per block: logits, and converted rows of bfloat16, stay in the first- and second-level
/// caches.
constexpr std::int64_t block = 256;
constexpr int max_dim = 256;
constexpr int max_rows = 16;
/// Query heads from which one matrix product is faster than a matrix-vector product for each.
constexpr int product_rows = 8;

/// The block itself, or its numbers as floats.
const float* as_floats(const float* numbers, std::int64_t, float*) {
  return numbers;
}
const float* as_floats(const std::uint16_t* numbers, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(numbers[i]) << 16U);
  }
  return out;
}

template <class Number>
void attend(const EigenPart& part) {
  alignas(64) static thread_local float converted[block * max_dim];
  alignas(64) float logit_memory[block * max_rows];
  const Eigen::Map<const Rows> queries(part.queries, part.rows, part.dim);
  Eigen::Map<Columns> output(part.output, part.dim, part.rows);
  output.setZero();
  for (int row = 0; row < part.rows; ++row) {
    part.maximum[row] = -INFINITY;
    part.sum[row] = 0.0F;
  }
  for (std::int64_t first = 0; first < part.tokens; first += block) {
    const std::int64_t count = first + block < part.tokens ? block : part.tokens - first;
    const std::int64_t offset = first * part.dim;
    const Eigen::Map<const Rows> keys(
        as_floats(static_cast<const Number*>(part.keys) + offset, count * part.dim, converted),
        count, part.dim);
    Eigen::Map<Columns> logits(logit_memory, count, part.rows);
    // One product for the whole group; Eigen takes its matrix-vector kernel for a single query
    // head.
    logits.noalias() = keys * queries.transpose();
    for (int row = 0; row < part.rows; ++row) {
      auto column = logits.col(row);
      const float highest = column.maxCoeff();
      if (highest > part.maximum[row]) {
        const float factor = std::exp(part.maximum[row] - highest);
        part.maximum[row] = highest;
        part.sum[row] *= factor;
        output.col(row) *= factor;
      }
      column = (column.array() - part.maximum[row]).exp().matrix();
      part.sum[row] += column.sum();
    }
    const Eigen::Map<const Rows> values(
        as_floats(static_cast<const Number*>(part.values) + offset, count * part.dim, converted),
        count, part.dim);
    if (part.rows < product_rows) {
      for (int row = 0; row < part.rows; ++row) {
        output.col(row).noalias() += values.transpose() * logits.col(row);
      }
    } else {
      output.noalias() += values.transpose() * logits;
    }
  }
}

}  // namespace

void attend_f32(const EigenPart& part) {
  attend<float>(part);
}
void attend_bf16(const EigenPart& part) {
  attend<std::uint16_t>(part);
}

}  // namespace turboquant_bench::TURBOQUANT_BENCH_EIGEN
