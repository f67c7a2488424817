#pragma once

#include <turboquant/math/cell_search.hpp>
#include <turboquant/math/exact_functions.hpp>
#include <turboquant/math/gaussian_sketch.hpp>
#include <turboquant/math/haar_rotation.hpp>
#include <turboquant/math/hadamard_rotation.hpp>
#include <turboquant/math/integer_grid.hpp>
#include <turboquant/math/lloyd_max.hpp>
#include <turboquant/math/ordered_sum.hpp>
#include <turboquant/math/quadrature.hpp>

#include <support/fnv.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

/// @file
/// Hashes of every bit of what the library promises to be "the same always". The test programs that
/// include this file are compiled with different flags, and the whole suite with different
/// compilers: all must find the numbers below, which one of them printed. A change here changes
/// stored caches.

namespace turboquant::test {

/// Numbers in (-1, 1) of one seed, exact in every build.
inline std::vector<float> same_floats(std::size_t count, std::uint64_t stream) {
  const CounterRng rng(2026, stream);
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) {
    x[i] = static_cast<float>(static_cast<std::int32_t>(rng.bits32(i)) >> 8) * 0x1p-23F;
  }
  return x;
}

inline std::uint64_t hash_of_random() {
  Fnv hash;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const CounterRng rng(i * i, i);
    hash.add_value(rng.bits64(i));
    hash.add_value(rng.uniform(i));
    hash.add_value(normal(rng, i));
    hash.add_value(exact_log(rng.uniform(i + 1)));
    const SinCos both = exact_sincospi(2 * rng.uniform(i + 2));
    hash.add_value(both.sin);
    hash.add_value(both.cos);
  }
  return hash.value();
}

inline std::uint64_t hash_of_codebooks() {
  Fnv hash;
  hash.add(std::span<const double>(detail::gauss_legendre16().nodes));
  hash.add(std::span<const double>(detail::gauss_legendre16().weights));
  for (const int dim : {3, 4, 16, 80, 128, 576, 2048}) {
    for (int bits = 1; bits <= 8; ++bits) {
      const LloydMaxCodebook solved = solve_lloyd_max(dim, bits);
      hash.add(solved.codebook.centroids());
      hash.add(solved.codebook.boundaries());
      hash.add_value(solved.mse_per_coordinate);
      hash.add(solved.codebook.scaled<float>(3.0).centroids());
    }
  }
  for (int bits = 1; bits <= 4; ++bits) {
    hash.add(grid_codebook(integer_grid(bits)).centroids());
  }
  return hash.value();
}

inline std::uint64_t hash_of_haar_rotations() {
  Fnv hash;
  for (const int dim : {3, 16, 80, 129}) {
    const HaarRotation rotation(dim, 7);
    const auto size = static_cast<std::size_t>(rotation.matrix().size());
    hash.add(std::span<const float>(rotation.matrix().data(), size));
  }
  return hash.value();
}

inline std::uint64_t hash_of_gaussian_sketch() {
  constexpr std::size_t dim = 80;
  const GaussianSketch sketch(dim, 7);
  Fnv hash;
  for (std::size_t i = 0; i < dim; ++i) {  // one nonzero input: the product is a column, exactly
    std::vector<float> unit(dim, 0.0F);
    std::vector<float> column(dim);
    unit[i] = 1.0F;
    sketch.apply(unit, column);
    hash.add(std::span<const float>(column));
  }
  return hash.value();
}

inline std::uint64_t hash_of_hadamard_rotations() {
  Fnv hash;
  for (const int dim :
       {3, 4, 7, 8, 16, 33, 64, 80, 96, 112, 120, 128, 160, 192, 256, 320, 512, 576, 1024}) {
    const HadamardRotation rotation(dim, 7);
    const auto x = same_floats(static_cast<std::size_t>(dim), 1);
    std::vector<float> y(x.size());
    rotation.apply(x, y);
    hash.add(std::span<const float>(y));
    rotation.apply_inverse(x, y);
    hash.add(std::span<const float>(y));
  }
  return hash.value();
}

inline std::uint64_t hash_of_sums_and_codes() {
  Fnv hash;
  for (const std::size_t count : {std::size_t{5}, std::size_t{80}, std::size_t{131}}) {
    const auto x = same_floats(count, 2);
    const auto y = same_floats(count, 3);
    hash.add_value(ordered_dot(x.data(), y.data(), count));
    for (int bits = 1; bits <= 8; ++bits) {
      const auto codebook = solve_lloyd_max(80, bits).codebook.scaled<float>(8.0);
      std::vector<std::uint8_t> codes(count);
      detail::encode_cells(codebook, x.data(), 2.7F, count, codes.data());
      hash.add(std::span<const std::uint8_t>(codes));
    }
  }
  return hash.value();
}

}  // namespace turboquant::test

TEST_CASE("the same bits under every compiler and flag") {
  using namespace turboquant::test;  // NOLINT(google-build-using-namespace)
  CHECK(hash_of_random() == 0xDB7C1395E4D826DEU);
  CHECK(hash_of_codebooks() == 0xFDE5B2FDDC3534E7U);
  CHECK(hash_of_haar_rotations() == 0xABB907CE938A7283U);
  CHECK(hash_of_gaussian_sketch() == 0xA42B74ABA79BF5BCU);
  CHECK(hash_of_hadamard_rotations() == 0xB745AAAF35E085A5U);
  CHECK(hash_of_sums_and_codes() == 0xE1EFA4F81F7DC275U);
}
