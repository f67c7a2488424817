#pragma once

#include <turboquant/device/arch/cuda_mma_results.hpp>
#include <turboquant/device/arch/cuda_sm90_ring.hpp>
#include <turboquant/device/arch/ring_teams.hpp>

#include <algorithm>
#include <array>
#include <cstddef>

namespace turboquant::detail::cuda {

/// A team whose warps load their tiles into registers: compute capability 8.0 on, in `TeamPolicy`.
template <class TeamShape, int Sets>
struct LoadingTeam {
  using Shape = TeamShape;
  using Source = LoadedSteps<Shape>;
  using Scratch = TeamScratch<Shape::dim, Sets, team_warps>;
  using Inbox = InboxMemory<Shape::dim, Sets>;
  static constexpr int sets = Sets;
  static constexpr int warps = team_warps;
  static constexpr int rows_of_warp = Sets;
  static constexpr std::size_t memory_at = (sizeof(Scratch) + 15) / 16 * 16;
  static constexpr std::size_t spare_bytes = sizeof(float) * 4 * Sets * Shape::dim;
  static constexpr std::size_t warp_bytes =
      spare_bytes > WarpRows<Shape::dim>::bytes ? spare_bytes : WarpRows<Shape::dim>::bytes;
  static constexpr std::size_t scratch_bytes = memory_at + warps * warp_bytes;

  int stages;  ///< it has no rings

  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION Source source(const Context& context) const {
    return Source(context.lane);
  }
  /// Teams of one block have none.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION Inbox* inbox(const Context&) const {
    return nullptr;
  }
  /// (4 Sets, dim), of a warp, before its first step.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION float* spare(const Context& context, int warp) const {
    return reinterpret_cast<float*>(context.scratch + memory_at +
                                    static_cast<std::size_t>(warp) * warp_bytes);
  }
  /// Of all warps, after their last steps.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION WarpRows<Shape::dim> rows(const Context& context) const {
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
  using Inbox = InboxMemory<Shape::dim, Sets>;
  using Source = CopiedSteps<Shape>;
  static constexpr int sets = Sets;
  static constexpr int warps = Warps;
  static constexpr int rows_of_warp = 2 * Sets;  ///< of the smallest team, which has two warps
  static constexpr int blocks_per_unit = 1;
  /// Shared memory of a multiprocessor, of which every team costs 1 KiB more than it asks for.
  static constexpr std::size_t unit_bytes = std::size_t{228} * 1024;
  static constexpr int least_stages = 2;
  static constexpr int most_stages = 4;
  static constexpr std::size_t spare_bytes = sizeof(float) * 4 * Sets * Shape::dim;
  static constexpr std::size_t barriers_at = (sizeof(Scratch) + 15) / 16 * 16;
  static constexpr std::size_t memory_at =
      (barriers_at + std::size_t{8} * most_stages * Warps + 127) / 128 * 128;

  int stages;  ///< steps of a ring

  [[nodiscard]] static constexpr std::size_t ring_bytes(int its_stages) {
    return static_cast<std::size_t>(its_stages) * Shape::step_bytes;
  }
  /// Of a team of `count` warps in a cluster of `blocks`.
  [[nodiscard]] static constexpr std::size_t scratch_bytes(int count, int its_stages, int blocks) {
    return memory_at + static_cast<std::size_t>(count) * (ring_bytes(its_stages) + spare_bytes) +
           (blocks > 1 ? sizeof(Inbox) : 0);
  }
  /// Such teams whose scratch memory fits on a multiprocessor.
  [[nodiscard]] static constexpr int fitting_teams(int count, int its_stages, int blocks) {
    return static_cast<int>(unit_bytes / (scratch_bytes(count, its_stages, blocks) + 1024));
  }
  /// Steps that rings may have where `teams` such teams share a multiprocessor.
  [[nodiscard]] static constexpr int fitting_stages(int count, int teams, int blocks) {
    int fitting = most_stages;
    while (fitting > least_stages && fitting_teams(count, fitting, blocks) < teams) {
      --fitting;
    }
    return fitting;
  }
  /// The same, but so much that a multiprocessor has room for `teams` teams and no more.
  [[nodiscard]] static constexpr std::size_t scratch_bytes_of(int count, int its_stages, int blocks,
                                                              int teams) {
    const std::size_t needed = scratch_bytes(count, its_stages, blocks);
    const std::size_t too_much = unit_bytes / (static_cast<std::size_t>(teams) + 1);
    return needed + 1024 > too_much ? needed : too_much - 1024 + 16;
  }
  static constexpr std::size_t most_scratch_bytes =
      (std::max)({scratch_bytes(Warps, fitting_stages(Warps, 1, 1), 1),
                  scratch_bytes(Warps, fitting_stages(Warps, 1, 2), 2), unit_bytes / 2});
  static_assert(fitting_teams(Warps, least_stages, 2) >= 1 &&
                fitting_teams(2, most_stages, 2) >= 1);
  // A warp leaves its results where its ring was.
  static_assert(ring_bytes(least_stages) >= WarpRows<Shape::dim>::bytes);

  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION Source source(const Context& context) const {
    return Source(context.lane, memory(context, context.warp),
                  context.scratch + barriers_at + context.warp * (8 * most_stages), stages);
  }
  /// Of a team in a cluster.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION Inbox* inbox(const Context& context) const {
    return reinterpret_cast<Inbox*>(memory(context, context.warps));
  }
  /// (4 Sets, dim), of a warp, before its first step.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION float* spare(const Context& context, int warp) const {
    return reinterpret_cast<float*>(memory(context, warp) + ring_bytes(stages));
  }
  /// Of all warps, after their last steps.
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION WarpRows<Shape::dim> rows(const Context& context) const {
    return {memory(context, 0), ring_bytes(stages) + spare_bytes};
  }

 private:
  template <class Context>
  KOKKOS_FORCEINLINE_FUNCTION std::byte* memory(const Context& context, int warp) const {
    return context.scratch + memory_at +
           static_cast<std::size_t>(warp) * (ring_bytes(stages) + spare_bytes);
  }
};

/// The team that rings are for: steps of up to 64 tokens.
template <class Shape, int Sets>
using RingTeam =
    CopyingTeam<typename Shape::template with_steps_of<Shape::most_step_tokens>, Sets, 8>;

/// Warps of a team, how many such teams share a multiprocessor, and how many steps their rings may
/// have where `n` of them do.
struct RingTeamSize {
  static constexpr int most_per_unit = 4;

  int warps = 0;
  int per_unit = 0;
  std::array<int, most_per_unit + 1> stages{};  ///< at n
};

/// Of teams in clusters of `blocks`.
template <class Shape, int Sets>
[[nodiscard]] constexpr RingTeamSize ring_team_size(RingTeams teams, int blocks) noexcept {
  using Team = RingTeam<Shape, Sets>;
  RingTeamSize size;
  size.warps = teams == RingTeams::two_warps ? 2 : 8;
  // By registers, 8 warps fit.
  const int by_registers = 8 / size.warps;
  const int by_memory = Team::fitting_teams(size.warps, Team::least_stages, blocks);
  size.per_unit = by_memory < by_registers ? by_memory : by_registers;
  for (int n = 1; n <= size.per_unit; ++n) {
    size.stages[static_cast<std::size_t>(n)] = Team::fitting_stages(size.warps, n, blocks);
  }
  return size;
}

}  // namespace turboquant::detail::cuda
