#include "model/hf_config_models.hpp"

#include <turboquant/model/hf_config.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

using namespace turboquant;
using turboquant::test::mentions;
using turboquant::test::model_of;
using turboquant::test::refuse;

namespace {

/// Two layers, one full and one windowed, with heads of 128 coordinates.
ModelConfig mixed_model(const std::string& type, const std::string& more = "") {
  return model_of(2, R"("num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,)"
                     R"("layer_types":["full_attention","sliding_attention"],"sliding_window":64,)"
                     R"("model_type":")" +
                         type + '"' + more);
}

}  // namespace

TEST_CASE("the factor of logits is the class's where the file is silent") {
  struct Case {
    std::string type;
    std::optional<double> scale;
  };
  const std::vector<Case> cases{{"llama", {}},
                                {"hyperclovax", {}},
                                {"step3p5", {}},
                                {"inkling2_text", {}},
                                {"flint", {}},
                                {"gemma2", 1.0 / 16},
                                {"gemma3", 1.0 / 16},
                                {"gemma3_text", 1.0 / 16},
                                {"vaultgemma", 1.0 / 16},
                                {"granite", 1.0},
                                {"granite_swa", 1.0},
                                {"granite4_vision_text", 1.0},
                                {"granitemoe", 1.0},
                                {"granitemoe_swa", 1.0},
                                {"granitemoeshared", 1.0},
                                {"granitemoehybrid", 1.0},
                                {"granite_docling_text", 0.015625},
                                {"inkling_text", 1.0 / 128},
                                {"phi3small", 1.0 / 128}};
  for (const Case& c : cases) {
    CAPTURE(c.type);
    CHECK(mixed_model(c.type).attention_scale == c.scale);
    // A stated factor goes first, and in two spellings.
    CHECK(mixed_model(c.type, R"(,"attention_multiplier":0.0078125)").attention_scale == 0.0078125);
    CHECK(mixed_model(c.type, R"(,"query_pre_attn_scalar":64)").attention_scale == 0.125);
  }
}

TEST_CASE("classes that leave logits as they are read no factor") {
  for (const std::string type :
       {"diffusion_gemma", "diffusion_gemma_text", "gemma3n", "gemma3n_text", "gemma4",
        "gemma4_text", "gemma4_unified_text", "gpt_neo"}) {
    CAPTURE(type);
    const std::string layers = R"("layer_types":["full_attention"],"num_kv_shared_layers":0,)"
                               R"("model_type":")" +
                               type + '"';
    CHECK(model_of(1, layers).attention_scale == 1.0);
    for (const std::string field :
         {R"("query_pre_attn_scalar":256)", R"("attention_multiplier":0.5)",
          R"("mup_scale_qk_dot_by_d":true)"}) {
      CHECK(model_of(1, layers + "," + field).attention_scale == 1.0);
    }
    refuse(1, layers + R"(,"query_pre_attn_scalar":-1)", ErrorCode::format,
           "query_pre_attn_scalar is -1");
  }
}

TEST_CASE("Phi-3-small divides by the width where its switch is on, Grok multiplies and caps") {
  const auto phi = [](const std::string& more) {
    return model_of(
               2, R"("model_type":"phi3small","hidden_size":4096,"num_attention_heads":32)" + more)
        .attention_scale;
  };
  CHECK(phi("") == 1.0 / 128);
  CHECK(phi(R"(,"mup_use_scaling":true,"mup_attn_multiplier":1.0)") == 1.0 / 128);
  CHECK(phi(R"(,"mup_attn_multiplier":4)") == 1.0 / 32);
  CHECK_FALSE(phi(R"(,"mup_use_scaling":false,"mup_attn_multiplier":4)").has_value());
  const std::string grok = R"("model_type":"grok-1","num_attention_heads":48,"hidden_size":6144)";
  const ModelConfig stated =
      model_of(2, grok + R"(,"attn_output_multiplier":0.0625,"max_attn_value":30.0)");
  CHECK(stated.attention_scale == 0.0625);
  CHECK(stated.attn_logit_softcapping == 30.0);
  CHECK_FALSE(model_of(2, grok).attention_scale.has_value());
  CHECK_FALSE(model_of(2, grok).attn_logit_softcapping.has_value());
  refuse(2, grok + R"(,"max_attn_value":0)", ErrorCode::format, "max_attn_value is 0");
  refuse(2, grok + R"(,"attn_output_multiplier":-1)", ErrorCode::format,
         "attn_output_multiplier is -1");
}

