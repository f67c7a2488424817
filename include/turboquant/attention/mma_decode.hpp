#pragma once

#include <turboquant/attention/mma_kernels.hpp>
#include <turboquant/attention/mma_merge.hpp>
#include <turboquant/device/arch/cuda_mma_shapes.hpp>
#include <turboquant/device/arch/cuda_sm90_launch.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace turboquant::detail {

[[nodiscard]] inline cuda::QueryPreparation query_preparation(const TileTables& tables,
                                                              const DecodeLayout& layout,
                                                              const RowView& queries) {
  const HadamardTransform& rotation = tables.key_rotation;
  const double factor =
      rotation.source == nullptr ? hadamard_factor(rotation.dim, rotation.rounds) : 1.0;
  return {rotation,
          static_cast<float>(factor * integer_grid(tables.format.key_bits).step *
                             static_cast<double>(layout.logit_scale)),
          queries};
}

/// Enqueues a decode step on matrix units: one kernel, or two where histories are cut; no
/// allocation.
template <class ExecutionSpace>
class MmaLauncher {
 public:
  /// @param sequences readable by the execution space; tiles in mma order, pages aligned to 16
  /// bytes
  MmaLauncher(const ExecutionSpace& exec, const TileTables& tables,
              const DecodeWorkspace& workspace, const DecodeSequence* sequences,
              const RowView& queries, const AttentionOutputs& outputs)
      : exec_(exec),
        tables_(tables),
        workspace_(workspace),
        sequences_(sequences),
        outputs_(outputs),
        preparation_(query_preparation(tables, workspace.layout, queries)) {}

  void operator()() const {
    const DecodeLayout& layout = workspace_.layout;
    cuda::with_mma_shape(tables_.format, [&](auto shape) {
      using Shape = decltype(shape);
      layout.sets == 1 ? attend<Shape, 1>() : attend<Shape, 2>();
    });
    if (layout.num_splits == 1 || layout.parts_meet) {
      return;
    }
    const int rows = layout.num_sequences * layout.num_queries * layout.kv_heads * layout.ratio;
    if constexpr (has_bulk_copies<ExecutionSpace>) {
      if (layout.ring) {
        cuda::launch_in_blocks(exec_, {rows, 1, MmaMerge::warps, MmaMerge::most_scratch_bytes},
                               MmaMerge{tables_.format.value_dim, workspace_, outputs_});
        return;
      }
    }
    launch_teams("turboquant::run_decode::mma_merge", rows,
                 Kokkos::LaunchBounds<MmaMerge::most_threads, 1>{}, sizeof(MmaMerge::Scratch),
                 MmaMergeTeams{{tables_.format.value_dim, workspace_, outputs_}});
  }

 private:
  [[nodiscard]] int parts() const {
    const DecodeLayout& layout = workspace_.layout;
    return layout.num_sequences * layout.kv_heads * layout.row_blocks * layout.num_splits;
  }

  template <class Shape, int Sets>
  void attend() const {
    if constexpr (has_bulk_copies<ExecutionSpace>) {
      if (workspace_.layout.ring) {
        return attend_blocks<cuda::RingTeam<Shape, Sets>>();
      }
    }
    using Team = cuda::LoadingTeam<Shape, Sets>;
    launch_teams("turboquant::run_decode::mma_attend", parts(),
                 Kokkos::LaunchBounds<32 * Team::warps, cuda::teams_per_unit>{},
                 Team::scratch_bytes,
                 MmaAttendTeams<Team>{{workspace_, sequences_, preparation_, outputs_}});
  }

  template <class Team>
  void attend_blocks() const {
    const DecodeLayout& layout = workspace_.layout;
    cuda::launch_in_blocks(exec_,
                           {parts(), layout.cluster, layout.team_warps,
                            Team::scratch_bytes_of(layout.team_warps, layout.ring_stages,
                                                   layout.cluster, layout.resident_teams)},
                           MmaAttendBlocks<Team>{{workspace_, sequences_, preparation_, outputs_}});
  }

  template <class Bounds, class Kernel>
  void launch_teams(const char* label, int teams, Bounds, std::size_t scratch,
                    const Kernel& kernel) const {
    Kokkos::TeamPolicy<ExecutionSpace, Bounds> policy(exec_, teams, Kernel::warps, 32);
    policy.set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(scratch) + 128));
    // Kernels of more than 512 bytes are passed as arguments only if they are called light.
    Kokkos::parallel_for(label,
                         Kokkos::Experimental::require(
                             policy, Kokkos::Experimental::WorkItemProperty::HintLightWeight),
                         kernel);
  }

  const ExecutionSpace& exec_;
  const TileTables& tables_;
  const DecodeWorkspace& workspace_;
  const DecodeSequence* sequences_;
  AttentionOutputs outputs_;
  cuda::QueryPreparation preparation_;
};

}  // namespace turboquant::detail
