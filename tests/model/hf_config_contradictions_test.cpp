#include "model/hf_config_models.hpp"

#include <turboquant/model/hf_config.hpp>
#include <turboquant/model/recurrent_state.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

using namespace turboquant;
using turboquant::test::model_of;
using turboquant::test::refuse;

namespace {

std::string field(std::string_view name, std::int64_t value) {
  return '"' + std::string(name) + "\":" + std::to_string(value);
}

}  // namespace

TEST_CASE("several spellings of one number agree, or the file is refused by both names") {
  struct Spellings {
    std::vector<std::string> names;
    std::string beside;  ///< what the model needs else
  };
  const std::vector<Spellings> all{
      {{"num_hidden_layers", "num_transformer_layers", "n_layer", "n_layers", "num_layers"},
       R"("head_dim":64)"},
      {{"hidden_size", "n_embd", "n_embed", "d_model", "model_dim"}, R"("num_layers":2)"},
      {{"num_attention_heads", "n_head", "n_heads"}, R"("num_layers":2)"},
      {{"num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "num_attention_groups"},
       R"("num_layers":2)"},
      {{"head_dim", "attention_head_dim", "kv_channels"}, R"("num_layers":2)"},
      {{"sliding_window", "sliding_window_size"},
       R"("num_layers":1,"layer_types":["sliding_attention"])"},
      {{"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers"},
       R"("num_layers":2)"}};
  for (const Spellings& spellings : all) {
    for (std::size_t i = 0; i < spellings.names.size(); ++i) {
      for (std::size_t j = i + 1; j < spellings.names.size(); ++j) {
        const std::string& a = spellings.names[i];
        const std::string& b = spellings.names[j];
        CAPTURE(a);
        CAPTURE(b);
        const auto json = [&](std::int64_t first, const std::string& second) {
          return '{' + spellings.beside + ',' + field(a, first) + ",\"" + b + "\":" + second + '}';
        };
        CHECK_NOTHROW((void)parse_model_config(json(1, "1")));
        CHECK_NOTHROW((void)parse_model_config(json(8, "null")));
        // The first name is the one that is read; the other is named with its own number.
        const std::string message =
            test::error_of(ErrorCode::format, [&] { (void)parse_model_config(json(8, "99")); });
        CHECK_MESSAGE(test::mentions(message, "config." + b + " is 99 beside " + a +
                                                  " = 8, expected one number"),
                      message);
      }
    }
  }
}

TEST_CASE("classes whose spellings mean two things, and switches that go before numbers") {
  const ModelConfig longcat =
      parse_model_config(R"({"model_type":"longcat_flash","num_layers":4,"num_hidden_layers":8})");
  CHECK(longcat.num_layers() == 8);
  CHECK(parse_model_config(R"({"model_type":"xlstm","num_blocks":3,"num_hidden_layers":4})")
            .num_layers() == 3);
  CHECK(model_of(1, R"("model_type":"mimo_v2_flash","layer_types":["sliding_attention"],)"
                    R"("sliding_window":129,"sliding_window_size":128)")
            .layers[0]
            .window == 129);
  CHECK(model_of(1, R"("model_type":"falcon","num_attention_heads":71,"num_kv_heads":71,)"
                    R"("n_head_kv":8,"multi_query":true)")
            .layers[0]
            .num_kv_heads == 1);
  CHECK(model_of(1, R"("model_type":"sarvam_mla","head_dim":576,"kv_channels":128)")
            .layers[0]
            .is_mla);
  CHECK(model_of(2, R"("model_type":"zamba2","hybrid_layer_ids":[1],"kv_channels":80,)"
                    R"("attention_head_dim":160)")
            .layers[1]
            .head_size == 160);
}

TEST_CASE("heads of mamba2 layers fill the channels of classes that check it") {
  struct Case {
    std::string type;
    std::string heads;
    std::string width;
    std::int64_t class_heads;
  };
  const std::string common = R"("mamba_d_state":64,"conv_kernel":4,"expand":2,"hidden_size":1024,)"
                             R"("num_attention_heads":8,)";
  const auto geometry = [&](const std::string& fields) {
    return *model_of(2, common + fields).recurrent;
  };
  for (const Case& c : std::vector<Case>{{"mamba2", "num_heads", "head_dim", 128},
                                         {"bamba", "mamba_n_heads", "mamba_d_head", 128},
                                         {"falcon_h1", "mamba_n_heads", "mamba_d_head", 128},
                                         {"granitemoehybrid", "mamba_n_heads", "mamba_d_head", 128},
                                         {"zamba2", "n_mamba_heads", "mamba_headdim", 8}}) {
    CAPTURE(c.type);
    const std::string type = R"("hybrid_layer_ids":[1],"model_type":")" + c.type + "\",";
    for (const std::int64_t heads : {16, 32, 64}) {
      const std::string number = field(c.heads, heads);
      const RecurrentGeometry stated = geometry(type + number + ',' + field(c.width, 2048 / heads));
      CHECK(stated.kind == RecurrentKind::mamba2);
      CHECK(stated.inner_size == 2048);
      CHECK(stated.value_head_dim == 2048 / heads);
      CHECK_NOTHROW((void)recurrent_state_spec(stated));
      for (const std::int64_t width : {1, 2048 / static_cast<int>(heads) + 1, 4096}) {
        refuse(2, common + type + number + ',' + field(c.width, width), ErrorCode::format,
               std::to_string(heads) + " state-space heads of " + std::to_string(width) +
                   ", expected their product to be the number of channels, 2048");
      }
    }
    // Without heads they are the class's.
    const RecurrentGeometry silent = geometry(type + field(c.width, 2048 / c.class_heads));
    CHECK(silent.num_heads == c.class_heads);
    CHECK(silent.kind == RecurrentKind::mamba2);
    refuse(
        2, common + type + field(c.width, 7), ErrorCode::format,
        std::to_string(c.class_heads) + " state-space heads (of the class of " + c.type + ") of 7");
  }
  CHECK(geometry(R"("model_type":"mamba2","num_heads":32)").num_groups == 8);
  refuse(2, common + R"("model_type":"mamba2","num_heads":31)", ErrorCode::format,
         "31 state-space heads of 64 (of the class of mamba2)");
  // Stated channels go before the product of the expansion, and heads fill them in any class.
  const std::string channels = R"("mamba_d_ssm":512,"mamba_n_heads":8,"mamba_d_head":)";
  for (const std::string type : {R"("model_type":"falcon_h1",)", R"("hybrid_layer_ids":[1],)"}) {
    CHECK(geometry(type + channels + "64").inner_size == 512);
    refuse(2, common + type + channels + "32", ErrorCode::format, "number of channels, 512");
  }
  // Heads of the file contradict nothing where the model's width is the class's.
  CHECK(model_of(2, R"("model_type":"mamba2","state_size":128,"conv_kernel":4,"num_heads":80,)"
                    R"("head_dim":64)")
            .recurrent->inner_size == 5120);
  // Nemotron-H's heads are as many as the file says, whatever the expansion is.
  CHECK(geometry(R"("model_type":"nemotron_h","layer_types":["mamba","mlp"],)"
                 R"("mamba_num_heads":128,"mamba_head_dim":64)")
            .inner_size == 8192);
}

TEST_CASE("RWKV 4: sums are as wide as attention, rows as the model") {
  for (const std::int64_t hidden : {256, 1024}) {
    for (const std::int64_t attention : {0, 256, 1024, 2048}) {
      const ModelConfig model = model_of(
          2, R"("model_type":"rwkv","torch_dtype":"float16",)" + field("hidden_size", hidden) +
                 (attention == 0 ? R"(,"attention_hidden_size":null)"
                                 : ',' + field("attention_hidden_size", attention)));
      const std::int64_t sums = attention == 0 ? hidden : attention;
      for (const std::int64_t ranks : {1, 2, 4}) {
        CHECK(
            recurrent_state_spec(*model.recurrent, {.tensor_parallel = ranks}).page_size_bytes() ==
            hidden * 2 * 2 + sums / ranks * 3 * 4);
      }
    }
  }
  refuse(2, R"("model_type":"rwkv","hidden_size":64,"attention_hidden_size":0)", ErrorCode::format,
         "attention_hidden_size is 0");
}
