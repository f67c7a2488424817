#pragma once

#include <turboquant/device/arch/integer_attention.hpp>
#include <turboquant/device/arch/x86_avx512_scores.hpp>

#include <cstddef>
#include <cstdint>

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

TURBOQUANT_AVX512 inline void load_metadata(const TileFormat& format, const unsigned char* tile,
                                            int first, int end, ValueMetadata& out) noexcept {
  const std::uint64_t to_end =
      end >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << static_cast<unsigned>(end)) - 1;
  const std::uint64_t valid =
      first >= 64 ? 0 : to_end >> static_cast<unsigned>(first) << static_cast<unsigned>(first);
  const bool grouped = format.value_codec == ValueCodec::grouped;
  __m512 largest[4] = {};
  for (std::size_t group = 0; group < format.value_groups(); ++group) {
    const unsigned char* scales =
        tile + format.value_scales_offset() + 2 * TileFormat::max_tokens * group;
    const unsigned char* zeros =
        tile + format.value_zeros_offset() + 2 * TileFormat::max_tokens * group;
    for (int i = 0; i < 4; ++i) {
      const auto lanes = static_cast<__mmask16>(valid >> (16 * i));
      // Signs follow from the parity of tokens, which `CodeTables` knows.
      const __m512 scale = _mm512_abs_ps(load_halves(scales + 32 * i, lanes));
      _mm512_store_ps(out.groups[group].scales + 16 * i, scale);
      largest[i] = _mm512_max_ps(largest[i], scale);
      if (grouped) {
        _mm512_store_ps(out.groups[group].zeros + 16 * i, load_halves(zeros + 32 * i, lanes));
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    _mm512_store_ps(out.largest + 16 * i, largest[i]);
  }
}

/// The order in which one value word after another gives up the codes of four tokens at a time, as
/// positions in what `pack_weights` makes of 64 dwords before.
struct WeightOrder {
  alignas(64) std::uint8_t nibbles[64];  ///< 8 tokens a word: the even ones, then the odd ones
  alignas(64) std::uint8_t pairs[64];    ///< 16 tokens a word: every fourth one

  constexpr WeightOrder() : nibbles(), pairs() {
    for (unsigned i = 0; i < 64; ++i) {
      nibbles[i] = position(i / 8 * 8 + i % 4 * 2 + i / 4 % 2);
      pairs[i] = position(i / 16 * 16 + i % 4 * 4 + i / 4 % 4);
    }
  }
  static constexpr std::uint8_t position(unsigned token) noexcept {
    const unsigned vector = token / 16;
    return static_cast<std::uint8_t>(token % 16 / 4 * 16 + vector % 2 * 8 + token % 4 * 2 +
                                     vector / 2);
  }
};
inline constexpr WeightOrder weight_order;

/// Weights as bytes: a dword holds the four tokens whose codes one shift of a value word brings
/// into its bytes. int16 weights give 16 dwords of low bytes, then 16 of high ones.
/// @param width   bits of a value code
/// @param weights below 2^15 or 2^8
TURBOQUANT_AVX512_INLINE void pack_weights(unsigned width, bool int16_weights,
                                           const __m512i (&weights)[4],
                                           std::int32_t* out) noexcept {
  constexpr int select = 0xCA;  // first operand ? second : third
  const __m512i low = _mm512_set1_epi16(255);
  const __m512i order = _mm512_load_si512(width == 2 ? weight_order.pairs : weight_order.nibbles);
  const __m512i first = _mm512_packus_epi32(weights[0], weights[1]);
  const __m512i second = _mm512_packus_epi32(weights[2], weights[3]);
  const __m512i low_bytes =
      _mm512_ternarylogic_epi32(low, first, _mm512_slli_epi16(second, 8), select);
  _mm512_store_si512(out, _mm512_permutexvar_epi8(order, low_bytes));
  if (int16_weights) {
    const __m512i high_bytes =
        _mm512_ternarylogic_epi32(low, _mm512_srli_epi16(first, 8), second, select);
    _mm512_store_si512(out + 16, _mm512_permutexvar_epi8(order, high_bytes));
  }
}

/// Takes 64 logits of a row into its running softmax and packs the weights.
/// @return false where no token is visible or all are negligible: no values to add
TURBOQUANT_AVX512 inline bool take_row(const TileFormat& format, const LaneState& state,
                                       std::size_t row, int block_row, const float* logits,
                                       const ValueMetadata& metadata, bool int16_weights,
                                       PackedWeights& packed) noexcept {
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
  TURBOQUANT_UNROLL
  for (int i = 0; i < 4; ++i) {
    x[i] = exp2_lanes(_mm512_sub_ps(x[i], maximum));
    sum = _mm512_add_ps(sum, x[i]);
  }
  _mm512_storeu_ps(sums, sum);

  __m512 y[4];
  TURBOQUANT_UNROLL
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_mul_ps(x[i], _mm512_load_ps(metadata.largest + 16 * i));
  }
  const float largest =
      _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(y[0], y[1]), _mm512_max_ps(y[2], y[3])));
  const bool negligible = highest - state.maximum(row) < negligible_logit;
  const WeightScale scale = negligible ? WeightScale{} : weight_scale(largest, int16_weights);
  TURBOQUANT_UNROLL
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_mul_ps(x[i], _mm512_set1_ps(scale.inverse));
  }
  const auto width = static_cast<unsigned>(format.value_bits);
  const bool codebook = format.value_codec == ValueCodec::codebook;
  for (std::size_t group = 0; group < format.value_groups(); ++group) {
    __m512i weights[4];
    TURBOQUANT_UNROLL
    for (int i = 0; i < 4; ++i) {
      weights[i] = _mm512_cvtps_epi32(
          _mm512_mul_ps(y[i], _mm512_load_ps(metadata.groups[group].scales + 16 * i)));
    }
    pack_weights(width, int16_weights, weights, packed.dwords[group][block_row]);
    if (!codebook) {
      float* zeros = state.zeros(row) + 16 * group;
      __m512 zero = _mm512_loadu_ps(zeros);
      TURBOQUANT_UNROLL
      for (int i = 0; i < 4; ++i) {
        zero = _mm512_fmadd_ps(x[i], _mm512_load_ps(metadata.groups[group].zeros + 16 * i), zero);
      }
      _mm512_storeu_ps(zeros, zero);
    }
  }
  packed.unit[block_row] =
      codebook ? scale.unit * static_cast<float>(level_table(width).step) : scale.unit;
  return !negligible;
}

