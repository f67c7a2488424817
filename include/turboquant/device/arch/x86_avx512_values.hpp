#pragma once

#include <turboquant/device/arch/integer_attention.hpp>
#include <turboquant/device/arch/x86_avx512_scores.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

#if TURBOQUANT_X86
TURBOQUANT_INTRINSICS_BEGIN

namespace turboquant::detail::avx512 {

/// 2^x for x <= 0 within 2e-7; exactly 0 below -126 and for -infinity.
TURBOQUANT_AVX512_INLINE __m512 exp2_lanes(__m512 x) noexcept {
  const __mmask16 representable = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0F), _CMP_GE_OQ);
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(1.339086336e-3F);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.676031918e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.550357114e-2F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.402210749e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.93147188e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  return _mm512_maskz_scalef_ps(representable, p, n);
}

/// cap * tanh(x / cap), from e = 2^(-2 |x / cap| log2(e)).
TURBOQUANT_AVX512_INLINE __m512 soft_cap_lanes(__m512 x, float cap) noexcept {
  const __m512 magnitude = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-2.885390082F / cap));
  const __m512 e = exp2_lanes(magnitude);
  const __m512 one = _mm512_set1_ps(1.0F);
  const __m512 tanh = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
  const __m512 capped = _mm512_mul_ps(tanh, _mm512_set1_ps(cap));
  const __m512i sign =
      _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0x80000000U)));
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(capped), sign));
}

TURBOQUANT_AVX512_INLINE __m512 load_halves(const unsigned char* at, __mmask16 valid) noexcept {
  return _mm512_maskz_cvtph_ps(valid, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

TURBOQUANT_AVX512_INLINE void load_metadata(const TileFormat& format, const unsigned char* tile,
                                            int first, int end, ValueMetadata& out) noexcept {
  const std::uint64_t to_end =
      end >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << static_cast<unsigned>(end)) - 1;
  const std::uint64_t valid =
      first >= 64 ? 0 : to_end >> static_cast<unsigned>(first) << static_cast<unsigned>(first);
  const bool grouped = format.value_codec == ValueCodec::grouped;
  __m512 largest = _mm512_setzero_ps();
  for (std::size_t group = 0; group < format.value_groups(); ++group) {
    const unsigned char* scales =
        tile + format.value_scales_offset() + 2 * TileFormat::tokens * group;
    const unsigned char* zeros =
        tile + format.value_zeros_offset() + 2 * TileFormat::tokens * group;
    for (int i = 0; i < 4; ++i) {
      const auto lanes = static_cast<__mmask16>(valid >> (16 * i));
      const __m512 scale = load_halves(scales + 32 * i, lanes);
      _mm512_store_ps(out.scales[group] + 16 * i, scale);
      largest = _mm512_max_ps(largest, _mm512_abs_ps(scale));
      if (grouped) {
        _mm512_store_ps(out.zeros[group] + 16 * i, load_halves(zeros + 32 * i, lanes));
      }
    }
  }
  out.largest_scale = _mm512_reduce_max_ps(largest);
}

/// int16 weights: a dword holds the two tokens whose codes one shift of a value word brings into
/// its halves.
template <unsigned Width>
TURBOQUANT_AVX512_INLINE void pack_int16(const __m512i (&weights)[4], std::int32_t* out) noexcept {
  if constexpr (Width == 2) {
    TURBOQUANT_UNROLL
    for (int i = 0; i < 4; ++i) {
      const __m512i high =
          _mm512_slli_epi32(_mm512_shuffle_i64x2(weights[i], weights[i], 0xEE), 16);
      const __m512i pairs = _mm512_mask_blend_epi16(0xAAAAAAAAU, weights[i], high);
      _mm256_store_si256(reinterpret_cast<__m256i*>(out + 8 * i), _mm512_castsi512_si256(pairs));
    }
  } else {
    TURBOQUANT_UNROLL
    for (int i = 0; i < 4; i += 2) {
      const __m512i even = _mm512_shuffle_i32x4(weights[i], weights[i + 1], 0x88);
      const __m512i odd =
          _mm512_slli_epi32(_mm512_shuffle_i32x4(weights[i], weights[i + 1], 0xDD), 16);
      _mm512_store_si512(out + 8 * i, _mm512_mask_blend_epi16(0xAAAAAAAAU, even, odd));
    }
  }
}

/// u8 weights: a dword holds the four tokens whose codes one shift of a value word brings into its
/// bytes.
template <unsigned Width>
TURBOQUANT_AVX512_INLINE void pack_uint8(const __m512i (&weights)[4], std::int32_t* out) noexcept {
  const __m128i order = Width == 2
                            ? _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)
                            : _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  TURBOQUANT_UNROLL
  for (int i = 0; i < 4; ++i) {
    const __m128i bytes = _mm512_cvtusepi32_epi8(weights[i]);
    _mm_store_si128(reinterpret_cast<__m128i*>(out + 4 * i), _mm_shuffle_epi8(bytes, order));
  }
}

