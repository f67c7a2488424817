#include <turboquant/quant/value_quantizer.hpp>

#include <doctest/doctest.h>

#include "quant/flush_subnormals.hpp"
#include "quant/support.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <vector>

using namespace turboquant;
using namespace turboquant::test;

namespace {

constexpr std::array head_dims{16, 64, 80, 96, 100, 112, 120, 128, 160, 192, 256, 576};

std::vector<std::uint8_t> codes_of(const ValueQuantizer& quantizer, std::vector<float> values) {
  const auto encoded = quantizer.encode(values);
  std::vector<std::uint8_t> codes(values.size());
  unpack(encoded.codes, quantizer.bits(), codes);
  return codes;
}

/// Distance to the next half or float above |x|.
double spacing(float x, MetadataType type) {
  const int exponent = x == 0.0F ? -1000 : std::ilogb(x);
  return type == MetadataType::float16 ? std::ldexp(1.0, std::max(exponent, -14) - 10)
                                       : std::ldexp(1.0, std::max(exponent, -126) - 23);
}

}  // namespace

TEST_CASE("groups of every size: cosine and error on Gaussian values as in the table") {
  const auto x = gaussian(std::size_t{128} * 4000, 1);
  int rows = 0;
  for (const auto& row : csv_rows("values.csv")) {
    if (row.at(0) != "groups") {
      continue;
    }
    ++rows;
    const ValueQuantizer quantizer(128, std::stoi(row.at(2)), {.group_size = std::stoi(row.at(1))});
    const auto decoded = decode(quantizer, quantizer.encode(x), x.size());
    double cosines = 0;
    double error = 0;
    for (std::size_t i = 0; i < x.size(); i += 128) {
      const std::span<const float> v(x.data() + i, 128);
      const std::span<const float> w(decoded.data() + i, 128);
      cosines += cosine(v, w);
      error += squared_distance(v, w) / dot(v, v);
    }
    CAPTURE(row.at(1));
    CAPTURE(row.at(2));
    CHECK(std::abs(cosines / 4000 - std::stod(row.at(5))) <
          0.01 * (1 - std::stod(row.at(5))) + 1e-7);
    CHECK(error / 4000 == doctest::Approx(std::stod(row.at(4))).epsilon(0.01));
    CHECK(static_cast<double>(quantizer.bytes_per_vector()) * 8 / 128 == std::stod(row.at(3)));
  }
  CHECK(rows == 16);
}

TEST_CASE("groups of 32 on Gaussian values: 0.9329, 0.9864, 0.99698") {
  const auto x = gaussian(std::size_t{128} * 4000, 2);
  const auto mean_cosine = [&](int bits) {
    const ValueQuantizer quantizer(128, bits, {.group_size = 32});
    const auto decoded = decode(quantizer, quantizer.encode(x), x.size());
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); i += 128) {
      sum += cosine({x.data() + i, 128}, {decoded.data() + i, 128});
    }
    return sum / 4000;
  };
  CHECK(std::abs(mean_cosine(2) - 0.9329) < 0.001);
  CHECK(std::abs(mean_cosine(3) - 0.9864) < 0.0002);
  CHECK(std::abs(mean_cosine(4) - 0.99698) < 0.00005);
}

