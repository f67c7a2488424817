# cmake -DCASE=<name> -DSOURCE=<repository> -DWORK=<folder> -DVERSION=... -DCOMPILER=... -DGENERATOR=...
#       -DMAKE_PROGRAM=... -P run.cmake
#
# One way of taking the library in: configures, builds and runs a consumer, or shows that it is refused with
# the right message.
cmake_minimum_required(VERSION 3.25)

set(here "${CMAKE_CURRENT_LIST_DIR}")
include("${here}/../support/commands.cmake")
set(build "${WORK}/${CASE}")
set(without_kokkos -DCMAKE_DISABLE_FIND_PACKAGE_Kokkos=ON)
set(without_json -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON)

# configure(<variable> <source> <build> <argument>...): the exit code, and all output in <variable>_text.
function(configure out source binary)
  file(REMOVE_RECURSE "${binary}")
  run_command(code "${CMAKE_COMMAND}" -S "${source}" -B "${binary}" -G "${GENERATOR}"
              "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${COMPILER}" -C "${WORK}/found.cmake"
              "-DTURBOQUANT_SOURCE=${SOURCE}" "-DEXPECTED_VERSION=${VERSION}" ${ARGN})
  string(REGEX REPLACE "[ \n]+" " " flat "${code_text}")
  set(${out}
      "${code}"
      PARENT_SCOPE)
  set(${out}_text
      "${code_text}"
      PARENT_SCOPE)
  set(${out}_flat
      "${flat}"
      PARENT_SCOPE)
endfunction()

# accepted(<source> <argument>...): the consumer configures, builds and runs.
function(accepted source)
  configure(result "${source}" "${build}" ${ARGN})
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${CASE}: the configuration failed:\n${result_text}")
  endif()
  must_run("${CASE}: the build" "${CMAKE_COMMAND}" --build "${build}" --parallel 2)
  must_run("${CASE}: the program" "${build}/consumer")
endfunction()

# refused(<pattern> <source> <argument>...): the configuration ends with a message that matches.
function(refused pattern source)
  configure(result "${source}" "${build}" ${ARGN})
  if(result EQUAL 0)
    message(FATAL_ERROR "${CASE}: was accepted with ${ARGN}, expected a refusal")
  endif()
  if(NOT result_flat MATCHES "${pattern}")
    message(FATAL_ERROR "${CASE}: was refused, but not with '${pattern}':\n${result_text}")
  endif()
endfunction()

function(not_in_cache binary pattern)
  file(STRINGS "${binary}/CMakeCache.txt" lines REGEX "${pattern}")
  if(lines)
    message(FATAL_ERROR "${CASE}: the cache of the consumer holds ${lines}")
  endif()
endfunction()

set(library_only -DTURBOQUANT_BUILD_TESTS=OFF -DTURBOQUANT_BUILD_EXAMPLES=OFF -DTURBOQUANT_BUILD_BENCH=OFF)
set(installed "${WORK}/installed")
set(installed_core "${WORK}/installed_core")

if(CASE STREQUAL "install")
  # Installed in one place and used in another: packages move.
  file(REMOVE_RECURSE "${installed}" "${installed_core}" "${WORK}/staged")
  configure(result "${SOURCE}" "${build}" ${library_only} "-DCMAKE_INSTALL_PREFIX=${WORK}/staged")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "install: the configuration failed:\n${result_text}")
  endif()
  must_run("${CASE}: the installation" "${CMAKE_COMMAND}" --install "${build}")
  file(RENAME "${WORK}/staged" "${installed}")
  configure(result "${SOURCE}" "${build}" ${library_only} "-DCMAKE_INSTALL_PREFIX=${installed_core}"
            -DTURBOQUANT_KOKKOS=OFF -DTURBOQUANT_HF=OFF)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "install: the configuration of core alone failed:\n${result_text}")
  endif()
  must_run("${CASE}: the installation of core" "${CMAKE_COMMAND}" --install "${build}")

  file(
    GLOB_RECURSE offered
    RELATIVE "${SOURCE}/include"
    "${SOURCE}/include/*")
  file(
    GLOB_RECURSE arrived
    RELATIVE "${installed}/include"
    "${installed}/include/*")
  if(NOT offered STREQUAL arrived)
    message(FATAL_ERROR "install: the installed headers are not those of the repository")
  endif()
  file(GLOB_RECURSE configs "${installed}/*.cmake")
  foreach(config IN LISTS configs)
    file(READ "${config}" text)
    if(text MATCHES "${WORK}" OR text MATCHES "${SOURCE}")
      message(FATAL_ERROR "install: ${config} names the machine that it was made on")
    endif()
  endforeach()

