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
    const Team team{workspace.layout.ring_stages};
    auto source = team.source(context);
    source.begin();
    auto& scratch = *reinterpret_cast<Scratch*>(context.scratch);
    const DecodeLayout& layout = workspace.layout;
    // Parts that share tiles are neighbours.
    auto item = static_cast<unsigned>(context.item);
    const auto block = static_cast<int>(item % static_cast<unsigned>(layout.row_blocks));
    item /= static_cast<unsigned>(layout.row_blocks);
    const auto split = static_cast<int>(item % static_cast<unsigned>(layout.num_splits));
    item /= static_cast<unsigned>(layout.num_splits);
    const auto head = static_cast<int>(item % static_cast<unsigned>(layout.kv_heads));
    const auto index = static_cast<int>(item / static_cast<unsigned>(layout.kv_heads));
    const int first_row = block * 4 * sets;
    const int rows = layout.rows - first_row < 4 * sets ? layout.rows - first_row : 4 * sets;
    const cuda::ClusterInbox<typename Team::Inbox> inbox{
        team.inbox(context), cuda::TeamShare::of(context, rows * (dim / 2)), rows};
    inbox.open(context);
    const std::int64_t walk_index =
        (std::int64_t{index} * layout.kv_heads + head) * layout.row_blocks + block;
    const auto query_at = [&](int row) {
      return workspace.query_at(preparation.queries, index, head, first_row + row);
    };
    std::int64_t first[Team::rows_of_warp];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Team::rows_of_warp; ++i) {
      const int row = context.warp + i * context.warps;
      first[i] = row < rows ? query_at(row) : -1;
    }
    float* spare = team.spare(context, context.warp);
    context.await_earlier();
    // The sequence's record and query rows are one trip to memory, page tables the next, and tiles
    // the third. Rows are prepared while tiles are on their way.
    const DecodeSequence sequence = read_record(sequences + index);
    cuda::QueryRows<dim, Team::rows_of_warp> query;
    query.load(preparation, context.lane, first);
    const HistoryTiles history(layout, sequence);
    const int filled = layout.num_splits == 1 ? 1 : history.parts();
    const int parts = filled > 1 ? filled : 1;
    const std::int64_t exact_tokens = sequence.num_sinks + sequence.window_count;
    cuda::WarpSteps steps;
    if (split < parts) {
      cuda::TileWalk walk = make_walk(sequence, history, split, head);
      steps = cuda::WarpSteps::of<Shape>(walk, context, context.warp);
      source.start(walk, steps);
      if (context.thread() == 0) {
        set_newest(sequence, walk);
        walk.mask.first_row = first_row;
        walk.mask.rows = rows;
        scratch.walk = walk;
      }
    }
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int slot = context.warp; slot < 4 * sets; slot += context.warps) {
      cuda::prepare_row(preparation, query, context.lane, slot, scratch.prepared, spare);
    }
    if (split >= parts) {
      // Nobody waits for this part where parts meet.
      if (!layout.parts_meet && context.rank == 0 && context.thread() < rows) {
        *workspace.floats(layout.totals, 2 * (workspace.walk_row(walk_index, split) +
                                              context.thread())) = negative_infinity;
      }
      return;
    }
    const int walker = split * steps.stride + steps.first;
    const bool any_exact = walker < exact_tokens;
    if (any_exact) {
      cuda::ExactRows exact = exact_rows(sequences[index], head);
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
        if (sum != 0) {
          state.start(set, scratch.reference[context.warp][row], sum, context.lane,
                      [&](int d) { return spare[row * dim + d]; });
        }
      }
    }
    cuda::attend_steps(scratch.walk, steps, context.lane, source, state);
    const RowSink sink{workspace,
                       outputs,
                       dim,
                       index,
                       head,
                       first_row,
                       workspace.walk_row(walk_index, split),
                       layout.parts_meet ? parts : layout.num_splits};
    cuda::add_teams(context, state, scratch, team.rows(context), inbox, rows, sink);
    if (layout.parts_meet && parts > 1) {
      merge_parts(context, scratch, sink, walk_index, split, parts, rows);
    }
  }

 private:
  /// The last team of a walk, or the last of its rank, merges the parts, or its share of them.
  /// @param walk_index of (sequence, kv head, block of rows)
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION void merge_parts(const Context& context, Scratch& scratch,
                                               const RowSink& sink, std::int64_t walk_index,
                                               int split, int parts, int rows) const {
    const DecodeLayout& layout = workspace.layout;
    context.barrier();
    if (context.warp == 0) {
      std::uint64_t* counter = workspace.meeting_place(walk_index, context.rank);
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
    const auto share = cuda::TeamShare::of(context, rows * (dim / 2));
    for (int i = share.begin + context.thread(); i < share.end; i += context.threads()) {
      const int row = i / (dim / 2);
      const int d = i % (dim / 2) * 2;
      const std::int64_t first = workspace.walk_row(walk_index, 0) + row;
      const cuda::PartRows from{workspace.floats(layout.totals, 2 * first),
                                workspace.floats(layout.outputs, first * dim)};
      cuda::PartSum total;
      from.add(parts, 0, 1, 4 * sets, dim, d, total);
      sink.finish(row, d, total);
    }
  }

  /// Cuts a distance in tokens off where no walk gets.
  static KOKKOS_FORCEINLINE_FUNCTION int within_reach(std::int64_t distance) {
    constexpr std::int64_t far = cuda::StepMask::far;
    return static_cast<int>(distance > far ? far : (distance < -far ? -far : distance));
  }

  /// The fields of a record that say which tokens are seen, in one trip to memory.
  static KOKKOS_FORCEINLINE_FUNCTION DecodeSequence read_record(const DecodeSequence* at) {
    DecodeSequence record;
    record.history.pages = cuda::load_now(&at->history.pages);
    record.history.tiles_per_page = cuda::load_now(&at->history.tiles_per_page);
    record.page_position = cuda::load_now(&at->page_position);
    record.history_begin = cuda::load_now(&at->history_begin);
    record.history_end = cuda::load_now(&at->history_end);
    record.num_sinks = cuda::load_now(&at->num_sinks);
    record.window_count = cuda::load_now(&at->window_count);
    record.query_position = cuda::load_now(&at->query_position);
    return record;
  }

  /// The tiles of a part, without what single queries see of them.
  KOKKOS_FORCEINLINE_FUNCTION cuda::TileWalk make_walk(const DecodeSequence& sequence,
                                                       const HistoryTiles& history, int split,
                                                       int head) const {
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
    walk.mask.begin = within_reach(history.begin - base);
    walk.mask.end = within_reach(history.end - base);
    return walk;
  }
  KOKKOS_FORCEINLINE_FUNCTION void set_newest(const DecodeSequence& sequence,
                                              cuda::TileWalk& walk) const {
    const DecodeLayout& layout = workspace.layout;
    const std::int64_t base = walk.first_tile * static_cast<std::int64_t>(TileFormat::max_tokens);
    const std::int64_t newest = sequence.query_position - sequence.page_position - base;
    walk.mask.newest = within_reach(newest);
    walk.mask.oldest = layout.sliding_window > 0 ? within_reach(newest - layout.sliding_window)
                                                 : -cuda::StepMask::far;
    walk.mask.ratio = layout.ratio;
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
  static constexpr std::size_t most_scratch_bytes = Team::most_scratch_bytes;

  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION void operator()(const Context& context) const {
    this->attend(context);
  }
};

}  // namespace turboquant::detail
