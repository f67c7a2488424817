// Runs the kv_report program: what it refuses, that its two outputs agree, and that its numbers are
// right.

#include "program_run.hpp"

#include <turboquant/base/float16.hpp>
#include <turboquant/base/random.hpp>
#include <turboquant/model/presets.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

using nlohmann::json;
using turboquant::bfloat16;
using turboquant::test::contents;
using turboquant::test::little_endian;
using turboquant::test::ProgramResult;
using turboquant::test::run_json;
using turboquant::test::run_program;
using turboquant::test::safetensors_bytes;
using turboquant::test::SafetensorsWriter;
using turboquant::test::Table;
using turboquant::test::tables_of;
using turboquant::test::TemporaryDirectory;

namespace {

std::vector<float> random_floats(std::int64_t count, std::uint64_t stream) {
  const turboquant::CounterRng rng(11, stream);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(rng.bits32(i)) * 0x1p-31F - 1.0F;
  }
  return values;
}

/// Shapes and parts of a small capture; the fields are what the tests spoil.
struct SmallCapture {
  std::vector<std::int64_t> key{12, 2, 8};
  std::vector<std::int64_t> value{12, 2, 8};
  std::vector<std::int64_t> query{3, 4, 8};
  std::vector<std::int64_t> positions{2, 7, 11};
  std::string prefix = "layers.5.";
  bool has_key = true;
  bool has_value = true;
  bool has_query = true;
  bool has_positions = true;

  [[nodiscard]] static std::int64_t size(const std::vector<std::int64_t>& shape) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) {
      count *= extent;
    }
    return count;
  }

  void add_to(SafetensorsWriter& writer) const {
    if (has_key) {
      writer.add_floats(prefix + "key", key, random_floats(size(key), 0));
    }
    if (has_value) {
      writer.add_floats(prefix + "value", value, random_floats(size(value), 1));
    }
    if (has_query) {
      writer.add_floats(prefix + "query", query, random_floats(size(query), 2));
    }
    if (has_positions) {
      writer.add_integers("query_positions", positions);
    }
  }

  [[nodiscard]] std::string bytes() const {
    SafetensorsWriter writer;
    add_to(writer);
    return writer.bytes();
  }
};

std::string spoiled(const std::function<void(SmallCapture&)>& spoil) {
  SmallCapture capture;
  spoil(capture);
  return capture.bytes();
}

/// A valid capture whose text `from`, which its header must hold, is replaced by `to` of any
/// length.
std::string edited(const std::string& from, const std::string& to) {
  SafetensorsWriter writer;
  SmallCapture().add_to(writer);
  std::string header = writer.header();
  const std::size_t at = header.find(from);
  REQUIRE(at != std::string::npos);
  header.replace(at, from.size(), to);
  return safetensors_bytes(header, writer.data());
}

std::string with_element(std::size_t float_index, std::uint32_t bits) {
  SafetensorsWriter writer;
  SmallCapture().add_to(writer);
  std::string data = writer.data();
  data.replace(4 * float_index, 4, little_endian(bits, 4));
  return safetensors_bytes(writer.header(), data);
}

/// Its shape () has as many elements as the query has positions.
std::string with_scalar_position() {
  SafetensorsWriter writer;
  SmallCapture capture;
  capture.query = {1, 4, 8};
  capture.has_positions = false;
  capture.add_to(writer);
  writer.add("query_positions", "I64", {}, little_endian(3, 8));
  return writer.bytes();
}

struct BadFile {
  std::string bytes;
  std::string says;
};

