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

namespace {

Indices windowed_layers(const ModelConfig& model) {
  Indices list;
  for (std::int64_t i = 0; i < model.num_layers(); ++i) {
    if (model.layers[static_cast<std::size_t>(i)].attention == AttentionKind::sliding) {
      list.push_back(i);
    }
  }
  return list;
}

}  // namespace

TEST_CASE("a window that holds the longest sequence is none") {
  const std::string phi = R"("model_type":"phi3","num_attention_heads":24,"hidden_size":3072)";
  for (const std::int64_t window : {131071, 131072, 262144}) {
    for (const std::string longest : {R"("max_position_embeddings":131072)",
                                      R"("n_positions":131072)", R"("max_seq_len":131072)"}) {
      CAPTURE(window);
      const ModelConfig model =
          model_of(8, phi + R"(,"sliding_window":)" + std::to_string(window) + "," + longest);
      const bool full = window >= 131072;
      CHECK(model.full_attention_layers().size() == (full ? 8U : 0U));
      CHECK(model.layers[0].window.has_value() != full);
      CHECK((!model.notes.empty() && mentions(model.notes.back(), "8 layers have a window")) ==
            full);
    }
  }
  // In some layers only, as chunks, and with latents.
  const ModelConfig mixed =
      model_of(2, R"("layer_types":["sliding_attention","full_attention"],"sliding_window":64,)"
                  R"("max_position_embeddings":64)");
  CHECK(mixed.full_attention_layers() == Indices{0, 1});
  const ModelConfig chunked = model_of(4, R"("model_type":"llama4_text",)"
                                          R"("attention_chunk_size":8192,)"
                                          R"("max_position_embeddings":8192)");
  CHECK(chunked.full_attention_layers() == every(0, 1, 4));
  const ModelConfig latent = model_of(2, R"("sliding_window":64,"max_position_embeddings":64,)"
                                         R"("kv_lora_rank":512,"qk_rope_head_dim":64)");
  CHECK(latent.layers[1].is_mla);
  // A length that rotary positions stretch further is not the longest.
  const std::string yarn = R"("sliding_window":64,"max_position_embeddings":64,)";
  for (const std::string rope :
       {R"("rope_scaling":{"type":"yarn","factor":4.0})", R"("rope_parameters":{"factor":2})",
        R"("rope_parameters":{"full_attention":{"factor":2.0}})"}) {
    CHECK(model_of(2, yarn + rope).full_attention_layers().empty());
  }
  CHECK(model_of(2, yarn + R"("rope_scaling":{"type":"longrope","long_factor":[1.0]})")
            .full_attention_layers()
            .size() == 2);
  // Without a stated length nothing is known.
  CHECK(model_of(2, R"("sliding_window":262144)").full_attention_layers().empty());
}

TEST_CASE("a widened window keeps the widths and the sharing of windowed layers") {
  const std::string types =
      R"("layer_types":["sliding_attention","full_attention","sliding_attention","full_attention"],)"
      R"("num_attention_heads":8,"num_key_value_heads":4,"head_dim":64,"swa_num_key_value_heads":2,)"
      R"("num_kv_shared_layers":2,"sliding_window":512)";
  const ModelConfig narrow = model_of(4, types);
  const ModelConfig wide = model_of(4, types + R"(,"max_position_embeddings":512)");
  CHECK(narrow.full_attention_layers() == Indices{1, 3});
  CHECK(wide.full_attention_layers() == every(0, 1, 4));
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto at = static_cast<std::size_t>(i);
    CHECK(narrow.cache_owner(i) == wide.cache_owner(i));
    CHECK(narrow.layers[at].num_kv_heads == wide.layers[at].num_kv_heads);
  }
}

