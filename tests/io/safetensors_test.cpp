#include <turboquant/io/safetensors.hpp>

#include <io/safetensors_writer.hpp>

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

using turboquant::Error;
using turboquant::ErrorCode;
using turboquant::SafetensorsFile;
using turboquant::SafetensorsHeader;
using turboquant::TensorEntry;
using turboquant::test::little_endian;
using turboquant::test::safetensors_bytes;
using turboquant::test::SafetensorsWriter;
using turboquant::test::TemporaryDirectory;

namespace {

template <class Call>
std::optional<Error> error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

/// A header with one tensor "t" whose fields are given as JSON.
std::string one_tensor(const std::string& dtype, const std::string& shape,
                       const std::string& offsets) {
  return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

std::string two_tensors(const std::string& first, const std::string& second) {
  return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
         R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
}

struct BadHeader {
  std::string json;
  std::int64_t data_bytes;
  ErrorCode code;
  std::string says;
};

std::vector<BadHeader> bad_headers() {
  const auto format = ErrorCode::format;
  const auto overflow = ErrorCode::overflow;
  const auto shape = ErrorCode::shape_mismatch;
  const std::string u8 = "\"U8\"";
  std::string deep = R"({"t":{"shape":)" + std::string(200000, '[');
  std::string objects;
  for (int i = 0; i < 100000; ++i) {
    objects += R"({"a":)";
  }
  return {
      // Not a header at all.
      {"", 0, format, "begins with nothing"},
      {"[]", 0, format, "begins with '['"},
      {" {}", 0, format, "begins with ' '"},
      {"\xEF\xBB\xBF{}", 0, format, "expected '{'"},
      {std::string("{\0}\0", 4), 0, format, "not valid JSON at its byte 2"},
      {"{", 0, format, "not valid JSON at its byte 2"},
      {R"({"t":{},})", 0, format, "has no dtype"},
      {R"({"__metadata__":{},})", 0, format, "not valid JSON at its byte 20"},
      {"{} x", 0, format, "not valid JSON at its byte 4"},
      {"{}{}", 0, format, "at its byte 3: 'syntax error while"},
      {"{\"\xFF\":1}", 0, format, "ill-formed UTF-8"},
      {R"({"unterminated)" + std::string(100000, 'x'), 0, format, "..."},
      // The wrong kind of value.
      {R"({"t":5})", 0, format, "tensor 't' is a number, expected an object"},
      {R"({"t":-5})", 0, format, "tensor 't' is a number, expected an object"},
      {R"({"t":0.5})", 0, format, "tensor 't' is a number, expected an object"},
      {R"({"t":"x"})", 0, format, "tensor 't' is a string, expected an object"},
      {R"({"t":[]})", 0, format, "tensor 't' is an array, expected an object"},
      {R"({"t":null})", 0, format, "tensor 't' is null, expected an object"},
      {one_tensor("8", "[0]", "[0,0]"), 0, format, "dtype is a number, expected a string"},
      {one_tensor("[\"U8\"]", "[0]", "[0,0]"), 0, format, "dtype is an array, expected a string"},
      {one_tensor(u8, "4", "[0,4]"), 4, format, "shape is a number, expected an array"},
      {one_tensor(u8, "{}", "[0,4]"), 4, format, "shape is an object, expected an array"},
      {one_tensor(u8, "[true]", "[0,4]"), 4, format, "shape[0] is true, expected an integer"},
      {one_tensor(u8, "[\"4\"]", "[0,4]"), 4, format, "shape[0] is a string, expected an integer"},
      {one_tensor(u8, "[4]", "[0,null]"), 4, format,
       "data_offsets[1] is null, expected an integer"},
      {R"({"__metadata__":{"k":1}})", 0, format, "metadata: 'k' is a number, expected a string"},
      {R"({"__metadata__":{"k":["v"]}})", 0, format,
       "metadata: 'k' is an array, expected a string"},
      {R"({"__metadata__":"v"})", 0, format, "is a string, expected an object"},
      // Depth.
      {deep, 0, format, "nested deeper than the 3 levels"},
      {objects, 0, format, "unknown field 'a'"},
      {R"({"t":{"shape":[{"x":1}]}})", 0, format, "nested deeper than the 3 levels"},
      // Fields.
      {R"({"t":{"shape":[4],"data_offsets":[0,4]}})", 4, format, "has no dtype"},
      {R"({"t":{"dtype":"U8","data_offsets":[0,4]}})", 4, format, "has no shape"},
      {R"({"t":{"dtype":"U8","shape":[4]}})", 4, format, "has no data_offsets"},
      {R"({"t":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4, format,
       "'dtype' twice"},
      {R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":{}}})", 4, format,
       "unknown field 'x'"},
      {R"({"__metadata__":{"k":"1","k":"2"}})", 0, format, "'k' twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, format, "appears twice"},
      {R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"t":{)", 0, format,
       "tensor 't' appears twice"},
      {R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0074":{)", 0, format,
       "tensor 't' appears"},
      // Types.
      {one_tensor("\"F31\"", "[4]", "[0,4]"), 4, format,
       "dtype is 'F31' (unknown), expected one of BOOL"},
      {one_tensor("\"bf16\"", "[4]", "[0,8]"), 8, format, "dtype is 'bf16' (unknown)"},
      {one_tensor("\"\"", "[4]", "[0,8]"), 8, format, "dtype is '' (unknown)"},
      {one_tensor("\"F4\"", "[1]", "[0,0]"), 0, ErrorCode::unsupported,
       "tensor 't': dtype is 'F4', whose elements are smaller than a byte, expected one of BOOL"},
      {one_tensor("\"F4\"", "[2]", "[0,1]"), 1, ErrorCode::unsupported, "dtype is 'F4', whose"},
      {one_tensor("\"F6_E2M3\"", "[4]", "[0,3]"), 3, ErrorCode::unsupported,
       "dtype is 'F6_E2M3', whose elements are smaller than a byte"},
      {one_tensor("\"F6_E3M2\"", "[3]", "[0,2]"), 2, ErrorCode::unsupported,
       "dtype is 'F6_E3M2', whose elements are smaller than a byte"},
      // Padding.
      {std::string("{}\0", 3), 0, format, "at its byte 3: a NUL, expected JSON padded with spaces"},
      {std::string("{}  \0\0\0\0", 8), 0, format, "at its byte 5: a NUL"},
      {std::string("{}\0{\"t\":1}", 10), 0, format, "at its byte 3: a NUL"},
      {std::string("{\"a\0b\":1}", 9), 0, format, "at its byte 4: a NUL"},
      {"{}\n", 0, format, "ends in white space of code 10 at its byte 3, expected JSON padded"},
      {"{} \t ", 0, format, "ends in white space of code 9 at its byte 4, expected JSON padded"},
      {"{}\r", 0, format, "ends in white space of code 13 at its byte 3"},
      // Numbers.
      {one_tensor(u8, "[-4]", "[0,4]"), 4, format, "shape[0] is -4 (negative)"},
      {one_tensor(u8, "[-0]", "[0,0]"), 0, format, "shape[0] is -0 (negative)"},
      {one_tensor(u8, "[4]", "[-4,0]"), 4, format, "data_offsets[0] is -4 (negative)"},
      {one_tensor(u8, "[4]", "[0,-9223372036854775808]"), 4, format,
       "is -9223372036854775808 (negative)"},
      {one_tensor(u8, "[4.0]", "[0,4]"), 4, format,
       "shape[0] is '4.0' (with a fraction or exponent)"},
      {one_tensor(u8, "[4]", "[0,4e0]"), 4, format,
       "data_offsets[1] is '4e0' (with a fraction or exponent)"},
      {one_tensor(u8, "[4]", "[0,1e999]"), 4, format, "'number overflow parsing"},
      {one_tensor(u8, "[NaN]", "[0,4]"), 4, format, "not valid JSON"},
      {one_tensor(u8, "[9223372036854775808]", "[0,4]"), 4, overflow,
       "shape[0] is 9223372036854775808, which exceeds the 64-bit limit"},
      {one_tensor(u8, "[4]", "[0,18446744073709551616]"), 4, overflow,
       "data_offsets[1] is '18446744073709551616', which exceeds the 64-bit limit"},
      {one_tensor(u8, "[4]", "[0,-18446744073709551616]"), 4, overflow, "exceeds the 64-bit limit"},
      // Shapes.
      {one_tensor("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, overflow,
       "shape (4294967296, 4294967296) of F32 exceeds 64 bits"},
      {one_tensor("\"F64\"", "[1152921504606846976]", "[0,0]"), 0, overflow, "exceeds 64 bits"},
      {one_tensor("\"F32\"", "[0,9223372036854775807]", "[0,4]"), 4, ErrorCode::shape_mismatch,
       "expected 0 for shape (0, 9223372036854775807)"},
      {one_tensor(u8, "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, format,
       "more than 16 extents"},
      {one_tensor("\"F32\"", "[2]", "[0,7]"), 7, shape,
       "span 7 bytes, expected 8 for shape (2) of F32"},
      {one_tensor("\"F32\"", "[]", "[0,0]"), 0, shape,
       "span 0 bytes, expected 4 for shape () of F32"},
      // Offsets.
      {one_tensor(u8, "[4]", "[]"), 4, format, "data_offsets has 0 numbers, expected 2"},
      {one_tensor(u8, "[4]", "[0]"), 4, format, "data_offsets has 1 numbers, expected 2"},
      {one_tensor(u8, "[4]", "[0,4,8]"), 4, format, "data_offsets has more than 2 numbers"},
      {one_tensor(u8, "[4]", "[4,0]"), 4, format, "begin at 4 and end at 0, expected begin <= end"},
      {one_tensor(u8, "[4]", "[0,4]"), 3, format, "ends at data byte 4, but the file holds only 3"},
      {one_tensor(u8, "[4]", "[9223372036854775803,9223372036854775807]"), 4, format,
       "ends at data byte 9223372036854775807, but the file holds only 4"},
      {one_tensor(u8, "[4]", "[0,4]"), 5, format, "1 bytes follow the last tensor"},
      {"{}", 1, format, "1 bytes follow the last tensor"},
      {one_tensor(u8, "[4]", "[1,5]"), 5, format,
       "data bytes from 0 to 1, before tensor 't', belong to no"},
      {two_tensors("[0,4]", "[5,9]"), 9, format,
       "data bytes from 4 to 5, before tensor 'b', belong to no"},
      {two_tensors("[0,4]", "[2,6]"), 6, format,
       "'b' begins at data byte 2 and overlaps tensor 'a'"},
      {two_tensors("[0,4]", "[0,4]"), 4, format, "overlaps"},
      // Names never break the line.
      {"{\"a\\nb\\u007f\":1}", 0, format, "tensor 'a?b?' is a number"},
      {"{\"" + std::string(1000, 'n') + "\":1}", 0, format,
       std::string(80, 'n') + "...' is a number"},
  };
}

}  // namespace

TEST_CASE("what is written is read: every element type that is converted, bit for bit") {
  const TemporaryDirectory directory;
  SafetensorsWriter writer;
  std::string halves;
  std::string brains;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7C00) != 0x7C00) {
      halves += little_endian(bits, 2);
    }
    if ((bits & 0x7F80) != 0x7F80) {
      brains += little_endian(bits, 2);
    }
  }
  const std::vector<float> singles{0.0F, -0.0F, 1.0F, -1.5F, 1e-45F, 3.4028235e38F};
  writer.add("halves", "F16", {2, 31744}, halves);
  writer.add_floats("singles", {3, 2}, singles);
  writer.add("brains", "BF16", {65280}, brains);
  writer.add_integers("integers", {0, -1, std::numeric_limits<std::int64_t>::min(), 1024});
  writer.add("empty", "F32", {0, 3}, "");
  writer.add("scalar", "F32", {}, little_endian(0x40490FDB, 4));
  SafetensorsFile file(directory.write("all.safetensors", writer.bytes()));

  REQUIRE(file.tensors().size() == 6);
  CHECK(file.find("halves")->shape == std::vector<std::int64_t>{2, 31744});
  CHECK(file.find("halves")->num_elements == 63488);
  CHECK(file.find("nothing") == nullptr);

  std::vector<float> out(63488);
  file.read_floats("halves", out);
  bool same = true;
  std::size_t next = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 0x1F);
    if (exponent != 31) {
      const auto mantissa = static_cast<double>(bits & 0x3FF);
      const double magnitude =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
      same = same &&
             out[next] == static_cast<float>(magnitude) * ((bits & 0x8000) != 0 ? -1.0F : 1.0F);
      same = same && std::signbit(out[next]) == ((bits & 0x8000) != 0);
      ++next;
    }
  }
  CHECK(same);

  out.resize(65280);
  file.read_floats("brains", out);
  same = true;
  next = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7F80) != 0x7F80) {
      same = same && std::bit_cast<std::uint32_t>(out[next++]) == bits << 16;
    }
  }
  CHECK(same);

  out.resize(6);
  file.read_floats("singles", out);
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(std::bit_cast<std::uint32_t>(out[i]) == std::bit_cast<std::uint32_t>(singles[i]));
  }
  std::vector<std::int64_t> integers(4);
  file.read_integers("integers", integers);
  CHECK(integers ==
        std::vector<std::int64_t>{0, -1, std::numeric_limits<std::int64_t>::min(), 1024});
  out.resize(1);
  file.read_floats("scalar", out);
  CHECK(out[0] == 3.14159274F);
  out.clear();
  file.read_floats("empty", out);
}

