#pragma once

#include <turboquant/device/arch/int8_query.hpp>
#include <turboquant/device/arch/level_tables.hpp>
#include <turboquant/device/arch/tile_geometry.hpp>
#include <turboquant/device/arch/x86_target.hpp>

#include <cstddef>
#include <cstdint>

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

template <int Vectors>
TURBOQUANT_AVX512_INLINE void load_row(const unsigned char* row,
                                       __m512i (&words)[Vectors]) noexcept {
  TURBOQUANT_UNROLL
  for (int u = 0; u < Vectors; ++u) {
    words[u] = _mm512_loadu_si512(row + 64 * u);
  }
}

/// 32 dimensions of every token in planar words.
/// @param block  first row, at the first token of the vectors
template <unsigned Width, int Columns, int Vectors>
TURBOQUANT_AVX512_INLINE void add_block(const unsigned char* block, __m512i table,
                                        const std::int32_t* query,
                                        Accumulators<Columns, Vectors>& to) noexcept {
  constexpr std::size_t row = 4 * TileFormat::tokens;
  __m512i words[Vectors];
  if constexpr (Width == 1) {
    load_row(block, words);
    add_four<0>(words, table, query, to);
    add_four<4>(words, table, query + Columns, to);
    add_four<1>(words, table, query + 2 * Columns, to);
    add_four<5>(words, table, query + 3 * Columns, to);
    add_four<2>(words, table, query + 4 * Columns, to);
    add_four<6>(words, table, query + 5 * Columns, to);
    add_four<3>(words, table, query + 6 * Columns, to);
    add_four<7>(words, table, query + 7 * Columns, to);
  } else if constexpr (Width == 2) {
    TURBOQUANT_UNROLL
    for (std::size_t k = 0; k < 2; ++k) {
      load_row(block + row * k, words);
      add_four<0>(words, table, query, to);
      add_four<4>(words, table, query + Columns, to);
      add_four<2>(words, table, query + 2 * Columns, to);
      add_four<6>(words, table, query + 3 * Columns, to);
      query += 4 * Columns;
    }
  } else {
    TURBOQUANT_UNROLL
    for (std::size_t k = 0; k < 4; ++k) {
      if (Width == 3 && k == 3) {
        TURBOQUANT_UNROLL
        for (int u = 0; u < Vectors; ++u) {
          words[u] = fourth_word(_mm512_loadu_si512(block + 64 * u),
                                 _mm512_loadu_si512(block + row + 64 * u),
                                 _mm512_loadu_si512(block + 2 * row + 64 * u));
        }
      } else {
        load_row(block + row * k, words);
      }
      add_four<0>(words, table, query, to);
      add_four<4>(words, table, query + Columns, to);
      query += 2 * Columns;
    }
  }
}

/// 8 dimensions of every token in byte planes (up to 3 bits) or in one nibble word (4 bits).
template <unsigned Width, int Columns, int Vectors>
TURBOQUANT_AVX512_INLINE void add_rest(const unsigned char* planes, __m512i table,
                                       const std::int32_t* query,
                                       Accumulators<Columns, Vectors>& to) noexcept {
  __m512i words[Vectors];
  TURBOQUANT_UNROLL
  for (int u = 0; u < Vectors; ++u) {
    __m512i word = _mm512_setzero_si512();
    for (unsigned bit = 0; bit < Width; ++bit) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(
          planes + bit * TileFormat::tokens + 16 * static_cast<unsigned>(u)));
      const __m512i x = _mm512_cvtepu8_epi32(bytes);
      const __m512i nibbles = _mm512_or_si512(
          spread_bits(x), _mm512_slli_epi32(spread_bits(_mm512_srli_epi32(x, 4)), 4));
      word = _mm512_or_si512(word,
                             _mm512_sll_epi32(nibbles, _mm_cvtsi32_si128(static_cast<int>(bit))));
    }
    words[u] = word;
  }
  add_four<0>(words, table, query, to);
  add_four<4>(words, table, query + Columns, to);
}

/// Logits of one block of rows with all 64 tokens: (integer dot product) * (stored scale) * (row
/// scale).
///
/// Columns beyond 4 are taken over half of the tokens at a time, so that all sums stay in
/// registers.
/// @param ahead where the same bytes of the next tile are, relative to this one; 0: nothing is
/// loaded early
/// @param add   whether to add to what `logits` holds
template <unsigned Width, int Columns, int Limbs>
TURBOQUANT_AVX512 void score_block(const unsigned char* tile, std::size_t offset, int dim,
                                   const Int8Block& query, const unsigned char* scales,
                                   std::ptrdiff_t ahead, bool add,
                                   float (*logits)[TileFormat::tokens]) noexcept {
  constexpr int vectors = Columns > 4 ? 2 : 4;
  constexpr int rows = Columns / Limbs;
  const __m512i table = _mm512_load_si512(level_table<Width>.raised.data());
  for (int first = 0; first < 4; first += vectors) {
    Accumulators<Columns, vectors> to;
    TURBOQUANT_UNROLL
    for (int u = 0; u < vectors; ++u) {
      TURBOQUANT_UNROLL
      for (int c = 0; c < Columns; ++c) {
        to.sums[u][c] = _mm512_set1_epi32(query.start[c]);
      }
    }
    const std::int32_t* q = query.dwords();
    const unsigned char* block = tile + offset + 64 * first;
    int left = dim;
    for (; left >= 32; left -= 32, q += 8 * Columns, block += Width * 4 * TileFormat::tokens) {
      if (ahead != 0 && first == 0) {
        prefetch_bytes(block + ahead, Width * 4 * TileFormat::tokens);
      }
      add_block<Width>(block, table, q, to);
    }
    if constexpr (Width == 4) {
      for (; left > 0; left -= 8, q += 2 * Columns, block += 4 * TileFormat::tokens) {
        __m512i words[vectors];
        load_row(block, words);
        add_four<0>(words, table, q, to);
        add_four<4>(words, table, q + Columns, to);
      }
    } else {
      const unsigned char* planes = block - 48 * first;  // a byte per token instead of a dword
      for (; left > 0; left -= 8, q += 2 * Columns, planes += Width * TileFormat::tokens) {
        add_rest<Width>(planes, table, q, to);
      }
    }
    TURBOQUANT_UNROLL
    for (int u = 0; u < vectors; ++u) {
      const int token = 16 * (first + u);
      const __m512 scale =
          _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales + 2 * token)));
      TURBOQUANT_UNROLL
      for (int r = 0; r < rows; ++r) {
        __m512 dot = _mm512_cvtepi32_ps(to.sums[u][r]);
        if constexpr (Limbs == 2) {
          dot = _mm512_fmadd_ps(dot, _mm512_set1_ps(int8_limb_base),
                                _mm512_cvtepi32_ps(to.sums[u][rows + r]));
        }
        __m512 logit = _mm512_mul_ps(dot, _mm512_mul_ps(scale, _mm512_set1_ps(query.scale[r])));
        if (add) {
          logit = _mm512_add_ps(logit, _mm512_loadu_ps(logits[r] + token));
        }
        _mm512_storeu_ps(logits[r] + token, logit);
      }
    }
  }
}

}  // namespace turboquant::detail::avx512

TURBOQUANT_INTRINSICS_END
#endif
