#include <turboquant/model/hf_config.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

using Indices = std::vector<std::int64_t>;

/// A four-layer model with `fields` after num_hidden_layers.
ModelConfig four_layers(const std::string& fields) {
  return parse_model_config(R"({"num_hidden_layers":4)" + (fields.empty() ? "" : "," + fields) +
                            "}");
}

void refuse(const std::string& fields, std::string_view part, ErrorCode code = ErrorCode::format) {
  CAPTURE(fields);
  const std::string message = error_of(code, [&] { (void)four_layers(fields); });
  CHECK_MESSAGE(mentions(message, part), message);
}

}  // namespace

TEST_CASE("an explicit null is an absent field, for every field that is read") {
  const ModelConfig model = four_layers(
      R"("text_config":null,"llm_config":null,"thinker_config":null,"layer_types":null,)"
      R"("layers_block_type":null,"attn_type_list":null,"hybrid_override_pattern":null,)"
      R"("hybrid_layer_pattern":null,"block_types":null,"linear_attn_config":null,)"
      R"("full_attn_idxs":null,"attn_layer_indices":null,"hybrid_layer_ids":null,)"
      R"("attn_layer_period":null,"attn_layer_offset":null,"mamba_step":null,"mb_per_layer":null,)"
      R"("full_attention_interval":null,"no_rope_layers":null,"no_rope_layer_interval":null,)"
      R"("sliding_window_pattern":null,"sliding_window":null,"block_configs":null,)"
      R"("num_key_value_heads":null,"head_dim":null,"num_global_key_value_heads":null,)"
      R"("global_head_dim":null,"num_kv_shared_layers":null,"kv_lora_rank":null,)"
      R"("num_nextn_predict_layers":null,"model_type":null,"torch_dtype":null,)"
      R"("mamba_d_state":null,"cross_attention_layers":null,"attention_multiplier":null,)"
      R"("mixer_types":null,"attention_layers":null,"attn":null,"layer_group_size":null,)"
      R"("sliding_window_layers":null,"global_attn_every_n_layers":null,"use_mla":null,)"
      R"("v_head_dim":null,"multi_query":null,"multi_query_attention":null,"attn_config":null,)"
      R"("num_attention_groups":null,"attention_other_setting":null,"num_kv_reuse_layers":null,)"
      R"("use_cla":null,"cla_share_factor":null,"attn_logit_softcapping":null,"index_topk":null,)"
      R"("full_attention_idx":null,"rope_scaling":null,"max_position_embeddings":null,)"
      R"("num_attention_heads":32,"hidden_size":4096)");
  CHECK(model.full_attention_layers() == Indices{0, 1, 2, 3});
  CHECK(model.layers[0].num_kv_heads == 32);
  CHECK(model.layers[0].head_size == 128);
  CHECK(model.layer_rule == "dense");
}

TEST_CASE("an explicit head_dim wins over hidden_size / heads") {
  const ModelConfig model =
      four_layers(R"("hidden_size":3584,"num_attention_heads":16,"head_dim":256)");
  CHECK(model.layers[0].head_size == 256);
  CHECK(four_layers(R"("hidden_size":3584,"num_attention_heads":16)").layers[0].head_size == 224);
  CHECK(four_layers(R"("hidden_size":2560,"num_attention_heads":32,"attention_head_dim":160)")
            .layers[0]
            .head_size == 160);
  refuse(R"("hidden_size":3584,"num_attention_heads":0)", "num_attention_heads is 0");
  refuse(R"("hidden_size":3584,"num_attention_heads":-16)", "num_attention_heads is -16");
  refuse(R"("num_attention_heads":16,"head_dim":0)", "head_dim is 0");
  refuse(R"("num_attention_heads":16,"head_dim":-1)", "head_dim is -1");
  refuse(R"("hidden_size":3585,"num_attention_heads":16)", "expected a multiple");
  refuse(R"("num_key_value_heads":0,"num_attention_heads":16)", "num_key_value_heads is 0");
}

TEST_CASE("a class's width and a file's number of heads that do not fit leave the width unknown") {
  for (const char* fields :
       {R"("model_type":"falcon_h1","num_attention_heads":12,"num_key_value_heads":2)",
        R"("model_type":"mistral","num_attention_heads":24)",
        R"("model_type":"mistral","hidden_size":4100)"}) {
    const ModelConfig model = four_layers(fields);
    CHECK(model.num_layers() == 4);
    for (const LayerConfig& layer : model.layers) {
      CHECK(layer.attention != AttentionKind::none);
      CHECK(layer.num_kv_heads.has_value());
      CHECK_FALSE(layer.head_size.has_value());
    }
  }
  // Where both are the file's, one of them is wrong.
  refuse(R"("model_type":"mistral","hidden_size":4100,"num_attention_heads":24)",
         "hidden_size 4100 and 24 attention heads and no head_dim, expected a multiple");
}

