#pragma once

#include <turboquant/base/config.hpp>

#include <cstddef>
#include <string_view>

namespace turboquant {

/// How the bits of a tile are arranged. The content of a tile, its codes and fp16 numbers, is the
/// same in every order, and `transcode_tile` turns one into another without loss.
enum class TileOrder {
  host,  ///< for vector units of processors: a vector is one word of 16 tokens or 16 dimensions
  mma,   ///< for 8 x 8 matrix units of GPUs: 32 lanes load 16 bytes each, ready as operands
};

[[nodiscard]] constexpr std::string_view to_string(TileOrder order) noexcept {
  switch (order) {
    case TileOrder::host: return "host";
    case TileOrder::mma: return "mma";
  }
  return "unknown";
}

/// A bit inside a tile: bit `bit` (0 the lowest) of byte `byte`.
struct TileBit {
  std::size_t byte = 0;
  unsigned bit = 0;

  friend constexpr bool operator==(TileBit, TileBit) noexcept = default;
};

}  // namespace turboquant
