#pragma once

/// @file
/// Timing of kernels by events, and the JSON of what was timed, for the benches of accelerators.

#include <turboquant/device/arch/cuda_target.hpp>
#include <turboquant/device/runtime.hpp>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace turboquant_bench {

/// The steps of a bench as JSON; one line each.
class StepRecord {
 public:
  explicit StepRecord(const std::string& device)
      : text_("{\n  \"device\": \"" + device + "\",\n  \"steps\": [") {}

  /// Adds a step.
  /// @param fields its JSON fields but for the name, as `printf` takes them
  void add(const std::string& name, const char* fields, ...) {
    char line[1024];
    std::va_list values;
    va_start(values, fields);
    std::vsnprintf(line, sizeof(line), fields, values);
    va_end(values);
    text_ += (first_ ? "\n    {\"name\": \"" : ",\n    {\"name\": \"") + name + "\", " + line + "}";
    first_ = false;
  }

  /// Writes the file, if there is a name for it.
  /// @return whether that went well
  [[nodiscard]] bool write(const char* path) const {
    if (path == nullptr) {
      return true;
    }
    std::FILE* const file = std::fopen(path, "w");
    const bool written = file != nullptr && std::fputs((text_ + "\n  ]\n}\n").c_str(), file) >= 0;
    if (file == nullptr || std::fclose(file) != 0 || !written) {
      std::fprintf(stderr, "--json: cannot write %s\n", path);
      return false;
    }
    return true;
  }

 private:
  std::string text_;
  bool first_ = true;
};

#if TURBOQUANT_CUDA

inline void require_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::exit(2);
  }
}

/// Times what is put into a stream.
class DeviceTimer {
 public:
  explicit DeviceTimer(cudaStream_t stream) : stream_(stream) {
    require_cuda(cudaEventCreate(&start_), "event");
    require_cuda(cudaEventCreate(&stop_), "event");
  }
  DeviceTimer(const DeviceTimer&) = delete;
  DeviceTimer& operator=(const DeviceTimer&) = delete;
  ~DeviceTimer() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }

  /// Microseconds a call: the median of 7 rounds of `repeats` calls, after one that does not count.
  template <class Call>
  [[nodiscard]] double median_us(int repeats, const Call& call) const {
    std::vector<double> rounds;
    for (int round = 0; round < 8; ++round) {
      require_cuda(cudaEventRecord(start_, stream_), "record");
      for (int i = 0; i < repeats; ++i) {
        call();
      }
      require_cuda(cudaEventRecord(stop_, stream_), "record");
      require_cuda(cudaEventSynchronize(stop_), "synchronize");
      float ms = 0;
      require_cuda(cudaEventElapsedTime(&ms, start_, stop_), "elapsed");
      if (round > 0) {
        rounds.push_back(1e3 * static_cast<double>(ms) / repeats);
      }
    }
    std::sort(rounds.begin(), rounds.end());
    return rounds[rounds.size() / 2];
  }

  /// The same of calls 0 to `steps` - 1, back to back in a CUDA graph.
  template <class Step>
  [[nodiscard]] double median_us_of_graph(std::int64_t steps, int repeats, const Step& step) const {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    require_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "capture");
    for (std::int64_t i = 0; i < steps; ++i) {
      step(i);
    }
    require_cuda(cudaStreamEndCapture(stream_, &graph), "capture");
    require_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    const double us =
        median_us(repeats, [&] { require_cuda(cudaGraphLaunch(executable, stream_), "launch"); });
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    return us / static_cast<double>(steps);
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
};

/// Runs a bench with Kokkos and a stream, and writes what it recorded; or says that there is no
/// device.
/// @param major  compute capability that it needs at least
/// @param run    called with (stream, record); whether all went well
/// @return the program's exit status
template <class Run>
[[nodiscard]] int run_on_device(const char* json, int major, const Run& run) {
  if (int devices = 0; cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("skipped: no device");
    return 0;
  }
  cudaDeviceProp properties{};
  require_cuda(cudaGetDeviceProperties(&properties, 0), "properties");
  if (properties.major < major) {
    std::printf("skipped: needs compute capability %d.0\n", major);
    return 0;
  }
  const turboquant::KokkosScope kokkos;
  cudaStream_t stream = nullptr;
  require_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  StepRecord record(properties.name);
  const bool well = run(stream, record);
  cudaStreamDestroy(stream);
  return record.write(json) && well ? 0 : 2;
}

#endif

}  // namespace turboquant_bench
