#include <turboquant/quant/float8_quantizer.hpp>
#include <turboquant/quant/int8_quantizer.hpp>

#include <doctest/doctest.h>

#include "quant/flush_subnormals.hpp"
#include "quant/support.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

using namespace turboquant;
using namespace turboquant::test;

namespace {

int int8_code(const EncodedVectors& encoded, std::size_t i) {
  return static_cast<std::int8_t>(encoded.codes[i]);
}

/// What both byte codecs promise, whatever their codes mean.
template <class Quantizer>
void check_laws(const char* name) {
  CAPTURE(name);
  for (const int dim : {1, 16, 80, 100, 128, 576}) {
    const auto d = static_cast<std::size_t>(dim);
    for (const MetadataType metadata : {MetadataType::float16, MetadataType::float32}) {
      const Quantizer quantizer(dim, metadata);
      auto x = gaussian(d * 5, 1);
      const auto before = quantizer.encode(x);
      CHECK(quantizer.bytes_per_vector() == d + metadata_bytes(metadata));
      CHECK(before.bytes() == 5 * quantizer.bytes_per_vector());
      const auto decoded = decode(quantizer, before, x.size());
      for (std::size_t row = 0; row < 5; ++row) {
        CHECK(cosine({x.data() + row * d, d}, {decoded.data() + row * d, d}) > 0.998);
      }

      // A zero vector is exact and leaves its neighbours alone.
      std::fill_n(x.begin() + dim, d, -0.0F);
      const auto encoded = quantizer.encode(x);
      CHECK(encoded.scales[1] == 0.0F);
      const auto with_zero = decode(quantizer, encoded, x.size());
      CHECK(std::all_of(with_zero.begin() + dim, with_zero.begin() + 2 * dim,
                        [](float v) { return v == 0.0F; }));
      CHECK(std::equal(encoded.row(2), encoded.row(2) + d, before.row(2)));
      CHECK(encoded.scales[2] == before.scales[2]);

      // Powers of two, any split, any magnitude.
      for (const int exponent : {-100, -60, -5, 3, 8, 60, 100}) {
        if (metadata == MetadataType::float32 || std::abs(exponent) < 10) {
          const auto source = gaussian(d * 5, 1);
          const auto scaled = quantizer.encode(times_power_of_two(source, exponent));
          if (metadata == MetadataType::float32) {
            CHECK(scaled.codes == before.codes);
            CHECK(decode(quantizer, scaled, x.size()) == times_power_of_two(decoded, exponent));
          }
        }
      }
      for (std::size_t row = 0; row < 5; ++row) {
        const auto single = quantizer.encode(std::span(x.data() + row * d, d));
        CHECK(std::equal(single.codes.begin(), single.codes.end(), encoded.row(row)));
        CHECK(single.scales[0] == encoded.scales[row]);
      }
      for (const float magnitude :
           {std::numeric_limits<float>::max(), 1e30F, 1e7F, 1e-7F, 1e-30F, 1e-40F, 1e-45F}) {
        auto extreme = gaussian(d, 2);
        for (float& v : extreme) {
          v = std::max(-1.0F, std::min(1.0F, v)) * magnitude;
        }
        extreme[0] = magnitude;
        const auto tiny = quantizer.encode(extreme);
        CHECK(std::isfinite(tiny.scales[0]));
        CHECK(tiny.scales[0] > 0.0F);
        const auto values = decode(quantizer, tiny, d);
        CHECK(all_finite(values));
        if (metadata == MetadataType::float32 && magnitude > 1e-35F) {
          CHECK(double{values[0]} == doctest::Approx(double{magnitude}).epsilon(1e-6));
        }
        const FlushSubnormals flush;
        const auto flushed = quantizer.encode(extreme);
        CHECK(flushed.codes == tiny.codes);
        CHECK(flushed.scales.bytes() == tiny.scales.bytes());
        CHECK(all_finite(decode(quantizer, flushed, d)));
      }
    }
  }

  for (const int dim : {-1, 0, 65537}) {
    CHECK(throws(ErrorCode::invalid_argument, "dim is " + std::to_string(dim),
                 [&] { Quantizer{dim}; }));
  }
  const Quantizer quantizer(64);
  auto x = gaussian(64 * 3, 3);
  const auto encoded = quantizer.encode(x);
  std::vector<float> out(64 * 3, 7.0F);
  const auto refuses = [&](const EncodedVectors& wrong, const std::string& part) {
    CHECK(throws(ErrorCode::shape_mismatch, part, [&] { quantizer.decode(wrong, out); }));
  };
  refuses(Quantizer(64, MetadataType::float32).encode(x), "4-byte scales, expected 2");
  refuses(Quantizer(32).encode(x), "format.dim is 32, expected 64");
  auto wrong = encoded;
  wrong.codes.pop_back();
  refuses(wrong, "191 bytes of codes");
  wrong = encoded;
  wrong.scales = MetadataArray(MetadataType::float16, 2);
  refuses(wrong, "2 scales");
  wrong = encoded;
  wrong.count = 2;
  refuses(wrong, "encoded.count = 2");
  CHECK(throws(ErrorCode::shape_mismatch, "expected 3 * 64", [&] {
    quantizer.decode(encoded, {out.data(), 191});
  }));
  CHECK(throws(ErrorCode::shape_mismatch, "vectors.size() is 63", [&] {
    (void)quantizer.encode({x.data(), 63});
  }));
  x[64 + 2] = std::numeric_limits<float>::infinity();
  CHECK(throws(ErrorCode::non_finite, "vectors[1][2] is inf", [&] { (void)quantizer.encode(x); }));
  CHECK(out == std::vector<float>(64 * 3, 7.0F));
}

}  // namespace

