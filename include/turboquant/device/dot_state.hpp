#pragma once

#include <turboquant/device/attention_operations.hpp>
#include <turboquant/device/dot_tables.hpp>
#include <turboquant/device/tile_attention.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// Scratch memory of one warp of the dot kernels.
/// @tparam Lanes of the warp
template <int Lanes, int Rows>
struct DotWarpScratch {
  static constexpr int tokens = static_cast<int>(TileFormat::tokens);

  DotWeights<Rows> weights{};  ///< of tiles
  float* plain = nullptr;      ///< (tokens, Rows) weights of uncompressed tokens, in the same place
  float* zeros = nullptr;      ///< (groups, Lanes, Rows) sums of weights times zero points

  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t floats(int groups) {
    return static_cast<std::size_t>((tokens + groups * Lanes) * Rows);
  }
  KOKKOS_FORCEINLINE_FUNCTION explicit DotWarpScratch(float* memory) : plain(memory) {
    static_assert(tokens >= DotWeights<Rows>::size / Rows);
    weights.words = reinterpret_cast<std::uint32_t*>(memory);
    zeros = memory + tokens * Rows;
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION FloatPack<Rows>& zero(int group, int lane) const {
    return reinterpret_cast<FloatPack<Rows>*>(zeros)[group * Lanes + lane];
  }
};

/// The running softmax of one warp for `Rows` rows. Weights are relative to a reference that grows
/// only when a logit exceeds it by more than `slack` (log 2), so that most tiles rescale nothing.
/// @tparam Tiles `HostDotTiles` or `MmaDotTiles`
/// @tparam Slots dimensions of a lane
template <class Tiles, int Lanes, int Rows, int Slots>
struct DotState {
  static constexpr int tokens = Tiles::tokens;
  static constexpr int chunk = Slots < 4 ? Slots : 4;
  static constexpr float unseen = -1e30F;
  static constexpr float slack = 6;
  static constexpr float limit = 127.0F * 256.0F;  ///< of integers of 15 bits

  float reference[Rows];
  float sum[Rows];  ///< of this lane's tokens
  float output[Slots][Rows];