elseif(CASE STREQUAL "find_core")
  foreach(prefix "${installed}" "${installed_core}")
    accepted("${here}/find_core" "-DCMAKE_PREFIX_PATH=${prefix}" ${without_kokkos} ${without_json})
    not_in_cache("${build}" "^CMAKE_CXX_(EXTENSIONS|STANDARD)|^Kokkos_ENABLE")
  endforeach()

elseif(CASE STREQUAL "find_hf")
  accepted("${here}/find_hf" "-DCMAKE_PREFIX_PATH=${installed}" ${without_kokkos})

elseif(CASE STREQUAL "find_all")
  accepted("${here}/find_all" "-DCMAKE_PREFIX_PATH=${installed}")
  not_in_cache("${build}" "^CMAKE_CXX_(EXTENSIONS|STANDARD):")

elseif(CASE STREQUAL "find_without_components")
  accepted("${here}/find_all" "-DCMAKE_PREFIX_PATH=${installed}" -DWITHOUT_COMPONENTS=ON)
  refused("component turboquant: it needs Kokkos 3.4 or newer, which was not found" "${here}/find_all"
          "-DCMAKE_PREFIX_PATH=${installed}" -DWITHOUT_COMPONENTS=ON ${without_kokkos})

elseif(CASE STREQUAL "find_wrong_version")
  string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" unused "${VERSION}")
  math(EXPR later_minor "${CMAKE_MATCH_2} + 1")
  math(EXPR earlier_minor "${CMAKE_MATCH_2} - 1")
  math(EXPR later_major "${CMAKE_MATCH_1} + 1")
  foreach(asked ${CMAKE_MATCH_1}.${later_minor} ${CMAKE_MATCH_1}.${earlier_minor} ${later_major}.0
                ${VERSION}.1)
    refused("version: ${VERSION}" "${here}/find_refused" "-DCMAKE_PREFIX_PATH=${installed}"
            "-DASKED=${asked}" -DCOMPONENTS=core)
  endforeach()

elseif(CASE STREQUAL "find_unknown_component")
  refused("component gpu: there is no such component, expected core, hf or turboquant"
          "${here}/find_refused" "-DCMAKE_PREFIX_PATH=${installed}" -DASKED=${VERSION} -DCOMPONENTS=gpu)

elseif(CASE STREQUAL "find_without_kokkos")
  refused("component turboquant: it needs Kokkos 3.4 or newer, which was not found"
          "${here}/find_refused" "-DCMAKE_PREFIX_PATH=${installed}" -DASKED=${VERSION}
          -DCOMPONENTS=turboquant ${without_kokkos})
  refused("component hf: it needs nlohmann_json" "${here}/find_refused"
          "-DCMAKE_PREFIX_PATH=${installed}" -DASKED=${VERSION} -DCOMPONENTS=hf ${without_json})

elseif(CASE STREQUAL "find_in_core_only_installation")
  refused("component turboquant: this installation was made without it" "${here}/find_refused"
          "-DCMAKE_PREFIX_PATH=${installed_core}" -DASKED=${VERSION} -DCOMPONENTS=turboquant)

elseif(CASE STREQUAL "later_majors")
  # Packages of a later major version that refuse to be taken for an older one.
  include("${WORK}/folders.cmake")
  set(later "")
  foreach(package "Eigen3 5.0.1 Eigen3::Eigen" "Kokkos 5.2.2 Kokkos::kokkos")
    separate_arguments(package UNIX_COMMAND "${package}")
    list(GET package 0 name)
    list(GET package 1 version)
    list(GET package 2 target)
    set(folder "${WORK}/later/${name}")
    file(WRITE "${folder}/${name}Config.cmake"
         "add_library(${target} INTERFACE IMPORTED)\nset(Kokkos_DEVICES OPENMP)\n"
         "target_include_directories(${target} INTERFACE \"${eigen}\")\n")
    file(WRITE "${folder}/${name}ConfigVersion.cmake"
         "set(PACKAGE_VERSION ${version})\nset(PACKAGE_VERSION_COMPATIBLE FALSE)\n"
         "if(PACKAGE_FIND_VERSION_MAJOR EQUAL 5)\n  set(PACKAGE_VERSION_COMPATIBLE TRUE)\nendif()\n")
    list(APPEND later "-D${name}_DIR=${folder}")
  endforeach()
  configure(result "${SOURCE}" "${build}" ${library_only} -DTURBOQUANT_HF=OFF ${later})
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "later_majors: the configuration failed:\n${result_text}")
  endif()
  configure(result "${here}/find_refused" "${build}" "-DCMAKE_PREFIX_PATH=${installed}"
            "-DASKED=${VERSION}" -DCOMPONENTS=turboquant ${later})
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "later_majors: the installed package refuses them:\n${result_text}")
  endif()