TEST_CASE("metadata and padding are kept out of the tensors, order follows the bytes") {
  const std::string json =
      R"({"z":{"shape":[1],"data_offsets":[4,5],"dtype":"U8"},"__metadata__":{"by":"hand"},)"
      R"("a":{"dtype":"I8","shape":[2,2],"data_offsets":[0,4]},"e":{"dtype":"F64","shape":[0],)"
      R"("data_offsets":[4,4]}}    )";
  const SafetensorsHeader header = turboquant::parse_safetensors_header(json, 5, "memory");
  REQUIRE(header.tensors.size() == 3);
  CHECK(header.tensors[0].name == "a");
  CHECK(header.tensors[1].name == "e");
  CHECK(header.tensors[2].name == "z");
  CHECK(header.metadata.at("by") == "hand");
  CHECK(header.metadata.size() == 1);
}

TEST_CASE("every wrong header has its own one-line message") {
  std::set<std::string> messages;
  for (const BadHeader& bad : bad_headers()) {
    CAPTURE(bad.json.substr(0, 120));
    const auto error = error_of([&] {
      static_cast<void>(turboquant::parse_safetensors_header(bad.json, bad.data_bytes, "file"));
    });
    REQUIRE(error.has_value());
    const std::string message = error->what();
    CAPTURE(message);
    CHECK(error->code() == bad.code);
    CHECK(message.find(bad.says) != std::string::npos);
    CHECK(message.rfind("file: ", 0) == 0);
    CHECK(message.find('\n') == std::string::npos);
    CHECK(message.size() < 500);
    messages.insert(message);
  }
  CHECK(messages.size() > 60);
}

