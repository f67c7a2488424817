#pragma once

#include <turboquant/math/integer_grid.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// What codes of one width stand for, as tables for byte look-ups whose indices have 6 bits of
/// which only the lowest `width` count. Width 1 are sketch signs, code 1 negative.
struct LevelTable {
  alignas(64) std::array<std::int8_t, 64> level{};
  alignas(64) std::array<std::int8_t, 64> magnitude{};
  /// Level plus offset, never negative; 0 for code 0.
  alignas(64) std::array<std::uint8_t, 64> raised{};
  /// The code itself.
  alignas(64) std::array<std::uint8_t, 64> code{};
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
    table.code[i] = static_cast<std::uint8_t>(i % codes);
  }
  return table;
}

inline constexpr std::array<LevelTable, 4> level_tables{make_level_table(1), make_level_table(2),
                                                        make_level_table(3), make_level_table(4)};

/// @param width 1 to 4
[[nodiscard]] inline const LevelTable& level_table(unsigned width) noexcept {
  return level_tables[width - 1];
}

}  // namespace turboquant::detail
