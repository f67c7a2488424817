#pragma once

#include <turboquant/device/arch/int8_query.hpp>
#include <turboquant/device/arch/level_tables.hpp>
#include <turboquant/device/arch/tile_geometry.hpp>
#include <turboquant/device/arch/x86_target.hpp>

#include <cstddef>
#include <cstdint>

#if TURBOQUANT_X86

namespace turboquant::detail::avx2 {

/// Bits 3, 2, 1 of the nibbles of three words put together: the codes that the planar 3-bit layout
/// spreads.
TURBOQUANT_AVX2_INLINE __m256i fourth_word(__m256i a, __m256i b, __m256i c) noexcept {
  const __m256i x = _mm256_and_si256(_mm256_srli_epi32(a, 3), _mm256_set1_epi32(0x11111111));
  const __m256i y = _mm256_and_si256(_mm256_srli_epi32(b, 2), _mm256_set1_epi32(0x22222222));
  const __m256i z = _mm256_and_si256(_mm256_srli_epi32(c, 1), _mm256_set1_epi32(0x44444444));
  return _mm256_or_si256(_mm256_or_si256(x, y), z);
}

/// Bits 0..3 of every dword to bits 0, 8, 16, 24.
TURBOQUANT_AVX2_INLINE __m256i spread_bits(__m256i x) noexcept {
  const __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(15));
  return _mm256_and_si256(_mm256_mullo_epi32(low, _mm256_set1_epi32(0x00204081)),
                          _mm256_set1_epi32(0x01010101));
}

TURBOQUANT_AVX2_INLINE __m256i load_table(const void* bytes) noexcept {
  return _mm256_broadcastsi128_si256(_mm_load_si128(static_cast<const __m128i*>(bytes)));
}

TURBOQUANT_AVX2_INLINE __m256i load_words(const unsigned char* at) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

/// Look-ups and sums of one pass: 16 tokens times up to 4 columns.
///
/// Sums of two products stay within 16 bits: up to 3 bits the raised levels are at most 124; with 4
/// bits the levels' magnitudes, at most 104, are multiplied by the query with the levels' signs.
template <unsigned Width, int Columns>
struct Pass {
  static constexpr bool signs_apart = Width == 4;

  __m256i sums[2][Columns];
  __m256i table;
  __m256i sign_table;
  int stride;  ///< columns of the whole block

  /// Takes 4 dimensions of every token: the low nibbles of `words` shifted right by `Shift` hold
  /// codes.
  template <int Shift>
  TURBOQUANT_AVX2_INLINE void add_four(const __m256i (&words)[2],
                                       const std::int32_t* query) noexcept {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i levels[2];
    __m256i signed_levels[2];
    TURBOQUANT_UNROLL
    for (int u = 0; u < 2; ++u) {
      const __m256i shifted = Shift == 0 ? words[u] : _mm256_srli_epi32(words[u], Shift);
      const __m256i codes = _mm256_and_si256(shifted, _mm256_set1_epi8(15));
      levels[u] = _mm256_shuffle_epi8(table, codes);
      signed_levels[u] = signs_apart ? _mm256_shuffle_epi8(sign_table, codes) : levels[u];
    }
    TURBOQUANT_UNROLL
    for (int c = 0; c < Columns; ++c) {
      const __m256i q = _mm256_set1_epi32(query[c]);
      TURBOQUANT_UNROLL
      for (int u = 0; u < 2; ++u) {
        const __m256i factor = signs_apart ? _mm256_sign_epi8(q, signed_levels[u]) : q;
        const __m256i pairs = _mm256_maddubs_epi16(levels[u], factor);
        sums[u][c] = _mm256_add_epi32(sums[u][c], _mm256_madd_epi16(pairs, ones));
      }
    }
  }

  TURBOQUANT_AVX2_INLINE void load_row(const unsigned char* row, __m256i (&words)[2]) noexcept {
    words[0] = load_words(row);
    words[1] = load_words(row + 32);
  }

  /// 32 dimensions of every token in planar words.
  TURBOQUANT_AVX2_INLINE void add_block(const unsigned char* block,
                                        const std::int32_t* query) noexcept {
    constexpr std::size_t row = 4 * TileFormat::tokens;
    __m256i words[2];
    if constexpr (Width == 1) {
      load_row(block, words);
      add_four<0>(words, query);
      add_four<4>(words, query + stride);
      add_four<1>(words, query + 2 * stride);
      add_four<5>(words, query + 3 * stride);
      add_four<2>(words, query + 4 * stride);
      add_four<6>(words, query + 5 * stride);
      add_four<3>(words, query + 6 * stride);
      add_four<7>(words, query + 7 * stride);
    } else if constexpr (Width == 2) {
      for (std::size_t k = 0; k < 2; ++k, query += 4 * stride) {
        load_row(block + row * k, words);
        add_four<0>(words, query);
        add_four<4>(words, query + stride);
        add_four<2>(words, query + 2 * stride);
        add_four<6>(words, query + 3 * stride);
      }
    } else {
      TURBOQUANT_UNROLL
      for (std::size_t k = 0; k < 4; ++k, query += 2 * stride) {
        if (Width == 3 && k == 3) {
          words[0] =
              fourth_word(load_words(block), load_words(block + row), load_words(block + 2 * row));
          words[1] = fourth_word(load_words(block + 32), load_words(block + row + 32),
                                 load_words(block + 2 * row + 32));
        } else {
          load_row(block + row * k, words);
        }
        add_four<0>(words, query);
        add_four<4>(words, query + stride);
      }
    }
  }

