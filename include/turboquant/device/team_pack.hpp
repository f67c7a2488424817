#pragma once

#include <turboquant/device/arch/device_lanes.hpp>
#include <turboquant/device/kokkos_compat.hpp>
#include <turboquant/device/tile_words.hpp>

#include <cstddef>
#include <cstdint>

/// @file
/// From codes of single tokens to the code words of a tile, by a team. Dimensions are powers of two
/// from 64 to 256, tiles have 16, 32 or 64 tokens.

namespace turboquant::detail {

struct alignas(16) FourWords {
  std::uint32_t words[4];
};

/// The codes of one tile's keys or values in a team's scratch, 8 dimensions of a token in a word:
/// code n at bits 4 n.
/// @tparam Pitch bytes from token to token
template <int Pitch>
struct TokenCodes {
  static_assert(Pitch % 16 == 0);

  const unsigned char* at = nullptr;  ///< of token 0, 16-byte aligned

  [[nodiscard]] TURBOQUANT_FUNCTION std::uint32_t word(std::size_t token,
                                                       std::size_t number) const noexcept {
    return reinterpret_cast<const std::uint32_t*>(at + token * Pitch)[number];
  }
  /// Words `number` to `number + 3`; a multiple of 4.
  [[nodiscard]] TURBOQUANT_FUNCTION FourWords four(std::size_t token,
                                                   std::size_t number) const noexcept {
    return reinterpret_cast<const FourWords*>(at + token * Pitch)[number / 4];
  }
};

/// Deals `Count` items to the lanes of a team; small numbers, so that indices are of 32 bits.
template <std::size_t Count, class Team, class Body>
KOKKOS_FORCEINLINE_FUNCTION void for_team_items(const Team& team, const Body& body) {
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, static_cast<int>(Count)), [&](int item) {
    body(static_cast<std::size_t>(static_cast<unsigned>(item)));
  });
}

/// Nibbles 0 to 3 to the low and 4 to 7 to the high nibbles of the bytes.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION std::uint32_t to_host_nibbles(
    std::uint32_t x) noexcept {
  std::uint32_t low = x & 0xFFFFU;
  std::uint32_t high = x >> 16U;
  low = (low | (low << 8U)) & 0x00FF00FFU;
  low = (low | (low << 4U)) & 0x0F0F0F0FU;
  high = (high | (high << 8U)) & 0x00FF00FFU;
  high = (high | (high << 4U)) & 0x0F0F0F0FU;
  return low | (high << 4U);
}

/// Swaps token and dimension of 8 x 8 nibbles.
inline TURBOQUANT_FUNCTION void transpose_nibbles(std::uint32_t (&x)[8]) noexcept {
  const auto swap = [&](std::size_t distance, unsigned shift, std::uint32_t mask) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t a = i / distance * 2 * distance + i % distance;
      const std::uint32_t moved = ((x[a] >> shift) ^ x[a + distance]) & mask;
      x[a] ^= moved << shift;
      x[a + distance] ^= moved;
    }
  };
  swap(1, 4, 0x0F0F0F0FU);
  swap(2, 8, 0x00FF00FFU);
  swap(4, 16, 0x0000FFFFU);
}

/// Key words of a tile in host order.
template <std::size_t Dim, std::size_t Tokens, class Team, class Codes>
TURBOQUANT_FUNCTION void pack_host_keys(const Team& team, const KeySection& section,
                                        const Codes& codes, unsigned char* tile) {
  for_team_items<Dim / 32 * Tokens>(team, [&](std::size_t item) {
    const std::size_t token = item % Tokens;
    const std::size_t block = item / Tokens;
    const FourWords found = codes.four(token, 4 * block);
    std::uint32_t four[4];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t k = 0; k < 4; ++k) {
      four[k] = to_host_nibbles(found.words[k]);
    }
    unsigned char* out = tile + section.offset + 4 * (block * section.width * Tokens + token);
    switch (section.width) {
      case 2:
        store_word(out, four[0] | (four[1] << 2U));
        return store_word(out + 4 * Tokens, four[2] | (four[3] << 2U));
      case 3:
        store_word(out, four[0] | ((four[3] & 0x11111111U) << 3U));
        store_word(out + 4 * Tokens, four[1] | ((four[3] & 0x22222222U) << 2U));
        return store_word(out + 8 * Tokens, four[2] | ((four[3] & 0x44444444U) << 1U));
      default:
        TURBOQUANT_UNROLL_IN_KERNELS
        for (std::size_t k = 0; k < 4; ++k) {
          store_word(out + 4 * k * Tokens, four[k]);
        }
    }
  });
}

