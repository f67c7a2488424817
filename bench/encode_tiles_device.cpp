// Encoding of prefilled tokens into tiles on an accelerator.
//
//     encode_tiles_device [--json FILE] [--only SUBSTRING] [--tile-tokens N]...
//
// A step encodes 65,536 tokens of 8 kv heads, far more than the L2 holds, into tiles of 64 tokens
// or of as many as `--tile-tokens` says, one size after another. A number is the median of
// 7 launches timed by events, after one that does not count. vectors_per_s counts a token and kv
// head twice, its key and its value; gb_per_s counts the rows read and the tiles written;
// copy_gb_per_s is what copying twice those rows on the device reaches in the same program, reads
// and writes counted.

#include "device_timing.hpp"
#include "encode_formats.hpp"

#include <turboquant/base/random.hpp>
#include <turboquant/device/arch/cuda_target.hpp>
#include <turboquant/device/encode_tiles.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using namespace turboquant;

using turboquant_bench::NamedFormat;
namespace formats = turboquant_bench::formats;

struct Case {
  const NamedFormat* format;
  int dim;
  TileOrder order;
  RowType rows;
};

const std::vector<Case> cases = {
    {&formats::k3v4, 128, TileOrder::host, RowType::bfloat16},
    {&formats::k3v4, 128, TileOrder::mma, RowType::bfloat16},
    {&formats::k3v4, 128, TileOrder::mma, RowType::float16},
    {&formats::k3v4, 128, TileOrder::mma, RowType::float32},
    {&formats::k3v4_g32, 128, TileOrder::mma, RowType::bfloat16},
    {&formats::k4v4, 128, TileOrder::mma, RowType::bfloat16},
    {&formats::k2v2, 128, TileOrder::mma, RowType::bfloat16},
    {&formats::k3v4, 64, TileOrder::mma, RowType::bfloat16},
    {&formats::k3v4, 256, TileOrder::mma, RowType::bfloat16},
    {&formats::k3v3_rotated, 128, TileOrder::host, RowType::bfloat16},
    {&formats::k3v4_mean, 128, TileOrder::mma, RowType::bfloat16},
};

#if TURBOQUANT_CUDA

using Device = Kokkos::Cuda;
using Space = Kokkos::CudaSpace;

using turboquant_bench::require_cuda;

/// Bell-shaped numbers.
template <class Row>
struct FillRows {
  Row* rows;
  std::uint64_t stream;

  TURBOQUANT_FUNCTION void operator()(std::int64_t i) const {
    const CounterRng rng(1, stream);
    float sum = -2;
    for (std::uint64_t k = 0; k < 4; ++k) {
      sum += static_cast<float>(rng.bits32(4 * static_cast<std::uint64_t>(i) + k)) * 0x1p-32F;
    }
    store(sum, rows[i]);
  }
  static TURBOQUANT_FUNCTION void store(float x, float& out) { out = x; }
  template <class Half>
  static TURBOQUANT_FUNCTION void store(float x, Half& out) {
    out = Half::from_float(x);
  }
};

struct Timing {
  double us = 0;
  double vectors_per_s = 0;
  double gb_per_s = 0;
  double copy_gb_per_s = 0;
};