std::vector<BadFile> bad_files() {
  const std::string valid = SmallCapture().bytes();
  return {
      {"", "holds 0 bytes, expected at least the 8"},
      {valid.substr(0, 60), "header is truncated"},
      {valid.substr(0, valid.size() - 1), "(truncated, or a wrong offset)"},
      {valid + "x", "1 bytes follow the last tensor"},
      {"PK\x03\x04 a zip file of tensors", "not a safetensors file?"},
      {little_endian(4, 8) + "null", "begins with 'n', expected '{'"},
      {safetensors_bytes("{}", ""), "holds no tensor layers.<i>.key"},
      {safetensors_bytes("{\"a\":", ""), "not valid JSON"},
      {safetensors_bytes(R"({"a":{"shape":)" + std::string(200000, '['), ""), "nested deeper"},
      {edited("[0,768]", "[-768,0]"), "data_offsets[0] is -768 (negative)"},
      {edited("[0,768]", "[0,18446744073709551616]"),
       "data_offsets[1] is '18446744073709551616', which exceeds"},
      {edited("[0,768]", "[0,768.0]"), "'768.0' (with a fraction or exponent)"},
      {edited("[0,768]", "[18446744073709551615,767]"),
       "data_offsets[0] is 18446744073709551615, which exceeds"},
      {edited("[0,768]", "[768,0]"), "begin at 768 and end at 0"},
      {edited("[0,768]", "[0,764]"), "span 764 bytes, expected 768"},
      {edited("[0,768]", "[9223372036854775039,9223372036854775807]"),
       "ends at data byte 9223372036854775807"},
      {edited("[768,1536]", "[4,772]"), "overlaps tensor 'layers.5.key'"},
      {edited("[0,768]", "[4,772]"), "data bytes from 0 to 4, before tensor"},
      {edited("[12,2,8]", "[12,-2,8]"), "shape[1] is -2 (negative)"},
      {edited("[12,2,8]", "[4294967296,4294967296,8]"), "exceeds 64 bits"},
      {edited("[12,2,8]", "[12,2,9]"), "span 768 bytes, expected 864"},
      {edited("\"F32\"", "\"Q4_K\""), "dtype is 'Q4_K' (unknown)"},
      {edited("\"F32\"", "\"I32\""), "has dtype I32, expected F32, F16 or BF16"},
      {edited("\"I64\",\"shape\":[3]", "\"F64\",\"shape\":[3]"), "has dtype F64, expected I64"},
      {edited("layers.5.value", "layers.5.key"), "tensor 'layers.5.key' appears twice"},
      {with_element(17, 0x7FC00000), "tensor 'layers.5.key' is NaN at index (1, 0, 1)"},
      {with_element(192 + 16 * 11 + 15, 0x7F800000),
       "tensor 'layers.5.value' is infinite at index (11, 1, 7)"},
      {with_element(384 + 8, 0xFFFFFFFF), "tensor 'layers.5.query' is NaN at index (0, 1, 0)"},
      {spoiled([](SmallCapture& c) { c.has_value = false; }),
       "layers.5 has no tensor layers.5.value"},
      {spoiled([](SmallCapture& c) { c.has_key = false; }), "layers.5 has no tensor layers.5.key"},
      {spoiled([](SmallCapture& c) { c.prefix = "layers.05."; }), "holds no tensor layers.<i>.key"},
      {spoiled([](SmallCapture& c) { c.prefix = "layers.-5."; }), "holds no tensor layers.<i>.key"},
      {spoiled([](SmallCapture& c) { c.prefix = "layers.99999999999."; }),
       "holds no tensor layers.<i>.key"},
      {spoiled([](SmallCapture& c) {
         c.key = {24, 8};
       }),
       "shape (24, 8), expected (tokens, kv_heads, head_dim)"},
      {spoiled([](SmallCapture& c) {
         c.key = {0, 2, 8};
       }),
       "shape (0, 2, 8), expected (tokens"},
      {spoiled([](SmallCapture& c) {
         c.value = {12, 2, 2};
       }),
       "shape (12, 2, 2), expected a head_dim of 3 to"},
      {spoiled([](SmallCapture& c) {
         c.value = {11, 2, 8};
       }),
       "expected the tokens and kv_heads of layers.5.key"},
      {spoiled([](SmallCapture& c) {
         c.value = {12, 1, 8};
       }),
       "value has shape (12, 1, 8), expected the tokens"},
      {spoiled([](SmallCapture& c) {
         c.query = {3, 3, 8};
       }),
       "has 3 heads, expected a multiple of the 2 kv_heads"},
      {spoiled([](SmallCapture& c) {
         c.query = {3, 4, 6};
       }),
       "expected the head_dim of layers.5.key, 8"},
      {spoiled([](SmallCapture& c) {
         c.query = {4, 4, 8};
       }),
       "expected the 4 positions of layers.5.query"},
      {spoiled([](SmallCapture& c) {
         c.query = {13, 4, 8};
         c.has_positions = false;
       }),
       "has 13 positions, expected at most the 12 tokens"},
      {spoiled([](SmallCapture& c) {
         c.positions = {2, 12, 3};
       }),
       "query_positions[1] is 12, expected 0 to 11"},
      {spoiled([](SmallCapture& c) {
         c.positions = {-1, 2, 3};
       }),
       "query_positions[0] is -1, expected 0 to 11"},
      {edited("\"I64\",\"shape\":[3]", "\"I64\",\"shape\":[3,1]"),
       "query_positions has shape (3, 1), expected one axis"},
      {edited("\"I64\",\"shape\":[3]", "\"I64\",\"shape\":[1,3]"),
       "query_positions has shape (1, 3), expected one axis"},
      {with_scalar_position(), "query_positions has shape (), expected one axis"},
      {edited("\"F32\"", "\"F4\""), "dtype is 'F4', whose elements are smaller than a byte"},
  };
}

double number(const json& row, const char* field) {
  return row.at(field).get<double>();
}