TEST_CASE("both byte codecs keep the laws of a key codec") {
  check_laws<Int8Quantizer>("int8");
  check_laws<Float8Quantizer>("float8");
}

TEST_CASE("one codec does not read the bytes of the other") {
  const auto x = gaussian(64, 4);
  std::vector<float> out(64, 7.0F);
  CHECK(throws(ErrorCode::shape_mismatch, "format.kind is int8, expected float8_e4m3",
               [&] { Float8Quantizer(64).decode(Int8Quantizer(64).encode(x), out); }));
  CHECK(throws(ErrorCode::shape_mismatch, "format.kind is float8_e4m3, expected int8",
               [&] { Int8Quantizer(64).decode(Float8Quantizer(64).encode(x), out); }));
  CHECK(out == std::vector<float>(64, 7.0F));
}

TEST_CASE("int8: within half a step everywhere, also where half metadata is coarse") {
  for (const float magnitude : {1.0F, 60000.0F, 8e6F, 1e-2F, 1e-4F, 3e-6F, 1e-7F, 1e-9F}) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      const auto x = gaussian(64, 100 + seed);
      std::vector<float> scaled;
      for (const float v : x) {
        scaled.push_back(v * magnitude / 4);
      }
      const Int8Quantizer quantizer(64);
      const auto encoded = quantizer.encode(scaled);
      const auto decoded = decode(quantizer, encoded, 64);
      for (std::size_t i = 0; i < 64; ++i) {
        CHECK(std::abs(double{decoded[i]} - double{scaled[i]}) <=
              double{encoded.scales[0]} * 0.50001);
        CHECK(std::abs(int8_code(encoded, i)) <= 127);
      }
    }
  }
}

TEST_CASE("int8: the nearest code, ties away from zero") {
  // A maximum of 127 makes the scale exactly 1.
  std::vector<float> x{127.0F,      0.5F,    -0.5F,      1.5F, -1.5F, 2.5F,
                       0.49999997F, -126.5F, 126.49999F, 0.0F, -0.0F, 3.0F};
  const std::vector<int> expected{127, 1, -1, 2, -2, 3, 0, -127, 126, 0, 0, 3};
  const auto encoded = Int8Quantizer(static_cast<int>(x.size())).encode(x);
  CHECK(encoded.scales[0] == 1.0F);
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(i);
    CHECK(int8_code(encoded, i) == expected[i]);
  }
}

