#pragma once

#include <turboquant/attention/decode_plan.hpp>
#include <turboquant/attention/history_tiles.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// A plan's workspace where a kernel can read it.
struct DecodeWorkspace {
  DecodeLayout layout{};
  std::byte* base = nullptr;  ///< aligned

  [[nodiscard]] TURBOQUANT_FUNCTION float* floats(std::int64_t section,
                                                  std::int64_t index) const noexcept {
    return reinterpret_cast<float*>(base + section) + index;
  }
  /// Where the teams of rank `rank` of the parts of walk number `walk` meet: a counter and
  /// num_splits marks.
  [[nodiscard]] TURBOQUANT_FUNCTION std::uint64_t* meeting_place(std::int64_t walk,
                                                                 int rank) const noexcept {
    return reinterpret_cast<std::uint64_t*>(base + layout.meeting_places) +
           (walk * layout.cluster + rank) * (layout.num_splits + 1);
  }
  /// On matrix units, number of the first row of a part of walk number `walk`.
  [[nodiscard]] TURBOQUANT_FUNCTION std::int64_t walk_row(std::int64_t walk,
                                                          int part) const noexcept {
    return (walk * layout.num_splits + part) * 4 * layout.sets;
  }
  /// Number of a (sequence, kv head) pair.
  [[nodiscard]] TURBOQUANT_FUNCTION std::int64_t head_index(std::int64_t sequence,
                                                            int head) const noexcept {
    return sequence * layout.kv_heads + head;
  }
  [[nodiscard]] TURBOQUANT_FUNCTION std::byte* prepared(std::int64_t sequence,
                                                        int head) const noexcept {
    return base + layout.prepared + head_index(sequence, head) * layout.prepared_bytes;
  }
  [[nodiscard]] TURBOQUANT_FUNCTION std::byte* state(std::int64_t sequence, int split,
                                                     int head) const noexcept {
    const std::int64_t index = (sequence * layout.num_splits + split) * layout.kv_heads + head;
    return base + layout.states + index * layout.state_bytes;
  }
  /// Number of the first element of a query row in (sequences num_queries, query_heads, key_dim).
  [[nodiscard]] TURBOQUANT_FUNCTION std::int64_t query_at(const RowView& queries,
                                                          std::int64_t sequence, int head,
                                                          int row) const noexcept {
    const auto ratio = static_cast<unsigned>(layout.ratio);
    const unsigned query = static_cast<unsigned>(row) / ratio;
    return queries.offset(
        sequence * layout.num_queries + query,
        head * layout.ratio + static_cast<int>(static_cast<unsigned>(row) % ratio));
  }
  /// Number of the first query row of a (sequence, part, kv head).
  [[nodiscard]] TURBOQUANT_FUNCTION std::int64_t part_row(std::int64_t sequence, int part,
                                                          int head) const noexcept {
    return ((sequence * layout.parts + part) * layout.kv_heads + head) * layout.rows;
  }
};

/// First step: one work item rotates and prepares the query rows of one kv head of one sequence.
template <class Query, class Calls>
struct PrepareQueries {
  TileTables tables;
  DecodeWorkspace workspace;
  const Query* queries;  ///< (sequences, num_queries, query_heads, key_dim)
  Calls calls;

  TURBOQUANT_FUNCTION void operator()(std::int64_t item) const {
    const DecodeLayout& layout = workspace.layout;
    const int dim = tables.format.key_dim;
    const std::int64_t sequence = item / layout.kv_heads;
    const auto head = static_cast<int>(item % layout.kv_heads);
    const std::int64_t size = static_cast<std::int64_t>(layout.rows) * dim;
    const bool sketches = tables.format.key_codec == KeyCodec::inner_product;
    float* plain = workspace.floats(layout.plain_queries, item * size);
    float* rotated = workspace.floats(layout.rotated_queries, item * size * (sketches ? 2 : 1));
    float* sketched = rotated + size;
    float spare[max_tile_dim];
    for (int row = 0; row < layout.rows; ++row) {
      const std::int64_t query = sequence * layout.num_queries + row / layout.ratio;
      const std::int64_t query_heads = static_cast<std::int64_t>(layout.kv_heads) * layout.ratio;
      const Query* in =
          queries + (query * query_heads + head * layout.ratio + row % layout.ratio) * dim;
      float* out = rotated + row * dim;
      for (int d = 0; d < dim; ++d) {
        out[d] = to_float(in[d]);
        plain[row * dim + d] = out[d] * layout.logit_scale;
      }
      if (tables.rotates_keys()) {
        tables.key_rotation.template forward<1>(out, spare);
      }
      if (sketches) {
        float* sketch = sketched + row * dim;
        for (int d = 0; d < dim; ++d) {
          sketch[d] = out[d];
        }
        tables.sketch.template forward<1>(sketch, spare);
      }
    }
    PrepareArguments arguments;
    arguments.queries = rotated;
    arguments.sketched = sketches ? sketched : nullptr;
    arguments.rows = layout.rows;
    arguments.logit_scale = layout.logit_scale;
    calls.prepare(tables, arguments, workspace.prepared(sequence, head));
  }

