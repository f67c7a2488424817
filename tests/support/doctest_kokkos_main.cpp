#include <turboquant/device/runtime.hpp>

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

int main(int argc, char** argv) {
  const turboquant::KokkosScope kokkos;
  doctest::Context context(argc, argv);
  return context.run();
}
