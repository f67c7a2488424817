#pragma once

#include <turboquant/device/dot_tables.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// Dot tile operations on tiles in mma order. A lane scores tokens `lane + Lanes j`; its slots come
/// in pairs, the dimensions 16 mt + 2 r and 16 mt + 2 r + 1 that a value word holds.
template <int Lanes>
struct MmaDotTiles {
  static constexpr TileOrder order = TileOrder::mma;
  static constexpr int tokens = static_cast<int>(TileFormat::tokens) / Lanes;

  const DotFormat& in;
  int lane = 0;
  int sub_tokens = 0;
  int key_half_at[tokens];    ///< bytes from the start of a section of the tile
  int value_half_at[tokens];  ///< the same, of the first group

  KOKKOS_FORCEINLINE_FUNCTION MmaDotTiles(const DotFormat& format, int own_lane)
      : in(format), lane(own_lane), sub_tokens(static_cast<int>(format.format.sub_tile_tokens())) {
    const auto each = static_cast<std::size_t>(sub_tokens);
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < tokens; ++j) {
      const auto token = static_cast<std::size_t>(lane + Lanes * j);
      const std::size_t start = token / each * format.format.sub_tile_bytes();
      key_half_at[j] = static_cast<int>(start + 2 * mma_order::key_half(each, token % each));
      value_half_at[j] = static_cast<int>(start + 2 * mma_order::value_half(each, token % each));
    }
  }

  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int dim_of_slot(int slot) const {
    const int item = lane + Lanes * (slot / 2);
    return item / 8 * 16 + item % 8 * 2 + slot % 2;
  }
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION int nibble_of_dim(const TileFormat& format,
                                                                     int group, int i) {
    return group < format.key_dim / 32 * 4 ? i : i % 4 * 2 + i / 4;
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float key_half(const unsigned char* tile,
                                                           std::size_t offset, int j) const {
    return finite_half(tile + offset + key_half_at[j]);
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float value_half(const unsigned char* tile,
                                                             std::size_t offset, int j) const {
    return finite_half(tile + offset + value_half_at[j]);
  }

  template <int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void scores(const unsigned char* tile, const DotQuery<Rows>& query,
                                          DotSums<tokens, Rows>& sums) const {
    const KeySection section = key_codes(in.format);
    if (in.format.key_dim % 128 == 0 && sub_tokens * in.format.key_dim == 4096) {
      switch (section.width) {
        case 2: return add_quads<2>(tile, in.key_codes, in.key_levels, query, sums);
        case 3: return add_quads<3>(tile, in.key_codes, in.key_levels, query, sums);
        default: return add_quads<4>(tile, in.key_codes, in.key_levels, query, sums);
      }
    }
    section.width == 4 ? add<true>(section, tile, in.key_levels, query, sums)
                       : add<false>(section, tile, in.key_levels, query, sums);
  }
  template <int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void signs(const unsigned char* tile, const DotQuery<Rows>& query,
                                         DotSums<tokens, Rows>& sums) const {
    add<false>(key_signs(in.format), tile, in.sign_levels, query, sums);
  }
  template <int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void float8(const unsigned char* tile, const float* query,
                                          float (&logits)[tokens][Rows]) const {
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int four = 0; four < in.format.key_dim / 4; ++four) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        // Four dimensions are one dword in every order.
        const std::uint32_t word =
            load_word(tile + in.format
                                 .key_code_bit(static_cast<std::size_t>(lane + Lanes * j),
                                               4 * static_cast<std::size_t>(four), 0)
                                 .byte);
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int n = 0; n < 4; ++n) {
          const float key = finite_float8(word >> static_cast<unsigned>(8 * n));
          const auto row = reinterpret_cast<const FloatPack<Rows>*>(query)[4 * four + n];
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int r = 0; r < Rows; ++r) {
            logits[j][r] += row.numbers[r] * key;
          }
        }
      }
    }
  }

  KOKKOS_FORCEINLINE_FUNCTION void weight_place(int j, int& index, int& byte) const {
    const int token = (lane + Lanes * j) % 16;
    const int odd = token % 2;
    const int upper = token / 8;
    index = (lane + Lanes * j) / 16 * 4 + token % 8 / 2;
    byte = in.format.value_codec == ValueCodec::codebook ? 2 * upper + odd : 2 * odd + upper;
  }

  template <int Count, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void values(const unsigned char* tile, int first,
                                          const bool (&active)[Count],
                                          const DotWeights<Rows>& weights,
                                          DotSums<Count, Rows>& sums) const {
    static_assert(Count % 2 == 0);
    const bool table = in.format.value_codec == ValueCodec::codebook;
    switch (in.format.value_bits) {
      case 2:
        return table ? add_values<2, true>(tile, first, active, weights, sums)
                     : add_values<2, false>(tile, first, active, weights, sums);
      case 3: return add_values<3, true>(tile, first, active, weights, sums);
      default:
        return table ? add_values<4, true>(tile, first, active, weights, sums)
                     : add_values<4, false>(tile, first, active, weights, sums);
    }
  }

 private:
  /// `mma_order::word_byte` where all words lie in fours.
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION std::uint32_t word_of_four(
      const unsigned char* section, int owner, int word) {
    return load_word(section + (word / 4 * 512 + owner * 16 + word % 4 * 4));
  }

  /// The nibbles of a value selector, `count` of a lane; the same as `Selectors::read`.
  template <int Width, bool Table>
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION std::uint32_t value_selector(
      const unsigned char* section, int owner, int selector, int count) {
    if (count * Width % 16 != 0 || (Width == 4 && Table)) {
      const mma_order::Selectors selectors{Width, Table, static_cast<std::size_t>(count)};
      return selectors.read(section, static_cast<std::size_t>(owner),
                            static_cast<std::size_t>(selector));
    }
    if constexpr (Width == 2) {
      const std::uint32_t word = word_of_four(section, owner, selector / 2);
      if constexpr (Table) {
        return (word >> static_cast<unsigned>(selector % 2 * 2)) & 0x33333333U;
      } else {
        const std::uint32_t pairs = word >> static_cast<unsigned>(selector % 2 * 4);
        return (pairs & 0x03030303U) | ((pairs & 0x0C0C0C0CU) << 2U);
      }
    } else if constexpr (Width == 3) {
      const int quarter = count / 4;
      const int part = selector % 4;
      if (part < 3) {
        return word_of_four(section, owner, selector / 4 + part * quarter) & 0x77777777U;
      }
      const std::uint32_t words[3] = {word_of_four(section, owner, selector / 4),
                                      word_of_four(section, owner, selector / 4 + quarter),
                                      word_of_four(section, owner, selector / 4 + 2 * quarter)};
      return shared_selector<3>(words, 3);
    } else {
      return word_of_four(section, owner, selector);
    }
  }

  /// @tparam Table whether codes are looked up; those of 3-bit numbers are, too
  template <int Width, bool Table, int Count, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add_values(const unsigned char* tile, int first,
                                              const bool (&active)[Count],
                                              const DotWeights<Rows>& weights,
                                              DotSums<Count, Rows>& sums) const {
    const int dim = in.format.value_dim;
    const int count = sub_tokens * dim / 256;
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int step = 0; step < 4; ++step) {
      const int sub = 16 * step / sub_tokens;
      const unsigned char* section =
          tile + static_cast<std::size_t>(sub) * in.format.sub_tile_bytes() + in.value_codes;
      const int first_selector = (16 * step - sub * sub_tokens) / 16 * (dim / 16);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int column = 0; column < 4; ++column) {
        const WordPack<Rows> highs = weights.pack(4 * step + column, 0);
        const WordPack<Rows> lows = weights.pack(4 * step + column, 1);
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int i = 0; i < Count; i += 2) {
          const int item = active[i] ? lane + Lanes * ((first + i) / 2) : 0;
          const std::uint32_t nibbles = value_selector<Width, Table>(
              section, item % 8 * 4 + column, first_selector + item / 8, count);
          if constexpr (Table) {
            const ByteTable bytes{in.value_levels.of<Width == 4>(nibbles),
                                  in.value_levels.of<Width == 4>(nibbles >> 16U)};
            sums.add(i, look_up(bytes, 0x6420U), highs, lows);
            sums.add(i + 1, look_up(bytes, 0x7531U), highs, lows);
          } else {
            sums.add(i, nibbles & 0x0F0F0F0FU, highs, lows);
            sums.add(i + 1, (nibbles >> 4U) & 0x0F0F0F0FU, highs, lows);
          }
        }
      }
    }
  }

  /// Keys of 128 or 256 dimensions: four selectors of a lane are four groups of one token.
  template <int Width, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add_quads(const unsigned char* tile, std::uint32_t offset,
                                             const LevelBytes& levels, const DotQuery<Rows>& query,
                                             DotSums<tokens, Rows>& sums) const {
    const int quads = in.format.key_dim / 128;
    const int quarter = sub_tokens * in.format.key_dim / 1024;
    const int rounds = 4 * quads;  // quad after quad of one column
    const auto load = [&](int round, std::uint32_t(&words)[tokens][Width]) {
      const int column = round < rounds ? round / quads : 0;
      const int quad = round < rounds ? round - column * quads : 0;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        const int token = lane + Lanes * j;
        const int sub = token / sub_tokens;
        const unsigned char* section =
            tile + static_cast<std::size_t>(sub) * in.format.sub_tile_bytes() + offset;
        const int own = (token - sub * sub_tokens) / 8 * quads + quad;
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int k = 0; k < Width; ++k) {
          words[j][k] = word_of_four(section, token % 8 * 4 + column,
                                     Width == 3 ? own + k * quarter : own * Width + k);
        }
      }
    };
    // Two rounds are on their way while one is multiplied.
    std::uint32_t next[tokens][Width];
    std::uint32_t after[tokens][Width];
    load(0, next);
    load(1, after);
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int round = 0; round < rounds; ++round) {
      std::uint32_t words[tokens][Width];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int k = 0; k < Width; ++k) {
          words[j][k] = next[j][k];
          next[j][k] = after[j][k];
        }
      }
      load(round + 2, after);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int g = 0; g < 4; ++g) {
        std::uint32_t selectors[tokens];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int j = 0; j < tokens; ++j) {
          selectors[j] = shared_selector<Width>(words[j], g);
        }
        if constexpr (Width == 4) {
          query.add_signed(levels, 4 * round + g, selectors, sums);
        } else {
          query.template add<false>(levels, 4 * round + g, selectors, sums);
        }
      }
    }
  }

  template <bool Sixteen, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add(const KeySection& section, const unsigned char* tile,
                                       const LevelBytes& levels, const DotQuery<Rows>& query,
                                       DotSums<tokens, Rows>& sums) const {
    const std::size_t each = section.sub_tiles.tokens;
    const mma_order::Selectors words{section.width, true, mma_order::selectors(each, section.dim)};
    const std::size_t blocks = section.dim / 32;
    int group = 0;
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (std::size_t column = 0; column < 4; ++column) {
      TURBOQUANT_KEEP_LOOP_IN_KERNELS
      for (std::size_t block = 0; block < blocks; ++block, ++group) {
        std::uint32_t selectors[tokens];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int j = 0; j < tokens; ++j) {
          const auto token = static_cast<std::size_t>(lane + Lanes * j);
          selectors[j] = words.read(tile + section.sub_tiles.start(token) + section.offset,
                                    token % 8 * 4 + column, token % each / 8 * blocks + block);
        }
        query.template add<Sixteen>(levels, group, selectors, sums);
      }
    }
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (; group < in.format.key_dim / 8; ++group) {
      std::uint32_t selectors[tokens];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        selectors[j] = section.read_nibbles(tile, static_cast<std::size_t>(group),
                                            static_cast<std::size_t>(lane + Lanes * j));
      }
      query.template add<Sixteen>(levels, group, selectors, sums);
    }
  }
};

}  // namespace turboquant::detail
