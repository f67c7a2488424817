#pragma once

#include <turboquant/attention/decode_problem.hpp>
#include <turboquant/attention/split_count.hpp>
#include <turboquant/base/checked_math.hpp>
#include <turboquant/base/random.hpp>
#include <turboquant/device/arch/cuda_mma_shapes.hpp>
#include <turboquant/device/arch/cuda_mma_teams.hpp>
#include <turboquant/device/arch/cuda_sm90_launch.hpp>
#include <turboquant/device/arch/cuda_target.hpp>

#include <algorithm>
#include <atomic>
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
  RingTeams teams = RingTeams::eight_warps;
  int team_warps = 8;       ///< with rings
  int ring_stages = 0;      ///< steps of a ring
  int resident_teams = 1;   ///< teams that a multiprocessor has room for
  int cluster = 1;          ///< teams of a part
  bool parts_meet = false;  ///< the last part of a walk to be done merges them all

  [[nodiscard]] bool used() const noexcept { return refusal.empty(); }

  /// How tiles come to the warps, for people.
  [[nodiscard]] std::string describe() const {
    if (!ring) {
      return "tiles loaded into registers (" + ring_refusal + ")";
    }
    std::string text = "tiles copied into rings (compute capability 9.0), teams of " +
                       std::to_string(team_warps) + " warps, rings of " +
                       std::to_string(ring_stages) + " steps";
    return cluster > 1 ? text + " in clusters of " + std::to_string(cluster) : text;
  }
};

/// A number that memory does not hold by chance: another one at every call.
[[nodiscard]] inline std::uint64_t next_mark() noexcept {
  static std::atomic<std::uint64_t> calls{0};
  const std::uint64_t call = calls.fetch_add(1, std::memory_order_relaxed);
  const CounterRng random(0x6d61726b, 0);
  return std::uint64_t{random.bits32(2 * call)} << 32U | random.bits32(2 * call + 1);
}

/// The size of a kind of team, in clusters of `blocks`, for tiles of a format that `mma_refusal`
/// lets pass.
[[nodiscard]] inline cuda::RingTeamSize ring_team_size(const TileFormat& format, int sets,
                                                       RingTeams teams, int blocks) {
  cuda::RingTeamSize size;
  cuda::with_mma_shape(format, [&](auto shape) {
    using Shape = decltype(shape);
    size = sets == 1 ? cuda::ring_team_size<Shape, 1>(teams, blocks)
                     : cuda::ring_team_size<Shape, 2>(teams, blocks);
  });
  return size;
}

/// Chooses teams, clusters and parts for the ring: what takes the least time by a model that was
/// fitted to an H200. Time is counted in sixteenths of that in which a multiprocessor streams 8
/// tiles, about 0.12 us.
struct RingChoice {
  std::int64_t walks = 1;
  std::int64_t tiles = 1;
  std::int64_t units = 1;  ///< multiprocessors
  const cuda::ClusterCapacity* capacity = nullptr;

  std::int64_t best_time = (std::numeric_limits<std::int64_t>::max)();
  RingTeams teams = RingTeams::automatic;  ///< as long as nothing fits
  cuda::RingTeamSize size{};
  int cluster = 1;
  int num_splits = 1;

  /// Considers a kind of team; 0 leaves splits or cluster open.
  /// @param alone its size without clusters
  /// @param clustered its size in clusters
  void consider(RingTeams candidate, const cuda::RingTeamSize& alone,
                const cuda::RingTeamSize& clustered, int splits, int cluster_size) {
    for (const int blocks : {1, 2, 4, 8, cluster_size}) {
      const bool asked = blocks == cluster_size;
      // Clusters pay for teams of 8 warps alone.
      const bool usual = cluster_size == 0 && (blocks == 1 || candidate == RingTeams::eight_warps);
      if (blocks == 0 || !(asked || usual)) {
        continue;
      }
      const cuda::RingTeamSize& candidate_size = blocks > 1 ? clustered : alone;
      const auto fit = static_cast<std::size_t>(candidate_size.per_unit);
      const std::int64_t at_once = capacity->blocks[fit][static_cast<std::size_t>(blocks)] / blocks;
      const std::int64_t most = splits > 0 ? splits : (std::max)(std::int64_t{1}, tiles / 4);
      for (std::int64_t parts = (std::max)(splits, 1); at_once > 0 && parts <= most; ++parts) {
        const std::int64_t time = time_of(candidate_size, blocks, parts, at_once);
        if (time < best_time) {
          best_time = time;
          teams = candidate;
          size = candidate_size;
          cluster = blocks;
          num_splits = static_cast<int>(parts);
        }
        if (checked_mul(walks, parts) > 2 * at_once) {
          break;
        }
      }
    }
  }
  /// Teams that share a multiprocessor.
  [[nodiscard]] int unit_teams() const {
    const std::int64_t load = ceil_div(
        checked_mul(checked_mul(walks, std::int64_t{num_splits}), std::int64_t{cluster}), units);
    return static_cast<int>((std::min)(load, std::int64_t{size.per_unit}));
  }
  /// Teams that a multiprocessor has room for: those of this kernel, and as many of the next one,
  /// which begins before this one has ended. With room for some of them, those would crowd on the
  /// multiprocessors that are done first.
  [[nodiscard]] int resident_teams() const {
    const int own = unit_teams();
    return 2 * own <= size.per_unit ? 2 * own : own;
  }
  /// Steps of a ring: as many as make 16 that a multiprocessor waits for. Fewer do not hide the
  /// memory's latency; more get into each other's way, most of all when all teams begin.
  /// @param asked 0 chooses
  /// @return 0 if the steps asked for do not fit
  [[nodiscard]] int stages(int asked) const {
    const int most = most_stages();
    if (asked > 0) {
      return asked <= most ? asked : 0;
    }
    constexpr int waited_for = 16;
    return (std::clamp)(waited_for / (unit_teams() * size.warps), 2, most);
  }

