#include "model/hf_config_models.hpp"

#include <turboquant/model/hf_config.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::every;
using turboquant::test::Indices;
using turboquant::test::mentions;
using turboquant::test::model_of;
using turboquant::test::refuse;

TEST_CASE("switches and patterns that a file leaves out are those of its class") {
  const auto full = [](std::int64_t layers, const std::string& fields) {
    return model_of(layers, fields).full_attention_layers();
  };
  const std::string mistral = R"("model_type":"mistral")";
  CHECK(full(3, mistral).empty());
  CHECK(model_of(3, mistral).layers[0].window == 4096);
  CHECK(mentions(model_of(3, mistral).layer_rule, "default of mistral"));
  CHECK(full(3, mistral + R"(,"sliding_window":null)").size() == 3);
  CHECK(full(3, R"("model_type":"mixtral")").size() == 3);
  CHECK(full(16, R"("model_type":"jamba","attn_layer_period":8)") == Indices{4, 12});
  CHECK(full(16, R"("model_type":"jamba","attn_layer_offset":3)") == Indices{3, 11});
  CHECK(full(20, R"("model_type":"zamba")") == Indices{2, 7, 13, 19});
  CHECK(full(8, R"("attn_layer_period":4)") == Indices{0, 4});
  refuse(
      8, R"("model_type":"jamba","attn_layer_period":4)", ErrorCode::format,
      "attn_layer_offset is 4 (of the class of jamba), expected less than attn_layer_period = 4");

  const std::string on = R"(,"use_sliding_window":true)";
  for (const std::string type : {"qwen2", "qwen3"}) {
    const std::string qwen = R"("model_type":")" + type + '"';
    CHECK(full(32, qwen + on) == every(0, 1, 28));
    CHECK(model_of(32, qwen + on).layers[31].window == 4096);
    CHECK(full(32, qwen + on + R"(,"max_window_layers":30)") == every(0, 1, 30));
    CHECK(full(32, qwen + on + R"(,"sliding_window":null)").size() == 32);
    CHECK(full(32, qwen).size() == 32);
  }
  CHECK(full(4, R"("model_type":"qwen3_moe","max_window_layers":3,"sliding_window":64)" + on)
            .empty());

  // Versions of its class differ in what the switch means.
  const std::string moe = R"("model_type":"qwen2_moe","sliding_window":64)";
  CHECK(full(4, moe).size() == 4);
  refuse(4, moe + on, ErrorCode::unsupported, "use_sliding_window and no layer_types");
  CHECK(full(1, moe + on + R"(,"layer_types":["sliding_attention"])").empty());
  // Without a list these classes attend over everything, whatever the window is.
  for (const std::string type : {"step3p5", "laguna", "mellum"}) {
    CHECK(full(3, R"("sliding_window":64,"model_type":")" + type + '"').size() == 3);
  }
  for (const std::string type : {"cwm", "exaone_moe", "granite_swa", "mimo_v2_flash", "lfm3",
                                 "olmo_hybrid", "cohere2_moe", "diffusion_gemma_text"}) {
    refuse(6, R"("sliding_window":64,"model_type":")" + type + '"', ErrorCode::unsupported,
           "has model_type " + type);
  }

  const std::string exaone = R"("model_type":"exaone4")";
  CHECK(full(8, exaone) == Indices{3, 7});
  CHECK(model_of(8, exaone).layers[0].window == 4096);
  CHECK(full(8, exaone + R"(,"sliding_window":null)").size() == 8);
  for (const std::string pattern : {R"(3)", R"("LLG")"}) {
    const std::string stated = exaone + R"(,"sliding_window_pattern":)" + pattern;
    CHECK(full(6, stated + R"(,"sliding_window":1024)") == Indices{2, 5});
    CHECK(full(6, stated + R"(,"sliding_window":null)").size() == 6);
  }
  CHECK(full(4, R"("model_type":"vaultgemma")") == Indices{1, 3});
  // A list of types says windowed, the file says of no width: nothing is made up.
  CHECK_FALSE(model_of(1, R"("model_type":"gpt_oss","layer_types":["sliding_attention"],)"
                          R"("sliding_window":null)")
                  .layers[0]
                  .window.has_value());

  const std::string smollm3 = R"("model_type":"smollm3")";
  CHECK(full(8, smollm3).size() == 8);
  CHECK(full(8, smollm3 + R"(,"sliding_window":64)").size() == 8);
  CHECK(full(8, smollm3 + R"(,"sliding_window":64)" + on) == Indices{0, 1, 2, 4, 5, 6});
  CHECK(full(4, smollm3 + R"(,"no_rope_layers":[0,1,1,0],"sliding_window":64)" + on) ==
        Indices{1, 2});
  const std::string llama4 = R"("model_type":"llama4_text")";
  CHECK(model_of(4, llama4).layers[0].window == 8192);
  CHECK(full(4, llama4 + R"(,"attention_chunk_size":null)").size() == 4);
  CHECK_FALSE(model_of(1, llama4 + R"(,"layer_types":["chunked_attention"],)"
                                   R"("attention_chunk_size":null)")
                  .layers[0]
                  .window.has_value());
  const ModelConfig recurrent =
      model_of(3, R"("model_type":"recurrent_gemma","block_types":["recurrent","attention"])");
  CHECK(recurrent.layers[1].window == 2048);
}