TEST_CASE("a header is of a file that holds no less than nothing") {
  for (const std::int64_t bytes : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    const auto error = error_of(
        [&] { static_cast<void>(turboquant::parse_safetensors_header("{}", bytes, "file")); });
    REQUIRE(error.has_value());
    CHECK(error->code() == ErrorCode::invalid_argument);
    CHECK(std::string(error->what()) == "parse_safetensors_header: data_bytes is " +
                                            std::to_string(bytes) + ", expected 0 or more");
  }
  CHECK(turboquant::parse_safetensors_header("{}", 0, "file").tensors.empty());
}

TEST_CASE("an empty path is refused by name") {
  try {
    const SafetensorsFile file("");
    FAIL("no error was thrown");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    CHECK(std::string(error.what()) == "SafetensorsFile: path is empty, expected that of a file");
  }
}

TEST_CASE("a path with a NUL inside does not open the file that its beginning names") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("file", safetensors_bytes("{}", ""));
  CHECK_FALSE(error_of([&] { const SafetensorsFile file(path); }).has_value());
  const std::vector<std::string> tails{std::string(1, '\0'), std::string("\0.st", 4)};
  for (const std::string& tail : tails) {
    const auto error = error_of([&] { const SafetensorsFile file(path + tail); });
    REQUIRE(error.has_value());
    CHECK(error->code() == ErrorCode::invalid_argument);
    const std::string message = error->what();
    CHECK(message.find(path + "?") != std::string::npos);
    CHECK(message.find("with a NUL at its byte " + std::to_string(path.size() + 1)) !=
          std::string::npos);
    CHECK(message.find('\0') == std::string::npos);
  }
}

