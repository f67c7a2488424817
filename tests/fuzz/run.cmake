# cmake -DBUILD=<build folder of the preset fuzz> [-DSECONDS=60] [-DONLY=<regular expression>] [-DJOBS=2] -P run.cmake
#
# Every libFuzzer program for SECONDS, JOBS at a time, from its kept corpus; new inputs go to the build folder. A crash
# leaves its input in BUILD/fuzz, to be added to tests/fuzz/corpus with the fix.
cmake_minimum_required(VERSION 3.25)

if(NOT SECONDS)
  set(SECONDS 60)
endif()
if(NOT JOBS)
  set(JOBS 2)
endif()
get_filename_component(BUILD "${BUILD}" ABSOLUTE)
# Every program is one thread, whatever Kokkos would do.
set(ENV{OMP_NUM_THREADS} 1)

# One program: the script calls itself, JOBS times at once.
if(PROGRAM)
  get_filename_component(name "${PROGRAM}" NAME)
  string(REPLACE "fuzz_" "" name "${name}")
  file(MAKE_DIRECTORY "${BUILD}/fuzz/${name}")
  execute_process(
    COMMAND "${PROGRAM}" -max_total_time=${SECONDS} -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
            "-artifact_prefix=${BUILD}/fuzz/${name}-" "${BUILD}/fuzz/${name}" "${CMAKE_CURRENT_LIST_DIR}/corpus/${name}"
    RESULT_VARIABLE code
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text)
  if(NOT code EQUAL 0)
    string(LENGTH "${text}" length)
    if(length GREATER 3000)
      math(EXPR from "${length} - 3000")
      string(SUBSTRING "${text}" ${from} -1 text)
    endif()
    message(FATAL_ERROR "fuzz ${name}:\n${text}")
  endif()
  string(REGEX MATCH "number_of_executed_units: *([0-9]+)" unused "${text}")
  message(STATUS "fuzz ${name}: ${CMAKE_MATCH_1} runs, no crash")
  return()
endif()

file(GLOB programs "${BUILD}/tests/fuzz/fuzz_*")
if(ONLY)
  list(FILTER programs INCLUDE REGEX "/fuzz_[^/]*${ONLY}")
endif()
list(JOIN programs "\n" lines)
file(WRITE "${BUILD}/fuzz/programs.txt" "${lines}\n")
find_program(xargs xargs REQUIRED)
execute_process(
  COMMAND "${xargs}" -P ${JOBS} -I {} "${CMAKE_COMMAND}" "-DBUILD=${BUILD}" -DSECONDS=${SECONDS} -DPROGRAM={} -P
          "${CMAKE_CURRENT_LIST_FILE}"
  INPUT_FILE "${BUILD}/fuzz/programs.txt"
  RESULT_VARIABLE code)
list(LENGTH programs count)
if(count EQUAL 0 OR NOT code EQUAL 0)
  message(FATAL_ERROR "fuzz: of ${count} programs some failed")
endif()
message(STATUS "fuzz: ${count} programs, no crash")
