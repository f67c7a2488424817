#pragma once

#include <turboquant/attention/decode_kernels.hpp>
#include <turboquant/attention/history_tiles.hpp>
#include <turboquant/attention/mma_plan.hpp>
#include <turboquant/device/arch/cuda_exact_rows.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// First step on matrix units: one team takes one part of the history of one kv head, or its exact
/// rows, for up to 4 `Sets` query rows, which it rotates itself while its first tiles are on their
/// way.
template <class Shape, int Sets>
struct MmaAttend {
  static constexpr int warps = cuda::team_warps;
  static constexpr int dim = Shape::dim;
  using Results = cuda::WarpResults<dim, warps>;
  using Walk = cuda::WalkScratch<dim, Sets, warps>;
  static constexpr std::size_t results_bytes = (sizeof(Results) + 15) / 16 * 16;
  static constexpr std::size_t scratch_bytes = results_bytes + sizeof(Walk);
  static_assert(sizeof(Results) >= sizeof(float) * warps * 2 * dim, "rows are prepared there");

  DecodeWorkspace workspace;
  const DecodeSequence* sequences;
  cuda::QueryPreparation preparation;

  template <class Member>
  KOKKOS_FUNCTION void operator()(const Member& member) const {
    const cuda::LaneContext<Member> context{
        member,
        static_cast<std::byte*>(
            member.team_scratch(0).get_shmem_aligned(std::size_t{scratch_bytes}, 128)),
        cuda::lane_index(), static_cast<int>(member.team_rank()), warps};
    const DecodeLayout& layout = workspace.layout;
    // Exact rows first, then parts; teams that share tiles are neighbours.
    auto item = static_cast<int>(member.league_rank());
    const int block = item % layout.row_blocks;
    item /= layout.row_blocks;
    const int walks = layout.num_sequences * layout.kv_heads;
    const bool exact = item < walks;
    item -= exact ? 0 : walks;
    const int split = exact ? layout.num_splits : item % layout.num_splits;
    item /= exact ? 1 : layout.num_splits;
    Task task;
    task.head = item % layout.kv_heads;
    task.sequence = item / layout.kv_heads;
    task.first_row = block * 4 * Sets;
    task.rows = layout.rows - task.first_row < 4 * Sets ? layout.rows - task.first_row : 4 * Sets;
    const std::int64_t row = workspace.part_row(task.sequence, split, task.head) + task.first_row;
    task.out = workspace.floats(layout.outputs, row * dim);
    task.maximum = workspace.floats(layout.maxima, row);
    task.sum = workspace.floats(layout.sums, row);
    const DecodeSequence& sequence = sequences[task.sequence];
    if (exact) {
      if (sequence.num_sinks + sequence.window_count > 0) {
        attend_exact(context, sequence, task);
        return;
      }
    } else {
      const HistoryTiles history(layout, sequence);
      if (history.first_tile + split * history.per_split < history.end_tile) {
        attend_history(context, sequence, history, split, task);
        return;
      }
    }
    if (context.thread() < task.rows) {
      task.maximum[context.thread()] = negative_infinity;
    }
  }

 private:
  /// The rows of a team and where their results go.
  struct Task {
    int sequence = 0;
    int head = 0;
    int first_row = 0;
    int rows = 0;
    float* out = nullptr;      ///< (rows, dim)
    float* maximum = nullptr;  ///< (rows)
    float* sum = nullptr;      ///< (rows)
  };

  /// Cuts a distance in tokens off where no walk gets.
  static KOKKOS_FUNCTION int within_reach(std::int64_t distance) {
    constexpr std::int64_t far = cuda::StepMask::far;
    return static_cast<int>(distance > far ? far : (distance < -far ? -far : distance));
  }

  template <class Context>
  KOKKOS_FUNCTION void attend_history(const Context& context, const DecodeSequence& sequence,
                                      const HistoryTiles& history, int split,
                                      const Task& task) const {
    const DecodeLayout& layout = workspace.layout;
    auto& scratch = *reinterpret_cast<Walk*>(context.scratch + results_bytes);
    if (context.thread() == 0) {
      cuda::TileWalk& walk = scratch.walk;
      constexpr std::int64_t most_per_page = 0xFFFFFFFF;
      walk.pages = sequence.history.pages;
      walk.tiles_per_page = sequence.history.tiles_per_page < most_per_page
                                ? sequence.history.tiles_per_page
                                : most_per_page;
      walk.first_tile = history.first_tile + split * history.per_split;
      const std::int64_t left = history.end_tile - walk.first_tile;
      walk.tiles = static_cast<int>(left < history.per_split ? left : history.per_split);
      walk.head = task.head;
      const std::int64_t base = walk.first_tile * static_cast<std::int64_t>(TileFormat::tokens);
      const std::int64_t newest = sequence.query_position - sequence.page_position - base;
      walk.mask.begin = within_reach(history.begin - base);
      walk.mask.end = within_reach(history.end - base);
      walk.mask.newest = within_reach(newest);
      walk.mask.oldest = layout.sliding_window > 0 ? within_reach(newest - layout.sliding_window)
                                                   : -cuda::StepMask::far;
      walk.mask.first_row = task.first_row;
      walk.mask.rows = task.rows;
      walk.mask.ratio = layout.ratio;
    }
    context.barrier();
    const auto prepare = [&](cuda::PreparedRows<dim, Sets>& rows) {
      for (int slot = context.warp; slot < 4 * Sets; slot += warps) {
        cuda::prepare_row<dim, Sets>(
            preparation,
            workspace.query_at(preparation.queries, task.sequence, task.head,
                               task.first_row + slot),
            slot < task.rows, context.lane, slot, rows,
            reinterpret_cast<float*>(context.scratch) + 2 * dim * context.warp);
      }
    };
    cuda::attend_walk<Shape, Sets, warps>(context, scratch, prepare, task.out, task.maximum,
                                          task.sum);
  }

  template <class Context>
  KOKKOS_FUNCTION void attend_exact(const Context& context, const DecodeSequence& sequence,
                                    const Task& task) const {
    const DecodeLayout& layout = workspace.layout;
    cuda::ExactRun sinks;
    sinks.keys = sequence.sink_keys;
    sinks.values = sequence.sink_values;
    sinks.capacity = sequence.num_sinks;
    sinks.count = sequence.num_sinks;
    cuda::ExactRun window;
    window.keys = sequence.window_keys;
    window.values = sequence.window_values;
    window.capacity = sequence.window_capacity;
    window.start = sequence.window_start;
    window.count = sequence.window_count;
    window.position = sequence.window_position;
    window.window = layout.sliding_window;
    for (int first = 0; first < task.rows; first += 4) {
      std::int64_t at[4];
      std::int64_t position[4];
      for (int r = 0; r < 4; ++r) {
        const int row = task.first_row + first + r;
        at[r] = workspace.query_at(preparation.queries, task.sequence, task.head, row);
        position[r] = sequence.query_position + row / layout.ratio;
      }
      const int rows = task.rows - first < 4 ? task.rows - first : 4;
      cuda::attend_exact<dim, warps>(context, sinks, window, task.head, preparation.queries, at,
                                     position, rows, layout.logit_scale, task.out + first * dim,
                                     task.maximum + first, task.sum + first);
      context.barrier();
    }
  }
};

}  // namespace turboquant::detail