TEST_CASE("float8: a maximum of 448 stores the numbers of the format themselves") {
  std::vector<float> x;
  for (unsigned bits = 0; bits < 256; ++bits) {
    if ((bits & 0x7FU) != 0x7FU) {
      x.push_back(float8_e4m3{static_cast<std::uint8_t>(bits)}.to_float());
    }
  }
  const Float8Quantizer quantizer(static_cast<int>(x.size()));
  const auto encoded = quantizer.encode(x);
  CHECK(encoded.scales[0] == 1.0F);
  CHECK(decode(quantizer, encoded, x.size()) == x);
  CHECK(std::none_of(encoded.codes.begin(), encoded.codes.end(),
                     [](std::uint8_t b) { return (b & 0x7FU) == 0x7FU; }));
}

TEST_CASE("float8: every coordinate within the documented precision of its vector") {
  for (const float magnitude : {1.0F, 1e-3F, 1e-6F, 4e6F}) {
    auto x = gaussian(256, 5);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = std::ldexp(x[i], -static_cast<int>(i % 20)) * magnitude;
    }
    const Float8Quantizer quantizer(256);
    const auto encoded = quantizer.encode(x);
    const auto decoded = decode(quantizer, encoded, 256);
    const double largest = double{largest_magnitude(x)};
    // A coarse half scale may be up to twice too large; then the format's grid is as much coarser.
    const double excess = double{encoded.scales[0]} * 448 / largest;
    CHECK(excess >= 1);
    for (std::size_t i = 0; i < 256; ++i) {
      const double error = std::abs(double{decoded[i]} - double{x[i]});
      CHECK(error <= std::max(std::abs(double{x[i]}) / 16, largest * excess * 0x1p-18) * 1.00001);
    }
  }
}

TEST_CASE("scales rounded up: the smallest stored number that is not below") {
  for (const MetadataType type : {MetadataType::float16, MetadataType::float32}) {
    CHECK(stored_scale_above(0.0, type) == 0.0F);
    CHECK(stored_scale_above(1.0, type) == 1.0F);
    CHECK(stored_scale_above(0x1p-24, type) == 0x1p-24F);
    CHECK(double{stored_scale_above(1e300, type)} ==
          (type == MetadataType::float16 ? 65504.0 : double{std::numeric_limits<float>::max()}));
    for (const double scale : {1e-44, 1e-39, 1e-30, 1e-7, 3e-6, 0.1, 0.3, 1.0001, 777.7, 65000.1}) {
      const float above = stored_scale_above(scale, type);
      CHECK(double{above} >= scale);
      const float nearest = stored_scale(scale, type);
      const float below =
          type == MetadataType::float32
              ? std::nextafter(above, 0.0F)
              : float16{static_cast<std::uint16_t>(float16::from_float(above).bits - 1)}.to_float();
      CHECK(double{below} < scale);
      CHECK((nearest == above || nearest == below || (below == 0.0F && nearest > 0)));
    }
  }
}

TEST_CASE_TEMPLATE("bytes that no coordinate is encoded as are refused when keys are read", Code,
                   Int8Code, Float8Code) {
  const auto x = gaussian(std::size_t{2} * 16, 4);
  const ByteQuantizer<Code> quantizer(16);
  std::vector<float> out(x.size());
  for (unsigned byte = 0; byte < 256; ++byte) {
    CAPTURE(byte);
    EncodedVectors encoded = quantizer.encode(x);
    encoded.codes[20] = static_cast<std::uint8_t>(byte);
    const bool is_int8 = Code::kind == CodeKind::int8;
    if (is_int8 ? byte == 0x80 : byte % 128 == 127) {
      out.assign(x.size(), 7.0F);
      CHECK(
          throws(ErrorCode::format, "encoded.codes[20]", [&] { quantizer.decode(encoded, out); }));
      CHECK(out == std::vector<float>(x.size(), 7.0F));
    } else {
      quantizer.decode(encoded, out);
      const float number = is_int8 ? static_cast<float>(byte < 128 ? static_cast<int>(byte)
                                                                   : static_cast<int>(byte) - 256)
                                   : float8_e4m3{static_cast<std::uint8_t>(byte)}.to_float();
      CHECK(out[20] == encoded.scales[1] * number);
    }
  }
}
