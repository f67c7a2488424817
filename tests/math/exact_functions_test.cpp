#include <turboquant/math/exact_functions.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

using namespace turboquant;  // NOLINT(google-build-using-namespace)

namespace {

double log_error(double x) {
  const long double exact = std::log(static_cast<long double>(x));
  const long double error = std::fabs(exact_log(x) - exact);
  return static_cast<double>(exact == 0 ? error : error / std::fabs(exact));
}

}  // namespace

TEST_CASE("the logarithm is within 5e-16 of its value, near 1 too") {
  const CounterRng rng(1, 0);
  double worst = 0;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const double u = rng.uniform(2 * i);
    const int exponent = static_cast<int>(rng.below(4 * i + 2, 2000)) - 1000;
    worst = std::fmax(worst, log_error(u));
    worst = std::fmax(worst, log_error(std::ldexp(1 + u, exponent)));
    worst = std::fmax(worst, log_error(1 + (u - 0.5) * 1e-3));
  }
  for (const double x :
       {std::numeric_limits<double>::denorm_min(), std::numeric_limits<double>::min(),
        std::numeric_limits<double>::max(), 0x1p-53, 1 - 0x1p-53, 1 + 0x1p-52, 0.70710678118654746,
        0.70710678118654757, 1.4142135623730949, 1.4142135623730951, 0.5, 2.0}) {
    worst = std::fmax(worst, log_error(x));
  }
  CHECK(worst < 5e-16);
  CHECK(exact_log(1.0) == 0.0);
}

TEST_CASE("sine and cosine are within 4e-16 of their values on the whole circle") {
  constexpr long double pi = 3.141592653589793238462643383279502884L;
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const double t = i / 100000.0;
    const SinCos both = exact_sincospi(t);
    worst = std::fmax(worst, static_cast<double>(std::fabs(both.sin - std::sin(pi * t))));
    worst = std::fmax(worst, static_cast<double>(std::fabs(both.cos - std::cos(pi * t))));
  }
  CHECK(worst < 4e-16);
}

TEST_CASE("quarter turns are exact") {
  CHECK(exact_sincospi(0.0).sin == 0.0);
  CHECK(exact_sincospi(0.0).cos == 1.0);
  CHECK(exact_sincospi(0.5).sin == 1.0);
  CHECK(exact_sincospi(0.5).cos == 0.0);
  CHECK(exact_sincospi(1.0).cos == -1.0);
  CHECK(exact_sincospi(1.0).sin == 0.0);
  CHECK(exact_sincospi(1.5).sin == -1.0);
  const double last = std::nextafter(2.0, 0.0);
  CHECK(exact_sincospi(last).cos == doctest::Approx(1.0));
  CHECK(exact_sincospi(last).sin < 0.0);
}

TEST_CASE("normal numbers have the moments and tails of the standard normal law") {
  const CounterRng rng(3, 4);
  constexpr int count = 200000;
  double moment[5] = {};
  double product = 0;
  int beyond_two = 0;
  double previous = normal(rng, 0);
  for (int i = 1; i <= count; ++i) {
    const double z = normal(rng, static_cast<std::uint64_t>(i));
    double power = 1;
    for (int k = 1; k <= 4; ++k) {
      power *= z;
      moment[k] += power / count;
    }
    beyond_two += std::fabs(z) > 2 ? 1 : 0;
    product += z * previous / count;
    previous = z;
  }
  const double root = std::sqrt(static_cast<double>(count));
  CHECK(std::fabs(moment[1]) < 5 * 1.0 / root);
  CHECK(std::fabs(moment[2] - 1) < 5 * std::sqrt(2.0) / root);
  CHECK(std::fabs(moment[3]) < 5 * std::sqrt(15.0) / root);
  CHECK(std::fabs(moment[4] - 3) < 5 * std::sqrt(96.0) / root);
  CHECK(std::fabs(product) < 5 / root);
  const double tail = std::erfc(std::sqrt(2.0));
  CHECK(std::fabs(static_cast<double>(beyond_two) / count - tail) < 5 * std::sqrt(tail) / root);
}

TEST_CASE("a normal number is a pure function of seed, stream and index") {
  CHECK(normal(CounterRng(1, 2), 77) == normal(CounterRng(1, 2), 77));
  CHECK(normal(CounterRng(1, 2), 77) != normal(CounterRng(1, 2), 78));
  CHECK(normal(CounterRng(1, 2), 77) != normal(CounterRng(1, 3), 77));
  CHECK(normal(CounterRng(1, 2), 77) != normal(CounterRng(2, 2), 77));
}
