#include <turboquant/device/runtime.hpp>
#include <turboquant/runtime/attention_run.hpp>
#include <turboquant/runtime/cache_manager.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  using namespace turboquant;
  using Kokkos::LayoutRight;
  using Exec = Kokkos::DefaultExecutionSpace;  // Kokkos::Cuda where Kokkos has it
  using Space = Exec::memory_space;
  const KokkosScope kokkos;
  const Exec exec;

  LayerOptions layer;
  layer.capture.shape = {.kv_heads = 8, .key_dim = 128, .value_dim = 128};
  layer.codec.emplace();
  CacheManager<Space, bfloat16> cache({.layers = {layer}});
  const SequenceId a = cache.open();
  const Kokkos::View<bfloat16***, LayoutRight, Space> prompt("prompt", 500, 8, 128);
  cache.append(exec, 0, std::vector{a}, std::vector<std::int64_t>{0, 500}, prompt, prompt);

  // Once: what a step computes, and all memory that it needs.
  const auto plan = plan_decode(exec, cache.engine(0, a).store().codec(),
                                {.query_heads = 32, .kv_heads = 8, .max_history_tokens = 4096});
  std::printf("%s\n", plan.describe().c_str());
  const Kokkos::View<std::byte*, Space> workspace("workspace",
                                                  static_cast<std::size_t>(plan.workspace_bytes()));
  const Kokkos::View<bfloat16****, LayoutRight, Space> queries("queries", 1, 1, 32, 128);
  const Kokkos::View<bfloat16****, LayoutRight, Space> output("output", 1, 1, 32, 128);
  const Kokkos::View<float***, LayoutRight, Space> lse("lse", 1, 1, 32);
  const Kokkos::View<DecodeSequence*, Space> sequences("sequences", 1);
  const auto records = Kokkos::create_mirror_view(sequences);

  // After every append: where the tokens are now. Devices read records from their own memory.
  const std::int64_t newest = cache.stats(0, a).length - 1;
  records(0) = decode_sequence(cache.view(exec, 0, a), layer.capture.shape, newest);
  Kokkos::deep_copy(exec, sequences, records);

  // Every step; allocates nothing, so that a CUDA graph can capture it.
  run_decode(exec, plan, DecodeInputs<bfloat16, Space>{queries, sequences}, output, lse, workspace);
  exec.fence();
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 ? 0 : 1;
}
