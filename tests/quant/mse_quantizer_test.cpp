#include <turboquant/math/haar_rotation.hpp>
#include <turboquant/quant/mse_quantizer.hpp>

#include <doctest/doctest.h>

#include "quant/flush_subnormals.hpp"
#include "quant/support.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace turboquant;
using namespace turboquant::test;

namespace {

constexpr std::array head_dims{16, 64, 80, 96, 100, 112, 120, 128, 160, 192, 256, 576};

/// Leaves vectors as they are: shows codes and scales without a rotation.
struct NoRotation {
  int size;
  [[nodiscard]] int dim() const { return size; }
  void apply(std::span<const float> in, std::span<float> out) const {
    std::copy(in.begin(), in.end(), out.begin());
  }
  void apply_inverse(std::span<const float> in, std::span<float> out) const { apply(in, out); }
};

std::vector<std::uint8_t> codes_of(const EncodedVectors& encoded, std::size_t row, int dim,
                                   int bits) {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(dim));
  unpack({encoded.row(row), encoded.code_bytes}, bits, codes);
  return codes;
}

}  // namespace

TEST_CASE("every head dimension and width: sizes, finite results, error falls with bits") {
  for (const int dim : head_dims) {
    const auto d = static_cast<std::size_t>(dim);
    const auto x = gaussian(d * 12, 1);
    double previous = 1;
    for (int bits = 1; bits <= 8; ++bits) {
      const MseQuantizer quantizer(HadamardRotation(dim, 3), bits);
      const auto encoded = quantizer.encode(x);
      const std::size_t code_bytes = (d * static_cast<std::size_t>(bits) + 7) / 8;
      CHECK(quantizer.code_bytes() == code_bytes);
      CHECK(quantizer.bytes_per_vector() == code_bytes + 2);
      CHECK(encoded.codes.size() == 12 * code_bytes);
      CHECK(encoded.bytes() == 12 * quantizer.bytes_per_vector());
      const auto decoded = decode(quantizer, encoded, x.size());
      CHECK(all_finite(decoded));
      const double error = squared_distance(x, decoded) / dot(x, x);
      CHECK(error < previous);
      previous = error;
    }
  }
}

TEST_CASE("bytes per vector that planners compute with") {
  CHECK(MseQuantizer(HadamardRotation(128, 0), 4).bytes_per_vector() == 66);
  CHECK(MseQuantizer(HadamardRotation(128, 0), 3).bytes_per_vector() == 50);
  CHECK(MseQuantizer(HadamardRotation(80, 0), 3).bytes_per_vector() == 32);
  CHECK(MseQuantizer(HadamardRotation(128, 0), 2).bytes_per_vector() == 34);
  CHECK(MseQuantizer(HadamardRotation(128, 0), 2, {.metadata = MetadataType::float32})
            .bytes_per_vector() == 36);
  // 2.125, 3.125 and 4.125 bits per coordinate at 128.
  for (const int bits : {2, 3, 4}) {
    CHECK(MseQuantizer(HadamardRotation(128, 0), bits).bytes_per_vector() * 8 ==
          128U * static_cast<unsigned>(bits) + 16);
  }
}

TEST_CASE("rotated codebook values: cosine at 2, 3 and 4 bits") {
  const auto x = gaussian(std::size_t{128} * 3000, 2);
  for (const auto& row : csv_rows("values.csv")) {
    if (row.at(0) != "rotated") {
      continue;
    }
    const int bits = std::stoi(row.at(2));
    const MseQuantizer quantizer(HadamardRotation(128, 4), bits,
                                 {.scale_rule = ScaleRule::least_squares});
    const auto decoded = decode(quantizer, quantizer.encode(x), x.size());
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); i += 128) {
      sum += cosine({x.data() + i, 128}, {decoded.data() + i, 128});
    }
    CAPTURE(bits);
    CHECK(std::abs(sum / 3000 - std::stod(row.at(5))) < 1e-3);
    CHECK(static_cast<double>(quantizer.bytes_per_vector()) * 8 / 128 == std::stod(row.at(3)));
  }
}

