#pragma once

#include <turboquant/device/encode_registers.hpp>
#include <turboquant/device/team_pack.hpp>
#include <turboquant/device/tile_slots.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

/// @file
/// Encoders for devices: one team encodes a whole tile of one kv head. A thread takes a token, the
/// tile takes shape in the team's scratch and leaves it in one piece.

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
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, bytes / 16), [&](std::size_t i) {
    reinterpret_cast<FourFloats*>(image)[i] = FourFloats{};
  });
}

template <class Team>
TURBOQUANT_FUNCTION void copy_image(const Team& team, std::size_t bytes, const unsigned char* image,
                                    std::byte* tile) {
  // Tiles of a caller may begin anywhere.
  if (reinterpret_cast<std::uintptr_t>(tile) % 16 == 0) {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, bytes / 16), [&](std::size_t i) {
      reinterpret_cast<FourFloats*>(tile)[i] = reinterpret_cast<const FourFloats*>(image)[i];
    });
  } else {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, bytes),
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
      Kokkos::TeamThreadRange(team, static_cast<std::size_t>(format.key_dim)), [&](std::size_t d) {
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

/// For mse keys and grouped values of `Dim` coordinates each, vectors in registers.
/// @tparam Group dimensions per value group
template <std::size_t Dim, std::size_t Group>
struct RegisterTeamEncoder {
  float rotation_factor = 0;  ///< `hadamard_factor` of the key rotation

  /// Floats between two rows, so that threads side by side read from different banks.
  static constexpr std::size_t row_pitch = Dim + 4;
  static constexpr std::size_t rows_bytes = TileFormat::tokens * row_pitch * sizeof(float);
  static constexpr std::size_t nibble_bytes = Dim / 8 * NibbleRows::pitch * 4;

  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t mean_bytes(
      const TileFormat& format) noexcept {
    return format.centres_keys() ? Dim * sizeof(float) : 0;
  }
  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t scratch_bytes(
      const TileFormat& format) noexcept {
    return format.bytes() + rows_bytes + nibble_bytes + mean_bytes(format) +
           4 * TeamScratch::alignment;
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
    auto* const rows = reinterpret_cast<float*>(scratch.take(rows_bytes));
    const NibbleRows nibbles{reinterpret_cast<std::uint32_t*>(scratch.take(nibble_bytes))};
    auto* const mean = reinterpret_cast<float*>(scratch.take(mean_bytes(format)));
    clear_image(team, bytes, image);
    stage(team, in.keys, in.head, rows);
    team.team_barrier();
    if (format.centres_keys()) {
      take_mean(team, format, rows, image, mean);
      team.team_barrier();
    }
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, TileFormat::tokens), [&](std::size_t token) {
      encode_key(tables, rotation_factor, token, rows + token * row_pitch, mean, nibbles, image);
    });
    team.team_barrier();
    stage(team, in.values, in.head, rows);
    pack_keys(team, format, nibbles, image);
    team.team_barrier();
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, TileFormat::tokens), [&](std::size_t token) {
      encode_value(format, token, rows + token * row_pitch, nibbles, image);
    });
    team.team_barrier();
    pack_values(team, format, nibbles, image);
    team.team_barrier();
    copy_image(team, bytes, image, in.tile);
  }

 private:
  /// Brings the rows of a head to scratch as floats; threads side by side read memory side by side.
  template <class Team>
  TURBOQUANT_FUNCTION static void stage(const Team& team, const RowView& rows, int head,
                                        float* staged) {
    switch (rows.type) {
      case RowType::float16:
        return stage(team, static_cast<const float16*>(rows.data), rows, head, staged);
      case RowType::bfloat16:
        return stage(team, static_cast<const bfloat16*>(rows.data), rows, head, staged);
      default: return stage(team, static_cast<const float*>(rows.data), rows, head, staged);
    }
  }

  template <class Team, class T>
  TURBOQUANT_FUNCTION static void stage(const Team& team, const T* numbers, const RowView& rows,
                                        int head, float* staged) {
    // As many numbers as 16 bytes hold where those are aligned, else one.
    constexpr std::size_t most = 16 / sizeof(T);
    const T* const first = numbers + rows.offset(0, head);
    const bool aligned = reinterpret_cast<std::uintptr_t>(first) % 16 == 0 &&
                         rows.token_stride % static_cast<std::int64_t>(most) == 0;
    if (!aligned) {
      Kokkos::parallel_for(
          Kokkos::TeamThreadRange(team, TileFormat::tokens * Dim), [&](std::size_t i) {
            const auto token = static_cast<std::int64_t>(i / Dim);
            staged[i / Dim * row_pitch + i % Dim] =
                as_float(first[token * rows.token_stride + static_cast<std::int64_t>(i % Dim)]);
          });
      return;
    }
    struct alignas(16) Piece {
      T numbers[most];
    };
    constexpr std::size_t pieces = Dim / most;
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, TileFormat::tokens * pieces),
                         [&](std::size_t i) {
                           const std::size_t token = i / pieces;
                           const std::size_t at = i % pieces * most;
                           const Piece piece = *reinterpret_cast<const Piece*>(
                               first + static_cast<std::int64_t>(token) * rows.token_stride + at);
                           TURBOQUANT_UNROLL_IN_KERNELS
                           for (std::size_t n = 0; n < most; ++n) {
                             staged[token * row_pitch + at + n] = as_float(piece.numbers[n]);
                           }
                         });
  }

  /// The mean of staged keys, to the tile and as floats.
  template <class Team>
  TURBOQUANT_FUNCTION static void take_mean(const Team& team, const TileFormat& format,
                                            const float* rows, unsigned char* image, float* mean) {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, Dim), [&](std::size_t d) {
      const float16 number = key_mean_number(
          TileFormat::tokens, [&](std::size_t token) { return rows[token * row_pitch + d]; });
      store_half(image + format.key_mean_offset() + 2 * d, number);
      mean[d] = number.to_float();
    });
  }

  static TURBOQUANT_FUNCTION float as_float(float x) noexcept { return x; }
  static TURBOQUANT_FUNCTION float as_float(bfloat16 x) noexcept { return x.to_float(); }
  /// A finite half: a product with a power of two is exact and shorter than `to_float`.
  static TURBOQUANT_FUNCTION float as_float(float16 x) noexcept {
    const float magnitude = std::bit_cast<float>((x.bits & 0x7FFFU) << 13U) * 0x1p112F;
    return (x.bits & 0x8000U) != 0 ? -magnitude : magnitude;
  }

  TURBOQUANT_FUNCTION static void encode_key(const TileTables& tables, float rotation_factor,
                                             std::size_t token, const float* row, const float* mean,
                                             NibbleRows rows, unsigned char* image) noexcept {
    float x[Dim];
    std::uint32_t nibbles[Dim / 8];
    load_registers(row, x);
    const bool kept = tables.format.centres_keys() && !subtract_registers(mean, x);
    const float16 scale =
        quantise_registers(tables.key_rotation, rotation_factor, tables.key_codebook,
                           tables.key_scale_rule, x, nibbles);
    store_half(image + tables.format.key_scale_byte(token), scale);
    if (kept) {
      mark_not_centred(tables.format, token, image);
    }
    put<0, Dim>(nibbles, token, rows);
  }

  TURBOQUANT_FUNCTION static void encode_value(const TileFormat& format, std::size_t token,
                                               const float* row, NibbleRows rows,
                                               unsigned char* image) noexcept {
    float x[Dim];
    load_registers(row, x);
    encode_groups(format, token, row, x, rows, image, std::make_index_sequence<Dim / Group>());
  }

  template <std::size_t... Groups>
  TURBOQUANT_FUNCTION static void encode_groups(
      const TileFormat& format, std::size_t token, const float* row, const float (&x)[Dim],
      NibbleRows rows, unsigned char* image, std::index_sequence<Groups...> /*groups*/) noexcept {
    (encode_group<Groups>(format, token, row, x, rows, image), ...);
  }

  template <std::size_t Number>
  TURBOQUANT_FUNCTION static void encode_group(const TileFormat& format, std::size_t token,
                                               const float* row, const float (&x)[Dim],
                                               NibbleRows rows, unsigned char* image) noexcept {
    constexpr std::size_t first = Number * Group;
    const int top = (1 << static_cast<unsigned>(format.value_bits)) - 1;
    float lowest = 0;
    float highest = 0;
    range_registers<first, Group>(x, lowest, highest);
    const GroupNumbers numbers(lowest, highest, top, token % 2 != 0);
    store_half(image + format.value_scale_byte(token, Number), numbers.scale);
    store_half(image + format.value_zero_byte(token, Number), numbers.zero);
    std::uint32_t nibbles[Dim / 8];
    if (group_registers<first, Group>(numbers, top, x, nibbles)) {
      group_by_division(numbers, top, row, first, Group,
                        [&](std::size_t at, std::uint32_t word) { rows.at(at, token) = word; });
    } else {
      put<first, Group>(nibbles, token, rows);
    }
  }

  template <std::size_t First, std::size_t Size>
  TURBOQUANT_FUNCTION static void put(const std::uint32_t (&nibbles)[Dim / 8], std::size_t token,
                                      NibbleRows rows) noexcept {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t row = First / 8; row < (First + Size) / 8; ++row) {
      rows.at(row, token) = nibbles[row];
    }
  }
};

}  // namespace turboquant::detail
