#pragma once

#include <turboquant/attention/decode_problem.hpp>
#include <turboquant/base/checked_math.hpp>
#include <turboquant/device/arch/cuda_mma_shapes.hpp>
#include <turboquant/device/arch/cuda_mma_state.hpp>
#include <turboquant/device/arch/cuda_target.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

namespace turboquant::detail {

/// Whether and how the matrix-unit kernel takes a decode step.
struct MmaPlan {
  std::string refusal;  ///< why it does not; empty if it does
  int sets = 1;         ///< a team takes up to 4 sets rows of a kv head
  int row_blocks = 1;   ///< teams that share the rows of a kv head
  int num_splits = 1;

  [[nodiscard]] bool used() const noexcept { return refusal.empty(); }
};

/// Parts of a history of `tiles` tiles for `walks` independent walks: as few as keep the device
/// busy. Time is counted in tiles of a warp, with two more for the start and the end of a part.
[[nodiscard]] inline int mma_splits(std::int64_t walks, std::int64_t tiles,
                                    const DeviceProperties& device) {
  const std::int64_t slots = std::int64_t{device.multiprocessors} * cuda::teams_per_unit;
  const std::int64_t most = (std::max)(std::int64_t{1}, ceil_div(tiles, std::int64_t{4}));
  std::int64_t best = 1;
  std::int64_t best_cost = 0;
  for (std::int64_t splits = 1; splits <= (std::min)(most, std::int64_t{4096}); ++splits) {
    const std::int64_t teams = checked_mul(walks, splits);
    const std::int64_t rounds = ceil_div(teams, slots);
    const std::int64_t steps = ceil_div(ceil_div(tiles, splits), std::int64_t{cuda::team_warps});
    const std::int64_t cost = checked_mul(rounds, steps + 2);
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

[[nodiscard]] inline MmaPlan plan_mma(const TileFormat& format, const DecodeProblem& problem,
                                      const DeviceProperties& device, int num_splits) {
  MmaPlan plan;
  plan.refusal = cuda::mma_refusal(format);
  if (device.compute_capability < 80) {
    plan.refusal = "the device has no matrix units of compute capability 8.0";
  } else if (problem.logits_soft_cap != 0) {
    plan.refusal = "logits are capped";
  }
  const std::int64_t rows =
      checked_mul(problem.query_heads / problem.kv_heads, problem.num_queries);
  plan.sets = rows > 4 ? 2 : 1;
  plan.row_blocks = static_cast<int>(ceil_div(rows, 4 * plan.sets));
  constexpr auto tile_tokens = static_cast<std::int64_t>(TileFormat::tokens);
  const std::int64_t walks =
      checked_mul(checked_mul(problem.num_sequences, problem.kv_heads), plan.row_blocks);
  plan.num_splits =
      num_splits > 0 ? num_splits
                     : mma_splits(walks, ceil_div(problem.max_history_tokens, tile_tokens), device);
  if (ceil_div(problem.max_history_tokens, plan.num_splits) > cuda::StepMask::far / 2) {
    plan.refusal = "a part of the history has too many tokens";
  }
  // Teams are numbered with 32 bits.
  if (checked_mul(walks, checked_mul(std::int64_t{4} * plan.sets, plan.num_splits + 1)) >
      (std::numeric_limits<int>::max)()) {
    plan.refusal = "the batch has too many parts";
  }
  return plan;
}

}  // namespace turboquant::detail
