#include <turboquant/base/random.hpp>
#include <turboquant/math/ordered_sum.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

using namespace turboquant;  // NOLINT(google-build-using-namespace)

namespace {

std::vector<float> random_floats(std::size_t count, std::uint64_t stream) {
  const CounterRng rng(21, stream);
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) {
    x[i] = static_cast<float>(std::ldexp(rng.uniform(i) - 0.5, static_cast<int>(i % 40)));
  }
  return x;
}

}  // namespace

TEST_CASE("the sum is the documented tree over 16 interleaved lanes, bit by bit") {
  for (std::size_t count = 0; count <= 130; ++count) {
    const auto a = random_floats(count, 1);
    const auto b = random_floats(count, 2);
    std::array<double, 16> lane{};
    for (std::size_t i = 0; i < count; ++i) {
      lane[i % 16] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    }
    for (std::size_t half = 8; half > 0; half /= 2) {
      for (std::size_t l = 0; l < half; ++l) {
        lane[l] = lane[l] + lane[l + half];
      }
    }
    REQUIRE(ordered_dot(a.data(), b.data(), count) == lane[0]);
  }
}

TEST_CASE("appending zeros changes no bit") {
  auto a = random_floats(77, 3);
  auto b = random_floats(77, 4);
  const double sum = ordered_dot(a.data(), b.data(), a.size());
  a.resize(400, 0.0F);
  b.resize(400, 5.0F);
  CHECK(ordered_dot(a.data(), b.data(), a.size()) == sum);
}

TEST_CASE("squares of the largest and smallest floats neither overflow nor vanish") {
  const std::vector<float> large(100, 3e38F);
  CHECK(std::sqrt(ordered_dot(large.data(), large.data(), 100)) ==
        doctest::Approx(3e39).epsilon(1e-6));
  const std::vector<float> small(100, 1e-45F);
  CHECK(ordered_dot(small.data(), small.data(), 100) > 0);
  CHECK(ordered_dot(small.data(), small.data(), 0) == 0);
}
