#include "model/hf_config_models.hpp"

#include <turboquant/model/hf_config.hpp>
#include <turboquant/model/layer_class.hpp>

#include <doctest/doctest.h>

#include <sys/stat.h>
#include <support/error_of.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::every;
using turboquant::test::Indices;
using turboquant::test::mentions;

namespace {

Indices full_layers(const std::string& text) {
  return parse_model_config(text).full_attention_layers();
}

std::string rule(const std::string& text) {
  return parse_model_config(text).layer_rule;
}

nlohmann::json golden_models() {
  std::ifstream file(TURBOQUANT_TEST_DATA_DIR "/model/hybrid_models.json");
  return nlohmann::json::parse(file);
}

}  // namespace

TEST_CASE("full-attention layers of real configurations") {
  const nlohmann::json models = golden_models();
  REQUIRE(models.size() == 19);
  for (const auto& entry : models) {
    CAPTURE(entry["model"].get<std::string>());
    const ModelConfig model = parse_model_config(entry["config"].dump());
    CHECK(model.is_hybrid() == entry["is_hybrid"].get<bool>());
    CHECK(model.full_attention_layers() == entry["full_attention_layers"].get<Indices>());
    CHECK_FALSE(model.layer_rule.empty());
  }
}

TEST_CASE("a nested text_config reads like the same fields at the root") {
  for (const auto& entry : golden_models()) {
    CAPTURE(entry["model"].get<std::string>());
    const nlohmann::json& config = entry["config"];
    const nlohmann::json inner = config.contains("text_config") ? config["text_config"] : config;
    // The same names at the root and in the vision tower must not be read.
    const nlohmann::json wrapped = {
        {"text_config", inner},
        {"model_type", config.value("model_type", "")},
        {"num_hidden_layers", 27},
        {"head_dim", 3},
        {"vision_config", {{"num_hidden_layers", 5}, {"layer_types", 1}}}};
    const ModelConfig nested = parse_model_config(wrapped.dump());
    const ModelConfig plain = parse_model_config(config.dump());
    CHECK(nested.full_attention_layers() == plain.full_attention_layers());
    CHECK(nested.layer_rule == plain.layer_rule);
    CHECK(nested.layers.front().head_size == plain.layers.front().head_size);
  }
  CHECK(full_layers(R"({"llm_config":{"num_hidden_layers":2},"num_hidden_layers":9})").size() == 2);
  CHECK(full_layers(R"({"thinker_config":{"text_config":{"num_hidden_layers":3}}})").size() == 3);
}

TEST_CASE("each answer names the rule that produced it") {
  CHECK(rule(R"({"num_hidden_layers":2,"layer_types":["full_attention","mamba"]})") ==
        "layer_types");
  CHECK(rule(R"({"num_hidden_layers":8,"full_attention_interval":4})") ==
        "full_attention_interval");
  CHECK(mentions(rule(R"({"model_type":"qwen3_next","num_hidden_layers":8})"), "default"));
  CHECK(mentions(rule(R"({"model_type":"falcon_h1","num_hidden_layers":8})"), "falcon_h1"));
  CHECK(rule(R"({"num_hidden_layers":8})") == "dense");
}

TEST_CASE("Qwen3-Next and Qwen3.5") {
  const std::string sizes = R"("num_attention_heads":16,"num_key_value_heads":2,"head_dim":256)";
  for (const std::string interval : {R"("full_attention_interval":4,)", ""}) {
    const ModelConfig model = parse_model_config(R"({"model_type":"qwen3_next",)" + interval +
                                                 R"("num_hidden_layers":48,)" + sizes + "}");
    CHECK(model.full_attention_layers() == every(3, 4, 48));
    LayerCacheOptions options;
    options.recurrent_state_bytes = 1;
    std::int64_t per_token = 0;
    for (const LayerClass& c : classify_layers(assign_layer_caches(model, options))) {
      per_token += c.num_layers() * c.bytes_per_token;
    }
    CHECK(per_token == 24576);
  }
  const auto qwen = [](int layers) {
    return R"({"text_config":{"num_hidden_layers":)" + std::to_string(layers) +
           R"(,"full_attention_interval":4,"layer_types":null},"vision_config":{"num_hidden_layers":27}})";
  };
  CHECK(full_layers(qwen(40)) == every(3, 4, 40));
  CHECK(full_layers(qwen(64)).size() == 16);
}

