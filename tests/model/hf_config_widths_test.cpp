#include <turboquant/model/hf_config.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

/// A model with `fields` after the layer count, which classes' defaults do not reach.
ModelConfig model_of(const std::string& fields) {
  return parse_model_config(R"({"num_hidden_layers":4,)" + fields + "}");
}

std::int64_t kv_heads(const std::string& fields) {
  return model_of(fields).layers.back().num_kv_heads.value_or(-1);
}

std::int64_t head_size(const std::string& fields) {
  return model_of(fields).layers.back().head_size.value_or(-1);
}

}  // namespace

TEST_CASE("multi-query attention has one KV head, whatever number stands beside it") {
  const std::string heads = R"("num_attention_heads":32,"hidden_size":4096)";
  for (const std::string number :
       {"", R"(,"num_kv_heads":32)", R"(,"num_key_value_heads":8)", R"(,"n_head_kv":32)",
        R"(,"n_kv_heads":4)", R"(,"attn_config":{"kv_n_heads":8})"}) {
    CAPTURE(number);
    CHECK(kv_heads(heads + number + R"(,"multi_query":true)") == 1);
    CHECK(kv_heads(heads + number + R"(,"multi_query":true,"new_decoder_architecture":false)") ==
          1);
    CHECK(kv_heads(heads + number + R"(,"multi_query":true,"new_decoder_architecture":true)") ==
          kv_heads(heads + number));
    CHECK(kv_heads(heads + number + R"(,"multi_query":false)") == kv_heads(heads + number));
  }
  // The published file of Falcon 7B states the number of its query heads.
  const std::string falcon = R"("model_type":"falcon","num_attention_heads":71,"hidden_size":4544,)"
                             R"("num_kv_heads":71,"new_decoder_architecture":false)";
  CHECK(kv_heads(falcon + R"(,"multi_query":true)") == 1);
  CHECK(kv_heads(falcon) == 1);
  CHECK(kv_heads(falcon + R"(,"multi_query":false)") == 71);
  CHECK(kv_heads(R"("model_type":"gpt_bigcode","n_head":48)") == 1);
  CHECK(kv_heads(R"("model_type":"gpt_bigcode","n_head":48,"multi_query":false)") == 48);
  const auto mpt = [](const std::string& attention) {
    return kv_heads(R"("model_type":"mpt","n_heads":32,"d_model":4096,"attn_config":{)" +
                    attention + "}");
  };
  CHECK(mpt(R"("attn_type":"multiquery_attention")") == 1);
  CHECK(mpt(R"("attn_type":"multiquery_attention","kv_n_heads":8)") == 1);
  CHECK(mpt(R"("attn_type":"grouped_query_attention","kv_n_heads":8)") == 8);
  CHECK(mpt(R"("attn_type":"multihead_attention")") == 32);
}

TEST_CASE("ChatGLM's number of groups counts where its switch is on") {
  const std::string glm = R"("model_type":"chatglm","num_attention_heads":32,"kv_channels":128,)"
                          R"("multi_query_group_num":2)";
  CHECK(kv_heads(glm + R"(,"multi_query_attention":true)") == 2);
  CHECK(kv_heads(glm + R"(,"multi_query_attention":false)") == 32);
  CHECK(kv_heads(glm) == 32);
  CHECK(kv_heads(R"("num_attention_heads":32,"multi_query_group_num":2)") == 2);
}

TEST_CASE("Step-3: attention groups, other ones where a window bounds them") {
  CHECK(kv_heads(R"("num_attention_heads":64,"num_attention_groups":8,"head_dim":128)") == 8);
  CHECK(kv_heads(R"("model_type":"step3_text","num_attention_heads":64)") == 1);
  CHECK(head_size(R"("model_type":"step3_text","num_attention_heads":64,"hidden_size":7168)") ==
        256);
  const ModelConfig step35 = model_of(
      R"("model_type":"step3p5","num_attention_heads":64,"num_attention_groups":8,"head_dim":128,)"
      R"("sliding_window":512,"layer_types":["full_attention","sliding_attention",)"
      R"("sliding_attention","sliding_attention"],"attention_other_setting":{)"
      R"("num_attention_heads":96,"num_attention_groups":16,"head_dim":64})");
  CHECK(step35.layers[0].num_kv_heads == 8);
  CHECK(step35.layers[0].head_size == 128);
  CHECK(step35.layers[1].num_kv_heads == 16);
  CHECK(step35.layers[1].head_size == 64);
}

