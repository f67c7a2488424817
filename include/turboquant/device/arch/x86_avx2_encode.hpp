#pragma once

#include <turboquant/device/arch/x86_target.hpp>
#include <turboquant/device/tile_slots.hpp>

#include <cstddef>
#include <cstdint>

#if TURBOQUANT_X86

namespace turboquant::detail::avx2 {

/// Codes and levels of `vector * factor`; see `search_cells`. A code is the number of boundaries
/// that a number reaches.
TURBOQUANT_AVX2 inline void search_16(const KernelCodebook& codebook, const float* factor,
                                      std::size_t dim, EncoderScratch<16>& scratch) noexcept {
  const int boundaries = (1 << codebook.bits) - 1;
  alignas(32) float levels[16] = {};
  for (int code = 0; code <= boundaries; ++code) {
    levels[code] = codebook.levels[code];
  }
  const __m256 low_levels = _mm256_load_ps(levels);
  const __m256 high_levels = _mm256_load_ps(levels + 8);
  const __m256 factors[2] = {_mm256_loadu_ps(factor), _mm256_loadu_ps(factor + 8)};
  for (std::size_t i = 0; i < 16 * dim; i += 16) {
    __m256 scaled[2];
    __m256i code[2];
    TURBOQUANT_UNROLL
    for (int u = 0; u < 2; ++u) {
      scaled[u] = _mm256_mul_ps(_mm256_load_ps(scratch.vector + i + 8 * u), factors[u]);
      code[u] = _mm256_setzero_si256();
    }
    for (int j = 0; j < boundaries; ++j) {
      const __m256 boundary = _mm256_set1_ps(codebook.boundaries[j]);
      TURBOQUANT_UNROLL
      for (int u = 0; u < 2; ++u) {
        const __m256 reached = _mm256_cmp_ps(scaled[u], boundary, _CMP_GE_OQ);
        code[u] = _mm256_sub_epi32(code[u], _mm256_castps_si256(reached));
      }
    }
    TURBOQUANT_UNROLL
    for (int u = 0; u < 2; ++u) {
      const __m256 high = _mm256_castsi256_ps(_mm256_slli_epi32(code[u], 28));  // bit 3 as sign
      _mm256_store_ps(scratch.levels + i + 8 * u,
                      _mm256_blendv_ps(_mm256_permutevar8x32_ps(low_levels, code[u]),
                                       _mm256_permutevar8x32_ps(high_levels, code[u]), high));
    }
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(code[0], code[1]), 0xD8);
    _mm_store_si128(
        reinterpret_cast<__m128i*>(scratch.codes + i),
        _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
}

/// The heavy steps of an encoder, most of them in plain C++ compiled for wider registers.
struct EncodeSteps : PortableEncodeSteps<16> {
  using Plain = PortableEncodeSteps<16>;
  TURBOQUANT_AVX2_FLATTEN static void load(const RowView& rows, int head, std::size_t first,
                                           std::size_t count, std::size_t dim,
                                           Scratch& scratch) noexcept {
    Plain::load(rows, head, first, count, dim, scratch);
  }
  TURBOQUANT_AVX2_FLATTEN static void key_mean(const RowView& rows, int head, std::size_t count,
                                               std::size_t dim, Scratch& scratch,
                                               unsigned char* out) noexcept {
    Plain::key_mean(rows, head, count, dim, scratch, out);
  }
  TURBOQUANT_AVX2_FLATTEN static void subtract_mean(const unsigned char* mean, std::size_t dim,
                                                    bool from_all, Scratch& scratch,
                                                    bool* kept) noexcept {
    Plain::subtract_mean(mean, dim, from_all, scratch, kept);
  }
  TURBOQUANT_AVX2_FLATTEN static void normalise(std::size_t dim, Scratch& scratch) noexcept {
    Plain::normalise(dim, scratch);
  }
  TURBOQUANT_AVX2_FLATTEN static void forward(const HadamardTransform& rotation,
                                              Scratch& scratch) noexcept {
    Plain::forward(rotation, scratch);
  }
  static void search(const KernelCodebook& codebook, const float* factor, std::size_t dim,
                     Scratch& scratch) noexcept {
    search_16(codebook, factor, dim, scratch);
  }
  TURBOQUANT_AVX2_FLATTEN static void dot(const float* a, const float* b, std::size_t count,
                                          double* out) noexcept {
    Plain::dot(a, b, count, out);
  }
  TURBOQUANT_AVX2_FLATTEN static void store_keys(const KeySection& section,
                                                 const std::uint8_t* codes, LaneSlots slots,
                                                 PlainWords words, unsigned char* tile) noexcept {
    Plain::store_keys(section, codes, slots, words, tile);
  }
  TURBOQUANT_AVX2_FLATTEN static void range(const float* x, std::size_t size, float* lowest,
                                            float* highest) noexcept {
    Plain::range(x, size, lowest, highest);
  }
  TURBOQUANT_AVX2_FLATTEN static void group_codes(const float* x, std::size_t size,
                                                  const double* zero, const double* divisor,
                                                  int top, std::uint8_t* codes) noexcept {
    Plain::group_codes(x, size, zero, divisor, top, codes);
  }
};

inline void encode(const TileTables& tables, const EncodeArguments& in) noexcept {
  encode_slots<EncodeSteps>(tables, in);
}

}  // namespace turboquant::detail::avx2

#endif
