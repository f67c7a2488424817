#pragma once

#include <turboquant/device/arch/integer_attention.hpp>
#include <turboquant/device/arch/x86_avx2_scores.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

#if TURBOQUANT_X86

namespace turboquant::detail::avx2 {

/// 2^x for x <= 0 within 2e-7; exactly 0 below -126 and for -infinity.
TURBOQUANT_AVX2_INLINE __m256 exp2_lanes(__m256 x) noexcept {
  const __m256 representable = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0F), _CMP_GE_OQ);
  const __m256 bounded = _mm256_max_ps(x, _mm256_set1_ps(-126.0F));
  const __m256 n = _mm256_round_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 r = _mm256_sub_ps(bounded, n);
  __m256 p = _mm256_set1_ps(1.339086336e-3F);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(9.676031918e-3F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.550357114e-2F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(2.402210749e-1F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(6.93147188e-1F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F));
  const __m256i power =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_and_ps(representable, _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
}

/// cap * tanh(x / cap), from e = 2^(-2 |x / cap| log2(e)).
TURBOQUANT_AVX2_INLINE __m256 soft_cap_lanes(__m256 x, float cap) noexcept {
  const __m256 sign_bit = _mm256_set1_ps(-0.0F);
  const __m256 e =
      exp2_lanes(_mm256_mul_ps(_mm256_andnot_ps(sign_bit, x), _mm256_set1_ps(-2.885390082F / cap)));
  const __m256 one = _mm256_set1_ps(1.0F);
  const __m256 capped = _mm256_mul_ps(_mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e)),
                                      _mm256_set1_ps(cap));
  return _mm256_or_ps(capped, _mm256_and_ps(sign_bit, x));
}

TURBOQUANT_AVX2_INLINE float largest_lane(__m256 x) noexcept {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
}

/// Lanes of 8 tokens from `token` that lie in [first, end).
TURBOQUANT_AVX2_INLINE __m256 lanes_between(int token, int first, int end) noexcept {
  const __m256i index =
      _mm256_add_epi32(_mm256_set1_epi32(token), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(first), index);
  return _mm256_castsi256_ps(
      _mm256_andnot_si256(below, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), index)));
}

TURBOQUANT_AVX2_INLINE void load_metadata(const TileFormat& format, const unsigned char* tile,
                                          int first, int end, ValueMetadata& out) noexcept {
  const bool grouped = format.value_codec == ValueCodec::grouped;
  __m256 largest = _mm256_setzero_ps();
  const auto* halves = tile + format.value_scales_offset();
  const std::size_t to_zeros = format.value_zeros_offset() - format.value_scales_offset();
  for (std::size_t group = 0; group < format.value_groups();
       ++group, halves += 2 * TileFormat::tokens) {
    for (int token = 0; token < 64; token += 8) {
      const __m256 valid = lanes_between(token, first, end);
      const auto* at = reinterpret_cast<const __m128i*>(halves + 2 * token);
      const __m256 scale = _mm256_and_ps(valid, _mm256_cvtph_ps(_mm_loadu_si128(at)));
      _mm256_store_ps(out.scales[group] + token, scale);
      largest = _mm256_max_ps(largest, _mm256_andnot_ps(_mm256_set1_ps(-0.0F), scale));
      if (grouped) {
        const auto* zeros = reinterpret_cast<const __m128i*>(halves + to_zeros + 2 * token);
        _mm256_store_ps(out.zeros[group] + token,
                        _mm256_and_ps(valid, _mm256_cvtph_ps(_mm_loadu_si128(zeros))));
      }
    }
  }
  out.largest_scale = largest_lane(largest);
}

/// int16 weights: a dword holds the two tokens whose codes one shift of a value word brings into
/// its halves.
template <unsigned Width>
TURBOQUANT_AVX2_INLINE void pack_int16(const __m256i (&weights)[8], std::int32_t* out) noexcept {
  if constexpr (Width == 2) {
    TURBOQUANT_UNROLL
    for (int i = 0; i < 8; i += 2) {
      const __m256i pairs =
          _mm256_blend_epi16(weights[i], _mm256_slli_epi32(weights[i + 1], 16), 0xAA);
      _mm256_store_si256(reinterpret_cast<__m256i*>(out + 4 * i), pairs);
    }
  } else {
    TURBOQUANT_UNROLL
    for (int i = 0; i < 8; ++i) {
      const __m128i high = _mm_slli_epi32(_mm256_extracti128_si256(weights[i], 1), 16);
      const __m128i pairs = _mm_blend_epi16(_mm256_castsi256_si128(weights[i]), high, 0xAA);
      _mm_store_si128(reinterpret_cast<__m128i*>(out + 4 * i), pairs);
    }
  }
}

