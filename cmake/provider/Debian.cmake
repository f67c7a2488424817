# Step "debian": packages of the distribution's archive, through apt. The archive is the one that the
# machine is configured for; only directories below the user's cache are written, so no root is
# needed, and apt itself verifies what it downloads.

# turboquant_apt_sources(<directory>): copies of the machine's own source entries with deb-src added,
# so that apt offers sources as well.
function(turboquant_apt_sources directory)
  file(REMOVE_RECURSE "${directory}")
  file(MAKE_DIRECTORY "${directory}")
  file(GLOB entries "/etc/apt/sources.list.d/*.list" "/etc/apt/sources.list.d/*.sources")
  if(EXISTS "/etc/apt/sources.list")
    list(APPEND entries "/etc/apt/sources.list")
  endif()
  foreach(entry IN LISTS entries)
    file(READ "${entry}" text)
    get_filename_component(name "${entry}" NAME)
    if(name MATCHES "\\.sources$")
      string(REGEX REPLACE "(^|\n)Types:[^\n]*" "\\1Types: deb deb-src" text "${text}")
    else()
      string(REGEX REPLACE "(^|\n)[ \t]*deb-src[ \t][^\n]*" "\\1" text "${text}")
      string(REGEX REPLACE "(^|\n)[ \t]*deb([ \t][^\n]*)" "\\1deb\\2\ndeb-src\\2" text "${text}")
    endif()
    file(WRITE "${directory}/${name}" "${text}")
  endforeach()
endfunction()

# turboquant_apt(<root> <folder> <variable> <arguments>...): runs one apt command in the folder with
# every directory of apt below <root>; the log is <root>/apt.log, the output <variable>_OUTPUT.
function(turboquant_apt root folder out)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env "APT_CONFIG=${root}/apt.conf" LC_ALL=C DEBIAN_FRONTEND=noninteractive
            ${ARGN}
    WORKING_DIRECTORY "${folder}"
    RESULT_VARIABLE result
    OUTPUT_VARIABLE text
    ERROR_VARIABLE errors)
  string(REPLACE ";" " " command "${ARGN}")
  file(APPEND "${root}/apt.log" "$ ${command}\n${text}${errors}\n")
  set(${out}
      "${result}"
      PARENT_SCOPE)
  set(${out}_OUTPUT
      "${text}"
      PARENT_SCOPE)
endfunction()

# turboquant_apt_ready(<package> <root> <variable>): an up-to-date private apt, once a configure.
function(turboquant_apt_ready package root out)
  get_property(state GLOBAL PROPERTY TURBOQUANT_APT_STATE)
  if(NOT state)
    set(state failed)
    file(MAKE_DIRECTORY "${root}/state/lists/partial" "${root}/cache/archives/partial" "${root}/log"
         "${root}/apt.conf.d")
    file(REMOVE "${root}/apt.log")
    turboquant_apt_sources("${root}/sources.d")
    # The machine's own settings (proxies, mirrors' certificates) stay in force; hooks that would
    # act on the machine's own directories do not.
    file(GLOB settings "/etc/apt/apt.conf.d/*")
    if(EXISTS "/etc/apt/apt.conf")
      list(APPEND settings "/etc/apt/apt.conf")
    endif()
    file(REMOVE_RECURSE "${root}/apt.conf.d")
    file(MAKE_DIRECTORY "${root}/apt.conf.d")
    foreach(setting IN LISTS settings)
      if(NOT IS_DIRECTORY "${setting}")
        execute_process(COMMAND "${CMAKE_COMMAND}" -E copy "${setting}" "${root}/apt.conf.d" ERROR_QUIET)
      endif()
    endforeach()
    file(
      WRITE "${root}/apt.conf.d/zz-turboquant"
      "#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n"
      "#clear APT::Update::Post-Invoke-Success;\n#clear DPkg::Pre-Invoke;\n#clear DPkg::Post-Invoke;\n"
      "Dir::Etc::sourcelist \"/dev/null\";\n"
      "Dir::Etc::sourceparts \"${root}/sources.d\";\n"
      "Dir::State \"${root}/state\";\nDir::State::Lists \"${root}/state/lists\";\n"
      "Dir::State::status \"/var/lib/dpkg/status\";\n"
      "Dir::Cache \"${root}/cache\";\nDir::Cache::archives \"${root}/cache/archives\";\n"
      "Dir::Log \"${root}/log\";\nDebug::NoLocking \"true\";\nAPT::Sandbox::User \"\";\n"
      "Acquire::Languages \"none\";\nAcquire::GzipIndexes \"true\";\nAcquire::Retries \"2\";\nAcquire::http::Timeout \"20\";\n"
      "Acquire::https::Timeout \"20\";\n")
    file(WRITE "${root}/apt.conf" "Dir::Etc::parts \"${root}/apt.conf.d\";\n"
                                  "Dir::Etc::main \"/dev/null\";\n")
    turboquant_apt("${root}" "${root}" failed apt-get update)
    if(failed)
      turboquant_say(${package} debian "apt-get update failed, see ${root}/apt.log")
    else()
      set(state ready)
    endif()
    set_property(GLOBAL PROPERTY TURBOQUANT_APT_STATE ${state})
  elseif(state STREQUAL "failed")
    turboquant_say(${package} debian "apt-get update failed before")
  endif()
  set(${out}
      ${state}
      PARENT_SCOPE)
