#include "support/execution_spaces.hpp"

#include <turboquant/device/runtime.hpp>

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (turboquant::test::device_missing()) {
    std::puts("skipped: no device");
    return turboquant::test::skip_return_code;
  }
  const turboquant::KokkosScope kokkos;
  doctest::Context context(argc, argv);
  return context.run();
}
