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
