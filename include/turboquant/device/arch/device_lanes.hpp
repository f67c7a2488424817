#pragma once

/// @file
/// What kernels of lanes ask of an architecture. A lane is a thread of a hardware vector: 32 on
/// NVIDIA's devices, 64 or 32 on AMD's, 1 where a processor runs the kernel. Kernels are written
/// for any number; what differs between architectures is here.

#include <turboquant/device/kokkos_compat.hpp>

#include <bit>
#include <cstdint>

#if defined(__CUDA_ARCH__)
#define TURBOQUANT_CUDA_LANES 1
#else
#define TURBOQUANT_CUDA_LANES 0
#endif
#if defined(__HIP_DEVICE_COMPILE__)
#define TURBOQUANT_HIP_LANES 1
#else
#define TURBOQUANT_HIP_LANES 0
#endif
#if defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx940__) || \
    defined(__gfx941__) || defined(__gfx942__) || defined(__gfx1030__)
#define TURBOQUANT_HIP_DOT4 1
#else
#define TURBOQUANT_HIP_DOT4 0
#endif

namespace turboquant::detail {

/// Lanes of a hardware vector of an execution space: 1 on processors, and on accelerators whose
/// vectors the library does not know.
template <class ExecutionSpace>
inline constexpr int lanes_of = 1;

#if defined(KOKKOS_ENABLE_CUDA) && defined(__CUDACC__)
template <>
inline constexpr int lanes_of<Kokkos::Cuda> = 32;
#endif
#if defined(KOKKOS_ENABLE_HIP) && defined(__HIPCC__)
template <>
inline constexpr int lanes_of<Kokkos::HIP> = Kokkos::Impl::HIPTraits::WarpSize;
#endif

/// Whether an execution space has the dot kernels: accelerators whose lanes the library knows.
/// Tests specialise it for a host space; on others the kernels would only take longer to compile.
template <class ExecutionSpace>
inline constexpr bool has_dot_products = lanes_of<ExecutionSpace> > 1;

/// Whether copies to scratch memory pass by the registers (`copy_later`); elsewhere they would only
/// take scratch memory.
template <class ExecutionSpace>
inline constexpr bool copies_later = false;

/// Whether launch bounds count teams of a multiprocessor, as CUDA's do; HIP's count vectors.
template <class ExecutionSpace>
inline constexpr bool bounds_count_teams = false;
#if defined(KOKKOS_ENABLE_CUDA) && defined(__CUDACC__)
template <>
inline constexpr bool copies_later<Kokkos::Cuda> = true;
template <>
inline constexpr bool bounds_count_teams<Kokkos::Cuda> = true;
#endif

/// Number of the calling lane in its vector.
template <int Lanes>
KOKKOS_FORCEINLINE_FUNCTION int lane_index() {
#if TURBOQUANT_CUDA_LANES || TURBOQUANT_HIP_LANES
  return static_cast<int>(threadIdx.x);
#else
  static_assert(Lanes >= 1);
  return 0;
#endif
}

/// What lanes have written to scratch memory before is seen by their fellow lanes after.
KOKKOS_FORCEINLINE_FUNCTION void sync_lanes() {
#if TURBOQUANT_CUDA_LANES
  __syncwarp();
#elif TURBOQUANT_HIP_LANES
  __threadfence_block();
  __builtin_amdgcn_wave_barrier();
#endif
}

/// The number of the lane whose index differs in the bits of `mask`; all lanes of the hardware
/// vector call together.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T from_lane_xor(T x, int mask) {
#if TURBOQUANT_CUDA_LANES
  return __shfl_xor_sync(~0U, x, mask);
#elif TURBOQUANT_HIP_LANES
  return __shfl_xor(x, mask);
#else
  static_cast<void>(mask);
  return x;
#endif
}

/// Whether `condition` holds in any lane of the hardware vector.
KOKKOS_FORCEINLINE_FUNCTION bool any_lane(bool condition) {
#if TURBOQUANT_CUDA_LANES
  return __any_sync(~0U, condition) != 0;
#elif TURBOQUANT_HIP_LANES
  return __any(condition) != 0;
#else
  return condition;
#endif
}

/// The largest `x` of all lanes, none of which is NaN.
template <int Lanes>
KOKKOS_FORCEINLINE_FUNCTION float max_over_lanes(float x) {
#if TURBOQUANT_CUDA_LANES && __CUDA_ARCH__ >= 800
  // Floats in the order of unsigned integers.
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t ordered = bits ^ ((bits >> 31U) != 0 ? 0xFFFFFFFFU : 0x80000000U);
  const std::uint32_t largest = __reduce_max_sync(~0U, ordered);
  return std::bit_cast<float>(largest ^ ((largest >> 31U) != 0 ? 0x80000000U : 0xFFFFFFFFU));
#else
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int mask = Lanes / 2; mask > 0; mask /= 2) {
    const float other = from_lane_xor(x, mask);
    x = other > x ? other : x;
  }
  return x;
