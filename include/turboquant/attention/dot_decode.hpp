#pragma once

#include <turboquant/attention/dot_attend.hpp>
#include <turboquant/attention/dot_merge.hpp>
#include <turboquant/attention/dot_plan.hpp>

#include <cstddef>
#include <type_traits>

namespace turboquant::detail {

/// Enqueues a decode step with dot products: two kernels, no allocation.
/// @param sequences readable by the execution space
template <class ExecutionSpace, class Output>
void run_dot(const ExecutionSpace& exec, const TileTables& tables, const DecodeWorkspace& workspace,
             const DecodeSequence* sequences, const RowView& queries, const float* sink_logits,
             Output* output, float* lse) {
  constexpr int lanes = lanes_of<ExecutionSpace>;
  constexpr bool on_device = lanes > 1;
  constexpr int warps = on_device ? DotPlan::warps : 1;
  const DecodeLayout& layout = workspace.layout;
  const auto launch = [&](const char* label, int teams, auto bounds, std::size_t scratch,
                          const auto& kernel) {
    using Policy = Kokkos::TeamPolicy<ExecutionSpace, decltype(bounds)>;
    Policy policy(exec, teams, warps, lanes);
    policy.set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(scratch) + 128));
    Kokkos::parallel_for(label, for_many_teams(policy), kernel);
  };
  const TileFormat& format = tables.format;
  const auto attend = [&]<class Tiles, int Rows, int MaxDim>(const auto& dot_tables) {
    using Kernel = DotAttend<Tiles, std::decay_t<decltype(dot_tables)>, lanes, warps, Rows, MaxDim>;
    const Kernel kernel{
        dot_tables,
        workspace,
        sequences,
        queries,
        {tables.key_rotation, tables.sketch, tables.residual_factor, layout.logit_scale}};
    launch("turboquant::run_decode::dot_attend",
           layout.num_sequences * layout.kv_heads * layout.row_blocks * (layout.num_splits + 1),
           Kokkos::LaunchBounds<warps * lanes, DotPlan::teams>{}, Kernel::scratch_bytes(format),
           kernel);
  };
  const auto with_rows = [&]<class Tiles, int MaxDim>(const auto& dot_tables) {
    if constexpr (on_device) {
      if (layout.team_rows == 2) {
        return attend.template operator()<Tiles, 2, MaxDim>(dot_tables);
      }
    }
    attend.template operator()<Tiles, 4, MaxDim>(dot_tables);
  };
  const auto with_format = [&]<template <int> class Tiles>() {
    if constexpr (on_device) {
      using Narrow = Tiles<DotPlan::tile_lanes>;
      if constexpr (copies_later<ExecutionSpace>) {
        const auto call = [&](const auto& fixed) {
          attend.template operator()<Narrow, 4, 128>(fixed);
        };
        if (layout.team_rows == 4 && with_fixed_format<Narrow::order>(format, call)) {
          return;
        }
      }
      if (format.key_dim <= 128 && format.value_dim <= 128) {
        return with_rows.template operator()<Narrow, 128>(AnyDotFormat{dot_format(format)});
      }
    }
    with_rows.template operator()<Tiles<on_device ? 2 * DotPlan::tile_lanes : 1>, 256>(
        AnyDotFormat{dot_format(format)});
  };
  if (format.order == TileOrder::host) {
    with_format.template operator()<HostDotTiles>();
  } else {
    with_format.template operator()<MmaDotTiles>();
  }
  using Merge = DotMerge<lanes, Output>;
  launch("turboquant::run_decode::dot_merge",
         layout.num_sequences * layout.num_queries * layout.kv_heads * layout.ratio,
         Kokkos::LaunchBounds<warps * lanes, 1>{}, Merge::scratch_bytes(format),
         Merge{format, workspace, sequences, queries, tables.value_rotation, sink_logits, output,
               lse});
}

}  // namespace turboquant::detail
