#include <turboquant/math/exact_functions.hpp>
#include <turboquant/math/haar_rotation.hpp>
#include <turboquant/math/hadamard_rotation.hpp>
#include <turboquant/math/lloyd_max.hpp>
#include <turboquant/quant/mse_quantizer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

// Under a Haar rotation the relative squared error of any vector is D_mse = dim *
// mse_per_coordinate, and the unbiased scale brings every part of it back with gain 1. A structured
// rotation has to come close on the vectors that are hardest for it.

using namespace turboquant;  // NOLINT(google-build-using-namespace)

namespace {

/// What must fail: rounds of a Walsh-Hadamard transform of a power of two, with or without signs.
class PlainRounds {
 public:
  PlainRounds(int dim, std::uint64_t seed, int rounds, bool with_signs)
      : dim_(dim), rounds_(rounds) {
    const CounterRng rng(seed, 1);
    const auto count = static_cast<std::uint64_t>(dim) * static_cast<std::uint64_t>(rounds);
    for (std::uint64_t i = 0; i < count; ++i) {
      signs_.push_back(with_signs && rng.bits32(i) % 2 != 0 ? -1.0F : 1.0F);
    }
  }

  [[nodiscard]] int dim() const noexcept { return dim_; }

  void apply(std::span<const float> in, std::span<float> out) const {
    std::copy(in.begin(), in.end(), out.begin());
    for (int round = 0; round < rounds_; ++round) {
      multiply_signs(out, round);
      transform(out);
    }
  }

  void apply_inverse(std::span<const float> in, std::span<float> out) const {
    std::copy(in.begin(), in.end(), out.begin());
    for (int round = rounds_; round-- > 0;) {
      transform(out);
      multiply_signs(out, round);
    }
  }

 private:
  void multiply_signs(std::span<float> x, int round) const {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] *= signs_[static_cast<std::size_t>(round) * x.size() + i];
    }
  }

  static void transform(std::span<float> x) {
    for (std::size_t width = 1; width < x.size(); width *= 2) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        if ((i & width) == 0) {
          const float sum = x[i] + x[i + width];
          x[i + width] = (x[i] - x[i + width]) * 0.70710678F;
          x[i] = sum * 0.70710678F;
        }
      }
    }
  }

  int dim_;
  int rounds_;
  std::vector<float> signs_;
};

enum class Input { one_hot, two_hot, constant, ramp, outliers };
constexpr std::array<Input, 5> all_inputs{Input::one_hot, Input::two_hot, Input::constant,
                                          Input::ramp, Input::outliers};
constexpr float outlier = 20.0F;

/// Four outlier channels of 20 standard deviations (fewer in tiny vectors) in every input of that
/// kind, the first anywhere and the others beside it; hot channels anywhere.
std::vector<float> make_input(Input kind, int dim, std::uint64_t seed) {
  const CounterRng rng(seed, 2);
  const auto d = static_cast<std::size_t>(dim);
  const std::size_t at = rng.below(0, static_cast<std::uint32_t>(dim));
  std::vector<float> x(d, 0.0F);
  switch (kind) {
    case Input::one_hot: x[at] = 1.0F; break;
    case Input::two_hot:
      x[at] = 1.0F;
      x[(at + 1 + rng.below(1, static_cast<std::uint32_t>(dim - 1))) % d] = 1.0F;
      break;
    case Input::constant: std::fill(x.begin(), x.end(), 1.0F); break;
    case Input::ramp:
      for (std::size_t i = 0; i < d; ++i) {
        x[i] = static_cast<float>(i + 1);
      }
      break;
    case Input::outliers:
      for (std::size_t i = 0; i < d; ++i) {
        x[i] = static_cast<float>(normal(rng, 10 + i));
      }
      for (std::size_t i = 0; i < std::min<std::size_t>(4, d / 2); ++i) {
        x[(at + i) % d] = outlier;
      }
      break;
  }
  return x;
}

struct Quality {
  double worst_mse = 0;  ///< largest |MSE / Haar MSE - 1| over the inputs
  double gain = 0;       ///< mean gain of the channels beside the outliers
  std::string report;
};

