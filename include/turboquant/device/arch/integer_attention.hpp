#pragma once

#include <turboquant/device/arch/int8_query.hpp>
#include <turboquant/device/arch/level_tables.hpp>
#include <turboquant/device/arch/tile_geometry.hpp>

#include <cstddef>
#include <cstdint>

/// @file
/// What the integer tile operations of all instruction sets have in common.

namespace turboquant::detail {

/// How finely queries and weights are rounded.
struct IntegerPrecision {
  int limbs = 1;              ///< bytes of a query number
  bool int16_weights = true;  ///< u8 otherwise
};

/// Stored scales and zero points of a tile as floats; slots outside the valid range are 0, whatever
/// they hold.
struct ValueMetadata {
  static constexpr std::size_t most_groups = 72;
  struct alignas(64) Group {
    float scales[TileFormat::max_tokens];
    float zeros[TileFormat::max_tokens];
  };
  alignas(64) float largest[TileFormat::max_tokens];  ///< magnitudes of scales, over all groups
  Group groups[most_groups];
};

/// Weights of one block of rows as integers, in the order in which value words give up their codes:
/// per group and row 32 dwords of two int16 or 16 dwords of four u8.
struct PackedWeights {
  alignas(64) std::int32_t dwords[ValueMetadata::most_groups][Int8Block::most_rows][32];
  float unit[Int8Block::most_rows];          ///< value of one unit of weight times code
  std::int32_t start[Int8Block::most_rows];  ///< what sums of weight times code begin with