std::string printed(const char* format, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string printed_error(double value) {
  const double size = std::fabs(value);
  return size == 0 ? "0" : printed(size < 0.01 ? "%.2e" : size < 1e5 ? "%.4f" : "%.4g", value);
}

void check_table_equals_json(const Table& table, const json& section) {
  const json& rows = section.at("rows");
  REQUIRE(table.lines.size() == rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const json& row = rows[i];
    const std::vector<std::string>& cells = table.lines[i];
    CAPTURE(row.dump());
    REQUIRE(cells.size() == 13);
    CHECK(cells[0] == row.at("preset").get<std::string>());
    CHECK(cells[1] == printed("%.6g", number(row, "bytes_per_token_head")));
    CHECK(cells[2] == printed("%.2f", number(row, "ratio_to_bf16")));
    CHECK(cells[3] == std::to_string(row.at("bytes").get<std::int64_t>()));
    CHECK(cells[4] == printed("%.5f", number(row, "key_cosine")));
    CHECK(cells[5] == printed_error(number(row, "key_relative_mse")));
    CHECK(cells[6] == printed("%.5f", number(row, "value_cosine")));
    CHECK(cells[7] == printed_error(number(row, "value_relative_mse")));
    if (section.at("attention_rows") == 0) {
      CHECK(std::all_of(cells.begin() + 8, cells.end(),
                        [](const std::string& cell) { return cell == "-"; }));
      for (const char* const field : {"logit_error_mean", "logit_error_std", "output_relative_l2",
                                      "output_cosine", "kl_divergence", "top1_agreement"}) {
        CHECK(row.at(field).is_null());
      }
    } else {
      CHECK(cells[8] == printed_error(number(row, "logit_error_std")));
      CHECK(cells[9] == printed_error(number(row, "output_relative_l2")));
      CHECK(cells[10] == printed("%.5f", number(row, "output_cosine")));
      CHECK(cells[11] == printed_error(number(row, "kl_divergence")));
      CHECK(cells[12] == printed("%.2f%%", 100 * number(row, "top1_agreement")));
    }
  }
}

/// Bytes of one key and one value of `d` and `dv` coordinates, written out by hand for every name.
std::pair<std::int64_t, std::int64_t> expected_bytes(const std::string& preset, std::int64_t d,
                                                     std::int64_t dv) {
  const auto packed = [](std::int64_t elements, std::int64_t bits) {
    return (elements * bits + 7) / 8;
  };
  const std::int64_t one_group_4 = packed(dv, 4) + 4;
  const std::int64_t groups = (dv + 31) / 32;
  const std::int64_t mean = (2 * d + 63) / 64;  // fp16 numbers for 64 tokens
  const std::map<std::string, std::pair<std::int64_t, std::int64_t>> table{
      {"bf16", {2 * d, 2 * dv}},
      {"turboquant_k8v4", {d, one_group_4}},
      {"turboquant_4bit_nc", {packed(d, 4) + 2, one_group_4}},
      {"turboquant_k3v4_nc", {packed(d, 3) + 2, one_group_4}},
      {"turboquant_3bit_nc", {packed(d, 3) + 2, packed(dv, 3) + 4}},
      {"k3v2", {packed(d, 2) + packed(d, 1) + 4, packed(dv, 2) + 4 * groups}},
      {"k3v4", {packed(d, 2) + packed(d, 1) + 4, packed(dv, 4) + 4 * groups}},
      {"tq_k4v4", {packed(d, 4) + 2, one_group_4}},
      {"tq_k3v4", {packed(d, 3) + 2, one_group_4}},
      {"tq_k3v4_g32", {packed(d, 3) + 2, packed(dv, 4) + 4 * groups}},
      {"tq_k3v3", {packed(d, 3) + 2, packed(dv, 3) + 2}},
      {"tq_k3v2", {packed(d, 3) + 2, packed(dv, 2) + 2}},
      {"tq_k2v2", {packed(d, 2) + 2, packed(dv, 2) + 2}},
      {"tq_k4v4_rotated", {packed(d, 4) + 2, packed(dv, 4) + 2}},
      {"tq_k4v4_mean", {packed(d, 4) + 2 + mean, one_group_4}},
      {"tq_k3v4_mean", {packed(d, 3) + 2 + mean, one_group_4}},
      {"tq_k2v2_mean", {packed(d, 2) + 2 + mean, packed(dv, 2) + 2}},
      {"scaled_fp8_k8v4", {d + 2, one_group_4}},
      {"int8_k8v4", {d + 2, one_group_4}},
  };
  REQUIRE(table.count(preset) == 1);
  return table.at(preset);
}

struct LayerShape {
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t d;
  std::int64_t dv;
};

void check_bytes(const json& report, const std::vector<LayerShape>& shapes) {
  REQUIRE(report.at("layers").size() == shapes.size());
  std::map<std::string, std::int64_t> totals;
  std::int64_t token_heads = 0;
  for (std::size_t l = 0; l < shapes.size(); ++l) {
    const LayerShape& shape = shapes[l];
    const std::int64_t vectors = shape.tokens * shape.heads;
    token_heads += vectors;
    for (const json& row : report.at("layers")[l].at("rows")) {
      const std::string preset = row.at("preset");
      CAPTURE(preset);
      const auto [key, value] = expected_bytes(preset, shape.d, shape.dv);
      CHECK(number(row, "key_bytes") == static_cast<double>(key));
      CHECK(number(row, "value_bytes") == static_cast<double>(value));
      CHECK(row.at("bytes").get<std::int64_t>() == vectors * (key + value));
      CHECK(number(row, "ratio_to_bf16") ==
            static_cast<double>(2 * (shape.d + shape.dv)) / static_cast<double>(key + value));
      totals[preset] += vectors * (key + value);
      for (const turboquant::CacheCodec& codec : turboquant::cache_presets) {
        if (codec.name == preset) {
          CHECK(turboquant::TurboQuantConfig(codec, shape.d, shape.dv).slot_size() == key + value);
        }
      }
    }
  }
  CHECK(report.at("total").at("token_heads") == token_heads);
  for (const json& row : report.at("total").at("rows")) {
    CHECK(row.at("bytes").get<std::int64_t>() == totals.at(row.at("preset")));
  }
}

}  // namespace

