// One decode step over compressed tiles, and the same attention with Eigen over float and bfloat16
// rows.
//
//     decode_attention                                              # about a minute
//     decode_attention --benchmark_filter='tiles/K3V4/.*avx2'       # any part of the whole set
//     decode_attention --benchmark_filter=. --benchmark_list_tests  # its names
//
// Names: tiles/<format>/d<head_dim>/n<context>/gqa<query heads per kv
// head>/<exactness>/<instructions>/t<threads>
//        eigen_<type>/<build or native>/d<head_dim>/n<context>/gqa<ratio>/t<threads>
//
// All steps have one sequence and 8 kv heads. Caches are cold: iteration i takes layer i of as many
// layers as `cold_bytes` hold, so that what it reads was evicted since it was last read. Counters,
// from the median of the iterations unless they say otherwise: ns_per_token_head, nanoseconds per
// token of context and query head; min_ns_per_token_head, of the quickest iteration;
// cpu_ns_per_token_head, processor time of all threads (what to compare, for t1, on a machine that
// others use too); gb_per_s, bytes of the stored keys and values read per second.
// On such a machine set OMP_WAIT_POLICY=passive for more than one thread: a thread that waits
// spinning takes the processor from the one it waits for.

#include "bench_program.hpp"
#include "eigen_attention.hpp"

#include <turboquant/attention/decode.hpp>
#include <turboquant/base/random.hpp>
#include <turboquant/device/encode_tiles.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using namespace turboquant;
using turboquant_bench::EigenAttend;
using turboquant_bench::EigenPart;
using Memory = Kokkos::HostSpace;
using AllThreads = Kokkos::DefaultHostExecutionSpace;
using turboquant_bench::OneThread;

/// More than the last-level cache of current servers, whole sockets included (480 MB).
constexpr std::size_t cold_bytes = std::size_t{640} << 20U;
constexpr int kv_heads = 8;
/// Tokens of a page, unless tiles are small: then a page is one tile.
constexpr std::int64_t page_tokens = 256;

/// Bell-shaped number `i` of a stream, standard deviation 1.
float bell(const CounterRng& rng, std::uint64_t i) {
  double sum = -6;
  for (std::uint64_t k = 0; k < 12; ++k) {
    sum += rng.uniform(12 * i + k);
  }
  return static_cast<float>(sum);
}

std::vector<float> bells(std::size_t count, std::uint64_t stream) {
  const CounterRng rng(1, stream);
  std::vector<float> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    numbers[i] = bell(rng, i);
  }
  return numbers;
}

/// Layers of equal content in one allocation, kept until a benchmark asks for another content.
class Layers {
 public:
  /// @param name  of the content
  /// @param bytes of one layer, a multiple of 64
  /// @param fill  writes the first layer
  template <class Fill>
  void make(const std::string& name, std::size_t bytes, const Fill& fill) {
    if (name_ == name) {
      return;
    }
    name_ = name;
    bytes_ = bytes;
    count_ = (cold_bytes + bytes - 1) / bytes;
    if (capacity_ < bytes * count_) {
      memory_ = nullptr;
      capacity_ = bytes * count_;
      memory_.reset(static_cast<std::byte*>(::operator new(capacity_, alignment)));
    }
    fill(layer(0));
    for (std::size_t i = 1; i < count_; ++i) {
      std::memcpy(layer(i), layer(0), bytes);
    }
  }
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::byte* layer(std::size_t i) const { return memory_.get() + i * bytes_; }

 private:
  static constexpr std::align_val_t alignment{4096};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, alignment); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t capacity_ = 0;
  std::string name_;
  std::size_t bytes_ = 0;
  std::size_t count_ = 0;
};

/// One for tiles, one for float rows, one for bfloat16 rows, so that repetitions in any order
/// refill few of them.
Layers layers[3];

struct Shape {
  int dim = 128;
  std::int64_t context = 16384;
  int ratio = 4;
  [[nodiscard]] std::string name() const {
    return "d" + std::to_string(dim) + "/n" + std::to_string(context) + "/gqa" +
           std::to_string(ratio);
  }
};

