#include <turboquant/math/exact_functions.hpp>
#include <turboquant/math/gaussian_sketch.hpp>
#include <turboquant/math/haar_rotation.hpp>
#include <turboquant/math/hadamard_rotation.hpp>
#include <turboquant/math/lloyd_max.hpp>
#include <turboquant/math/orthogonal_sketch.hpp>

#include <support/error_of.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

using namespace turboquant;  // NOLINT(google-build-using-namespace)

namespace {

std::vector<float> unit_vector(int dim, std::uint64_t stream) {
  const CounterRng rng(41, stream);
  std::vector<double> x(static_cast<std::size_t>(dim));
  double squared = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = normal(rng, i);
    squared += x[i] * x[i];
  }
  std::vector<float> unit(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    unit[i] = static_cast<float>(x[i] / std::sqrt(squared));
  }
  return unit;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += double{a[i]} * double{b[i]};
  }
  return sum;
}

/// `<q, factor |r| S^T sign(S r)>` for a unit vector r.
template <class Sketch>
double estimate(const Sketch& sketch, const std::vector<float>& r, const std::vector<float>& q) {
  std::vector<float> signs(r.size());
  std::vector<float> back(r.size());
  sketch.apply(r, signs);
  for (float& sign : signs) {
    sign = sign < 0.0F ? -1.0F : 1.0F;
  }
  sketch.apply_transpose(signs, back);
  return sketch.factor() * dot(q, back);
}

struct MeanAndVariance {
  double mean = 0;
  double variance = 0;
};

template <class Make>
MeanAndVariance over_sketches(int count, const std::vector<float>& r, const std::vector<float>& q,
                              Make make) {
  double sum = 0;
  double squares = 0;
  for (int seed = 0; seed < count; ++seed) {
    const double value = estimate(make(static_cast<std::uint64_t>(seed)), r, q);
    sum += value / count;
    squares += value * value / count;
  }
  return {sum, squares - sum * sum};
}

/// q with the component `cosine` along the unit vector r.
std::vector<float> at_angle(const std::vector<float>& r, double cosine, std::uint64_t stream) {
  std::vector<float> other = unit_vector(static_cast<int>(r.size()), stream);
  const double along = dot(other, r);
  double squared = 0;
  for (std::size_t i = 0; i < r.size(); ++i) {
    other[i] = static_cast<float>(double{other[i]} - along * double{r[i]});
    squared += double{other[i]} * double{other[i]};
  }
  for (std::size_t i = 0; i < r.size(); ++i) {
    other[i] = static_cast<float>(cosine * double{r[i]} +
                                  std::sqrt((1 - cosine * cosine) / squared) * double{other[i]});
  }
  return other;
}

}  // namespace

TEST_CASE(
    "the Gaussian sketch is unbiased over S with the variance ((pi/2) |q|^2 - <q,r>^2) / dim") {
  constexpr int count = 3000;
  for (const int dim : {8, 20}) {
    const auto r = unit_vector(dim, 1);
    const auto q = at_angle(r, 0.5, 2);
    const auto result =
        over_sketches(count, r, q, [&](std::uint64_t seed) { return GaussianSketch(dim, seed); });
    const double variance = (1.57079632679489662 - 0.25) / dim;
    CHECK(std::fabs(result.mean - 0.5) < 4 * std::sqrt(variance / count));
    CHECK(result.variance == doctest::Approx(variance).epsilon(0.12));
  }
}

TEST_CASE("the entries of S are independent standard normals") {
  constexpr int dim = 200;
  const GaussianSketch sketch(dim, 3);
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  for (std::size_t j = 0; j < dim; ++j) {
    std::vector<float> unit(dim, 0.0F);
    std::vector<float> column(dim);
    unit[j] = 1.0F;
    sketch.apply(unit, column);
    for (const float entry : column) {
      const double square = double{entry} * double{entry};
      sum += double{entry};
      squares += square;
      fourth += square * square;
    }
  }
  constexpr double count = double{dim} * dim;
  CHECK(std::fabs(sum / count) < 5 / std::sqrt(count));
  CHECK(std::fabs(squares / count - 1) < 5 * std::sqrt(2 / count));
  CHECK(std::fabs(fourth / count - 3) < 5 * std::sqrt(96 / count));
}

TEST_CASE("apply_transpose is the transpose of apply, and in place works") {
  for (const int dim : {3, 17, 64}) {
    const GaussianSketch sketch(dim, 8);
    const auto x = unit_vector(dim, 5);
    const auto y = unit_vector(dim, 6);
    std::vector<float> sx(x.size());
    std::vector<float> sty(x.size());
    sketch.apply(x, sx);
    sketch.apply_transpose(y, sty);
    CHECK(dot(sx, y) == doctest::Approx(dot(x, sty)).epsilon(1e-4).scale(1));
    std::vector<float> in_place = x;
    sketch.apply(in_place, in_place);
    CHECK(in_place == sx);
    in_place = y;
    sketch.apply_transpose(in_place, in_place);
    CHECK(in_place == sty);
  }
}

