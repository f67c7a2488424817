#include <turboquant/attention/decode.hpp>
#include <turboquant/base/random.hpp>
#include <turboquant/device/encode_tiles.hpp>
#include <turboquant/device/runtime.hpp>
#include <turboquant/math/exact_functions.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  using namespace turboquant;
  using Space = Kokkos::HostSpace;
  const KokkosScope kokkos;
  const Kokkos::DefaultHostExecutionSpace exec;
  constexpr int kv_heads = 8;
  constexpr int query_heads = 32;
  constexpr int dim = 128;
  constexpr int tokens = 1000;
  const CounterRng rng(/*seed=*/1, /*stream=*/0);
  std::uint64_t drawn = 0;
  const auto fill = [&](auto& numbers) {
    std::generate_n(numbers.data(), numbers.size(),
                    [&] { return static_cast<float>(normal(rng, drawn++)); });
  };
  std::vector<float> keys(tokens * kv_heads * dim);  // (tokens, kv_heads, dim)
  std::vector<float> values(keys.size());
  fill(keys);
  fill(values);

  // Tiles of 64 tokens in pages of 4: [kv head][tile in page].
  const TileCodec<Space> codec(TileCodecOptions{});  // 3-bit keys, 4-bit values, 128 coordinates
  constexpr int tiles_per_page = 4;
  const std::size_t page_size = page_bytes(codec.format(), kv_heads, tiles_per_page);
  const Kokkos::View<std::byte*, Space> pool("pool", 4 * page_size);
  std::vector<std::byte*> pages;
  for (std::size_t i = 0; i < 4; ++i) {
    pages.push_back(pool.data() + i * page_size);
  }
  const PagedTiles tiles{pages.data(), 4, tiles_per_page};
  const Kokkos::View<EncodeJob*, Space> jobs("jobs", 16);
  for (int i = 0; i < 16; ++i) {
    EncodeJob& job = jobs(static_cast<std::size_t>(i));
    job.keys = dense_rows(keys.data() + i * 64 * kv_heads * dim, kv_heads, dim);
    job.values = dense_rows(values.data() + i * 64 * kv_heads * dim, kv_heads, dim);
    job.tile = tiles.tile(i, 0, codec.format().bytes());
    job.head_stride = static_cast<std::int64_t>(tiles_per_page * codec.format().bytes());
    job.count = (std::min)(64, tokens - 64 * i);
    job.clear_from = 0;
  }
  encode_tiles(exec, codec, kv_heads, Kokkos::View<const EncodeJob*, Space>(jobs));

  // Once for a shape.
  const auto plan = plan_decode(
      exec, codec, {.query_heads = query_heads, .kv_heads = kv_heads, .max_history_tokens = 1024},
      {.exactness = Exactness::int8});
  const Kokkos::View<std::byte*, Space> workspace("workspace",
                                                  static_cast<std::size_t>(plan.workspace_bytes()));

  // Every step: where the tokens are, and the query of the newest one.
  const Kokkos::View<DecodeSequence*, Space> sequences("sequences", 1);
  sequences(0).history = tiles;
  sequences(0).history_end = tokens;
  sequences(0).query_position = tokens - 1;
  const Kokkos::View<float****, Kokkos::LayoutRight, Space> queries("queries", 1, 1, query_heads,
                                                                    dim);
  fill(queries);
  const Kokkos::View<float****, Kokkos::LayoutRight, Space> output("output", 1, 1, query_heads,
                                                                   dim);
  const Kokkos::View<float***, Kokkos::LayoutRight, Space> lse("lse", 1, 1, query_heads);
  DecodeInputs<float, Space> inputs;
  inputs.queries = queries;
  inputs.sequences = sequences;
  run_decode(exec, plan, inputs, output, lse, workspace);
  exec.fence();

  std::printf("%s\noutput(0) of head 0 is %.3f, its log-sum-exp %.3f\n", plan.describe().c_str(),
              static_cast<double>(output(0, 0, 0, 0)), static_cast<double>(lse(0, 0, 0)));
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 ? 0 : 1;
}