// The objects that were moved from are what this test is about.
// NOLINTBEGIN(bugprone-use-after-move, clang-analyzer-cplusplus.Move)
TEST_CASE("a file that was moved from says so; the one it became still reads") {
  const TemporaryDirectory directory;
  SafetensorsWriter writer;
  writer.add_floats("floats", {2}, {1, 2});
  writer.add_integers("integers", {3});
  SafetensorsFile first(directory.write("file", writer.bytes()));
  SafetensorsFile second(std::move(first));
  std::array<float, 2> out{7, 7};
  std::array<std::int64_t, 1> integers{7};
  const auto says_so = [&](SafetensorsFile& file) {
    CHECK(file.tensors().empty());
    CHECK(file.find("floats") == nullptr);
    for (const auto& error : {error_of([&] { file.read_floats("floats", out); }),
                              error_of([&] { file.read_integers("integers", integers); }),
                              error_of([&] { static_cast<void>(file.at("floats")); })}) {
      REQUIRE(error.has_value());
      CHECK(error->code() == ErrorCode::invalid_argument);
      CHECK(std::string(error->what()).find("SafetensorsFile: was moved from and holds no file") ==
            0);
    }
    CHECK(out == std::array<float, 2>{7, 7});
    CHECK(integers[0] == 7);
  };
  says_so(first);
  SafetensorsFile third(directory.write("empty", safetensors_bytes("{}", "")));
  third = std::move(second);
  says_so(second);
  third.read_floats("floats", out);
  CHECK(out == std::array<float, 2>{1, 2});
}
// NOLINTEND(bugprone-use-after-move, clang-analyzer-cplusplus.Move)

