#pragma once

#include <turboquant/device/arch/float8_query.hpp>
#include <turboquant/device/arch/host_operations.hpp>
#include <turboquant/device/arch/x86_avx512_encode.hpp>
#include <turboquant/device/arch/x86_avx512_scores.hpp>
#include <turboquant/device/arch/x86_avx512_values.hpp>
#include <turboquant/device/arch/x86_join_tiles.hpp>
#include <turboquant/device/tile_attention.hpp>
#include <turboquant/device/tile_slots.hpp>

#include <cstddef>
#include <cstdint>

#if TURBOQUANT_X86
TURBOQUANT_INTRINSICS_BEGIN

namespace turboquant::detail::avx512 {

/// The steps of `attend_integer`.
struct Steps {
  static void prefetch(const unsigned char* at, std::size_t bytes) noexcept {
    prefetch_bytes(at, bytes);
  }

  static void load_metadata(const TileFormat& format, const unsigned char* tile, int first, int end,
                            ValueMetadata& out) noexcept {
    avx512::load_metadata(format, tile, first, end, out);
  }

  static void dot(int rows, int limbs, const KeySection& section, const unsigned char* tile,
                  const Int8Block& query, std::ptrdiff_t ahead, BlockDots& out) noexcept {
    switch (rows * limbs) {
      case 1: return dot_columns<1>(section, tile, query, ahead, out);
      case 2: return dot_columns<2>(section, tile, query, ahead, out);
      case 4: return dot_columns<4>(section, tile, query, ahead, out);
      default: return dot_columns<8>(section, tile, query, ahead, out);
    }
  }

  static void scale(int rows, int limbs, const BlockDots& dots, const Int8Block& query,
                    const unsigned char* scales, const ScaleStep& step, BlockLogits& out) noexcept {
    scale_dots(rows, limbs, dots, query, scales, step, out);
  }

  static void dot_float8(int rows, const TileFormat& format, const unsigned char* tile,
                         const float* query, std::ptrdiff_t ahead, BlockLogits& out) noexcept {
    switch (rows) {
      case 1: return avx512::dot_float8<1>(format, tile, query, ahead, out);
      case 2: return avx512::dot_float8<2>(format, tile, query, ahead, out);
      default: return avx512::dot_float8<4>(format, tile, query, ahead, out);
    }
  }

  /// Products of the queries with a key mean.
  /// @param out (rows)
  TURBOQUANT_AVX512 static void mean_logits(int rows, const TileFormat& format,
                                            const unsigned char* mean, const float* const* queries,
                                            float* out) noexcept {
    __m512 sums[Int8Block::most_rows] = {};
    for (int d = 0; d < format.key_dim; d += 16) {
      // Behind the last number there are zeros up to a whole vector, behind a query there are not.
      const __m512 numbers =
          _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(mean + 2 * d)));
      const auto inside = static_cast<__mmask16>(format.key_dim - d >= 16 ? 0xFFFF : 0x00FF);
      for (int r = 0; r < rows; ++r) {
        sums[r] = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(inside, queries[r] + d), numbers, sums[r]);
      }
    }
    for (int r = 0; r < rows; ++r) {
      out[r] = _mm512_reduce_add_ps(sums[r]);
    }
  }

  /// Invisible slots to -infinity, the others through the soft cap.
  TURBOQUANT_AVX512 static void mask_and_cap(TokenRange::Slots slots, float soft_cap,
                                             float* logits) noexcept {
    for (int i = 0; i < 4; ++i) {
      const __m512i token =
          _mm512_add_epi32(_mm512_set1_epi32(16 * i),
                           _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
      const auto visible =
          static_cast<__mmask16>(_mm512_cmpge_epi32_mask(token, _mm512_set1_epi32(slots.first)) &
                                 _mm512_cmplt_epi32_mask(token, _mm512_set1_epi32(slots.end)));
      __m512 logit = _mm512_loadu_ps(logits + 16 * i);
      if (soft_cap > 0) {
        logit = soft_cap_lanes(logit, soft_cap);
      }
      _mm512_storeu_ps(logits + 16 * i,
                       _mm512_mask_blend_ps(visible, _mm512_set1_ps(negative_infinity), logit));
    }
  }

  static bool take_row(const TileFormat& format, const LaneState& state, std::size_t row,
                       int block_row, const float* logits, const ValueMetadata& metadata,
                       bool int16_weights, PackedWeights& packed) noexcept {
    return avx512::take_row(format, state, row, block_row, logits, metadata, int16_weights, packed);
  }

  TURBOQUANT_AVX512 static void add_values(int rows, const TileFormat& format,
                                           const unsigned char* tile, const LaneState& state,
                                           const std::size_t* row_numbers, bool int16_weights,
                                           const PackedWeights& packed,
                                           std::ptrdiff_t ahead) noexcept {
    const auto add = int16_weights ? (rows == 4   ? add_run<4, 2>
                                      : rows == 2 ? add_run<2, 2>
                                                  : add_run<1, 2>)
                                   : (rows == 4   ? add_run<4, 1>
                                      : rows == 2 ? add_run<2, 1>
                                                  : add_run<1, 1>);
    const CodeTables tables = code_tables(format);
    for_value_runs(format, tile, ahead, [&](const ValueRun& run, std::size_t d, std::size_t group) {
      float* outputs[Int8Block::most_rows] = {};
      for (int r = 0; r < rows; ++r) {
        outputs[r] = state.output(row_numbers[r]) + d;
      }
      add(run, tables, packed.dwords[group][0], packed.unit, outputs);
    });
  }
};

template <int Limbs, bool Int16>
void attend(const TileTables& tables, const TileArguments& in) noexcept {
  attend_integer<Steps>(tables, in, {Limbs, Int16});
}

TURBOQUANT_AVX512_FLATTEN inline void attend_exact_rows(const RowArguments& in) noexcept {
  attend_rows(in);
}

/// `attend` for the size of a format's tiles.
template <int Limbs, bool Int16>
[[nodiscard]] auto attend_of(const TileFormat& format) noexcept {
  return format.tile_tokens == 64 ? attend<Limbs, Int16> : attend_joined<attend<Limbs, Int16>>;
}

[[nodiscard]] inline HostAttention attention(const TileFormat& format, Exactness exactness) {
  const bool fast = exactness == Exactness::fast && format.value_codec == ValueCodec::grouped;
  HostAttention chosen{"8-bit query, 16-bit weights",
                       integer_query_bytes,
                       lane_state_bytes,
                       prepare_integer<1, false>,
                       reset_lanes,
                       attend_of<1, true>(format),
                       finish_lanes,
                       attend_exact_rows,
                       processor_wants_prefetch()};
  if (exactness == Exactness::exact) {
    chosen.name = "16-bit query, 16-bit weights";
    chosen.prepare = prepare_integer<2, false>;
    chosen.attend = attend_of<2, true>(format);
  } else if (fast) {
    chosen.name = "8-bit query, 8-bit weights";
    chosen.attend = attend_of<1, false>(format);
  }
  if (format.key_codec == KeyCodec::float8) {
    chosen.name = fast ? "float query, 8-bit weights" : "float query, 16-bit weights";
    chosen.query_bytes = float8_query_bytes;
    chosen.prepare = prepare_float8;
  }
  return chosen;
}

inline constexpr HostOperations operations{HostArch::avx512, encode, attention};

}  // namespace turboquant::detail::avx512

TURBOQUANT_INTRINSICS_END
#endif
