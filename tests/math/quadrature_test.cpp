#include <turboquant/math/quadrature.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>

using turboquant::detail::gauss_legendre16;
using turboquant::detail::GaussLegendre16;

TEST_CASE("polynomials up to degree 31 are integrated exactly, degree 32 is not") {
  const GaussLegendre16& rule = gauss_legendre16();
  for (int degree = 0; degree <= 32; ++degree) {
    double sum = 0;
    for (std::size_t i = 0; i < GaussLegendre16::count; ++i) {
      sum += rule.weights[i] * std::pow(rule.nodes[i], degree);
    }
    const double exact = degree % 2 == 0 ? 2.0 / (degree + 1) : 0.0;
    if (degree < 32) {
      CHECK(std::fabs(sum - exact) < 1e-15);
    } else {
      CHECK(std::fabs(sum - exact) > 1e-10);
    }
  }
}

TEST_CASE("nodes ascend inside (-1, 1) and mirror each other, weights are positive") {
  const GaussLegendre16& rule = gauss_legendre16();
  for (std::size_t i = 0; i < GaussLegendre16::count; ++i) {
    CHECK(std::fabs(rule.nodes[i]) < 1);
    CHECK(rule.weights[i] > 0);
    CHECK(rule.nodes[i] == -rule.nodes[GaussLegendre16::count - 1 - i]);
    CHECK(rule.weights[i] == rule.weights[GaussLegendre16::count - 1 - i]);
    if (i > 0) {
      CHECK(rule.nodes[i] > rule.nodes[i - 1]);
    }
  }
}
