#include <turboquant/math/haar_rotation.hpp>
#include <turboquant/quant/mse_quantizer.hpp>

#include <doctest/doctest.h>

#include "quant/support.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using namespace turboquant;
using namespace turboquant::test;

namespace {

/// Mean of |x - decoded|^2 / |x|^2 over Gaussian vectors, `MetadataType::float32` so that only
/// codes err.
template <class Rotation>
double relative_error(const Rotation& rotation, int bits, MseQuantizerOptions options,
                      std::span<const float> x) {
  options.metadata = MetadataType::float32;
  const MseQuantizer quantizer(rotation, bits, options);
  const auto d = static_cast<std::size_t>(rotation.dim());
  const std::vector<float> decoded = decode(quantizer, quantizer.encode(x), x.size());
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); i += d) {
    sum += squared_distance(x.subspan(i, d), {decoded.data() + i, d}) /
           dot(x.subspan(i, d), x.subspan(i, d));
  }
  return sum / static_cast<double>(x.size() / d);
}

/// Vectors after which 1 % is 3.3 standard deviations of the mean.
std::size_t vectors_for_one_percent(const Distortion& row) {
  const double ratio = row.plain_sd / row.plain;
  return static_cast<std::size_t>(std::ceil(std::pow(3.3 * ratio / 0.01, 2)));
}

}  // namespace

TEST_CASE("plain scale: distortion of every dimension and width within 1 % of the exact integral") {
  const auto rows = distortion_table();
  REQUIRE(rows.size() == 40);
  int dim = 0;
  std::vector<float> x;
  for (const Distortion& row : rows) {
    const auto d = static_cast<std::size_t>(row.dim);
    if (row.dim != dim) {
      dim = row.dim;
      std::size_t most = 0;
      for (const Distortion& other : rows) {
        most = std::max(most, other.dim == dim ? vectors_for_one_percent(other) : 0);
      }
      x = gaussian(most * d, static_cast<std::uint64_t>(dim));
    }
    const std::span<const float> part(x.data(), vectors_for_one_percent(row) * d);
    const double error =
        relative_error(HadamardRotation(dim, 5), row.bits, {.scale_rule = ScaleRule::plain}, part);
    CAPTURE(dim);
    CAPTURE(row.bits);
    CHECK(error == doctest::Approx(row.plain).epsilon(0.01));
  }
}

TEST_CASE("plain scale: head dimensions outside the table have the distortion of their codebook") {
  for (const int dim : {16, 100, 112, 120, 160, 192, 576}) {
    const auto x = gaussian(static_cast<std::size_t>(dim) * (dim < 100 ? 40000 : 4000), 77);
    for (const int bits : {1, 2, 3, 4}) {
      const double exact = lloyd_max(dim, bits).mse_per_coordinate * dim;
      CAPTURE(dim);
      CAPTURE(bits);
      CHECK(relative_error(HadamardRotation(dim, 9), bits, {.scale_rule = ScaleRule::plain}, x) ==
            doctest::Approx(exact).epsilon(0.015));
    }
  }
}

TEST_CASE("Haar rotation: the same distortion as the structured rotation") {
  for (const int dim : {80, 128}) {
    const auto x = gaussian(static_cast<std::size_t>(dim) * 6000, 78);
    for (const int bits : {2, 3}) {
      const double error =
          relative_error(HaarRotation(dim, 3), bits, {.scale_rule = ScaleRule::plain}, x);
      CHECK(error == doctest::Approx(distortion(dim, bits).plain).epsilon(0.01));
    }
  }
}

TEST_CASE("scale rules: each has its own error, least squares the smallest") {
  for (const int dim : {64, 128}) {
    const auto x = gaussian(static_cast<std::size_t>(dim) * 12000, 79);
    for (const int bits : {1, 2, 3, 4}) {
      const Distortion row = distortion(dim, bits);
      const HadamardRotation rotation(dim, 2);
      const auto error = [&](ScaleRule rule) {
        return relative_error(rotation, bits, {.scale_rule = rule}, x);
      };
      const double least_squares = error(ScaleRule::least_squares);
      CAPTURE(dim);
      CAPTURE(bits);
      CHECK(least_squares == doctest::Approx(row.least_squares).epsilon(0.01));
      CHECK(error(ScaleRule::unit) == doctest::Approx(row.unit).epsilon(0.01));
      CHECK(error(ScaleRule::unbiased) == doctest::Approx(row.unbiased).epsilon(0.01));
      for (const ScaleRule rule : {ScaleRule::plain, ScaleRule::unit, ScaleRule::unbiased}) {
        CHECK(least_squares < error(rule));
      }
    }
  }
}

