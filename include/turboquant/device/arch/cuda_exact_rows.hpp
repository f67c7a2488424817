#pragma once

#include <turboquant/device/arch/cuda_mma_walk.hpp>
#include <turboquant/device/row_view.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail::cuda {

/// Uncompressed tokens of one kv head and who sees them: token i is row (start + i) % capacity, at
/// position `position` + i.
struct ExactRun {
  RowView keys{};
  RowView values{};
  std::int64_t capacity = 0;
  std::int64_t start = 0;
  std::int64_t count = 0;
  std::int64_t position = 0;
  std::int64_t window = 0;  ///< 0: all
};

/// The running softmax of a warp over uncompressed tokens for up to 4 rows; a lane has every 32nd
/// dimension.
template <int Dim>
struct ExactState {
  static constexpr int each = Dim / 32;
  static constexpr float unseen = -1e30F;

  float query[4][each];
  float output[4][each];
  float reference[4];
  float sum[4];
  std::int64_t position[4];  ///< of each row's query

  /// Takes every `warps`-th token.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION void take(const Context& context, const ExactRun& run, int head,
                                        int rows) {
    for (std::int64_t i = context.warp; i < run.count; i += context.warps) {
      const std::int64_t row = (run.start + i) % run.capacity;
      const std::int64_t key_at = run.keys.offset(row, head) + context.lane;
      const std::int64_t value_at = run.values.offset(row, head) + context.lane;
      float key[each];
      float value[each];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < each; ++j) {
        key[j] = run.keys.read(key_at + 32 * j);
        value[j] = run.values.read(value_at + 32 * j);
      }
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < 4; ++r) {
        float part = 0;
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int j = 0; j < each; ++j) {
          part += query[r][j] * key[j];
        }
        const float logit = sum_over_lanes(part);
        const std::int64_t token = run.position + i;
        const bool seen = r < rows && token <= position[r] &&
                          (run.window == 0 || token > position[r] - run.window);
        if (seen) {
          const float next = logit > reference[r] ? logit : reference[r];
          const float factor = exp2_of(reference[r] - next);
          const float weight = exp2_of(logit - next);
          reference[r] = next;
          sum[r] = sum[r] * factor + weight;
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int j = 0; j < each; ++j) {
            output[r][j] = output[r][j] * factor + weight * value[j];
          }
        }
      }
    }
  }
};

/// Attention of up to 4 rows over two runs of uncompressed tokens: one call a team.
/// @param queries  first number of row r is number `query_at[r]`
/// @param position of the queries of rows 0 to 3
/// @param out      (rows, dim), not normalised; maximum and sum (rows)
template <int Dim, int Warps, class Context>
KOKKOS_FORCEINLINE_FUNCTION void attend_exact(
    const Context& context, const ExactRun& sinks, const ExactRun& window, int head,
    const RowView& queries, const std::int64_t (&query_at)[4], const std::int64_t (&position)[4],
    int rows, float logit_scale, float* out, float* maximum, float* sum) {
  ExactState<Dim> state;
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int r = 0; r < 4; ++r) {
    state.reference[r] = ExactState<Dim>::unseen;
    state.sum[r] = 0;
    state.position[r] = position[r];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < Dim / 32; ++j) {
      state.output[r][j] = 0;
      state.query[r][j] =
          r < rows ? queries.read(query_at[r] + context.lane + 32 * j) * logit_scale : 0.0F;
    }
  }
  state.take(context, sinks, head, rows);
  state.take(context, window, head, rows);
  auto& results = *reinterpret_cast<WarpResults<Dim, Warps>*>(context.scratch);
  if (context.lane == 0) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int r = 0; r < 4; ++r) {
      results.reference[context.warp][r] = state.reference[r];
    }
  }
  context.barrier();
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int r = 0; r < 4; ++r) {
    const float factor = warp_factor(results, context.warp, r);
    if (context.lane == 0) {
      results.sum[context.warp][r] = state.sum[r] * factor;
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < Dim / 32; ++j) {
      results.output[context.warp][r][context.lane + 32 * j] = state.output[r][j] * factor;
    }
  }
  context.barrier();
  add_warps(context, results, 0, rows, out, maximum, sum);
}

}  // namespace turboquant::detail::cuda
