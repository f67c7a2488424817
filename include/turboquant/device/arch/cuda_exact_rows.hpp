#pragma once

#include <turboquant/device/arch/cuda_mma_state.hpp>
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
  std::int64_t start = 0;  ///< below capacity
  std::int64_t count = 0;  ///< at most capacity
  std::int64_t position = 0;
  std::int64_t window = 0;  ///< 0: all
};

/// The running softmax of a warp over uncompressed tokens for two rows; a lane has every 32nd
/// dimension.
template <int Dim>
struct ExactState {
  static constexpr int rows = 2;
  static constexpr int each = Dim / 32;
  /// Tokens that are on their way at a time: as many as registers hold beside the state of a warp.
  static constexpr int flight = Dim > 128 ? 2 : 4;

  float query[rows][each];
  float output[rows][each];
  float reference[rows];
  float sum[rows];
  std::int64_t position[rows];  ///< of each row's query

  /// Takes tokens first, first + stride and so on.
  KOKKOS_FORCEINLINE_FUNCTION void take(const ExactRun& run, std::int64_t first,
                                        std::int64_t stride, int head, int lane) {
    for (std::int64_t begin = first; begin < run.count; begin += flight * stride) {
      float key[flight][each];
      float value[flight][each];
      load(run, run.keys, begin, stride, head, lane, key);
      load(run, run.values, begin, stride, head, lane, value);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int k = 0; k < flight; ++k) {
        const std::int64_t i = begin + k * stride;
        if (i < run.count) {
          add(key[k], value[k], run.position + i, run.window);
        }
      }
    }
  }

 private:
  /// Loads up to `flight` tokens; those beyond the last one are the first again.
  KOKKOS_FORCEINLINE_FUNCTION static void load(const ExactRun& run, const RowView& view,
                                               std::int64_t begin, std::int64_t stride, int head,
                                               int lane, float (&out)[flight][each]) {
    std::int64_t at[flight];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int k = 0; k < flight; ++k) {
      const std::int64_t i = begin + k * stride;
      std::int64_t row = run.start + (i < run.count ? i : begin);
      row -= row >= run.capacity ? run.capacity : 0;
      at[k] = view.offset(row, head) + lane;
    }
    // One branch for all, so that the loads are under way together.
    switch (view.type) {
      case RowType::float16:
        return convert<float16>(view, at, out, [](float16 x) { return x.to_float(); });
      case RowType::bfloat16:
        return convert<bfloat16>(view, at, out, [](bfloat16 x) { return x.to_float(); });
      default: return convert<float>(view, at, out, [](float x) { return x; });
    }
  }
  template <class Number, class ToFloat>
  KOKKOS_FORCEINLINE_FUNCTION static void convert(const RowView& view,
                                                  const std::int64_t (&at)[flight],
                                                  float (&out)[flight][each],
                                                  const ToFloat& to_float) {
    const auto* numbers = static_cast<const Number*>(view.data);
    Number loaded[flight][each];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int k = 0; k < flight; ++k) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < each; ++j) {
        loaded[k][j] = numbers[at[k] + 32 * j];
      }
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int k = 0; k < flight; ++k) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < each; ++j) {
        out[k][j] = to_float(loaded[k][j]);
      }
    }
  }

  KOKKOS_FORCEINLINE_FUNCTION void add(const float (&key)[each], const float (&value)[each],
                                       std::int64_t token, std::int64_t window) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int r = 0; r < rows; ++r) {
      float part = 0;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < each; ++j) {
        part += query[r][j] * key[j];
      }
      const float logit = sum_over_lanes(part);
      const bool seen = token <= position[r] && (window == 0 || token > position[r] - window);
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
};

/// The uncompressed tokens of a sequence, sinks before window, dealt to the warps that share it.
struct ExactRows {
  ExactRun sinks{};
  ExactRun window{};
  RowView queries{};
  int head = 0;
  float logit_scale = 1;
  int walker = 0;   ///< number of this warp
  int walkers = 1;  ///< how many they are

  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION bool any_for_warp() const {
    return walker < sinks.count + window.count;
  }

  /// What a warp finds: maximum and sum of row i into `maximum[i]` and `sum[i]`, and its output,
  /// not normalised, into `out` (rows, Dim).
  /// @param row_at(i, at, position) tells where the query of row i begins and its position
  template <int Dim, class RowAt>
  KOKKOS_FORCEINLINE_FUNCTION void attend(const RowAt& row_at, int rows, int lane, float* maximum,
                                          float* sum, float* out) const {
    using State = ExactState<Dim>;
    const auto lead = static_cast<std::int64_t>(walker) - sinks.count % walkers;
    for (int first = 0; first < rows; first += State::rows) {
      State exact;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < State::rows; ++r) {
        exact.reference[r] = unseen;
        exact.sum[r] = 0;
        std::int64_t at = 0;
        row_at(first + r < rows ? first + r : first, at, exact.position[r]);
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int j = 0; j < State::each; ++j) {
          exact.output[r][j] = 0;
          exact.query[r][j] = queries.read(at + lane + 32 * j) * logit_scale;
        }
      }
      exact.take(sinks, walker, walkers, head, lane);
      exact.take(window, lead < 0 ? lead + walkers : lead, walkers, head, lane);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < State::rows; ++r) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int j = 0; j < State::each; ++j) {
          out[(first + r) * Dim + lane + 32 * j] = exact.output[r][j];
        }
        if (lane == 0) {
          maximum[first + r] = exact.reference[r];
          sum[first + r] = exact.sum[r];
        }
      }
    }
    sync_lanes();
  }
};

}  // namespace turboquant::detail::cuda