TEST_CASE("scale rules: what each promises holds vector by vector") {
  const int dim = 96;
  const auto d = static_cast<std::size_t>(dim);
  const auto x = gaussian(d * 50, 80);
  for (const ScaleRule rule :
       {ScaleRule::plain, ScaleRule::unit, ScaleRule::least_squares, ScaleRule::unbiased}) {
    const MseQuantizer quantizer(HadamardRotation(dim, 4), 2,
                                 {.scale_rule = rule, .metadata = MetadataType::float32});
    const auto encoded = quantizer.encode(x);
    const auto decoded = decode(quantizer, encoded, x.size());
    for (std::size_t i = 0; i < 50; ++i) {
      const std::span<const float> v(x.data() + i * d, d);
      const std::span<const float> w(decoded.data() + i * d, d);
      switch (rule) {
        case ScaleRule::plain:
          CHECK(encoded.scales[i] == doctest::Approx(std::sqrt(dot(v, v) / dim)).epsilon(1e-6));
          break;
        case ScaleRule::unit: CHECK(dot(w, w) == doctest::Approx(dot(v, v)).epsilon(1e-5)); break;
        case ScaleRule::least_squares:
          CHECK(dot(v, w) == doctest::Approx(dot(w, w)).epsilon(1e-5));
          break;
        case ScaleRule::unbiased:
          CHECK(dot(v, w) == doctest::Approx(dot(v, v)).epsilon(1e-5));
          break;
      }
    }
  }
}

TEST_CASE(
    "integer grid: excess error below the documented figures plus the effect of a finite "
    "dimension") {
  // The grid is the optimum of the normal law; at 128 coordinates the coordinate's law is a little
  // narrower.
  const auto x = gaussian(std::size_t{128} * 12000, 81);
  for (const int bits : {1, 2, 3, 4}) {
    const HadamardRotation rotation(128, 6);
    const double exact =
        relative_error(rotation, bits, {.scale_rule = ScaleRule::least_squares}, x);
    const double grid = relative_error(
        rotation, bits,
        {.scale_rule = ScaleRule::least_squares, .codebook = CodebookKind::integer_grid}, x);
    CAPTURE(bits);
    CHECK(std::abs(grid / exact - 1) < 0.004);
  }
}

TEST_CASE("scale search: gains on Gaussian vectors, and never loses on one") {
  const auto x = gaussian(std::size_t{128} * 4000, 82);
  const HadamardRotation rotation(128, 7);
  const auto gain_in_db = [&](int bits, int candidates) {
    const auto error = [&](int n) {
      return relative_error(rotation, bits,
                            {.scale_rule = ScaleRule::least_squares, .scale_candidates = n}, x);
    };
    return 10 * std::log10(error(1) / error(candidates));
  };
  CHECK(gain_in_db(2, 3) == doctest::Approx(0.03).epsilon(0.2));
  CHECK(gain_in_db(3, 3) == doctest::Approx(0.18).epsilon(0.1));
  CHECK(gain_in_db(4, 3) == doctest::Approx(0.44).epsilon(0.1));
  CHECK(gain_in_db(2, 5) == doctest::Approx(0.034).epsilon(0.2));
  CHECK(gain_in_db(3, 5) == doctest::Approx(0.225).epsilon(0.1));
  CHECK(gain_in_db(4, 5) == doctest::Approx(0.59).epsilon(0.1));
  for (const int candidates : {2, 3, 4, 5, 9}) {
    const MseQuantizerOptions one{.scale_rule = ScaleRule::least_squares,
                                  .metadata = MetadataType::float32};
    MseQuantizerOptions several = one;
    several.scale_candidates = candidates;
    const MseQuantizer plain(rotation, 3, one);
    const MseQuantizer searching(rotation, 3, several);
    const std::span<const float> part(x.data(), 128 * 200);
    const auto from_one = decode(plain, plain.encode(part), part.size());
    const auto from_several = decode(searching, searching.encode(part), part.size());
    CHECK(plain.encode(part).bytes() == searching.encode(part).bytes());
    for (std::size_t i = 0; i < part.size(); i += 128) {
      CHECK(squared_distance(part.subspan(i, 128), {from_several.data() + i, 128}) <=
            squared_distance(part.subspan(i, 128), {from_one.data() + i, 128}) * 1.00001);
    }
    CHECK(decode(plain, searching.encode(part), part.size()) == from_several);
  }
}

