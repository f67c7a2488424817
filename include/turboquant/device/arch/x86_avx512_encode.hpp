#pragma once

#include <turboquant/device/arch/x86_avx512_groups.hpp>
#include <turboquant/device/arch/x86_avx512_key_mean.hpp>
#include <turboquant/device/arch/x86_avx512_transform.hpp>
#include <turboquant/device/tile_slots.hpp>
#include <turboquant/math/integer_grid.hpp>

#include <cstddef>
#include <cstdint>

#if TURBOQUANT_X86
TURBOQUANT_INTRINSICS_BEGIN

namespace turboquant::detail::avx512 {

/// Whether no interval [(k - 1/2) / 4, (k + 1/2) / 4] holds two boundaries of a grid and all lie in
/// (-3.75, 3.75): what `CellTable` needs.
[[nodiscard]] constexpr bool cells_are_separate(int bits) {
  const IntegerGrid grid = integer_grid(bits);
  double last = -3.75;
  for (unsigned code = 0; code + 1 < 1U << static_cast<unsigned>(bits); ++code) {
    const double boundary = 0.5 * grid.step * (grid.level(code) + grid.level(code + 1));
    if (boundary - last <= 0.2501 || boundary >= 3.75) {
      return false;
    }
    last = boundary;
  }
  return true;
}
static_assert(cells_are_separate(2) && cells_are_separate(3) && cells_are_separate(4));

/// Codes by one look-up and one comparison: per interval around k / 4 the boundary that may lie in
/// it and the number of boundaries below it. Entry k modulo 32.
struct CellTable {
  __m512 boundary[2];
  __m512i below[2];
};

TURBOQUANT_AVX512_INLINE CellTable cell_table(const KernelCodebook& codebook) noexcept {
  const __m512 lane = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  CellTable table;
  TURBOQUANT_UNROLL
  for (int half = 0; half < 2; ++half) {
    const __m512 edge = _mm512_mul_ps(_mm512_sub_ps(lane, _mm512_set1_ps(half == 0 ? 0.5F : 16.5F)),
                                      _mm512_set1_ps(0.25F));
    __m512 boundary = _mm512_set1_ps((std::numeric_limits<float>::max)());
    __m512i below = _mm512_setzero_si512();
    for (int j = (1 << codebook.bits) - 2; j >= 0; --j) {
      const __m512 candidate = _mm512_set1_ps(codebook.boundaries[j]);
      const __mmask16 lower = _mm512_cmp_ps_mask(candidate, edge, _CMP_LT_OQ);
      below = _mm512_mask_add_epi32(below, lower, below, _mm512_set1_epi32(1));
      boundary = _mm512_mask_mov_ps(candidate, lower, boundary);
    }
    table.boundary[half] = boundary;
    table.below[half] = below;
  }
  return table;
}

/// Codes and levels of `vector * factor`; see `search_cells`.
TURBOQUANT_AVX512 inline void search_16(const KernelCodebook& codebook, const float* factor,
                                        std::size_t dim, EncoderScratch<16>& scratch) noexcept {
  const CellTable table = cell_table(codebook);
  const __m512 levels = _mm512_maskz_loadu_ps(
      static_cast<__mmask16>((1U << (1U << static_cast<unsigned>(codebook.bits))) - 1U),
      codebook.levels);
  // Packing leaves byte 16 l + 4 d + k for dimension d of lane 4 l + k.
  alignas(64) std::uint8_t order[64];
  for (unsigned i = 0; i < 64; ++i) {
    order[i] = static_cast<std::uint8_t>(i % 16 / 4 * 16 + i / 16 * 4 + i % 4);
  }
  const __m512i byte_order = _mm512_load_si512(order);
  const __m512 factors = _mm512_loadu_ps(factor);
  const __m512i one = _mm512_set1_epi32(1);
  for (std::size_t i = 0; i < dim; i += 4) {
    __m512i code[4];
    TURBOQUANT_UNROLL
    for (std::size_t k = 0; k < 4; ++k) {
      const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(scratch.vector + 16 * (i + k)), factors);
      // The smaller magnitude, with the sign of the first.
      const __m512 bounded = _mm512_range_ps(scaled, _mm512_set1_ps(3.75F), 0x02);
      // The sum's lowest bits are the nearest integer.
      const __m512i cell = _mm512_castps_si512(
          _mm512_fmadd_ps(bounded, _mm512_set1_ps(4.0F), _mm512_set1_ps(0x1.8p23F)));
      const __m512 boundary = _mm512_permutex2var_ps(table.boundary[0], cell, table.boundary[1]);
      const __m512i below = _mm512_permutex2var_epi32(table.below[0], cell, table.below[1]);
      const __mmask16 reached = _mm512_cmp_ps_mask(scaled, boundary, _CMP_GE_OQ);
      code[k] = _mm512_mask_add_epi32(below, reached, below, one);
      _mm512_store_ps(scratch.levels + 16 * (i + k), _mm512_permutexvar_ps(code[k], levels));
    }
    const __m512i bytes = _mm512_packus_epi16(_mm512_packus_epi32(code[0], code[1]),
                                              _mm512_packus_epi32(code[2], code[3]));
    _mm512_store_si512(scratch.codes + 16 * i, _mm512_permutexvar_epi8(byte_order, bytes));
  }
}