TEST_CASE("every value comes back within half a step and the rounding of its group's numbers") {
  for (const int dim : head_dims) {
    const auto d = static_cast<std::size_t>(dim);
    auto x = gaussian(d * 6, 3);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] += i % 2 == 0 ? 30.0F : 29.0F;  // a common mean, as values have
    }
    for (const int group : {0, 7, 16, 32, 64, dim}) {
      if (group > dim) {
        continue;
      }
      for (int bits = 1; bits <= 8; ++bits) {
        for (const MetadataType metadata : {MetadataType::float16, MetadataType::float32}) {
          const ValueQuantizer quantizer(dim, bits, {.group_size = group, .metadata = metadata});
          const auto encoded = quantizer.encode(x);
          const auto decoded = decode(quantizer, encoded, x.size());
          const std::size_t size = group == 0 ? d : static_cast<std::size_t>(group);
          const std::size_t groups = (d + size - 1) / size;
          REQUIRE(encoded.scales.size() == 6 * groups);
          const int top = (1 << static_cast<unsigned>(bits)) - 1;
          double worst = -1;
          for (std::size_t i = 0; i < x.size(); ++i) {
            const std::size_t g = i / d * groups + i % d / size;
            const double scale = double{encoded.scales[g]};
            const double zero = double{encoded.zeros[g]};
            // Rounding of scale and zero point moves the ends of the range; a value beyond them is
            // clamped.
            const double beyond =
                std::max({double{x[i]} - (zero + scale * top), zero - double{x[i]}, scale / 2});
            const double slack =
                spacing(static_cast<float>(std::abs(zero) + scale * top), MetadataType::float32);
            worst = std::max(worst, std::abs(double{decoded[i]} - double{x[i]}) - beyond - slack);
            CHECK(beyond <= scale / 2 + spacing(encoded.zeros[g], metadata) / 2 +
                                top * spacing(encoded.scales[g], metadata) / 2);
          }
          CAPTURE(dim);
          CAPTURE(group);
          CAPTURE(bits);
          CHECK(worst <= 0);
        }
      }
    }
  }
}

TEST_CASE("a group size that does not divide the dimension gives a short last group") {
  const std::vector<std::pair<int, int>> cases{{80, 32}, {96, 64}, {120, 32}, {112, 64}, {100, 32}};
  for (const auto& [dim, group] : cases) {
    const auto d = static_cast<std::size_t>(dim);
    const ValueQuantizer quantizer(dim, 4, {.group_size = group});
    CHECK(quantizer.groups() ==
          (d + static_cast<std::size_t>(group) - 1) / static_cast<std::size_t>(group));
    auto x = gaussian(d, 4);
    x.back() = 1000.0F;  // in the last group only
    const auto encoded = quantizer.encode(x);
    CHECK(encoded.scales[encoded.scales.size() - 1] > 50.0F);
    CHECK(encoded.scales[0] < 1.0F);
    const auto decoded = decode(quantizer, encoded, d);
    CHECK(all_finite(decoded));
    CHECK(double{decoded.back()} == doctest::Approx(1000).epsilon(0.001));
  }
  CHECK(throws(ErrorCode::invalid_argument, "group_size is 32, expected 0 (one group) to dim = 16",
               [] { ValueQuantizer(16, 4, {.group_size = 32}); }));
}

TEST_CASE("bytes: dense codes at every width and two numbers per group") {
  const std::array<std::size_t, 8> expected{10, 20, 30, 40, 50, 60, 70, 80};
  for (int bits = 1; bits <= 8; ++bits) {
    const ValueQuantizer quantizer(80, bits, {.group_size = 32});
    CHECK(quantizer.code_bytes() == expected[static_cast<std::size_t>(bits) - 1]);
    CHECK(quantizer.bytes_per_vector() == quantizer.code_bytes() + 3 * 4);
    const auto encoded = quantizer.encode(gaussian(80 * 5, 5));
    CHECK(encoded.codes.size() == 5 * quantizer.code_bytes());
    CHECK(encoded.bytes() == 5 * quantizer.bytes_per_vector());
  }
  CHECK(ValueQuantizer(128, 4).bytes_per_vector() == 68);
  CHECK(ValueQuantizer(80, 4).bytes_per_vector() == 44);
  CHECK(ValueQuantizer(128, 2).bytes_per_vector() == 36);
  CHECK(ValueQuantizer(128, 4, {.group_size = 32}).bytes_per_vector() == 80);
  CHECK(ValueQuantizer(128, 4, {.group_size = 32, .metadata = MetadataType::float32})
            .bytes_per_vector() == 96);
}

TEST_CASE("a format counts groups, whatever its numbers: none without dimensions or a size") {
  CHECK(ValueFormat{}.groups() == 0);
  CHECK(ValueFormat{.dim = 128, .bits = 4}.groups() == 0);
  CHECK(ValueFormat{.bits = 4, .group_size = 32}.groups() == 0);
  CHECK(ValueFormat{.dim = 128, .bits = 4, .group_size = -1}.groups() == 0);
  for (const int dim : {1, 31, 32, 33, 128, 65536, std::numeric_limits<int>::max()}) {
    for (const int size : {1, 2, 32, dim, std::numeric_limits<int>::max()}) {
      const std::size_t groups = ValueFormat{.dim = dim, .bits = 4, .group_size = size}.groups();
      const auto each = static_cast<std::size_t>(size);
      CHECK(groups * each >= static_cast<std::size_t>(dim));
      CHECK((groups - 1) * each < static_cast<std::size_t>(dim));
    }
  }
}

