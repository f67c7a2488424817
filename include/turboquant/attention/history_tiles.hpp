#pragma once

#include <turboquant/attention/decode_plan.hpp>

#include <cstdint>

namespace turboquant::detail {

/// The compressed tokens of a sequence that at least one query sees, and how they are cut into
/// parts: in units of 64 tokens, whatever the size of tiles.
struct HistoryTiles {
  std::int64_t begin = 0;  ///< tokens, counted from slot 0 of the first page
  std::int64_t end = 0;
  std::int64_t first_tile = 0;
  std::int64_t end_tile = 0;
  std::int64_t per_split = 0;

  TURBOQUANT_FUNCTION HistoryTiles(const DecodeLayout& layout,
                                   const DecodeSequence& sequence) noexcept
      : begin(sequence.history_begin), end(sequence.query_position + layout.num_queries) {
    end = end < sequence.history_end ? end : sequence.history_end;
    if (layout.sliding_window > 0) {
      const std::int64_t oldest = sequence.query_position + 1 - layout.sliding_window;
      begin = begin > oldest ? begin : oldest;
    }
    begin -= sequence.page_position;
    end -= sequence.page_position;
    constexpr auto tile_tokens = static_cast<std::int64_t>(TileFormat::max_tokens);
    first_tile = begin / tile_tokens;
    end_tile = end > begin ? (end - 1) / tile_tokens + 1 : first_tile;
    per_split = end_tile - first_tile;
    if (layout.tiles_per_split > 0) {
      per_split = layout.tiles_per_split;
    } else if (layout.num_splits > 1) {
      per_split = pieces(per_split, layout.num_splits);
    }
  }

  /// Parts that hold tiles: the first ones.
  [[nodiscard]] TURBOQUANT_FUNCTION int parts() const noexcept {
    return end_tile == first_tile ? 0 : static_cast<int>(pieces(end_tile - first_tile, per_split));
  }

 private:
  /// `tiles / size`, rounded up. 32 bits are enough: 2^32 tiles are more than any memory.
  [[nodiscard]] static TURBOQUANT_FUNCTION std::int64_t pieces(std::int64_t tiles,
                                                               std::int64_t size) noexcept {
    const auto all = static_cast<std::uint32_t>(tiles);
    const auto each = static_cast<std::uint32_t>(size);
    const std::uint32_t whole = all / each;
    return std::int64_t{whole} + (whole * each < all ? 1 : 0);
  }
};

}  // namespace turboquant::detail
