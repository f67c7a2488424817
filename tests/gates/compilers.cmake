# cmake -DBUILD=<complete build folder> -DCOMPILERS=<compiler>,... [-DSTANDARDS=c++20,c++23]
#       [-DTARGETS=core,hf,turboquant] [-DFLAGS=<flag>,...] -P compilers.cmake
#
# All headers with every warning an error under more compilers than the one of the build: as they are, behind
# hostile macros, and without run-time type information (not with Kokkos, which needs it). Not a part of the tests, because a machine has one or two
# compilers; about 20 s for a compiler and standard.
cmake_minimum_required(VERSION 3.25)

if(NOT DEFINED STANDARDS)
  set(STANDARDS c++20,c++23)
endif()
if(NOT DEFINED TARGETS)
  set(TARGETS core,hf,turboquant)
endif()
if(FLAGS)
  set(FLAGS ",${FLAGS}")
endif()
foreach(list COMPILERS STANDARDS TARGETS)
  string(REPLACE "," ";" ${list} "${${list}}")
endforeach()

set(failed "")
set(passed 0)
foreach(compiler IN LISTS COMPILERS)
  find_program(program NAMES "${compiler}" NO_CACHE REQUIRED)
  foreach(standard IN LISTS STANDARDS)
    # Compilers before g++ 11 and clang 17 know C++23 by its draft's name only.
    string(REPLACE c++23 c++2b flag "-std=${standard}")
    foreach(target IN LISTS TARGETS)
      foreach(case everything hostile_macros everything,-fno-rtti)
        if(target STREQUAL "turboquant" AND case MATCHES "rtti")
          continue()
        endif()
        string(REGEX MATCH "^[a-z_]+" source "${case}")
        string(REGEX MATCH ",.*$" more "${case}")
        execute_process(
          COMMAND
            "${CMAKE_COMMAND}" "-DCOMPILER=${program}"
            "-DSETTINGS=${BUILD}/tests/gates/flags_${target}.cmake"
            "-DSOURCE=${CMAKE_CURRENT_LIST_DIR}/compile/${source}.cpp" "-DFLAGS=${flag}${more}${FLAGS}" -P
            "${CMAKE_CURRENT_LIST_DIR}/compile.cmake"
          RESULT_VARIABLE code
          ERROR_VARIABLE text)
        set(name "${compiler} ${standard} ${target} ${case}")
        if(code EQUAL 0)
          math(EXPR passed "${passed} + 1")
          message(STATUS "${name}: clean")
        else()
          list(APPEND failed "${name}")
          message(STATUS "${name}: FAILED\n${text}")
        endif()
      endforeach()
    endforeach()
  endforeach()
  unset(program)
endforeach()
if(failed)
  list(JOIN failed "\n  " failed)
  message(FATAL_ERROR "compilers:\n  ${failed}")
endif()
message(STATUS "compilers: ${passed} clean")
