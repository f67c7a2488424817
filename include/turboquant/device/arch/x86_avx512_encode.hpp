#pragma once

#include <turboquant/device/arch/x86_target.hpp>
#include <turboquant/device/tile_slots.hpp>

#include <cstddef>
#include <cstdint>

#if TURBOQUANT_X86
TURBOQUANT_INTRINSICS_BEGIN

namespace turboquant::detail::avx512 {

/// Two stages of `walsh_hadamard_lanes` a pass, then one where the number of stages is odd.
TURBOQUANT_AVX512_INLINE void walsh_hadamard_16(float* x, std::size_t size) noexcept {
  std::size_t width = 1;
  for (; width * 4 <= size; width *= 4) {
    for (std::size_t group = 0; group < size; group += 4 * width) {
      for (std::size_t i = group; i < group + width; ++i) {
        float* at = x + 16 * i;
        const std::size_t step = 16 * width;
        const __m512 x0 = _mm512_load_ps(at);
        const __m512 x1 = _mm512_load_ps(at + step);
        const __m512 x2 = _mm512_load_ps(at + 2 * step);
        const __m512 x3 = _mm512_load_ps(at + 3 * step);
        const __m512 a = _mm512_add_ps(x0, x1);
        const __m512 b = _mm512_sub_ps(x0, x1);
        const __m512 c = _mm512_add_ps(x2, x3);
        const __m512 d = _mm512_sub_ps(x2, x3);
        _mm512_store_ps(at, _mm512_add_ps(a, c));
        _mm512_store_ps(at + step, _mm512_add_ps(b, d));
        _mm512_store_ps(at + 2 * step, _mm512_sub_ps(a, c));
        _mm512_store_ps(at + 3 * step, _mm512_sub_ps(b, d));
      }
    }
  }
  for (; width < size; width *= 2) {
    for (std::size_t group = 0; group < size; group += 2 * width) {
      for (std::size_t i = group; i < group + width; ++i) {
        float* at = x + 16 * i;
        const __m512 x0 = _mm512_load_ps(at);
        const __m512 x1 = _mm512_load_ps(at + 16 * width);
        _mm512_store_ps(at, _mm512_add_ps(x0, x1));
        _mm512_store_ps(at + 16 * width, _mm512_sub_ps(x0, x1));
      }
    }
  }
}

TURBOQUANT_AVX512_INLINE void scale_16(float* x, std::size_t size, float factor) noexcept {
  for (std::size_t i = 0; i < 16 * size; i += 16) {
    _mm512_store_ps(x + i, _mm512_mul_ps(_mm512_load_ps(x + i), _mm512_set1_ps(factor)));
  }
}

/// Codes and levels of a codebook of 2 * Half levels; see `search_cells`.
template <int Half>
TURBOQUANT_AVX512 void search_16(const KernelCodebook& codebook, const float* factor,
                                 std::size_t dim, EncoderScratch<16>& scratch) noexcept {
  __m512i boundary[Half];
  __m512i level[Half];
  for (int j = 0; j < Half; ++j) {
    level[j] = _mm512_castps_si512(_mm512_set1_ps(codebook.levels[Half + j]));
    boundary[j] = j + 1 < Half ? _mm512_castps_si512(_mm512_set1_ps(codebook.boundaries[Half + j]))
                               : level[j];
  }
  const __m512 factors = _mm512_loadu_ps(factor);
  for (std::size_t i = 0; i < dim; ++i) {
    const __m512 scaled = _mm512_add_ps(
        _mm512_mul_ps(_mm512_load_ps(scratch.vector + 16 * i), factors), _mm512_setzero_ps());
    const __m512i bits = _mm512_castps_si512(scaled);
    const __m512i negative = _mm512_srai_epi32(bits, 31);
    const __m512i magnitude =
        _mm512_add_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF)),
                         _mm512_add_epi32(negative, _mm512_set1_epi32(1)));
    __m512i picked = level[0];
    __m512i code = _mm512_setzero_si512();
    TURBOQUANT_UNROLL
    for (int j = 0; j + 1 < Half; ++j) {
      const __mmask16 reached = _mm512_cmpgt_epi32_mask(magnitude, boundary[j]);
      picked = _mm512_mask_mov_epi32(picked, reached, level[j + 1]);
      code = _mm512_mask_mov_epi32(code, reached, _mm512_set1_epi32(j + 1));
    }
    const __m512i sign = _mm512_slli_epi32(negative, 31);
    code = _mm512_add_epi32(_mm512_xor_si512(code, negative), _mm512_set1_epi32(Half));
    _mm512_store_ps(scratch.levels + 16 * i, _mm512_castsi512_ps(_mm512_or_si512(picked, sign)));
    _mm_store_si128(reinterpret_cast<__m128i*>(scratch.codes + 16 * i), _mm512_cvtepi32_epi8(code));
  }
}

