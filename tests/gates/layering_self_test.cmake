# cmake -DWORK=<folder> -P layering_self_test.cmake
#
# Shows layering.cmake one small tree that is in order and, for each rule, one that breaks only that rule.
cmake_minimum_required(VERSION 3.25)

set(gate "${CMAKE_CURRENT_LIST_DIR}/layering.cmake")
set(failures 0)
set(cases 0)

function(put path)
  string(JOIN "\n" text "#pragma once" ${ARGN} "")
  file(WRITE "${WORK}/tree/turboquant/${path}" "${text}")
endfunction()

# A tree with one header a layer.
macro(begin)
  file(REMOVE_RECURSE "${WORK}/tree")
  put(base/config.hpp "#if defined(A)" "#endif" "#include <cstdint>")
  put(base/error.hpp "#include <turboquant/base/config.hpp>")
  put(math/rotation.hpp "#include <turboquant/base/error.hpp>" "#include <Eigen/QR>")
  put(quant/mse.hpp "#include <turboquant/math/rotation.hpp>" "#include <Eigen/Core>")
  put(model/hf_config.hpp "#include <nlohmann/json.hpp>" "#include <turboquant/base/error.hpp>")
  put(io/safetensors.hpp "#include <nlohmann/json.hpp>")
  put(device/views.hpp "#include <Kokkos_Core.hpp>" "#include <turboquant/math/rotation.hpp>")
  put(cache/store.hpp "#include <turboquant/device/views.hpp>" "#include <turboquant/quant/mse.hpp>")
  put(attention/plan.hpp "#include <turboquant/device/views.hpp>")
  put(runtime/manager.hpp "#include <turboquant/attention/plan.hpp>" "#include <turboquant/cache/store.hpp>")
  put(turboquant.hpp
      "#include <turboquant/base/config.hpp>"
      "#include <turboquant/base/error.hpp>"
      "#include <turboquant/math/rotation.hpp>"
      "#include <turboquant/quant/mse.hpp>"
      "#include <turboquant/model/hf_config.hpp>"
      "#include <turboquant/io/safetensors.hpp>"
      "#include <turboquant/device/views.hpp>"
      "#include <turboquant/cache/store.hpp>"
      "#include <turboquant/attention/plan.hpp>"
      "#include <turboquant/runtime/manager.hpp>")
endmacro()

# expect(<what> <pattern>): the gate must fail with a message that matches; an empty pattern means that it
# must pass.
macro(expect what pattern)
  math(EXPR cases "${cases} + 1")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" "-DROOT=${WORK}/tree" -P "${gate}"
    RESULT_VARIABLE code
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if("${pattern}" STREQUAL "")
    set(right FALSE)
    if(code EQUAL 0)
      set(right TRUE)
    endif()
  else()
    set(right FALSE)
    if(NOT code EQUAL 0 AND output MATCHES "${pattern}")
      set(right TRUE)
    endif()
  endif()
  if(NOT right)
    message(STATUS "not noticed: ${what}: ${output}")
    math(EXPR failures "${failures} + 1")
  endif()
endmacro()

begin()
expect("a tree in order" "")

foreach(
  pair
  "base/error.hpp|math/rotation.hpp|layer base does not reach math"
  "math/rotation.hpp|quant/mse.hpp|layer math does not reach quant"
  "quant/mse.hpp|model/hf_config.hpp|layer quant does not reach model"
  "model/hf_config.hpp|math/rotation.hpp|layer model does not reach math"
  "model/hf_config.hpp|io/safetensors.hpp|layer model does not reach io"
  "io/safetensors.hpp|model/hf_config.hpp|layer io does not reach model"
  "device/views.hpp|quant/mse.hpp|layer device does not reach quant"
  "device/views.hpp|model/hf_config.hpp|layer device does not reach model"
  "cache/store.hpp|attention/plan.hpp|layer cache does not reach attention"
  "attention/plan.hpp|cache/store.hpp|layer attention does not reach cache"
  "cache/store.hpp|runtime/manager.hpp|layer cache does not reach runtime"
  "runtime/manager.hpp|turboquant.hpp|the umbrella header is for users only"
  "base/error.hpp|base/missing.hpp|there is no such header")
  string(REPLACE "|" ";" pair "${pair}")
  list(GET pair 0 from)
  list(GET pair 1 to)
  list(GET pair 2 message)
  begin()
  file(APPEND "${WORK}/tree/turboquant/${from}" "#include <turboquant/${to}>\n")
  expect("${from} includes ${to}" "${message}")
