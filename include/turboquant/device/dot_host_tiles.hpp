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
  static constexpr int tokens = static_cast<int>(TileFormat::tokens) / TileLanes;
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

  /// Words of key codes on their way.
  /// @tparam Bits of a code; 0: none are on their way before their products are taken
  template <int Bits>
  using KeysAhead = WordsAhead<tokens, Bits>;

  template <int Bits>
  KOKKOS_FORCEINLINE_FUNCTION void start_keys(const unsigned char* tile,
                                              KeysAhead<Bits>& ahead) const {
    if constexpr (Bits > 0) {
      ahead.start(key_blocks<Bits>(), key_loads<Bits>(tile + in.key_codes));
    }
  }
  /// Products of key codes with the query.
  template <int Bits, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void scores(const unsigned char* tile, KeysAhead<Bits>& ahead,
                                          const DotQuery<Rows>& query,
                                          DotSums<tokens, Rows>& sums) const {
    if constexpr (Bits == 0) {
      switch (in.format.key_code_bits()) {
        case 2: return start_and_score<2>(tile, query, sums);
        case 3: return start_and_score<3>(tile, query, sums);
        default: return start_and_score<4>(tile, query, sums);
      }
    } else {
      add_keys<Bits>(tile + in.key_codes, in.key_levels, ahead, query, sums);
    }
  }
  /// Products of the signs with the sketched query.
  template <int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void signs(const unsigned char* tile, const DotQuery<Rows>& query,
                                         DotSums<tokens, Rows>& sums) const {
    KeysAhead<1> ahead;
    ahead.start(key_blocks<1>(), key_loads<1>(tile + in.key_signs));
    add_keys<1>(tile + in.key_signs, in.sign_levels, ahead, query, sums);
  }
  /// The words of four fp8 dimensions.
  KOKKOS_FORCEINLINE_FUNCTION void float8_words(const unsigned char* tile, int four,
                                                std::uint32_t (&words)[tokens]) const {
    load_row(tile + in.key_codes, four, words);
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

  /// Words of value codes on their way: rows of a chunk.
  template <int Bits>
  using ValuesAhead = WordsAhead<chunk, Bits == 3 ? 3 : (Bits > 0 ? 1 : 0)>;

  template <int Bits>
  KOKKOS_FORCEINLINE_FUNCTION void start_values(const unsigned char* tile, int number,
                                                ValuesAhead<Bits>& ahead) const {
    if constexpr (Bits > 0) {
      ahead.start(value_units<Bits>, value_loads<Bits>(tile, number));
    }
  }
  /// Products of the value codes of chunk number `number` of the tile with weights.
  template <int Bits, int Runs, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void values(const unsigned char* tile, int number,
                                          ValuesAhead<Bits>& ahead,
                                          const DotWeights<Rows> (&weights)[Runs],
                                          DotSums<chunk, Rows>& sums) const {
    static_assert(Runs == 1);
    if constexpr (Bits == 0) {
      switch (in.format.value_bits) {
        case 2: return start_and_add<2>(tile, number, weights[0], sums);
        case 3: return start_and_add<3>(tile, number, weights[0], sums);
        default: return start_and_add<4>(tile, number, weights[0], sums);
      }
    } else if (Bits == 4 && !looks_up_four()) {
      add_values<Bits, false>(tile, number, ahead, weights[0], sums);
    } else {
      add_values<Bits, true>(tile, number, ahead, weights[0], sums);
    }
  }

 private:
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION bool looks_up_four() const {
    return in.format.value_bits == 4 && in.format.value_codec == ValueCodec::codebook;
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

  KOKKOS_FORCEINLINE_FUNCTION void load_row(const unsigned char* section, int row,
                                            std::uint32_t (&words)[tokens]) const {
    load_words(section + 4 * static_cast<std::size_t>(row * 64 + lane * tokens), words);
  }

  template <int Bits>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int key_blocks() const {
    return Bits == 4 ? (in.format.key_dim + 31) / 32 : in.format.key_dim / 32;
  }
  /// What loads a block of 32 dimensions.
  template <int Bits>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION auto key_loads(const unsigned char* section) const {
    return [this, section](int block, std::uint32_t(&words)[tokens][Bits]) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int k = 0; k < Bits; ++k) {
        std::uint32_t row[tokens] = {};
        if (Bits < 4 || 8 * (block * Bits + k) < in.format.key_dim) {
          load_row(section, block * Bits + k, row);
        }
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int j = 0; j < tokens; ++j) {
          words[j][k] = row[j];
        }
      }
    };
  }

  template <int Bits, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void start_and_score(const unsigned char* tile,
                                                   const DotQuery<Rows>& query,
                                                   DotSums<tokens, Rows>& sums) const {
    KeysAhead<Bits> ahead;
    start_keys<Bits>(tile, ahead);
    add_keys<Bits>(tile + in.key_codes, in.key_levels, ahead, query, sums);
  }

  template <int Bits, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add_keys(const unsigned char* section, const LevelBytes& levels,
                                            KeysAhead<Bits>& ahead, const DotQuery<Rows>& query,
                                            DotSums<tokens, Rows>& sums) const {
    constexpr HighBits place = Bits == 4 ? HighBits::in_nibble : HighBits::none;
    const int blocks = key_blocks<Bits>();
    ahead.run(blocks, key_loads<Bits>(section),
              [&](int block, const std::uint32_t(&words)[tokens][Bits]) {
                query.template add_block<Bits, place>(levels, block, words, sums);
              });
    if (Bits < 4) {
      add_planes<Bits>(section, 4 * blocks, levels, query, sums);
    }
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

  /// Units of a tile's rows of value codes.
  template <int Bits>
  static constexpr int value_units = Bits == 3 ? 2 : 2 * Bits;

  /// What loads the rows of a unit of a chunk.
  template <int Bits>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION auto value_loads(const unsigned char* tile,
                                                             int number) const {
    constexpr int rows = Bits == 3 ? 3 : 1;
    const int d = number * chunk;
    const int rest = in.format.value_dim - d / 32 * 32;
    const std::size_t stride = 4 * static_cast<std::size_t>(rest < 32 ? rest : 32);
    const unsigned char* const at =
        tile + in.value_codes + 4 * static_cast<std::size_t>(d / 32 * 64 * Bits + d % 32);
    return [at, stride](int unit, std::uint32_t(&words)[chunk][rows]) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int k = 0; k < rows; ++k) {
        std::uint32_t row[chunk];
        load_words(at + static_cast<std::size_t>(unit * rows + k) * stride, row);
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int i = 0; i < chunk; ++i) {
          words[i][k] = row[i];
        }
      }
    };
  }

  template <int Bits, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void start_and_add(const unsigned char* tile, int number,
                                                 const DotWeights<Rows>& weights,
                                                 DotSums<chunk, Rows>& sums) const {
    ValuesAhead<Bits> ahead;
    start_values<Bits>(tile, number, ahead);
    const DotWeights<Rows> runs_weights[1] = {weights};
    values<Bits>(tile, number, ahead, runs_weights, sums);
  }

  /// @tparam Table whether codes are looked up; otherwise they are numbers of 4 bits
  template <int Bits, bool Table, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add_values(const unsigned char* tile, int number,
                                              ValuesAhead<Bits>& ahead,
                                              const DotWeights<Rows>& weights,
                                              DotSums<chunk, Rows>& sums) const {
    constexpr int rows = Bits == 3 ? 3 : 1;
    constexpr int selectors = 4 * rows / Bits;
    const auto use = [&](int unit, const std::uint32_t(&words)[chunk][rows]) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int g = 0; g < selectors; ++g) {
        std::uint32_t bytes[chunk][2];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int i = 0; i < chunk; ++i) {
          const std::uint32_t selector = selector_of<Bits>(words[i], g);
          if constexpr (Table) {
            in.value_levels.template of<Bits == 4 ? HighBits::in_nibble : HighBits::none>(
                selector, bytes[i]);
          } else {
            bytes[i][0] = selector & 0x0F0F0F0FU;
            bytes[i][1] = (selector >> 4U) & 0x0F0F0F0FU;
          }
        }
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int half = 0; half < 2; ++half) {
          const WidePack<Rows> integers = weights.packs[2 * (unit * selectors + g) + half];
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int i = 0; i < chunk; ++i) {
            sums.add(i, bytes[i][half], integers);
          }
        }
      }
    };
    ahead.template run_straight<value_units<Bits>>(value_loads<Bits>(tile, number), use);
  }
};

}  // namespace turboquant::detail
