#include <turboquant/model/hf_config.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>

#include <cstdint>
#include <string>
#include <vector>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

std::string format_error(const std::string& text) {
  return error_of(ErrorCode::format, [&] { (void)parse_model_config(text); });
}

const std::string valid =
    R"({"model_type":"gemma3","text_config":{"num_hidden_layers":34,"sliding_window":1024,)"
    R"("sliding_window_pattern":6,"num_attention_heads":8,"num_key_value_heads":4,"head_dim":256,)"
    R"("rope_scaling":{"factor":8.0,"rope_type":"linear"},"rope_theta":1e6},)"
    R"("architectures":["A\"\\\u00e9"],"time_step_limit":[0.0,Infinity],"note":null,"flag":true})";

}  // namespace

TEST_CASE("every prefix of a valid file is one format error") {
  CHECK(parse_model_config(valid).num_layers() == 34);
  for (std::size_t length = 0; length < valid.size(); ++length) {
    CAPTURE(length);
    const std::string message = format_error(valid.substr(0, length));
    CHECK(mentions(message, "parse_model_config: "));
  }
}

TEST_CASE("every single-byte change is accepted or is an error, never anything else") {
  int accepted = 0;
  for (std::size_t i = 0; i < valid.size(); ++i) {
    for (const char c : {'\0', '"', '{', '}', '[', ']', ',', ':', '-', '9', 'N', '\xff', ' '}) {
      std::string text = valid;
      text[i] = c;
      try {
        accepted += parse_model_config(text).num_layers() > 0 ? 1 : 0;
      } catch (const Error& error) {
        REQUIRE(std::string(error.what()).size() < 700);
      }
    }
  }
  CHECK(accepted > 0);
}

TEST_CASE("malformed text is reported with its position") {
  CHECK(mentions(format_error(""), "empty"));
  CHECK(mentions(format_error(" \n\t "), "empty"));
  CHECK(mentions(format_error("{"), "line 1, column 1"));
  CHECK(mentions(format_error("{\n\"a\": 1,\n}"), "line 3, column 1 (byte 11)"));
  CHECK(mentions(format_error(R"({"a":1} x)"), "column 9"));
  CHECK(mentions(format_error(R"({"a":tru})"), "malformed JSON at line 1"));
  CHECK(mentions(format_error(R"({'a':1})"), "column 2"));
  CHECK(mentions(format_error(R"({"a":1e999})"), "number overflow"));
  CHECK(mentions(format_error("{\"a\":\"\xff\"}"), "ill-formed UTF-8"));
  CHECK(mentions(format_error("{\"a\":\"\xed\xa0\x80\"}"), "ill-formed UTF-8"));
  CHECK(mentions(format_error("{\"a\":\"\n\"}"), "malformed JSON"));
  CHECK(mentions(format_error("[]"), "root is array"));
  CHECK(mentions(format_error("48"), "root is number"));
  CHECK(mentions(format_error("null"), "root is null"));
  // Words that became strings do not shift the position.
  CHECK(mentions(format_error(R"({"a":[NaN,-Infinity],"b":})"), "column 26"));
}

TEST_CASE("byte order marks and other encodings") {
  CHECK(parse_model_config("\xEF\xBB\xBF{\"num_hidden_layers\":3}").num_layers() == 3);
  const std::string utf16("\xFF\xFE{\0\"\0", 6);
  const std::string utf16_big("\xFE\xFF\0{\0\"", 6);
  const std::string no_mark("{\0\"\0", 4);
  const std::string big_no_mark("\0{\0\"", 4);
  for (const std::string& text : {utf16, utf16_big, no_mark, big_no_mark}) {
    CHECK(mentions(format_error(text), "UTF-16"));
  }
}

