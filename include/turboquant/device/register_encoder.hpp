#pragma once

#include <turboquant/device/encode_exactly.hpp>
#include <turboquant/device/encode_groups.hpp>
#include <turboquant/device/encode_rows.hpp>
#include <turboquant/device/encode_search.hpp>
#include <turboquant/device/team_encoder.hpp>
#include <turboquant/device/team_pack.hpp>

#include <cstddef>
#include <cstdint>

/// @file
/// The team encoder of the common formats, with rotations in registers.

namespace turboquant::detail {

/// For mse keys and values of `Dim` coordinates each.
///
/// A rotation is done by one lane or two that hold the vector in registers, so that there is little
/// to exchange and a few warps are enough: a lane's butterflies do not wait for each other.
/// Everything else is loops over 8 numbers, and rounds are a loop, too: where warps are few, they
/// have to find their code in the instruction cache.
/// @tparam Group dimensions per value group; 0 for codebook values
/// @tparam Lanes lanes of a token
/// @tparam Width lanes of a hardware vector
template <std::size_t Dim, std::size_t Group, int Lanes, int Width>
struct RegisterTeamEncoder {
  using Vector = LaneVector<Dim, Lanes>;
  using Slot = TokenSlot<Dim, Lanes>;
  using Stage = RowStage<Dim, Lanes, Width>;
  using Exact = ExactVector<Width>;
  /// Threads of a team, `Width` lanes each.
  static constexpr int threads = static_cast<int>(TileFormat::tokens) / Stage::tokens;
  /// Threads that encode uncertain tokens.
  static constexpr int exact_threads = 2;

  float rotation_factor = 0;  ///< `hadamard_factor` of the rotations

  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t mean_bytes(
      const TileFormat& format) noexcept {
    return format.centres_keys() ? Dim * sizeof(float) : 0;
  }
  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t scratch_bytes(
      const TileTables& tables) noexcept {
    return TileFormat::tokens * Slot::pitch + mean_bytes(tables.format) +
           tables.key_rotation.rounds * Dim * sizeof(float) + exact_threads * Exact::bytes(Dim) +
           UncertainTokens::bytes + 6 * TeamScratch::alignment;
  }

  template <class Team>
  TURBOQUANT_FUNCTION void operator()(const Team& team, const TileTables& tables,
                                      const EncodeArguments& in) const {
    if (!is_whole(in)) {
      return;
    }
    const TileFormat& format = tables.format;
    TeamScratch scratch(team, scratch_bytes(tables) - TeamScratch::alignment);
    Work work;
    work.lane = lane_index<Width>();
    work.thread = team.team_rank();
    work.num_threads = team.team_size();
    work.slots = scratch.take(TileFormat::tokens * Slot::pitch);
    work.signs =
        reinterpret_cast<float*>(scratch.take(tables.key_rotation.rounds * Dim * sizeof(float)));
    work.exact = scratch.take(exact_threads * Exact::bytes(Dim));
    work.uncertain.count = reinterpret_cast<std::int32_t*>(scratch.take(UncertainTokens::bytes));
    work.tile = reinterpret_cast<unsigned char*>(in.tile);
    auto* const mean = reinterpret_cast<float*>(scratch.take(mean_bytes(format)));
    // Keys and values come together where a slot has room for both.
    const int value_bytes = static_cast<int>(Dim * row_type_bytes(in.values.type));
    const int key_bytes = static_cast<int>(Dim * row_type_bytes(in.keys.type));
    const bool together = Group != 0 && value_bytes + key_bytes <= Slot::room;
    const int keys_at = together ? value_bytes : 0;
    work.for_tokens([&](std::size_t first) {
      work.rows(in.values, in.head, first, 0).begin();
      if (together) {
        work.rows(in.keys, in.head, first, keys_at).begin();
      }
    });
    if constexpr (Group == 0) {
      encode_tokens(
          team, tables.value_rotation, work,
          [&](std::size_t first) {
            encode_rotated(tables.value_rotation, tables.value_codebook, tables.value_scale_rule,
                           nullptr, work.rows(in.values, in.head, first, 0), first, work,
                           ValueScales{format, work.tile});
          },
          [&](std::size_t token, const Exact& vector) {
            vector.load(in.values, in.head, token);
            const ValueScales scales{format, work.tile};
            const std::uint32_t flip = scales.flip(token);
            scales.store(
                token, false,
                vector.quantise(tables.value_rotation, rotation_factor, tables.value_codebook,
                                tables.value_scale_rule, [&](int word, std::uint32_t codes) {
                                  work.put(token, word, codes ^ flip);
                                }));
          });
    } else {
      work.for_tokens([&](std::size_t first) {
        encode_groups(format, work.rows(in.values, in.head, first, 0), first, work);
      });
      team.team_barrier();
    }
    pack_values<Dim>(team, format, work.codes(), work.tile);
    if (format.centres_keys()) {
      // The team has met since keys have come to their slots, if they have.
      RowView staged = in.keys;
      if (together) {
        const auto bytes = static_cast<std::int64_t>(row_type_bytes(in.keys.type));
        staged = {work.slots + keys_at, in.keys.type, Slot::pitch / bytes, 0};
      }
      take_mean(team, format, staged, in.head, work.tile, mean);
    }
    team.team_barrier();
    if (!together) {
      work.for_tokens(
          [&](std::size_t first) { work.rows(in.keys, in.head, first, keys_at).begin(); });
    }
    const float* const centre = format.centres_keys() ? mean : nullptr;
    encode_tokens(
        team, tables.key_rotation, work,
        [&](std::size_t first) {
          encode_rotated(tables.key_rotation, tables.key_codebook, tables.key_scale_rule, centre,
                         work.rows(in.keys, in.head, first, keys_at), first, work,
                         KeyScales{format, work.tile});
        },
        [&](std::size_t token, const Exact& vector) {
          vector.load(in.keys, in.head, token);
          const bool kept = centre != nullptr && !vector.subtract(centre);
          KeyScales{format, work.tile}.store(
              token, kept,
              vector.quantise(
                  tables.key_rotation, rotation_factor, tables.key_codebook, tables.key_scale_rule,
                  [&](int word, std::uint32_t codes) { work.put(token, word, codes); }));
        });
    pack_keys<Dim>(team, format, work.codes(), work.tile);
  }

