#pragma once

#include <turboquant/attention/decode_kernels.hpp>
#include <turboquant/device/arch/cuda_mma_walk.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// Where the results of a decode step go.
struct AttentionOutputs {
  const float* sink_logits = nullptr;  ///< (query_heads) or null
  void* output = nullptr;              ///< (sequences, num_queries, query_heads, value_dim)
  RowType type = RowType::float32;
  float* lse = nullptr;  ///< (sequences, num_queries, query_heads)

  TURBOQUANT_FUNCTION void store(std::int64_t at, float x) const noexcept {
    switch (type) {
      case RowType::float16: static_cast<float16*>(output)[at] = float16::from_float(x); break;
      case RowType::bfloat16: static_cast<bfloat16*>(output)[at] = bfloat16::from_float(x); break;
      default: static_cast<float*>(output)[at] = x; break;
    }
  }
};

/// Second step on matrix units: a team merges the parts of one query row and normalises.
///
/// Parts are added in a fixed order: same bits always.
struct MmaMerge {
  static constexpr int warps = 4;
  static constexpr int threads = 32 * warps;
  /// Parts whose outputs are on their way at a time.
  static constexpr int flight = 8;

  struct Scratch {
    float sums[threads][4];
    float maximum;
    float sum;
  };

  int dim;
  DecodeWorkspace workspace;
  AttentionOutputs outputs;

  template <class Member>
  KOKKOS_FUNCTION void operator()(const Member& member) const {
    auto& scratch = *static_cast<Scratch*>(
        member.team_scratch(0).get_shmem_aligned(std::size_t{sizeof(Scratch)}, 128));
    const DecodeLayout& layout = workspace.layout;
    const int lane = cuda::lane_index();
    const auto warp = static_cast<int>(member.team_rank());
    const int thread = 32 * warp + lane;
    const auto item = static_cast<std::int64_t>(member.league_rank());
    const int query_heads = layout.kv_heads * layout.ratio;
    const auto token = static_cast<int>(item / query_heads);
    const auto query_head = static_cast<int>(item % query_heads);
    const int sequence = token / layout.num_queries;
    const int row = token % layout.num_queries * layout.ratio + query_head % layout.ratio;
    const int parts = layout.num_splits + 1;
    const std::int64_t first = workspace.part_row(sequence, 0, query_head / layout.ratio) + row;
    const std::int64_t stride = std::int64_t{layout.kv_heads} * layout.rows;
    const float* maxima = workspace.floats(layout.maxima, first);
    const float* sums = workspace.floats(layout.sums, first);
    // Four dimensions a thread; where threads are left over, they share the parts.
    const int columns = dim / 4;
    const int sharers = threads / columns;
    const int column = thread % columns;
    const int sharer = thread / columns;
    const float* from = workspace.floats(layout.outputs, first * dim + 4 * column);
    float part[flight][4] = {};
    const auto load = [&](int begin) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int k = 0; k < flight; ++k) {
        const int i = begin + k * sharers;
        if (i < parts && sharer < sharers) {
          cuda::load_shared_results(from + i * stride * dim, part[k]);
        }
      }
    };
    load(sharer);
    float highest = negative_infinity;
    float sum = 0;
    for (int i = lane; i < parts; i += 32) {
      const float maximum = maxima[i * stride];
      const float added = maximum == negative_infinity ? 0.0F : sums[i * stride];
      const float larger = maximum > highest ? maximum : highest;
      if (larger != negative_infinity) {
        sum = sum * cuda::exp2_of(highest - larger) + added * cuda::exp2_of(maximum - larger);
      }
      highest = larger;
    }
    const float own = highest;
    highest = cuda::max_over_lanes(highest);
    const float sink = outputs.sink_logits == nullptr
                           ? negative_infinity
                           : outputs.sink_logits[query_head] * static_cast<float>(log2_e);
    highest = sink > highest ? sink : highest;
    sum =
        cuda::sum_over_lanes(own == negative_infinity ? 0.0F : sum * cuda::exp2_of(own - highest));
    sum += sink == negative_infinity ? 0.0F : cuda::exp2_of(sink - highest);
    float total[4] = {};
    for (int begin = sharer; begin < parts; begin += flight * sharers) {
      if (begin != sharer) {
        load(begin);
      }
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int k = 0; k < flight; ++k) {
        const int i = begin + k * sharers;
        float maximum = negative_infinity;
        if (i < parts) {
          maximum = maxima[i * stride];
        }
        // What an empty part holds is not defined.
        if (maximum != negative_infinity) {
          const float weight = cuda::exp2_of(maximum - highest);
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int e = 0; e < 4; ++e) {
            total[e] += weight * part[k][e];
          }
        }
      }
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int e = 0; e < 4; ++e) {
      scratch.sums[thread][e] = total[e];
    }
    member.team_barrier();
    if (thread < columns) {
      for (int other = 1; other < sharers; ++other) {
        for (int e = 0; e < 4; ++e) {
          total[e] += scratch.sums[thread + other * columns][e];
        }
      }
      const float inverse = sum > 0 ? 1.0F / sum : 0.0F;
      for (int e = 0; e < 4; ++e) {
        outputs.store(item * dim + 4 * column + e, total[e] * inverse);
      }
      if (thread == 0) {
        outputs.lse[item] = sum > 0
                                ? (highest + std::log2(sum)) * static_cast<float>(natural_log_of_2)
                                : negative_infinity;
      }
    }
  }
};

}  // namespace turboquant::detail
