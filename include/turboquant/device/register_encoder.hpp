#pragma once

#include <turboquant/device/encode_exactly.hpp>
#include <turboquant/device/encode_groups.hpp>
#include <turboquant/device/encode_rows.hpp>
#include <turboquant/device/encode_search.hpp>
#include <turboquant/device/team_encoder.hpp>
#include <turboquant/device/team_pack.hpp>
#include <turboquant/device/tile_sections.hpp>

#include <cstddef>
#include <cstdint>

/// @file
/// The team encoder of the common formats, with rotations in registers.

namespace turboquant::detail {

/// For mse keys and values of `Dim` coordinates each.
///
/// A few lanes hold a vector in their registers and exchange numbers through scratch memory, so
/// that many warps fit a multiprocessor and their code its instruction cache. A lane's butterflies
/// do not wait for each other, and a warp does not wait for others until all codes are there.
/// @tparam Group dimensions per value group; 0 for codebook values
/// @tparam Lanes lanes of a token
/// @tparam Width lanes of a hardware vector
/// @tparam Centred whether the tiles have key means
/// @tparam Tokens 64 for tiles of 64 tokens, 32 for those of 16 or 32
template <std::size_t Dim, std::size_t Group, int Lanes, int Width, bool Centred,
          std::size_t Tokens>
struct RegisterTeamEncoder {
  using Vector = LaneVector<Dim, Lanes>;
  using Exchange = LaneExchange<Dim, Lanes>;
  using Exact = ExactVector<Dim, Width>;
  /// Tokens that a hardware vector takes at a time.
  static constexpr int tokens = Width / Lanes;
  /// Tokens that a thread, `Width` lanes, takes one vector after another; no tile has fewer.
  static constexpr int thread_tokens = Width == 1    ? 8
                                       : Tokens < 64 ? (tokens < 16 ? 16 : tokens)
                                                     : (Dim > 128 ? 4 : 2) * tokens;
  /// Threads of a team at most.
  static constexpr int most_threads = static_cast<int>(Tokens) / thread_tokens;
  /// Of a thread: the exchanges of its tokens, or one uncertain token.
  static constexpr std::size_t work_bytes =
      tokens * Exchange::pitch > Exact::bytes ? tokens* Exchange::pitch : Exact::bytes;
  /// Bytes from the codes of a token to those of the next.
  static constexpr int code_pitch = static_cast<int>(Dim) / 2 + 16;
  using Codes = TokenCodes<code_pitch>;

  static constexpr std::size_t mean_bytes = Centred ? Dim * sizeof(float) : 0;

  float rotation_factor;  ///< `hadamard_factor` of the rotations
  TileSections sections;  ///< of the tiles' format

  /// Tokens of a tile.
  [[nodiscard]] static constexpr TURBOQUANT_FUNCTION std::size_t all_tokens(
      const TileTables& tables) noexcept {
    return Tokens < 64 ? tables.format.tokens() : 64;
  }
  /// Threads of a team.
  [[nodiscard]] static constexpr TURBOQUANT_FUNCTION int threads(
      const TileTables& tables) noexcept {
    return static_cast<int>(all_tokens(tables)) / thread_tokens;
  }

  /// With 1 KiB for what a driver takes, which Kokkos forgets when it divides a multiprocessor's
  /// scratch memory among teams.
  [[nodiscard]] static constexpr TURBOQUANT_FUNCTION std::size_t scratch_bytes(
      const TileTables& tables) noexcept {
    return static_cast<std::size_t>(threads(tables)) * work_bytes +
           2 * all_tokens(tables) * (code_pitch + 1) + mean_bytes + 1024 + TeamScratch::alignment;
  }

