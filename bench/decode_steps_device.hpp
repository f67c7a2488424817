#pragma once

/// @file
/// Decode steps over random tiles in a device's memory, for the benches of accelerators.

#include "device_timing.hpp"

#include <turboquant/attention/decode.hpp>
#include <turboquant/device/arch/cuda_target.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace turboquant_bench {

struct DecodeShape {
  int sequences;
  int query_heads;
  int kv_heads;
  int dim;
  std::int64_t tokens;
  int key_bits = 3;
  int value_bits = 4;
  int groups = 1;
  int tile_tokens = 64;  ///< a page is one tile of every kv head

  [[nodiscard]] std::string name() const {
    char text[128];
    std::snprintf(text, sizeof(text), "k%dv%d%s/b%d/hq%d/hk%d/d%d/n%lld", key_bits, value_bits,
                  groups > 1 ? "g32" : "", sequences, query_heads, kv_heads, dim,
                  static_cast<long long>(tokens));
    return tile_tokens == 64 ? text : text + ("/t" + std::to_string(tile_tokens));
  }
};

#if TURBOQUANT_CUDA

struct PageAddress {
  std::byte* page = nullptr;
};

TURBOQUANT_FUNCTION inline std::uint32_t hash(std::uint64_t x) {
  x ^= x >> 31U;
  x *= 0x9E3779B97F4A7C15ULL;
  x ^= x >> 29U;
  x *= 0xBF58476D1CE4E5B9ULL;
  return static_cast<std::uint32_t>(x >> 32U);
}
TURBOQUANT_FUNCTION inline float uniform(std::uint64_t x) {
  return static_cast<float>(hash(x)) * (1.0F / 4294967296.0F);
}

/// Fills one tile an item: random codes, scales of values of standard deviation one.
struct FillTiles {
  turboquant::TileFormat format;
  std::byte* tiles;

