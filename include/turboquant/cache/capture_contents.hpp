#pragma once

#include <turboquant/base/checked_math.hpp>
#include <turboquant/cache/capture_options.hpp>
#include <turboquant/device/row_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace turboquant {

/// Everything that a `KVCaptureEngine` holds, on the host and in token order, whatever the state of
/// its rings and pages: engines of equal options that hold the same tokens have equal contents.
template <class T>
struct CaptureContents {
  std::int64_t length = 0;         ///< tokens captured, those given up included
  std::int64_t history_begin = 0;  ///< position of the first compressed token that is there
  std::int64_t window_begin = 0;   ///< position of the first token of the exact window
  std::vector<T> sink_keys;        ///< (min(length, sinks), kv_heads, key_dim)
  std::vector<T> sink_values;      ///< (min(length, sinks), kv_heads, value_dim)
  std::vector<T> window_keys;      ///< (max(length, sinks) - window_begin, kv_heads, key_dim)
  std::vector<T> window_values;    ///< (max(length, sinks) - window_begin, kv_heads, value_dim)
  /// (kv_heads, tiles, tile bytes) in host order: the tiles from that of `history_begin` to that of
  /// the last token before `window_begin`. Slots without a token are zero.
  std::vector<std::byte> tiles;
};

namespace detail {

/// Checks all but the tiles of contents that come from outside: whether an engine of these options
/// can be in that state, and the sizes and numbers of the rows.
template <class T>
void require_contents(const char* caller, const CaptureOptions& options, bool compressed,
                      const CaptureContents<T>& in) {
  const auto position = [&](const char* name, std::int64_t value, std::int64_t least,
                            std::int64_t most) {
    require(value >= least && value <= most, ErrorCode::out_of_range, caller, ": ", name, " is ",
            value, ", expected ", least, " to ", most);
  };
  position("length", in.length, 0, std::int64_t{1} << 40U);
  const std::int64_t end = (std::max)(in.length, options.sinks);
  const std::int64_t capacity = window_options(options, compressed).capacity;
  position("window_begin", in.window_begin, (std::max)(options.sinks, end - capacity), end);
  // All tokens that the next query sees are there.
  const std::int64_t seen = options.sliding_window > 0
                                ? (std::max)(options.sinks, end - options.sliding_window + 1)
                                : options.sinks;
  position("history_begin", in.history_begin, options.sinks,
           (std::max)(options.sinks, (std::min)(in.window_begin, seen)));
  require(compressed || in.history_begin == in.window_begin, ErrorCode::out_of_range, caller,
          ": history_begin is ", in.history_begin, ", expected window_begin = ", in.window_begin,
          " where nothing is compressed");
  require(compressed || in.tiles.empty(), ErrorCode::shape_mismatch, caller, ": tiles has ",
          in.tiles.size(), " bytes, expected none where nothing is compressed");
  const auto rows = [&](const char* name, const std::vector<T>& numbers, std::int64_t count,
                        std::int64_t each) {
    require(static_cast<std::int64_t>(numbers.size()) == checked_mul(count, each),
            ErrorCode::shape_mismatch, caller, ": ", name, " has ", numbers.size(),
            " numbers, expected ", count, " x ", each);
    require_numbers_within(caller, name, numbers.data(), checked_mul(count, each),
                           largest_row_number);
  };
  const std::int64_t sinks = (std::min)(in.length, options.sinks);
  rows("sink_keys", in.sink_keys, sinks, options.shape.key_numbers());
  rows("sink_values", in.sink_values, sinks, options.shape.value_numbers());
  rows("window_keys", in.window_keys, end - in.window_begin, options.shape.key_numbers());
  rows("window_values", in.window_values, end - in.window_begin, options.shape.value_numbers());
}

}  // namespace detail
}  // namespace turboquant
