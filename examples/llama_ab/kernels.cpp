// Compiled once for each instruction set; all but one rename Eigen's namespace (-DEigen=...), so
// that functions of two instruction sets never share a name.

#include "kernels.hpp"

#include <Eigen/Core>

#include <bit>
#include <cmath>
#include <cstdint>

namespace llama_ab::LLAMA_AB_KERNELS {

namespace {

using Columns = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::Array<float, Eigen::Dynamic, 1>;
using ConstRows = Eigen::Map<const Rows>;
using ConstVector = Eigen::Map<const Vector>;

void product(const float* x, std::int64_t rows, std::int64_t depth, const float* weights,
             std::int64_t columns, float* out, std::int64_t out_stride) {
  const ConstRows weight(weights, columns, depth);
  if (rows == 1) {
    Eigen::Map<Eigen::VectorXf>(out, columns).noalias() =
        weight * Eigen::Map<const Eigen::VectorXf>(x, depth);
    return;
  }
  Eigen::Map<Columns, 0, Eigen::OuterStride<>>(out, columns, rows, Eigen::OuterStride<>(out_stride))
      .noalias() = weight * ConstRows(x, rows, depth).transpose();
}

float as_float(std::uint16_t bfloat16) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bfloat16) << 16U);
}
float as_float(float number) {
  return number;
}

/// (count, dim) rows from row `first` on, `stride` numbers apart, as floats.
template <class Number>
void convert(const void* rows, std::int64_t first, std::int64_t stride, std::int64_t count, int dim,
             float* out) {
  const auto* const from = static_cast<const Number*>(rows) + first * stride;
  for (std::int64_t t = 0; t < count; ++t) {
    for (int d = 0; d < dim; ++d) {
      out[t * dim + d] = as_float(from[t * stride + d]);
    }
  }
}

template <class Number>
void attend(const ExactAttention& part) {
  const std::int64_t rows = part.count * part.group;
  float* const query_memory = part.scratch;
  float* const output_memory = query_memory + rows * part.key_dim;
  float* const logit_memory = output_memory + rows * part.value_dim;
  float* const maximum = logit_memory + rows * token_block;
  float* const sum = maximum + rows;
  float* const key_memory = sum + rows;
  float* const value_memory = key_memory + token_block * part.key_dim;

  const std::int64_t query_numbers = std::int64_t{part.group} * part.key_dim;
  for (std::int64_t i = 0; i < part.count; ++i) {
    for (std::int64_t d = 0; d < query_numbers; ++d) {
      query_memory[i * query_numbers + d] = part.queries[i * part.query_stride + d] * part.sm_scale;
    }
  }
  const ConstRows queries(query_memory, rows, part.key_dim);
  Eigen::Map<Columns> output(output_memory, part.value_dim, rows);
  output.setZero();
  for (std::int64_t row = 0; row < rows; ++row) {
    maximum[row] = -INFINITY;
    sum[row] = 0.0F;
  }
  const std::int64_t visible = part.position + part.count;
  for (std::int64_t first = 0; first < visible; first += token_block) {
    const std::int64_t count = first + token_block < visible ? token_block : visible - first;
    convert<Number>(part.keys, first, part.key_stride, count, part.key_dim, key_memory);
    convert<Number>(part.values, first, part.value_stride, count, part.value_dim, value_memory);
    const ConstRows keys(key_memory, count, part.key_dim);
    const ConstRows values(value_memory, count, part.value_dim);
    Eigen::Map<Columns> logits(logit_memory, count, rows);
    logits.noalias() = keys * queries.transpose();
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t end = part.position + row / part.group + 1 - first;
      const std::int64_t seen = end < count ? (end > 0 ? end : 0) : count;
      Eigen::Map<Vector> column(logit_memory + row * count, seen);
      for (std::int64_t t = seen; t < count; ++t) {
        logit_memory[row * count + t] = 0.0F;
      }
      if (seen == 0) {
        continue;
      }
      const float highest = column.maxCoeff();
      if (highest > maximum[row]) {
        const float factor = std::exp(maximum[row] - highest);
        maximum[row] = highest;
        sum[row] *= factor;
        output.col(row) *= factor;
      }
      column = (column - maximum[row]).exp();
      sum[row] += column.sum();
    }
    output.noalias() += values.transpose() * logits;
  }
  for (std::int64_t i = 0; i < part.count; ++i) {
    for (std::int64_t g = 0; g < part.group; ++g) {
      const std::int64_t row = i * part.group + g;
      for (std::int64_t d = 0; d < part.value_dim; ++d) {
        part.output[i * part.output_stride + g * part.value_dim + d] =
            output_memory[row * part.value_dim + d] / sum[row];
      }
    }
  }
}

void swiglu(float* gate, const float* up, std::int64_t count) {
  Eigen::Map<Vector> g(gate, count);
  g = g / (1.0F + (-g).exp()) * ConstVector(up, count);
}

void rms_norm(const float* x, const float* weights, float epsilon, std::int64_t count, float* out) {
  const ConstVector in(x, count);
  const float mean = in.square().sum() / static_cast<float>(count);
  Eigen::Map<Vector>(out, count) =
      in * (1.0F / std::sqrt(mean + epsilon)) * ConstVector(weights, count);
}

/// Log of the sum of exponentials; `at` is the index of the largest.
double log_sum(const ConstVector& logits, std::int64_t& at) {
  Eigen::Index index = 0;
  const float highest = logits.maxCoeff(&index);
  at = index;
  return static_cast<double>(highest) + std::log((logits - highest).exp().cast<double>().sum());
}

LogitDistance compare(const float* exact, const float* other, std::int64_t count) {
  const ConstVector a(exact, count);
  const ConstVector b(other, count);
  LogitDistance result;
  result.exact_log_sum = log_sum(a, result.exact_top);
  result.other_log_sum = log_sum(b, result.other_top);
  const auto shift = static_cast<float>(result.exact_log_sum);
  const double gap = ((a - shift).exp() * (a - b)).cast<double>().sum();
  result.divergence = gap - (result.exact_log_sum - result.other_log_sum);
  return result;
}

}  // namespace

const Kernels kernels{LLAMA_AB_KERNELS_NAME,
                      product,
                      attend<std::uint16_t>,
                      attend<float>,
                      swiglu,
                      rms_norm,
                      compare};

}  // namespace llama_ab::LLAMA_AB_KERNELS