/// `ordered_dot_lanes`: 16 interleaved sums, each in order.
TURBOQUANT_AVX512 inline void dot_16(const float* a, const float* b, std::size_t count,
                                     double* out) noexcept {
  __m512d sums[16][2];
  for (std::size_t first = 0; first < 16; ++first) {
    __m512d low = _mm512_setzero_pd();
    __m512d high = _mm512_setzero_pd();
    for (std::size_t i = 16 * first; i < 16 * count; i += 256) {
      low = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm256_load_ps(a + i)),
                            _mm512_cvtps_pd(_mm256_load_ps(b + i)), low);
      high = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm256_load_ps(a + i + 8)),
                             _mm512_cvtps_pd(_mm256_load_ps(b + i + 8)), high);
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
  _mm512_storeu_pd(out, sums[0][0]);
  _mm512_storeu_pd(out + 8, sums[0][1]);
}

/// 2^exponent in every lane, -126 <= exponent <= 127.
TURBOQUANT_AVX512_INLINE __m512 powers_of_two(__m512i exponent) noexcept {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(exponent, _mm512_set1_epi32(127)), 23));
}

/// `normalise_lanes`.
TURBOQUANT_AVX512 inline void normalise_16(std::size_t dim, EncoderScratch<16>& scratch) noexcept {
  const __m512i no_sign = _mm512_set1_epi32(0x7FFFFFFF);
  __m512i largest = _mm512_setzero_si512();
  for (std::size_t i = 0; i < 16 * dim; i += 16) {
    largest =
        _mm512_max_epu32(largest, _mm512_and_si512(_mm512_load_si512(scratch.vector + i), no_sign));
  }
  const __mmask16 zero = _mm512_cmpeq_epi32_mask(largest, _mm512_setzero_si512());
  const __m512i exponent =
      _mm512_mask_sub_epi32(_mm512_setzero_si512(), static_cast<__mmask16>(~zero),
                            _mm512_srli_epi32(largest, 23), _mm512_set1_epi32(127));
  if (_mm512_cmplt_epi32_mask(exponent, _mm512_set1_epi32(-60)) != 0) {
    normalise_lanes<16>(dim, scratch);
    return;
  }
  _mm512_storeu_si512(scratch.exponent, exponent);
  const __m512i negated = _mm512_sub_epi32(_mm512_setzero_si512(), exponent);
  // Halved towards zero.
  const __m512i half =
      _mm512_srai_epi32(_mm512_add_epi32(negated, _mm512_srli_epi32(negated, 31)), 1);
  const __m512 first = powers_of_two(half);
  const __m512 second = powers_of_two(_mm512_sub_epi32(negated, half));
  const __m512i least = _mm512_set1_epi32((127 - 64) << 23);
  for (std::size_t i = 0; i < 16 * dim; i += 16) {
    const __m512 x =
        _mm512_mul_ps(_mm512_mul_ps(_mm512_load_ps(scratch.vector + i), first), second);
    const __mmask16 kept =
        _mm512_cmpge_epi32_mask(_mm512_and_si512(_mm512_castps_si512(x), no_sign), least);
    _mm512_store_ps(scratch.vector + i, _mm512_maskz_mov_ps(kept, x));
  }
  dot_16(scratch.vector, scratch.vector, dim, scratch.squared);
}

