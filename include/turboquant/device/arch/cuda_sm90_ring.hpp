#pragma once

#include <turboquant/device/arch/cuda_mma_walk.hpp>
#include <turboquant/device/arch/cuda_sm90.hpp>

#include <cstddef>

namespace turboquant::detail::cuda {

/// Steps that the copy engine brings into a ring of `stages` places in shared memory, every warp
/// its own: no registers hold what is on its way, and no warp waits for another.
template <class Shape>
struct CopiedSteps {
  static constexpr int bytes = Shape::step_bytes;

  StepAddresses<Shape> addresses;
  SharedAddress ring;
  SharedAddress barriers;  ///< (stages) of 8 bytes
  int stages;
  int next;  ///< step to be copied next
  int stage = 0;
  Word phase = 0;
  KeyRegisters<Shape> keys;
  ValueRegisters<Shape> values;

  /// @param ring_memory    `bytes` a stage, 16-byte aligned
  /// @param barrier_memory 8 bytes a stage
  /// @param num_stages     up to the steps of a block of `StepAddresses`
  KOKKOS_FORCEINLINE_FUNCTION CopiedSteps(int lane, std::byte* ring_memory,
                                          std::byte* barrier_memory, int num_stages)
      : addresses{lane},
        ring(shared_address(ring_memory)),
        barriers(shared_address(barrier_memory)),
        stages(num_stages),
        next(num_stages) {}

  /// Starts the copy of tile `piece` of a step to its place in the ring; every tile of the step has
  /// a lane that does.
  static KOKKOS_FORCEINLINE_FUNCTION void copy(SharedAddress place, const std::byte* tile,
                                               int piece, SharedAddress barrier) {
    constexpr int tile_bytes = bytes / Shape::step_tiles;
    if (piece == 0) {
      announce_copies(bytes, barrier);
    }
    start_copy(place + piece * tile_bytes, tile, tile_bytes, barrier);
  }
  /// Makes the barriers of this warp.
  KOKKOS_FORCEINLINE_FUNCTION void begin() const {
    if (addresses.lane < stages) {
      make_copy_barrier(barriers + 8 * addresses.lane);
    }
    publish_copy_barriers();
    sync_lanes();
  }
  /// Starts the copies of the first `stages` steps.
  KOKKOS_FORCEINLINE_FUNCTION void start(const TileWalk& walk, const WarpSteps& steps) {
    addresses.start(walk, steps);
    const int step = addresses.step();
    if (step < stages && step < steps.count) {
      copy(ring + step * bytes, addresses.current.get(), addresses.piece(), barriers + 8 * step);
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION void await_keys() {
    await_copy(barriers + 8 * stage, phase);
    load(keys);
  }
  /// Values move to registers, and the place is filled again.
  KOKKOS_FORCEINLINE_FUNCTION void keys_are_used(const TileWalk& walk) {
    load(values);
    sync_lanes();
    if (next < addresses.steps.count) {
      addresses.advance(walk, next);
      if (addresses.has(next)) {
        copy(ring + stage * bytes, addresses.current.get(), addresses.piece(),
             barriers + 8 * stage);
      }
      ++next;
    }
    ++stage;
    if (stage == stages) {
      stage = 0;
      phase ^= 1U;
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION void values_are_used() {}

 private:
  template <class Registers>
  KOKKOS_FORCEINLINE_FUNCTION void load(Registers& registers) const {
    const SharedAddress place = ring + stage * bytes;
    registers.load([&](int sub, int byte) { return place + (sub * Shape::sub_bytes + byte); },
                   addresses.lane);
  }
};

}  // namespace turboquant::detail::cuda