TEST_CASE("groups of layers of which the last attends: Ring and Ling") {
  for (std::int64_t layers = 1; layers <= 24; ++layers) {
    for (std::int64_t group = 1; group <= 8; ++group) {
      const ModelConfig model = model_of(layers, R"("model_type":"bailing_moe_linear",)"
                                                 R"("layer_group_size":)" +
                                                     std::to_string(group));
      for (std::int64_t i = 0; i < layers; ++i) {
        const bool full = (i + 1) % group == 0 || i >= layers / group * group;
        const LayerConfig& layer = model.layers[static_cast<std::size_t>(i)];
        REQUIRE((layer.attention == AttentionKind::full) == full);
        REQUIRE(layer.has_recurrent_state != full);
      }
    }
  }
  const ModelConfig ling = model_of(20, R"("model_type":"bailing_hybrid","layer_group_size":5,)"
                                        R"("kv_lora_rank":512,"qk_rope_head_dim":64)");
  CHECK(ling.full_attention_layers() == Indices{4, 9, 14, 19});
  CHECK(ling.layers[4].is_mla);
  refuse(4, R"("layer_group_size":0)", ErrorCode::format, "layer_group_size is 0");
  refuse(4, R"("model_type":"bailing_hybrid")", ErrorCode::unsupported, "layer_group_size");
}

TEST_CASE("flash-linear-attention: attn.layers attend, the others are recurrent") {
  const ModelConfig samba = model_of(
      4, R"("model_type":"samba","hidden_size":2048,"state_size":16,"conv_kernel":4,"expand":2,)"
         R"("attn":{"layers":[1,3],"num_heads":16,"num_kv_heads":4,"window_size":2048})");
  CHECK(samba.recurrent_layers() == Indices{0, 2});
  CHECK(windowed_layers(samba) == Indices{1, 3});
  CHECK(samba.layers[1].num_kv_heads == 4);
  CHECK(samba.layers[1].head_size == 128);
  CHECK(samba.layers[1].window == 2048);
  CHECK(samba.recurrent->kind == RecurrentKind::mamba1);
  // The heads of recurrent layers, which the top states, are not those of attention.
  const ModelConfig delta = model_of(
      4, R"("model_type":"gated_deltanet","hidden_size":2304,"num_heads":6,"head_dim":256,)"
         R"("expand_v":2,"attn":{"layers":[2],"num_heads":18,"window_size":null})");
  CHECK(delta.full_attention_layers() == Indices{2});
  CHECK(delta.layers[2].num_kv_heads == 18);
  CHECK(delta.layers[2].head_size == 128);
  for (const std::string type :
       {"gla", "gated_deltanet", "delta_net", "retnet", "hgrn2", "rwkv6"}) {
    const ModelConfig pure =
        model_of(3, R"("model_type":")" + type + R"(","num_heads":4,"attn":null)");
    CHECK(pure.attention_presence() == AttentionPresence::none);
    CHECK(pure.recurrent_layers().size() == 3);
  }
  const std::string head = R"("hidden_size":2048,"attn":{"layers":)";
  refuse(4, head + R"([4],"num_heads":16})", ErrorCode::format, "layers[0] is 4");
  refuse(4, head + R"([1,1],"num_heads":16})", ErrorCode::format, "twice");
  refuse(4, head + R"([1]})", ErrorCode::format, "config.attn has no num_heads");
  refuse(4, head + R"([1],"num_heads":6,"num_kv_heads":4})", ErrorCode::format, "num_kv_heads = 4");
  refuse(4, head + R"([1],"num_heads":15})", ErrorCode::format, "divisor of hidden_size");
  refuse(4, R"("model_type":"samba")", ErrorCode::unsupported, "attn.layers");
}

TEST_CASE("lists of mixers: MiniCPM-SALA, GPT-Neo") {
  const ModelConfig sala = model_of(
      4, R"("model_type":"minicpm_sala","mixer_types":["minicpm4","lightning-attn",)"
         R"("lightning-attn","minicpm4"],"num_attention_heads":32,"num_key_value_heads":2)");
  CHECK(sala.full_attention_layers() == Indices{0, 3});
  CHECK(sala.recurrent_layers() == Indices{1, 2});
  CHECK(sala.layers[0].is_sparse);
  refuse(2, R"("mixer_types":["minicpm4","bcsa"])", ErrorCode::unsupported,
         "mixer_types[1] is \"bcsa\"");
  const ModelConfig neo = model_of(
      4, R"("model_type":"gpt_neo","attention_layers":["global","local","global","local"],)"
         R"("attention_types":[[["global","local"],2]],"window_size":256)");
  CHECK(neo.full_attention_layers() == Indices{0, 2});
  CHECK(neo.layers[1].window == 256);
  refuse(4, R"("model_type":"gpt_neo","attention_types":[[["global","local"],2]])",
         ErrorCode::unsupported, "the field attention_types");
}

