#pragma once

// The dot kernels on the host's space of one thread, where Kokkos has it: they are written for
// accelerators, and here their results can be tested on any machine. Every source of a program that
// runs them includes this.

#include <turboquant/device/arch/device_lanes.hpp>

#if defined(KOKKOS_ENABLE_SERIAL)
template <>
inline constexpr bool turboquant::detail::has_dot_products<Kokkos::Serial> = true;
#endif
