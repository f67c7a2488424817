// How decode steps are cut for rings on compute capability 9.0: decided on the host, so tested
// without a device.

#include <turboquant/attention/mma_plan.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>

using namespace turboquant;

namespace {

/// A device of 132 multiprocessors in 8 groups, of which clusters of `blocks` fill what is whole.
detail::cuda::ClusterCapacity make_capacity(int units_of_group) {
  detail::cuda::ClusterCapacity capacity;
  for (std::size_t fit = 1; fit < capacity.blocks.size(); ++fit) {
    for (int blocks = 1; blocks <= detail::cuda::most_cluster_blocks; ++blocks) {
      const int of_group = units_of_group * static_cast<int>(fit) / blocks * blocks;
      capacity.blocks[fit][static_cast<std::size_t>(blocks)] =
          blocks == 1 ? 132 * static_cast<int>(fit) : 8 * of_group;
    }
  }
  return capacity;
}

detail::DeviceProperties hopper() {
  detail::DeviceProperties device;
  device.compute_capability = 90;
  device.code_architecture = 900;
  device.multiprocessors = 132;
  return device;
}

TileFormat make_format(int dim) {
  TileFormat format;
  format.key_dim = dim;
  format.value_dim = dim;
  format.value_group = dim;
  format.order = TileOrder::mma;
  return format;
}

detail::MmaPlan plan(int sequences, int ratio, int dim, std::int64_t tokens,
                     const DecodeOptions& options = {}, int units_of_group = 16) {
  DecodeProblem problem;
  problem.num_sequences = sequences;
  problem.kv_heads = 8;
  problem.query_heads = 8 * ratio;
  problem.max_history_tokens = tokens;
  const detail::cuda::ClusterCapacity capacity = make_capacity(units_of_group);
  return detail::plan_mma(make_format(dim), problem, hopper(), &capacity, options);
}

}  // namespace

TEST_CASE("a long history of few heads fills the device with clusters, and needs no second kernel") {
  for (const std::int64_t tokens : {8192, 32768, 131072}) {
    CAPTURE(tokens);
    const detail::MmaPlan made = plan(1, 4, 128, tokens);
    CHECK(made.ring);
    CHECK(made.num_splits == 1);
    CHECK(8 * made.cluster * made.team_warps >= 512);
  }
}

TEST_CASE("what options ask for is kept") {
  for (const int splits : {0, 1, 7}) {
    for (const int cluster : {0, 1, 3, 16}) {
      for (const RingTeams teams : {RingTeams::automatic, RingTeams::wide4, RingTeams::wide8,
                                    RingTeams::wide12, RingTeams::narrow4}) {
        for (const int ratio : {4, 8}) {
          DecodeOptions options;
          options.num_splits = splits;
          options.cluster = cluster;
          options.ring_teams = teams;
          const detail::MmaPlan made = plan(3, ratio, 128, 5000, options);
          CHECK(made.used());
          CHECK(made.ring == (teams != RingTeams::wide12 || ratio == 4));
          if (made.ring) {
            CHECK((splits == 0 || made.num_splits == splits));
            CHECK((cluster == 0 || made.cluster == cluster));
            CHECK((teams == RingTeams::automatic || made.teams == teams));
          }
        }
      }
    }
  }
}

TEST_CASE("clusters that a device does not have are not chosen") {
  const detail::MmaPlan made = plan(1, 4, 128, 131072, {}, 7);
  CHECK(made.ring);
  CHECK(made.cluster <= 14);
  DecodeOptions options;
  options.device = DeviceArch::matrix_units_ring;
  options.cluster = 16;
  options.ring_teams = RingTeams::wide8;
  CHECK(plan(1, 4, 128, 1000, options, 7).refusal == "the teams or clusters asked for do not exist");
}

TEST_CASE("without rings, the plan says why") {
  DecodeProblem problem;
  problem.max_history_tokens = 1000;
  detail::DeviceProperties device = hopper();
  const auto made = [&](const DecodeOptions& options = {}) {
    return detail::plan_mma(make_format(128), problem, device, nullptr, options);
  };
  CHECK(made().describe() ==
        "tiles loaded into registers (not compiled for compute capability 9.0)");
  device.compute_capability = 86;
  CHECK(made().describe() == "tiles loaded into registers (compute capability is below 9.0)");
  DecodeOptions options;
  options.device = DeviceArch::matrix_units_ring;
  CHECK(made(options).refusal == "compute capability is below 9.0");
  options.device = DeviceArch::matrix_units_plain;
  CHECK(made(options).used());
}

TEST_CASE("every kind of team fits the memory of a multiprocessor for every format") {
  for (const int dim : {64, 96, 128, 192, 256}) {
    for (const int sets : {1, 2}) {
      for (const RingTeams teams :
           {RingTeams::wide4, RingTeams::wide8, RingTeams::wide12, RingTeams::narrow4}) {
        const detail::cuda::RingTeamSize size = detail::ring_team_size(make_format(dim), sets, teams);
        CHECK(size.warps * size.per_unit <= 16);
        CHECK((size.warps == 0) == (size.per_unit == 0));
      }
    }
  }
}