/// Takes 64 logits of a row into its running softmax and packs the weights.
/// @return false where no token is visible or all are negligible: no values to add
template <unsigned Width, bool Wide>
TURBOQUANT_AVX512 bool take_row(const LaneState& state, std::size_t row, int block_row,
                                float* logits, const ValueMetadata& metadata, std::size_t groups,
                                bool codebook, PackedWeights& packed) noexcept {
  __m512 x[4];
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_loadu_ps(logits + 16 * i);
  }
  const float highest =
      _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3])));
  float* sums = state.sums(row);
  if (!(highest > negative_infinity)) {
    return false;
  }
  if (highest > state.maximum(row)) {
    const __m512 factor = exp2_lanes(_mm512_set1_ps(state.maximum(row) - highest));
    float* base = state.output(row);
    for (std::size_t i = 0; i < state.row_floats(); i += 16) {
      _mm512_storeu_ps(base + i, _mm512_mul_ps(factor, _mm512_loadu_ps(base + i)));
    }
    state.maximum(row) = highest;
  }
  const __m512 maximum = _mm512_set1_ps(state.maximum(row));
  __m512 sum = _mm512_loadu_ps(sums);
  for (int i = 0; i < 4; ++i) {
    x[i] = exp2_lanes(_mm512_sub_ps(x[i], maximum));
    sum = _mm512_add_ps(sum, x[i]);
  }
  _mm512_storeu_ps(sums, sum);

  const float below = highest - state.maximum(row);
  const float largest_weight = _mm512_cvtss_f32(exp2_lanes(_mm512_set1_ps(below)));
  WeightScale scale = int16_weight_scale(largest_weight, metadata);
  if constexpr (!Wide) {
    const float bound =
        largest_weight * (metadata.largest_scale > 1e-20F ? metadata.largest_scale : 1e-20F);
    scale.inverse = 255.0F / bound;
    scale.unit = bound / 255.0F;
  }
  packed.unit[block_row] = scale.unit;
  const bool negligible = below < negligible_logit;
  __m512 y[4];
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_mul_ps(x[i], _mm512_set1_ps(negligible ? 0.0F : scale.inverse));
    if constexpr (Wide) {
      y[i] = _mm512_min_ps(y[i], _mm512_set1_ps(scale.limit));
    }
  }
  __m512i total = _mm512_setzero_si512();
  for (std::size_t group = 0; group < groups; ++group) {
    __m512i weights[4];
    TURBOQUANT_UNROLL
    for (int i = 0; i < 4; ++i) {
      const __m512 scaled = _mm512_mul_ps(y[i], _mm512_load_ps(metadata.scales[group] + 16 * i));
      weights[i] = _mm512_cvtps_epi32(Wide ? scaled : _mm512_abs_ps(scaled));
    }
    if constexpr (Wide) {
      pack_int16<Width>(weights, packed.dwords[group][block_row]);
    } else {
      pack_uint8<Width>(weights, packed.dwords[group][block_row]);
    }
    if (codebook) {
      for (int i = 0; i < 4; ++i) {
        total = _mm512_add_epi32(total, weights[i]);
      }
    } else {
      float* zeros = state.zeros(row) + 16 * group;
      __m512 zero = _mm512_loadu_ps(zeros);
      TURBOQUANT_UNROLL
      for (int i = 0; i < 4; ++i) {
        zero = _mm512_fmadd_ps(x[i], _mm512_load_ps(metadata.zeros[group] + 16 * i), zero);
      }
      _mm512_storeu_ps(zeros, zero);
    }
  }
  packed.total[block_row] = codebook ? _mm512_reduce_add_epi32(total) : 0;
  return !negligible;
}

