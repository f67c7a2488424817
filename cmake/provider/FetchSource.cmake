# Run with cmake -P: clones one tag. A script of its own, because a failing FetchContent call ends
# the CMake run that it is part of.
cmake_minimum_required(VERSION 3.25)
include(FetchContent)
FetchContent_Populate(
  turboquant_source QUIET
  GIT_REPOSITORY "${REPOSITORY}"
  GIT_TAG "${TAG}"
  GIT_SHALLOW TRUE
  GIT_SUBMODULES ""
  SOURCE_DIR "${SOURCE}/tree"
  BINARY_DIR "${SOURCE}/binary"
  SUBBUILD_DIR "${SOURCE}/subbuild")
