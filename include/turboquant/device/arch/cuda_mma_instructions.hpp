#pragma once

/// @file
/// The machine instructions of the matrix-unit kernels as functions of one lane of 32. Lane 4 r + c
/// holds row r and columns 2 c, 2 c + 1 (or 4 c to 4 c + 3) of an 8 x 8 operand. Only device code
/// for compute capability 8.0 or newer calls them; for every other compilation they are empty.

#include <turboquant/device/arch/cuda_target.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail::cuda {

using Word = std::uint32_t;

struct FloatPair {
  float first = 0;
  float second = 0;
};

#if TURBOQUANT_CUDA_MMA

KOKKOS_FORCEINLINE_FUNCTION int lane_index() {
  return static_cast<int>(threadIdx.x);
}
KOKKOS_FORCEINLINE_FUNCTION void sync_lanes() {
  __syncwarp();
}
KOKKOS_FORCEINLINE_FUNCTION bool any_lane(bool condition) {
  return __any_sync(~0U, condition) != 0;
}
KOKKOS_FORCEINLINE_FUNCTION Word from_lane(Word x, int lane) {
  return __shfl_sync(~0U, x, lane);
}
KOKKOS_FORCEINLINE_FUNCTION const std::byte* from_lane(const std::byte* x, int lane) {
  return reinterpret_cast<const std::byte*>(
      __shfl_sync(~0U, reinterpret_cast<unsigned long long>(x), lane));
}
KOKKOS_FORCEINLINE_FUNCTION float from_lane_xor(float x, int mask) {
  return __shfl_xor_sync(~0U, x, mask);
}

/// The largest of numbers of all lanes that are not negative; NaN if one of them is.
KOKKOS_FORCEINLINE_FUNCTION float max_of_magnitudes(float x) {
  return __uint_as_float(__reduce_max_sync(~0U, __float_as_uint(x)));
}

/// Loads here and now. The compiler would load what is needed behind a branch there, which makes
/// two trips to memory of one.
KOKKOS_FORCEINLINE_FUNCTION std::int64_t load_now(const std::int64_t* at) {
  std::int64_t x;
  asm volatile("ld.global.s64 %0,[%1];" : "=l"(x) : "l"(at));
  return x;
}
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T* load_now(T* const* at) {
  T* x;
  asm volatile("ld.global.u64 %0,[%1];" : "=l"(x) : "l"(at));
  return x;
}

/// Memory that is read once.
KOKKOS_FORCEINLINE_FUNCTION void load_4_words(const std::byte* at, Word* out) {
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3},[%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "l"(at));
}
KOKKOS_FORCEINLINE_FUNCTION void load_2_words(const std::byte* at, Word* out) {
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1},[%2];"
               : "=r"(out[0]), "=r"(out[1])
               : "l"(at));
}
KOKKOS_FORCEINLINE_FUNCTION void load_1_word(const std::byte* at, Word* out) {
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0,[%1];" : "=r"(out[0]) : "l"(at));
}

/// Byte i of the result is byte (selector >> 4 i) & 7 of {low, high}; with bit 3 set, its sign in
/// all bits. The compiler's intrinsic would mask the selector first.
KOKKOS_FORCEINLINE_FUNCTION Word permute_bytes(Word low, Word high, Word selector) {
  Word out;
  asm("prmt.b32 %0,%1,%2,%3;" : "=r"(out) : "r"(low), "r"(high), "r"(selector));
  return out;
}

KOKKOS_FORCEINLINE_FUNCTION float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}

