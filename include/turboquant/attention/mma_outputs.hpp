#pragma once

#include <turboquant/attention/decode_kernels.hpp>
#include <turboquant/device/arch/cuda_mma_results.hpp>

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
    // NaN is something.
    const bool anything = total.sum != 0;
    if (sink_logits != nullptr) {
      const float sink = sink_logits[head] * static_cast<float>(log2_e);
      total.raise(sink);
      total.sum += cuda::exp2_of(sink - total.maximum);
    }
    const float inverse = anything ? cuda::reciprocal_of(total.sum) : 0.0F;
    const std::int64_t at = item * dim + d;
    store(at, total.first * inverse, total.second * inverse);
    if (d == 0) {
      lse[item] = total.sum != 0 ? (total.maximum + cuda::log2_of(total.sum)) *
                                       static_cast<float>(natural_log_of_2)
                                 : negative_infinity;
    }
  }

 private:
  /// @param at even
  KOKKOS_FORCEINLINE_FUNCTION void store(std::int64_t at, float x, float y) const {
    switch (type) {
      case RowType::float16: return store_halves(at, cuda::pack_halves(x, y));
      case RowType::bfloat16: return store_halves(at, cuda::pack_bfloats(x, y));
      default: static_cast<float*>(output)[at] = x; static_cast<float*>(output)[at + 1] = y;
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION void store_halves(std::int64_t at, cuda::Word pair) const {
    auto* const halves = static_cast<std::uint16_t*>(output) + at;
    halves[0] = static_cast<std::uint16_t>(pair);
    halves[1] = static_cast<std::uint16_t>(pair >> 16U);
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
    const auto query_row = static_cast<unsigned>(first_row + row);
    const auto ratio = static_cast<unsigned>(layout.ratio);
    const auto query = static_cast<int>(query_row / ratio);
    const int query_head = head * layout.ratio + static_cast<int>(query_row % ratio);
    const std::int64_t token = std::int64_t{sequence} * layout.num_queries + query;
    outputs.finish(token * (std::int64_t{layout.kv_heads} * layout.ratio) + query_head, query_head,
                   dim, d, total);
  }

  /// @param first of the row that this team has
  KOKKOS_FORCEINLINE_FUNCTION void operator()(int row, int d, const cuda::PartSum& total,
                                              bool first) const {
    const DecodeLayout& layout = workspace.layout;
    if (parts == 1) {
      finish(row, d, total);
      return;
    }
    float* out = workspace.floats(layout.outputs, (part_row + row) * dim + d);
    out[0] = total.first;
    out[1] = total.second;
    if (first) {
      float* totals = workspace.floats(layout.totals, 2 * (part_row + row));
      totals[0] = negative_infinity;
      if (total.sum != 0) {
        totals[0] = total.maximum;
      }
      totals[1] = total.sum;
    }
  }
};

}  // namespace turboquant::detail
