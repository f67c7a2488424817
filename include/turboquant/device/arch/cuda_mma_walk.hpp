#pragma once

#include <turboquant/device/arch/cuda_mma_state.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail::cuda {

/// Tiles of one kv head that a team walks.
struct TileWalk {
  std::byte* const* pages = nullptr;
  std::int64_t tiles_per_page = 1;  ///< at most 2^32 - 1
  std::int64_t first_tile = 0;
  int tiles = 0;
  int head = 0;
  StepMask mask{};
};

/// One lane's view of its team: `warps` warps of 32 lanes with common scratch memory.
template <class Member>
struct LaneContext {
  const Member& member;
  std::byte* scratch = nullptr;  ///< 16-byte aligned
  int lane = 0;
  int warp = 0;
  int warps = 1;

  KOKKOS_FORCEINLINE_FUNCTION void barrier() const { member.team_barrier(); }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int thread() const { return 32 * warp + lane; }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int threads() const { return 32 * warps; }
};

/// A walk in scratch memory, where it costs no registers, with the addresses of the next steps of
/// every warp and the prepared query rows.
template <int Dim, int Sets, int Warps>
struct WalkScratch {
  TileWalk walk;
  const std::byte* steps[Warps][64];
  PreparedRows<Dim, Sets> rows;
};

/// Addresses of a warp's steps, two halves of 32: page tables are read 32 steps ahead.
template <class Shape, int Warps>
struct StepAddresses {
  const TileWalk& walk;
  const std::byte* (&steps)[64];
  int warp;
  int lane;

  /// Looks the addresses of steps [first, first + 32) up; `count` is the warp's number of steps.
  KOKKOS_FORCEINLINE_FUNCTION void look_up(int first, int count) const {
    const int i = first + lane < count ? first + lane : count - 1;
    const int step = warp + i * Warps;
    // 32 bits are enough: 2^32 tiles are more than any memory.
    const auto tile =
        static_cast<std::uint32_t>(walk.first_tile) +
        static_cast<std::uint32_t>(step) / static_cast<unsigned>(Shape::steps_per_tile);
    const auto per_page = static_cast<std::uint32_t>(walk.tiles_per_page);
    const std::uint32_t page = tile / per_page;
    const std::int64_t in_page = std::int64_t{walk.head} * per_page + (tile - page * per_page);
    const std::byte* at = walk.pages[page] +
                          in_page * static_cast<std::int64_t>(Shape::format.bytes()) +
                          step % Shape::steps_per_tile * Shape::step_bytes;
    steps[(first + lane) % 64] = at;
    sync_lanes();
  }
  KOKKOS_FORCEINLINE_FUNCTION const std::byte* operator[](int i) const { return steps[i % 64]; }
};

/// Scratch memory in which the warps of a team add up their results.
template <int Dim, int Warps>
struct WarpResults {
  static constexpr int rows = 8;
  static constexpr int row_floats = Dim + 8;

  float output[Warps][4][row_floats];  ///< of 4 rows at a time
  float reference[Warps][rows];
  float sum[Warps][rows];
};

/// Merges the warps' results of rows [first_row, first_row + 4), each of which has written its
/// reference before a barrier, its scaled output and sum.
/// @param row  number of rows of these 4 that exist
/// @param out  (rows, dim), maximum and sum (rows): of the first of them
template <int Dim, int Warps, class Context>
KOKKOS_FORCEINLINE_FUNCTION void add_warps(const Context& context,
                                           const WarpResults<Dim, Warps>& results, int first_row,
                                           int rows, float* out, float* maximum, float* sum) {
  for (int i = context.thread(); i < rows * Dim / 2; i += context.threads()) {
    const int row = i / (Dim / 2);
    const int d = i % (Dim / 2) * 2;
    float first = 0;
    float second = 0;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int warp = 0; warp < Warps; ++warp) {
      first += results.output[warp][row][d];
      second += results.output[warp][row][d + 1];
    }
    out[row * Dim + d] = first;
    out[row * Dim + d + 1] = second;
    if (d == 0) {
      float highest = results.reference[0][first_row + row];
      float total = 0;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int warp = 0; warp < Warps; ++warp) {
        const float reference = results.reference[warp][first_row + row];
        highest = reference > highest ? reference : highest;
        total += results.sum[warp][first_row + row];
      }
      maximum[row] = negative_infinity;
      if (total > 0) {
        maximum[row] = highest;
      }
      sum[row] = total;
    }
  }
}