TEST_CASE(
    "zero vectors have scale 0, decode and score to exact zeros, and leave their neighbours "
    "alone") {
  for (const int dim : head_dims) {
    const auto d = static_cast<std::size_t>(dim);
    auto x = gaussian(d * 3, 5);
    for (const ScaleRule rule :
         {ScaleRule::plain, ScaleRule::unit, ScaleRule::least_squares, ScaleRule::unbiased}) {
      for (const int candidates : {1, 3}) {
        const MseQuantizer quantizer(HadamardRotation(dim, 1), 3,
                                     {.scale_rule = rule, .scale_candidates = candidates});
        const auto before = quantizer.encode(x);
        auto with_zero = x;
        std::fill_n(with_zero.begin() + dim, d, rule == ScaleRule::unit ? -0.0F : 0.0F);
        const auto encoded = quantizer.encode(with_zero);
        CHECK(encoded.scales[1] == 0.0F);
        const auto decoded = decode(quantizer, encoded, x.size());
        CHECK(std::all_of(decoded.begin() + dim, decoded.begin() + 2 * dim,
                          [](float v) { return std::bit_cast<std::uint32_t>(v) == 0U; }));
        std::vector<float> scores(3);
        quantizer.scores(std::span<const float>(x.data(), d), encoded, scores);
        CHECK(scores[1] == 0.0F);
        for (const std::size_t row : {std::size_t{0}, std::size_t{2}}) {
          CHECK(codes_of(encoded, row, dim, 3) == codes_of(before, row, dim, 3));
          CHECK(encoded.scales[row] == before.scales[row]);
        }
        const auto only_zeros = quantizer.encode(std::vector<float>(d * 4, 0.0F));
        CHECK(decode(quantizer, only_zeros, d * 4) == std::vector<float>(d * 4, 0.0F));
      }
    }
  }
}

TEST_CASE(
    "a power of two on the input changes neither codes nor anything but the exponent of the rest") {
  for (const int dim : {64, 80, 128, 576}) {
    const auto d = static_cast<std::size_t>(dim);
    const auto x = gaussian(d * 4, 6);
    for (const int candidates : {1, 5}) {
      const MseQuantizer quantizer(
          HadamardRotation(dim, 1), 3,
          {.metadata = MetadataType::float32, .scale_candidates = candidates});
      const auto encoded = quantizer.encode(x);
      const auto decoded = decode(quantizer, encoded, x.size());
      for (const int exponent : {-100, -60, -30, -1, 1, 30, 60, 100, 120}) {
        const auto scaled = quantizer.encode(times_power_of_two(x, exponent));
        CHECK(scaled.codes == encoded.codes);
        for (std::size_t i = 0; i < 4; ++i) {
          CHECK(scaled.scales[i] == std::ldexp(encoded.scales[i], exponent));
        }
        CHECK(decode(quantizer, scaled, x.size()) == times_power_of_two(decoded, exponent));
      }
    }
    // Half metadata: equal within its normal range.
    const MseQuantizer half(HadamardRotation(dim, 1), 3);
    const auto encoded = half.encode(x);
    for (const int exponent : {-12, -3, 5, 14}) {
      const auto scaled = half.encode(times_power_of_two(x, exponent));
      CHECK(scaled.codes == encoded.codes);
      for (std::size_t i = 0; i < 4; ++i) {
        CHECK(scaled.scales[i] == std::ldexp(encoded.scales[i], exponent));
      }
    }
  }
}

TEST_CASE("negating the input mirrors the codes") {
  const auto x = gaussian(std::size_t{96} * 20, 7);
  auto negated = x;
  for (float& v : negated) {
    v = -v;
  }
  for (int bits = 1; bits <= 8; ++bits) {
    const MseQuantizer quantizer(HadamardRotation(96, 1), bits);
    const auto encoded = quantizer.encode(x);
    const auto mirrored = quantizer.encode(negated);
    for (std::size_t row = 0; row < 20; ++row) {
      auto codes = codes_of(encoded, row, 96, bits);
      for (auto& code : codes) {
        code = static_cast<std::uint8_t>((1U << static_cast<unsigned>(bits)) - 1U - code);
      }
      CHECK(codes == codes_of(mirrored, row, 96, bits));
    }
  }
}