endfunction()

# turboquant_debian_root(<package> <only from the cache> <variable>): the folder of this distribution in the
# cache, or empty where there is no apt.
function(turboquant_debian_root package only_cached out)
  set(${out}
      ""
      PARENT_SCOPE)
  find_program(TURBOQUANT_APT_GET apt-get)
  find_program(TURBOQUANT_DPKG_DEB dpkg-deb)
  mark_as_advanced(TURBOQUANT_APT_GET TURBOQUANT_DPKG_DEB)
  if(NOT TURBOQUANT_APT_GET OR NOT TURBOQUANT_DPKG_DEB)
    if(NOT only_cached)
      turboquant_say(${package} debian "this machine has no apt")
    endif()
    return()
  endif()
  cmake_host_system_information(RESULT release QUERY DISTRIB_INFO)
  turboquant_cache_root(cache)
  if(cache)
    set(root "${cache}/${release_ID}-${release_VERSION_ID}-${CMAKE_HOST_SYSTEM_PROCESSOR}")
    file(MAKE_DIRECTORY "${root}")
    set(${out}
        "${root}"
        PARENT_SCOPE)
  endif()
endfunction()

# turboquant_relocate(<tree> <prefix>): Debian's package configurations name /usr outright; in the copy
# below <tree> they name where it will lie.
function(turboquant_relocate tree prefix)
  file(GLOB_RECURSE configs "${tree}/*.cmake")
  foreach(config IN LISTS configs)
    file(READ "${config}" text)
    string(REPLACE "set(_IMPORT_PREFIX \"/usr\")" "set(_IMPORT_PREFIX \"${prefix}/usr\")" text "${text}")
    file(WRITE "${config}" "${text}")
  endforeach()
endfunction()

# turboquant_debian_binary(<package> <only from the cache> <name> <debian packages> <pattern> <variable>):
# unpacks the packages, and those of their dependencies whose name starts with the pattern, into one prefix.
function(turboquant_debian_binary package only_cached name packages pattern out)
  set(${out}
      ""
      PARENT_SCOPE)
  turboquant_debian_root(${package} ${only_cached} root)
  if(NOT root)
    return()
  endif()
  set(prefix "${root}/${name}")
  if(only_cached AND NOT EXISTS "${prefix}")
    return()
  endif()
  if(NOT EXISTS "${prefix}")
    file(LOCK "${root}/lock" GUARD FUNCTION TIMEOUT 3600)
  endif()
  if(NOT EXISTS "${prefix}")
    turboquant_apt_ready(${package} "${root}" state)
    if(NOT state STREQUAL "ready")
      return()
    endif()
    if(pattern)
      turboquant_apt("${root}" "${root}" failed apt-cache depends ${packages})
      string(REGEX MATCHALL "Depends: ${pattern}[^\n]*" lines "${failed_OUTPUT}")
      foreach(line IN LISTS lines)
        string(REPLACE "Depends: " "" dependency "${line}")
        list(APPEND packages "${dependency}")
      endforeach()
    endif()
    set(work "${prefix}.work")
    file(REMOVE_RECURSE "${work}")
    file(MAKE_DIRECTORY "${work}/debs" "${work}/root")
    turboquant_apt("${root}" "${work}/debs" failed apt-get download ${packages})
    file(GLOB archives "${work}/debs/*.deb")
    foreach(archive IN LISTS archives)
      if(NOT failed)
        execute_process(
          COMMAND "${TURBOQUANT_DPKG_DEB}" -x "${archive}" "${work}/root"
          RESULT_VARIABLE failed
          OUTPUT_QUIET ERROR_QUIET)
      endif()
    endforeach()
    if(failed OR NOT archives)
      list(JOIN packages " " packages)
      turboquant_say(${package} debian "${packages} could not be had, see ${root}/apt.log")
    else()
      turboquant_relocate("${work}/root" "${prefix}")
      file(RENAME "${work}/root" "${prefix}")
    endif()
    file(REMOVE_RECURSE "${work}")
  endif()
  if(EXISTS "${prefix}")
    set(${out}
        "${prefix}"
        PARENT_SCOPE)
  endif()
endfunction()

# turboquant_debian(<package> <only from the cache> <variable>): the prefix, or empty.
function(turboquant_debian package only_cached out)
  set(prefix)
  if(package STREQUAL "Kokkos")
    turboquant_debian_kokkos(${only_cached} prefix)
  else()
    turboquant_recipe(${package})
    turboquant_debian_binary(${package} ${only_cached} ${package} "${recipe_DEBIAN}"
                             "${recipe_DEBIAN_DEPENDS}" prefix)
  endif()
  set(${out}
      "${prefix}"
      PARENT_SCOPE)
endfunction()