TEST_CASE("codes use the whole range of every width") {
  for (int bits = 1; bits <= 8; ++bits) {
    const int levels = 1 << static_cast<unsigned>(bits);
    std::vector<float> ramp;
    for (int i = 0; i < levels; ++i) {
      ramp.push_back(static_cast<float>(i) - 3.0F);
    }
    const ValueQuantizer quantizer(levels, bits);
    const auto codes = codes_of(quantizer, ramp);
    for (int i = 0; i < levels; ++i) {
      CHECK(int{codes[static_cast<std::size_t>(i)]} == i);
    }
    CHECK(decode(quantizer, quantizer.encode(ramp), ramp.size()) == ramp);
  }
}

TEST_CASE("ties round up, whatever the scale") {
  CHECK(codes_of(ValueQuantizer(4, 2), {0.0F, 0.5F, 1.5F, 3.0F}) ==
        std::vector<std::uint8_t>{0, 1, 2, 3});
  // Scales that are no power of two, whose reciprocal is rounded.
  for (int k = 1; k < 400; ++k) {
    const float scale = float16::from_float(static_cast<float>(k) * 0.0371F).to_float();
    std::vector<float> values;
    for (int code = 0; code <= 14; ++code) {
      values.push_back((static_cast<float>(code) + 0.5F) * scale);  // exact: 11 + 5 bits
    }
    values.push_back(0.0F);
    values.push_back(15.0F * scale);
    const auto codes = codes_of(ValueQuantizer(17, 4), values);
    for (std::size_t code = 0; code <= 14; ++code) {
      CHECK(std::size_t{codes[code]} == code + 1);
    }
  }
}

TEST_CASE("constant groups come back as their rounded constant") {
  for (const int dim : {16, 32, 64, 128}) {
    const auto d = static_cast<std::size_t>(dim);
    for (const int bits : {1, 2, 3, 4, 8}) {
      for (const MetadataType metadata : {MetadataType::float16, MetadataType::float32}) {
        const ValueQuantizer quantizer(dim, bits, {.group_size = 16, .metadata = metadata});
        for (const float c :
             {0.0F, -0.0F, 3.25F, -7.0F, 0.1F, 65504.0F, -65504.0F, 1e-6F, 1e-30F}) {
          const std::vector<float> x(d, c);
          const auto encoded = quantizer.encode(x);
          const float expected =
              metadata == MetadataType::float32 ? c : float16::from_float(c).to_float();
          CHECK(decode(quantizer, encoded, d) == std::vector<float>(d, expected));
          CHECK(encoded.scales[0] == 0.0F);
          CHECK(std::all_of(encoded.codes.begin(), encoded.codes.end(),
                            [](std::uint8_t b) { return b == 0; }));
        }
      }
    }
  }
  const ValueQuantizer half(16, 4);
  CHECK(decode(half, half.encode(std::vector<float>(16, 0.1F)), 16)[7] == 0.0999755859375F);
}

TEST_CASE("nearly constant groups: the error stays within range and rounding of the zero point") {
  const ValueQuantizer quantizer(4, 2);
  const auto worst = [&](std::vector<float> x) {
    const auto decoded = decode(quantizer, quantizer.encode(x), 4);
    double error = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      error = std::max(error, std::abs(double{decoded[i]} - double{x[i]}));
    }
    return error;
  };
  CHECK(worst({0, 0, 0, 1e-7F}) <= 6e-8);
  CHECK(worst({0, 0, 0, 1e-8F}) <= 1.0000001e-8);
  CHECK(decode(quantizer, quantizer.encode(std::vector<float>{0, 0, 0, 1e-8F}), 4) ==
        std::vector<float>(4, 0.0F));
  CHECK(worst({100, 100, 100, 100.0F + 0x1p-17F}) <= 0x1p-17 + 0x1p-5);
}