TEST_CASE("a wrong file gets exit code 2 and one clear line, each fault its own") {
  const TemporaryDirectory directory;
  std::set<std::string> lines;
  std::size_t count = 0;
  for (const BadFile& bad : bad_files()) {
    const std::string path = directory.write("bad.safetensors", bad.bytes);
    const std::string json_path = directory.file("never.json");
    const ProgramResult result = run_program({path, "--json", json_path});
    CAPTURE(bad.says);
    CAPTURE(result.errors);
    CHECK(result.exit_code == 2);
    CHECK(result.output.empty());
    CHECK(result.one_error_line());
    CHECK(result.errors.find(path) != std::string::npos);
    CHECK(result.errors.find(bad.says) != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(json_path));
    lines.insert(result.errors);
    ++count;
  }
  // The three spellings of a layer that is none share their line.
  CHECK(lines.size() == count - 3);
}

TEST_CASE("a wrong path or argument gets exit code 2 and one clear line") {
  const TemporaryDirectory directory;
  const std::string good = directory.write("good.safetensors", SmallCapture().bytes());
  struct Wrong {
    std::vector<std::string> arguments;
    std::string says;
  };
  const std::vector<Wrong> wrongs{
      {{directory.file("absent")}, "cannot be opened: No such file"},
      {{directory.file("line\nbreak")}, "line?break: cannot be opened"},
      {{directory.file(".")}, "is not a regular file"},
      {{good, "--layer", "6"}, "--layer 6: "},
      {{good, "--layer", "-1"}, "--layer -1: "},
      {{good, "--layer", "five"}, "--layer"},
      {{good, "--layer", "99999999999"}, "--layer"},
      {{good, "--preset", "k9"}, "--preset 'k9': expected one of bf16, turboquant_k8v4"},
      {{good, "--preset", ""}, "--preset ''"},
      {{good, "--seed", "-1"}, "--seed"},
      {{good, "--seed", "1.5"}, "--seed: \"1.5\", expected an integer"},
      {{good, "--seed", "18446744073709551616"}, "--seed: \"18446744073709551616\", expected"},
      {{good, "--seed", ""}, "--seed"},
      {{good, "--sm-scale", "nan"}, "--sm-scale is nan, expected more than 0 and at most 1000000"},
      {{good, "--sm-scale", "0"}, "--sm-scale is 0, expected"},
      {{good, "--sm-scale", "-1"}, "--sm-scale is -1, expected"},
      {{good, "--sm-scale", "inf"}, "--sm-scale is inf, expected"},
      {{good, "--sm-scale", "1e308"}, "--sm-scale is 1e+308, expected"},
      {{good, "--sm-scale", "1000000.5"}, "--sm-scale is 1000000.5, expected"},
      {{good, "--json"}, "--json"},
      {{good, "--json", ""}, "--json '': expected the name of a file"},
      {{good, "--json="}, "--json"},
      {{"--list", good}, "--list is given with file, expected no other argument"},
      {{"--list", "extra"}, "--list is given with file"},
      {{"--list", "--preset", "nope"}, "--list is given with --preset"},
      {{"--preset", "bf16", "--list"}, "--list is given with --preset"},
      {{"--list", "--layer", "0"}, "--list is given with --layer"},
      {{"--list", "--seed", "0"}, "--list is given with --seed"},
      {{"--list", "--sm-scale", "1"}, "--list is given with --sm-scale"},
      {{"--list", "--json", directory.file("never.json")}, "--list is given with --json"},
      {{good, good}, "not expected"},
      {{good, "--frobnicate"}, "--frobnicate"},
  };
  for (const Wrong& wrong : wrongs) {
    const ProgramResult result = run_program(wrong.arguments);
    CAPTURE(wrong.says);
    CAPTURE(result.errors);
    CHECK(result.exit_code == 2);
    CHECK(result.output.empty());
    CHECK(result.one_error_line());
    CHECK(result.errors.find(wrong.says) != std::string::npos);
  }
}

TEST_CASE("output that cannot be written is exit code 1, and says so") {
  const TemporaryDirectory directory;
  const std::string good = directory.write("good.safetensors", SmallCapture().bytes());
  const ProgramResult result = run_program({good, "--json", directory.file("no/such/folder.json")});
  CHECK(result.exit_code == 1);
  CHECK(result.output.empty());
  CHECK(result.one_error_line());
}

TEST_CASE("a full device is exit code 1, whatever is printed there") {
  const TemporaryDirectory directory;
  const std::string good = directory.write("good.safetensors", SmallCapture().bytes());
  const std::string full = "/dev/full";
  if (!std::filesystem::exists(full)) {
    return;
  }
  const std::vector<std::vector<std::string>> printing{
      {"--list"}, {"--help"}, {good}, {good, "--json", directory.file("never.json")}};
  for (const std::vector<std::string>& arguments : printing) {
    CAPTURE(arguments[0]);
    const ProgramResult result = run_program(arguments, "", full);
    CHECK(result.exit_code == 1);
    CHECK(result.one_error_line());
    CHECK(result.errors.find("standard output cannot be written") != std::string::npos);
  }
  const ProgramResult result = run_program({good, "--json", full});
  CHECK(result.exit_code == 1);
  CHECK(result.errors.find("--json /dev/full: cannot be written") != std::string::npos);
}

