#include <turboquant/math/haar_rotation.hpp>

#include <support/error_of.hpp>

#include <Eigen/Core>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

using namespace turboquant;  // NOLINT(google-build-using-namespace)

namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Matrix matrix_of(int dim, std::uint64_t seed) {
  return HaarRotation(dim, seed).matrix().cast<double>();
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix sum = Matrix::Zero(a.rows(), b.cols());
  for (Eigen::Index i = 0; i < a.rows(); ++i) {
    for (Eigen::Index k = 0; k < a.cols(); ++k) {
      for (Eigen::Index j = 0; j < b.cols(); ++j) {
        sum(i, j) += a(i, k) * b(k, j);
      }
    }
  }
  return sum;
}

/// By Gaussian elimination; the pivots of an orthogonal matrix that is not special are not small.
double determinant_of(Matrix a) {
  double determinant = 1;
  for (Eigen::Index k = 0; k < a.rows(); ++k) {
    for (Eigen::Index i = k + 1; i < a.rows(); ++i) {
      const double factor = a(i, k) / a(k, k);
      for (Eigen::Index j = k; j < a.cols(); ++j) {
        a(i, j) -= factor * a(k, j);
      }
    }
    determinant *= a(k, k);
  }
  return determinant;
}

double distance_from_identity(const Matrix& gram) {
  return (gram - Matrix::Identity(gram.rows(), gram.cols())).cwiseAbs().maxCoeff();
}

Matrix gaussian(int dim, std::uint64_t seed, std::uint64_t stream) {
  const std::vector<double> entries = detail::gaussian_matrix(dim, seed, stream);
  return Eigen::Map<const Matrix>(entries.data(), dim, dim);
}

std::vector<float> ramp(int dim) {
  std::vector<float> x(static_cast<std::size_t>(dim));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = 0.25F * static_cast<float>(i) - 3.0F;
  }
  return x;
}

}  // namespace

TEST_CASE("the matrix is orthogonal to 1e-6") {
  for (const int dim : {3, 4, 5, 6, 7, 8, 13, 16, 33, 64, 80, 96, 112, 120, 128, 129, 192}) {
    for (const std::uint64_t seed : {0ULL, 1ULL, ~0ULL}) {
      const Matrix q = matrix_of(dim, seed);
      CAPTURE(dim);
      CHECK(distance_from_identity(product(q.transpose(), q)) < 1e-6);
      CHECK(distance_from_identity(product(q, q.transpose())) < 1e-6);
    }
  }
}

TEST_CASE("it is the Q of the QR factorisation whose R has a positive diagonal") {
  constexpr std::uint64_t stream = 0x48616172;
  for (const int dim : {3, 5, 16, 64, 96}) {
    const Matrix r = product(matrix_of(dim, 9).transpose(), gaussian(dim, 9, stream));
    for (int i = 0; i < dim; ++i) {
      CHECK(r(i, i) > 0);
      for (int j = 0; j < i; ++j) {
        REQUIRE(std::fabs(r(i, j)) < 1e-5);
      }
    }
  }
}

TEST_CASE("two passes of Gram-Schmidt reach double precision even for nearly dependent columns") {
  constexpr std::size_t n = 24;
  std::vector<double> a = detail::gaussian_matrix(n, 5, 6);
  for (std::size_t i = 0; i < n; ++i) {
    a[i * n + 1] = a[i * n] + 1e-6 * a[i * n + 1];
  }
  detail::orthonormalise_columns(a, n);
  detail::orthonormalise_columns(a, n);
  const Eigen::Map<const Matrix> q(a.data(), n, n);
  CHECK(distance_from_identity(product(q.transpose(), q)) < 1e-14);
}

TEST_CASE("reflections and rotations both occur, equally often") {
  int negative = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const double determinant = determinant_of(matrix_of(5, seed));
    REQUIRE(std::fabs(std::fabs(determinant) - 1) < 1e-5);
    negative += determinant < 0 ? 1 : 0;
  }
  CHECK(std::abs(negative - 200) < 50);
}

