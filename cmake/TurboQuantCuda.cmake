# turboquant_cuda_options(<target>): what users of the library pass to nvcc where Kokkos has CUDA. The
# kernels call constexpr functions of the standard library (std::bit_cast, std::array); clang needs no flag
# for that.
function(turboquant_cuda_options target)
  if(Kokkos_ENABLE_CUDA AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    set_property(
      TARGET ${target}
      APPEND
      PROPERTY INTERFACE_COMPILE_OPTIONS
               "$<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX,CUDA>:--expt-relaxed-constexpr>>")
  endif()
endfunction()