 private:
  static TURBOQUANT_FUNCTION float to_float(float x) noexcept { return x; }
  template <class Half>
  static TURBOQUANT_FUNCTION float to_float(Half x) noexcept {
    return x.to_float();
  }
};

/// Second step: one work item takes one part of one sequence, all heads, into partial outputs.
///
/// A part is a run of tiles, walked in memory order: pages outside, heads inside. Tiles of less
/// than 64 tokens are taken as many at a time as have 64. The last part is the exact rows.
template <class Calls>
struct AttendParts {
  TileTables tables;
  DecodeWorkspace workspace;
  const DecodeSequence* sequences;
  Calls calls;

  TURBOQUANT_FUNCTION void operator()(std::int64_t item) const {
    const DecodeLayout& layout = workspace.layout;
    const std::int64_t index = item / (layout.num_splits + 1);
    const auto part = static_cast<int>(item % (layout.num_splits + 1));
    if (part < layout.num_splits) {
      attend_tiles(index, part);
    } else {
      attend_exact(index);
    }
  }

 private:
  static constexpr auto tile_tokens = static_cast<std::int64_t>(TileFormat::max_tokens);

  [[nodiscard]] TURBOQUANT_FUNCTION TokenRange
  token_range(const DecodeSequence& sequence) const noexcept {
    TokenRange range;
    range.query_position = sequence.query_position;
    range.window = workspace.layout.sliding_window;
    range.ratio = workspace.layout.ratio;
    return range;
  }

  TURBOQUANT_FUNCTION void attend_tiles(std::int64_t index, int split) const {
    const DecodeLayout& layout = workspace.layout;
    const DecodeSequence& sequence = sequences[index];
    // Tokens that at least one query sees.
    const HistoryTiles history(layout, sequence);
    std::int64_t tile = history.first_tile + split * history.per_split;
    const std::int64_t last =
        tile + history.per_split < history.end_tile ? tile + history.per_split : history.end_tile;
    if (tile >= last) {
      mark_empty(index, split);
      return;
    }
    for (int head = 0; head < layout.kv_heads; ++head) {
      calls.reset(tables, layout.rows, workspace.state(index, split, head));
    }
    if (tables.format.tile_tokens < tile_tokens) {
      attend_small_tiles(history, sequence, index, split, tile, last);
    } else {
      attend_whole_tiles(history, sequence, index, split, tile, last);
    }
    for (int head = 0; head < layout.kv_heads; ++head) {
      const std::int64_t row = workspace.part_row(index, split, head);
      FinishArguments out;
      out.state = workspace.state(index, split, head);
      out.output = workspace.floats(layout.outputs, row * tables.format.value_dim);
      out.maximum = workspace.floats(layout.maxima, row);
      out.sum = workspace.floats(layout.sums, row);
      out.rows = layout.rows;
      calls.finish(tables, out);
    }
  }

  /// What the rows of one kv head bring to a tile.
  [[nodiscard]] TURBOQUANT_FUNCTION TileArguments rows_of_head(std::int64_t index, int split,
                                                               int head) const noexcept {
    const DecodeLayout& layout = workspace.layout;
    TileArguments in;
    in.query = workspace.prepared(index, head);
    in.plain_queries =
        workspace.floats(layout.plain_queries,
                         workspace.head_index(index, head) * layout.rows * tables.format.key_dim);
    in.state = workspace.state(index, split, head);
    in.rows = layout.rows;
    in.soft_cap = layout.soft_cap;
    return in;
  }

  /// The tokens of the history among the 64 from token `start` of the first page on.
  [[nodiscard]] TURBOQUANT_FUNCTION TokenRange tokens_from(const HistoryTiles& history,
                                                           const DecodeSequence& sequence,
                                                           std::int64_t start) const noexcept {
    TokenRange tokens = token_range(sequence);
    tokens.first = history.begin > start ? static_cast<int>(history.begin - start) : 0;
    tokens.end = history.end < start + tile_tokens ? static_cast<int>(history.end - start)
                                                   : static_cast<int>(tile_tokens);
    tokens.position = sequence.page_position + start;
    return tokens;
  }

  /// The tiles of a step that hold tokens of a range.
  TURBOQUANT_FUNCTION void find_small_tiles(const DecodeSequence& sequence,
                                            const TokenRange& tokens, std::int64_t step, int head,
                                            const std::byte** found) const noexcept {
    const int small = tables.format.tile_tokens;
    for (int slot = 0; slot < tile_tokens; slot += small) {
      const bool seen = slot < tokens.end && slot + small > tokens.first;
      found[slot / small] = seen ? sequence.history.tile((step * tile_tokens + slot) / small, head,
                                                         tables.format.bytes())
                                 : nullptr;
    }
  }

