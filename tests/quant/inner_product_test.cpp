#include <turboquant/math/gaussian_sketch.hpp>
#include <turboquant/math/haar_rotation.hpp>
#include <turboquant/quant/inner_product_quantizer.hpp>

#include <doctest/doctest.h>

#include "quant/support.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace turboquant;
using namespace turboquant::test;

namespace {

/// Gaussian vectors scaled to length 1.
std::vector<float> unit_vectors(int dim, std::size_t count, std::uint64_t seed) {
  const auto d = static_cast<std::size_t>(dim);
  auto x = gaussian(d * count, seed);
  for (std::size_t i = 0; i < x.size(); i += d) {
    const double length = std::sqrt(dot({x.data() + i, d}, {x.data() + i, d}));
    for (std::size_t j = 0; j < d; ++j) {
      x[i + j] = static_cast<float>(double{x[i + j]} / length);
    }
  }
  return x;
}

/// dim * mean of (score - <y, x>)^2 over all pairs of unit vectors, from `scores`.
template <class Quantizer>
double variance_times_dim(const Quantizer& quantizer, std::span<const float> keys,
                          std::span<const float> queries) {
  const auto d = static_cast<std::size_t>(quantizer.dim());
  const auto encoded = quantizer.encode(keys);
  std::vector<float> scores(keys.size() / d);
  double sum = 0;
  for (std::size_t q = 0; q < queries.size(); q += d) {
    quantizer.scores(queries.subspan(q, d), encoded, scores);
    for (std::size_t k = 0; k < scores.size(); ++k) {
      const double error = double{scores[k]} - dot(queries.subspan(q, d), keys.subspan(k * d, d));
      sum += error * error;
    }
  }
  return sum * static_cast<double>(d) / static_cast<double>(scores.size() * (queries.size() / d));
}

/// sum(true * estimate) / sum(true^2) over all pairs.
template <class Quantizer>
double slope(const Quantizer& quantizer, std::span<const float> keys,
             std::span<const float> queries) {
  const auto d = static_cast<std::size_t>(quantizer.dim());
  const auto encoded = quantizer.encode(keys);
  std::vector<float> scores(keys.size() / d);
  double product = 0;
  double squared = 0;
  for (std::size_t q = 0; q < queries.size(); q += d) {
    quantizer.scores(queries.subspan(q, d), encoded, scores);
    for (std::size_t k = 0; k < scores.size(); ++k) {
      const double exact = dot(queries.subspan(q, d), keys.subspan(k * d, d));
      product += exact * double{scores[k]};
      squared += exact * exact;
    }
  }
  return product / squared;
}

/// Mean of score / <y, x> over `seeds` rotations, y at 60 degrees from x.
double mean_gain(int dim, int bits, ScaleRule rule, std::uint64_t seeds) {
  const auto d = static_cast<std::size_t>(dim);
  constexpr std::size_t count = 60;
  const auto x = unit_vectors(dim, count, 31);
  const auto z = unit_vectors(dim, count, 32);
  double sum = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const MseQuantizer quantizer(HadamardRotation(dim, seed), bits, {.scale_rule = rule});
    const auto decoded = decode(quantizer, quantizer.encode(x), x.size());
    for (std::size_t i = 0; i < x.size(); i += d) {
      const std::span<const float> v(x.data() + i, d);
      std::vector<float> y(d);
      const double overlap = dot(v, {z.data() + i, d});
      for (std::size_t j = 0; j < d; ++j) {
        const double across =
            (double{z[i + j]} - overlap * double{v[j]}) / std::sqrt(1 - overlap * overlap);
        y[j] = static_cast<float>(0.5 * double{v[j]} + std::sqrt(0.75) * across);
      }
      sum += dot(y, {decoded.data() + i, d}) / dot(y, v);
    }
  }
  return sum / static_cast<double>(seeds * count);
}

}  // namespace

