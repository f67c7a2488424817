#pragma once

#include <turboquant/model/hf_config_fields.hpp>

#include <array>
#include <cstddef>
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

/// The entry of a table that has this `model_type`.
template <class Entry, std::size_t Count>
std::optional<Entry> entry_of_class(const std::array<Entry, Count>& table,
                                    std::string_view model_type) {
  for (const Entry& entry : table) {
    if (entry.model_type == model_type) {
      return entry;
    }
  }
  return std::nullopt;
}

/// The numbers of the configuration classes of Hugging Face transformers, for families whose
/// published files leave some out; all zero for every other type.
inline ClassDefaults class_defaults(std::string_view model_type) {
  static constexpr std::array known{
      ClassDefaults{"afmoe", 32, 2048, 16, 0, 128, 1024, 0},
      ClassDefaults{"bamba", 32, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"beam", 52, 5120, 48, 8, 128, 512, 0},
      ClassDefaults{"bitnet", 30, 2560, 20, 5, 0, 0, 0},
      ClassDefaults{"chameleon", 32, 4096, 32, 32, 0, 0, 0},
      ClassDefaults{"cohere", 40, 8192, 64, 0, 0, 0, 0},
      ClassDefaults{"cohere2", 40, 8192, 64, 0, 0, 4096, 0},
      ClassDefaults{"cosmos3_edge_text", 28, 2048, 16, 8, 128, 0, 0},
      ClassDefaults{"csm", 16, 2048, 32, 8, 0, 0, 0},
      ClassDefaults{"csm_depth_decoder_model", 4, 1024, 8, 2, 0, 0, 0},
      ClassDefaults{"cwm", 64, 6144, 48, 8, 128, 8192, 0},
      ClassDefaults{"dbrx", 24, 2048, 16, 1, 0, 0, 0},
      ClassDefaults{"diffusion_gemma_text", 30, 2304, 8, 4, 256, 512, 0},
      ClassDefaults{"dory", 36, 2560, 16, 4, 256, 1024, 0},
      ClassDefaults{"dots1", 62, 4608, 32, 32, 0, 4096, 0},
      ClassDefaults{"emu3_text_model", 32, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"ernie4_5", 18, 1024, 16, 2, 128, 0, 0},
      ClassDefaults{"ernie4_5_moe", 28, 2560, 20, 4, 0, 0, 0},
      ClassDefaults{"ernie4_5_vl_moe_text", 28, 2560, 20, 4, 0, 0, 0},
      ClassDefaults{"evolla", 32, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"exaone", 32, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"exaone4", 32, 4096, 32, 32, 0, 4096, 0},
      ClassDefaults{"exaone_moe", 32, 4096, 32, 32, 0, 4096, 0},
      ClassDefaults{"falcon_h1", 32, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"flint", 49, 2048, 32, 4, 128, 513, 0},
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
      ClassDefaults{"glm4v_moe_text", 46, 4096, 96, 8, 0, 0, 0},
      ClassDefaults{"glm4v_text", 40, 4096, 32, 2, 0, 0, 0},
      ClassDefaults{"glm_image_text", 40, 4096, 32, 2, 0, 0, 0},
      ClassDefaults{"glm_ocr_text", 16, 1024, 16, 8, 0, 0, 0},
      ClassDefaults{"gpt_oss", 36, 2880, 64, 8, 64, 128, 0},
      ClassDefaults{"granite", 32, 4096, 32, 0, 0, 0, 0},
      ClassDefaults{"granite_docling_text", 28, 1024, 16, 4, 0, 0, 0},
      ClassDefaults{"granite_swa", 24, 2560, 20, 4, 0, 128, 0},
      ClassDefaults{"granitemoe", 32, 4096, 32, 0, 0, 0, 0},
      ClassDefaults{"granitemoehybrid", 32, 4096, 32, 0, 0, 0, 0},
      ClassDefaults{"helium", 24, 2560, 20, 20, 128, 0, 0},
      ClassDefaults{"higgs_audio_v2", 28, 3072, 24, 8, 128, 0, 0},
      ClassDefaults{"hy_v3", 80, 4096, 64, 8, 128, 0, 0},
      ClassDefaults{"inkling2_loop_text", 24, 2304, 24, 8, 128, 1024, 0},
      ClassDefaults{"inkling2_text", 48, 4608, 48, 8, 128, 1024, 0},
      ClassDefaults{"inkling_text", 66, 6144, 64, 8, 128, 512, 0},
      ClassDefaults{"internlm3", 48, 4096, 32, 2, 128, 0, 0},
      ClassDefaults{"iquestcoder", 80, 5120, 40, 8, 128, 0, 0},
      ClassDefaults{"jamba", 32, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"jetmoe", 12, 2048, 32, 16, 128, 0, 0},
      ClassDefaults{"kolibri1", 50, 2560, 48, 4, 128, 513, 0},
      ClassDefaults{"laguna", 40, 2048, 48, 8, 128, 512, 0},
      ClassDefaults{"lara_mini", 34, 1024, 16, 4, 128, 512, 0},
      ClassDefaults{"lfm2", 32, 2560, 32, 8, 0, 0, 0},
      ClassDefaults{"lfm2_moe", 32, 2048, 32, 8, 0, 0, 0},
      ClassDefaults{"lfm3", 24, 2048, 16, 4, 128, 256, 0},
      ClassDefaults{"llama", 32, 4096, 32, 0, 0, 0, 0},
      ClassDefaults{"llama4_text", 48, 5120, 40, 8, 128, 8192, 0},
      ClassDefaults{"mellum", 28, 2304, 32, 4, 128, 1024, 0},
      ClassDefaults{"mimo_v2_flash", 48, 4096, 64, 4, 192, 129, 0},
      ClassDefaults{"minimax", 32, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"minimax_m2", 62, 3072, 48, 8, 128, 0, 0},
      ClassDefaults{"minimax_m3_vl_text", 60, 6144, 64, 4, 128, 0, 0},
      ClassDefaults{"ministral", 32, 4096, 32, 8, 0, 4096, 0},
      ClassDefaults{"ministral3", 34, 4096, 32, 8, 128, 0, 0},
      ClassDefaults{"mistral", 32, 4096, 32, 8, 0, 4096, 0},
      ClassDefaults{"mixtral", 32, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"mllama_text_model", 40, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"molmo2_text", 36, 4096, 32, 8, 128, 0, 0},
      ClassDefaults{"muse_glimmer_assistant", 5, 6656, 32, 8, 128, 2048, 0},
      ClassDefaults{"muse_glimmer_text", 52, 6656, 32, 2, 128, 2048, 0},
      ClassDefaults{"muse_spark_text", 62, 8192, 128, 16, 64, 2048, 0},
      ClassDefaults{"nemotron_h", 0, 4096, 32, 8, 128, 0, 0},
      ClassDefaults{"neomme", 17, 1024, 16, 4, 64, 0, 0},
      ClassDefaults{"olmo2", 32, 4096, 32, 0, 0, 0, 0},
      ClassDefaults{"olmo3", 32, 4096, 32, 0, 0, 4096, 0},
      ClassDefaults{"paddleocr_vl_text", 18, 1024, 16, 2, 128, 0, 0},
      ClassDefaults{"phi3", 32, 3072, 32, 0, 0, 0, 0},
      ClassDefaults{"phi4_multimodal", 32, 3072, 32, 8, 0, 0, 0},
      ClassDefaults{"phimoe", 32, 4096, 32, 8, 0, 0, 0},
      ClassDefaults{"qwen2", 32, 4096, 32, 32, 0, 4096, 0},
      ClassDefaults{"qwen2_5_omni_talker", 28, 3584, 28, 4, 128, 0, 0},
      ClassDefaults{"qwen2_5_omni_text", 28, 3584, 28, 4, 0, 32768, 0},
      ClassDefaults{"qwen2_5_vl_text", 80, 8192, 64, 8, 0, 4096, 0},
      ClassDefaults{"qwen2_moe", 24, 2048, 16, 16, 0, 4096, 0},
      ClassDefaults{"qwen2_vl_text", 80, 8192, 64, 8, 0, 4096, 0},
      ClassDefaults{"qwen3", 32, 4096, 32, 32, 128, 4096, 0},
      ClassDefaults{"qwen3_5_moe_text", 40, 2048, 16, 2, 256, 0, 0},
      ClassDefaults{"qwen3_5_text", 32, 4096, 16, 4, 256, 0, 0},
      ClassDefaults{"qwen3_moe", 24, 2048, 32, 4, 0, 4096, 0},
      ClassDefaults{"qwen3_next", 48, 2048, 16, 2, 256, 0, 0},
      ClassDefaults{"qwen3_omni_moe_talker_code_predictor", 5, 1024, 16, 8, 128, 0, 0},
      ClassDefaults{"qwen3_omni_moe_talker_text", 20, 1024, 16, 2, 0, 0, 0},
      ClassDefaults{"qwen3_omni_moe_text", 28, 2048, 28, 4, 0, 0, 0},
      ClassDefaults{"qwen3_vl_moe_text", 24, 2048, 16, 16, 0, 0, 0},
      ClassDefaults{"qwen3_vl_text", 32, 4096, 32, 32, 128, 0, 0},
      ClassDefaults{"qwen4_exp_text", 40, 2048, 16, 2, 256, 0, 0},
      ClassDefaults{"recurrent_gemma", 26, 2560, 10, 0, 0, 2048, 0},
      ClassDefaults{"sarvam_moe", 19, 4096, 64, 4, 64, 0, 0},
      ClassDefaults{"seed_oss", 64, 4096, 80, 8, 128, 0, 0},
      ClassDefaults{"smollm3", 36, 2048, 16, 4, 0, 0, 0},
      ClassDefaults{"solar_open", 48, 4096, 64, 8, 128, 0, 0},
      ClassDefaults{"stablelm", 32, 2560, 32, 32, 0, 0, 0},
      ClassDefaults{"starcoder2", 30, 3072, 24, 2, 0, 0, 0},
      ClassDefaults{"step3_text", 61, 7168, 64, 1, 256, 0, 0},
      ClassDefaults{"step3p5", 45, 4096, 64, 8, 128, 0, 0},
      ClassDefaults{"vaultgemma", 26, 2304, 8, 4, 256, 4096, 0},
      ClassDefaults{"voxtral_realtime_text", 32, 4096, 32, 8, 0, 4096, 0},
      ClassDefaults{"zamba", 76, 3712, 16, 16, 0, 0, 0},
      ClassDefaults{"zamba2", 54, 2560, 32, 0, 0, 0, 0},
      ClassDefaults{"zaya", 40, 2048, 8, 2, 128, 0, 0}};
  return entry_of_class(known, model_type).value_or(ClassDefaults{});
}

