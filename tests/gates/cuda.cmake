# cmake -DROOT=<repository> [-DBUILD=<configured build folder>] [-DKOKKOS=<prefix>] [-DARCHES="80;90a;100"]
#       [-DWORK=<folder for object files>] -P cuda.cmake
#
# Compiles CUDA sources to object files with nvcc, for machines without a device. With a Kokkos that has
# CUDA (KOKKOS or the environment's Kokkos_ROOT) these are the device benches, which instantiate every
# kernel of encoding and decode attention. With the build's Kokkos for processors alone nvcc still compiles
# the headers with kernels and checks what their functions may call. Without nvcc a line says that nothing was done.
cmake_minimum_required(VERSION 3.25)

if(NOT DEFINED ARCHES)
  set(ARCHES 80 90a 100)
endif()
if(NOT DEFINED WORK)
  set(WORK "${ROOT}/build/cuda_objects")
endif()
find_program(nvcc nvcc PATHS /usr/local/cuda/bin)
if(NOT nvcc)
  message(STATUS "cuda: skipped: no nvcc")
  return()
endif()

# The include folder of a Kokkos prefix, and whether that Kokkos has CUDA.
function(read_kokkos prefix out_include out_cuda)
  set(include "${prefix}/include")
  if(EXISTS "${include}/kokkos/KokkosCore_config.h")
    set(include "${include}/kokkos")
  endif()
  set(cuda OFF)
  if(EXISTS "${include}/KokkosCore_config.h")
    file(STRINGS "${include}/KokkosCore_config.h" lines REGEX "^#define KOKKOS_ENABLE_CUDA$")
    if(lines)
      set(cuda ON)
    endif()
  else()
    set(include "")
  endif()
  set(${out_include} "${include}" PARENT_SCOPE)
  set(${out_cuda} "${cuda}" PARENT_SCOPE)
endfunction()

set(include "")
set(has_cuda OFF)
foreach(prefix "${KOKKOS}" "$ENV{Kokkos_ROOT}")
  if(NOT include AND prefix)
    read_kokkos("${prefix}" include has_cuda)
  endif()
endforeach()
if(NOT include AND EXISTS "${BUILD}/CMakeCache.txt")
  file(STRINGS "${BUILD}/CMakeCache.txt" line REGEX "^Kokkos_DIR:")
  string(REGEX REPLACE "^[^=]*=(.*)/lib[^/]*(/[^/]*)?/cmake/Kokkos$" "\\1" prefix "${line}")
  if(line)
    read_kokkos("${prefix}" include has_cuda)
  endif()
endif()
if(NOT include)
  message(STATUS "cuda: skipped: no Kokkos headers (-DKOKKOS=<prefix> names some)")
  return()
endif()

if(has_cuda)
  set(sources bench/decode_attention_device.cpp bench/encode_tiles_device.cpp)
else()
  message(STATUS "cuda: ${include} has no CUDA: headers only, no kernels")
  # The first line because nvcc once failed by what came before other headers.
  file(WRITE "${WORK}/headers.cpp"
       "#include <turboquant/math/ordered_sum.hpp>\n#include <turboquant/attention/decode.hpp>\n#include <turboquant/attention/scores.hpp>
#include <turboquant/device/encode_tiles.hpp>\n#include <turboquant/device/transcode.hpp>\n")
  set(sources "${WORK}/headers.cpp")
endif()
file(MAKE_DIRECTORY "${WORK}")
foreach(arch IN LISTS ARCHES)
  foreach(source IN LISTS sources)
    get_filename_component(name "${source}" NAME_WE)
    execute_process(
      COMMAND
        "${nvcc}" -std=c++20 -x cu -c -O3 -arch=sm_${arch} --expt-relaxed-constexpr --extended-lambda
        --Werror cross-execution-space-call -Xcompiler -fopenmp -I "${ROOT}/include" -I "${include}"
        "${source}" -o "${WORK}/${name}_sm_${arch}.o"
      WORKING_DIRECTORY "${ROOT}"
      RESULT_VARIABLE failed
      OUTPUT_VARIABLE text
      ERROR_VARIABLE text)
    if(failed)
      message(FATAL_ERROR "cuda: ${source} for sm_${arch}:\n${text}")
    endif()
    message(STATUS "cuda: ${source} for sm_${arch}")
  endforeach()
endforeach()
