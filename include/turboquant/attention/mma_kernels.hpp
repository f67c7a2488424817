#pragma once

#include <turboquant/attention/history_tiles.hpp>
#include <turboquant/attention/mma_outputs.hpp>
#include <turboquant/device/arch/cuda_exact_rows.hpp>
#include <turboquant/device/arch/cuda_mma_teams.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// First step on matrix units: the teams of one part take a share of the history of one kv head,
/// and of its exact rows, for up to 4 `sets` query rows. Every team rotates the rows itself while
/// its first tiles are on their way.
/// @tparam Team how tiles come to the warps: `LoadingTeam` or `CopyingTeam`
template <class Team>
struct MmaAttend {
  using Shape = typename Team::Shape;
  using Scratch = typename Team::Scratch;
  static constexpr int dim = Shape::dim;
  static constexpr int sets = Team::sets;

  DecodeWorkspace workspace;
  const DecodeSequence* sequences;
  cuda::QueryPreparation preparation;
  AttentionOutputs outputs;

  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION void attend(const Context& context) const {
    Team::begin(context);
    context.await_earlier();
    auto& scratch = *reinterpret_cast<Scratch*>(context.scratch);
    const DecodeLayout& layout = workspace.layout;
    // Parts that share tiles are neighbours.
    int item = context.item;
    const int block = item % layout.row_blocks;
    item /= layout.row_blocks;
    const int split = item % layout.num_splits;
    item /= layout.num_splits;
    const int head = item % layout.kv_heads;
    const int index = item / layout.kv_heads;
    const int first_row = block * 4 * sets;
    const int rows = layout.rows - first_row < 4 * sets ? layout.rows - first_row : 4 * sets;
    const std::int64_t part_row = workspace.part_row(index, split, head) + first_row;
    const auto query_at = [&](int row) {
      return workspace.query_at(preparation.queries, index, head, first_row + row);
    };
    float* spare = Team::spare(context, context.warp);
    cuda::QueryRow<dim> query;
    query.load(preparation, query_at(context.warp < rows ? context.warp : 0), context.warp < rows,
               context.lane);
    auto source = Team::source(context);
    cuda::WarpSteps steps;
    int parts = 1;
    std::int64_t exact_tokens = 0;
    // One warp asks for tiles and then prepares its rows, the others the other way round.
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int turn = 0; turn < 2; ++turn) {
      if ((turn == 0) == Team::asks_first(context)) {
        const DecodeSequence& sequence = sequences[index];
        const HistoryTiles history(layout, sequence);
        const int filled = layout.num_splits == 1 ? 1 : history.parts();
        parts = filled > 1 ? filled : 1;
        exact_tokens = sequence.num_sinks + sequence.window_count;
        if (split < parts) {
          cuda::TileWalk walk = make_walk(sequence, history, split, head);
          walk.mask.first_row = first_row;
          walk.mask.rows = rows;
          steps = cuda::WarpSteps::of<Shape>(walk, context, context.warp);
          Team::start(context, walk, steps, source);
          if (context.thread() == 0) {
            scratch.walk = walk;
          }
        }
      } else {
        for (int slot = context.warp; slot < 4 * sets; slot += context.warps) {
          if (slot != context.warp) {
            query.load(preparation, query_at(slot < rows ? slot : 0), slot < rows, context.lane);
          }
          cuda::prepare_row<dim, sets>(preparation, query, context.lane, slot, scratch.prepared,
                                       spare);
        }
      }
    }
    if (split >= parts) {
      // Nobody waits for this part where parts meet.
      if (!layout.parts_meet && context.rank == 0 && context.thread() < rows) {
        *workspace.floats(layout.maxima, part_row + context.thread()) = negative_infinity;
      }
      return;
    }
    const int walker = split * steps.stride + steps.first;
    const bool any_exact = walker < exact_tokens;
    if (any_exact) {
      const DecodeSequence& sequence = sequences[index];
      cuda::ExactRows exact = exact_rows(sequence, head);
      exact.walkers = parts * steps.stride;
      exact.walker = walker;
      exact.attend<dim>(
          [&](int row, std::int64_t& at, std::int64_t& position) {
            at = query_at(row);
            position = sequence.query_position + (first_row + row) / layout.ratio;
          },
          rows, context.lane, scratch.reference[context.warp], scratch.sum[context.warp], spare);
    }
    context.barrier();
    cuda::MmaState<Shape, sets> state;
    state.reset(scratch.prepared, context.lane);
    if (any_exact) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int set = 0; set < sets; ++set) {
        const int row = 4 * set + context.lane % 4;
        const float sum = row < rows ? scratch.sum[context.warp][row] : 0.0F;
        if (sum > 0) {
          state.start(set, scratch.reference[context.warp][row], sum, context.lane,
                      [&](int d) { return spare[row * dim + d]; });
        }
      }
    }
    cuda::attend_steps(scratch.walk, steps, context.lane, source, state);
    const RowSink sink{
        workspace, outputs,   dim,      index,
        head,      first_row, part_row, layout.parts_meet ? parts : layout.num_splits};
    cuda::add_teams(context, state, scratch, Team::rows(context), Team::spare(context, 0), rows,
                    sink);
    if (layout.parts_meet && parts > 1) {
      const std::int64_t walk_index =
          (std::int64_t{index} * layout.kv_heads + head) * layout.row_blocks + block;
      merge_parts(context, scratch, sink, walk_index, split, parts, rows,
                  part_row - split * std::int64_t{layout.kv_heads} * layout.rows);
    }
  }

 private:
  /// The last team of a walk merges its parts.
  /// @param walk_index of (sequence, kv head, block of rows)
  /// @param first_row of part 0 in the workspace
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION void merge_parts(const Context& context, Scratch& scratch,
                                               const RowSink& sink, std::int64_t walk_index,
                                               int split, int parts, int rows,
                                               std::int64_t first_row) const {
    const DecodeLayout& layout = workspace.layout;
    context.barrier();
    if (context.warp == 0) {
      std::uint64_t* counter = workspace.meeting_place(walk_index);
      const cuda::MeetingPlace place{counter, counter + 1, layout.mark};
      const bool last = place.is_last(split, parts, context.lane);
      if (context.lane == 0) {
        scratch.merges = last ? 1 : 0;
      }
    }
    context.barrier();
    if (scratch.merges == 0) {
      return;
    }
    for (int i = context.thread(); i < rows * (dim / 2); i += context.threads()) {
      const int row = i / (dim / 2);
      const int d = i % (dim / 2) * 2;
      const cuda::PartRows from{workspace.floats(layout.maxima, first_row + row),
                                workspace.floats(layout.sums, first_row + row),
                                workspace.floats(layout.outputs, (first_row + row) * dim),
                                std::int64_t{layout.kv_heads} * layout.rows};
      cuda::PartSum total;
      from.add(parts, 0, 1, dim, d, total);
      sink.finish(row, d, total);
    }
  }

  /// Cuts a distance in tokens off where no walk gets.
  static KOKKOS_FORCEINLINE_FUNCTION int within_reach(std::int64_t distance) {
    constexpr std::int64_t far = cuda::StepMask::far;
    return static_cast<int>(distance > far ? far : (distance < -far ? -far : distance));
  }

  KOKKOS_FORCEINLINE_FUNCTION cuda::TileWalk make_walk(const DecodeSequence& sequence,
                                                       const HistoryTiles& history, int split,
                                                       int head) const {
    const DecodeLayout& layout = workspace.layout;
    constexpr std::int64_t most_per_page = 0xFFFFFFFF;
    cuda::TileWalk walk;
    walk.pages = sequence.history.pages;
    walk.tiles_per_page = sequence.history.tiles_per_page < most_per_page
                              ? sequence.history.tiles_per_page
                              : most_per_page;
    walk.first_tile = history.first_tile + split * history.per_split;
    const std::int64_t left = history.end_tile - walk.first_tile;
    walk.tiles = static_cast<int>(left < history.per_split ? left : history.per_split);
    walk.head = head;
    const std::int64_t base = walk.first_tile * static_cast<std::int64_t>(TileFormat::max_tokens);
    const std::int64_t newest = sequence.query_position - sequence.page_position - base;
    walk.mask.begin = within_reach(history.begin - base);
    walk.mask.end = within_reach(history.end - base);
    walk.mask.newest = within_reach(newest);
    walk.mask.oldest = layout.sliding_window > 0 ? within_reach(newest - layout.sliding_window)
                                                 : -cuda::StepMask::far;
    walk.mask.ratio = layout.ratio;
    return walk;
  }

  KOKKOS_FORCEINLINE_FUNCTION cuda::ExactRows exact_rows(const DecodeSequence& sequence,
                                                         int head) const {
    cuda::ExactRows exact;
    exact.sinks.keys = sequence.sink_keys;
    exact.sinks.values = sequence.sink_values;
    exact.sinks.capacity = sequence.num_sinks;
    exact.sinks.count = sequence.num_sinks;
    exact.window.keys = sequence.window_keys;
    exact.window.values = sequence.window_values;
    exact.window.capacity = sequence.window_capacity;
    exact.window.start = sequence.window_start;
    exact.window.count = sequence.window_count;
    exact.window.position = sequence.window_position;
    exact.window.window = workspace.layout.sliding_window;
    exact.queries = preparation.queries;
    exact.head = head;
    exact.logit_scale = workspace.layout.logit_scale;
    return exact;
  }
};

/// Under `TeamPolicy`.
template <class Team>
struct MmaAttendTeams : MmaAttend<Team> {
  static constexpr int warps = Team::warps;

  template <class Member>
  KOKKOS_FUNCTION void operator()(const Member& member) const {
    this->attend(
        cuda::LaneContext<Member>{member,
                                  static_cast<std::byte*>(member.team_scratch(0).get_shmem_aligned(
                                      std::size_t{Team::scratch_bytes}, 128)),
                                  static_cast<int>(member.league_rank()), cuda::lane_index(),
                                  static_cast<int>(member.team_rank()), warps});
  }
};

/// Launched natively.
template <class Team>
struct MmaAttendBlocks : MmaAttend<Team> {
  static constexpr int most_threads = 32 * Team::warps;
  static constexpr int blocks_per_unit = Team::blocks_per_unit;
  static constexpr std::size_t most_scratch_bytes = Team::scratch_bytes(Team::warps);

  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION void operator()(const Context& context) const {
    this->attend(context);
  }
};

}  // namespace turboquant::detail
