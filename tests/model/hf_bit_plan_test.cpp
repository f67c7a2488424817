#include <turboquant/base/random.hpp>
#include <turboquant/model/hf_bit_plan.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

std::string plan_error(const std::string& text) {
  return error_of(ErrorCode::format, [&] { (void)parse_bit_plan(text); });
}

/// A plan whose only layer has these fields.
std::string with_layer(const std::string& layer) {
  return R"({"format":"turboquant bit plan","version":1,"layers":[)" + layer + "]}";
}

const std::string good_layer =
    R"({"key_codec":"mse","key_bits":3,"value_codec":"grouped","value_bits":4,"value_group":32})";

/// Every codec that a plan can hold, with the value groups 0, 8 and 128.
std::vector<LayerCodec> all_codecs() {
  std::vector<LayerCodec> codecs;
  for (int key = 0; key < 3; ++key) {
    for (const int key_bits : {2, 3, 4, 8}) {
      for (int value = 0; value < 2; ++value) {
        for (const int value_bits : {2, 3, 4}) {
          for (const std::int64_t group : {0, 8, 128}) {
            for (const bool norm : {false, true}) {
              const LayerCodec codec{static_cast<KeyCodec>(key),
                                     key_bits,
                                     static_cast<ValueCodec>(value),
                                     value_bits,
                                     group,
                                     norm,
                                     value_bits == 3 ? KeyCentring::tile_mean : KeyCentring::none};
              try {
                require_valid(codec);
                codecs.push_back(codec);
              } catch (const Error&) {
              }
            }
          }
        }
      }
    }
  }
  return codecs;
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

/// A directory of its own, removed at the end.
struct Scratch {
  Scratch() : path(std::filesystem::temp_directory_path() / "turboquant_hf_bit_plan_test") {
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

}  // namespace

TEST_CASE("a plan comes back as it was") {
  const std::vector<LayerCodec> codecs = all_codecs();
  CHECK(codecs.size() == (3 * 2 + 2 + 1) * (3 * 3 + 3));
  const CounterRng rng(1, 0);
  for (std::uint64_t i = 0; i < 200; ++i) {
    BitPlan plan;
    const std::uint32_t layers = rng.below(1000 * i, 40);
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      const std::uint32_t choice =
          rng.below(1000 * i + 1 + layer, static_cast<std::uint32_t>(codecs.size() + 1));
      plan.layers.push_back(choice == codecs.size() ? std::nullopt : std::optional(codecs[choice]));
    }
    REQUIRE(parse_bit_plan(to_json(plan)) == plan);
  }
}

TEST_CASE("the text is the documented one") {
  BitPlan plan{{LayerCodec{.key_bits = 4, .value_bits = 3}, std::nullopt,
                LayerCodec{KeyCodec::mse, 2, ValueCodec::grouped, 2, 32, true},
                LayerCodec{.key_centring = KeyCentring::tile_mean}}};
  CHECK(to_json(plan) ==
        "{\n"
        "  \"format\": \"turboquant bit plan\",\n"
        "  \"version\": 1,\n"
        "  \"layers\": [\n"
        "    {\"key_codec\": \"mse\", \"key_bits\": 4, \"value_codec\": \"codebook\", "
        "\"value_bits\": 3},\n"
        "    null,\n"
        "    {\"key_codec\": \"mse\", \"key_bits\": 2, \"value_codec\": \"grouped\", "
        "\"value_bits\": 2, \"value_group\": 32, \"norm_correction\": true},\n"
        "    {\"key_codec\": \"mse\", \"key_bits\": 3, \"value_codec\": \"codebook\", "
        "\"value_bits\": 4, \"key_centring\": \"tile_mean\"}\n"
        "  ]\n"
        "}\n");
  CHECK(to_json({}) ==
        "{\n  \"format\": \"turboquant bit plan\",\n  \"version\": 1,\n  \"layers\": []\n}\n");
  CHECK(parse_bit_plan(with_layer(good_layer)) ==
        BitPlan{{LayerCodec{KeyCodec::mse, 3, ValueCodec::grouped, 4, 32, false}}});
  // An explicit null equals an absent field; fields may come in any order.
  CHECK(parse_bit_plan(R"({"layers":[],"version":1,"format":"turboquant bit plan"})") == BitPlan{});
  CHECK(parse_bit_plan(with_layer(R"({"value_bits":4,"value_codec":"codebook","key_bits":3,)"
                                  R"("key_codec":"mse","value_group":null})"))
            .layers[0]
            ->value_group == 0);
}

TEST_CASE("every prefix of a plan is one format error") {
  const std::string valid = with_layer(good_layer + ",null");
  CHECK(parse_bit_plan(valid).layers.size() == 2);
  for (std::size_t length = 0; length < valid.size(); ++length) {
    CAPTURE(length);
    CHECK(mentions(plan_error(valid.substr(0, length)), "parse_bit_plan: "));
  }
}

TEST_CASE("every single-byte change is accepted or is an error, never anything else") {
  const std::string valid = with_layer(good_layer + ",null");
  int accepted = 0;
  for (std::size_t i = 0; i < valid.size(); ++i) {
    for (const char c : {'\0', '"', '{', '}', '[', ']', ',', ':', '-', '9', 'N', '\xff', ' '}) {
      std::string text = valid;
      text[i] = c;
      try {
        require_valid(parse_bit_plan(text));
        ++accepted;
      } catch (const Error& error) {
        REQUIRE(std::string(error.what()).size() < 700);
      }
    }
  }
  CHECK(accepted > 0);
}

TEST_CASE("hostile text is refused by depth, size and count") {
  CHECK(mentions(plan_error(std::string(200'000, '[')), "nested deeper than 64 levels"));
  CHECK(mentions(plan_error(with_layer(std::string(100, '[') + std::string(100, ']'))),
                 "nested deeper than 64 levels"));
  CHECK(mentions(plan_error("{\"format\":\"" + std::string(9U << 20U, 'x') + "\"}"),
                 "at most 8388608"));
  std::string many = "null";
  for (int i = 0; i < 10'000; ++i) {
    many += ",null";
  }
  CHECK(mentions(plan_error(with_layer(many)), "plan.layers has 10001 entries"));
  CHECK(plan_error("{\"format\":\"" + std::string(1U << 20U, 'x') + "\"}").size() < 400);
  CHECK(mentions(plan_error(""), "empty"));
  CHECK(mentions(plan_error("[]"), "root is array"));
  CHECK(mentions(plan_error(with_layer(R"({"key_bits":3,"key_bits":4})")),
                 "duplicate key \"key_bits\""));
  CHECK(mentions(plan_error(std::string("\xFF\xFE{\0", 4)), "UTF-16"));
}

TEST_CASE("another format or version is refused") {
  CHECK(mentions(plan_error(R"({"version":1,"layers":[]})"), "plan.format is \"\""));
  CHECK(mentions(plan_error(R"({"format":"gguf","version":1,"layers":[]})"),
                 "plan.format is \"gguf\", expected \"turboquant bit plan\""));
  CHECK(mentions(plan_error(R"({"format":7,"version":1,"layers":[]})"), "plan.format is 7"));
  CHECK(mentions(plan_error(R"({"format":"turboquant bit plan","layers":[]})"),
                 "plan has no version"));
  CHECK(mentions(error_of(ErrorCode::unsupported,
                          [] {
                            (void)parse_bit_plan(
                                R"({"format":"turboquant bit plan","version":2,"layers":[]})");
                          }),
                 "plan.version is 2, expected 1"));
  CHECK(mentions(plan_error(R"({"format":"turboquant bit plan","version":1.0,"layers":[]})"),
                 "plan.version is 1.0"));
}

TEST_CASE("a wrong field is named with its layer") {
  const auto layer_error = [](const std::string& layer) { return plan_error(with_layer(layer)); };
  CHECK(mentions(plan_error(R"({"format":"turboquant bit plan","version":1})"), "plan.layers is"));
  CHECK(mentions(plan_error(R"({"format":"turboquant bit plan","version":1,"layers":{}})"),
                 "plan.layers is"));
  CHECK(mentions(plan_error(R"({"format":"turboquant bit plan","version":1,"layers":[],"seed":3})"),
                 "plan has a field \"seed\", expected format or version or layers"));
  CHECK(mentions(layer_error("null,3"), "plan.layers[1] is number, expected an object or null"));
  CHECK(mentions(layer_error("[]"), "plan.layers[0] is array"));
  CHECK(mentions(layer_error("{}"), "layers[0] has no key_codec"));
  CHECK(mentions(layer_error(R"({"key_codec":"mse"})"), "layers[0] has no key_bits"));
  CHECK(mentions(layer_error(R"({"key_codec":"mse","key_bits":3})"), "has no value_codec"));
  CHECK(mentions(layer_error(R"({"key_codec":"mse","key_bits":3,"value_codec":"grouped"})"),
                 "has no value_bits"));
  CHECK(mentions(layer_error(R"({"key_codec":"MSE"})"),
                 "key_codec is \"MSE\", expected mse or inner_product or float8"));
  CHECK(mentions(layer_error(R"({"key_codec":"mse","key_bits":3,"value_codec":"codebook",)"
                             R"("value_bits":4,"key_centring":"mean"})"),
                 "layers[0].key_centring is \"mean\", expected none or tile_mean"));
  CHECK(parse_bit_plan(with_layer(R"({"key_codec":"mse","key_bits":3,"value_codec":"codebook",)"
                                  R"("value_bits":4,"key_centring":"none"})")) ==
        BitPlan{{LayerCodec{}}});
  CHECK(mentions(layer_error(R"({"key_codec":3})"), "layers[0].key_codec is 3"));
  CHECK(mentions(layer_error(R"({"keybits":3})"), "layers[0] has a field \"keybits\""));
  for (const std::string bad : {"\"3\"", "3.0", "0", "-3", "9", "1e1", "true", "[]", "{}", "NaN",
                                "18446744073709551615", "-9223372036854775809"}) {
    CHECK(mentions(layer_error(R"({"key_codec":"mse","key_bits":)" + bad + "}"),
                   "layers[0].key_bits is"));
  }
  const auto unsupported = [](const std::string& layer) {
    return error_of(ErrorCode::unsupported,
                    [&] { (void)parse_bit_plan(with_layer("null," + layer)); });
  };
  CHECK(mentions(unsupported(R"({"key_codec":"mse","key_bits":8,"value_codec":"codebook",)"
                             R"("value_bits":4})"),
                 "parse_bit_plan: layers[1].key_bits is 8, expected 2, 3 or 4 for mse keys"));
  CHECK(mentions(unsupported(R"({"key_codec":"mse","key_bits":3,"value_codec":"codebook",)"
                             R"("value_bits":4,"value_group":32})"),
                 "layers[1].value_group is 32"));
}

TEST_CASE("files: what cannot be written or read is an error and leaves what was there") {
  const Scratch scratch;
  const BitPlan plan = uniform_plan(3, {.key_bits = 4, .value_bits = 2});
  const std::filesystem::path file = scratch.path / "plan.json";
  save_bit_plan(file, plan);
  CHECK(load_bit_plan(file) == plan);
  CHECK(contents(file) == to_json(plan));
  save_bit_plan(file, uniform_plan(1, {}));  // replaces
  CHECK(load_bit_plan(file) == uniform_plan(1, {}));

  BitPlan wrong = plan;
  wrong.layers[1]->key_bits = 7;
  CHECK(mentions(error_of(ErrorCode::unsupported, [&] { save_bit_plan(file, wrong); }),
                 "to_json: layers[1].key_bits is 7"));
  CHECK(load_bit_plan(file) == uniform_plan(1, {}));

  const std::filesystem::path absent = scratch.path / "absent" / "plan.json";
  CHECK(mentions(error_of(ErrorCode::io, [&] { save_bit_plan(absent, plan); }),
                 "save_bit_plan: cannot write " + absent.string()));
  CHECK(mentions(error_of(ErrorCode::io, [&] { (void)load_bit_plan(absent); }),
                 "load_bit_plan: cannot open " + absent.string()));
  const std::filesystem::path folder = scratch.path / "folder";
  std::filesystem::create_directories(folder / "inside");
  CHECK(mentions(error_of(ErrorCode::io, [&] { save_bit_plan(folder, plan); }), "cannot write"));
  CHECK(std::filesystem::is_directory(folder / "inside"));
  CHECK(mentions(error_of(ErrorCode::io, [&] { (void)load_bit_plan(folder); }), "cannot"));
  std::size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(scratch.path)) {
    ++entries;
  }
  CHECK(entries == 2);  // no partial file is left
}

TEST_CASE("files: links, devices, permissions and other people's files") {
  const Scratch scratch;
  const BitPlan plan = uniform_plan(3, {.key_bits = 4, .value_bits = 2});
  const std::filesystem::path file = scratch.path / "plan.json";
  // The file behind a link is replaced, not the link.
  const std::filesystem::path link = scratch.path / "link.json";
  std::ofstream(file) << "old";
  std::filesystem::create_symlink(file, link);
  const auto mode = std::filesystem::perms::owner_read | std::filesystem::perms::owner_write;
  std::filesystem::permissions(file, mode);
  save_bit_plan(link, plan);
  CHECK(std::filesystem::is_symlink(link));
  CHECK(load_bit_plan(file) == plan);
  CHECK(std::filesystem::status(file).permissions() == mode);
  // Files that only look like ours stay.
  for (const char* name : {"plan.json.partial", "plan.json.0.partial"}) {
    std::ofstream(scratch.path / name) << "precious";
  }
  save_bit_plan(file, uniform_plan(1, {}));
  CHECK(load_bit_plan(file) == uniform_plan(1, {}));
  CHECK(contents(scratch.path / "plan.json.partial") == "precious");
  CHECK(contents(scratch.path / "plan.json.0.partial") == "precious");
  // A device stays one, and when it is full that is an error.
  if (const std::filesystem::path full = "/dev/full"; std::filesystem::exists(full)) {
    CHECK(mentions(error_of(ErrorCode::io, [&] { save_bit_plan(full, plan); }), "cannot write"));
    CHECK(std::filesystem::is_character_file(full));
  }
}

TEST_CASE("files: a path with a NUL inside, pipes and devices are not read") {
  const Scratch scratch;
  const BitPlan plan = uniform_plan(3, {.key_bits = 4, .value_bits = 2});
  save_bit_plan(scratch.path / "plan", plan);
  const std::filesystem::path cut = scratch.path / std::string("plan\0.json", 10);
  const std::string at = std::to_string(cut.string().find('\0') + 1);
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)load_bit_plan(cut); }),
                 "with a NUL at its byte " + at));
  CHECK(mentions(
      error_of(ErrorCode::invalid_argument, [&] { save_bit_plan(cut, uniform_plan(1, {})); }),
      "save_bit_plan: path is '"));
  CHECK(error_of(ErrorCode::invalid_argument, [&] { (void)load_bit_plan(""); }) ==
        "load_bit_plan: path is empty, expected that of a file");
  CHECK(error_of(ErrorCode::invalid_argument, [&] { save_bit_plan("", plan); }) ==
        "save_bit_plan: path is empty, expected that of a file");
  CHECK(load_bit_plan(scratch.path / "plan") == plan);
  CHECK(mentions(error_of(ErrorCode::io, [&] { (void)load_bit_plan(scratch.path); }),
                 "is not a regular file"));
  const std::filesystem::path pipe = scratch.path / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);  // nobody writes: reading it would never end
  CHECK(mentions(error_of(ErrorCode::io, [&] { (void)load_bit_plan(pipe); }),
                 "is not a regular file"));
  for (const char* const device : {"/dev/null", "/dev/zero"}) {
    if (std::filesystem::exists(device)) {
      CHECK(mentions(error_of(ErrorCode::io, [&] { (void)load_bit_plan(device); }),
                     "is not a regular file"));
    }
  }
}