  /// 8 dimensions of every token in byte planes.
  TURBOQUANT_AVX2_INLINE void add_planes(const unsigned char* planes,
                                         const std::int32_t* query) noexcept {
    __m256i words[2];
    for (int u = 0; u < 2; ++u) {
      __m256i word = _mm256_setzero_si256();
      for (unsigned bit = 0; bit < Width; ++bit) {
        const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(
            planes + bit * TileFormat::tokens + 8 * static_cast<unsigned>(u))));
        const __m256i nibbles = _mm256_or_si256(
            spread_bits(x), _mm256_slli_epi32(spread_bits(_mm256_srli_epi32(x, 4)), 4));
        word = _mm256_or_si256(word,
                               _mm256_sll_epi32(nibbles, _mm_cvtsi32_si128(static_cast<int>(bit))));
      }
      words[u] = word;
    }
    add_four<0>(words, query);
    add_four<4>(words, query + stride);
  }
};

/// Integer dot products of columns [column, column + Columns) of a block with all 64 tokens.
/// @param block_columns columns of the whole block
template <unsigned Width, int Columns>
TURBOQUANT_AVX2 void dot_columns(const unsigned char* section, int dim, const Int8Block& query,
                                 int column, int block_columns, std::ptrdiff_t ahead,
                                 std::int32_t (*out)[TileFormat::tokens]) noexcept {
  Pass<Width, Columns> pass;
  pass.table = load_table(Width == 4 ? static_cast<const void*>(level_table<Width>.magnitude.data())
                                     : static_cast<const void*>(level_table<Width>.raised.data()));
  pass.sign_table = load_table(level_table<Width>.level.data());
  pass.stride = block_columns;
  for (int first = 0; first < 64; first += 16) {
    for (int c = 0; c < Columns; ++c) {
      pass.sums[0][c] = pass.sums[1][c] = _mm256_set1_epi32(query.start[column + c]);
    }
    const std::int32_t* q = query.dwords() + column;
    const unsigned char* block = section + 4 * first;
    int left = dim;
    for (; left >= 32;
         left -= 32, q += 8 * block_columns, block += Width * 4 * TileFormat::tokens) {
      if (ahead != 0) {  // each pass over 16 tokens asks for its quarter
        prefetch_bytes(block + ahead + 4 * (Width - 1) * static_cast<unsigned>(first),
                       Width * TileFormat::tokens);
      }
      pass.add_block(block, q);
    }
    if constexpr (Width == 4) {
      for (; left > 0; left -= 8, q += 2 * block_columns, block += 4 * TileFormat::tokens) {
        __m256i words[2];
        pass.load_row(block, words);
        pass.template add_four<0>(words, q);
        pass.template add_four<4>(words, q + block_columns);
      }
    } else {
      const unsigned char* planes = block - 3 * first;  // a byte per token instead of a dword
      for (; left > 0; left -= 8, q += 2 * block_columns, planes += Width * TileFormat::tokens) {
        pass.add_planes(planes, q);
      }
    }
    for (int c = 0; c < Columns; ++c) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[c] + first), pass.sums[0][c]);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[c] + first + 8), pass.sums[1][c]);
    }
  }
}

/// Logits of one block of `Rows` rows with all 64 tokens; limbs are taken one after the other.
template <unsigned Width, int Rows, int Limbs>
TURBOQUANT_AVX2 void score_block(const unsigned char* tile, std::size_t offset, int dim,
                                 const Int8Block& query, const unsigned char* scales,
                                 std::ptrdiff_t ahead, bool add,
                                 float (*logits)[TileFormat::tokens]) noexcept {
  alignas(32) std::int32_t dots[Limbs][Rows][TileFormat::tokens];
  for (int limb = 0; limb < Limbs; ++limb) {
    dot_columns<Width, Rows>(tile + offset, dim, query, limb * Rows, Rows * Limbs,
                             limb == 0 ? ahead : 0, dots[limb]);
  }
  for (int token = 0; token < 64; token += 8) {
    const __m256 scale =
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 2 * token)));
    for (int r = 0; r < Rows; ++r) {
      __m256 dot = _mm256_cvtepi32_ps(
          _mm256_load_si256(reinterpret_cast<const __m256i*>(dots[0][r] + token)));
      if constexpr (Limbs == 2) {
        const __m256 low = _mm256_cvtepi32_ps(
            _mm256_load_si256(reinterpret_cast<const __m256i*>(dots[1][r] + token)));
        dot = _mm256_fmadd_ps(dot, _mm256_set1_ps(int8_limb_base), low);
      }
      __m256 logit = _mm256_mul_ps(dot, _mm256_mul_ps(scale, _mm256_set1_ps(query.scale[r])));
      if (add) {
        logit = _mm256_add_ps(logit, _mm256_loadu_ps(logits[r] + token));
      }
      _mm256_storeu_ps(logits[r] + token, logit);
    }
  }
}

}  // namespace turboquant::detail::avx2

#endif
