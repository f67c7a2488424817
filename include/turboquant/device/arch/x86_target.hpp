#pragma once

/// @file
/// Whether this build has x86 tile operations, and the attributes that compile single functions for
/// instruction sets which the rest of the program does not assume.

#include <turboquant/base/config.hpp>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__CUDACC__) && !defined(__HIPCC__)
#define TURBOQUANT_X86 1
#include <immintrin.h>
#else
#define TURBOQUANT_X86 0
#endif

#if TURBOQUANT_X86

#define TURBOQUANT_AVX2_SET "avx2,fma,f16c,bmi,bmi2"
#define TURBOQUANT_AVX512_SET \
  "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c,bmi,bmi2"

#define TURBOQUANT_AVX2 __attribute__((target(TURBOQUANT_AVX2_SET)))
#define TURBOQUANT_AVX2_INLINE __attribute__((target(TURBOQUANT_AVX2_SET), always_inline)) inline
/// Compiles everything that the function calls for the instruction set.
#define TURBOQUANT_AVX2_FLATTEN __attribute__((target(TURBOQUANT_AVX2_SET), flatten))

#define TURBOQUANT_AVX512 __attribute__((target(TURBOQUANT_AVX512_SET)))
#define TURBOQUANT_AVX512_INLINE \
  __attribute__((target(TURBOQUANT_AVX512_SET), always_inline)) inline
#if defined(__clang__)
#define TURBOQUANT_AVX512_FLATTEN __attribute__((target(TURBOQUANT_AVX512_SET), flatten))
#define TURBOQUANT_UNROLL _Pragma("unroll")
#define TURBOQUANT_INTRINSICS_BEGIN
#define TURBOQUANT_INTRINSICS_END
#else
#define TURBOQUANT_AVX512_FLATTEN \
  __attribute__((target(TURBOQUANT_AVX512_SET ",prefer-vector-width=512"), flatten))
#define TURBOQUANT_UNROLL _Pragma("GCC unroll 16")
// GCC takes the deliberately undefined operands inside its own intrinsics for mistakes (GCC bug
// 105593).
#define TURBOQUANT_INTRINSICS_BEGIN                                                    \
  _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wuninitialized\"") \
      _Pragma("GCC diagnostic ignored \"-Wmaybe-uninitialized\"")
#define TURBOQUANT_INTRINSICS_END _Pragma("GCC diagnostic pop")
#endif

namespace turboquant::detail {

[[nodiscard]] inline bool processor_has_avx2() noexcept {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("bmi2") != 0;
}

[[nodiscard]] inline bool processor_has_avx512() noexcept {
  return processor_has_avx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vbmi") != 0 &&
         __builtin_cpu_supports("avx512vnni") != 0;
}

/// Whether loading the next tile early pays. Intel's server processors gain up to half of the time
/// when tiles come from memory; on AMD's Zen 4 the hardware's own prefetching of a linear walk is
/// faster alone.
[[nodiscard]] inline bool processor_wants_prefetch() noexcept {
  return __builtin_cpu_is("intel") != 0;
}

/// Asks for `bytes` bytes from `at`.
inline __attribute__((always_inline)) void prefetch_bytes(const unsigned char* at,
                                                          std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(at + i, 0, 3);
  }
}

/// Asks for 256 bytes: a row of 64 key words or two of 32 value words.
inline __attribute__((always_inline)) void prefetch_row(const unsigned char* at) noexcept {
  __builtin_prefetch(at, 0, 3);
  __builtin_prefetch(at + 64, 0, 3);
  __builtin_prefetch(at + 128, 0, 3);
  __builtin_prefetch(at + 192, 0, 3);
}

}  // namespace turboquant::detail

#endif
