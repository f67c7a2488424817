# cmake -DCOMPILER=... -DSETTINGS=<flags file> -DSOURCE=... [-DFLAGS=a,b] [-DEXPECT=<regular expression>]
#       [-DALWAYS_REFUSED=TRUE] -P compile.cmake
#
# Without EXPECT the source must compile without a warning. With it the compiler must refuse the source with a
# message that matches and, unless ALWAYS_REFUSED, accept it with -DMUST_COMPILE, which shows that it is refused
# for the stated reason.
cmake_minimum_required(VERSION 3.25)

include("${CMAKE_CURRENT_LIST_DIR}/../support/commands.cmake")
include("${SETTINGS}")
string(REPLACE "," ";" flags "${FLAGS}")
set(command "${COMPILER}" -fsyntax-only -std=c++20 -Wall -Wextra -Wconversion -Wshadow -Wpedantic -Werror
            -Wno-unknown-warning-option ${options} ${flags} -I "${own}" -I "${everything}")
if(NOT COMPILER MATCHES "clang")
  list(REMOVE_ITEM command -Wno-unknown-warning-option)
endif()
foreach(directory IN LISTS includes)
  if(NOT directory STREQUAL own AND NOT directory IN_LIST implicit)
    list(APPEND command -isystem "${directory}")
  endif()
endforeach()

if("${EXPECT}" STREQUAL "")
  run_command(plain ${command} "${SOURCE}")
  if(NOT plain EQUAL 0)
    message(FATAL_ERROR "${SOURCE} does not compile:\n${plain_text}")
  endif()
else()
  run_command(plain ${command} "${SOURCE}")
  if(plain EQUAL 0)
    message(FATAL_ERROR "${SOURCE} compiles, and must not")
  endif()
  if(NOT plain_text MATCHES "${EXPECT}")
    message(FATAL_ERROR "${SOURCE} is refused, but not with '${EXPECT}':\n${plain_text}")
  endif()
  if(NOT ALWAYS_REFUSED)
    run_command(good ${command} -DMUST_COMPILE "${SOURCE}")
    if(NOT good EQUAL 0)
      message(FATAL_ERROR "${SOURCE} is refused with -DMUST_COMPILE too, so for another reason:\n"
                          "${good_text}")
    endif()
  endif()
endif()
