# cmake -DROOT=<repository> -DBUILD=<configured build folder> [-DCHANGED_SINCE=<commit>] -P tidy.cmake
#
# clang-tidy 14 over every public header, through the source file that includes it alone. With CHANGED_SINCE
# only the headers that differ from that commit are read.
cmake_minimum_required(VERSION 3.25)

find_program(tidy NAMES clang-tidy-14 clang-tidy)
if(NOT tidy)
  message(FATAL_ERROR "tidy: clang-tidy 14 is not installed")
endif()
file(GLOB sources "${BUILD}/tests/gates/alone/*.cpp")
if(CHANGED_SINCE)
  execute_process(
    COMMAND git -C "${ROOT}" diff --name-only "${CHANGED_SINCE}" -- include
    OUTPUT_VARIABLE changed
    RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "tidy: there is no commit ${CHANGED_SINCE}")
  endif()
  string(REPLACE "\n" ";" changed "${changed}")
  set(wanted "")
  foreach(header IN LISTS changed)
    string(REPLACE "include/" "" header "${header}")
    string(MAKE_C_IDENTIFIER "${header}" name)
    list(APPEND wanted "${BUILD}/tests/gates/alone/${name}.cpp")
  endforeach()
  set(present ${sources})
  set(sources "")
  foreach(source IN LISTS wanted)
    if(source IN_LIST present)
      list(APPEND sources "${source}")
    endif()
  endforeach()
endif()
list(LENGTH sources count)
if(count EQUAL 0)
  if(NOT CHANGED_SINCE)
    message(FATAL_ERROR "tidy: nothing to read below ${BUILD}")
  endif()
  message(STATUS "tidy: no header changed")
  return()
endif()

cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
file(WRITE "${BUILD}/tidy_sources.txt" "")
foreach(source IN LISTS sources)
  file(APPEND "${BUILD}/tidy_sources.txt" "${source}\n")
endforeach()
execute_process(
  COMMAND xargs -d "\\n" -n 1 -P ${cores} "${tidy}" -p "${BUILD}" --quiet
          "--config-file=${ROOT}/.clang-tidy"
  INPUT_FILE "${BUILD}/tidy_sources.txt"
  RESULT_VARIABLE code
  OUTPUT_VARIABLE text
  ERROR_QUIET)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "tidy:\n${text}")
endif()
message(STATUS "tidy: ${count} headers")
