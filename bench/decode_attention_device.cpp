// Decode attention over compressed tiles on an accelerator.
//
//     decode_attention_device [--json FILE] [--only SUBSTRING] [--quick] [--host-order]
//
// Tiles are in mma order, or with `--host-order` in host order, which dot products read.
// Every shape is timed in two ways: replays of a CUDA graph (kernels back to back) and events
// around ordinary launches. Step i reads cache i of as many caches as hold 400 MB, many times the
// L2, so that nothing is warm. A number is the median of 7 rounds, in microseconds a step. Codes
// are random bits, scales and zero points random numbers of a usual size; pages of 64 tokens lie in
// random order.

#include "device_timing.hpp"

#include <turboquant/attention/decode.hpp>
#include <turboquant/device/arch/cuda_target.hpp>
#include <turboquant/device/runtime.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using namespace turboquant;

struct Shape {
  int sequences;
  int query_heads;
  int kv_heads;
  int dim;
  std::int64_t tokens;
  int key_bits = 3;
  int value_bits = 4;
  int groups = 1;
};

const std::vector<Shape> shapes = {
    {1, 32, 8, 128, 2048},        {1, 32, 8, 128, 8192},           {1, 32, 8, 128, 32768},
    {1, 32, 8, 128, 131072},      {8, 32, 8, 128, 32768},          {32, 32, 8, 128, 16384},
    {64, 32, 8, 128, 2048},       {1, 24, 4, 256, 131072},         {8, 64, 8, 128, 32768},
    {16, 8, 8, 128, 16384},       {8, 32, 8, 128, 32768, 3, 2},    {8, 32, 8, 128, 32768, 4, 4},
    {8, 32, 8, 128, 32768, 2, 2}, {8, 32, 8, 128, 32768, 3, 4, 4},
};

#if TURBOQUANT_CUDA

using Device = Kokkos::Cuda;
using Space = Kokkos::CudaSpace;

using turboquant_bench::require_cuda;

struct PageAddress {
  std::byte* page = nullptr;
};

TURBOQUANT_FUNCTION std::uint32_t hash(std::uint64_t x) {
  x ^= x >> 31U;
  x *= 0x9E3779B97F4A7C15ULL;
  x ^= x >> 29U;
  x *= 0xBF58476D1CE4E5B9ULL;
  return static_cast<std::uint32_t>(x >> 32U);
}
TURBOQUANT_FUNCTION float uniform(std::uint64_t x) {
  return static_cast<float>(hash(x)) * (1.0F / 4294967296.0F);
}

/// Fills one tile an item: random codes, scales of values of standard deviation one.
struct FillTiles {
  TileFormat format;
  std::byte* tiles;

  TURBOQUANT_FUNCTION void half(std::size_t at, std::byte* tile, float x) const {
    const float16 stored = float16::from_float(x);
    tile[at] = static_cast<std::byte>(stored.bits & 0xFFU);
    tile[at + 1] = static_cast<std::byte>(stored.bits >> 8U);
  }
  TURBOQUANT_FUNCTION void operator()(std::int64_t item) const {
    const auto bytes = format.bytes();
    std::byte* tile = tiles + static_cast<std::size_t>(item) * bytes;
    for (std::size_t i = 0; i < bytes; i += 4) {
      const std::uint32_t word = hash(static_cast<std::uint64_t>(item) * bytes + i);
      std::memcpy(tile + i, &word, 4);
    }
    const auto top = static_cast<float>((1 << format.value_bits) - 1);
    for (std::size_t token = 0; token < TileFormat::tokens; ++token) {
      const std::uint64_t seed = static_cast<std::uint64_t>(item) * 4096 + token * 64;
      half(format.key_scale_byte(token), tile, 0.6F + 0.8F * uniform(seed));
      for (std::size_t group = 0; group < format.value_groups(); ++group) {
        const float scale = (0.7F + 0.6F * uniform(seed + 1 + group)) * 5.0F / top;
        const bool odd = token % 2 != 0;
        half(format.value_scale_byte(token, group), tile, odd ? -scale : scale);
        half(format.value_zero_byte(token, group), tile, odd ? scale * top / 2 : -scale * top / 2);
      }
    }
  }
};