TEST_CASE("lengths beyond half's range: saturated, never infinite, never 0") {
  const auto direction = gaussian(128, 8);
  const double rms = std::sqrt(dot(direction, direction) / 128);
  for (const MetadataType metadata : {MetadataType::float16, MetadataType::float32}) {
    const MseQuantizer quantizer(HadamardRotation(128, 1), 4, {.metadata = metadata});
    const auto reference = quantizer.encode(direction);
    for (int exponent = -148; exponent <= 125; exponent += 3) {
      const auto x = times_power_of_two(direction, exponent);
      if (largest_magnitude(x) == 0.0F) {
        continue;
      }
      const auto encoded = quantizer.encode(x);
      CAPTURE(exponent);
      CHECK(std::isfinite(encoded.scales[0]));
      CHECK(encoded.scales[0] > 0.0F);
      const auto decoded = decode(quantizer, encoded, 128);
      CHECK(all_finite(decoded));
      if (exponent > -110) {
        CHECK(encoded.codes == reference.codes);
      }
      const double expected = std::ldexp(rms, exponent);
      if (metadata == MetadataType::float32 && exponent > -120) {
        CHECK(double{encoded.scales[0]} == doctest::Approx(expected).epsilon(0.05));
        CHECK(cosine(x, decoded) > 0.99);
      } else if (metadata == MetadataType::float16 && expected > 65504 * 1.1) {
        CHECK(encoded.scales[0] == 65504.0F);
      } else if (metadata == MetadataType::float16 && expected < 0x1p-25) {
        CHECK(encoded.scales[0] == 0x1p-24F);
      }
    }
  }
  // A length of 11 * 65504 with a root mean square of 60000 still fits.
  std::vector<float> long_vector(128, 60000.0F);
  const MseQuantizer half(HadamardRotation(128, 1), 4);
  CHECK(squared_distance(long_vector, decode(half, half.encode(long_vector), 128)) <
        0.05 * dot(long_vector, long_vector));
}

TEST_CASE("sums of squares beyond float: lengths of sparse and huge vectors are exact") {
  const MseQuantizer quantizer(NoRotation{64}, 8,
                               {.scale_rule = ScaleRule::plain, .metadata = MetadataType::float32});
  const auto length = [&](std::vector<float> x) {
    x.resize(64);
    return double{quantizer.encode(x).scales[0]} * 8;
  };
  CHECK(length({3e19F, 4e19F}) == doctest::Approx(5e19).epsilon(1e-6));
  CHECK(length({3e-23F, 4e-23F}) == doctest::Approx(5e-23).epsilon(1e-6));
  CHECK(length({3e-23F, 4e-23F, 1e-40F}) == doctest::Approx(5e-23).epsilon(1e-6));
  const MseQuantizer rotated(HadamardRotation(128, 1), 8, {.metadata = MetadataType::float32});
  for (const float huge : {1e38F, std::numeric_limits<float>::max()}) {
    const std::vector<float> x(128, huge);
    const auto decoded = decode(rotated, rotated.encode(x), 128);
    CHECK(all_finite(decoded));
    CHECK(cosine(x, decoded) > 0.999);
    std::vector<float> score(1);
    rotated.scores(x, rotated.encode(x), score);
    CHECK(score[0] == std::numeric_limits<float>::max());
  }
}

TEST_CASE("subnormal vectors: the codes of the same pattern at ordinary size, flushing or not") {
  std::vector<float> pattern(64);
  for (std::size_t i = 0; i < 64; ++i) {
    pattern[i] = static_cast<float>(i + 1) * (i % 2 == 0 ? 1.0F : -1.0F);
  }
  for (const MetadataType metadata : {MetadataType::float16, MetadataType::float32}) {
    for (const ScaleRule rule :
         {ScaleRule::plain, ScaleRule::unit, ScaleRule::least_squares, ScaleRule::unbiased}) {
      const MseQuantizer quantizer(HadamardRotation(64, 2), 3,
                                   {.scale_rule = rule, .metadata = metadata});
      const auto expected = quantizer.encode(pattern);
      for (const int exponent : {-149, -140, -133, -120}) {
        const auto tiny = times_power_of_two(pattern, exponent);
        const auto encoded = quantizer.encode(tiny);
        CHECK(encoded.codes == expected.codes);
        CHECK(encoded.scales[0] > 0.0F);
        const auto decoded = decode(quantizer, encoded, 64);
        CHECK(all_finite(decoded));
        const FlushSubnormals flush;
        const auto flushed = quantizer.encode(tiny);
        CHECK(flushed.codes == encoded.codes);
        CHECK(flushed.scales.bytes() == encoded.scales.bytes());
        const auto flushed_decoded = decode(quantizer, flushed, 64);
        CHECK(all_finite(flushed_decoded));
      }
    }
  }
  std::vector<float> small(64);
  for (std::size_t i = 0; i < 64; ++i) {
    small[i] = 1e-40F * pattern[i];
  }
  const MseQuantizer quantizer(HadamardRotation(64, 2), 3, {.metadata = MetadataType::float32});
  for (const float v : decode(quantizer, quantizer.encode(small), 64)) {
    CHECK(std::abs(v) <= 1e-37F);
  }
}