 private:
  /// A lane, its team's scratch and its tile.
  struct Work {
    int lane = 0;
    int thread = 0;
    int num_threads = 1;
    unsigned char* slots = nullptr;
    float* signs = nullptr;
    unsigned char* exact = nullptr;
    UncertainTokens uncertain{};
    unsigned char* tile = nullptr;

    [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION Stage rows(const RowView& view, int head,
                                                         std::size_t first, int at) const {
      return Stage(view, head, first, slots + first * Slot::pitch, at, lane);
    }
    [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION unsigned char* slot(std::size_t token) const {
      return slots + token * Slot::pitch;
    }
    KOKKOS_FORCEINLINE_FUNCTION void put(std::size_t token, int word, std::uint32_t codes) const {
      reinterpret_cast<std::uint32_t*>(slot(token) + Slot::codes_at)[word] = codes;
    }
    [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION TokenCodes<Slot::pitch> codes() const {
      return {slots + Slot::codes_at};
    }
    /// Calls with the first of every `Stage::tokens` tokens of this thread.
    template <class Body>
    KOKKOS_FORCEINLINE_FUNCTION void for_tokens(const Body& body) const {
      TURBOQUANT_KEEP_LOOP_IN_KERNELS
      for (int step = thread; step < threads; step += num_threads) {
        body(static_cast<std::size_t>(step * Stage::tokens));
      }
    }
    template <class Body>
    KOKKOS_FORCEINLINE_FUNCTION void for_uncertain(const Body& body) const {
      const int workers = num_threads < exact_threads ? num_threads : exact_threads;
      if (thread < workers) {
        const Exact vector(exact + static_cast<std::size_t>(thread) * Exact::bytes(Dim), Dim);
        TURBOQUANT_KEEP_LOOP_IN_KERNELS
        for (std::int32_t i = thread; i < *uncertain.count; i += workers) {
          body(uncertain[i], vector);
        }
      }
    }
  };

  /// Where the fp16 numbers of a token are: those of `TileFormat`, for one dimension.
  static KOKKOS_FORCEINLINE_FUNCTION unsigned char* half_at(const TileFormat& format,
                                                            std::size_t offset, bool of_values,
                                                            std::size_t token,
                                                            unsigned char* tile) {
    if (format.order == TileOrder::host) {
      return tile + offset + 2 * token;
    }
    constexpr std::size_t tokens = mma_order::sub_tile_tokens(Dim, Dim);
    const std::size_t place = of_values ? mma_order::value_half(tokens, token % tokens)
                                        : mma_order::key_half(tokens, token % tokens);
    return tile + token / tokens * format.sub_tile_bytes() + offset + 2 * place;
  }

  struct KeyScales {
    const TileFormat& format;
    unsigned char* tile;

    [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION std::uint32_t flip(std::size_t /*token*/) const {
      return 0;
    }
    KOKKOS_FORCEINLINE_FUNCTION void store(std::size_t token, bool kept, float16 scale) const {
      scale.bits = static_cast<std::uint16_t>(scale.bits | (kept ? 0x8000U : 0U));
      store_half(half_at(format, format.key_scales_offset(), false, token, tile), scale);
    }
  };
  /// Codes of odd tokens are mirrored, as their scale is.
  struct ValueScales {
    const TileFormat& format;
    unsigned char* tile;

    [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION std::uint32_t flip(std::size_t token) const {
      const std::uint32_t top = (1U << static_cast<unsigned>(format.value_bits)) - 1U;
      return token % 2 != 0 ? top * 0x11111111U : 0U;
    }
    KOKKOS_FORCEINLINE_FUNCTION void store(std::size_t token, bool /*kept*/, float16 scale) const {
      scale.bits = static_cast<std::uint16_t>(scale.bits ^ (token % 2 != 0 ? 0x8000U : 0U));
      store_half(half_at(format, format.value_scales_offset(), true, token, tile), scale);
    }
  };

  /// The mean of the keys, to the tile and as floats.
  template <class Team>
  TURBOQUANT_FUNCTION static void take_mean(const Team& team, const TileFormat& format,
                                            const RowView& keys, int head, unsigned char* tile,
                                            float* mean) {
    for_team_items<Dim>(team, [&](std::size_t d) {
      const float16 number = key_mean_number(TileFormat::tokens, [&](std::size_t token) {
        return keys.read(keys.offset(static_cast<std::int64_t>(token), head) +
                         static_cast<std::int64_t>(d));
      });
      store_half(tile + format.key_mean_offset() + 2 * d, number);
      mean[d] = number.to_float();
    });
  }

  /// Encodes all tokens, then those that turned out to be uncertain; codes are in the slots after.
  template <class Team, class Encode, class EncodeExactly>
  KOKKOS_FORCEINLINE_FUNCTION void encode_tokens(const Team& team,
                                                 const HadamardTransform& rotation,
                                                 const Work& work, const Encode& encode,
                                                 const EncodeExactly& encode_exactly) const {
    for_team_items<Dim>(team, [&](std::size_t i) {
      const ButterflySigns signs(Dim, i);
      for (std::size_t round = 0; round < rotation.rounds; ++round) {
        work.signs[round * Dim + i] = signs.product(rotation.signs + round * Dim);
      }
    });
    *work.uncertain.count = 0;  // by everyone
    team.team_barrier();
    work.for_tokens(encode);
    team.team_barrier();
    if (*work.uncertain.count > 0) {
      work.for_uncertain(encode_exactly);
      team.team_barrier();
    }
  }

  template <class Scales>
  KOKKOS_FORCEINLINE_FUNCTION void encode_rotated(const HadamardTransform& rotation,
                                                  const KernelCodebook& codebook, ScaleRule rule,
                                                  const float* mean, Stage rows, std::size_t first,
                                                  const Work& work, const Scales& scales) const {
    const int part = work.lane % Lanes;
    const std::size_t token = first + static_cast<std::size_t>(work.lane / Lanes);
    rows.expect();
    bool kept = true;
    bool certain = true;
    if (mean != nullptr) {
      certain = keeps_itself(mean, part, rows, kept);
    }
    Vector vector;
    // Two branches, or every vector would pay for the mean.
    const RoughNorm norm =
        kept ? take(
                   rows, [](float x, int /*i*/) { return x; }, vector)
             : take(
                   rows,
                   [&](float x, int i) { return minus_mean(x, mean[Vector::coordinate(part, i)]); },
                   vector);
    const std::uint32_t flip = scales.flip(token);
    float16 scale;
    certain =
        quantise_vector(
            work.signs, static_cast<int>(rotation.rounds), rotation_factor, codebook, rule, part,
            norm, vector, work.slot(token),
            [&](int word, std::uint32_t codes) { work.put(token, word, codes ^ flip); }, scale) &&
        certain;
    if (part == 0) {
      scales.store(token, mean != nullptr && kept, scale);
      if (!certain) {
        work.uncertain.add(token);
      }
    }
  }

  /// Norm and normalised numbers of a vector, each made by `number` of what rows hold and its
  /// place.
  template <class Number>
  static KOKKOS_FORCEINLINE_FUNCTION RoughNorm take(Stage& rows, const Number& number,
                                                    Vector& vector) {
    float largest = 0;
    double squares[2] = {};
    rows.for_runs(0, Stage::runs, [&](int run, const float(&x)[8]) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int e = 0; e < 8; ++e) {
        const float found = number(x[e], 8 * run + e);
        largest = larger_of(largest, std::fabs(found));
        squares[e % 2] += static_cast<double>(found) * static_cast<double>(found);
      }
    });
    const RoughNorm norm{Vector::largest_of_lanes(largest),
                         Vector::over_lanes(squares[0] + squares[1])};
    const float factor = normalising_factor(norm.largest);
    rows.take(vector, [&](float x, int i) { return normal_product(number(x, i), factor); });
    return norm;
  }

  /// Whether a vector does not gain from the mean, `kept`.
  /// @return whether that is certain
  KOKKOS_FORCEINLINE_FUNCTION bool keeps_itself(const float* mean, int part, Stage& rows,
                                                bool& kept) const {
    float gains[4] = {};    // 2 <x, m> - |m|^2, right to 2^-19 of the sum of squares
    float squares[4] = {};  // |x|^2 + |m|^2
    rows.for_runs(0, Stage::runs, [&](int run, const float(&x)[8]) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int e = 0; e < 8; ++e) {
        const float number = mean[Vector::coordinate(part, 8 * run + e)];
        gains[e % 4] += number * (2 * x[e] - number);
        squares[e % 4] += x[e] * x[e];
        squares[e % 4] += number * number;
      }
    });
    const float gain = Vector::over_lanes((gains[0] + gains[1]) + (gains[2] + gains[3]));
    const float bound =
        0x1p-18F * Vector::over_lanes((squares[0] + squares[1]) + (squares[2] + squares[3]));
    kept = gain < 0;
    return gain > bound || gain < -bound;
  }