#endif
}

/// The largest of numbers of all lanes that are not negative.
template <int Lanes>
KOKKOS_FORCEINLINE_FUNCTION float max_of_magnitudes(float x) {
#if TURBOQUANT_CUDA_LANES && __CUDA_ARCH__ >= 800
  return std::bit_cast<float>(__reduce_max_sync(~0U, std::bit_cast<std::uint32_t>(x)));
#else
  return max_over_lanes<Lanes>(x);
#endif
}

/// `sum` plus the products of four signed bytes.
KOKKOS_FORCEINLINE_FUNCTION int dot4(std::uint32_t a, std::uint32_t b, int sum) {
#if TURBOQUANT_CUDA_LANES
  return __dp4a(static_cast<int>(a), static_cast<int>(b), sum);
#elif TURBOQUANT_HIP_LANES && TURBOQUANT_HIP_DOT4
  return __builtin_amdgcn_sdot4(static_cast<int>(a), static_cast<int>(b), sum, false);
#else
  for (unsigned shift = 0; shift < 32; shift += 8) {
    sum += static_cast<std::int8_t>((a >> shift) & 0xFFU) *
           static_cast<std::int8_t>((b >> shift) & 0xFFU);
  }
  return sum;
#endif
}

/// Eight bytes that are looked up.
struct ByteTable {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
};

/// Byte i of the result is byte n of the table, n being nibble i of the lower half of `selectors`:
/// 0 to 7.
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t look_up(const ByteTable& table, std::uint32_t selectors) {
#if TURBOQUANT_CUDA_LANES
  // The compiler's intrinsic would mask the selectors first.
  std::uint32_t out;
  asm("prmt.b32 %0,%1,%2,%3;" : "=r"(out) : "r"(table.low), "r"(table.high), "r"(selectors));
  return out;
#else
  std::uint32_t bytes = selectors & 0xFFFFU;
  bytes = (bytes | (bytes << 8U)) & 0x00FF00FFU;
  bytes = (bytes | (bytes << 4U)) & 0x0F0F0F0FU;
#if TURBOQUANT_HIP_LANES
  return __builtin_amdgcn_perm(table.high, table.low, bytes);
#else
  const std::uint64_t all = (static_cast<std::uint64_t>(table.high) << 32U) | table.low;
  std::uint32_t out = 0;
  for (unsigned shift = 0; shift < 32; shift += 8) {
    out |= static_cast<std::uint32_t>((all >> (8 * ((bytes >> shift) & 7U))) & 0xFFU) << shift;
  }
  return out;
#endif
#endif
}

/// Bytes of `b:a` that the nibbles of `Selectors` number, 0 to 7.
template <std::uint32_t Selectors>
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t pick_bytes(std::uint32_t a, std::uint32_t b) {
#if TURBOQUANT_CUDA_LANES
  return __byte_perm(a, b, Selectors);
#elif TURBOQUANT_HIP_LANES
  constexpr std::uint32_t bytes = (Selectors & 0xFU) | (Selectors & 0xF0U) << 4U |
                                  (Selectors & 0xF00U) << 8U | (Selectors & 0xF000U) << 12U;
  return __builtin_amdgcn_perm(b, a, bytes);
#else
  const std::uint64_t all = (static_cast<std::uint64_t>(b) << 32U) | a;
  std::uint32_t out = 0;
  for (unsigned i = 0; i < 4; ++i) {
    out |= static_cast<std::uint32_t>((all >> (8 * ((Selectors >> (4 * i)) & 7U))) & 0xFFU)
           << (8 * i);
  }
  return out;
#endif
}

/// Byte 0 is full of `a`'s sign bit, byte 1 of `b`'s.
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t sign_bytes(float a, float b) {
  const auto first = std::bit_cast<std::uint32_t>(a);
  const auto second = std::bit_cast<std::uint32_t>(b);
#if TURBOQUANT_CUDA_LANES
  std::uint32_t out;
  asm("prmt.b32 %0,%1,%2,0x00FB;" : "=r"(out) : "r"(first), "r"(second));
  return out;
#else
  return (first >> 31U) * 0xFFU | (second >> 31U) * 0xFF00U;
#endif
}

/// A finite half.
KOKKOS_FORCEINLINE_FUNCTION float float_of_half(std::uint16_t bits) {
#if TURBOQUANT_CUDA_LANES
  float x;
  asm("cvt.f32.f16 %0,%1;" : "=f"(x) : "h"(bits));
  return x;
#else
  // A product with a power of two is exact and shorter than `float16::to_float`.
  const std::uint32_t sign = (bits & 0x8000U) << 16U;
  return std::bit_cast<float>(((bits & 0x7FFFU) << 13U) | sign) * 0x1p112F;
#endif
}

