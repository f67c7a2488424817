#pragma once

#include <turboquant/device/arch/cuda_mma_state.hpp>
#include <turboquant/device/tile_format.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail::cuda {

/// Where a tile is. Its two parts are added when it is used, so that nothing waits for the page
/// before.
struct TileAddress {
  const std::byte* page = nullptr;
  std::int64_t offset = 0;

  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION const std::byte* get() const { return page + offset; }
};

/// Tiles of one kv head that the warps of one or more teams walk.
struct TileWalk {
  std::byte* const* pages = nullptr;
  std::int64_t tiles_per_page = 1;  ///< at most 2^32 - 1
  std::int64_t first_tile = 0;      ///< in units of 64 tokens, like `tiles`
  int tiles = 0;
  int head = 0;
  StepMask mask{};

  /// Address of a step, counted from the first tile on, or of tile `piece` of a step of several.
  template <class Shape>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION TileAddress step(int number, int piece) const {
    // 32 bits are enough: 2^32 tiles are more than any memory.
    auto in_walk = static_cast<std::uint32_t>(number) / static_cast<unsigned>(Shape::tile_steps);
    if constexpr (Shape::tile_tokens < 64) {
      in_walk = existing<Shape>(in_walk * Shape::step_tiles + static_cast<unsigned>(piece));
    }
    const auto tile = static_cast<std::uint32_t>(first_tile) * (64 / Shape::tile_tokens) + in_walk;
    const auto per_page = static_cast<std::uint32_t>(tiles_per_page);
    // Most pages are one tile of every head, and divisions are slow.
    const std::uint32_t page = per_page == 1 ? tile : tile / per_page;
    const std::int64_t in_page = std::int64_t{head} * per_page + (tile - page * per_page);
    return {pages[page], in_page * static_cast<std::int64_t>(Shape::format.bytes()) +
                             number % Shape::tile_steps * Shape::step_bytes};
  }

 private:
  /// The tile that is read for a tile of the walk: small tiles before and behind all tokens may
  /// have no page. The nearest one takes their place, and their tokens are hidden.
  template <class Shape>
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION std::uint32_t existing(std::uint32_t tile) const {
    const int first = mask.begin / Shape::tile_tokens;
    const int last = (mask.end - 1) / Shape::tile_tokens;
    const auto number = static_cast<int>(tile);
    const int from = number < first ? first : number;
    return static_cast<std::uint32_t>(from < last ? from : last);
  }
};

/// The steps of one warp among those that share a walk.
struct WarpSteps {
  int first = 0;   ///< number of the warp among them
  int stride = 1;  ///< how many they are
  int count = 0;   ///< steps of this warp

  template <class Shape, class Context>
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION WarpSteps of(const TileWalk& walk,
                                                                const Context& context, int warp) {
    WarpSteps steps;
    steps.first = context.rank * context.warps + warp;
    steps.stride = context.blocks * context.warps;
    const int left = walk.tiles * Shape::steps_per_64 - steps.first;
    if (left > 0) {
      const auto stride = static_cast<unsigned>(steps.stride);
      steps.count = static_cast<int>((static_cast<unsigned>(left) + stride - 1) / stride);
    }
    return steps;
  }
  /// Number of step `i` of this warp in the walk.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int number(int i) const { return first + i * stride; }
};

/// Addresses of the tiles of a warp's steps, one a lane. Page tables are read a block of as many
/// steps as have 32 addresses ahead, so that nothing waits for them.
template <class Shape>
struct StepAddresses {
  static constexpr int pieces = Shape::step_tiles;
  static constexpr int block = 32 / pieces;

  int lane;
  WarpSteps steps{};
  TileAddress current{};  ///< of the block of steps that is being fetched
  TileAddress ahead{};    ///< of the block after it

