# cmake -DWORK=<folder> -P text_self_test.cmake
#
# Shows text.cmake one small tree in order, and one with each kind of text that it must find. The words are
# put together from parts, so that this file passes the gate.
cmake_minimum_required(VERSION 3.25)

set(failures 0)
macro(expect pattern file)
  file(REMOVE_RECURSE "${WORK}")
  file(WRITE "${WORK}/include/turboquant/sound.hpp" "// A substitute; see https://arxiv.org/abs/2504.19874\n")
  string(JOIN "" text ${ARGN})
  file(WRITE "${WORK}/${file}" "${text}\n")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" "-DROOT=${WORK}" -P "${CMAKE_CURRENT_LIST_DIR}/text.cmake"
    RESULT_VARIABLE code
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  set(right FALSE)
  if("${pattern}" STREQUAL "" AND code EQUAL 0)
    set(right TRUE)
  elseif(NOT "${pattern}" STREQUAL "" AND NOT code EQUAL 0 AND output MATCHES "${pattern}")
    set(right TRUE)
  endif()
  if(NOT right)
    message(STATUS "judged wrongly: ${file} with '${text}': ${output}")
    math(EXPR failures "${failures} + 1")
  endif()
endmacro()

expect("" tests/base/a_test.cpp "int x = 1;")
expect("unfinished work" include/turboquant/a.hpp "// TO" "DO: more")
expect("unfinished work" cmake/a.cmake "# FIX" "ME")
expect("unfinished work" examples/a.cpp "fail(\"not " "implemented\");")
expect("unfinished work" README.md "This is a place" "holder.")
expect("a path of one machine" CMakeLists.txt "include(/ro" "ot/x.cmake)")
expect("a path of one machine" tests/base/a_test.cpp "open(\"/t" "mp/x\");")
expect("an unknown host" README.md "See http:/" "/mirror.example.net/x.")
expect("a clock in a test" tests/base/a_test.cpp "auto t = std::chrono::steady_" "clock::now();")
expect("" bench/a.cpp "auto t = std::chrono::steady_" "clock::now();")

file(REMOVE_RECURSE "${WORK}")
if(failures)
  message(FATAL_ERROR "text self-test: ${failures} trees judged wrongly")
endif()
