#pragma once

#include <turboquant/device/kokkos_compat.hpp>
#include <turboquant/device/tile_words.hpp>

#include <cstddef>
#include <cstdint>

/// @file
/// From codes of single tokens to the code words of a tile, by a team: a *row* holds the codes of 8
/// dimensions of 64 tokens, one dword a token, code n at bits 4 n. Dimensions are multiples of 32.

namespace turboquant::detail {

/// The rows of one tile's keys or values in a team's scratch.
struct NibbleRows {
  /// One more than tokens, so that neighbouring rows begin in different banks.
  static constexpr std::size_t pitch = TileFormat::tokens + 1;

  std::uint32_t* words = nullptr;

  [[nodiscard]] TURBOQUANT_FUNCTION std::uint32_t& at(std::size_t row,
                                                      std::size_t token) const noexcept {
    return words[row * pitch + token];
  }
};

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
template <class Team>
TURBOQUANT_FUNCTION void pack_host_keys(const Team& team, const KeySection& section,
                                        NibbleRows rows, unsigned char* tile) {
  constexpr std::size_t tokens = TileFormat::tokens;
  Kokkos::parallel_for(
      Kokkos::TeamVectorRange(team, section.dim / 32 * tokens), [&](std::size_t item) {
        const std::size_t token = item % tokens;
        const std::size_t block = item / tokens;
        std::uint32_t four[4];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (std::size_t k = 0; k < 4; ++k) {
          four[k] = to_host_nibbles(rows.at(4 * block + k, token));
        }
        unsigned char* out = tile + section.offset + 4 * (block * section.width * tokens + token);
        switch (section.width) {
          case 2:
            store_word(out, four[0] | (four[1] << 2U));
            return store_word(out + 4 * tokens, four[2] | (four[3] << 2U));
          case 3:
            store_word(out, four[0] | ((four[3] & 0x11111111U) << 3U));
            store_word(out + 4 * tokens, four[1] | ((four[3] & 0x22222222U) << 2U));
            return store_word(out + 8 * tokens, four[2] | ((four[3] & 0x44444444U) << 1U));
          default:
            for (std::size_t k = 0; k < 4; ++k) {
              store_word(out + 4 * k * tokens, four[k]);
            }
        }
      });
}

/// Value words of a tile in host order.
template <class Team>
TURBOQUANT_FUNCTION void pack_host_values(const Team& team, const ValueSection& section,
                                          NibbleRows rows, unsigned char* tile) {
  // An item makes the words of 8 dimensions and as many tokens as fill a word.
  const std::size_t groups = section.width == 4 ? 1 : (section.width == 2 ? 2 : 4);
  const std::size_t dim_rows = section.dim / 8;
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, dim_rows * 8 / groups), [&](std::size_t item) {
    const std::size_t row = item % dim_rows;
    const std::size_t first = item / dim_rows * groups;
    const std::size_t d = 8 * row;
    unsigned char* const column = tile + section.offset + 4 * section.column(d);
    const std::size_t stride = 4 * section.row_words(d);
    for (std::size_t g = first; g < first + groups; ++g) {
      std::uint32_t x[8];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (std::size_t t = 0; t < 8; ++t) {
        x[t] = rows.at(row, 8 * g + t);
      }
      transpose_nibbles(x);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (std::size_t i = 0; i < 8; ++i) {
        if (section.width == 4) {
          store_word(column + g * stride + 4 * i, x[i]);
        } else {
          section.write_nibbles(tile, g, d + i, x[i]);  // this item alone has these words
        }
      }
    }
  });
}

/// Key words of a tile in mma order.
template <class Team>
TURBOQUANT_FUNCTION void pack_mma_keys(const Team& team, const KeySection& section, NibbleRows rows,
                                       unsigned char* tile) {
  const std::size_t tokens = section.sub_tiles.tokens;
  const mma_order::Selectors selectors{section.width, true,
                                       mma_order::selectors(tokens, section.dim)};
  const std::size_t blocks = section.dim / 32;
  const std::size_t quads = selectors.count / 4;
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, TileFormat::tokens / tokens * 32 * quads),
                       [&](std::size_t item) {
                         const std::size_t lane = item % 32;
                         const std::size_t quad = item / 32 % quads;
                         const std::size_t first = item / 32 / quads * tokens;
                         std::uint32_t nibbles[4];
                         for (std::size_t i = 0; i < 4; ++i) {
                           const std::size_t selector = 4 * quad + i;
                           nibbles[i] = rows.at(lane % 4 * blocks + selector % blocks,
                                                first + 8 * (selector / blocks) + lane / 4);
                         }
                         selectors.write_quad(
                             tile + section.sub_tiles.start(first) + section.offset, lane, quad,
                             nibbles);
                       });
}

/// Value words of a tile in mma order.
template <class Team>
TURBOQUANT_FUNCTION void pack_mma_values(const Team& team, const ValueSection& section,
                                         NibbleRows rows, unsigned char* tile) {
  const std::size_t tokens = section.sub_tiles.tokens;
  const mma_order::Selectors selectors{section.width, section.table,
                                       mma_order::selectors(tokens, section.dim)};
  const std::size_t blocks = section.dim / 16;
  const std::size_t quads = selectors.count / 4;
  Kokkos::parallel_for(
      Kokkos::TeamVectorRange(team, TileFormat::tokens / tokens * 32 * quads),
      [&](std::size_t item) {
        const std::size_t lane = item % 32;
        const std::size_t quad = item / 32 % quads;
        const std::size_t first = item / 32 / quads * tokens;
        const auto shift = static_cast<unsigned>(lane / 4 % 4 * 8);
        std::uint32_t nibbles[4];
        for (std::size_t i = 0; i < 4; ++i) {
          const std::size_t selector = 4 * quad + i;
          const std::size_t row = selector % blocks * 2 + lane / 16;
          const std::size_t token = first + 16 * (selector / blocks) + 2 * (lane % 4);
          std::uint32_t four = 0;
          TURBOQUANT_UNROLL_IN_KERNELS
          for (unsigned byte = 0; byte < 4; ++byte) {
            const unsigned odd = section.table ? byte % 2 : byte / 2;
            const unsigned upper = section.table ? byte / 2 : byte % 2;
            four |= ((rows.at(row, token + odd + 8 * upper) >> shift) & 0xFFU) << (8 * byte);
          }
          nibbles[i] = four;
        }
        selectors.write_quad(tile + section.sub_tiles.start(first) + section.offset, lane, quad,
                             nibbles);
      });
}

/// Key words of a tile from rows.
template <class Team>
TURBOQUANT_FUNCTION void pack_keys(const Team& team, const TileFormat& format, NibbleRows rows,
                                   unsigned char* tile) {
  if (format.order == TileOrder::host) {
    pack_host_keys(team, key_codes(format), rows, tile);
  } else {
    pack_mma_keys(team, key_codes(format), rows, tile);
  }
}

/// Value words of a tile from rows; the tile is zero before.
template <class Team>
TURBOQUANT_FUNCTION void pack_values(const Team& team, const TileFormat& format, NibbleRows rows,
                                     unsigned char* tile) {
  if (format.order == TileOrder::host) {
    pack_host_values(team, value_codes(format), rows, tile);
  } else {
    pack_mma_values(team, value_codes(format), rows, tile);
  }
}

}  // namespace turboquant::detail
