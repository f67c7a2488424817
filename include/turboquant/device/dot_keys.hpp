#pragma once

#include <turboquant/device/dot_products.hpp>
#include <turboquant/device/dot_query.hpp>
#include <turboquant/device/key_mean.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// What turns query rows into integers.
struct DotPreparation {
  HadamardTransform rotation{};  ///< dim 0: none
  HadamardTransform sketch{};    ///< inner_product only
  float residual_factor = 0;
  float logit_scale = 0;  ///< softmax scale times log2(e)
};

/// The query rows of a team in its scratch memory, and their logits with the keys of a tile.
///
/// The section holds words of integers, (key_dim, Rows) floats where keys are fp8 or have means,
/// and (4, Rows) numbers: what units of the integers are worth.
/// @tparam Lanes of a warp
template <class Tiles, int Lanes, int Rows>
struct DotKeys {
  static constexpr int tokens = Tiles::tokens;

  const DotFormat& in;
  const TileFormat& format;
  float* memory = nullptr;

  KOKKOS_FORCEINLINE_FUNCTION DotKeys(const DotFormat& tables, float* section)
      : in(tables), format(tables.format), memory(section) {}

  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t floats(const TileFormat& format) {
    const auto dims = static_cast<std::size_t>(DotQuery<Rows>::groups(format.key_dim) * 8 * Rows);
    return dims * (format.centres_keys() ? 2 : 1) + 4 * Rows;
  }

  /// (key_dim, Rows), not rotated, scaled like the logits: for fp8 keys and means.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float* plain() const {
    const bool behind = format.centres_keys() && format.key_codec != KeyCodec::float8;
    return memory + (behind ? DotQuery<Rows>::groups(format.key_dim) * 8 * Rows : 0);
  }

  /// One warp prepares one row.
  /// @param scratch (2 key_dim), of the warp
  KOKKOS_FORCEINLINE_FUNCTION void prepare(const DotPreparation& preparation,
                                           const RowView& queries, std::int64_t at, bool exists,
                                           int lane, int row, float* scratch) const {
    const int dim = format.key_dim;
    if (format.key_codec == KeyCodec::float8 || format.centres_keys()) {
      load_plain(queries, at, exists, preparation.logit_scale, lane, row, plain());
    }
    if (format.key_codec == KeyCodec::float8) {
      return;
    }
    for (int d = lane; d < dim; d += Lanes) {
      scratch[d] = exists ? queries.read(at + d) : 0.0F;
    }
    sync_lanes();
    const auto sync = [] { sync_lanes(); };
    const SharedWork<decltype(sync)> work{lane, Lanes, sync};
    rotate_shared(work, preparation.rotation, scratch, scratch + dim);
    const float unit = round_query<Tiles, Lanes, Rows>(format, lane, row, scratch, query(0));
    units()[row] = unit * in.key_step * preparation.logit_scale;
    if (format.key_codec == KeyCodec::inner_product) {
      rotate_shared(work, preparation.sketch, scratch, scratch + dim);
      const float other = round_query<Tiles, Lanes, Rows>(format, lane, row, scratch, query(1));
      units()[Rows + row] = other * preparation.residual_factor * preparation.logit_scale;
    }
    sync_lanes();
  }

  /// A row as floats, (key_dim, Rows).
  KOKKOS_FORCEINLINE_FUNCTION void load_plain(const RowView& queries, std::int64_t at, bool exists,
                                              float scale, int lane, int row, float* out) const {
    for (int d = lane; d < format.key_dim; d += Lanes) {
      out[d * Rows + row] = exists ? queries.read(at + d) * scale : 0.0F;
    }
  }

  /// Loads the scales of the keys of a tile.
  KOKKOS_FORCEINLINE_FUNCTION void load_scales(const Tiles& tiles, const unsigned char* tile,
                                               typename Tiles::KeyHalves& scales) const {
    if (format.key_codec != KeyCodec::float8) {
      tiles.load_key_halves(tile + format.key_scales_offset(), scales);
    }
  }

  /// Logits of the rows with the tokens of a lane, not masked.
  /// @param stream of the codes
  /// @param next   the tile that follows
  template <class Stream>
  KOKKOS_FORCEINLINE_FUNCTION void score(const Tiles& tiles, const Stream& stream,
                                         const unsigned char* tile, const unsigned char* next,
                                         const typename Tiles::KeyHalves& key_scales,
                                         float (&logits)[tokens][Rows]) const {
    if (format.key_codec == KeyCodec::float8) {
      score_float8(tiles, tile, logits);
    } else {
      DotSums<tokens, Rows> sums;
      sums.clear();
      stream.scores(tiles, tile, next, query(0), sums);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        // With means the sign says which keys are centred.
        const float scale = key_scales[j] < 0 ? -key_scales[j] : key_scales[j];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int r = 0; r < Rows; ++r) {
          logits[j][r] = sums.value(j, r) * (scale * units()[r]);
        }
      }
      if (format.key_codec == KeyCodec::inner_product) {
        typename Tiles::KeyHalves scales;
        tiles.load_key_halves(tile + format.residual_scales_offset(), scales);
        sums.clear();
        tiles.template signs<Rows>(tile, query(1), sums);
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int j = 0; j < tokens; ++j) {
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int r = 0; r < Rows; ++r) {
            logits[j][r] += sums.value(j, r) * (scales[j] * units()[Rows + r]);
          }
        }
      }
    }
    if (format.centres_keys()) {
      add_mean(tiles, tile, logits);
    }
  }

 private:
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION DotQuery<Rows> query(int number) const {
    return {
        reinterpret_cast<WidePack<Rows>*>(memory + number * DotQuery<Rows>::size(format.key_dim))};
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float* units() const {
    return memory + floats(format) - 4 * Rows;
  }

  KOKKOS_FORCEINLINE_FUNCTION void score_float8(const Tiles& tiles, const unsigned char* tile,
                                                float (&logits)[tokens][Rows]) const {
    const auto* query = reinterpret_cast<const FloatPack<Rows>*>(plain());
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < tokens; ++j) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        logits[j][r] = 0;
      }
    }
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int four = 0; four < format.key_dim / 4; ++four) {
      std::uint32_t words[tokens];
      tiles.float8_words(tile, four, words);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int n = 0; n < 4; ++n) {
        const FloatPack<Rows> row = query[4 * four + n];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int j = 0; j < tokens; ++j) {
          const float key = finite_float8(words[j] >> static_cast<unsigned>(8 * n));
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int r = 0; r < Rows; ++r) {
            logits[j][r] += row.numbers[r] * key;
          }
        }
      }
    }
  }

  /// Adds what the key mean of a tile adds to the logits of centred keys.
  KOKKOS_FORCEINLINE_FUNCTION void add_mean(const Tiles& tiles, const unsigned char* tile,
                                            float (&logits)[tokens][Rows]) const {
    const unsigned char* const mean = tile + format.key_mean_offset();
    const auto* query = reinterpret_cast<const FloatPack<Rows>*>(plain());
    float added[Rows] = {};
    for (int d = tiles.lane; d < format.key_dim; d += Tiles::lanes) {
      const float number = finite_half(mean + 2 * d);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        added[r] += query[d].numbers[r] * number;
      }
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int r = 0; r < Rows; ++r) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int other = 1; other < Tiles::lanes; other *= 2) {
        added[r] += from_lane_xor(added[r], other);
      }
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < tokens; ++j) {
      const bool centred = is_centred(format, tile, static_cast<std::size_t>(tiles.token(j)));
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        logits[j][r] += centred ? added[r] : 0.0F;
      }
    }
  }
};

}  // namespace turboquant::detail
