#include <turboquant/base/random.hpp>
#include <turboquant/model/bit_allocation.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

constexpr LayerShape shape{8, 128, 128};

/// Squared errors that fall to about a quarter with every bit, more or less steeply by layer.
std::vector<std::vector<BitChoice>> measured(std::size_t layers, std::uint64_t seed) {
  const CounterRng rng(seed, 0);
  std::vector<std::vector<BitChoice>> all;
  for (std::size_t i = 0; i < layers; ++i) {
    const double key = 0.4 * rng.uniform(4 * i);
    const double value = 0.1 * rng.uniform(4 * i + 1);
    std::vector<double> errors;
    for (const LayerCodec& codec : default_codec_choices()) {
      errors.push_back(key * std::pow(0.15 + 0.2 * rng.uniform(4 * i + 2), codec.key_bits) +
                       value * std::pow(0.15 + 0.2 * rng.uniform(4 * i + 3), codec.value_bits));
    }
    all.push_back(bit_choices(shape, default_codec_choices(), errors));
  }
  return all;
}

/// The error of a plan that has one of the choices in every layer.
double error_of_plan(const std::vector<std::vector<BitChoice>>& layers, const BitPlan& plan) {
  double sum = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const BitChoice& choice : layers[i]) {
      sum += choice.codec == *plan.layers[i] ? choice.error : 0.0;
    }
  }
  return sum;
}

}  // namespace

TEST_CASE("a uniform plan's bytes buy at most its error") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto layers = measured(30, seed);
    const std::vector<LayerShape> shapes(layers.size(), shape);
    for (const LayerCodec& codec : default_codec_choices()) {
      const BitPlan uniform = uniform_plan(std::int64_t(layers.size()), codec);
      const std::int64_t budget = bytes_per_token(uniform, shapes);
      const BitAllocation best = allocate_bits(layers, budget);
      CHECK(best.bytes <= budget);
      CHECK(best.bytes == bytes_per_token(best.plan, shapes));
      CHECK(best.error == error_of_plan(layers, best.plan));
      CHECK(best.error <= error_of_plan(layers, uniform));
      require_valid(best.plan);
    }
  }
}

TEST_CASE("more budget is never worse, and all the budget gives the finest codec") {
  const auto layers = measured(12, 3);
  const std::int64_t least = 12 * 8 * 68;
  double before = std::numeric_limits<double>::infinity();
  for (std::int64_t budget = least; budget <= 12 * 8 * 132; budget += 64) {
    const BitAllocation best = allocate_bits(layers, budget);
    CHECK(best.error <= before);
    before = best.error;
  }
  CHECK(allocate_bits(layers, 12 * 8 * 132).plan ==
        uniform_plan(12, {.key_bits = 4, .value_bits = 4}));
  CHECK(allocate_bits(layers, least).plan == uniform_plan(12, {.key_bits = 2, .value_bits = 2}));
}

TEST_CASE("a layer that errs more gets more bits") {
  auto layers = measured(4, 1);
  for (BitChoice& choice : layers[2]) {
    choice.error *= 1e6;
  }
  const BitPlan plan = allocate_bits(layers, 4 * 8 * 68 + 8 * 64).plan;
  CHECK(*plan.layers[2] == LayerCodec{.key_bits = 4, .value_bits = 4});
  for (const std::size_t other : {0U, 1U, 3U}) {
    CHECK(*plan.layers[other] == LayerCodec{.key_bits = 2, .value_bits = 2});
  }
}

TEST_CASE("layers without choices take no part") {
  auto layers = measured(3, 5);
  const BitAllocation alone = allocate_bits(layers, 3 * 8 * 100);
  layers.insert(layers.begin() + 1, std::vector<BitChoice>{});
  layers.push_back({});
  const BitAllocation best = allocate_bits(layers, 3 * 8 * 100);
  CHECK(best.plan == BitPlan{{alone.plan.layers[0], std::nullopt, alone.plan.layers[1],
                              alone.plan.layers[2], std::nullopt}});
  CHECK(best.bytes == alone.bytes);
}

TEST_CASE("one layer, no layer, one choice") {
  CHECK(allocate_bits({}, 0).plan.layers.empty());
  const std::vector<std::vector<BitChoice>> one{{{LayerCodec{}, 118, 0.5}}};
  CHECK(allocate_bits(one, 118).plan == uniform_plan(1, LayerCodec{}));
  const auto layer = measured(1, 9);
  for (const BitChoice& choice : layer.front()) {
    CHECK(allocate_bits(layer, choice.bytes).error <= choice.error);
  }
}

TEST_CASE("impossible budgets and impossible choices are refused") {
  const auto layers = measured(4, 2);
  CHECK(
      mentions(error_of(ErrorCode::capacity, [&] { (void)allocate_bits(layers, 4 * 8 * 68 - 1); }),
               "budget_bytes is 2175, expected at least 2176"));
  auto wrong = layers;
  wrong[3][1].codec.key_bits = 7;
  CHECK(mentions(error_of(ErrorCode::unsupported, [&] { (void)allocate_bits(wrong, 1 << 20); }),
                 "allocate_bits: layers[3].key_bits is 7"));
  wrong = layers;
  wrong[0][0].error = std::numeric_limits<double>::quiet_NaN();
  CHECK(mentions(error_of(ErrorCode::non_finite, [&] { (void)allocate_bits(wrong, 1 << 20); }),
                 "[0].error is nan"));
  const std::vector<std::vector<BitChoice>> many(10'001);
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)allocate_bits(many, 0); }),
                 "num_layers is 10001"));
  CHECK(mentions(
      error_of(ErrorCode::shape_mismatch,
               [] { (void)bit_choices(shape, default_codec_choices(), std::vector<double>(8)); }),
      "errors.size() is 8, expected that of codecs, 9"));
}
