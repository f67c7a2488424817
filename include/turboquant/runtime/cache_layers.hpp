#pragma once

#include <turboquant/cache/capture_engine.hpp>
#include <turboquant/device/preferred_order.hpp>
#include <turboquant/runtime/layer_options.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace turboquant::detail {

/// A layer with what its sequences share: codec tables and page pool.
template <class Space>
struct CacheLayer {
  LayerOptions options{};
  std::size_t owner = 0;  ///< the layer whose cache this one uses, itself included
  /// Of the tiles; for an uncompressed layer one of the right sizes for attention over exact rows.
  std::optional<TileCodec<Space>> codec{};
  std::shared_ptr<PagePool<Space>> pool{};
};

/// One layer of one sequence.
template <class Space, class T>
struct CacheEntry {
  KVCaptureEngine<Space, T> engine;
  std::int64_t missed = 0;  ///< tokens behind those of the engine that went by in mode off

  [[nodiscard]] std::int64_t length() const noexcept { return engine.length() + missed; }
};

/// The layers of a model, with one codec for equal options and one pool for equal pages.
template <class Space>
class CacheLayers {
 public:
  /// @throws Error naming the layer and the field
  CacheLayers(const std::vector<LayerOptions>& layers, const std::shared_ptr<MemoryLedger>& ledger,
              std::size_t slab_pages) {
    require_layers(layers);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const ErrorContext context("CacheManager: layers[", i, "]: ");
      CacheLayer<Space> layer;
      layer.options = layers[i];
      layer.owner = layers[i].source ? static_cast<std::size_t>(*layers[i].source) : i;
      if (layers[i].has_cache && !layers[i].source) {
        require_valid("KVShape", layers[i].capture.shape);
        layer.codec = codec_for(layers[i].codec ? *layers[i].codec
                                                : codec_for_exact_rows(layers[i].capture.shape));
        if (layers[i].codec) {
          layer.pool = pool_for(layers[i], ledger, slab_pages);
        }
      }
      layers_.push_back(std::move(layer));
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return layers_.size(); }
  [[nodiscard]] const CacheLayer<Space>& operator[](std::size_t layer) const noexcept {
    return layers_[layer];
  }

  /// Page pools with the tile format of their pages.
  struct Pool {
    TileFormat format{};
    int kv_heads = 0;
    std::int64_t block_size = 0;
    std::shared_ptr<PagePool<Space>> pages{};
  };
  [[nodiscard]] const std::vector<Pool>& pools() const noexcept { return pools_; }
  [[nodiscard]] std::size_t codec_bytes() const noexcept {
    std::size_t total = 0;
    for (const TileCodec<Space>& codec : codecs_) {
      total += codec.bytes();
    }
    return total;
  }

  /// The layer that owns the cache of `layer`.
  /// @throws Error(out_of_range), Error(unsupported) where there is none
  [[nodiscard]] const CacheLayer<Space>& owner_of(const char* caller, std::int64_t layer) const {
    require(layer >= 0 && layer < static_cast<std::int64_t>(layers_.size()),
            ErrorCode::out_of_range, caller, ": layer is ", layer, ", expected 0 to ",
            layers_.size() - 1);
    const CacheLayer<Space>& named = layers_[static_cast<std::size_t>(layer)];
    require(named.options.has_cache, ErrorCode::unsupported, caller, ": layer ", layer,
            " has no token cache, expected a layer with attention");
    return layers_[named.owner];
  }

 private:
  [[nodiscard]] TileCodec<Space> codec_for(TileCodecOptions options) {
    options.format.order = preferred_order<Space>(options.format);
    for (const TileCodec<Space>& codec : codecs_) {
      if (codec.options() == options) {
        return codec;
      }
    }
    codecs_.emplace_back(options);
    return codecs_.back();
  }

  [[nodiscard]] std::shared_ptr<PagePool<Space>> pool_for(
      const LayerOptions& layer, const std::shared_ptr<MemoryLedger>& ledger,
      std::size_t slab_pages) {
    Pool wanted;
    wanted.format = layer.codec->format;
    wanted.kv_heads = layer.capture.shape.kv_heads;
    wanted.block_size = layer.capture.block_size;
    for (const Pool& pool : pools_) {
      if (pool.format == wanted.format && pool.kv_heads == wanted.kv_heads &&
          pool.block_size == wanted.block_size) {
        return pool.pages;
      }
    }
    wanted.pages = std::make_shared<PagePool<Space>>(
        ledger, PagePoolOptions{.page_bytes = CompressedKVStore<Space>::page_bytes(
                                    wanted.format, wanted.kv_heads, wanted.block_size),
                                .slab_pages = slab_pages});
    pools_.push_back(wanted);
    return wanted.pages;
  }

  std::vector<CacheLayer<Space>> layers_;
  std::vector<TileCodec<Space>> codecs_;
  std::vector<Pool> pools_;
};

/// Checks the offsets of a batch: 0, then non-decreasing up to `rows`.
inline void require_offsets(const char* caller, const char* name,
                            std::span<const std::int64_t> offsets, std::size_t sequences,
                            std::int64_t rows) {
  require(offsets.size() == sequences + 1, ErrorCode::shape_mismatch, caller, ": ", name,
          ".size() is ", offsets.size(), ", expected one more than the ", sequences, " sequences");
  require(offsets.front() == 0 && offsets.back() == rows, ErrorCode::shape_mismatch, caller, ": ",
          name, " runs from ", offsets.front(), " to ", offsets.back(),
          ", expected 0 to the number of rows, ", rows);
  for (std::size_t i = 0; i < sequences; ++i) {
    require(offsets[i] <= offsets[i + 1], ErrorCode::invalid_argument, caller, ": ", name, "[",
            i + 1, "] is ", offsets[i + 1], ", expected at least ", name, "[", i,
            "] = ", offsets[i]);
  }
}

}  // namespace turboquant::detail