  TURBOQUANT_FUNCTION void attend_small_tiles(const HistoryTiles& history,
                                              const DecodeSequence& sequence, std::int64_t index,
                                              int split, std::int64_t step,
                                              std::int64_t last) const {
    for (; step < last; ++step) {
      const TokenRange tokens = tokens_from(history, sequence, step * tile_tokens);
      for (int head = 0; head < workspace.layout.kv_heads; ++head) {
        TileArguments in = rows_of_head(index, split, head);
        in.tokens = tokens;
        find_small_tiles(sequence, tokens, step, head, in.small_tiles);
        if (calls.wants_next()) {
          const bool same_step = head + 1 < workspace.layout.kv_heads;
          const std::int64_t next = same_step ? step : step + 1;
          if (next < last) {
            find_small_tiles(
                sequence, same_step ? tokens : tokens_from(history, sequence, next * tile_tokens),
                next, same_step ? head + 1 : 0, in.next_small_tiles);
          }
        }
        calls.attend(tables, in);
      }
    }
  }

  TURBOQUANT_FUNCTION void attend_whole_tiles(const HistoryTiles& history,
                                              const DecodeSequence& sequence, std::int64_t index,
                                              int split, std::int64_t tile,
                                              std::int64_t last) const {
    const DecodeLayout& layout = workspace.layout;
    const std::size_t tile_bytes = tables.format.bytes();
    while (tile < last) {
      const std::int64_t page_end =
          (tile / sequence.history.tiles_per_page + 1) * sequence.history.tiles_per_page;
      const std::int64_t run_end = page_end < last ? page_end : last;
      for (int head = 0; head < layout.kv_heads; ++head) {
        TileArguments in = rows_of_head(index, split, head);
        in.tile = sequence.history.tile(tile, head, tile_bytes);
        for (std::int64_t t = tile; t < run_end; ++t, in.tile += tile_bytes) {
          in.tokens = tokens_from(history, sequence, t * tile_tokens);
          if (calls.wants_next()) {
            in.next = t + 1 < run_end ? in.tile + tile_bytes
                      : head + 1 < layout.kv_heads
                          ? sequence.history.tile(tile, head + 1, tile_bytes)
                      : run_end < last ? sequence.history.tile(run_end, 0, tile_bytes)
                                       : nullptr;
          }
          calls.attend(tables, in);
        }
      }
      tile = run_end;
    }
  }

  TURBOQUANT_FUNCTION void attend_exact(std::int64_t index) const {
    const DecodeLayout& layout = workspace.layout;
    const DecodeSequence& sequence = sequences[index];
    mark_empty(index, layout.num_splits);
    RowArguments in;
    in.key_dim = tables.format.key_dim;
    in.value_dim = tables.format.value_dim;
    in.rows = layout.rows;
    in.soft_cap = layout.soft_cap;
    for (int head = 0; head < layout.kv_heads; ++head) {
      const std::int64_t row = workspace.part_row(index, layout.num_splits, head);
      in.head = head;
      in.queries = workspace.floats(layout.plain_queries, workspace.head_index(index, head) *
                                                              layout.rows * tables.format.key_dim);
      in.output = workspace.floats(layout.outputs, row * tables.format.value_dim);
      in.maximum = workspace.floats(layout.maxima, row);
      in.sum = workspace.floats(layout.sums, row);
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(layout.rows) * tables.format.value_dim;
           ++i) {
        in.output[i] = 0.0F;
      }
      // Sinks stay visible however far the window has moved on.
      in.tokens = token_range(sequence);
      in.tokens.window = 0;
      in.keys = sequence.sink_keys;
      in.values = sequence.sink_values;
      in.capacity = sequence.num_sinks;
      in.start = 0;
      attend_blocks(in, sequence.num_sinks, 0);
      in.tokens = token_range(sequence);
      in.keys = sequence.window_keys;
      in.values = sequence.window_values;
      in.capacity = sequence.window_capacity;
      in.start = sequence.window_start;
      attend_blocks(in, sequence.window_count, sequence.window_position);
    }
  }

  /// Rows at position + [0, count) in blocks of 64 that at least one query sees.
  TURBOQUANT_FUNCTION void attend_blocks(RowArguments& in, std::int64_t count,
                                         std::int64_t position) const {
    const TokenRange queries = in.tokens;
    const std::int64_t behind = queries.query_position + workspace.layout.num_queries - position;
    const std::int64_t end = behind < count ? behind : count;
    const std::int64_t start = in.start;
    std::int64_t done = queries.query_position - queries.window + 1 - position;
    done = queries.window > 0 && done > 0 ? done / tile_tokens * tile_tokens : 0;
    for (; done < end; done += tile_tokens) {
      in.tokens.first = 0;
      in.tokens.end = static_cast<int>(count - done < tile_tokens ? count - done : tile_tokens);
      in.tokens.position = position + done;
      in.start = start + done;
      calls.attend_rows(in);
    }
  }

  TURBOQUANT_FUNCTION void mark_empty(std::int64_t index, int part) const noexcept {
    const std::int64_t row = workspace.part_row(index, part, 0);
    for (int i = 0; i < workspace.layout.kv_heads * workspace.layout.rows; ++i) {
      *workspace.floats(workspace.layout.maxima, row + i) = negative_infinity;
      *workspace.floats(workspace.layout.sums, row + i) = 0.0F;
    }
  }
};

}  // namespace turboquant::detail
