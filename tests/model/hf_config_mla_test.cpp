#include "model/hf_config_models.hpp"

#include <turboquant/model/hf_config.hpp>
#include <turboquant/model/layer_cache.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

using namespace turboquant;
using turboquant::test::mentions;
using turboquant::test::model_of;
using turboquant::test::refuse;

namespace {

/// A class with latent attention: its widths, and fields that name its layers where it mixes them.
struct MlaCase {
  std::string type;
  std::int64_t rank;
  std::int64_t rope;
  std::int64_t nope;
  std::int64_t value;
  std::string layers{};
  bool reads_mscale = true;

  /// A model of two layers whose last one attends.
  [[nodiscard]] ModelConfig model(const std::string& more = "") const {
    return model_of(2, fields() + more);
  }
  [[nodiscard]] std::string fields() const {
    return R"("model_type":")" + type + R"(","num_attention_heads":64,"hidden_size":4096)" + layers;
  }
};

const std::string indexed = R"(,"layer_types":["indexed_attention","indexed_attention"])";
const std::string linear = R"(,"layer_types":["linear_attention","full_attention"])";

/// What the classes of transformers 5.24.0 give when they are made without arguments.
const std::vector<MlaCase> mla_cases{{"axk1", 512, 64, 128, 128},
                                     {"axk2", 128, 32, 64, 64, indexed},
                                     {"bailing_hybrid", 512, 64, 128, 128, linear},
                                     {"deepseek_v2", 512, 64, 128, 128},
                                     {"deepseek_v3", 512, 64, 128, 128},
                                     {"deepseek_v32", 512, 64, 128, 128},
                                     {"dots3_note_text", 512, 64, 128, 128, indexed, false},
                                     {"glm4_moe_lite", 512, 64, 192, 256},
                                     {"glm5_next_text", 512, 0, 256, 256, linear, false},
                                     {"glm_moe_dsa", 512, 64, 192, 256},
                                     {"hy_v4", 512, 64, 192, 256},
                                     {"hy_v4_vl_text", 512, 64, 192, 256},
                                     {"kimi_k2", 512, 64, 128, 128},
                                     {"kimi_linear", 512, 64, 128, 128, linear, false},
                                     {"longcat_flash", 512, 64, 128, 128, R"(,"num_layers":1)"},
                                     {"minicpm3", 256, 32, 64, 64},
                                     {"mistral4", 256, 64, 64, 128},
                                     {"mistral_large4_text", 512, 64, 64, 128, indexed},
                                     {"sarvam_mla", 512, 64, 128, 128},
                                     {"youtu", 512, 64, 128, 128}};

const std::string plain_positions = R"(,"rope_parameters":{"rope_type":"default"})";

}  // namespace

TEST_CASE("classes with latent attention keep latents where their file is silent") {
  for (const MlaCase& c : mla_cases) {
    CAPTURE(c.type);
    const ModelConfig model = c.model();
    REQUIRE(model.mla.has_value());
    CHECK(model.layers.back().is_mla);
    CHECK(model.mla->kv_lora_rank == c.rank);
    CHECK(model.mla->qk_rope_head_dim == c.rope);
    CHECK(model.mla->qk_nope_head_dim == c.nope);
    CHECK(model.mla->v_head_dim == c.value);
    // A stated width goes before the class's, and leaves the others alone.
    const ModelConfig stated = c.model(R"(,"kv_lora_rank":96,"qk_rope_head_dim":16)");
    CHECK(stated.mla->latent_width() == 112);
    CHECK(stated.mla->qk_nope_head_dim == c.nope);
    CHECK(c.model(R"(,"qk_nope_head_dim":80,"v_head_dim":48)").mla->kv_lora_rank == c.rank);
    // Nothing plans them as keys and values of heads.
    const std::vector<LayerCache> caches =
        assign_layer_caches(model, {.block_size = 64, .recurrent_state_bytes = 1024});
    REQUIRE(std::holds_alternative<MLAAttentionSpec>(caches.back().attention));
    CHECK(std::get<MLAAttentionSpec>(caches.back().attention).head_size == c.rank + c.rope);
    // The switch goes before the class.
    CHECK_FALSE(c.model(R"(,"use_mla":false)").mla.has_value());
  }
}