TEST_CASE("depth, size and count are bounded") {
  for (const std::size_t depth : {65U, 1100U, 200'000U}) {
    CHECK(mentions(format_error(std::string(depth, '[')), "nested deeper than 64 levels"));
    std::string objects;
    for (std::size_t i = 0; i < depth; ++i) {
      objects += "{\"a\":";
    }
    CHECK(mentions(format_error(objects), "nested deeper than 64 levels"));
  }
  const std::string nested =
      R"({"num_hidden_layers":2,"x":)" + std::string(63, '[') + std::string(63, ']') + "}";
  CHECK(parse_model_config(nested).num_layers() == 2);
  CHECK(mentions(format_error("{\"a\":\"" + std::string(10U << 20U, 'x') + "\"}"),
                 "at most 8388608"));
  std::string many = "{\"a\":[0";
  for (int i = 0; i < 1'000'001; ++i) {
    many += ",1";
  }
  CHECK(mentions(format_error(many + "]}"), "more than 1000000 values"));
  const std::string message = format_error("{\"a\":\"" + std::string(1U << 20U, 'x'));
  CHECK(message.size() < 400);
}

TEST_CASE("a duplicate key is an error wherever it is") {
  CHECK(mentions(format_error(R"({"num_hidden_layers":4,"num_hidden_layers":8})"),
                 "duplicate key \"num_hidden_layers\""));
  CHECK(mentions(format_error(R"({"num_hidden_layers":4,"x":[{"a":1,"a":1}]})"),
                 "duplicate key \"a\""));
  CHECK(mentions(format_error(R"({"num_hidden_layers":4,"num_hidden_\u006cayers":8})"),
                 "duplicate key"));
  // The same key in different objects is no duplicate.
  CHECK(parse_model_config(R"({"num_hidden_layers":4,"x":{"num_hidden_layers":8}})").num_layers() ==
        4);
}

TEST_CASE("bare NaN and Infinity are read, and refused where a number is needed") {
  CHECK(parse_model_config(R"({"num_hidden_layers":2,"time_step_limit":[0.0,Infinity],"x":NaN,)"
                           R"("y":-Infinity,"z":"NaN Infinity"})")
            .num_layers() == 2);
  for (const std::string word : {"NaN", "Infinity", "-Infinity"}) {
    CHECK(mentions(format_error(R"({"num_hidden_layers":)" + word + "}"), "num_hidden_layers is"));
    CHECK(mentions(format_error(R"({"num_hidden_layers":2,"num_attention_heads":)" + word + "}"),
                   "num_attention_heads is"));
    CHECK(mentions(format_error("{" + word + ":2}"), "malformed JSON"));
  }
  CHECK(mentions(format_error(R"({"num_hidden_layers":2,"x":NaNa})"), "malformed JSON"));
  CHECK(mentions(format_error(R"({"num_hidden_layers":2,"x":nan})"), "malformed JSON"));
  CHECK(mentions(format_error(R"({"num_hidden_layers":2,"x":Infinit})"), "malformed JSON"));
}

TEST_CASE("values of the wrong type name their field") {
  for (const std::string bad :
       {"\"48\"", "48.5", "48.0", "-1", "0", "1000000000", "1e9", "18446744073709551616",
        "18446744073709551615", "-9223372036854775809", "true", "[]", "{}", "[48]", "\"\""}) {
    CAPTURE(bad);
    CHECK(mentions(format_error("{\"num_hidden_layers\":" + bad + "}"), "num_hidden_layers is"));
  }
  const auto with = [](const std::string& fields) {
    return format_error(R"({"num_hidden_layers":4,)" + fields + "}");
  };
  CHECK(mentions(with(R"("layer_types":"full_attention")"), "layer_types is"));
  CHECK(mentions(with(R"("layer_types":[1,2,3,4])"), "layer_types[0] is 1"));
  CHECK(mentions(with(R"("layer_types":{"0":"mamba"})"), "layer_types is an object"));
  CHECK(mentions(with(R"("layer_types":[["mamba"],1,1,1])"), "layer_types[0] is an array"));
  CHECK(mentions(with(R"("text_config":"x")"), "text_config is \"x\""));
  CHECK(mentions(with(R"("text_config":[])"), "text_config is an array"));
  CHECK(mentions(with(R"("hybrid_override_pattern":["M","*"])"), "hybrid_override_pattern is"));
  CHECK(mentions(with(R"("linear_attn_config":[1])"), "linear_attn_config is"));
  CHECK(mentions(with(R"("model_type":5)"), "model_type is 5"));
  CHECK(mentions(with(R"("torch_dtype":5)"), "torch_dtype is 5"));
  CHECK(mentions(with(R"("head_dim":"128")"), "head_dim is \"128\""));
  CHECK(mentions(with(R"("num_key_value_heads":{})"), "num_key_value_heads is"));
  CHECK(mentions(with(R"("sliding_window_pattern":"LX")"), "sliding_window_pattern is"));
  CHECK(mentions(with(R"("mamba_step":2,"mamba_enabled":"yes")"), "mamba_enabled is"));
  CHECK(mentions(with(R"("block_configs":[1,2,3,4])"), "block_configs[0] is 1"));
  CHECK(mentions(with(R"("num_attention_heads":4294967296)"), "num_attention_heads is 4294967296"));
  CHECK(mentions(with("\"model_type\":[\"\x01\"]"), "malformed"));
}

TEST_CASE("a file without layers says so") {
  CHECK(mentions(format_error("{}"), "no num_hidden_layers"));
  CHECK(mentions(format_error(R"({"text_config":{},"num_hidden_layers":4})"),
                 "config.text_config has no num_hidden_layers"));
}
