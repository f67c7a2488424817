#pragma once

#include <turboquant/attention/mma_kernels.hpp>
#include <turboquant/attention/mma_merge.hpp>
#include <turboquant/device/arch/cuda_mma_shapes.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace turboquant::detail {

/// Enqueues a decode step on matrix units: two kernels, no allocation.
/// @param sequences readable by the execution space; tiles in mma order, pages aligned to 16 bytes
template <class ExecutionSpace>
void run_matrix_units(const ExecutionSpace& exec, const TileTables& tables,
                      const DecodeWorkspace& workspace, const DecodeSequence* sequences,
                      const RowView& queries, const AttentionOutputs& outputs) {
  const DecodeLayout& layout = workspace.layout;
  const int walks = layout.num_sequences * layout.kv_heads;
  const auto launch = [&](const char* label, int teams, auto bounds, std::size_t scratch,
                          const auto& kernel) {
    using Kernel = std::decay_t<decltype(kernel)>;
    using Policy = Kokkos::TeamPolicy<ExecutionSpace, decltype(bounds)>;
    Policy policy(exec, teams, Kernel::warps, 32);
    policy.set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(scratch) + 128));
    // Kernels of more than 512 bytes are passed as arguments only if they are called light.
    Kokkos::parallel_for(label,
                         Kokkos::Experimental::require(
                             policy, Kokkos::Experimental::WorkItemProperty::HintLightWeight),
                         kernel);
  };
  cuda::QueryPreparation preparation;
  preparation.rotation = tables.key_rotation;
  preparation.queries = queries;
  const double factor = tables.key_rotation.source == nullptr
                            ? hadamard_factor(tables.key_rotation.dim, tables.key_rotation.rounds)
                            : 1.0;
  preparation.unit = static_cast<float>(factor * integer_grid(tables.format.key_bits).step *
                                        static_cast<double>(layout.logit_scale));
  cuda::with_mma_shape(tables.format, [&](auto shape) {
    using Shape = decltype(shape);
    const auto attend = [&](const auto& kernel) {
      using Kernel = std::decay_t<decltype(kernel)>;
      launch("turboquant::run_decode::mma_attend",
             walks * layout.row_blocks * (layout.num_splits + 1),
             Kokkos::LaunchBounds<32 * Kernel::warps, cuda::teams_per_unit>{},
             Kernel::scratch_bytes, kernel);
    };
    if (layout.sets == 1) {
      attend(MmaAttend<Shape, 1>{workspace, sequences, preparation});
    } else {
      attend(MmaAttend<Shape, 2>{workspace, sequences, preparation});
    }
  });
  launch("turboquant::run_decode::mma_merge",
         layout.num_sequences * layout.num_queries * layout.kv_heads * layout.ratio,
         Kokkos::LaunchBounds<MmaMerge::threads, 1>{}, sizeof(MmaMerge::Scratch),
         MmaMerge{tables.format.value_dim, workspace, outputs});
}

}  // namespace turboquant::detail