  template <class Team>
  TURBOQUANT_FUNCTION void operator()(const Team& team, const TileTables& tables,
                                      const EncodeArguments& in) const {
    if (!is_whole(tables.format, in)) {
      return;
    }
    TeamScratch scratch(team, scratch_bytes(tables) - TeamScratch::alignment);
    const std::size_t count = all_tokens(tables);
    unsigned char* const work =
        scratch.take(static_cast<std::size_t>(threads(tables)) * work_bytes) +
        static_cast<std::size_t>(team.team_rank()) * work_bytes;
    const Side keys{scratch.take(count * code_pitch), scratch.take(count)};
    const Side values{scratch.take(count * code_pitch), scratch.take(count)};
    auto* const tile = reinterpret_cast<unsigned char*>(in.tile);
    const float* centre = nullptr;
    if constexpr (Centred) {
      auto* const mean = reinterpret_cast<float*>(scratch.take(mean_bytes));
      take_mean(team, in.keys, in.head, tile, mean);
      team.team_barrier();
      centre = mean;
    }
    const KeyScales key_scales{sections, tile};
    const ValueScales value_scales{sections, tile};
    const auto lane = static_cast<unsigned>(lane_index<Width>());
    const auto part = static_cast<int>(lane % Lanes);
    const Exchange exchange(work + lane / Lanes * Exchange::pitch, part);
    // Calls with the first of every `tokens` tokens of the thread.
    const auto for_steps = [&](const auto& body) {
      TURBOQUANT_KEEP_LOOP_IN_KERNELS
      for (int first = team.team_rank() * tokens; first < static_cast<int>(count);
           first += team.team_size() * tokens) {
        body(static_cast<std::size_t>(first));
      }
    };
    bool certain = true;
    for_steps([&](std::size_t first) {
      const std::size_t token = first + lane / Lanes;
      const unsigned char* const key = exchange.place_in(in.keys, in.head, token);
      const unsigned char* const value = exchange.place_in(in.values, in.head, token);
      exchange.prefetch_row(in.values.type, value);
      Vector vector;
      exchange.read(in.keys.type, key, vector);
      certain &= encode_rotated(
          tables.key_butterflies, static_cast<int>(tables.key_rotation.rounds), tables.key_codebook,
          tables.key_scale_rule, centre, token, part, exchange, vector, keys, key_scales);
      exchange.read(in.values.type, value, vector);
      if constexpr (Group == 0) {
        certain &=
            encode_rotated(tables.value_butterflies, static_cast<int>(tables.value_rotation.rounds),
                           tables.value_codebook, tables.value_scale_rule, nullptr, token, part,
                           exchange, vector, values, value_scales);
      } else {
        encode_groups(token, part, exchange, vector, values, tile);
      }
    });
    if (any_lane(!certain)) {
      Exact exact(work);
      sync_lanes();
      const auto put_codes = [&](const Side& side, std::size_t token, std::uint32_t flip) {
        for (std::size_t word = lane; word < Dim / 8; word += Width) {
          side.put(token, static_cast<int>(word), exact.word(word) ^ flip);
        }
      };
      for_steps([&](std::size_t first) {
        TURBOQUANT_KEEP_LOOP_IN_KERNELS
        for (std::size_t token = first; token < first + tokens; ++token) {
          if (keys.uncertain[token] != 0) {
            exact.load(in.keys, in.head, token);
            const bool kept = Centred && !exact.subtract(centre);
            key_scales.store(token, kept,
                             exact.quantise(tables.key_rotation, rotation_factor,
                                            tables.key_codebook, tables.key_scale_rule));
            put_codes(keys, token, 0);
          }
          if (Group == 0 && values.uncertain[token] != 0) {
            exact.load(in.values, in.head, token);
            value_scales.store(token, false,
                               exact.quantise(tables.value_rotation, rotation_factor,
                                              tables.value_codebook, tables.value_scale_rule));
            put_codes(values, token, value_scales.flip(token));
          }
        }
      });
    }
    team.team_barrier();
    if constexpr (Tokens < 64) {
      if (count == 16) {
        return pack<16>(team, keys, values, tile);
      }
    }
    pack<Tokens>(team, keys, values, tile);
  }

 private:
  /// What becomes of the keys or of the values of a tile, in the team's scratch.
  struct Side {
    unsigned char* codes = nullptr;
    unsigned char* uncertain = nullptr;  ///< (tokens), not 0 where codes or scale may be wrong

    KOKKOS_FORCEINLINE_FUNCTION void put(std::size_t token, int word, std::uint32_t found) const {
      reinterpret_cast<std::uint32_t*>(codes + token * code_pitch)[word] = found;
    }
  };

