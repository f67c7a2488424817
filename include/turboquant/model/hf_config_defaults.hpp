#pragma once

#include <turboquant/model/hf_config_fields.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace turboquant::detail {

/// What a model's configuration class takes for fields that its file leaves out; 0 = no number.
struct ClassDefaults {
  std::string_view model_type;
  std::int64_t num_layers;
  std::int64_t hidden_size;
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  std::int64_t window;  ///< tokens
  std::int64_t num_kv_shared_layers;
};

/// The numbers of the configuration classes of Hugging Face transformers, for families whose
/// published files leave some out; all zero for every other type.
inline ClassDefaults class_defaults(std::string_view model_type) {
  static constexpr std::array known{
      ClassDefaults{"llama", 32, 4096, 32, 0, 0, 0, 0},
      ClassDefaults{"mistral", 32, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"qwen2", 32, 4096, 32, 32, 0, 0, 0},
      ClassDefaults{"qwen3", 32, 4096, 32, 32, 128, 0, 0},
      ClassDefaults{"gemma", 28, 3072, 16, 16, 256, 0, 0},
      ClassDefaults{"gemma2", 26, 2304, 8, 4, 256, 4096, 0},
      ClassDefaults{"gemma3", 26, 2304, 8, 4, 256, 4096, 0},
      ClassDefaults{"gemma3_text", 26, 2304, 8, 4, 256, 4096, 0},
      ClassDefaults{"gemma3n", 35, 2048, 8, 2, 256, 512, 15},
      ClassDefaults{"gemma3n_text", 35, 2048, 8, 2, 256, 512, 15},
      ClassDefaults{"gemma4", 30, 2304, 8, 4, 256, 512, 0},
      ClassDefaults{"gemma4_text", 30, 2304, 8, 4, 256, 512, 0},
      ClassDefaults{"gemma4_unified", 30, 2304, 8, 4, 256, 1024, 0},
      ClassDefaults{"gemma4_unified_text", 30, 2304, 8, 4, 256, 1024, 0},
      ClassDefaults{"gpt_oss", 36, 2880, 64, 8, 64, 128, 0},
      ClassDefaults{"step3_text", 61, 7168, 64, 1, 256, 0, 0},
      ClassDefaults{"step3p5", 45, 4096, 64, 8, 128, 0, 0}};
  for (const ClassDefaults& defaults : known) {
    if (defaults.model_type == model_type) {
      return defaults;
    }
  }
  return {};
}

/// Whether a model is one of Gemma 4's: its class widens full layers and makes the last one full.
inline bool is_gemma4(std::string_view model_type) {
  return model_type.substr(0, 6) == "gemma4";
}

/// `stated`, or the class's number; nothing where the class has none either.
inline std::optional<std::int64_t> or_default(std::optional<std::int64_t> stated,
                                              std::int64_t class_default) {
  return stated || class_default == 0 ? stated : std::optional<std::int64_t>(class_default);
}

}  // namespace turboquant::detail
