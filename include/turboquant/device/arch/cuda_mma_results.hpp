#pragma once

#include <turboquant/device/arch/cuda_mma_state.hpp>
#include <turboquant/device/arch/cuda_mma_walk.hpp>
#include <turboquant/device/arch/cuda_sm90.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail::cuda {

/// One lane's view of its team: `warps` warps of 32 lanes with common scratch memory.
template <class Member>
struct LaneContext {
  /// Teams that share a walk and read each other's scratch memory, and this one's number among
  /// them.
  static constexpr int blocks = 1;
  static constexpr int rank = 0;

  const Member& member;
  std::byte* scratch = nullptr;  ///< 16-byte aligned
  int item = 0;                  ///< number of the team
  int lane = 0;
  int warp = 0;
  int warps = 1;

  KOKKOS_FORCEINLINE_FUNCTION void barrier() const { member.team_barrier(); }
  KOKKOS_FORCEINLINE_FUNCTION void await_earlier() const {}
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int thread() const { return 32 * warp + lane; }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int threads() const { return 32 * warps; }
};

/// What the warps of a team share, whatever brings their tiles.
template <int Dim, int Sets, int Warps>
struct TeamScratch {
  static constexpr int rows = 4 * Sets;

  TileWalk walk;
  PreparedRows<Dim, Sets> prepared;
  float reference[Warps][rows];
  float sum[Warps][rows];
  int merges;  ///< whether the team merges the parts of its walk
  /// Maximum and sum of the team's rows, for the other teams of its walk.
  alignas(16) float totals[rows][2];
};

/// Memory for the outputs of 4 rows of every warp.
template <int Dim>
struct WarpRows {
  static constexpr int row_floats = Dim + 8;
  static constexpr std::size_t bytes = sizeof(float) * 4 * row_floats;

  std::byte* base;
  std::size_t stride;  ///< bytes from one warp to the next

  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float* row(int warp, int row) const {
    return reinterpret_cast<float*>(base + static_cast<std::size_t>(warp) * stride) +
           row * row_floats;
  }
};

/// The running sum of parts that have maxima of their own.
struct PartSum {
  float maximum = unseen;
  float sum = 0;
  float first = 0;
  float second = 0;

  /// @param highest at least the maximum of everything that follows before the next call
  KOKKOS_FORCEINLINE_FUNCTION void raise(float highest) {
    if (highest > maximum) {
      const float factor = exp2_of(maximum - highest);
      maximum = highest;
      sum *= factor;
      first *= factor;
      second *= factor;
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION void add(float part_maximum, float part_sum, float x, float y) {
    const float weight = exp2_of(part_maximum - maximum);
    sum += weight * part_sum;
    first += weight * x;
    second += weight * y;
  }
};

/// Where the parts of one row are in memory.
struct PartRows {
  const float* totals;   ///< of part 0: maximum and sum
  const float* outputs;  ///< of part 0

  /// Adds dimensions d and d + 1 of parts first, first + step and so on, in this order.
  /// @param stride rows between two parts; the addresses of all parts are one where it, `step` and
  /// `dim` are constants
  KOKKOS_FORCEINLINE_FUNCTION void add(int parts, int first, int step, int stride, int dim, int d,
                                       PartSum& total) const {
    // Parts that are on their way at a time.
    constexpr int flight = 16;
    const float* its_totals = totals + 2 * first * stride;
    const float* its_outputs = outputs + std::int64_t{first} * stride * dim + d;
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int begin = first; begin < parts; begin += flight * step) {
      FloatPair part[flight];
      FloatPair value[flight];
      float highest = total.maximum;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int k = 0; k < flight; ++k) {
        part[k].first = negative_infinity;
        if (begin + k * step < parts) {
          part[k] = load_pair(its_totals);
          value[k] = load_pair(its_outputs);
        }
        its_totals += 2 * step * stride;
        its_outputs += std::int64_t{step} * stride * dim;
      }
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int k = 0; k < flight; ++k) {
        highest = part[k].first > highest ? part[k].first : highest;
      }
      total.raise(highest);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int k = 0; k < flight; ++k) {
        // What an empty part holds is not defined.
        if (part[k].first != negative_infinity) {
          total.add(part[k].first, part[k].second, value[k].first, value[k].second);
        }
      }
    }
  }
};

/// The pairs of dimensions that a team of a cluster is for.
struct TeamShare {
  int begin;
  int end;

  template <class Context>
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION TeamShare of(const Context& context, int all) {
    if (context.blocks == 1) {
      return {0, all};
    }
    const int size = (all + context.blocks - 1) / context.blocks;
    const int begin = context.rank * size;
    return {begin, begin + size < all ? begin + size : all};
  }
};

