#include <turboquant/math/lloyd_max.hpp>

#include <support/error_of.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <string>

using namespace turboquant;  // NOLINT(google-build-using-namespace)
using test::error_of;
using test::mentions;

namespace {

using Wide = long double;

/// Moments of cos^(dim-2)(angle), the density of the angle whose sine is one coordinate of a unit
/// vector, by the double-exponential rule: another variable, another rule and another precision
/// than the solver's.
struct Moments {
  Wide mass = 0;
  Wide first = 0;
  Wide squared = 0;
};

Moments integrate(int dim, double lower, double upper, double center) {
  const Wide from = std::asin(Wide{lower});
  const Wide to = std::min(upper >= 1 ? std::acos(Wide{0}) : std::asin(Wide{upper}),
                           from + 16 / std::sqrt(static_cast<Wide>(dim)));
  const Wide half = (to - from) / 2;
  constexpr Wide half_pi = 1.570796326794896619231321691639751442L;
  constexpr Wide step = 1.0L / 16;
  Moments sum;
  for (int k = -56; k <= 56; ++k) {
    const Wide u = half_pi * std::sinh(k * step);
    const Wide cosh = std::cosh(u);
    const Wide weight = half * half_pi * std::cosh(k * step) / (cosh * cosh) * step;
    const Wide angle = from + half * (1 + std::tanh(u));
    const Wide density =
        weight * std::pow(std::max(std::cos(angle), Wide{0}), static_cast<Wide>(dim - 2));
    const Wide x = std::sin(angle);
    sum.mass += density;
    sum.first += density * x;
    sum.squared += density * (x - center) * (x - center);
  }
  return sum;
}

double cell_end(const Codebook<double>& codebook, std::size_t i) {
  return i + 1 == codebook.levels() ? 1.0 : codebook.boundaries()[i];
}

}  // namespace

TEST_CASE("both Lloyd conditions and the distortion hold under an independent quadrature") {
  for (const int dim : {3, 4, 5, 6, 7, 8, 11, 16, 33, 64, 100, 128, 129, 255, 576, 1024, 2048}) {
    for (int bits = 1; bits <= 8; bits += dim % 2 + 1) {
      const LloydMaxCodebook solved = solve_lloyd_max(dim, bits);
      const auto& codebook = solved.codebook;
      const std::size_t half = codebook.levels() / 2;
      const std::size_t stride = bits <= 5 ? 1 : half / 16 - 1;
      double worst = 0;
      Wide mass = 0;
      Wide squared = 0;
      for (std::size_t i = half; i < codebook.levels(); ++i) {
        if (bits > 5 && (i - half) % stride != 0 && i + 1 != codebook.levels()) {
          continue;
        }
        const double center = codebook.centroids()[i];
        const Moments cell =
            integrate(dim, codebook.boundaries()[i - 1], cell_end(codebook, i), center);
        worst =
            std::max(worst, static_cast<double>(std::fabs(cell.first / cell.mass / center - 1)));
        mass += cell.mass;
        squared += cell.squared;
      }
      CAPTURE(dim);
      CAPTURE(bits);
      CHECK(worst < 1e-13);
      for (std::size_t i = 1; i < codebook.levels(); ++i) {
        REQUIRE(codebook.boundaries()[i - 1] ==
                (codebook.centroids()[i - 1] + codebook.centroids()[i]) / 2);
      }
      if (bits <= 5) {
        CHECK(std::fabs(solved.mse_per_coordinate / static_cast<double>(squared / mass) - 1) <
              1e-12);
      }
    }
  }
}

TEST_CASE(
    "every codebook is symmetric bit by bit, ascending, inside the unit interval, with 0 in the "
    "middle") {
  for (int dim = 3; dim <= 2048; dim += dim < 40 ? 1 : dim / 7) {
    for (int bits = 1; bits <= 8; ++bits) {
      const LloydMaxCodebook solved = solve_lloyd_max(dim, bits);
      const auto centroids = solved.codebook.centroids();
      const auto boundaries = solved.codebook.boundaries();
      const std::size_t levels = std::size_t{1} << static_cast<unsigned>(bits);
      REQUIRE(solved.dim == dim);
      REQUIRE(solved.codebook.bits() == bits);
      REQUIRE(centroids.size() == levels);
      REQUIRE(boundaries[levels / 2 - 1] == 0.0);
      REQUIRE(!std::signbit(boundaries[levels / 2 - 1]));
      for (std::size_t i = 0; i < levels; ++i) {
        REQUIRE(centroids[i] == -centroids[levels - 1 - i]);
        REQUIRE((i == 0 || centroids[i] > centroids[i - 1]));
      }
      REQUIRE(centroids[levels - 1] < 1.0);
    }
  }
}