TEST_CASE("multi-token prediction: modules of MiniMax-M2, patterns of Nemotron-H") {
  const auto mtp = [](const std::string& fields) { return model_of(2, fields).mtp_layers; };
  CHECK(mtp(R"("num_mtp_modules":3,"mtp_transformer_layers":1,"use_mtp":true)") ==
        Indices{2, 3, 4});
  CHECK(mtp(R"("num_mtp_modules":2,"mtp_transformer_layers":2)") == Indices{2, 3, 4, 5});
  CHECK(mtp(R"("num_mtp_modules":3,"use_mtp":false)").empty());
  CHECK(mtp(R"("mtp_hybrid_override_pattern":"*E")") == Indices{2, 3});
  refuse(2, R"("num_mtp_modules":-1)", ErrorCode::format, "num_mtp_modules is -1");
  refuse(2, R"("num_mtp_modules":200,"mtp_transformer_layers":51)", ErrorCode::format,
         "num_mtp_modules is 200 of 51");
  for (const std::string bad : {"QQ", "*E\\n", "* E"}) {
    refuse(2, R"("mtp_hybrid_override_pattern":")" + bad + '"', ErrorCode::format,
           "mtp_hybrid_override_pattern[");
  }
  refuse(2, R"("mtp_hybrid_override_pattern":"")", ErrorCode::format, "has 0 characters");
}

TEST_CASE("Nemotron-H's list of types wins over a stale number of layers") {
  for (const std::string field : {"layers_block_type", "layer_types"}) {
    const std::string types = '"' + field + R"(":["linear_attention","moe","full_attention"])";
    const ModelConfig model = model_of(52, R"("model_type":"nemotron_h",)" + types);
    CHECK(model.num_layers() == 3);
    CHECK(model.full_attention_layers() == Indices{2});
    CHECK(mentions(model.notes.front(), field + " has 3 layers and num_hidden_layers says 52"));
    CHECK(model_of(3, R"("model_type":"nemotron_h",)" + types).num_layers() == 3);
    refuse(52, types, ErrorCode::format, "expected num_hidden_layers = 52");
  }
}

TEST_CASE("fields that a class does not read") {
  // Falcon-H1 attends in every layer, whatever the list says.
  for (const std::string list : {"[1]", "[]", "null"}) {
    CHECK(model_of(4, R"("model_type":"falcon_h1","attn_layer_indices":)" + list)
              .full_attention_layers()
              .size() == 4);
  }
  // Engines keep windowed caches for any class whose file states a window.
  const ModelConfig llama = model_of(2, R"("model_type":"llama","sliding_window":64)");
  CHECK(llama.layers[0].window == 64);
  CHECK(mentions(llama.notes.front(), "no field of the class of llama"));
  CHECK(parse_model_config(R"({"model_type":"xlstm","num_blocks":3})").num_layers() == 3);
  for (const std::string& note :
       model_of(2, R"("cross_attention_layers":[],"dtype":"bfloat16")").notes) {
    CHECK_FALSE(mentions(note, "cross_attention_layers"));
  }
}