/// Value words of a tile in host order; not for planes.
template <std::size_t Dim, std::size_t Tokens, class Team, class Codes>
TURBOQUANT_FUNCTION void pack_host_values(const Team& team, const ValueSection& section,
                                          const Codes& codes, unsigned char* tile) {
  // An item makes the words of 8 dimensions and as many tokens as fill a word.
  const std::size_t groups = section.width == 4 ? 1 : (section.width == 2 ? 2 : 4);
  constexpr std::size_t dim_words = Dim / 8;
  for_team_items<dim_words*(Tokens / 8)>(team, [&](std::size_t item) {
    const std::size_t number = item % dim_words;
    const std::size_t first = item / dim_words * groups;
    if (first >= Tokens / 8) {
      return;
    }
    unsigned char* const column = tile + section.offset + 4 * section.column(8 * number);
    std::uint32_t words[3][8] = {};
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t g = 0; g < 4; ++g) {
      if (g >= groups) {
        break;
      }
      std::uint32_t x[8];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (std::size_t t = 0; t < 8; ++t) {
        x[t] = codes.word(8 * (first + g) + t, number);
      }
      transpose_nibbles(x);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (std::size_t i = 0; i < 8; ++i) {
        if (section.width == 2) {
          words[0][i] |= ValueSection::join_pairs(x[i]) << (16 * g % 32);
        } else if (g < 3) {
          words[g][i] = x[i];
        } else {
          words[0][i] |= (x[i] & 0x11111111U) << 3U;
          words[1][i] |= (x[i] & 0x22222222U) << 2U;
          words[2][i] |= (x[i] & 0x44444444U) << 1U;
        }
      }
    }
    // Rows of words: one for 4 and 2 bits, three for the 32 tokens of 3 bits.
    const std::size_t row = section.width == 3 ? first / 4 * 3 : first / groups;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t r = 0; r < 3; ++r) {
      if (r == 0 || section.width == 3) {
        unsigned char* const out = column + 128 * (row + r);
        if (reinterpret_cast<std::uintptr_t>(out) % 16 == 0) {
          auto* const fours = reinterpret_cast<FourWords*>(out);
          fours[0] = {{words[r][0], words[r][1], words[r][2], words[r][3]}};
          fours[1] = {{words[r][4], words[r][5], words[r][6], words[r][7]}};
        } else {
          TURBOQUANT_UNROLL_IN_KERNELS
          for (std::size_t i = 0; i < 8; ++i) {
            store_word(out + 4 * i, words[r][i]);
          }
        }
      }
    }
  });
}

/// Three bits of 16 tokens in host order: rows of 16-bit words, a bit a token.
template <std::size_t Dim, class Team, class Codes>
TURBOQUANT_FUNCTION void pack_value_planes(const Team& team, const ValueSection& section,
                                           const Codes& codes, unsigned char* tile) {
  // An item makes the words of a bit of 8 dimensions; items follow each other in the tile.
  constexpr std::size_t words = 32 / 8;  // of codes, in a row
  for_team_items<Dim / 32 * 3 * words>(team, [&](std::size_t item) {
    const std::size_t number = item / (3 * words) * words + item % words;
    const auto bit = static_cast<unsigned>(item / words % 3);
    // Nibble i: the bits of four tokens of dimension i.
    std::uint32_t four[4] = {};
    TURBOQUANT_UNROLL_IN_KERNELS
    for (unsigned t = 0; t < 16; ++t) {
      four[t / 4] |= ((codes.word(t, number) >> bit) & 0x11111111U) << (t % 4);
    }
    // Bytes of even and of odd dimensions, of 8 tokens each.
    std::uint32_t even[2];
    std::uint32_t odd[2];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t g = 0; g < 2; ++g) {
      const std::uint32_t low = four[2 * g];
      const std::uint32_t high = four[2 * g + 1];
      even[g] = (low & 0x0F0F0F0FU) | ((high & 0x0F0F0F0FU) << 4U);
      odd[g] = ((low >> 4U) & 0x0F0F0F0FU) | (high & 0xF0F0F0F0U);
    }
    const std::uint32_t even_words[2] = {pick_bytes<0x5140>(even[0], even[1]),
                                         pick_bytes<0x7362>(even[0], even[1])};
    const std::uint32_t odd_words[2] = {pick_bytes<0x5140>(odd[0], odd[1]),
                                        pick_bytes<0x7362>(odd[0], odd[1])};
    unsigned char* const out = tile + section.offset + 16 * item;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t i = 0; i < 2; ++i) {
      store_word(out + 8 * i, pick_bytes<0x5410>(even_words[i], odd_words[i]));
      store_word(out + 8 * i + 4, pick_bytes<0x7632>(even_words[i], odd_words[i]));
    }
  });
}