TEST_CASE(
    "an orthogonal sketch with its exact factor is unbiased, with the Gaussian constant it is "
    "not") {
  constexpr int count = 4000;
  const auto check = [&](int dim, const MeanAndVariance& result, double factor) {
    const double tolerance = 5 * std::sqrt(result.variance / count);
    const double gaussian_excess = std::sqrt(1.57079632679489662 / dim) / factor - 1;
    CAPTURE(dim);
    CHECK(tolerance < gaussian_excess / 1.4);
    CHECK(std::fabs(result.mean - 1) < tolerance);
  };
  const auto haar = [](std::uint64_t seed) {
    return OrthogonalSketch<HaarRotation>(HaarRotation(16, seed));
  };
  const auto r16 = unit_vector(16, 1);
  check(16, over_sketches(count, r16, r16, haar), haar(0).factor());
  const auto hadamard = [](std::uint64_t seed) {
    return OrthogonalSketch<HadamardRotation>(HadamardRotation(64, seed));
  };
  const auto r64 = unit_vector(64, 1);
  check(64, over_sketches(count, r64, r64, hadamard), hadamard(0).factor());
}

TEST_CASE("the Gaussian constant is too large by the published amount") {
  const int dims[] = {16, 64, 128};
  const double excess[] = {1.01574, 1.00391, 1.00196};
  for (int i = 0; i < 3; ++i) {
    const int dim = dims[i];
    const OrthogonalSketch<HadamardRotation> sketch(HadamardRotation(dim, 0));
    CHECK(std::sqrt(1.57079632679489662 / dim) / sketch.factor() ==
          doctest::Approx(excess[i]).epsilon(1e-5));
    CHECK(sketch.factor() * dim * mean_absolute_coordinate(dim) ==
          doctest::Approx(1.0).epsilon(1e-14));
  }
}

TEST_CASE("an orthogonal sketch has 2.75 times less variance of inner products") {
  constexpr int dim = 20;
  const auto r = unit_vector(dim, 1);
  const auto q = at_angle(r, 0.0, 2);
  const auto orthogonal = over_sketches(4000, r, q, [&](std::uint64_t seed) {
    return OrthogonalSketch<HadamardRotation>(HadamardRotation(dim, seed));
  });
  const auto gaussian =
      over_sketches(3000, r, q, [&](std::uint64_t seed) { return GaussianSketch(dim, seed); });
  CHECK(std::fabs(orthogonal.mean) < 5 * std::sqrt(orthogonal.variance / 4000));
  CHECK(gaussian.variance / orthogonal.variance == doctest::Approx(2.75).epsilon(0.15));
}

TEST_CASE("an orthogonal sketch applies its rotation") {
  const HadamardRotation rotation(48, 3);
  const OrthogonalSketch<HadamardRotation> sketch(rotation);
  const auto x = unit_vector(48, 7);
  std::vector<float> expected(48);
  std::vector<float> out(48);
  CHECK(sketch.dim() == 48);
  rotation.apply(x, expected);
  sketch.apply(x, out);
  CHECK(out == expected);
  rotation.apply_inverse(x, expected);
  sketch.apply_transpose(x, out);
  CHECK(out == expected);
}

TEST_CASE_TEMPLATE("a sketch that has been moved from is as it was", Sketch, GaussianSketch,
                   OrthogonalSketch<HadamardRotation>, OrthogonalSketch<HaarRotation>) {
  const auto make = [](std::uint64_t seed) {
    if constexpr (std::is_same_v<Sketch, GaussianSketch>) {
      return Sketch(24, seed);
    } else if constexpr (std::is_same_v<Sketch, OrthogonalSketch<HaarRotation>>) {
      return Sketch(HaarRotation(24, seed));
    } else {
      return Sketch(HadamardRotation(24, seed));
    }
  };
  const auto x = unit_vector(24, 5);
  const auto applied = [&](const Sketch& sketch) {
    std::vector<float> out(2 * x.size());
    sketch.apply(x, {out.data(), x.size()});
    sketch.apply_transpose(x, {out.data() + x.size(), x.size()});
    return out;
  };
  Sketch one = make(1);
  const auto expected = applied(one);
  Sketch other(std::move(one));
  CHECK(applied(one) == expected);
  CHECK(applied(other) == expected);
  other = make(2);
  other = std::move(one);
  CHECK(applied(one) == expected);
  CHECK(applied(other) == expected);
  CHECK(one.dim() == 24);
  CHECK(one.seed() == 1);
  CHECK(one.factor() == other.factor());
}

TEST_CASE("dimensions and sizes outside the domain are refused, the output untouched") {
  for (const int dim :
       {2, 0, -5, 4097, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()}) {
    const auto message =
        test::error_of(ErrorCode::invalid_argument, [&] { (void)GaussianSketch(dim, 0); });
    CHECK(test::mentions(message, "expected 3 to 4096"));
  }
  const GaussianSketch sketch(8, 0);
  CHECK(sketch.dim() == 8);
  const std::vector<float> in(7, 1.0F);
  std::vector<float> out(8, 7.0F);
  test::error_of(ErrorCode::shape_mismatch, [&] { sketch.apply(in, out); });
  test::error_of(ErrorCode::shape_mismatch, [&] { sketch.apply_transpose(in, out); });
  CHECK(out == std::vector<float>(8, 7.0F));
}
