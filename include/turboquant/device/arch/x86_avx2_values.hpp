#pragma once

#include <turboquant/device/arch/integer_attention.hpp>
#include <turboquant/device/arch/x86_avx2_scores.hpp>

#include <cstddef>
#include <cstdint>

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

TURBOQUANT_AVX2 inline void load_metadata(const TileFormat& format, const unsigned char* tile,
                                          int first, int end, ValueMetadata& out) noexcept {
  const bool grouped = format.value_codec == ValueCodec::grouped;
  __m256 largest[8] = {};
  const auto* halves = tile + format.value_scales_offset();
  const std::size_t to_zeros = format.value_zeros_offset() - format.value_scales_offset();
  for (std::size_t group = 0; group < format.value_groups();
       ++group, halves += 2 * TileFormat::max_tokens) {
    for (int token = 0; token < 64; token += 8) {
      const __m256 valid = lanes_between(token, first, end);
      const auto* at = reinterpret_cast<const __m128i*>(halves + 2 * token);
      const __m256 scale = _mm256_and_ps(valid, _mm256_cvtph_ps(_mm_loadu_si128(at)));
      _mm256_store_ps(out.groups[group].scales + token, scale);
      largest[token / 8] =
          _mm256_max_ps(largest[token / 8], _mm256_andnot_ps(_mm256_set1_ps(-0.0F), scale));
      if (grouped) {
        const auto* zeros = reinterpret_cast<const __m128i*>(halves + to_zeros + 2 * token);
        _mm256_store_ps(out.groups[group].zeros + token,
                        _mm256_and_ps(valid, _mm256_cvtph_ps(_mm_loadu_si128(zeros))));
      }
    }
  }
  for (int i = 0; i < 8; ++i) {
    _mm256_store_ps(out.largest + 8 * i, largest[i]);
  }
}

/// int16 weights: a dword holds the two tokens whose codes one shift of a value word brings into
/// its halves.
/// @param width bits of a value code
TURBOQUANT_AVX2_INLINE void pack_int16(unsigned width, const __m256i (&weights)[8],
                                       std::int32_t* out) noexcept {
  if (width == 2) {
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
TURBOQUANT_AVX2 inline bool take_row(const TileFormat& format, const LaneState& state,
                                     std::size_t row, int block_row, const float* logits,
                                     const ValueMetadata& metadata,
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

  top = _mm256_setzero_ps();
  for (int i = 0; i < 8; ++i) {
    top = _mm256_max_ps(top, _mm256_mul_ps(x[i], _mm256_load_ps(metadata.largest + 8 * i)));
  }
  const bool negligible = highest - state.maximum(row) < negligible_logit;
  const WeightScale scale = negligible ? WeightScale{} : weight_scale(largest_lane(top), true);
  __m256 y[8];
  for (int i = 0; i < 8; ++i) {
    y[i] = _mm256_mul_ps(x[i], _mm256_set1_ps(scale.inverse));
  }
  const auto width = static_cast<unsigned>(format.value_bits);
  const bool codebook = format.value_codec == ValueCodec::codebook;
  __m256i total = _mm256_setzero_si256();
  for (std::size_t group = 0; group < format.value_groups(); ++group) {
    __m256i weights[8];
    TURBOQUANT_UNROLL
    for (int i = 0; i < 8; ++i) {
      weights[i] = _mm256_cvtps_epi32(
          _mm256_mul_ps(y[i], _mm256_load_ps(metadata.groups[group].scales + 8 * i)));
    }
    pack_int16(width, weights, packed.dwords[group][block_row]);
    if (codebook) {
      for (const __m256i& weight : weights) {
        total = _mm256_add_epi32(total, weight);
      }
    } else {
      float* zeros = state.zeros(row) + 16 * group;
      __m256 zero[2] = {_mm256_loadu_ps(zeros), _mm256_loadu_ps(zeros + 8)};
      TURBOQUANT_UNROLL
      for (int i = 0; i < 8; ++i) {
        zero[i % 2] = _mm256_fmadd_ps(x[i], _mm256_load_ps(metadata.groups[group].zeros + 8 * i),
                                      zero[i % 2]);
      }
      _mm256_storeu_ps(zeros, zero[0]);
      _mm256_storeu_ps(zeros + 8, zero[1]);
    }
  }
  packed.unit[block_row] = scale.unit;
  packed.start[block_row] = 0;
  if (codebook) {
    const LevelTable& levels = level_table(width);
    alignas(32) std::int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), total);
    std::int32_t sum_of_weights = 0;
    for (const std::int32_t lane : lanes) {
      sum_of_weights += lane;
    }
    packed.unit[block_row] = scale.unit * static_cast<float>(levels.step);
    packed.start[block_row] = -levels.offset * sum_of_weights;
  }
  return !negligible;
}

