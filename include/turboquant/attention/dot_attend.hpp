#pragma once

#include <turboquant/attention/decode_kernels.hpp>
#include <turboquant/attention/history_tiles.hpp>
#include <turboquant/device/dot_host_tiles.hpp>
#include <turboquant/device/dot_keys.hpp>
#include <turboquant/device/dot_mma_tiles.hpp>
#include <turboquant/device/dot_state.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// First step with dot products: one team takes one part of the history of one kv head, or its
/// exact rows, for up to `Rows` query rows, which it rotates and rounds itself.
/// @tparam Tiles  `HostDotTiles` or `MmaDotTiles`
/// @tparam MaxDim the largest dimension of keys and values
template <class Tiles, int Lanes, int Warps, int Rows, int MaxDim>
struct DotAttend {
  static constexpr int slots = MaxDim / Lanes;
  static constexpr int tokens = Tiles::tokens;
  static constexpr int tile_tokens = static_cast<int>(TileFormat::tokens);
  using State = DotState<Tiles, Lanes, Rows, slots>;
  using WarpScratch = DotWarpScratch<Lanes, Rows>;
  using Keys = DotKeys<Tiles, Lanes, Rows>;

  DotFormat format;
  DecodeWorkspace workspace;
  const DecodeSequence* sequences;
  RowView queries{};
  DotPreparation preparation{};

  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t warp_floats(const TileFormat& format) {
    const std::size_t walk = WarpScratch::floats(static_cast<int>(format.value_groups()));
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
    const Tiles tiles(format, lane);
    auto* const memory = static_cast<float*>(
        member.team_scratch(0).get_shmem_aligned(scratch_bytes(format.format), 128));
    float* const own = memory + Keys::floats(format.format) +
                       static_cast<std::size_t>(warp) * warp_floats(format.format);
    const WarpScratch scratch(own);
    const Keys keys(format, memory);
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
    state.clear(scratch, static_cast<int>(format.format.value_groups()), lane);
    if (exact) {
      attend_run(tiles, sequence, task, memory, scratch, state, warp, true);
      attend_run(tiles, sequence, task, memory, scratch, state, warp, false);
    } else {
      walk(tiles, keys, sequence, history, task, scratch, state, warp);
    }
    finish(member, tiles, task, exact, memory + Keys::floats(format.format), scratch, state, warp);
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

  /// `PagedTiles::tile`; divisions of 64 bits take long on devices.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION const std::byte* tile_address(const PagedTiles& history,
                                                                          std::int64_t tile,
                                                                          int head) const {
    const std::int64_t each = history.tiles_per_page;
    if (each == 1) {
      return history.pages[tile] + static_cast<std::int64_t>(head) * format.tile_bytes;
    }
    if (((tile | each) >> 31) != 0) {
      return history.tile(tile, head, format.tile_bytes);
    }
    const auto page = static_cast<std::uint32_t>(tile) / static_cast<std::uint32_t>(each);
    const std::int64_t in_page = tile - page * each;
    return history.pages[page] + (head * each + in_page) * format.tile_bytes;
  }