elseif(CASE STREQUAL "nested")
  accepted("${here}/nested")
  not_in_cache("${build}" "^CMAKE_CXX_(EXTENSIONS|STANDARD):|^CMAKE_BUILD_TYPE:[A-Z]+=.+|^Kokkos_ENABLE")
  must_run("${CASE}: the installation" "${CMAKE_COMMAND}" --install "${build}" --prefix "${build}/prefix")
  if(EXISTS "${build}/prefix/include/turboquant")
    message(FATAL_ERROR "nested: the library installed itself as a part of another project")
  endif()

elseif(CASE STREQUAL "fetch_content")
  accepted("${here}/fetch_content" ${without_kokkos})

elseif(CASE STREQUAL "vcpkg_port")
  must_run("${CASE}: the port"
      "${CMAKE_COMMAND}" "-DPORT_DIR=${SOURCE}/cmake/ports/vcpkg/turboquant" "-DWORK=${build}"
      "-DFEATURES=core,hf" "-DGENERATOR=${GENERATOR}" "-DMAKE_PROGRAM=${MAKE_PROGRAM}"
      "-DCOMPILER=${COMPILER}" "-DINITIAL_CACHE=${WORK}/found.cmake" -P "${here}/vcpkg/install.cmake")
  set(prefix "-DCMAKE_PREFIX_PATH=${build}/installed")
  set(build "${build}/consumer")
  accepted("${here}/find_hf" "${prefix}" ${without_kokkos})
  refused("made without it \\(it has: core;hf\\)" "${here}/find_refused" "${prefix}" -DASKED=${VERSION}
          -DCOMPONENTS=turboquant)

elseif(CASE STREQUAL "conan")
  # A cache of its own, packages of what the build found, no remotes.
  include("${WORK}/folders.cmake")
  file(REMOVE_RECURSE "${build}")
  set(ENV{CONAN_HOME} "${build}/home")
  must_run("${CASE}: the profile" "${CONAN}" profile detect)
  must_run("${CASE}: leaving the remotes" "${CONAN}" remote remove "*")
  file(WRITE "${build}/home/global.conf"
       "tools.cmake.cmake_layout:test_folder=${build}/test\ntools.cmake.cmaketoolchain:generator=${GENERATOR}\n")
  set(language -s compiler.cppstd=20)
  list(GET json 0 json)
  foreach(package "eigen 3.4.0 ${eigen}" "nlohmann_json 3.11.2 ${json}"
                  "kokkos ${kokkos_version} ${kokkos_dir}/../../../include")
    separate_arguments(package UNIX_COMMAND "${package}")
    list(GET package 0 name)
    list(GET package 1 version)
    list(GET package 2 include)
    set(ENV{TURBOQUANT_FOUND_INCLUDE} "${include}")
    set(ENV{TURBOQUANT_FOUND_LIB} "${kokkos_dir}/../..")
    must_run("${CASE}: the package of ${name}" "${CONAN}" create "${here}/conan/found" --name ${name} --version ${version}
        ${language})
  endforeach()
  foreach(options "-o;turboquant/*:with_hf=False" "" "-o;turboquant/*:with_kokkos=True")
    must_run("${CASE}: conan create ${options}" "${CONAN}" create "${SOURCE}" ${language} ${options})
  endforeach()
  execute_process(
    COMMAND "${CONAN}" create "${SOURCE}" -s compiler.cppstd=17
    RESULT_VARIABLE code
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text)
  if(code EQUAL 0 OR NOT text MATCHES "cppstd")
    message(FATAL_ERROR "conan: C++17 was not refused:\n${text}")
  endif()