TEST_CASE("interval corner cases") {
  const auto interval = [](const std::string& layers, const std::string& value) {
    return R"({"num_hidden_layers":)" + layers + R"(,"full_attention_interval":)" + value + "}";
  };
  CHECK(full_layers(interval("30", "4")) == every(3, 4, 30));
  CHECK(full_layers(interval("3", "4")).empty());
  CHECK(parse_model_config(interval("3", "4")).attention_presence() == AttentionPresence::none);
  CHECK(full_layers(interval("5", "1")) == every(0, 1, 5));
  for (const std::string bad : {"0", "-4", "\"4\"", "4.0", "true", "[]", "NaN"}) {
    CHECK(mentions(error_of(ErrorCode::format, [&] { (void)full_layers(interval("8", bad)); }),
                   "full_attention_interval is"));
  }
}

TEST_CASE("Jamba and Zamba periods") {
  const auto jamba = [](const std::string& period, const std::string& offset) {
    return R"({"model_type":"jamba","num_hidden_layers":32,"attn_layer_period":)" + period +
           R"(,"attn_layer_offset":)" + offset + "}";
  };
  CHECK(full_layers(jamba("8", "4")) == Indices{4, 12, 20, 28});
  CHECK(full_layers(R"({"model_type":"jamba","num_hidden_layers":32})") == Indices{4, 12, 20, 28});
  error_of(ErrorCode::format, [&] { (void)full_layers(jamba("8", "8")); });
  error_of(ErrorCode::format, [&] { (void)full_layers(jamba("0", "0")); });
  error_of(ErrorCode::format, [&] { (void)full_layers(jamba("8", "-1")); });
  const ModelConfig zamba = parse_model_config(
      R"({"model_type":"zamba","num_hidden_layers":20,"attn_layer_period":6,"attn_layer_offset":4})");
  CHECK(zamba.full_attention_layers() == Indices{2, 7, 13, 19});
  CHECK(zamba.recurrent_layers().size() == 20);
}

TEST_CASE("MiniMax lists and the parity of its class") {
  const auto list = [](const std::string& values) {
    return R"({"num_hidden_layers":3,"attn_type_list":[)" + values + "]}";
  };
  CHECK(full_layers(list("0,1,1")) == Indices{1, 2});
  CHECK(full_layers(R"({"model_type":"minimax","num_hidden_layers":8})") == Indices{0, 2, 4, 6});
  for (const std::string bad : {"0,1,2", "0,1,\"1\"", "0,1", "0,1,1,1", "", "0,1,null", "0,1,-1"}) {
    error_of(ErrorCode::format, [&] { (void)full_layers(list(bad)); });
  }
}

TEST_CASE("Nemotron-H patterns") {
  const auto pattern = [](const std::string& text, const std::string& more) {
    return R"({"hybrid_override_pattern":")" + text + "\"" + more + "}";
  };
  const std::string nemotron = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-";
  CHECK(full_layers(pattern(nemotron, R"(,"num_hidden_layers":52)")) == Indices{7, 18, 29, 40});
  const ModelConfig shorter = parse_model_config(
      pattern("MEM*EME-", R"(,"num_hidden_layers":9,"mtp_hybrid_override_pattern":"*E")"));
  CHECK(shorter.full_attention_layers() == Indices{3});
  CHECK(shorter.num_layers() == 8);
  REQUIRE_FALSE(shorter.notes.empty());
  CHECK(mentions(shorter.notes.front(), "num_hidden_layers says 9"));
  CHECK(shorter.mtp_layers == Indices{8, 9});
  CHECK(mentions(error_of(ErrorCode::format, [&] { (void)full_layers(pattern("MX*", "")); }),
                 "[1] is 'X'"));
  error_of(ErrorCode::format, [&] { (void)full_layers(pattern("", "")); });
}

