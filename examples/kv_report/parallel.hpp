#pragma once

// Independent tasks on the host's threads.

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <exception>
#include <vector>

namespace kv_report {

/// Calls `task(i)` for every i below `count` on the default host execution space and waits. Every
/// task runs; the exception of the lowest failed one is rethrown.
template <class Task>
void for_each_task(std::size_t count, const Task& task) {
  using Space = Kokkos::DefaultHostExecutionSpace;
  std::vector<std::exception_ptr> failures(count);
  const auto guarded = [&](const std::size_t i) {
    // An exception must not leave a parallel region.
    try {
      task(i);
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  const Kokkos::RangePolicy<Space, Kokkos::Schedule<Kokkos::Dynamic>,
                            Kokkos::IndexType<std::size_t>>
      policy(Space(), 0, count);
  Kokkos::parallel_for("kv_report::for_each_task", policy, guarded);
  Space().fence();
  for (const std::exception_ptr& failure : failures) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }
}

}  // namespace kv_report
