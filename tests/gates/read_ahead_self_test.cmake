# cmake -DWORK=<folder> -P read_ahead_self_test.cmake
#
# What is read before a header that is compiled alone must be what the header includes: otherwise a forgotten include
# could not be noticed. Shows turboquant_read_ahead a small tree.
cmake_minimum_required(VERSION 3.25)

include("${CMAKE_CURRENT_LIST_DIR}/../../cmake/TurboQuantHeaders.cmake")
set(failures 0)
file(REMOVE_RECURSE "${WORK}")

function(put name)
  list(TRANSFORM ARGN REPLACE "^.+$" "#include <\\0>")
  string(JOIN "\n" text "#pragma once" ${ARGN} "")
  file(WRITE "${WORK}/turboquant/${name}" "${text}")
endfunction()

put(small.hpp vector)
put(large.hpp map turboquant/small.hpp)
put(forgets.hpp cstddef)
put(itself.hpp cstddef turboquant/small.hpp)
put(through.hpp turboquant/itself.hpp)
put(both.hpp turboquant/small.hpp turboquant/large.hpp)
put(mentions.hpp)
file(APPEND "${WORK}/turboquant/mentions.hpp" "// #include <turboquant/small.hpp>\n")

# expect(<header> <what is read before it>)
macro(expect header expected)
  turboquant_read_ahead("${WORK}" "turboquant/${header}" "turboquant/small.hpp;turboquant/large.hpp" ahead)
  if(NOT ahead STREQUAL "${expected}")
    message(STATUS "judged wrongly: before ${header} comes '${ahead}', expected '${expected}'")
    math(EXPR failures "${failures} + 1")
  endif()
endmacro()

expect(forgets.hpp "")
expect(mentions.hpp "")
expect(small.hpp "")
expect(large.hpp turboquant/small.hpp)
expect(itself.hpp turboquant/small.hpp)
expect(through.hpp turboquant/small.hpp)
expect(both.hpp turboquant/large.hpp)

file(REMOVE_RECURSE "${WORK}")
if(failures)
  message(FATAL_ERROR "read-ahead self-test: ${failures} headers judged wrongly")
endif()