TEST_CASE("variance of inner products: four scale rules within 3 % of the reference") {
  for (const int dim : {64, 128}) {
    const auto keys = unit_vectors(dim, 1500, 21);
    const auto queries = unit_vectors(dim, 64, 22);
    for (const int bits : {1, 2, 3, 4}) {
      const Distortion row = distortion(dim, bits);
      const auto variance = [&](ScaleRule rule) {
        return variance_times_dim(
            MseQuantizer(HadamardRotation(dim, 3), bits, {.scale_rule = rule}), keys, queries);
      };
      CAPTURE(dim);
      CAPTURE(bits);
      CHECK(variance(ScaleRule::plain) == doctest::Approx(row.plain).epsilon(0.03));
      CHECK(variance(ScaleRule::unit) == doctest::Approx(row.unit).epsilon(0.03));
      CHECK(variance(ScaleRule::least_squares) == doctest::Approx(row.least_squares).epsilon(0.03));
      CHECK(variance(ScaleRule::unbiased) == doctest::Approx(row.unbiased).epsilon(0.03));
    }
  }
}

TEST_CASE(
    "variance of inner products: Algorithm 2 with both sketches within 3 % of the reference") {
  for (const int dim : {64, 128}) {
    const auto keys = unit_vectors(dim, 1500, 23);
    const auto queries = unit_vectors(dim, 64, 24);
    for (const int bits : {2, 3, 4}) {
      const Distortion row = distortion(dim, bits);
      double gaussian_sketch = 0;
      double orthogonal = 0;
      double structured = 0;
      constexpr std::uint64_t sketches = 3;
      for (std::uint64_t seed = 0; seed < sketches; ++seed) {
        const HadamardRotation rotation(dim, 3);
        gaussian_sketch += variance_times_dim(
            InnerProductQuantizer(rotation, bits, GaussianSketch(dim, seed)), keys, queries);
        orthogonal += variance_times_dim(
            InnerProductQuantizer(rotation, bits, OrthogonalSketch(HaarRotation(dim, seed))), keys,
            queries);
        structured += variance_times_dim(
            InnerProductQuantizer(rotation, bits,
                                  OrthogonalSketch(HadamardRotation(dim, 100 + seed))),
            keys, queries);
      }
      CAPTURE(dim);
      CAPTURE(bits);
      CHECK(gaussian_sketch / sketches == doctest::Approx(row.gaussian).epsilon(0.03));
      CHECK(orthogonal / sketches == doctest::Approx(row.orthogonal).epsilon(0.03));
      CHECK(structured / sketches == doctest::Approx(row.orthogonal).epsilon(0.03));
      CHECK(row.unbiased < row.orthogonal);  // the reason for the default scale rule
    }
  }
}

TEST_CASE("bias over rotations: none with the unbiased scale, 1 - D with the plain one") {
  for (const int bits : {2, 3, 4}) {
    CAPTURE(bits);
    CHECK(std::abs(mean_gain(128, bits, ScaleRule::unbiased, 40) - 1) < 0.005);
    CHECK(std::abs(mean_gain(80, bits, ScaleRule::unbiased, 40) - 1) < 0.005);
    CHECK(std::abs(mean_gain(128, bits, ScaleRule::plain, 40) - (1 - distortion(128, bits).plain)) <
          0.005);
  }
}

TEST_CASE(
    "slope against the exact product: the sign sketch restores what the plain scale shrinks") {
  const auto keys = gaussian(std::size_t{128} * 512, 41);
  const auto queries = gaussian(std::size_t{128} * 64, 42);
  const HadamardRotation rotation(128, 9);
  const MseQuantizer plain(rotation, 2, {.scale_rule = ScaleRule::plain});
  CHECK(std::abs(slope(plain, keys, queries) - (1 - distortion(128, 2).plain)) < 0.01);
  CHECK(std::abs(slope(InnerProductQuantizer(rotation, 3, GaussianSketch(128, 1)), keys, queries) -
                 1) < 0.01);
  CHECK(std::abs(slope(InnerProductQuantizer(rotation, 3, OrthogonalSketch(HaarRotation(128, 1))),
                       keys, queries) -
                 1) < 0.01);
  CHECK(std::abs(slope(MseQuantizer(rotation, 3), keys, queries) - 1) < 0.01);
}