TEST_CASE("one dimension of a unit vector in R^3 is uniform: evenly spaced centroids") {
  for (int bits = 1; bits <= 8; ++bits) {
    const LloydMaxCodebook solved = solve_lloyd_max(3, bits);
    const std::size_t half = solved.codebook.levels() / 2;
    const double spacing = 1.0 / static_cast<double>(half);
    for (std::size_t i = 0; i < half; ++i) {
      const double expected = (static_cast<double>(i) + 0.5) * spacing;
      CHECK(std::fabs(solved.codebook.centroids()[half + i] - expected) < 1e-12);
    }
    CHECK(solved.mse_per_coordinate == doctest::Approx(spacing * spacing / 12).epsilon(1e-12));
  }
}

TEST_CASE(
    "the 1-bit centroid is the mean absolute coordinate Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2))") {
  CHECK(mean_absolute_coordinate(3) == doctest::Approx(0.5).epsilon(1e-14));
  CHECK(mean_absolute_coordinate(4) == doctest::Approx(0.4244131816).epsilon(1e-10));
  CHECK(mean_absolute_coordinate(64) == doctest::Approx(0.1001259082).epsilon(1e-9));
  CHECK(mean_absolute_coordinate(128) == doctest::Approx(0.0706615727).epsilon(1e-9));
  constexpr double root_pi = 1.7724538509055160273;
  for (int dim = 3; dim <= 4096; dim += 1 + dim / 5) {
    const double expected =
        std::exp(std::lgamma(dim / 2.0) - std::lgamma((dim + 1) / 2.0)) / root_pi;
    CHECK(mean_absolute_coordinate(dim) == doctest::Approx(expected).epsilon(1e-11));
    const double mse = lloyd_max(dim, 1).mse_per_coordinate;
    CHECK(mse == doctest::Approx(1.0 / dim - expected * expected).epsilon(1e-10));
  }
}

TEST_CASE("known distortions of 128 dimensions") {
  const double expected[] = {0.3608885937, 0.1160000703, 0.0339659258, 0.0093147880};
  for (int bits = 1; bits <= 4; ++bits) {
    CHECK(std::fabs(128 * lloyd_max(128, bits).mse_per_coordinate - expected[bits - 1]) < 1e-9);
  }
}

TEST_CASE("more bits always distort less, and large dimensions approach the Gaussian codebook") {
  for (const int dim : {3, 17, 128, 2048}) {
    for (int bits = 2; bits <= 8; ++bits) {
      CHECK(lloyd_max(dim, bits).mse_per_coordinate <
            lloyd_max(dim, bits - 1).mse_per_coordinate / 2.5);
    }
  }
  // Max (1960), table of the Gaussian optimum: 2 bits {0.4528, 1.510}, distortion 0.1175.
  const LloydMaxCodebook large = solve_lloyd_max(1 << 20, 2);
  CHECK(large.codebook.centroids()[2] * 1024 == doctest::Approx(0.452780034636).epsilon(1e-5));
  CHECK(large.codebook.centroids()[3] * 1024 == doctest::Approx(1.510417608499).epsilon(1e-5));
  CHECK(large.mse_per_coordinate * (1 << 20) == doctest::Approx(0.117481847829).epsilon(1e-5));
}

TEST_CASE("dimensions and widths without a codebook are refused, also through the cache") {
  for (const int dim : {2, 1, 0, -1, std::numeric_limits<int>::min(), (1 << 20) + 1,
                        std::numeric_limits<int>::max()}) {
    CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)solve_lloyd_max(dim, 3); }),
                   "dim is"));
    error_of(ErrorCode::invalid_argument, [&] { (void)lloyd_max(dim, 3); });
    CHECK(error_of(ErrorCode::invalid_argument, [&] { (void)mean_absolute_coordinate(dim); }) ==
          "mean_absolute_coordinate: dim is " + std::to_string(dim) + ", expected 3 to 1048576");
  }
  for (const int bits :
       {0, -1, 9, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()}) {
    CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)solve_lloyd_max(64, bits); }),
                   "bits is"));
    error_of(ErrorCode::invalid_argument, [&] { (void)lloyd_max(64, bits); });
  }
}