TEST_CASE("the report never overwrites its input, under whatever name") {
  const TemporaryDirectory directory;
  const std::string bytes = SmallCapture().bytes();
  const std::string path = directory.write("self.safetensors", bytes);
  std::filesystem::create_hard_link(path, directory.file("hard"));
  std::filesystem::create_symlink(path, directory.file("soft"));
  const std::vector<std::string> names{path, directory.file("./self.safetensors"),
                                       directory.file("hard"), directory.file("soft")};
  for (const std::string& input : names) {
    for (const std::string& output : names) {
      const ProgramResult result = run_program({input, "--json", output});
      CAPTURE(output);
      CHECK(result.exit_code == 2);
      CHECK(result.output.empty());
      CHECK(result.one_error_line());
      CHECK(result.errors.find("--json " + output + ": is an input file") != std::string::npos);
      CHECK(contents(path) == bytes);
    }
  }
  // A file that only looks the same is another one.
  const std::string copy = directory.write("copy", bytes);
  CHECK(run_program({path, "--json", copy}).exit_code == 0);
  CHECK(json::parse(contents(copy)).at("file") == "self.safetensors");
  CHECK(contents(path) == bytes);
}

TEST_CASE("zeros that stay zeros are a perfect report") {
  SafetensorsWriter writer;
  writer.add_floats("layers.0.key", {4, 1, 8}, std::vector<float>(32));
  writer.add_floats("layers.0.value", {4, 1, 8}, std::vector<float>(32));
  writer.add_floats("layers.0.query", {2, 1, 8}, random_floats(16, 3));
  const TemporaryDirectory directory;
  ProgramResult result;
  const json report = run_json({directory.write("zeros", writer.bytes())}, result);
  REQUIRE(result.exit_code == 0);
  for (const json& row : report.at("total").at("rows")) {
    CAPTURE(row.dump());
    for (const char* const field :
         {"key_cosine", "value_cosine", "output_cosine", "top1_agreement"}) {
      CHECK(number(row, field) == 1.0);
    }
    for (const char* const field : {"key_relative_mse", "value_relative_mse", "logit_error_std",
                                    "output_relative_l2", "kl_divergence"}) {
      CHECK(number(row, field) == 0.0);
    }
  }
  check_table_equals_json(tables_of(result.output).back(), report.at("total"));
}

TEST_CASE("numbers of every size are printed whole; what is not finite is nan or inf, and null") {
  SmallCapture capture;
  SafetensorsWriter writer;
  const auto scaled = [](std::int64_t count, std::uint64_t stream, float factor) {
    std::vector<float> values = random_floats(count, stream);
    std::transform(values.begin(), values.end(), values.begin(),
                   [&](float x) { return x * factor; });
    return values;
  };
  // Beyond 448 the fp8 keys saturate, which makes errors of 1e60 and more in the logits.
  writer.add_floats("layers.5.key", capture.key, scaled(192, 0, 1e30F));
  writer.add_floats("layers.5.value", capture.value, scaled(192, 1, 1e3F));
  writer.add_floats("layers.5.query", capture.query, scaled(96, 2, 1e30F));
  const TemporaryDirectory directory;
  ProgramResult result;
  const json large = run_json({directory.write("large", writer.bytes()), "--preset",
                               "turboquant_k8v4", "--sm-scale", "1e6"},
                              result);
  REQUIRE(result.exit_code == 0);
  CHECK(number(large.at("total").at("rows")[0], "logit_error_std") > 1e63);
  check_table_equals_json(tables_of(result.output).back(), large.at("total"));

  // The largest float has no finite bfloat16.
  SafetensorsWriter largest;
  std::vector<float> keys = random_floats(192, 0);
  keys[0] = std::numeric_limits<float>::max();
  largest.add_floats("layers.5.key", capture.key, keys);
  largest.add_floats("layers.5.value", capture.value, random_floats(192, 1));
  largest.add_floats("layers.5.query", capture.query, random_floats(96, 2));
  const json infinite =
      run_json({directory.write("largest", largest.bytes()), "--preset", "bf16"}, result);
  REQUIRE(result.exit_code == 0);
  const json& row = infinite.at("total").at("rows")[0];
  for (const char* const field : {"key_cosine", "key_relative_mse", "logit_error_std",
                                  "kl_divergence", "output_relative_l2", "output_cosine"}) {
    CAPTURE(field);
    CHECK(row.at(field).is_null());
  }
  CHECK(number(row, "value_cosine") > 0.99);
  CHECK(number(row, "top1_agreement") < 1.0);
  const std::vector<std::string> cells = tables_of(result.output).back().lines.at(0);
  CHECK(cells.at(4) == "nan");
  CHECK(cells.at(5) == "inf");
  CHECK(cells.at(8) == "nan");
  CHECK(cells.at(11) == "nan");
  CHECK(result.output.find("-nan") == std::string::npos);
}