/// Times `step(layer)` over all layers in turn.
template <class Step>
void time_steps(benchmark::State& state, const Shape& shape, std::size_t num_layers,
                double bytes_read, const Step& step) {
  static std::size_t layer = 0;  // goes on where the last benchmark stopped
  turboquant_bench::Stopwatch stopwatch;
  for (auto _ : state) {
    layer = (layer + 1) % num_layers;
    stopwatch.start();
    step(layer);
    stopwatch.stop();
  }
  const auto times = stopwatch.times();
  const double heads = static_cast<double>(shape.context) * kv_heads * shape.ratio;
  state.counters["ns_per_token_head"] = times.median * 1e9 / heads;
  state.counters["min_ns_per_token_head"] = times.minimum * 1e9 / heads;
  state.counters["cpu_ns_per_token_head"] = times.cpu_median * 1e9 / heads;
  state.counters["gb_per_s"] = bytes_read / times.median * 1e-9;
}

struct NamedFormat {
  const char* name;
  KeyCodec key_codec;
  int key_bits;
  ValueCodec value_codec;
  int value_bits;
  int value_group;  ///< 0: one group
  KeyCentring key_centring = KeyCentring::none;
  int tile_tokens = 64;

  [[nodiscard]] TileFormat format(int dim) const {
    TileFormat format;
    format.key_codec = key_codec;
    format.key_bits = key_bits;
    format.key_dim = dim;
    format.value_codec = value_codec;
    format.value_bits = value_bits;
    format.value_dim = dim;
    format.value_group = value_group == 0 ? dim : value_group;
    format.key_centring = key_centring;
    format.tile_tokens = tile_tokens;
    return format;
  }
};

constexpr NamedFormat formats[] = {
    {"K3V4", KeyCodec::mse, 3, ValueCodec::grouped, 4, 0},
    {"K3V4_g32", KeyCodec::mse, 3, ValueCodec::grouped, 4, 32},
    {"K4V4", KeyCodec::mse, 4, ValueCodec::grouped, 4, 0},
    {"K3V2", KeyCodec::mse, 3, ValueCodec::grouped, 2, 0},
    {"K2V2", KeyCodec::mse, 2, ValueCodec::grouped, 2, 0},
    {"K3V3_rotated", KeyCodec::mse, 3, ValueCodec::codebook, 3, 0},
    {"IP4V4", KeyCodec::inner_product, 4, ValueCodec::grouped, 4, 0},
    {"F8V4", KeyCodec::float8, 8, ValueCodec::grouped, 4, 0},
    {"K3V4_mean", KeyCodec::mse, 3, ValueCodec::grouped, 4, 0, KeyCentring::tile_mean},
    {"K3V3", KeyCodec::mse, 3, ValueCodec::grouped, 3, 0},
    {"K3V3_page32", KeyCodec::mse, 3, ValueCodec::grouped, 3, 0, KeyCentring::none, 32},
    {"K3V3_page16", KeyCodec::mse, 3, ValueCodec::grouped, 3, 0, KeyCentring::none, 16},
    {"K3V4_page32", KeyCodec::mse, 3, ValueCodec::grouped, 4, 0, KeyCentring::none, 32},
    {"K3V4_page16", KeyCodec::mse, 3, ValueCodec::grouped, 4, 0, KeyCentring::none, 16},
};

std::int64_t tiles_of_page(const TileFormat& format) {
  return format.tile_tokens == 64 ? page_tokens / 64 : 1;
}

