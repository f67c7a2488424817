# What is particular to Kokkos: judging an installed one, the OpenMP runtime of the compiler, and
# building Debian's sources.

# turboquant_inspect_kokkos(<variable>): empty where an installed Kokkos may be used (or none is
# there), else the reason why not. A project of its own looks, because reading a Kokkos configuration
# defines targets and writes cache entries that could not be taken back.
function(turboquant_inspect_kokkos out)
  set(${out}
      ""
      PARENT_SCOPE)
  if(TARGET Kokkos::kokkos)
    return()
  endif()
  list(GET TURBOQUANT_KOKKOS_VERSION 0 oldest)
  set(work "${CMAKE_BINARY_DIR}/CMakeFiles/turboquant-kokkos-inspection")
  file(REMOVE_RECURSE "${work}")
  file(MAKE_DIRECTORY "${work}")
  string(REPLACE ";" "\\;" prefixes "${CMAKE_PREFIX_PATH}")
  execute_process(
    COMMAND
      "${CMAKE_COMMAND}" -S "${TURBOQUANT_PROVIDER_DIR}/inspect_kokkos" -B "${work}" -G
      "${CMAKE_GENERATOR}" "-DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM}"
      "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}" "-DCMAKE_PREFIX_PATH=${prefixes}"
      "-DKokkos_ROOT=${Kokkos_ROOT}" "-DKokkos_DIR=${Kokkos_DIR}"
      "-DWANTED_VERSION=${oldest}"
      "-DALLOW_SERIAL=${TURBOQUANT_ALLOW_SERIAL_KOKKOS}"
    RESULT_VARIABLE failed
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text)
  if(EXISTS "${work}/verdict.txt")
    file(READ "${work}/verdict.txt" verdict)
  else()
    set(verdict "the installed Kokkos cannot be read by this compiler's CMake project")
  endif()
  file(REMOVE_RECURSE "${work}")
  set(${out}
      "${verdict}"
      PARENT_SCOPE)
endfunction()

# turboquant_openmp_works(<variable> <flag>...): whether this compiler builds an OpenMP program.
function(turboquant_openmp_works out)
  set(program "${CMAKE_BINARY_DIR}/CMakeFiles/turboquant-openmp.cpp")
  file(WRITE "${program}" "#include <omp.h>\nint main() { return omp_get_max_threads() > 0 ? 0 : 1; }\n")
  set(CMAKE_CXX_FLAGS "")
  try_compile(
    turboquant_openmp_built "${CMAKE_BINARY_DIR}/CMakeFiles/turboquant-openmp" "${program}"
    COMPILE_DEFINITIONS -fopenmp ${ARGN}
    LINK_OPTIONS -fopenmp ${ARGN})
  set(${out}
      ${turboquant_openmp_built}
      PARENT_SCOPE)
  unset(turboquant_openmp_built CACHE)
endfunction()

# turboquant_openmp(<step> <variable> <flags>): whether Kokkos can be built with OpenMP by this compiler,
# after one line if not. GCC brings its runtime along. Clang's is a package of its own: where it is missing,
# the distribution's copy is unpacked in the cache, and <flags> names it.
function(turboquant_openmp step out flags)
  set(${out}
      TRUE
      PARENT_SCOPE)
  set(${flags}
      ""
      PARENT_SCOPE)
  turboquant_openmp_works(works)
  if(works)
    return()
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND "debian" IN_LIST TURBOQUANT_DEPENDENCY_STEPS)
    string(REGEX REPLACE "\\..*" "" major "${CMAKE_CXX_COMPILER_VERSION}")
    set(prefix)
    turboquant_debian_binary(Kokkos FALSE libomp-${major} "libomp-${major}-dev;libomp5-${major}" "" prefix)
    file(GLOB_RECURSE header "${prefix}/usr/lib/llvm-${major}/*/omp.h")
    file(GLOB library "${prefix}/usr/lib/llvm-${major}/lib/libomp.so")
    if(header AND library)
      get_filename_component(include "${header}" DIRECTORY)
      get_filename_component(directory "${library}" DIRECTORY)
      set(found "-I${include};-L${directory};-Wl,-rpath,${directory}")
      turboquant_openmp_works(works ${found})
      if(works)
        turboquant_say(Kokkos ${step} "OpenMP runtime of clang: using ${prefix}")
        set(${flags}
            "${found}"
            PARENT_SCOPE)
        return()
      endif()
    endif()
  endif()
  turboquant_say(Kokkos ${step} "${CMAKE_CXX_COMPILER} has no OpenMP runtime (for clang: libomp)")
  set(${out}
      FALSE
      PARENT_SCOPE)
endfunction()