TEST_CASE("widths that the file does not give stay unknown") {
  const ModelConfig model = four_layers("");
  CHECK_FALSE(model.layers[0].head_size.has_value());
  CHECK_FALSE(model.layers[0].num_kv_heads.has_value());
}

TEST_CASE("widths per kind of layer") {
  const std::string types =
      R"("layer_types":["sliding_attention","sliding_attention","sliding_attention","full_attention"],)"
      R"("sliding_window":512,"num_attention_heads":8,"num_key_value_heads":4,"head_dim":256)";
  const ModelConfig global =
      four_layers(types + R"(,"global_head_dim":512,"num_global_key_value_heads":1)");
  CHECK(global.layers[0].head_size == 256);
  CHECK(global.layers[0].num_kv_heads == 4);
  CHECK(global.layers[3].head_size == 512);
  CHECK(global.layers[3].num_kv_heads == 1);
  CHECK(four_layers(types + R"(,"global_head_dim":512,"num_global_key_value_heads":null)")
            .layers[3]
            .num_kv_heads == 4);
  const ModelConfig mimo = parse_model_config(
      R"({"num_hidden_layers":2,"hybrid_layer_pattern":[0,1],"sliding_window":128,"head_dim":192,)"
      R"("v_head_dim":128,"num_attention_heads":64,"num_key_value_heads":4,"swa_head_dim":96,)"
      R"("swa_v_head_dim":64,"swa_num_key_value_heads":8})");
  CHECK(mimo.layers[0].head_size == 192);
  CHECK(mimo.layers[0].head_size_v == 128);
  CHECK(mimo.layers[1].head_size == 96);
  CHECK(mimo.layers[1].head_size_v == 64);
  CHECK(mimo.layers[1].num_kv_heads == 8);
}

TEST_CASE("KV heads per layer") {
  const ModelConfig elm =
      parse_model_config(R"({"model_type":"openelm","num_transformer_layers":20,"head_dim":64,)"
                         R"("num_kv_heads":[3,3,3,4,4,4,4,4,4,4,5,5,5,5,5,5,6,6,6,6]})");
  REQUIRE(elm.full_attention_layers().size() == 20);
  std::int64_t elements = 0;
  for (const LayerConfig& layer : elm.layers) {
    elements += 2 * *layer.num_kv_heads * *layer.head_size;
  }
  CHECK(elements == 11648);
  refuse(R"("num_key_value_heads":[8,8,8])", "has 3 entries");
  refuse(R"("num_key_value_heads":[8,8,-8,8])", "num_key_value_heads[2] is -8");
  refuse(R"("num_key_value_heads":[8,0,8,8],"layer_types":["full_attention","full_attention",)"
         R"("full_attention","full_attention"])",
         "num_key_value_heads[1] is 0");
  const ModelConfig nas = four_layers(
      R"("num_attention_heads":64,"hidden_size":8192,"block_configs":[)"
      R"({"attention":{"n_heads_in_group":8}},{"attention":{"no_op":true,"n_heads_in_group":null}},)"
      R"({"attention":{"replace_with_linear":true}},{"attention":{"n_heads_in_group":16}}])");
  CHECK(nas.full_attention_layers() == Indices{0, 3});
  CHECK_FALSE(nas.is_hybrid());
  CHECK(nas.layers[0].num_kv_heads == 8);
  CHECK(nas.layers[3].num_kv_heads == 4);
}

TEST_CASE("multi-query spellings") {
  CHECK(four_layers(R"("num_attention_heads":71,"multi_query":true)").layers[0].num_kv_heads == 1);
  CHECK(four_layers(R"("num_attention_heads":128,"multi_query":true,"num_kv_heads":8,)"
                    R"("new_decoder_architecture":true)")
            .layers[0]
            .num_kv_heads == 8);
  CHECK(parse_model_config(R"({"n_layers":4,"n_heads":48,"d_model":6144,)"
                           R"("attn_config":{"kv_n_heads":8}})")
            .layers[0]
            .num_kv_heads == 8);
}

