#pragma once

#include <turboquant/device/arch/integer_attention.hpp>
#include <turboquant/device/arch/x86_target.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if TURBOQUANT_X86
TURBOQUANT_INTRINSICS_BEGIN

namespace turboquant::detail::avx512 {

/// Bits 3, 2, 1 of the nibbles of three words put together: the codes that the planar 3-bit layout
/// spreads.
TURBOQUANT_AVX512_INLINE __m512i fourth_word(__m512i a, __m512i b, __m512i c) noexcept {
  constexpr int select = 0xCA;  // first operand ? second : third
  const __m512i low = _mm512_ternarylogic_epi32(
      _mm512_set1_epi32(0x11111111), _mm512_srli_epi32(a, 3), _mm512_srli_epi32(b, 2), select);
  return _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x44444444), _mm512_srli_epi32(c, 1), low,
                                   select);
}

/// Bits 0..3 of every dword to bits 0, 8, 16, 24.
TURBOQUANT_AVX512_INLINE __m512i spread_bits(__m512i x) noexcept {
  const __m512i low = _mm512_and_si512(x, _mm512_set1_epi32(15));
  return _mm512_and_si512(_mm512_mullo_epi32(low, _mm512_set1_epi32(0x00204081)),
                          _mm512_set1_epi32(0x01010101));
}

/// 8 codes of 16 tokens from byte planes, as nibbles.
TURBOQUANT_AVX512 inline __m512i load_planes(const unsigned char* planes, unsigned width) noexcept {
  __m512i word = _mm512_setzero_si512();
  for (unsigned bit = 0; bit < width; ++bit, planes += TileFormat::max_tokens) {
    const __m512i x =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(planes)));
    const __m512i nibbles =
        _mm512_or_si512(spread_bits(x), _mm512_slli_epi32(spread_bits(_mm512_srli_epi32(x, 4)), 4));
    word =
        _mm512_or_si512(word, _mm512_sll_epi32(nibbles, _mm_cvtsi32_si128(static_cast<int>(bit))));
  }
  return word;
}

/// 8 codes of every token: dimensions 0..3 in the lowest bits of the nibbles 0, 2, 4, 6, the others
/// in those of the nibbles between. What the upper bits hold does not matter.
/// @param words first row of the section, at the first token of the vectors
/// @param group of 8 dimensions, stored in words
template <int Vectors>
TURBOQUANT_AVX512_INLINE void load_group(const unsigned char* words, unsigned width,
                                         std::size_t group, __m512i (&out)[Vectors]) noexcept {
  constexpr std::size_t row = 4 * TileFormat::max_tokens;
  const std::size_t part = group % 4;
  const unsigned char* block = words + group / 4 * width * row;
  if (width < 3) {
    const unsigned char* at = block + part * width / 4 * row;
    const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(part * width % 4));
    TURBOQUANT_UNROLL
    for (int u = 0; u < Vectors; ++u) {
      out[u] = _mm512_srl_epi32(_mm512_loadu_si512(at + 64 * u), shift);
    }
  } else if (width == 3 && part == 3) {
    TURBOQUANT_UNROLL
    for (int u = 0; u < Vectors; ++u) {
      out[u] =
          fourth_word(_mm512_loadu_si512(block + 64 * u), _mm512_loadu_si512(block + row + 64 * u),
                      _mm512_loadu_si512(block + 2 * row + 64 * u));
    }
  } else {
    TURBOQUANT_UNROLL
    for (int u = 0; u < Vectors; ++u) {
      out[u] = _mm512_loadu_si512(block + part * row + 64 * u);
    }
  }
}

/// Integer dot products of `Columns` columns with 16 * Vectors tokens.
template <int Columns, int Vectors>
struct Accumulators {
  __m512i sums[Vectors][Columns];
};

