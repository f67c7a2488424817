#pragma once

#include <Kokkos_Core.hpp>

#include <cstdio>
#include <string>

namespace turboquant::test {

/// Whether Kokkos can start: a build for accelerators cannot where there is none.
inline bool device_missing() {
#if defined(KOKKOS_ENABLE_CUDA)
  int devices = 0;
  return cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0;
#elif defined(KOKKOS_ENABLE_HIP)
  int devices = 0;
  return hipGetDeviceCount(&devices) != hipSuccess || devices == 0;
#else
  return false;
#endif
}

/// Exit code of a program that could not test anything; CTest shows it as skipped.
inline constexpr int skip_return_code = 77;

/// Calls `call(exec)` with every execution space of this build, the host's first.
/// @return whether an accelerator is among them; where not, a line says so
template <class Call>
bool for_each_execution_space([[maybe_unused]] const char* test, const Call& call) {
#if defined(KOKKOS_ENABLE_SERIAL)
  call(Kokkos::Serial());
#endif
#if defined(KOKKOS_ENABLE_OPENMP)
  call(Kokkos::OpenMP());
#endif
#if defined(KOKKOS_ENABLE_THREADS)
  call(Kokkos::Threads());
#endif
#if defined(KOKKOS_ENABLE_CUDA)
  call(Kokkos::Cuda());
  return true;
#elif defined(KOKKOS_ENABLE_HIP)
  call(Kokkos::HIP());
  return true;
#else
  static const bool said = [&] {
    std::printf("%s: accelerator skipped: no device, this Kokkos was built without one\n", test);
    return true;
  }();
  static_cast<void>(said);
  return false;
#endif
}

/// A copy of host numbers in a memory space.
template <class Space, class T>
Kokkos::View<T*, Space> to_space(const T* data, std::size_t count) {
  using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  Kokkos::View<T*, Space> copy(Kokkos::view_alloc(std::string("copy"), Kokkos::WithoutInitializing),
                               count);
  Kokkos::deep_copy(copy, Kokkos::View<const T*, Kokkos::HostSpace, Unmanaged>(data, count));
  return copy;
}

}  // namespace turboquant::test
