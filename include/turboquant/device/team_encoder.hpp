#pragma once

#include <turboquant/device/encode_registers.hpp>
#include <turboquant/device/team_pack.hpp>
#include <turboquant/device/tile_slots.hpp>

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
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, TileFormat::tokens), [&](std::size_t token) {
      using Steps = PortableEncodeSteps<1>;
      Steps::Scratch scratch;
      const auto key_dim = static_cast<std::size_t>(tables.format.key_dim);
      const auto value_dim = static_cast<std::size_t>(tables.format.value_dim);
      Steps::load(in.keys, in.head, token, 1, key_dim, scratch);
      encode_keys<Steps>(tables, {token, 1}, SharedWords(), scratch, image);
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
  static constexpr std::size_t row_pitch = 2 * Dim + 16;  ///< of 16-bit rows, in bytes
  static constexpr std::size_t rows_bytes = TileFormat::tokens * row_pitch;
  static constexpr std::size_t nibble_bytes = Dim / 8 * NibbleRows::pitch * 4;
  static_assert(nibble_bytes <= rows_bytes);

  [[nodiscard]] static std::size_t scratch_bytes(const TileFormat& format) noexcept {
    return format.bytes() + rows_bytes + nibble_bytes + 3 * TeamScratch::alignment;
  }

  template <class Team>
  TURBOQUANT_FUNCTION void operator()(const Team& team, const TileTables& tables,
                                      const EncodeArguments& in) const {
    if (!is_whole(in)) {
      return;
    }
    const TileFormat& format = tables.format;
    const std::size_t bytes = format.bytes();
    TeamScratch scratch(team, bytes + rows_bytes + nibble_bytes + 2 * TeamScratch::alignment);
    unsigned char* const image = scratch.take(bytes);
    unsigned char* const rows = scratch.take(rows_bytes);
    const NibbleRows nibbles{reinterpret_cast<std::uint32_t*>(scratch.take(nibble_bytes))};
    clear_image(team, bytes, image);

    const bool keys_staged = stage(team, in.keys, in.head, rows);
    team.team_barrier();
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, TileFormat::tokens), [&](std::size_t token) {
      float x[Dim];
      load(in.keys, in.head, token, keys_staged, rows, x);
      encode_key(tables, token, x, nibbles, image);
    });
    team.team_barrier();
    const bool values_staged = stage(team, in.values, in.head, rows);
    pack_keys(team, format, nibbles, image);
    team.team_barrier();
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, TileFormat::tokens), [&](std::size_t token) {
      float x[Dim];
      load(in.values, in.head, token, values_staged, rows, x);
      encode_value(format, token, x, nibbles, image);
    });
    team.team_barrier();
    pack_values(team, format, nibbles, image);
    team.team_barrier();
    copy_image(team, bytes, image, in.tile);
  }

 private:
  /// Brings 16-bit rows to scratch, so that neighbouring threads read neighbouring memory.
  /// @return false where rows have to be read in place
  template <class Team>
  TURBOQUANT_FUNCTION static bool stage(const Team& team, const RowView& rows, int head,
                                        unsigned char* staged) {
    const auto* first = static_cast<const unsigned char*>(rows.data) + 2 * rows.offset(0, head);
    if (rows.type == RowType::float32 || reinterpret_cast<std::uintptr_t>(first) % 16 != 0 ||
        rows.token_stride % 8 != 0) {
      return false;
    }
    constexpr std::size_t pieces = Dim / 8;
    Kokkos::parallel_for(
        Kokkos::TeamThreadRange(team, TileFormat::tokens * pieces), [&](std::size_t i) {
          const std::size_t token = i / pieces;
          const std::size_t byte = 16 * (i % pieces);
          const std::int64_t start = 2 * static_cast<std::int64_t>(token) * rows.token_stride;
          *reinterpret_cast<FourFloats*>(staged + token * row_pitch + byte) =
              *reinterpret_cast<const FourFloats*>(first + start + byte);
        });
    return true;
  }

  TURBOQUANT_FUNCTION static void load(const RowView& rows, int head, std::size_t token,
                                       bool staged, const unsigned char* copies,
                                       float (&x)[Dim]) noexcept {
    if (staged) {
      const RowView copy{copies + token * row_pitch, rows.type, 0, 0};
      load_registers(copy, 0, 0, x);
    } else {
      load_registers(rows, static_cast<std::int64_t>(token), head, x);
    }
  }

  TURBOQUANT_FUNCTION static void encode_key(const TileTables& tables, std::size_t token,
                                             float (&x)[Dim], NibbleRows rows,
                                             unsigned char* image) noexcept {
    std::uint32_t nibbles[Dim / 8];
    const float16 scale = quantise_registers(tables.key_rotation, tables.key_codebook,
                                             tables.key_scale_rule, x, nibbles);
    store_half(image + tables.format.key_scale_byte(token), scale);
    put(nibbles, token, rows);
  }

  TURBOQUANT_FUNCTION static void encode_value(const TileFormat& format, std::size_t token,
                                               const float (&x)[Dim], NibbleRows rows,
                                               unsigned char* image) noexcept {
    std::uint32_t nibbles[Dim / 8];
    encode_groups(format, token, x, nibbles, image, std::make_index_sequence<Dim / Group>());
    put(nibbles, token, rows);
  }

  template <std::size_t... Groups>
  TURBOQUANT_FUNCTION static void encode_groups(
      const TileFormat& format, std::size_t token, const float (&x)[Dim],
      std::uint32_t (&nibbles)[Dim / 8], unsigned char* image,
      std::index_sequence<Groups...> /*groups*/) noexcept {
    (encode_group<Groups>(format, token, x, nibbles, image), ...);
  }

  template <std::size_t Number>
  TURBOQUANT_FUNCTION static void encode_group(const TileFormat& format, std::size_t token,
                                               const float (&x)[Dim],
                                               std::uint32_t (&nibbles)[Dim / 8],
                                               unsigned char* image) noexcept {
    const int top = (1 << static_cast<unsigned>(format.value_bits)) - 1;
    float lowest = 0;
    float highest = 0;
    range_registers<Number * Group, Group>(x, lowest, highest);
    const GroupNumbers numbers(lowest, highest, top, token % 2 != 0);
    group_registers<Number * Group, Group>(numbers, top, x, nibbles);
    store_half(image + format.value_scale_byte(token, Number), numbers.scale);
    store_half(image + format.value_zero_byte(token, Number), numbers.zero);
  }

  TURBOQUANT_FUNCTION static void put(const std::uint32_t (&nibbles)[Dim / 8], std::size_t token,
                                      NibbleRows rows) noexcept {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t row = 0; row < Dim / 8; ++row) {
      rows.at(row, token) = nibbles[row];
    }
  }
};

}  // namespace turboquant::detail
