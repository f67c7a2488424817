# cmake -DBUILD=<build folder of the preset fuzz> [-DSECONDS=60] [-DONLY=<regular expression>] -P run.cmake
#
# Every libFuzzer program for SECONDS, from its kept corpus; new inputs go to the build folder. A crash leaves its
# input in BUILD/fuzz, to be added to tests/fuzz/corpus with the fix.
cmake_minimum_required(VERSION 3.25)

if(NOT SECONDS)
  set(SECONDS 60)
endif()
get_filename_component(BUILD "${BUILD}" ABSOLUTE)
file(GLOB programs "${BUILD}/tests/fuzz/fuzz_*")
set(failed "")
set(count 0)
foreach(program IN LISTS programs)
  get_filename_component(name "${program}" NAME)
  string(REPLACE "fuzz_" "" name "${name}")
  if(ONLY AND NOT name MATCHES "${ONLY}")
    continue()
  endif()
  file(MAKE_DIRECTORY "${BUILD}/fuzz/${name}")
  execute_process(
    COMMAND "${program}" -max_total_time=${SECONDS} -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
            "-artifact_prefix=${BUILD}/fuzz/${name}-" "${BUILD}/fuzz/${name}" "${CMAKE_CURRENT_LIST_DIR}/corpus/${name}"
    RESULT_VARIABLE code
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text)
  math(EXPR count "${count} + 1")
  if(code EQUAL 0)
    string(REGEX MATCH "number_of_executed_units: *([0-9]+)" unused "${text}")
    message(STATUS "fuzz ${name}: ${CMAKE_MATCH_1} runs, no crash")
  else()
    list(APPEND failed "${name}")
    string(LENGTH "${text}" length)
    math(EXPR from "${length} - 3000")
    if(from GREATER 0)
      string(SUBSTRING "${text}" ${from} -1 text)
    endif()
    message(STATUS "fuzz ${name}: FAILED\n${text}")
  endif()
endforeach()
if(failed OR count EQUAL 0)
  message(FATAL_ERROR "fuzz: ${count} programs, failed: ${failed}")
endif()