TEST_CASE("Gaussian sketch: unbiased over sketches with the variance of the theory") {
  // One residual and one query that has a component along it; the expectation is over S.
  for (const int dim : {16, 64}) {
    const auto d = static_cast<std::size_t>(dim);
    const auto x = unit_vectors(dim, 2, 51);
    const std::span<const float> key(x.data(), d);
    std::vector<float> query(d);
    for (std::size_t i = 0; i < d; ++i) {
      query[i] = key[i] + 2 * x[d + i];
    }
    const HadamardRotation rotation(dim, 1);
    const std::uint64_t sketches = dim == 16 ? 4000 : 1200;
    const MseQuantizer first(rotation, 1,
                             {.scale_rule = ScaleRule::plain, .metadata = MetadataType::float32});
    const auto approximate = decode(first, first.encode(key), d);
    std::vector<float> residual(d);
    for (std::size_t i = 0; i < d; ++i) {
      residual[i] = key[i] - approximate[i];
    }
    const double product = dot(query, residual);
    const double variance =
        (1.57079632679 * dot(residual, residual) * dot(query, query) - product * product) / dim;
    double sum = 0;
    double squares = 0;
    for (std::uint64_t seed = 0; seed < sketches; ++seed) {
      const InnerProductQuantizer quantizer(
          rotation, 2, GaussianSketch(dim, seed),
          {.scale_rule = ScaleRule::plain, .metadata = MetadataType::float32});
      std::vector<float> score(1);
      quantizer.scores(query, quantizer.encode(key), score);
      const double error = double{score[0]} - dot(query, key);
      sum += error;
      squares += error * error;
    }
    const auto n = static_cast<double>(sketches);
    CAPTURE(dim);
    CHECK(std::abs(sum / n) < 4 * std::sqrt(variance / n));
    CHECK(squares / n == doctest::Approx(variance).epsilon(0.12));
  }
}

TEST_CASE("orthogonal sketch: its constant is that of the sphere, not the Gaussian one") {
  // At 16 coordinates the Gaussian constant would give 1.0157 on the residual's own direction.
  const int dim = 16;
  const std::size_t d = 16;
  const auto x = unit_vectors(dim, 1, 52);
  const HadamardRotation rotation(dim, 1);
  const MseQuantizerOptions options{.scale_rule = ScaleRule::plain,
                                    .metadata = MetadataType::float32};
  const MseQuantizer first(rotation, 1, options);
  const auto approximate = decode(first, first.encode(x), d);
  std::vector<float> residual(d);
  for (std::size_t i = 0; i < d; ++i) {
    residual[i] = x[i] - approximate[i];
  }
  double sum = 0;
  double squares = 0;
  constexpr int sketches = 4000;
  for (std::uint64_t seed = 0; seed < sketches; ++seed) {
    const InnerProductQuantizer quantizer(rotation, 2, OrthogonalSketch(HaarRotation(dim, seed)),
                                          options);
    const auto decoded = decode(quantizer, quantizer.encode(x), d);
    double along = 0;
    for (std::size_t i = 0; i < d; ++i) {
      along += double{residual[i]} * (double{decoded[i]} - double{approximate[i]});
    }
    const double gain = along / dot(residual, residual);
    sum += gain;
    squares += gain * gain;
  }
  const double mean = sum / sketches;
  const double deviation = std::sqrt((squares / sketches - mean * mean) / sketches);
  CHECK(std::abs(mean - 1) < 4 * deviation);
  CHECK(4 * deviation < 0.0157);
}

TEST_CASE("scores agree with the decoded vectors") {
  for (const int dim : {80, 128}) {
    const auto d = static_cast<std::size_t>(dim);
    const auto keys = gaussian(d * 20, 61);
    const auto query = gaussian(d, 62);
    const auto compare = [&](const auto& quantizer) {
      const auto encoded = quantizer.encode(keys);
      const auto decoded = decode(quantizer, encoded, keys.size());
      std::vector<float> scores(20);
      quantizer.scores(query, encoded, scores);
      for (std::size_t i = 0; i < 20; ++i) {
        CHECK(double{scores[i]} ==
              doctest::Approx(dot(query, {decoded.data() + i * d, d})).epsilon(1e-4));
      }
    };
    compare(MseQuantizer(HadamardRotation(dim, 1), 3));
    compare(MseQuantizer(HaarRotation(dim, 1), 3, {.codebook = CodebookKind::integer_grid}));
    compare(InnerProductQuantizer(HadamardRotation(dim, 1), 3, GaussianSketch(dim, 2)));
    compare(InnerProductQuantizer(HaarRotation(dim, 1), 4,
                                  OrthogonalSketch(HadamardRotation(dim, 2)),
                                  {.scale_rule = ScaleRule::unbiased}));
  }
}

