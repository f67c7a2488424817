#pragma once

#include <turboquant/device/arch/integer_attention.hpp>
#include <turboquant/device/arch/x86_target.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

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

/// 8 codes of 8 tokens from byte planes, as nibbles.
TURBOQUANT_AVX2 inline __m256i load_planes(const unsigned char* planes, unsigned width) noexcept {
  __m256i word = _mm256_setzero_si256();
  for (unsigned bit = 0; bit < width; ++bit, planes += TileFormat::max_tokens) {
    const __m256i x =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(planes)));
    const __m256i nibbles =
        _mm256_or_si256(spread_bits(x), _mm256_slli_epi32(spread_bits(_mm256_srli_epi32(x, 4)), 4));
    word =
        _mm256_or_si256(word, _mm256_sll_epi32(nibbles, _mm_cvtsi32_si128(static_cast<int>(bit))));
  }
  return word;
}

/// 8 codes of 8 tokens: dimensions 0..3 in the lowest bits of the nibbles 0, 2, 4, 6, the others in
/// those of the nibbles between. What the upper bits hold does not matter.
/// @param words first row of the section, at the first token
/// @param group of 8 dimensions, stored in words
TURBOQUANT_AVX2_INLINE __m256i load_group(const unsigned char* words, unsigned width,
                                          std::size_t group) noexcept {
  constexpr std::size_t row = 4 * TileFormat::max_tokens;
  const std::size_t part = group % 4;
  const unsigned char* block = words + group / 4 * width * row;
  if (width < 3) {
    return _mm256_srl_epi32(load_words(block + part * width / 4 * row),
                            _mm_cvtsi32_si128(static_cast<int>(part * width % 4)));
  }
  if (width == 3 && part == 3) {
    return fourth_word(load_words(block), load_words(block + row), load_words(block + 2 * row));
  }
  return load_words(block + part * row);
}

/// Integer dot products of one limb of `Rows` rows with all 64 tokens.
///
/// Sums of two products stay within 16 bits: up to 3 bits the raised levels are at most 124; with 4
/// bits (`SignsApart`) the levels' magnitudes, at most 104, are multiplied by the query with the
/// levels' signs.
/// @param column        first column
/// @param block_columns columns of the whole block
template <int Rows, bool SignsApart>
TURBOQUANT_AVX2 void dot_columns(const KeySection& section, const unsigned char* tile,
                                 const Int8Block& query, int column, int block_columns,
                                 std::ptrdiff_t ahead, BlockDots& out) noexcept {
  const unsigned width = section.width;
  const LevelTable& levels = level_table(width);
  const __m256i table = load_table(SignsApart ? static_cast<const void*>(levels.magnitude.data())
                                              : static_cast<const void*>(levels.raised.data()));
  const __m256i sign_table = load_table(levels.level.data());
  const __m256i low_bits = _mm256_set1_epi8(15);
  const __m256i ones = _mm256_set1_epi16(1);
  const std::size_t in_words = section.word_dims() / 8;
  const std::size_t groups = section.dim / 8;
  const unsigned char* words = tile + section.offset;
  for (std::size_t first = 0; first < TileFormat::max_tokens; first += 16) {
    __m256i sums[2][Rows];
    TURBOQUANT_UNROLL
    for (int r = 0; r < Rows; ++r) {
      sums[0][r] = sums[1][r] = _mm256_set1_epi32(query.start[column + r]);
    }
    const std::int32_t* q = query.dwords() + column;
    for (std::size_t group = 0; group < groups; ++group) {
      const unsigned char* here = words + group * width * TileFormat::max_tokens;
      if (ahead != 0 && group % 4 < width) {  // each pass over 16 tokens asks for its quarter
        prefetch_bytes(words + ahead +
                           (group / 4 * width + group % 4) * 4 * TileFormat::max_tokens + 4 * first,
                       64);
      }
      __m256i codes[2];
      if (group < in_words) {
        codes[0] = load_group(words + 4 * first, width, group);
        codes[1] = load_group(words + 4 * first + 32, width, group);
      } else {
        codes[0] = load_planes(here + first, width);
        codes[1] = load_planes(here + first + 8, width);
      }
      TURBOQUANT_UNROLL
      for (int half = 0; half < 2; ++half, q += block_columns) {
        __m256i factors[2];
        __m256i signs[2];
        TURBOQUANT_UNROLL
        for (int u = 0; u < 2; ++u) {
          const __m256i code =
              _mm256_and_si256(half == 0 ? codes[u] : _mm256_srli_epi32(codes[u], 4), low_bits);
          factors[u] = _mm256_shuffle_epi8(table, code);
          signs[u] = SignsApart ? _mm256_shuffle_epi8(sign_table, code) : factors[u];
        }
        TURBOQUANT_UNROLL
        for (int r = 0; r < Rows; ++r) {
          const __m256i number = _mm256_set1_epi32(q[r]);
          TURBOQUANT_UNROLL
          for (int u = 0; u < 2; ++u) {
            const __m256i signed_number = SignsApart ? _mm256_sign_epi8(number, signs[u]) : number;
            const __m256i pairs = _mm256_maddubs_epi16(factors[u], signed_number);
            sums[u][r] = _mm256_add_epi32(sums[u][r], _mm256_madd_epi16(pairs, ones));
          }
        }
      }
    }
    TURBOQUANT_UNROLL
    for (int r = 0; r < Rows; ++r) {
      std::int32_t* dots = out.dots[column + r] + first;
      _mm256_store_si256(reinterpret_cast<__m256i*>(dots), sums[0][r]);
      _mm256_store_si256(reinterpret_cast<__m256i*>(dots + 8), sums[1][r]);
    }
  }
}

