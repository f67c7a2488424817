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

/// Query rows of a team in scratch memory: a pack of the integers of 4 dimensions for every group
/// of 8 dimensions and half of it.
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

/// Codes of a tile that a lane multiplies together: `Pieces` pieces of `Words` words.
template <int Pieces, int Words>
struct CodePieces {
  static constexpr int pieces = Pieces;
  static constexpr int words = Words;

  std::uint32_t of[Pieces][Words];
};

/// Multiplies all units of a tile; one is on its way while another is multiplied.
/// @param source called with a tile, a unit and a piece; the address of the piece
/// @param use    called with a unit and its pieces
template <class Pieces, class Source, class Use>
KOKKOS_FORCEINLINE_FUNCTION void for_each_unit(int units, const unsigned char* tile,
                                               const Source& source, const Use& use) {
  const auto load = [&](int unit, Pieces& pieces) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Pieces::pieces; ++i) {
      load_words(source(tile, unit, i), pieces.of[i]);
    }
  };
  if (units == 0) {
    return;
  }
  Pieces next;
  load(0, next);
  TURBOQUANT_KEEP_LOOP_IN_KERNELS
  for (int unit = 0; unit < units; ++unit) {
    const Pieces own = next;
    if (unit + 1 < units) {
      load(unit + 1, next);
    }
    use(unit, own);
  }
}

/// Units of the tiles of a walk on their way to scratch memory. A lane copies and reads pieces of
/// its own, so that lanes do not wait for each other.
/// @tparam Units  of a tile
/// @tparam Places units that are there or on their way
/// @tparam Others units of other rings that are multiplied between two tiles of this one
template <class Pieces, int Lanes, int Units, int Places, int Others>
struct UnitRing {
  static constexpr int lane_words = Pieces::words;
  static constexpr int place_words = Pieces::pieces * Lanes * lane_words;
  static constexpr int words = Places * place_words;

  std::uint32_t* memory = nullptr;  ///< of the lane

  KOKKOS_FORCEINLINE_FUNCTION UnitRing(std::uint32_t* start, int lane)
      : memory(start + lane * lane_words) {}

  /// Begins the way of the first units of the first tile. All rings start, in the order in which
  /// their units are multiplied; then there are as many groups of copies as in the middle of a
  /// walk.
  template <class Source>
  KOKKOS_FORCEINLINE_FUNCTION void start(const unsigned char* tile, const Source& source) const {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int unit = Places; unit < Units; ++unit) {
      end_copy_group();
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int unit = 0; unit < Places; ++unit) {
      copy(tile, unit, source);
    }
  }

  /// Multiplies the units of a tile and begins the way of others in their places.
  /// @param next the tile that follows
  template <class Source, class Use>
  KOKKOS_FORCEINLINE_FUNCTION void run(const unsigned char* tile, const unsigned char* next,
                                       const Source& source, const Use& use) const {
    static_assert(Units % Places == 0);
    const int units = unknown_number(Units);
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int unit = 0; unit < units; ++unit) {
      if (unit < Places) {
        wait_copies<Places - 1 + Others>();
      } else {
        wait_copies<Places - 1>();
      }
      Pieces own;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < Pieces::pieces; ++i) {
        read_copied(place(unit, i), own.of[i]);
      }
      use(unit, own);
      const bool same = unit + Places < Units;
      copy(same ? tile : next, same ? unit + Places : unit + Places - Units, source);
    }
  }

 private:
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION std::uint32_t* place(int unit, int piece) const {
    return memory + unit % Places * place_words + piece * (Lanes * lane_words);
  }
  template <class Source>
  KOKKOS_FORCEINLINE_FUNCTION void copy(const unsigned char* tile, int unit,
                                        const Source& source) const {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Pieces::pieces; ++i) {
      copy_later<lane_words>(place(unit, i), source(tile, unit, i));
    }
    end_copy_group();
  }
};

/// Weights of the tokens of a tile with the values of a group, in scratch memory: packs of the
/// integers of 4 tokens. Where a token is depends on the order of the tile.
template <int Rows>
struct DotWeights {
  static constexpr int packs_of_tile = static_cast<int>(TileFormat::max_tokens) / 4;
  static constexpr int size = packs_of_tile * 2 * Rows;  ///< words

  WidePack<Rows>* packs = nullptr;
};

}  // namespace turboquant::detail
