#pragma once

/// @file
/// Products of signed bytes with integers of 15 bits, four at a time, and the look-ups around them,
/// in the instructions of an architecture.

#include <turboquant/device/arch/device_lanes.hpp>

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>

namespace turboquant::detail {

/// `Count` words that lie together, aligned to their size.
template <int Count>
struct alignas(4 * Count) WordPack {
  std::uint32_t words[Count];
};

/// Four integers for each of `Rows` rows, in two words a row: on NVIDIA's devices integers 0 and 1,
/// 2 and 3; elsewhere the high bytes and the low bytes, an integer being 256 * high + low.
template <int Rows>
struct WidePack {
  WordPack<Rows> words[2];
};

#if TURBOQUANT_CUDA_LANES

/// A sum of products of bytes with wide integers.
struct WideSum {
  int sum;

  KOKKOS_FORCEINLINE_FUNCTION void clear() { sum = 0; }
  /// @param first, second the words of four integers
  KOKKOS_FORCEINLINE_FUNCTION void add(std::uint32_t bytes, std::uint32_t first,
                                       std::uint32_t second) {
    sum = __dp2a_lo(static_cast<int>(first), static_cast<int>(bytes), sum);
    sum = __dp2a_hi(static_cast<int>(second), static_cast<int>(bytes), sum);
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float value() const { return static_cast<float>(sum); }
};

/// Writes integer `n` of four of a row.
template <int Rows>
KOKKOS_FORCEINLINE_FUNCTION void set_integer(WidePack<Rows>& pack, int n, int row, int value) {
  reinterpret_cast<std::int16_t*>(&pack.words[n / 2].words[row])[n % 2] =
      static_cast<std::int16_t>(value);
}

/// Writes integers 2 `pair` and 2 `pair` + 1 of all rows.
template <int Rows>
KOKKOS_FORCEINLINE_FUNCTION void set_integers(WidePack<Rows>& pack, int pair, const int (&a)[Rows],
                                              const int (&b)[Rows]) {
  WordPack<Rows> words;
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int r = 0; r < Rows; ++r) {
    words.words[r] =
        (static_cast<std::uint32_t>(a[r]) & 0xFFFFU) | (static_cast<std::uint32_t>(b[r]) << 16U);
  }
  pack.words[pair] = words;
}

#else

struct WideSum {
  int high;
  int low;

  KOKKOS_FORCEINLINE_FUNCTION void clear() {
    high = 0;
    low = 0;
  }
  KOKKOS_FORCEINLINE_FUNCTION void add(std::uint32_t bytes, std::uint32_t first,
                                       std::uint32_t second) {
    high = dot4(bytes, first, high);
    low = dot4(bytes, second, low);
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float value() const {
    return static_cast<float>(high) * 256.0F + static_cast<float>(low);
  }
};

template <int Rows>
KOKKOS_FORCEINLINE_FUNCTION void set_integer(WidePack<Rows>& pack, int n, int row, int value) {
  const int high = (value + 128) >> 8;
  reinterpret_cast<std::int8_t*>(&pack.words[0].words[row])[n] = static_cast<std::int8_t>(high);
  reinterpret_cast<std::int8_t*>(&pack.words[1].words[row])[n] =
      static_cast<std::int8_t>(value - 256 * high);
}

template <int Rows>
KOKKOS_FORCEINLINE_FUNCTION void set_integers(WidePack<Rows>& pack, int pair, const int (&a)[Rows],
                                              const int (&b)[Rows]) {
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int r = 0; r < Rows; ++r) {
    set_integer(pack, 2 * pair, r, a[r]);
    set_integer(pack, 2 * pair + 1, r, b[r]);
  }
}

#endif

/// All bits of byte i of the result are bit 3 of nibble i of the lower (0) or upper (1) half of
/// `x`.
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t nibble_signs(std::uint32_t x, int half) {
#if TURBOQUANT_CUDA_LANES
  // A selector of 8 and more takes the sign of a byte.
  std::uint32_t out;
  asm("prmt.b32 %0,%1,%2,%3;"
      : "=r"(out)
      : "r"(x << 4U), "r"(x), "r"(half == 0 ? 0xD9C8U : 0xFBEAU));
  return out;
#else
  return look_up({0x0000FF00U, 0U}, (x >> (half == 0 ? 3U : 19U)) & 0x1111U);
#endif
}

/// All bits of byte i of the result are the highest bit of byte i of `x`.
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t byte_signs(std::uint32_t x) {
#if TURBOQUANT_CUDA_LANES
  std::uint32_t out;
  asm("prmt.b32 %0,%1,%1,%2;" : "=r"(out) : "r"(x), "r"(0xBA98U));
  return out;
#else
  return ((x >> 7U) & 0x01010101U) * 0xFFU;
#endif
}

/// A finite half as a float.
KOKKOS_FORCEINLINE_FUNCTION float float_of_half(std::uint32_t bits) {
#if TURBOQUANT_CUDA_LANES
  float x;
  asm("cvt.f32.f16 %0,%1;" : "=f"(x) : "h"(static_cast<std::uint16_t>(bits)));
  return x;
#else
  const std::uint32_t sign = (bits & 0x8000U) << 16U;
  return std::bit_cast<float>(((bits & 0x7FFFU) << 13U) | sign) * 0x1p112F;
#endif
}

/// Words that follow each other in a tile; at addresses that are multiples of 16 bytes, or of their
/// size, on devices. Nobody writes them while a kernel runs.
template <int Count>
KOKKOS_FORCEINLINE_FUNCTION void load_words(const unsigned char* at,
                                            std::uint32_t (&words)[Count]) {
#if TURBOQUANT_CUDA_LANES
  if constexpr (Count % 4 == 0) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Count; i += 4) {
      const uint4 four = __ldg(reinterpret_cast<const uint4*>(at) + i / 4);
      words[i] = four.x;
      words[i + 1] = four.y;
      words[i + 2] = four.z;
      words[i + 3] = four.w;
    }
  } else if constexpr (Count == 2) {
    const uint2 two = __ldg(reinterpret_cast<const uint2*>(at));
    words[0] = two.x;
    words[1] = two.y;
  } else {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Count; ++i) {
      words[i] = __ldg(reinterpret_cast<const unsigned int*>(at) + i);
    }
  }
#else
#if TURBOQUANT_HIP_LANES
  constexpr int together = Count % 4 == 0 ? 4 : (Count % 2 == 0 ? 2 : 1);
#else
  constexpr int together = 1;
#endif
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int i = 0; i < Count; i += together) {
    const auto pack = *reinterpret_cast<const WordPack<together>*>(at + 4 * i);
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int k = 0; k < together; ++k) {
      words[i + k] = pack.words[k];
    }
  }
#endif
}

/// The 16 bits at an even address of a tile.
KOKKOS_FORCEINLINE_FUNCTION std::uint16_t load_half_bits(const unsigned char* at) {
#if TURBOQUANT_CUDA_LANES
  return __ldg(reinterpret_cast<const unsigned short*>(at));
#else
  std::uint16_t bits = 0;
  std::memcpy(&bits, std::assume_aligned<2>(at), 2);
  return bits;
#endif
}

}  // namespace turboquant::detail
