#include <turboquant/base/random.hpp>
#include <turboquant/math/hadamard_rotation.hpp>
#include <turboquant/math/hadamard_transform.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <vector>

using namespace turboquant;  // NOLINT(google-build-using-namespace)

namespace {

template <std::size_t Lanes>
void check_against_rotation(int dim) {
  const HadamardRotation rotation(dim, 77);
  const auto d = static_cast<std::size_t>(dim);
  HadamardTransform transform;
  transform.dim = d;
  transform.rounds = static_cast<std::size_t>(rotation.rounds());
  transform.signs = rotation.signs().data();
  transform.source = rotation.permutations().empty() ? nullptr : rotation.permutations().data();
  const CounterRng rng(3, d);
  std::vector<float> input(d * Lanes);
  for (std::size_t i = 0; i < input.size(); ++i) {
    input[i] = static_cast<float>(rng.uniform(i) - 0.5);
  }
  std::vector<float> forward = input;
  std::vector<float> inverse = input;
  std::vector<float> scratch(input.size());
  transform.forward<Lanes>(forward.data(), scratch.data());
  transform.inverse<Lanes>(inverse.data(), scratch.data());
  std::vector<float> vector(d);
  std::vector<float> expected(d);
  for (std::size_t lane = 0; lane < Lanes; ++lane) {
    for (std::size_t i = 0; i < d; ++i) {
      vector[i] = input[i * Lanes + lane];
    }
    rotation.apply(vector, expected);
    for (std::size_t i = 0; i < d; ++i) {
      REQUIRE(forward[i * Lanes + lane] == expected[i]);
    }
    rotation.apply_inverse(vector, expected);
    for (std::size_t i = 0; i < d; ++i) {
      REQUIRE(inverse[i * Lanes + lane] == expected[i]);
    }
  }
}

}  // namespace

static_assert(std::is_trivially_copyable_v<HadamardTransform>);

TEST_CASE("every lane has the bits of HadamardRotation") {
  for (int dim = 3; dim <= 1024; dim += dim < 140 ? 1 : dim / 9) {
    CAPTURE(dim);
    check_against_rotation<1>(dim);
    check_against_rotation<5>(dim);
  }
  for (const int dim : {160, 192, 256, 320, 512, 576, 1024}) {
    check_against_rotation<16>(dim);
  }
}

TEST_CASE("blocks are powers of two that sum to the dimension, uneven for powers of two") {
  for (std::size_t dim = 3; dim < 700; ++dim) {
    std::size_t rest = dim;
    std::size_t previous = dim;
    while (rest > 0) {
      const std::size_t block = detail::hadamard_block(dim, rest);
      REQUIRE((block & (block - 1)) == 0);
      REQUIRE(block <= rest);
      REQUIRE(block <= previous);
      REQUIRE(block < dim);
      previous = block;
      rest -= block;
    }
  }
  CHECK(detail::hadamard_block(8, 8) == 4);
  CHECK(detail::hadamard_block(8, 4) == 2);
  CHECK(detail::hadamard_block(96, 96) == 64);
  CHECK(detail::hadamard_block(96, 32) == 32);
}
