#pragma once

/// @file
/// Launches of kernels with large scratch memory, in clusters and dependent on the kernel before,
/// on the stream of a Kokkos execution space: what `TeamPolicy` cannot ask for.

#include <turboquant/base/error.hpp>
#include <turboquant/device/arch/cuda_sm90.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace turboquant::detail::cuda {

/// How many blocks run at once if 1, 2, 3 or 4 fit on a multiprocessor and they come in clusters; 0
/// where a device has no clusters of that size.
struct ClusterCapacity {
  std::array<std::array<int, most_cluster_blocks + 1>, 5> blocks{};
};

struct BlockLaunch {
  int items = 0;    ///< clusters
  int cluster = 1;  ///< blocks of a cluster
  int warps = 1;    ///< of a block
  std::size_t scratch_bytes = 0;
};

/// Enqueues a kernel. It may be put in place before the kernels before it have ended, so it calls
/// `await_earlier` before it touches memory. Defined where `has_bulk_copies<ExecutionSpace>`.
/// @throws Error(unsupported) if the device refuses it
template <class ExecutionSpace, class Kernel>
void launch_in_blocks(const ExecutionSpace& exec, const BlockLaunch& launch, const Kernel& kernel);

/// Asks a device once. Defined where `has_bulk_copies<ExecutionSpace>`.
template <class ExecutionSpace>
[[nodiscard]] const ClusterCapacity& cluster_capacity(const ExecutionSpace& exec);

#if TURBOQUANT_CUDA

/// One lane's view of its block.
struct BlockContext {
  std::byte* scratch;
  int item;  ///< number of the cluster
  int lane;
  int warp;
  int warps;
  int rank;    ///< of the block in its cluster
  int blocks;  ///< of the cluster

  KOKKOS_FORCEINLINE_FUNCTION void barrier() const {
#if TURBOQUANT_CUDA_SM90
    __syncthreads();
#endif
  }
  KOKKOS_FORCEINLINE_FUNCTION void await_earlier() const {
    await_earlier_kernels();
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int thread() const {
    return 32 * warp + lane;
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int threads() const {
    return 32 * warps;
  }
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::most_threads, Kernel::blocks_per_unit)
    run_in_blocks(const __grid_constant__ Kernel kernel) {
#if TURBOQUANT_CUDA_SM90
  extern __shared__ __align__(128) std::byte block_scratch[];
  const int blocks = cluster_blocks();
  kernel(BlockContext{block_scratch, static_cast<int>(blockIdx.x) / blocks,
                      static_cast<int>(threadIdx.x), static_cast<int>(threadIdx.y),
                      static_cast<int>(blockDim.y), cluster_rank(), blocks});
#endif
}

inline void require_cuda(cudaError_t error, const char* what) {
  require(error == cudaSuccess, ErrorCode::unsupported, "run_decode: ", what, ": ",
          cudaGetErrorString(error));
}

/// Makes a device current while it lives.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    require_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != device) {
      require_cuda(cudaSetDevice(device), "cudaSetDevice");
      changed_ = true;
    }
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice() {
    if (changed_) {
      cudaSetDevice(before_);
    }
  }

 private:
  int before_ = 0;
  bool changed_ = false;
};

/// Lets a kernel have scratch memory beyond 48 KiB and clusters beyond 8 blocks.
template <class Function>
void lift_limits(Function* function, std::size_t scratch_bytes) {
  require_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(scratch_bytes)),
               "cudaFuncSetAttribute");
  require_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
               "cudaFuncSetAttribute");
}

