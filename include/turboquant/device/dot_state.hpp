#pragma once

#include <turboquant/device/arch/device_floats.hpp>
#include <turboquant/device/attention_operations.hpp>
#include <turboquant/device/dot_products.hpp>
#include <turboquant/device/tile_attention.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// Scratch memory of one warp of the dot kernels, whose lanes take `Shares` tiles at a time.
/// @tparam Lanes of the warp
template <int Lanes, int Shares, int Rows>
struct DotWarpScratch {
  static constexpr int tokens = static_cast<int>(TileFormat::max_tokens);
  /// Value groups whose weights are there at the same time; vectors of 64 lanes have no room for
  /// more.
  static constexpr int most_groups = Shares > 2 ? 2 : 4;

  float* memory = nullptr;
  int groups_together = 1;

  [[nodiscard]] static TURBOQUANT_FUNCTION int together(int groups) {
    return groups < most_groups ? groups : most_groups;
  }
  /// Weights are integers for tiles and floats for uncompressed tokens.
  [[nodiscard]] static TURBOQUANT_FUNCTION int weights_size(int groups) {
    const int integers = together(groups) * (Shares * DotWeights<Rows>::size + Rows);
    const int floats = Shares * tokens * Rows;
    return integers > floats ? integers : floats;
  }
  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t floats(int groups) {
    return static_cast<std::size_t>(weights_size(groups) + groups * Lanes * Rows);
  }
  KOKKOS_FORCEINLINE_FUNCTION DotWarpScratch(float* start, int groups)
      : memory(start), groups_together(together(groups)) {}

  /// Weights for value group `group` of those together.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION DotWeights<Rows> weights(int group, int share) const {
    return {reinterpret_cast<WidePack<Rows>*>(memory +
                                              (group * Shares + share) * DotWeights<Rows>::size)};
  }
  /// What a unit of these weights is worth.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION FloatPack<Rows>& unit(int group) const {
    return reinterpret_cast<FloatPack<Rows>*>(memory + groups_together * Shares *
                                                           DotWeights<Rows>::size)[group];
  }
  /// Weights of an uncompressed token.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION FloatPack<Rows>& plain(int share, int token) const {
    return reinterpret_cast<FloatPack<Rows>*>(memory)[share * tokens + token];
  }
  /// A lane's sum of weights times zero points of a value group.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION FloatPack<Rows>& zero(int group, int lane) const {
    const int before = weights_size(groups_together);
    return reinterpret_cast<FloatPack<Rows>*>(memory + before)[group * Lanes + lane];
  }
};

/// The running softmax of one warp for `Rows` rows. Weights are relative to a reference that grows
/// only when a logit exceeds it by more than `slack` (log 2), so that most tiles rescale nothing.
/// Lanes take `Lanes / Tiles::lanes` tiles at a time, whose outputs they add up apart.
/// @tparam Tiles `HostDotTiles` or `MmaDotTiles`
/// @tparam Slots dimensions of a lane
template <class Tiles, int Lanes, int Rows, int Slots>
struct DotState {
  static constexpr int tokens = Tiles::tokens;
  static constexpr int chunk = Tiles::chunk;
  static constexpr int shares = Lanes / Tiles::lanes;
  static constexpr float unseen = -1e30F;
  static constexpr float slack = 6;
  static constexpr float limit = 127.0F * 256.0F;  ///< of integers of 15 bits

  float reference[Rows];
  float sum[Rows];  ///< of this lane's tokens
  float output[Slots][Rows];

  using Scratch = DotWarpScratch<Lanes, shares, Rows>;