/// Sums of two vectors of 16 dimensions for `Rows` rows. Few rows take turns with several sums, so
/// that additions do not wait for each other.
template <int Rows>
struct ValueSums {
  static constexpr int turns = 4 / Rows;
  __m512i sums[turns][2][Rows];
};

/// Codes of one shift of a value word times weights of `Rows` rows.
template <int Turn, int Rows, bool Wide>
TURBOQUANT_AVX512_INLINE void multiply_add(__m512i first, __m512i second,
                                           const std::int32_t* weights,
                                           ValueSums<Rows>& to) noexcept {
  auto& sums = to.sums[Turn % ValueSums<Rows>::turns];
  TURBOQUANT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    const __m512i weight = _mm512_set1_epi32(weights[32 * r]);
    if constexpr (Wide) {
      sums[0][r] = _mm512_dpwssd_epi32(sums[0][r], first, weight);
      sums[1][r] = _mm512_dpwssd_epi32(sums[1][r], second, weight);
    } else {
      sums[0][r] = _mm512_dpbusd_epi32(sums[0][r], weight, first);
      sums[1][r] = _mm512_dpbusd_epi32(sums[1][r], weight, second);
    }
  }
}

/// Codes of shift number `Step` of a value word, ready to be multiplied.
template <unsigned Width, bool Wide, bool Codebook, int Step>
TURBOQUANT_AVX512_INLINE __m512i extract(__m512i word, __m512i table) noexcept {
  constexpr auto shift = static_cast<unsigned>((Width == 2 ? 2 : 4) * Step);
  const __m512i shifted = shift == 0 ? word : _mm512_srli_epi32(word, shift);
  if constexpr (Codebook) {  // unsigned levels in the low byte of each half
    return _mm512_maskz_permutexvar_epi8(0x5555555555555555U, shifted, table);
  } else {
    constexpr int code = static_cast<int>((1U << Width) - 1U);
    const __m512i codes =
        _mm512_and_si512(shifted, _mm512_set1_epi32(code * (Wide ? 0x00010001 : 0x01010101)));
    // Bytes of odd tokens are negative, because their scales are.
    return Wide || Step % 2 == 0 ? codes : _mm512_sub_epi8(_mm512_setzero_si512(), codes);
  }
}

/// All shifts of one word of 8 tokens in nibbles (3 and 4 bits) or 16 tokens in bit pairs (2 bits).
template <unsigned Width, int Rows, bool Wide, bool Codebook, int... Steps>
TURBOQUANT_AVX512_INLINE void add_word(std::integer_sequence<int, Steps...> /*steps*/,
                                       __m512i first, __m512i second, __m512i table,
                                       const std::int32_t* weights, ValueSums<Rows>& to) noexcept {
  (multiply_add<Steps, Rows, Wide>(extract<Width, Wide, Codebook, Steps>(first, table),
                                   extract<Width, Wide, Codebook, Steps>(second, table),
                                   weights + Steps, to),
   ...);
}

