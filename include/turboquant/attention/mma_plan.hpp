#pragma once

#include <turboquant/attention/decode_problem.hpp>
#include <turboquant/base/checked_math.hpp>
#include <turboquant/device/arch/cuda_mma_shapes.hpp>
#include <turboquant/device/arch/cuda_mma_teams.hpp>
#include <turboquant/device/arch/cuda_sm90_launch.hpp>
#include <turboquant/device/arch/cuda_target.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

namespace turboquant::detail {

/// Whether and how the matrix-unit kernels take a decode step.
struct MmaPlan {
  std::string refusal;  ///< why they do not; empty if they do
  int sets = 1;         ///< a team takes up to 4 sets rows of a kv head
  int row_blocks = 1;   ///< teams that share the rows of a kv head
  int num_splits = 1;
  bool ring = false;         ///< tiles are copied into rings
  std::string ring_refusal;  ///< why not
  cuda::RingTeams teams = cuda::RingTeams::wide8;
  int cluster = 1;  ///< teams of a part

  [[nodiscard]] bool used() const noexcept { return refusal.empty(); }

  /// How tiles come to the warps, for people.
  [[nodiscard]] std::string describe() const {
    if (!ring) {
      return "tiles loaded into registers (" + ring_refusal + ")";
    }
    std::string text = "tiles copied into rings (compute capability 9.0), teams of " +
                       std::to_string(cuda::ring_warps(teams)) + " warps";
    text += teams == cuda::RingTeams::narrow4 ? " with short steps" : "";
    return cluster > 1 ? text + " in clusters of " + std::to_string(cluster) : text;
  }
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

/// Chooses teams, clusters and parts for the ring: what takes the least time, counted in quarters of
/// the time in which a multiprocessor streams 8 tiles.
struct RingChoice {
  std::int64_t walks = 1;
  std::int64_t tiles = 1;
  int dim = 128;
  const cuda::ClusterCapacity* capacity = nullptr;

  std::int64_t best_cost = std::numeric_limits<std::int64_t>::max();
  cuda::RingTeams teams = cuda::RingTeams::wide8;
  int cluster = 1;
  int num_splits = 1;

  /// Considers everything that options leave open; 0 leaves splits or cluster open.
  void choose(int splits, int cluster_size, RingTeamsOption kind) {
    for (const auto candidate :
         {cuda::RingTeams::wide8, cuda::RingTeams::wide4, cuda::RingTeams::narrow4}) {
      const bool asked = kind == RingTeamsOption::automatic ||
                         static_cast<int>(kind) == static_cast<int>(candidate) + 1;
      if (!asked || (candidate == cuda::RingTeams::narrow4 && !cuda::has_narrow_teams(dim))) {
        continue;
      }
      for (int size = 1; size <= cuda::most_cluster_blocks; ++size) {
        if (cluster_size == 0 || size == cluster_size) {
          choose_splits(candidate, size, splits);
        }
      }
    }
  }

 private:
  void choose_splits(cuda::RingTeams candidate, int size, int splits) {
    const int fit = cuda::ring_teams_per_unit(candidate);
    const std::int64_t slots =
        capacity->blocks[static_cast<std::size_t>(fit)][static_cast<std::size_t>(size)];
    if (slots == 0) {
      return;
    }
    const std::int64_t wave = (std::max)(std::int64_t{1}, slots / size);
    if (splits > 0) {
      consider(candidate, size, splits, wave);
      return;
    }
    const std::int64_t most = (std::min)((std::max)(std::int64_t{1}, tiles / 4), 2 * wave);
    for (std::int64_t parts = 1; parts <= most; ++parts) {
      consider(candidate, size, parts, wave);
      if (checked_mul(walks, parts) > 4 * wave) {
        break;
      }
    }
  }

  void consider(cuda::RingTeams candidate, int size, std::int64_t parts, std::int64_t wave) {
    const std::int64_t rounds = ceil_div(checked_mul(walks, parts), wave);
    const std::int64_t warps = checked_mul(parts, std::int64_t{size} * cuda::ring_warps(candidate));
    const int halves = candidate == cuda::RingTeams::narrow4 ? 2 : 1;
    const std::int64_t steps = ceil_div(checked_mul(tiles, halves), warps);
    // Teams that share a multiprocessor hide each other's beginning and end.
    const std::int64_t start = candidate == cuda::RingTeams::wide8 ? 8 : 3;
    const std::int64_t merge = parts > 1 ? 4 : 0;
    const std::int64_t meet = size > 8 ? 2 : (size > 1 ? 1 : 0);
    const std::int64_t cost =
        5 + checked_mul(rounds, checked_add(checked_mul(steps, 4), start)) + merge + meet;
    if (cost < best_cost) {
      best_cost = cost;
      teams = candidate;
      cluster = size;
      num_splits = static_cast<int>(parts);
    }
  }
};

/// @param capacity null where there are no bulk copies
[[nodiscard]] inline MmaPlan plan_mma(const TileFormat& format, const DecodeProblem& problem,
                                      const DeviceProperties& device,
                                      const cuda::ClusterCapacity* capacity,
                                      const DecodeOptions& options) {
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
  const std::int64_t tiles = ceil_div(problem.max_history_tokens,
                                      static_cast<std::int64_t>(TileFormat::tokens));
  const std::int64_t walks =
      checked_mul(checked_mul(problem.num_sequences, problem.kv_heads), plan.row_blocks);
  if (capacity == nullptr) {
    plan.ring_refusal = device.compute_capability < 90 ? "compute capability is below 9.0"
                                                       : "not compiled for compute capability 9.0";
  } else if (options.device == DeviceArch::matrix_units_plain) {
    plan.ring_refusal = "plain loads were asked for";
  } else {
    RingChoice choice;
    choice.walks = (std::max)(walks, std::int64_t{1});
    choice.tiles = (std::max)(tiles, std::int64_t{1});
    choice.dim = format.key_dim;
    choice.capacity = capacity;
    choice.choose(options.num_splits, options.cluster, options.ring_teams);
    plan.ring = choice.best_cost != std::numeric_limits<std::int64_t>::max();
    plan.ring_refusal = plan.ring ? "" : "the device has no clusters of the size asked for";
    plan.teams = choice.teams;
    plan.cluster = choice.cluster;
    plan.num_splits = choice.num_splits;
  }
  if (!plan.ring) {
    plan.num_splits = options.num_splits > 0 ? options.num_splits : mma_splits(walks, tiles, device);
  }
  if (options.device == DeviceArch::matrix_units_ring && plan.used() && !plan.ring) {
    plan.refusal = plan.ring_refusal;
  }
  if (ceil_div(problem.max_history_tokens, plan.num_splits) > cuda::StepMask::far / 2) {
    plan.refusal = "a part of the history has too many tokens";
  }
  // Teams are numbered with 32 bits.
  if (checked_mul(walks, checked_mul(std::int64_t{4} * plan.sets * plan.cluster,
                                     plan.num_splits)) > (std::numeric_limits<int>::max)()) {
    plan.refusal = "the batch has too many parts";
  }
  return plan;
}

}  // namespace turboquant::detail