TEST_CASE("a file that would not fit in memory is refused before anything is allocated") {
  const TemporaryDirectory directory;
  const std::int64_t tokens = (std::int64_t{1} << 24) + 1;
  const std::string bytes = std::to_string(tokens * 64);
  const std::string twice = std::to_string(tokens * 128);
  const std::string shape = "\"shape\":[" + std::to_string(tokens) + ",1,32],\"data_offsets\":[";
  const std::string header = "{\"layers.0.key\":{\"dtype\":\"BF16\"," + shape + "0," + bytes +
                             "]},\"layers.0.value\":{\"dtype\":\"BF16\"," + shape + bytes + "," +
                             twice + "]}}";
  const std::string path = directory.write("huge.safetensors", safetensors_bytes(header, ""));
  std::error_code failed;
  std::filesystem::resize_file(path, 8 + header.size() + static_cast<std::uintmax_t>(tokens * 128),
                               failed);
  REQUIRE_FALSE(failed);
  const ProgramResult result = run_program({path});
  CHECK(result.exit_code == 2);
  CHECK(result.one_error_line());
  CHECK(result.errors.find("hold 1073741888 numbers, expected at most 1073741824") !=
        std::string::npos);
}

TEST_CASE("the fixture: tables equal JSON, bytes equal an independent sum, bf16 is exact") {
  ProgramResult result;
  const json report = run_json({}, result);
  REQUIRE(result.exit_code == 0);
  REQUIRE_FALSE(report.is_discarded());
  CHECK(report.at("file") == "smollm2_135m_qkv.safetensors");
  const std::vector<Table> tables = tables_of(result.output);
  REQUIRE(report.at("layers").size() == 3);
  REQUIRE(tables.size() == 4);
  const std::array<int, 3> numbers{0, 14, 29};
  for (std::size_t l = 0; l < 3; ++l) {
    const json& layer = report.at("layers")[l];
    CHECK(layer.at("layer") == numbers[l]);
    CHECK(layer.at("token_heads") == 1024 * 3);
    CHECK(layer.at("attention_rows") == 128 * 9);
    CHECK(tables[l].heading == "Layer " + std::to_string(numbers[l]) +
                                   ": 3072 token-heads, 786432 bytes in bf16, 1152 attention rows");
    check_table_equals_json(tables[l], layer);
  }
  CHECK(tables[3].heading == "Total: 9216 token-heads, 2359296 bytes in bf16, 3456 attention rows");
  check_table_equals_json(tables[3], report.at("total"));
  check_bytes(report, {{1024, 3, 64, 64}, {1024, 3, 64, 64}, {1024, 3, 64, 64}});

  std::map<std::string, json> total;
  for (const json& row : report.at("total").at("rows")) {
    total[row.at("preset")] = row;
  }
  // Every preset of the library is there, and the fixture is bf16 already.
  for (const turboquant::CacheCodec& codec : turboquant::cache_presets) {
    CHECK(total.count(std::string(codec.name)) == 1);
  }
  const json& exact = total.at("bf16");
  for (const char* const field : {"key_relative_mse", "value_relative_mse", "logit_error_std",
                                  "logit_error_mean", "output_relative_l2", "kl_divergence"}) {
    CHECK(number(exact, field) == 0.0);
  }
  CHECK(number(exact, "top1_agreement") == 1.0);
  CHECK(number(exact, "key_cosine") == doctest::Approx(1.0).epsilon(1e-12));
  // So are key means, in every column that keys decide.
  for (const std::string preset : {"tq_k4v4", "tq_k3v4", "tq_k2v2"}) {
    const json& without = total.at(preset);
    const json& with = total.at(preset + "_mean");
    CHECK(number(with, "key_relative_mse") < 0.4 * number(without, "key_relative_mse"));
    CHECK(number(with, "kl_divergence") < 0.4 * number(without, "kl_divergence"));
    CHECK(number(with, "output_relative_l2") < number(without, "output_relative_l2"));
    CHECK(number(with, "top1_agreement") > number(without, "top1_agreement"));
  }
  // More bits are better, in every column.
  const std::vector<std::string> ladder{"tq_k2v2", "tq_k3v3", "tq_k4v4_rotated"};
  for (std::size_t i = 1; i < ladder.size(); ++i) {
    const json& worse = total.at(ladder[i - 1]);
    const json& better = total.at(ladder[i]);
    for (const char* const field :
         {"key_cosine", "value_cosine", "output_cosine", "top1_agreement"}) {
      CHECK(number(better, field) > number(worse, field));
    }
    for (const char* const field : {"key_relative_mse", "value_relative_mse", "logit_error_std",
                                    "output_relative_l2", "kl_divergence"}) {
      CHECK(number(better, field) < number(worse, field));
    }
  }
}

TEST_CASE("bytes of odd sizes, of layers that differ, and of values narrower than a group") {
  const TemporaryDirectory directory;
  SafetensorsWriter writer;
  const std::vector<LayerShape> shapes{{5, 2, 67, 67}, {7, 1, 40, 13}, {5, 3, 80, 96}};
  const std::array<int, 3> numbers{2, 10, 11};
  for (std::size_t l = 0; l < shapes.size(); ++l) {
    const LayerShape& s = shapes[l];
    const std::string prefix = "layers." + std::to_string(numbers[l]);
    writer.add_floats(prefix + ".value", {s.tokens, s.heads, s.dv},
                      random_floats(s.tokens * s.heads * s.dv, 2 * l));
    writer.add_floats(prefix + ".key", {s.tokens, s.heads, s.d},
                      random_floats(s.tokens * s.heads * s.d, 2 * l + 1));
  }
  writer.add("tokens", "U8", {2}, "ab");
  const std::string path = directory.write("odd.safetensors", writer.bytes());
  ProgramResult result;
  const json report = run_json({path}, result);
  REQUIRE(result.exit_code == 0);
  check_bytes(report, shapes);
  const std::vector<Table> tables = tables_of(result.output);
  REQUIRE(tables.size() == 4);
  for (std::size_t l = 0; l < 3; ++l) {
    check_table_equals_json(tables[l], report.at("layers")[l]);
  }
  check_table_equals_json(tables[3], report.at("total"));
  CHECK(result.output.find("not used      1 tensor: 'tokens'\n") != std::string::npos);
}

