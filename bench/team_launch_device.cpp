// What launching through Kokkos costs: one kernel body, the matrix-unit walk with plain loads,
// under `TeamPolicy` and launched natively on the same stream.
//
//     team_launch_device [--json FILE]
//
// Microseconds a step in a CUDA graph, median of 7 rounds, the two in turn, three times each; the
// least of three is told. Both must give the same bits.

#include "decode_steps_device.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

using namespace turboquant;
using turboquant_bench::DecodeShape;

const std::vector<DecodeShape> shapes = {
    {1, 32, 8, 128, 8192}, {1, 32, 8, 128, 32768}, {8, 32, 8, 128, 32768}, {32, 32, 8, 128, 16384}};

#if TURBOQUANT_CUDA

using turboquant_bench::DecodeSteps;

/// The team of plain loads, described as a native launch wants it.
struct NativeTeam : detail::cuda::LoadingTeam<detail::cuda::MmaShape<3, 4, 128, 128>, 1> {
  using Loading = detail::cuda::LoadingTeam<detail::cuda::MmaShape<3, 4, 128, 128>, 1>;
  static constexpr int blocks_per_unit = detail::cuda::teams_per_unit;
  static constexpr std::size_t most_scratch_bytes = Loading::scratch_bytes;
};

/// What `run_decode` enqueues for the plan of `steps`, without Kokkos.
/// @param early  whether it may be put in place before the kernel before it has ended
void run_natively(const DecodeSteps& steps, std::int64_t copy, bool early) {
  const auto& plan = steps.plan();
  const detail::DecodeLayout& layout = plan.layout();
  const TileTables& tables = plan.codec().tables();
  const DecodeProblem& problem = plan.problem();
  const auto dim = std::int64_t{tables.format.key_dim};
  const detail::DecodeWorkspace memory{layout, steps.workspace.data()};
  const RowView queries{steps.queries.data(), row_type_of<bfloat16>, problem.query_heads * dim,
                        dim};
  const detail::AttentionOutputs outputs{nullptr, steps.output.data(), row_type_of<bfloat16>,
                                         steps.lse.data()};
  const int parts = layout.num_sequences * layout.kv_heads * layout.row_blocks * layout.num_splits;
  using Kernel = detail::MmaAttendBlocks<NativeTeam>;
  const Kernel kernel{{memory, steps.records(copy).data(),
                       detail::query_preparation(tables, layout, queries), outputs}};
  constexpr std::size_t bytes = NativeTeam::Loading::scratch_bytes;
  if (early) {
    detail::cuda::launch_in_blocks(steps.exec(), {parts, 1, NativeTeam::warps, bytes}, kernel);
  } else {
    detail::cuda::run_in_blocks<<<static_cast<unsigned>(parts), dim3(32, NativeTeam::warps), bytes,
                                  steps.exec().cuda_stream()>>>(kernel);
  }
}

/// The step's output, as bits.
std::vector<std::uint16_t> output_of(const DecodeSteps& steps) {
  Kokkos::fence();
  const auto output = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), steps.output);
  std::vector<std::uint16_t> bits;
  for (std::size_t i = 0; i < output.size(); ++i) {
    bits.push_back(output.data()[i].bits);
  }
  return bits;
}

int run_all(const char* json) {
  return turboquant_bench::run_on_device(
      json, 9, [&](cudaStream_t stream, turboquant_bench::StepRecord& record) {
        const turboquant_bench::DeviceTimer timer(stream);
        bool same = true;
        std::printf("%-36s %10s %10s %10s %8s\n", "shape", "Kokkos us", "native us", "early us",
                    "ratio");
        for (const DecodeShape& shape : shapes) {
          DecodeOptions options;
          options.device = DeviceArch::matrix_units_plain;
          const DecodeSteps steps(shape, stream, TileOrder::mma, options);
          const detail::DecodeLayout& layout = steps.plan().layout();
          if (layout.sets != 1 || (layout.num_splits > 1 && !layout.parts_meet)) {
            std::printf("%-36s not one kernel of one set of rows\n", shape.name().c_str());
            return false;
          }
          const std::array<std::function<void(std::int64_t)>, 3> ways = {
              [&](std::int64_t copy) { steps.run(copy); },
              [&](std::int64_t copy) { run_natively(steps, copy, false); },
              [&](std::int64_t copy) { run_natively(steps, copy, true); }};
          // The launch that may be early lifts the kernel's limit of scratch memory, too.
          run_natively(steps, 0, true);
          std::vector<std::uint16_t> expected;
          for (const auto& way : ways) {
            Kokkos::deep_copy(steps.output, bfloat16{});
            way(1);
            const auto output = output_of(steps);
            if (expected.empty()) {
              expected = output;
            } else if (output != expected) {
              std::printf("%-36s other bits\n", shape.name().c_str());
              same = false;
            }
          }
          std::array<double, 3> us = {1e30, 1e30, 1e30};
          for (int round = 0; round < 3; ++round) {
            for (std::size_t i = 0; i < us.size(); ++i) {
              us[i] = std::min(us[i], median_us_of_steps(timer, steps, 5, ways[i]));
            }
          }
          std::printf("%-36s %10.2f %10.2f %10.2f %8.3f\n", shape.name().c_str(), us[0], us[1],
                      us[2], us[0] / us[1]);
          record.add(shape.name(), "\"kokkos_us\": %.3f, \"native_us\": %.3f, \"early_us\": %.3f",
                     us[0], us[1], us[2]);
        }
        return same;
      });
}

#else

int run_all(const char*) {
  static_cast<void>(shapes);
  std::puts("skipped: no device (this Kokkos was built without CUDA)");
  return 0;
}

#endif

}  // namespace

int main(int argc, char** argv) {
  const char* json = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json = argv[++i];
    } else {
      std::fprintf(stderr, "usage: team_launch_device [--json FILE]\n");
      return 2;
    }
  }
  return run_all(json);
}
