#include <turboquant/math/codebook.hpp>

#include <support/error_of.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

using namespace turboquant;  // NOLINT(google-build-using-namespace)
using test::error_of;
using test::mentions;

namespace {

template <class Real>
Codebook<Real> from(const std::vector<Real>& positive) {
  return Codebook<Real>(std::span<const Real>(positive));
}

}  // namespace

static_assert(!std::is_default_constructible_v<Codebook<float>>);
static_assert(!std::is_convertible_v<std::span<const float>, Codebook<float>>);

TEST_CASE_TEMPLATE("the negative half mirrors the positive one bit by bit", Real, float, double) {
  for (std::size_t half = 1; half <= 128; half *= 2) {
    std::vector<Real> positive;
    for (std::size_t i = 0; i < half; ++i) {
      positive.push_back(static_cast<Real>(std::sqrt(static_cast<double>(i) + 0.3)));
    }
    const auto codebook = from(positive);
    const auto centroids = codebook.centroids();
    const auto boundaries = codebook.boundaries();
    REQUIRE(codebook.levels() == 2 * half);
    REQUIRE((std::size_t{1} << static_cast<unsigned>(codebook.bits())) == codebook.levels());
    REQUIRE(centroids.size() == codebook.levels());
    REQUIRE(boundaries.size() == codebook.levels() - 1);
    for (std::size_t i = 0; i < codebook.levels(); ++i) {
      CHECK(centroids[i] == -centroids[codebook.levels() - 1 - i]);
      if (i > 0) {
        CHECK(centroids[i] > centroids[i - 1]);
        CHECK(boundaries[i - 1] == (centroids[i - 1] + centroids[i]) / 2);
        CHECK(boundaries[i - 1] == -boundaries[codebook.levels() - 1 - i]);
      }
    }
    CHECK(boundaries[half - 1] == Real{0});
    CHECK(!std::signbit(boundaries[half - 1]));
  }
}

TEST_CASE_TEMPLATE(
    "a value belongs to the cell of its nearest centroid, the upper one on a boundary", Real, float,
    double) {
  const auto codebook = from<Real>({1, 2, 4, 8, 9, 12, 13, 20});
  const Real infinity = std::numeric_limits<Real>::infinity();
  for (std::size_t i = 0; i < codebook.levels(); ++i) {
    CHECK(codebook.encode(codebook.centroids()[i]) == i);
  }
  for (std::size_t i = 0; i + 1 < codebook.levels(); ++i) {
    const Real boundary = codebook.boundaries()[i];
    CHECK(codebook.encode(boundary) == i + 1);
    CHECK(codebook.encode(std::nextafter(boundary, -infinity)) == i);
    CHECK(codebook.encode(std::nextafter(boundary, infinity)) == i + 1);
  }
  CHECK(codebook.encode(Real{0}) == 8);
  CHECK(codebook.encode(-Real{0}) == 8);
  CHECK(codebook.encode(infinity) == 15);
  CHECK(codebook.encode(-infinity) == 0);
  CHECK(codebook.encode(std::numeric_limits<Real>::quiet_NaN()) == 0);
}

TEST_CASE("codes of opposite values mirror each other off the boundaries") {
  const auto codebook = from<float>({0.3F, 0.9F, 1.7F, 2.9F});
  for (float x = -4.0F; x < 4.0F; x += 0.0137F) {
    CHECK(codebook.encode(-x) == 7 - codebook.encode(x));
  }
}

TEST_CASE("the largest codebook uses every code of a byte") {
  std::vector<float> positive(128);
  for (std::size_t i = 0; i < 128; ++i) {
    positive[i] = static_cast<float>(i) + 0.5F;
  }
  const auto codebook = from(positive);
  CHECK(codebook.bits() == 8);
  for (int i = 0; i < 256; ++i) {
    CHECK(codebook.encode(static_cast<float>(i) - 127.6F) == i);
  }
}

TEST_CASE("scaling multiplies centroids, converts the type and keeps codes") {
  const auto codebook = from<double>({0.5, 1.25, 2.0, 3.5});
  const auto scaled = codebook.scaled<float>(4.0);
  static_assert(std::is_same_v<decltype(scaled), const Codebook<float>>);
  CHECK(scaled.bits() == codebook.bits());
  for (std::size_t i = 0; i < codebook.levels(); ++i) {
    CHECK(double{scaled.centroids()[i]} == 4 * codebook.centroids()[i]);
  }
  for (double x = -5; x < 5; x += 0.11) {
    CHECK(scaled.encode(static_cast<float>(4 * x)) == codebook.encode(x));
  }
}

TEST_CASE("a codebook that has been moved from is as it was") {
  auto one = from<float>({1, 2, 4, 8});
  const std::vector<float> centroids(one.centroids().begin(), one.centroids().end());
  auto other = std::move(one);
  CHECK(std::vector<float>(one.centroids().begin(), one.centroids().end()) == centroids);
  CHECK(one.levels() == 8);
  CHECK(one.encode(3) == other.encode(3));
  other = from<float>({5});
  other = std::move(one);
  CHECK(std::vector<float>(other.centroids().begin(), other.centroids().end()) == centroids);
  CHECK(one.scaled(2).centroids()[7] == 16);
}

TEST_CASE("sizes that are no power of two up to 128 are refused") {
  for (const std::size_t size : {0U, 3U, 5U, 6U, 7U, 12U, 127U, 129U, 256U}) {
    std::vector<double> positive(size);
    for (std::size_t i = 0; i < size; ++i) {
      positive[i] = static_cast<double>(i + 1);
    }
    CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)from(positive); }),
                   "positive.size() is"));
  }
}

TEST_CASE_TEMPLATE("centroids that are not ascending, positive and finite are refused by name",
                   Real, float, double) {
  const Real infinity = std::numeric_limits<Real>::infinity();
  const Real nan = std::numeric_limits<Real>::quiet_NaN();
  const Real largest = std::numeric_limits<Real>::max();
  for (const Real bad :
       {Real{0}, -Real{0}, -Real{1}, Real{1}, Real{0.5}, nan, -nan, infinity, -infinity, largest}) {
    CHECK(mentions(error_of(ErrorCode::invalid_argument,
                            [&] {
                              (void)from<Real>({1, bad});
                            }),
                   "positive[1]"));
  }
  for (const Real bad : {Real{0}, -Real{1}, nan, infinity}) {
    CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)from<Real>({bad}); }),
                   "positive[0]"));
  }
  const auto extreme = from<Real>({largest / 4, largest / 2});
  CHECK(std::isfinite(extreme.boundaries()[2]));
  CHECK(extreme.boundaries()[2] > extreme.centroids()[2]);
}

TEST_CASE("factors that break the order are refused") {
  const auto codebook = from<double>({0.5, 1.25});
  for (const double factor : {0.0, -1.0, 1e-300, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    error_of(ErrorCode::invalid_argument, [&] { (void)codebook.scaled<float>(factor); });
  }
}