/// Sums of two vectors of 16 dimensions for `Rows` rows and every byte of a weight. A lone row
/// takes turns with two sums, so that additions do not wait for each other.
template <int Rows, int Bytes>
struct ValueSums {
  static constexpr int turns = Rows == 1 ? 2 : 1;
  __m512i sums[turns][Bytes][2][Rows];
};

/// How codes become factors of weights: one table look-up per byte.
struct CodeTables {
  __m512i even;   ///< of even tokens
  __m512i odd;    ///< of odd tokens: negative, because their scales are
  __m512i shift;  ///< brings the codes of odd tokens to the front
};

TURBOQUANT_AVX512_INLINE CodeTables code_tables(const TileFormat& format) noexcept {
  const LevelTable& levels = level_table(static_cast<unsigned>(format.value_bits));
  const bool codebook = format.value_codec == ValueCodec::codebook;
  CodeTables tables;
  tables.even =
      codebook ? _mm512_load_si512(levels.level.data()) : _mm512_load_si512(levels.code.data());
  tables.odd = _mm512_sub_epi8(_mm512_setzero_si512(), tables.even);
  tables.shift = _mm512_set1_epi32(format.value_bits == 2 ? 2 : 4);
  return tables;
}

/// Words of 8 tokens: as they are the lowest bits of their bytes hold codes of even tokens, shifted
/// by `CodeTables::shift` those of odd tokens.
/// @param eighth of the tile's tokens
TURBOQUANT_AVX512_INLINE __m512i load_eighth(const ValueRun& run, std::size_t eighth,
                                             std::size_t byte, __mmask16 mask) noexcept {
  const unsigned char* words = run.words + byte;
  if (run.width == 4) {
    return _mm512_maskz_loadu_epi32(mask, words + eighth * run.stride);
  }
  if (run.width == 3) {
    const unsigned char* half = words + eighth / 4 * 3 * run.stride;
    if (eighth % 4 < 3) {
      return _mm512_maskz_loadu_epi32(mask, half + eighth % 4 * run.stride);
    }
    return fourth_word(_mm512_maskz_loadu_epi32(mask, half),
                       _mm512_maskz_loadu_epi32(mask, half + run.stride),
                       _mm512_maskz_loadu_epi32(mask, half + 2 * run.stride));
  }
  const __m512i word = _mm512_maskz_loadu_epi32(mask, words + eighth / 2 * run.stride);
  return eighth % 2 == 0 ? word : _mm512_srli_epi32(word, 4);
}

