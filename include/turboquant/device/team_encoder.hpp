#pragma once

#include <turboquant/device/encode_groups.hpp>
#include <turboquant/device/encode_registers.hpp>
#include <turboquant/device/team_pack.hpp>
#include <turboquant/device/tile_slots.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

/// @file
/// Encoders for devices: one team encodes a whole tile of one kv head. A thread or a few lanes take
/// a token, the tile takes shape in the team's scratch and leaves it in one piece.

namespace turboquant::detail {

/// Whether a job fills its tile.
[[nodiscard]] inline TURBOQUANT_FUNCTION bool is_whole(const EncodeArguments& in) noexcept {
  return in.first_slot == 0 && in.count == static_cast<int>(TileFormat::tokens);
}

/// A team's scratch, piece by piece.
class TeamScratch {
 public:
  static constexpr std::size_t alignment = 16;

  template <class Team>
  explicit TURBOQUANT_FUNCTION TeamScratch(const Team& team, std::size_t bytes)
      : next_(
            static_cast<unsigned char*>(team.team_scratch(0).get_shmem_aligned(bytes, alignment))) {
  }

  TURBOQUANT_FUNCTION unsigned char* take(std::size_t bytes) noexcept {
    unsigned char* const piece = next_;
    next_ += (bytes + alignment - 1) / alignment * alignment;
    return piece;
  }

 private:
  unsigned char* next_;
};

template <class Team>
TURBOQUANT_FUNCTION void clear_image(const Team& team, std::size_t bytes, unsigned char* image) {
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, bytes / 16), [&](std::size_t i) {
    reinterpret_cast<FourFloats*>(image)[i] = FourFloats{};
  });
}

template <class Team>
TURBOQUANT_FUNCTION void copy_image(const Team& team, std::size_t bytes, const unsigned char* image,
                                    std::byte* tile) {
  // Tiles of a caller may begin anywhere.
  if (reinterpret_cast<std::uintptr_t>(tile) % 16 == 0) {
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, bytes / 16), [&](std::size_t i) {
      reinterpret_cast<FourFloats*>(tile)[i] = reinterpret_cast<const FourFloats*>(image)[i];
    });
  } else {
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, bytes),
                         [&](std::size_t i) { tile[i] = static_cast<std::byte>(image[i]); });
  }
}

/// Changes words of a tile in a team's scratch that other threads change at the same time; what is
/// cleared is zero before.
struct SharedWords {
  TURBOQUANT_FUNCTION void operator()(unsigned char* at, std::uint32_t /*clear*/,
                                      std::uint32_t set) const noexcept {
    Kokkos::atomic_or(reinterpret_cast<std::uint32_t*>(at), set);
  }
};

/// The key mean of a tile in a team's scratch, whose bytes there are zero; a thread takes a number.
/// @param numbers called with a token and a dimension; the key's number
template <class Team, class Numbers>
TURBOQUANT_FUNCTION void encode_team_mean(const Team& team, const TileFormat& format,
                                          const Numbers& numbers, unsigned char* image) {
  unsigned char* const mean = image + format.key_mean_offset();
  Kokkos::parallel_for(
      Kokkos::TeamVectorRange(team, static_cast<std::size_t>(format.key_dim)), [&](std::size_t d) {
        store_half(mean + 2 * d, key_mean_number(TileFormat::tokens, [&](std::size_t token) {
                     return numbers(token, d);
                   }));
      });
}

/// For any format.
struct TeamEncoder {
  [[nodiscard]] static std::size_t scratch_bytes(const TileFormat& format) noexcept {
    return format.bytes() + TeamScratch::alignment;
  }

  template <class Team>
  TURBOQUANT_FUNCTION void operator()(const Team& team, const TileTables& tables,
                                      const EncodeArguments& in) const {
    if (!is_whole(in)) {
      return;
    }
    const std::size_t bytes = tables.format.bytes();
    unsigned char* const image = TeamScratch(team, bytes).take(bytes);
    clear_image(team, bytes, image);
    team.team_barrier();
    if (tables.format.centres_keys()) {
      encode_team_mean(
          team, tables.format,
          [&](std::size_t token, std::size_t d) {
            return in.keys.read(in.keys.offset(static_cast<std::int64_t>(token), in.head) +
                                static_cast<std::int64_t>(d));
          },
          image);
      team.team_barrier();
    }
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, TileFormat::tokens), [&](std::size_t token) {
      using Steps = PortableEncodeSteps<1>;
      Steps::Scratch scratch;
      const auto key_dim = static_cast<std::size_t>(tables.format.key_dim);
      const auto value_dim = static_cast<std::size_t>(tables.format.value_dim);
      Steps::load(in.keys, in.head, token, 1, key_dim, scratch);
      if (tables.format.centres_keys()) {
        encode_centred_keys<Steps>(tables, {token, 1}, SharedWords(), scratch, image);
      } else {
        encode_keys<Steps>(tables, {token, 1}, SharedWords(), scratch, image);
      }
      Steps::load(in.values, in.head, token, 1, value_dim, scratch);
      encode_values<Steps>(tables, {token, 1}, SharedWords(), scratch, image);
    });
    team.team_barrier();
    copy_image(team, bytes, image, in.tile);
  }
};