  TURBOQUANT_FUNCTION void half(std::size_t at, std::byte* tile, float x) const {
    const auto stored = turboquant::float16::from_float(x);
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
    for (std::size_t token = 0; token < format.tokens(); ++token) {
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

/// As many caches as hold 400 MB, so that steps which take them in turn find nothing in the L2;
/// codes are random bits, scales and zero points random numbers of a usual size; pages of one tile
/// of every kv head lie in random order.
class DecodeSteps {
 public:
  using Device = Kokkos::Cuda;
  using Space = Kokkos::CudaSpace;
  using Plan = turboquant::DecodePlan<Device, Space>;
  using Rows = Kokkos::View<turboquant::bfloat16****, Kokkos::LayoutRight, Space>;

  DecodeSteps(const DecodeShape& shape, cudaStream_t stream, turboquant::TileOrder order,
              const turboquant::DecodeOptions& options)
      : exec_(stream),
        sequences_(shape.sequences),
        plan_(turboquant::plan_decode(exec_, make_codec(shape, order), make_problem(shape),
                                      options)) {
    make_caches(shape);
    const auto n = static_cast<std::size_t>(shape.sequences);
    const auto heads = static_cast<std::size_t>(shape.query_heads);
    const auto dim = static_cast<std::size_t>(shape.dim);
    queries = Rows("queries", n, 1, heads, dim);
    auto host_queries = Kokkos::create_mirror_view(queries);
    for (std::size_t i = 0; i < host_queries.size(); ++i) {
      host_queries.data()[i] = turboquant::bfloat16::from_float(4 * uniform(i + 77) - 2);
    }
    Kokkos::deep_copy(queries, host_queries);
    output = Rows("output", n, 1, heads, dim);
    lse = Kokkos::View<float***, Kokkos::LayoutRight, Space>("lse", n, 1, heads);
    workspace = Kokkos::View<std::byte*, Space>("workspace",
                                                static_cast<std::size_t>(plan_.workspace_bytes()));
  }

  [[nodiscard]] const Device& exec() const { return exec_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] std::int64_t copies() const { return copies_; }
  /// Steps that go through all caches equally often: 16 or a few less, or as many as there are
  /// caches.
  [[nodiscard]] std::int64_t steps_in_turn() const {
    return std::max<std::int64_t>(copies_, 16 / copies_ * copies_);
  }
  /// Of a cache.
  [[nodiscard]] double bytes() const { return bytes_; }
  /// (sequences), of cache `copy`.
  [[nodiscard]] Kokkos::View<const turboquant::DecodeSequence*, Space> records(
      std::int64_t copy) const {
    return Kokkos::View<const turboquant::DecodeSequence*, Space>(
        records_.data() + copy * sequences_, static_cast<std::size_t>(sequences_));
  }
  /// Enqueues a step over cache `copy`.
  void run(std::int64_t copy) const {
    turboquant::DecodeInputs<turboquant::bfloat16, Space> inputs;
    inputs.queries = queries;
    inputs.sequences = records(copy);
    turboquant::run_decode(exec_, plan_, inputs, output, lse, workspace);
  }

  Rows queries;                                            ///< (sequences, 1, query_heads, dim)
  Rows output;                                             ///< (sequences, 1, query_heads, dim)
  Kokkos::View<float***, Kokkos::LayoutRight, Space> lse;  ///< (sequences, 1, query_heads)
  Kokkos::View<std::byte*, Space> workspace;

 private:
  static turboquant::TileCodec<Space> make_codec(const DecodeShape& shape,
                                                 turboquant::TileOrder order) {
    turboquant::TileCodecOptions options;
    options.format.key_bits = shape.key_bits;
    options.format.key_dim = shape.dim;
    options.format.value_bits = shape.value_bits;
    options.format.value_dim = shape.dim;
    options.format.value_group = shape.dim / shape.groups;
    options.format.order = order;
    options.format.tile_tokens = shape.tile_tokens;
    return turboquant::TileCodec<Space>(options);
  }
  static turboquant::DecodeProblem make_problem(const DecodeShape& shape) {
    turboquant::DecodeProblem problem;
    problem.num_sequences = shape.sequences;
    problem.query_heads = shape.query_heads;
    problem.kv_heads = shape.kv_heads;
    problem.max_history_tokens = shape.tokens;
    return problem;
  }

  void make_caches(const DecodeShape& shape) {
    const turboquant::TileFormat& format = plan_.codec().format();
    const auto page = static_cast<std::int64_t>(format.bytes()) * shape.kv_heads;
    const std::int64_t own = shape.tokens / shape.tile_tokens;
    const std::int64_t pages = own * shape.sequences;
    bytes_ = static_cast<double>(page) * static_cast<double>(pages);
    copies_ = std::max<std::int64_t>(2, (std::int64_t{400} << 20U) / (page * pages) + 1);
    memory_ = Kokkos::View<std::byte*, Space>(
        Kokkos::view_alloc(std::string("pages"), Kokkos::WithoutInitializing),
        static_cast<std::size_t>(copies_ * pages * page));
    Kokkos::parallel_for("fill",
                         Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>(
                             exec_, 0, copies_ * pages * shape.kv_heads),
                         FillTiles{format, memory_.data()});
    std::vector<PageAddress> addresses(static_cast<std::size_t>(copies_ * pages));
    std::vector<std::size_t> order(addresses.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
    }
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[hash(i) % i]);
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
      addresses[i].page = memory_.data() + order[i] * static_cast<std::size_t>(page);
    }
    table_ = Kokkos::View<PageAddress*, Space>("table", addresses.size());
    copy_from(addresses, table_);
    std::vector<turboquant::DecodeSequence> records;
    for (std::int64_t i = 0; i < copies_ * shape.sequences; ++i) {
      turboquant::DecodeSequence record;
      record.history = {reinterpret_cast<std::byte* const*>(table_.data() + i * own), own, 1};
      record.history_end = shape.tokens;
      record.query_position = shape.tokens - 1;
      records.push_back(record);
    }
    records_ = Kokkos::View<turboquant::DecodeSequence*, Space>("records", records.size());
    copy_from(records, records_);
  }
  template <class T>
  static void copy_from(const std::vector<T>& from, const Kokkos::View<T*, Space>& to) {
    Kokkos::deep_copy(to, Kokkos::View<const T*, Kokkos::HostSpace>(from.data(), from.size()));
  }

  Device exec_;
  std::int64_t sequences_;
  Plan plan_;
  std::int64_t copies_ = 0;
  double bytes_ = 0;
  Kokkos::View<std::byte*, Space> memory_;
  Kokkos::View<PageAddress*, Space> table_;
  Kokkos::View<turboquant::DecodeSequence*, Space> records_;
};

/// Median microseconds of a step in a graph that goes through all caches.
/// @param step  called with the number of a cache
template <class Step>
[[nodiscard]] double median_us_of_steps(const DeviceTimer& timer, const DecodeSteps& steps,
                                        int repeats, const Step& step) {
  return timer.median_us_of_graph(steps.steps_in_turn(), repeats,
                                  [&](std::int64_t i) { step(i % steps.copies()); });
}

#endif

}  // namespace turboquant_bench
