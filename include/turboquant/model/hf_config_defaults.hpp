#pragma once

#include <turboquant/model/hf_config_fields.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
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
  std::int64_t window;  ///< tokens of a window or chunk, where layers have one
  std::int64_t num_kv_shared_layers;
};

/// The numbers of the configuration classes of Hugging Face transformers, for families whose
/// published files leave some out; all zero for every other type.
inline ClassDefaults class_defaults(std::string_view model_type) {
  static constexpr std::array known{
      ClassDefaults{"afmoe", 32, 2048, 16, 0, 128, 1024, 0},
      ClassDefaults{"bamba", 32, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"bitnet", 30, 2560, 20, 5, 0, 0, 0},
      ClassDefaults{"cohere", 40, 8192, 64, 0, 0, 0, 0},
      ClassDefaults{"cohere2", 40, 8192, 64, 0, 0, 4096, 0},
      ClassDefaults{"ernie4_5", 18, 1024, 16, 2, 128, 0, 0},
      ClassDefaults{"ernie4_5_moe", 28, 2560, 20, 4, 0, 0, 0},
      ClassDefaults{"exaone4", 32, 4096, 32, 32, 0, 4096, 0},
      ClassDefaults{"falcon_h1", 32, 4096, 32, 8, 0, 0, 0},
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
      ClassDefaults{"glm", 40, 4096, 32, 2, 128, 0, 0},
      ClassDefaults{"glm4", 40, 4096, 32, 2, 128, 0, 0},
      ClassDefaults{"glm4_moe", 46, 4096, 96, 8, 0, 0, 0},
      ClassDefaults{"gpt_oss", 36, 2880, 64, 8, 64, 128, 0},
      ClassDefaults{"granite", 32, 4096, 32, 0, 0, 0, 0},
      ClassDefaults{"granitemoe", 32, 4096, 32, 0, 0, 0, 0},
      ClassDefaults{"granitemoehybrid", 32, 4096, 32, 0, 0, 0, 0},
      ClassDefaults{"jamba", 32, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"lfm2", 32, 2560, 32, 8, 0, 0, 0},
      ClassDefaults{"lfm2_moe", 32, 2048, 32, 8, 0, 0, 0},
      ClassDefaults{"llama", 32, 4096, 32, 0, 0, 0, 0},
      ClassDefaults{"llama4_text", 48, 5120, 40, 8, 128, 8192, 0},
      ClassDefaults{"mimo_v2_flash", 48, 4096, 64, 4, 192, 129, 0},
      ClassDefaults{"minimax", 32, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"minimax_m2", 62, 3072, 48, 8, 128, 0, 0},
      ClassDefaults{"ministral", 32, 4096, 32, 8, 0, 4096, 0},
      ClassDefaults{"ministral3", 34, 4096, 32, 8, 128, 0, 0},
      ClassDefaults{"mistral", 32, 4096, 32, 8, 0, 4096, 0},
      ClassDefaults{"mixtral", 32, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"mllama_text_model", 40, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"nemotron_h", 0, 4096, 32, 8, 128, 0, 0},
      ClassDefaults{"olmo2", 32, 4096, 32, 0, 0, 0, 0},
      ClassDefaults{"olmo3", 32, 4096, 32, 0, 0, 4096, 0},
      ClassDefaults{"phi3", 32, 3072, 32, 0, 0, 0, 0},
      ClassDefaults{"phimoe", 32, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"qwen2", 32, 4096, 32, 32, 0, 4096, 0},
      ClassDefaults{"qwen2_5_omni_text", 28, 3584, 28, 4, 0, 32768, 0},
      ClassDefaults{"qwen2_5_vl_text", 80, 8192, 64, 8, 0, 4096, 0},
      ClassDefaults{"qwen2_moe", 24, 2048, 16, 16, 0, 4096, 0},
      ClassDefaults{"qwen2_vl_text", 80, 8192, 64, 8, 0, 4096, 0},
      ClassDefaults{"qwen3", 32, 4096, 32, 32, 128, 4096, 0},
      ClassDefaults{"qwen3_5_moe_text", 40, 2048, 16, 2, 256, 0, 0},
      ClassDefaults{"qwen3_5_text", 32, 4096, 16, 4, 256, 0, 0},
      ClassDefaults{"qwen3_moe", 24, 2048, 32, 4, 0, 4096, 0},
      ClassDefaults{"qwen3_next", 48, 2048, 16, 2, 256, 0, 0},
      ClassDefaults{"qwen3_vl_moe_text", 24, 2048, 16, 16, 0, 0, 0},
      ClassDefaults{"qwen3_vl_text", 32, 4096, 32, 32, 128, 0, 0},
      ClassDefaults{"recurrent_gemma", 26, 2560, 10, 0, 0, 2048, 0},
      ClassDefaults{"seed_oss", 64, 4096, 80, 8, 128, 0, 0},
      ClassDefaults{"smollm3", 36, 2048, 16, 4, 0, 0, 0},
      ClassDefaults{"stablelm", 32, 2560, 32, 32, 0, 0, 0},
      ClassDefaults{"starcoder2", 30, 3072, 24, 2, 0, 0, 0},
      ClassDefaults{"step3_text", 61, 7168, 64, 1, 256, 0, 0},
      ClassDefaults{"step3p5", 45, 4096, 64, 8, 128, 0, 0},
      ClassDefaults{"vaultgemma", 26, 2304, 8, 4, 256, 4096, 0},
      ClassDefaults{"zamba", 76, 3712, 16, 16, 0, 0, 0},
      ClassDefaults{"zamba2", 54, 2560, 32, 0, 0, 0, 0}};
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

/// What a message says after a number: nothing where the file states it, else whose it is.
inline std::string origin(bool stated, std::string_view model_type) {
  return stated ? std::string() : " (of the class of " + std::string(model_type) + ")";
}

}  // namespace turboquant::detail