  KOKKOS_FORCEINLINE_FUNCTION void start(const TileWalk& walk, const WarpSteps& its_steps) {
    steps = its_steps;
    current = look_up(walk, 0);
    ahead = steps.count > block ? look_up(walk, block) : TileAddress{};
  }
  /// Before step `i` is fetched; steps come in order.
  KOKKOS_FORCEINLINE_FUNCTION void advance(const TileWalk& walk, int i) {
    if (i % block == 0) {
      current = ahead;
      ahead = i + block < steps.count ? look_up(walk, i + block) : TileAddress{};
    }
  }
  /// Whether this lane has the address of a tile of step `i`, of the block that is being fetched.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION bool has(int i) const { return step() == i % block; }
  /// Number in its block of the step of the tile whose address this lane has.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int step() const { return lane / pieces; }
  /// Number in its step of the tile whose address this lane has.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int piece() const { return lane % pieces; }
  /// All lanes get the addresses of the tiles of step `i`.
  KOKKOS_FORCEINLINE_FUNCTION void read(int i, const std::byte* (&tiles)[pieces]) const {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int k = 0; k < pieces; ++k) {
      tiles[k] = from_lane(current.get(), i % block * pieces + k);
    }
  }

 private:
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION TileAddress look_up(const TileWalk& walk,
                                                                int start) const {
    const int i = start + step();
    return i < steps.count ? walk.step<Shape>(steps.number(i), piece()) : TileAddress{};
  }
};

/// Steps that are loaded into registers while the step before is computed: the keys of the next
/// step as soon as the scores are known, its values after this step's values have been used, so
/// that loads are always in flight.
template <class Shape>
struct LoadedSteps {
  StepAddresses<Shape> addresses;
  int next = 0;
  KeyRegisters<Shape> keys;
  ValueRegisters<Shape> values;

  explicit KOKKOS_FORCEINLINE_FUNCTION LoadedSteps(int lane) : addresses{lane} {}

  KOKKOS_FORCEINLINE_FUNCTION void begin() const {}

  KOKKOS_FORCEINLINE_FUNCTION void start(const TileWalk& walk, const WarpSteps& steps) {
    addresses.start(walk, steps);
    if (addresses.steps.count > 0) {
      load(0, keys);
      load(0, values);
    }
    next = 1;
  }
  KOKKOS_FORCEINLINE_FUNCTION void await_keys() {}
  KOKKOS_FORCEINLINE_FUNCTION void keys_are_used(const TileWalk& walk) {
    if (next < addresses.steps.count) {
      addresses.advance(walk, next);
      load(next, keys);
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION void values_are_used() {
    if (next < addresses.steps.count) {
      load(next, values);
    }
    ++next;
  }

 private:
  template <class Registers>
  KOKKOS_FORCEINLINE_FUNCTION void load(int i, Registers& registers) const {
    constexpr int each = Shape::sub_tiles / Shape::step_tiles;
    const std::byte* tiles[Shape::step_tiles];
    addresses.read(i, tiles);
    registers.load(
        [&](int sub, int byte) {
          return tiles[sub / each] + (sub % each * Shape::sub_bytes + byte);
        },
        addresses.lane);
  }
};

/// Adds the steps of a warp to its state.
/// @param source of the steps' keys and values: `LoadedSteps` or `CopiedSteps`
template <class Shape, int Sets, class Source>
KOKKOS_FORCEINLINE_FUNCTION void attend_steps(const TileWalk& walk, const WarpSteps& steps,
                                              int lane, Source& source,
                                              MmaState<Shape, Sets>& state) {
  const int full_begin = walk.mask.full_begin();
  const int full_end = walk.mask.full_end() - Shape::step_tokens;
  for (int i = 0; i < steps.count; ++i) {
    float logits[Sets][Shape::blocks];
    source.await_keys();
    state.score(source.keys, logits);
    state.scale_logits(source.keys.scales, logits);
    source.keys_are_used(walk);
    const int first_token = steps.number(i) * Shape::step_tokens;
    if (first_token < full_begin || first_token > full_end) {
      state.hide(walk.mask, first_token, lane, logits, source.values);
    }
    Word weights[Shape::blocks];
    state.weigh(logits, source.values, weights);
    state.add(source.values, weights);
    source.values_are_used();
  }
}

}  // namespace turboquant::detail::cuda