  /// The words of a tile of `TileTokens` tokens.
  template <std::size_t TileTokens, class Team>
  TURBOQUANT_FUNCTION void pack(const Team& team, const Side& keys, const Side& values,
                                unsigned char* tile) const {
    pack_keys<Dim, TileTokens>(team, sections.keys, Codes{keys.codes}, tile);
    pack_values<Dim, TileTokens>(team, sections.values, Codes{values.codes}, tile);
  }

  struct KeyScales {
    const TileSections& sections;
    unsigned char* tile;

    [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION std::uint32_t flip(std::size_t /*token*/) const {
      return 0;
    }
    KOKKOS_FORCEINLINE_FUNCTION void store(std::size_t token, bool kept, float16 scale) const {
      scale.bits = static_cast<std::uint16_t>(scale.bits | (kept ? 0x8000U : 0U));
      store_half(sections.half_at<Dim, Tokens>(sections.key_scales, false, token, tile), scale);
    }
  };
  /// Codes of odd tokens are mirrored, as their scale is.
  struct ValueScales {
    const TileSections& sections;
    unsigned char* tile;

    [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION std::uint32_t flip(std::size_t token) const {
      const std::uint32_t top = (1U << sections.values.width) - 1U;
      return token % 2 != 0 ? top * 0x11111111U : 0U;
    }
    KOKKOS_FORCEINLINE_FUNCTION void store(std::size_t token, bool /*kept*/, float16 scale) const {
      scale.bits = static_cast<std::uint16_t>(scale.bits ^ (token % 2 != 0 ? 0x8000U : 0U));
      store_half(sections.half_at<Dim, Tokens>(sections.value_scales, true, token, tile), scale);
    }
  };

  /// The mean of the keys, to the tile and as floats.
  template <class Team>
  TURBOQUANT_FUNCTION void take_mean(const Team& team, const RowView& keys, int head,
                                     unsigned char* tile, float* mean) const {
    switch (keys.type) {
      case RowType::float16: return take_mean_of<float16>(team, keys, head, tile, mean);
      case RowType::bfloat16: return take_mean_of<bfloat16>(team, keys, head, tile, mean);
      default: return take_mean_of<float>(team, keys, head, tile, mean);
    }
  }
  template <class T, class Team>
  TURBOQUANT_FUNCTION void take_mean_of(const Team& team, const RowView& keys, int head,
                                        unsigned char* tile, float* mean) const {
    const T* const rows = static_cast<const T*>(keys.data) + keys.offset(0, head);
    for_team_items<Dim>(team, [&](std::size_t d) {
      const float16 number = key_mean_number(Tokens, [&](std::size_t token) {
        return as_float(rows[static_cast<std::int64_t>(token) * keys.token_stride +
                             static_cast<std::int64_t>(d)]);
      });
      store_half(tile + sections.key_mean + 2 * d, number);
      mean[d] = number.to_float();
    });
  }

  /// @return whether scale and codes are certain
  template <class Scales>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION bool encode_rotated(
      const float* signs, int rounds, const KernelCodebook& codebook, ScaleRule rule,
      const float* mean, std::size_t token, int part, const Exchange& exchange, Vector& vector,
      const Side& side, const Scales& scales) const {
    bool kept = true;
    bool certain = true;
    if (mean != nullptr) {
      certain = keeps_itself(mean, part, vector, kept);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < Vector::size; ++i) {
        const float number = mean[Vector::coordinate(part, i)];
        vector.x[i] = kept ? vector.x[i] : minus_mean(vector.x[i], number);
      }
    }
    const RoughNorm norm = norm_of(vector);
    const float factor = normalising_factor(norm.largest);
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Vector::size; ++i) {
      vector.x[i] = normal_product(vector.x[i], factor);
    }
    const auto* const in_memory = reinterpret_cast<const float*>(
        in_device_memory(reinterpret_cast<const unsigned char*>(signs)));
    std::uint32_t words[Vector::words];
    float16 scale;
    certain = quantise_vector(in_memory, rounds, rotation_factor, codebook, rule, part, norm,
                              exchange, vector, words, scale) &&
              certain;
    const std::uint32_t flip = scales.flip(token);
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int word = 0; word < Vector::words; ++word) {
      side.put(token, word * Lanes + part, words[word] ^ flip);
    }
    if (part == 0) {
      scales.store(token, mean != nullptr && kept, scale);
      side.uncertain[token] = certain ? 0 : 1;
    }
    return certain;
  }

