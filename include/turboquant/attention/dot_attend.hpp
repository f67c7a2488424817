#pragma once

#include <turboquant/attention/decode_kernels.hpp>
#include <turboquant/attention/history_tiles.hpp>
#include <turboquant/device/dot_host_tiles.hpp>
#include <turboquant/device/dot_keys.hpp>
#include <turboquant/device/dot_mma_tiles.hpp>
#include <turboquant/device/dot_state.hpp>
#include <turboquant/device/dot_stream.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// First step with dot products: one team takes one part of the history of one kv head, or its
/// exact rows, for up to `Rows` query rows, which it rotates and rounds itself.
/// @tparam Tiles  `HostDotTiles` or `MmaDotTiles` for some lanes of a warp
/// @tparam Format `AnyDotFormat` or a `FixedDotFormat`
/// @tparam MaxDim the largest dimension of keys and values
template <class Tiles, class Format, int Lanes, int Warps, int Rows, int MaxDim>
struct DotAttend {
  static constexpr int slots = MaxDim / Tiles::lanes;
  static constexpr int tokens = Tiles::tokens;
  static constexpr int tile_tokens = static_cast<int>(TileFormat::max_tokens);
  using State = DotState<Tiles, Lanes, Rows, slots>;
  using WarpScratch = typename State::Scratch;
  /// Tiles that a warp takes at a time.
  static constexpr int shares = State::shares;
  using Keys = DotKeys<Tiles, Lanes, Rows>;
  using Stream = DotStream<Tiles, Format, Lanes>;

  Format format;
  DecodeWorkspace workspace;
  const DecodeSequence* sequences;
  RowView queries{};
  DotPreparation preparation{};

  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t warp_floats(const TileFormat& format) {
    const std::size_t walk =
        WarpScratch::floats(static_cast<int>(format.value_groups())) + Stream::floats();
    const auto prepare = 2 * static_cast<std::size_t>(format.key_dim);
    const auto results = std::size_t{Rows} * (static_cast<std::size_t>(format.value_dim) + 2);
    const std::size_t larger = prepare > results ? prepare : results;
    return ((walk > larger ? walk : larger) + 3) / 4 * 4;
  }
  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t scratch_bytes(const TileFormat& format) {
    return sizeof(float) * (Keys::floats(format) + Warps * warp_floats(format));
  }

  template <class Member>
  KOKKOS_FUNCTION void operator()(const Member& member) const {
    const DecodeLayout& layout = workspace.layout;
    // Exact rows first, then parts; teams that share tiles are neighbours.
    auto item = static_cast<int>(member.league_rank());
    const int block = item % layout.row_blocks;
    item /= layout.row_blocks;
    const int walks = layout.num_sequences * layout.kv_heads;
    const bool exact = item < walks;
    item -= exact ? 0 : walks;
    Task task;
    task.split = exact ? layout.num_splits : item % layout.num_splits;
    item /= exact ? 1 : layout.num_splits;
    task.head = item % layout.kv_heads;
    task.sequence = item / layout.kv_heads;
    task.first_row = block * Rows;
    task.rows = layout.rows - task.first_row < Rows ? layout.rows - task.first_row : Rows;
    const DecodeSequence& sequence = sequences[task.sequence];
    const HistoryTiles history(layout, sequence);
    const bool empty =
        exact ? sequence.num_sinks + sequence.window_count == 0
              : history.first_tile + task.split * history.per_split >= history.end_tile;
    const int warp = member.team_rank();
    const int lane = lane_index<Lanes>();
    if (empty) {
      const std::int64_t row = part_row(task);
      if (warp == 0 && lane == 0) {
        for (int r = 0; r < task.rows; ++r) {
          *workspace.floats(workspace.layout.maxima, row + r) = negative_infinity;
          *workspace.floats(workspace.layout.sums, row + r) = 0.0F;
        }
      }
      return;
    }
    const DotFormat in = format.get();
    const TileFormat& tile_format = in.format;
    const Tiles tiles(in, lane % Tiles::lanes);
    auto* const memory = static_cast<float*>(
        member.team_scratch(0).get_shmem_aligned(scratch_bytes(tile_format), 128));
    float* const own = memory + Keys::floats(tile_format) +
                       static_cast<std::size_t>(warp) * warp_floats(tile_format);
    const WarpScratch scratch(own, static_cast<int>(tile_format.value_groups()));
    const Keys keys(in, memory);
    for (int r = warp; r < Rows; r += Warps) {
      const bool exists = r < task.rows;
      const std::int64_t at =
          exists ? workspace.query_at(queries, task.sequence, task.head, task.first_row + r) : 0;
      if (exact) {
        keys.load_plain(queries, at, exists, preparation.logit_scale, lane, r, memory);
      } else {
        keys.prepare(preparation, queries, at, exists, lane, r, own);
      }
    }
    member.team_barrier();
    State state;
    state.clear(scratch, static_cast<int>(tile_format.value_groups()), lane);
    if (exact) {
      attend_run(tiles, sequence, task, memory, scratch, state, warp, true);
      attend_run(tiles, sequence, task, memory, scratch, state, warp, false);
    } else {
      walk(tiles, keys, sequence, history, task, scratch, state, warp);
    }
    finish(member, tiles, task, exact, memory + Keys::floats(tile_format), scratch, state);
  }

