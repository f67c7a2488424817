#pragma once

#include <turboquant/device/row_view.hpp>
#include <turboquant/device/tile_codec.hpp>

#include <cstddef>
#include <cstdint>

/// @file
/// What attention asks of a processor, for the query rows of one kv head: prepare the queries, take
/// one tile or a block of uncompressed tokens into a running softmax, hand the result out. Row r of
/// `rows` is query r / ratio, query head r % ratio of the head's group. All logits are in units of
/// log 2.

namespace turboquant::detail {

/// Which of 64 or fewer consecutive tokens the rows may see.
struct TokenRange {
  int first = 0;  ///< slots outside [first, end) hold nothing
  int end = 0;
  std::int64_t position = 0;        ///< absolute position of slot 0
  std::int64_t query_position = 0;  ///< absolute position of query 0
  std::int64_t window = 0;  ///< a query sees this many newest tokens, itself included; 0: all
  int ratio = 1;            ///< query heads per kv head

  struct Slots {
    int first = 0;
    int end = 0;
  };

  /// The slots that row `row` sees.
  [[nodiscard]] TURBOQUANT_FUNCTION Slots visible(int row) const noexcept {
    const std::int64_t past = query_position + row / ratio + 1 - position;
    Slots slots{first, past < end ? static_cast<int>(past) : end};
    if (window > 0 && past - window > slots.first) {
      slots.first = past - window < end ? static_cast<int>(past - window) : end;
    }
    if (slots.end < slots.first) {
      slots.end = slots.first;
    }
    return slots;
  }

  /// Slots [start, start + count), counted from there on.
  [[nodiscard]] TURBOQUANT_FUNCTION TokenRange part(int start, int count) const noexcept {
    TokenRange range = *this;
    range.first = first > start ? first - start : 0;
    range.end = end < start + count ? end - start : count;
    range.first = range.first < count ? range.first : count;
    range.end = range.end > range.first ? range.end : range.first;
    range.position += start;
    return range;
  }

  /// Whether every one of `rows` rows sees the slots [0, 64).
  [[nodiscard]] TURBOQUANT_FUNCTION bool all_visible(int rows) const noexcept {
    const Slots oldest = visible(0);
    const Slots newest = visible(rows - 1);
    return oldest.first == 0 && oldest.end == 64 && newest.first == 0 && newest.end == 64;
  }
};

struct PrepareArguments {
  const float* queries = nullptr;   ///< (rows, key_dim), in the space of the stored keys
  const float* sketched = nullptr;  ///< (rows, key_dim), inner_product only
  int rows = 0;
  float logit_scale = 0;  ///< softmax scale times log2(e)
};

/// 64 tokens of one kv head: a tile, or smaller tiles that follow each other.
struct TileArguments {
  const std::byte* tile = nullptr;
  /// Where tiles are smaller: `tile` is null, and these are the tiles of the 64 tokens in order;
  /// null where no query sees any of its tokens.
  const std::byte* small_tiles[4] = {};
  const std::byte* next_small_tiles[4] = {};  ///< those of the 64 tokens that follow
  const std::byte* next =
      nullptr;  ///< the tile that follows, for processors that profit from an early load; or null
  const std::byte* query = nullptr;  ///< what `prepare` wrote
  /// (rows, key_dim), not rotated, times the softmax scale and log2(e); read where tiles have a key
  /// mean
  const float* plain_queries = nullptr;
  std::byte* state = nullptr;
  int rows = 0;
  float soft_cap = 0;  ///< in units of log 2; 0: none
  TokenRange tokens{};
};

/// Calls `call(in)` with the arguments of every tile, one after another.
template <class Call>
TURBOQUANT_FUNCTION void for_each_tile(const TileFormat& format, const TileArguments& in,
                                       const Call& call) noexcept {
  const int tokens = format.tile_tokens;
  if (tokens == 64) {
    call(in);
    return;
  }
  for (int first = 0; first < 64; first += tokens) {
    TileArguments one = in;
    one.tile = in.small_tiles[first / tokens];
    if (one.tile != nullptr) {
      one.tokens = in.tokens.part(first, tokens);
      call(one);
    }
  }
}

/// Uncompressed tokens: token i is row (start + i) % capacity of the rows.
struct RowArguments {
  RowView keys{};
  RowView values{};
  std::int64_t capacity = 0;
  std::int64_t start = 0;
  int head = 0;
  int key_dim = 0;
  int value_dim = 0;
  const float* queries =
      nullptr;               ///< (rows, key_dim), not rotated, times the softmax scale and log2(e)
  float* output = nullptr;   ///< (rows, value_dim), running, not normalised
  float* maximum = nullptr;  ///< (rows)
  float* sum = nullptr;      ///< (rows)
  int rows = 0;
  float soft_cap = 0;
  TokenRange tokens{};  ///< at most 64
};

struct FinishArguments {
  const std::byte* state = nullptr;
  float* output = nullptr;   ///< (rows, value_dim), sum of weights times values
  float* maximum = nullptr;  ///< (rows), -infinity where nothing was visible
  float* sum = nullptr;      ///< (rows), sum of weights
  int rows = 0;
};

/// Tokens that one encoding call writes into one tile of one head.
struct EncodeArguments {
  RowView keys{};
  RowView values{};
  int head = 0;
  int first_slot = 0;
  int count = 0;
  int clear_from = 0;
  std::byte* tile = nullptr;

  /// Whether these are the first tokens of their tile, which decide its key mean.
  [[nodiscard]] TURBOQUANT_FUNCTION bool begins_tile() const noexcept {
    return first_slot == 0 || clear_from == 0;
  }
};

}  // namespace turboquant::detail
