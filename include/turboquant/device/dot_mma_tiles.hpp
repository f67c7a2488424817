#pragma once

#include <turboquant/device/dot_products.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace turboquant::detail {

/// Dot tile operations on tiles in mma order, for `TileLanes` lanes that share a tile. A lane's
/// tokens have the same row r and follow each other in steps of 8; its dimensions come in pairs,
/// 16 mt + 2 r and 16 mt + 2 r + 1, which a value word holds.
template <int TileLanes>
struct MmaDotTiles {
  static constexpr TileOrder order = TileOrder::mma;
  static constexpr int lanes = TileLanes;
  static constexpr int tokens = static_cast<int>(TileFormat::max_tokens) / TileLanes;
  static constexpr int chunk = 8;
  static constexpr int runs = 4;

  const DotFormat& in;
  int lane = 0;  ///< of those that share the tile
  int sub_tokens = 0;

  KOKKOS_FORCEINLINE_FUNCTION MmaDotTiles(const DotFormat& format, int own_lane)
      : in(format), lane(own_lane), sub_tokens(static_cast<int>(format.format.sub_tile_tokens())) {}

  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int token(int j) const {
    return TileLanes >= 8 ? (lane / 8 * tokens + j) * 8 + lane % 8
                          : lane * tokens + j / 16 * 16 + j % 2 * 8 + j / 2 % 8;
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int dim_of_slot(int slot) const {
    const int number = slot / chunk * TileLanes + lane;
    return number / 8 * 64 + slot % chunk / 2 * 16 + number % 8 * 2 + slot % 2;
  }
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION int nibble_of_dim(const TileFormat& format,
                                                                     int group, int i) {
    return group < format.key_dim / 32 * 4 ? i : i % 4 * 2 + i / 4;
  }

  /// The tokens of a lane lie together in a sub-tile, unless it has all of them.
  using KeyHalves =
      std::conditional_t<(TileLanes >= 8), PackedHalves<tokens>, SingleHalves<tokens>>;
  using ValueHalves = SingleHalves<tokens>;

  KOKKOS_FORCEINLINE_FUNCTION void load_key_halves(const unsigned char* section,
                                                   KeyHalves& halves) const {
    const auto at = [&](int j) {
      return sub_tile(section, token(j)) +
             2 * mma_order::key_half(static_cast<std::size_t>(sub_tokens),
                                     static_cast<std::size_t>(token(j) % sub_tokens));
    };
    if constexpr (TileLanes >= 8) {
      halves.load(at(0));
    } else {
      for (int j = 0; j < tokens; ++j) {
        halves.load(j, at(j));
      }
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION void load_value_halves(const unsigned char* section,
                                                     ValueHalves& halves) const {
    const auto at = [&](int j) {
      return sub_tile(section, token(j)) +
             2 * mma_order::value_half(static_cast<std::size_t>(sub_tokens),
                                       static_cast<std::size_t>(token(j) % sub_tokens));
    };
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < tokens; ++j) {
      halves.load(j, TileLanes >= 8 ? at(0) + 4 * j : at(j));
    }
  }

  template <int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void scores(const unsigned char* tile, const DotQuery<Rows>& query,
                                          DotSums<tokens, Rows>& sums) const {
    if (!has_quads()) {
      return add_keys(key_codes(in.format), tile, in.key_levels, query, sums);
    }
    const unsigned char* section = tile + in.key_codes;
    switch (in.format.key_code_bits()) {
      case 2: return add_quads<2>(section, in.key_levels, query, sums);
      case 3: return add_quads<3>(section, in.key_levels, query, sums);
      default: return add_quads<4>(section, in.key_levels, query, sums);
    }
  }
  template <int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void signs(const unsigned char* tile, const DotQuery<Rows>& query,
                                         DotSums<tokens, Rows>& sums) const {
    if (!has_quads()) {
      return add_keys(key_signs(in.format), tile, in.sign_levels, query, sums);
    }
    add_quads<1>(tile + in.key_signs, in.sign_levels, query, sums);
  }

  /// Key codes of a block of 32 dimensions, column after column: all words of four tokens lie
  /// together in fours; otherwise they are loaded one by one.
  template <int Bits>
  using KeyPieces =
      std::conditional_t<tokens == 4, CodePieces<Bits, 4>, CodePieces<Bits * tokens, 1>>;

  template <int Bits>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION auto key_source() const {
    return [this](const unsigned char* section, int block, int piece) {
      if constexpr (tokens == 4) {
        return sub_tile(section, token(0)) + 512 * piece + (lane % 8 * 4 + block) * 16;
      } else {
        const int quads = in.format.key_dim / 128;
        const int column = block / quads;
        const int t = token(piece / Bits);
        const int quad = t % sub_tokens / 8 * quads + block - column * quads;
        return sub_tile(section, t) +
               byte_of_word(t % 8 * 4 + column,
                            Bits == 3 ? quad + 4 * (piece % Bits) : quad * Bits + piece % Bits);
      }
    };
  }
  template <int Bits, int Rows>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION auto key_use(const LevelBytes& levels,
                                                         const DotQuery<Rows>& query,
                                                         DotSums<tokens, Rows>& sums) const {
    return [&](int block, const KeyPieces<Bits>& loaded) {
      std::uint32_t words[tokens][Bits];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int k = 0; k < Bits; ++k) {
          // Words of 3 bits lie together by their number, others by their token.
          const int word = j * Bits + k;
          words[j][k] = tokens != 4 ? loaded.of[word][0]
                        : Bits == 3 ? loaded.of[k][j % KeyPieces<Bits>::words]
                                    : loaded.of[word / 4 % Bits][word % KeyPieces<Bits>::words];
        }
      }
      constexpr HighBits place = Bits == 4 ? HighBits::apart : HighBits::none;
      query.template add_block<Bits, place>(levels, block, words, sums);
    };
  }
  KOKKOS_FORCEINLINE_FUNCTION void float8_words(const unsigned char* tile, int four,
                                                std::uint32_t (&words)[tokens]) const {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < tokens; ++j) {
      // Four dimensions are one dword in every order.
      words[j] = load_word(tile + in.format
                                      .key_code_bit(static_cast<std::size_t>(token(j)),
                                                    4 * static_cast<std::size_t>(four), 0)
                                      .byte);
    }
  }

  template <int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void set_weights(const DotWeights<Rows>& weights,
                                               const int (&integers)[tokens][Rows]) const {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < tokens; j += 2) {
      const int t = token(j);
      set_integers<Rows>(weights.packs[t / 16 * 4 + t % 8 / 2], t % 2, integers[j],
                         integers[j + 1]);
    }
  }

  template <int Runs, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void values(const unsigned char* tile, int number,
                                          const DotWeights<Rows> (&weights)[Runs],
                                          DotSums<chunk, Rows>& sums) const {
    if (sub_tokens * in.format.value_dim != 4096) {
      return add_values(tile, number, weights, sums);
    }
    const bool table = in.format.value_codec == ValueCodec::codebook;
    switch (in.format.value_bits) {
      case 2:
        return table ? add_fours<2, true>(tile, number, weights, sums)
                     : add_fours<2, false>(tile, number, weights, sums);
      case 3: return add_fours<3, true>(tile, number, weights, sums);
      default:
        return table ? add_fours<4, true>(tile, number, weights, sums)
                     : add_fours<4, false>(tile, number, weights, sums);
    }
  }

  /// Value codes of a chunk and two columns of 4 tokens, where values have 64, 128 or 256
  /// dimensions: the words of a column lie together, unless they have 3 bits.
  template <int Bits>
  using ValuePieces = std::conditional_t<Bits == 3, CodePieces<6, 1>, CodePieces<2, Bits>>;
  template <int Bits>
  static constexpr int value_units = 8;
  /// Whether grouped codes are looked up; otherwise they are numbers.
  template <int Bits>
  static constexpr bool looks_up = Bits == 3;

  template <int Bits>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION auto value_source(int number) const {
    return [this, number](const unsigned char* codes, int unit, int piece) {
      constexpr int each = Bits == 3 ? 3 : 1;  // pieces of a column
      const int t = unit / 2 * 16;
      // Selectors of 16 tokens follow each other.
      const int first = t % sub_tokens / 16 * (in.format.value_dim / 16) + number / 8 * 4;
      const int owner = number % 8 * 4 + unit % 2 * 2 + piece / each;
      return sub_tile(codes, t) +
             byte_of_word(owner, Bits == 3 ? first / 4 + 4 * (piece % each) : first * Bits / 4);
    };
  }
  template <int Bits, bool Table, int Runs, int Rows>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION auto value_use(const DotWeights<Rows> (&weights)[Runs],
                                                           DotSums<chunk, Rows>& sums) const {
    return [this, &weights, &sums](int unit, const ValuePieces<Bits>& loaded) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < 2; ++i) {
        std::uint32_t words[Bits];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int k = 0; k < Bits; ++k) {
          words[k] =
              Bits == 3
                  ? loaded.of[3 * i % ValuePieces<Bits>::pieces + k % ValuePieces<Bits>::pieces][0]
                  : loaded.of[i][k % ValuePieces<Bits>::words];
        }
        WidePack<Rows> integers = weights[0].packs[2 * unit + i];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int pair = 0; pair < 4; ++pair) {
          if (pair > 0 && Runs > 1) {
            integers = weights[pair * Runs / 4].packs[2 * unit + i];
          }
          add_pair_of<Bits, Table>(words, pair, integers, sums);
        }
      }
    };
  }

 private:
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION const unsigned char* sub_tile(const unsigned char* tile,
                                                                          int t) const {
    return tile + static_cast<std::size_t>(t / sub_tokens) * in.format.sub_tile_bytes();
  }
  /// Whether four selectors of a lane are four groups of one token.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION bool has_quads() const {
    return in.format.key_dim % 128 == 0 && sub_tokens * in.format.key_dim == 4096;
  }
  /// `mma_order::word_byte` where all words lie in fours.
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION int byte_of_word(int owner, int word) {
    return word / 4 * 512 + owner * 16 + word % 4 * 4;
  }

  template <int Bits, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add_quads(const unsigned char* section, const LevelBytes& levels,
                                             const DotQuery<Rows>& query,
                                             DotSums<tokens, Rows>& sums) const {
    for_each_unit<KeyPieces<Bits>>(in.format.key_dim / 32, section, key_source<Bits>(),
                                   key_use<Bits>(levels, query, sums));
  }
  template <int Bits, bool Table, int Runs, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add_fours(const unsigned char* tile, int number,
                                             const DotWeights<Rows> (&weights)[Runs],
                                             DotSums<chunk, Rows>& sums) const {
    for_each_unit<ValuePieces<Bits>>(value_units<Bits>, tile + in.value_codes,
                                     value_source<Bits>(number),
                                     value_use<Bits, Table>(weights, sums));
  }

  /// Keys of any dimension.
  template <int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add_keys(const KeySection& section, const unsigned char* tile,
                                            const LevelBytes& levels, const DotQuery<Rows>& query,
                                            DotSums<tokens, Rows>& sums) const {
    const std::size_t each = section.sub_tiles.tokens;
    const mma_order::Selectors words{section.width, true, mma_order::selectors(each, section.dim)};
    const std::size_t blocks = section.dim / 32;
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int group = 0; group < in.format.key_dim / 8; ++group) {
      const auto number = static_cast<std::size_t>(group);
      std::uint32_t selectors[tokens];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        const auto t = static_cast<std::size_t>(token(j));
        selectors[j] =
            number < 4 * blocks
                ? words.read(tile + section.sub_tiles.start(t) + section.offset,
                             t % 8 * 4 + number / blocks, t % each / 8 * blocks + number % blocks)
                : section.read_nibbles(tile, number, t);
      }
      query.template add<HighBits::in_nibble>(levels, group, selectors, sums);
    }
  }

  /// Adds products of the codes of a pair of dimensions with four tokens, looked up.
  template <HighBits Place, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add_pair(std::uint32_t selector, int pair,
                                            const WidePack<Rows>& integers,
                                            DotSums<chunk, Rows>& sums) const {
    std::uint32_t bytes[2];
    in.value_levels.of<Place>(selector, bytes);
    // Weights are in the order of grouped values.
    const bool table = in.format.value_codec == ValueCodec::codebook;
    const ByteTable all{bytes[0], bytes[1]};
    sums.add(2 * pair, look_up(all, table ? 0x6240U : 0x6420U), integers);
    sums.add(2 * pair + 1, look_up(all, table ? 0x7351U : 0x7531U), integers);
  }

  /// The same with the codes of a column, looked up or as numbers.
  template <int Bits, bool Table, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add_pair_of(const std::uint32_t (&words)[Bits], int pair,
                                               const WidePack<Rows>& integers,
                                               DotSums<chunk, Rows>& sums) const {
    if constexpr (Table) {
      add_pair<Bits == 4 ? HighBits::apart : HighBits::none>(selector_of<Bits>(words, pair), pair,
                                                             integers, sums);
    } else {
      // Both numbers of a byte lie apart by their width, those of 2 bits in two pairs.
      constexpr std::uint32_t mask = Bits == 4 ? 0x0F0F0F0FU : 0x03030303U;
      const std::uint32_t word =
          Bits == 4 ? words[pair % Bits] : words[pair / 2] >> static_cast<unsigned>(pair % 2 * 4);
      sums.add(2 * pair, word & mask, integers);
      sums.add(2 * pair + 1, (word >> Bits) & mask, integers);
    }
  }

  /// Values of any dimension.
  template <int Runs, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add_values(const unsigned char* tile, int number,
                                              const DotWeights<Rows> (&weights)[Runs],
                                              DotSums<chunk, Rows>& sums) const {
    const ValueSection codes = value_codes(in.format);
    const mma_order::Selectors selectors{
        codes.width, codes.table,
        mma_order::selectors(static_cast<std::size_t>(sub_tokens), codes.dim)};
    const std::size_t rows = codes.dim / 16;
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int unit = 0; unit < 16; ++unit) {
      const int t = unit / 4 * 16;
      const unsigned char* section = sub_tile(tile, t) + in.value_codes;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int pair = 0; pair < 4; ++pair) {
        const auto row = static_cast<std::size_t>(number) / 8 * 4 + static_cast<std::size_t>(pair);
        const std::uint32_t selector =
            selectors.read(section, static_cast<std::size_t>(number % 8 * 4 + unit % 4),
                           static_cast<std::size_t>(t % sub_tokens / 16) * rows +
                               (row < rows ? row : 0));  // what does not exist counts for nothing
        add_pair<HighBits::in_nibble>(selector, pair, weights[pair * Runs / 4].packs[unit], sums);
      }
    }
  }
};

}  // namespace turboquant::detail