 private:
  /// The rows of a team and what they attend to.
  struct Task {
    int sequence = 0;
    int head = 0;
    int split = 0;
    int first_row = 0;
    int rows = 0;
  };

  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION std::int64_t part_row(const Task& task) const {
    return workspace.part_row(task.sequence, task.split, task.head) + task.first_row;
  }

  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION TokenRange
  token_range(const DecodeSequence& sequence) const {
    TokenRange range;
    range.query_position = sequence.query_position;
    range.window = workspace.layout.sliding_window;
    range.ratio = workspace.layout.ratio;
    return range;
  }

  /// `PagedTiles::tile` in two steps, so that nothing waits for the page's address at once.
  struct TilePlace {
    const std::byte* page = nullptr;
    std::int64_t offset = 0;

    [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION const unsigned char* address() const {
      return in_device_memory(reinterpret_cast<const unsigned char*>(page + offset));
    }
  };
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION TilePlace tile_place(const PagedTiles& history,
                                                                        std::uint32_t tile_bytes,
                                                                        std::int64_t tile,
                                                                        int head) {
    const std::int64_t each = history.tiles_per_page;
    std::int64_t page = tile;
    if (each != 1) {
      // Divisions of 64 bits take long on devices.
      page = ((tile | each) >> 31) != 0
                 ? tile / each
                 : static_cast<std::uint32_t>(tile) / static_cast<std::uint32_t>(each);
    }
    return {history.pages[page], (head * each + tile - page * each) * tile_bytes};
  }

