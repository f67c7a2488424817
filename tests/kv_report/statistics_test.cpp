// The statistics of the report, without files and codecs.

#include "../../examples/kv_report/attention_error.hpp"
#include "../../examples/kv_report/capture.hpp"

#include <turboquant/base/random.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using kv_report::AttentionError;
using kv_report::HeadAttention;
using kv_report::LayerCapture;
using kv_report::VectorError;

namespace {

std::vector<float> random_vectors(std::size_t count, std::uint64_t stream) {
  const turboquant::CounterRng rng(7, stream);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(rng.bits32(i) % 2001) * 0.001F - 1.0F;
  }
  return values;
}

}  // namespace

TEST_CASE("vector errors of known pairs") {
  const std::vector<float> exact{3, 4, 0, 0, 1, 0, 0, 0};
  const std::vector<float> approximate{4, 3, 0, 0, 0, 0, 0, 2};
  const VectorError error = kv_report::vector_error(exact, approximate, 2);
  CHECK(error.vectors == 4);
  // Two zero vectors agree; one zero vector agrees with nothing.
  CHECK(error.cosines == doctest::Approx(24.0 / 25.0 + 1));
  CHECK(error.squared_error == 7.0);
  CHECK(error.squared_norm == 26.0);
}

TEST_CASE("zero vectors that stay zero lose nothing, alone and among others") {
  const std::vector<float> zeros(12);
  const VectorError error = kv_report::vector_error(zeros, zeros, 4);
  CHECK(error.cosines == 3.0);
  CHECK(error.squared_error == 0.0);
  std::vector<float> other = zeros;
  other[5] = 1e-45F;  // the least float; its square is not zero in double
  CHECK(kv_report::vector_error(other, zeros, 4).cosines == 2.0);
  CHECK(kv_report::vector_error(zeros, other, 4).cosines == 2.0);
  CHECK(kv_report::vector_error(other, other, 4).cosines == doctest::Approx(3.0));
}

TEST_CASE("decoded numbers that are not finite never look like agreement") {
  constexpr std::size_t tokens = 5;
  const std::vector<float> keys = random_vectors(tokens * 4, 0);
  const std::vector<float> values = random_vectors(tokens * 4, 1);
  const std::vector<float> query{1, 0.5F, -0.25F, 2};
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (std::size_t token = 0; token < tokens; ++token) {
      CAPTURE(token);
      std::vector<float> wrong = keys;
      wrong[4 * token] = bad;
      const VectorError vectors = kv_report::vector_error(keys, wrong, 4);
      CHECK_FALSE(std::isfinite(vectors.squared_error));
      CHECK_FALSE(std::isfinite(vectors.cosines));
      HeadAttention exact(keys, 4, values, 4);
      HeadAttention approximate(wrong, 4, values, 4);
      exact.attend(query, tokens, 0.5);
      approximate.attend(query, tokens, 0.5);
      AttentionError error;
      kv_report::add_row(error, exact, approximate);
      CHECK_FALSE(std::isfinite(error.squared_logit_errors));
      CHECK(std::isnan(error.divergences));
      CHECK(error.same_top == 0);
      CHECK_FALSE(std::isfinite(error.output.squared_error));
      // What was added before and after does not hide it.
      kv_report::add_row(error, exact, exact);
      CHECK(std::isnan(error.divergences));
      CHECK(error.same_top == 1);
    }
  }
}

TEST_CASE("attention over the visible tokens equals the formula, term by term") {
  constexpr std::size_t tokens = 9;
  constexpr std::size_t d = 4;
  constexpr std::size_t dv = 3;
  const std::vector<float> keys = random_vectors(tokens * d, 0);
  const std::vector<float> values = random_vectors(tokens * dv, 1);
  const std::vector<float> query = random_vectors(d, 2);
  HeadAttention attention(keys, d, values, dv);
  for (std::size_t visible = 1; visible <= tokens; ++visible) {
    attention.attend(query, visible, 2.5);
    REQUIRE(attention.logits().size() == visible);
    std::vector<double> logits(visible);
    double sum = 0;
    for (std::size_t t = 0; t < visible; ++t) {
      for (std::size_t i = 0; i < d; ++i) {
        logits[t] += 2.5 * static_cast<double>(query[i]) * static_cast<double>(keys[t * d + i]);
      }
      sum += std::exp(logits[t]);
    }
    double total = 0;
    std::vector<double> output(dv);
    for (std::size_t t = 0; t < visible; ++t) {
      CHECK(attention.logits()[t] == doctest::Approx(logits[t]).epsilon(1e-12));
      CHECK(attention.weights()[t] == doctest::Approx(std::exp(logits[t]) / sum).epsilon(1e-12));
      CHECK(attention.log_weight(t) == doctest::Approx(logits[t] - std::log(sum)).epsilon(1e-12));
      CHECK(logits[attention.top()] >= logits[t]);
      total += attention.weights()[t];
      for (std::size_t i = 0; i < dv; ++i) {
        output[i] += std::exp(logits[t]) / sum * static_cast<double>(values[t * dv + i]);
      }
    }
    CHECK(total == doctest::Approx(1.0).epsilon(1e-12));
    for (std::size_t i = 0; i < dv; ++i) {
      CHECK(attention.output()[i] == doctest::Approx(output[i]).epsilon(1e-12));
    }
  }
}

