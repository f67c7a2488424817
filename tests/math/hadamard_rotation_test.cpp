#include <turboquant/base/random.hpp>
#include <turboquant/math/hadamard_rotation.hpp>

#include <support/error_of.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <set>
#include <thread>
#include <utility>
#include <vector>

using namespace turboquant;  // NOLINT(google-build-using-namespace)

namespace {

std::vector<float> random_vector(int dim, std::uint64_t stream) {
  const CounterRng rng(31, stream);
  std::vector<float> x(static_cast<std::size_t>(dim));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(2 * rng.uniform(i) - 1);
  }
  return x;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += double{a[i]} * double{b[i]};
  }
  return sum;
}

std::vector<float> applied(const HadamardRotation& rotation, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  rotation.apply(x, y);
  return y;
}

std::vector<float> inverted(const HadamardRotation& rotation, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  rotation.apply_inverse(x, y);
  return y;
}

/// Images of the unit vectors number 0, stride, 2 stride, ...
std::vector<std::vector<float>> columns(const HadamardRotation& rotation, std::size_t stride) {
  std::vector<std::vector<float>> all;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rotation.dim()); i += stride) {
    std::vector<float> unit(static_cast<std::size_t>(rotation.dim()), 0.0F);
    unit[i] = 1.0F;
    all.push_back(applied(rotation, unit));
  }
  return all;
}

double worst_gram_error(const std::vector<std::vector<float>>& vectors) {
  double worst = 0;
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      worst = std::max(worst, std::fabs(dot(vectors[i], vectors[j]) - (i == j ? 1.0 : 0.0)));
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("the transform is orthogonal to 1e-6 for every dimension from 3 to 130") {
  for (int dim = 3; dim <= 130; ++dim) {
    CAPTURE(dim);
    CHECK(worst_gram_error(columns(HadamardRotation(dim, 1000U + static_cast<unsigned>(dim)), 1)) <
          1e-6);
  }
}

TEST_CASE("the transform is orthogonal to 1e-6 for large heads and latents") {
  for (const int dim : {160, 192, 224, 256, 320, 384, 511, 512, 513, 576, 1024, 2000}) {
    CAPTURE(dim);
    const auto stride = static_cast<std::size_t>(1 + dim / 100);
    CHECK(worst_gram_error(columns(HadamardRotation(dim, 5), stride)) < 1e-6);
  }
}

TEST_CASE("small dimensions stay orthogonal for many seeds") {
  for (int dim = 3; dim <= 9; ++dim) {
    double worst = 0;
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
      worst = std::max(worst, worst_gram_error(columns(HadamardRotation(dim, seed), 1)));
    }
    CAPTURE(dim);
    CHECK(worst < 1e-6);
  }
}

TEST_CASE("apply_inverse undoes apply, and apply undoes apply_inverse") {
  for (int dim = 3; dim <= 1100; dim += 1 + dim / 20) {
    const HadamardRotation rotation(dim, 17);
    const auto x = random_vector(dim, 1);
    const auto back = inverted(rotation, applied(rotation, x));
    const auto forth = applied(rotation, inverted(rotation, x));
    const double length = std::sqrt(dot(x, x));
    for (std::size_t i = 0; i < x.size(); ++i) {
      REQUIRE(std::fabs(double{back[i]} - double{x[i]}) < 1e-6 * length);
      REQUIRE(std::fabs(double{forth[i]} - double{x[i]}) < 1e-6 * length);
    }
  }
}

TEST_CASE("apply_inverse is the transpose: <R x, y> = <x, R^T y>") {
  for (const int dim :
       {3, 4, 5, 8, 16, 32, 33, 40, 64, 80, 96, 112, 120, 128, 160, 192, 256, 576}) {
    const HadamardRotation rotation(dim, 23);
    const auto x = random_vector(dim, 2);
    const auto y = random_vector(dim, 3);
    CAPTURE(dim);
    CHECK(dot(applied(rotation, x), y) ==
          doctest::Approx(dot(x, inverted(rotation, y))).epsilon(1e-4).scale(1));
    CHECK(dot(applied(rotation, x), applied(rotation, x)) ==
          doctest::Approx(dot(x, x)).epsilon(2e-6));
  }
}

TEST_CASE("input and output may be the same array: same bits as apart") {
  for (const int dim : {3, 4, 8, 16, 33, 64, 80, 96, 128, 192, 256, 576, 1024}) {
    const HadamardRotation rotation(dim, 8);
    const auto x = random_vector(dim, 4);
    std::vector<float> in_place = x;
    rotation.apply(in_place, in_place);
    CHECK(in_place == applied(rotation, x));
    in_place = x;
    rotation.apply_inverse(in_place, in_place);
    CHECK(in_place == inverted(rotation, x));
  }
}

TEST_CASE("the transform is linear, exactly so for signs and powers of two") {
  for (const int dim : {3, 8, 33, 64, 80, 96, 128, 192, 256, 576}) {
    const HadamardRotation rotation(dim, 6);
    const auto x = random_vector(dim, 5);
    const auto y = random_vector(dim, 6);
    std::vector<float> scaled(x.size());
    std::vector<float> sum(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      scaled[i] = -1024.0F * x[i];
      sum[i] = x[i] + y[i];
    }
    const auto rx = applied(rotation, x);
    const auto ry = applied(rotation, y);
    const auto rscaled = applied(rotation, scaled);
    const auto rsum = applied(rotation, sum);
    for (std::size_t i = 0; i < x.size(); ++i) {
      REQUIRE(rscaled[i] == -1024.0F * rx[i]);
      REQUIRE(std::fabs(double{rsum[i]} - double{rx[i]} - double{ry[i]}) < 1e-5 * std::sqrt(dim));
    }
    const std::vector<float> zero(x.size(), 0.0F);
    CHECK(applied(rotation, zero) == zero);
    CHECK(inverted(rotation, zero) == zero);
  }
}

