// The GGUF reader: what it reads is what was written, and no file makes it read elsewhere.

#include "../../examples/llama_ab/gguf.hpp"
#include "../../examples/llama_ab/model.hpp"
#include "gguf_writer.hpp"

#include <io/safetensors_writer.hpp>
#include <support/error_of.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

using namespace turboquant;
using namespace turboquant::test;
using llama_ab::GgufArray;
using llama_ab::GgufFile;

namespace {

GgufWriter two_tensors() {
  GgufWriter file;
  file.add_text("name", "small");
  file.add_integer("count", 7);
  file.add("negative", 5, raw<std::int32_t>(-3));
  file.add("flag", 7, raw<std::uint8_t>(1));
  file.add_number("half", 0.5F);
  file.add("wide", 10, raw(std::numeric_limits<std::uint64_t>::max()));
  file.add_texts("words", {"a", "", "longer"});
  file.add_integers("numbers", {1, -2, 3});
  file.tensors.push_back({"first", {2, 3}, 0, SmallModel::floats(6, 1, 1, 0)});
  file.tensors.push_back({"second", {32, 2}, 8, std::string(2 * 34, '\1')});
  return file;
}

/// The message with which a spoiled file is refused.
std::string refusal(ErrorCode code, const std::function<void(GgufWriter&)>& spoil) {
  GgufWriter file = two_tensors();
  spoil(file);
  const std::string bytes = file.bytes();
  return error_of(code, [&] { static_cast<void>(GgufFile(as_bytes(bytes), "f.gguf")); });
}

}  // namespace

TEST_CASE("what was written is read") {
  const std::string bytes = two_tensors().bytes();
  const GgufFile file(as_bytes(bytes), "f.gguf");
  CHECK(file.get<std::string_view>("name") == "small");
  CHECK(file.integer("count", 0, 10) == 7);
  CHECK(file.integer("negative", -10, 10) == -3);
  CHECK(file.get<bool>("flag"));
  CHECK(file.number("half") == 0.5);
  CHECK(file.get<GgufArray>("words").strings == std::vector<std::string_view>{"a", "", "longer"});
  CHECK(file.get<GgufArray>("numbers").integers == std::vector<std::int64_t>{1, -2, 3});
  REQUIRE(file.tensors().size() == 2);
  const llama_ab::GgufTensor& first = file.tensor("first", {2, 3});
  CHECK(std::string(reinterpret_cast<const char*>(first.bytes.data()), first.bytes.size()) ==
        SmallModel::floats(6, 1, 1, 0));
  CHECK(file.tensor("second", {32, 2}).bytes.size() == 68);
  for (const std::uint64_t alignment : {8U, 16U, 256U}) {
    GgufWriter other = two_tensors();
    other.alignment = alignment;
    other.add_integer("general.alignment", static_cast<std::uint32_t>(alignment));
    const std::string moved = other.bytes();
    CHECK(GgufFile(as_bytes(moved), "f.gguf").tensor("second", {32, 2}).bytes[5] == std::byte{1});
  }
}

TEST_CASE("wrong keys, kinds and ranges are named") {
  const std::string bytes = two_tensors().bytes();
  const GgufFile file(as_bytes(bytes), "f.gguf");
  CHECK(mentions(error_of(ErrorCode::format, [&] { static_cast<void>(file.number("none")); }),
                 "f.gguf: has no metadata 'none'"));
  CHECK(mentions(error_of(ErrorCode::format, [&] { static_cast<void>(file.number("count")); }),
                 "'count' has another type"));
  CHECK(
      mentions(error_of(ErrorCode::format, [&] { static_cast<void>(file.integer("count", 8, 9)); }),
               "'count' is 7, expected 8 to 9"));
  CHECK(mentions(
      error_of(ErrorCode::format, [&] { static_cast<void>(file.integer("wide", 0, INT64_MAX)); }),
      "'wide' is at least 9223372036854775807, expected 0 to"));
  CHECK(mentions(error_of(ErrorCode::shape_mismatch,
                          [&] {
                            static_cast<void>(file.tensor("first", {3, 2}));
                          }),
                 "tensor 'first' is (2, 3), expected (3, 2)"));
  CHECK(mentions(error_of(ErrorCode::format, [&] { static_cast<void>(file.tensor("third", {1})); }),
                 "has no tensor 'third'"));
}

TEST_CASE("every cut file is refused") {
  const std::string bytes = two_tensors().bytes();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const std::string cut = bytes.substr(0, length);
    try {
      static_cast<void>(GgufFile(as_bytes(cut), "f.gguf"));
      FAIL("accepted with ", length, " of ", bytes.size(), " bytes");
    } catch (const Error& error) {
      CHECK(mentions(error.what(), "f.gguf: "));
    }
  }
}