/// Takes 4 dimensions of every token: the bytes of `words` shifted right by `Shift` are codes.
template <int Shift, int Columns, int Vectors>
TURBOQUANT_AVX512_INLINE void add_four(const __m512i (&words)[Vectors], __m512i table,
                                       const std::int32_t* query,
                                       Accumulators<Columns, Vectors>& to) noexcept {
  __m512i levels[Vectors];
  TURBOQUANT_UNROLL
  for (int u = 0; u < Vectors; ++u) {
    levels[u] =
        _mm512_permutexvar_epi8(Shift == 0 ? words[u] : _mm512_srli_epi32(words[u], Shift), table);
  }
  TURBOQUANT_UNROLL
  for (int c = 0; c < Columns; ++c) {
    const __m512i q = _mm512_set1_epi32(query[c]);
    TURBOQUANT_UNROLL
    for (int u = 0; u < Vectors; ++u) {
      to.sums[u][c] = _mm512_dpbusd_epi32(to.sums[u][c], levels[u], q);
    }
  }
}

/// Integer dot products of all columns of a block with all 64 tokens.
///
/// Columns beyond 4 are taken over half of the tokens at a time, so that all sums stay in
/// registers.
/// @param ahead where the same bytes of the next tile are, relative to this one; 0: nothing is
/// loaded early
template <int Columns>
TURBOQUANT_AVX512 void dot_columns(const KeySection& section, const unsigned char* tile,
                                   const Int8Block& query, std::ptrdiff_t ahead,
                                   BlockDots& out) noexcept {
  constexpr int vectors = Columns > 4 ? 2 : 4;
  const unsigned width = section.width;
  const std::size_t in_words = section.word_dims() / 8;
  const std::size_t groups = section.dim / 8;
  const unsigned char* words = tile + section.offset;
  const __m512i table = _mm512_load_si512(level_table(width).raised.data());
  for (int first = 0; first < 4; first += vectors) {
    Accumulators<Columns, vectors> to;
    TURBOQUANT_UNROLL
    for (int u = 0; u < vectors; ++u) {
      TURBOQUANT_UNROLL
      for (int c = 0; c < Columns; ++c) {
        to.sums[u][c] = _mm512_set1_epi32(query.start[c]);
      }
    }
    const bool early = ahead != 0 && first == 0;
    const std::int32_t* q = query.dwords();
    for (std::size_t group = 0; group < groups; ++group, q += 2 * Columns) {
      const unsigned char* here = words + group * width * TileFormat::max_tokens;
      if (early && group % 4 < width) {
        prefetch_row(words + ahead + (group / 4 * width + group % 4) * 4 * TileFormat::max_tokens);
      }
      __m512i codes[vectors];
      if (group < in_words) {
        load_group(words + 64 * first, width, group, codes);
      } else {
        for (int u = 0; u < vectors; ++u) {
          codes[u] = load_planes(here + 16 * (first + u), width);
        }
      }
      add_four<0>(codes, table, q, to);
      add_four<4>(codes, table, q + Columns, to);
    }
    TURBOQUANT_UNROLL
    for (int u = 0; u < vectors; ++u) {
      TURBOQUANT_UNROLL
      for (int c = 0; c < Columns; ++c) {
        _mm512_store_si512(out.dots[c] + 16 * (first + u), to.sums[u][c]);
      }
    }
  }
}

/// Logits of a block of rows: (integer dot product) * (stored scale) * (row scale).
TURBOQUANT_AVX512 inline void scale_dots(int rows, int limbs, const BlockDots& dots,
                                         const Int8Block& query, const unsigned char* scales,
                                         const ScaleStep& step, BlockLogits& out) noexcept {
  for (int token = 0; token < 64; token += 16) {
    __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales + 2 * token));
    const auto centred = static_cast<__mmask16>(~_mm256_movepi16_mask(halves));
    if (step.added != nullptr) {
      halves = _mm256_and_si256(halves, _mm256_set1_epi16(0x7FFF));
    }
    const __m512 scale = _mm512_cvtph_ps(halves);
    for (int r = 0; r < rows; ++r) {
      __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(dots.dots[r] + token));
      if (limbs == 2) {
        dot = _mm512_fmadd_ps(dot, _mm512_set1_ps(int8_limb_base),
                              _mm512_cvtepi32_ps(_mm512_load_si512(dots.dots[rows + r] + token)));
      }
      __m512 logit = _mm512_mul_ps(dot, _mm512_mul_ps(scale, _mm512_set1_ps(query.scale[r])));
      if (step.add) {
        logit = _mm512_add_ps(logit, _mm512_load_ps(out.logits[r] + token));
      }
      if (step.added != nullptr) {
        logit = _mm512_mask_add_ps(logit, centred, logit, _mm512_set1_ps(step.added[r]));
      }
      _mm512_store_ps(out.logits[r] + token, logit);
    }
  }
}

