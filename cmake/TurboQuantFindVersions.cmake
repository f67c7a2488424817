# turboquant_find_versions(<package> <versions> [<more arguments of find_package>...])
#
# Asks for one version after the other until the package is found. Most packages let find_package refuse
# another major version than the one that was asked for, so "3.4 or newer" has to be asked for as 3.4, then as
# each later major version. A macro, because find_package reports to the scope of its caller.
macro(turboquant_find_versions package versions)
  set(turboquant_given_dir "${${package}_DIR}")
  set(${package}_FOUND FALSE)
  foreach(turboquant_asked ${versions})
    if(NOT ${package}_FOUND)
      # A refused version clears the folder that the user named.
      if(turboquant_given_dir AND NOT ${package}_DIR)
        set(${package}_DIR
            "${turboquant_given_dir}"
            CACHE PATH "Configuration of ${package}" FORCE)
      endif()
      find_package(${package} ${turboquant_asked} QUIET ${ARGN})
    endif()
  endforeach()
  unset(turboquant_asked)
  unset(turboquant_given_dir)
endmacro()