TEST_CASE("--layer, --preset, --seed and --sm-scale select what they say") {
  const TemporaryDirectory directory;
  SafetensorsWriter writer;
  SmallCapture capture;
  capture.add_to(writer);
  capture.prefix = "layers.12.";
  capture.has_positions = false;
  capture.add_to(writer);
  const std::string path = directory.write("two.safetensors", writer.bytes());
  ProgramResult result;
  const json all = run_json({path}, result);
  const json one = run_json(
      {path, "--layer", "12", "--layer", "12", "--preset", "k3v4", "--preset", "bf16"}, result);
  REQUIRE(one.at("layers").size() == 1);
  CHECK(one.at("layers")[0].at("layer") == 12);
  REQUIRE(one.at("layers")[0].at("rows").size() == 2);
  CHECK(one.at("layers")[0].at("rows")[0] == all.at("layers")[1].at("rows")[0]);
  CHECK(one.at("layers")[0].at("rows")[1].at("preset") == "k3v4");
  CHECK(one.at("total").at("rows") == one.at("layers")[0].at("rows"));

  const std::vector<std::string> rotated{path, "--preset", "tq_k3v3", "--seed"};
  const auto with = [&](std::vector<std::string> arguments, const std::string& last) {
    arguments.push_back(last);
    return run_json(arguments, result).at("total").at("rows")[0];
  };
  CHECK(with(rotated, "3") == with(rotated, "3"));
  CHECK(with(rotated, "3") != with(rotated, "4"));
  const std::vector<std::string> scaled{path, "--preset", "tq_k3v3", "--sm-scale"};
  const json single = with(scaled, "0.25");
  const json twice = with(scaled, "0.5");
  CHECK(number(twice, "logit_error_std") ==
        doctest::Approx(2 * number(single, "logit_error_std")).epsilon(1e-12));
  CHECK(with(scaled, printed("%.17g", 1 / std::sqrt(8.0))) == all.at("total").at("rows")[10]);
  CHECK(all.at("total").at("rows")[10].at("preset") == "tq_k3v3");
}

TEST_CASE("--list names every codec and needs no file") {
  const ProgramResult result = run_program({"--list"});
  CHECK(result.exit_code == 0);
  CHECK(result.errors.empty());
  for (const turboquant::CacheCodec& codec : turboquant::cache_presets) {
    CHECK(result.output.find(std::string(codec.name) + " ") != std::string::npos);
  }
}

TEST_CASE("the report does not depend on the number of threads") {
  const TemporaryDirectory directory;
  SmallCapture capture;
  capture.key = {40, 2, 24};
  capture.value = {40, 2, 16};
  capture.query = {3, 4, 24};
  const std::string path = directory.write("threads.safetensors", capture.bytes());
  ProgramResult one;
  ProgramResult two;
  ProgramResult four;
  const json first = run_json({path}, one, "OMP_NUM_THREADS=1");
  CHECK(run_json({path}, two, "OMP_NUM_THREADS=2") == first);
  CHECK(run_json({path}, four, "OMP_NUM_THREADS=4") == first);
  CHECK(one.exit_code == 0);
  CHECK(one.output == two.output);
  CHECK(one.output == four.output);
  // No progress bar where nobody looks at it.
  CHECK(one.errors.find('\r') == std::string::npos);
}

TEST_CASE(
    "without positions the queries are the last tokens; without queries there are no attention "
    "columns") {
  const TemporaryDirectory directory;
  const std::vector<std::string> only{"--preset", "tq_k3v3"};
  const auto rows = [&](const SmallCapture& capture, ProgramResult& result) {
    const std::string path = directory.write("file.safetensors", capture.bytes());
    return run_json({path, "--preset", "tq_k3v3"}, result).at("total");
  };
  ProgramResult result;
  SmallCapture capture;
  capture.positions = {9, 10, 11};
  const json last = rows(capture, result);
  capture.has_positions = false;
  CHECK(rows(capture, result) == last);
  CHECK(last.at("attention_rows") == 12);
  capture.has_query = false;
  const json none = rows(capture, result);
  CHECK(none.at("attention_rows") == 0);
  check_table_equals_json(tables_of(result.output).back(), none);
  CHECK(none.at("rows")[0].at("key_cosine") == last.at("rows")[0].at("key_cosine"));
}