TEST_CASE("index lists: Bamba, LFM2, Zamba2") {
  const auto bamba = [](const std::string& list) {
    return R"({"model_type":"bamba","num_hidden_layers":32,"attn_layer_indices":)" + list + "}";
  };
  CHECK(full_layers(bamba("[9,18,27]")) == Indices{9, 18, 27});
  CHECK(full_layers(bamba("[27,9,18]")) == Indices{9, 18, 27});
  for (const std::string none : {"null", "[]"}) {
    const ModelConfig model = parse_model_config(bamba(none));
    CHECK(model.full_attention_layers().empty());
    CHECK(model.attention_presence() == AttentionPresence::none);
    CHECK(model.recurrent_layers().size() == 32);
  }
  for (const std::string bad : {"[32]", "[-1]", "[9,9]", "[9.0]", "[\"9\"]", "9", "{}"}) {
    error_of(ErrorCode::format, [&] { (void)full_layers(bamba(bad)); });
  }

  const Indices lfm2{2, 5, 8, 10, 12, 14};
  const std::string head = R"({"model_type":"lfm2","num_hidden_layers":16,)";
  CHECK(full_layers(head + R"("num_key_value_heads":[0,0,8,0,0,8,0,0,8,0,8,0,8,0,8,0]})") == lfm2);
  CHECK(full_layers(head + R"("full_attn_idxs":[2,5,8,10,12,14]})") == lfm2);
  CHECK(full_layers(head + R"("layer_types":["conv","conv","full_attention","conv","conv",)" +
                    R"("full_attention","conv","conv","full_attention","conv","full_attention",)" +
                    R"("conv","full_attention","conv","full_attention","conv"]})") == lfm2);
  CHECK(full_layers(head + R"("full_attn_idxs":null})") == every(0, 1, 16));

  const ModelConfig zamba2 = parse_model_config(
      R"({"model_type":"zamba2","num_hidden_layers":6,"hybrid_layer_ids":[1,4]})");
  CHECK(zamba2.full_attention_layers() == Indices{1, 4});
  CHECK(zamba2.recurrent_layers().size() == 6);
}

TEST_CASE("Falcon-H1 runs both in every layer") {
  const ModelConfig model = parse_model_config(
      R"({"model_type":"falcon_h1","num_hidden_layers":36,"num_attention_heads":12,)"
      R"("num_key_value_heads":2,"head_dim":128,"mamba_d_ssm":3072,"mamba_n_heads":24,)"
      R"("mamba_d_head":128,"mamba_n_groups":1,"mamba_d_state":256,"mamba_d_conv":4})");
  CHECK(model.full_attention_layers() == every(0, 1, 36));
  CHECK(model.recurrent_layers() == every(0, 1, 36));
  CHECK(recurrent_state_spec(*model.recurrent).page_size_bytes() == 1594368);
}

TEST_CASE("Granite 4") {
  const auto granite = [](const std::string& types, const std::string& attention) {
    std::string list;
    for (int i = 0; i < 40; ++i) {
      list += (i == 0 ? "\"" : ",\"") + (i % 10 == 5 ? attention : types) + "\"";
    }
    return R"({"model_type":"granitemoehybrid","num_hidden_layers":40,)"
           R"("attention_multiplier":0.015625,"layer_types":[)" +
           list + "]}";
  };
  CHECK(full_layers(granite("mamba", "attention")) == Indices{5, 15, 25, 35});
  CHECK(full_layers(granite("linear_attention", "full_attention")) == Indices{5, 15, 25, 35});
  CHECK(full_layers(granite("attention", "attention")) == every(0, 1, 40));
  CHECK_FALSE(parse_model_config(granite("attention", "attention")).is_hybrid());
  CHECK(parse_model_config(granite("mamba", "attention")).attention_scale == 0.015625);
  const ModelConfig none = parse_model_config(
      R"({"model_type":"granitemoehybrid","num_hidden_layers":40,"layer_types":null})");
  CHECK(none.full_attention_layers().empty());
  CHECK(none.attention_presence() == AttentionPresence::none);
}