template <class Row>
Timing time_case(const Case& test, int tile_tokens, cudaStream_t stream) {
  constexpr int kv_heads = 8;
  const std::int64_t tokens = tile_tokens;
  const std::int64_t num_tiles = 65536 / tokens;
  const Device exec(stream);
  TileCodecOptions options = test.format->options(test.dim, test.order);
  options.format.tile_tokens = tile_tokens;
  const TileCodec<Space> codec(options);
  const std::int64_t tile_numbers = tokens * kv_heads * test.dim;
  const std::int64_t numbers = num_tiles * tile_numbers;
  Kokkos::View<Row*, Space> keys("keys", static_cast<std::size_t>(numbers));
  Kokkos::View<Row*, Space> values("values", static_cast<std::size_t>(numbers));
  using Range = Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>;
  Kokkos::parallel_for("fill", Range(exec, 0, numbers), FillRows<Row>{keys.data(), 1});
  Kokkos::parallel_for("fill", Range(exec, 0, numbers), FillRows<Row>{values.data(), 2});
  const auto tile_bytes = static_cast<std::int64_t>(codec.format().bytes());
  Kokkos::View<std::byte*, Space> tiles(
      "tiles", static_cast<std::size_t>(num_tiles * kv_heads * tile_bytes));
  std::vector<EncodeJob> host_jobs(static_cast<std::size_t>(num_tiles));
  for (std::int64_t t = 0; t < num_tiles; ++t) {
    EncodeJob& job = host_jobs[static_cast<std::size_t>(t)];
    job.keys = dense_rows(keys.data() + t * tile_numbers, kv_heads, test.dim);
    job.values = dense_rows(values.data() + t * tile_numbers, kv_heads, test.dim);
    job.tile = tiles.data() + t * kv_heads * tile_bytes;
    job.head_stride = tile_bytes;
    job.count = static_cast<int>(tokens);
    job.clear_from = 0;
  }
  Kokkos::View<EncodeJob*, Space> jobs("jobs", host_jobs.size());
  Kokkos::deep_copy(
      jobs, Kokkos::View<const EncodeJob*, Kokkos::HostSpace>(host_jobs.data(), host_jobs.size()));
  Kokkos::fence();
  const turboquant_bench::DeviceTimer timer(stream);
  Timing timing;
  timing.us = timer.median_us(
      1, [&] { encode_tiles(exec, codec, kv_heads, Kokkos::View<const EncodeJob*, Space>(jobs)); });
  const auto row_bytes = static_cast<std::size_t>(numbers) * sizeof(Row);
  const double copied = timer.median_us(1, [&] {
    require_cuda(
        cudaMemcpyAsync(values.data(), keys.data(), row_bytes, cudaMemcpyDeviceToDevice, stream),
        "copy");
  });
  timing.vectors_per_s = 2e6 * static_cast<double>(num_tiles * tokens * kv_heads) / timing.us;
  const double moved =
      2.0 * static_cast<double>(row_bytes) + static_cast<double>(num_tiles * kv_heads * tile_bytes);
  timing.gb_per_s = moved / timing.us * 1e-3;
  timing.copy_gb_per_s = 2.0 * static_cast<double>(row_bytes) / copied * 1e-3;
  return timing;
}

int run_all(const char* json, const std::string& only, const std::vector<int>& sizes) {
  return turboquant_bench::run_on_device(
      json, 0, [&](cudaStream_t stream, turboquant_bench::StepRecord& record) {
        std::printf("%-36s %10s %14s %8s %10s\n", "case", "us", "G vectors/s", "GB/s", "copy GB/s");
        for (const Case& test : cases) {
          for (const int tile_tokens : sizes) {
            const char* const rows = test.rows == RowType::float32   ? "float"
                                     : test.rows == RowType::float16 ? "float16"
                                                                     : "bfloat16";
            std::string name = std::string(test.format->name) + "/d" + std::to_string(test.dim) +
                               "/" + std::string(to_string(test.order)) + "/" + rows;
            name += tile_tokens == 64 ? "" : "/t" + std::to_string(tile_tokens);
            const bool has_size =
                tile_tokens == 64 || test.format->key_centring == KeyCentring::none;
            if (!has_size || name.find(only) == std::string::npos) {
              continue;
            }
            const auto time = test.rows == RowType::float32   ? time_case<float>
                              : test.rows == RowType::float16 ? time_case<float16>
                                                              : time_case<bfloat16>;
            const Timing timing = time(test, tile_tokens, stream);
            std::printf("%-36s %10.1f %14.2f %8.0f %10.0f\n", name.c_str(), timing.us,
                        timing.vectors_per_s * 1e-9, timing.gb_per_s, timing.copy_gb_per_s);
            record.add(name,
                       "\"us\": %.2f, \"vectors_per_s\": %.4g, \"gb_per_s\": %.1f, "
                       "\"copy_gb_per_s\": %.1f",
                       timing.us, timing.vectors_per_s, timing.gb_per_s, timing.copy_gb_per_s);
          }
        }
        return true;
      });
}

#else

int run_all(const char*, const std::string&, const std::vector<int>&) {
  static_cast<void>(cases);
  std::puts("skipped: no device (this Kokkos was built without CUDA)");
  return 0;
}

#endif

}  // namespace

int main(int argc, char** argv) {
  const char* json = nullptr;
  std::string only;
  std::vector<int> sizes;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json = argv[++i];
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else if (std::strcmp(argv[i], "--tile-tokens") == 0 && i + 1 < argc) {
      sizes.push_back(std::atoi(argv[++i]));
    } else {
      std::fprintf(stderr,
                   "usage: encode_tiles_device [--json FILE] [--only PART] [--tile-tokens N]...\n");
      return 2;
    }
  }
  return run_all(json, only, sizes.empty() ? std::vector<int>{64} : sizes);
}
