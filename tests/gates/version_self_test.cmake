# cmake -DROOT=<repository> -DWORK=<folder> -P version_self_test.cmake
#
# Shows version.cmake the repository's own files in order, then with each of the numbers wrong or missing.
cmake_minimum_required(VERSION 3.25)

set(port cmake/ports/vcpkg/turboquant)
set(files CMakeLists.txt include/turboquant/base/config.hpp ${port}/vcpkg.json ${port}/usage conanfile.py CHANGELOG.md
          README.md tests/consumer/conan/CMakeLists.txt)
set(failures 0)

# expect(<regular expression, or nothing where all is well> [<file> <what to replace> <by what>])
function(expect pattern)
  file(REMOVE_RECURSE "${WORK}")
  foreach(file IN LISTS files)
    file(READ "${ROOT}/${file}" text)
    if(file STREQUAL "${ARGV1}")
      string(REGEX REPLACE "${ARGV2}" "${ARGV3}" changed "${text}")
      if(changed STREQUAL text)
        message(FATAL_ERROR "version self-test: ${file} has no ${ARGV2}")
      endif()
      set(text "${changed}")
    endif()
    file(WRITE "${WORK}/${file}" "${text}")
  endforeach()
  execute_process(
    COMMAND "${CMAKE_COMMAND}" "-DROOT=${WORK}" -P "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/version.cmake"
    RESULT_VARIABLE code
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(("${pattern}" STREQUAL "" AND code EQUAL 0)
     OR (NOT "${pattern}" STREQUAL "" AND NOT code EQUAL 0 AND output MATCHES "${pattern}"))
    return()
  endif()
  message(STATUS "judged wrongly: ${ARGN}: ${output}")
  math(EXPR failures "${failures} + 1")
  set(failures
      ${failures}
      PARENT_SCOPE)
endfunction()

expect("")
expect("config.hpp says [0-9.]+, project.. says 9.8.7" CMakeLists.txt "VERSION [0-9.]+\n  DESC" "VERSION 9.8.7\n  DESC")
expect("CMakeLists.txt has no line" CMakeLists.txt "VERSION [0-9.]+\n  DESC" "VERSION 9.8\n  DESC")
expect("config.hpp says [0-9]+.77.[0-9]+," include/turboquant/base/config.hpp "VERSION_MINOR [0-9]+" "VERSION_MINOR 77")
expect("config.hpp says [0-9]+.[0-9]+.nothing," include/turboquant/base/config.hpp "VERSION_PATCH [0-9]+" "VERSION_PART 1")
expect("vcpkg.json says 7.7.7," ${port}/vcpkg.json "\"version\": \"[0-9.]+\"" "\"version\": \"7.7.7\"")
expect("vcpkg.json says nothing," ${port}/vcpkg.json "\"version\"" "\"version-date\"")
expect("conanfile.py says 7.7.7," conanfile.py " version = \"[0-9.]+\"" " version = \"7.7.7\"")
expect("CHANGELOG.md .newest entry. says 7.7.7," CHANGELOG.md "\n## [0-9.]+" "\n## 7.7.7")
expect("README.md asks for 7.7, expected" README.md "find_package.TurboQuant [0-9.]+" "find_package(TurboQuant 7.7")
expect("README.md shows turboquant/7.7.7," README.md "turboquant/[0-9.]+" "turboquant/7.7.7")
expect("README.md has no find_package" README.md "find_package.TurboQuant [0-9.]+" "find_package(TurboQuant")
expect("usage asks for 7.7, expected" ${port}/usage "find_package.TurboQuant [0-9.]+" "find_package(TurboQuant 7.7")
expect("conan/CMakeLists.txt asks for 7.7, expected" tests/consumer/conan/CMakeLists.txt "TurboQuant [0-9.]+ REQ"
       "TurboQuant 7.7 REQ")

file(REMOVE_RECURSE "${WORK}")
if(failures GREATER 0)
  message(FATAL_ERROR "version self-test: ${failures} trees judged wrongly")
endif()
