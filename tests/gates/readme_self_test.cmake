# cmake -DWORK=<folder> -P readme_self_test.cmake
#
# Shows readme.cmake a README in order, and one with each mistake that it must find.
cmake_minimum_required(VERSION 3.25)

set(failures 0)
set(whole "int main() {\n  f()\n\n  g()\n}\n")
set(head "cmake --workflow --preset demo\ncmake --workflow --preset test\n")
set(demo "\n# Title\n${head}")
set(mark "<!-- examples/a.cpp -->\n")

# expect(<regular expression, or nothing where all is well> <text after the commands>)
macro(expect pattern)
  file(REMOVE_RECURSE "${WORK}")
  file(WRITE "${WORK}/examples/a.cpp" "${whole}")
  file(WRITE "${WORK}/.ci/run" "  step \"test\" cmake --workflow --preset test\n")
  string(JOIN "" text ${ARGN})
  file(WRITE "${WORK}/README.md" "${demo}${text}")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" "-DROOT=${WORK}" -P "${CMAKE_CURRENT_LIST_DIR}/readme.cmake"
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
    message(STATUS "judged wrongly: '${text}': ${output}")
    math(EXPR failures "${failures} + 1")
  endif()
endmacro()

expect("" "${mark}```cpp\n${whole}```\n")
expect("" "${mark}```cpp\nf()\n\ng()\n```\n${mark}```cpp\ng()\n```\n")
expect("no compiled example" "nothing")
expect("is not a part of examples/a.cpp" "${mark}```cpp\nh()\n```\n")
expect("is not a part of examples/a.cpp" "${mark}```cpp\nf()\ng()\n```\n")
expect("2 blocks of C.., but 1" "${mark}```cpp\nf()\n```\n\n```cpp\nf()\n```\n")
expect("no block of C.. follows" "${mark}\n```cpp\nf()\n```\n")
expect("examples/b.cpp does not exist" "<!-- examples/b.cpp -->\n```cpp\nf()\n```\n")
set(demo "# Title\n")
expect("the command .* is missing" "${mark}```cpp\nf()\n```\n")

if(failures GREATER 0)
  message(FATAL_ERROR "readme self-test: ${failures} cases judged wrongly")
endif()
