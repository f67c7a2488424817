// Objects with static storage outlive main. A scope and an allocation among them, in this order,
// end without a crash: the allocation dies first, then Kokkos is stopped.

#include <turboquant/device/runtime.hpp>

#include "support/check.hpp"

#include <memory>

namespace {

using Buffer = Kokkos::View<double*, Kokkos::HostSpace>;

turboquant::KokkosScope& static_scope() {
  static turboquant::KokkosScope scope;
  return scope;
}

Buffer& static_buffer() {
  static Buffer buffer("turboquant_test::buffer", 1000);
  return buffer;
}

struct AfterEverything {
  ~AfterEverything() {
    check(!Kokkos::is_initialized(), "Kokkos was stopped before the last static object");
  }
};

const AfterEverything after_everything;

}  // namespace

int main() {
  check(static_scope().owns_kokkos(), "the static scope started Kokkos");
  Buffer& buffer = static_buffer();
  Kokkos::parallel_for("turboquant_test::fill",
                       Kokkos::RangePolicy<Kokkos::DefaultHostExecutionSpace>(0, 1000),
                       [=](int i) { buffer(i) = i; });
  Kokkos::fence();
  check(buffer(999) == 999.0, "the static buffer is usable");
  return 0;
}
