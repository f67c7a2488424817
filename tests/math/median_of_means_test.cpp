// The robust mean of vectors: its value, outliers, and what may not matter.

#include <turboquant/base/random.hpp>
#include <turboquant/math/median_of_means.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

using turboquant::float16;

namespace {

std::vector<float> mean_of(const std::vector<float>& vectors, std::size_t dim) {
  std::vector<float> sums(turboquant::mean_groups * dim);
  const std::size_t count = vectors.size() / dim;
  for (std::size_t i = 0; i < count; ++i) {
    turboquant::add_to_group(i, dim, vectors.data() + i * dim, sums.data());
  }
  std::vector<float> mean(dim);
  turboquant::median_of_means(count, dim, sums.data(),
                              [&](std::size_t d, float16 number) { mean[d] = number.to_float(); });
  return mean;
}

}  // namespace

TEST_CASE("vectors that are alike have that mean, any number of them and of dimensions") {
  for (const std::size_t dim : {1U, 3U, 7U, 8U, 13U, 16U, 67U}) {
    for (std::size_t count = 1; count <= 70; ++count) {
      std::vector<float> vectors(count * dim);
      for (std::size_t i = 0; i < vectors.size(); ++i) {
        vectors[i] = static_cast<float>(i % dim) - 2.5F;
      }
      const std::vector<float> mean = mean_of(vectors, dim);
      for (std::size_t d = 0; d < dim; ++d) {
        CHECK(mean[d] == static_cast<float>(d) - 2.5F);
      }
    }
  }
  CHECK(mean_of({}, 9) == std::vector<float>(9, 0.0F));
}

TEST_CASE("one and two vectors, a median of groups, and no negative zero") {
  CHECK(mean_of({3.0F}, 1)[0] == 3.0F);
  CHECK(mean_of({3.0F, 4.0F}, 1)[0] == 3.5F);
  CHECK(mean_of({3.0F, 100.0F, 4.0F}, 1)[0] == 4.0F);
  // Groups {1, 9}, {2}, ..., {8}: means 5, 2, 3, 4, 5, 6, 7, 8.
  CHECK(mean_of({1, 2, 3, 4, 5, 6, 7, 8, 9}, 1)[0] == 5.0F);
  CHECK(!std::signbit(mean_of({-0.0F, -0.0F}, 1)[0]));
  CHECK(!std::signbit(mean_of({-1e-30F}, 1)[0]));
}

TEST_CASE("vectors of three groups may be anything") {
  std::vector<float> vectors(64, 2.0F);
  for (const std::size_t i : {0U, 8U, 17U, 63U}) {
    vectors[i] = i % 2 == 0 ? 3e38F : -3e38F;
  }
  CHECK(mean_of(vectors, 1)[0] == 2.0F);
  const float most = (std::numeric_limits<float>::max)();
  CHECK(mean_of(std::vector<float>(64, most), 1)[0] == 65504.0F);
  CHECK(mean_of(std::vector<float>(64, -most), 1)[0] == -65504.0F);
  for (std::size_t i = 0; i < 64; ++i) {
    vectors[i] = i % 2 == 0 ? most : -most;
  }
  CHECK(mean_of(vectors, 1)[0] == 0.0F);
  CHECK(std::isfinite(mean_of({std::numeric_limits<float>::quiet_NaN()}, 1)[0]));
}

TEST_CASE("its variance over normal vectors is about 1.4 times that of the mean") {
  constexpr std::size_t dim = 4096;
  const turboquant::CounterRng rng(5, 0);
  std::vector<float> vectors(64 * dim);
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    const double radius = std::sqrt(-2 * std::log(rng.uniform(2 * i)));
    vectors[i] = static_cast<float>(radius * std::cos(6.283185307179586 * rng.uniform(2 * i + 1)));
  }
  double squared = 0;
  for (const float x : mean_of(vectors, dim)) {
    squared += static_cast<double>(x) * static_cast<double>(x);
  }
  CHECK(64 * squared / dim == doctest::Approx(1.4).epsilon(0.1));
}
