#pragma once

#include <turboquant/device/arch/cuda_mma_instructions.hpp>
#include <turboquant/device/tile_format.hpp>
#include <turboquant/math/integer_grid.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail::cuda {

/// Warps of a team, and teams that share a multiprocessor: one starts or ends while the other
/// streams. With more warps, registers would not hold the loads of the next step, and spilling them
/// makes a warp wait for them.
inline constexpr int team_warps = 4;
inline constexpr int teams_per_unit = 2;

/// A tile format known at compile time and what follows from it for one warp.
/// @tparam TileTokens 16, 32 or 64
/// @tparam StepTokens of a step of a warp; 0: as many as registers hold beside the next step's
/// loads
template <int KeyBits, int ValueBits, int Dim, int Group, int TileTokens = 64, int StepTokens = 0>
struct MmaShape {
  template <int Tokens>
  using with_steps_of = MmaShape<KeyBits, ValueBits, Dim, Group, TileTokens, Tokens>;

  static constexpr TileFormat format{KeyCodec::mse,     KeyBits,   Dim,   ValueCodec::grouped,
                                     ValueBits,         Dim,       Group, TileOrder::mma,
                                     KeyCentring::none, TileTokens};
  static constexpr int key_bits = KeyBits;
  static constexpr int value_bits = ValueBits;
  static constexpr int dim = Dim;
  static constexpr int groups = Dim / Group;
  static constexpr int tile_tokens = TileTokens;
  static constexpr int sub_tokens = static_cast<int>(format.sub_tile_tokens());
  static constexpr int sub_bytes = static_cast<int>(format.sub_tile_bytes());
  /// Tokens of a sub-tile of tiles of 64: steps do not depend on the size of tiles.
  static constexpr int most_sub_tokens = static_cast<int>(mma_order::sub_tile_tokens(Dim, Dim));
  static constexpr int most_step_tokens = most_sub_tokens < 64 ? 2 * most_sub_tokens : 64;
  static constexpr int step_tokens = StepTokens > 0 ? StepTokens
                                     : groups == 1  ? most_step_tokens
                                                    : most_sub_tokens;
  static constexpr int steps_per_64 = 64 / step_tokens;
  /// Tiles of a step; where a tile is more than a step, 1 and the steps of a tile.
  static constexpr int step_tiles = step_tokens > TileTokens ? step_tokens / TileTokens : 1;
  static constexpr int tile_steps = step_tokens < TileTokens ? TileTokens / step_tokens : 1;
  /// Sub-tiles that a warp takes in one step.
  static constexpr int sub_tiles = step_tokens / sub_tokens;
  static constexpr int step_bytes = sub_bytes * sub_tiles;
  static constexpr int sub_blocks = sub_tokens / 8;
  static constexpr int blocks = step_tokens / 8;
  static constexpr int key_steps = Dim / 32;    ///< products of 32 dimensions
  static constexpr int value_tiles = Dim / 16;  ///< products of 16 dimensions
  static constexpr int selectors = sub_tokens * Dim / 256;
  static constexpr int key_words = selectors * KeyBits / 4;
  static constexpr int value_words = selectors * ValueBits / 4;

  static_assert(Dim % 32 == 0 && Group % 32 == 0 && Dim % Group == 0);
  static_assert(format.sub_tile_bytes() % 16 == 0 && format.value_codes_offset() % 16 == 0 &&
                format.value_scales_offset() % 16 == 0);
};

/// The `Count` dwords of a lane in a section of codes.
/// @tparam Address `const std::byte*` or `SharedAddress`
template <int Count, class Address>
KOKKOS_FORCEINLINE_FUNCTION void load_section(Address section, int lane, Word (&out)[Count]) {
  constexpr int whole = Count / 4;
  constexpr int rest = Count % 4;
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int i = 0; i < whole; ++i) {
    load_4_words(section + (512 * i + 16 * lane), out + 4 * i);
  }
  const Address at = section + (512 * whole + 4 * rest * lane);
  if constexpr (rest == 2) {
    load_2_words(at, out + 4 * whole);
  } else {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < rest; ++i) {
      load_1_word(at + 4 * i, out + 4 * whole + i);
    }
  }
}

/// `Count` consecutive dwords, aligned to their size up to 16 bytes.
template <int Count, class Address>
KOKKOS_FORCEINLINE_FUNCTION void load_row(Address at, Word* out) {
  if constexpr (Count >= 4) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Count / 4; ++i) {
      load_4_words(at + 16 * i, out + 4 * i);
    }
  } else if constexpr (Count == 2) {
    load_2_words(at, out);
  } else {
    static_assert(Count == 1);
    load_1_word(at, out);
  }
}