/// Codes of 8 lanes; `close` collects the lanes with a number near a border between two codes. See
/// `group_codes`.
TURBOQUANT_AVX512_INLINE __m256i group_codes_8(__m256 x, __m512d zero, __m512d inverse,
                                               __m512d highest, __mmask8& close) noexcept {
  const __m512d margin = _mm512_set1_pd(0x1p-40);
  const __m512d steps =
      _mm512_fmadd_pd(_mm512_sub_pd(_mm512_cvtps_pd(x), zero), inverse, _mm512_set1_pd(0.5));
  const __m512d bounded = _mm512_min_pd(_mm512_max_pd(steps, _mm512_setzero_pd()), highest);
  const __m512d whole = _mm512_roundscale_pd(bounded, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  const __m512d rest = _mm512_sub_pd(bounded, whole);
  const __mmask8 inside = _mm512_cmp_pd_mask(bounded, _mm512_setzero_pd(), _CMP_GT_OQ) &
                          _mm512_cmp_pd_mask(bounded, highest, _CMP_LT_OQ);
  const __mmask8 low = _mm512_mask_cmp_pd_mask(inside, rest, margin, _CMP_LT_OQ);
  const __mmask8 high =
      _mm512_cmp_pd_mask(rest, _mm512_sub_pd(_mm512_set1_pd(1.0), margin), _CMP_GT_OQ);
  close = static_cast<__mmask8>(close | low | high);
  return _mm512_cvttpd_epi32(whole);
}

/// The heavy steps of an encoder with one token per lane of a 512-bit register.
struct EncodeSteps : PortableEncodeSteps<16> {
  TURBOQUANT_AVX512 static void forward(const HadamardTransform& rotation,
                                        EncoderScratch<16>& scratch) noexcept {
    float* x = scratch.vector;
    for (std::size_t round = 0; round < rotation.rounds; ++round) {
      const float* sign = rotation.signs + round * rotation.dim;
      const std::uint32_t* source =
          rotation.source == nullptr ? nullptr : rotation.source + round * rotation.dim;
      const float* from = x;
      if (source != nullptr) {
        for (std::size_t i = 0; i < 16 * rotation.dim; i += 16) {
          _mm512_store_ps(scratch.spare + i, _mm512_load_ps(x + i));
        }
        from = scratch.spare;
      }
      for (std::size_t i = 0; i < rotation.dim; ++i) {
        const __m512 in = _mm512_load_ps(from + 16 * (source == nullptr ? i : source[i]));
        _mm512_store_ps(x + 16 * i, _mm512_mul_ps(in, _mm512_set1_ps(sign[i])));
      }
      if (source == nullptr) {
        walsh_hadamard_16(x, rotation.dim);
        continue;
      }
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

  TURBOQUANT_AVX512 static void search(const KernelCodebook& codebook, const float* factor,
                                       std::size_t dim, EncoderScratch<16>& scratch) noexcept {
    switch (codebook.bits) {
      case 2: return search_16<2>(codebook, factor, dim, scratch);
      case 3: return search_16<4>(codebook, factor, dim, scratch);
      default: return search_16<8>(codebook, factor, dim, scratch);
    }
  }

  TURBOQUANT_AVX512 static void range(const float* x, std::size_t size, float* lowest,
                                      float* highest) noexcept {
    __m512 low = _mm512_load_ps(x);
    __m512 high = low;
    for (std::size_t i = 1; i < size; ++i) {
      const __m512 value = _mm512_load_ps(x + 16 * i);
      low = _mm512_min_ps(value, low);
      high = _mm512_max_ps(value, high);
    }
    _mm512_storeu_ps(lowest, low);
    _mm512_storeu_ps(highest, high);
  }

  TURBOQUANT_AVX512 static void group_codes(const float* x, std::size_t size, const double* zero,
                                            const double* divisor, int top,
                                            std::uint8_t* codes) noexcept {
    const __m512d zeros[2] = {_mm512_loadu_pd(zero), _mm512_loadu_pd(zero + 8)};
    const __m512d one = _mm512_set1_pd(1.0);
    const __m512d inverses[2] = {_mm512_div_pd(one, _mm512_loadu_pd(divisor)),
                                 _mm512_div_pd(one, _mm512_loadu_pd(divisor + 8))};
    const __m512d highest = _mm512_set1_pd(static_cast<double>(top));
    __mmask8 close[2] = {0, 0};
    for (std::size_t i = 0; i < size; ++i) {
      const float* at = x + 16 * i;
      const __m256i low =
          group_codes_8(_mm256_load_ps(at), zeros[0], inverses[0], highest, close[0]);
      const __m256i high =
          group_codes_8(_mm256_load_ps(at + 8), zeros[1], inverses[1], highest, close[1]);
      const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 16 * i), _mm512_cvtepi32_epi8(both));
    }
    for (std::size_t lane = 0; lane < 16; ++lane) {
      if (((static_cast<unsigned>(close[lane / 8]) >> (lane % 8)) & 1U) != 0) {
        for (std::size_t i = 0; i < size; ++i) {
          const double distance = static_cast<double>(x[16 * i + lane]) - zero[lane];
          codes[16 * i + lane] =
              static_cast<std::uint8_t>(value_code(distance, divisor[lane], top));
        }
      }
    }
  }
};

TURBOQUANT_AVX512_FLATTEN inline void encode(const TileTables& tables,
                                             const EncodeArguments& in) noexcept {
  encode_slots<EncodeSteps>(tables, in);
}

}  // namespace turboquant::detail::avx512

TURBOQUANT_INTRINSICS_END
#endif