TEST_CASE("window patterns") {
  const auto gemma = [](int layers, const std::string& more) {
    return R"({"model_type":"gemma3_text","num_hidden_layers":)" + std::to_string(layers) +
           R"(,"sliding_window":512,"num_attention_heads":4,"num_key_value_heads":1,"head_dim":256)" +
           more + "}";
  };
  const ModelConfig model = parse_model_config(gemma(26, R"(,"sliding_window_pattern":6)"));
  CHECK(model.full_attention_layers() == Indices{5, 11, 17, 23});
  CHECK(model.layers[0].attention == AttentionKind::sliding);
  CHECK(model.layers[0].window == 512);
  CHECK_FALSE(model.is_hybrid());
  CHECK(full_layers(gemma(34, R"(,"sliding_window_pattern":6)")) == Indices{5, 11, 17, 23, 29});
  CHECK(full_layers(gemma(34, "")) == Indices{5, 11, 17, 23, 29});
  CHECK(full_layers(gemma(2, R"(,"sliding_window_pattern":6,)"
                             R"("layer_types":["full_attention","sliding_attention"])")) ==
        Indices{0});
  error_of(ErrorCode::format,
           [&] { (void)full_layers(gemma(26, R"(,"sliding_window_pattern":0)")); });
  CHECK(full_layers(R"({"model_type":"exaone4","num_hidden_layers":9,"sliding_window":4096,)"
                    R"("sliding_window_pattern":"LLLG"})") == Indices{3, 7, 8});
  CHECK(full_layers(R"({"model_type":"gpt_oss","num_hidden_layers":4})") == Indices{1, 3});
  CHECK(full_layers(
            R"({"num_hidden_layers":3,"hybrid_layer_pattern":[0,1,1],"sliding_window":128})") ==
        Indices{0});
}

TEST_CASE("windows of dense models") {
  const ModelConfig mistral =
      parse_model_config(R"({"model_type":"mistral","num_hidden_layers":3,"sliding_window":4096})");
  CHECK(mistral.full_attention_layers().empty());
  CHECK(mistral.attention_presence() == AttentionPresence::windowed_only);
  CHECK(full_layers(R"({"model_type":"mistral","num_hidden_layers":3,"sliding_window":null})")
            .size() == 3);
  CHECK(full_layers(R"({"model_type":"qwen2","num_hidden_layers":3,"sliding_window":4096,)"
                    R"("use_sliding_window":false})")
            .size() == 3);
  CHECK(
      full_layers(R"({"model_type":"qwen2","num_hidden_layers":3,"sliding_window":4096})").size() ==
      3);
  CHECK(full_layers(R"({"model_type":"qwen2","num_hidden_layers":4,"sliding_window":4096,)"
                    R"("use_sliding_window":true,"max_window_layers":3})") == Indices{0, 1, 2});
}