TEST_CASE("subnormal coordinates beside ordinary ones: the same bytes, flushing or not") {
  auto x = exact_bell(std::size_t{128} * 8, 11);
  for (std::size_t i = 0; i < x.size(); i += 3) {
    x[i] = std::ldexp(x[i], -100 - static_cast<int>(i % 60));
  }
  std::fill_n(x.begin() + 128, 128, 0.0F);
  x[128] = 1;
  x[129] = -1;
  x[130] = 1e-42F;
  const auto check = [&x](const auto& quantizer) {
    const auto encoded = quantizer.encode(x);
    const FlushSubnormals flush;
    const auto flushed = quantizer.encode(x);
    CHECK(flushed.codes == encoded.codes);
    CHECK(flushed.scales.bytes() == encoded.scales.bytes());
  };
  const MseQuantizerOptions options{.metadata = MetadataType::float32};
  check(MseQuantizer(HadamardRotation(64, 2), 3, options));
  check(MseQuantizer(HadamardRotation(128, 2), 3, options));
  check(MseQuantizer(NoRotation{64}, 3,
                     options));  // small coordinates stay alone and meet the boundary at 0
}

TEST_CASE("NaN and infinities are refused by place, and nothing is written") {
  const MseQuantizer quantizer(HadamardRotation(16, 1), 3);
  const auto x = gaussian(16 * 40, 12);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
        std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{17}, std::size_t{300}, x.size() - 1}) {
      auto broken = x;
      broken[at] = bad;
      const std::string place =
          "vectors[" + std::to_string(at / 16) + "][" + std::to_string(at % 16) + "]";
      CHECK(throws(ErrorCode::non_finite, place, [&] { (void)quantizer.encode(broken); }));
    }
  }
  std::vector<float> query(16, 1.0F);
  query[3] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> scores(40, 7.0F);
  CHECK(throws(ErrorCode::non_finite, "query",
               [&] { quantizer.scores(query, quantizer.encode(x), scores); }));
  CHECK(scores == std::vector<float>(40, 7.0F));
}

TEST_CASE("any split of a batch gives the same bytes") {
  for (const int dim : {80, 128}) {
    const auto d = static_cast<std::size_t>(dim);
    const auto x = gaussian(d * 40, 13);
    const MseQuantizer quantizer(HadamardRotation(dim, 1), 3);
    const auto whole = quantizer.encode(x);
    const std::vector<std::vector<std::size_t>> splits{
        std::vector<std::size_t>(40, 1), {7, 33}, {16, 16, 8}, {0, 40}};
    for (const auto& split : splits) {
      std::vector<std::uint8_t> codes;
      std::vector<std::uint8_t> scales;
      std::size_t first = 0;
      for (const std::size_t count : split) {
        const auto part = quantizer.encode(std::span(x.data() + first * d, count * d));
        codes.insert(codes.end(), part.codes.begin(), part.codes.end());
        scales.insert(scales.end(), part.scales.bytes().begin(), part.scales.bytes().end());
        first += count;
      }
      CHECK(codes == whole.codes);
      CHECK(scales == whole.scales.bytes());
    }
  }
}

TEST_CASE("an empty batch is a batch") {
  const MseQuantizer quantizer(HadamardRotation(64, 1), 3);
  const auto encoded = quantizer.encode({});
  CHECK(encoded.count == 0);
  CHECK(encoded.bytes() == 0);
  quantizer.decode(encoded, {});
  quantizer.scores(std::vector<float>(64, 1.0F), encoded, {});
}