  KOKKOS_FORCEINLINE_FUNCTION void clear(const Scratch& scratch, int groups, int lane) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int r = 0; r < Rows; ++r) {
      reference[r] = unseen;
      sum[r] = 0;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int slot = 0; slot < Slots; ++slot) {
        output[slot][r] = 0;
      }
    }
    for (int group = 0; group < groups; ++group) {
      scratch.zero(group, lane) = FloatPack<Rows>{};
    }
  }

  /// Turns logits into weights; the state is rescaled where a maximum grows.
  /// @param groups value groups that have zero points
  /// @param lane   of the warp
  KOKKOS_FORCEINLINE_FUNCTION void take_logits(const Scratch& scratch, int groups, int lane,
                                               float (&logits)[tokens][Rows]) {
    bool grows = false;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < tokens; ++j) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        grows = grows || logits[j][r] > reference[r] + slack;
      }
    }
    if (any_lane(grows)) {
      float factors[Rows];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        float highest = reference[r];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int j = 0; j < tokens; ++j) {
          highest = logits[j][r] > highest ? logits[j][r] : highest;
        }
        highest = max_over_lanes<Lanes>(highest);
        factors[r] = exp2_of_float(reference[r] - highest);
        reference[r] = highest;
        sum[r] *= factors[r];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int slot = 0; slot < Slots; ++slot) {
          output[slot][r] *= factors[r];
        }
      }
      for (int group = 0; group < groups; ++group) {
        FloatPack<Rows>& zero = scratch.zero(group, lane);
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int r = 0; r < Rows; ++r) {
          zero.numbers[r] *= factors[r];
        }
      }
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < tokens; ++j) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        logits[j][r] = exp2_of_float(logits[j][r] - reference[r]);
        sum[r] += logits[j][r];
      }
    }
  }

  /// Scales and zero points of a value group.
  struct Numbers {
    typename Tiles::ValueHalves scales;
    typename Tiles::ValueHalves zeros;
  };
  static KOKKOS_FORCEINLINE_FUNCTION void load_numbers(const Tiles& tiles,
                                                       const unsigned char* tile, int group,
                                                       Numbers& numbers) {
    const TileFormat& format = tiles.in.format;
    const std::size_t before = 2 * static_cast<std::size_t>(group) * format.sub_tile_tokens();
    tiles.load_value_halves(tile + format.value_scales_offset() + before, numbers.scales);
    if (format.value_codec == ValueCodec::grouped) {
      tiles.load_value_halves(tile + format.value_zeros_offset() + before, numbers.zeros);
    }
  }

  /// Adds weights times the values of a tile.
  /// @param stream of the codes
  /// @param next   the tile that follows
  /// @param numbers of the first value group
  /// @param lane   of the warp
  /// @param whole  whether all tokens are visible
  template <class Stream>
  KOKKOS_FORCEINLINE_FUNCTION void add_values(const Tiles& tiles, const Stream& stream,
                                              const unsigned char* tile, const unsigned char* next,
                                              Numbers& numbers, const Scratch& scratch, int lane,
                                              bool whole, const float (&weights)[tokens][Rows]) {
    const int groups = static_cast<int>(tiles.in.format.value_groups());
    for (int first = 0; first < groups; first += Scratch::most_groups) {
      const int end = first + Scratch::most_groups < groups ? first + Scratch::most_groups : groups;
      for (int group = first; group < end; ++group) {
        if (group > 0) {
          load_numbers(tiles, tile, group, numbers);
        }
        round_weights(tiles, numbers, scratch, lane, whole, group, group - first, weights);
      }
      sync_lanes();
      for (int slot = 0; slot < Slots; slot += chunk) {
        if (groups == 1) {
          add_chunk<1>(tiles, stream, tile, next, scratch, lane, slot, 0, 1);
        } else {
          add_chunk<Tiles::runs>(tiles, stream, tile, next, scratch, lane, slot, first, end);
        }
      }
      sync_lanes();
    }
  }

  /// Adds weights times the values of uncompressed tokens [0, count) of a lane's share.
  /// @param row  of a token of the share
  /// @param lane of the warp
  template <class RowOf>
  KOKKOS_FORCEINLINE_FUNCTION void add_rows(const Tiles& tiles, const RowView& rows, int head,
                                            const RowOf& row, const Scratch& scratch, int lane,
                                            int count, const float (&weights)[tokens][Rows]) {
    const int share = lane / Tiles::lanes;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < tokens; ++j) {
      FloatPack<Rows>& to = scratch.plain(share, tiles.token(j));
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        to.numbers[r] = weights[j][r];
      }
    }
    sync_lanes();
    for (int token = 0; token < count; ++token) {
      const std::int64_t first = rows.offset(row(token), head);
      const FloatPack<Rows> weight = scratch.plain(share, token);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int slot = 0; slot < Slots; ++slot) {
        const int d = tiles.dim_of_slot(slot);
        if (d < tiles.in.format.value_dim) {
          const float value = rows.read(first + d);
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int r = 0; r < Rows; ++r) {
            // An invisible token may hold anything.
            output[slot][r] += weight.numbers[r] > 0 ? weight.numbers[r] * value : 0.0F;
          }
        }
      }
    }
    sync_lanes();
  }

 private:
  /// Weights times scales of a value group as integers, in scratch memory, and what they add to the
  /// sums of zero points.
  /// @param place of the group in scratch memory
  KOKKOS_FORCEINLINE_FUNCTION void round_weights(const Tiles& tiles, const Numbers& numbers,
                                                 const Scratch& scratch, int lane, bool whole,
                                                 int group, int place,
                                                 const float (&weights)[tokens][Rows]) const {
    if (tiles.in.format.value_codec == ValueCodec::grouped) {
      FloatPack<Rows> zero = scratch.zero(group, lane);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        const float offset = whole || is_visible(weights[j]) ? numbers.zeros[j] : 0.0F;
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int r = 0; r < Rows; ++r) {
          zero.numbers[r] += weights[j][r] * offset;
        }
      }
      scratch.zero(group, lane) = zero;
    }
    float scaled[tokens][Rows];
    float largest[Rows] = {};
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < tokens; ++j) {
      const float scale = whole || is_visible(weights[j]) ? numbers.scales[j] : 0.0F;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        scaled[j][r] = weights[j][r] * scale;
        const float magnitude = scaled[j][r] < 0 ? -scaled[j][r] : scaled[j][r];
        largest[r] = magnitude > largest[r] ? magnitude : largest[r];
      }
    }
    float inverse[Rows];
    FloatPack<Rows> unit;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int r = 0; r < Rows; ++r) {
      const float top = max_of_magnitudes<Lanes>(largest[r]);
      // The reciprocal must stay finite; weights this small change nothing.
      inverse[r] = top > 1e-30F ? limit * reciprocal_of_float(top) : 0.0F;
      unit.numbers[r] = top * (1.0F / limit);
    }
    scratch.unit(place) = unit;  // all lanes write the same
    int integers[tokens][Rows];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < tokens; ++j) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        // The sum's last bits are the rounded integer.
        constexpr float rounder = 12582912.0F;
        const float shifted = scaled[j][r] * inverse[r] + rounder;
        integers[j][r] =
            std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(rounder);
      }
    }
    tiles.set_weights(scratch.weights(place, lane / Tiles::lanes), integers);
  }

  /// Whether a token has a weight; what the slots of invisible tokens hold may be no number.
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION bool is_visible(const float (&weights)[Rows]) {
    bool visible = false;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int r = 0; r < Rows; ++r) {
      visible = visible || weights[r] > 0;
    }
    return visible;
  }

  /// Adds products of the dimensions of a chunk that belong to the value groups [first, end).
  template <int Runs, class Stream>
  KOKKOS_FORCEINLINE_FUNCTION void add_chunk(const Tiles& tiles, const Stream& stream,
                                             const unsigned char* tile, const unsigned char* next,
                                             const Scratch& scratch, int lane, int slot, int first,
                                             int end) {
    const TileFormat& format = tiles.in.format;
    constexpr int run = chunk / Runs;
    DotWeights<Rows> weights[Runs];
    int place[Runs];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int k = 0; k < Runs; ++k) {
      const int group = end == 1 ? 0 : tiles.dim_of_slot(slot + k * run) / format.value_group;
      place[k] = group >= first && group < end ? group - first : -1;
      weights[k] = scratch.weights(place[k] < 0 ? 0 : place[k], lane / Tiles::lanes);
    }
    const int number = slot / chunk * Tiles::lanes + tiles.lane;
    DotSums<chunk, Rows> sums;
    sums.clear();
    // Lanes without dimensions read those of another.
    stream.values(tiles, tile, next, tiles.dim_of_slot(slot) < format.value_dim ? number : 0,
                  weights, sums);
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int k = 0; k < Runs; ++k) {
      const FloatPack<Rows> unit = scratch.unit(place[k] < 0 ? 0 : place[k]);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = k * run; i < (k + 1) * run; ++i) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int r = 0; r < Rows; ++r) {
          const float worth = place[k] < 0 ? 0.0F : unit.numbers[r];
          output[slot + i][r] += worth * sums.value(i, r);
        }
      }
    }
  }
};

}  // namespace turboquant::detail