/// Averages over `seeds` rotations made by `make(dim, seed)`.
template <class Make>
Quality measure(int dim, int bits, std::uint64_t seeds, Make make) {
  const MseQuantizerOptions plain{.scale_rule = ScaleRule::plain,
                                  .metadata = MetadataType::float32};
  const MseQuantizerOptions unbiased{.scale_rule = ScaleRule::unbiased,
                                     .metadata = MetadataType::float32};
  std::array<double, all_inputs.size()> error{};
  Quality quality;
  std::vector<float> decoded(static_cast<std::size_t>(dim));
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const MseQuantizer quantizer(make(dim, seed), bits, plain);
    for (std::size_t k = 0; k < all_inputs.size(); ++k) {
      const std::vector<float> x = make_input(all_inputs[k], dim, seed);
      quantizer.decode(quantizer.encode(x), decoded);
      double squared_error = 0;
      double squared = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double difference = double{decoded[i]} - double{x[i]};
        squared_error += difference * difference;
        squared += double{x[i]} * double{x[i]};
      }
      error[k] += squared_error / squared / static_cast<double>(seeds);
    }
    const MseQuantizer gain_quantizer(make(dim, seed), bits, unbiased);
    const std::vector<float> x = make_input(Input::outliers, dim, seed);
    gain_quantizer.decode(gain_quantizer.encode(x), decoded);
    double projection = 0;
    double squared = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i] != outlier) {
        projection += double{decoded[i]} * double{x[i]};
        squared += double{x[i]} * double{x[i]};
      }
    }
    quality.gain += projection / squared / static_cast<double>(seeds);
  }
  const double haar = dim * lloyd_max(dim, bits).mse_per_coordinate;
  quality.report =
      "dim " + std::to_string(dim) + ", " + std::to_string(bits) + " bits, MSE / Haar MSE";
  for (const double mean : error) {
    quality.worst_mse = std::max(quality.worst_mse, std::fabs(mean / haar - 1));
    quality.report += " " + std::to_string(mean / haar);
  }
  quality.report += ", gain " + std::to_string(quality.gain);
  return quality;
}

constexpr auto make_hadamard = [](int dim, std::uint64_t seed) {
  return HadamardRotation(dim, seed);
};
constexpr std::initializer_list<int> head_dims{40,  48,  64,  80,  96,  100, 112, 120,
                                               128, 129, 160, 192, 256, 320, 512, 576};

}  // namespace

TEST_CASE("the Haar rotation has the error and gain that the others are compared with") {
  const Quality quality =
      measure(64, 3, 128, [](int dim, std::uint64_t seed) { return HaarRotation(dim, seed); });
  CAPTURE(quality.report);
  CHECK(quality.worst_mse < 0.10);
  CHECK(std::fabs(quality.gain - 1) < 0.10);
}

TEST_CASE(
    "Hadamard rounds reach the Haar error and unit gain for head dimensions at 2 and 3 bits over "
    "64 seeds") {
  for (const int dim : head_dims) {
    for (const int bits : {2, 3}) {
      const Quality quality = measure(dim, bits, 64, make_hadamard);
      CAPTURE(quality.report);
      CHECK(quality.worst_mse < 0.10);
      CHECK(std::fabs(quality.gain - 1) < 0.10);
    }
  }
}

TEST_CASE("Hadamard rounds reach the Haar error at 4 bits") {
  for (const int dim : head_dims) {
    const Quality quality = measure(dim, 4, 128, make_hadamard);
    CAPTURE(quality.report);
    CHECK(quality.worst_mse < 0.10);
    CHECK(std::fabs(quality.gain - 1) < 0.05);
  }
}

TEST_CASE("small dimensions reach the Haar error too, with more rounds") {
  for (const int dim : {5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 34, 35, 39}) {
    const Quality quality = measure(dim, 3, 600, make_hadamard);
    CAPTURE(quality.report);
    CHECK(quality.worst_mse < 0.10);
  }
  for (const int dim : {3, 4}) {
    const Quality quality = measure(dim, 3, 2000, make_hadamard);
    CAPTURE(quality.report);
    CHECK(quality.worst_mse < 0.35);
  }
}

TEST_CASE("one round would fail: the same measure finds the wrong error and the wrong gain") {
  for (const int dim : {64, 128}) {
    const Quality quality = measure(
        dim, 2, 64, [](int d, std::uint64_t seed) { return PlainRounds(d, seed, 1, true); });
    CAPTURE(quality.report);
    CHECK(quality.worst_mse > 0.5);
    CHECK(quality.gain > 1.2);
  }
}

TEST_CASE("two rounds would fail at 128 dimensions") {
  const Quality quality =
      measure(128, 3, 64, [](int d, std::uint64_t seed) { return PlainRounds(d, seed, 2, true); });
  CAPTURE(quality.report);
  CHECK(quality.worst_mse > 0.12);
}

TEST_CASE("three rounds without signs would fail") {
  for (const int dim : {64, 128}) {
    const Quality quality = measure(
        dim, 2, 64, [](int d, std::uint64_t seed) { return PlainRounds(d, seed, 3, false); });
    CAPTURE(quality.report);
    CHECK(quality.worst_mse > 0.5);
  }
}

TEST_CASE(
    "three plain rounds with signs pass the same measure: the controls fail for the right reason") {
  const Quality quality =
      measure(128, 3, 64, [](int d, std::uint64_t seed) { return PlainRounds(d, seed, 3, true); });
  CAPTURE(quality.report);
  CHECK(quality.worst_mse < 0.10);
  CHECK(std::fabs(quality.gain - 1) < 0.10);
}
