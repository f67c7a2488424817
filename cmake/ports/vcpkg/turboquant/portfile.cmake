# Overlay port: vcpkg install turboquant --overlay-ports=<this repository>/cmake/ports/vcpkg
#
# It installs the tree that it lies in, so there is nothing to download. vcpkg's binary cache cannot see changes of
# that tree: pass --no-binarycaching while you change it. A registry that takes a copy of this folder replaces
# the next line by vcpkg_from_github or vcpkg_from_git with its own REPO, REF and SHA512.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." ABSOLUTE)
if(NOT EXISTS "${SOURCE_PATH}/include/turboquant/turboquant.hpp")
  message(FATAL_ERROR "turboquant: ${SOURCE_PATH} is not its source tree; this port was copied without it, so "
                      "SOURCE_PATH has to come from vcpkg_from_github or vcpkg_from_git")
endif()

# There is nothing to compile: one configuration serves all.
set(VCPKG_BUILD_TYPE release)

vcpkg_check_features(
  OUT_FEATURE_OPTIONS feature_options
  FEATURES hf TURBOQUANT_HF
           kokkos TURBOQUANT_KOKKOS
           tests TURBOQUANT_BUILD_TESTS)
# vcpkg has no port of Kokkos. An installed one is found by find_package; a triplet names its prefix with
# set(VCPKG_CMAKE_CONFIGURE_OPTIONS -DKokkos_ROOT=<prefix>).
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS ${feature_options}
          -DTURBOQUANT_BUILD_EXAMPLES=OFF
          -DTURBOQUANT_BUILD_BENCH=OFF
          -DTURBOQUANT_INSTALL=ON)
if("tests" IN_LIST FEATURES)
  vcpkg_cmake_build(TARGET all)
  vcpkg_execute_required_process(
    COMMAND "${CMAKE_CTEST_COMMAND}" --output-on-failure -LE "gate|consumer"
    WORKING_DIRECTORY "${CURRENT_BUILDTREES_DIR}/${TARGET_TRIPLET}-rel"
    LOGNAME "test-${TARGET_TRIPLET}")
endif()
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME TurboQuant CONFIG_PATH lib/cmake/TurboQuant)

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/lib" "${CURRENT_PACKAGES_DIR}/share/doc")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