TEST_CASE("Falcon-H1's, Jamba's and Zamba's widths come from their classes too") {
  const ModelConfig falcon = parse_model_config(R"({"model_type":"falcon_h1"})");
  CHECK(falcon.num_layers() == 32);
  CHECK(falcon.layers[0].num_kv_heads == 8);
  CHECK(parse_model_config(R"({"model_type":"zamba"})").layers[2].head_size == 464);
  CHECK(parse_model_config(R"({"model_type":"jamba"})").layers[4].num_kv_heads == 8);
}

TEST_CASE("a missing number of KV heads is the class's where that is known") {
  struct Case {
    std::string type;
    std::int64_t num_kv_heads;
  };
  // What the classes of transformers 5.24.0 take for files that state other numbers of query heads.
  const std::vector<Case> cases{{"bamba", 8},
                                {"beam", 8},
                                {"chameleon", 32},
                                {"cosmos3_edge_text", 8},
                                {"csm", 8},
                                {"csm_depth_decoder_model", 2},
                                {"cwm", 8},
                                {"dbrx", 1},
                                {"diffusion_gemma_text", 4},
                                {"dory", 4},
                                {"dots1", 32},
                                {"emu3_text_model", 8},
                                {"ernie4_5_vl_moe_text", 4},
                                {"evolla", 8},
                                {"exaone", 8},
                                {"exaone_moe", 32},
                                {"flint", 4},
                                {"glm4v_moe_text", 8},
                                {"glm4v_text", 2},
                                {"glm_image_text", 2},
                                {"glm_ocr_text", 8},
                                {"granite_docling_text", 4},
                                {"granite_swa", 4},
                                {"helium", 20},
                                {"higgs_audio_v2", 8},
                                {"hy_v3", 8},
                                {"inkling2_loop_text", 8},
                                {"inkling2_text", 8},
                                {"inkling_text", 8},
                                {"internlm3", 2},
                                {"iquestcoder", 8},
                                {"jetmoe", 16},
                                {"kolibri1", 4},
                                {"laguna", 8},
                                {"lara_mini", 4},
                                {"lfm3", 4},
                                {"mellum", 4},
                                {"mimo_v2_flash", 4},
                                {"minimax_m3_vl_text", 4},
                                {"molmo2_text", 8},
                                {"muse_glimmer_assistant", 8},
                                {"muse_glimmer_text", 2},
                                {"muse_spark_text", 16},
                                {"neomme", 4},
                                {"paddleocr_vl_text", 2},
                                {"phi4_multimodal", 8},
                                {"qwen2_5_omni_talker", 4},
                                {"qwen3_omni_moe_talker_code_predictor", 8},
                                {"qwen3_omni_moe_talker_text", 2},
                                {"qwen3_omni_moe_text", 4},
                                {"qwen4_exp_text", 2},
                                {"sarvam_moe", 4},
                                {"solar_open", 8},
                                {"voxtral_realtime_text", 8},
                                {"zaya", 2}};
  for (const Case& c : cases) {
    CAPTURE(c.type);
    const std::int64_t queries = 6 * c.num_kv_heads;
    const std::string fields = R"("layer_types":["full_attention"],"head_dim":64,"model_type":")" +
                               c.type + R"(","num_attention_heads":)" + std::to_string(queries);
    const auto kv_heads = [&](const std::string& more) {
      const ModelConfig model = model_of(1, R"("dtype":"bfloat16",)" + fields + more);
      CHECK(model.notes.size() == (c.type.substr(0, 8) == "inkling2" ? 1 : 0));
      return *model.layers[0].num_kv_heads;
    };
    CHECK(kv_heads("") == c.num_kv_heads);
    CHECK(kv_heads(R"(,"num_key_value_heads":3)") == 3);
    CHECK(kv_heads(R"(,"num_key_value_heads":null)") == queries);
  }
  // Solar Open as far as its class goes.
  const ModelConfig solar = parse_model_config(R"({"model_type":"solar_open"})");
  CHECK(solar.num_layers() == 48);
  CHECK(solar.num_attention_heads == 64);
  CHECK(solar.layers[47].num_kv_heads == 8);
  CHECK(solar.layers[47].head_size == 128);
  // Windowed layers of Inkling have a number of their own.
  for (const Case& c : std::vector<Case>{{"inkling_text", 16}, {"inkling2_text", 8}}) {
    const std::string inkling = R"("layer_types":["hybrid_sliding"],"num_attention_heads":64,)"
                                R"("num_key_value_heads":4,"model_type":")" +
                                c.type + '"';
    CHECK(model_of(1, inkling).layers[0].num_kv_heads == c.num_kv_heads);
    CHECK(model_of(1, inkling + R"(,"swa_num_key_value_heads":2)").layers[0].num_kv_heads == 2);
  }
}

