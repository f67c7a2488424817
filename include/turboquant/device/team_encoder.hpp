#pragma once

#include <turboquant/device/encode_rows.hpp>
#include <turboquant/device/tile_slots.hpp>

#include <cstddef>
#include <cstdint>

/// @file
/// Encoders for devices: one team encodes a whole tile of one kv head. The tile takes shape in
/// the team's scratch and leaves it in one piece.

namespace turboquant::detail {

/// Whether a job fills its tile.
[[nodiscard]] inline TURBOQUANT_FUNCTION bool is_whole(const TileFormat& format,
                                                       const EncodeArguments& in) noexcept {
  return in.first_slot == 0 && in.count == format.tile_tokens;
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
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, static_cast<int>(bytes / 16)),
                       [&](int i) { reinterpret_cast<FourFloats*>(image)[i] = FourFloats{}; });
}

template <class Team>
TURBOQUANT_FUNCTION void copy_image(const Team& team, std::size_t bytes, const unsigned char* image,
                                    std::byte* tile) {
  // Tiles of a caller may begin anywhere.
  if (reinterpret_cast<std::uintptr_t>(tile) % 16 == 0) {
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, static_cast<int>(bytes / 16)), [&](int i) {
      reinterpret_cast<FourFloats*>(tile)[i] = reinterpret_cast<const FourFloats*>(image)[i];
    });
  } else {
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, static_cast<int>(bytes)),
                         [&](int i) { tile[i] = static_cast<std::byte>(image[i]); });
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
        store_half(mean + 2 * d, key_mean_number(format.tokens(), [&](std::size_t token) {
                     return numbers(token, d);
                   }));
      });
}

/// For any format.
struct TeamEncoder {
  [[nodiscard]] static std::size_t scratch_bytes(const TileTables& tables) noexcept {
    return tables.format.bytes() + TeamScratch::alignment;
  }

  template <class Team>
  TURBOQUANT_FUNCTION void operator()(const Team& team, const TileTables& tables,
                                      const EncodeArguments& in) const {
    if (!is_whole(tables.format, in)) {
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
    Kokkos::parallel_for(
        Kokkos::TeamThreadRange(team, tables.format.tokens()), [&](std::size_t token) {
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

}  // namespace turboquant::detail