TEST_CASE("a cap on logits is stated, or the class's unless the file says null") {
  for (const std::string type : {"gemma2", "vaultgemma", "gemma3_text", "llama"}) {
    CAPTURE(type);
    const bool capped = type == "gemma2" || type == "vaultgemma";
    CHECK(mixed_model(type).attn_logit_softcapping ==
          (capped ? std::optional(50.0) : std::nullopt));
    CHECK(mixed_model(type, R"(,"attn_logit_softcapping":20)").attn_logit_softcapping == 20.0);
    CHECK_FALSE(
        mixed_model(type, R"(,"attn_logit_softcapping":null)").attn_logit_softcapping.has_value());
  }
}

TEST_CASE("learned sinks are in the layers where the class has them, unless the file says which") {
  struct Case {
    std::string type;
    bool full;
    bool windowed;
  };
  for (const Case& c : std::vector<Case>{{"gpt_oss", true, true},
                                         {"granite_swa", true, true},
                                         {"granitemoe_swa", true, true},
                                         {"flint", true, true},
                                         {"hy_v4", true, true},
                                         {"hy_v4_vl_text", true, true},
                                         {"deepseek_v4", true, true},
                                         {"mimo_v2_flash", false, true},
                                         {"llama", false, false},
                                         {"gemma3_text", false, false},
                                         {"inkling2_text", false, false}}) {
    CAPTURE(c.type);
    const auto sinks = [&](const std::string& more, bool full, bool windowed) {
      const ModelConfig model = mixed_model(c.type, more);
      CHECK(model.layers[0].has_learned_sinks == full);
      CHECK(model.layers[1].has_learned_sinks == windowed);
    };
    sinks("", c.full, c.windowed);
    for (const bool full : {false, true}) {
      const std::string field =
          std::string(R"(,"add_full_attention_sink_bias":)") + (full ? "true" : "false");
      sinks(field, full, c.windowed);
      sinks(field + R"(,"add_swa_attention_sink_bias":true)", full, true);
      sinks(field + R"(,"add_swa_attention_sink_bias":false)", full, false);
    }
  }
  // No layer without attention has any.
  const ModelConfig hybrid =
      model_of(2, R"("model_type":"flint","layer_types":["mamba","full_attention"])");
  CHECK_FALSE(hybrid.layers[0].has_learned_sinks);
  CHECK(hybrid.layers[1].has_learned_sinks);
  for (const std::string type : {"inkling2_text", "inkling2_loop_text"}) {
    CHECK(mentions(mixed_model(type).notes.back(), "sinks"));
  }
}

TEST_CASE("MiMo-V2-Flash: windowed layers have twice the KV heads, and windows of one token more") {
  const auto mimo = [](const std::string& more) {
    return model_of(2, R"("model_type":"mimo_v2_flash","num_attention_heads":64,"head_dim":192,)"
                       R"("v_head_dim":128,"layer_types":["full_attention","sliding_attention"])" +
                           more);
  };
  for (const std::int64_t heads : {1, 2, 4, 8}) {
    const ModelConfig model = mimo(R"(,"num_key_value_heads":)" + std::to_string(heads));
    CHECK(model.layers[0].num_kv_heads == heads);
    CHECK(model.layers[1].num_kv_heads == 2 * heads);
    CHECK(model.layers[1].head_size_v == 128);
  }
  CHECK(mimo("").layers[0].num_kv_heads == 4);
  CHECK(mimo("").layers[1].num_kv_heads == 8);
  CHECK(mimo(R"(,"num_key_value_heads":4,"swa_num_key_value_heads":16)").layers[1].num_kv_heads ==
        16);
  refuse(1,
         R"("model_type":"mimo_v2_flash","num_attention_heads":4,"num_key_value_heads":4,)"
         R"("layer_types":["sliding_attention"])",
         ErrorCode::format, "num_key_value_heads = 8");
  // As published, as transformers saves it, and as its class has it.
  CHECK(mimo(R"(,"sliding_window":128,"sliding_window_size":128)").layers[1].window == 129);
  CHECK(mimo(R"(,"sliding_window_size":128)").layers[1].window == 129);
  CHECK(mimo(R"(,"sliding_window":129)").layers[1].window == 129);
  CHECK(mimo("").layers[1].window == 129);
  // The size counts the token itself elsewhere.
  CHECK(model_of(1, R"("layer_types":["sliding_attention"],"sliding_window_size":128)")
            .layers[0]
            .window == 128);
}
