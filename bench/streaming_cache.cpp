// The write path of the streaming cache: tokens per second of append, and the time of a read after
// a flush, a fork and a rollback. One layer of 8 kv heads of 128, 3-bit keys and 4-bit values,
// bfloat16 rows; OMP_NUM_THREADS chooses the threads.
//
//     streaming_cache --benchmark_filter=decode --benchmark_repetitions=9
//
// items_per_second counts tokens. raw_bytes_per_token is what the rows of a token have,
// held_bytes_per_token what the memory ledger holds in the end and peak_bytes_per_token the most
// that it held, divided by the tokens.

#include "bench_program.hpp"

#include <turboquant/base/float16.hpp>
#include <turboquant/base/random.hpp>
#include <turboquant/runtime/cache_manager.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

namespace {

using namespace turboquant;
using Space = Kokkos::HostSpace;
using Exec = Kokkos::DefaultHostExecutionSpace;
using Manager = CacheManager<Space, bfloat16>;
using Rows = Kokkos::View<bfloat16***, Kokkos::LayoutRight, Space>;

constexpr KVShape shape{.kv_heads = 8, .key_dim = 128, .value_dim = 128};

Rows rows(std::int64_t tokens, std::uint64_t stream) {
  Rows made("rows", static_cast<std::size_t>(tokens), 8, 128);
  const CounterRng rng(1, stream);
  for (std::size_t i = 0; i < made.size(); ++i) {
    made.data()[i] = bfloat16::from_float(static_cast<float>(rng.uniform(i) * 4 - 2));
  }
  return made;
}

LayerOptions layer() {
  LayerOptions options;
  options.capture.shape = shape;
  options.codec.emplace();
  return options;
}

void count_tokens(benchmark::State& state, std::int64_t tokens) {
  state.SetItemsProcessed(tokens);
  state.counters["raw_bytes_per_token"] =
      static_cast<double>(2 * (shape.key_numbers() + shape.value_numbers()));
}

/// One token for each of `batch` sequences a call, as decode does; sequences are cut back to 1,024
/// tokens when they reach 4,096, outside the measured time.
void append_decode(benchmark::State& state) {
  const auto batch = state.range(0);
  const Exec exec;
  Manager manager({.layers = {layer()}});
  std::vector<SequenceId> ids;
  for (std::int64_t i = 0; i < batch; ++i) {
    ids.push_back(manager.open());
  }
  std::vector<std::int64_t> offsets(ids.size() + 1);
  std::iota(offsets.begin(), offsets.end(), std::int64_t{0});
  const Rows keys = rows(batch, 1);
  const Rows values = rows(batch, 2);
  std::int64_t tokens = 0;
  for (auto _ : state) {
    manager.append(exec, 0, ids, offsets, keys, values);
    tokens += batch;
    if (manager.length(0, ids.front()) == 4096) {
      state.PauseTiming();
      for (const SequenceId id : ids) {
        manager.truncate(exec, id, 1024);
      }
      state.ResumeTiming();
    }
  }
  count_tokens(state, tokens);
}

/// Chunks of one sequence, as prefill does, up to 32,768 tokens and then a new sequence.
void append_prefill(benchmark::State& state) {
  const auto chunk = state.range(0);
  const Exec exec;
  Manager manager({.layers = {layer()}});
  SequenceId id = manager.open();
  const Rows keys = rows(chunk, 1);
  const Rows values = rows(chunk, 2);
  const std::vector<std::int64_t> offsets{0, chunk};
  std::int64_t tokens = 0;
  for (auto _ : state) {
    manager.append(exec, 0, std::vector{id}, offsets, keys, values);
    tokens += chunk;
    if (manager.length(0, id) + chunk > 32768) {
      state.PauseTiming();
      manager.close(id);
      id = manager.open();
      state.ResumeTiming();
    }
  }
  count_tokens(state, tokens);
}

/// One tile more and a view of everything, from an empty store to 65,536 tokens; block_size 0 is
/// flat. copied_per_token is how often merging has copied a token by then.
void append_and_view(benchmark::State& state) {
  constexpr std::int64_t total = 65536;
  const Exec exec;
  const TileCodec<Space> codec(*layer().codec);
  const Rows keys = rows(64, 1);
  const Rows values = rows(64, 2);
  double copied = 0;
  double held = 0;
  double peak = 0;
  for (auto _ : state) {
    const auto ledger = std::make_shared<MemoryLedger>();
    CompressedKVStore<Space> store(codec, shape.kv_heads, {.block_size = state.range(0)}, ledger);
    while (store.num_tokens() < total) {
      store.append<bfloat16>(exec, keys, values);
      benchmark::DoNotOptimize(store.view(exec));
    }
    copied = static_cast<double>(store.tokens_merged()) / total;
    held = static_cast<double>(ledger->total()) / total;
    peak = static_cast<double>(ledger->peak()) / total;
  }
  count_tokens(state, total * static_cast<std::int64_t>(state.iterations()));
  state.counters["copied_per_token"] = copied;
  state.counters["held_bytes_per_token"] = held;
  state.counters["peak_bytes_per_token"] = peak;
}

/// A manager with one sequence of `tokens` tokens.
struct Filled {
  Exec exec{};
  Manager manager{{.layers = {layer()}}};
  SequenceId id = manager.open();