/// Whether a model is one of LongCat-Flash's.
inline bool is_longcat_flash(std::string_view model_type) {
  return model_type.substr(0, 13) == "longcat_flash";
}

/// Whether a model is one of Gemma 4's: its class widens full layers and makes the last one full.
inline bool is_gemma4(std::string_view model_type) {
  return model_type.substr(0, 6) == "gemma4";
}

/// Whether a model's full layers are wider than its other ones unless single layers say so, and the
/// last layer is full.
inline bool has_wide_full_layers(std::string_view model_type) {
  return is_gemma4(model_type) || model_type == "diffusion_gemma_text";
}

/// Whether a file of this class without a number of KV heads means as many as query heads: classes
/// that say so or have no such field, beside those whose numbers `class_defaults` knows.
inline bool has_as_many_kv_heads(std::string_view model_type) {
  if (class_defaults(model_type).num_heads != 0) {
    return true;
  }
  return is_among(model_type, {"apertus",
                               "apertus1p5_text",
                               "arcee",
                               "aria_text",
                               "biogpt",
                               "bloom",
                               "codegen",
                               "cohere2_moe",
                               "cohere_compass_text",
                               "cpmant",
                               "ctrl",
                               "deepseek_ocr2_text",
                               "diffllama",
                               "doge",
                               "falcon",
                               "flex_olmo",
                               "gpt2",
                               "gpt_bigcode",
                               "gpt_neo",
                               "gpt_neox",
                               "gpt_neox_japanese",
                               "gptj",
                               "granite4_vision_text",
                               "granitemoe_swa",
                               "granitemoeshared",
                               "hrm_text",
                               "hunyuan_v1_dense",
                               "hunyuan_v1_moe",
                               "hunyuan_vl_text",
                               "hyperclovax",
                               "imagegpt",
                               "jais2",
                               "kyutai_speech_to_text",
                               "modernbert-decoder",
                               "moshi",
                               "mpt",
                               "nanochat",
                               "nemotron",
                               "olmo",
                               "olmo_hybrid",
                               "olmoe",
                               "openai-gpt",
                               "opt",
                               "persimmon",
                               "phi",
                               "xglm"});
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