/// Codes of up to 3 bits of selector `Selector`, one a nibble; bits beyond the code are not zero at
/// 4 bits only.
template <int Bits, int Count>
KOKKOS_FORCEINLINE_FUNCTION Word selector_of(const Word (&words)[Count * Bits / 4], int selector) {
  if constexpr (Bits == 4) {
    return words[selector];
  } else if constexpr (Bits == 3) {
    constexpr int quarter = Count / 4;
    const int first = selector / 4;
    const int part = selector % 4;
    if (part < 3) {
      return words[first + part * quarter] & 0x77777777U;
    }
    return ((words[first] >> 3U) & 0x11111111U) | ((words[first + quarter] >> 2U) & 0x22222222U) |
           ((words[first + 2 * quarter] >> 1U) & 0x44444444U);
  } else {
    static_assert(Bits == 2);
    return (words[selector / 2] >> static_cast<unsigned>(2 * (selector % 2))) & 0x33333333U;
  }
}

/// Keys of one step in registers.
template <class Shape>
struct KeyRegisters {
  Word words[Shape::sub_tiles][Shape::key_words];
  Word scales[Shape::blocks / 2];  ///< two fp16: tokens r of an even block of 8 and of the next

  /// @param sub_tile `sub_tile(i, byte)` is an address in sub-tile i of the step
  template <class SubTile>
  KOKKOS_FORCEINLINE_FUNCTION void load(const SubTile& sub_tile, int lane) {
    constexpr auto scales_at = static_cast<int>(Shape::format.key_scales_offset());
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Shape::sub_tiles; ++i) {
      load_section(sub_tile(i, 0), lane, words[i]);
      load_row<Shape::sub_blocks / 2>(sub_tile(i, scales_at + lane / 4 * Shape::sub_blocks * 2),
                                      scales + i * Shape::sub_blocks / 2);
    }
  }
};

/// Values of one step in registers.
template <class Shape>
struct ValueRegisters {
  Word words[Shape::sub_tiles][Shape::value_words];
  /// Two fp16: tokens 2 c and 2 c + 1 of a block of 8.
  Word scales[Shape::groups][Shape::blocks];
  Word zeros[Shape::groups][Shape::blocks];

  /// @param sub_tile `sub_tile(i, byte)` is an address in sub-tile i of the step
  template <class SubTile>
  KOKKOS_FORCEINLINE_FUNCTION void load(const SubTile& sub_tile, int lane) {
    constexpr auto scales_at = static_cast<int>(Shape::format.value_scales_offset());
    constexpr auto zeros_at = static_cast<int>(Shape::format.value_zeros_offset());
    constexpr auto codes_at = static_cast<int>(Shape::format.value_codes_offset());
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Shape::sub_tiles; ++i) {
      const auto at = sub_tile(i, 0);
      load_section(at + codes_at, lane, words[i]);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int group = 0; group < Shape::groups; ++group) {
        const int row = 2 * Shape::sub_tokens * group + lane % 4 * Shape::sub_blocks * 4;
        load_row<Shape::sub_blocks>(at + (scales_at + row), scales[group] + i * Shape::sub_blocks);
        load_row<Shape::sub_blocks>(at + (zeros_at + row), zeros[group] + i * Shape::sub_blocks);
      }
    }
  }
};

/// Four int8 levels of the codes `first` to `first + 3` as a dword.
[[nodiscard]] constexpr Word level_bytes(int bits, unsigned first) {
  Word word = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned code = (first + i) % (1U << static_cast<unsigned>(bits));
    word |= (static_cast<Word>(integer_grid(bits).level(code)) & 0xFFU) << (8 * i);
  }
  return word;
}

/// int8 levels of the codes in nibbles 0 to 3 (`low`) and 4 to 7 (`high`) of a key selector.
template <int Bits>
KOKKOS_FORCEINLINE_FUNCTION void key_levels(Word selector, Word& low, Word& high) {
  constexpr Word table0 = level_bytes(Bits, 0);
  constexpr Word table4 = level_bytes(Bits, 4);
  if constexpr (Bits == 4) {
    constexpr Word table8 = level_bytes(Bits, 8);
    constexpr Word table12 = level_bytes(Bits, 12);
    const Word codes = selector & 0x77777777U;
    // Bit 3 of the codes of a half is the sign of its bytes.
    const Word upper_low = permute_bytes(selector, 0, 0xBA98U);
    const Word upper_high = permute_bytes(selector << 4U, 0, 0xBA98U);
    low = (permute_bytes(table8, table12, codes) & upper_low) |
          (permute_bytes(table0, table4, codes) & ~upper_low);
    high = (permute_bytes(table8, table12, codes >> 16U) & upper_high) |
           (permute_bytes(table0, table4, codes >> 16U) & ~upper_high);
  } else {
    low = permute_bytes(table0, table4, selector);
    high = permute_bytes(table0, table4, selector >> 16U);
  }
}

}  // namespace turboquant::detail::cuda