  explicit Filled(std::int64_t tokens) {
    const Rows keys = rows(tokens, 1);
    const Rows values = rows(tokens, 2);
    manager.append(exec, 0, std::vector{id}, std::vector<std::int64_t>{0, tokens}, keys, values);
  }
};

/// A fork and its end.
void fork_and_close(benchmark::State& state) {
  Filled filled(state.range(0));
  for (auto _ : state) {
    filled.manager.close(filled.manager.fork(filled.exec, filled.id));
  }
}

/// The first write of a fork: its exact window and the last page are copied.
void fork_and_append(benchmark::State& state) {
  Filled filled(state.range(0));
  const Rows keys = rows(1, 3);
  const Rows values = rows(1, 4);
  const std::vector<std::int64_t> one{0, 1};
  for (auto _ : state) {
    const SequenceId child = filled.manager.fork(filled.exec, filled.id);
    filled.manager.append(filled.exec, 0, std::vector{child}, one, keys, values);
    filled.manager.close(child);
  }
}

/// A fork cut to half its length and closed: what a shared prefix costs.
void fork_prefix(benchmark::State& state) {
  Filled filled(state.range(0));
  for (auto _ : state) {
    filled.manager.close(filled.manager.fork(filled.exec, filled.id, state.range(0) / 2));
  }
}

/// 8 tokens proposed and rolled back, as in speculative decoding.
void append_and_truncate(benchmark::State& state) {
  Filled filled(state.range(0));
  const Rows keys = rows(8, 3);
  const Rows values = rows(8, 4);
  const std::vector<std::int64_t> eight{0, 8};
  for (auto _ : state) {
    filled.manager.append(filled.exec, 0, std::vector{filled.id}, eight, keys, values);
    filled.manager.truncate(filled.exec, filled.id, state.range(0));
  }
  count_tokens(state, 8 * static_cast<std::int64_t>(state.iterations()));
}

BENCHMARK(append_decode)->ArgName("batch")->Arg(1)->Arg(16)->Arg(64)->UseRealTime();
BENCHMARK(append_prefill)->ArgName("chunk")->Arg(64)->Arg(512)->Arg(4096)->UseRealTime();
BENCHMARK(append_and_view)
    ->ArgName("block_size")
    ->Arg(0)
    ->Arg(256)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(fork_and_close)->ArgName("tokens")->Arg(2048)->Arg(32768)->UseRealTime();
BENCHMARK(fork_and_append)->ArgName("tokens")->Arg(2048)->Arg(32768)->UseRealTime();
BENCHMARK(fork_prefix)->ArgName("tokens")->Arg(2048)->Arg(32768)->UseRealTime();
BENCHMARK(append_and_truncate)->ArgName("tokens")->Arg(2048)->Arg(32768)->UseRealTime();

}  // namespace

int main(int argc, char** argv) {
  return turboquant_bench::run_program(argc, argv, ".", [] {});
}
