#pragma once

#include <turboquant/math/integer_grid.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// The integer levels of codes of one width for byte look-ups; width 1 are sketch signs, code 1
/// negative.
struct LevelTable {
  /// Level of code i modulo 2^width, for indices of 6 bits of which only the low ones count.
  alignas(64) std::array<std::int8_t, 64> level{};
  alignas(64) std::array<std::int8_t, 64> magnitude{};
  /// Level plus offset, never negative.
  alignas(64) std::array<std::uint8_t, 64> raised{};
  int offset = 0;
  double step = 1;
};

[[nodiscard]] constexpr LevelTable make_level_table(int width) {
  LevelTable table;
  const IntegerGrid grid = integer_grid(width);
  const unsigned codes = 1U << static_cast<unsigned>(width);
  table.offset = -grid.level(0);
  table.step = width == 1 ? 1.0 : grid.step;
  for (unsigned i = 0; i < 64; ++i) {
    const int level = width == 1 ? 1 - 2 * static_cast<int>(i % 2) : grid.level(i % codes);
    table.level[i] = static_cast<std::int8_t>(level);
    table.magnitude[i] = static_cast<std::int8_t>(level < 0 ? -level : level);
    table.raised[i] = static_cast<std::uint8_t>(level + table.offset);
  }
  return table;
}

template <unsigned Width>
inline constexpr LevelTable level_table = make_level_table(static_cast<int>(Width));

/// Offset and step of the grid of a width known at run time.
struct LevelUnits {
  int offset = 0;
  double step = 1;
};

[[nodiscard]] constexpr LevelUnits level_units(int width) {
  const IntegerGrid grid = integer_grid(width);
  return {-grid.level(0), grid.step};
}

}  // namespace turboquant::detail