  /// Hides what the rows of the team do not see, and caps the others.
  KOKKOS_FORCEINLINE_FUNCTION void mask(const Tiles& tiles, const TokenRange& range,
                                        const Task& task, bool whole,
                                        float (&logits)[tokens][Rows]) const {
    const float cap = workspace.layout.soft_cap;
    if (cap > 0) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int r = 0; r < Rows; ++r) {
          logits[j][r] = soft_capped(logits[j][r], cap);
        }
      }
    }
    if (whole) {
      return;
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int r = 0; r < Rows; ++r) {
      const TokenRange::Slots seen = range.visible(task.first_row + r);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        const int token = tiles.lane + Lanes * j;
        logits[j][r] = token >= seen.first && token < seen.end ? logits[j][r] : negative_infinity;
      }
    }
  }

  KOKKOS_FORCEINLINE_FUNCTION void walk(const Tiles& tiles, const Keys& keys,
                                        const DecodeSequence& sequence, const HistoryTiles& history,
                                        const Task& task, const WarpScratch& scratch, State& state,
                                        int warp) const {
    const std::int64_t begin = history.first_tile + task.split * history.per_split;
    const std::int64_t last =
        begin + history.per_split < history.end_tile ? begin + history.per_split : history.end_tile;
    TokenRange range = token_range(sequence);
    const auto address = [&](std::int64_t tile) {
      return reinterpret_cast<const unsigned char*>(
          tile_address(sequence.history, tile, task.head));
    };
    std::int64_t tile = begin + warp;
    const unsigned char* at = tile < last ? address(tile) : nullptr;
    for (; tile < last; tile += Warps) {
      const unsigned char* const next = tile + Warps < last ? address(tile + Warps) : nullptr;
      float logits[tokens][Rows];
      const unsigned char* const own = in_device_memory(at);
      keys.score(tiles, own, logits);
      const std::int64_t start = tile * tile_tokens;
      range.first = history.begin > start ? static_cast<int>(history.begin - start) : 0;
      range.end =
          history.end < start + tile_tokens ? static_cast<int>(history.end - start) : tile_tokens;
      range.position = sequence.page_position + start;
      const bool whole = range.visible(task.first_row).first == 0 &&
                         range.visible(task.first_row).end == tile_tokens &&
                         range.visible(task.first_row + task.rows - 1).first == 0 &&
                         range.visible(task.first_row + task.rows - 1).end == tile_tokens;
      mask(tiles, range, task, whole, logits);
      state.take_logits(scratch, static_cast<int>(format.format.value_groups()), tiles.lane,
                        logits);
      state.add_values(tiles, own, scratch, logits);
      at = next;
    }
  }

  /// Uncompressed tokens in blocks of 64: sinks or the window.
  KOKKOS_FORCEINLINE_FUNCTION void attend_run(const Tiles& tiles, const DecodeSequence& sequence,
                                              const Task& task, const float* memory,
                                              const WarpScratch& scratch, State& state, int warp,
                                              bool sinks) const {
    const RowView& keys = sinks ? sequence.sink_keys : sequence.window_keys;
    const std::int64_t count = sinks ? sequence.num_sinks : sequence.window_count;
    const std::int64_t capacity = sinks ? sequence.num_sinks : sequence.window_capacity;
    const std::int64_t start = sinks ? 0 : sequence.window_start;
    TokenRange range = token_range(sequence);
    if (sinks) {
      range.window = 0;  // sinks stay visible however far the window has moved on
    }
    for (std::int64_t done = static_cast<std::int64_t>(tile_tokens) * warp; done < count;
         done += static_cast<std::int64_t>(tile_tokens) * Warps) {
      range.first = 0;
      range.end = static_cast<int>(count - done < tile_tokens ? count - done : tile_tokens);
      range.position = (sinks ? 0 : sequence.window_position) + done;
      const auto row = [&](int token) { return (start + done + token) % capacity; };
      float logits[tokens][Rows];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int r = 0; r < Rows; ++r) {
          logits[j][r] = 0;
        }
        const int token = tiles.lane + Lanes * j;
        if (token < range.end) {
          const std::int64_t first = keys.offset(row(token), task.head);
          for (int d = 0; d < format.format.key_dim; ++d) {
            const float key = keys.read(first + d);
            const auto query = reinterpret_cast<const FloatPack<Rows>*>(memory)[d];
            TURBOQUANT_UNROLL_IN_KERNELS
            for (int r = 0; r < Rows; ++r) {
              logits[j][r] += query.numbers[r] * key;
            }
          }
        }
      }
      mask(tiles, range, task, false, logits);
      state.take_logits(scratch, 0, tiles.lane, logits);
      state.add_rows(tiles, sinks ? sequence.sink_values : sequence.window_values, task.head, row,
                     scratch, range.end, logits);
    }
  }

  /// Adds up lanes and warps in a fixed order and writes the part.
  template <class Member>
  KOKKOS_FORCEINLINE_FUNCTION void finish(const Member& member, const Tiles& tiles,
                                          const Task& task, bool exact, float* memory,
                                          const WarpScratch& scratch, State& state,
                                          int warp) const {
    const TileFormat& tile_format = format.format;
    const int dim = tile_format.value_dim;
    const int lane = tiles.lane;
    sync_lanes();
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int slot = 0; slot < slots; ++slot) {
      const int d = tiles.dim_of_slot(slot);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        state.output[slot][r] *= exact ? 1.0F : format.value_step;
      }
      if (d < dim) {
        const int group = d / tile_format.value_group;
        for (int other = 0; other < Lanes; ++other) {
          const FloatPack<Rows> zero = scratch.zero(group, other);
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int r = 0; r < Rows; ++r) {
            state.output[slot][r] += zero.numbers[r];
          }
        }
      }
    }
    // Sums of weights take the place of the first group's zero points.
    sync_lanes();
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int r = 0; r < Rows; ++r) {
      scratch.zero(0, lane).numbers[r] = state.sum[r];
    }
    sync_lanes();
    FloatPack<Rows> sum{};
    for (int other = 0; other < Lanes; ++other) {
      const FloatPack<Rows> part = scratch.zero(0, other);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        sum.numbers[r] += part.numbers[r];
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
        if (d < dim) {
          own[r * dim + d] = state.output[slot][r];
        }
      }
      if (lane == 0) {
        own[Rows * dim + r] = state.reference[r];
        own[Rows * dim + Rows + r] = sum.numbers[r];
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