TEST_CASE("layers that share an earlier cache") {
  const std::string types =
      R"("layer_types":["sliding_attention","full_attention","sliding_attention","full_attention"],)"
      R"("sliding_window":512)";
  const ModelConfig model = four_layers(types + R"(,"num_kv_shared_layers":2)");
  CHECK(model.cache_owner(2) == 0);
  CHECK(model.cache_owner(3) == 1);
  CHECK(model.full_attention_layers() == Indices{1, 3});
  refuse(types + R"(,"num_kv_shared_layers":3)", "expected an earlier full layer");
  refuse(types + R"(,"num_kv_shared_layers":4)", "num_kv_shared_layers is 4");
  refuse(types + R"(,"num_kv_shared_layers":-1)", "num_kv_shared_layers is -1");
}

TEST_CASE("multi-token-prediction layers stay apart") {
  const ModelConfig model = parse_model_config(
      R"({"model_type":"qwen3_next","num_hidden_layers":48,"num_nextn_predict_layers":1})");
  CHECK(model.num_layers() == 48);
  CHECK(model.full_attention_layers().size() == 12);
  CHECK(model.mtp_layers == Indices{48});
  // A list that names them too is cut to the main stack.
  const ModelConfig listed = parse_model_config(
      R"({"num_hidden_layers":2,"num_nextn_predict_layers":1,)"
      R"("layer_types":["sliding_attention","full_attention","full_attention"],"sliding_window":64})");
  CHECK(listed.full_attention_layers() == Indices{1});
  CHECK(listed.mtp_layers == Indices{2});
  refuse(R"("layer_types":["full_attention","mamba","mamba"])", "has 3 entries");
  refuse(R"("layer_types":["mamba","mamba","mamba","mamba","full_attention"])", "has 5 entries");
  refuse(R"("layer_types":[])", "has 0 entries");
  refuse(R"("num_nextn_predict_layers":-1)", "num_nextn_predict_layers");
}

TEST_CASE("layer-type names map to documented classes; unknown ones are errors") {
  const auto one = [](const std::string& name) {
    return parse_model_config(R"({"num_hidden_layers":1,"layer_types":[")" + name + "\"]}")
        .layers[0];
  };
  for (const std::string name : {"full_attention", "attention", "global_attention"}) {
    CHECK(one(name).attention == AttentionKind::full);
    CHECK_FALSE(one(name).is_sparse);
  }
  for (const std::string name :
       {"indexed_attention", "deepseek_sparse_attention", "minimax_m3_sparse"}) {
    CHECK(one(name).attention == AttentionKind::full);
    CHECK(one(name).is_sparse);
    const ModelConfig model =
        parse_model_config(R"({"num_hidden_layers":1,"layer_types":[")" + name + "\"]}");
    CHECK(mentions(model.notes.front(), "indexer"));
  }
  CHECK(one("sliding_attention").attention == AttentionKind::sliding);
  CHECK(one("chunked_attention").attention == AttentionKind::chunked);
  CHECK(one("hybrid").attention == AttentionKind::full);
  CHECK(one("hybrid").has_recurrent_state);
  CHECK(one("hybrid_sliding").attention == AttentionKind::sliding);
  CHECK(one("hybrid_sliding").has_recurrent_state);
  for (const std::string name : {"linear_attention", "mamba", "mamba2", "conv", "recurrent"}) {
    CHECK(one(name).attention == AttentionKind::none);
    CHECK(one(name).has_recurrent_state);
  }
  for (const std::string name : {"mlp", "moe"}) {
    CHECK(one(name).attention == AttentionKind::none);
    CHECK_FALSE(one(name).has_recurrent_state);
  }
  for (const std::string name : {"foo_attention", "", "Full_Attention", "full_attention "}) {
    const std::string message = error_of(ErrorCode::unsupported, [&] { (void)one(name); });
    CHECK(mentions(message, "layer_types[0] is \"" + name + '"'));
  }
}

