#pragma once

#include <turboquant/attention/decode_kernels.hpp>
#include <turboquant/device/arch/cuda_mma_results.hpp>

#include <cmath>
#include <cstdint>

namespace turboquant::detail {

/// Where the results of a decode step go.
struct AttentionOutputs {
  const float* sink_logits = nullptr;  ///< (query_heads) or null
  void* output = nullptr;              ///< (sequences, num_queries, query_heads, value_dim)
  RowType type = RowType::float32;
  float* lse = nullptr;  ///< (sequences, num_queries, query_heads)

  /// Normalises dimensions d and d + 1 of query row `item`, which is of query head `head`.
  KOKKOS_FORCEINLINE_FUNCTION void finish(std::int64_t item, int head, int dim, int d,
                                          cuda::PartSum total) const {
    const bool anything = total.sum > 0;
    if (sink_logits != nullptr) {
      const float sink = sink_logits[head] * static_cast<float>(log2_e);
      total.raise(sink);
      total.sum += cuda::exp2_of(sink - total.maximum);
    }
    const float inverse = anything ? 1.0F / total.sum : 0.0F;
    const std::int64_t at = item * dim + d;
    store(at, total.first * inverse, total.second * inverse);
    if (d == 0) {
      lse[item] = total.sum > 0 ? (total.maximum + std::log2(total.sum)) *
                                      static_cast<float>(natural_log_of_2)
                                : negative_infinity;
    }
  }

 private:
  /// @param at even
  KOKKOS_FORCEINLINE_FUNCTION void store(std::int64_t at, float x, float y) const {
    switch (type) {
      case RowType::float16:
        return put(static_cast<float16*>(output) + at, float16::from_float(x),
                   float16::from_float(y));
      case RowType::bfloat16:
        return put(static_cast<bfloat16*>(output) + at, bfloat16::from_float(x),
                   bfloat16::from_float(y));
      default: return put(static_cast<float*>(output) + at, x, y);
    }
  }
  template <class Number>
  KOKKOS_FORCEINLINE_FUNCTION static void put(Number* at, Number x, Number y) {
    at[0] = x;
    at[1] = y;
  }
};

/// Where the rows of one team go: to the workspace as one of several parts, or to the outputs.
struct RowSink {
  const DecodeWorkspace& workspace;
  const AttentionOutputs& outputs;
  int dim;
  int sequence;
  int head;
  int first_row;
  std::int64_t part_row;  ///< of the first row in the workspace
  int parts;              ///< parts of the walk that others merge with this one; 1: it is alone

  /// Normalises dimensions d and d + 1 of a row.
  KOKKOS_FORCEINLINE_FUNCTION void finish(int row, int d, const cuda::PartSum& total) const {
    const DecodeLayout& layout = workspace.layout;
    const int query = (first_row + row) / layout.ratio;
    const int query_head = head * layout.ratio + (first_row + row) % layout.ratio;
    const std::int64_t token = std::int64_t{sequence} * layout.num_queries + query;
    outputs.finish(token * (std::int64_t{layout.kv_heads} * layout.ratio) + query_head, query_head,
                   dim, d, total);
  }

  KOKKOS_FORCEINLINE_FUNCTION void operator()(int row, int d, const cuda::PartSum& total) const {
    const DecodeLayout& layout = workspace.layout;
    if (parts == 1) {
      finish(row, d, total);
      return;
    }
    float* out = workspace.floats(layout.outputs, (part_row + row) * dim + d);
    out[0] = total.first;
    out[1] = total.second;
    if (d == 0) {
      float maximum = negative_infinity;
      if (total.sum > 0) {
        maximum = total.maximum;
      }
      *workspace.floats(layout.maxima, part_row + row) = maximum;
      *workspace.floats(layout.sums, part_row + row) = total.sum;
    }
  }
};

}  // namespace turboquant::detail
