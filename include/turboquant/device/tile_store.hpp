#pragma once

#include <turboquant/device/tile_words.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace turboquant::detail {

/// Where the lanes of one call go: lane l is slot `slot + l` of the tile, for l below `count`.
struct LaneSlots {
  std::size_t slot = 0;
  std::size_t count = 0;
};

/// The codes of 8 dimensions as nibble words, one per lane.
template <std::size_t Lanes>
TURBOQUANT_FUNCTION void gather_nibbles(const std::uint8_t* codes,
                                        std::uint32_t* nibbles) noexcept {
  for (std::size_t lane = 0; lane < Lanes; ++lane) {
    nibbles[lane] = 0;
  }
  for (std::size_t n = 0; n < 8; ++n) {
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      nibbles[lane] |= static_cast<std::uint32_t>(codes[n * Lanes + lane]) << nibble_shift(n);
    }
  }
}

/// @param words how words that tokens share are changed; see `PlainWords`
/// @param group first group of 8 dimensions to store
template <std::size_t Lanes, class Words>
TURBOQUANT_FUNCTION void store_key_codes(const KeySection& section, const std::uint8_t* codes,
                                         LaneSlots lanes, const Words& words, unsigned char* tile,
                                         std::size_t group = 0) noexcept {
  // Host order: words of 32 dimensions are complete in registers, so their rows are written without
  // being read.
  const std::size_t row_bytes = 4 * section.sub_tiles.tokens;
  const std::size_t word_groups =
      section.sub_tiles.order == TileOrder::host ? section.word_dims() / 8 : 0;
  for (; group + 4 <= word_groups; group += 4) {
    std::uint32_t nibbles[4][Lanes];
    for (std::size_t k = 0; k < 4; ++k) {
      gather_nibbles<Lanes>(codes + (8 * group + 8 * k) * Lanes, nibbles[k]);
    }
    unsigned char* rows =
        tile + section.offset + group / 4 * section.width * row_bytes + 4 * lanes.slot;
    for (std::size_t row = 0; row < section.width; ++row) {
      std::uint32_t row_words[Lanes];
      for (std::size_t lane = 0; lane < Lanes; ++lane) {
        switch (section.width) {
          case 1:
            row_words[lane] = nibbles[0][lane] | (nibbles[1][lane] << 1U) |
                              (nibbles[2][lane] << 2U) | (nibbles[3][lane] << 3U);
            break;
          case 2:
            row_words[lane] = nibbles[2 * row][lane] | (nibbles[2 * row + 1][lane] << 2U);
            break;
          case 3:
            row_words[lane] =
                nibbles[row][lane] | (((nibbles[3][lane] >> row) & 0x11111111U) << 3U);
            break;
          default: row_words[lane] = nibbles[row][lane]; break;
        }
      }
      std::memcpy(rows + row * row_bytes, row_words, 4 * lanes.count);
    }
  }
  for (; group < section.dim / 8; ++group) {
    std::uint32_t nibbles[Lanes];
    gather_nibbles<Lanes>(codes + 8 * group * Lanes, nibbles);
    for (std::size_t lane = 0; lane < lanes.count; ++lane) {
      section.write_nibbles(tile, group, lanes.slot + lane, nibbles[lane], words);
    }
  }
}

/// 8 codes below 16, one a byte, as nibbles; the first in the lowest.
[[nodiscard]] inline TURBOQUANT_FUNCTION std::uint32_t bytes_to_nibbles(
    std::uint64_t codes) noexcept {
  codes = (codes | (codes >> 4U)) & 0x00FF00FF00FF00FFU;
  codes = (codes | (codes >> 8U)) & 0x0000FFFF0000FFFFU;
  return static_cast<std::uint32_t>(codes | (codes >> 16U));
}

template <std::size_t Lanes, class Words>
TURBOQUANT_FUNCTION void store_value_codes(const ValueSection& section, const std::uint8_t* codes,
                                           LaneSlots lanes, const Words& words,
                                           unsigned char* tile) noexcept {
  for (std::size_t lane = 0; lane < lanes.count;) {
    const std::size_t token = (lanes.slot + lane) % 8;
    const std::size_t left = lanes.count - lane;
    const std::size_t count = left < 8 - token ? left : 8 - token;
    const std::size_t group = (lanes.slot + lane) / 8;
    if (count == 8 && section.width == 4 && section.sub_tiles.order == TileOrder::host) {
      for (std::size_t d = 0; d < section.dim; ++d) {
        std::uint64_t bytes = 0;
        std::memcpy(&bytes, codes + d * Lanes + lane, 8);
        store_word(tile + section.offset + 4 * (section.column(d) + group * section.row_words(d)),
                   bytes_to_nibbles(bytes));
      }
    } else {
      for (std::size_t d = 0; d < section.dim; ++d) {
        std::uint64_t bytes = 0;
        for (std::size_t i = 0; i < count; ++i) {
          bytes |= static_cast<std::uint64_t>(codes[d * Lanes + lane + i]) << (8 * (token + i));
        }
        section.write_nibbles(tile, group, d, bytes_to_nibbles(bytes), words);
      }
    }
    lane += count;
  }
}

template <std::size_t Lanes>
TURBOQUANT_FUNCTION void store_scales(const HalfSection& section, const float16* scales,
                                      LaneSlots lanes, unsigned char* tile) noexcept {
  for (std::size_t lane = 0; lane < lanes.count; ++lane) {
    store_half(tile + section.byte(lanes.slot + lane), scales[lane]);
  }
}

}  // namespace turboquant::detail