TEST_CASE("latent attention that is switched off, or has no rank, is plain attention") {
  const std::string heads = R"("num_attention_heads":10,"num_key_value_heads":10,)"
                            R"("hidden_size":1280)";
  for (const std::string off :
       {R"(,"use_mla":false,"kv_lora_rank":null,"qk_nope_head_dim":0,"qk_rope_head_dim":0,)"
        R"("v_head_dim":0)",
        R"(,"use_mla":false,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,)"
        R"("v_head_dim":96)",
        R"(,"use_mla":false,"kv_lora_rank":512)", R"(,"use_mla":false,"kv_lora_rank":0)",
        R"(,"kv_lora_rank":null,"v_head_dim":0,"qk_rope_head_dim":0)"}) {
    CAPTURE(off);
    const ModelConfig model = model_of(heads + off);
    CHECK_FALSE(model.mla.has_value());
    for (const LayerConfig& layer : model.layers) {
      CHECK_FALSE(layer.is_mla);
      CHECK(layer.num_kv_heads == 10);
      CHECK(layer.head_size == 128);
      CHECK_FALSE(layer.head_size_v.has_value());
    }
  }
  CHECK(model_of(heads + R"(,"use_mla":true,"kv_lora_rank":512,"qk_rope_head_dim":64)")
            .layers[0]
            .is_mla);
  // Without latent attention a value width is one, as in MiMo.
  CHECK(model_of(heads + R"(,"v_head_dim":96)").layers[0].head_size_v == 96);
  error_of(ErrorCode::format, [&] { (void)model_of(heads + R"(,"v_head_dim":-1)"); });
  error_of(ErrorCode::format, [&] { (void)model_of(heads + R"(,"use_mla":"no")"); });
}

TEST_CASE("numbers that a file leaves out are those of its class") {
  // google/gemma-3-4b-it and -12b-it as published.
  const ModelConfig gemma4b = parse_model_config(
      R"({"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":2560,)"
      R"("num_hidden_layers":34,"sliding_window":1024,"rope_scaling":{"factor":8.0}}})");
  CHECK(gemma4b.num_layers() == 34);
  CHECK(gemma4b.num_attention_heads == 8);
  const ModelConfig gemma12b = parse_model_config(
      R"({"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":3840,)"
      R"("num_hidden_layers":48,"num_attention_heads":16,"num_key_value_heads":8,)"
      R"("sliding_window":1024}})");
  CHECK(gemma12b.layers[0].num_kv_heads == 8);
  for (const ModelConfig* model : {&gemma4b, &gemma12b}) {
    for (const LayerConfig& layer : model->layers) {
      CHECK(layer.head_size == 256);
    }
  }
  CHECK(gemma4b.layers[0].num_kv_heads == 4);
  CHECK(gemma4b.layers[0].window == 1024);

  // Every class of the table as a file that states nothing.
  for (const std::string_view type :
       {"llama",      "mistral",     "mixtral", "ministral",   "qwen2",       "qwen2_moe",
        "qwen3",      "qwen3_moe",   "gemma",   "gemma2",      "gemma3_text", "gemma3n_text",
        "vaultgemma", "gemma4_text", "gpt_oss", "step3_text",  "step3p5",     "glm4",
        "exaone4",    "olmo3",       "cohere2", "llama4_text", "afmoe",       "starcoder2",
        "seed_oss",   "phi3",        "smollm3", "minimax_m2",  "granite",     "stablelm"}) {
    CAPTURE(type);
    const ModelConfig model = parse_model_config(R"({"model_type":")" + std::string(type) + "\"}");
    CHECK(model.num_layers() == detail::class_defaults(type).num_layers);
    CHECK(mentions(model.notes.front(), std::string(type)));
    for (const LayerConfig& layer : model.layers) {
      CHECK(layer.num_kv_heads.has_value());
      CHECK(layer.head_size.has_value());
      CHECK((layer.attention == AttentionKind::full) != layer.window.has_value());
    }
  }
  CHECK(parse_model_config(R"({"model_type":"gpt_oss"})").layers[0].window == 128);
  CHECK(parse_model_config(R"({"model_type":"gemma3n_text"})").cache_owner(34) == 19);

  // What is stated wins, and a null that its class reads as "like the query heads" does too.
  CHECK(head_size(R"("model_type":"qwen3","num_attention_heads":32,"hidden_size":2560)") == 128);
  CHECK(head_size(R"("model_type":"qwen3","num_attention_heads":32,"head_dim":80)") == 80);
  CHECK(kv_heads(R"("model_type":"mistral","num_attention_heads":16)") == 8);
  CHECK(kv_heads(R"("model_type":"mistral","num_attention_heads":16,"num_key_value_heads":2)") ==
        2);
  CHECK(kv_heads(R"("model_type":"mistral","num_attention_heads":16,)"
                 R"("num_key_value_heads":null)") == 16);
  const std::string heads16 = R"("num_attention_heads":16,"hidden_size":2048,)";
  const std::pair<std::string_view, std::int64_t> classes[] = {
      {"mixtral", 8}, {"qwen3_moe", 4}, {"smollm3", 4},     {"jamba", 8},
      {"lfm2", 8},    {"glm4", 2},      {"glm", 2},         {"starcoder2", 2},
      {"phimoe", 8},  {"bamba", 8},     {"qwen3_5_text", 4}};
  for (const auto& known : classes) {
    const auto type = std::string(known.first);
    CAPTURE(type);
    const ModelConfig model =
        model_of(heads16 +
                 R"("full_attention_interval":1,"attn_layer_period":1,)"
                 R"("attn_layer_offset":0,"attn_layer_indices":[3],"model_type":")" +
                 type + "\"");
    CHECK(model.layers.back().num_kv_heads == known.second);
  }
  const ModelConfig nemotron =
      parse_model_config(R"({"model_type":"nemotron_h","hybrid_override_pattern":"M*"})");
  CHECK(nemotron.layers[1].num_kv_heads == 8);
  CHECK(nemotron.layers[1].head_size == 128);
  // Messages say whose numbers they are.
  const auto message = [](const std::string& fields) {
    return error_of(ErrorCode::format, [&] { (void)model_of(fields); });
  };
  CHECK(mentions(message(R"("model_type":"mistral","head_dim":64,"num_attention_heads":12)"),
                 "num_attention_heads = 12 and num_key_value_heads = 8 (of the class of mistral)"));
  CHECK(
      mentions(message(R"("model_type":"mistral","num_key_value_heads":5)"),
               "num_attention_heads = 32 (of the class of mistral) and num_key_value_heads = 5,"));
  CHECK(mentions(error_of(ErrorCode::format,
                          [] {
                            (void)parse_model_config(
                                R"({"model_type":"gemma3n_text","num_hidden_layers":16})");
                          }),
                 "num_kv_shared_layers is 15 (of the class of gemma3n_text)"));
  // A class that is not in the table leaves nothing to guess with.
  CHECK(mentions(error_of(ErrorCode::format,
                          [] { (void)parse_model_config(R"({"model_type":"someone_else"})"); }),
                 "has no num_hidden_layers"));
  CHECK(kv_heads(R"("model_type":"someone_else")") == -1);
}