/// Adds 32 dimensions (fewer where masked) of all 64 tokens to the outputs of `Rows` rows.
/// @param words   first value word of the dimensions
/// @param stride  bytes between rows of words
/// @param unit    (Rows), value of one unit of (weight times code)
/// @param start   (Rows), initial sums
/// @param ahead   where the same bytes of the next tile are, relative to this one; 0: nothing is
/// loaded early
template <unsigned Width, int Rows, bool Wide, bool Codebook>
TURBOQUANT_AVX512 void add_values(const unsigned char* words, std::size_t stride,
                                  __mmask16 mask_first, __mmask16 mask_second,
                                  const std::int32_t* weights, const float* unit,
                                  const std::int32_t* start, std::ptrdiff_t ahead,
                                  float* const* outputs) noexcept {
  const __m512i table = _mm512_load_si512(level_table<Width>.raised.data());
  constexpr int per_word = Wide ? (Width == 2 ? 8 : 4) : (Width == 2 ? 4 : 2);
  constexpr std::make_integer_sequence<int, per_word> steps;
  ValueSums<Rows> to;
  TURBOQUANT_UNROLL
  for (int turn = 0; turn < ValueSums<Rows>::turns; ++turn) {
    TURBOQUANT_UNROLL
    for (int r = 0; r < Rows; ++r) {
      to.sums[turn][0][r] = to.sums[turn][1][r] =
          turn == 0 ? _mm512_set1_epi32(start[r]) : _mm512_setzero_si512();
    }
  }
  const auto* second_words = words + 64;
  if constexpr (Width == 3) {
    for (int half = 0; half < 2; ++half) {
      __m512i a[3];
      __m512i b[3];
      TURBOQUANT_UNROLL
      for (int k = 0; k < 3; ++k) {
        if (ahead != 0) {
          prefetch_bytes(words + ahead, 128);
        }
        a[k] = _mm512_maskz_loadu_epi32(mask_first, words);
        b[k] = _mm512_maskz_loadu_epi32(mask_second, second_words);
        words += stride;
        second_words += stride;
        add_word<3, Rows, Wide, Codebook>(steps, a[k], b[k], table, weights, to);
        weights += per_word;
      }
      add_word<3, Rows, Wide, Codebook>(steps, fourth_word(a[0], a[1], a[2]),
                                        fourth_word(b[0], b[1], b[2]), table, weights, to);
      weights += per_word;
    }
  } else {
    for (int word = 0; word < static_cast<int>(2 * Width); ++word) {
      if (ahead != 0) {
        prefetch_bytes(words + ahead, 128);
      }
      const __m512i a = _mm512_maskz_loadu_epi32(mask_first, words);
      const __m512i b = _mm512_maskz_loadu_epi32(mask_second, second_words);
      add_word<Width, Rows, Wide, Codebook>(steps, a, b, table, weights, to);
      words += stride;
      second_words += stride;
      weights += per_word;
    }
  }
  TURBOQUANT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    const __m512 scale = _mm512_set1_ps(unit[r]);
    float* out = outputs[r];
    __m512i(&sums)[2][Rows] = to.sums[0];
    TURBOQUANT_UNROLL
    for (int turn = 1; turn < ValueSums<Rows>::turns; ++turn) {
      sums[0][r] = _mm512_add_epi32(sums[0][r], to.sums[turn][0][r]);
      sums[1][r] = _mm512_add_epi32(sums[1][r], to.sums[turn][1][r]);
    }
    _mm512_mask_storeu_ps(out, mask_first,
                          _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[0][r]), scale,
                                          _mm512_maskz_loadu_ps(mask_first, out)));
    _mm512_mask_storeu_ps(out + 16, mask_second,
                          _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[1][r]), scale,
                                          _mm512_maskz_loadu_ps(mask_second, out + 16)));
  }
}

}  // namespace turboquant::detail::avx512

TURBOQUANT_INTRINSICS_END
#endif
