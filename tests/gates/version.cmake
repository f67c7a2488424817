# cmake -DROOT=<repository> -P version.cmake
#
# One version number: project() of CMakeLists.txt says it, and every other place that has to name it agrees. What
# asks for a version (find_package in examples for users) asks for its major and minor number.
cmake_minimum_required(VERSION 3.25)

set(problems "")
function(report)
  string(JOIN "" text ${ARGN})
  set(problems
      ${problems} "${text}"
      PARENT_SCOPE)
endfunction()

# found(<variable> <file> <regular expression with one group>): the group in the first line that matches.
function(found out file pattern)
  set(${out}
      "nothing"
      PARENT_SCOPE)
  if(EXISTS "${ROOT}/${file}")
    file(STRINGS "${ROOT}/${file}" lines REGEX "${pattern}")
    if(lines)
      list(GET lines 0 line)
      string(REGEX MATCH "${pattern}" unused "${line}")
      set(${out}
          "${CMAKE_MATCH_1}"
          PARENT_SCOPE)
    endif()
  endif()
endfunction()

set(number "[0-9]+\\.[0-9]+\\.[0-9]+")
found(version CMakeLists.txt "^ *VERSION (${number})$")
if(version STREQUAL "nothing")
  message(FATAL_ERROR "version: CMakeLists.txt has no line 'VERSION <major>.<minor>.<patch>'")
endif()

set(header include/turboquant/base/config.hpp)
set(parts "")
foreach(part MAJOR MINOR PATCH)
  found(value ${header} "^#define TURBOQUANT_VERSION_${part} ([0-9]+)$")
  list(APPEND parts ${value})
endforeach()
list(JOIN parts "." in_header)
found(in_port cmake/ports/vcpkg/turboquant/vcpkg.json "^  \"version\": \"(.*)\",$")
found(in_recipe conanfile.py "^    version = \"(.*)\"$")
found(in_changelog CHANGELOG.md "^## \\[?v?(${number})")
foreach(
  pair
  "${header}|${in_header}"
  "cmake/ports/vcpkg/turboquant/vcpkg.json|${in_port}"
  "conanfile.py|${in_recipe}"
  "CHANGELOG.md (newest entry)|${in_changelog}")
  string(REPLACE "|" ";" pair "${pair}")
  list(GET pair 0 file)
  list(GET pair 1 value)
  if(NOT value STREQUAL version)
    report("${file} says ${value}, project() says ${version}")
  endif()
endforeach()

file(STRINGS "${ROOT}/README.md" lines REGEX "turboquant/[0-9.]+")
foreach(line IN LISTS lines)
  string(REGEX MATCH "turboquant/([0-9.]+)" unused "${line}")
  if(NOT CMAKE_MATCH_1 STREQUAL version)
    report("README.md shows turboquant/${CMAKE_MATCH_1}, project() says ${version}")
  endif()
endforeach()

string(REGEX MATCH "^[0-9]+\\.[0-9]+" wanted "${version}")
foreach(file README.md cmake/ports/vcpkg/turboquant/usage tests/consumer/conan/CMakeLists.txt)
  set(asks "")
  if(EXISTS "${ROOT}/${file}")
    # QUIET marks a request that must be refused.
    file(STRINGS "${ROOT}/${file}" asks REGEX "find_package\\(TurboQuant [0-9.]+ [^Q]")
  endif()
  if(NOT asks)
    report("${file} has no find_package(TurboQuant <version> ...)")
  endif()
  foreach(ask IN LISTS asks)
    string(REGEX MATCH "find_package\\(TurboQuant ([0-9.]+)" unused "${ask}")
    if(NOT CMAKE_MATCH_1 STREQUAL wanted)
      report("${file} asks for ${CMAKE_MATCH_1}, expected ${wanted}")
    endif()
  endforeach()
endforeach()

if(problems)
  list(JOIN problems "\n  " text)
  message(FATAL_ERROR "version:\n  ${text}")
endif()
message(STATUS "version: ${version}")
