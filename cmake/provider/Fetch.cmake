# Step "fetch": the upstream release by its tag. One short question to the host comes first, so a
# machine without a network goes on within seconds; a host that did not answer is not asked again.

set(TURBOQUANT_FETCH_TIMEOUT
    10
    CACHE STRING "Seconds that an upstream host may take to answer")
mark_as_advanced(TURBOQUANT_FETCH_TIMEOUT)

# turboquant_fetch(<package> <only from the cache> <variable>): the installed prefix, or empty.
function(turboquant_fetch package only_cached out)
  set(${out}
      ""
      PARENT_SCOPE)
  turboquant_recipe(${package})
  turboquant_cache_root(root)
  if(NOT root)
    return()
  endif()
  set(options ${recipe_OPTIONS})
  turboquant_compiler_key("${options}" key)
  if(NOT recipe_COMPILED)
    set(key any)
  endif()
  set(prefix "${root}/fetch/${package}-${recipe_TAG}-${key}")
  if(EXISTS "${prefix}")
    set(${out}
        "${prefix}"
        PARENT_SCOPE)
    return()
  endif()
  if(only_cached)
    return()
  endif()

  find_program(TURBOQUANT_GIT git)
  mark_as_advanced(TURBOQUANT_GIT)
  if(NOT TURBOQUANT_GIT)
    turboquant_say(${package} fetch "git is not installed")
    return()
  endif()
  string(REGEX REPLACE "^([a-z]+://[^/]+)/.*$" "\\1" host "${recipe_GIT}")
  get_property(silent GLOBAL PROPERTY "TURBOQUANT_SILENT_${host}")
  if(silent)
    turboquant_say(${package} fetch "${host} did not answer before")
    return()
  endif()
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env GIT_TERMINAL_PROMPT=0 "${TURBOQUANT_GIT}" ls-remote --exit-code
            "${recipe_GIT}" "refs/tags/${recipe_TAG}"
    TIMEOUT ${TURBOQUANT_FETCH_TIMEOUT}
    RESULT_VARIABLE failed
    OUTPUT_QUIET ERROR_QUIET)
  if(failed)
    set_property(GLOBAL PROPERTY "TURBOQUANT_SILENT_${host}" TRUE)
    turboquant_say(${package} fetch "${recipe_GIT} does not answer (no network?)")
    return()
  endif()

  if(package STREQUAL "Kokkos")
    turboquant_openmp(fetch possible flags)
    if(NOT possible)
      return()
    endif()
  endif()
  file(LOCK "${root}/lock" GUARD FUNCTION TIMEOUT 3600)
  if(EXISTS "${prefix}")
    set(${out}
        "${prefix}"
        PARENT_SCOPE)
    return()
  endif()
  set(source "${prefix}.source")
  file(REMOVE_RECURSE "${source}")
  file(MAKE_DIRECTORY "${root}/fetch")
  file(REMOVE "${prefix}.fetch.log")
  turboquant_run_logged(
    "${prefix}.fetch.log"
    failed
    GIT_TERMINAL_PROMPT=0
    "${CMAKE_COMMAND}"
    "-DCMAKE_GENERATOR=${CMAKE_GENERATOR}"
    "-DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM}"
    "-DREPOSITORY=${recipe_GIT}"
    "-DTAG=${recipe_TAG}"
    "-DSOURCE=${source}"
    -P
    "${TURBOQUANT_PROVIDER_DIR}/FetchSource.cmake")
  if(failed)
    turboquant_say(${package} fetch "the download failed, see ${prefix}.fetch.log")
  else()
    execute_process(
      COMMAND "${TURBOQUANT_GIT}" -C "${source}/tree" rev-parse HEAD
      OUTPUT_VARIABLE commit
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(recipe_COMMIT AND NOT commit STREQUAL recipe_COMMIT)
      turboquant_say(${package} fetch "tag ${recipe_TAG} is commit ${commit}, expected "
                     "${recipe_COMMIT}; refused")
    elseif(package STREQUAL "Kokkos")
      turboquant_build_kokkos(fetch "${source}/tree" "${prefix}" "${flags}" ${options})
    else()
      turboquant_build_into(${package} fetch "${source}/tree" "${prefix}" ${options})
    endif()
  endif()
  file(REMOVE_RECURSE "${source}")
  if(EXISTS "${prefix}")
    set(${out}
        "${prefix}"
        PARENT_SCOPE)
  endif()
endfunction()