/// For mse keys and grouped values of `Dim` coordinates each. Four lanes share a token on devices:
/// with fewer registers a lane, more warps take turns, and the code of a warp stays in its cache.
/// @tparam Group dimensions per value group
/// @tparam Lanes lanes of a token
template <std::size_t Dim, std::size_t Group, int Lanes>
struct RegisterTeamEncoder {
  using Vector = LaneVector<Dim, Lanes>;
  static constexpr int runs = Vector::size / 4;
  static constexpr std::size_t nibble_bytes = Dim / 8 * NibbleRows::pitch * 4;

  float rotation_factor = 0;  ///< `hadamard_factor` of the key rotation

  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t mean_bytes(
      const TileFormat& format) noexcept {
    return format.centres_keys() ? Dim * sizeof(float) : 0;
  }
  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t scratch_bytes(
      const TileFormat& format) noexcept {
    return format.bytes() + nibble_bytes + mean_bytes(format) + 3 * TeamScratch::alignment;
  }

  template <class Team>
  TURBOQUANT_FUNCTION void operator()(const Team& team, const TileTables& tables,
                                      const EncodeArguments& in) const {
    if (!is_whole(in)) {
      return;
    }
    const TileFormat& format = tables.format;
    const std::size_t bytes = format.bytes();
    TeamScratch scratch(team, scratch_bytes(format) - TeamScratch::alignment);
    unsigned char* const image = scratch.take(bytes);
    const NibbleRows nibbles{reinterpret_cast<std::uint32_t*>(scratch.take(nibble_bytes))};
    auto* const mean = reinterpret_cast<float*>(scratch.take(mean_bytes(format)));
    clear_image(team, bytes, image);
    team.team_barrier();
    if (format.centres_keys()) {
      take_mean(team, format, in, image, mean);
      team.team_barrier();
    }
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, TileFormat::tokens), [&](std::size_t token) {
      encode_key(tables, rotation_factor, in, token, mean, nibbles, image);
    });
    team.team_barrier();
    pack_keys(team, format, nibbles, image);
    team.team_barrier();
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, TileFormat::tokens), [&](std::size_t token) {
      encode_value(format, in, token, nibbles, image);
    });
    team.team_barrier();
    pack_values(team, format, nibbles, image);
    team.team_barrier();
    copy_image(team, bytes, image, in.tile);
  }

 private:
  /// Numbers of a row as the lanes hold them.
  static KOKKOS_FORCEINLINE_FUNCTION void load(const RowView& rows, int head, std::size_t token,
                                               int lane, Vector& vector) {
    const std::int64_t first = rows.offset(static_cast<std::int64_t>(token), head);
    switch (rows.type) {
      case RowType::float16:
        return load(static_cast<const float16*>(rows.data) + first, lane, vector);
      case RowType::bfloat16:
        return load(static_cast<const bfloat16*>(rows.data) + first, lane, vector);
      default: return load(static_cast<const float*>(rows.data) + first, lane, vector);
    }
  }

  template <class T>
  static KOKKOS_FORCEINLINE_FUNCTION void load(const T* row, int lane, Vector& vector) {
    struct alignas(4 * sizeof(T)) Four {
      T numbers[4];
    };
    if (reinterpret_cast<std::uintptr_t>(row) % sizeof(Four) == 0) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < Vector::size; i += 4) {
        const Four four = reinterpret_cast<const Four*>(row)[Vector::coordinate(lane, i) / 4];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int e = 0; e < 4; ++e) {
          vector.x[i + e] = as_float(four.numbers[e]);
        }
      }
    } else {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < Vector::size; ++i) {
        vector.x[i] = as_float(row[Vector::coordinate(lane, i)]);
      }
    }
  }

  static TURBOQUANT_FUNCTION float as_float(float x) noexcept { return x; }
  static TURBOQUANT_FUNCTION float as_float(bfloat16 x) noexcept { return x.to_float(); }
  /// A finite half: a product with a power of two is exact and shorter than `to_float`.
  static TURBOQUANT_FUNCTION float as_float(float16 x) noexcept {
    const std::uint32_t sign = (x.bits & 0x8000U) << 16U;
    return std::bit_cast<float>(((x.bits & 0x7FFFU) << 13U) | sign) * 0x1p112F;
  }

  /// The mean of the keys, to the tile and as floats.
  template <class Team>
  TURBOQUANT_FUNCTION static void take_mean(const Team& team, const TileFormat& format,
                                            const EncodeArguments& in, unsigned char* image,
                                            float* mean) {
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, Dim), [&](std::size_t d) {
      const float16 number = key_mean_number(TileFormat::tokens, [&](std::size_t token) {
        return in.keys.read(in.keys.offset(static_cast<std::int64_t>(token), in.head) +
                            static_cast<std::int64_t>(d));
      });
      store_half(image + format.key_mean_offset() + 2 * d, number);
      mean[d] = number.to_float();
    });
  }

  TURBOQUANT_FUNCTION static void encode_key(const TileTables& tables, float rotation_factor,
                                             const EncodeArguments& in, std::size_t token,
                                             const float* mean, NibbleRows nibbles,
                                             unsigned char* image) {
    const int lane = lane_index<Lanes>();
    Vector vector;
    std::uint32_t codes[runs];
    load(in.keys, in.head, token, lane, vector);
    const bool kept = tables.format.centres_keys() && !vector.subtract(mean, lane);
    const bool may_be_tiny = in.keys.type != RowType::float16 || tables.format.centres_keys();
    const auto quantise = [&]<int Bits>() {
      return quantise_vector<Bits>(tables.key_rotation, rotation_factor, tables.key_codebook,
                                   tables.key_scale_rule, may_be_tiny, lane, vector, codes);
    };
    const int bits = tables.key_codebook.bits;
    float16 scale = bits == 2   ? quantise.template operator()<2>()
                    : bits == 3 ? quantise.template operator()<3>()
                                : quantise.template operator()<4>();
    if (lane == 0) {
      store_half(image + tables.format.key_scale_byte(token), scale);
      if (kept) {
        mark_not_centred(tables.format, token, image);
      }
    }
    put<0, runs>(codes, lane, token, nibbles);
  }

  TURBOQUANT_FUNCTION static void encode_value(const TileFormat& format, const EncodeArguments& in,
                                               std::size_t token, NibbleRows nibbles,
                                               unsigned char* image) {
    const int lane = lane_index<Lanes>();
    Vector vector;
    load(in.values, in.head, token, lane, vector);
    encode_groups(format, token, lane, vector, nibbles, image,
                  std::make_integer_sequence<int, static_cast<int>(Dim / Group)>());
  }

  template <int... Groups>
  TURBOQUANT_FUNCTION static void encode_groups(const TileFormat& format, std::size_t token,
                                                int lane, const Vector& vector, NibbleRows nibbles,
                                                unsigned char* image,
                                                std::integer_sequence<int, Groups...> /*groups*/) {
    (encode_group<Groups>(format, token, lane, vector, nibbles, image), ...);
  }

  template <int Number>
  TURBOQUANT_FUNCTION static void encode_group(const TileFormat& format, std::size_t token,
                                               int lane, const Vector& vector, NibbleRows nibbles,
                                               unsigned char* image) {
    constexpr int size = static_cast<int>(Group) / Lanes;
    constexpr int first = Number * size;
    const int top = (1 << static_cast<unsigned>(format.value_bits)) - 1;
    float lowest = 0;
    float highest = 0;
    range_of_lanes<first, size>(vector, lowest, highest);
    const GroupNumbers numbers = group_numbers(lowest, highest, top, token % 2 != 0);
    if (lane == 0) {
      store_half(image + format.value_scale_byte(token, Number), numbers.scale);
      store_half(image + format.value_zero_byte(token, Number), numbers.zero);
    }
    std::uint32_t codes[runs];
    if (group_codes_of_lane<first, size>(numbers, top, vector, codes)) {
      group_by_division<first, size>(numbers, top, vector, codes);
    }
    put<first / 4, size / 4>(codes, lane, token, nibbles);
  }

  /// The codes of `Count` runs of four coordinates from run `First` on.
  template <int First, int Count>
  static KOKKOS_FORCEINLINE_FUNCTION void put(const std::uint32_t (&codes)[runs], int lane,
                                              std::size_t token, NibbleRows nibbles) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int run = First; run < First + Count; ++run) {
      const int four = Vector::coordinate(lane, 4 * run) / 4;
      const auto half = static_cast<std::uint16_t>(codes[run]);
      std::memcpy(
          reinterpret_cast<unsigned char*>(&nibbles.at(static_cast<std::size_t>(four / 2), token)) +
              2 * (four % 2),
          &half, 2);
    }
  }
};

}  // namespace turboquant::detail
