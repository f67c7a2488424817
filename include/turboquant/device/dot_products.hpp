#pragma once

#include <turboquant/device/dot_tables.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// Integer dot products of `Count` things with `Rows` rows.
template <int Count, int Rows>
struct DotSums {
  WideSum sums[Count][Rows];

  KOKKOS_FORCEINLINE_FUNCTION void clear() {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Count; ++i) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        sums[i][r].clear();
      }
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION void add(int i, std::uint32_t bytes, const WidePack<Rows>& integers) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int r = 0; r < Rows; ++r) {
      sums[i][r].add(bytes, integers.words[0].words[r], integers.words[1].words[r]);
    }
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float value(int i, int r) const {
    return sums[i][r].value();
  }
};

/// Query rows of a team in scratch memory: a pack of the integers of 4 dimensions for every group of
/// 8 dimensions and half of it.
template <int Rows>
struct DotQuery {
  WidePack<Rows>* packs = nullptr;

  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION int groups(int dim) {
    return (dim + 31) / 32 * 4;
  }
  /// Words of a query.
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION int size(int dim) {
    return groups(dim) * 4 * Rows;
  }
  /// Adds the products of the dimensions of a group with the codes of `Tokens` tokens.
  template <HighBits Place, int Tokens>
  KOKKOS_FORCEINLINE_FUNCTION void add(const LevelBytes& levels, int group,
                                       const std::uint32_t (&selectors)[Tokens],
                                       DotSums<Tokens, Rows>& sums) const {
    std::uint32_t bytes[Tokens][2];
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < Tokens; ++j) {
      levels.template of<Place>(selectors[j], bytes[j]);
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int half = 0; half < 2; ++half) {
      const WidePack<Rows> integers = packs[group * 2 + half];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < Tokens; ++j) {
        sums.add(j, bytes[j][half], integers);
      }
    }
  }

  /// Adds the products of a block of 32 dimensions: four selectors of each token.
  template <int Width, HighBits Place, int Tokens>
  KOKKOS_FORCEINLINE_FUNCTION void add_block(const LevelBytes& levels, int block,
                                             const std::uint32_t (&words)[Tokens][Width],
                                             DotSums<Tokens, Rows>& sums) const {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int g = 0; g < 4; ++g) {
      std::uint32_t selectors[Tokens];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < Tokens; ++j) {
        selectors[j] = selector_of<Width>(words[j], g);
      }
      add<Place>(levels, 4 * block + g, selectors, sums);
    }
  }
};

/// Units of `Count` x `Width` words, two of which are in registers or on their way.
template <int Count, int Width>
struct WordsAhead {
  static constexpr int depth = 2;

  std::uint32_t words[depth][Count][Width];

  /// @param load called with the number of a unit and the words that it fills
  template <class Load>
  KOKKOS_FORCEINLINE_FUNCTION void start(int units, const Load& load) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int unit = 0; unit < depth; ++unit) {
      if (unit < units) {
        load(unit, words[unit]);
      }
    }
  }
  /// As soon as a unit is multiplied, another one takes its place.
  /// @param use called with the number of a unit and its words
  template <class Load, class Use>
  KOKKOS_FORCEINLINE_FUNCTION void run(int units, const Load& load, const Use& use) {
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int first = 0; first < units; first += depth) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < depth; ++i) {
        if (first + i < units) {
          use(first + i, words[i]);
        }
        if (first + i + depth < units) {
          load(first + i + depth, words[i]);
        }
      }
    }
  }
  /// The same in code without a loop, where two units are on their way while another is multiplied.
  template <int Units, class Load, class Use>
  KOKKOS_FORCEINLINE_FUNCTION void run_straight(const Load& load, const Use& use) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int unit = 0; unit < Units; ++unit) {
      std::uint32_t own[Count][Width];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < Count; ++i) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int k = 0; k < Width; ++k) {
          own[i][k] = words[unit % depth][i][k];
        }
      }
      if (unit + depth < Units) {
        load(unit + depth, words[unit % depth]);
      }
      use(unit, own);
    }
  }
};
template <int Count>
struct WordsAhead<Count, 0> {};

/// Weights of the tokens of a tile with the values of a group, in scratch memory: packs of the
/// integers of 4 tokens. Where a token is depends on the order of the tile.
template <int Rows>
struct DotWeights {
  static constexpr int packs_of_tile = static_cast<int>(TileFormat::tokens) / 4;
  static constexpr int size = packs_of_tile * 2 * Rows;  ///< words

  WidePack<Rows>* packs = nullptr;
};

}  // namespace turboquant::detail