/// Logits of a block of rows: (integer dot product) * (stored scale) * (row scale).
TURBOQUANT_AVX2 inline void scale_dots(int rows, int limbs, const BlockDots& dots,
                                       const Int8Block& query, const unsigned char* scales,
                                       const ScaleStep& step, BlockLogits& out) noexcept {
  const auto load = [&](int column, int token) {
    return reinterpret_cast<const __m256i*>(dots.dots[column] + token);
  };
  for (int token = 0; token < 64; token += 8) {
    const __m256 stored =
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 2 * token)));
    const __m256 scale =
        step.added == nullptr ? stored : _mm256_andnot_ps(_mm256_set1_ps(-0.0F), stored);
    for (int r = 0; r < rows; ++r) {
      __m256 dot = _mm256_cvtepi32_ps(_mm256_load_si256(load(r, token)));
      if (limbs == 2) {
        dot = _mm256_fmadd_ps(dot, _mm256_set1_ps(int8_limb_base),
                              _mm256_cvtepi32_ps(_mm256_load_si256(load(rows + r, token))));
      }
      __m256 logit = _mm256_mul_ps(dot, _mm256_mul_ps(scale, _mm256_set1_ps(query.scale[r])));
      if (step.add) {
        logit = _mm256_add_ps(logit, _mm256_load_ps(out.logits[r] + token));
      }
      if (step.added != nullptr) {
        const __m256 with_mean = _mm256_add_ps(logit, _mm256_set1_ps(step.added[r]));
        logit = _mm256_blendv_ps(with_mean, logit, stored);  // by the sign of the scale
      }
      _mm256_store_ps(out.logits[r] + token, logit);
    }
  }
}

/// Two bytes of e4m3, the upper ones of 16 bits, as halves of 2^-8 times the number.
TURBOQUANT_AVX2_INLINE __m256i float8_halves(__m256i x) noexcept {
  const __m256i sign = _mm256_and_si256(x, _mm256_set1_epi16(static_cast<short>(0x8000)));
  return _mm256_or_si256(sign,
                         _mm256_and_si256(_mm256_srli_epi16(x, 1), _mm256_set1_epi16(0x3F80)));
}

/// Logits of `Rows` rows with fp8 keys, in float; see `prepare_float8`.
/// @param query (Rows, key_dim)
template <int Rows>
TURBOQUANT_AVX2 void dot_float8(const TileFormat& format, const unsigned char* tile,
                                const float* query, std::ptrdiff_t ahead,
                                BlockLogits& out) noexcept {
  constexpr std::size_t row = 4 * TileFormat::max_tokens;
  const unsigned char* words = tile + format.key_codes_offset();
  for (std::size_t first = 0; first < TileFormat::max_tokens; first += 8) {
    __m256 sums[2][Rows];  // 4 tokens times two sums of every other dimension
    TURBOQUANT_UNROLL
    for (int r = 0; r < Rows; ++r) {
      sums[0][r] = sums[1][r] = _mm256_setzero_ps();
    }
    for (int d = 0; d < format.key_dim; d += 4) {
      const unsigned char* here = words + static_cast<std::size_t>(d / 4) * row + 4 * first;
      if (ahead != 0 && first % 16 == 0) {
        prefetch_bytes(here + ahead, 64);
      }
      const __m256i word = load_words(here);
      TURBOQUANT_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        const __m256i halves = float8_halves(pair == 0 ? _mm256_slli_epi16(word, 8) : word);
        const __m256 keys[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                                _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
        TURBOQUANT_UNROLL
        for (int r = 0; r < Rows; ++r) {
          std::int64_t numbers = 0;
          std::memcpy(&numbers, query + r * format.key_dim + d + 2 * pair, sizeof(numbers));
          const __m256 q = _mm256_castsi256_ps(_mm256_set1_epi64x(numbers));
          sums[0][r] = _mm256_fmadd_ps(keys[0], q, sums[0][r]);
          sums[1][r] = _mm256_fmadd_ps(keys[1], q, sums[1][r]);
        }
      }
    }
    TURBOQUANT_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const __m256 both = _mm256_hadd_ps(sums[0][r], sums[1][r]);  // tokens 0 1 4 5 2 3 6 7
      const __m256d ordered = _mm256_permute4x64_pd(_mm256_castps_pd(both), 0xD8);
      _mm256_store_ps(out.logits[r] + first, _mm256_castpd_ps(ordered));
    }
  }
}

}  // namespace turboquant::detail::avx2

#endif
