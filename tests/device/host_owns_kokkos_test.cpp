// A program that runs Kokkos itself: the library never stops it, and a scope that outlives the
// program's own finalisation does not stop it twice.

#include <turboquant/device/runtime.hpp>

#include "support/check.hpp"

#include <optional>

int main(int argc, char** argv) {
  Kokkos::initialize(argc, argv);
  std::optional<turboquant::KokkosScope> outlives;
  outlives.emplace();
  {
    const turboquant::KokkosScope inner;
    check(!inner.owns_kokkos(), "the program owns Kokkos");
  }
  check(Kokkos::is_initialized(), "leaving a scope leaves Kokkos running");
  Kokkos::finalize();
  outlives.reset();
  check(!Kokkos::is_initialized(), "Kokkos was stopped by its owner");
  return 0;
}