/// The factor of a warp's result of a row in the result of its team.
template <int Dim, int Warps>
KOKKOS_FORCEINLINE_FUNCTION float warp_factor(const WarpResults<Dim, Warps>& results, int warp,
                                              int row) {
  float highest = results.reference[0][row];
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int other = 1; other < Warps; ++other) {
    const float reference = results.reference[other][row];
    highest = reference > highest ? reference : highest;
  }
  return exp2_of(results.reference[warp][row] - highest);
}

/// Attention of up to 4 `Sets` rows over the tiles of the walk in scratch memory: one call a team,
/// after a barrier. Warp w takes every `Warps`-th step from step w on.
///
/// The keys of the next step are loaded as soon as the scores are known, its values after this
/// step's values have been used, so that loads are always in flight.
/// @param prepare called once by every warp before its first product; a barrier follows
/// @param out     (rows, dim), not normalised; maximum and sum (rows)
template <class Shape, int Sets, int Warps, class Context, class Prepare>
KOKKOS_FORCEINLINE_FUNCTION void attend_walk(const Context& context,
                                             WalkScratch<Shape::dim, Sets, Warps>& scratch,
                                             const Prepare& prepare, float* out, float* maximum,
                                             float* sum) {
  const int all_steps = scratch.walk.tiles * Shape::steps_per_tile;
  const int steps = (all_steps - context.warp + Warps - 1) / Warps;
  const int full_begin = scratch.walk.mask.full_begin();
  const int full_end = scratch.walk.mask.full_end() - Shape::step_tokens;
  const StepAddresses<Shape, Warps> addresses{scratch.walk, scratch.steps[context.warp],
                                              context.warp, context.lane};
  KeyRegisters<Shape> keys;
  ValueRegisters<Shape> values;
  if (steps > 0) {
    addresses.look_up(0, steps);
    keys.load(addresses[0], context.lane);
    values.load(addresses[0], context.lane);
  }
  prepare(scratch.rows);
  if (steps > 32) {
    addresses.look_up(32, steps);
  }
  context.barrier();
  MmaState<Shape, Sets> state;
  state.reset(scratch.rows, context.lane);
  for (int i = 0; i < steps; ++i) {
    const bool more = i + 1 < steps;
    float logits[Sets][Shape::blocks];
    state.score(keys, logits);
    state.scale_logits(keys.scales, logits);
    if (more) {
      keys.load(addresses[i + 1], context.lane);
    }
    const int first_token = (context.warp + i * Warps) * Shape::step_tokens;
    if (first_token < full_begin || first_token > full_end) {
      state.hide(scratch.walk.mask, first_token, context.lane, logits, values);
    }
    Word weights[Shape::blocks];
    state.weigh(logits, values, weights);
    state.add(values, weights);
    if (more) {
      values.load(addresses[i + 1], context.lane);
    }
    if (i % 32 == 31 && i + 33 < steps) {
      addresses.look_up(i + 33, steps);
    }
  }
  const int rows = scratch.walk.mask.rows;
  auto& results = *reinterpret_cast<WarpResults<Shape::dim, Warps>*>(context.scratch);
  const int row = context.lane / 4;
  const int column = context.lane % 4;
  if (row == 0) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int set = 0; set < Sets; ++set) {
      results.reference[context.warp][4 * set + column] = state.reference[set];
    }
  }
  context.barrier();
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int set = 0; set < Sets; ++set) {
    const int left = rows - 4 * set;
    const float factor = warp_factor(results, context.warp, 4 * set + column);
    if (row == 0) {
      results.sum[context.warp][4 * set + column] = state.sum(set) * factor;
    }
    if (column < left) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int tile = 0; tile < Shape::value_tiles; ++tile) {
        const FloatPair value = state.value(set, tile);
        float* at = results.output[context.warp][column] + 16 * tile + 2 * row;
        at[0] = value.first * factor;
        at[1] = value.second * factor;
      }
    }
    context.barrier();
    add_warps(context, results, 4 * set, left < 4 ? left : 4, out + 4 * set * Shape::dim,
              maximum + 4 * set, sum + 4 * set);
    if (set + 1 < Sets) {
      context.barrier();
    }
  }
}

}  // namespace turboquant::detail::cuda