/// `code_factors`.
TURBOQUANT_AVX512 inline void factors_16(std::size_t dim, const EncoderScratch<16>& scratch,
                                         float* factor) noexcept {
  for (std::size_t lane = 0; lane < 16; lane += 8) {
    const __m512d squared = _mm512_loadu_pd(scratch.squared + lane);
    const __m512d root =
        _mm512_sqrt_pd(_mm512_div_pd(squared, _mm512_set1_pd(static_cast<double>(dim))));
    const __mmask8 positive = _mm512_cmp_pd_mask(squared, _mm512_setzero_pd(), _CMP_GT_OQ);
    const __m512d inverse = _mm512_maskz_div_pd(positive, _mm512_set1_pd(1.0), root);
    _mm256_storeu_ps(factor + lane, _mm512_cvtpd_ps(inverse));
  }
}

/// `code_scales`.
TURBOQUANT_AVX512 inline void scales_16(std::size_t dim, ScaleRule rule, const double* projection,
                                        const double* level_squared,
                                        EncoderScratch<16>& scratch) noexcept {
  for (std::size_t lane = 0; lane < 16; lane += 8) {
    const __m512d squared = _mm512_loadu_pd(scratch.squared + lane);
    const __m512d projected = _mm512_loadu_pd(projection + lane);
    const __m512d levels = _mm512_loadu_pd(level_squared + lane);
    const __mmask8 positive = _mm512_cmp_pd_mask(squared, _mm512_setzero_pd(), _CMP_GT_OQ);
    __m512d scale = _mm512_maskz_div_pd(positive, squared, projected);
    switch (rule) {
      case ScaleRule::plain:
        scale = _mm512_sqrt_pd(_mm512_div_pd(squared, _mm512_set1_pd(static_cast<double>(dim))));
        break;
      case ScaleRule::unit: scale = _mm512_sqrt_pd(_mm512_div_pd(squared, levels)); break;
      case ScaleRule::least_squares: scale = _mm512_div_pd(projected, levels); break;
      case ScaleRule::unbiased: break;
    }
    const __m512d exponent = _mm512_cvtepi32_pd(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scratch.exponent + lane)));
    scale = _mm512_scalef_pd(scale, exponent);
    // `stored_scale`.
    const __mmask8 stored = _mm512_cmp_pd_mask(scale, _mm512_setzero_pd(), _CMP_GT_OQ);
    scale = _mm512_min_pd(_mm512_max_pd(scale, _mm512_set1_pd(double{float16_min_subnormal})),
                          _mm512_set1_pd(double{float16_max}));
    const __m256 rounded = _mm512_cvtpd_ps(_mm512_maskz_mov_pd(stored, scale));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(scratch.scale + lane),
                     _mm256_cvtps_ph(rounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
}

/// `a | b << Shift`.
template <unsigned Shift>
TURBOQUANT_AVX512_INLINE __m512i join(__m512i a, __m512i b) noexcept {
  return _mm512_or_si512(a, _mm512_slli_epi32(b, Shift));
}