TEST_CASE("a hybrid whose attention layers nothing names is refused") {
  for (const std::string fields :
       {R"("mamba_d_state":128)", R"("linear_num_value_heads":32)", R"("conv_L_cache":3)",
        R"("ssm_state_size":128)", R"("lru_width":2560)", R"("model_type":"nemotron_h")",
        R"("model_type":"minimax_text_01")", R"("model_type":"kimi_linear")",
        R"("model_type":"zamba2")", R"("linear_attn_config":{"kda_layers":[1]})",
        R"("state_size":16,"model_type":"new_hybrid","num_attention_heads":8)"}) {
    CAPTURE(fields);
    const std::string message =
        error_of(ErrorCode::unsupported, [&] { (void)four_layers(fields); });
    CHECK(mentions(message, "nothing that names its attention layers"));
    for (const std::string_view looked_for :
         {"layer_types", "layers_block_type", "mixer_types", "attention_layers",
          "sliding_window_layers", "attn.layers", "layer_group_size", "attn_type_list",
          "hybrid_override_pattern", "linear_attn_config", "full_attn_idxs", "attn_layer_indices",
          "hybrid_layer_ids", "attn_layer_period", "mamba_step", "mb_per_layer",
          "full_attention_interval"}) {
      CHECK(mentions(message, looked_for));
    }
  }
}

TEST_CASE("dense and attention-free models") {
  const ModelConfig llama = parse_model_config(
      R"({"model_type":"llama","num_hidden_layers":32,"num_attention_heads":32,"hidden_size":4096})");
  CHECK(llama.full_attention_layers().size() == 32);
  CHECK(llama.attention_presence() == AttentionPresence::full);
  for (const std::string type : {"mamba", "mamba2", "falcon_mamba", "rwkv"}) {
    const ModelConfig model = four_layers(R"("model_type":")" + type + R"(","state_size":16)");
    CHECK(model.full_attention_layers().empty());
    CHECK(model.attention_presence() == AttentionPresence::none);
    CHECK(model.recurrent_layers().size() == 4);
  }
  const ModelConfig gemma = four_layers(
      R"("model_type":"recurrent_gemma","block_types":["recurrent","recurrent","attention"],)"
      R"("attention_window_size":2048,"lru_width":2560)");
  CHECK(gemma.attention_presence() == AttentionPresence::windowed_only);
  CHECK(gemma.layers[2].window == 2048);
  CHECK(gemma.recurrent_layers() == Indices{0, 1, 3});
  const ModelConfig vision = four_layers(R"("cross_attention_layers":[1,3])");
  CHECK(vision.full_attention_layers() == Indices{0, 2});
  CHECK_FALSE(vision.notes.empty());
}

TEST_CASE("latent attention") {
  const ModelConfig model = four_layers(
      R"("kv_lora_rank":512,"qk_rope_head_dim":64,"num_attention_heads":128,"hidden_size":7168)");
  CHECK(model.mla->latent_width() == 576);
  CHECK(model.layers[3].is_mla);
  refuse(R"("kv_lora_rank":512)", "no qk_rope_head_dim");
  refuse(R"("kv_lora_rank":0,"qk_rope_head_dim":64)", "kv_lora_rank is 0");
  refuse(R"("kv_lora_rank":512,"qk_rope_head_dim":-64)", "qk_rope_head_dim is -64");
}

TEST_CASE("element type and scale") {
  CHECK(four_layers(R"("torch_dtype":"float16")").dtype == CacheDType::float16);
  CHECK(four_layers(R"("dtype":"float32","torch_dtype":"float16")").dtype == CacheDType::float32);
  CHECK(parse_model_config(R"({"text_config":{"num_hidden_layers":1},"torch_dtype":"float16"})")
            .dtype == CacheDType::float16);
  const ModelConfig assumed = four_layers(R"("torch_dtype":"auto")");
  CHECK(assumed.dtype == CacheDType::bfloat16);
  CHECK(mentions(assumed.notes.back(), "auto"));
  CHECK(four_layers("").notes.size() == 1);
  CHECK(four_layers(R"("query_pre_attn_scalar":256)").attention_scale == 1.0 / 16.0);
  CHECK_FALSE(four_layers("").attention_scale.has_value());
  refuse(R"("query_pre_attn_scalar":-256)", "query_pre_attn_scalar");
  refuse(R"("attention_multiplier":NaN)", "attention_multiplier is");
  refuse(R"("attention_multiplier":"0.5")", "attention_multiplier is");
  for (const std::string value : {"0", "0.0", "-0.5", "1e-320", "1e300"}) {
    refuse(R"("attention_multiplier":)" + value, "attention_multiplier is");
    refuse(R"("query_pre_attn_scalar":)" + value, "query_pre_attn_scalar is");
  }
}

