// A manager with static storage outlives Kokkos: its memory is left to the end of the program, and
// nothing aborts it. Between the two, calls are refused.

#include "support/check.hpp"

#include <turboquant/device/runtime.hpp>
#include <turboquant/runtime/cache_manager.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace {

using namespace turboquant;
using Space = Kokkos::HostSpace;

std::optional<CacheManager<Space, float>>& manager() {
  static std::optional<CacheManager<Space, float>> instance;
  return instance;
}

}  // namespace

int main() {
  std::optional<TileCodec<Space>> codec;
  {
    const KokkosScope kokkos;
    LayerOptions layer;
    layer.capture.shape = {.kv_heads = 2, .key_dim = 32, .value_dim = 32};
    layer.codec.emplace();
    layer.codec->format.key_dim = 32;
    layer.codec->format.value_dim = 32;
    layer.codec->format.value_group = 32;
    codec.emplace(*layer.codec);
    manager().emplace(CacheManagerOptions{.layers = {layer}});
    const Kokkos::View<float***, Space> rows("rows", 300, 2, 32);
    const SequenceId id = manager()->open();
    manager()->append(Kokkos::DefaultHostExecutionSpace(), 0, std::vector{id},
                      std::vector<std::int64_t>{0, 300}, rows, rows);
    check(manager()->stats(0, id).history_tokens > 0, "tokens were compressed");
  }
  check(!Kokkos::is_initialized(), "Kokkos was stopped");
  try {
    const TileCodec<Space> refused(codec->options());
    check(false, "a codec was made without Kokkos");
  } catch (const Error& error) {
    check(error.code() == ErrorCode::not_initialized, "a codec needs Kokkos");
  }
  codec.reset();
  return 0;
}
