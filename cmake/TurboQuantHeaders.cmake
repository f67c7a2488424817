# turboquant_headers(<core|hf|turboquant> <variable>): the headers, as a user writes them, that the
# target offers. The layer tells which target a header needs.
function(turboquant_headers target out)
  file(
    GLOB_RECURSE all CONFIGURE_DEPENDS
    RELATIVE "${PROJECT_SOURCE_DIR}/include"
    "${PROJECT_SOURCE_DIR}/include/turboquant/*.hpp")
  set(mine "")
  foreach(header IN LISTS all)
    set(needs core)
    if(header MATCHES "^turboquant/io/|^turboquant/model/hf_")
      set(needs hf)
    elseif(header MATCHES "^turboquant/(device|cache|attention|runtime)/|^turboquant/turboquant\\.hpp$")
      set(needs turboquant)
    endif()
    if(needs STREQUAL target)
      list(APPEND mine "${header}")
    endif()
  endforeach()
  set(${out}
      "${mine}"
      PARENT_SCOPE)
endfunction()

# turboquant_read_ahead(<include folder> <header> <candidates> <variable>): the last of the candidates that the header
# includes, itself or through other headers of the library; empty where it includes none of them.
function(turboquant_read_ahead root header candidates out)
  set(included "")
  set(open "${header}")
  while(open)
    list(POP_FRONT open next)
    file(STRINGS "${root}/${next}" lines REGEX "^#include <turboquant/")
    list(TRANSFORM lines REPLACE "^#include <([^>]+)>.*$" "\\1")
    list(REMOVE_ITEM lines ${included} "")
    list(APPEND included ${lines})
    list(APPEND open ${lines})
  endwhile()
  set(found "")
  foreach(candidate IN LISTS candidates)
    if(candidate IN_LIST included)
      set(found "${candidate}")
    endif()
  endforeach()
  set(${out}
      "${found}"
      PARENT_SCOPE)
endfunction()
