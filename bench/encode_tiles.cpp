// Encoding of prefilled tokens into tiles: rotation, key codes, value codes, scales and zero
// points.
//
//     encode_tiles
//     encode_tiles --benchmark_filter='K3V4_g32/d128/bfloat16/'
//
// Names: <format>/d<head_dim>/<row type>/<instructions>/t<threads>
//
// A step encodes 1,024 tokens of 8 kv heads, rows and tiles warm in the last-level cache, as behind
// the projections that made them. Counters, from the median of the iterations: vectors_per_s counts
// every token and kv head twice, its key and its value; token_heads_per_s counts it once;
// token_heads_per_cpu_s is per second of processor time of all threads; max_token_heads_per_s is of
// the quickest iteration.

#include "bench_program.hpp"
#include "encode_formats.hpp"

#include <turboquant/base/random.hpp>
#include <turboquant/device/encode_tiles.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using namespace turboquant;
using Memory = Kokkos::HostSpace;
using AllThreads = Kokkos::DefaultHostExecutionSpace;
using turboquant_bench::OneThread;

constexpr int kv_heads = 8;
constexpr std::size_t num_tiles = 16;

using turboquant_bench::NamedFormat;
namespace formats = turboquant_bench::formats;
constexpr NamedFormat timed_formats[] = {formats::k3v4,         formats::k3v4_g32, formats::k4v4,
                                         formats::k3v3_rotated, formats::ip4v4,    formats::f8v4,
                                         formats::k3v4_mean};

/// Bell-shaped numbers.
template <class Row>
std::vector<Row> rows(std::size_t count, std::uint64_t stream) {
  const CounterRng rng(1, stream);
  std::vector<Row> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    double sum = -2;
    for (std::uint64_t k = 0; k < 4; ++k) {
      sum += rng.uniform(4 * i + k);
    }
    if constexpr (std::is_same_v<Row, float>) {
      numbers[i] = static_cast<float>(sum);
    } else {
      numbers[i] = Row::from_float(static_cast<float>(sum));
    }
  }
  return numbers;
}

struct EncodeCase {
  const NamedFormat* format;
  int dim;
  HostArch arch;
};

template <class Exec, class Row>
void encode(benchmark::State& state, const EncodeCase& test) {
  const Exec exec;
  const TileCodecOptions options = test.format->options(test.dim);
  const TileCodec<Memory> codec(options);
  const std::size_t tile_numbers =
      TileFormat::max_tokens * kv_heads * static_cast<std::size_t>(test.dim);
  const auto keys = rows<Row>(num_tiles * tile_numbers, 1);
  const auto values = rows<Row>(num_tiles * tile_numbers, 2);
  const std::size_t tile_bytes = options.format.bytes();
  const Kokkos::View<std::byte*, Memory> tiles("tiles", num_tiles * kv_heads * tile_bytes);
  const Kokkos::View<EncodeJob*, Memory> jobs("jobs", num_tiles);
  for (std::size_t i = 0; i < num_tiles; ++i) {
    EncodeJob& job = jobs(i);
    job.keys = dense_rows(keys.data() + i * tile_numbers, kv_heads, test.dim);
    job.values = dense_rows(values.data() + i * tile_numbers, kv_heads, test.dim);
    job.tile = tiles.data() + i * kv_heads * tile_bytes;
    job.head_stride = static_cast<std::int64_t>(tile_bytes);
    job.count = static_cast<int>(TileFormat::max_tokens);
    job.clear_from = 0;
  }
  turboquant_bench::Stopwatch stopwatch;
  for (auto _ : state) {
    stopwatch.start();
    encode_tiles(exec, codec, kv_heads, Kokkos::View<const EncodeJob*, Memory>(jobs), test.arch);
    exec.fence();
    stopwatch.stop();
  }
  const auto times = stopwatch.times();
  const auto token_heads = static_cast<double>(num_tiles * TileFormat::max_tokens * kv_heads);
  state.counters["vectors_per_s"] = 2 * token_heads / times.median;
  state.counters["token_heads_per_s"] = token_heads / times.median;
  state.counters["max_token_heads_per_s"] = token_heads / times.minimum;
  state.counters["token_heads_per_cpu_s"] = token_heads / times.cpu_median;
}

template <class Row>
void add(const std::string& name, const EncodeCase& test) {
  const auto set_up = [](benchmark::internal::Benchmark* benchmark) {
    benchmark->UseRealTime()->Unit(benchmark::kMicrosecond);
  };
  set_up(benchmark::RegisterBenchmark(
      (name + "/t" + std::to_string(OneThread().concurrency())).c_str(), encode<OneThread, Row>,
      test));
  const int threads = AllThreads().concurrency();
  if (!std::is_same_v<AllThreads, OneThread> && threads > 1) {
    set_up(benchmark::RegisterBenchmark((name + "/t" + std::to_string(threads)).c_str(),
                                        encode<AllThreads, Row>, test));
  }
}

void add_benchmarks() {
  for (const NamedFormat& format : timed_formats) {
    for (const int dim : {64, 128, 256}) {
      for (const HostArch arch : {HostArch::portable, HostArch::avx2, HostArch::avx512}) {
        if (!host_arch_available(arch)) {
          continue;
        }
        const EncodeCase test{&format, dim, arch};
        const auto name = [&](const char* type) {
          return std::string(format.name) + "/d" + std::to_string(dim) + "/" + type + "/" +
                 std::string(to_string(arch));
        };
        add<float>(name("float"), test);
        add<bfloat16>(name("bfloat16"), test);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return turboquant_bench::run_program(argc, argv, "K3V4(_g32)?/d(64|128|256)/float/",
                                       add_benchmarks);
}
