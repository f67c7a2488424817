# Reading Kokkos' package configuration may write CMAKE_CXX_EXTENSIONS into the cache, where it would
# change targets that have nothing to do with Kokkos. The pair of macros puts the caller's own value
# back.

macro(turboquant_remember_extensions)
  set(turboquant_extensions_cached FALSE)
  if(DEFINED CACHE{CMAKE_CXX_EXTENSIONS})
    set(turboquant_extensions_cached TRUE)
    set(turboquant_extensions "$CACHE{CMAKE_CXX_EXTENSIONS}")
  endif()
endmacro()

macro(turboquant_restore_extensions)
  if(turboquant_extensions_cached)
    set_property(CACHE CMAKE_CXX_EXTENSIONS PROPERTY VALUE "${turboquant_extensions}")
  else()
    unset(CMAKE_CXX_EXTENSIONS CACHE)
  endif()
  unset(turboquant_extensions)
  unset(turboquant_extensions_cached)
endmacro()
