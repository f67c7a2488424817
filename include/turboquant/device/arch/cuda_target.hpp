#pragma once

/// @file
/// Whether this build has kernels for NVIDIA's matrix units, and what a device offers.

#include <turboquant/device/kokkos_compat.hpp>

#if defined(KOKKOS_ENABLE_CUDA) && defined(__CUDACC__)
#define TURBOQUANT_CUDA 1
#else
#define TURBOQUANT_CUDA 0
#endif

// The compilation of kernels, for an architecture with the matrix instructions.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define TURBOQUANT_CUDA_MMA 1
#else
#define TURBOQUANT_CUDA_MMA 0
#endif

// With bulk copies, clusters and dependent launches.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define TURBOQUANT_CUDA_SM90 1
#else
#define TURBOQUANT_CUDA_SM90 0
#endif

namespace turboquant::detail {

/// What a plan asks of a device.
struct DeviceProperties {
  int compute_capability = 0;  ///< 10 * major + minor
  int code_architecture = 0;   ///< 10 times the capability that the code it runs was compiled for
  int multiprocessors = 1;
};

/// Whether kernels of an execution space can use 8 x 8 matrix units (compute capability 8.0 on).
template <class ExecutionSpace>
inline constexpr bool has_matrix_units = false;

/// Whether kernels of an execution space can copy in bulk and form clusters (compute capability 9.0
/// on).
template <class ExecutionSpace>
inline constexpr bool has_bulk_copies = false;

template <class ExecutionSpace>
[[nodiscard]] DeviceProperties device_properties(const ExecutionSpace&) {
  return {};
}

#if TURBOQUANT_CUDA

/// Every architecture of this compilation has the instructions.
[[nodiscard]] constexpr bool compiled_for_mma() noexcept {
#if defined(__CUDA_ARCH_LIST__)
  for (const int arch : {__CUDA_ARCH_LIST__}) {
    if (arch < 800) {
      return false;
    }
  }
#endif
  return true;
}

/// The newest architecture of this compilation that is not beyond `compute_capability`, times 10;
/// its code runs on such a device.
[[nodiscard]] constexpr int compiled_architecture(int compute_capability) noexcept {
  int newest = 0;
#if defined(__CUDA_ARCH_LIST__)
  for (const int arch : {__CUDA_ARCH_LIST__}) {
    if (arch <= 10 * compute_capability && arch > newest) {
      newest = arch;
    }
  }
#else
  static_cast<void>(compute_capability);
#endif
  return newest;
}

template <>
inline constexpr bool has_matrix_units<Kokkos::Cuda> = compiled_for_mma();

/// Some device runs code of compute capability 9.0 or newer.
template <>
inline constexpr bool has_bulk_copies<Kokkos::Cuda> = compiled_for_mma() &&
                                                      compiled_architecture(1000) >= 900;

[[nodiscard]] inline DeviceProperties device_properties(const Kokkos::Cuda& exec) {
  int major = 0;
  int minor = 0;
  DeviceProperties properties;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, exec.cuda_device());
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, exec.cuda_device());
  cudaDeviceGetAttribute(&properties.multiprocessors, cudaDevAttrMultiProcessorCount,
                         exec.cuda_device());
  properties.compute_capability = 10 * major + minor;
  properties.code_architecture = compiled_architecture(properties.compute_capability);
  return properties;
}

#endif

}  // namespace turboquant::detail
