// target: turboquant
// expect: use of deleted function|call to deleted constructor
#include <turboquant/device/runtime.hpp>

int main() {
  const turboquant::KokkosScope scope;
#ifndef MUST_COMPILE
  const turboquant::KokkosScope copy = scope;
  return copy.owns_kokkos() ? 1 : 0;
#else
  return scope.owns_kokkos() ? 1 : 0;
#endif
}