TEST_CASE("an extent of 0 leaves no elements, wherever it stands") {
  for (const char* const shape :
       {"[0]", "[9223372036854775807,0]", "[0,9223372036854775807]", "[4294967296,4294967296,0]",
        "[9223372036854775807,0,9223372036854775807]",
        "[0,9223372036854775807,9223372036854775807]"}) {
    const auto header =
        turboquant::parse_safetensors_header(one_tensor("\"F32\"", shape, "[0,0]"), 0, "x");
    REQUIRE(header.tensors.size() == 1);
    CHECK(header.tensors[0].num_elements == 0);
  }
}

TEST_CASE("a file that is no file, or too short, or whose header length lies") {
  const TemporaryDirectory directory;
  const auto message = [&](const std::string& path, ErrorCode code) {
    const auto error = error_of([&] { const SafetensorsFile file(path); });
    REQUIRE(error.has_value());
    CHECK(error->code() == code);
    const std::string text = error->what();
    CHECK(text.rfind(path + ": ", 0) == 0);
    return text.substr(path.size() + 2);
  };
  CHECK(message(directory.file("absent"), ErrorCode::io) ==
        "cannot be opened: No such file or directory");
  CHECK(message(directory.file("."), ErrorCode::io) ==
        "cannot be opened: it is not a regular file");
  CHECK(message("/dev/null", ErrorCode::io) == "cannot be opened: it is not a regular file");
  CHECK(message(directory.write("empty", ""), ErrorCode::format) ==
        "holds 0 bytes, expected at least the 8 of the header length");
  CHECK(message(directory.write("short", "1234567"), ErrorCode::format) ==
        "holds 7 bytes, expected at least the 8 of the header length");
  CHECK(message(directory.write("nothing", little_endian(0, 8)), ErrorCode::format) ==
        "the header begins with nothing, expected '{'");
  CHECK(message(directory.write("text", "not a safetensors file"), ErrorCode::format)
            .find("the header length is ") == 0);
  CHECK(
      message(directory.write("limit", little_endian(100'000'001, 8) + "{}"), ErrorCode::format) ==
      "the header length is 100000001, expected at most 100000000 (not a safetensors file?)");
  CHECK(message(directory.write("max", little_endian(~std::uint64_t{0}, 8) + "{}"),
                ErrorCode::format) ==
        "the header length is 18446744073709551615, expected at most 100000000 (not a safetensors "
        "file?)");
  CHECK(message(directory.write("lie", little_endian(100'000'000, 8) + "{}"), ErrorCode::format) ==
        "the header is truncated: its length is 100000000, but only 2 bytes follow");
}

TEST_CASE("no prefix of a valid file is accepted, and no changed byte of its header does harm") {
  SafetensorsWriter writer;
  writer.add_floats("layers.0.key", {2, 1, 3}, {1, 2, 3, 4, 5, 6});
  writer.add_integers("query_positions", {1});
  const std::string valid = writer.bytes();
  const TemporaryDirectory directory;
  for (std::size_t size = 0; size < valid.size(); ++size) {
    CAPTURE(size);
    const std::string path = directory.write("prefix", valid.substr(0, size));
    CHECK(error_of([&] { const SafetensorsFile file(path); }).has_value());
  }
  const std::string header = writer.header();
  const auto data_bytes = static_cast<std::int64_t>(writer.data().size());
  int accepted = 0;
  for (std::size_t position = 0; position < header.size(); ++position) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = header;
      changed[position] = static_cast<char>(byte);
      std::int64_t covered = 0;
      const auto error = error_of([&] {
        for (const TensorEntry& entry :
             turboquant::parse_safetensors_header(changed, data_bytes, "file").tensors) {
          covered += entry.end - entry.begin;
        }
      });
      if (error.has_value()) {
        CHECK(std::string(error->what()).find('\n') == std::string::npos);
      } else {
        ++accepted;
        CHECK(covered == data_bytes);
      }
    }
  }
  // Other names, the same bytes and types of the same size remain valid.
  CHECK(accepted > 0);
}

