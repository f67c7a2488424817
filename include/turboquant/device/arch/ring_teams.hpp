#pragma once

namespace turboquant {

/// Teams of warps that have their tiles copied into rings in shared memory (compute
/// capability 9.0).
enum class RingTeams {
  automatic,
  wide4,    ///< 4 warps, steps of up to 64 tokens, two or three teams on a multiprocessor
  wide8,    ///< 8 warps, one team
  wide12,   ///< 12 warps, one team; up to 4 query rows and 128 dimensions, one value group
  narrow4,  ///< 4 warps, steps of 32 tokens, four teams; up to 128 dimensions, one value group,
            ///< 3-bit keys and 4-bit values
};

}  // namespace turboquant
