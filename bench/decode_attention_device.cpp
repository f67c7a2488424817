// Decode attention over compressed tiles on an accelerator.
//
//     decode_attention_device [--json FILE] [--only SUBSTRING] [--quick] [--host-order]
//                             [--small-tiles]
//
// Tiles are in mma order, or with `--host-order` in host order, which dot products read. With
// `--small-tiles`, every shape is timed with pages of 64, 32 and 16 tokens, one after another.
// Every shape is timed in two ways: replays of a CUDA graph (kernels back to back) and events
// around ordinary launches. A number is the median of 7 rounds, in microseconds a step.

#include "decode_steps_device.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using namespace turboquant;
using turboquant_bench::DecodeShape;

const std::vector<DecodeShape> shapes = {
    {1, 32, 8, 128, 2048},        {1, 32, 8, 128, 8192},           {1, 32, 8, 128, 32768},
    {1, 32, 8, 128, 131072},      {8, 32, 8, 128, 32768},          {32, 32, 8, 128, 16384},
    {64, 32, 8, 128, 2048},       {1, 24, 4, 256, 131072},         {8, 64, 8, 128, 32768},
    {16, 8, 8, 128, 16384},       {8, 32, 8, 128, 32768, 3, 2},    {8, 32, 8, 128, 32768, 4, 4},
    {8, 32, 8, 128, 32768, 2, 2}, {8, 32, 8, 128, 32768, 3, 4, 4},
};

struct Options {
  const char* json = nullptr;
  std::string only;
  bool quick = false;
  TileOrder order = TileOrder::mma;
  std::vector<int> tile_tokens{64};
};

#if TURBOQUANT_CUDA

struct Timing {
  double graph_us = 0;
  double plain_us = 0;
  double bytes = 0;
  std::string plan;
};

Timing time_shape(const DecodeShape& shape, cudaStream_t stream, TileOrder order, bool quick) {
  DecodeOptions decode;
  const auto from_environment = [](const char* name) {
    const char* text = std::getenv(name);
    return text == nullptr ? 0 : std::atoi(text);
  };
  decode.num_splits = from_environment("SPLITS");
  decode.cluster = from_environment("CLUSTER");
  decode.ring_teams = static_cast<RingTeams>(from_environment("RING_TEAMS"));
  decode.ring_stages = from_environment("RING_STAGES");
  decode.device = static_cast<DeviceArch>(from_environment("DEVICE"));
  const turboquant_bench::DecodeSteps steps(shape, stream, order, decode);
  steps.run(0);
  Kokkos::fence();

  const turboquant_bench::DeviceTimer timer(stream);
  const auto run = [&](std::int64_t copy) { steps.run(copy); };
  Timing timing;
  timing.plan = steps.plan().describe();
  timing.bytes = steps.bytes();
  timing.graph_us = median_us_of_steps(timer, steps, quick ? 2 : 5, run);
  std::int64_t next = 0;
  timing.plain_us = timer.median_us(static_cast<int>(steps.steps_in_turn()),
                                    [&] { run(next++ % steps.copies()); });
  return timing;
}

int run_all(const Options& options) {
  return turboquant_bench::run_on_device(
      options.json, 0, [&](cudaStream_t stream, turboquant_bench::StepRecord& record) {
        std::printf("%-36s %10s %10s %8s\n", "shape", "graph us", "plain us", "GB/s");
        for (DecodeShape shape : shapes) {
          for (const int tokens : options.tile_tokens) {
            shape.tile_tokens = tokens;
            const std::string name = shape.name();
            if (name.find(options.only) == std::string::npos) {
              continue;
            }
            const Timing timing = time_shape(shape, stream, options.order, options.quick);
            const double rate = timing.bytes / timing.graph_us * 1e-3;
            std::printf("%-36s %10.2f %10.2f %8.0f\n", name.c_str(), timing.graph_us,
                        timing.plain_us, rate);
            if (std::getenv("PLANS") != nullptr) {
              std::printf("  %s\n", timing.plan.c_str());
            }
            record.add(
                name,
                "\"graph_us\": %.3f, \"plain_us\": %.3f, \"gb_per_s\": %.1f, \"plan\": \"%s\"",
                timing.graph_us, timing.plain_us, rate, timing.plan.c_str());
          }
        }
        return true;
      });
}

#else

int run_all(const Options&) {
  static_cast<void>(shapes);
  std::puts("skipped: no device (this Kokkos was built without CUDA)");
  return 0;
}

#endif

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      options.json = argv[++i];
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      options.only = argv[++i];
    } else if (std::strcmp(argv[i], "--quick") == 0) {
      options.quick = true;
    } else if (std::strcmp(argv[i], "--host-order") == 0) {
      options.order = TileOrder::host;
    } else if (std::strcmp(argv[i], "--small-tiles") == 0) {
      options.tile_tokens = {64, 32, 16};
    } else {
      std::fprintf(stderr,
                   "usage: decode_attention_device [--json FILE] [--only PART] [--quick] "
                   "[--host-order] [--small-tiles]\n");
      return 2;
    }
  }
  return run_all(options);
}