/// Two bytes of e4m3, the upper ones of 16 bits, as halves of 2^-8 times the number.
TURBOQUANT_AVX512_INLINE __m512i float8_halves(__m512i x) noexcept {
  constexpr int select = 0xCA;  // first operand ? second : third
  const __m512i shifted = _mm512_and_si512(_mm512_srli_epi16(x, 1), _mm512_set1_epi16(0x3F80));
  return _mm512_ternarylogic_epi32(_mm512_set1_epi16(static_cast<short>(0x8000)), x, shifted,
                                   select);
}

/// Logits of `Rows` rows with fp8 keys, in float; see `prepare_float8`.
/// @param query (Rows, key_dim)
template <int Rows>
TURBOQUANT_AVX512 void dot_float8(const TileFormat& format, const unsigned char* tile,
                                  const float* query, std::ptrdiff_t ahead,
                                  BlockLogits& out) noexcept {
  constexpr std::size_t row = 4 * TileFormat::max_tokens;
  const unsigned char* words = tile + format.key_codes_offset();
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  for (std::size_t first = 0; first < TileFormat::max_tokens; first += 32) {
    __m512 sums[4][Rows];  // 8 tokens times two sums of every other dimension
    TURBOQUANT_UNROLL
    for (int u = 0; u < 4; ++u) {
      TURBOQUANT_UNROLL
      for (int r = 0; r < Rows; ++r) {
        sums[u][r] = _mm512_setzero_ps();
      }
    }
    for (int d = 0; d < format.key_dim; d += 4) {
      const unsigned char* here = words + static_cast<std::size_t>(d / 4) * row + 4 * first;
      if (ahead != 0) {
        prefetch_bytes(here + ahead, 128);
      }
      const __m512i word[2] = {_mm512_loadu_si512(here), _mm512_loadu_si512(here + 64)};
      TURBOQUANT_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        __m512 keys[4];
        TURBOQUANT_UNROLL
        for (int u = 0; u < 2; ++u) {
          const __m512i halves = float8_halves(pair == 0 ? _mm512_slli_epi16(word[u], 8) : word[u]);
          keys[2 * u] = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
          keys[2 * u + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
        }
        TURBOQUANT_UNROLL
        for (int r = 0; r < Rows; ++r) {
          std::int64_t numbers = 0;
          std::memcpy(&numbers, query + r * format.key_dim + d + 2 * pair, sizeof(numbers));
          const __m512 q = _mm512_castsi512_ps(_mm512_set1_epi64(numbers));
          TURBOQUANT_UNROLL
          for (int u = 0; u < 4; ++u) {
            sums[u][r] = _mm512_fmadd_ps(keys[u], q, sums[u][r]);
          }
        }
      }
    }
    TURBOQUANT_UNROLL
    for (int r = 0; r < Rows; ++r) {
      TURBOQUANT_UNROLL
      for (int u = 0; u < 4; u += 2) {
        const __m512 a = _mm512_permutex2var_ps(sums[u][r], even, sums[u + 1][r]);
        const __m512 b = _mm512_permutex2var_ps(sums[u][r], odd, sums[u + 1][r]);
        _mm512_store_ps(out.logits[r] + first + 8 * static_cast<std::size_t>(u),
                        _mm512_add_ps(a, b));
      }
    }
  }
}

}  // namespace turboquant::detail::avx512

TURBOQUANT_INTRINSICS_END
#endif