/// Encodes bell-shaped keys and values into one layer of pages.
void fill_tiles(const TileCodec<Memory>& codec, std::int64_t context, std::byte* layer) {
  const TileFormat& format = codec.format();
  const std::size_t tile_tokens = format.tokens();
  const std::int64_t tiles_per_page = tiles_of_page(format);
  // The same 256 tokens again and again: contents do not change the speed, and encoding stays
  // short.
  const std::size_t distinct = tile_tokens * static_cast<std::size_t>(tiles_per_page);
  const std::size_t row =
      static_cast<std::size_t>(kv_heads) * static_cast<std::size_t>(format.key_dim);
  const auto keys = bells(distinct * row, 1);
  const auto values = bells(distinct * row, 2);
  const std::size_t page = page_bytes(format, kv_heads, tiles_per_page);
  const Kokkos::View<EncodeJob*, Memory> jobs("jobs", static_cast<std::size_t>(tiles_per_page));
  for (std::size_t tile = 0; tile < jobs.size(); ++tile) {
    EncodeJob& job = jobs(tile);
    job.keys = dense_rows(keys.data() + tile * tile_tokens * row, kv_heads, format.key_dim);
    job.values = dense_rows(values.data() + tile * tile_tokens * row, kv_heads, format.value_dim);
    job.tile = layer + tile * format.bytes();
    job.head_stride = tiles_per_page * static_cast<std::int64_t>(format.bytes());
    job.count = static_cast<int>(tile_tokens);
  }
  const OneThread exec;
  encode_tiles(exec, codec, kv_heads, Kokkos::View<const EncodeJob*, Memory>(jobs));
  exec.fence();
  for (std::size_t i = 1; i < static_cast<std::size_t>(context) / distinct; ++i) {
    std::memcpy(layer + i * page, layer, page);
  }
}

struct TilesCase {
  const NamedFormat* format;
  Shape shape;
  DecodeOptions options;
};

template <class Exec>
void tiles(benchmark::State& state, const TilesCase& test) {
  const Exec exec;
  const Shape& shape = test.shape;
  TileCodecOptions options;
  options.format = test.format->format(shape.dim);
  const TileCodec<Memory> codec(options);
  const std::int64_t tiles_per_page = tiles_of_page(options.format);
  const std::size_t page = page_bytes(options.format, kv_heads, tiles_per_page);
  const auto num_pages =
      static_cast<std::size_t>(shape.context / (options.format.tile_tokens * tiles_per_page));
  layers[0].make(std::string(test.format->name) + "/" + std::to_string(shape.dim) + "/" +
                     std::to_string(shape.context),
                 page * num_pages,
                 [&](std::byte* layer) { fill_tiles(codec, shape.context, layer); });

  DecodeProblem problem;
  problem.query_heads = kv_heads * shape.ratio;
  problem.kv_heads = kv_heads;
  problem.max_history_tokens = shape.context;
  const auto plan = plan_decode(exec, codec, problem, test.options);
  const auto heads = static_cast<std::size_t>(problem.query_heads);
  const auto dim = static_cast<std::size_t>(shape.dim);
  const Kokkos::View<float****, Kokkos::LayoutRight, Memory> queries("queries", 1, 1, heads, dim);
  const auto numbers = bells(queries.size(), 3);
  std::copy(numbers.begin(), numbers.end(), queries.data());
  const Kokkos::View<float****, Kokkos::LayoutRight, Memory> output("output", 1, 1, heads, dim);
  const Kokkos::View<float***, Kokkos::LayoutRight, Memory> lse("lse", 1, 1, heads);
  const Kokkos::View<std::byte*, Memory> workspace(
      "workspace", static_cast<std::size_t>(plan.workspace_bytes()));
  std::vector<std::byte*> pages(layers[0].count() * num_pages);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    pages[i] = layers[0].layer(i / num_pages) + i % num_pages * page;
  }
  const Kokkos::View<DecodeSequence*, Memory> record("record", 1);
  record(0).history_end = shape.context;
  record(0).query_position = shape.context;
  DecodeInputs<float, Memory> inputs;
  inputs.queries = queries;
  inputs.sequences = record;
  time_steps(state, shape, layers[0].count(), static_cast<double>(page * num_pages),
             [&](std::size_t layer) {
               record(0).history = {pages.data() + layer * num_pages,
                                    static_cast<std::int64_t>(num_pages), tiles_per_page};
               run_decode(exec, plan, inputs, output, lse, workspace);
               exec.fence();
             });
  if (!std::isfinite(lse(0, 0, 0)) || !std::isfinite(output(0, 0, 0, 0))) {
    state.SkipWithError("the output is not finite");
  }
}

