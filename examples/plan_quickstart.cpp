#include <turboquant/model/capacity_planner.hpp>
#include <turboquant/model/hf_config.hpp>
#include <turboquant/model/presets.hpp>

#include <cstdint>
#include <iostream>

int main(int argc, char** argv) {
  const char* path = argc > 1 ? argv[1] : "model/config.json";
  const turboquant::ModelConfig model = turboquant::load_model_config(path);
  const turboquant::CachePlan plan =
      turboquant::plan_cache(model, {.codec = turboquant::find_cache_preset("turboquant_k3v4_nc"),
                                     .memory_bytes = std::int64_t{80} << 30U,
                                     .context_tokens = 131072});
  std::cout << plan.summary() << '\n' << plan.reason << '\n';
  for (const turboquant::LayerCache& cache : plan.caches) {
    // cache.attention is a TQFullAttentionSpec, FullAttentionSpec, SlidingWindowSpec, ...
    std::cout << turboquant::attention_backend(cache.attention) << ' ';
  }
  std::cout << '\n';
}
