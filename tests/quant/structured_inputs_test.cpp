#include <turboquant/quant/mse_quantizer.hpp>

#include <doctest/doctest.h>

#include "quant/support.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace turboquant;
using namespace turboquant::test;

namespace {

/// Too weak a rotation: `rounds` rounds of a Walsh-Hadamard transform, with or without random
/// signs.
class WeakRotation {
 public:
  WeakRotation(int dim, std::uint64_t seed, int rounds, bool random_signs) : rounds_(rounds) {
    const CounterRng rng(seed, 7003);
    for (int i = 0; i < dim * rounds; ++i) {
      const bool negative = random_signs && rng.bits32(static_cast<std::uint64_t>(i)) % 2 == 1;
      signs_.push_back(negative ? -1.0F : 1.0F);
    }
  }
  [[nodiscard]] int dim() const { return static_cast<int>(signs_.size()) / rounds_; }
  void apply(std::span<const float> in, std::span<float> out) const {
    std::copy(in.begin(), in.end(), out.begin());
    for (int round = 0; round < rounds_; ++round) {
      flip(out, round);
      transform(out);
    }
  }
  void apply_inverse(std::span<const float> in, std::span<float> out) const {
    std::copy(in.begin(), in.end(), out.begin());
    for (int round = rounds_ - 1; round >= 0; --round) {
      transform(out);
      flip(out, round);
    }
  }

 private:
  void flip(std::span<float> x, int round) const {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] *= signs_[static_cast<std::size_t>(round) * x.size() + i];
    }
  }
  static void transform(std::span<float> x) {
    for (std::size_t width = 1; width < x.size(); width *= 2) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        if ((i & width) == 0) {
          const float a = x[i];
          const float b = x[i + width];
          x[i] = a + b;
          x[i + width] = a - b;
        }
      }
    }
    const auto factor = static_cast<float>(1 / std::sqrt(static_cast<double>(x.size())));
    for (float& v : x) {
      v *= factor;
    }
  }

  int rounds_;
  std::vector<float> signs_;
};

struct Input {
  std::string name;
  std::function<float(std::size_t, const std::vector<float>&)>
      value;  // of coordinate i, given Gaussian numbers
};

const std::vector<Input>& inputs() {
  static const std::vector<Input> all{
      {"one-hot", [](std::size_t i, const std::vector<float>&) { return i == 5 ? 1.0F : 0.0F; }},
      {"two-hot",
       [](std::size_t i, const std::vector<float>&) { return i == 3 || i == 10 ? 1.0F : 0.0F; }},
      {"two-hot, unequal",
       [](std::size_t i, const std::vector<float>&) {
         return i == 3 ? 1.0F : (i == 12 ? -0.5F : 0.0F);
       }},
      {"constant", [](std::size_t, const std::vector<float>&) { return 1.0F; }},
      {"ramp", [](std::size_t i, const std::vector<float>&) { return static_cast<float>(i); }},
      {"four outlier channels",
       [](std::size_t i, const std::vector<float>& noise) {
         return i % 16 == 7 && i < 64 ? 30.0F : noise[i];
       }},
  };
  return all;
}

constexpr std::uint64_t seeds = 64;

/// Mean relative error over the seeds with the plain scale, as a ratio to that of a Haar rotation.
template <class MakeRotation>
double error_ratio(const Input& input, int dim, int bits, MakeRotation make_rotation) {
  const auto d = static_cast<std::size_t>(dim);
  double sum = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const auto noise = gaussian(d, 500 + seed);
    std::vector<float> x(d);
    for (std::size_t i = 0; i < d; ++i) {
      x[i] = input.value(i, noise);
    }
    const MseQuantizer quantizer(
        make_rotation(dim, seed), bits,
        {.scale_rule = ScaleRule::plain, .metadata = MetadataType::float32});
    sum += squared_distance(x, decode(quantizer, quantizer.encode(x), d)) / dot(x, x);
  }
  return sum / seeds / (lloyd_max(dim, bits).mse_per_coordinate * dim);
}

/// Gain of the coordinates that are no outliers: <rest, decoded rest> / |rest|^2 over seeds and
/// tokens, the outliers and the rotation being the same for all tokens of a seed, as in a cache.
template <class MakeRotation>
double mean_gain_of_rest(int dim, int bits, std::size_t outliers, MakeRotation make_rotation) {
  const auto d = static_cast<std::size_t>(dim);
  constexpr std::size_t tokens = 200;
  double sum = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    auto x = gaussian(d * tokens, 900 + seed);
    auto rest = x;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (i % d % 16 == 7 && i % d / 16 < outliers) {
        x[i] = 60.0F;
        rest[i] = 0.0F;
      }
    }
    const MseQuantizer quantizer(make_rotation(dim, seed), bits,
                                 {.metadata = MetadataType::float32});
    const auto decoded = decode(quantizer, quantizer.encode(x), x.size());
    sum += dot(rest, decoded) / dot(rest, rest);
  }
  return sum / seeds;
}

HadamardRotation library(int dim, std::uint64_t seed) {
  return {dim, seed};
}
WeakRotation one_round(int dim, std::uint64_t seed) {
  return {dim, seed, 1, true};
}
WeakRotation no_signs(int dim, std::uint64_t seed) {
  return {dim, seed, 3, false};
}

}  // namespace

TEST_CASE("structured inputs: within 10 % of the Haar error at 2 and 3 bits") {
  for (const int dim : {64, 80, 96, 112, 128, 192, 256}) {
    for (const Input& input : inputs()) {
      for (const int bits : {2, 3}) {
        CAPTURE(dim);
        CAPTURE(input.name);
        CAPTURE(bits);
        CHECK(std::abs(error_ratio(input, dim, bits, library) - 1) < 0.1);
      }
    }
  }
}

TEST_CASE("structured inputs tell: one round, or no signs, is not enough") {
  double worst_one_round = 0;
  double worst_no_signs = 0;
  for (const Input& input : inputs()) {
    worst_one_round = std::max(worst_one_round, error_ratio(input, 128, 3, one_round));
    worst_no_signs = std::max(worst_no_signs, error_ratio(input, 128, 3, no_signs));
  }
  CHECK(worst_one_round > 1.5);
  CHECK(worst_no_signs > 1.5);
}

TEST_CASE("outlier channels leave the rest of the vector at gain 1") {
  for (const int dim : {64, 80, 128, 256}) {
    for (const int bits : {2, 3}) {
      for (const std::size_t outliers : {std::size_t{1}, std::size_t{4}}) {
        CAPTURE(dim);
        CAPTURE(bits);
        CAPTURE(outliers);
        // The mean over 64 seeds itself varies by 0.03; a Haar rotation gives 0.966 to 1.012 here.
        CHECK(std::abs(mean_gain_of_rest(dim, bits, outliers, library) - 1) < 0.08);
      }
    }
  }
  // The same measure tells too weak a rotation.
  CHECK(mean_gain_of_rest(128, 2, 1, one_round) > 1.5);
  CHECK(mean_gain_of_rest(128, 2, 1, no_signs) > 1.5);
}