  static KOKKOS_FORCEINLINE_FUNCTION RoughNorm norm_of(const Vector& vector) {
    float largest = 0;
    double squares[4] = {};
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Vector::size; ++i) {
      largest = larger_of(largest, std::fabs(vector.x[i]));
      const auto number = static_cast<double>(vector.x[i]);
      squares[i % 4] += number * number;
    }
    return {Vector::largest_of_lanes(largest),
            Vector::over_lanes((squares[0] + squares[1]) + (squares[2] + squares[3]))};
  }

  /// Whether a vector does not gain from the mean, `kept`.
  /// @return whether that is certain
  static KOKKOS_FORCEINLINE_FUNCTION bool keeps_itself(const float* mean, int part,
                                                       const Vector& vector, bool& kept) {
    float gains[4] = {};    // 2 <x, m> - |m|^2, right to 2^-19 of the sum of squares
    float squares[4] = {};  // |x|^2 + |m|^2
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Vector::size; ++i) {
      const float number = mean[Vector::coordinate(part, i)];
      gains[i % 4] += number * (2 * vector.x[i] - number);
      squares[i % 4] += vector.x[i] * vector.x[i];
      squares[i % 4] += number * number;
    }
    const float gain = Vector::over_lanes((gains[0] + gains[1]) + (gains[2] + gains[3]));
    const float bound =
        0x1p-18F * Vector::over_lanes((squares[0] + squares[1]) + (squares[2] + squares[3]));
    kept = gain < 0;
    return gain > bound || gain < -bound;
  }

  /// Loops, which take numbers from the lane's place: warps of a scheduler belong to different
  /// teams, and each of them would fetch straight code for itself.
  KOKKOS_FORCEINLINE_FUNCTION void encode_groups(std::size_t token, int part,
                                                 const Exchange& exchange, const Vector& vector,
                                                 const Side& side, unsigned char* tile) const {
    constexpr int groups = static_cast<int>(Dim / (Group == 0 ? Dim : Group));
    constexpr int words = Vector::words / groups;
    static_assert(Group == 0 || words > 0);
    const int top = (1 << sections.values.width) - 1;
    unsigned char* const scales =
        sections.half_at<Dim, Tokens>(sections.value_scales, true, token, tile);
    unsigned char* const zeros =
        sections.half_at<Dim, Tokens>(sections.value_zeros, true, token, tile);
    const std::size_t stride = 2 * sections.values.sub_tiles.tokens;  // from group to group
    exchange.keep(vector);
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int group = 0; group < groups; ++group) {
      float lowest = float_infinity;
      float highest = -float_infinity;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int word = 0; word < words; ++word) {
        float run[8];
        exchange.kept_run(group * words + word, run);
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int e = 0; e < 8; ++e) {
          const float number = groups == 1 ? vector.x[8 * word + e] : run[e];
          lowest = smaller_of(lowest, number);
          highest = larger_of(highest, number);
        }
      }
      const GroupNumbers numbers =
          group_numbers(Vector::smallest_of_lanes(lowest), Vector::largest_of_lanes(highest), top,
                        token % 2 != 0);
      if (part == 0) {
        store_half(scales + static_cast<std::size_t>(group) * stride, numbers.scale);
        store_half(zeros + static_cast<std::size_t>(group) * stride, numbers.zero);
      }
      const GroupCodes codes(numbers, top);
      TURBOQUANT_KEEP_LOOP_IN_KERNELS
      for (int word = group * words; word < (group + 1) * words; ++word) {
        float run[8];
        exchange.kept_run(word, run);
        side.put(token, word * Lanes + part, codes.codes(run));
      }
    }
  }
};

}  // namespace turboquant::detail