  KOKKOS_FORCEINLINE_FUNCTION void encode_groups(const TileFormat& format, Stage rows,
                                                 std::size_t first, const Work& work) const {
    constexpr int groups = static_cast<int>(Dim / (Group == 0 ? Dim : Group));
    constexpr int runs = Stage::runs / groups;
    const int part = work.lane % Lanes;
    const std::size_t token = first + static_cast<std::size_t>(work.lane / Lanes);
    const int top = (1 << static_cast<unsigned>(format.value_bits)) - 1;
    unsigned char* const scales =
        half_at(format, format.value_scales_offset(), true, token, work.tile);
    unsigned char* const zeros =
        half_at(format, format.value_zeros_offset(), true, token, work.tile);
    const std::size_t stride = 2 * format.sub_tile_tokens();  // from group to group
    rows.expect();
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int group = 0; group < groups; ++group) {
      float lowest = float_infinity;
      float highest = -float_infinity;
      rows.for_runs(group * runs, (group + 1) * runs, [&](int /*run*/, const float(&x)[8]) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int e = 0; e < 8; ++e) {
          lowest = smaller_of(lowest, x[e]);
          highest = larger_of(highest, x[e]);
        }
      });
      const GroupNumbers numbers =
          group_numbers(Vector::smallest_of_lanes(lowest), Vector::largest_of_lanes(highest), top,
                        token % 2 != 0);
      if (part == 0) {
        store_half(scales + static_cast<std::size_t>(group) * stride, numbers.scale);
        store_half(zeros + static_cast<std::size_t>(group) * stride, numbers.zero);
      }
      const GroupCodes codes(numbers, top);
      rows.for_runs(group * runs, (group + 1) * runs, [&](int run, const float(&x)[8]) {
        work.put(token, run * Lanes + part, codes.codes(x));
      });
    }
  }
};

}  // namespace turboquant::detail