struct EigenCase {
  EigenAttend attend;
  bool half;
  Shape shape;
};

/// The softmax over parts of a head's tokens as one; in the order of the parts.
void merge_parts(const EigenPart* parts, std::int64_t count, int row, float* output) {
  const int dim = parts[0].dim;
  float highest = parts[0].maximum[row];
  for (std::int64_t i = 1; i < count; ++i) {
    highest = (std::max)(highest, parts[i].maximum[row]);
  }
  std::fill_n(output, dim, 0.0F);
  float sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float weight = std::exp(parts[i].maximum[row] - highest);
    sum += weight * parts[i].sum[row];
    for (int d = 0; d < dim; ++d) {
      output[d] += weight * parts[i].output[row * dim + d];
    }
  }
  for (int d = 0; d < dim; ++d) {
    output[d] /= sum;
  }
}

template <class Exec>
void eigen(benchmark::State& state, const EigenCase& test) {
  const Exec exec;
  const Shape& shape = test.shape;
  const auto dim = static_cast<std::size_t>(shape.dim);
  const auto context = static_cast<std::size_t>(shape.context);
  const std::size_t number = test.half ? sizeof(bfloat16) : sizeof(float);
  const std::size_t head_bytes = context * dim * number;
  Layers& memory = layers[test.half ? 2 : 1];
  // Keys of all heads, then values: (kv_heads, tokens, dim) each.
  memory.make(shape.name(), 2 * kv_heads * head_bytes, [&](std::byte* layer) {
    const auto numbers = bells(std::size_t{1} << 16U, 1);
    for (std::size_t i = 0; i < 2 * kv_heads * context * dim; ++i) {
      const float x = numbers[i * 2654435761U % numbers.size()];
      if (test.half) {
        reinterpret_cast<bfloat16*>(layer)[i] = bfloat16::from_float(x);
      } else {
        reinterpret_cast<float*>(layer)[i] = x;
      }
    }
  });
  auto queries = bells(static_cast<std::size_t>(kv_heads * shape.ratio) * dim, 3);
  for (float& x : queries) {
    x /= std::sqrt(static_cast<float>(shape.dim));
  }
  // Parts as long as those of the automatic plan of tiles.
  const std::int64_t part_tokens =
      DecodeOptions::default_tiles_per_split * static_cast<std::int64_t>(TileFormat::max_tokens);
  const std::int64_t splits = (shape.context + part_tokens - 1) / part_tokens;
  const auto num_parts = static_cast<std::size_t>(kv_heads * splits);
  const std::size_t rows = num_parts * static_cast<std::size_t>(shape.ratio);
  std::vector<float> outputs(rows * dim);
  std::vector<float> maxima(rows);
  std::vector<float> sums(rows);
  std::vector<float> merged(queries.size());
  std::vector<EigenPart> parts(num_parts);
  for (std::size_t i = 0; i < num_parts; ++i) {
    const std::size_t row = i * static_cast<std::size_t>(shape.ratio);
    const std::int64_t head = static_cast<std::int64_t>(i) / splits;
    const std::int64_t first = static_cast<std::int64_t>(i) % splits * part_tokens;
    EigenPart& part = parts[i];
    part.queries = queries.data() + head * shape.ratio * shape.dim;
    part.tokens = (std::min)(part_tokens, shape.context - first);
    part.rows = shape.ratio;
    part.dim = shape.dim;
    part.output = outputs.data() + row * dim;
    part.maximum = maxima.data() + row;
    part.sum = sums.data() + row;
  }
  using Policy =
      Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::IndexType<std::int64_t>>;
  time_steps(state, shape, memory.count(), static_cast<double>(2 * kv_heads * head_bytes),
             [&](std::size_t layer) {
               for (std::size_t i = 0; i < num_parts; ++i) {
                 const auto head = static_cast<std::size_t>(static_cast<std::int64_t>(i) / splits);
                 const auto first =
                     static_cast<std::size_t>(static_cast<std::int64_t>(i) % splits * part_tokens);
                 const std::byte* keys =
                     memory.layer(layer) + head * head_bytes + first * dim * number;
                 parts[i].keys = keys;
                 parts[i].values = keys + kv_heads * head_bytes;
               }
               const EigenPart* all = parts.data();
               const EigenAttend attend = test.attend;
               Kokkos::parallel_for("eigen::attend", Policy(exec, 0, kv_heads * splits),
                                    [=](std::int64_t i) { attend(all[i]); });
               float* out = merged.data();
               const int ratio = shape.ratio;
               const int width = shape.dim;
               Kokkos::parallel_for("eigen::merge", Policy(exec, 0, kv_heads * ratio),
                                    [=](std::int64_t i) {
                                      merge_parts(all + i / ratio * splits, splits,
                                                  static_cast<int>(i % ratio), out + i * width);
                                    });
               exec.fence();
             });
  if (!std::isfinite(merged.front())) {
    state.SkipWithError("the output is not finite");
  }
}

