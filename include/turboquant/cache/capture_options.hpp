#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/cache/ring_buffer.hpp>
#include <turboquant/cache/token_rows.hpp>
#include <turboquant/device/tile_codec.hpp>

#include <cstdint>
#include <optional>

namespace turboquant {

struct CaptureOptions {
  KVShape shape{};
  /// Tokens of the exact window of a compressed layer, 0 to 2^30; at least 63 with key means.
  std::int64_t window_capacity = 128;
  /// The first so many tokens stay exact for good (attention sinks), 0 to 2^20.
  std::int64_t sinks = 0;
  /// A query sees this many newest tokens, itself included, and the sinks; 0 = all. Older tokens
  /// are given up.
  std::int64_t sliding_window = 0;
  /// With a sliding window: this many older tokens are kept too, so that as many newest tokens can
  /// be truncated or be queries of their own; at least 8.
  std::int64_t rollback_tokens = 8;
  /// Tokens of a page of compressed history, a multiple of the format's `tile_tokens`; 0 = flat,
  /// without a sliding window only.
  std::int64_t block_size = 256;
};

namespace detail {

/// `options`, if an engine with that codec can have them.
/// @throws Error
template <class Space>
const CaptureOptions& checked(const CaptureOptions& options,
                              const std::optional<TileCodec<Space>>& codec) {
  require_valid("KVCaptureEngine", options.shape);
  const auto in_range = [](const char* name, std::int64_t value, std::int64_t least,
                           std::int64_t most) {
    require(value >= least && value <= most, ErrorCode::invalid_argument, "KVCaptureEngine: ", name,
            " is ", value, ", expected ", least, " to ", most);
  };
  constexpr std::int64_t most = std::int64_t{1} << 30U;
  in_range("window_capacity", options.window_capacity, 0, most);
  in_range("sinks", options.sinks, 0, std::int64_t{1} << 20U);
  in_range("sliding_window", options.sliding_window, 0, most);
  in_range("rollback_tokens", options.rollback_tokens, 8, most);
  in_range("block_size", options.block_size, 0, most);
  if (codec) {
    const TileFormat& format = codec->format();
    require(format.key_dim == options.shape.key_dim && format.value_dim == options.shape.value_dim,
            ErrorCode::shape_mismatch, "KVCaptureEngine: the codec has key_dim ", format.key_dim,
            " and value_dim ", format.value_dim, ", expected those of the shape, ",
            options.shape.key_dim, " and ", options.shape.value_dim);
    require(options.sliding_window == 0 || options.block_size > 0, ErrorCode::unsupported,
            "KVCaptureEngine: block_size is 0 (flat), expected pages with a sliding window of ",
            options.sliding_window);
    constexpr auto tile = static_cast<std::int64_t>(TileFormat::max_tokens);
    require(!format.centres_keys() || options.window_capacity >= tile - 1, ErrorCode::unsupported,
            "KVCaptureEngine: window_capacity is ", options.window_capacity, ", expected at least ",
            tile - 1, " with key_centring tile_mean, so that the tokens of a tile leave together");
  }
  return options;
}

/// Of the exact window.
[[nodiscard]] inline RingBufferOptions window_options(const CaptureOptions& options,
                                                      bool compressed) {
  if (compressed) {
    return {.capacity = options.window_capacity,
            .flush_tokens = static_cast<std::int64_t>(TileFormat::max_tokens),
            .first_position = options.sinks};
  }
  return {.capacity = options.sliding_window > 0 ? options.sliding_window + options.rollback_tokens
                                                 : std::int64_t{1} << 40U,
          .flush_tokens = 1,
          .first_position = options.sinks};
}

}  // namespace detail
}  // namespace turboquant
