# Supplies what the machine lacks, so that a compiler, CMake and make are enough.
#
# The presets name this file in CMAKE_PROJECT_TOP_LEVEL_INCLUDES; a build without it only looks for
# installed packages. For each package the steps of TURBOQUANT_DEPENDENCY_STEPS are tried in order:
#   installed  a package that find_package sees
#   fetch      the upstream release by its git tag, built and installed into the user's cache
#   debian     the distribution's own archive, through apt with private directories in the cache
# A step that fails says so in one line. Nothing outside TURBOQUANT_CACHE_DIR is written and no step
# needs root. What a step supplied stays in the cache, so a second configure downloads nothing.

include_guard(GLOBAL)

set(TURBOQUANT_DEPENDENCY_STEPS
    "installed;fetch;debian"
    CACHE STRING "Steps that may supply a dependency, in order (installed, fetch, debian)")
set(TURBOQUANT_CACHE_DIR
    ""
    CACHE PATH "Where supplied dependencies are kept (empty: the user's cache directory)")
mark_as_advanced(TURBOQUANT_DEPENDENCY_STEPS TURBOQUANT_CACHE_DIR)

set(TURBOQUANT_PROVIDER_DIR "${CMAKE_CURRENT_LIST_DIR}/provider")
include("${CMAKE_CURRENT_LIST_DIR}/TurboQuantFindVersions.cmake")
include("${TURBOQUANT_PROVIDER_DIR}/Recipes.cmake")
include("${TURBOQUANT_PROVIDER_DIR}/Cache.cmake")
include("${TURBOQUANT_PROVIDER_DIR}/Fetch.cmake")
include("${TURBOQUANT_PROVIDER_DIR}/Debian.cmake")
include("${TURBOQUANT_PROVIDER_DIR}/Kokkos.cmake")

# turboquant_say(<package> <step> <text>...): one line about one step.
function(turboquant_say package step)
  string(JOIN "" text ${ARGN})
  message(STATUS "TurboQuant dependency ${package}: ${step}: ${text}")
endfunction()

# turboquant_try_installed(<package> <find_package arguments> <variable>): whether an installed
# package satisfies the request, or one of a later major version that the library will ask for next. Only the
# outcome and <package>_DIR leave this scope.
function(turboquant_try_installed package arguments out)
  set(${out}
      FALSE
      PARENT_SCOPE)
  if(package STREQUAL "Kokkos")
    turboquant_inspect_kokkos(reason)
    if(reason)
      turboquant_say(${package} installed "${reason}")
      return()
    endif()
  endif()
  find_package(${package} ${arguments} QUIET BYPASS_PROVIDER)
  turboquant_recipe(${package})
  if(NOT ${package}_FOUND)
    turboquant_find_versions(${package} "${recipe_LATER}" BYPASS_PROVIDER)
  endif()
  if(${package}_FOUND)
    set(${out}
        TRUE
        PARENT_SCOPE)
    turboquant_say(${package} installed "version ${${package}_VERSION} in ${${package}_DIR}")
  else()
    turboquant_say(${package} installed "not found")
  endif()
endfunction()

# turboquant_use_prefix(<package> <prefix> <variable>): points <package>_DIR at the configuration file below
# the prefix; the variable tells whether there is one.
function(turboquant_use_prefix package prefix out)
  file(GLOB_RECURSE configs LIST_DIRECTORIES false "${prefix}/*/${package}Config.cmake")
  set(${out}
      FALSE
      PARENT_SCOPE)
  foreach(config IN LISTS configs)
    get_filename_component(directory "${config}" DIRECTORY)
    set(${package}_DIR
        "${directory}"
        CACHE PATH "Configuration of ${package}" FORCE)
    set(${out}
        TRUE
        PARENT_SCOPE)
    return()
  endforeach()
endfunction()

# The provider: it never answers find_package itself. It makes sure that <package>_DIR names a
# configuration that will satisfy the request, and lets CMake's own find_package read that one in
# the scope of the caller.
function(turboquant_provide_dependency method package)
  # What could not be supplied in this configuration will not be for another version either.
  get_property(failed GLOBAL PROPERTY turboquant_failed_${package})
  if(failed OR NOT package IN_LIST TURBOQUANT_PROVIDED_PACKAGES)
    return()
  endif()
  set(arguments ${ARGN})
  list(REMOVE_ITEM arguments REQUIRED QUIET)
  set(signature "${TURBOQUANT_DEPENDENCY_STEPS}|${arguments}|${CMAKE_CXX_COMPILER}|${TURBOQUANT_CACHE_DIR}|${CMAKE_PREFIX_PATH}")
  if("$CACHE{TURBOQUANT_SUPPLIED_${package}}" STREQUAL signature
     AND ${package}_DIR
     AND EXISTS "${${package}_DIR}")
    return()
  endif()
  if(DEFINED CACHE{TURBOQUANT_SUPPLIED_${package}})
    unset(${package}_DIR CACHE)
  endif()

  foreach(step IN LISTS TURBOQUANT_DEPENDENCY_STEPS)
    if(NOT step MATCHES "^(installed|fetch|debian)$")
      message(FATAL_ERROR "TURBOQUANT_DEPENDENCY_STEPS: '${step}' is not a step, expected installed, "
                          "fetch or debian")
    endif()
  endforeach()

  # What is installed or already in the cache comes before any question to the network.
  set(done FALSE)
  foreach(only_cached TRUE FALSE)
    foreach(step IN LISTS TURBOQUANT_DEPENDENCY_STEPS)
      set(prefix)
      if(step STREQUAL "installed" AND only_cached)
        turboquant_try_installed(${package} "${arguments}" done)
      elseif(step STREQUAL "fetch")
        turboquant_fetch(${package} ${only_cached} prefix)
      elseif(step STREQUAL "debian")
        turboquant_debian(${package} ${only_cached} prefix)
      endif()
      if(prefix)
        turboquant_use_prefix(${package} "${prefix}" done)
        if(done)
          turboquant_say(${package} ${step} "using ${prefix}")
        else()
          turboquant_say(${package} ${step} "no ${package}Config.cmake below ${prefix}")
        endif()
      endif()
      if(done)
        set(TURBOQUANT_SUPPLIED_${package}
            "${signature}"
            CACHE INTERNAL "Request that ${package}_DIR answers")
        return()
      endif()
    endforeach()
  endforeach()

  set_property(GLOBAL PROPERTY turboquant_failed_${package} TRUE)
  turboquant_recipe(${package})
  set(${package}_DIR
      "${package}_DIR-NOTFOUND"
      CACHE PATH "Configuration of ${package}" FORCE)
  message(STATUS "TurboQuant dependency ${package}: every step failed; install it "
                 "(${recipe_INSTALL}) and configure again")
endfunction()

cmake_language(
  SET_DEPENDENCY_PROVIDER turboquant_provide_dependency
  SUPPORTED_METHODS FIND_PACKAGE)