/// Registers `<name>/t1` and, where the default host space has more threads, `<name>/t<threads>`;
/// only the latter where Kokkos has no space of one thread.
template <class Single, class Parallel, class Case>
void add(const std::string& name, const Single& single, const Parallel& parallel,
         const Case& test) {
  const auto set_up = [](benchmark::internal::Benchmark* benchmark) {
    benchmark->UseRealTime()->Unit(benchmark::kMicrosecond);
  };
  set_up(benchmark::RegisterBenchmark(
      (name + "/t" + std::to_string(OneThread().concurrency())).c_str(), single, test));
  const int threads = AllThreads().concurrency();
  if (!std::is_same_v<AllThreads, OneThread> && threads > 1) {
    set_up(benchmark::RegisterBenchmark((name + "/t" + std::to_string(threads)).c_str(), parallel,
                                        test));
  }
}

void add_benchmarks() {
  struct Baseline {
    const char* name;
    EigenAttend attend;
    bool half;
  };
  std::vector<Baseline> baselines{
      {"eigen_f32/build", turboquant_bench::eigen_build::attend_f32, false},
      {"eigen_bf16/build", turboquant_bench::eigen_build::attend_bf16, true},
      {"eigen_f32/native", turboquant_bench::eigen_native::attend_f32, false},
      {"eigen_bf16/native", turboquant_bench::eigen_native::attend_bf16, true}};
  for (const int dim : {64, 128, 256}) {
    for (const std::int64_t context : {4096, 16384, 65536}) {
      for (const int ratio : {1, 4, 8}) {
        const Shape shape{dim, context, ratio};
        for (const Baseline& baseline : baselines) {
          add(std::string(baseline.name) + "/" + shape.name(), eigen<OneThread>, eigen<AllThreads>,
              EigenCase{baseline.attend, baseline.half, shape});
        }
        for (const NamedFormat& format : formats) {
          for (const Exactness exactness : {Exactness::int8, Exactness::fast, Exactness::exact}) {
            for (const HostArch arch : {HostArch::portable, HostArch::avx2, HostArch::avx512}) {
              if (!host_arch_available(arch)) {
                continue;
              }
              DecodeOptions options;
              options.exactness = exactness;
              options.arch = arch;
              add(std::string("tiles/") + format.name + "/" + shape.name() + "/" +
                      std::string(to_string(exactness)) + "/" + std::string(to_string(arch)),
                  tiles<OneThread>, tiles<AllThreads>, TilesCase{&format, shape, options});
            }
          }
        }
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return turboquant_bench::run_program(argc, argv,
                                       "eigen.*/d128/n16384/gqa4/"
                                       "|tiles/K3V4(_g32|_page16|_page32)?/d128/n16384/gqa4/.*/avx"
                                       "|tiles/K3V4/d128/n16384/gqa1/int8/avx",
                                       add_benchmarks);
}
