#pragma once

#include <turboquant/attention/decode_problem.hpp>
#include <turboquant/attention/split_count.hpp>
#include <turboquant/base/checked_math.hpp>
#include <turboquant/device/arch/device_lanes.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

namespace turboquant::detail {

/// Whether and how the dot kernels take a decode step.
struct DotPlan {
  static constexpr int max_dim = 256;
  static constexpr int max_groups = 8;
  static constexpr int warps = 4;  ///< of a team on a device
  static constexpr int teams = 3;  ///< of a device's multiprocessor: registers allow no more
  /// Lanes that share a tile: 16 where keys and values have up to 128 dimensions. They have 4 of
  /// its tokens and 8 of its dimensions each; more lanes would read the query and the weights more
  /// often.
  static constexpr int tile_lanes = 16;

  std::string refusal;  ///< why they do not; empty if they do
  int team_rows = 4;    ///< query rows of a team: 2 or 4
  int row_blocks = 1;   ///< teams that share the rows of a kv head
  int num_splits = 1;

  [[nodiscard]] bool used() const noexcept { return refusal.empty(); }
};

/// Why the dot kernels cannot take tiles of a format; empty if they can.
[[nodiscard]] inline std::string dot_refusal(const TileFormat& format) {
  if (format.key_dim > DotPlan::max_dim || format.value_dim > DotPlan::max_dim) {
    return "keys or values have more than 256 dimensions";
  }
  if (format.tile_tokens != 64) {
    return "tiles have fewer than 64 tokens";
  }
  if (format.value_groups() > DotPlan::max_groups) {
    return "values have more than 8 groups";
  }
  return {};
}

/// @param lanes       of the execution space
/// @param threads     that the execution space runs at the same time
/// @param num_splits  0: automatic
[[nodiscard]] inline DotPlan plan_dot(const TileFormat& format, const DecodeProblem& problem,
                                      int lanes, std::int64_t threads, int num_splits) {
  DotPlan plan;
  plan.refusal = dot_refusal(format);
  const std::int64_t rows =
      checked_mul(problem.query_heads / problem.kv_heads, problem.num_queries);
  plan.team_rows = rows <= 2 && lanes > 1 ? 2 : 4;
  plan.row_blocks = static_cast<int>(ceil_div(rows, plan.team_rows));
  const std::int64_t walks =
      checked_mul(checked_mul(problem.num_sequences, problem.kv_heads), plan.row_blocks);
  constexpr int threads_of_multiprocessor = 2048;
  const std::int64_t slots =
      (std::max)(std::int64_t{1}, threads * DotPlan::teams / threads_of_multiprocessor);
  const int tiles_of_team = DotPlan::warps * (std::max)(1, lanes / DotPlan::tile_lanes);
  constexpr auto tile_tokens = static_cast<std::int64_t>(TileFormat::max_tokens);
  plan.num_splits = num_splits > 0
                        ? num_splits
                        : fewest_splits(walks, ceil_div(problem.max_history_tokens, tile_tokens),
                                        slots, tiles_of_team);
  // Teams are numbered with 32 bits.
  if (checked_mul(checked_mul(walks, plan.team_rows), std::int64_t{plan.num_splits} + 1) >
      (std::numeric_limits<int>::max)()) {
    plan.refusal = "the batch has too many parts";
  }
  return plan;
}

}  // namespace turboquant::detail