/// Adds up to 32 dimensions of all 64 tokens to the outputs of `Rows` rows.
/// @tparam Bytes  of a weight, 1 or 2
/// @param weights of the first row, `PackedWeights::dwords`
/// @param unit    (Rows), value of one unit of (weight times code)
template <int Rows, int Bytes>
TURBOQUANT_AVX512 void add_run(const ValueRun& run, const CodeTables& tables,
                               const std::int32_t* weights, const float* unit,
                               float* const* outputs) noexcept {
  using Sums = ValueSums<Rows, Bytes>;
  const std::uint32_t mask = run.count >= 32 ? 0xFFFFFFFFU : (1U << run.count) - 1U;
  const auto mask_first = static_cast<__mmask16>(mask);
  const auto mask_second = static_cast<__mmask16>(mask >> 16U);
  Sums to;
  for (auto& turn : to.sums) {
    for (auto& byte : turn) {
      TURBOQUANT_UNROLL
      for (int r = 0; r < Rows; ++r) {
        byte[0][r] = byte[1][r] = _mm512_setzero_si512();
      }
    }
  }
  for (std::size_t eighth = 0; eighth < 8; ++eighth, weights += 2) {
    if (run.ahead != 0 && eighth < run.width) {
      prefetch_row(run.words + run.ahead + 256 * eighth);
    }
    const __m512i first = load_eighth(run, eighth, 0, mask_first);
    const __m512i second = load_eighth(run, eighth, 64, mask_second);
    TURBOQUANT_UNROLL
    for (int step = 0; step < 2; ++step) {
      const __m512i table = step == 0 ? tables.even : tables.odd;
      const __m512i a = _mm512_permutexvar_epi8(
          step == 0 ? first : _mm512_srlv_epi32(first, tables.shift), table);
      const __m512i b = _mm512_permutexvar_epi8(
          step == 0 ? second : _mm512_srlv_epi32(second, tables.shift), table);
      TURBOQUANT_UNROLL
      for (int byte = 0; byte < Bytes; ++byte) {
        auto& sums = to.sums[step % Sums::turns][byte];
        TURBOQUANT_UNROLL
        for (int r = 0; r < Rows; ++r) {
          const __m512i weight = _mm512_set1_epi32(weights[32 * r + 16 * byte + step]);
          sums[0][r] = _mm512_dpbusd_epi32(sums[0][r], weight, a);
          sums[1][r] = _mm512_dpbusd_epi32(sums[1][r], weight, b);
        }
      }
    }
  }
  TURBOQUANT_UNROLL
  for (int r = 0; r < Rows; ++r) {
    const __m512 scale = _mm512_set1_ps(unit[r]);
    TURBOQUANT_UNROLL
    for (int half = 0; half < 2; ++half) {
      __m512i sum = to.sums[0][0][half][r];
      if constexpr (Sums::turns == 2) {
        sum = _mm512_add_epi32(sum, to.sums[1][0][half][r]);
      }
      if constexpr (Bytes == 2) {
        __m512i high = to.sums[0][1][half][r];
        if constexpr (Sums::turns == 2) {
          high = _mm512_add_epi32(high, to.sums[1][1][half][r]);
        }
        sum = _mm512_add_epi32(sum, _mm512_slli_epi32(high, 8));
      }
      const __mmask16 lanes = half == 0 ? mask_first : mask_second;
      float* out = outputs[r] + 16 * half;
      _mm512_mask_storeu_ps(
          out, lanes,
          _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, _mm512_maskz_loadu_ps(lanes, out)));
    }
  }
}

}  // namespace turboquant::detail::avx512

TURBOQUANT_INTRINSICS_END
#endif