TEST_CASE("logits far beyond exp's range do no harm") {
  const std::vector<float> keys{1e6F, 0, 0, -1e6F, 0, 0};
  const std::vector<float> values{1, 2};
  HeadAttention attention(keys, 3, values, 1);
  const std::vector<float> query{1e6F, 0, 0};
  attention.attend(query, 2, 1.0);
  CHECK(attention.weights()[0] == 1.0);
  CHECK(attention.output()[0] == 1.0);
}

TEST_CASE("an attention does not differ from itself, and a shift of all logits is no divergence") {
  constexpr std::size_t tokens = 20;
  const std::vector<float> keys = random_vectors(tokens * 4, 3);
  const std::vector<float> values = random_vectors(tokens * 4, 4);
  std::vector<float> shifted = keys;
  for (std::size_t t = 0; t < tokens; ++t) {
    shifted[4 * t] += 2;
  }
  const std::vector<float> query{1, 0.5F, -0.25F, 2};
  HeadAttention exact(keys, 4, values, 4);
  HeadAttention moved(shifted, 4, values, 4);
  AttentionError same;
  AttentionError shift;
  exact.attend(query, tokens, 0.5);
  moved.attend(query, tokens, 0.5);
  kv_report::add_row(same, exact, exact);
  kv_report::add_row(shift, exact, moved);
  CHECK(same.rows == 1);
  CHECK(same.logits == 20);
  CHECK(same.squared_logit_errors == 0);
  CHECK(same.divergences == 0);
  CHECK(same.same_top == 1);
  CHECK(same.output.squared_error == 0);
  CHECK(same.output.cosines == doctest::Approx(1.0).epsilon(1e-14));
  // Every logit moves by 0.5 * 1 * 2.
  CHECK(shift.logit_errors == doctest::Approx(20.0).epsilon(1e-6));
  CHECK(shift.squared_logit_errors == doctest::Approx(20.0).epsilon(1e-6));
  CHECK(shift.divergences < 1e-12);
  CHECK(shift.same_top == 1);
}

TEST_CASE("the divergence of two known distributions") {
  // Weights 1/2, 1/2 against 1/4, 3/4: KL = ln(4/3) / 2.
  const std::vector<float> values{1, 0};
  HeadAttention exact(std::vector<float>{0, 0}, 1, values, 1);
  HeadAttention approximate(std::vector<float>{0, std::log(3.0F)}, 1, values, 1);
  const std::vector<float> query{1};
  exact.attend(query, 2, 1.0);
  approximate.attend(query, 2, 1.0);
  AttentionError error;
  kv_report::add_row(error, exact, approximate);
  CHECK(error.divergences == doctest::Approx(0.5 * std::log(4.0 / 3.0)).epsilon(1e-6));
  CHECK(error.same_top == 0);
  CHECK(error.output.squared_error == doctest::Approx(0.0625).epsilon(1e-6));
}

TEST_CASE("the vectors of a head are gathered across the tokens") {
  // (tokens 2, heads 3, dim 2)
  const std::vector<float> all{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  CHECK(LayerCapture::head(all, 3, 0, 2) == std::vector<float>{0, 1, 6, 7});
  CHECK(LayerCapture::head(all, 3, 2, 2) == std::vector<float>{4, 5, 10, 11});
  CHECK(LayerCapture::head(all, 1, 0, 6) == all);
}

TEST_CASE("sums add up member by member") {
  VectorError a{1, 2, 3, 4, 5};
  const VectorError b{10, 20, 30, 40, 50};
  a += b;
  CHECK(a.vectors == 11);
  CHECK(a.bytes == 22);
  CHECK(a.squared_error == 33);
  CHECK(a.squared_norm == 44);
  CHECK(a.cosines == 55);
  AttentionError c{1, 2, 3, 4, 5, 6, a};
  c += AttentionError{10, 20, 30, 40, 50, 60, b};
  CHECK(c.rows == 11);
  CHECK(c.logits == 22);
  CHECK(c.logit_errors == 33);
  CHECK(c.squared_logit_errors == 44);
  CHECK(c.divergences == 55);
  CHECK(c.same_top == 66);
  CHECK(c.output.vectors == 21);
}
