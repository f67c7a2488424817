#pragma once

#include <Kokkos_Core.hpp>

namespace turboquant::test {

/// The host's execution space of one thread, or its default one where this Kokkos has no other.
#if defined(KOKKOS_ENABLE_SERIAL)
using OneThread = Kokkos::Serial;
inline constexpr bool has_serial_space = true;
#else
using OneThread = Kokkos::DefaultHostExecutionSpace;
inline constexpr bool has_serial_space = false;
#endif

}  // namespace turboquant::test
