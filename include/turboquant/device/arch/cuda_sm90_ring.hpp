#pragma once

#include <turboquant/device/arch/cuda_mma_walk.hpp>
#include <turboquant/device/arch/cuda_sm90.hpp>

#include <cstddef>

namespace turboquant::detail::cuda {

/// Steps that the copy engine brings into a ring of `Stages` places in shared memory, every warp
/// its own: no registers hold what is on its way, and no warp waits for another.
template <class Shape, int Stages>
struct CopiedSteps {
  static constexpr int bytes = Shape::step_bytes;
  /// Of one warp's ring, without its barriers.
  static constexpr int ring_bytes = Stages * bytes;

  StepAddresses<Shape> addresses;
  SharedAddress ring;
  SharedAddress barriers;  ///< (Stages) of 8 bytes
  int next = Stages;       ///< step to be copied next
  int stage = 0;
  Word phase = 0;
  KeyRegisters<Shape> keys;
  ValueRegisters<Shape> values;

  /// @param ring     `ring_bytes`, 16-byte aligned
  /// @param barriers 8 bytes a stage, made and published
  KOKKOS_FORCEINLINE_FUNCTION CopiedSteps(int lane, std::byte* ring_memory,
                                          std::byte* barrier_memory)
      : addresses{lane},
        ring(shared_address(ring_memory)),
        barriers(shared_address(barrier_memory)) {}

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
  /// Somebody has started, or will, the copies of the first `Stages` steps.
  KOKKOS_FORCEINLINE_FUNCTION void start(const TileWalk& walk, const WarpSteps& steps) {
    addresses.start(walk, steps);
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
        copy(ring + stage * bytes, addresses.current, addresses.piece(), barriers + 8 * stage);
      }
      ++next;
    }
    ++stage;
    if (stage == Stages) {
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
