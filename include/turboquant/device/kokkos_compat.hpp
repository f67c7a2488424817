#pragma once

/// @file
/// Kokkos 3.4 to 5 in one dialect. The only header that asks for the version of Kokkos.

#include <Kokkos_Core.hpp>

#if KOKKOS_VERSION < 30400
#error "TurboQuant needs Kokkos 3.4 or newer."
#endif

/// Unrolls the loop that follows where kernels are compiled for a device, so that arrays it indexes
/// stay in registers.
#if defined(__CUDA_ARCH__) || defined(__HIPCC__)
#define TURBOQUANT_UNROLL_IN_KERNELS _Pragma("unroll")
/// Leaves the loop that follows as it is.
#define TURBOQUANT_KEEP_LOOP_IN_KERNELS _Pragma("unroll 1")
#else
#define TURBOQUANT_UNROLL_IN_KERNELS
#define TURBOQUANT_KEEP_LOOP_IN_KERNELS
#endif

namespace turboquant::detail {

/// Whether Kokkos has been finalised for good. Kokkos before 3.7 has no such state: it may be
/// initialised again.
[[nodiscard]] inline bool kokkos_is_finalized() {
#if KOKKOS_VERSION >= 30700
  return Kokkos::is_finalized();
#else
  return false;
#endif
}

/// Accelerators that Kokkos could use, before it runs; -1 where it does not tell.
[[nodiscard]] inline int kokkos_device_count() {
#if KOKKOS_VERSION >= 40600
  return Kokkos::num_devices();
#else
  return -1;
#endif
}

/// Starts Kokkos; a negative number leaves the choice to Kokkos and its environment variables.
inline void kokkos_initialize(int num_threads, int device_id) {
#if KOKKOS_VERSION >= 30700
  Kokkos::InitializationSettings settings;
  settings.set_disable_warnings(true);
  if (num_threads >= 0) {
    settings.set_num_threads(num_threads);
  }
  if (device_id >= 0) {
    settings.set_device_id(device_id);
  }
  Kokkos::initialize(settings);
#else
  Kokkos::InitArguments arguments;
  arguments.num_threads = num_threads;
  arguments.device_id = device_id;
  arguments.disable_warnings = true;
  Kokkos::initialize(arguments);
#endif
}

/// A policy of teams with scratch memory, many of which share a multiprocessor.
///
/// Without a wish for occupancy the driver may keep scratch memory for few teams only. Records of
/// more than 512 bytes are arguments of a kernel only if it is called light; in constant memory,
/// the next launch would wait for its end.
template <class Policy>
[[nodiscard]] auto for_many_teams(const Policy& policy) {
  return Kokkos::Experimental::require(
      Kokkos::Experimental::prefer(policy, Kokkos::Experimental::DesiredOccupancy(100)),
      Kokkos::Experimental::WorkItemProperty::HintLightWeight);
}

}  // namespace turboquant::detail