/// How codes become factors of weights.
struct CodeTables {
  __m256i levels;   ///< of codebook values, 0 for code 0
  __m256i code;     ///< the bits of a code in each half
  __m256i step[4];  ///< shifts that bring one code after another to the front
  bool codebook;
};

TURBOQUANT_AVX2_INLINE CodeTables code_tables(const TileFormat& format) noexcept {
  CodeTables tables;
  tables.levels = load_table(level_table(static_cast<unsigned>(format.value_bits)).raised.data());
  tables.code = _mm256_set1_epi32(((1 << format.value_bits) - 1) * 0x00010001);
  for (int i = 0; i < 4; ++i) {
    tables.step[i] = _mm256_set1_epi32(format.value_bits == 2 ? 2 * i : 4 * i);
  }
  tables.codebook = format.value_codec == ValueCodec::codebook;
  return tables;
}

/// Words whose codes at the shifts `CodeTables::step` belong to 8 tokens.
/// @param eighth of the tile's tokens
/// @param mask   (8), all ones or all zeros
TURBOQUANT_AVX2_INLINE __m256i load_eighth(const ValueRun& run, std::size_t eighth,
                                           std::size_t byte, __m256i mask) noexcept {
  const auto load = [&](std::size_t row) {
    return reinterpret_cast<const int*>(run.words + byte + row * run.stride);
  };
  if (run.width == 4) {
    return _mm256_maskload_epi32(load(eighth), mask);
  }
  if (run.width == 3) {
    const std::size_t half = eighth / 4 * 3;
    if (eighth % 4 < 3) {
      return _mm256_maskload_epi32(load(half + eighth % 4), mask);
    }
    return fourth_word(_mm256_maskload_epi32(load(half), mask),
                       _mm256_maskload_epi32(load(half + 1), mask),
                       _mm256_maskload_epi32(load(half + 2), mask));
  }
  const __m256i word = _mm256_maskload_epi32(load(eighth / 2), mask);
  return eighth % 2 == 0 ? word : _mm256_srli_epi32(word, 8);
}

/// Adds 16 or 8 dimensions of all 64 tokens to the outputs of `Rows` rows.
/// @param weights of the first row, `PackedWeights::dwords`
/// @param unit    (Rows), value of one unit of (weight times code)
/// @param start   (Rows), initial sums
template <int Rows>
TURBOQUANT_AVX2 void add_run(const ValueRun& run, const CodeTables& tables,
                             const std::int32_t* weights, const float* unit,
                             const std::int32_t* start, float* const* outputs) noexcept {
  const __m256i all = _mm256_set1_epi32(-1);
  const __m256i second_mask = run.count >= 16 ? all : _mm256_setzero_si256();
  __m256i sums[2][Rows];
  TURBOQUANT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    sums[0][r] = sums[1][r] = _mm256_set1_epi32(start[r]);
  }
  for (std::size_t eighth = 0; eighth < 8; ++eighth, weights += 4) {
    if (run.ahead != 0 && eighth < run.width) {  // two rows of 16 dimensions
      prefetch_bytes(run.words + run.ahead + 2 * eighth * run.stride, 64);
      prefetch_bytes(run.words + run.ahead + (2 * eighth + 1) * run.stride, 64);
    }
    const __m256i first = load_eighth(run, eighth, 0, all);
    const __m256i second = load_eighth(run, eighth, 32, second_mask);
    TURBOQUANT_UNROLL
    for (int step = 0; step < 4; ++step) {
      __m256i a = step == 0 ? first : _mm256_srlv_epi32(first, tables.step[step]);
      __m256i b = step == 0 ? second : _mm256_srlv_epi32(second, tables.step[step]);
      a = _mm256_and_si256(a, tables.code);
      b = _mm256_and_si256(b, tables.code);
      if (tables.codebook) {
        a = _mm256_shuffle_epi8(tables.levels, a);
        b = _mm256_shuffle_epi8(tables.levels, b);
      }
      TURBOQUANT_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const __m256i weight = _mm256_set1_epi32(weights[32 * r + step]);
        sums[0][r] = _mm256_add_epi32(sums[0][r], _mm256_madd_epi16(a, weight));
        sums[1][r] = _mm256_add_epi32(sums[1][r], _mm256_madd_epi16(b, weight));
      }
    }
  }
  TURBOQUANT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    const __m256 scale = _mm256_set1_ps(unit[r]);
    float* out = outputs[r];
    _mm256_storeu_ps(out,
                     _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[0][r]), scale, _mm256_loadu_ps(out)));
    const __m256 old = _mm256_maskload_ps(out + 8, second_mask);
    _mm256_maskstore_ps(out + 8, second_mask,
                        _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[1][r]), scale, old));
  }
}

}  // namespace turboquant::detail::avx2

#endif