# turboquant_build_kokkos(<step> <source> <prefix> <openmp flags> <option>...): builds and installs Kokkos; the
# installed configuration passes the flags on to its users.
function(turboquant_build_kokkos step source prefix flags)
  set(options ${ARGN})
  if(flags)
    list(JOIN flags " " text)
    list(APPEND options "-DCMAKE_CXX_FLAGS=${text}")
  endif()
  turboquant_build_into(Kokkos ${step} "${source}" "${prefix}" ${options})
  if(flags AND EXISTS "${prefix}")
    list(POP_FRONT flags include)
    string(REGEX REPLACE "^-I" "" include "${include}")
    file(GLOB_RECURSE config "${prefix}/*/KokkosConfig.cmake")
    file(APPEND "${config}"
         "
set_property(TARGET Kokkos::kokkoscore APPEND PROPERTY INTERFACE_INCLUDE_DIRECTORIES \"${include}\")
set_property(TARGET Kokkos::kokkoscore APPEND PROPERTY INTERFACE_LINK_OPTIONS \"${flags}\")
")
  endif()
endfunction()

# turboquant_debian_kokkos_source(<package root> <variable>): the Kokkos sources of the archive,
# unpacked in the cache. A source package of Kokkos' own comes first; older suites have Kokkos inside
# Trilinos, of which only that subfolder is kept.
function(turboquant_debian_kokkos_source root out)
  set(source "${root}/kokkos-source")
  set(work "${root}/kokkos-source.work")
  if(NOT EXISTS "${source}/CMakeLists.txt")
    # One user of apt's private directories at a time, as for binary packages.
    file(LOCK "${root}/lock" GUARD FUNCTION TIMEOUT 3600)
    turboquant_apt_ready(Kokkos "${root}" state)
    if(NOT state STREQUAL "ready")
      return()
    endif()
    foreach(name kokkos trilinos)
      turboquant_apt("${root}" "${root}" failed apt-cache showsrc --only-source ${name})
      if(failed OR NOT failed_OUTPUT MATCHES "Package: ${name}\n")
        continue()
      endif()
      file(REMOVE_RECURSE "${work}")
      file(MAKE_DIRECTORY "${work}")
      turboquant_say(Kokkos debian "downloading the source package ${name}")
      turboquant_apt("${root}" "${work}" failed apt-get source --download-only --tar-only --only-source ${name})
      file(GLOB archive "${work}/*.orig.tar.*")
      list(FILTER archive EXCLUDE REGEX "\\.asc$")
      if(failed OR NOT archive)
        turboquant_say(Kokkos debian "${name} could not be downloaded, see ${root}/apt.log")
        continue()
      endif()
      list(GET archive 0 archive)
      set(member)
      if(name STREQUAL "trilinos")
        set(member "*/packages/kokkos/*")
      endif()
      execute_process(
        COMMAND "${CMAKE_COMMAND}" -E tar xf "${archive}" ${member}
        WORKING_DIRECTORY "${work}"
        RESULT_VARIABLE failed
        OUTPUT_QUIET ERROR_QUIET)
      file(GLOB trees "${work}/*/packages/kokkos/core/src" "${work}/*/core/src")
      if(NOT failed AND trees)
        list(GET trees 0 tree)
        file(REMOVE_RECURSE "${source}")
        get_filename_component(tree "${tree}/../.." REALPATH)
        file(RENAME "${tree}" "${source}")
        break()
      endif()
      turboquant_say(Kokkos debian "${archive} holds no Kokkos")
    endforeach()
    file(REMOVE_RECURSE "${work}")
  endif()
  if(EXISTS "${source}/CMakeLists.txt")
    set(${out}
        "${source}"
        PARENT_SCOPE)
  endif()
endfunction()

# turboquant_debian_kokkos(<only from the cache> <variable>): Kokkos of the archive's sources, built with
# OpenMP by this compiler; the prefix or empty.
function(turboquant_debian_kokkos only_cached out)
  set(${out}
      ""
      PARENT_SCOPE)
  turboquant_debian_root(Kokkos ${only_cached} root)
  if(NOT root)
    return()
  endif()
  turboquant_recipe(Kokkos)
  turboquant_compiler_key("${recipe_OPTIONS}" key)
  set(prefix "${root}/kokkos-${key}")
  if(NOT EXISTS "${prefix}")
    if(only_cached)
      return()
    endif()
    turboquant_openmp(debian possible flags)
    if(NOT possible)
      return()
    endif()
    file(LOCK "${root}/kokkos.lock" GUARD FUNCTION TIMEOUT 3600)
  endif()
  if(NOT EXISTS "${prefix}")
    set(source)
    turboquant_debian_kokkos_source("${root}" source)
    if(source)
      turboquant_build_kokkos(debian "${source}" "${prefix}" "${flags}" ${recipe_OPTIONS})
    else()
      turboquant_say(Kokkos debian "the archive has no usable Kokkos sources")
    endif()
  endif()
  if(EXISTS "${prefix}")
    set(${out}
        "${prefix}"
        PARENT_SCOPE)
  endif()
endfunction()
