// How decode steps are cut for rings on compute capability 9.0: decided on the host, so tested
// without a device.

#include <turboquant/attention/mma_plan.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

using namespace turboquant;

namespace {

/// What an H200 answers (CUDA 13.0, driver 580): blocks that run at once where 1, 2, 3 or 4 fit on
/// a multiprocessor, in clusters of 1 to 16.
detail::cuda::ClusterCapacity h200() {
  constexpr std::array<std::array<int, 16>, 4> measured{
      {{132, 132, 117, 120, 110, 102, 105, 120, 81, 70, 77, 84, 91, 98, 105, 112},
       {264, 264, 237, 248, 235, 234, 224, 240, 207, 210, 176, 192, 182, 196, 210, 224},
       {396, 396, 372, 368, 345, 372, 329, 360, 333, 300, 308, 336, 299, 294, 315, 336},
       {528, 528, 489, 496, 470, 474, 483, 496, 459, 440, 407, 444, 390, 420, 420, 448}}};
  detail::cuda::ClusterCapacity capacity;
  for (std::size_t fit = 0; fit < measured.size(); ++fit) {
    for (std::size_t blocks = 0; blocks < measured[fit].size(); ++blocks) {
      capacity.blocks[fit + 1][blocks + 1] = measured[fit][blocks];
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
                     const DecodeOptions& options = {},
                     const detail::cuda::ClusterCapacity& capacity = h200()) {
  DecodeProblem problem;
  problem.num_sequences = sequences;
  problem.kv_heads = 8;
  problem.query_heads = 8 * ratio;
  problem.max_history_tokens = tokens;
  return detail::plan_mma(make_format(dim), problem, hopper(), &capacity, options);
}

}  // namespace

TEST_CASE("long histories keep nearly all of the device busy, at once") {
  for (const int sequences : {1, 2, 3, 5, 8, 13, 16}) {
    for (const std::int64_t tokens : {32768, 131072, 1000000}) {
      for (const int dim : {64, 128, 256}) {
        CAPTURE(sequences);
        CAPTURE(tokens);
        CAPTURE(dim);
        const detail::MmaPlan made = plan(sequences, 4, dim, tokens);
        CHECK(made.ring);
        // Teams that the busiest multiprocessor takes, at once or one after another.
        const int teams = 8 * sequences * made.num_splits * made.cluster;
        const int load = (teams + 131) / 132;
        CHECK(teams >= load * 132 * 3 / 4);
      }
    }
  }
}

TEST_CASE("what was fastest on an H200 is chosen") {
  const auto check = [](const detail::MmaPlan& made, RingTeams teams, int splits, int cluster,
                        int stages) {
    CAPTURE(made.describe());
    CHECK(made.teams == teams);
    CHECK(made.num_splits == splits);
    CHECK(made.cluster == cluster);
    CHECK(made.ring_stages == stages);
  };
  check(plan(1, 4, 128, 2048), RingTeams::eight_warps, 1, 4, 2);
  check(plan(1, 4, 128, 8192), RingTeams::eight_warps, 16, 1, 2);
  check(plan(1, 4, 128, 131072), RingTeams::eight_warps, 16, 1, 2);
  check(plan(8, 4, 128, 32768), RingTeams::eight_warps, 1, 2, 2);
  check(plan(8, 8, 128, 32768), RingTeams::eight_warps, 1, 2, 2);
  check(plan(16, 1, 128, 16384), RingTeams::eight_warps, 1, 1, 2);
  check(plan(32, 4, 128, 16384), RingTeams::two_warps, 1, 1, 3);
  check(plan(64, 4, 128, 2048), RingTeams::two_warps, 1, 1, 2);
}

TEST_CASE("a multiprocessor has room for one kernel's teams, or for two kernels'") {
  for (const int sequences : {1, 3, 16, 17, 30, 33, 45, 60, 66, 100, 1000}) {
    for (const int ratio : {4, 8}) {
      for (const int dim : {64, 96, 128, 192, 256}) {
        for (const RingTeams teams : {RingTeams::two_warps, RingTeams::eight_warps}) {
          for (const int cluster : {1, 2}) {
            DecodeOptions options;
            options.ring_teams = teams;
            options.num_splits = 1;
            options.cluster = cluster;
            const detail::MmaPlan made = plan(sequences, ratio, dim, 4096, options);
            const detail::cuda::RingTeamSize size =
                detail::ring_team_size(make_format(dim), made.sets, teams, cluster);
            CHECK(made.ring);
            const int load = (8 * sequences * made.row_blocks * cluster + 131) / 132;
            const int own = load < size.per_unit ? load : size.per_unit;
            CHECK((made.resident_teams == own || made.resident_teams == 2 * own));
            CHECK(made.resident_teams <= size.per_unit);
            CHECK(made.ring_stages >= 2);
            CHECK(made.ring_stages <= size.stages[static_cast<std::size_t>(made.resident_teams)]);
          }
        }
      }
    }
  }
}

TEST_CASE("what options ask for is kept") {
  for (const int splits : {0, 1, 7}) {
    for (const int cluster : {0, 1, 3, 16}) {
      for (const RingTeams teams :
           {RingTeams::automatic, RingTeams::two_warps, RingTeams::eight_warps}) {
        for (const int ratio : {4, 8}) {
          DecodeOptions options;
          options.num_splits = splits;
          options.cluster = cluster;
          options.ring_teams = teams;
          const detail::MmaPlan made = plan(3, ratio, 128, 5000, options);
          CHECK(made.used());
          CHECK(made.ring);
          CHECK((splits == 0 || made.num_splits == splits));
          CHECK((cluster == 0 || made.cluster == cluster));
          CHECK((teams == RingTeams::automatic || made.teams == teams));
        }
      }
    }
  }
}

TEST_CASE("clusters that a device does not have are not chosen") {
  detail::cuda::ClusterCapacity none = h200();
  for (auto& blocks : none.blocks) {
    for (std::size_t cluster = 2; cluster < blocks.size(); ++cluster) {
      blocks[cluster] = 0;
    }
  }
  for (const int sequences : {1, 8, 100}) {
    CHECK(plan(sequences, 4, 128, 131072, {}, none).cluster == 1);
  }
  DecodeOptions options;
  options.device = DeviceArch::matrix_units_ring;
  options.cluster = 2;
  CHECK(plan(1, 4, 128, 1000, options, none).refusal ==
        "the teams or clusters asked for do not exist");
}

TEST_CASE("rings that do not fit are refused by name") {
  DecodeOptions options;
  options.ring_teams = RingTeams::eight_warps;
  options.ring_stages = 4;
  CHECK(plan(1, 4, 128, 1000, options).describe() ==
        "tiles loaded into registers (ring_stages is 4, expected at most 3 for 1 teams of 8 warps "
        "on a multiprocessor)");
  options.ring_stages = 3;
  CHECK(plan(1, 4, 128, 1000, options).ring_stages == 3);
  options.ring_stages = 4;
  options.device = DeviceArch::matrix_units_ring;
  CHECK(plan(1, 4, 128, 1000, options).refusal.find("ring_stages is 4, expected at most 3") == 0);
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
      for (const RingTeams teams : {RingTeams::two_warps, RingTeams::eight_warps}) {
        const auto size_in = [&](int cluster) {
          return detail::ring_team_size(make_format(dim), sets, teams, cluster);
        };
        for (const int cluster : {1, 2, 16}) {
          const detail::cuda::RingTeamSize size = size_in(cluster);
          CHECK(size.per_unit >= 1);
          CHECK(size.per_unit <= size_in(1).per_unit);
          CHECK(size.warps * size.per_unit <= 8);
          for (int teams_at_once = 1; teams_at_once <= size.per_unit; ++teams_at_once) {
            const auto at = static_cast<std::size_t>(teams_at_once);
            CHECK(size.stages[at] >= 2);
            CHECK(size.stages[at] <= 4);
            CHECK(size.stages[at] <= size_in(1).stages[at]);
          }
        }
      }
    }
  }
}