elseif(CASE STREQUAL "include_path")
  include("${WORK}/folders.cmake")
  file(MAKE_DIRECTORY "${build}")
  set(paths -I "${SOURCE}/include")
  foreach(directory IN LISTS eigen)
    list(APPEND paths -isystem "${directory}")
  endforeach()
  must_run("${CASE}: the compiler" "${COMPILER}" -std=c++20 ${paths} "${here}/find_core/main.cpp" -o "${build}/consumer"
      -pthread)
  must_run("${CASE}: the program" "${build}/consumer")

elseif(CASE STREQUAL "kokkos_modes")
  # Nothing to be found: ON is an error, AUTO a line, OFF silent. Too old a Kokkos is named.
  set(options ${library_only} -DTURBOQUANT_HF=OFF)
  refused("TurboQuant::turboquant needs Kokkos 3.4 or newer, found: nothing" "${SOURCE}" ${options}
          -DTURBOQUANT_KOKKOS=ON ${without_kokkos})
  configure(result "${SOURCE}" "${build}" ${options} -DTURBOQUANT_KOKKOS=AUTO ${without_kokkos})
  if(NOT result EQUAL 0 OR NOT result_flat MATCHES "TurboQuant::turboquant is left out")
    message(FATAL_ERROR "kokkos_modes: AUTO:\n${result_text}")
  endif()
  file(WRITE "${WORK}/old_kokkos/KokkosConfig.cmake" "message(FATAL_ERROR \"an old Kokkos was read\")\n")
  file(WRITE "${WORK}/old_kokkos/KokkosConfigVersion.cmake"
       "set(PACKAGE_VERSION 3.2.00)\nset(PACKAGE_VERSION_COMPATIBLE FALSE)\n")
  set(old "-DKokkos_DIR=${WORK}/old_kokkos")
  refused("needs Kokkos 3.4 or newer, found: .*KokkosConfig.cmake \\(version 3.2.00\\)" "${SOURCE}"
          ${options} -DTURBOQUANT_KOKKOS=ON "${old}")
  configure(result "${SOURCE}" "${build}" ${options} -DTURBOQUANT_KOKKOS=AUTO "${old}")
  if(NOT result EQUAL 0 OR NOT result_flat MATCHES "left out.*version 3.2.00")
    message(FATAL_ERROR "kokkos_modes: AUTO with an old Kokkos:\n${result_text}")
  endif()
  configure(result "${SOURCE}" "${build}" ${options} -DTURBOQUANT_KOKKOS=OFF "${old}")
  if(NOT result EQUAL 0 OR result_text MATCHES "TurboQuant:|an old Kokkos was read")
    message(FATAL_ERROR "kokkos_modes: OFF looks for Kokkos:\n${result_text}")
  endif()
  # A Kokkos with the Serial backend alone is not what a user of the default asks for.
  file(WRITE "${WORK}/serial_kokkos/KokkosConfig.cmake"
       "set(Kokkos_DEVICES SERIAL)\nadd_library(Kokkos::kokkos INTERFACE IMPORTED)\n")
  file(WRITE "${WORK}/serial_kokkos/KokkosConfigVersion.cmake"
       "set(PACKAGE_VERSION 3.4.01)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
  set(serial "-DKokkos_DIR=${WORK}/serial_kokkos")
  refused("Serial backend only.*TURBOQUANT_ALLOW_SERIAL_KOKKOS=ON" "${SOURCE}" ${options}
          -DTURBOQUANT_KOKKOS=ON "${serial}")
  configure(result "${SOURCE}" "${build}" ${options} -DTURBOQUANT_KOKKOS=AUTO "${serial}")
  if(NOT result EQUAL 0 OR NOT result_flat MATCHES "left out.*Serial backend only")
    message(FATAL_ERROR "kokkos_modes: AUTO with a serial Kokkos:\n${result_text}")
  endif()
  configure(result "${SOURCE}" "${build}" ${options} -DTURBOQUANT_KOKKOS=ON
            -DTURBOQUANT_ALLOW_SERIAL_KOKKOS=ON "${serial}")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "kokkos_modes: a serial Kokkos that was asked for:\n${result_text}")
  endif()

else()
  message(FATAL_ERROR "run.cmake: there is no case ${CASE}")
endif()
