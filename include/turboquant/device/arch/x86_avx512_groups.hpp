#pragma once

#include <turboquant/device/arch/x86_avx512_transform.hpp>
#include <turboquant/device/tile_words.hpp>
#include <turboquant/math/normalised_vector.hpp>
#include <turboquant/math/value_group.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

#if TURBOQUANT_X86
TURBOQUANT_INTRINSICS_BEGIN

namespace turboquant::detail::avx512 {

/// `exact_double` of 8 numbers.
TURBOQUANT_AVX512_INLINE __m512d exact_doubles(__m256 x) noexcept {
  const __m256i bits = _mm256_castps_si256(x);
  const __mmask8 normal = _mm256_test_epi32_mask(bits, _mm256_set1_epi32(0x7F800000));
  const __m512d magnitude =
      _mm512_mul_pd(_mm512_cvtepi32_pd(_mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFF))),
                    _mm512_set1_pd(0x1p-149));
  const __mmask8 negative = _mm256_movepi32_mask(bits);
  const __m512d subnormal = _mm512_mask_sub_pd(magnitude, negative, _mm512_setzero_pd(), magnitude);
  return _mm512_mask_mov_pd(subnormal, normal, _mm512_cvtps_pd(x));
}

/// Scales and zero points of one value group of 16 tokens.
struct GroupScales {
  alignas(64) float zero[16];
  alignas(64) float inverse[16];  ///< 1 / scale, negative for odd tokens; 0 for scale 0
  alignas(64) float scale[16];    ///< stored scale, not negative
};

/// @param scales receives the fp16 numbers of 16 tokens
/// @param zeros  the same
TURBOQUANT_AVX512_INLINE void group_scales(__m512 lowest, __m512 highest, int top,
                                           unsigned char* scales, unsigned char* zeros,
                                           GroupScales& out) noexcept {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  constexpr __mmask16 odd = 0xAAAA;
  alignas(64) float ranges[16];
  alignas(64) float low[16];
  alignas(64) float high[16];
  _mm512_store_ps(low, lowest);
  _mm512_store_ps(high, highest);
  TURBOQUANT_UNROLL
  for (int i = 0; i < 16; i += 8) {
    const __m512d range = _mm512_sub_pd(exact_doubles(_mm256_load_ps(high + i)),
                                        exact_doubles(_mm256_load_ps(low + i)));
    const __m512d step = _mm512_div_pd(range, _mm512_set1_pd(static_cast<double>(top)));
    _mm256_store_ps(ranges + i,
                    _mm512_cvtpd_ps(_mm512_min_pd(step, _mm512_set1_pd(double{float16_max}))));
  }
  const __m256i scale_halves = _mm512_cvtps_ph(_mm512_load_ps(ranges), nearest);
  const __m512 scale = _mm512_cvtph_ps(scale_halves);
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(scales),
      _mm256_xor_si256(scale_halves, _mm256_set1_epi32(static_cast<int>(0x80000000U))));
  const __m512 start = _mm512_mask_mov_ps(lowest, odd, highest);
  const __m512 bounded = _mm512_min_ps(_mm512_max_ps(start, _mm512_set1_ps(-float16_max)),
                                       _mm512_set1_ps(float16_max));
  __m256i zero_halves = _mm512_cvtps_ph(bounded, nearest);
  const __mmask16 negative_zero =
      _mm256_cmpeq_epi16_mask(zero_halves, _mm256_set1_epi16(static_cast<short>(0x8000)));
  zero_halves = _mm256_maskz_mov_epi16(static_cast<__mmask16>(~negative_zero), zero_halves);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(zeros), zero_halves);
  const __mmask16 positive = _mm512_cmp_ps_mask(scale, _mm512_setzero_ps(), _CMP_GT_OQ);
  const __m512 inverse = _mm512_maskz_div_ps(positive, _mm512_set1_ps(1.0F), scale);
  _mm512_store_ps(out.zero, _mm512_cvtph_ps(zero_halves));
  _mm512_store_ps(out.scale, scale);
  _mm512_store_ps(out.inverse, _mm512_mask_sub_ps(inverse, odd, _mm512_setzero_ps(), inverse));
}

/// A float this large has integers as its lowest bits.
inline constexpr float integer_float = 0x1.8p23F;

/// The codes of lanes near a border between two codes, by division; see `value_code`.
TURBOQUANT_AVX512 inline __m512 exact_codes(__m512 x, unsigned close, std::size_t token, int top,
                                            const GroupScales& group, __m512 codes) noexcept {
  alignas(64) float numbers[16];
  alignas(64) float integers[16];
  _mm512_store_ps(numbers, x);
  _mm512_store_ps(integers, codes);
  const double sign = token % 2 != 0 ? -1.0 : 1.0;
  const double scale = group.scale[token] > 0 ? static_cast<double>(group.scale[token])
                                              : std::numeric_limits<double>::infinity();
  for (unsigned lane = 0; lane < 16; ++lane) {
    if (((close >> lane) & 1U) != 0) {
      const double distance =
          static_cast<double>(numbers[lane]) - static_cast<double>(group.zero[token]);
      integers[lane] = integer_float + static_cast<float>(value_code(distance, sign * scale, top));
    }
  }
  return _mm512_load_ps(integers);
}

