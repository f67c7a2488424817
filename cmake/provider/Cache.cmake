# The user's cache of supplied dependencies: where it is, what a folder in it is called, and how a
# source tree becomes an installed prefix in it. A prefix appears by one rename, so it is either
# whole or absent.

# turboquant_cache_root(<variable>): the cache directory, created, or empty after one line that says
# why there is none.
function(turboquant_cache_root out)
  set(root "${TURBOQUANT_CACHE_DIR}")
  if(NOT root)
    if(NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
      set(root "$ENV{XDG_CACHE_HOME}/turboquant")
    elseif(NOT "$ENV{HOME}" STREQUAL "")
      set(root "$ENV{HOME}/.cache/turboquant")
    else()
      set(root "${CMAKE_BINARY_DIR}/turboquant-cache")
    endif()
  endif()
  foreach(candidate "${root}" "${CMAKE_BINARY_DIR}/turboquant-cache")
    execute_process(
      COMMAND "${CMAKE_COMMAND}" -E make_directory "${candidate}"
      RESULT_VARIABLE failed
      OUTPUT_QUIET ERROR_QUIET)
    if(NOT failed)
      execute_process(
        COMMAND "${CMAKE_COMMAND}" -E touch "${candidate}/lock"
        RESULT_VARIABLE failed
        OUTPUT_QUIET ERROR_QUIET)
    endif()
    if(NOT failed)
      set(${out}
          "${candidate}"
          PARENT_SCOPE)
      return()
    endif()
    message(STATUS "TurboQuant dependency cache: ${candidate} cannot be written")
  endforeach()
  set(${out}
      ""
      PARENT_SCOPE)
endfunction()

# turboquant_compiler_key(<options> <variable>): a folder name that differs wherever compiled code
# could differ.
function(turboquant_compiler_key options out)
  string(SHA1 hash "${CMAKE_CXX_COMPILER}|${CMAKE_TOOLCHAIN_FILE}|${CMAKE_SYSTEM_PROCESSOR}|${options}")
  string(SUBSTRING "${hash}" 0 8 hash)
  string(TOLOWER "${CMAKE_CXX_COMPILER_ID}-${CMAKE_CXX_COMPILER_VERSION}-${hash}" key)
  set(${out}
      "${key}"
      PARENT_SCOPE)
endfunction()

# turboquant_run_logged(<log> <variable> <command>...): output goes to the log, the exit code to the
# variable. Flags that the environment sets for the user's own programs stay out of the cache.
function(turboquant_run_logged log out)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env --unset=CXXFLAGS --unset=CFLAGS --unset=LDFLAGS --unset=DESTDIR
            ${ARGN}
    RESULT_VARIABLE result
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text
)
  file(APPEND "${log}" "${text}\n")
  set(${out}
      "${result}"
      PARENT_SCOPE)
endfunction()

# turboquant_build_into(<package> <step> <source> <prefix> <options>...): configures, builds and
# installs a CMake project in Release; the prefix exists afterwards if that succeeded.
function(turboquant_build_into package step source prefix)
  set(work "${prefix}.work")
  set(log "${prefix}.log")
  file(REMOVE_RECURSE "${work}")
  file(REMOVE "${log}")
  file(MAKE_DIRECTORY "${work}")
  set(configure "${CMAKE_COMMAND}" -S "${source}" -B "${work}/build" -G "${CMAKE_GENERATOR}"
                "-DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}"
                -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON
                "-DCMAKE_INSTALL_PREFIX=${prefix}" -DCMAKE_PROJECT_TOP_LEVEL_INCLUDES=
                -DBUILD_SHARED_LIBS=OFF)
  if(CMAKE_TOOLCHAIN_FILE)
    list(APPEND configure "-DCMAKE_TOOLCHAIN_FILE=${CMAKE_TOOLCHAIN_FILE}")
  endif()
  cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
  if(NOT cores GREATER 0) # unknown where /proc is not mounted
    set(cores 2)
  endif()
  turboquant_say(${package} ${step} "building ${source}")
  turboquant_run_logged("${log}" failed ${configure} ${ARGN})
  if(NOT failed)
    turboquant_run_logged("${log}" failed "${CMAKE_COMMAND}" --build "${work}/build" --config Release
                          --parallel ${cores})
  endif()
  if(NOT failed)
    turboquant_run_logged("${log}" failed "DESTDIR=${work}/root" "${CMAKE_COMMAND}" --install
                          "${work}/build" --config Release)
  endif()
  if(failed)
    turboquant_say(${package} ${step} "the build failed, see ${log}")
  else()
    file(REMOVE_RECURSE "${prefix}")
    file(RENAME "${work}/root${prefix}" "${prefix}")
  endif()
  file(REMOVE_RECURSE "${work}")
endfunction()