TEST_CASE("a residual is taken against the stored scale, so that its rounding adds no bias") {
  // Lengths at which half metadata rounds hardest: a few units of 2^-24.
  const int dim = 64;
  const std::size_t d = 64;
  const auto x = times_power_of_two(gaussian(d * 300, 63), -23);
  const InnerProductQuantizer quantizer(HadamardRotation(dim, 1), 3,
                                        OrthogonalSketch(HaarRotation(dim, 5)));
  const auto decoded = decode(quantizer, quantizer.encode(x), x.size());
  double along = 0;
  for (std::size_t i = 0; i < x.size(); i += d) {
    along += dot({x.data() + i, d}, {decoded.data() + i, d});
  }
  // What is left is the rounding of the residual's own scale.
  CHECK(along / dot(x, x) == doctest::Approx(1).epsilon(0.1));
}

TEST_CASE("signs do not depend on the length; bytes are counted where they are allocated") {
  const int dim = 100;
  const std::size_t d = 100;
  const auto x = gaussian(d * 7, 64);
  const InnerProductQuantizer quantizer(
      HadamardRotation(dim, 1), 3, GaussianSketch(dim, 5),
      {.scale_rule = ScaleRule::plain, .metadata = MetadataType::float32});
  const auto encoded = quantizer.encode(x);
  const auto decoded = decode(quantizer, encoded, x.size());
  for (const int exponent : {-100, -60, -1, 30, 60, 100}) {
    const auto scaled = quantizer.encode(times_power_of_two(x, exponent));
    CHECK(scaled.mse.codes == encoded.mse.codes);
    CHECK(scaled.signs == encoded.signs);
    for (std::size_t i = 0; i < 7; ++i) {
      CHECK(scaled.mse.scales[i] == std::ldexp(encoded.mse.scales[i], exponent));
      CHECK(scaled.residual_scales[i] == std::ldexp(encoded.residual_scales[i], exponent));
    }
    CHECK(decode(quantizer, scaled, x.size()) == times_power_of_two(decoded, exponent));
  }
  CHECK(quantizer.bytes_per_vector() == 25 + 13 + 4 + 4);
  CHECK(encoded.bytes() == 7 * quantizer.bytes_per_vector());
  CHECK(encoded.bytes() == encoded.mse.codes.size() + encoded.signs.size() +
                               encoded.mse.scales.bytes().size() +
                               encoded.residual_scales.bytes().size());
}

TEST_CASE("unused sign bits of the last byte are 0") {
  const int dim = 13;
  const InnerProductQuantizer quantizer(HadamardRotation(dim, 1), 2,
                                        OrthogonalSketch(HadamardRotation(dim, 2)));
  const auto encoded = quantizer.encode(gaussian(13 * 20, 65));
  CHECK(encoded.sign_bytes == 2);
  for (std::size_t row = 0; row < 20; ++row) {
    CHECK((encoded.signs[row * 2 + 1] & 0xE0U) == 0U);
  }
}

TEST_CASE("zero vectors: both scales 0, exact zeros, and the neighbours keep their bytes") {
  for (const int dim : {16, 80, 128}) {
    const auto d = static_cast<std::size_t>(dim);
    auto x = gaussian(d * 3, 66);
    const InnerProductQuantizer quantizer(HadamardRotation(dim, 1), 3, GaussianSketch(dim, 2));
    const auto before = quantizer.encode(x);
    std::fill(x.begin() + dim, x.begin() + 2 * dim, dim == 80 ? -0.0F : 0.0F);
    const auto encoded = quantizer.encode(x);
    CHECK(encoded.mse.scales[1] == 0.0F);
    CHECK(encoded.residual_scales[1] == 0.0F);
    const auto decoded = decode(quantizer, encoded, x.size());
    std::vector<float> scores(3);
    quantizer.scores(gaussian(d, 67), encoded, scores);
    CHECK(scores[1] == 0.0F);
    for (std::size_t i = d; i < 2 * d; ++i) {
      CHECK(std::bit_cast<std::uint32_t>(decoded[i]) == 0U);
    }
    for (const std::size_t row : {std::size_t{0}, std::size_t{2}}) {
      CHECK(std::equal(encoded.mse.row(row), encoded.mse.row(row) + encoded.mse.code_bytes,
                       before.mse.row(row)));
      CHECK(encoded.mse.scales[row] == before.mse.scales[row]);
      CHECK(encoded.residual_scales[row] == before.residual_scales[row]);
    }
  }
}

