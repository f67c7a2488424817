# cmake -DSOURCE=<repository> -DVERSION=<project version> -P version.cmake
#
# The version is written once for CMake and once for the compiler; they must agree, also with the newest
# entry of CHANGELOG.md.
cmake_minimum_required(VERSION 3.25)

file(STRINGS "${SOURCE}/include/turboquant/base/config.hpp" lines
     REGEX "^#define TURBOQUANT_VERSION_(MAJOR|MINOR|PATCH) [0-9]+$")
set(found "")
foreach(line IN LISTS lines)
  string(REGEX REPLACE ".* " "" number "${line}")
  list(APPEND found ${number})
endforeach()
list(JOIN found "." found)
if(NOT found STREQUAL VERSION)
  message(FATAL_ERROR "version: base/config.hpp says ${found}, project() says ${VERSION}")
endif()
if(EXISTS "${SOURCE}/CHANGELOG.md")
  file(STRINGS "${SOURCE}/CHANGELOG.md" entries REGEX "^## ")
  list(GET entries 0 newest)
  string(REPLACE "." "\\." pattern "${VERSION}")
  if(NOT newest MATCHES "(^|[^0-9.])${pattern}([^0-9.]|$)")
    message(FATAL_ERROR "version: CHANGELOG.md starts with '${newest}', project() says ${VERSION}")
  endif()
endif()