/// log2(x) within 2^-22, and 2^-22 of itself, for a normal x.
KOKKOS_FORCEINLINE_FUNCTION float log2_of(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}
/// 1 / x within one unit in the last place, for a normal x whose reciprocal is normal.
KOKKOS_FORCEINLINE_FUNCTION float reciprocal_of(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two fp16, `low` in the low half.
KOKKOS_FORCEINLINE_FUNCTION Word pack_halves(float low, float high) {
  Word out;
  asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
/// Two bfloat16, `low` in the low half.
KOKKOS_FORCEINLINE_FUNCTION Word pack_bfloats(float low, float high) {
  Word out;
  asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
KOKKOS_FORCEINLINE_FUNCTION Word multiply_halves(Word a, Word b) {
  Word out;
  asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
KOKKOS_FORCEINLINE_FUNCTION FloatPair unpack_halves(Word a) {
  FloatPair out;
  asm("{.reg .b16 l,h; mov.b32 {l,h},%2; cvt.f32.f16 %0,l; cvt.f32.f16 %1,h;}"
      : "=f"(out.first), "=f"(out.second)
      : "r"(a));
  return out;
}

/// Transposes an 8 x 8 matrix of 16-bit numbers.
KOKKOS_FORCEINLINE_FUNCTION Word transpose(Word x) {
  Word y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(y) : "r"(x));
  return y;
}

/// c (16, 8) += a (16, 32) b (32, 8), int8 into int32.
KOKKOS_FORCEINLINE_FUNCTION void multiply_add(int (&c)[4], const Word (&a)[4], Word b0, Word b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// c (16, 8) += a (16, 16) b (16, 8), fp16 into float.
KOKKOS_FORCEINLINE_FUNCTION void multiply_add(float (&c)[4], Word a0, Word a1, Word a2, Word a3,
                                              Word b0, Word b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

KOKKOS_FORCEINLINE_FUNCTION std::uint64_t from_lane(std::uint64_t x, int lane) {
  return __shfl_sync(~0U, static_cast<unsigned long long>(x), lane);
}
/// Adds one; the number before. What this lane and those that it has met have written is visible to
/// whoever counts later, and to those that this one meets afterwards.
KOKKOS_FORCEINLINE_FUNCTION std::uint64_t count_up(std::uint64_t* counter) {
  std::uint64_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0,[%1],1;"
               : "=l"(before)
               : "l"(counter)
               : "memory");
  return before;
}
/// What this lane has written is visible on the device before what it writes or reads afterwards.
KOKKOS_FORCEINLINE_FUNCTION void device_fence() {
  __threadfence();
}

/// Numbers that other teams have written during this kernel: past the first-level cache.
KOKKOS_FORCEINLINE_FUNCTION FloatPair load_pair(const float* at) {
  const float2 pair = __ldcg(reinterpret_cast<const float2*>(at));
  return {pair.x, pair.y};
}

#else

KOKKOS_FORCEINLINE_FUNCTION int lane_index() {
  return 0;
}
KOKKOS_FORCEINLINE_FUNCTION void sync_lanes() {}
KOKKOS_FORCEINLINE_FUNCTION bool any_lane(bool condition) {
  return condition;
}
KOKKOS_FORCEINLINE_FUNCTION Word from_lane(Word x, int) {
  return x;
}
KOKKOS_FORCEINLINE_FUNCTION const std::byte* from_lane(const std::byte* x, int) {
  return x;
}
KOKKOS_FORCEINLINE_FUNCTION float from_lane_xor(float x, int) {
  return x;
}
KOKKOS_FORCEINLINE_FUNCTION float max_of_magnitudes(float x) {
  return x;
}
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T load_now(const T* at) {
  return *at;
}
KOKKOS_FORCEINLINE_FUNCTION void load_4_words(const std::byte*, Word*) {}
KOKKOS_FORCEINLINE_FUNCTION void load_2_words(const std::byte*, Word*) {}
KOKKOS_FORCEINLINE_FUNCTION void load_1_word(const std::byte*, Word*) {}
KOKKOS_FORCEINLINE_FUNCTION Word permute_bytes(Word low, Word, Word) {
  return low;
}
KOKKOS_FORCEINLINE_FUNCTION float exp2_of(float x) {
  return x;
}
KOKKOS_FORCEINLINE_FUNCTION float log2_of(float x) {
  return x;
}
KOKKOS_FORCEINLINE_FUNCTION float reciprocal_of(float x) {
  return x;
}
KOKKOS_FORCEINLINE_FUNCTION Word pack_halves(float, float) {
  return 0;
}
KOKKOS_FORCEINLINE_FUNCTION Word pack_bfloats(float, float) {
  return 0;
}
KOKKOS_FORCEINLINE_FUNCTION Word multiply_halves(Word a, Word) {
  return a;
}
KOKKOS_FORCEINLINE_FUNCTION FloatPair unpack_halves(Word) {
  return {};
}
KOKKOS_FORCEINLINE_FUNCTION Word transpose(Word x) {
  return x;
}
KOKKOS_FORCEINLINE_FUNCTION void multiply_add(int (&)[4], const Word (&)[4], Word, Word) {}
KOKKOS_FORCEINLINE_FUNCTION void multiply_add(float (&)[4], Word, Word, Word, Word, Word, Word) {}
KOKKOS_FORCEINLINE_FUNCTION std::uint64_t from_lane(std::uint64_t x, int) {
  return x;
}
KOKKOS_FORCEINLINE_FUNCTION std::uint64_t count_up(std::uint64_t* counter) {
  return (*counter)++;
}
KOKKOS_FORCEINLINE_FUNCTION void device_fence() {}
KOKKOS_FORCEINLINE_FUNCTION FloatPair load_pair(const float* at) {
  return {at[0], at[1]};
}

#endif

/// The largest `x` of the lanes with the same c.
KOKKOS_FORCEINLINE_FUNCTION float max_over_rows(float x) {
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int mask = 4; mask < 32; mask *= 2) {
    const float other = from_lane_xor(x, mask);
    x = other > x ? other : x;
  }
  return x;
}

/// Where the parts of one walk meet: a counter and a mark for every part, in memory that may hold
/// anything before, except that the upper 48 bits of `mark` do not stand there by chance.
struct MeetingPlace {
  static constexpr std::uint64_t count_bits = 0xFFFF;

  std::uint64_t* counter;
  volatile std::uint64_t* marks;  ///< (parts)
  std::uint64_t mark;

  /// Tells whether the caller is the last of `parts` to come, and leaves the place as it was. One
  /// warp of every part calls it once, after its team's writes and a barrier.
  ///
  /// A place that has been used counts. At the first use nobody knows where the count began; then
  /// parts leave marks, and who finds them all is last. Several parts may hear so.
  KOKKOS_FORCEINLINE_FUNCTION bool is_last(int own, int parts, int lane) const {
    std::uint64_t before = 0;
    if (lane == 0) {
      before = count_up(counter);
    }
    before = from_lane(before, 0);
    const std::uint64_t empty = mark & ~count_bits;
    bool last = (before & count_bits) == static_cast<std::uint64_t>(parts - 1);
    if ((before & ~count_bits) != empty) {
      last = finds_all_marks(own, parts, lane);
    }
    if (last && lane == 0) {
      *counter = empty;
    }
    return last;
  }

 private:
  KOKKOS_FORCEINLINE_FUNCTION bool finds_all_marks(int own, int parts, int lane) const {
    if (lane == 0) {
      device_fence();
      marks[own] = mark;
    }
    sync_lanes();
    device_fence();
    bool missing = false;
    for (int i = lane; i < parts; i += 32) {
      missing = missing || marks[i] != mark;
    }
    if (any_lane(missing)) {
      return false;
    }
    device_fence();
    for (int i = lane; i < parts; i += 32) {
      marks[i] = 0;
    }
    return true;
  }
};

/// The sum of `x` over all lanes, the same bits in every lane.
KOKKOS_FORCEINLINE_FUNCTION float sum_over_lanes(float x) {
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int mask = 16; mask > 0; mask /= 2) {
    x += from_lane_xor(x, mask);
  }
  return x;
}

}  // namespace turboquant::detail::cuda