struct Timing {
  double graph_us = 0;
  double plain_us = 0;
  double bytes = 0;
  std::string plan;
};

Timing time_shape(const Shape& shape, cudaStream_t stream, TileOrder tile_order, bool quick) {
  const Device exec(stream);
  TileCodecOptions options;
  options.format.key_bits = shape.key_bits;
  options.format.key_dim = shape.dim;
  options.format.value_bits = shape.value_bits;
  options.format.value_dim = shape.dim;
  options.format.value_group = shape.dim / shape.groups;
  options.format.order = tile_order;
  const TileCodec<Space> codec(options);
  const TileFormat& format = codec.format();
  const auto page = static_cast<std::int64_t>(format.bytes()) * shape.kv_heads;
  const std::int64_t pages = shape.tokens / 64 * shape.sequences;
  const std::int64_t copies =
      std::max<std::int64_t>(2, (std::int64_t{400} << 20U) / (page * pages) + 1);
  Kokkos::View<std::byte*, Space> memory(
      Kokkos::view_alloc(std::string("pages"), Kokkos::WithoutInitializing),
      static_cast<std::size_t>(copies * pages * page));
  Kokkos::parallel_for("fill",
                       Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>(
                           exec, 0, copies * pages * shape.kv_heads),
                       FillTiles{format, memory.data()});
  std::vector<PageAddress> addresses(static_cast<std::size_t>(copies * pages));
  std::vector<std::size_t> order(addresses.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[hash(i) % i]);
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    addresses[i].page = memory.data() + order[i] * static_cast<std::size_t>(page);
  }
  Kokkos::View<PageAddress*, Space> table("table", addresses.size());
  Kokkos::deep_copy(table, Kokkos::View<const PageAddress*, Kokkos::HostSpace>(addresses.data(),
                                                                               addresses.size()));
  std::vector<DecodeSequence> records;
  for (std::int64_t i = 0; i < copies * shape.sequences; ++i) {
    DecodeSequence record;
    const std::int64_t own = shape.tokens / 64;
    record.history = {reinterpret_cast<std::byte* const*>(table.data() + i * own), own, 1};
    record.history_end = shape.tokens;
    record.query_position = shape.tokens - 1;
    records.push_back(record);
  }
  Kokkos::View<DecodeSequence*, Space> device_records("records", records.size());
  Kokkos::deep_copy(device_records, Kokkos::View<const DecodeSequence*, Kokkos::HostSpace>(
                                        records.data(), records.size()));
  const auto n = static_cast<std::size_t>(shape.sequences);
  const auto heads = static_cast<std::size_t>(shape.query_heads);
  const auto dim = static_cast<std::size_t>(shape.dim);
  Kokkos::View<bfloat16****, Kokkos::LayoutRight, Space> queries("queries", n, 1, heads, dim);
  auto host_queries = Kokkos::create_mirror_view(queries);
  for (std::size_t i = 0; i < host_queries.size(); ++i) {
    host_queries.data()[i] = bfloat16::from_float(4 * uniform(i + 77) - 2);
  }
  Kokkos::deep_copy(queries, host_queries);
  Kokkos::View<bfloat16****, Kokkos::LayoutRight, Space> output("output", n, 1, heads, dim);
  Kokkos::View<float***, Kokkos::LayoutRight, Space> lse("lse", n, 1, heads);
  DecodeProblem problem;
  problem.num_sequences = shape.sequences;
  problem.query_heads = shape.query_heads;
  problem.kv_heads = shape.kv_heads;
  problem.max_history_tokens = shape.tokens;
  DecodeOptions decode;
  const auto from_environment = [](const char* name) {
    const char* text = std::getenv(name);
    return text == nullptr ? 0 : std::atoi(text);
  };
  decode.num_splits = from_environment("SPLITS");
  decode.cluster = from_environment("CLUSTER");
  decode.ring_teams = static_cast<RingTeams>(from_environment("RING_TEAMS"));
  decode.device = static_cast<DeviceArch>(from_environment("DEVICE"));
  const auto plan = plan_decode(exec, codec, problem, decode);
  Kokkos::View<std::byte*, Space> workspace("workspace",
                                            static_cast<std::size_t>(plan.workspace_bytes()));
  const auto run = [&](std::int64_t copy) {
    DecodeInputs<bfloat16, Space> inputs;
    inputs.queries = queries;
    inputs.sequences = Kokkos::View<const DecodeSequence*, Space>(
        device_records.data() + copy * shape.sequences, n);
    run_decode(exec, plan, inputs, output, lse, workspace);
  };
  run(0);
  Kokkos::fence();

  const turboquant_bench::DeviceTimer timer(stream);
  const std::int64_t steps = std::max<std::int64_t>(copies, 16 / copies * copies);
  Timing timing;
  timing.plan = plan.describe();
  timing.bytes = static_cast<double>(page) * static_cast<double>(pages);
  timing.graph_us =
      timer.median_us_of_graph(steps, quick ? 2 : 5, [&](std::int64_t i) { run(i % copies); });
  std::int64_t next = 0;
  timing.plain_us = timer.median_us(static_cast<int>(steps), [&] { run(next++ % copies); });
  return timing;
}