/// Codes of 16 dimensions of tokens `token - 1` down to `end`, `bits` bits each, the last token's
/// lowest.
///
/// In float a code is off only within 2^-18 of a border between two codes; numbers that close are
/// divided.
TURBOQUANT_AVX512_INLINE __m512i code_words(const RowView& rows, const std::int64_t* offsets,
                                            std::size_t d, std::size_t dim, std::size_t token,
                                            std::size_t end, int bits, int top,
                                            const GroupScales& group) noexcept {
  const __m512 highest = _mm512_set1_ps(static_cast<float>(top));
  const __m512 magic = _mm512_set1_ps(integer_float);
  const __m512 limit = _mm512_set1_ps(0.5F - 0x1p-16F);
  const __m128i shift = _mm_cvtsi32_si128(bits);
  __m512i words = _mm512_setzero_si512();
  while (token-- > end) {
    const __m512 x = load_row_16(rows, offsets[token], d, dim);
    const __m512 steps = _mm512_mul_ps(_mm512_sub_ps(x, _mm512_set1_ps(group.zero[token])),
                                       _mm512_set1_ps(group.inverse[token]));
    const __m512 bounded = _mm512_min_ps(_mm512_max_ps(steps, _mm512_setzero_ps()), highest);
    __m512 codes = _mm512_add_ps(bounded, magic);
    const __m512 rest = _mm512_sub_ps(bounded, _mm512_sub_ps(codes, magic));
    const __mmask16 close = _mm512_cmp_ps_mask(_mm512_abs_ps(rest), limit, _CMP_GT_OQ);
    if (close != 0) [[unlikely]] {
      codes = exact_codes(x, close, token, top, group, codes);
    }
    const __m512i code = _mm512_sub_epi32(_mm512_castps_si512(codes), _mm512_castps_si512(magic));
    words = _mm512_or_si512(_mm512_sll_epi32(words, shift), code);
  }
  return words;
}

/// Adds the nibble words of 8 tokens and 16 dimensions of 3-bit codes to a tile.
/// @param eighth of the tile's tokens
TURBOQUANT_AVX512_INLINE void merge_planar(unsigned char* words, std::size_t stride,
                                           std::size_t eighth, __m512i nibbles) noexcept {
  unsigned char* half = words + eighth / 4 * 3 * stride;
  if (eighth % 4 < 3) {
    unsigned char* row = half + eighth % 4 * stride;
    _mm512_storeu_si512(row, _mm512_or_si512(_mm512_loadu_si512(row), nibbles));
    return;
  }
  for (int bit = 0; bit < 3; ++bit, half += stride) {
    const __m512i plane = _mm512_and_si512(_mm512_srl_epi32(nibbles, _mm_cvtsi32_si128(bit)),
                                           _mm512_set1_epi32(0x11111111));
    _mm512_storeu_si512(half,
                        _mm512_or_si512(_mm512_loadu_si512(half), _mm512_slli_epi32(plane, 3)));
  }
}

/// Min-max groups of 16 tokens, one dimension per lane: `group_lanes` and `store_value_codes`.
/// @param format value groups of a multiple of 16 dimensions, host order, no planes
/// @param first  row of the first token
/// @param slot   of the first token, a multiple of 16; the bits of the slots are zero
TURBOQUANT_AVX512 inline void encode_grouped_16(const TileFormat& format, const RowView& rows,
                                                int head, std::size_t first, std::size_t slot,
                                                unsigned char* tile) noexcept {
  const ValueSection section = value_codes(format);
  const auto size = static_cast<std::size_t>(format.value_group);
  const int top = (1 << static_cast<unsigned>(format.value_bits)) - 1;
  std::int64_t offsets[16];
  for (std::size_t token = 0; token < 16; ++token) {
    offsets[token] = rows.offset(static_cast<std::int64_t>(first + token), head);
  }
  for (std::size_t number = 0; number < format.value_groups(); ++number) {
    const std::size_t start = number * size;
    __m512 low[16];
    __m512 high[16];
    for (std::size_t token = 0; token < 16; ++token) {
      low[token] = high[token] = load_row_16(rows, offsets[token], start, section.dim);
      for (std::size_t d = start + 16; d < start + size; d += 16) {
        const __m512 x = load_row_16(rows, offsets[token], d, section.dim);
        low[token] = _mm512_min_ps(x, low[token]);
        high[token] = _mm512_max_ps(x, high[token]);
      }
    }
    transpose_16(low);
    transpose_16(high);
    TURBOQUANT_UNROLL
    for (std::size_t half = 8; half > 0; half /= 2) {
      TURBOQUANT_UNROLL
      for (std::size_t i = 0; i < half; ++i) {
        low[i] = _mm512_min_ps(low[i], low[i + half]);
        high[i] = _mm512_max_ps(high[i], high[i + half]);
      }
    }
    GroupScales group;
    group_scales(low[0], high[0], top, tile + value_scales(format, number).byte(slot),
                 tile + value_zeros(format, number).byte(slot), group);
    for (std::size_t d = start; d < start + size; d += 16) {
      unsigned char* words = tile + section.offset + 4 * section.column(d);
      const std::size_t stride = 4 * section.row_words(d);
      if (section.width == 2) {
        _mm512_storeu_si512(words + slot / 16 * stride,
                            code_words(rows, offsets, d, section.dim, 16, 0, 2, top, group));
        continue;
      }
      for (std::size_t half = 0; half < 2; ++half) {
        const __m512i nibbles =
            code_words(rows, offsets, d, section.dim, 8 * half + 8, 8 * half, 4, top, group);
        const std::size_t eighth = slot / 8 + half;
        if (section.width == 4) {
          _mm512_storeu_si512(words + eighth * stride, nibbles);
        } else {
          merge_planar(words, stride, eighth, nibbles);
        }
      }
    }
  }
}

}  // namespace turboquant::detail::avx512

TURBOQUANT_INTRINSICS_END
#endif
