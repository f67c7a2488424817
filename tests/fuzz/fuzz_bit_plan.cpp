// Bit plans, which people save, edit and load: what is accepted is valid, and written and read
// again it is the same.
#include "fuzz/fuzz_input.hpp"

#include <turboquant/model/hf_bit_plan.hpp>

#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    const turboquant::BitPlan plan = turboquant::parse_bit_plan(json);
    turboquant::require_valid(plan, "fuzz");
    const std::string text = turboquant::to_json(plan);
    const turboquant::BitPlan again = turboquant::parse_bit_plan(text);
    expect(again.layers.size() == plan.layers.size() && turboquant::to_json(again) == text);
  } catch (const turboquant::Error& error) {
    const std::string_view message = error.what();
    expect(!message.empty() && message.find('\n') == std::string_view::npos);
  }
  return 0;
}
