# cmake -DBUILD=<complete build folder> [-DREPEATS=5] [-DOUT=<file.json>] [-DCOMPILER=g++] -P compile_time.cmake
#
# What including the library costs: processor seconds (user, the least of REPEATS runs, the cases taken in turn) of
# a translation unit that includes all headers of a target, without code generation, and of one that includes what
# these headers include of other libraries and the standard library. The difference is the library's own part.
cmake_minimum_required(VERSION 3.25)

if(NOT REPEATS)
  set(REPEATS 5)
endif()
if(NOT COMPILER)
  set(COMPILER g++)
endif()
find_program(shell sh REQUIRED)
find_program(compiler "${COMPILER}" REQUIRED)
set(work "${BUILD}/bench/compile_time")
file(MAKE_DIRECTORY "${work}")

# user_ms(<variable> <settings> <source>): the children's user time as the shell's own clock tells it.
function(user_ms out settings source)
  include("${settings}")
  set(flags ${options})
  foreach(directory IN LISTS includes)
    if(directory STREQUAL own)
      list(APPEND flags -I "${directory}")
    elseif(NOT directory IN_LIST implicit)
      list(APPEND flags -isystem "${directory}")
    endif()
  endforeach()
  execute_process(
    COMMAND "${shell}" -c "\"$@\" && times" sh "${compiler}" -fsyntax-only -std=c++20 ${flags} -I "${everything}" "${source}"
    RESULT_VARIABLE code
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text)
  if(NOT code EQUAL 0 OR NOT text MATCHES "\n([0-9]+)m([0-9]+)\\.([0-9]+)s ")
    message(FATAL_ERROR "compile_time: ${source} does not compile:\n${text}")
  endif()
  set(minutes "${CMAKE_MATCH_1}")
  set(seconds "${CMAKE_MATCH_2}")
  string(SUBSTRING "${CMAKE_MATCH_3}00" 0 3 thousandths)
  math(EXPR value "(${minutes} * 60 + ${seconds}) * 1000 + 1${thousandths} - 1000")
  set(${out}
      ${value}
      PARENT_SCOPE)
endfunction()

set(cases "")
foreach(target core hf turboquant)
  foreach(what everything foreign)
    file(WRITE "${work}/${what}.cpp" "#include \"${what}.hpp\"\n")
    list(APPEND cases ${target}_${what})
    set(least_${target}_${what} 1000000)
  endforeach()
endforeach()
foreach(unused RANGE 1 ${REPEATS})
  foreach(case IN LISTS cases)
    string(REPLACE "_" ";" case_parts "${case}")
    list(GET case_parts 0 target)
    list(GET case_parts 1 what)
    user_ms(ms "${BUILD}/tests/gates/flags_${target}.cmake" "${work}/${what}.cpp")
    if(ms LESS least_${case})
      set(least_${case} ${ms})
    endif()
  endforeach()
endforeach()

# Other programs on the processors make user time longer, too: their caches and pipelines are shared.
set(load unknown)
if(EXISTS /proc/loadavg)
  file(STRINGS /proc/loadavg load LIMIT_COUNT 1)
  string(REGEX MATCH "^[^ ]+" load "${load}")
endif()
execute_process(COMMAND "${compiler}" --version OUTPUT_VARIABLE version)
string(REGEX MATCH "^[^\n]*" version "${version}")
cmake_host_system_information(RESULT processor QUERY PROCESSOR_DESCRIPTION)
string(TIMESTAMP date "%Y-%m-%dT%H:%M:%SZ" UTC)
set(json "{}")
foreach(pair "command|compile_time.cmake REPEATS=${REPEATS}" "date|${date}" "processor|${processor}"
             "compiler|${version} -std=c++20 -fsyntax-only" "unit|user milliseconds, least of the runs"
             "load_average|${load} at the end")
  string(REPLACE "|" ";" pair "${pair}")
  list(GET pair 0 key)
  list(GET pair 1 value)
  string(JSON json SET "${json}" ${key} "\"${value}\"")
endforeach()
foreach(target core hf turboquant)
  math(EXPR own "${least_${target}_everything} - ${least_${target}_foreign}")
  set(entry "{\"all_headers\": ${least_${target}_everything}, \"of_other_libraries\": ${least_${target}_foreign}, \"own\": ${own}}")
  string(JSON json SET "${json}" ${target} "${entry}")
  message(STATUS "${target}: ${least_${target}_everything} ms, ${least_${target}_foreign} of them other libraries', ${own} its own")
endforeach()
if(OUT)
  file(WRITE "${OUT}" "${json}\n")
endif()
