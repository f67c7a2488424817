#include <turboquant/math/integer_grid.hpp>
#include <turboquant/math/lloyd_max.hpp>

#include <support/error_of.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>

using namespace turboquant;  // NOLINT(google-build-using-namespace)

namespace {

/// Distortion of the Lloyd-Max codebook of a standard normal number, 1 to 4 bits (Max 1960; here
/// from a separate double-precision solver).
constexpr double gaussian_optimum[] = {0.3633802276324187, 0.11748184782932929, 0.03454776078850373,
                                       0.009501008008191886};

/// E[(z - Q(z))^2] of a standard normal z with the error function, in closed form.
double gaussian_distortion(const Codebook<double>& codebook) {
  const auto density = [](double x) {
    return std::exp(-x * x / 2) / std::sqrt(2 * 3.14159265358979323846);
  };
  const auto upper_tail = [](double x) { return std::erfc(x / std::sqrt(2.0)) / 2; };
  const std::size_t half = codebook.levels() / 2;
  double sum = 0;
  for (std::size_t i = half; i < codebook.levels(); ++i) {
    const double low = codebook.boundaries()[i - 1];
    const double c = codebook.centroids()[i];
    const bool last = i + 1 == codebook.levels();
    const double high = last ? 0 : codebook.boundaries()[i];
    const double mass = upper_tail(low) - (last ? 0 : upper_tail(high));
    const double first = density(low) - (last ? 0 : density(high));
    const double second = mass + low * density(low) - (last ? 0 : high * density(high));
    sum += second - 2 * c * first + c * c * mass;
  }
  return 2 * sum;
}

}  // namespace

static_assert(std::is_trivially_copyable_v<IntegerGrid>);
static_assert(integer_grid(3).level(0) == -62 && integer_grid(3).level(7) == 62);

TEST_CASE("the excess over the Gaussian optimum is the documented one") {
  const double documented[] = {0.0, 0.0000005, 0.00039, 0.00055};
  const double rounding[] = {1e-9, 0.0000001, 0.00001, 0.00001};
  for (int bits = 1; bits <= 4; ++bits) {
    const double excess =
        gaussian_distortion(grid_codebook(integer_grid(bits))) / gaussian_optimum[bits - 1] - 1;
    CAPTURE(bits);
    CAPTURE(excess);
    CHECK(excess > -1e-9);
    CHECK(std::fabs(excess - documented[bits - 1]) < rounding[bits - 1]);
  }
}

TEST_CASE("the step is the best one for its levels") {
  for (int bits = 1; bits <= 4; ++bits) {
    IntegerGrid grid = integer_grid(bits);
    const double best = gaussian_distortion(grid_codebook(grid));
    const double step = grid.step;
    for (const double change : {0.999, 1.001}) {
      grid.step = step * change;
      CHECK(gaussian_distortion(grid_codebook(grid)) > best);
    }
  }
}

TEST_CASE("the grid loses as little at the dimensions of attention heads") {
  for (const int dim : {64, 128, 256}) {
    for (int bits = 1; bits <= 4; ++bits) {
      const auto& optimum = lloyd_max(dim, bits);
      const auto grid = grid_codebook(integer_grid(bits));
      const double root = std::sqrt(static_cast<double>(dim));
      for (std::size_t i = grid.levels() / 2; i < grid.levels(); ++i) {
        CHECK(grid.centroids()[i] ==
              doctest::Approx(optimum.codebook.centroids()[i] * root).epsilon(0.04));
      }
    }
  }
}

TEST_CASE(
    "levels ascend, mirror each other, fit int8 and are the codebook's centroids over the step") {
  for (int bits = 1; bits <= 4; ++bits) {
    const IntegerGrid grid = integer_grid(bits);
    const auto codebook = grid_codebook(grid);
    REQUIRE(grid.bits == bits);
    REQUIRE(codebook.bits() == bits);
    const auto levels = static_cast<unsigned>(codebook.levels());
    for (unsigned code = 0; code < levels; ++code) {
      CHECK(grid.level(code) == -grid.level(levels - 1 - code));
      CHECK(grid.level(code) >= -128);
      CHECK(grid.level(code) <= 127);
      CHECK(codebook.centroids()[code] == grid.level(code) * grid.step);
      if (code > 0) {
        CHECK(grid.level(code) > grid.level(code - 1));
      }
    }
    for (std::size_t i = levels / 2; i < grid.positive_levels.size(); ++i) {
      CHECK(grid.positive_levels[i] == 0);
    }
  }
}

TEST_CASE("two products of offset 3-bit levels and int8 queries never leave 16 bits") {
  const IntegerGrid grid = integer_grid(3);
  for (unsigned a = 0; a < 8; ++a) {
    for (unsigned b = 0; b < 8; ++b) {
      const int first = grid.level(a) - grid.level(0);
      const int second = grid.level(b) - grid.level(0);
      CHECK(first < 128);
      for (const int query1 : {-128, 127}) {
        for (const int query2 : {-128, 127}) {
          const int sum = first * query1 + second * query2;
          CHECK(sum >= std::numeric_limits<std::int16_t>::min());
          CHECK(sum <= std::numeric_limits<std::int16_t>::max());
        }
      }
    }
  }
}

TEST_CASE("other widths have no grid") {
  for (const int bits :
       {0, -1, 5, 8, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()}) {
    const auto message =
        test::error_of(ErrorCode::invalid_argument, [&] { (void)integer_grid(bits); });
    CHECK(test::mentions(message, "expected 1 to 4"));
  }
}