TEST_CASE("Llama 4 chunks, SmolLM3 does not") {
  const ModelConfig llama =
      parse_model_config(R"({"text_config":{"model_type":"llama4_text","num_hidden_layers":8,)"
                         R"("no_rope_layer_interval":4,"attention_chunk_size":8192}})");
  CHECK(llama.full_attention_layers() == Indices{3, 7});
  CHECK(llama.layers[0].attention == AttentionKind::chunked);
  CHECK(llama.layers[0].window == 8192);
  CHECK(full_layers(R"({"model_type":"llama4_text","num_hidden_layers":4,)"
                    R"("no_rope_layers":[1,0,1,0]})") == Indices{1, 3});
  CHECK(full_layers(R"({"model_type":"llama4_text","num_hidden_layers":4,"no_rope_layers":[]})") ==
        Indices{3});
  CHECK(
      full_layers(R"({"model_type":"smollm3","num_hidden_layers":4,"no_rope_layers":[1,1,1,0]})") ==
      every(0, 1, 4));
}

TEST_CASE("PLaMo 2 and SambaY") {
  const auto plamo = [](int layers, const std::string& more) {
    return R"({"model_type":"plamo2","num_hidden_layers":)" + std::to_string(layers) + more + "}";
  };
  CHECK(full_layers(plamo(16, R"(,"mamba_step":2)")) == every(1, 2, 16));
  CHECK(full_layers(plamo(8, R"(,"mamba_step":4)")) == Indices{2, 6});
  CHECK(full_layers(plamo(2, R"(,"mamba_step":8)")) == Indices{1});
  CHECK(full_layers(plamo(4, R"(,"mamba_step":2,"mamba_enabled":false)")) == every(0, 1, 4));
  error_of(ErrorCode::format, [&] { (void)full_layers(plamo(4, R"(,"mamba_step":1)")); });

  CHECK(full_layers(R"({"num_hidden_layers":8,"mb_per_layer":2})") == every(1, 2, 8));
  const ModelConfig flash = parse_model_config(
      R"({"model_type":"phi4flash","num_hidden_layers":32,"mb_per_layer":2,"sliding_window":512})");
  CHECK(flash.full_attention_layers() == every(17, 2, 32));
  CHECK(flash.layers[1].attention == AttentionKind::sliding);
  CHECK_FALSE(flash.layers[17].kv_source.has_value());
  CHECK(flash.cache_owner(31) == 17);
  CHECK(flash.recurrent_layers() == every(0, 2, 18));
}

TEST_CASE("Kimi Linear lists count from one or from zero, told by membership") {
  const auto kimi = [](const std::string& full, const std::string& linear) {
    return R"({"num_hidden_layers":4,"linear_attn_config":{"full_attn_layers":)" + full +
           R"(,"kda_layers":)" + linear + "}}";
  };
  CHECK(full_layers(kimi("[4]", "[1,2,3]")) == Indices{3});
  CHECK(full_layers(kimi("[3]", "[0,1,2]")) == Indices{3});
  CHECK(full_layers(kimi("[2]", "[1,3,4]")) == Indices{1});
  CHECK(full_layers(kimi("[4,2]", "null")) == Indices{1, 3});
  const std::pair<std::string, std::string> bad_lists[] = {{"[4]", "[0,1,2]"}, {"[4]", "[1,2]"},
                                                           {"[4,4]", "[1,2]"}, {"[2]", "null"},
                                                           {"[5]", "[1,2,3]"}, {"[4]", "[1,2,4]"}};
  for (const auto& lists : bad_lists) {
    error_of(ErrorCode::format, [&] { (void)full_layers(kimi(lists.first, lists.second)); });
  }
  std::string linear;
  for (int i = 1; i <= 26; ++i) {
    linear += i % 4 == 0 ? "" : (linear.empty() ? "" : ",") + std::to_string(i);
  }
  const ModelConfig model = parse_model_config(
      R"({"model_type":"kimi_linear","num_hidden_layers":27,"head_dim":72,"kv_lora_rank":512,)"
      R"("qk_rope_head_dim":64,"qk_nope_head_dim":128,"v_head_dim":128,"num_attention_heads":32,)"
      R"("num_key_value_heads":32,"linear_attn_config":{"full_attn_layers":[4,8,12,16,20,24,27],)"
      R"("kda_layers":[)" +
      linear + R"(],"num_heads":32,"head_dim":128,"short_conv_kernel_size":4}})");
  CHECK(model.full_attention_layers() == Indices{3, 7, 11, 15, 19, 23, 26});
  CHECK(model.mla->latent_width() == 576);
  CHECK(model.mla->expanded_key_width() == 192);
  CHECK(model.mla->v_head_dim == 128);
  CHECK(model.layers[3].is_mla);
  CHECK(model.recurrent->kind == RecurrentKind::kimi_delta);
  const auto caches = assign_layer_caches(model, {});
  CHECK(std::get<MLAAttentionSpec>(caches[3].attention).head_size == 576);
}

