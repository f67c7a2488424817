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
