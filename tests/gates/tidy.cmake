# cmake -DROOT=<repository> -DBUILD=<configured build folder> -P tidy.cmake
#
# clang-tidy 14 over every public header, all at once through the umbrella header.
cmake_minimum_required(VERSION 3.25)

find_program(tidy NAMES clang-tidy-14 clang-tidy)
if(NOT tidy)
  message(FATAL_ERROR "tidy: clang-tidy 14 is not installed")
endif()
set(source "${BUILD}/tests/gates/alone/turboquant_turboquant_hpp.cpp")
if(NOT EXISTS "${source}")
  message(FATAL_ERROR "tidy: there is no ${source}; configure a complete build in ${BUILD} first")
endif()
execute_process(
  COMMAND "${tidy}" -p "${BUILD}" --quiet "--config-file=${ROOT}/.clang-tidy" "${source}"
  RESULT_VARIABLE code
  OUTPUT_VARIABLE text
  ERROR_QUIET)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "tidy:\n${text}")
endif()
message(STATUS "tidy: all headers")
