// Kokkos is needed but nobody has started it: an error, not an abort. Afterwards a program can
// still start it, use it, and learn the same after it has been stopped.

#include <turboquant/device/runtime.hpp>

#include "support/check.hpp"

#include <string>

namespace {

bool refused(const char* caller) {
  try {
    turboquant::require_initialized(caller);
  } catch (const turboquant::Error& error) {
    return error.code() == turboquant::ErrorCode::not_initialized &&
           std::string(error.what()).find(std::string(caller) + ": Kokkos is not initialised") == 0;
  }
  return false;
}

}  // namespace

int main() {
  check(!Kokkos::is_initialized(), "nothing starts Kokkos by itself");
  check(refused("append"), "use before initialisation is refused");
  {
    const turboquant::KokkosScope scope({.num_threads = 2});
    check(scope.owns_kokkos(), "the scope started Kokkos");
    check(!refused("append"), "use inside the scope is accepted");
    check(Kokkos::DefaultHostExecutionSpace().concurrency() <= 2, "the thread count is handed on");
    int sum = 0;
    Kokkos::parallel_reduce(
        "turboquant_test::sum", Kokkos::RangePolicy<Kokkos::DefaultHostExecutionSpace>(0, 100),
        [](int i, int& total) { total += i; }, sum);
    check(sum == 4950, "a kernel ran");
  }
  check(!Kokkos::is_initialized(), "the scope stopped what it started");
  check(refused("run_decode"), "use after finalisation is refused");
  if (turboquant::detail::kokkos_is_finalized()) {
    bool second_start_refused = false;
    try {
      const turboquant::KokkosScope again;
    } catch (const turboquant::Error& error) {
      second_start_refused = error.code() == turboquant::ErrorCode::not_initialized;
    }
    check(second_start_refused, "a Kokkos that cannot start twice is reported");
  } else {
    const turboquant::KokkosScope again;
    check(again.owns_kokkos(), "a Kokkos that can start twice does");
  }
  return 0;
}