/// Takes 64 logits of a row into its running softmax and packs the weights.
/// @return false where no token is visible or all are negligible: no values to add
template <unsigned Width>
TURBOQUANT_AVX2 bool take_row(const LaneState& state, std::size_t row, int block_row, float* logits,
                              const ValueMetadata& metadata, std::size_t groups, bool codebook,
                              PackedWeights& packed) noexcept {
  __m256 x[8];
  __m256 top = _mm256_loadu_ps(logits);
  for (int i = 0; i < 8; ++i) {
    x[i] = _mm256_loadu_ps(logits + 8 * i);
    top = _mm256_max_ps(top, x[i]);
  }
  const float highest = largest_lane(top);
  if (!(highest > negative_infinity)) {
    return false;
  }
  if (highest > state.maximum(row)) {
    const __m256 factor = exp2_lanes(_mm256_set1_ps(state.maximum(row) - highest));
    float* base = state.output(row);
    for (std::size_t i = 0; i < state.row_floats(); i += 8) {
      _mm256_storeu_ps(base + i, _mm256_mul_ps(factor, _mm256_loadu_ps(base + i)));
    }
    state.maximum(row) = highest;
  }
  float* sums = state.sums(row);
  const __m256 maximum = _mm256_set1_ps(state.maximum(row));
  __m256 sum[2] = {_mm256_loadu_ps(sums), _mm256_loadu_ps(sums + 8)};
  TURBOQUANT_UNROLL
  for (int i = 0; i < 8; ++i) {
    x[i] = exp2_lanes(_mm256_sub_ps(x[i], maximum));
    sum[i % 2] = _mm256_add_ps(sum[i % 2], x[i]);
  }
  _mm256_storeu_ps(sums, sum[0]);
  _mm256_storeu_ps(sums + 8, sum[1]);

  const float below = highest - state.maximum(row);
  const WeightScale scale =
      int16_weight_scale(_mm256_cvtss_f32(exp2_lanes(_mm256_set1_ps(below))), metadata);
  packed.unit[block_row] = scale.unit;
  const bool negligible = below < negligible_logit;
  __m256 y[8];
  for (int i = 0; i < 8; ++i) {
    y[i] = _mm256_min_ps(_mm256_mul_ps(x[i], _mm256_set1_ps(negligible ? 0.0F : scale.inverse)),
                         _mm256_set1_ps(scale.limit));
  }
  __m256i total = _mm256_setzero_si256();
  for (std::size_t group = 0; group < groups; ++group) {
    __m256i weights[8];
    TURBOQUANT_UNROLL
    for (int i = 0; i < 8; ++i) {
      weights[i] =
          _mm256_cvtps_epi32(_mm256_mul_ps(y[i], _mm256_load_ps(metadata.scales[group] + 8 * i)));
    }
    pack_int16<Width>(weights, packed.dwords[group][block_row]);
    if (codebook) {
      for (const __m256i& weight : weights) {
        total = _mm256_add_epi32(total, weight);
      }
    } else {
      float* zeros = state.zeros(row) + 16 * group;
      __m256 zero[2] = {_mm256_loadu_ps(zeros), _mm256_loadu_ps(zeros + 8)};
      TURBOQUANT_UNROLL
      for (int i = 0; i < 8; ++i) {
        zero[i % 2] =
            _mm256_fmadd_ps(x[i], _mm256_load_ps(metadata.zeros[group] + 8 * i), zero[i % 2]);
      }
      _mm256_storeu_ps(zeros, zero[0]);
      _mm256_storeu_ps(zeros + 8, zero[1]);
    }
  }
  alignas(32) std::int32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), total);
  packed.total[block_row] = 0;
  for (const std::int32_t lane : lanes) {
    packed.total[block_row] += lane;
  }
  return !negligible;
}