  /// Why rings cannot have the steps asked for.
  [[nodiscard]] std::string describe_most(int asked) const {
    return "ring_stages is " + std::to_string(asked) + ", expected at most " +
           std::to_string(most_stages()) + " for " + std::to_string(resident_teams()) +
           " teams of " + std::to_string(size.warps) + " warps on a multiprocessor";
  }

 private:
  [[nodiscard]] int most_stages() const {
    return size.stages[static_cast<std::size_t>(resident_teams())];
  }
  [[nodiscard]] std::int64_t time_of(const cuda::RingTeamSize& its_size, int blocks,
                                     std::int64_t parts, std::int64_t at_once) const {
    const std::int64_t clusters = checked_mul(walks, parts);
    const std::int64_t rounds = ceil_div(clusters, at_once);
    // Teams that one multiprocessor takes, at once or one after another.
    const std::int64_t load =
        (std::max)(ceil_div(checked_mul(clusters, std::int64_t{blocks}), units), rounds);
    // Sixteenths of steps of 64 tokens: between what a warp has and what whole steps make of it,
    // but no less than a step.
    const std::int64_t warps = checked_mul(parts, std::int64_t{blocks} * its_size.warps);
    constexpr std::int64_t step = 16;
    const std::int64_t exact = ceil_div(checked_mul(tiles, step), warps);
    const std::int64_t steps = (std::max)(step, (exact + round_up(exact, step)) / 2);
    const std::int64_t stream =
        checked_mul(checked_mul(load, steps), std::int64_t{its_size.warps}) / 8;
    // Teams that share a multiprocessor hide each other's beginning and end.
    const std::int64_t start = its_size.warps > 2 ? 26 : 44;
    const std::int64_t again = its_size.per_unit > 1 ? start / 3 : start;
    const std::int64_t starts = start + (ceil_div(load, its_size.per_unit) - 1) * again;
    const std::int64_t merge = parts > 1 ? 12 + parts : 0;
    const std::int64_t meet = blocks > 1 ? 12 + blocks / 4 : 0;
    return checked_add(stream, starts + merge + meet);
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
  const std::int64_t tiles =
      ceil_div(problem.max_history_tokens, static_cast<std::int64_t>(TileFormat::max_tokens));
  const std::int64_t walks =
      checked_mul(checked_mul(problem.num_sequences, problem.kv_heads), plan.row_blocks);
  if (!plan.used()) {
    return plan;
  }
  if (capacity == nullptr) {
    plan.ring_refusal = device.compute_capability < 90 ? "compute capability is below 9.0"
                                                       : "not compiled for compute capability 9.0";
  } else if (options.device == DeviceArch::matrix_units_plain) {
    plan.ring_refusal = "plain loads were asked for";
  } else {
    RingChoice choice;
    choice.walks = (std::max)(walks, std::int64_t{1});
    choice.tiles = (std::max)(tiles, std::int64_t{1});
    choice.units = (std::max)(device.multiprocessors, 1);
    choice.capacity = capacity;
    for (const RingTeams teams : {RingTeams::eight_warps, RingTeams::two_warps}) {
      if (options.ring_teams == teams || options.ring_teams == RingTeams::automatic) {
        choice.consider(teams, ring_team_size(format, plan.sets, teams, 1),
                        ring_team_size(format, plan.sets, teams, 2), options.num_splits,
                        options.cluster);
      }
    }
    plan.ring = choice.teams != RingTeams::automatic;
    plan.ring_refusal = plan.ring ? "" : "the teams or clusters asked for do not exist";
    plan.teams = choice.teams;
    plan.team_warps = choice.size.warps;
    plan.cluster = choice.cluster;
    plan.num_splits = choice.num_splits;
    if (plan.ring) {
      plan.resident_teams = choice.resident_teams();
      plan.ring_stages = choice.stages(options.ring_stages);
      plan.ring = plan.ring_stages > 0;
      plan.ring_refusal = plan.ring ? "" : choice.describe_most(options.ring_stages);
    }
  }
  if (!plan.ring) {
    plan.cluster = 1;
    plan.num_splits =
        options.num_splits > 0
            ? options.num_splits
            : fewest_splits(walks, tiles,
                            std::int64_t{device.multiprocessors} * cuda::teams_per_unit,
                            cuda::team_warps);
  }
  // One team can merge so much; beyond, a kernel with a team for every row is faster.
  constexpr std::int64_t most_to_merge = 160 * 1024;
  const std::int64_t team_rows = (std::min)(rows, std::int64_t{4} * plan.sets);
  plan.parts_meet =
      checked_mul(checked_mul(team_rows, 4 * format.value_dim), plan.num_splits) / plan.cluster <=
      most_to_merge;
  if (options.device == DeviceArch::matrix_units_ring && !plan.ring) {
    plan.refusal = plan.ring_refusal;
  }
  if (ceil_div(problem.max_history_tokens, plan.num_splits) > cuda::StepMask::far / 2) {
    plan.refusal = "a part of the history has too many tokens";
  }
  // Teams are numbered with 32 bits.
  if (checked_mul(walks, checked_mul(std::int64_t{4} * plan.sets * plan.cluster, plan.num_splits)) >
      (std::numeric_limits<int>::max)()) {
    plan.refusal = "the batch has too many parts";
  }
  return plan;
}

}  // namespace turboquant::detail
