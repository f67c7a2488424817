#include <turboquant/model/capacity_planner.hpp>
#include <turboquant/model/hf_config.hpp>
#include <turboquant/model/presets.hpp>

#include <cstdint>
#include <exception>
#include <iostream>

namespace {

void print_plan(const char* path) {
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
  std::cout << '\n' << std::flush;
}

}  // namespace

// Exit code: 2 for a file that is no model, 1 when the output cannot be written.
int main(int argc, char** argv) {
  try {
    print_plan(argc > 1 ? argv[1] : "model/config.json");
  } catch (const std::exception& error) {
    std::cerr << "plan_quickstart: " << error.what() << '\n';
    return 2;
  }
  return std::cout.good() ? 0 : 1;
}