TEST_CASE("values beyond half's range saturate to finite numbers; float32 metadata holds them") {
  for (int bits = 1; bits <= 8; ++bits) {
    for (const MetadataType metadata : {MetadataType::float16, MetadataType::float32}) {
      const ValueQuantizer quantizer(64, bits, {.metadata = metadata});
      for (const float magnitude : {1e5F, 1e20F, 3e38F, std::numeric_limits<float>::max()}) {
        auto x = gaussian(64, 6);
        for (float& v : x) {
          v = v < -1 ? -magnitude : (v < 0 ? 0.0F : magnitude);
        }
        const auto encoded = quantizer.encode(x);
        CHECK(std::isfinite(encoded.scales[0]));
        CHECK(std::isfinite(encoded.zeros[0]));
        const auto decoded = decode(quantizer, encoded, 64);
        CHECK(all_finite(decoded));
        if (metadata == MetadataType::float32 && bits >= 4) {
          CHECK(cosine(times_power_of_two(x, -60), times_power_of_two(decoded, -60)) > 0.99);
        }
      }
    }
  }
}

TEST_CASE("subnormal values: finite, and the same bytes where the processor flushes them") {
  for (const MetadataType metadata : {MetadataType::float16, MetadataType::float32}) {
    const ValueQuantizer quantizer(64, 4, {.metadata = metadata});
    for (const float unit : {1e-45F, 1e-42F, 1e-40F, 1e-38F, 1e-20F, 1.0F}) {
      auto x = gaussian(64, 7);
      for (float& v : x) {
        v *= unit;
      }
      x[5] = -1e-41F;
      x[6] = 1e-44F;
      const auto encoded = quantizer.encode(x);
      CHECK(all_finite(decode(quantizer, encoded, 64)));
      const FlushSubnormals flush;
      const auto flushed = quantizer.encode(x);
      CHECK(flushed.codes == encoded.codes);
      CHECK(flushed.scales.bytes() == encoded.scales.bytes());
      CHECK(flushed.zeros.bytes() == encoded.zeros.bytes());
      CHECK(all_finite(decode(quantizer, flushed, 64)));
    }
  }
}

TEST_CASE("any split of a batch gives the same bytes, and single tokens are quantised") {
  const auto x = gaussian(80 * 40, 8);
  const ValueQuantizer quantizer(80, 3, {.group_size = 32});
  const auto whole = quantizer.encode(x);
  const std::vector<std::vector<std::size_t>> splits{
      std::vector<std::size_t>(40, 1), {7, 33}, {16, 16, 8}};
  for (const auto& split : splits) {
    std::vector<std::uint8_t> codes;
    std::vector<std::uint8_t> scales;
    std::vector<std::uint8_t> zeros;
    std::size_t first = 0;
    for (const std::size_t count : split) {
      const std::span<const float> part(x.data() + first * 80, count * 80);
      const auto encoded = quantizer.encode(part);
      codes.insert(codes.end(), encoded.codes.begin(), encoded.codes.end());
      scales.insert(scales.end(), encoded.scales.bytes().begin(), encoded.scales.bytes().end());
      zeros.insert(zeros.end(), encoded.zeros.bytes().begin(), encoded.zeros.bytes().end());
      CHECK(squared_distance(part, decode(quantizer, encoded, part.size())) > 0);
      first += count;
    }
    CHECK(codes == whole.codes);
    CHECK(scales == whole.scales.bytes());
    CHECK(zeros == whole.zeros.bytes());
  }
  CHECK(quantizer.encode({}).bytes() == 0);
}

TEST_CASE("NaN and infinities are refused by place") {
  const ValueQuantizer quantizer(80, 4, {.group_size = 32});
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    auto x = gaussian(80 * 3, 9);
    x[80 + 79] = bad;
    CHECK(throws(ErrorCode::non_finite, "vectors[1][79]", [&] { (void)quantizer.encode(x); }));
  }
}