/// `store_key_codes` of whole words of 32 dimensions; returns the dimensions that it took.
TURBOQUANT_AVX512 inline std::size_t store_key_words(const KeySection& section,
                                                     const std::uint8_t* codes, LaneSlots lanes,
                                                     unsigned char* tile) noexcept {
  const std::size_t row_bytes = 4 * section.sub_tiles.tokens;
  const auto mask = static_cast<__mmask16>((1U << lanes.count) - 1U);
  // Byte 16 d + l, dimension d of lane l, becomes byte d of dword l.
  alignas(64) std::uint8_t order[64];
  for (unsigned i = 0; i < 64; ++i) {
    order[i] = static_cast<std::uint8_t>(i % 4 * 16 + i / 4);
  }
  const __m512i byte_order = _mm512_load_si512(order);
  std::size_t d = 0;
  for (; d + 32 <= section.dim; d += 32) {
    __m512i nibbles[4];
    TURBOQUANT_UNROLL
    for (std::size_t k = 0; k < 4; ++k) {
      const std::uint8_t* at = codes + 16 * (d + 8 * k);
      const __m512i low = _mm512_permutexvar_epi8(byte_order, _mm512_load_si512(at));
      const __m512i high = _mm512_permutexvar_epi8(byte_order, _mm512_load_si512(at + 64));
      nibbles[k] = _mm512_or_si512(low, _mm512_slli_epi32(high, 4));
    }
    unsigned char* rows =
        tile + section.offset + d / 32 * section.width * row_bytes + 4 * lanes.slot;
    if (section.width == 1) {
      nibbles[0] = join<2>(join<1>(nibbles[0], nibbles[1]), join<1>(nibbles[2], nibbles[3]));
    } else if (section.width == 2) {
      nibbles[0] = join<2>(nibbles[0], nibbles[1]);
      nibbles[1] = join<2>(nibbles[2], nibbles[3]);
    } else if (section.width == 3) {
      const __m512i low_bits = _mm512_set1_epi32(0x11111111);
      const __m512i second = _mm512_srli_epi32(nibbles[3], 1);
      const __m512i third = _mm512_srli_epi32(nibbles[3], 2);
      nibbles[0] = join<3>(nibbles[0], _mm512_and_si512(nibbles[3], low_bits));
      nibbles[1] = join<3>(nibbles[1], _mm512_and_si512(second, low_bits));
      nibbles[2] = join<3>(nibbles[2], _mm512_and_si512(third, low_bits));
    }
    for (std::size_t row = 0; row < section.width; ++row) {
      _mm512_mask_storeu_epi32(rows + row * row_bytes, mask, nibbles[row]);
    }
  }
  return d;
}

/// The steps of an encoder with one token per lane of a 512-bit register.
struct EncodeSteps : PortableEncodeSteps<16> {
  static void load(const RowView& rows, int head, std::size_t first, std::size_t count,
                   std::size_t dim, Scratch& scratch) noexcept {
    load_lanes(rows, head, first, count, dim, scratch.vector);
  }
  static void key_mean(const RowView& rows, int head, std::size_t count, std::size_t dim,
                       Scratch& scratch, unsigned char* out) noexcept {
    key_mean_16(rows, head, count, dim, scratch.levels, out);
  }
  static void subtract_mean(const unsigned char* mean, std::size_t dim, bool from_all,
                            Scratch& scratch, bool* kept) noexcept {
    subtract_mean_16(mean, dim, from_all, scratch, kept);
  }
  static void normalise(std::size_t dim, Scratch& scratch) noexcept { normalise_16(dim, scratch); }
  static void forward(const HadamardTransform& rotation, Scratch& scratch) noexcept {
    forward_16(rotation, scratch.vector, scratch.spare);
  }
  static void factors(std::size_t dim, const Scratch& scratch, float* factor) noexcept {
    factors_16(dim, scratch, factor);
  }
  static void search(const KernelCodebook& codebook, const float* factor, std::size_t dim,
                     Scratch& scratch) noexcept {
    search_16(codebook, factor, dim, scratch);
  }
  static void dot(const float* a, const float* b, std::size_t count, double* out) noexcept {
    dot_16(a, b, count, out);
  }
  static void scales(std::size_t dim, ScaleRule rule, const double* projection,
                     const double* level_squared, Scratch& scratch) noexcept {
    scales_16(dim, rule, projection, level_squared, scratch);
  }
  static void store_keys(const KeySection& section, const std::uint8_t* codes, LaneSlots slots,
                         PlainWords words, unsigned char* tile) noexcept {
    const std::size_t stored = section.width < 8 ? store_key_words(section, codes, slots, tile) : 0;
    store_key_codes<16>(section, codes, slots, words, tile, stored / 8);
  }
  static bool grouped_rows(const TileFormat& format, const RowView& rows, int head,
                           std::size_t first, LaneSlots slots, unsigned char* tile) noexcept {
    if (slots.count != 16 || format.value_group % 16 != 0 ||
        host_order::has_value_planes(static_cast<unsigned>(format.value_bits), format.tokens())) {
      return false;
    }
    encode_grouped_16(format, rows, head, first, slots.slot, tile);
    return true;
  }
};

inline void encode(const TileTables& tables, const EncodeArguments& in) noexcept {
  encode_slots<EncodeSteps>(tables, in);
}

}  // namespace turboquant::detail::avx512

TURBOQUANT_INTRINSICS_END
#endif