  /// A row that adds nothing.
  void clear_row(std::size_t groups, int row) noexcept {
    for (std::size_t group = 0; group < groups; ++group) {
      for (std::int32_t& dword : dwords[group][row]) {
        dword = 0;
      }
    }
    unit[row] = 0;
    start[row] = 0;
  }
};

/// A tile whose largest logit lies this far below the running maximum (log 2) adds to the sum, not
/// to the output.
inline constexpr float negligible_logit = -64.0F;

/// How weights become integers.
struct WeightScale {
  float inverse = 0;
  float unit = 0;
};

/// A row's own weights decide, so that it does not depend on tokens which only other rows see.
/// int16 weights are multiplied by a power of two, so that a lone token's value comes back exactly.
/// @param largest weight times stored scale of a row's tokens in the tile
[[nodiscard]] inline WeightScale weight_scale(float largest, bool int16_weights) noexcept {
  if (!(largest > 1e-30F)) {
    return {};
  }
  if (!int16_weights) {
    return {255.0F / largest, largest / 255.0F};
  }
  // Rounded to nearest the largest must stay below 2^15, too.
  const int exponent = weight_exponent(largest * (1 + 0x1p-15F));
  return {exact_power_of_two(exponent), exact_power_of_two(-exponent)};
}

/// Prepares queries and, for inner_product keys, their sketches behind them.
/// @param magnitudes whether 4-bit levels are looked up as magnitudes, without an offset
template <int Limbs, bool Magnitudes>
void prepare_integer(const TileTables& tables, const PrepareArguments& in,
                     std::byte* query) noexcept {
  const TileFormat& format = tables.format;
  const LevelTable& levels = level_table(static_cast<unsigned>(format.key_code_bits()));
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

/// Up to 32 value dimensions of a tile that share a block of words and a value group.
struct ValueRun {
  const unsigned char* words = nullptr;  ///< first word of the first dimension
  std::size_t stride = 0;                ///< bytes between rows of words
  unsigned width = 0;                    ///< bits of a code
  std::size_t count = 0;                 ///< dimensions
  std::ptrdiff_t ahead = 0;  ///< from here to the same bytes of the next tile; 0: no next tile
};

/// Calls `take(run, first dim, group)` for all value dimensions of a tile.
template <class Take>
void for_value_runs(const TileFormat& format, const unsigned char* tile, std::ptrdiff_t ahead,
                    const Take& take) noexcept {
  const ValueSection section = value_codes(format);
  const auto group_size = static_cast<std::size_t>(format.value_group);
  for (std::size_t d = 0; d < section.dim;) {
    const std::size_t group = d / group_size;
    const std::size_t block_end = d / 32 * 32 + section.row_words(d);
    const std::size_t group_end = (group + 1) * group_size;
    const std::size_t end = block_end < group_end ? block_end : group_end;
    take(ValueRun{tile + section.offset + 4 * section.column(d), 4 * section.row_words(d),
                  section.width, end - d, ahead},
         d, group);
    d = end;
  }
}

/// Integer dot products of the columns of one block with all tokens of a tile.
struct BlockDots {
  alignas(64) std::int32_t dots[Int8Block::most_columns][TileFormat::max_tokens];
};

/// Logits of a block of rows, not masked.
struct BlockLogits {
  alignas(64) float logits[Int8Block::most_rows][TileFormat::max_tokens];
};

/// What becomes of scaled dot products.
struct ScaleStep {
  bool add = false;  ///< whether they are added to the logits that are there
  /// (rows), added to the logits of tokens whose scale has no sign bit; null: nothing is, and
  /// scales have none
  const float* added = nullptr;
};

/// One tile for all rows of a kv head. `Arch` supplies the steps; see `avx512::Steps`.
template <class Arch>
void attend_integer(const TileTables& tables, const TileArguments& in,
                    IntegerPrecision precision) noexcept {
  const TileFormat& format = tables.format;
  const auto* tile = reinterpret_cast<const unsigned char*>(in.tile);
  const LaneState state(tables, in.rows, in.state);
  ValueMetadata metadata;
  Arch::load_metadata(format, tile, in.tokens.first, in.tokens.end, metadata);
  const bool plain = in.soft_cap == 0 && in.tokens.all_visible(in.rows);
  BlockLogits block;
  PackedWeights packed;
  for (int first = 0; first < in.rows; first += 4) {
    const int rows = block_rows(in.rows, first);
    const std::ptrdiff_t ahead = in.next != nullptr && first == 0 ? in.next - in.tile : 0;
    if (ahead != 0) {
      Arch::prefetch(tile + ahead + format.key_scales_offset(),
                     format.value_codes_offset() - format.key_scales_offset());
      Arch::prefetch(tile + ahead + format.key_mean_offset(), format.key_mean_bytes());
    }
    // What the key mean adds to the logits of a row.
    float mean_logits[Int8Block::most_rows] = {};
    const float* const added = format.centres_keys() ? mean_logits : nullptr;
    if (added != nullptr) {
      const float* queries[Int8Block::most_rows] = {};
      for (int r = 0; r < rows; ++r) {
        const int row = first + r < in.rows ? first + r : first;
        queries[r] = in.plain_queries + static_cast<std::ptrdiff_t>(row) * format.key_dim;
      }
      Arch::mean_logits(rows, format, tile + format.key_mean_offset(), queries, mean_logits);
    }
    const auto score = [&](const KeySection& section, const std::byte* query,
                           std::size_t scales_offset, const ScaleStep& step) {
      const Int8Block& columns = int8_block(query, first, format.key_dim);
      BlockDots dots;
      Arch::dot(rows, precision.limbs, section, tile, columns, ahead, dots);
      Arch::scale(rows, precision.limbs, dots, columns, tile + scales_offset, step, block);
    };
    if (format.key_codec == KeyCodec::float8) {
      Arch::dot_float8(rows, format, tile,
                       reinterpret_cast<const float*>(in.query) + first * format.key_dim, ahead,
                       block);
      for (int r = 0; r < rows && added != nullptr; ++r) {
        for (float& logit : block.logits[r]) {
          logit += added[r];
        }
      }
    } else {
      score(key_codes(format), in.query, format.key_scales_offset(), {false, added});
    }
    if (format.key_codec == KeyCodec::inner_product) {
      score(key_signs(format), in.query + int8_query_bytes(in.rows, format.key_dim),
            format.residual_scales_offset(), {true, nullptr});
    }

    std::size_t row_numbers[Int8Block::most_rows] = {};
    bool any = false;
    for (int r = 0; r < rows; ++r) {
      const bool real = first + r < in.rows;
      // The fourth row of a block of three is row one again, with nothing to add.
      const auto row = static_cast<std::size_t>(real ? first + r : first);
      row_numbers[r] = row;
      if (real && !plain) {
        Arch::mask_and_cap(in.tokens.visible(first + r), in.soft_cap, block.logits[r]);
      }
      if (real && Arch::take_row(format, state, row, r, block.logits[r], metadata,
                                 precision.int16_weights, packed)) {
        any = true;
      } else {
        packed.clear_row(format.value_groups(), r);
      }
    }
    if (any) {
      Arch::add_values(rows, format, tile, state, row_numbers, precision.int16_weights, packed,
                       ahead);
    }
  }
}

}  // namespace turboquant::detail
