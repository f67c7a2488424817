#pragma once

#include <turboquant/device/arch/x86_avx512_transform.hpp>
#include <turboquant/device/tile_slots.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

#if TURBOQUANT_X86
TURBOQUANT_INTRINSICS_BEGIN

namespace turboquant::detail::avx512 {

/// `key_mean_of_sums`, 16 columns at a time.
/// @param out (dim rounded up to 16)
TURBOQUANT_AVX512 inline void key_mean_from_sums(std::size_t count, std::size_t dim,
                                                 const float* sums, unsigned char* out) noexcept {
  constexpr unsigned char pairs[19][2] = {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 2}, {1, 3}, {4, 6},
                                          {5, 7}, {1, 2}, {5, 6}, {0, 4}, {1, 5}, {2, 6}, {3, 7},
                                          {2, 4}, {3, 5}, {1, 2}, {3, 4}, {5, 6}};
  const std::size_t groups = count < mean_groups ? count : mean_groups;
  const __m512 most = _mm512_set1_ps(float16_max);
  const __m512 least = _mm512_set1_ps(-float16_max);
  const __m512 half = _mm512_set1_ps(0.5F);
  for (std::size_t d = 0; d < dim; d += 16) {
    const auto inside = static_cast<__mmask16>(dim - d >= 16 ? 0xFFFF : 0x00FF);
    __m512 means[mean_groups];
    for (std::size_t group = 0; group < mean_groups; ++group) {
      // `mean_of_group`.
      const std::size_t tokens = (count + mean_groups - 1 - group) / mean_groups;
      const __m512 mean = _mm512_div_ps(_mm512_maskz_loadu_ps(inside, sums + group * dim + d),
                                        _mm512_set1_ps(0.125F * static_cast<float>(tokens)));
      means[group] = tokens == 0 ? _mm512_set1_ps(std::numeric_limits<float>::infinity())
                                 : _mm512_min_ps(_mm512_max_ps(mean, least), most);
    }
    TURBOQUANT_UNROLL
    for (int i = 0; i < 19; ++i) {
      const __m512 x = means[pairs[i][0]];
      const __m512 y = means[pairs[i][1]];
      means[pairs[i][0]] = _mm512_min_ps(x, y);
      means[pairs[i][1]] = _mm512_max_ps(y, x);
    }
    const __m512 lower = groups == 0 ? _mm512_setzero_ps() : means[(groups - 1) / 2];
    const __m512 upper = groups == 0 ? _mm512_setzero_ps() : means[groups / 2];
    const __m256i numbers =
        _mm512_cvtps_ph(_mm512_add_ps(_mm512_mul_ps(half, lower), _mm512_mul_ps(half, upper)),
                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __mmask16 kept = _mm256_cmpneq_epi16_mask(
        numbers, _mm256_set1_epi16(static_cast<std::int16_t>(-0x8000)));  // -0 becomes 0
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * d),
                        _mm256_maskz_mov_epi16(kept, numbers));
  }
}

/// `key_mean_of_rows`.
TURBOQUANT_AVX512 inline void key_mean_16(const RowView& rows, int head, std::size_t count,
                                          std::size_t dim, float* sums,
                                          unsigned char* out) noexcept {
  for (std::size_t i = 0; i < mean_groups * dim; i += 16) {
    _mm512_storeu_ps(sums + i, _mm512_setzero_ps());
  }
  const __m512 eighth = _mm512_set1_ps(0.125F);
  for (std::size_t token = 0; token < count; ++token) {
    float* const sum = sums + token % mean_groups * dim;
    const std::int64_t row = rows.offset(static_cast<std::int64_t>(token), head);
    for (std::size_t d = 0; d < dim; d += 16) {
      const auto inside = static_cast<__mmask16>(dim - d >= 16 ? 0xFFFF : 0x00FF);
      const __m512 term = _mm512_mul_ps(load_row_16(rows, row, d, dim), eighth);
      _mm512_mask_storeu_ps(sum + d, inside,
                            _mm512_add_ps(_mm512_maskz_loadu_ps(inside, sum + d), term));
    }
  }
  key_mean_from_sums(count, dim, sums, out);
}

/// `ordered_dot` of a key mean with itself, whose numbers are zero up to a whole vector.
/// @param numbers (dim rounded up to 16), receives the mean in double
TURBOQUANT_AVX512 inline double mean_square(const unsigned char* mean, std::size_t dim,
                                            double* numbers) noexcept {
  __m512d low = _mm512_setzero_pd();
  __m512d high = _mm512_setzero_pd();
  for (std::size_t d = 0; d < dim; d += 16) {
    const __m512 x =
        _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(mean + 2 * d)));
    const __m512d first = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    const __m512d second = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    _mm512_store_pd(numbers + d, first);
    _mm512_store_pd(numbers + d + 8, second);
    low = _mm512_fmadd_pd(first, first, low);
    high = _mm512_fmadd_pd(second, second, high);
  }
  double sums[8];
  _mm512_storeu_pd(sums, _mm512_add_pd(low, high));
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

/// `PortableEncodeSteps::subtract_mean`.
TURBOQUANT_AVX512 inline void subtract_mean_16(const unsigned char* mean, std::size_t dim,
                                               bool from_all, EncoderScratch<16>& scratch,
                                               bool* kept) noexcept {
  alignas(64) double numbers[max_tile_dim];
  const __m512d square = _mm512_set1_pd(mean_square(mean, dim, numbers));
  __m512d sums[16][2];
  for (std::size_t first = 0; first < 16; ++first) {
    __m512d low = _mm512_setzero_pd();
    __m512d high = _mm512_setzero_pd();
    for (std::size_t d = first; d < dim; d += 16) {
      const __m512d number = _mm512_set1_pd(numbers[d]);
      const float* x = scratch.vector + 16 * d;
      low = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm256_load_ps(x)), number, low);
      high = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm256_load_ps(x + 8)), number, high);
    }
    sums[first][0] = low;
    sums[first][1] = high;
  }
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) {
      sums[i][0] = _mm512_add_pd(sums[i][0], sums[i + half][0]);
      sums[i][1] = _mm512_add_pd(sums[i][1], sums[i + half][1]);
    }
  }

  // `gains_from_mean`.
  unsigned gains = 0;
  for (unsigned half = 0; half < 2; ++half) {
    const __m512d twice = _mm512_add_pd(sums[0][half], sums[0][half]);
    const __mmask8 reached = _mm512_cmp_pd_mask(twice, square, _CMP_GE_OQ);
    gains |= static_cast<unsigned>(reached) << (8 * half);
  }
  const auto gaining = static_cast<__mmask16>(from_all ? 0xFFFFU : gains);
  for (unsigned lane = 0; lane < 16; ++lane) {
    kept[lane] = ((gaining >> lane) & 1U) == 0;
  }
  for (std::size_t d = 0; d < dim; ++d) {
    if (numbers[d] != 0) {
      float* const at = scratch.vector + 16 * d;
      const __m512 x = _mm512_load_ps(at);
      const __m512 number = _mm512_set1_ps(static_cast<float>(numbers[d]));
      _mm512_store_ps(at, _mm512_mask_sub_ps(x, gaining, x, number));
    }
  }
}

}  // namespace turboquant::detail::avx512

TURBOQUANT_INTRINSICS_END
#endif
