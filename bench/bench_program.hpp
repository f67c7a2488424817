#pragma once

#include <Kokkos_Core.hpp>

#include <chrono>
#include <ctime>
#include <vector>

namespace turboquant_bench {

/// Starts Kokkos, puts machine, Kokkos and commit into the output's context and runs what
/// `add_benchmarks` registers.
///
/// @param default_filter what runs where the command line has no --benchmark_filter
int run_program(int argc, char** argv, const char* default_filter, void (*add_benchmarks)());

/// The host's execution space of one thread, or its default one where this Kokkos has no other.
#if defined(KOKKOS_ENABLE_SERIAL)
using OneThread = Kokkos::Serial;
#else
using OneThread = Kokkos::DefaultHostExecutionSpace;
#endif

/// Seconds of an iteration.
struct IterationTimes {
  double median = 0;
  double minimum = 0;
  /// Median of the processor time of all threads: other programs on the machine hardly change it,
  /// waiting threads count.
  double cpu_median = 0;
};

/// Measures iterations one by one.
class Stopwatch {
 public:
  void start();
  void stop();
  /// After one iteration or more.
  [[nodiscard]] IterationTimes times() const;

 private:
  std::chrono::steady_clock::time_point start_{};
  std::clock_t cpu_start_ = 0;
  std::vector<double> seconds_;
  std::vector<double> cpu_seconds_;
};

}  // namespace turboquant_bench
