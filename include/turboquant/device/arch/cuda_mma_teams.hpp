#pragma once

#include <turboquant/device/arch/cuda_mma_results.hpp>
#include <turboquant/device/arch/cuda_sm90_ring.hpp>

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
  static constexpr std::size_t rows_at = (sizeof(Scratch) + 15) / 16 * 16;
  static constexpr std::size_t scratch_bytes = rows_at + warps * WarpRows<Shape::dim>::bytes;

  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static void begin(const Context&) {}
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static Source source(const Context& context,
                                                   const WarpSteps& steps) {
    return Source(steps, context.lane);
  }
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static WarpRows<Shape::dim> rows(const Context& context) {
    return {context.scratch + rows_at, WarpRows<Shape::dim>::bytes};
  }
};

/// A team whose warps have their tiles copied into rings: compute capability 9.0 on, launched
/// natively.
/// @tparam Warps  of the team at most
/// @tparam Blocks teams of `Warps` warps that share a multiprocessor
template <class TeamShape, int Sets, int Warps, int Blocks>
struct CopyingTeam {
  using Shape = TeamShape;
  using Scratch = TeamScratch<Shape::dim, Sets, Warps>;
  static constexpr int sets = Sets;
  static constexpr int warps = Warps;
  static constexpr int blocks_per_unit = Blocks;
  static constexpr int ring_budget = Blocks == 1 ? 17 * 1024 : 12 * 1024;  ///< of a warp
  static constexpr int stages = ring_budget / Shape::step_bytes < 2   ? 2
                                : ring_budget / Shape::step_bytes > 4 ? 4
                                                                      : ring_budget /
                                                                            Shape::step_bytes;
  using Source = CopiedSteps<Shape, stages>;
  static constexpr std::size_t barrier_bytes = std::size_t{8} * stages;
  static constexpr std::size_t barriers_at = (sizeof(Scratch) + 15) / 16 * 16;
  static constexpr std::size_t rings_at = (barriers_at + Warps * barrier_bytes + 127) / 128 * 128;

  /// Of a team of `count` warps.
  [[nodiscard]] static constexpr std::size_t scratch_bytes(int count) {
    return rings_at + static_cast<std::size_t>(count) * Source::ring_bytes;
  }
  static_assert(scratch_bytes(Warps) + 1024 <= std::size_t{228} * 1024 / Blocks);
  // A warp leaves its results where its ring was.
  static_assert(std::size_t{Source::ring_bytes} >= WarpRows<Shape::dim>::bytes);

  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static void begin(const Context& context) {
    if (context.lane < stages) {
      make_copy_barrier(shared_address(barriers(context) + 8 * context.lane));
    }
    publish_copy_barriers();
    sync_lanes();
  }
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static Source source(const Context& context,
                                                   const WarpSteps& steps) {
    return Source(steps, context.lane, rows(context).base + context.warp * Source::ring_bytes,
                  barriers(context));
  }
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static WarpRows<Shape::dim> rows(const Context& context) {
    return {context.scratch + rings_at, Source::ring_bytes};
  }

 private:
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION static std::byte* barriers(const Context& context) {
    return context.scratch + barriers_at + static_cast<std::size_t>(context.warp) * barrier_bytes;
  }
};

/// Kinds of copying teams: few teams with long steps where histories are long, many with short steps
/// where they are short.
enum class RingTeams { wide8, wide4, narrow4 };

/// Whether the kind is compiled for dimension `dim`.
[[nodiscard]] constexpr bool has_narrow_teams(int dim) noexcept {
  return dim <= 128;
}

/// The team that takes steps of up to 64 tokens.
template <class Shape, int Sets>
using WideTeam =
    CopyingTeam<typename Shape::template with_sub_tiles<(Shape::sub_tokens < 64 ? 2 : 1)>, Sets, 8, 1>;
/// The team that takes one sub-tile a step.
template <class Shape, int Sets>
using NarrowTeam = CopyingTeam<typename Shape::template with_sub_tiles<1>, Sets, 4, 4>;

/// Warps of a team of a kind, and how many such teams share a multiprocessor.
[[nodiscard]] constexpr int ring_warps(RingTeams kind) noexcept {
  return kind == RingTeams::wide8 ? 8 : 4;
}
[[nodiscard]] constexpr int ring_teams_per_unit(RingTeams kind) noexcept {
  return kind == RingTeams::wide8 ? 1 : (kind == RingTeams::wide4 ? 2 : 4);
}

}  // namespace turboquant::detail::cuda
