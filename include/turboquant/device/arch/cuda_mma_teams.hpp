#pragma once

#include <turboquant/device/arch/cuda_mma_results.hpp>
#include <turboquant/device/arch/cuda_sm90_ring.hpp>
#include <turboquant/device/arch/ring_teams.hpp>

#include <cstddef>

namespace turboquant::detail::cuda {

/// A team whose warps load their tiles into registers: compute capability 8.0 on, in `TeamPolicy`.
template <class TeamShape, int Sets>
struct LoadingTeam {
  using Shape = TeamShape;
  using Source = LoadedSteps<Shape>;
  using Scratch = TeamScratch<Shape::dim, Sets, team_warps>;
  static constexpr int sets = Sets;
  static constexpr int warps = team_warps;
  static constexpr std::size_t memory_at = (sizeof(Scratch) + 15) / 16 * 16;
  static constexpr std::size_t spare_bytes = sizeof(float) * 4 * Sets * Shape::dim;
  static constexpr std::size_t warp_bytes =
      spare_bytes > WarpRows<Shape::dim>::bytes ? spare_bytes : WarpRows<Shape::dim>::bytes;
  static constexpr std::size_t scratch_bytes = memory_at + warps * warp_bytes;

  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static void begin(const Context&) {}
  /// Whether this warp asks for tiles before it prepares query rows.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static bool asks_first(const Context&) {
    return true;
  }
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static Source source(const Context& context) {
    return Source(context.lane);
  }
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static void start(const Context&, const TileWalk& walk,
                                                const WarpSteps& steps, Source& source) {
    source.start(walk, steps);
  }
  /// (4 Sets, dim), of a warp, before its first step.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static float* spare(const Context& context, int warp) {
    return reinterpret_cast<float*>(context.scratch + memory_at +
                                    static_cast<std::size_t>(warp) * warp_bytes);
  }
  /// Of all warps, after their last steps.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static WarpRows<Shape::dim> rows(const Context& context) {
    return {context.scratch + memory_at, warp_bytes};
  }
};

/// A team whose warps have their tiles copied into rings: compute capability 9.0 on, launched
/// natively.
/// @tparam Warps of the team at most
template <class TeamShape, int Sets, int Warps>
struct CopyingTeam {
  using Shape = TeamShape;
  using Scratch = TeamScratch<Shape::dim, Sets, Warps>;
  static constexpr int sets = Sets;
  static constexpr int warps = Warps;
  static constexpr int blocks_per_unit = 1;
  static constexpr int spare_bytes = static_cast<int>(sizeof(float)) * 4 * Sets * Shape::dim;
  /// What a warp can have where all share a multiprocessor's 227 KiB.
  static constexpr int budget =
      (228 * 1024 - 2048 - static_cast<int>(sizeof(Scratch))) / Warps - spare_bytes - 64;
  static constexpr int fitting = budget / Shape::step_bytes;
  static constexpr int stages = fitting < 2 ? 2 : (fitting > 4 ? 4 : fitting);
  using Source = CopiedSteps<Shape, stages>;
  static constexpr std::size_t barriers_at = (sizeof(Scratch) + 15) / 16 * 16;
  static constexpr std::size_t memory_at =
      (barriers_at + std::size_t{8} * stages * Warps + 127) / 128 * 128;
  static constexpr std::size_t warp_bytes = Source::ring_bytes + spare_bytes;

  /// Of a team of `count` warps.
  [[nodiscard]] static constexpr std::size_t scratch_bytes(int count) {
    return memory_at + static_cast<std::size_t>(count) * warp_bytes;
  }
  /// Teams of `count` warps whose scratch memory fits on a multiprocessor.
  [[nodiscard]] static constexpr int fitting_teams(int count) {
    return static_cast<int>(std::size_t{228} * 1024 / (scratch_bytes(count) + 1024));
  }
  static_assert(fitting_teams(Warps) >= 1);
  static_assert(stages * Warps <= 32);
  // A warp leaves its results where its ring was.
  static_assert(std::size_t{Source::ring_bytes} >= WarpRows<Shape::dim>::bytes);

  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static void begin(const Context& context) {
    if (asks_first(context)) {
      for (int i = context.lane; i < context.warps * stages; i += 32) {
        make_copy_barrier(shared_address(barriers(context, 0) + 8 * i));
      }
      publish_copy_barriers();
      sync_lanes();
    }
  }
  /// Whether this warp asks for tiles before it prepares query rows: the last one, for all.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static bool asks_first(const Context& context) {
    return context.warp == context.warps - 1;
  }
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static Source source(const Context& context) {
    return Source(context.lane, memory(context, context.warp), barriers(context, context.warp));
  }
  /// A barrier of the team follows before the first step.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static void start(const Context& context, const TileWalk& walk,
                                                const WarpSteps& steps, Source& source) {
    if (asks_first(context)) {
      constexpr int pieces = Shape::step_tiles;
      for (int i = context.lane; i < context.warps * stages * pieces; i += 32) {
        const int place = filled_in_turn(i / pieces, context.warps);
        const int warp = place / stages;
        const WarpSteps its = WarpSteps::of<Shape>(walk, context, warp);
        if (place % stages < its.count) {
          Source::copy(shared_address(memory(context, warp) + place % stages * Shape::step_bytes),
                       walk.template step<Shape>(its.number(place % stages), i % pieces),
                       i % pieces, shared_address(barriers(context, 0) + 8 * place));
        }
      }
    }
    source.start(walk, steps);
  }
  /// (4 Sets, dim), of a warp, before its first step; warp 0's takes the outputs of the team.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static float* spare(const Context& context, int warp) {
    return reinterpret_cast<float*>(memory(context, warp) + Source::ring_bytes);
  }
  /// Of all warps, after their last steps.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static WarpRows<Shape::dim> rows(const Context& context) {
    return {memory(context, 0), warp_bytes};
  }

 private:
  /// Number of the place that is filled as number `i`, among those of all warps' rings. Where lanes
  /// fill several, one after another, the first steps of all warps come first.
  KOKKOS_FORCEINLINE_FUNCTION static int filled_in_turn(int i, int count) {
    if constexpr (Shape::step_tiles > 1) {
      return i % count * stages + i / count;
    } else {
      return i;
    }
  }
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static std::byte* barriers(const Context& context, int warp) {
    return context.scratch + barriers_at + static_cast<std::size_t>(warp) * 8 * stages;
  }
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static std::byte* memory(const Context& context, int warp) {
    return context.scratch + memory_at + static_cast<std::size_t>(warp) * warp_bytes;
  }
};

/// The team that rings are for: steps of up to 64 tokens.
template <class Shape, int Sets>
using RingTeam =
    CopyingTeam<typename Shape::template with_steps_of<Shape::most_step_tokens>, Sets, 8>;

/// Warps of a team, and how many such teams share a multiprocessor.
struct RingTeamSize {
  int warps = 0;
  int per_unit = 0;
};

template <class Shape, int Sets>
[[nodiscard]] constexpr RingTeamSize ring_team_size(RingTeams teams) noexcept {
  if (teams == RingTeams::two_warps) {
    // By registers, 8 warps fit.
    const int by_memory = RingTeam<Shape, Sets>::fitting_teams(2);
    return {2, by_memory < 4 ? by_memory : 4};
  }
  return {8, 1};
}

}  // namespace turboquant::detail::cuda
