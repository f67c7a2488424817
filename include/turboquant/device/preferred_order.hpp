#pragma once

#include <turboquant/device/arch/cuda_mma_shapes.hpp>
#include <turboquant/device/arch/cuda_target.hpp>
#include <turboquant/device/arch/device_lanes.hpp>
#include <turboquant/device/runtime.hpp>
#include <turboquant/device/tile_format.hpp>

namespace turboquant {

/// The order in which attention reads tiles of a format fastest: on accelerators mma where matrix
/// units have a kernel for the format and host order, which dot products read faster, where they
/// have none; on processors the order that the format names.
/// @tparam MemorySpace where the tiles are
/// @throws Error(not_initialized) before Kokkos runs.
/// O(1).
template <class MemorySpace>
[[nodiscard]] TileOrder preferred_order(const TileFormat& format) {
  require_initialized("preferred_order");
  using ExecutionSpace = typename MemorySpace::execution_space;
  if constexpr (detail::has_matrix_units<ExecutionSpace>) {
    TileFormat rearranged = format;
    rearranged.order = TileOrder::mma;
    if (detail::device_properties(ExecutionSpace()).compute_capability >= 80 &&
        detail::cuda::mma_refusal(rearranged).empty()) {
      return TileOrder::mma;
    }
  }
  return detail::lanes_of<ExecutionSpace> > 1 ? TileOrder::host : format.order;
}

}  // namespace turboquant
