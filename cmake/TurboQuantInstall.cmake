# Install rules: headers, one export set a component, and the package configuration.

include(CMakePackageConfigHelpers)

set(turboquant_config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/TurboQuant")
set(turboquant_components core)
install(TARGETS turboquant_core EXPORT TurboQuant-core)
if(TURBOQUANT_WITH_HF)
  list(APPEND turboquant_components hf)
  install(TARGETS turboquant_hf EXPORT TurboQuant-hf)
endif()
if(TURBOQUANT_WITH_KOKKOS)
  list(APPEND turboquant_components turboquant)
  install(TARGETS turboquant EXPORT TurboQuant-turboquant)
endif()
foreach(component IN LISTS turboquant_components)
  install(
    EXPORT TurboQuant-${component}
    NAMESPACE TurboQuant::
    DESTINATION "${turboquant_config_dir}")
endforeach()

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/turboquant" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/TurboQuantConfig.cmake.in" "${PROJECT_BINARY_DIR}/TurboQuantConfig.cmake"
  INSTALL_DESTINATION "${turboquant_config_dir}"
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# While the major version is 0, a minor version may change the interface.
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/TurboQuantConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion
  ARCH_INDEPENDENT)
install(
  FILES "${PROJECT_BINARY_DIR}/TurboQuantConfig.cmake"
        "${PROJECT_BINARY_DIR}/TurboQuantConfigVersion.cmake"
        "${PROJECT_SOURCE_DIR}/cmake/TurboQuantCuda.cmake"
        "${PROJECT_SOURCE_DIR}/cmake/TurboQuantFindVersions.cmake"
        "${PROJECT_SOURCE_DIR}/cmake/TurboQuantKeepExtensions.cmake"
  DESTINATION "${turboquant_config_dir}")