TEST_CASE("every n-th layer is global: AFMoE, decoders of ModernBERT") {
  const std::string field = R"("global_attn_every_n_layers":)";
  const ModelConfig afmoe =
      model_of(9, R"("model_type":"afmoe","sliding_window":2048,)" + field + "4");
  CHECK(afmoe.full_attention_layers() == Indices{3, 7});
  CHECK(afmoe.layers[8].window == 2048);
  CHECK(model_of(9, R"("model_type":"afmoe","sliding_window":2048)").full_attention_layers() ==
        Indices{3, 7});
  const std::string type = R"("model_type":"modernbert-decoder")";
  const ModelConfig bert = model_of(22, type + R"(,"local_attention":256,)" + field + "3");
  CHECK(bert.full_attention_layers() == every(0, 3, 22));
  CHECK(bert.layers[1].window == 128);
  CHECK(model_of(22, type).full_attention_layers() == every(0, 3, 22));
  CHECK(model_of(22, type).layers[1].window == 64);
  refuse(9, R"("model_type":"afmoe",)" + field + "0", ErrorCode::format, "is 0");
}

TEST_CASE("listed windowed layers: Baichuan-M1") {
  const ModelConfig model = model_of(
      4, R"("model_type":"baichuan_m1","sliding_window":8192,"sliding_window_layers":[1,3],)"
         R"("conv_window":2)");
  CHECK(model.full_attention_layers() == Indices{0, 2});
  CHECK(windowed_layers(model) == Indices{1, 3});
  CHECK(mentions(model.notes.front(), "conv_window"));
  CHECK(model_of(2, R"("sliding_window":8,"sliding_window_layers":[])").full_attention_layers() ==
        Indices{0, 1});
  refuse(4, R"("sliding_window_layers":[4])", ErrorCode::format, "sliding_window_layers[0] is 4");
}

TEST_CASE("PLaMo 2: attention is windowed but for the layers listed") {
  const std::string plamo = R"("model_type":"plamo2","mamba_step":2,"attention_window_size":2048,)"
                            R"("max_position_embeddings":2048)";
  CHECK(windowed_layers(model_of(16, plamo)) == every(1, 2, 16));
  CHECK(model_of(16, plamo).layers[1].window == 2048);
  const ModelConfig model = model_of(16, plamo + R"(,"full_attention_idx":[1,9])");
  CHECK(model.full_attention_layers() == Indices{1, 9});
  CHECK(model.recurrent_layers() == every(0, 2, 16));
  refuse(16, plamo + R"(,"full_attention_idx":[16])", ErrorCode::format, "full_attention_idx[0]");
}

TEST_CASE("LongCat-Flash: two caches for each of its layers") {
  const ModelConfig model = parse_model_config(
      R"({"model_type":"longcat_flash","num_layers":28,"num_hidden_layers":56,"kv_lora_rank":512,)"
      R"("qk_rope_head_dim":64})");
  CHECK(model.num_layers() == 56);
  CHECK(model.layers[55].is_mla);
  CHECK(parse_model_config(R"({"model_type":"longcat_flash","num_layers":28})").num_layers() == 56);
  refuse(28, R"("model_type":"longcat_flash")", ErrorCode::format, "no num_layers");
}

