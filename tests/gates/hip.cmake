# cmake -DKOKKOS_SOURCE=<source tree of Kokkos 4 or 5> -DWORK=<folder> [-DCOMPILER=clang++] [-DFLAGS=<flag>,...]
#       [-DARCHITECTURES=gfx90a,gfx942,gfx1100] [-DSOURCES=<file>,...] -P hip.cmake
#
# The device code for AMD GPUs: compiles the tests of encoding and attention that run on every execution space, the device
# side alone, and looks into the code objects: for the right processor, kernels of this library in them, and as
# many lanes a wave as that processor has (64 on gfx9, 32 on gfx10 to gfx12). Nothing is run.
#
# Needs a HIP compiler (clang with the ROCm device libraries; FLAGS may say where they are), HIP's headers, Eigen,
# JSON and doctest where the compiler finds them or by -isystem in FLAGS, and the llvm-readelf beside the compiler. Five to six minutes
# of processor time for an architecture.
cmake_minimum_required(VERSION 3.25)

include("${CMAKE_CURRENT_LIST_DIR}/../support/commands.cmake")
get_filename_component(root "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
if(NOT COMPILER)
  set(COMPILER clang++)
endif()
if(NOT ARCHITECTURES)
  set(ARCHITECTURES gfx90a,gfx942,gfx1100)
endif()
if(NOT SOURCES)
  set(SOURCES tests/device/encode_spaces_test.cpp,tests/attention/decode_spaces_test.cpp)
endif()
foreach(list ARCHITECTURES SOURCES FLAGS)
  string(REPLACE "," ";" ${list} "${${list}}")
endforeach()
find_program(compiler "${COMPILER}" REQUIRED)
get_filename_component(real "${compiler}" REALPATH)
get_filename_component(beside "${real}" DIRECTORY)
find_program(readelf llvm-readelf HINTS "${beside}" REQUIRED)
set(ENV{HIP_PLATFORM} amd)

set(failures "")
foreach(architecture IN LISTS ARCHITECTURES)
  # Kokkos' headers, configured for HIP and this processor; its library is not built.
  string(TOUPPER "${architecture}" upper)
  set(kokkos "${WORK}/kokkos_${architecture}")
  if(NOT EXISTS "${kokkos}/KokkosCore_config.h")
    string(REPLACE ";" " " cxx_flags "${FLAGS}")
    must_run("hip: configuring Kokkos for ${architecture}" "${CMAKE_COMMAND}" -S "${KOKKOS_SOURCE}" -B "${kokkos}"
        "-DCMAKE_CXX_COMPILER=${compiler}" "-DCMAKE_CXX_FLAGS=${cxx_flags}" -DCMAKE_CXX_STANDARD=20
        -DKokkos_ENABLE_HIP=ON -DKokkos_ENABLE_SERIAL=ON -DKokkos_ENABLE_ROCTHRUST=OFF
        "-DKokkos_ARCH_AMD_${upper}=ON")
  endif()
  set(includes "")
  foreach(folder "${kokkos}" "${kokkos}/core/src" "${KOKKOS_SOURCE}/core/src" "${KOKKOS_SOURCE}/containers/src"
                 "${KOKKOS_SOURCE}/algorithms/src" "${KOKKOS_SOURCE}/tpls/desul/include"
                 "${KOKKOS_SOURCE}/tpls/mdspan/include")
    list(APPEND includes -isystem "${folder}")
  endforeach()
  set(lanes 64)
  if(architecture MATCHES "^gfx1[0-2]")
    set(lanes 32)
  endif()

  foreach(source IN LISTS SOURCES)
    get_filename_component(name "${source}" NAME_WE)
    set(object "${WORK}/${name}_${architecture}.o")
    must_run("hip: compiling ${source} for ${architecture}" "${compiler}" -x hip "--offload-arch=${architecture}" -D__HIP_PLATFORM_AMD__
        -std=c++20 -O2 -Wall -Wextra -Werror -Wno-unused-command-line-argument ${FLAGS} -I "${root}/include" -I "${root}/tests"
        ${includes} -DKOKKOS_DEPENDENCE --offload-device-only --no-gpu-bundle-output -c "${root}/${source}" -o "${object}")
    must_run("hip: reading ${object}" "${readelf}" --file-header --notes "${object}")
    string(REGEX MATCHALL "\\.name: +[^\n]*turboquant[^\n]*" kernels "${must_run_text}")
    string(REGEX MATCHALL "\\.wavefront_size: +[0-9]+" waves "${must_run_text}")
    list(LENGTH kernels num_kernels)
    list(FILTER waves EXCLUDE REGEX ": +${lanes}$")
    if(NOT must_run_text MATCHES "Flags: [^\n]*${architecture}" OR num_kernels EQUAL 0 OR waves)
      list(APPEND failures "${name} for ${architecture}: ${num_kernels} kernels, other waves: ${waves}")
    endif()
    message(STATUS "hip: ${name} for ${architecture}: ${num_kernels} kernels of ${lanes} lanes a wave")
  endforeach()
endforeach()
if(failures)
  list(JOIN failures "\n  " failures)
  message(FATAL_ERROR "hip:\n  ${failures}")
endif()