TEST_CASE("any float32 input gives finite numbers") {
  for (const MetadataType metadata : {MetadataType::float16, MetadataType::float32}) {
    const int dim = 128;
    const InnerProductQuantizer quantizer(HadamardRotation(dim, 1), 3, GaussianSketch(dim, 2),
                                          {.scale_rule = ScaleRule::plain, .metadata = metadata});
    for (const float magnitude :
         {std::numeric_limits<float>::max(), 1e38F, 1e19F, 1e-19F, 1e-38F, 1e-40F, 1e-45F}) {
      auto x = gaussian(128, 68);
      for (float& v : x) {
        v = v < 0 ? -magnitude : magnitude;
      }
      const auto encoded = quantizer.encode(x);
      CHECK(encoded.mse.scales[0] > 0);
      const auto decoded = decode(quantizer, encoded, x.size());
      CHECK(all_finite(decoded));
      std::vector<float> score(1);
      quantizer.scores(x, encoded, score);
      CHECK(all_finite(score));
      if (metadata == MetadataType::float32 && magnitude > 1e-36F) {
        CHECK(cosine(x, decoded) > 0.9);
      }
    }
  }
}

TEST_CASE(
    "a vector far below half's range: the sketch still sees the residual of the stored scale") {
  // The stored scale is then 2^-24 whatever the vector, and the residual is nearly that of 0.
  const int dim = 128;
  const InnerProductQuantizer quantizer(HadamardRotation(dim, 1), 3, GaussianSketch(dim, 2));
  for (const int exponent : {-40, -80, -120, -149}) {
    auto signs = gaussian(128, 70);
    for (float& v : signs) {
      v = v < 0 ? -1.0F : 1.0F;
    }
    const auto x = times_power_of_two(signs, exponent);
    const auto encoded = quantizer.encode(x);
    CHECK(encoded.mse.scales[0] == 0x1p-24F);
    const auto from_levels = decode(quantizer.mse(), encoded.mse, 128);
    const auto decoded = decode(quantizer, encoded, 128);
    double along = 0;
    for (std::size_t i = 0; i < 128; ++i) {
      along -= (double{decoded[i]} - double{from_levels[i]}) * double{from_levels[i]};
    }
    CHECK(along / dot(from_levels, from_levels) == doctest::Approx(1).epsilon(0.2));
  }
}

TEST_CASE("a quantizer that has been moved from is as it was, whichever its sketch") {
  const auto x = gaussian(std::size_t{24} * 30, 19);
  const auto check = [&](const auto& make_sketch) {
    using Sketch = std::decay_t<decltype(make_sketch(1))>;
    using Quantizer = InnerProductQuantizer<HadamardRotation, Sketch>;
    Quantizer one(HadamardRotation(24, 1), 4, make_sketch(3));
    const auto encoded = one.encode(x);
    const auto decoded = decode(one, encoded, x.size());
    Quantizer other(std::move(one));
    for (int round = 0; round < 2; ++round) {
      for (const auto* quantizer : {&one, &other}) {
        CHECK(quantizer->bits() == 4);
        CHECK(quantizer->encode(x) == encoded);
        CHECK(decode(*quantizer, encoded, x.size()) == decoded);
      }
      other = Quantizer(HadamardRotation(24, 2), 3, make_sketch(4));
      other = std::move(one);
    }
  };
  check([](std::uint64_t seed) { return GaussianSketch(24, seed); });
  check([](std::uint64_t seed) { return OrthogonalSketch(HadamardRotation(24, seed)); });
  check([](std::uint64_t seed) { return OrthogonalSketch(HaarRotation(24, seed)); });
}

