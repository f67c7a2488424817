#pragma once

#include <turboquant/base/checked_math.hpp>

#include <algorithm>
#include <cstdint>

namespace turboquant::detail {

/// Parts of a history of `tiles` tiles for `walks` independent walks: as few as keep `slots` teams
/// of `warps` warps busy. Time is counted in tiles of a warp, with two more for the start and the
/// end of a part. O(slots / walks).
[[nodiscard]] inline int fewest_splits(std::int64_t walks, std::int64_t tiles, std::int64_t slots,
                                       std::int64_t warps) {
  const std::int64_t most = (std::max)(std::int64_t{1}, ceil_div(tiles, std::int64_t{4}));
  std::int64_t best = 1;
  std::int64_t best_cost = 0;
  for (std::int64_t splits = 1; splits <= (std::min)(most, std::int64_t{4096}); ++splits) {
    const std::int64_t teams = checked_mul(walks, splits);
    const std::int64_t steps = ceil_div(ceil_div(tiles, splits), warps);
    const std::int64_t cost = checked_mul(ceil_div(teams, slots), steps + 2);
    if (splits == 1 || cost < best_cost) {
      best = splits;
      best_cost = cost;
    }
    if (teams > 4 * slots) {
      break;
    }
  }
  return static_cast<int>(best);
}

}  // namespace turboquant::detail