TEST_CASE("a number that is not finite is named by tensor and index, and nothing is written") {
  const TemporaryDirectory directory;
  struct Case {
    std::string type;
    std::uint32_t pattern;
    std::string says;
  };
  const std::vector<Case> cases{
      {"F32", 0x7FC00000, "NaN"},  {"F32", 0x7F800001, "NaN"}, {"F32", 0xFF800000, "infinite"},
      {"F16", 0x7C00, "infinite"}, {"F16", 0xFE01, "NaN"},     {"BF16", 0x7F80, "infinite"},
      {"BF16", 0xFFFF, "NaN"},
  };
  for (const Case& bad : cases) {
    const std::size_t width = bad.type == "F32" ? 4 : 2;
    std::string data;
    // 40,000 elements span several buffers; the last one is wrong.
    for (int i = 0; i < 39999; ++i) {
      data += little_endian(0, width);
    }
    data += little_endian(bad.pattern, width);
    SafetensorsWriter writer;
    writer.add("layers.3.value", bad.type, {400, 4, 25}, data);
    SafetensorsFile file(directory.write("bad", writer.bytes()));
    std::vector<float> out(40000, 7.0F);
    const auto error = error_of([&] { file.read_floats("layers.3.value", out); });
    REQUIRE(error.has_value());
    CHECK(error->code() == ErrorCode::non_finite);
    CHECK(std::string(error->what()) == file.path() + ": tensor 'layers.3.value' is " + bad.says +
                                            " at index (399, 3, 24), expected finite numbers");
    CHECK(out == std::vector<float>(40000, 7.0F));
  }
}

TEST_CASE("reading asks for a tensor that is there, of a type that converts, into the right size") {
  const TemporaryDirectory directory;
  SafetensorsWriter writer;
  writer.add("bytes", "U8", {4}, "abcd");
  writer.add_floats("floats", {2}, {1, 2});
  SafetensorsFile file(directory.write("file", writer.bytes()));
  std::array<float, 4> out{};
  std::array<std::int64_t, 2> integers{};
  const auto absent = error_of([&] { file.read_floats("absent\n", out); });
  REQUIRE(absent.has_value());
  CHECK(absent->code() == ErrorCode::out_of_range);
  CHECK(std::string(absent->what()) == file.path() + ": has no tensor 'absent?'");
  const auto type = error_of([&] { file.read_floats("bytes", out); });
  REQUIRE(type.has_value());
  CHECK(type->code() == ErrorCode::unsupported);
  CHECK(std::string(type->what()).find("has dtype U8, expected F32, F16 or BF16") !=
        std::string::npos);
  const auto size = error_of([&] { file.read_floats("floats", out); });
  REQUIRE(size.has_value());
  CHECK(size->code() == ErrorCode::shape_mismatch);
  CHECK(std::string(size->what()).find("has 2 elements, but out.size() is 4") != std::string::npos);
  const auto kind = error_of([&] { file.read_integers("floats", integers); });
  REQUIRE(kind.has_value());
  CHECK(kind->code() == ErrorCode::unsupported);
  // A later read still works.
  file.read_floats("floats", std::span(out).first(2));
  CHECK(out[1] == 2.0F);
}

TEST_CASE("a file that shrinks after it was opened is an input error, not a short answer") {
  const TemporaryDirectory directory;
  SafetensorsWriter writer;
  writer.add_floats("floats", {2}, {1, 2});
  const std::string path = directory.write("file", writer.bytes());
  SafetensorsFile file(path);
  std::filesystem::resize_file(path, writer.bytes().size() - 1);
  std::array<float, 2> out{7, 7};
  const auto error = error_of([&] { file.read_floats("floats", out); });
  REQUIRE(error.has_value());
  CHECK(error->code() == ErrorCode::io);
  CHECK(out == std::array<float, 2>{7, 7});
}