TEST_CASE("Zamba's heads span two rows") {
  const std::string zamba2 = R"("model_type":"zamba2","hybrid_layer_ids":[3],"hidden_size":3584,)"
                             R"("num_attention_heads":32,"kv_channels":112,"head_dim":null)";
  CHECK(head_size(zamba2) == 224);
  CHECK(head_size(zamba2 + R"(,"attention_head_dim":160)") == 160);
  CHECK(model_of(R"("model_type":"zamba","attn_layer_period":6,"attn_layer_offset":4,)"
                 R"("hidden_size":3712,"num_attention_heads":16)")
            .layers[2]
            .head_size == 464);
}

TEST_CASE("further spellings: BLOOM, AFM, Baichuan-M1") {
  const ModelConfig bloom =
      parse_model_config(R"({"model_type":"bloom","n_layer":2,"n_embed":14336,)"
                         R"("num_attention_heads":112})");
  CHECK(bloom.hidden_size == 14336);
  CHECK(bloom.layers[0].head_size == 128);
  CHECK(parse_model_config(R"({"num_layers":2,"hidden_dim":2048,"num_heads":16,"num_kv_heads":2})")
            .layers[0]
            .head_size == 128);
  const ModelConfig baichuan =
      model_of(R"("sliding_window_layers":[1,3],"sliding_window":8192,"num_attention_heads":16,)"
               R"("num_key_value_heads":2,"num_swa_attention_heads":32,)"
               R"("num_swa_key_value_heads":8,"head_dim":128)");
  CHECK(baichuan.layers[0].num_kv_heads == 2);
  CHECK(baichuan.layers[1].num_kv_heads == 8);
}

