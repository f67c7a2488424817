#pragma once

#include <turboquant/device/arch/int8_query.hpp>
#include <turboquant/device/arch/level_tables.hpp>
#include <turboquant/device/arch/tile_geometry.hpp>

#include <cstddef>
#include <cstdint>

/// @file
/// What the integer tile operations of all instruction sets have in common.

namespace turboquant::detail {

/// Stored scales and zero points of a tile as floats; slots outside the valid range are 0, whatever
/// they hold.
struct ValueMetadata {
  static constexpr std::size_t most_groups = 72;
  alignas(64) float scales[most_groups][TileFormat::tokens];
  alignas(64) float zeros[most_groups][TileFormat::tokens];
  float largest_scale = 0;
};

/// Weights of one block of rows as integers, in the order in which value words give up their codes:
/// per group and row 32 dwords of two int16 or 16 dwords of four u8.
struct PackedWeights {
  alignas(64) std::int32_t dwords[ValueMetadata::most_groups][Int8Block::most_rows][32];
  float unit[Int8Block::most_rows];          ///< value of one unit of weight
  std::int32_t total[Int8Block::most_rows];  ///< sum of all int16 weights (codebook values)

  /// A row that adds nothing.
  void clear_row(std::size_t groups, int row) noexcept {
    for (std::size_t group = 0; group < groups; ++group) {
      for (std::int32_t& dword : dwords[group][row]) {
        dword = 0;
      }
    }
  }
};

/// A tile whose largest logit lies this far below the running maximum (log 2) adds to the sum, not
/// to the output.
inline constexpr float negligible_logit = -64.0F;

/// How weights become integers of 15 bits: times a power of two, so that a lone token's value comes
/// back exactly.
struct WeightScale {
  float inverse = 0;
  float unit = 0;
  float limit = 0;  ///< largest weight before the stored scale is multiplied in
};

/// @param largest_weight of the tile, at most 1
[[nodiscard]] inline WeightScale int16_weight_scale(float largest_weight,
                                                    const ValueMetadata& metadata) noexcept {
  const float largest_scale = metadata.largest_scale > 1e-20F ? metadata.largest_scale : 1e-20F;
  const int exponent = weight_exponent(largest_weight * largest_scale);
  return {exact_power_of_two(exponent), exact_power_of_two(-exponent), 32767.0F / largest_scale};
}

/// Prepares queries and, for inner_product keys, their sketches behind them.
/// @param magnitudes whether 4-bit levels are looked up as magnitudes, without an offset
template <int Limbs, bool Magnitudes>
void prepare_integer(const TileTables& tables, const PrepareArguments& in,
                     std::byte* query) noexcept {
  const TileFormat& format = tables.format;
  const LevelUnits levels = level_units(format.key_code_bits());
  const int offset = Magnitudes && format.key_code_bits() == 4 ? 0 : levels.offset;
  prepare_int8(in.queries, in.rows, format.key_dim,
               static_cast<double>(in.logit_scale) * levels.step, offset, Limbs, query);
  if (format.key_codec == KeyCodec::inner_product) {
    prepare_int8(in.sketched, in.rows, format.key_dim,
                 static_cast<double>(in.logit_scale) * static_cast<double>(tables.residual_factor),
                 1, Limbs, query + int8_query_bytes(in.rows, format.key_dim));
  }
}

inline std::size_t integer_query_bytes(const TileTables& tables, int rows) noexcept {
  const std::size_t sections = tables.format.key_codec == KeyCodec::inner_product ? 2 : 1;
  return sections * int8_query_bytes(rows, tables.format.key_dim);
}

/// Calls `take(first dim, dims, group)` for runs of up to 32 dimensions that share a block of words
/// and a value group.
template <class Take>
void for_value_runs(const ValueSection& section, std::size_t group_size,
                    const Take& take) noexcept {
  for (std::size_t d = 0; d < section.dim;) {
    const std::size_t group = d / group_size;
    const std::size_t block_end = d / 32 * 32 + section.row_words(d);
    const std::size_t group_end = (group + 1) * group_size;
    const std::size_t end = block_end < group_end ? block_end : group_end;
    take(d, end - d, group);
    d = end;
  }
}

using ScoreFunction = void (*)(const unsigned char*, std::size_t, int, const Int8Block&,
                               const unsigned char*, std::ptrdiff_t, bool,
                               float (*)[TileFormat::tokens]) noexcept;

/// Score functions of one key width for blocks of 4, 2 and 1 rows.
struct ScoreFunctions {
  ScoreFunction four;
  ScoreFunction two;
  ScoreFunction one;

  [[nodiscard]] ScoreFunction operator()(int rows) const noexcept {
    return rows == 4 ? four : (rows == 2 ? two : one);
  }
};

/// One tile for all rows of a kv head. `Arch` supplies the steps; see `avx512::Steps`.
template <class Arch>
void attend_integer(const TileTables& tables, const TileArguments& in) noexcept {
  const TileFormat& format = tables.format;
  const auto* tile = reinterpret_cast<const unsigned char*>(in.tile);
  const LaneState state(tables, in.rows, in.state);
  const LevelUnits value_levels = Arch::codebook ? level_units(format.value_bits) : LevelUnits{};
  ValueMetadata metadata;
  Arch::load_metadata(format, tile, in.tokens.first, in.tokens.end, metadata);
  const bool plain = in.soft_cap == 0 && in.tokens.all_visible(in.rows);
  PackedWeights packed;
  for (int first = 0; first < in.rows; first += 4) {
    const int rows = block_rows(in.rows, first);
    const std::ptrdiff_t ahead = in.next != nullptr && first == 0 ? in.next - in.tile : 0;
    if (ahead != 0) {
      Arch::prefetch(tile + ahead + format.key_scales_offset(),
                     format.value_codes_offset() - format.key_scales_offset());
    }
    alignas(64) float logits[Int8Block::most_rows][TileFormat::tokens];
    Arch::scores(format.key_code_bits())(rows)(tile, format.key_codes_offset(), format.key_dim,
                                               int8_block(in.query, first, format.key_dim),
                                               tile + format.key_scales_offset(), ahead, false,
                                               logits);
    if (format.key_codec == KeyCodec::inner_product) {
      const std::byte* sketched = in.query + int8_query_bytes(in.rows, format.key_dim);
      Arch::scores(1)(rows)(tile, format.key_signs_offset(), format.key_dim,
                            int8_block(sketched, first, format.key_dim),
                            tile + format.residual_scales_offset(), ahead, true, logits);
    }
    float unit[Int8Block::most_rows] = {};
    std::int32_t start[Int8Block::most_rows] = {};
    std::size_t row_numbers[Int8Block::most_rows] = {};
    bool any = false;
    for (int r = 0; r < rows; ++r) {
      const bool real = first + r < in.rows;
      // The fourth row of a block of three is row one again, with nothing to add.
      const auto row = static_cast<std::size_t>(real ? first + r : first);
      row_numbers[r] = row;
      if (real && !plain) {
        Arch::mask_and_cap(in.tokens.visible(first + r), in.soft_cap, logits[r]);
      }
      if (real &&
          Arch::take_row(state, row, r, logits[r], metadata, format.value_groups(), packed)) {
        unit[r] = packed.unit[r] * static_cast<float>(value_levels.step);
        start[r] = -value_levels.offset * packed.total[r];
        any = true;
      } else {
        packed.clear_row(format.value_groups(), r);
      }
    }
    if (any) {
      Arch::add_all_values(rows, format, tile, state, row_numbers, packed, unit, start, ahead);
    }
  }
}

}  // namespace turboquant::detail
