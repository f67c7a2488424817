#include <turboquant/device/runtime.hpp>
#include <turboquant/runtime/cache_manager.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  using namespace turboquant;
  using Kokkos::LayoutRight;
  using Space = Kokkos::HostSpace;
  const KokkosScope kokkos;
  const Kokkos::DefaultHostExecutionSpace exec;

  LayerOptions layer;
  layer.capture.shape = {.kv_heads = 8, .key_dim = 128, .value_dim = 128};
  layer.codec.emplace();  // 3-bit keys, 4-bit values
  CacheManager<Space, bfloat16> cache(
      {.layers = {32, layer}, .memory_limit_bytes = std::size_t{4} << 30U});

  // A prompt of 500 tokens, then a fork that shares every page until one of the two writes.
  // Keys and values alike; rows lie one after another, on accelerators, too.
  const Kokkos::View<bfloat16***, LayoutRight, Space> prompt("prompt", 500, 8, 128);
  const SequenceId a = cache.open();
  for (std::int64_t i = 0; i < cache.num_layers(); ++i) {
    cache.append(exec, i, std::vector{a}, std::vector<std::int64_t>{0, 500}, prompt, prompt);
  }
  const SequenceId b = cache.fork(exec, a);

  // One token for each in one call: rows 0 and 1, split by cu_seqlens; then their attention.
  const Kokkos::View<bfloat16***, LayoutRight, Space> rows("rows", 2, 8, 128);
  const Kokkos::View<float****, LayoutRight, Space> queries("queries", 2, 1, 32, 128);
  const Kokkos::View<float****, LayoutRight, Space> output("output", 2, 1, 32, 128);
  const Kokkos::View<float***, LayoutRight, Space> lse("lse", 2, 1, 32);
  for (std::int64_t i = 0; i < cache.num_layers(); ++i) {
    cache.append(exec, i, std::vector{a, b}, std::vector<std::int64_t>{0, 1, 2}, rows, rows);
    cache.attend(exec, i, std::vector{a, b}, queries, output, lse);
  }

  const SequenceStats stats = cache.stats(0, a);
  std::printf("%lld tokens, %lld of them compressed; both sequences: %zu bytes in all\n",
              static_cast<long long>(stats.length), static_cast<long long>(stats.history_tokens),
              cache.memory_use().total());
  cache.truncate(exec, b, 500);  // the token was a proposal and not accepted

  // Everything of a sequence as bytes, for another day, process or machine.
  const std::vector<std::byte> saved = cache.save(exec, a);
  cache.close(a);
  const SequenceId c = cache.load(exec, saved);
  std::printf("%zu bytes saved; loaded as sequence %lld\n", saved.size(),
              static_cast<long long>(c));
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 ? 0 : 1;
}