TEST_CASE("constructor arguments outside their range are refused by name") {
  for (const int bits : {-1, 0, 9, 32}) {
    CHECK(throws(ErrorCode::invalid_argument, "bits is " + std::to_string(bits),
                 [&] { ValueQuantizer(64, bits); }));
  }
  for (const int dim : {-4, 0, 65537}) {
    CHECK(throws(ErrorCode::invalid_argument, "dim is " + std::to_string(dim),
                 [&] { ValueQuantizer(dim, 4); }));
  }
  for (const int group : {-1, 65}) {
    CHECK(throws(ErrorCode::invalid_argument, "group_size is " + std::to_string(group),
                 [&] { ValueQuantizer(64, 4, {.group_size = group}); }));
  }
}

TEST_CASE(
    "codes of another quantizer are refused by the field that differs; the output stays "
    "untouched") {
  const auto x = gaussian(96 * 4, 10);
  const ValueQuantizer quantizer(96, 4, {.group_size = 32});
  const auto encoded = quantizer.encode(x);
  std::vector<float> out(512, 7.0F);
  const auto refuses = [&](const ValueQuantizer& reader, const EncodedValues& wrong,
                           std::size_t size, const std::string& part) {
    CHECK(throws(ErrorCode::shape_mismatch, part,
                 [&] { reader.decode(wrong, std::span(out.data(), size)); }));
  };
  refuses(ValueQuantizer(128, 3, {.group_size = 43}), encoded, 512,
          "format.dim is 96, expected 128");
  refuses(ValueQuantizer(96, 3, {.group_size = 32}), encoded, 384, "format.bits is 4, expected 3");
  refuses(ValueQuantizer(96, 4, {.group_size = 40}), encoded, 384,
          "format.group_size is 32, expected 40");
  refuses(ValueQuantizer(96, 4, {.group_size = 32, .metadata = MetadataType::float32}), encoded,
          384, "scales");
  refuses(quantizer, encoded, 383, "expected 4 * 96");
  auto wrong = encoded;
  wrong.zeros = MetadataArray(MetadataType::float32, 12);
  refuses(quantizer, wrong, 384, "zeros");
  wrong = encoded;
  wrong.zeros = MetadataArray(MetadataType::float16, 11);
  refuses(quantizer, wrong, 384, "11 zeros");
  wrong = encoded;
  wrong.codes.push_back(0);
  refuses(quantizer, wrong, 384, "bytes of codes");
  wrong = encoded;
  wrong.count = 3;
  refuses(quantizer, wrong, 288, "encoded.count = 3");
  CHECK(throws(ErrorCode::shape_mismatch, "vectors.size() is 95", [&] {
    (void)quantizer.encode({x.data(), 95});
  }));
  CHECK(out == std::vector<float>(512, 7.0F));
  // One group of dim, spelled two ways, is one format.
  const ValueQuantizer zero(96, 4);
  const ValueQuantizer spelled(96, 4, {.group_size = 96});
  CHECK(decode(spelled, zero.encode(x), x.size()) == decode(zero, zero.encode(x), x.size()));
}

TEST_CASE("threads that share a quantizer write the same bytes") {
  const auto x = gaussian(128 * 500, 11);
  const ValueQuantizer quantizer(128, 4, {.group_size = 32});
  const auto expected = quantizer.encode(x);
  std::array<bool, 3> equal{};
  std::vector<std::thread> threads;
  for (bool& result : equal) {
    threads.emplace_back([&] { result = quantizer.encode(x) == expected; });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  CHECK(std::all_of(equal.begin(), equal.end(), [](bool b) { return b; }));
}

TEST_CASE("batches of impossible shape are refused before anything is allocated") {
  const auto batch = [](std::size_t count, ValueFormat format) {
    return [=] { (void)EncodedValues(count, format, MetadataType::float16); };
  };
  CHECK(throws(ErrorCode::invalid_argument, "format.group_size is 0", batch(1, {128, 4, 0})));
  CHECK(throws(ErrorCode::invalid_argument, "format.group_size is 129", batch(1, {128, 4, 129})));
  CHECK(throws(ErrorCode::invalid_argument, "format.dim is -8", batch(1, {-8, 4, 1})));
  CHECK(throws(ErrorCode::invalid_argument, "bits is 0", batch(1, {128, 0, 128})));
  CHECK(throws(ErrorCode::overflow, "num_vectors", batch(std::size_t{1} << 62U, {128, 4, 128})));
}
