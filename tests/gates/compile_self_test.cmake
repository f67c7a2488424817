# cmake -DCOMPILER=... -DWORK=<folder> -P compile_self_test.cmake
#
# Faults that the compile and link gates exist for, each in a small header: the gate must notice it.
cmake_minimum_required(VERSION 3.25)

set(gate "${CMAKE_CURRENT_LIST_DIR}/compile.cmake")
set(failures 0)
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}/include")
file(WRITE "${WORK}/settings.cmake"
     "set(includes \"\")\nset(options \"\")\nset(own \"${WORK}/include\")\nset(everything \"${WORK}\")\n")

# verdict(<what> <pattern> <source text> [<more arguments of the gate>...]): an empty pattern means that the
# gate must be content.
function(verdict what pattern text)
  file(WRITE "${WORK}/source.cpp" "${text}")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" "-DCOMPILER=${COMPILER}" "-DSETTINGS=${WORK}/settings.cmake"
            "-DSOURCE=${WORK}/source.cpp" ${ARGN} -P "${gate}"
    RESULT_VARIABLE code
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if("${pattern}" STREQUAL "" AND code EQUAL 0)
    return()
  endif()
  if(NOT "${pattern}" STREQUAL ""
     AND NOT code EQUAL 0
     AND output MATCHES "${pattern}")
    return()
  endif()
  message(STATUS "judged wrongly: ${what}: ${output}")
  math(EXPR failures "${failures} + 1")
  set(failures
      ${failures}
      PARENT_SCOPE)
endfunction()

verdict("a sound source" "" "inline int f() { return 1; }\n")
verdict("a header that needs another one first" "does not compile" "std::size_t f();\n")
verdict("a narrowing conversion" "does not compile" "inline char f(int x) { return x; }\n")
verdict("a shadowed name" "does not compile" "inline int f(int x) { { int x = 1; (void)x; } return x; }\n")
verdict("a throw without exceptions" "does not compile" "inline void f() { throw 1; }\n" -DFLAGS=-fno-exceptions)
verdict("std::min under a macro min" "does not compile"
        "#include <algorithm>\n#define min(a, b) a\nint f() { return std::min(1, 2) + std::numeric_limits<int>::min(); }\n")
verdict("a source that is refused as it should be" ""
        "#ifndef MUST_COMPILE\nstatic_assert(false, \"the reason\")\;\n#endif\n" "-DEXPECT=the reason")
verdict("a source that compiles and must not" "compiles, and must not" "int x = 1;\n" "-DEXPECT=the reason")
verdict("a source that is refused for another reason" "but not with"
        "#ifndef MUST_COMPILE\nnonsense\n#endif\n" "-DEXPECT=the reason")
verdict("a source that never compiles" "for another reason"
        "static_assert(false, \"the reason\")\;\n" "-DEXPECT=the reason")

# A function without inline in a header, seen by two translation units.
foreach(keyword "" "inline ")
  file(WRITE "${WORK}/include/shared.hpp" "#pragma once\n${keyword}int shared() { return 1; }\n")
  file(WRITE "${WORK}/one.cpp" "#include <shared.hpp>\nint main() { return shared() - 1; }\n")
  file(WRITE "${WORK}/two.cpp" "#include <shared.hpp>\nint two() { return shared(); }\n")
  execute_process(
    COMMAND "${COMPILER}" -I "${WORK}/include" "${WORK}/one.cpp" "${WORK}/two.cpp" -o "${WORK}/program"
    RESULT_VARIABLE code
    OUTPUT_QUIET ERROR_QUIET)
  if((keyword STREQUAL "" AND code EQUAL 0) OR (NOT keyword STREQUAL "" AND NOT code EQUAL 0))
    message(STATUS "judged wrongly: '${keyword}int shared()' in two translation units")
    math(EXPR failures "${failures} + 1")
  endif()
endforeach()

file(REMOVE_RECURSE "${WORK}")
if(failures)
  message(FATAL_ERROR "compile self-test: ${failures} sources judged wrongly")
endif()