  KOKKOS_FORCEINLINE_FUNCTION void cap(float (&logits)[tokens][Rows]) const {
    const float bound = workspace.layout.soft_cap;
    if (bound > 0) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int r = 0; r < Rows; ++r) {
          logits[j][r] = soft_capped(logits[j][r], bound);
        }
      }
    }
  }

  /// Hides what the rows of the team do not see.
  KOKKOS_FORCEINLINE_FUNCTION void mask(const Tiles& tiles, const TokenRange& range,
                                        const Task& task, float (&logits)[tokens][Rows]) const {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int r = 0; r < Rows; ++r) {
      const TokenRange::Slots seen = range.visible(task.first_row + r);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        const int token = tiles.token(j);
        logits[j][r] = token >= seen.first && token < seen.end ? logits[j][r] : negative_infinity;
      }
    }
  }

  /// Tiles [begin, end) of the walk, all of whose tokens all rows of the team see.
  struct WholeTiles {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION WholeTiles whole_tiles(const DecodeSequence& sequence,
                                                                   const HistoryTiles& history,
                                                                   const Task& task) const {
    const DecodeLayout& layout = workspace.layout;
    const std::int64_t query = sequence.query_position - sequence.page_position + 1;
    const std::int64_t oldest = query + task.first_row / layout.ratio;
    const std::int64_t newest = query + (task.first_row + task.rows - 1) / layout.ratio;
    std::int64_t begin = history.begin;
    if (layout.sliding_window > 0 && newest - layout.sliding_window > begin) {
      begin = newest - layout.sliding_window;
    }
    const std::int64_t end = oldest < history.end ? oldest : history.end;
    return {(begin + tile_tokens - 1) / tile_tokens, end > 0 ? end / tile_tokens : 0};
  }

  KOKKOS_FORCEINLINE_FUNCTION void walk(const Tiles& tiles, const Keys& keys,
                                        const DecodeSequence& sequence, const HistoryTiles& history,
                                        const Task& task, const WarpScratch& scratch, State& state,
                                        int warp) const {
    const int lane = lane_index<Lanes>();
    const int groups = static_cast<int>(tiles.in.format.value_groups());
    const std::int64_t begin = history.first_tile + task.split * history.per_split;
    const std::int64_t last =
        begin + history.per_split < history.end_tile ? begin + history.per_split : history.end_tile;
    const WholeTiles all = whole_tiles(sequence, history, task);
    const PagedTiles pages = sequence.history;
    constexpr int step = Warps * shares;
    const auto place = [&](std::int64_t tile) {
      // Lanes without a tile read the last one.
      const std::int64_t own = tile + lane / Tiles::lanes;
      return tile_place(pages, tiles.in.tile_bytes, own < last ? own : last - 1, task.head);
    };
    std::int64_t tile = begin + warp * shares;
    if (tile >= last) {
      return;
    }
    const unsigned char* own = place(tile).address();
    TilePlace ahead = place(tile + step);
    const Stream stream(scratch.memory + WarpScratch::floats(groups), lane);
    typename Tiles::KeyHalves key_scales;
    stream.start(tiles, own);
    keys.load_scales(tiles, own, key_scales);
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (; tile < last; tile += step) {
      const unsigned char* const next = ahead.address();
      ahead = place(tile + 2 * step);
      typename State::Numbers numbers;
      State::load_numbers(tiles, own, 0, numbers);
      float logits[tokens][Rows];
      keys.score(tiles, stream, own, next, key_scales, logits);
      keys.load_scales(tiles, next, key_scales);
      const bool whole = tile >= all.begin && tile + shares <= all.end && tile + shares <= last;
      cap(logits);
      if (!whole) {
        const std::int64_t start = (tile + lane / Tiles::lanes) * tile_tokens;
        TokenRange range = token_range(sequence);
        range.first = history.begin > start ? static_cast<int>(history.begin - start) : 0;
        range.end =
            history.end < start + tile_tokens ? static_cast<int>(history.end - start) : tile_tokens;
        range.position = sequence.page_position + start;
        if (tile + lane / Tiles::lanes >= last) {
          range.end = range.first;
        }
        mask(tiles, range, task, logits);
      }
      state.take_logits(scratch, groups, lane, logits);
      state.add_values(tiles, stream, own, next, numbers, scratch, lane, whole, logits);
      own = next;
    }
    stream.finish();
  }

  /// Uncompressed tokens in blocks of 64: sinks or the window.
  KOKKOS_FORCEINLINE_FUNCTION void attend_run(const Tiles& tiles, const DecodeSequence& sequence,
                                              const Task& task, const float* memory,
                                              const WarpScratch& scratch, State& state, int warp,
                                              bool sinks) const {
    const int lane = lane_index<Lanes>();
    const RowView& keys = sinks ? sequence.sink_keys : sequence.window_keys;
    const std::int64_t count = sinks ? sequence.num_sinks : sequence.window_count;
    const std::int64_t capacity = sinks ? sequence.num_sinks : sequence.window_capacity;
    const std::int64_t start = sinks ? 0 : sequence.window_start;
    TokenRange range = token_range(sequence);
    if (sinks) {
      range.window = 0;  // sinks stay visible however far the window has moved on
    }
    for (std::int64_t done = static_cast<std::int64_t>(tile_tokens) * shares * warp; done < count;
         done += static_cast<std::int64_t>(tile_tokens) * shares * Warps) {
      const std::int64_t before = done + tile_tokens * (lane / Tiles::lanes);
      const std::int64_t left = count - before;
      range.first = 0;
      range.end = static_cast<int>(left < 0 ? 0 : (left < tile_tokens ? left : tile_tokens));
      range.position = (sinks ? 0 : sequence.window_position) + before;
      const auto row = [&](int token) { return (start + before + token) % capacity; };
      float logits[tokens][Rows] = {};
      std::int64_t first[tokens];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        const int token = tiles.token(j);
        first[j] = keys.offset(row(token < range.end ? token : 0), task.head);
      }
      for (int d = 0; d < tiles.in.format.key_dim; ++d) {
        const auto query = reinterpret_cast<const FloatPack<Rows>*>(memory)[d];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int j = 0; j < tokens; ++j) {
          const float key = keys.read(first[j] + d);
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int r = 0; r < Rows; ++r) {
            logits[j][r] += query.numbers[r] * key;
          }
        }
      }
      cap(logits);
      mask(tiles, range, task, logits);
      state.take_logits(scratch, 0, lane, logits);
      state.add_rows(tiles, sinks ? sequence.sink_values : sequence.window_values, task.head, row,
                     scratch, lane, range.end, logits);
    }
  }

  /// Sums of a number for each row over all lanes, in a fixed order.
  /// @tparam First a power of two: lanes whose numbers differ in bits below it are apart
  template <int First>
  static KOKKOS_FORCEINLINE_FUNCTION void add_lanes(float (&numbers)[Rows]) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int other = First; other < Lanes; other *= 2) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        numbers[r] += from_lane_xor(numbers[r], other);
      }
    }
  }

  /// Adds up lanes and warps in a fixed order and writes the part.
  template <class Member>
  KOKKOS_FORCEINLINE_FUNCTION void finish(const Member& member, const Tiles& tiles,
                                          const Task& task, bool exact, float* memory,
                                          const WarpScratch& scratch, State& state) const {
    const TileFormat& tile_format = tiles.in.format;
    const int dim = tile_format.value_dim;
    const int lane = lane_index<Lanes>();
    const int warp = member.team_rank();
    for (int group = 0; group < static_cast<int>(tile_format.value_groups()); ++group) {
      FloatPack<Rows> zero = scratch.zero(group, lane);
      add_lanes<1>(zero.numbers);
      scratch.zero(group, lane) = zero;
    }
    add_lanes<1>(state.sum);
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int slot = 0; slot < slots; ++slot) {
      add_lanes<Tiles::lanes>(state.output[slot]);
      const int d = tiles.dim_of_slot(slot);
      const FloatPack<Rows> zero = scratch.zero(d < dim ? d / tile_format.value_group : 0, lane);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        state.output[slot][r] *= exact ? 1.0F : tiles.in.value_step;
        state.output[slot][r] += zero.numbers[r];
      }
    }
    member.team_barrier();
    // Results of the warps: (Rows, dim) outputs, (Rows) references, (Rows) sums.
    const auto size = warp_floats(tile_format);
    float* const own = memory + static_cast<std::size_t>(warp) * size;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int r = 0; r < Rows; ++r) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int slot = 0; slot < slots; ++slot) {
        const int d = tiles.dim_of_slot(slot);
        if (d < dim && lane < Tiles::lanes) {
          own[r * dim + d] = state.output[slot][r];
        }
      }
      if (lane == 0) {
        own[Rows * dim + r] = state.reference[r];
        own[Rows * dim + Rows + r] = state.sum[r];
      }
    }
    member.team_barrier();
    const std::int64_t row = part_row(task);
    for (int i = warp * Lanes + lane; i < task.rows * dim; i += Warps * Lanes) {
      const int r = i / dim;
      float highest = State::unseen;
      for (int w = 0; w < Warps; ++w) {
        const float reference =
            memory[static_cast<std::size_t>(w) * size + static_cast<std::size_t>(Rows * dim + r)];
        highest = reference > highest ? reference : highest;
      }
      float output = 0;
      float weights = 0;
      for (int w = 0; w < Warps; ++w) {
        const float* const from = memory + static_cast<std::size_t>(w) * size;
        const float factor = exp2_of_float(from[Rows * dim + r] - highest);
        output += factor * from[i];
        weights += factor * from[Rows * dim + Rows + r];
      }
      *workspace.floats(workspace.layout.outputs, row * dim + i) = output;
      if (i % dim == 0) {
        *workspace.floats(workspace.layout.maxima, row + r) =
            highest == State::unseen ? negative_infinity : highest;
        *workspace.floats(workspace.layout.sums, row + r) = weights;
      }
    }
  }
};

}  // namespace turboquant::detail
