# Options, and what follows from being the top-level project or a part of another one.

include(GNUInstallDirs)

option(TURBOQUANT_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TURBOQUANT_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(TURBOQUANT_BUILD_BENCH "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(TURBOQUANT_INSTALL "Generate install rules" ${PROJECT_IS_TOP_LEVEL})

set(TURBOQUANT_KOKKOS
    ON
    CACHE STRING "TurboQuant::turboquant (needs Kokkos): ON requires it, OFF never looks, AUTO takes it if it is there")
set(TURBOQUANT_HF
    ON
    CACHE STRING "TurboQuant::hf (needs nlohmann-json): ON requires it, OFF never looks, AUTO takes it if it is there")
option(TURBOQUANT_ALLOW_SERIAL_KOKKOS "Accept a Kokkos that has only the Serial backend" OFF)
set_property(CACHE TURBOQUANT_KOKKOS PROPERTY STRINGS ON OFF AUTO)
set_property(CACHE TURBOQUANT_HF PROPERTY STRINGS ON OFF AUTO)

# A single-configuration build without a type would measure and test unoptimised code.
get_property(turboquant_multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(PROJECT_IS_TOP_LEVEL
   AND NOT turboquant_multi_config
   AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE
      Release
      CACHE STRING "Build type" FORCE)
endif()
