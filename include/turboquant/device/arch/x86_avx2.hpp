#pragma once

#include <turboquant/device/arch/host_operations.hpp>
#include <turboquant/device/arch/x86_avx2_scores.hpp>
#include <turboquant/device/arch/x86_avx2_values.hpp>
#include <turboquant/device/tile_attention.hpp>
#include <turboquant/device/tile_slots.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

#if TURBOQUANT_X86

namespace turboquant::detail::avx2 {

template <unsigned Width, int Limbs>
inline constexpr ScoreFunctions score_functions{
    score_block<Width, 4, Limbs>, score_block<Width, 2, Limbs>, score_block<Width, 1, Limbs>};

/// The steps of `attend_integer`.
/// @tparam Width bits of a value code
/// @tparam Limbs bytes of a query number
template <unsigned Width, int Limbs, bool Codebook>
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

  TURBOQUANT_AVX2 static void load_metadata(const TileFormat& format, const unsigned char* tile,
                                            int first, int end, ValueMetadata& out) noexcept {
    avx2::load_metadata(format, tile, first, end, out);
  }

  static void prefetch(const unsigned char* at, std::size_t bytes) noexcept {
    prefetch_bytes(at, bytes);
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

  static bool take_row(const LaneState& state, std::size_t row, int block_row, float* logits,
                       const ValueMetadata& metadata, std::size_t groups,
                       PackedWeights& packed) noexcept {
    return avx2::take_row<Width>(state, row, block_row, logits, metadata, groups, Codebook, packed);
  }

  TURBOQUANT_AVX2 static void add_all_values(int rows, const TileFormat& format,
                                             const unsigned char* tile, const LaneState& state,
                                             const std::size_t* row_numbers,
                                             const PackedWeights& packed, const float* unit,
                                             const std::int32_t* start,
                                             std::ptrdiff_t ahead) noexcept {
    const auto add = rows == 4   ? add_values<Width, 4, Codebook>
                     : rows == 2 ? add_values<Width, 2, Codebook>
                                 : add_values<Width, 1, Codebook>;
    const ValueSection section = value_codes(format);
    alignas(32) const std::int32_t masks[2][8] = {{0, 0, 0, 0, 0, 0, 0, 0},
                                                  {-1, -1, -1, -1, -1, -1, -1, -1}};
    for_value_runs(section, static_cast<std::size_t>(format.value_group),
                   [&](std::size_t first, std::size_t count, std::size_t group) {
                     for (std::size_t d = first; d < first + count; d += 16) {
                       float* outputs[Int8Block::most_rows] = {};
                       for (int r = 0; r < rows; ++r) {
                         outputs[r] = state.output(row_numbers[r]) + d;
                       }
                       add(tile + section.offset + 4 * section.column(d), 4 * section.row_words(d),
                           masks[first + count - d >= 16 ? 1 : 0], packed.dwords[group][0], unit,
                           start, ahead, outputs);
                     }
                   });
  }
};

TURBOQUANT_AVX2_FLATTEN inline void encode(const TileTables& tables,
                                           const EncodeArguments& in) noexcept {
  encode_slots<PortableEncodeSteps<16>>(tables, in);
}

TURBOQUANT_AVX2_FLATTEN inline void attend_exact_rows(const RowArguments& in) noexcept {
  attend_rows(in);
}

TURBOQUANT_AVX2_FLATTEN inline void attend_float(const TileTables& tables,
                                                 const TileArguments& in) noexcept {
  PortableAttention::attend(tables, in);
}

template <unsigned Width, int Limbs, bool Codebook>
[[nodiscard]] HostAttention integer_attention(std::string_view name) {
  return {name,
          integer_query_bytes,
          lane_state_bytes,
          prepare_integer<Limbs, true>,
          reset_lanes,
          attend_integer<Steps<Width, Limbs, Codebook>>,
          finish_lanes,
          attend_exact_rows,
          processor_wants_prefetch()};
}

template <unsigned Width>
[[nodiscard]] HostAttention choose_attention(bool codebook, Exactness exactness) {
  if (exactness == Exactness::exact) {
    return codebook ? integer_attention<Width, 2, true>("16-bit query, 16-bit weights")
                    : integer_attention<Width, 2, false>("16-bit query, 16-bit weights");
  }
  // Without VNNI instructions 8-bit weights would not be faster.
  return codebook ? integer_attention<Width, 1, true>("8-bit query, 16-bit weights")
                  : integer_attention<Width, 1, false>("8-bit query, 16-bit weights");
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

inline constexpr HostOperations operations{HostArch::avx2, encode, attention};

}  // namespace turboquant::detail::avx2

#endif