TEST_CASE("caches that later layers read: Hunyuan-Large, AFM") {
  const std::string cla = R"("num_attention_heads":8,"use_cla":true,"cla_share_factor":)";
  for (std::int64_t factor = 1; factor <= 5; ++factor) {
    const ModelConfig model = model_of(12, cla + std::to_string(factor));
    for (std::int64_t i = 0; i < 12; ++i) {
      REQUIRE(model.cache_owner(i) == i - i % factor);
    }
  }
  CHECK(model_of(4, R"("use_cla":false,"cla_share_factor":2)").cache_owner(1) == 1);
  CHECK(model_of(4, R"("cla_share_factor":2)").cache_owner(1) == 1);
  refuse(4, cla + "0", ErrorCode::format, "cla_share_factor is 0");
  const ModelConfig afm = parse_model_config(
      R"({"model_type":"afm7","num_layers":56,"num_kv_reuse_layers":21,"hidden_dim":2048,)"
      R"("num_heads":16,"num_kv_heads":2})");
  for (std::int64_t i = 0; i < 56; ++i) {
    CHECK(afm.cache_owner(i) == (i < 35 ? i : 34));
  }
  // Both at once: layers 6..11 read 5, which reads 4.
  const ModelConfig both = model_of(12, cla + R"(2,"num_kv_shared_layers":6)");
  CHECK(both.cache_owner(5) == 4);
  for (std::int64_t i = 0; i < 12; ++i) {
    CHECK(both.cache_owner(both.cache_owner(i)) == both.cache_owner(i));
  }
  refuse(4, R"("num_kv_reuse_layers":4)", ErrorCode::format, "num_kv_reuse_layers is 4");
}

TEST_CASE("an indexer's own cache is noted") {
  const ModelConfig model =
      model_of(2, R"("model_type":"deepseek_v32","kv_lora_rank":512,"qk_rope_head_dim":64,)"
                  R"("index_topk":2048,"index_head_dim":128)");
  CHECK(model.layers[0].is_sparse);
  CHECK(mentions(model.notes.front(), "indexer"));
}

TEST_CASE("MiniMax-M3: an indexer picks what marked layers read") {
  const ModelConfig model = model_of(
      3, R"("model_type":"minimax_m3_vl_text","num_attention_heads":64,"num_key_value_heads":4,)"
         R"("sparse_attention_config":{"sparse_attention_freq":[0,1,1]})");
  CHECK(model.full_attention_layers() == every(0, 1, 3));
  CHECK_FALSE(model.layers[0].is_sparse);
  CHECK(model.layers[2].is_sparse);
  CHECK(mentions(model.notes.front(), "indexer"));
  refuse(3, R"("sparse_attention_config":{"sparse_attention_freq":[0,1]})", ErrorCode::format,
         "sparse_attention_config.sparse_attention_freq has 2 entries");
}

TEST_CASE("fields which say that layers differ, and that nothing reads, are refused by name") {
  for (const std::string field :
       {R"("global_attn_idx":[0,3])", R"("attention_window":[512,512,512,512])",
        R"("full_attention_idx":[1])", R"("local_attention":128)",
        R"("compress_ratios":[0,4,128,4])", R"("global_attn_every_n_layers":3)",
        R"("attn_mode":"chunk")", R"("expand_v":2)", R"("expand_k":0.5)", R"("lightning_nh":32)"}) {
    const std::string name = field.substr(1, field.find('"', 1) - 1);
    refuse(4, R"("num_attention_heads":8,)" + field, ErrorCode::unsupported, "field " + name);
    // An explicit list of layers says all that is needed.
    const ModelConfig listed =
        model_of(1, R"("layer_types":["full_attention"],"num_attention_heads":8,)" + field);
    CHECK(listed.full_attention_layers() == Indices{0});
  }
  // Not for fields which say that a layer of whatever type keeps other caches than one.
  for (const std::string field :
       {R"("loop_num":2)", R"("kv_reuse_group":[[1,2]])", R"("kv_reuse_every_i_layer":2)"}) {
    const std::string name = field.substr(1, field.find('"', 1) - 1);
    refuse(4, R"("num_attention_heads":8,)" + field, ErrorCode::unsupported, "has " + name);
    refuse(1, R"("layer_types":["full_attention"],)" + field, ErrorCode::unsupported,
           "has " + name);
  }
  CHECK(model_of(4, R"("loop_num":1)").num_layers() == 4);
  refuse(2,
         R"("block_configs":[{"attention":{"n_heads_in_group":8}},)"
         R"({"attention":{"n_heads_in_group":8,"window_length":8192}}])",
         ErrorCode::unsupported, "block_configs[1].attention has a window_length");
}

