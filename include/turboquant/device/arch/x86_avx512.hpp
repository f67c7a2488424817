#pragma once

#include <turboquant/device/arch/host_operations.hpp>
#include <turboquant/device/arch/x86_avx512_encode.hpp>
#include <turboquant/device/arch/x86_avx512_scores.hpp>
#include <turboquant/device/arch/x86_avx512_values.hpp>
#include <turboquant/device/tile_attention.hpp>
#include <turboquant/device/tile_slots.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

#if TURBOQUANT_X86
TURBOQUANT_INTRINSICS_BEGIN

namespace turboquant::detail::avx512 {

template <unsigned Width, int Limbs>
inline constexpr ScoreFunctions score_functions{score_block<Width, 4 * Limbs, Limbs>,
                                                score_block<Width, 2 * Limbs, Limbs>,
                                                score_block<Width, Limbs, Limbs>};

/// The steps of `attend_integer`.
/// @tparam Width bits of a value code
/// @tparam Limbs bytes of a query number
/// @tparam Wide  whether weights have 16 bits instead of 8
template <unsigned Width, int Limbs, bool Wide, bool Codebook>
struct Steps {
  static constexpr bool codebook = Codebook;

  static const ScoreFunctions& scores(int width) noexcept {
    switch (width) {
      case 1: return score_functions<1, Limbs>;
      case 2: return score_functions<2, Limbs>;
      case 3: return score_functions<3, Limbs>;
      default: return score_functions<4, Limbs>;
    }
  }

  TURBOQUANT_AVX512 static void load_metadata(const TileFormat& format, const unsigned char* tile,
                                              int first, int end, ValueMetadata& out) noexcept {
    avx512::load_metadata(format, tile, first, end, out);
  }

  static void prefetch(const unsigned char* at, std::size_t bytes) noexcept {
    prefetch_bytes(at, bytes);
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

  static bool take_row(const LaneState& state, std::size_t row, int block_row, float* logits,
                       const ValueMetadata& metadata, std::size_t groups,
                       PackedWeights& packed) noexcept {
    return avx512::take_row<Width, Wide>(state, row, block_row, logits, metadata, groups, Codebook,
                                         packed);
  }

  static void add_all_values(int rows, const TileFormat& format, const unsigned char* tile,
                             const LaneState& state, const std::size_t* row_numbers,
                             const PackedWeights& packed, const float* unit,
                             const std::int32_t* start, std::ptrdiff_t ahead) noexcept {
    const auto add = rows == 4   ? add_values<Width, 4, Wide, Codebook>
                     : rows == 2 ? add_values<Width, 2, Wide, Codebook>
                                 : add_values<Width, 1, Wide, Codebook>;
    const ValueSection section = value_codes(format);
    for_value_runs(section, static_cast<std::size_t>(format.value_group),
                   [&](std::size_t d, std::size_t count, std::size_t group) {
                     const std::uint32_t mask = count >= 32 ? 0xFFFFFFFFU : (1U << count) - 1U;
                     float* outputs[Int8Block::most_rows] = {};
                     for (int r = 0; r < rows; ++r) {
                       outputs[r] = state.output(row_numbers[r]) + d;
                     }
                     add(tile + section.offset + 4 * section.column(d), 4 * section.row_words(d),
                         static_cast<__mmask16>(mask), static_cast<__mmask16>(mask >> 16U),
                         packed.dwords[group][0], unit, start, ahead, outputs);
                   });
  }
};

TURBOQUANT_AVX512_FLATTEN inline void attend_exact_rows(const RowArguments& in) noexcept {
  attend_rows(in);
}

TURBOQUANT_AVX512_FLATTEN inline void attend_float(const TileTables& tables,
                                                   const TileArguments& in) noexcept {
  PortableAttention::attend(tables, in);
}

template <unsigned Width, int Limbs, bool Wide, bool Codebook>
[[nodiscard]] HostAttention integer_attention(std::string_view name) {
  return {name,
          integer_query_bytes,
          lane_state_bytes,
          prepare_integer<Limbs, false>,
          reset_lanes,
          attend_integer<Steps<Width, Limbs, Wide, Codebook>>,
          finish_lanes,
          attend_exact_rows,
          processor_wants_prefetch()};
}

template <unsigned Width>
[[nodiscard]] HostAttention choose_attention(bool codebook, Exactness exactness) {
  if (exactness == Exactness::exact) {
    return codebook ? integer_attention<Width, 2, true, true>("16-bit query, 16-bit weights")
                    : integer_attention<Width, 2, true, false>("16-bit query, 16-bit weights");
  }
  if (codebook) {
    return integer_attention<Width, 1, true, true>("8-bit query, 16-bit weights");
  }
  return exactness == Exactness::fast
             ? integer_attention<Width, 1, false, false>("8-bit query, 8-bit weights")
             : integer_attention<Width, 1, true, false>("8-bit query, 16-bit weights");
}

[[nodiscard]] inline HostAttention attention(const TileFormat& format, Exactness exactness) {
  if (format.key_codec == KeyCodec::float8) {
    using Operations = PortableAttention;
    return {"float",
            Operations::query_bytes,
            Operations::state_bytes,
            Operations::prepare,
            Operations::reset,
            attend_float,
            Operations::finish,
            attend_exact_rows};
  }
  const bool codebook = format.value_codec == ValueCodec::codebook;
  switch (format.value_bits) {
    case 2: return choose_attention<2>(codebook, exactness);
    case 3: return choose_attention<3>(codebook, exactness);
    default: return choose_attention<4>(codebook, exactness);
  }
}

inline constexpr HostOperations operations{HostArch::avx512, encode, attention};

}  // namespace turboquant::detail::avx512

TURBOQUANT_INTRINSICS_END
#endif
