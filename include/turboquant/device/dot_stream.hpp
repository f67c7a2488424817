#pragma once

#include <turboquant/device/dot_products.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// How the codes of the tiles of a walk come to the lanes of a warp: loaded when they are needed.
template <class Tiles, class Format, int Lanes>
struct DotStream {
  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t floats() { return 0; }

  KOKKOS_FORCEINLINE_FUNCTION DotStream(float* /*memory*/, int /*lane*/) {}

  KOKKOS_FORCEINLINE_FUNCTION void start(const Tiles&, const unsigned char* /*tile*/) const {}
  template <int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void scores(const Tiles& tiles, const unsigned char* tile,
                                          const unsigned char* /*next*/,
                                          const DotQuery<Rows>& query,
                                          DotSums<Tiles::tokens, Rows>& sums) const {
    tiles.scores(tile, query, sums);
  }
  template <int Runs, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void values(const Tiles& tiles, const unsigned char* tile,
                                          const unsigned char* /*next*/, int number,
                                          const DotWeights<Rows> (&weights)[Runs],
                                          DotSums<Tiles::chunk, Rows>& sums) const {
    tiles.values(tile, number, weights, sums);
  }
  KOKKOS_FORCEINLINE_FUNCTION void finish() const {}
};

/// The same for a format that kernels are compiled for: codes are on their way to scratch memory
/// while others are multiplied, those of the next tile too, so that no registers wait for them.
template <class Tiles, TileOrder Order, int KeyBits, int ValueBits, int ValueGroup, int Lanes>
struct DotStream<Tiles, FixedDotFormat<Order, KeyBits, ValueBits, ValueGroup>, Lanes> {
  static constexpr int key_units = 4;
  static constexpr int value_units = Tiles::template value_units<ValueBits>;
  /// Several value groups need the scratch memory for their weights.
  static constexpr int value_places = ValueGroup < 128 ? 2 : 4;
  using Keys =
      UnitRing<typename Tiles::template KeyPieces<KeyBits>, Lanes, key_units, 2, value_units>;
  using Values = UnitRing<typename Tiles::template ValuePieces<ValueBits>, Lanes, value_units,
                          value_places, key_units>;

  Keys key_ring;
  Values value_ring;

  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t floats() {
    return static_cast<std::size_t>(Keys::words + Values::words);
  }
  KOKKOS_FORCEINLINE_FUNCTION DotStream(float* memory, int lane)
      : key_ring(reinterpret_cast<std::uint32_t*>(memory), lane),
        value_ring(reinterpret_cast<std::uint32_t*>(memory) + Keys::words, lane) {}

  KOKKOS_FORCEINLINE_FUNCTION void start(const Tiles& tiles, const unsigned char* tile) const {
    key_ring.start(tile + tiles.in.key_codes, tiles.template key_source<KeyBits>());
    value_ring.start(tile + tiles.in.value_codes,
                     tiles.template value_source<ValueBits>(tiles.lane));
  }
  template <int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void scores(const Tiles& tiles, const unsigned char* tile,
                                          const unsigned char* next, const DotQuery<Rows>& query,
                                          DotSums<Tiles::tokens, Rows>& sums) const {
    key_ring.run(tile + tiles.in.key_codes, next + tiles.in.key_codes,
                 tiles.template key_source<KeyBits>(),
                 tiles.template key_use<KeyBits>(tiles.in.key_levels, query, sums));
  }
  template <int Runs, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void values(const Tiles& tiles, const unsigned char* tile,
                                          const unsigned char* next, int number,
                                          const DotWeights<Rows> (&weights)[Runs],
                                          DotSums<Tiles::chunk, Rows>& sums) const {
    value_ring.run(
        tile + tiles.in.value_codes, next + tiles.in.value_codes,
        tiles.template value_source<ValueBits>(number),
        tiles.template value_use<ValueBits, Tiles::template looks_up<ValueBits>>(weights, sums));
  }
  /// What was begun for a tile that does not come has to arrive before its memory is used again.
  KOKKOS_FORCEINLINE_FUNCTION void finish() const { wait_copies<0>(); }
};

}  // namespace turboquant::detail
