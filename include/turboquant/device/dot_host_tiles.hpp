#pragma once

#include <turboquant/device/dot_products.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// Dot tile operations on tiles in host order, for `TileLanes` lanes that share a tile. A lane
/// scores tokens that follow each other and accumulates dimensions that follow each other, so that
/// its words do, too.
template <int TileLanes>
struct HostDotTiles {
  static constexpr TileOrder order = TileOrder::host;
  static constexpr int lanes = TileLanes;
  static constexpr int tokens = static_cast<int>(TileFormat::max_tokens) / TileLanes;
  static constexpr int chunk = 8;  ///< dimensions whose values are accumulated together
  /// Runs of dimensions of a chunk that may belong to different value groups.
  static constexpr int runs = 1;

  const DotFormat& in;
  int lane = 0;  ///< of those that share the tile

  KOKKOS_FORCEINLINE_FUNCTION HostDotTiles(const DotFormat& format, int own_lane)
      : in(format), lane(own_lane) {}

  /// The tile's token that is token `j` of the lane.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int token(int j) const { return lane * tokens + j; }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int dim_of_slot(int slot) const {
    return (slot / chunk * TileLanes + lane) * chunk + slot % chunk;
  }
  /// Place in a selector of dimension `i` of a group of 8.
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION int nibble_of_dim(const TileFormat&,
                                                                     int /*group*/, int i) {
    return i % 4 * 2 + i / 4;
  }

  /// Numbers of the lane's tokens, of keys and of values.
  using KeyHalves = PackedHalves<tokens>;
  using ValueHalves = PackedHalves<tokens>;

  KOKKOS_FORCEINLINE_FUNCTION void load_key_halves(const unsigned char* section,
                                                   KeyHalves& halves) const {
    halves.load(section + 2 * static_cast<std::size_t>(lane * tokens));
  }
  KOKKOS_FORCEINLINE_FUNCTION void load_value_halves(const unsigned char* section,
                                                     ValueHalves& halves) const {
    load_key_halves(section, halves);
  }

  /// Products of key codes with the query.
  template <int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void scores(const unsigned char* tile, const DotQuery<Rows>& query,
                                          DotSums<tokens, Rows>& sums) const {
    const unsigned char* section = tile + in.key_codes;
    switch (in.format.key_code_bits()) {
      case 2: return add_keys<2>(section, in.key_levels, query, sums);
      case 3: return add_keys<3>(section, in.key_levels, query, sums);
      default: return add_keys<4>(section, in.key_levels, query, sums);
    }
  }
  /// Products of the signs with the sketched query.
  template <int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void signs(const unsigned char* tile, const DotQuery<Rows>& query,
                                         DotSums<tokens, Rows>& sums) const {
    add_keys<1>(tile + in.key_signs, in.sign_levels, query, sums);
  }

  /// Key codes of a block of 32 dimensions: rows of words of the tokens.
  template <int Bits>
  using KeyPieces = CodePieces<Bits, tokens>;

  template <int Bits>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION auto key_source() const {
    return [this](const unsigned char* section, int block, int piece) {
      const int row = block * Bits + piece;
      // What a last block of 4 bits does not have is multiplied by zeros.
      return row_of(section, Bits < 4 || 8 * row < in.format.key_dim ? row : 0);
    };
  }
  template <int Bits, int Rows>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION auto key_use(const LevelBytes& levels,
                                                         const DotQuery<Rows>& query,
                                                         DotSums<tokens, Rows>& sums) const {
    return [&](int block, const KeyPieces<Bits>& rows) {
      std::uint32_t words[tokens][Bits];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int k = 0; k < Bits; ++k) {
          words[j][k] = rows.of[k][j];
        }
      }
      constexpr HighBits place = Bits == 4 ? HighBits::in_nibble : HighBits::none;
      query.template add_block<Bits, place>(levels, block, words, sums);
    };
  }
  /// The words of four fp8 dimensions.
  KOKKOS_FORCEINLINE_FUNCTION void float8_words(const unsigned char* tile, int four,
                                                std::uint32_t (&words)[tokens]) const {
    load_words(row_of(tile + in.key_codes, four), words);
  }

  /// Writes the weights of the lane's tokens.
  template <int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void set_weights(const DotWeights<Rows>& weights,
                                               const int (&integers)[tokens][Rows]) const {
    if constexpr (tokens % 4 == 0) {
      // Codes of neighbours are neighbours where they are looked up by 3 or 4 bits.
      const bool neighbours = in.format.value_bits == 3 || looks_up_four();
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; j += 4) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int pair = 0; pair < 2; ++pair) {
          int a[Rows];
          int b[Rows];
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int r = 0; r < Rows; ++r) {
            a[r] = neighbours ? integers[j + 2 * pair][r] : integers[j + pair][r];
            b[r] = neighbours ? integers[j + 2 * pair + 1][r] : integers[j + pair + 2][r];
          }
          int pack = 0;
          int place = 0;
          weight_place(neighbours ? j + 2 * pair : j + pair, pack, place);
          set_integers<Rows>(weights.packs[pack], place / 2, a, b);
        }
      }
    } else {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        int pack = 0;
        int place = 0;
        weight_place(j, pack, place);
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int r = 0; r < Rows; ++r) {
          set_integer(weights.packs[pack], place, r, integers[j][r]);
        }
      }
    }
  }

  /// Products of the value codes of chunk number `number` of the tile with weights.
  template <int Runs, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void values(const unsigned char* tile, int number,
                                          const DotWeights<Rows> (&weights)[Runs],
                                          DotSums<chunk, Rows>& sums) const {
    switch (in.format.value_bits) {
      case 2: return add_values<2, true>(tile, number, weights, sums);
      case 3: return add_values<3, true>(tile, number, weights, sums);
      default:
        return looks_up_four() ? add_values<4, true>(tile, number, weights, sums)
                               : add_values<4, false>(tile, number, weights, sums);
    }
  }

  /// Value codes of 8, 16 or 32 tokens: rows of words of a chunk, in two pieces each.
  template <int Bits>
  using ValuePieces = CodePieces<Bits == 3 ? 6 : 2, 4>;
  template <int Bits>
  static constexpr int value_units = Bits == 3 ? 2 : 2 * Bits;
  /// Whether grouped codes are looked up; otherwise they are numbers of 4 bits.
  template <int Bits>
  static constexpr bool looks_up = Bits < 4;

  template <int Bits>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION auto value_source(int number) const {
    constexpr int rows = ValuePieces<Bits>::pieces / 2;
    const int d = number * chunk;
    const int rest = in.format.value_dim - d / 32 * 32;
    const int stride = 4 * (rest < 32 ? rest : 32);
    const int first = 4 * (d / 32 * 64 * Bits + d % 32);
    return [first, stride](const unsigned char* section, int unit, int piece) {
      return section + (first + (unit * rows + piece / 2) * stride + piece % 2 * 16);
    };
  }
  template <int Bits, bool Table, int Runs, int Rows>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION auto value_use(const DotWeights<Rows> (&weights)[Runs],
                                                           DotSums<chunk, Rows>& sums) const {
    static_assert(Runs == 1);
    return [this, &weights, &sums](int unit, const ValuePieces<Bits>& loaded) {
      constexpr int rows = ValuePieces<Bits>::pieces / 2;
      constexpr int selectors = 4 * rows / Bits;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int g = 0; g < selectors; ++g) {
        std::uint32_t bytes[chunk][2];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int i = 0; i < chunk; ++i) {
          std::uint32_t words[rows];
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int k = 0; k < rows; ++k) {
            words[k] = loaded.of[2 * k + i / 4][i % 4];
          }
          value_bytes<Bits, Table>(selector_of<Bits>(words, g), bytes[i]);
        }
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int half = 0; half < 2; ++half) {
          const WidePack<Rows> integers = weights[0].packs[2 * (unit * selectors + g) + half];
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int i = 0; i < chunk; ++i) {
            sums.add(i, bytes[i][half], integers);
          }
        }
      }
    };
  }

 private:
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION bool looks_up_four() const {
    return in.format.value_bits == 4 && in.format.value_codec == ValueCodec::codebook;
  }

  /// Eight value codes, looked up or as numbers.
  template <int Bits, bool Table>
  KOKKOS_FORCEINLINE_FUNCTION void value_bytes(std::uint32_t selector,
                                               std::uint32_t (&bytes)[2]) const {
    if constexpr (Table) {
      in.value_levels.template of<Bits == 4 ? HighBits::in_nibble : HighBits::none>(selector,
                                                                                    bytes);
    } else {
      bytes[0] = selector & 0x0F0F0F0FU;
      bytes[1] = (selector >> 4U) & 0x0F0F0F0FU;
    }
  }

  /// Pack of the weight of a token and its place there.
  KOKKOS_FORCEINLINE_FUNCTION void weight_place(int j, int& pack, int& place) const {
    const int t = token(j);
    int selector = t / 8;
    int nibble = t % 8;
    if (in.format.value_bits == 2) {
      selector = t / 16 * 2 + t % 2;
      nibble = t % 16 / 2;
    }
    const bool numbers = in.format.value_bits == 4 && !looks_up_four();
    pack = 2 * selector + (numbers ? nibble % 2 : nibble / 4);
    place = numbers ? nibble / 2 : nibble % 4;
  }

  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION const unsigned char* row_of(
      const unsigned char* section, int row) const {
    return section + 4 * (row * 64 + lane * tokens);
  }

  template <int Bits, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add_keys(const unsigned char* section, const LevelBytes& levels,
                                            const DotQuery<Rows>& query,
                                            DotSums<tokens, Rows>& sums) const {
    const int dim = in.format.key_dim;
    const int blocks = Bits == 4 ? (dim + 31) / 32 : dim / 32;
    for_each_unit<KeyPieces<Bits>>(blocks, section, key_source<Bits>(),
                                   key_use<Bits>(levels, query, sums));
    if (Bits < 4) {
      add_planes<Bits>(section, 4 * blocks, levels, query, sums);
    }
  }
  template <int Bits, bool Table, int Runs, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add_values(const unsigned char* tile, int number,
                                              const DotWeights<Rows> (&weights)[Runs],
                                              DotSums<chunk, Rows>& sums) const {
    for_each_unit<ValuePieces<Bits>>(value_units<Bits>, tile + in.value_codes,
                                     value_source<Bits>(number),
                                     value_use<Bits, Table>(weights, sums));
  }

  /// The rest of the dimensions, which are byte planes.
  template <int Width, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add_planes(const unsigned char* section, int first_group,
                                              const LevelBytes& levels, const DotQuery<Rows>& query,
                                              DotSums<tokens, Rows>& sums) const {
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int group = first_group; group < in.format.key_dim / 8; ++group) {
      std::uint32_t selectors[tokens];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        selectors[j] = 0;
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int bit = 0; bit < Width; ++bit) {
          const std::uint32_t byte =
              section[static_cast<std::size_t>((group * Width + bit) * 64 + token(j))];
          // Bit n of the low half to bit 8 n.
          const std::uint32_t low = ((byte & 15U) * 0x00204081U) & 0x01010101U;
          const std::uint32_t high = ((byte >> 4U) * 0x00204081U) & 0x01010101U;
          selectors[j] |= (low | (high << 4U)) << static_cast<unsigned>(bit);
        }
      }
      query.template add<HighBits::none>(levels, group, selectors, sums);
    }
  }
};

}  // namespace turboquant::detail