/// Adds up what the warps of all teams of a walk have found, always in the same order.
/// @param memory   for the outputs of the warps
/// @param outputs  (4 Sets, dim) for the other teams of the walk
/// @param num_rows rows that exist, up to 4 Sets
/// @param sink     `sink(row, d, sum, first)` takes dimensions d and d + 1 of a row, the first ones
/// of the row that this team has
template <class Shape, int Sets, int Warps, class Context, class Sink>
KOKKOS_FORCEINLINE_FUNCTION void add_teams(const Context& context,
                                           const MmaState<Shape, Sets>& state,
                                           TeamScratch<Shape::dim, Sets, Warps>& scratch,
                                           const WarpRows<Shape::dim>& memory, float* outputs,
                                           int num_rows, const Sink& sink) {
  constexpr int pairs = Shape::dim / 2;
  const int row = context.lane / 4;
  const int column = context.lane % 4;
  // All lanes have read their exact rows' sums, which give way to the warp's, and the last tiles,
  // which give way to its outputs.
  sync_lanes();
  if (row == 0) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int set = 0; set < Sets; ++set) {
      scratch.reference[context.warp][4 * set + column] = state.reference[set];
      scratch.sum[context.warp][4 * set + column] = state.sum(set);
    }
  }
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int set = 0; set < Sets; ++set) {
    const int left = num_rows - 4 * set;
    if (column < left) {
      float* at = memory.row(context.warp, column) + 2 * row;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int tile = 0; tile < Shape::value_tiles; ++tile) {
        const FloatPair value = state.value(set, tile);
        at[16 * tile] = value.first;
        at[16 * tile + 1] = value.second;
      }
    }
    context.barrier();
    for (int i = context.thread(); i < (left < 4 ? left : 4) * pairs; i += context.threads()) {
      const int r = i / pairs;
      const int d = i % pairs * 2;
      float reference[Warps];
      PartSum total;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int warp = 0; warp < Warps; ++warp) {
        reference[warp] = warp < context.warps ? scratch.reference[warp][4 * set + r] : unseen;
        total.maximum = reference[warp] > total.maximum ? reference[warp] : total.maximum;
      }
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int warp = 0; warp < Warps; ++warp) {
        if (warp < context.warps) {
          const float* x = memory.row(warp, r) + d;
          total.add(reference[warp], scratch.sum[warp][4 * set + r], x[0], x[1]);
        }
      }
      if (context.blocks == 1) {
        sink(4 * set + r, d, total, d == 0);
      } else {
        float* at = outputs + (4 * set + r) * Shape::dim + d;
        at[0] = total.first;
        at[1] = total.second;
        if (d == 0) {
          scratch.totals[4 * set + r][0] = total.maximum;
          scratch.totals[4 * set + r][1] = total.sum;
        }
      }
    }
    if (set + 1 < Sets) {
      context.barrier();
    }
  }
  if (context.blocks == 1) {
    return;
  }
  // Every team adds up a share of the dimensions, after all have written.
  cluster_barrier();
  const TeamShare share = TeamShare::of(context, num_rows * pairs);
  const SharedAddress totals = shared_address(scratch.totals);
  const SharedAddress values = shared_address(outputs);
  // All threads take the same number of turns.
  for (int turn = share.begin;; turn += context.threads()) {
    constexpr int flight = 8;
    const int i = turn + context.thread();
    const int r = i / pairs;
    const int blocks = i < share.end ? context.blocks : 0;
    PartSum total;
    for (int begin = 0; begin < blocks; begin += flight) {
      FloatPair part[flight];
      FloatPair value[flight];
      float highest = total.maximum;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int k = 0; k < flight; ++k) {
        if (begin + k < blocks) {
          part[k] = load_cluster_pair(in_block(totals + 8 * r, begin + k));
          value[k] = load_cluster_pair(in_block(values + 8 * i, begin + k));
        }
      }
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int k = 0; k < flight; ++k) {
        if (begin + k < blocks) {
          highest = part[k].first > highest ? part[k].first : highest;
        }
      }
      total.raise(highest);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int k = 0; k < flight; ++k) {
        if (begin + k < blocks) {
          total.add(part[k].first, part[k].second, value[k].first, value[k].second);
        }
      }
    }
    const bool last = turn + context.threads() >= share.end;
    if (last) {
      sync_lanes();
      arrive_at_cluster();
    }
    if (i < share.end) {
      sink(r, i % pairs * 2, total, i % pairs == 0 || i == share.begin);
    }
    if (last) {
      break;
    }
  }
  // Nobody leaves while others read its memory.
  sync_lanes();
  await_cluster();
}

}  // namespace turboquant::detail::cuda