TEST_CASE("scale search: more candidates never err by more, whatever rule, width and dimension") {
  constexpr std::array kinds{CodebookKind::exact, CodebookKind::integer_grid};
  for (const int dim : {3, 16, 100, 128}) {
    const auto d = static_cast<std::size_t>(dim);
    auto x = gaussian(d * 40, 87);
    x[0] = 30;                                  // an outlier
    std::fill_n(x.begin() + dim, d, 0.25F);     // structured
    std::fill_n(x.begin() + 2 * dim, d, 0.0F);  // zero
    const auto tiny = times_power_of_two({x.data(), d}, -130);
    std::copy(tiny.begin(), tiny.end(), x.begin() + 3 * dim);
    const HadamardRotation rotation(dim, 7);
    for (const ScaleRule rule :
         {ScaleRule::plain, ScaleRule::unit, ScaleRule::least_squares, ScaleRule::unbiased}) {
      for (const CodebookKind codebook : kinds) {
        for (int bits = 1; bits <= (codebook == CodebookKind::exact ? 8 : 4); ++bits) {
          std::vector<double> least(40, std::numeric_limits<double>::infinity());
          double first = 0;
          double last = 0;
          for (int candidates = 1; candidates <= 9; ++candidates) {
            const MseQuantizer quantizer(rotation, bits,
                                         {.scale_rule = rule,
                                          .codebook = codebook,
                                          .metadata = MetadataType::float32,
                                          .scale_candidates = candidates});
            const auto decoded = decode(quantizer, quantizer.encode(x), x.size());
            double total = 0;
            bool shrinks = true;
            for (std::size_t i = 0; i < 40; ++i) {
              const std::span<const float> v(x.data() + i * d, d);
              const double error = squared_distance(v, {decoded.data() + i * d, d});
              // Beside the search's own rounding, a rotation in float and its inverse.
              shrinks = shrinks && error <= least[i] * 1.0001 + 1e-12 * dot(v, v);
              least[i] = (std::min)(least[i], error);
              total += error / (std::max)(dot(v, v), 1e-300);
            }
            CAPTURE(dim);
            CAPTURE(static_cast<int>(rule));
            CAPTURE(bits);
            CAPTURE(candidates);
            CHECK(shrinks);
            first = candidates == 1 ? total : first;
            last = total;
          }
          // One bit has no magnitudes that a stretch could move.
          CHECK((bits == 1 || last < first));
        }
      }
    }
  }
}

TEST_CASE("scale search: the rule still gives the scale") {
  const auto x = gaussian(std::size_t{64} * 100, 83);
  const MseQuantizer quantizer(HadamardRotation(64, 7), 3,
                               {.metadata = MetadataType::float32, .scale_candidates = 5});
  const auto decoded = decode(quantizer, quantizer.encode(x), x.size());
  for (std::size_t i = 0; i < x.size(); i += 64) {
    const std::span<const float> v(x.data() + i, 64);
    CHECK(dot(v, {decoded.data() + i, 64}) == doctest::Approx(dot(v, v)).epsilon(1e-5));
  }
}

TEST_CASE("every code of every width occurs, as often as its cell is probable") {
  const int dim = 128;
  const auto x = gaussian(std::size_t{128} * 1500, 84);
  for (int bits = 1; bits <= 8; ++bits) {
    const MseQuantizer quantizer(HadamardRotation(dim, 8), bits);
    const auto encoded = quantizer.encode(x);
    const std::size_t levels = std::size_t{1} << static_cast<unsigned>(bits);
    std::vector<double> seen(levels, 0.0);
    for (std::size_t row = 0; row < encoded.count; ++row) {
      for (std::size_t i = 0; i < 128; ++i) {
        seen[read_code(encoded.row(row), i, bits)] += 1;
      }
    }
    // Cell probabilities under the density of a coordinate of a unit vector, by the midpoint rule.
    std::vector<double> mass(levels, 0.0);
    double total = 0;
    constexpr int steps = 400000;
    for (int i = 0; i < steps; ++i) {
      const double u = (2 * (i + 0.5) / steps - 1) * 0.7;
      const double density = std::pow(1 - u * u, (dim - 3) / 2.0);
      mass[quantizer.levels().encode(
          static_cast<float>(u * std::sqrt(static_cast<double>(dim))))] += density;
      total += density;
    }
    const double samples = static_cast<double>(x.size());
    for (std::size_t code = 0; code < levels; ++code) {
      const double p = mass[code] / total;
      CAPTURE(bits);
      CAPTURE(code);
      CHECK(seen[code] > 0);
      CHECK(std::abs(seen[code] - samples * p) <
            5 * std::sqrt(samples * p * (1 - p)) + samples * p * 2e-3);
    }
  }
}