TEST_CASE("wrong arguments are refused by name") {
  const int dim = 64;
  const HadamardRotation rotation(dim, 1);
  const OrthogonalSketch sketch(HadamardRotation(dim, 2));
  using Quantizer = InnerProductQuantizer<HadamardRotation, OrthogonalSketch<HadamardRotation>>;
  for (const int bits : {-1, 0, 1, 9, 100}) {
    CHECK(throws(ErrorCode::invalid_argument, "bits is " + std::to_string(bits),
                 [&] { Quantizer(rotation, bits, sketch); }));
  }
  CHECK(throws(ErrorCode::invalid_argument, "bits is 6",
               [&] { Quantizer(rotation, 6, sketch, {.codebook = CodebookKind::integer_grid}); }));
  CHECK(throws(ErrorCode::shape_mismatch, "sketch.dim() is 32",
               [&] { Quantizer(rotation, 3, OrthogonalSketch(HadamardRotation(32, 2))); }));

  const Quantizer quantizer(rotation, 3, sketch);
  const auto x = gaussian(64 * 4, 69);
  CHECK(throws(ErrorCode::shape_mismatch, "vectors.size() is 65",
               [&] { (void)quantizer.encode(std::span(x.data(), 65)); }));
  auto bad = x;
  bad[64 * 2 + 5] = std::numeric_limits<float>::quiet_NaN();
  CHECK(
      throws(ErrorCode::non_finite, "vectors[2][5] is nan", [&] { (void)quantizer.encode(bad); }));

  const auto encoded = quantizer.encode(x);
  std::vector<float> out(64 * 4, 7.0F);
  std::vector<float> scores(4, 7.0F);
  const auto refuses = [&](const EncodedSketches& wrong, const std::string& part) {
    CHECK(throws(ErrorCode::shape_mismatch, part, [&] { quantizer.decode(wrong, out); }));
    CHECK(throws(ErrorCode::shape_mismatch, part,
                 [&] { quantizer.scores(std::span(x.data(), 64), wrong, scores); }));
  };
  refuses(Quantizer(rotation, 4, sketch).encode(x), "format.bits");
  refuses(Quantizer(HadamardRotation(dim, 5), 3, sketch).encode(x), "rotation_seed");
  refuses(Quantizer(rotation, 3, OrthogonalSketch(HadamardRotation(dim, 77))).encode(x),
          "encoded.sketch.seed is 77, expected ");
  const auto seed = sketch.seed();
  refuses(InnerProductQuantizer(rotation, 3, OrthogonalSketch(HaarRotation(dim, seed))).encode(x),
          "encoded.sketch.kind is 3, expected 2");
  refuses(InnerProductQuantizer(rotation, 3, GaussianSketch(dim, seed)).encode(x),
          "encoded.sketch.kind is 1, expected 2");
  refuses(Quantizer(rotation, 3, sketch, {.codebook = CodebookKind::integer_grid}).encode(x),
          "format.kind");
  refuses(Quantizer(rotation, 3, sketch, {.metadata = MetadataType::float32}).encode(x), "scales");
  auto wrong = encoded;
  wrong.residual_scales = MetadataArray(MetadataType::float32, 4);
  refuses(wrong, "residual_scales");
  wrong = encoded;
  wrong.residual_scales = MetadataArray(MetadataType::float16, 3);
  refuses(wrong, "residual scales");
  wrong = encoded;
  wrong.signs.pop_back();
  refuses(wrong, "bytes of signs");
  wrong = encoded;
  wrong.signs.push_back(0);
  refuses(wrong, "bytes of signs");
  wrong = encoded;
  wrong.mse.codes.pop_back();
  refuses(wrong, "bytes of codes");
  CHECK(throws(ErrorCode::shape_mismatch, "expected 4 * 64",
               [&] { quantizer.decode(encoded, std::span(out.data(), 64 * 3)); }));
  CHECK(throws(ErrorCode::shape_mismatch, "scores.size() is 3", [&] {
    quantizer.scores(std::span(x.data(), 64), encoded, std::span(scores.data(), 3));
  }));
  CHECK(throws(ErrorCode::shape_mismatch, "query.size() is 63",
               [&] { quantizer.scores(std::span(x.data(), 63), encoded, scores); }));
  CHECK(throws(ErrorCode::non_finite, "query", [&] {
    quantizer.scores(std::span<const float>(bad.data() + 128, 64), encoded, scores);
  }));
  CHECK(out == std::vector<float>(64 * 4, 7.0F));
  CHECK(scores == std::vector<float>(4, 7.0F));
}
