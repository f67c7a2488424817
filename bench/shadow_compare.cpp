// What a live shadow comparison adds to the decode steps of an engine in capture_only: one layer of
// 8 kv heads of 128 with 4 query heads each, bfloat16 rows, 3-bit keys and 4-bit values. A step is
// the engine's own attention over its uncompressed rows (Eigen, compiled for this machine), the
// append to the manager, and the comparison if the step is sampled. OMP_NUM_THREADS chooses the
// threads.
//
//     shadow_compare --benchmark_filter=tokens:4096
//
// Steps with and without a ShadowCompare alternate; overhead_percent compares the sums of their
// processor time.

#include "bench_program.hpp"
#include "eigen_attention.hpp"

#include <turboquant/base/float16.hpp>
#include <turboquant/base/random.hpp>
#include <turboquant/runtime/shadow_compare.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <vector>

namespace {

using namespace turboquant;
using Space = Kokkos::HostSpace;
using Exec = Kokkos::DefaultHostExecutionSpace;
using Manager = CacheManager<Space, bfloat16>;
using Shadow = ShadowCompare<Space, bfloat16>;
using Rows = Kokkos::View<bfloat16***, Kokkos::LayoutRight, Space>;
using Vectors = Kokkos::View<float****, Kokkos::LayoutRight, Space>;

constexpr KVShape shape{.kv_heads = 8, .key_dim = 128, .value_dim = 128};
constexpr std::int64_t query_heads = 32;

float number(const CounterRng& rng, std::size_t i) {
  return static_cast<float>(rng.uniform(i) * 4 - 2);
}

Rows rows(std::int64_t tokens, std::uint64_t stream) {
  Rows made("rows", static_cast<std::size_t>(tokens), 8, 128);
  const CounterRng rng(1, stream);
  for (std::size_t i = 0; i < made.size(); ++i) {
    made.data()[i] = bfloat16::from_float(number(rng, i));
  }
  return made;
}

/// An engine with a sequence of `tokens` tokens, its own cache beside the manager's.
class Engine {
 public:
  explicit Engine(std::int64_t tokens)
      : tokens_(tokens),
        manager_({.layers = {layer()}, .mode = CacheMode::capture_only}),
        id_(manager_.open()),
        keys_("keys", 8, static_cast<std::size_t>(tokens), 128),
        values_("values", 8, static_cast<std::size_t>(tokens), 128),
        queries_("queries", 1, 1, query_heads, 128),
        output_("output", 1, 1, query_heads, 128),
        new_keys_(rows(1, 3)),
        new_values_(rows(1, 4)) {
    const Rows keys = rows(tokens - 1, 1);
    const Rows values = rows(tokens - 1, 2);
    manager_.append(exec_, 0, ids(), std::vector<std::int64_t>{0, tokens - 1}, keys, values);
    for (std::size_t h = 0; h < 8; ++h) {
      for (std::size_t t = 0; t < keys.extent(0); ++t) {
        for (std::size_t d = 0; d < 128; ++d) {
          keys_(h, t, d) = keys(t, h, d);
          values_(h, t, d) = values(t, h, d);
        }
      }
    }
    const CounterRng rng(1, 5);
    for (std::size_t i = 0; i < queries_.size(); ++i) {
      queries_.data()[i] = number(rng, i) / 8;  // the softmax scale included
    }
  }

  [[nodiscard]] Manager& manager() noexcept { return manager_; }

  /// One decode step. @param shadow none, or what compares it
  void step(Shadow* shadow, const Vectors& logits) {
    attend();
    manager_.append(exec_, 0, ids(), std::vector<std::int64_t>{0, 1}, new_keys_, new_values_);
    if (shadow != nullptr) {
      shadow->begin_step();
      shadow->compare(exec_, 0, ids(), queries_, output_, {.sm_scale = 1}, logits);
    }
  }
  /// Takes the step back, so that every one has the same length.
  void undo() { manager_.truncate(exec_, id_, tokens_ - 1); }

 private:
  static LayerOptions layer() {
    LayerOptions options;
    options.capture.shape = shape;
    options.codec.emplace();
    return options;
  }
  [[nodiscard]] std::vector<SequenceId> ids() const { return {id_}; }

  /// The engine's own attention: one kv head a work item.
  void attend() {
    const Engine& engine = *this;
    Kokkos::parallel_for(
        "engine_attention", Kokkos::RangePolicy<Exec>(exec_, 0, 8),
        [&engine](int head) { engine.attend_head(static_cast<std::size_t>(head)); });
    exec_.fence();
  }
  void attend_head(std::size_t head) const {
    float maximum[4];
    float sum[4];
    turboquant_bench::EigenPart part;
    part.keys = &keys_(head, 0, 0);
    part.values = &values_(head, 0, 0);
    part.queries = &queries_(0, 0, 4 * head, 0);
    part.tokens = tokens_;
    part.rows = 4;
    part.dim = 128;
    part.output = &output_(0, 0, 4 * head, 0);
    part.maximum = maximum;
    part.sum = sum;
    turboquant_bench::eigen_native::attend_bf16(part);
    for (std::size_t row = 0; row < 4; ++row) {
      for (std::size_t d = 0; d < 128; ++d) {
        output_(0, 0, 4 * head + row, d) /= sum[row];
      }
    }
  }

  Exec exec_{};
  std::int64_t tokens_;
  Manager manager_;
  SequenceId id_;
  Rows keys_;  ///< (kv_heads, tokens, dim)
  Rows values_;
  Vectors queries_;
  Vectors output_;
  Rows new_keys_;
  Rows new_values_;
};

/// Processor time of all threads: other programs on the machine hardly change it.
double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

void shadowed_steps(benchmark::State& state) {
  const std::int64_t tokens = state.range(0);
  Engine engine(tokens);
  Shadow shadow(engine.manager(), {.sample_fraction = static_cast<double>(state.range(1)) / 1000});
  const Vectors logits =
      state.range(2) != 0 ? Vectors("logits", 1, 1, query_heads, static_cast<std::size_t>(tokens))
                          : Vectors();
  double plain = 0;
  double compared = 0;
  for (auto _ : state) {
    const double first = processor_seconds();
    engine.step(nullptr, logits);
    plain += processor_seconds() - first;
    engine.undo();
    const double second = processor_seconds();
    engine.step(&shadow, logits);
    compared += processor_seconds() - second;
    engine.undo();
  }
  const auto steps = static_cast<double>(state.iterations());
  state.counters["plain_us"] = 1e6 * plain / steps;
  state.counters["shadowed_us"] = 1e6 * compared / steps;
  state.counters["overhead_percent"] = 100 * (compared / plain - 1);
  state.counters["sampled"] = static_cast<double>(shadow.report().sampled_steps);
}

BENCHMARK(shadowed_steps)
    ->ArgNames({"tokens", "per_mille", "logits"})
    ->ArgsProduct({{1024, 4096, 16384}, {0, 10, 1000}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace

int main(int argc, char** argv) {
  return turboquant_bench::run_program(argc, argv, "tokens:4096/", [] {});
}
