// Fuzz body for the configuration parser and everything that a parsed model feeds. It is replayed
// as a unit test, and is a libFuzzer target when compiled with
//   clang++ -std=c++20 -g -fsanitize=fuzzer,address,undefined -I include
//   tests/model/fuzz_hf_config.cpp
#include "fuzz_hf_config.hpp"

#include <turboquant/model/capacity_planner.hpp>
#include <turboquant/model/hf_config.hpp>

#include <cstdlib>
#include <string_view>

namespace {

void expect(bool condition) {
  if (!condition) {
    std::abort();
  }
}

void check_model(const turboquant::ModelConfig& model) {
  expect(model.num_layers() >= 1 && model.num_layers() <= turboquant::detail::max_config_layers);
  expect(!model.layer_rule.empty());
  for (std::int64_t i = 0; i < model.num_layers(); ++i) {
    const std::int64_t owner = model.cache_owner(i);
    expect(owner >= 0 && owner <= i);
    const auto& layer = model.layers[static_cast<std::size_t>(i)];
    expect(model.layers[static_cast<std::size_t>(owner)].attention == layer.attention);
    expect(layer.num_kv_heads.value_or(1) > 0);
    expect(layer.head_size.value_or(1) > 0);
    expect(layer.window.value_or(1) > 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const turboquant::ModelConfig model = turboquant::parse_model_config(text);
    check_model(model);
    turboquant::PlanOptions options;
    options.codec = turboquant::find_cache_preset("turboquant_k3v4_nc");
    options.memory_bytes = std::int64_t{1} << 34;
    options.context_tokens = 8192;
    const turboquant::CachePlan plan = turboquant::plan_cache(model, options);
    expect(plan.num_compressed_layers > 0 && plan.kv_bytes > 0);
  } catch (const turboquant::Error& error) {
    expect(error.what()[0] != '\0');
  }
  return 0;
}
