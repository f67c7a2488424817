#pragma once

#include <vector>

namespace turboquant_bench {

/// Starts Kokkos, puts machine, Kokkos and commit into the output's context and runs what
/// `add_benchmarks` registers.
///
/// @param default_filter what runs where the command line has no --benchmark_filter
int run_program(int argc, char** argv, const char* default_filter, void (*add_benchmarks)());

/// Seconds of every iteration.
struct IterationTimes {
  double median = 0;
  double minimum = 0;
};
/// @param seconds (iterations), not empty; is reordered
IterationTimes iteration_times(std::vector<double>& seconds);

}  // namespace turboquant_bench
