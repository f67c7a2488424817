# Finds what the enabled targets need. Only find_package is called here, and never for a target
# that the surrounding project already has; supplying what is missing is the work of
# DependencyProvider.cmake, which the presets name.

include(cmake/TurboQuantFindVersions.cmake)
include(cmake/TurboQuantKeepExtensions.cmake)

# The oldest version that will do, then the later major versions that the library is known to work with.
set(TURBOQUANT_EIGEN_VERSION 3.4 5.0)
set(TURBOQUANT_JSON_VERSION 3.10)
set(TURBOQUANT_KOKKOS_VERSION 3.4 4.0 5.0)

# turboquant_found_instead(<package> <variable>): what find_package saw and did not take, in words.
function(turboquant_found_instead package out)
  set(text "nothing")
  if(${package}_CONSIDERED_CONFIGS)
    set(text "")
    foreach(config version IN ZIP_LISTS ${package}_CONSIDERED_CONFIGS ${package}_CONSIDERED_VERSIONS)
      string(APPEND text " ${config} (version ${version})")
    endforeach()
  endif()
  turboquant_serial_only(${package} serial)
  if(serial)
    set(text "${Kokkos_DIR} (version ${Kokkos_VERSION}, Serial backend only; "
             "-DTURBOQUANT_ALLOW_SERIAL_KOKKOS=ON accepts it)")
    string(JOIN "" text ${text})
  endif()
  set(${out}
      "${text}"
      PARENT_SCOPE)
endfunction()

# turboquant_serial_only(<package> <variable>): whether it is a Kokkos with the Serial backend alone, which
# no user gets without asking.
function(turboquant_serial_only package out)
  set(${out}
      FALSE
      PARENT_SCOPE)
  if(package STREQUAL "Kokkos" AND Kokkos_FOUND AND NOT TURBOQUANT_ALLOW_SERIAL_KOKKOS)
    string(TOUPPER "${Kokkos_DEVICES}" devices)
    if(devices STREQUAL "SERIAL")
      set(${out}
          TRUE
          PARENT_SCOPE)
    endif()
  endif()
endfunction()

# turboquant_find(<package> <versions> <target> <wanted by> <switch> <result>)
# The versions are asked for in turn; the first is the oldest that will do. The switch is the name of an option, or ON for what there is no doing without.
# ON: an error says what is wanted and what was found. OFF: never looks. AUTO: one line says what
# is left out. A macro, because find_package reports to the scope of its caller.
macro(turboquant_find package versions target wanted_by switch result)
  set(turboquant_mode "${switch}")
  if(NOT turboquant_mode STREQUAL "ON")
    string(TOUPPER "${${switch}}" turboquant_mode)
  endif()
  if(TARGET ${target})
    set(${result} ON)
  else()
    set(${result} OFF)
  endif()
  if(turboquant_mode STREQUAL "AUTO")
    set(turboquant_auto ON)
  elseif(turboquant_mode)
    set(turboquant_auto OFF)
  else()
    set(turboquant_auto OFF)
    set(${result} SKIPPED)
  endif()
  if(${result} STREQUAL "SKIPPED")
    set(${result} OFF)
  elseif(NOT ${result})
    turboquant_find_versions(${package} "${versions}")
    turboquant_serial_only(${package} turboquant_serial)
    if(TARGET ${target} AND NOT turboquant_serial)
      set(${result} ON)
    else()
      turboquant_found_instead(${package} turboquant_seen)
      set(turboquant_oldest ${versions})
      list(GET turboquant_oldest 0 turboquant_oldest)
      if(turboquant_auto)
        message(STATUS "TurboQuant: ${wanted_by} is left out, because ${package} ${turboquant_oldest} or "
                       "newer was not found (found: ${turboquant_seen})")
      else()
        set(turboquant_way_out "")
        if(NOT "${switch}" STREQUAL "ON")
          set(turboquant_way_out ", or do without ${wanted_by}: -D${switch}=OFF")
        endif()
        message(
          FATAL_ERROR
            "TurboQuant: ${wanted_by} needs ${package} ${turboquant_oldest} or newer, found: "
            "${turboquant_seen}. Install it and name its prefix in CMAKE_PREFIX_PATH, configure "
            "with a preset (cmake --preset test), which supplies it${turboquant_way_out}.")
      endif()
    endif()
  endif()
endmacro()

turboquant_find(Eigen3 "${TURBOQUANT_EIGEN_VERSION}" Eigen3::Eigen TurboQuant::core ON
                TURBOQUANT_WITH_CORE)
turboquant_find(nlohmann_json ${TURBOQUANT_JSON_VERSION} nlohmann_json::nlohmann_json TurboQuant::hf
                TURBOQUANT_HF TURBOQUANT_WITH_HF)
turboquant_remember_extensions()
turboquant_find(Kokkos "${TURBOQUANT_KOKKOS_VERSION}" Kokkos::kokkos TurboQuant::turboquant
                TURBOQUANT_KOKKOS TURBOQUANT_WITH_KOKKOS)
turboquant_restore_extensions()
if(NOT TARGET Threads::Threads)
  set(THREADS_PREFER_PTHREAD_FLAG ON)
  find_package(Threads REQUIRED)
endif()