TEST_CASE("the transform depends on dim and seed alone, in any thread") {
  const auto x = random_vector(96, 7);
  const auto expected = applied(HadamardRotation(96, 11), x);
  CHECK(applied(HadamardRotation(96, 12), x) != expected);
  const HadamardRotation shared(96, 11);
  std::vector<std::vector<float>> made(16);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < made.size(); ++t) {
    threads.emplace_back([&, t] {
      made[t] = t % 2 == 0 ? applied(shared, x) : applied(HadamardRotation(96, 11), x);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto& result : made) {
    CHECK(result == expected);
  }
}

TEST_CASE("different seeds give different transforms") {
  std::set<std::vector<float>> images;
  std::vector<float> unit(64, 0.0F);
  unit[0] = 1.0F;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    images.insert(applied(HadamardRotation(64, seed), unit));
  }
  CHECK(images.size() == 200);
}

TEST_CASE("signs are +1 or -1 in equal shares, permutations are permutations") {
  for (const int dim : {3, 8, 32, 48, 64, 96, 128, 256, 576}) {
    const HadamardRotation rotation(dim, 2);
    const auto d = static_cast<std::size_t>(dim);
    const auto rounds = static_cast<std::size_t>(rotation.rounds());
    CHECK(rotation.dim() == dim);
    CHECK(rotation.seed() == 2);
    REQUIRE(rotation.signs().size() == rounds * d);
    int negative = 0;
    for (const float sign : rotation.signs()) {
      REQUIRE(std::fabs(sign) == 1.0F);
      negative += sign < 0 ? 1 : 0;
    }
    const double half = static_cast<double>(rounds * d) / 2;
    CHECK(std::fabs(negative - half) < 5 * std::sqrt(half / 2));
    if (std::has_single_bit(d) && dim >= 64) {
      CHECK(rotation.permutations().empty());
      continue;
    }
    REQUIRE(rotation.permutations().size() == rounds * d);
    std::vector<std::uint32_t> identity(d);
    std::iota(identity.begin(), identity.end(), 0U);
    for (std::size_t round = 0; round < rounds; ++round) {
      const auto permutation = rotation.permutations().subspan(round * d, d);
      std::vector<std::uint32_t> sorted(permutation.begin(), permutation.end());
      std::sort(sorted.begin(), sorted.end());
      CHECK(sorted == identity);
    }
  }
}

TEST_CASE("the number of rounds is three for attention heads, two for powers of two from 256 on") {
  for (const int dim : {40, 48, 64, 80, 96, 112, 120, 128, 160, 192, 320, 576}) {
    CHECK(HadamardRotation(dim, 0).rounds() == 3);
  }
  for (const int dim : {256, 512, 1024}) {
    CHECK(HadamardRotation(dim, 0).rounds() == 2);
  }
}

TEST_CASE("a rotation that has been moved from is as it was") {
  for (const int dim : {20, 64, 100}) {
    const auto x = random_vector(dim, 9);
    const auto applied = [&](const HadamardRotation& rotation) {
      std::vector<float> out(2 * x.size());
      rotation.apply(x, {out.data(), x.size()});
      rotation.apply_inverse(x, {out.data() + x.size(), x.size()});
      return out;
    };
    HadamardRotation one(dim, 4);
    const auto expected = applied(one);
    HadamardRotation other(std::move(one));
    CHECK(applied(one) == expected);
    CHECK(applied(other) == expected);
    other = HadamardRotation(8, 5);
    other = std::move(one);
    CHECK(applied(one) == expected);
    CHECK(applied(other) == expected);
    CHECK(one.seed() == 4);
  }
}

TEST_CASE("dimensions outside 3 to 65536 are refused") {
  for (const int dim :
       {2, 1, 0, -1, 65537, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()}) {
    const auto message =
        test::error_of(ErrorCode::invalid_argument, [&] { (void)HadamardRotation(dim, 0); });
    CHECK(test::mentions(message, "expected 3 to 65536"));
  }
  CHECK(HadamardRotation(65536, 0).dim() == 65536);
  CHECK(HadamardRotation(65535, 0).dim() == 65535);
}

TEST_CASE("wrong sizes are refused and leave the output alone") {
  for (const int dim : {24, 64}) {
    const HadamardRotation rotation(dim, 0);
    const auto d = static_cast<std::size_t>(dim);
    for (const std::size_t in_size : {std::size_t{0}, d - 1, d, d + 1}) {
      for (const std::size_t out_size : {std::size_t{0}, d - 1, d, 2 * d}) {
        if (in_size == d && out_size == d) {
          continue;
        }
        const std::vector<float> in(in_size, 1.0F);
        std::vector<float> out(out_size, 7.0F);
        test::error_of(ErrorCode::shape_mismatch, [&] { rotation.apply(in, out); });
        test::error_of(ErrorCode::shape_mismatch, [&] { rotation.apply_inverse(in, out); });
        CHECK(out == std::vector<float>(out_size, 7.0F));
      }
    }
  }
}