endforeach()

foreach(
  pair
  "device/views.hpp|#include <Eigen/Core>|Eigen does not belong here"
  "math/rotation.hpp|#include <Kokkos_Core.hpp>|Kokkos does not belong here"
  "quant/mse.hpp|#include <Kokkos_Core.hpp>|Kokkos does not belong here"
  "base/error.hpp|#include <Eigen/Core>|Eigen does not belong here"
  "math/rotation.hpp|#include <nlohmann/json.hpp>|nlohmann does not belong here"
  "cache/store.hpp|#include <nlohmann/json.hpp>|nlohmann does not belong here"
  "cache/store.hpp|#include <Eigen/Core>|Eigen does not belong here"
  "base/error.hpp|#include <boost/any.hpp>|neither the standard library"
  "base/error.hpp|#include <unistd.h>|neither the standard library"
  "quant/mse.hpp|#include \"mse_detail.hpp\"|quoted include"
  "quant/mse.hpp|  #  include  \"mse_detail.hpp\"|quoted include"
  "quant/mse.hpp|#include TURBOQUANT_HEADER|not a plain include"
  "quant/mse.hpp|#if defined(__AVX2__)|conditional compilation"
  "quant/mse.hpp|#ifdef __AVX2__|conditional compilation"
  "quant/mse.hpp|# ifndef GUARD|conditional compilation"
  "device/views.hpp|#if KOKKOS_VERSION > 40000|conditional compilation")
  string(REPLACE "|" ";" pair "${pair}")
  list(GET pair 0 file)
  list(GET pair 1 line)
  list(GET pair 2 message)
  begin()
  file(APPEND "${WORK}/tree/turboquant/${file}" "${line}\n")
  expect("${file} with ${line}" "${message}")
endforeach()

begin()
put(device/arch/avx512.hpp "#if defined(__AVX512F__)" "#include <immintrin.h>" "#endif")
put(device/kokkos_compat.hpp "#if KOKKOS_VERSION > 1" "#endif")
file(APPEND "${WORK}/tree/turboquant/turboquant.hpp"
     "#include <turboquant/device/arch/avx512.hpp>\n#include <turboquant/device/kokkos_compat.hpp>\n")
expect("conditionals where they belong" "")

begin()
file(APPEND "${WORK}/tree/turboquant/quant/mse.hpp" "// #include \"note.hpp\"\n/// #if in a comment\n")
expect("preprocessor lines in comments" "")

begin()
put(base/a.hpp "#include <turboquant/base/b.hpp>")
put(base/b.hpp "#include <turboquant/base/a.hpp>")
file(APPEND "${WORK}/tree/turboquant/turboquant.hpp"
     "#include <turboquant/base/a.hpp>\n#include <turboquant/base/b.hpp>\n")
expect("a circle" "circle of includes")

begin()
put(base/itself.hpp "#include <turboquant/base/itself.hpp>")
file(APPEND "${WORK}/tree/turboquant/turboquant.hpp" "#include <turboquant/base/itself.hpp>\n")
expect("a header that includes itself" "circle of includes")

begin()
string(REPEAT "//\n" 400 many)
file(APPEND "${WORK}/tree/turboquant/base/error.hpp" "${many}")
expect("a long header" "at most 400")

begin()
file(WRITE "${WORK}/tree/turboquant/base/error.hpp" "#include <cstdint>\n")
expect("no #pragma once" "#pragma once is missing")

begin()
put(base/forgotten.hpp)
expect("a header outside the umbrella" "does not include base/forgotten.hpp")

begin()
put(utilities/things.hpp)
expect("a folder that is no layer" "utilities is not a layer")

begin()
file(WRITE "${WORK}/tree/turboquant/base/error.cpp" "int x;\n")
expect("a source file among the headers" "only .hpp files belong here")

begin()
file(REMOVE "${WORK}/tree/turboquant/turboquant.hpp")
expect("no umbrella" "the umbrella header is missing")

file(REMOVE_RECURSE "${WORK}/tree")
if(failures)
  message(FATAL_ERROR "layering self-test: ${failures} of ${cases} trees judged wrongly")
endif()
message(STATUS "layering self-test: ${cases} trees judged rightly")
