# turboquant_test, turboquant_bench, turboquant_example: one line a program.

# The library's own programs are compiled with every warning an error; a parent project that
# builds them as a part of itself keeps its own rules.
add_library(turboquant_warnings INTERFACE)
if(PROJECT_IS_TOP_LEVEL)
  target_compile_options(turboquant_warnings INTERFACE -Wall -Wextra -Wconversion -Wshadow -Wpedantic
                                                       -Werror)
  # nvcc compiles a kernel that calls a host function, after a warning; the kernel does nothing.
  if(Kokkos_ENABLE_CUDA AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_compile_options(turboquant_warnings INTERFACE -Werror=cross-execution-space-call)
  endif()
  # GCC 12 reports overlapping copies inside its own std::string (GCC bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(turboquant_warnings INTERFACE -Wno-restrict)
  endif()
endif()

# turboquant_links(<targets> <variable>): TRUE where the named targets are part of this build.
function(turboquant_links targets out)
  set(${out}
      TRUE
      PARENT_SCOPE)
  foreach(target IN LISTS targets)
    if(target MATCHES "::" AND NOT TARGET ${target})
      set(${out}
          FALSE
          PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# turboquant_part(<group> <target>): "make <group>" builds the target, too.
function(turboquant_part group target)
  if(NOT TARGET ${group})
    add_custom_target(${group})
  endif()
  add_dependencies(${group} ${target})
endfunction()

# turboquant_program(<target> <source>... LINK <targets>): a program that no parent's "all" inherits
# flags from; the name of the executable is the last word of the target's name.
function(turboquant_program target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  add_executable(${target} ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE ${arg_LINK} turboquant_warnings)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
endfunction()

# For tests whose programs have a thread for every processor. Waiting threads that spin make a test ten times longer where
# the processors are busy with others, the next test for example.
set(TURBOQUANT_PATIENT_THREADS ENVIRONMENT_MODIFICATION OMP_WAIT_POLICY=set:passive)

set(TURBOQUANT_TEST_LAUNCHER
    ""
    CACHE STRING "A program, with its options, that runs the test programs, such as valgrind")
mark_as_advanced(TURBOQUANT_TEST_LAUNCHER)

# The checks of libstdc++ (index, range, iterator) cost the tests no time that can be measured.
set(TURBOQUANT_TEST_DEFINITIONS TURBOQUANT_TEST_DATA_DIR="${PROJECT_SOURCE_DIR}/tests/data" _GLIBCXX_ASSERTIONS)

# turboquant_test(<name> [SOURCES <more>...] LINK <targets>... [TIMEOUT <seconds>] [NO_MAIN]
#                 [LABELS <more>...] [OWN_FLAGS] [OPTIMISED] [TOGETHER <names>...])
# Builds <name>_test.cpp of the calling folder and registers it as <folder>.<name> under the label
# core, hf or turboquant, whichever of the linked targets needs most. TOGETHER: builds the tests of these names instead, as one
# translation unit, because most of the time of compiling any of them goes into the same templates. A test whose target is left out of this
# build is left out too. OWN_FLAGS: the caller changes how it is compiled. OPTIMISED: it computes
# for long, so that every build compiles it with -O1, whatever is quicker to compile. The target turboquant_tests_<folder> builds all tests of a folder.
function(turboquant_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_MAIN;OWN_FLAGS;OPTIMISED" "TIMEOUT" "SOURCES;LINK;LABELS;TOGETHER")
  turboquant_links("${arg_LINK}" complete)
  if(NOT complete)
    return()
  endif()
  get_filename_component(area "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
  set(target turboquant_test_${area}_${name})
  set(label core)
  foreach(candidate hf turboquant)
    if("TurboQuant::${candidate}" IN_LIST arg_LINK)
      set(label ${candidate})
    endif()
  endforeach()
  set(support "")
  if(label STREQUAL "turboquant")
    list(APPEND support turboquant_test_host_kernels)
  endif()
  if(NOT arg_NO_MAIN)
    if(label STREQUAL "turboquant")
      list(APPEND support turboquant_doctest_kokkos_main)
    else()
      list(APPEND support turboquant_doctest_main)
    endif()
  endif()
  set(tests ${arg_TOGETHER})
  if(NOT tests)
    set(tests ${name})
  endif()
  list(TRANSFORM tests APPEND _test.cpp)
  turboquant_program(${target} SOURCES ${tests} ${arg_SOURCES} LINK ${arg_LINK} ${support}
                     doctest::doctest)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name}_test)
  if(arg_TOGETHER)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  endif()
  target_compile_definitions(${target} PRIVATE ${TURBOQUANT_TEST_DEFINITIONS})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  set(precompiled turboquant_precompiled_core)
  if(label STREQUAL "turboquant")
    set(precompiled turboquant_precompiled_turboquant)
  endif()
  if(arg_OPTIMISED)
    target_compile_options(${target} PRIVATE -O1)
  endif()
  # Programs without doctest's main would lack what its header refers to; other levels of optimisation need another one.
  if(TARGET ${precompiled} AND NOT arg_OWN_FLAGS AND NOT arg_OPTIMISED AND NOT arg_NO_MAIN)
    target_precompile_headers(${target} REUSE_FROM ${precompiled})
    # GCC forgets which precompiled headers are the system's and reports its own std::string.
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
    endif()
  endif()
  turboquant_part(turboquant_tests_${area} ${target})
  add_test(NAME ${area}.${name} COMMAND ${TURBOQUANT_TEST_LAUNCHER} $<TARGET_FILE:${target}>)
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 900)
  endif()
  set_tests_properties(${area}.${name} PROPERTIES LABELS "${label};${arg_LABELS}" TIMEOUT
                                                                                  ${arg_TIMEOUT})
  # 77: this build's accelerator is not there.
  if(label STREQUAL "turboquant")
    set_tests_properties(${area}.${name} PROPERTIES ${TURBOQUANT_PATIENT_THREADS} SKIP_RETURN_CODE 77)
  endif()
endfunction()

# turboquant_bench(<name> [SOURCES <more>...] LINK <targets>...)
function(turboquant_bench name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  turboquant_links("${arg_LINK}" complete)
  if(complete)
    turboquant_program(turboquant_bench_${name} SOURCES ${name}.cpp ${arg_SOURCES} LINK ${arg_LINK}
                       benchmark::benchmark)
    set_target_properties(turboquant_bench_${name} PROPERTIES OUTPUT_NAME ${name})
    turboquant_part(turboquant_benches turboquant_bench_${name})
  endif()
endfunction()

# turboquant_example(<name> [SOURCES <more>...] LINK <targets>...)
function(turboquant_example name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  turboquant_links("${arg_LINK}" complete)
  if(complete)
    turboquant_program(turboquant_example_${name} SOURCES ${name}.cpp ${arg_SOURCES} LINK ${arg_LINK})
    set_target_properties(turboquant_example_${name} PROPERTIES OUTPUT_NAME ${name})
    turboquant_part(turboquant_examples turboquant_example_${name})
  endif()
endfunction()
