# cmake -DBUILD=<configured build folder> [-DONLY=<regular expression>] -P run.cmake
#
# Known bugs that the tests must notice. Every *.patch beside this file begins with the line
#   test: <target> [<argument>...]
# and is applied, one at a time, to a copy of the tree, where that one test program is built and must fail (a program
# that does not compile is no proof). Unchanged, every such program must pass first. Some minutes; not a part of
# the tests.
cmake_minimum_required(VERSION 3.25)

include("${CMAKE_CURRENT_LIST_DIR}/../support/commands.cmake")
get_filename_component(root "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
get_filename_component(BUILD "${BUILD}" ABSOLUTE)
find_program(git git REQUIRED)
set(copy "${BUILD}/mutations/source")
set(binary "${BUILD}/mutations/build")

# The copy lies inside a repository, which git must not take for the patched one.
get_filename_component(above "${copy}" DIRECTORY)
set(apply "${CMAKE_COMMAND}" -E env "GIT_CEILING_DIRECTORIES=${above}" "${git}" -C "${copy}" apply)

# The cache variables of the given build say which compiler and dependencies to take.
set(settings "")
load_cache("${BUILD}" READ_WITH_PREFIX given_ CMAKE_CXX_COMPILER CMAKE_GENERATOR Eigen3_DIR nlohmann_json_DIR doctest_DIR
           Kokkos_DIR)
foreach(name CMAKE_CXX_COMPILER Eigen3_DIR nlohmann_json_DIR doctest_DIR Kokkos_DIR)
  if(given_${name})
    list(APPEND settings "-D${name}=${given_${name}}")
  endif()
endforeach()

# verdict(<variable> <target> <argument>...): passes, fails or does not compile.
function(verdict out target)
  run_command(built "${CMAKE_COMMAND}" --build "${binary}" --target ${target})
  if(NOT built EQUAL 0)
    set(${out}
        "does not compile"
        PARENT_SCOPE)
    return()
  endif()
  file(GLOB_RECURSE programs "${binary}/tests/*_test" "${binary}/tests/fuzz_*")
  string(REGEX REPLACE "^turboquant_(test_)?" "" name "${target}")
  foreach(program IN LISTS programs)
    file(RELATIVE_PATH path "${binary}/tests" "${program}")
    string(REGEX REPLACE "_test$" "" path "${path}")
    string(REPLACE "/" "_" path "${path}")
    if(path STREQUAL name OR path STREQUAL "fuzz_${name}")
      run_command(result "${CMAKE_COMMAND}" -E env OMP_NUM_THREADS=2 "${program}" ${ARGN})
      if(result EQUAL 0)
        set(${out}
            "passes"
            PARENT_SCOPE)
      else()
        set(${out}
            "fails"
            PARENT_SCOPE)
      endif()
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "mutations: there is no program of ${target}")
endfunction()

# Every tracked file; a configuration of its own keeps the user's build as it is.
file(REMOVE_RECURSE "${copy}")
file(MAKE_DIRECTORY "${copy}")
must_run("mutations: listing the files" "${git}" -C "${root}" ls-files)
string(REPLACE "\n" ";" files "${must_run_text}")
foreach(file IN LISTS files)
  if(file AND EXISTS "${root}/${file}")
    get_filename_component(folder "${copy}/${file}" DIRECTORY)
    file(COPY "${root}/${file}" DESTINATION "${folder}")
  endif()
endforeach()
must_run("mutations: the configuration" "${CMAKE_COMMAND}" -S "${copy}" -B "${binary}" -G "${given_CMAKE_GENERATOR}" ${settings}
         -DTURBOQUANT_BUILD_BENCH=OFF -DTURBOQUANT_BUILD_EXAMPLES=OFF "-DCMAKE_CXX_FLAGS_RELEASE=-O1")

file(GLOB patches "${CMAKE_CURRENT_LIST_DIR}/*.patch")
set(seen "")
set(survivors "")
set(caught 0)
foreach(patch IN LISTS patches)
  get_filename_component(name "${patch}" NAME_WE)
  if(ONLY AND NOT name MATCHES "${ONLY}")
    continue()
  endif()
  file(STRINGS "${patch}" head LIMIT_COUNT 1)
  if(NOT head MATCHES "^test: (.+)$")
    message(FATAL_ERROR "mutations: ${name} does not begin with 'test: <target>'")
  endif()
  string(REPLACE "SOURCE" "${root}" test "${CMAKE_MATCH_1}")
  separate_arguments(test UNIX_COMMAND "${test}")
  if(NOT "${test}" IN_LIST seen)
    verdict(unchanged ${test})
    if(NOT unchanged STREQUAL "passes")
      message(FATAL_ERROR "mutations: without a bug, ${test} ${unchanged}")
    endif()
    list(APPEND seen "${test}")
  endif()
  must_run("mutations: applying ${name}" ${apply} "${patch}")
  verdict(changed ${test})
  must_run("mutations: taking ${name} back" ${apply} -R "${patch}")
  message(STATUS "${name}: ${changed}")
  if(changed STREQUAL "fails")
    math(EXPR caught "${caught} + 1")
  else()
    list(APPEND survivors "${name} (${changed})")
  endif()
endforeach()
if(survivors OR caught EQUAL 0)
  list(JOIN survivors "\n  " survivors)
  message(FATAL_ERROR "mutations: not noticed:\n  ${survivors}")
endif()
message(STATUS "mutations: all ${caught} noticed")
