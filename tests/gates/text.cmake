# cmake -DROOT=<repository> -P text.cmake
#
# Fails, naming file and line, for text that does not belong in the repository: unfinished work, paths of one
# machine, hosts other than a few well-known ones, and clocks in tests. The words are spelt with brackets
# here, so that this file passes.
cmake_minimum_required(VERSION 3.25)

set(hosts
    "github\\.com"
    "gitlab\\.com"
    "arxiv\\.org"
    "doi\\.org"
    "www\\.apache\\.org"
    "huggingface\\.co"
    "www\\.gutenberg\\.org"
    "keepachangelog\\.com"
    "semver\\.org"
    "cmake\\.org"
    "json-schema\\.org"
    "raw\\.githubusercontent\\.com")
list(JOIN hosts "|" hosts)
set(unfinished "(TO[D]O|FIX[M]E|HA[C]K|XX[X]|[Ss][t]ub[^a-z]|[Pp][l]aceholder|[n]ot (yet )?implemented)")
set(machine "(^|[^a-zA-Z0-9_.}-])/([r]oot|[w]ork|[h]ome|[t]mp)/")
set(clock "([s]teady_clock|[s]ystem_clock|[h]igh_resolution_clock|[g]ettimeofday|[c]lock_gettime)")

file(
  GLOB_RECURSE files
  RELATIVE "${ROOT}"
  "${ROOT}/include/*"
  "${ROOT}/examples/*"
  "${ROOT}/tests/*"
  "${ROOT}/bench/*"
  "${ROOT}/cmake/*"
  "${ROOT}/.ci/*")
foreach(name CMakeLists.txt CMakePresets.json README.md CHANGELOG.md CONTRIBUTING.md .clang-format
             .clang-tidy .gitignore vcpkg.json conanfile.py)
  if(EXISTS "${ROOT}/${name}")
    list(APPEND files "${name}")
  endif()
endforeach()
list(FILTER files EXCLUDE REGEX "\\.(safetensors|bin|gz|png)$|^tests/data/[^/]*\\.txt$")

set(problems "")
function(look file pattern what)
  file(STRINGS "${ROOT}/${file}" lines REGEX "${pattern}")
  foreach(line IN LISTS lines)
    string(STRIP "${line}" line)
    list(APPEND problems "${file}: ${what}: ${line}")
  endforeach()
  set(problems
      "${problems}"
      PARENT_SCOPE)
endfunction()

foreach(file IN LISTS files)
  look("${file}" "${unfinished}" "unfinished work")
  look("${file}" "${machine}" "a path of one machine")
  if(file MATCHES "^tests/.*\\.[ch]pp$")
    look("${file}" "${clock}" "a clock in a test")
  endif()
  file(STRINGS "${ROOT}/${file}" lines REGEX "https?://")
  foreach(line IN LISTS lines)
    string(REGEX MATCHALL "https?://[a-zA-Z0-9.-]+" urls "${line}")
    foreach(url IN LISTS urls)
      if(NOT url MATCHES "^https?://(${hosts})$")
        list(APPEND problems "${file}: an unknown host: ${url}")
      endif()
    endforeach()
  endforeach()
endforeach()

if(problems)
  list(JOIN problems "\n  " text)
  message(FATAL_ERROR "text:\n  ${text}")
endif()
list(LENGTH files count)
message(STATUS "text: ${count} files")