/// Begins to fetch what is at an address of device memory into the cache of all multiprocessors.
KOKKOS_FORCEINLINE_FUNCTION void prefetch(const void* at) {
#if TURBOQUANT_CUDA_LANES
  asm volatile("prefetch.global.L2 [%0];" : : "l"(at));
#else
  static_cast<void>(at);
#endif
}

/// 16 bytes of device memory, 16-byte aligned, that nobody needs again: they take no place in the
/// cache of the multiprocessor.
template <class Unit>
KOKKOS_FORCEINLINE_FUNCTION Unit read_once(const void* at) {
  static_assert(sizeof(Unit) == 16);
  static_assert(alignof(Unit) == 16);
#if TURBOQUANT_CUDA_LANES
  struct alignas(16) {
    std::uint32_t words[4];
  } found;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];"
      : "=r"(found.words[0]), "=r"(found.words[1]), "=r"(found.words[2]), "=r"(found.words[3])
      : "l"(at));
  return std::bit_cast<Unit>(found);
#else
  return *static_cast<const Unit*>(at);
#endif
}

/// Begins to copy 16 bytes from device memory to scratch memory, both 16-byte aligned.
KOKKOS_FORCEINLINE_FUNCTION void begin_copy(unsigned char* to, const unsigned char* from) {
#if TURBOQUANT_CUDA_LANES && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
#else
  struct alignas(16) Bytes {
    unsigned char bytes[16];
  };
  *reinterpret_cast<Bytes*>(to) = *reinterpret_cast<const Bytes*>(from);
#endif
}
/// What the calling lane has begun to copy is there after.
KOKKOS_FORCEINLINE_FUNCTION void await_copies() {
#if TURBOQUANT_CUDA_LANES && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/// A pointer to device memory, which the compiler may take for one: loads are shorter then, and
/// pass stores to scratch memory.
KOKKOS_FORCEINLINE_FUNCTION const unsigned char* in_device_memory(const unsigned char* at) {
#if TURBOQUANT_CUDA_LANES
  __builtin_assume(__isGlobal(at));
#endif
  return at;
}

/// `x`, which the compiler does not know any more: a loop that counts so far stays one.
KOKKOS_FORCEINLINE_FUNCTION int unknown_number(int x) {
#if TURBOQUANT_CUDA_LANES
  asm("" : "+r"(x));
#endif
  return x;
}

/// Copies `Words` words of device memory, 1, 2 or 4 and aligned to their size, to scratch memory of
/// the lane, later; `wait_copies` says when, and `read_copied` reads them. A barrier stands between
/// these and other uses of the memory.
template <int Words>
KOKKOS_FORCEINLINE_FUNCTION void copy_later(std::uint32_t* to, const unsigned char* from) {
#if TURBOQUANT_CUDA_LANES && __CUDA_ARCH__ >= 800
  // No instruction here names memory: what the compiler knows of other memory stays true.
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (Words == 4) {
    asm volatile("cp.async.cg.shared.global [%0],[%1],16;" : : "r"(at), "l"(from));
  } else {
    asm volatile("cp.async.ca.shared.global [%0],[%1],%2;" : : "r"(at), "l"(from), "n"(4 * Words));
  }
#else
  const auto* words = reinterpret_cast<const std::uint32_t*>(from);
  for (int i = 0; i < Words; ++i) {
    to[i] = words[i];
  }
#endif
}

/// Ends a group of copies of the lane.
KOKKOS_FORCEINLINE_FUNCTION void end_copy_group() {
#if TURBOQUANT_CUDA_LANES && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;");
#endif
}

/// Waits until at most `Groups` groups of copies of the lane, the newest ones, are on their way.
template <int Groups>
KOKKOS_FORCEINLINE_FUNCTION void wait_copies() {
#if TURBOQUANT_CUDA_LANES && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" : : "n"(Groups));
#endif
}

template <int Words>
KOKKOS_FORCEINLINE_FUNCTION void read_copied(const std::uint32_t* from,
                                             std::uint32_t (&words)[Words]) {
#if TURBOQUANT_CUDA_LANES && __CUDA_ARCH__ >= 800
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(from));
  if constexpr (Words == 4) {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(at));
  } else if constexpr (Words == 2) {
    asm volatile("ld.shared.v2.u32 {%0,%1},[%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(at));
  } else {
    static_assert(Words == 1);
    asm volatile("ld.shared.u32 %0,[%1];" : "=r"(words[0]) : "r"(at));
  }
#else
  for (int i = 0; i < Words; ++i) {
    words[i] = from[i];
  }
#endif
}

}  // namespace turboquant::detail