TEST_CASE("query heads come in whole groups per KV head") {
  refuse(R"("num_attention_heads":32,"num_key_value_heads":7)",
         "num_attention_heads = 32 and num_key_value_heads = 7");
  refuse(R"("num_attention_heads":16,"num_key_value_heads":64)",
         "num_attention_heads = 16 and num_key_value_heads = 64");
  refuse(R"("num_attention_heads":32,"num_key_value_heads":[8,8,7,8])", "gives layer 2 ");
  refuse(R"("num_query_heads":[12,12,16,16],"num_kv_heads":[3,5,4,4])", "gives layer 1 ");
  refuse(R"("num_query_heads":[12],"num_kv_heads":[3,3,4,4])", "num_query_heads has 1 entries");
  // OpenELM lists both; MLA has no KV heads to divide.
  CHECK(four_layers(R"("num_query_heads":[12,12,16,16],"num_kv_heads":[3,3,4,4])")
            .layers[3]
            .num_kv_heads == 4);
  CHECK(four_layers(R"("num_attention_heads":25,"num_key_value_heads":5)").layers[0].num_kv_heads ==
        5);
  CHECK(four_layers(R"("kv_lora_rank":512,"qk_rope_head_dim":64,"num_attention_heads":32,)"
                    R"("num_key_value_heads":7)")
            .layers[0]
            .is_mla);
}

TEST_CASE("models with an encoder and a decoder are refused by name") {
  const auto unsupported = [](const std::string& fields, std::string_view part) {
    refuse(fields, part, ErrorCode::unsupported);
  };
  // As published: Whisper, BART, FLAN-T5.
  unsupported(R"("model_type":"whisper","is_encoder_decoder":true,"decoder_layers":4)",
              "has is_encoder_decoder");
  unsupported(R"("model_type":"bart","decoder_layers":12,"encoder_layers":12,"d_model":1024)",
              "has decoder_layers");
  unsupported(R"("model_type":"t5","d_kv":64,"num_heads":6,"d_model":512)", "has d_kv");
  unsupported(R"("num_decoder_layers":6)", "has num_decoder_layers");
  unsupported(R"("model_type":"gpt2","add_cross_attention":true)", "has add_cross_attention");
  for (const std::string type : {"t5", "whisper", "mbart", "t5gemma", "vision-encoder-decoder"}) {
    unsupported(R"("model_type":")" + type + '"', "has model_type " + type);
    const std::string nested = error_of(ErrorCode::unsupported, [&] {
      (void)parse_model_config(R"({"text_config":{"num_hidden_layers":2,"model_type":")" + type +
                               R"("}})");
    });
    CHECK(mentions(nested, "text_config has model_type " + type));
  }
  CHECK(four_layers(R"("is_encoder_decoder":false,"add_cross_attention":false)").num_layers() == 4);
}

TEST_CASE("models whose attention sees both directions are refused by name") {
  for (const std::string type : {"bert", "xlm-roberta", "modernbert", "distilbert", "nomic_bert"}) {
    refuse(R"("model_type":")" + type + '"', "has model_type " + type, ErrorCode::unsupported);
  }
  CHECK(four_layers(R"("model_type":"bert","is_decoder":true)").full_attention_layers().size() ==
        4);
  refuse(R"("model_type":"llama","is_causal":false)", "has is_causal", ErrorCode::unsupported);
  for (const std::string both : {"true", "\"all\""}) {
    refuse(R"("is_causal":true,"use_bidirectional_attention":)" + both,
           "has use_bidirectional_attention", ErrorCode::unsupported);
  }
  for (const std::string causal : {"false", "\"vision\"", "null"}) {
    CHECK(four_layers(R"("use_bidirectional_attention":)" + causal).num_layers() == 4);
  }
}

TEST_CASE("a language model in an object of another name is not passed over") {
  for (const std::string name :
       {"llm_cfg", "language_model_config", "lm_config", "decoder", "language_model"}) {
    refuse('"' + name + R"(":{"num_hidden_layers":24,"num_key_value_heads":2})",
           "config." + name + " has layers of its own", ErrorCode::unsupported);
  }
  refuse(R"("someones_text":{"n_layers":24,"vocab_size":32000})",
         "config.someones_text has layers of its own", ErrorCode::unsupported);
  // Other towers, switches of that name, and a known object beside them.
  CHECK(four_layers(R"("vision_config":{"num_hidden_layers":24},"lm_config":null,)"
                    R"("decoder":"greedy","speech":{"num_layers":12},"llm_cfg":{"arch":"x"})")
            .num_layers() == 4);
  CHECK(four_layers(R"("text_config":{"num_hidden_layers":3},"decoder":{"num_hidden_layers":9})")
            .num_layers() == 3);
}