/// The words of one section of a tile in mma order.
/// @param nibbles called with a sub-tile, a lane and a selector; its 8 codes
template <std::size_t Dim, std::size_t Tokens, class Team, class Section, class Nibbles>
TURBOQUANT_FUNCTION void pack_mma(const Team& team, const Section& section, bool table,
                                  const Nibbles& nibbles, unsigned char* tile) {
  constexpr std::size_t tokens = mma_order::sub_tile_tokens(Dim, Dim, Tokens);
  constexpr std::size_t count = mma_order::selectors(tokens, Dim);
  constexpr std::size_t quads = count / 4;
  const mma_order::Selectors selectors{section.width, table, count};
  for_team_items<Tokens / tokens * 32 * quads>(team, [&](std::size_t item) {
    const std::size_t lane = item % 32;
    const std::size_t quad = item / 32 % quads;
    const std::size_t part = item / 32 / quads;
    std::uint32_t four[4];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (std::size_t i = 0; i < 4; ++i) {
      four[i] = nibbles(part * tokens, lane, 4 * quad + i);
    }
    selectors.write_quad(tile + part * section.sub_tiles.bytes + section.offset, lane, quad, four);
  });
}

/// Key words of a tile in mma order.
template <std::size_t Dim, std::size_t Tokens, class Team, class Codes>
TURBOQUANT_FUNCTION void pack_mma_keys(const Team& team, const KeySection& section,
                                       const Codes& codes, unsigned char* tile) {
  constexpr std::size_t blocks = Dim / 32;
  pack_mma<Dim, Tokens>(
      team, section, true,
      [&](std::size_t first, std::size_t lane, std::size_t selector) {
        return codes.word(first + 8 * (selector / blocks) + lane / 4,
                          lane % 4 * blocks + selector % blocks);
      },
      tile);
}

/// Value words of a tile in mma order.
template <std::size_t Dim, std::size_t Tokens, class Team, class Codes>
TURBOQUANT_FUNCTION void pack_mma_values(const Team& team, const ValueSection& section,
                                         const Codes& codes, unsigned char* tile) {
  constexpr std::size_t blocks = Dim / 16;
  // Tokens of bytes 1 and 2.
  const std::size_t second = section.table ? 1 : 8;
  const std::size_t third = section.table ? 8 : 1;
  pack_mma<Dim, Tokens>(
      team, section, section.table,
      [&](std::size_t first, std::size_t lane, std::size_t selector) {
        const std::size_t number = selector % blocks * 2 + lane / 16;
        const std::size_t token = first + 16 * (selector / blocks) + 2 * (lane % 4);
        const auto byte = static_cast<std::uint32_t>(lane / 4 % 4);
        const std::uint32_t both = byte + ((byte + 4) << 4U);  // of two words
        const std::uint32_t low =
            look_up({codes.word(token, number), codes.word(token + second, number)}, both);
        const std::uint32_t high =
            look_up({codes.word(token + third, number), codes.word(token + 9, number)}, both);
        return pick_bytes<0x5410>(low, high);
      },
      tile);
}

/// Key words of a tile of `Tokens` tokens with `Dim` coordinates.
template <std::size_t Dim, std::size_t Tokens, class Team, class Codes>
TURBOQUANT_FUNCTION void pack_keys(const Team& team, const KeySection& section, const Codes& codes,
                                   unsigned char* tile) {
  if (section.sub_tiles.order == TileOrder::host) {
    pack_host_keys<Dim, Tokens>(team, section, codes, tile);
  } else {
    pack_mma_keys<Dim, Tokens>(team, section, codes, tile);
  }
}

/// Value words of a tile of `Tokens` tokens with `Dim` coordinates.
template <std::size_t Dim, std::size_t Tokens, class Team, class Codes>
TURBOQUANT_FUNCTION void pack_values(const Team& team, const ValueSection& section,
                                     const Codes& codes, unsigned char* tile) {
  if (section.sub_tiles.order == TileOrder::mma) {
    return pack_mma_values<Dim, Tokens>(team, section, codes, tile);
  }
  if constexpr (host_order::has_value_planes(3, Tokens)) {
    if (section.width == 3) {
      return pack_value_planes<Dim>(team, section, codes, tile);
    }
  }
  pack_host_values<Dim, Tokens>(team, section, codes, tile);
}

}  // namespace turboquant::detail