TEST_CASE("a rank of null beside other widths of latents is a contradiction") {
  for (const MlaCase& c : mla_cases) {
    CHECK(c.model(R"(,"kv_lora_rank":null)").mla->kv_lora_rank == c.rank);
    for (const std::string beside :
         {"q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
      refuse(2, c.fields() + R"(,"kv_lora_rank":null,")" + beside + R"(":64)", ErrorCode::format,
             "kv_lora_rank is null beside " + beside);
    }
  }
  const std::string widths = R"("qk_nope_head_dim":128,"qk_rope_head_dim":64)";
  refuse(2, R"("kv_lora_rank":null,)" + widths, ErrorCode::format,
         "kv_lora_rank is null beside qk_nope_head_dim and qk_rope_head_dim");
  refuse(2, widths, ErrorCode::format,
         "has no kv_lora_rank, which qk_nope_head_dim and qk_rope_head_dim needs");
  refuse(2, R"("use_mla":true)", ErrorCode::format, "has no kv_lora_rank, which use_mla needs");
  refuse(2, R"("model_type":"longcat_flash_ngram","num_layers":1)", ErrorCode::format,
         "has no kv_lora_rank, which longcat_flash_ngram needs");
  for (const std::string& plain :
       {R"("use_mla":false,)" + widths, std::string(R"("qk_nope_head_dim":0,"qk_rope_head_dim":0)"),
        std::string(R"("kv_lora_rank":null,"qk_rope_head_dim":64)"),
        std::string(R"("kv_lora_rank":null,"v_head_dim":128)")}) {
    CHECK_FALSE(model_of(2, plain).mla.has_value());
  }
}

TEST_CASE("Mistral Large 4: every layer keeps latents, and some read an earlier layer's") {
  const std::string mistral = R"("model_type":"mistral_large4_text")";
  for (const std::string& layers :
       {std::string(), std::string(R"(,"no_rope_layers":[1,1,1,0])"),
        std::string(R"(,"no_rope_layer_interval":2)"),
        std::string(R"(,"layer_types":["indexed_attention","indexed_attention",)"
                    R"("indexed_attention","indexed_attention"])")}) {
    CAPTURE(layers);
    const ModelConfig model = model_of(4, mistral + layers + R"(,"kv_source_layers":[0,0,2,0])");
    for (std::int64_t i = 0; i < 4; ++i) {
      CHECK(model.layers[static_cast<std::size_t>(i)].is_mla);
      CHECK(model.cache_owner(i) == (i == 2 ? 2 : 0));
    }
    CHECK(mentions(model.notes.front() + model.notes.back(), "without rotary positions"));
    CHECK(model_of(4, mistral + layers + R"(,"kv_source_layers":[0,1,2,3])").cache_owner(3) == 3);
  }
  const auto sources = [&](const std::string& list, std::string_view part) {
    refuse(4, mistral + R"(,"kv_source_layers":)" + list, ErrorCode::format, part);
  };
  sources("[0,0,2]", "has 3 entries, expected 4");
  sources("[0,2,2,3]", "kv_source_layers[1] is 2, expected 1 or an earlier layer");
  sources("[0,0,1,3]", "kv_source_layers[2] is 1, expected 2 or an earlier layer");
  sources("[0,1,2,4]", "kv_source_layers[3] is 4");
}

TEST_CASE("latents have no heads whose width must divide the model's") {
  const ModelConfig model =
      model_of(2, R"("model_type":"glm4_moe_lite","hidden_size":2048,"num_attention_heads":20)");
  CHECK(model.layers[0].is_mla);
  CHECK_FALSE(model.layers[0].head_size.has_value());
  refuse(2, R"("hidden_size":2048,"num_attention_heads":20)", ErrorCode::format,
         "expected a multiple");
}

TEST_CASE("logits of latent attention are scaled by the width of expanded keys") {
  for (const MlaCase& c : mla_cases) {
    CAPTURE(c.type);
    const auto width = static_cast<double>(c.nope + c.rope);
    CHECK(*c.model(plain_positions).attention_scale == doctest::Approx(1.0 / std::sqrt(width)));
    CHECK(*c.model(plain_positions + R"(,"qk_nope_head_dim":36,"qk_rope_head_dim":64)")
               .attention_scale == doctest::Approx(0.1));
  }
  const std::string longcat = R"("model_type":"longcat_flash","num_layers":1,"qk_head_dim":64)";
  CHECK(*model_of(2, longcat).attention_scale == doctest::Approx(0.125));
  CHECK(*model_of(2, R"("model_type":"deepseek_v3","qk_head_dim":64)").attention_scale ==
        doctest::Approx(1.0 / std::sqrt(192.0)));
  // Without the width of keys nothing is made up.
  const ModelConfig unknown = model_of(2, R"("kv_lora_rank":512,"qk_rope_head_dim":64)");
  CHECK_FALSE(unknown.attention_scale.has_value());
  CHECK(mentions(unknown.notes.back(), "attention scale of latent attention is not known"));
}

TEST_CASE("stretched positions scale logits of latent attention where mscale_all_dim is stated") {
  for (const MlaCase& c : mla_cases) {
    CAPTURE(c.type);
    const double base = 1.0 / std::sqrt(static_cast<double>(c.nope + c.rope));
    const auto scale = [&](const std::string& field, const std::string& rope) {
      return *c.model(",\"" + field + "\":{" + rope + "}").attention_scale / base;
    };
    for (const std::string field : {"rope_scaling", "rope_parameters"}) {
      for (const std::string type : {"type", "rope_type"}) {
        const std::string yarn = '"' + type + R"(":"yarn")";
        for (const double factor : {1.0, 4.0, 40.0}) {
          for (const double mscale : {0.0, 0.707, 1.0}) {
            const double grown = 0.1 * mscale * std::log(factor) + 1.0;
            const std::string rope = yarn + R"(,"factor":)" + std::to_string(factor) +
                                     R"(,"mscale":1.0,"mscale_all_dim":)" + std::to_string(mscale);
            CHECK(scale(field, rope) == doctest::Approx(c.reads_mscale ? grown * grown : 1.0));
          }
        }
        CHECK(scale(field, yarn + R"(,"factor":40)") == doctest::Approx(1.0));
        CHECK(scale(field, '"' + type + R"(":"default","factor":40,"mscale_all_dim":1)") ==
              doctest::Approx(1.0));
        if (c.reads_mscale) {
          refuse(2, c.fields() + ",\"" + field + "\":{" + yarn + R"(,"mscale_all_dim":1})",
                 ErrorCode::format, field + " has mscale_all_dim and no factor");
        }
      }
    }
    // The old name goes first, unless it holds nothing.
    const std::string new_name = R"(,"rope_parameters":{"type":"yarn","factor":40,)"
                                 R"("mscale_all_dim":1})";
    const double grown = c.reads_mscale ? 0.1 * std::log(40.0) + 1.0 : 1.0;
    CHECK(*c.model(R"(,"rope_scaling":null)" + new_name).attention_scale / base ==
          doctest::Approx(grown * grown));
    CHECK(*c.model(R"(,"rope_scaling":{"type":"linear","factor":8})" + new_name).attention_scale /
              base ==
          doctest::Approx(1.0));
  }
  // Mistral 4's class stretches positions where its file is silent, the others do not.
  for (const MlaCase& c : mla_cases) {
    const double grown = c.type == "mistral4" ? 0.1 * std::log(128.0) + 1.0 : 1.0;
    CHECK(*c.model().attention_scale * std::sqrt(static_cast<double>(c.nope + c.rope)) ==
          doctest::Approx(grown * grown));
  }
  // DeepSeek-V3 as published.
  const ModelConfig deepseek = model_of(
      61, R"("model_type":"deepseek_v3","hidden_size":7168,"num_attention_heads":128,)"
          R"("kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,)"
          R"("rope_scaling":{"beta_fast":32,"beta_slow":1,"factor":40,"mscale":1.0,)"
          R"("mscale_all_dim":1.0,"original_max_position_embeddings":4096,"type":"yarn"})");
  CHECK(*deepseek.attention_scale == doctest::Approx(0.1352337788608801));
}
