#pragma once

namespace turboquant {

/// Teams of warps that have their tiles copied into rings in shared memory (compute
/// capability 9.0).
enum class RingTeams {
  automatic,
  two_warps,    ///< up to four teams on a multiprocessor: short histories in large batches
  eight_warps,  ///< one team on a multiprocessor
};

}  // namespace turboquant
