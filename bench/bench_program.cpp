#include "bench_program.hpp"

#include <turboquant/base/error.hpp>
#include <turboquant/device/kokkos_compat.hpp>
#include <turboquant/device/runtime.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace turboquant_bench {

namespace {

/// The processor's name where the system tells it.
std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

void add_context() {
  const Kokkos::DefaultHostExecutionSpace exec;
  benchmark::AddCustomContext("processor", processor());
  benchmark::AddCustomContext("kokkos", std::to_string(KOKKOS_VERSION) + " " +
                                            Kokkos::DefaultHostExecutionSpace::name() + ", " +
                                            std::to_string(exec.concurrency()) + " threads");
  benchmark::AddCustomContext("compiler", TURBOQUANT_BENCH_COMPILER);
  benchmark::AddCustomContext("flags", TURBOQUANT_BENCH_FLAGS);
  benchmark::AddCustomContext("commit", TURBOQUANT_BENCH_COMMIT);
}

}  // namespace

int run_program(int argc, char** argv, const char* default_filter, void (*add_benchmarks)()) {
  std::string filter = std::string("--benchmark_filter=") + default_filter;
  std::vector<char*> arguments(argv, argv + argc);
  const bool chosen = std::any_of(arguments.begin(), arguments.end(), [](const char* argument) {
    return std::string_view(argument).rfind("--benchmark_filter", 0) == 0;
  });
  if (!chosen) {
    arguments.push_back(filter.data());
  }
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) {
    return 1;
  }
  try {
    const turboquant::KokkosScope kokkos;
    add_context();
    add_benchmarks();
    benchmark::RunSpecifiedBenchmarks();
  } catch (const turboquant::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  benchmark::Shutdown();
  return 0;
}

void Stopwatch::start() {
  cpu_start_ = std::clock();
  start_ = std::chrono::steady_clock::now();
}

void Stopwatch::stop() {
  const auto end = std::chrono::steady_clock::now();
  const std::clock_t cpu_end = std::clock();
  seconds_.push_back(std::chrono::duration<double>(end - start_).count());
  cpu_seconds_.push_back(static_cast<double>(cpu_end - cpu_start_) / CLOCKS_PER_SEC);
}

IterationTimes Stopwatch::times() const {
  const auto median = [](std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  };
  return {median(seconds_), *std::min_element(seconds_.begin(), seconds_.end()),
          median(cpu_seconds_)};
}

}  // namespace turboquant_bench
