#include <turboquant/base/config.hpp>
#include <turboquant/math/lloyd_max.hpp>

#ifndef CONSUMER_OWN_KOKKOS
#error "TurboQuant::turboquant does not use the Kokkos::kokkos of the parent"
#endif
static_assert(__cplusplus >= 202002L, "users of the library get the standard that it needs");

int of_the_parent();

int main() {
  return turboquant::lloyd_max(64, 3).codebook.levels() == 8 ? of_the_parent() : 1;
}