TEST_CASE("the state of a hybrid comes from its file") {
  const ModelConfig model = parse_model_config(
      R"({"model_type":"qwen3_next","num_hidden_layers":8,"linear_num_key_heads":16,)"
      R"("linear_num_value_heads":32,"linear_key_head_dim":128,"linear_value_head_dim":128,)"
      R"("linear_conv_kernel_dim":4,"torch_dtype":"bfloat16"})");
  CHECK(recurrent_state_spec(*model.recurrent).page_size_bytes() == 2146304);
  const auto state = [](const std::string& text) {
    return recurrent_state_spec(*parse_model_config(text).recurrent).page_size_bytes();
  };
  CHECK(state(R"({"model_type":"jamba","num_hidden_layers":8,"hidden_size":4096,"mamba_expand":2,)"
              R"("mamba_d_state":16,"mamba_d_conv":4})") == 311296);
  CHECK(state(R"({"hybrid_override_pattern":"M*","mamba_num_heads":64,"mamba_head_dim":64,)"
              R"("n_groups":8,"ssm_state_size":128,"conv_kernel":4,)"
              R"("mamba_ssm_cache_dtype":"float32"})") == 2134016);
  CHECK(state(R"({"model_type":"bamba","num_hidden_layers":8,"attn_layer_indices":[1],)"
              R"("hidden_size":4096,"mamba_expand":2,"mamba_n_heads":128,"mamba_d_head":"auto",)"
              R"("mamba_n_groups":1,"mamba_d_state":128,"mamba_d_conv":4})") == 2147840);
  CHECK(state(R"({"model_type":"zamba2","num_hidden_layers":8,"hybrid_layer_ids":[1],)"
              R"("hidden_size":2560,"mamba_expand":2,"n_mamba_heads":80,"mamba_headdim":64,)"
              R"("mamba_ngroups":1,"mamba_d_state":64,"mamba_d_conv":4})") == 686848);
  CHECK(state(R"({"num_hidden_layers":2,"attn_type_list":[0,1],"num_attention_heads":64,)"
              R"("head_dim":128})") == 2097152);
  CHECK(state(R"({"model_type":"lfm2","num_hidden_layers":4,"full_attn_idxs":[2],)"
              R"("hidden_size":2048,"conv_L_cache":3})") == 8192);
}

TEST_CASE("a file or a directory is read; a missing one is an io error") {
  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() / "turboquant_hf_config_test";
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.json") << R"({"num_hidden_layers":7})";
  CHECK(load_model_config(directory).num_layers() == 7);
  CHECK(load_model_config(directory / "config.json").num_layers() == 7);
  // A name that goes on after a NUL is another name, and what has no end is no file.
  const std::filesystem::path cut = directory / std::string("config.json\0x", 13);
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)load_model_config(cut); }),
                 "with a NUL at its byte"));
  REQUIRE(mkfifo((directory / "pipe").c_str(), 0600) == 0);
  CHECK(mentions(error_of(ErrorCode::io, [&] { (void)load_model_config(directory / "pipe"); }),
                 "is not a regular file"));
  std::filesystem::remove_all(directory);
  CHECK(mentions(error_of(ErrorCode::io, [&] { (void)load_model_config(directory); }),
                 "cannot open"));
}
