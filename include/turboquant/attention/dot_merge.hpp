#pragma once

#include <turboquant/attention/decode_kernels.hpp>
#include <turboquant/device/arch/device_floats.hpp>
#include <turboquant/device/dot_query.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace turboquant::detail {

/// Second step with dot products: a team merges the parts of one query row and normalises. Parts
/// are added in a fixed order: same bits always.
template <int Lanes, class Output>
struct DotMerge {
  /// Parts whose outputs are on their way at a time.
  static constexpr int flight = 8;
  /// What every number of a scaled query is below; see `DecodeInputs`.
  static constexpr float query_limit = 0x1p100F;

  TileFormat format{};
  DecodeWorkspace workspace;
  const DecodeSequence* sequences;
  RowView queries{};
  HadamardTransform value_rotation{};  ///< dim 0: none
  const float* sink_logits;            ///< (query_heads) or null
  Output* output;                      ///< (sequences, num_queries, query_heads, value_dim)
  float* lse;                          ///< (sequences, num_queries, query_heads)

  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t scratch_bytes(const TileFormat& format) {
    return sizeof(float) * (2 * static_cast<std::size_t>(format.value_dim) + 4);
  }

  template <class Member>
  KOKKOS_FUNCTION void operator()(const Member& member) const {
    const DecodeLayout& layout = workspace.layout;
    const std::int64_t item = member.league_rank();
    const std::int64_t query_heads = static_cast<std::int64_t>(layout.kv_heads) * layout.ratio;
    const std::int64_t sequence = item / query_heads / layout.num_queries;
    const auto query_head = static_cast<int>(item % query_heads);
    const auto query = static_cast<int>(item / query_heads % layout.num_queries);
    const int head = query_head / layout.ratio;
    const int row = query * layout.ratio + query_head % layout.ratio;
    const int dim = format.value_dim;
    const auto sync = [&] { member.team_barrier(); };
    const SharedWork<decltype(sync)> work{member.team_rank() * Lanes + lane_index<Lanes>(),
                                          member.team_size() * Lanes, sync};
    auto* const total =
        static_cast<float*>(member.team_scratch(0).get_shmem_aligned(scratch_bytes(format), 16));
    float* const spare = total + dim;
    auto& unusable = *reinterpret_cast<int*>(spare + dim);
    if (work.thread == 0) {
      unusable = 0;
    }
    sync();
    const std::int64_t query_at = workspace.query_at(queries, sequence, head, row);
    for (int d = work.thread; d < format.key_dim; d += work.threads) {
      const float x = queries.read(query_at + d) * layout.logit_scale;
      if (!(x < query_limit && x > -query_limit)) {
        unusable = 1;  // whoever writes it, writes 1
      }
    }
    const std::int64_t first = workspace.part_row(sequence, 0, head) + row;
    const std::int64_t stride = static_cast<std::int64_t>(layout.kv_heads) * layout.rows;
    const float* const maxima = workspace.floats(layout.maxima, first);
    const float* const sums = workspace.floats(layout.sums, first);
    const float* const outputs = workspace.floats(layout.outputs, first * dim);
    float highest = negative_infinity;
    for (int part = 0; part <= layout.num_splits; ++part) {
      const float maximum = maxima[part * stride];
      highest = maximum > highest ? maximum : highest;
    }
    const bool nothing = highest == negative_infinity;
    const float sink = sink_logits == nullptr
                           ? negative_infinity
                           : sink_logits[query_head] * static_cast<float>(log2_e);
    highest = sink > highest ? sink : highest;
    float sum = sink == negative_infinity ? 0.0F : exp2_of_float(sink - highest);
    for (int part = 0; part <= layout.num_splits && !nothing; ++part) {
      const float maximum = maxima[part * stride];
      sum += maximum == negative_infinity ? 0.0F
                                          : sums[part * stride] * exp2_of_float(maximum - highest);
    }
    const auto add = [&](int begin, int end, int d, float& out) {
      for (int part = begin; part < end; part += flight) {
        float loaded[flight];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int k = 0; k < flight; ++k) {
          loaded[k] = part + k < end ? outputs[(part + k) * stride * dim + d] : 0.0F;
        }
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int k = 0; k < flight; ++k) {
          const float maximum = part + k < end ? maxima[(part + k) * stride] : negative_infinity;
          // What an empty part holds is not defined.
          out += maximum == negative_infinity ? 0.0F : loaded[k] * exp2_of_float(maximum - highest);
        }
      }
    };
    for (int d = work.thread; d < dim; d += work.threads) {
      float out = 0;
      if (!nothing) {
        add(0, layout.num_splits, d, out);
      }
      total[d] = out;
    }
    sync();
    if (value_rotation.dim > 0) {
      rotate_back_shared(work, value_rotation, total, spare);
    }
    const DecodeSequence& record = sequences[sequence];
    const bool empty = record.num_sinks == 0 && record.window_count == 0 &&
                       record.history_begin == record.history_end;
    const bool no_number = unusable != 0 && !empty;
    const float inverse = sum > 0 && !nothing ? 1.0F / sum : 0.0F;
    for (int d = work.thread; d < dim; d += work.threads) {
      float out = total[d];
      if (!nothing) {
        add(layout.num_splits, layout.num_splits + 1, d, out);
      }
      store(no_number ? std::numeric_limits<float>::quiet_NaN() : out * inverse,
            output[item * dim + d]);
    }
    if (work.thread == 0) {
      float value = sum > 0 ? (highest + std::log2(sum)) * static_cast<float>(natural_log_of_2)
                            : negative_infinity;
      if (nothing && sink_logits != nullptr) {
        value = sink_logits[query_head];
      }
      lse[item] = no_number ? std::numeric_limits<float>::quiet_NaN() : value;
    }
  }

 private:
  static KOKKOS_FORCEINLINE_FUNCTION void store(float x, float& out) { out = x; }
  template <class Half>
  static KOKKOS_FORCEINLINE_FUNCTION void store(float x, Half& out) {
    out = Half::from_float(x);
  }
};

}  // namespace turboquant::detail