TEST_CASE("what the softmax has beside its logits") {
  CHECK_FALSE(model_of(R"("num_attention_heads":8)").attn_logit_softcapping.has_value());
  CHECK(model_of(R"("attn_logit_softcapping":30.0)").attn_logit_softcapping == 30.0);
  CHECK(model_of(R"("model_type":"gemma2")").attn_logit_softcapping == 50.0);
  CHECK(model_of(R"("model_type":"vaultgemma")").attn_logit_softcapping == 50.0);
  CHECK(model_of(R"("model_type":"gemma2","attn_logit_softcapping":20)").attn_logit_softcapping ==
        20.0);
  CHECK_FALSE(model_of(R"("model_type":"gemma2","attn_logit_softcapping":null)")
                  .attn_logit_softcapping.has_value());
  for (const std::string value : {"0", "-30", "\"30\"", "1e300"}) {
    CHECK(mentions(error_of(ErrorCode::format,
                            [&] { (void)model_of(R"("attn_logit_softcapping":)" + value); }),
                   "attn_logit_softcapping is"));
  }
  for (const std::string type :
       {"gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "gemma4_unified_text", "gpt_neo",
        "granite", "granitemoe", "granitemoeshared"}) {
    CHECK(model_of(R"("model_type":")" + type + "\"").attention_scale == 1.0);
  }
  // 1 / sqrt(256), whatever the width of its heads.
  for (const std::string type : {"gemma2", "gemma3_text", "vaultgemma"}) {
    CHECK(model_of(R"("head_dim":128,"model_type":")" + type + "\"").attention_scale == 1.0 / 16);
  }
  for (const LayerConfig& layer : model_of(R"("model_type":"gpt_oss")").layers) {
    CHECK(layer.has_learned_sinks);
  }
  const ModelConfig mimo =
      model_of(R"("hybrid_layer_pattern":[0,1,1,0],"sliding_window":128,)"
               R"("add_swa_attention_sink_bias":true,"add_full_attention_sink_bias":false)");
  CHECK_FALSE(mimo.layers[0].has_learned_sinks);
  CHECK(mimo.layers[1].has_learned_sinks);
  CHECK_FALSE(model_of(R"("num_attention_heads":8)").layers[0].has_learned_sinks);
}

TEST_CASE("the factor of logits where it is not one over the root of the width") {
  const auto scale = [](const std::string& fields) { return model_of(fields).attention_scale; };
  const std::string zamba2 = R"("model_type":"zamba2","hybrid_layer_ids":[3],"hidden_size":3584,)"
                             R"("num_attention_heads":32)";
  CHECK(scale(zamba2) == doctest::Approx(1.0 / std::sqrt(112.0)));
  CHECK(scale(zamba2 + R"(,"attention_head_dim":160)") == doctest::Approx(1.0 / std::sqrt(80.0)));
  CHECK(scale(R"("model_type":"zamba","attn_layer_period":6,"attn_layer_offset":4,)"
              R"("hidden_size":3712,"num_attention_heads":16)") ==
        doctest::Approx(1.0 / std::sqrt(232.0)));
  const std::string gpt2 = R"("model_type":"gpt2","n_embd":768,"n_head":12)";
  CHECK_FALSE(scale(gpt2).has_value());
  CHECK_FALSE(scale(gpt2 + R"(,"scale_attn_weights":true)").has_value());
  CHECK(scale(gpt2 + R"(,"scale_attn_weights":false)") == 1.0);
  const std::string inverse = R"(,"scale_attn_by_inverse_layer_idx":true)";
  CHECK(mentions(model_of(gpt2 + inverse).notes.back(), "scale_attn_by_inverse_layer_idx"));
  const std::string mpt = R"("model_type":"mpt","n_heads":32,"d_model":4096,"attn_config":)";
  CHECK(scale(mpt + R"({"softmax_scale":0.25})") == 0.25);
  CHECK_FALSE(scale(mpt + R"({"softmax_scale":null})").has_value());
  for (const std::string field : {"mup_scale_qk_dot_by_d", "scale_qk_dot_by_d"}) {
    const std::string btlm = R"("model_type":"btlm","n_embd":2560,"n_head":32,")" + field + "\":";
    CHECK(scale(btlm + "true") == 1.0 / 80);
    CHECK_FALSE(scale(btlm + "false").has_value());
  }
  CHECK(scale(R"("model_type":"granite","attention_multiplier":0.0078125)") == 0.0078125);
}