/// Codes of shift number `Step` of a value word in 16-bit halves.
template <unsigned Width, bool Codebook, int Step>
TURBOQUANT_AVX2_INLINE __m256i extract(__m256i word, __m256i table) noexcept {
  constexpr int shift = (Width == 2 ? 2 : 4) * Step;
  constexpr int code = static_cast<int>((1U << Width) - 1U);
  const __m256i shifted = shift == 0 ? word : _mm256_srli_epi32(word, shift);
  const __m256i codes = _mm256_and_si256(shifted, _mm256_set1_epi32(code * 0x00010001));
  if constexpr (Codebook) {  // an index with its highest bit set looks up 0: the upper byte of each
                             // half
    return _mm256_shuffle_epi8(
        table, _mm256_or_si256(codes, _mm256_set1_epi32(static_cast<int>(0x80008000U))));
  } else {
    return codes;
  }
}

template <int Rows>
TURBOQUANT_AVX2_INLINE void multiply_add(__m256i first, __m256i second, const std::int32_t* weights,
                                         __m256i (&sums)[2][Rows]) noexcept {
  TURBOQUANT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    const __m256i weight = _mm256_set1_epi32(weights[32 * r]);
    sums[0][r] = _mm256_add_epi32(sums[0][r], _mm256_madd_epi16(first, weight));
    sums[1][r] = _mm256_add_epi32(sums[1][r], _mm256_madd_epi16(second, weight));
  }
}

template <unsigned Width, int Rows, bool Codebook, int... Steps>
TURBOQUANT_AVX2_INLINE void add_word(std::integer_sequence<int, Steps...> /*steps*/, __m256i first,
                                     __m256i second, __m256i table, const std::int32_t* weights,
                                     __m256i (&sums)[2][Rows]) noexcept {
  (multiply_add<Rows>(extract<Width, Codebook, Steps>(first, table),
                      extract<Width, Codebook, Steps>(second, table), weights + Steps, sums),
   ...);
}

/// Adds 16 dimensions, or 8 if `mask` is zero, of all 64 tokens to the outputs of `Rows` rows.
/// @param mask (8), all ones or all zeros
template <unsigned Width, int Rows, bool Codebook>
TURBOQUANT_AVX2 void add_values(const unsigned char* words, std::size_t stride,
                                const std::int32_t* mask, const std::int32_t* weights,
                                const float* unit, const std::int32_t* start, std::ptrdiff_t ahead,
                                float* const* outputs) noexcept {
  constexpr int per_word = Width == 2 ? 8 : 4;
  constexpr std::make_integer_sequence<int, per_word> steps;
  const __m256i table = load_table(level_table<Width>.raised.data());
  const __m256i second_mask = _mm256_load_si256(reinterpret_cast<const __m256i*>(mask));
  __m256i sums[2][Rows];
  TURBOQUANT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    sums[0][r] = sums[1][r] = _mm256_set1_epi32(start[r]);
  }
  if constexpr (Width == 3) {
    for (int half = 0; half < 2; ++half) {
      __m256i a[3];
      __m256i b[3];
      TURBOQUANT_UNROLL
      for (int k = 0; k < 3; ++k, words += stride, weights += per_word) {
        if (ahead != 0) {
          prefetch_bytes(words + ahead, 64);
        }
        a[k] = load_words(words);
        b[k] = _mm256_maskload_epi32(reinterpret_cast<const int*>(words + 32), second_mask);
        add_word<3, Rows, Codebook>(steps, a[k], b[k], table, weights, sums);
      }
      add_word<3, Rows, Codebook>(steps, fourth_word(a[0], a[1], a[2]),
                                  fourth_word(b[0], b[1], b[2]), table, weights, sums);
      weights += per_word;
    }
  } else {
    for (int word = 0; word < static_cast<int>(2 * Width);
         ++word, words += stride, weights += per_word) {
      if (ahead != 0) {
        prefetch_bytes(words + ahead, 64);
      }
      const __m256i b =
          _mm256_maskload_epi32(reinterpret_cast<const int*>(words + 32), second_mask);
      add_word<Width, Rows, Codebook>(steps, load_words(words), b, table, weights, sums);
    }
  }
  TURBOQUANT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    const __m256 scale = _mm256_set1_ps(unit[r]);
    float* out = outputs[r];
    _mm256_storeu_ps(out,
                     _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[0][r]), scale, _mm256_loadu_ps(out)));
    const __m256 second = _mm256_maskload_ps(out + 8, second_mask);
    _mm256_maskstore_ps(out + 8, second_mask,
                        _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[1][r]), scale, second));
  }
}

}  // namespace turboquant::detail::avx2

#endif
