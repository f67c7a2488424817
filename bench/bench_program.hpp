#pragma once

#include <chrono>
#include <ctime>
#include <vector>

namespace turboquant_bench {

/// Starts Kokkos, puts machine, Kokkos and commit into the output's context and runs what
/// `add_benchmarks` registers.
///
/// @param default_filter what runs where the command line has no --benchmark_filter
int run_program(int argc, char** argv, const char* default_filter, void (*add_benchmarks)());

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