TEST_CASE("cells: a value on a boundary belongs to the upper cell, and both zeros are one number") {
  // Without a rotation and with a root mean square of exactly 1 the coordinates meet the codebook
  // as they are.
  for (int bits = 1; bits <= 8; ++bits) {
    const Codebook<float> levels = lloyd_max(64, bits).codebook.scaled<float>(8.0);
    std::vector<float> values{0.0F, -0.0F, 1.0F, -1.0F, 100.0F, -100.0F, 1e-30F, -1e-30F};
    for (const float boundary : levels.boundaries()) {
      values.push_back(boundary);
      values.push_back(std::nextafter(boundary, -1000.0F));
      values.push_back(std::nextafter(boundary, 1000.0F));
    }
    std::vector<std::uint8_t> codes(values.size());
    detail::encode_cells(levels, values.data(), 1.0F, values.size(), codes.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      CAPTURE(bits);
      CAPTURE(values[i]);
      CHECK(unsigned{codes[i]} == unsigned{levels.encode(values[i])});
    }
    CHECK(unsigned{codes[0]} == 1U << static_cast<unsigned>(bits - 1));
    CHECK(codes[1] == codes[0]);
  }
}

TEST_CASE("cells: the array search agrees with the codebook for every length and random input") {
  const auto x = gaussian(4096, 14);
  for (int bits = 1; bits <= 8; ++bits) {
    const Codebook<float> levels = lloyd_max(64, bits).codebook.scaled<float>(8.0);
    for (const std::size_t count :
         {std::size_t{1}, std::size_t{7}, std::size_t{31}, std::size_t{100}, x.size()}) {
      std::vector<std::uint8_t> codes(count + 1, 0xAB);
      detail::encode_cells(levels, x.data(), 1.25F, count, codes.data());
      bool equal = true;
      for (std::size_t i = 0; i < count; ++i) {
        equal = equal && codes[i] == levels.encode(x[i] * 1.25F);
      }
      CHECK(equal);
      CHECK(codes[count] == 0xAB);
    }
  }
}