/// Attributes of a launch; the configuration points at them.
class LaunchConfiguration {
 public:
  LaunchConfiguration(const BlockLaunch& launch, cudaStream_t stream) {
    configuration.gridDim = dim3(static_cast<unsigned>(launch.items * launch.cluster));
    configuration.blockDim = dim3(32, static_cast<unsigned>(launch.warps));
    configuration.dynamicSmemBytes = launch.scratch_bytes;
    configuration.stream = stream;
    attributes_[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes_[0].val.programmaticStreamSerializationAllowed = 1;
    attributes_[1].id = cudaLaunchAttributeClusterDimension;
    attributes_[1].val.clusterDim.x = static_cast<unsigned>(launch.cluster);
    attributes_[1].val.clusterDim.y = 1;
    attributes_[1].val.clusterDim.z = 1;
    configuration.attrs = attributes_.data();
    configuration.numAttrs = launch.cluster > 1 ? 2 : 1;
  }
  LaunchConfiguration(const LaunchConfiguration&) = delete;
  LaunchConfiguration& operator=(const LaunchConfiguration&) = delete;

  cudaLaunchConfig_t configuration{};

 private:
  std::array<cudaLaunchAttribute, 2> attributes_{};
};

template <class ExecutionSpace, class Kernel>
void launch_in_blocks(const ExecutionSpace& exec, const BlockLaunch& launch, const Kernel& kernel) {
  const int device = exec.cuda_device();
  const CurrentDevice current(device);
  // Once a device; more than 64 devices do it every time.
  static std::atomic<std::uint64_t> lifted{0};
  const std::uint64_t bit = device < 64 ? std::uint64_t{1} << static_cast<unsigned>(device) : 0;
  if ((lifted.load(std::memory_order_acquire) & bit) == 0) {
    lift_limits(run_in_blocks<Kernel>, Kernel::most_scratch_bytes);
    lifted.fetch_or(bit, std::memory_order_release);
  }
  LaunchConfiguration at(launch, exec.cuda_stream());
  require_cuda(cudaLaunchKernelEx(&at.configuration, run_in_blocks<Kernel>, kernel),
               "cudaLaunchKernelEx");
}

/// Does nothing; the device is asked how many blocks of it run at once.
template <int Warps>
struct EmptyKernel {
  static constexpr int most_threads = 32 * Warps;
  static constexpr int blocks_per_unit = 1;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(const BlockContext&) const {}
};

template <class ExecutionSpace>
[[nodiscard]] const ClusterCapacity& cluster_capacity(const ExecutionSpace& exec) {
  constexpr int most_devices = 64;
  static std::array<std::once_flag, most_devices> asked;
  static std::array<ClusterCapacity, most_devices> answers;
  const int device = exec.cuda_device();
  require(device < most_devices, ErrorCode::unsupported, "plan_decode: device number is ", device,
          ", expected less than ", most_devices);
  const auto index = static_cast<std::size_t>(device);
  std::call_once(asked[index], [&] {
    const CurrentDevice current(device);
    int per_unit = 0;
    int reserved = 0;
    require_cuda(
        cudaDeviceGetAttribute(&per_unit, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device),
        "cudaDeviceGetAttribute");
    require_cuda(cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, device),
                 "cudaDeviceGetAttribute");
    auto* const kernel = run_in_blocks<EmptyKernel<4>>;
    for (int fit = 1; fit < static_cast<int>(answers[index].blocks.size()); ++fit) {
      // As much memory as lets no more than `fit` blocks onto a multiprocessor.
      BlockLaunch launch;
      launch.items = 1;
      launch.warps = 4;
      launch.scratch_bytes = static_cast<std::size_t>((per_unit / fit - reserved) / 1024 * 1024);
      lift_limits(kernel, launch.scratch_bytes);
      for (int cluster = 1; cluster <= most_cluster_blocks; ++cluster) {
        launch.cluster = cluster;
        LaunchConfiguration at(launch, nullptr);
        int blocks = 0;
        cudaError_t error = cudaSuccess;
        if (cluster == 1) {
          int units = 0;
          error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 128,
                                                                launch.scratch_bytes);
          require_cuda(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device),
                       "cudaDeviceGetAttribute");
          blocks *= units;
        } else {
          error = cudaOccupancyMaxActiveClusters(&blocks, kernel, &at.configuration);
          blocks *= cluster;
        }
        if (error != cudaSuccess) {
          static_cast<void>(cudaGetLastError());
          blocks = 0;
        }
        answers[index].blocks[static_cast<std::size_t>(fit)][static_cast<std::size_t>(cluster)] =
            blocks;
      }
    }
  });
  return answers[index];
}

#endif

}  // namespace turboquant::detail::cuda