  KOKKOS_FORCEINLINE_FUNCTION void clear(const DotWarpScratch<Lanes, Rows>& scratch, int groups,
                                         int lane) {
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
  KOKKOS_FORCEINLINE_FUNCTION void take_logits(const DotWarpScratch<Lanes, Rows>& scratch,
                                               int groups, int lane,
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

  /// Adds weights times the values of a tile.
  KOKKOS_FORCEINLINE_FUNCTION void add_values(const Tiles& tiles, const unsigned char* tile,
                                              const DotWarpScratch<Lanes, Rows>& scratch,
                                              const float (&weights)[tokens][Rows]) {
    const TileFormat& format = tiles.in.format;
    const auto groups = static_cast<int>(format.value_groups());
    const bool grouped = format.value_codec == ValueCodec::grouped;
    for (int group = 0; group < groups; ++group) {
      const std::size_t before = 2 * static_cast<std::size_t>(group) * format.sub_tile_tokens();
      float scaled[tokens][Rows];
      FloatPack<Rows> zero = scratch.zero(group, tiles.lane);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        // What the slots of invisible tokens hold may be no number.
        bool visible = false;
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int r = 0; r < Rows; ++r) {
          visible = visible || weights[j][r] > 0;
        }
        const float scale = tiles.value_half(tile, format.value_scales_offset() + before, j);
        const float offset =
            grouped ? tiles.value_half(tile, format.value_zeros_offset() + before, j) : 0.0F;
        const float used_scale = visible ? scale : 0.0F;
        const float used_offset = visible ? offset : 0.0F;
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int r = 0; r < Rows; ++r) {
          scaled[j][r] = weights[j][r] * used_scale;
          zero.numbers[r] += weights[j][r] * used_offset;
        }
      }
      scratch.zero(group, tiles.lane) = zero;
      float units[Rows];
      round_weights(tiles, scratch, scaled, units);
      sync_lanes();
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int first = 0; first < Slots; first += chunk) {
        add_chunk(tiles, tile, scratch, first, group, groups == 1, units);
      }
      sync_lanes();
    }
  }

  /// Adds weights times the values of uncompressed tokens [0, count).
  /// @param row of a token of the block
  template <class RowOf>
  KOKKOS_FORCEINLINE_FUNCTION void add_rows(const Tiles& tiles, const RowView& rows, int head,
                                            const RowOf& row,
                                            const DotWarpScratch<Lanes, Rows>& scratch, int count,
                                            const float (&weights)[tokens][Rows]) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < tokens; ++j) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        scratch.plain[(tiles.lane + Lanes * j) * Rows + r] = weights[j][r];
      }
    }
    sync_lanes();
    for (int token = 0; token < count; ++token) {
      const std::int64_t first = rows.offset(row(token), head);
      const auto weight = reinterpret_cast<const FloatPack<Rows>*>(scratch.plain)[token];
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
  /// Weights times scales as integers, in scratch memory.
  KOKKOS_FORCEINLINE_FUNCTION void round_weights(const Tiles& tiles,
                                                 const DotWarpScratch<Lanes, Rows>& scratch,
                                                 const float (&scaled)[tokens][Rows],
                                                 float (&units)[Rows]) const {
    float inverse[Rows];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int r = 0; r < Rows; ++r) {
      float largest = 0;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        const float magnitude = scaled[j][r] < 0 ? -scaled[j][r] : scaled[j][r];
        largest = magnitude > largest ? magnitude : largest;
      }
      largest = max_over_lanes<Lanes>(largest);
      // The reciprocal must stay finite; weights this small change nothing.
      inverse[r] = largest > 1e-30F ? limit * reciprocal_of_float(largest) : 0.0F;
      units[r] = largest * (1.0F / limit);
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < tokens; ++j) {
      int index = 0;
      int byte = 0;
      tiles.weight_place(j, index, byte);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        // The sum's last bits are the rounded integer.
        constexpr float rounder = 12582912.0F;
        const float shifted = scaled[j][r] * inverse[r] + rounder;
        scratch.weights.set(
            index, byte, r,
            std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(rounder));
      }
    }
  }

  KOKKOS_FORCEINLINE_FUNCTION void add_chunk(const Tiles& tiles, const unsigned char* tile,
                                             const DotWarpScratch<Lanes, Rows>& scratch, int first,
                                             int group, bool one_group,
                                             const float (&units)[Rows]) {
    const TileFormat& format = tiles.in.format;
    const int begin = group * format.value_group;
    const int end = begin + format.value_group;
    bool active[chunk];
    bool any = false;
    bool all = true;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < chunk; ++i) {
      const int d = tiles.dim_of_slot(first + i);
      active[i] = d >= begin && d < end;
      any = any || active[i];
      all = all && active[i];
    }
    if (one_group && !any_lane(!all)) {
      DotSums<chunk, Rows> sums;
      sums.clear();
      tiles.values(tile, first, active, scratch.weights, sums);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < chunk; ++i) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int r = 0; r < Rows; ++r) {
          output[first + i][r] += units[r] * sums.value(i, r);
        }
      }
      return;
    }
    if (!any_lane(any)) {
      return;
    }
    constexpr int few = Tiles::order == TileOrder::mma ? 2 : 1;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < chunk; i += few) {
      bool some[few];
      bool wanted = false;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int k = 0; k < few; ++k) {
        some[k] = active[i + k];
        wanted = wanted || some[k];
      }
      if (any_lane(wanted)) {
        DotSums<few, Rows> sums;
        sums.clear();
        tiles.values(tile, first + i, some, scratch.weights, sums);
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int k = 0; k < few; ++k) {
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int r = 0; r < Rows; ++r) {
            output[first + i + k][r] += some[k] ? units[r] * sums.value(k, r) : 0.0F;
          }
        }
      }
    }
  }
};

}  // namespace turboquant::detail
