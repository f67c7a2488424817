#pragma once

#include <turboquant/device/arch/float8_query.hpp>
#include <turboquant/device/arch/host_operations.hpp>
#include <turboquant/device/arch/x86_avx2_encode.hpp>
#include <turboquant/device/arch/x86_avx2_scores.hpp>
#include <turboquant/device/arch/x86_avx2_values.hpp>
#include <turboquant/device/arch/x86_join_tiles.hpp>
#include <turboquant/device/tile_attention.hpp>

#include <cstddef>
#include <cstdint>

#if TURBOQUANT_X86

namespace turboquant::detail::avx2 {

/// The steps of `attend_integer`; weights have 16 bits always, because without VNNI instructions
/// 8-bit weights would not be faster.
struct Steps {
  static void prefetch(const unsigned char* at, std::size_t bytes) noexcept {
    prefetch_bytes(at, bytes);
  }

  static void load_metadata(const TileFormat& format, const unsigned char* tile, int first, int end,
                            ValueMetadata& out) noexcept {
    avx2::load_metadata(format, tile, first, end, out);
  }

  static void dot(int rows, int limbs, const KeySection& section, const unsigned char* tile,
                  const Int8Block& query, std::ptrdiff_t ahead, BlockDots& out) noexcept {
    const auto dot = section.width == 4 ? (rows == 4   ? dot_columns<4, true>
                                           : rows == 2 ? dot_columns<2, true>
                                                       : dot_columns<1, true>)
                                        : (rows == 4   ? dot_columns<4, false>
                                           : rows == 2 ? dot_columns<2, false>
                                                       : dot_columns<1, false>);
    for (int limb = 0; limb < limbs; ++limb) {
      dot(section, tile, query, limb * rows, limbs * rows, limb == 0 ? ahead : 0, out);
    }
  }

  static void scale(int rows, int limbs, const BlockDots& dots, const Int8Block& query,
                    const unsigned char* scales, const ScaleStep& step, BlockLogits& out) noexcept {
    scale_dots(rows, limbs, dots, query, scales, step, out);
  }

  static void dot_float8(int rows, const TileFormat& format, const unsigned char* tile,
                         const float* query, std::ptrdiff_t ahead, BlockLogits& out) noexcept {
    switch (rows) {
      case 1: return avx2::dot_float8<1>(format, tile, query, ahead, out);
      case 2: return avx2::dot_float8<2>(format, tile, query, ahead, out);
      default: return avx2::dot_float8<4>(format, tile, query, ahead, out);
    }
  }

  /// Products of the queries with a key mean.
  /// @param out (rows)
  TURBOQUANT_AVX2 static void mean_logits(int rows, const TileFormat& format,
                                          const unsigned char* mean, const float* const* queries,
                                          float* out) noexcept {
    __m256 sums[Int8Block::most_rows] = {};
    for (int d = 0; d < format.key_dim; d += 8) {
      const __m256 numbers =
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(mean + 2 * d)));
      for (int r = 0; r < rows; ++r) {
        sums[r] = _mm256_fmadd_ps(_mm256_loadu_ps(queries[r] + d), numbers, sums[r]);
      }
    }
    for (int r = 0; r < rows; ++r) {
      const __m128 four =
          _mm_add_ps(_mm256_castps256_ps128(sums[r]), _mm256_extractf128_ps(sums[r], 1));
      const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
      out[r] = _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
    }
  }

  /// Invisible slots to -infinity, the others through the soft cap.
  TURBOQUANT_AVX2 static void mask_and_cap(TokenRange::Slots slots, float soft_cap,
                                           float* logits) noexcept {
    for (int token = 0; token < 64; token += 8) {
      __m256 logit = _mm256_loadu_ps(logits + token);
      if (soft_cap > 0) {
        logit = soft_cap_lanes(logit, soft_cap);
      }
      const __m256 visible = lanes_between(token, slots.first, slots.end);
      _mm256_storeu_ps(logits + token,
                       _mm256_blendv_ps(_mm256_set1_ps(negative_infinity), logit, visible));
    }
  }

  static bool take_row(const TileFormat& format, const LaneState& state, std::size_t row,
                       int block_row, const float* logits, const ValueMetadata& metadata,
                       bool /*int16_weights*/, PackedWeights& packed) noexcept {
    return avx2::take_row(format, state, row, block_row, logits, metadata, packed);
  }

  TURBOQUANT_AVX2 static void add_values(int rows, const TileFormat& format,
                                         const unsigned char* tile, const LaneState& state,
                                         const std::size_t* row_numbers, bool /*int16_weights*/,
                                         const PackedWeights& packed,
                                         std::ptrdiff_t ahead) noexcept {
    const auto add = rows == 4 ? add_run<4> : rows == 2 ? add_run<2> : add_run<1>;
    const CodeTables tables = code_tables(format);
    for_value_runs(
        format, tile, ahead, [&](const ValueRun& run, std::size_t first, std::size_t group) {
          ValueRun part = run;
          for (std::size_t done = 0; done < run.count; done += 16, part.words += 64) {
            part.count = run.count - done;
            float* outputs[Int8Block::most_rows] = {};
            for (int r = 0; r < rows; ++r) {
              outputs[r] = state.output(row_numbers[r]) + first + done;
            }
            add(part, tables, packed.dwords[group][0], packed.unit, packed.start, outputs);
          }
        });
  }
};

template <int Limbs>
void attend(const TileTables& tables, const TileArguments& in) noexcept {
  attend_integer<Steps>(tables, in, {Limbs, true});
}

TURBOQUANT_AVX2_FLATTEN inline void attend_exact_rows(const RowArguments& in) noexcept {
  attend_rows(in);
}

/// `attend` for the size of a format's tiles.
template <int Limbs>
[[nodiscard]] auto attend_of(const TileFormat& format) noexcept {
  return format.tile_tokens == 64 ? attend<Limbs> : attend_joined<attend<Limbs>>;
}

[[nodiscard]] inline HostAttention attention(const TileFormat& format, Exactness exactness) {
  HostAttention chosen{"8-bit query, 16-bit weights",
                       integer_query_bytes,
                       lane_state_bytes,
                       prepare_integer<1, true>,
                       reset_lanes,
                       attend_of<1>(format),
                       finish_lanes,
                       attend_exact_rows,
                       processor_wants_prefetch()};
  if (exactness == Exactness::exact) {
    chosen.name = "16-bit query, 16-bit weights";
    chosen.prepare = prepare_integer<2, true>;
    chosen.attend = attend_of<2>(format);
  }
  if (format.key_codec == KeyCodec::float8) {
    chosen.name = "float query, 16-bit weights";
    chosen.query_bytes = float8_query_bytes;
    chosen.prepare = prepare_float8;
  }
  return chosen;
}

inline constexpr HostOperations operations{HostArch::avx2, encode, attention};

}  // namespace turboquant::detail::avx2

#endif