TEST_CASE("KV heads that neither file nor class gives are noted") {
  const auto notes = [](const std::string& fields) {
    std::int64_t count = 0;
    for (const std::string& note : model_of(2, R"("num_attention_heads":16,)" + fields).notes) {
      count += mentions(note, "states no number of KV heads: 16, as many as query heads") ? 1 : 0;
    }
    return count;
  };
  for (const std::string type : {"llama", "gpt2", "bloom", "gpt_neox", "opt", "olmo", "phi",
                                 "arcee", "apertus", "hunyuan_v1_dense", "nemotron"}) {
    CAPTURE(type);
    const std::string known = R"("model_type":")" + type + '"';
    CHECK(model_of(2, known + R"(,"num_attention_heads":16)").layers[0].num_kv_heads == 16);
    CHECK(notes(known) == 0);
  }
  for (const std::string type : {"", "baichuan", "no_such_model"}) {
    CAPTURE(type);
    const std::string unknown = R"("model_type":")" + type + '"';
    CHECK(model_of(2, unknown + R"(,"num_attention_heads":16)").layers[0].num_kv_heads == 16);
    CHECK(notes(unknown) == 1);
    // Not where the file says it in another way, and not where no layer needs the number.
    for (const std::string more :
         {R"("num_key_value_heads":16)", R"("num_key_value_heads":null)", R"("multi_query":true)",
          R"("multi_query":false)", R"("multi_query_attention":false)",
          R"("attn_config":{"attn_type":"multihead_attention"})",
          R"("attn_config":{"kv_n_heads":4})", R"("num_key_value_heads":[16,4])",
          R"("kv_lora_rank":512,"qk_rope_head_dim":64)", R"("layer_types":["mamba","mlp"])"}) {
      CAPTURE(more);
      CHECK(notes(unknown + "," + more) == 0);
    }
  }
  // Without query heads there is nothing to assume: a plan says what is missing.
  CHECK_FALSE(model_of(2, R"("model_type":"no_such_model")").layers[0].num_kv_heads.has_value());
}

TEST_CASE("full layers of DiffusionGemma are wider, and its last layer is full") {
  const std::string types = R"("model_type":"diffusion_gemma_text","num_attention_heads":8,)"
                            R"("layer_types":["full_attention","sliding_attention",)"
                            R"("sliding_attention"])";
  const ModelConfig model = model_of(3, types);
  CHECK(model.full_attention_layers() == Indices{0, 2});
  CHECK(model.layers[0].head_size == 512);
  CHECK(model.layers[1].head_size == 256);
  CHECK(model.layers[1].window == 512);
  CHECK(model_of(3, types + R"(,"num_global_key_value_heads":2)").layers[0].num_kv_heads == 2);
  CHECK(model_of(3, types + R"(,"per_layer_config":{"0":{"head_dim":384}})").layers[0].head_size ==
        384);
}

TEST_CASE("EmbeddingGemma 2 and the privacy filter see both directions") {
  for (const std::string type :
       {"embedding_gemma2", "embedding_gemma2_text", "openai_privacy_filter"}) {
    refuse(2, R"("layer_types":["full_attention","full_attention"],"model_type":")" + type + '"',
           ErrorCode::unsupported, "attention sees both directions");
  }
}
