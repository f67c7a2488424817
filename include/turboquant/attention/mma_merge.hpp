#pragma once

#include <turboquant/attention/mma_outputs.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// Second step on matrix units, where histories are cut into many parts: a team merges the parts of
/// one query row and normalises.
///
/// Parts are added in a fixed order: same bits always.
struct MmaMerge {
  static constexpr int warps = 4;
  static constexpr int most_threads = 32 * warps;
  static constexpr int blocks_per_unit = 4;

  /// What the threads have added up.
  struct Scratch {
    cuda::PartSum sums[most_threads];
  };
  static constexpr std::size_t most_scratch_bytes = sizeof(Scratch);

  int dim;
  DecodeWorkspace workspace;
  AttentionOutputs outputs;

  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION void operator()(const Context& context) const {
    context.await_earlier();
    auto& scratch = *reinterpret_cast<Scratch*>(context.scratch);
    const DecodeLayout& layout = workspace.layout;
    const int query_heads = layout.kv_heads * layout.ratio;
    const int token = context.item / query_heads;
    const int query_head = context.item % query_heads;
    const int sequence = token / layout.num_queries;
    const int row = token % layout.num_queries * layout.ratio + query_head % layout.ratio;
    const int block_rows = 4 * layout.sets;
    const std::int64_t walk =
        (std::int64_t{sequence} * layout.kv_heads + query_head / layout.ratio) * layout.row_blocks +
        row / block_rows;
    const std::int64_t first = workspace.walk_row(walk, 0) + row % block_rows;
    // Two dimensions a thread, or two in a row; where threads are left over, they share the parts.
    const int columns = dim / 2;
    const int sharers = most_threads / columns;
    const int column = context.thread() % columns;
    const int sharer = context.thread() / columns;
    const cuda::PartRows parts{workspace.floats(layout.totals, 2 * first),
                               workspace.floats(layout.outputs, first * dim)};
    cuda::PartSum total;
    if (sharer < sharers) {
      parts.add(layout.num_splits, sharer, sharers, block_rows, dim, 2 * column, total);
    }
    scratch.sums[context.thread()] = total;
    context.barrier();
    if (sharer > 0) {
      return;
    }
    for (int other = 1; other < sharers; ++other) {
      const cuda::PartSum& part = scratch.sums[context.thread() + other * columns];
      total.raise(part.maximum);
      total.add(part.maximum, part.sum, part.first, part.second);
    }
    outputs.finish(context.item, query_head, dim, 2 * column, total);
  }
};

/// Under `TeamPolicy`.
struct MmaMergeTeams : MmaMerge {
  template <class Member>
  KOKKOS_FUNCTION void operator()(const Member& member) const {
    MmaMerge::operator()(
        cuda::LaneContext<Member>{member,
                                  static_cast<std::byte*>(member.team_scratch(0).get_shmem_aligned(
                                      std::size_t{sizeof(Scratch)}, 128)),
                                  static_cast<int>(member.league_rank()), cuda::lane_index(),
                                  static_cast<int>(member.team_rank()), warps});
  }
};

}  // namespace turboquant::detail
