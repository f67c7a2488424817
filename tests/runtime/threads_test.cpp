// Managers on threads of their own, and one view read by many threads; run under ThreadSanitizer to
// see that nothing is shared unnoticed. Every thread uses a serial execution space: others have one
// instance a process, so that a Kokkos without that space leaves nothing to test.

#include "runtime/runtime_test_support.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

using namespace runtime_test;
using turboquant::CacheMode;

namespace {

constexpr KVShape shape{.kv_heads = 2, .key_dim = 16, .value_dim = 16};

bool no_serial_space() {
  if (turboquant::test::has_serial_space) {
    return false;
  }
  std::puts("threads: skipped: this Kokkos has no Serial space");
  return true;
}

std::vector<float> numbers_of(const Attention& attention) {
  std::vector<float> numbers(attention.output.data(),
                             attention.output.data() + attention.output.size());
  numbers.insert(numbers.end(), attention.lse.data(), attention.lse.data() + attention.lse.size());
  return numbers;
}

std::vector<float> work(std::uint64_t seed) {
  Manager<float> manager(
      {.layers = {layer(shape, 3, 4, 64), layer(shape, 0)}, .mode = CacheMode::full_tq});
  const Tokens<float> tokens(seed, 0, 400, shape);
  const auto id = manager.open();
  std::vector<float> all;
  for (int round = 0; round < 5; ++round) {
    for (const std::int64_t l : {0, 1}) {
      append(manager, l, id, tokens, 0, 400);
      const auto numbers = numbers_of(attend(manager, l, {id}, queries(seed, 1, 2, 4, 16), 16));
      all.insert(all.end(), numbers.begin(), numbers.end());
    }
    const auto child = manager.fork(HostExec(), id, 333);
    append(manager, 0, child, tokens, 0, 50);
    manager.close(child);
    manager.truncate(HostExec(), id, 100);
  }
  return all;
}

}  // namespace

TEST_CASE("one manager per thread gives the results of one thread") {
  if (no_serial_space()) {
    return;
  }
  constexpr std::size_t threads = 4;
  std::vector<std::vector<float>> alone;
  for (std::size_t i = 0; i < threads; ++i) {
    alone.push_back(work(i));
  }
  std::vector<std::vector<float>> together(threads);
  {
    std::vector<std::thread> running;
    for (std::size_t i = 0; i < threads; ++i) {
      running.emplace_back([&together, i] { together[i] = work(i); });
    }
    for (std::thread& thread : running) {
      thread.join();
    }
  }
  for (std::size_t i = 0; i < threads; ++i) {
    CHECK(cache_test::same_bits(together[i], alone[i]));
  }
}

TEST_CASE("one view is read by many threads") {
  if (no_serial_space()) {
    return;
  }
  const turboquant::TileCodec<Host> codec(cache_test::codec_options(16, 16));
  turboquant::KVCaptureEngine<Host, float> engine({.shape = shape}, codec);
  const Tokens<float> tokens(5, 0, 500, shape);
  engine.ingest(HostExec(), tokens.keys, tokens.values);
  const turboquant::CaptureView<float> view = engine.view(HostExec());
  const HostQueries q = queries(3, 1, 1, 4, 16);
  const auto read = [&] {
    turboquant::DecodeProblem problem;
    problem.query_heads = 4;
    problem.kv_heads = 2;
    problem.max_history_tokens = view.history.end - view.history.begin;
    const HostExec exec;
    const turboquant::detail::AttentionRun<Host, HostExec> run(exec, codec, problem, {});
    const std::vector<turboquant::DecodeSequence> records{
        turboquant::decode_sequence(view, shape, 499)};
    Attention result{cache_test::uninitialised<HostQueries>("output", 1, 1, 4, 16),
                     cache_test::uninitialised<HostLse>("lse", 1, 1, 4)};
    std::vector<std::byte> workspace(run.workspace_bytes());
    run(records.data(), q.data(), result.output.data(), result.lse.data(),
        Kokkos::View<const float*, Host>(), workspace.data());
    return numbers_of(result);
  };
  const std::vector<float> expected = read();
  std::atomic<int> equal{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        equal += cache_test::same_bits(read(), expected) ? 1 : 0;
      }
    });
  }
  for (std::thread& reader : readers) {
    reader.join();
  }
  CHECK(equal == 80);
}
