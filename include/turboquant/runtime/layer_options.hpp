#pragma once

#include <turboquant/cache/capture_engine.hpp>
#include <turboquant/device/tile_codec.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace turboquant {

/// What one layer of a model keeps in a `CacheManager`.
struct LayerOptions {
  /// Sizes, windows, sinks and pages; block_size must be positive where the layer is compressed.
  CaptureOptions capture{};
  /// How tokens are compressed; nothing keeps them exact.
  std::optional<TileCodecOptions> codec{};
  /// This layer owns nothing and reads the cache of that one.
  std::optional<std::int64_t> source{};
  /// False for layers without a token cache, such as recurrent ones.
  bool has_cache = true;
};

/// Device memory by use, in bytes. Memory shared by forks counts once.
struct MemoryUse {
  std::size_t codes = 0;         ///< key and value codes and signs, in pages in use
  std::size_t metadata = 0;      ///< scales, zero points and key means, in pages in use
  std::size_t exact_window = 0;  ///< exact windows, sinks and uncompressed layers
  std::size_t free_pages = 0;    ///< allocated, not in use
  std::size_t page_tables = 0;
  std::size_t codec_tables = 0;  ///< rotations and codebooks
  std::size_t workspace = 0;     ///< scratch memory kept between calls

  [[nodiscard]] std::size_t total() const noexcept {
    return codes + metadata + exact_window + free_pages + page_tables + codec_tables + workspace;
  }
};

/// One layer of one sequence. Memory shared with forks counts in each of them.
struct SequenceStats {
  std::int64_t length = 0;          ///< tokens appended
  std::int64_t missed_tokens = 0;   ///< the newest tokens that went by in mode off
  std::int64_t history_tokens = 0;  ///< compressed
  std::int64_t window_tokens = 0;   ///< exact, newest
  std::int64_t sink_tokens = 0;     ///< exact, first
  std::size_t history_bytes = 0;    ///< pages, room in the last one included
  std::size_t exact_bytes = 0;      ///< window and sinks as allocated
  std::size_t dense_bytes = 0;      ///< the stored tokens as 16-bit rows

  /// How many times smaller than 16-bit rows; 0 without tokens.
  [[nodiscard]] double ratio() const noexcept {
    const std::size_t bytes = history_bytes + exact_bytes;
    return bytes == 0 ? 0.0 : static_cast<double>(dense_bytes) / static_cast<double>(bytes);
  }
};

namespace detail {

/// Bytes of scales, zero points and key mean in a tile.
[[nodiscard]] constexpr std::size_t metadata_bytes_of(const TileFormat& format) noexcept {
  return format.tokens() * format.metadata_bytes() + format.key_mean_bytes();
}

/// A codec that no tile is made with, for attention over exact rows alone.
[[nodiscard]] inline TileCodecOptions codec_for_exact_rows(const KVShape& shape) {
  TileCodecOptions options;
  options.format.key_codec = KeyCodec::float8;
  options.format.key_bits = 8;
  options.format.key_dim = shape.key_dim;
  options.format.value_dim = shape.value_dim;
  options.format.value_group = shape.value_dim;
  return options;
}

/// @throws Error(invalid_argument), Error(out_of_range) naming layer and field
inline void require_layers(const std::vector<LayerOptions>& layers) {
  require(!layers.empty(), ErrorCode::invalid_argument,
          "CacheManager: layers is empty, expected at least one layer");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerOptions& layer = layers[i];
    if (layer.source) {
      require(layer.has_cache && !layer.codec, ErrorCode::invalid_argument, "CacheManager: layers[",
              i, "] has a source, expected neither a codec nor has_cache = false beside it");
      const std::int64_t source = *layer.source;
      require(source >= 0 && source < static_cast<std::int64_t>(layers.size()),
              ErrorCode::out_of_range, "CacheManager: layers[", i, "].source is ", source,
              ", expected 0 to ", layers.size() - 1);
      const LayerOptions& owner = layers[static_cast<std::size_t>(source)];
      require(owner.has_cache && !owner.source, ErrorCode::invalid_argument,
              "CacheManager: layers[", i, "].source is ", source,
              ", expected a layer with a cache of its own");
    } else if (layer.codec) {
      {
        const ErrorContext context("CacheManager: layers[", i, "]: ");
        require_supported(layer.codec->format);
      }
      const std::int64_t block_size = layer.capture.block_size;
      const int tile_tokens = layer.codec->format.tile_tokens;
      require(
          block_size > 0 && block_size % tile_tokens == 0 && block_size <= std::int64_t{1} << 30U,
          ErrorCode::invalid_argument, "CacheManager: layers[", i, "].capture.block_size is ",
          block_size, ", expected a positive multiple of codec.format.tile_tokens = ", tile_tokens,
          " up to 2^30");
    }
    require(layer.has_cache || !layer.codec, ErrorCode::invalid_argument, "CacheManager: layers[",
            i, "] has a codec, expected none where has_cache is false");
  }
}

}  // namespace detail
}  // namespace turboquant