TEST_CASE("each column and row is uniform on the sphere: moments of its entries") {
  constexpr int dim = 6;
  constexpr int count = 4000;
  Matrix mean = Matrix::Zero(dim, dim);
  Matrix second = Matrix::Zero(dim, dim);
  Matrix fourth = Matrix::Zero(dim, dim);
  double trace = 0;
  double trace_squared = 0;
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    const Matrix q = matrix_of(dim, seed);
    mean += q / count;
    second += q.cwiseAbs2() / count;
    fourth += q.cwiseAbs2().cwiseAbs2() / count;
    trace += q.trace() / count;
    trace_squared += q.trace() * q.trace() / count;
  }
  // One coordinate of a uniform unit vector: E x^2 = 1/d, E x^4 = 3/(d(d+2)), E x^8 =
  // 105/(d(d+2)(d+4)(d+6)).
  const double e2 = 1.0 / dim;
  const double e4 = 3.0 / (dim * (dim + 2.0));
  const double e8 = 105.0 / (dim * (dim + 2.0) * (dim + 4.0) * (dim + 6.0));
  const double root = std::sqrt(static_cast<double>(count));
  CHECK(mean.cwiseAbs().maxCoeff() < 5 * std::sqrt(e2) / root);
  CHECK((second.array() - e2).abs().maxCoeff() < 5 * std::sqrt(e4 - e2 * e2) / root);
  CHECK((fourth.array() - e4).abs().maxCoeff() < 5 * std::sqrt(e8 - e4 * e4) / root);
  // Haar on the orthogonal group: E tr = 0, E tr^2 = 1. A factorisation without the sign rule fails
  // here.
  CHECK(std::fabs(trace) < 5 / root);
  CHECK(std::fabs(trace_squared - 1) < 5 * std::sqrt(2.0) / root);
}

TEST_CASE("apply multiplies by the matrix and apply_inverse by its transpose, also in place") {
  for (const int dim : {3, 16, 80, 129}) {
    const HaarRotation rotation(dim, 4);
    CHECK(rotation.dim() == dim);
    CHECK(rotation.seed() == 4);
    const std::vector<float> x = ramp(dim);
    const auto size = x.size();
    const Eigen::VectorXf input = Eigen::Map<const Eigen::VectorXf>(x.data(), dim);
    const Matrix column = input.cast<double>();
    const Matrix matrix = rotation.matrix().cast<double>();
    const Matrix forward = product(matrix, column);
    const Matrix backward = product(matrix.transpose(), column);
    std::vector<float> y(size);
    rotation.apply(x, y);
    std::vector<float> z(size);
    rotation.apply_inverse(x, z);
    std::vector<float> in_place = x;
    rotation.apply(in_place, in_place);
    CHECK(in_place == y);
    rotation.apply_inverse(in_place, in_place);
    const auto length = static_cast<double>(input.norm());
    for (std::size_t i = 0; i < size; ++i) {
      const auto row = static_cast<Eigen::Index>(i);
      REQUIRE(std::fabs(double{y[i]} - forward(row, 0)) < 1e-6 * length);
      REQUIRE(std::fabs(double{z[i]} - backward(row, 0)) < 1e-6 * length);
      REQUIRE(std::fabs(double{in_place[i]} - double{x[i]}) < 2e-6 * length);
    }
  }
}

TEST_CASE("the matrix depends on dim and seed alone, in any thread") {
  const Matrix expected = matrix_of(40, 123);
  CHECK(matrix_of(40, 124) != expected);
  CHECK(matrix_of(41, 123).topLeftCorner(40, 40) != expected);
  std::vector<Matrix> made(8);
  std::vector<std::thread> threads;
  for (Matrix& matrix : made) {
    threads.emplace_back([&matrix] { matrix = matrix_of(40, 123); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const Matrix& matrix : made) {
    CHECK(matrix == expected);
  }
}

TEST_CASE("a rotation that has been moved from is as it was") {
  HaarRotation one(20, 4);
  const HaarRotation::Matrix expected = one.matrix();
  HaarRotation other(std::move(one));
  CHECK(one.matrix() == expected);
  CHECK(other.matrix() == expected);
  other = HaarRotation(8, 5);
  other = std::move(one);
  CHECK(one.matrix() == expected);
  CHECK(other.matrix() == expected);
  CHECK(one.dim() == 20);
  CHECK(one.seed() == 4);
}

TEST_CASE("dimensions outside 3 to 4096 are refused") {
  for (const int dim :
       {2, 1, 0, -1, 4097, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()}) {
    const auto message =
        test::error_of(ErrorCode::invalid_argument, [&] { (void)HaarRotation(dim, 0); });
    CHECK(test::mentions(message, "expected 3 to 4096"));
  }
}

TEST_CASE("wrong sizes are refused and leave the output alone") {
  const HaarRotation rotation(8, 0);
  for (const std::size_t in_size :
       {std::size_t{0}, std::size_t{7}, std::size_t{8}, std::size_t{9}}) {
    for (const std::size_t out_size :
         {std::size_t{0}, std::size_t{7}, std::size_t{8}, std::size_t{16}}) {
      if (in_size == 8 && out_size == 8) {
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