TEST_CASE("threads that share a quantizer write the same bytes") {
  const auto x = gaussian(std::size_t{128} * 300, 15);
  const MseQuantizer quantizer(HadamardRotation(128, 1), 3, {.scale_candidates = 3});
  const auto expected = quantizer.encode(x);
  const auto expected_values = decode(quantizer, expected, x.size());
  std::array<bool, 4> equal{};
  std::vector<std::thread> threads;
  for (bool& result : equal) {
    threads.emplace_back([&] {
      const auto encoded = quantizer.encode(x);
      result = encoded == expected && decode(quantizer, encoded, x.size()) == expected_values;
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  CHECK(std::all_of(equal.begin(), equal.end(), [](bool b) { return b; }));
}

TEST_CASE_TEMPLATE("a quantizer that has been moved from is as it was", Rotation, HadamardRotation,
                   HaarRotation) {
  const auto x = gaussian(std::size_t{24} * 30, 17);
  for (const CodebookKind codebook : {CodebookKind::exact, CodebookKind::integer_grid}) {
    MseQuantizer one(Rotation(24, 1), 3, {.codebook = codebook});
    const auto encoded = one.encode(x);
    const auto decoded = decode(one, encoded, x.size());
    MseQuantizer other(std::move(one));
    for (int round = 0; round < 2; ++round) {
      for (const auto* quantizer : {&one, &other}) {
        CHECK(quantizer->dim() == 24);
        CHECK(quantizer->bits() == 3);
        CHECK(quantizer->encode(x) == encoded);
        CHECK(decode(*quantizer, encoded, x.size()) == decoded);
      }
      other = MseQuantizer(Rotation(16, 2), 4);
      other = std::move(one);
    }
  }
}

TEST_CASE("a batch that has been moved from is refused, and so is half of one") {
  const MseQuantizer quantizer(HadamardRotation(24, 1), 3);
  const auto x = gaussian(std::size_t{24} * 30, 18);
  std::vector<float> out(x.size());
  auto encoded = quantizer.encode(x);
  const auto other = std::move(encoded);
  quantizer.decode(other, out);
  CHECK(throws(ErrorCode::shape_mismatch, "encoded holds 0 bytes of codes",
               [&] { quantizer.decode(encoded, out); }));
  auto half = other;
  const auto codes = std::move(half.codes);
  CHECK(throws(ErrorCode::shape_mismatch, "encoded holds 0 bytes of codes",
               [&] { quantizer.decode(half, out); }));
}

TEST_CASE("constructor arguments outside their range are refused by name") {
  const HadamardRotation rotation(64, 1);
  for (const int bits : {-5, 0, 9, 1000}) {
    CHECK(throws(ErrorCode::invalid_argument, "bits is " + std::to_string(bits),
                 [&] { MseQuantizer(rotation, bits); }));
  }
  for (const int bits : {0, 5, 8}) {
    CHECK(throws(ErrorCode::invalid_argument, "for the integer grid",
                 [&] { MseQuantizer(rotation, bits, {.codebook = CodebookKind::integer_grid}); }));
  }
  for (const int candidates : {-1, 0, 10}) {
    CHECK(throws(ErrorCode::invalid_argument, "scale_candidates is " + std::to_string(candidates),
                 [&] { MseQuantizer(rotation, 3, {.scale_candidates = candidates}); }));
  }
  for (const int dim : {-1, 0, 1, 2}) {
    for (const CodebookKind codebook : {CodebookKind::exact, CodebookKind::integer_grid}) {
      CHECK(throws(ErrorCode::invalid_argument, "rotation.dim() is " + std::to_string(dim),
                   [&] { MseQuantizer(NoRotation{dim}, 3, {.codebook = codebook}); }));
    }
  }
}

TEST_CASE(
    "codes of another quantizer are refused by the field that differs; outputs stay untouched") {
  const auto x = gaussian(std::size_t{96} * 4, 16);
  const MseQuantizer quantizer(HadamardRotation(96, 1), 4);
  const auto encoded = quantizer.encode(x);
  std::vector<float> out(x.size(), 7.0F);
  const auto refuses = [&](const auto& reader, const EncodedVectors& wrong, std::size_t size,
                           const std::string& part) {
    std::vector<float> scores(4, 7.0F);
    CHECK(throws(ErrorCode::shape_mismatch, part,
                 [&] { reader.decode(wrong, std::span(out.data(), size)); }));
    const std::vector<float> query(static_cast<std::size_t>(reader.dim()), 1.0F);
    CHECK(throws(ErrorCode::shape_mismatch, part, [&] { reader.scores(query, wrong, scores); }));
    CHECK(scores == std::vector<float>(4, 7.0F));
  };
  // 96 coordinates of 4 bits take as many bytes as 128 of 3.
  REQUIRE(MseQuantizer(HadamardRotation(128, 1), 3).code_bytes() == quantizer.code_bytes());
  out.resize(4 * 128, 7.0F);
  refuses(MseQuantizer(HadamardRotation(128, 1), 3), encoded, 4 * 128,
          "format.dim is 96, expected 128");
  out.resize(x.size());
  refuses(MseQuantizer(HadamardRotation(96, 1), 3), encoded, x.size(),
          "format.bits is 4, expected 3");
  refuses(MseQuantizer(HadamardRotation(96, 2), 4), encoded, x.size(),
          "rotation_seed is 1, expected 2");
  refuses(MseQuantizer(HadamardRotation(96, 1), 4, {.codebook = CodebookKind::integer_grid}),
          encoded, x.size(), "format.kind is lloyd_max, expected integer_grid");
  refuses(MseQuantizer(HadamardRotation(96, 1), 4, {.metadata = MetadataType::float32}), encoded,
          x.size(), "scales");

  auto wrong = encoded;
  wrong.codes.pop_back();
  refuses(quantizer, wrong, x.size(), "bytes of codes");
  wrong = encoded;
  wrong.scales = MetadataArray(MetadataType::float16, 3);
  refuses(quantizer, wrong, x.size(), "3 scales");
  wrong = encoded;
  wrong.code_bytes = 0;
  refuses(quantizer, wrong, x.size(), "0 per vector");
  wrong = encoded;
  wrong.count = 5;
  CHECK(throws(ErrorCode::shape_mismatch, "encoded.count = 5",
               [&] { quantizer.decode(wrong, out); }));
  wrong = EncodedVectors(0, quantizer.format(), MetadataType::float16);
  wrong.count = std::size_t{1} << 61U;  // times 48 bytes or 96 coordinates: 0 in 64 bits
  wrong.count <<= 2U;
  CHECK(throws(ErrorCode::shape_mismatch, "encoded.count", [&] { quantizer.decode(wrong, {}); }));

  CHECK(throws(ErrorCode::shape_mismatch, "expected 4 * 96",
               [&] { quantizer.decode(encoded, std::span(out.data(), out.size() - 1)); }));
  CHECK(throws(ErrorCode::shape_mismatch, "vectors.size() is 97", [&] {
    (void)quantizer.encode({x.data(), 97});
  }));
  CHECK(out == std::vector<float>(x.size(), 7.0F));
}

TEST_CASE("codes of another class of rotation are refused, whatever their seed") {
  const std::vector<float> x = gaussian(std::size_t{2} * 64, 3);
  std::vector<float> out(x.size(), 7.0F);
  const EncodedVectors encoded = MseQuantizer(HadamardRotation(64, 42), 3).encode(x);
  const MseQuantizer haar(HaarRotation(64, 42), 3);
  CHECK(throws(ErrorCode::shape_mismatch, "rotation_kind", [&] { haar.decode(encoded, out); }));
  CHECK(out == std::vector<float>(x.size(), 7.0F));
}

TEST_CASE("damaged scales are refused") {
  const std::vector<float> x = gaussian(std::size_t{2} * 64, 3);
  std::vector<float> out(x.size(), 7.0F);
  const MseQuantizer quantizer(HadamardRotation(64, 42), 3);
  EncodedVectors encoded = quantizer.encode(x);
  encoded.scales.set(1, std::numeric_limits<float>::quiet_NaN());
  CHECK(throws(ErrorCode::format, "encoded.scales[1]", [&] { quantizer.decode(encoded, out); }));
  CHECK(throws(ErrorCode::format, "encoded.scales[1]", [&] {
    quantizer.scores({x.data(), 64}, encoded, std::span(out).first(2));
  }));
  CHECK(out == std::vector<float>(x.size(), 7.0F));
}

TEST_CASE("batches of impossible shape and unknown options are refused") {
  const auto batch = [](std::size_t count, int dim, int bits) {
    return [=] {
      (void)EncodedVectors(count, {CodeKind::lloyd_max, dim, bits, 0}, MetadataType::float16);
    };
  };
  CHECK(throws(ErrorCode::invalid_argument, "format.dim is -1", batch(1, -1, 3)));
  CHECK(throws(ErrorCode::invalid_argument, "format.dim is 0", batch(1, 0, 3)));
  CHECK(throws(ErrorCode::invalid_argument, "bits is 9", batch(1, 64, 9)));
  CHECK(throws(ErrorCode::overflow, "num_vectors", batch((std::size_t{1} << 63U) + 1, 16, 1)));
  for (const int unknown : {-1, 4, 77}) {
    CHECK(throws(
        ErrorCode::invalid_argument,
        "format.kind is CodeKind(" + std::to_string(unknown) + "), expected lloyd_max", [&] {
          (void)EncodedVectors(1, {static_cast<CodeKind>(unknown), 16, 3}, MetadataType::float16);
        }));
  }
  constexpr std::size_t most = (std::numeric_limits<std::size_t>::max)();
  for (const auto& [type, count] :
       {std::pair{MetadataType::float32, most}, std::pair{MetadataType::float32, most / 8 + 1},
        std::pair{MetadataType::float16, most}, std::pair{MetadataType::float16, most / 2 + 1},
        std::pair{MetadataType::float16, most / 4 + 1}}) {
    CHECK(throws(ErrorCode::overflow, "MetadataArray: count is " + std::to_string(count),
                 [&, type = type, count = count] { (void)MetadataArray(type, count); }));
  }
  const auto with = [](MseQuantizerOptions options) {
    return [=] { (void)MseQuantizer(HadamardRotation(64, 1), 3, options); };
  };
  CHECK(throws(ErrorCode::invalid_argument, "CodebookKind(7)",
               with({.codebook = static_cast<CodebookKind>(7)})));
  CHECK(throws(ErrorCode::invalid_argument, "ScaleRule(7)",
               with({.scale_rule = static_cast<ScaleRule>(7)})));
  CHECK(throws(ErrorCode::invalid_argument, "MetadataType(7)",
               with({.metadata = static_cast<MetadataType>(7)})));
}