TEST_CASE("every statistic of bf16 rounding equals a plain computation in this test") {
  SmallCapture capture;
  capture.positions = {0, 7, 11};
  const TemporaryDirectory directory;
  ProgramResult result;
  const std::string path = directory.write("file.safetensors", capture.bytes());
  const json row =
      run_json({path, "--preset", "bf16", "--sm-scale", "40"}, result).at("total").at("rows")[0];

  const auto rounded = [](const std::vector<float>& values) {
    std::vector<float> out;
    for (const float value : values) {
      out.push_back(bfloat16::from_float(value).to_float());
    }
    return out;
  };
  const std::vector<float> key = random_floats(12 * 2 * 8, 0);
  const std::vector<float> value = random_floats(12 * 2 * 8, 1);
  const std::vector<float> query = random_floats(3 * 4 * 8, 2);
  const std::vector<float> key_rounded = rounded(key);
  const std::vector<float> value_rounded = rounded(value);

  const auto vector_numbers = [](const std::vector<float>& x, const std::vector<float>& y) {
    double cosine = 0;
    double error = 0;
    double norm = 0;
    for (std::size_t v = 0; v < x.size() / 8; ++v) {
      double xy = 0;
      double xx = 0;
      double yy = 0;
      for (std::size_t i = 8 * v; i < 8 * v + 8; ++i) {
        xy += double{x[i]} * double{y[i]};
        xx += double{x[i]} * double{x[i]};
        yy += double{y[i]} * double{y[i]};
        error += (double{x[i]} - double{y[i]}) * (double{x[i]} - double{y[i]});
      }
      cosine += xy / std::sqrt(xx * yy);
      norm += xx;
    }
    return std::pair(cosine / static_cast<double>(x.size() / 8), error / norm);
  };
  const auto [key_cosine, key_mse] = vector_numbers(key, key_rounded);
  const auto [value_cosine, value_mse] = vector_numbers(value, value_rounded);

  struct Attended {
    std::vector<double> logits;
    std::vector<double> weights;
    std::array<double, 8> output{};
  };
  const auto attend = [&](const std::vector<float>& k, const std::vector<float>& v,
                          std::size_t position, std::size_t query_head) {
    const std::size_t head = query_head / 2;
    Attended a;
    double sum = 0;
    for (std::size_t t = 0; t <= static_cast<std::size_t>(capture.positions[position]); ++t) {
      double logit = 0;
      for (std::size_t i = 0; i < 8; ++i) {
        logit += 40 * double{query[(position * 4 + query_head) * 8 + i]} *
                 double{k[(t * 2 + head) * 8 + i]};
      }
      a.logits.push_back(logit);
      a.weights.push_back(std::exp(logit));
      sum += std::exp(logit);
    }
    for (std::size_t t = 0; t < a.weights.size(); ++t) {
      a.weights[t] /= sum;
      for (std::size_t i = 0; i < 8; ++i) {
        a.output[i] += a.weights[t] * double{v[(t * 2 + head) * 8 + i]};
      }
    }
    return a;
  };
  std::vector<double> differences;
  double divergence = 0;
  double same = 0;
  double error = 0;
  double norm = 0;
  double cosine = 0;
  for (std::size_t position = 0; position < 3; ++position) {
    for (std::size_t head = 0; head < 4; ++head) {
      const Attended exact = attend(key, value, position, head);
      const Attended approximate = attend(key_rounded, value_rounded, position, head);
      for (std::size_t t = 0; t < exact.logits.size(); ++t) {
        differences.push_back(approximate.logits[t] - exact.logits[t]);
        divergence += exact.weights[t] * std::log(exact.weights[t] / approximate.weights[t]);
      }
      const auto top = [](const Attended& a) {
        return std::max_element(a.weights.begin(), a.weights.end()) - a.weights.begin();
      };
      same += top(exact) == top(approximate) ? 1 : 0;
      double xy = 0;
      double xx = 0;
      double yy = 0;
      for (std::size_t i = 0; i < 8; ++i) {
        const double x = exact.output[i];
        const double y = approximate.output[i];
        error += (x - y) * (x - y);
        xy += x * y;
        xx += x * x;
        yy += y * y;
      }
      norm += xx;
      cosine += xy / std::sqrt(xx * yy);
    }
  }
  double mean = 0;
  for (const double difference : differences) {
    mean += difference / static_cast<double>(differences.size());
  }
  double variance = 0;
  for (const double difference : differences) {
    variance += (difference - mean) * (difference - mean) / static_cast<double>(differences.size());
  }
  const auto near = [](double expected) { return doctest::Approx(expected).epsilon(1e-9); };
  CHECK(number(row, "key_cosine") == near(key_cosine));
  CHECK(number(row, "key_relative_mse") == near(key_mse));
  CHECK(number(row, "value_cosine") == near(value_cosine));
  CHECK(number(row, "value_relative_mse") == near(value_mse));
  CHECK(number(row, "logit_error_mean") == near(mean));
  CHECK(number(row, "logit_error_std") == near(std::sqrt(variance)));
  CHECK(number(row, "kl_divergence") == doctest::Approx(divergence / 12).epsilon(1e-6));
  CHECK(number(row, "top1_agreement") == near(same / 12));
  CHECK(number(row, "output_relative_l2") == near(std::sqrt(error / norm)));
  CHECK(number(row, "output_cosine") == near(cosine / 12));
  CHECK(divergence > 0);
}