int run_all(const char* json, const std::string& only, TileOrder order, bool quick) {
  if (int devices = 0; cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("skipped: no device");
    return 0;
  }
  const KokkosScope kokkos;
  cudaStream_t stream = nullptr;
  require_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  cudaDeviceProp properties{};
  require_cuda(cudaGetDeviceProperties(&properties, 0), "properties");
  turboquant_bench::StepRecord record(properties.name);
  std::printf("%-36s %10s %10s %8s\n", "shape", "graph us", "plain us", "GB/s");
  for (const Shape& shape : shapes) {
    char name[128];
    std::snprintf(name, sizeof(name), "k%dv%d%s/b%d/hq%d/hk%d/d%d/n%lld", shape.key_bits,
                  shape.value_bits, shape.groups > 1 ? "g32" : "", shape.sequences,
                  shape.query_heads, shape.kv_heads, shape.dim,
                  static_cast<long long>(shape.tokens));
    if (std::string(name).find(only) == std::string::npos) {
      continue;
    }
    const Timing timing = time_shape(shape, stream, order, quick);
    const double rate = timing.bytes / timing.graph_us * 1e-3;
    std::printf("%-36s %10.2f %10.2f %8.0f\n", name, timing.graph_us, timing.plain_us, rate);
    if (std::getenv("PLANS") != nullptr) {
      std::printf("  %s\n", timing.plan.c_str());
    }
    record.add(name, "\"graph_us\": %.3f, \"plain_us\": %.3f, \"gb_per_s\": %.1f, \"plan\": \"%s\"",
               timing.graph_us, timing.plain_us, rate, timing.plan.c_str());
  }
  cudaStreamDestroy(stream);
  return record.write(json) ? 0 : 2;
}

#else

int run_all(const char*, const std::string&, TileOrder, bool) {
  static_cast<void>(shapes);
  std::puts("skipped: no device (this Kokkos was built without CUDA)");
  return 0;
}

#endif

}  // namespace

int main(int argc, char** argv) {
  const char* json = nullptr;
  std::string only;
  bool quick = false;
  TileOrder order = TileOrder::mma;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json = argv[++i];
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else if (std::strcmp(argv[i], "--host-order") == 0) {
      order = TileOrder::host;
    } else {
      std::fprintf(stderr,
                   "usage: decode_attention_device [--json FILE] [--only PART] [--quick] "
                   "[--host-order]\n");
      return 2;
    }
  }
  return run_all(json, only, order, quick);
}