TEST_CASE("DeepSeek-V4's compressed caches are refused in every spelling") {
  const std::string type = R"("model_type":"deepseek_v4")";
  refuse(4, type + R"(,"compress_ratios":[0,0,4,128])", ErrorCode::unsupported, "compress_ratios");
  refuse(4, type, ErrorCode::unsupported, "deepseek_v4");
  refuse(4, type + R"(,"sliding_window":128)", ErrorCode::unsupported, "deepseek_v4");
  refuse(1, type + R"(,"layer_types":["compressed_sparse_attention"])", ErrorCode::unsupported,
         "compressed_sparse_attention");
}

TEST_CASE("Ouro keeps a cache for every step of every layer") {
  const std::string ouro = R"("model_type":"ouro","num_attention_heads":16,"head_dim":128,)"
                           R"("layer_types":["full_attention","sliding_attention"],)"
                           R"("sliding_window":64)";
  const ModelConfig model = model_of(2, ouro + R"(,"total_ut_steps":4)");
  CHECK(model.full_attention_layers() == Indices{0, 2, 4, 6});
  CHECK(model.layers[7].window == 64);
  CHECK(model.layers[7].num_kv_heads == 16);
  CHECK(mentions(model.notes.back(), "total_ut_steps"));
  CHECK(model_of(2, ouro).num_layers() == 2);
  CHECK(model_of(2, ouro + R"(,"total_ut_steps":1)").num_layers() == 2);
  const ModelConfig shared = model_of(4, R"("num_kv_shared_layers":2,"total_ut_steps":2,)"
                                         R"("num_nextn_predict_layers":1)");
  CHECK(shared.cache_owner(7) == 5);
  CHECK(shared.cache_owner(4) == 4);
  CHECK(shared.mtp_layers == Indices{8});
  refuse(2, ouro + R"(,"total_ut_steps":0)", ErrorCode::format, "total_ut_steps is 0");
  refuse(200, R"("total_ut_steps":51)", ErrorCode::format, "10000 caches");
}

TEST_CASE("the states of RecurrentGemma, RWKV 4 and Falcon-Mamba") {
  // tiiuae/falcon-mamba-7b as published: the stated channels are not expand * hidden_size.
  const ModelConfig falcon =
      model_of(64, R"("model_type":"falcon_mamba","hidden_size":4096,"expand":16,)"
                   R"("intermediate_size":8192,"state_size":16,"conv_kernel":4,)"
                   R"("torch_dtype":"bfloat16")");
  CHECK(recurrent_state_spec(*falcon.recurrent).page_size_bytes() == 311296);
  const ModelConfig mamba =
      model_of(2, R"("model_type":"mamba","hidden_size":768,"expand":2,"intermediate_size":99,)"
                  R"("state_size":16,"conv_kernel":4)");
  CHECK(mamba.recurrent->inner_size == 1536);
  const ModelConfig gemma =
      model_of(26, R"("model_type":"recurrent_gemma","hidden_size":2560,"lru_width":2560,)"
                   R"("conv1d_width":4,"attention_window_size":2048,"torch_dtype":"bfloat16",)"
                   R"("block_types":["recurrent","recurrent","attention"])");
  CHECK(gemma.recurrent->kind == RecurrentKind::rg_lru);
  // 3 rows of a bfloat16 convolution and one float32 state.
  CHECK(recurrent_state_spec(*gemma.recurrent).page_size_bytes() == 2560 * (3 * 2 + 4));
  CHECK(gemma.attention_presence() == AttentionPresence::windowed_only);
  const ModelConfig rwkv = model_of(12, R"("model_type":"rwkv","hidden_size":768,)"
                                        R"("attention_hidden_size":768,"torch_dtype":"float16")");
  CHECK(recurrent_state_spec(*rwkv.recurrent).page_size_bytes() == 768 * (2 * 2 + 3 * 4));
  CHECK_FALSE(model_of(2, R"("model_type":"rwkv6","hidden_size":768)").recurrent.has_value());
}
