#pragma once

/// @file
/// Version, compiler requirements and annotations. The only header with conditional compilation.

#include <cfloat>
#include <cstddef>
#include <cstdint>

#define TURBOQUANT_VERSION_MAJOR 0
#define TURBOQUANT_VERSION_MINOR 1
#define TURBOQUANT_VERSION_PATCH 0

#if defined(_MSVC_LANG)
#define TURBOQUANT_CPLUSPLUS _MSVC_LANG
#else
#define TURBOQUANT_CPLUSPLUS __cplusplus
#endif
#if TURBOQUANT_CPLUSPLUS < 202002L
#error "TurboQuant needs C++20 (-std=c++20)."
#endif
#undef TURBOQUANT_CPLUSPLUS

// Finite-only arithmetic removes the tests for NaN and infinity on which input checks and masks
// rest, and reassociation changes codes between builds.
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error \
    "TurboQuant cannot be compiled with -ffast-math or -ffinite-math-only (__FINITE_MATH_ONLY__ is 1)."
#endif
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__)
#error "TurboQuant cannot be compiled with -ffast-math or -fassociative-math."
#endif

// Excess precision (x87 arithmetic) rounds differently. 16 only concerns half precision types.
#if FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16
#error \
    "TurboQuant needs float arithmetic in float precision (FLT_EVAL_METHOD 0; on x86: -mfpmath=sse)."
#endif

#if SIZE_MAX < 0xFFFFFFFFFFFFFFFF
#error "TurboQuant needs 64-bit sizes: cache offsets exceed 32 bits."
#endif

/// Marks a function that runs on the host and inside kernels.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define TURBOQUANT_FUNCTION __host__ __device__
#else
#define TURBOQUANT_FUNCTION
#endif

/// 1 when errors are thrown; 0 when the compiler has exceptions switched off and errors end the
/// program.
#if defined(__cpp_exceptions)
#define TURBOQUANT_HAS_EXCEPTIONS 1
#else
#define TURBOQUANT_HAS_EXCEPTIONS 0
#endif

namespace turboquant {

static_assert(sizeof(0.1) == 8, "TurboQuant cannot be compiled with -fsingle-precision-constant.");

/// True when errors are thrown as `Error`; false when they are printed to stderr and end the
/// program.
inline constexpr bool has_exceptions = TURBOQUANT_HAS_EXCEPTIONS != 0;

/// The library's version as `major * 10000 + minor * 100 + patch`.
inline constexpr int version =
    TURBOQUANT_VERSION_MAJOR * 10000 + TURBOQUANT_VERSION_MINOR * 100 + TURBOQUANT_VERSION_PATCH;

}  // namespace turboquant

/// Throws `exception`, or prints its message to stderr and aborts where exceptions are switched
/// off.
#if TURBOQUANT_HAS_EXCEPTIONS
#define TURBOQUANT_THROW(exception) throw exception
#else
#include <cstdio>
#include <cstdlib>
#define TURBOQUANT_THROW(exception)                               \
  do {                                                            \
    std::fprintf(stderr, "turboquant: %s\n", (exception).what()); \
    std::abort();                                                 \
  } while (false)
#endif

/// `TURBOQUANT_TRY {...} TURBOQUANT_CATCH_ALL {...}`: the second block runs when a function of
/// another library throws in the first; never where exceptions are switched off.
#if TURBOQUANT_HAS_EXCEPTIONS
#define TURBOQUANT_TRY try
#define TURBOQUANT_CATCH_ALL catch (...)
#else
#define TURBOQUANT_TRY if (true)
#define TURBOQUANT_CATCH_ALL else
#endif
