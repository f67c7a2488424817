# cmake -DROOT=<repository> -P format.cmake
#
# Every C++ file is as clang-format 14 writes it. Other versions format differently, so none is accepted.
cmake_minimum_required(VERSION 3.25)

find_program(formatter NAMES clang-format-14 clang-format)
if(NOT formatter)
  message(FATAL_ERROR "format: clang-format 14 is not installed")
endif()
execute_process(COMMAND "${formatter}" --version OUTPUT_VARIABLE version)
if(NOT version MATCHES "version 14\\.")
  message(FATAL_ERROR "format: ${formatter} is not version 14: ${version}")
endif()
set(files "")
foreach(folder include examples tests bench)
  file(GLOB_RECURSE found "${ROOT}/${folder}/*.hpp" "${ROOT}/${folder}/*.cpp")
  list(APPEND files ${found})
endforeach()
execute_process(
  COMMAND "${formatter}" --dry-run --Werror ${files}
  RESULT_VARIABLE code
  ERROR_VARIABLE text)
list(LENGTH files count)
if(NOT code EQUAL 0)
  string(REGEX MATCHALL "[^\n]*error: code should be clang-formatted" places "${text}")
  list(TRANSFORM places REPLACE ":[0-9]+:[0-9]+: error.*" "")
  list(REMOVE_DUPLICATES places)
  list(JOIN places "\n  " places)
  message(FATAL_ERROR "format: clang-format would change\n  ${places}")
endif()
message(STATUS "format: ${count} files")
