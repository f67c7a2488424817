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
  /// Teams that share a walk and write to each other's scratch memory, and this one's number among
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
  int size;  ///< of all teams' but the last ones'
  int begin;
  int end;

  template <class Context>
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION TeamShare of(const Context& context, int all) {
    if (context.blocks == 1) {
      return {all, 0, all};
    }
    const int size = (all + context.blocks - 1) / context.blocks;
    const int begin = context.rank * size < all ? context.rank * size : all;
    return {size, begin, begin + size < all ? begin + size : all};
  }
};

/// What the teams of a cluster send to one of them.
template <int Dim, int Sets>
struct InboxMemory {
  /// Maximum and sum of the rows of every team.
  float totals[most_cluster_blocks][4 * Sets][2];
  /// (teams, size of a share, 2), with room for shares that do not come out even.
  alignas(8) float values[4 * Sets * Dim + 2 * most_cluster_blocks];
  std::uint64_t sent;  ///< barrier that counts the bytes
};

/// Where the teams of a cluster send what they have found to those that add it up. No memory is
/// flushed, as a barrier of the cluster that releases it would.
template <class Memory>
struct ClusterInbox {
  Memory* memory;
  TeamShare share;
  int num_rows;

  /// Tells the cluster that others may send; all threads call it.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION void open(const Context& context) const {
    constexpr int pair_bytes = 8;
    if (context.blocks == 1) {
      return;
    }
    if (context.warp == 0) {
      if (context.lane == 0) {
        make_copy_barrier(barrier());
      }
      publish_copy_barriers();
      sync_lanes();
      if (context.lane == 0) {
        announce_copies(context.blocks * (share.end - share.begin + num_rows) * pair_bytes,
                        barrier());
      }
    }
    arrive_at_cluster();
  }
  /// Waits until all have opened theirs.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION void await_open(const Context& context) const {
    if (context.blocks > 1) {
      await_cluster();
    }
  }
  /// Sends pair `i` of all to the team that it belongs to.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION void send_values(const Context& context, int i,
                                               FloatPair pair) const {
    const int owner = i / share.size;
    const int place = context.rank * share.size + i - owner * share.size;
    send_pair(in_block(shared_address(memory->values) + 8 * place, owner), pair,
              in_block(barrier(), owner));
  }
  /// Sends maximum and sum of a row to all teams.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION void send_totals(const Context& context, int row,
                                               FloatPair pair) const {
    const SharedAddress to = shared_address(memory->totals[context.rank][row]);
    for (int k = 0; k < context.blocks; ++k) {
      send_pair(in_block(to, k), pair, in_block(barrier(), k));
    }
  }
  /// Adds up pair `i` of the team's share.
  template <class Context>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION PartSum sum(const Context& context, int i,
                                                        int row) const {
    constexpr int flight = 8;
    PartSum total;
    for (int begin = 0; begin < context.blocks; begin += flight) {
      FloatPair part[flight];
      float highest = total.maximum;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int k = 0; k < flight; ++k) {
        if (begin + k < context.blocks) {
          const float* const from = memory->totals[begin + k][row];
          part[k] = {from[0], from[1]};
          highest = part[k].first > highest ? part[k].first : highest;
        }
      }
      total.raise(highest);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int k = 0; k < flight; ++k) {
        if (begin + k < context.blocks) {
          const float* const from =
              memory->values + 2 * ((begin + k) * share.size + i - share.begin);
          total.add(part[k].first, part[k].second, from[0], from[1]);
        }
      }
    }
    return total;
  }
  /// Waits for everything, so that nobody sends to a team that is gone.
  KOKKOS_FORCEINLINE_FUNCTION void await() const { await_sent(barrier()); }

 private:
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION SharedAddress barrier() const {
    return shared_address(&memory->sent);
  }
};

/// Adds up what the warps of all teams of a walk have found, always in the same order.
/// @param memory   for the outputs of the warps
/// @param inbox    of the team, open
/// @param num_rows rows that exist, up to 4 Sets
/// @param sink     `sink(row, d, sum, first)` takes dimensions d and d + 1 of a row, the first ones
/// of the row that this team has
template <class Shape, int Sets, int Warps, class Context, class Inbox, class Sink>
KOKKOS_FORCEINLINE_FUNCTION void add_teams(const Context& context,
                                           const MmaState<Shape, Sets>& state,
                                           TeamScratch<Shape::dim, Sets, Warps>& scratch,
                                           const WarpRows<Shape::dim>& memory, const Inbox& inbox,
                                           int num_rows, const Sink& sink) {
  constexpr int pairs = Shape::dim / 2;
  const int row = context.lane / 4;
  const int column = context.lane % 4;
  // All lanes have read their exact rows' sums, which give way to the warp's, and the last tiles,
  // which give way to its outputs.
  sync_lanes();
  inbox.await_open(context);
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
        inbox.send_values(context, (4 * set + r) * pairs + d / 2, {total.first, total.second});
        if (d == 0) {
          inbox.send_totals(context, 4 * set + r, {total.maximum, total.sum});
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
  // Every team adds up a share of the dimensions.
  inbox.await();
  const TeamShare& share = inbox.share;
  for (int i = share.begin + context.thread(); i < share.end; i += context.threads()) {
    const int r = i / pairs;
    const PartSum total = inbox.sum(context, i, r);
    sink(r, i % pairs * 2, total, i % pairs == 0 || i == share.begin);
  }
}

}  // namespace turboquant::detail::cuda
