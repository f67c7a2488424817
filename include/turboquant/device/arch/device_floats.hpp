#pragma once

/// @file
/// Arithmetic of single floats that architectures have instructions for.

#include <turboquant/base/float16.hpp>
#include <turboquant/device/arch/device_lanes.hpp>

#include <bit>
#include <cmath>
#include <cstdint>

namespace turboquant::detail {

/// The larger and the smaller of two numbers, either of which may be returned for two zeros.
KOKKOS_FORCEINLINE_FUNCTION float larger_of(float a, float b) {
#if TURBOQUANT_CUDA_LANES || TURBOQUANT_HIP_LANES
  return fmaxf(a, b);
#else
  return a > b ? a : b;
#endif
}
KOKKOS_FORCEINLINE_FUNCTION float smaller_of(float a, float b) {
#if TURBOQUANT_CUDA_LANES || TURBOQUANT_HIP_LANES
  return fminf(a, b);
#else
  return a < b ? a : b;
#endif
}

/// The product, 0 where it or `x` is subnormal.
KOKKOS_FORCEINLINE_FUNCTION float normal_product(float x, float y) {
#if TURBOQUANT_CUDA_LANES
  float product;
  asm("mul.ftz.f32 %0,%1,%2;" : "=f"(product) : "f"(x), "f"(y));
  return product;
#else
  constexpr float least = 0x1p-126F;
  const float product = (x < 0 ? -x : x) < least ? 0.0F : x * y;
  return (product < 0 ? -product : product) < least ? 0.0F : product;
#endif
}

/// 2^x.
KOKKOS_FORCEINLINE_FUNCTION float exp2_of_float(float x) {
#if TURBOQUANT_CUDA_LANES
  float y;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

/// 1 / x within two units in the last place, for a normal x.
KOKKOS_FORCEINLINE_FUNCTION float reciprocal_of_float(float x) {
#if TURBOQUANT_CUDA_LANES
  float y;
  asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0F / x;
#endif
}

/// `x` bounded by 0 and 1.
KOKKOS_FORCEINLINE_FUNCTION float between_0_and_1(float x) {
#if TURBOQUANT_CUDA_LANES
  return __saturatef(x);
#else
  const float positive = x > 0 ? x : 0.0F;
  return positive < 1 ? positive : 1.0F;
#endif
}

/// `float16::from_float` of a finite number.
KOKKOS_FORCEINLINE_FUNCTION float16 half_of_float(float x) {
#if TURBOQUANT_CUDA_LANES
  float16 half;
  asm("cvt.rn.f16.f32 %0,%1;" : "=h"(half.bits) : "f"(x));
  return half;
#else
  return float16::from_float(x);
#endif
}

/// 1 / sqrt(x) within 2^-22 of itself, for a normal x.
KOKKOS_FORCEINLINE_FUNCTION float reciprocal_root_of_float(float x) {
#if TURBOQUANT_CUDA_LANES
  float y;
  asm("rsqrt.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0F / std::sqrt(x);
#endif
}

}  // namespace turboquant::detail
