#pragma once

#include <turboquant/device/arch/x86_target.hpp>
#include <turboquant/device/row_view.hpp>
#include <turboquant/math/hadamard_transform.hpp>

#include <cstddef>
#include <cstdint>

#if TURBOQUANT_X86
TURBOQUANT_INTRINSICS_BEGIN

/// @file
/// Vectors of 16 tokens side by side, one token per lane: array element i of lane l is `x[16 i +
/// l]`.

namespace turboquant::detail::avx512 {

/// Numbers [first, first + 16) of a row of `dim` numbers as floats; 0 beyond its end.
TURBOQUANT_AVX512_INLINE __m512 load_row_16(const RowView& rows, std::int64_t offset,
                                            std::size_t first, std::size_t dim) noexcept {
  const auto mask = static_cast<__mmask16>(dim - first >= 16 ? 0xFFFFU : 0xFFU);
  const std::int64_t at = offset + static_cast<std::int64_t>(first);
  if (rows.type == RowType::float32) {
    return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(rows.data) + at);
  }
  const __m256i halves =
      _mm256_maskz_loadu_epi16(mask, static_cast<const std::uint16_t*>(rows.data) + at);
  return rows.type == RowType::float16
             ? _mm512_cvtph_ps(halves)
             : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

TURBOQUANT_AVX512_INLINE __m512 unpack_pairs(__m512 a, __m512 b, bool high) noexcept {
  const __m512d x = _mm512_castps_pd(a);
  const __m512d y = _mm512_castps_pd(b);
  return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
}

/// Rows become columns.
TURBOQUANT_AVX512_INLINE void transpose_16(__m512 (&x)[16]) noexcept {
  constexpr int even = 0x88;
  constexpr int odd = 0xDD;
  __m512 t[16];
  TURBOQUANT_UNROLL
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
  TURBOQUANT_UNROLL
  for (int i = 0; i < 16; i += 4) {
    x[i] = unpack_pairs(t[i], t[i + 2], false);
    x[i + 1] = unpack_pairs(t[i], t[i + 2], true);
    x[i + 2] = unpack_pairs(t[i + 1], t[i + 3], false);
    x[i + 3] = unpack_pairs(t[i + 1], t[i + 3], true);
  }
  // Lane L of x[4 a + c] now holds rows 4 a .. 4 a + 3 of column 4 L + c.
  TURBOQUANT_UNROLL
  for (int c = 0; c < 4; ++c) {
    const __m512 low_even = _mm512_shuffle_f32x4(x[c], x[4 + c], even);
    const __m512 low_odd = _mm512_shuffle_f32x4(x[c], x[4 + c], odd);
    const __m512 high_even = _mm512_shuffle_f32x4(x[8 + c], x[12 + c], even);
    const __m512 high_odd = _mm512_shuffle_f32x4(x[8 + c], x[12 + c], odd);
    t[c] = _mm512_shuffle_f32x4(low_even, high_even, even);
    t[4 + c] = _mm512_shuffle_f32x4(low_odd, high_odd, even);
    t[8 + c] = _mm512_shuffle_f32x4(low_even, high_even, odd);
    t[12 + c] = _mm512_shuffle_f32x4(low_odd, high_odd, odd);
  }
  TURBOQUANT_UNROLL
  for (int i = 0; i < 16; ++i) {
    x[i] = t[i];
  }
}

/// Reads rows [first, first + count) of a head into lanes; the other lanes become 0.
/// @param out (dim rounded up to 16, 16)
TURBOQUANT_AVX512 inline void load_lanes(const RowView& rows, int head, std::size_t first,
                                         std::size_t count, std::size_t dim, float* out) noexcept {
  for (std::size_t d = 0; d < dim; d += 16) {
    __m512 x[16];
    TURBOQUANT_UNROLL
    for (std::size_t lane = 0; lane < 16; ++lane) {
      x[lane] = lane < count
                    ? load_row_16(rows, rows.offset(static_cast<std::int64_t>(first + lane), head),
                                  d, dim)
                    : _mm512_setzero_ps();
    }
    transpose_16(x);
    TURBOQUANT_UNROLL
    for (std::size_t i = 0; i < 16; ++i) {
      _mm512_store_ps(out + 16 * (d + i), x[i]);
    }
  }
}

/// Walsh-Hadamard stages of widths 1, 2, ... below `Points`.
template <int Points, int Width = 1>
TURBOQUANT_AVX512_INLINE void butterflies(__m512 (&x)[Points]) noexcept {
  if constexpr (Width < Points) {
    TURBOQUANT_UNROLL
    for (int i = 0; i < Points / 2; ++i) {
      const int at = i / Width * 2 * Width + i % Width;
      const __m512 a = x[at];
      const __m512 b = x[at + Width];
      x[at] = _mm512_add_ps(a, b);
      x[at + Width] = _mm512_sub_ps(a, b);
    }
    butterflies<Points, 2 * Width>(x);
  }
}

/// The stages of widths `width`, 2 `width`, ... below `Points * width`.
template <int Points>
TURBOQUANT_AVX512 void walsh_hadamard_stages(float* x, std::size_t size,
                                             std::size_t width) noexcept {
  for (std::size_t group = 0; group < size; group += Points * width) {
    for (std::size_t i = group; i < group + width; ++i) {
      __m512 points[Points];
      TURBOQUANT_UNROLL
      for (std::size_t k = 0; k < Points; ++k) {
        points[k] = _mm512_load_ps(x + 16 * (i + k * width));
      }
      butterflies<Points>(points);
      TURBOQUANT_UNROLL
      for (std::size_t k = 0; k < Points; ++k) {
        _mm512_store_ps(x + 16 * (i + k * width), points[k]);
      }
    }
  }
}

/// `walsh_hadamard_lanes` from stage `width` on, up to four stages a pass.
inline void walsh_hadamard_16(float* x, std::size_t size, std::size_t width = 1) noexcept {
  while (width < size) {
    const std::size_t left = size / width;
    if (left == 2) {
      walsh_hadamard_stages<2>(x, size, width);
      width *= 2;
    } else if (left == 4) {
      walsh_hadamard_stages<4>(x, size, width);
      width *= 4;
    } else if (left == 16) {
      walsh_hadamard_stages<16>(x, size, width);
      width *= 16;
    } else {
      walsh_hadamard_stages<8>(x, size, width);
      width *= 8;
    }
  }
}

/// Multiplies by signs and takes the first three stages.
TURBOQUANT_AVX512 inline void signs_and_eight(float* x, const float* sign,
                                              std::size_t size) noexcept {
  for (std::size_t i = 0; i < size; i += 8) {
    __m512 points[8];
    TURBOQUANT_UNROLL
    for (std::size_t k = 0; k < 8; ++k) {
      points[k] = _mm512_mul_ps(_mm512_load_ps(x + 16 * (i + k)), _mm512_set1_ps(sign[i + k]));
    }
    butterflies<8>(points);
    TURBOQUANT_UNROLL
    for (std::size_t k = 0; k < 8; ++k) {
      _mm512_store_ps(x + 16 * (i + k), points[k]);
    }
  }
}

TURBOQUANT_AVX512 inline void scale_16(float* x, std::size_t size, float factor) noexcept {
  for (std::size_t i = 0; i < 16 * size; i += 16) {
    _mm512_store_ps(x + i, _mm512_mul_ps(_mm512_load_ps(x + i), _mm512_set1_ps(factor)));
  }
}

/// `to[i] = sign[i] * from[source[i]]`.
TURBOQUANT_AVX512 inline void permute_16(const float* from, const std::uint32_t* source,
                                         const float* sign, std::size_t size, float* to) noexcept {
  for (std::size_t i = 0; i < size; ++i) {
    _mm512_store_ps(to + 16 * i,
                    _mm512_mul_ps(_mm512_load_ps(from + 16 * source[i]), _mm512_set1_ps(sign[i])));
  }
}

TURBOQUANT_AVX512 inline void copy_16(const float* from, std::size_t size, float* to) noexcept {
  for (std::size_t i = 0; i < 16 * size; i += 16) {
    _mm512_store_ps(to + i, _mm512_load_ps(from + i));
  }
}

/// `HadamardTransform::forward` of 16 lanes.
inline void forward_16(const HadamardTransform& rotation, float* x, float* spare) noexcept {
  for (std::size_t round = 0; round < rotation.rounds; ++round) {
    const float* sign = rotation.signs + round * rotation.dim;
    if (rotation.source == nullptr) {
      signs_and_eight(x, sign, rotation.dim);
      walsh_hadamard_16(x, rotation.dim, 8);
      continue;
    }
    copy_16(x, rotation.dim, spare);
    permute_16(spare, rotation.source + round * rotation.dim, sign, rotation.dim, x);
    float* at = x;
    for (std::size_t rest = rotation.dim; rest > 0;) {
      const std::size_t block = hadamard_block(rotation.dim, rest);
      walsh_hadamard_16(at, block);
      scale_16(at, block, static_cast<float>(hadamard_factor(block, 1)));
      at += 16 * block;
      rest -= block;
    }
  }
  if (rotation.source == nullptr) {
    scale_16(x, rotation.dim, static_cast<float>(hadamard_factor(rotation.dim, rotation.rounds)));
  }
}

}  // namespace turboquant::detail::avx512

TURBOQUANT_INTRINSICS_END
#endif