TEST_CASE("what single layers override: per_layer_config") {
  const auto gemma4 = [](const std::string& more) {
    return parse_model_config(
        R"({"model_type":"gemma4","text_config":{"model_type":"gemma4_text",)"
        R"("num_hidden_layers":12,"num_attention_heads":8,"num_key_value_heads":4,)"
        R"("head_dim":256,"sliding_window":512)" +
        more + "}}");
  };
  const auto widths = [](const ModelConfig& model, std::int64_t layer) {
    const LayerConfig& l = model.layers[static_cast<std::size_t>(layer)];
    return std::to_string(*l.num_kv_heads) + " x " + std::to_string(*l.head_size);
  };
  for (const std::string key : {"5", "05"}) {
    const ModelConfig model =
        gemma4(R"(,"global_head_dim":64,"per_layer_config":{")" + key +
               R"(":{"head_dim":512,"num_key_value_heads":2},"11":{"head_dim":512}})");
    CHECK(model.full_attention_layers() == std::vector<std::int64_t>{5, 11});
    CHECK(widths(model, 0) == "4 x 256");
    CHECK(widths(model, 5) == "2 x 512");
    CHECK(widths(model, 11) == "4 x 512");
  }
  // Without overrides the class widens its full layers.
  CHECK(widths(gemma4(""), 5) == "4 x 512");
  CHECK(widths(gemma4(R"(,"global_head_dim":384)"), 5) == "4 x 384");
  CHECK(widths(gemma4(R"(,"num_global_key_value_heads":2)"), 5) == "4 x 512");
  CHECK(widths(gemma4(R"(,"num_global_key_value_heads":2,"attention_k_eq_v":false)"), 5) ==
        "4 x 512");
  CHECK(widths(gemma4(R"(,"num_global_key_value_heads":2,"attention_k_eq_v":true)"), 5) ==
        "2 x 512");
  CHECK(widths(gemma4(R"(,"per_layer_config":{})"), 5) == "4 x 256");

  // In any model, and only what is known.
  const std::string dense = R"("num_attention_heads":32,"num_key_value_heads":8,"head_dim":128)";
  const ModelConfig any =
      model_of(dense + R"(,"per_layer_config":{"2":{"num_key_value_heads":4,"num_experts":8}})");
  CHECK(widths(any, 2) == "4 x 128");
  CHECK(widths(any, 1) == "8 x 128");
  const std::string window = R"(,"sliding_window":64)";
  const ModelConfig windowed =
      model_of(dense + window + R"(,"per_layer_config":{"1":{"sliding_window":128}})");
  CHECK(windowed.layers[1].window == 128);
  CHECK(windowed.layers[2].window == 64);
  const auto refuse = [&](const std::string& overrides, ErrorCode code, std::string_view part) {
    const std::string message = error_of(code, [&] {
      (void)model_of(dense + window + R"(,"per_layer_config":{)" + overrides + "}");
    });
    CHECK_MESSAGE(mentions(message, part), message);
  };
  refuse(R"("4":{"head_dim":64})", ErrorCode::format, "expected a layer in 0..3");
  refuse(R"("x":{"head_dim":64})", ErrorCode::format, "has the key \"x\"");
  refuse(R"("-1":{"head_dim":64})", ErrorCode::format, "has the key \"-1\"");
  refuse(R"("99999999999999999999":{})", ErrorCode::format, "has the key");
  refuse(R"("1":{"head_dim":64},"01":{"head_dim":64})", ErrorCode::format, "layer 1 twice");
  refuse(R"("1":null)", ErrorCode::format, "is null");
  refuse(R"("1":{"head_dim":0})", ErrorCode::format, "per_layer_config.1.head_dim is 0");
  refuse(R"("1":{"num_key_value_heads":5})", ErrorCode::format, "gives layer 1 ");
  refuse(R"("1":{"sliding_window":null})", ErrorCode::unsupported, "overrides sliding_window");
  refuse(R"("1":{"skip":["attention"]})", ErrorCode::unsupported, "overrides skip");
  refuse(R"("1":{"kv_lora_rank":64})", ErrorCode::unsupported, "overrides kv_lora_rank");
  CHECK(widths(model_of(dense + R"(,"per_layer_config":{"1":{"num_attention_heads":40,)"
                                R"("num_key_value_heads":5,"skip":[]}})"),
               1) == "5 x 128");
}

TEST_CASE("Gemma 4's layers where its file leaves them out") {
  const auto full = [](const std::string& fields) {
    return parse_model_config(R"({"text_config":{"model_type":"gemma4_text",)" + fields + "}}")
        .full_attention_layers();
  };
  CHECK(full(R"("num_hidden_layers":12,"sliding_window":1024)") == Indices{5, 11});
  CHECK(full(R"("num_hidden_layers":14)") == Indices{5, 11, 13});
  CHECK(full(R"("num_hidden_layers":2,"layer_types":["sliding_attention","sliding_attention"])") ==
        Indices{1});
  CHECK(parse_model_config(R"({"model_type":"gemma4_text"})").layers[0].window == 512);
  CHECK(parse_model_config(R"({"model_type":"gemma4_unified_text"})").layers[0].window == 1024);
}
