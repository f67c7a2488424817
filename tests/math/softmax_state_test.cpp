// Merging attention over disjoint sets of keys.

#include <turboquant/base/random.hpp>
#include <turboquant/math/softmax_state.hpp>

#include <doctest/doctest.h>
#include <support/error_of.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace turboquant;
using test::error_of;
using test::mentions;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

struct Part {
  std::vector<float> output;
  float lse = negative_infinity;
};

Part random_part(std::uint64_t stream, float lse) {
  const CounterRng rng(3, stream);
  Part part{std::vector<float>(16), lse};
  for (std::size_t i = 0; i < part.output.size(); ++i) {
    part.output[i] = static_cast<float>(4 * rng.uniform(i) - 2);
  }
  part.output[5] = -0.0F;
  return part;
}

Part merged(Part first, const Part& second) {
  merge_attention(first.output, first.lse, second.output, second.lse);
  return first;
}

bool same_bits(const Part& a, const Part& b) {
  bool same = std::bit_cast<std::uint32_t>(a.lse) == std::bit_cast<std::uint32_t>(b.lse);
  for (std::size_t i = 0; i < a.output.size(); ++i) {
    same = same &&
           std::bit_cast<std::uint32_t>(a.output[i]) == std::bit_cast<std::uint32_t>(b.output[i]);
  }
  return same;
}

constexpr float sizes[] = {-1e5F, -50.0F, -0.3F, 0.0F, 0.7F, 50.0F, 1e5F};

}  // namespace

TEST_CASE("an empty part is the identity, bit by bit from both sides, whatever it holds") {
  for (const float lse : sizes) {
    const Part part = random_part(1, lse);
    for (const float content : {0.0F, 7.0F, not_a_number, infinity, -infinity}) {
      const Part empty{std::vector<float>(16, content), negative_infinity};
      CHECK(same_bits(merged(part, empty), part));
      CHECK(same_bits(merged(empty, part), part));
    }
  }
}

TEST_CASE("two empty parts are empty: zero and -infinity") {
  for (const float content : {0.0F, not_a_number, infinity}) {
    const Part empty{std::vector<float>(16, content), negative_infinity};
    CHECK(same_bits(merged(empty, empty), {std::vector<float>(16, 0.0F), negative_infinity}));
  }
  const MergeWeights weights = merge_weights(negative_infinity, negative_infinity);
  CHECK(weights.first == 0.0F);
  CHECK(weights.second == 0.0F);
  CHECK(weights.lse == negative_infinity);
}

TEST_CASE("a part too light to have a weight adds nothing, even if it is not finite") {
  for (const float content : {not_a_number, infinity, -infinity}) {
    const Part heavy = random_part(1, 1000.0F);
    const Part light{std::vector<float>(16, content), -1000.0F};
    for (const Part& both : {merged(heavy, light), merged(light, heavy)}) {
      for (std::size_t i = 0; i < 16; ++i) {
        CHECK(both.output[i] == heavy.output[i]);
      }
      CHECK(both.lse == 1000.0F);
    }
  }
}

TEST_CASE("the logarithm is natural") {
  Part a{{1.0F}, std::log(3.0F)};
  const Part b{{5.0F}, 0.0F};
  merge_attention(a.output, a.lse, b.output, b.lse);
  CHECK(std::abs(a.output[0] - 2.0F) <= 1e-6F);
  CHECK(std::abs(a.lse - 1.3862944F) <= 1e-6F);
}

TEST_CASE("the order of two parts does not matter, bit by bit") {
  for (const float first : sizes) {
    for (const float second : sizes) {
      const Part a = random_part(1, first);
      const Part b = random_part(2, second + 0.1F);
      CHECK(same_bits(merged(a, b), merged(b, a)));
    }
  }
}

TEST_CASE("the grouping of parts does not matter beyond rounding, and agrees with one softmax") {
  for (std::uint64_t round = 0; round < 200; ++round) {
    const CounterRng rng(4, round);
    const float scale = round % 2 == 0 ? 2.0F : 40.0F;
    std::vector<Part> parts;
    for (std::uint64_t i = 0; i < 5; ++i) {
      parts.push_back(
          random_part(10 * round + i, scale * static_cast<float>(2 * rng.uniform(i) - 1)));
    }
    Part left = parts[0];
    for (std::size_t i = 1; i < parts.size(); ++i) {
      left = merged(left, parts[i]);
    }
    const Part grouped =
        merged(merged(parts[0], parts[1]), merged(merged(parts[2], parts[3]), parts[4]));
    double sum = 0;
    for (const Part& part : parts) {
      sum += std::exp(double{part.lse});
    }
    for (std::size_t d = 0; d < 16; ++d) {
      double expected = 0;
      for (const Part& part : parts) {
        expected += std::exp(double{part.lse}) / sum * double{part.output[d]};
      }
      CHECK(std::abs(double{left.output[d]} - expected) <= 4e-6);
      CHECK(std::abs(double{grouped.output[d]} - expected) <= 4e-6);
    }
    CHECK(std::abs(double{left.lse} - std::log(sum)) <= 1e-6 * double{scale});
    CHECK(std::abs(double{grouped.lse} - std::log(sum)) <= 1e-6 * double{scale});
  }
}

TEST_CASE("a log-sum-exp that is not one, and other sizes, are refused and change nothing") {
  const Part good = random_part(1, 0.5F);
  for (const float bad : {not_a_number, infinity}) {
    Part other = random_part(2, bad);
    const Part before = other;
    std::string message = error_of(ErrorCode::invalid_argument, [&] {
      merge_attention(other.output, other.lse, good.output, good.lse);
    });
    CHECK(mentions(message, "merge_attention: lse is "));
    CHECK(same_bits(other, before));
    Part first = good;
    message = error_of(ErrorCode::invalid_argument,
                       [&] { merge_attention(first.output, first.lse, other.output, other.lse); });
    CHECK(mentions(message, "merge_attention: other_lse is "));
    CHECK(same_bits(first, good));
  }
  Part first = good;
  const std::vector<float> shorter(15);
  CHECK(mentions(error_of(ErrorCode::shape_mismatch,
                          [&] { merge_attention(first.output, first.lse, shorter, 0.0F); }),
                 "other_output.size() is 15, expected output.size() = 16"));
  CHECK(same_bits(first, good));
}

TEST_CASE("2^x below 0 has an error of two units in the last place, ends exactly") {
  CHECK(exp2_negative(0.0F) == 1.0F);
  CHECK(exp2_negative(-126.5F) == 0.0F);
  CHECK(exp2_negative(negative_infinity) == 0.0F);
  for (int i = 0; i <= 126 * 64; ++i) {
    const float x = -static_cast<float>(i) / 64.0F;
    const double exact = std::exp2(double{x});
    CHECK(std::abs(double{exp2_negative(x)} / exact - 1) <= 2 * 0x1p-23);
  }
}
