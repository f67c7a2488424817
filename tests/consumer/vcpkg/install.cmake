# cmake -DPORT_DIR=<port> -DWORK=<folder> -DFEATURES=core,<feature>... -DGENERATOR=... -DMAKE_PROGRAM=...
#       -DCOMPILER=... -DINITIAL_CACHE=<file> -P install.cmake
#
# Runs a portfile with the few functions of vcpkg that it calls, as vcpkg documents them, and installs into
# WORK/installed. It shows that the port's own text is right; vcpkg itself is not here.
cmake_minimum_required(VERSION 3.25)

include("${CMAKE_CURRENT_LIST_DIR}/../../support/commands.cmake")
string(REPLACE "," ";" FEATURES "${FEATURES}")
set(PORT turboquant)
set(TARGET_TRIPLET emulated)
set(CURRENT_BUILDTREES_DIR "${WORK}/buildtrees")
set(CURRENT_PACKAGES_DIR "${WORK}/installed")
set(build "${CURRENT_BUILDTREES_DIR}/${TARGET_TRIPLET}-rel")
file(REMOVE_RECURSE "${CURRENT_BUILDTREES_DIR}" "${CURRENT_PACKAGES_DIR}")
file(MAKE_DIRECTORY "${build}")

# Features and variables in turn: ON for the features that are asked for.
function(vcpkg_check_features)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "OUT_FEATURE_OPTIONS" "FEATURES")
  set(options "")
  set(known core)
  while(arg_FEATURES)
    list(POP_FRONT arg_FEATURES feature variable)
    list(APPEND known ${feature})
    if(feature IN_LIST FEATURES)
      list(APPEND options "-D${variable}=ON")
    else()
      list(APPEND options "-D${variable}=OFF")
    endif()
  endwhile()
  set(${arg_OUT_FEATURE_OPTIONS}
      "${options}"
      PARENT_SCOPE)
  set_property(GLOBAL PROPERTY features_of_the_portfile "${known}")
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  must_run("port: the configuration" "${CMAKE_COMMAND}" -S "${arg_SOURCE_PATH}" -B "${build}" -G "${GENERATOR}"
      "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${COMPILER}" -C "${INITIAL_CACHE}"
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_ERROR_ON_ABSOLUTE_INSTALL_DESTINATION=ON
      -DCMAKE_INSTALL_LIBDIR=lib "-DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}" ${arg_OPTIONS})
endfunction()

function(vcpkg_cmake_build)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "TARGET" "")
  must_run("port: the build" "${CMAKE_COMMAND}" --build "${build}" --target "${arg_TARGET}")
endfunction()

function(vcpkg_cmake_install)
  must_run("port: the installation" "${CMAKE_COMMAND}" --install "${build}")
endfunction()

function(vcpkg_execute_required_process)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "WORKING_DIRECTORY;LOGNAME" "COMMAND")
  must_run("port: ${arg_COMMAND}" "${CMAKE_COMMAND}" -E chdir "${arg_WORKING_DIRECTORY}" ${arg_COMMAND})
endfunction()

# Package files move to share/<name>, one folder less deep: what climbs to the prefix climbs one step less.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "PACKAGE_NAME;CONFIG_PATH" "")
  file(RENAME "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}" "${WORK}/moved")
  file(MAKE_DIRECTORY "${CURRENT_PACKAGES_DIR}/share")
  file(RENAME "${WORK}/moved" "${CURRENT_PACKAGES_DIR}/share/${arg_PACKAGE_NAME}")
  file(GLOB configs "${CURRENT_PACKAGES_DIR}/share/${arg_PACKAGE_NAME}/*.cmake")
  set(step "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n")
  foreach(config IN LISTS configs)
    file(READ "${config}" text)
    string(REPLACE "\${CMAKE_CURRENT_LIST_DIR}/../../../" "\${CMAKE_CURRENT_LIST_DIR}/../../" text "${text}")
    string(REPLACE "${step}${step}${step}" "${step}${step}" text "${text}")
    file(WRITE "${config}" "${text}")
  endforeach()
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  file(INSTALL ${arg_FILE_LIST} DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}" RENAME copyright)
endfunction()

include("${PORT_DIR}/portfile.cmake")

# What vcpkg checks after a portfile has run.
if(NOT VCPKG_BUILD_TYPE STREQUAL "release")
  message(FATAL_ERROR "port: a debug configuration is wanted, which this script does not make")
endif()
foreach(folder lib debug share/doc)
  if(EXISTS "${CURRENT_PACKAGES_DIR}/${folder}")
    message(FATAL_ERROR "port: ${folder} is left behind")
  endif()
endforeach()
foreach(file copyright usage)
  if(NOT EXISTS "${CURRENT_PACKAGES_DIR}/share/${PORT}/${file}")
    message(FATAL_ERROR "port: share/${PORT}/${file} is missing")
  endif()
endforeach()

# The manifest's features are those of the portfile.
file(READ "${PORT_DIR}/vcpkg.json" manifest)
string(JSON name GET "${manifest}" name)
string(JSON version GET "${manifest}" version)
string(JSON num_features LENGTH "${manifest}" features)
string(JSON num_defaults LENGTH "${manifest}" default-features)
set(declared core)
math(EXPR last "${num_features} - 1")
foreach(i RANGE ${last})
  string(JSON feature MEMBER "${manifest}" features ${i})
  string(JSON description GET "${manifest}" features ${feature} description)
  list(APPEND declared ${feature})
endforeach()
math(EXPR last "${num_defaults} - 1")
foreach(i RANGE ${last})
  string(JSON feature GET "${manifest}" default-features ${i})
  if(NOT feature IN_LIST declared)
    message(FATAL_ERROR "port: vcpkg.json has no feature ${feature}, which is on by default")
  endif()
endforeach()
get_property(known GLOBAL PROPERTY features_of_the_portfile)
list(SORT declared)
list(SORT known)
if(NOT known STREQUAL declared OR NOT name STREQUAL PORT)
  message(FATAL_ERROR "port: vcpkg.json is of ${name} with ${declared}, the portfile of ${PORT} with ${known}")
endif()