TEST_CASE("a changed byte never leads outside the file") {
  const std::string bytes = two_tensors().bytes();
  std::size_t refused = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (const int change : {0x01, 0x20, 0x80, 0xFF}) {
      std::string spoiled = bytes;
      spoiled[i] = static_cast<char>(spoiled[i] ^ change);
      try {
        const GgufFile file(as_bytes(spoiled), "f.gguf");
        for (const auto& [name, tensor] : file.tensors()) {
          const auto* const begin = reinterpret_cast<const std::byte*>(spoiled.data());
          const bool inside = tensor.bytes.data() >= begin &&
                              tensor.bytes.data() + tensor.bytes.size() <= begin + spoiled.size();
          CHECK(inside);
          if (tensor.num_elements < 1000) {
            std::vector<float> numbers(tensor.num_elements);
            llama_ab::dequantize(tensor.type, tensor.bytes, numbers);
          }
        }
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  CHECK(refused > bytes.size() / 2);
}

TEST_CASE("hostile files") {
  constexpr std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();
  const auto tensor = [](auto change) {
    return [change](GgufWriter& file) { change(file.tensors[1]); };
  };
  using Tensor = GgufWriter::Tensor;
  CHECK(mentions(refusal(ErrorCode::format, [](auto& f) { f.magic = "GGUX"; }), "'GGUF'"));
  CHECK(mentions(refusal(ErrorCode::unsupported, [](auto& f) { f.version = 1; }),
                 "GGUF version is 1, expected 2 or 3"));
  // A big-endian file.
  CHECK(mentions(refusal(ErrorCode::unsupported, [](auto& f) { f.version = 0x03000000; }),
                 "little-endian"));
  for (const std::int64_t more : {1L, 1000L, 1L << 40U, INT64_MAX}) {
    CHECK(
        mentions(refusal(ErrorCode::format, [&](auto& f) { f.more_tensors = more; }), "f.gguf: "));
    CHECK(mentions(refusal(ErrorCode::format, [&](auto& f) { f.more_values = more; }), "f.gguf: "));
  }
  for (const std::uint64_t length : {std::uint64_t{1000}, std::uint64_t{1} << 63U, huge}) {
    CHECK(mentions(
        refusal(ErrorCode::format, [&](auto& f) { f.add("text", 8, raw(length) + "abc"); }),
        "needs"));
    CHECK(mentions(
        refusal(ErrorCode::format,
                [&](auto& f) { f.add("array", 9, raw<std::uint32_t>(10) + raw(length) + "abc"); }),
        "the length of an array is"));
    CHECK(mentions(
        refusal(ErrorCode::format,
                [&](auto& f) { f.add("array", 9, raw<std::uint32_t>(8) + raw(length) + "abc"); }),
        "the length of an array is"));
  }
  CHECK(mentions(
      refusal(ErrorCode::unsupported,
              [](auto& f) { f.add("nested", 9, raw<std::uint32_t>(9) + raw<std::uint64_t>(0)); }),
      "'nested' is an array of type 9"));
  CHECK(mentions(refusal(ErrorCode::format, [](auto& f) { f.add("odd", 13, raw(1)); }),
                 "'odd' has type 13"));
  CHECK(
      mentions(refusal(ErrorCode::format, [](auto& f) { f.add("flag2", 7, raw<std::uint8_t>(2)); }),
               "for a boolean"));
  CHECK(mentions(refusal(ErrorCode::format, [](auto& f) { f.add_integer("count", 8); }),
                 "metadata 'count' appears twice"));
  for (const std::uint32_t alignment : {0U, 7U, 12U, 1U << 30U}) {
    CHECK(mentions(
        refusal(ErrorCode::format, [&](auto& f) { f.add_integer("general.alignment", alignment); }),
        "'general.alignment' is"));
  }
  CHECK(mentions(refusal(ErrorCode::format, tensor([](Tensor& t) { t.name = "first"; })),
                 "tensor 'first' appears twice"));
  CHECK(
      mentions(refusal(ErrorCode::format, tensor([](Tensor& t) { t.shape = {}; })), "has 0 axes"));
  CHECK(mentions(refusal(ErrorCode::format, tensor([](Tensor& t) {
                           t.shape = {32, 1, 1, 1, 1};
                         })),
                 "has 5 axes"));
  CHECK(mentions(refusal(ErrorCode::format, tensor([](Tensor& t) {
                           t.shape = {32, 0};
                         })),
                 "has extent 0 of axis 1"));
  for (const std::vector<std::uint64_t>& shape :
       {std::vector<std::uint64_t>{32, huge}, {huge}, {1U << 31U, 1U << 31U, 8}, {32, 1U << 31U}}) {
    CHECK(mentions(refusal(ErrorCode::format, tensor([&](Tensor& t) { t.shape = shape; })),
                   "tensor 'second'"));
  }
  CHECK(mentions(refusal(ErrorCode::format, tensor([](Tensor& t) {
                           t.shape = {16, 4};
                         })),
                 "has rows of 16 numbers, expected a multiple of 32 for Q8_0"));
  for (const std::uint32_t type : {7U, 10U, 31U, 0xFFFFFFFFU}) {
    CHECK(mentions(refusal(ErrorCode::unsupported, tensor([&](Tensor& t) { t.type = type; })),
                   "has type " + std::to_string(type)));
  }
  CHECK(mentions(refusal(ErrorCode::format, tensor([](Tensor& t) { t.shift = 8; })),
                 "expected a multiple of 32"));
  CHECK(mentions(refusal(ErrorCode::format, tensor([](Tensor& t) { t.shift = 32; })),
                 "of the data, of which there are"));
  CHECK(mentions(refusal(ErrorCode::format, tensor([](Tensor& t) { t.shift = -64; })),
                 "tensor 'second' takes bytes"));
  CHECK(mentions(refusal(ErrorCode::format, tensor([](Tensor& t) { t.shift = -32; })),
                 "two tensors overlap"));
  // Control characters of a name do not reach the terminal.
  const std::string name = refusal(ErrorCode::format, tensor([](Tensor& t) {
                                     t.name = "a\n\x1b[31m";
                                     t.shape = {};
                                   }));
  CHECK(name.find('\n') == std::string::npos);
  CHECK(name.find('\x1b') == std::string::npos);
}

TEST_CASE("files that cannot be mapped are named") {
  const TemporaryDirectory directory;
  CHECK(mentions(error_of(ErrorCode::io, [&] { llama_ab::MappedFile(directory.file("none")); }),
                 "cannot be opened"));
  CHECK(mentions(error_of(ErrorCode::io, [&] { llama_ab::MappedFile(directory.file(".")); }),
                 "is not a regular file"));
  const std::string empty = directory.write("empty", "");
  CHECK(mentions(error_of(ErrorCode::format, [&] { llama_ab::MappedFile{empty}; }), "is empty"));
}

TEST_CASE("models that are not plain Llama models are refused") {
  const auto refused = [](ErrorCode code, const std::function<void(GgufWriter&)>& spoil) {
    GgufWriter writer = SmallModel().writer();
    spoil(writer);
    const std::string bytes = writer.bytes();
    const GgufFile file(as_bytes(bytes), "m.gguf");
    return error_of(code, [&] { static_cast<void>(llama_ab::load_model(file)); });
  };
  const auto set = [](GgufWriter& writer, const std::string& key, const std::string& value) {
    for (auto& pair : writer.values) {
      if (pair.first == key) {
        pair.second = value;
      }
    }
  };
  const auto u32 = [](std::uint32_t number) { return raw<std::uint32_t>(4) + raw(number); };
  CHECK(mentions(refused(ErrorCode::unsupported,
                         [&](auto& w) {
                           set(w, "general.architecture",
                               raw<std::uint32_t>(8) + raw_text("mamba"));
                         }),
                 "the architecture is 'mamba', expected 'llama'"));
  CHECK(mentions(refused(ErrorCode::format, [&](auto& w) { set(w, "llama.block_count", u32(0)); }),
                 "'llama.block_count' is 0"));
  CHECK(mentions(refused(ErrorCode::format, [&](auto& w) { set(w, "llama.block_count", u32(3)); }),
                 "has no tensor 'blk.2.attn_norm.weight'"));
  CHECK(mentions(
      refused(ErrorCode::unsupported, [&](auto& w) { set(w, "llama.block_count", u32(1)); }),
      "is unknown"));
  CHECK(mentions(
      refused(ErrorCode::format, [&](auto& w) { set(w, "llama.attention.head_count_kv", u32(3)); }),
      "expected a multiple of its 3 kv heads"));
  CHECK(mentions(refused(ErrorCode::shape_mismatch,
                         [&](auto& w) { set(w, "llama.feed_forward_length", u32(128)); }),
                 "ffn_gate"));
  CHECK(mentions(refused(ErrorCode::unsupported,
                         [](auto& w) { w.add_text("llama.rope.scaling.type", "yarn"); }),
                 "RoPE scaling is 'yarn'"));
  CHECK(mentions(
      refused(ErrorCode::unsupported, [](auto& w) { w.add_integer("llama.expert_count", 8); }),
      "llama.expert_count"));
  CHECK(mentions(
      refused(
          ErrorCode::unsupported,
          [](auto& w) {
            w.tensors.push_back({"blk.0.attn_q.bias", {64}, 0, SmallModel::floats(64, 99, 1, 0)});
          }),
      "tensor 'blk.0.attn_q.bias' is unknown"));
  CHECK(mentions(refused(ErrorCode::non_finite,
                         [](auto& w) {
                           w.tensors[1].data = raw(std::numeric_limits<float>::infinity()) +
                                               w.tensors[1].data.substr(4);
                         }),
                 "attn_norm"));
}
