// Scales, caps, sinks, and sums whose right answers are known; extreme logits and weights.

#include "decode_fixture.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

using namespace decode_fixture;

namespace {

/// Compressed only, exact only, both.
const Lengths pairs[] = {{0, 2, 0}, {0, 0, 2}, {0, 1, 1}, {1, 1, 0}, {1, 0, 1}, {2, 0, 0}};

Setup one_head(const Lengths& lengths, int dim = 64) {
  Setup setup;
  setup.format = make_format(KeyCodec::mse, 4, dim, ValueCodec::grouped, 4, dim, dim);
  setup.kv_heads = 1;
  setup.ratio = 1;
  setup.sequences = {lengths};
  setup.key = [](auto, int, int, float) { return 0.0F; };
  setup.query = [](int, int, int dim_of, float) { return dim_of == 0 ? 2.0F : 0.0F; };
  return setup;
}

double worst_difference(const Result& result, double expected) {
  double worst = 0;
  for (const double x : result.output) {
    worst = std::abs(x - expected) <= worst ? worst : std::abs(x - expected);
  }
  return worst;
}

}  // namespace

TEST_CASE("the model's scale is used: ln 2 with weight 2/3") {
  // The key with a logit is exact, the zero key compressed or exact.
  for (const Lengths& lengths : {Lengths{1, 1, 0}, Lengths{0, 0, 2}, Lengths{1, 0, 1}}) {
    Setup setup = one_head(lengths);
    setup.sm_scale = 0.5F;
    setup.key = [](std::int64_t position, int, int dim, float) {
      return position == 0 && dim == 0 ? 0.69314718F : 0.0F;
    };
    setup.value = [](std::int64_t position, int, int, float) {
      return position == 0 ? 3.0F : 0.0F;
    };
    const Problem problem(setup);
    for (const DecodeOptions& options : all_options()) {
      CAPTURE(name_of(options));
      CHECK(worst_difference(problem.run(options), 2.0) <= 1e-5);
    }
  }
}

TEST_CASE("logits are capped before the softmax, in every segment") {
  for (const Lengths& lengths : pairs) {
    Setup setup = one_head(lengths);
    setup.sm_scale = 1;
    setup.soft_cap = 1;
    setup.value = [](std::int64_t position, int, int, float) {
      return position == 0 ? 1.0F : 0.0F;
    };
    setup.key = [](std::int64_t position, int, int dim, float) {
      return position == 0 && dim == 0 ? 0.5F : 0.0F;
    };
    const Problem problem(setup);
    // The compressed key is not exactly the one above; its logit is the stored one.
    double logit = 1.0;
    if (lengths.sinks == 0 && lengths.history > 0) {
      logit = 2.0 * static_cast<double>(problem.stored_key(0, 0, 0)[0]);
      CHECK(std::abs(logit - 1) < 0.2);
    }
    const double expected = 1 / (1 + std::exp(-std::tanh(logit)));
    for (const DecodeOptions& options : all_options()) {
      CAPTURE(name_of(options));
      CHECK(worst_difference(problem.run(options), expected) <=
            (options.exactness == Exactness::exact ? 1e-4 : 5e-3));
    }
  }
  // 50 tanh(100 / 50).
  Setup setup = one_head({0, 0, 1});
  setup.sm_scale = 1;
  setup.soft_cap = 50;
  setup.key = [](auto, int, int dim, float) { return dim == 0 ? 50.0F : 0.0F; };
  CHECK(std::abs(Problem(setup).run().lse[0] - 48.2013790) <= 1e-4);
}

TEST_CASE("a learned sink joins the denominator once, not once a segment") {
  struct Case {
    Lengths lengths;
    float value;
    double sink;
    double expected;
  };
  for (const Case& test :
       {Case{{0, 1, 0}, 2, 0, 1.0}, Case{{0, 0, 1}, 2, 0, 1.0},
        Case{{0, 8, 8}, 1, std::log(16.0), 0.5}, Case{{4, 8, 4}, 1, std::log(16.0), 0.5},
        Case{{0, 1600, 0}, 1, std::log(1600.0), 0.5}}) {
    Setup setup = one_head(test.lengths);
    setup.learned_sinks = true;
    setup.value = [&](auto, int, int, float) { return test.value; };
    const Problem problem(setup);
    problem.sink_logits()(0) = static_cast<float>(test.sink);
    for (const DecodeOptions& options : all_options()) {
      CAPTURE(name_of(options));
      CHECK(worst_difference(problem.run(options), test.expected) <= 1e-5);
    }
  }
  // Logits ln 2 and 0, sink ln 3: 3 * 2 / 6.
  Setup setup = one_head({0, 0, 2});
  setup.learned_sinks = true;
  setup.sm_scale = 0.5F;
  setup.key = [](std::int64_t position, int, int dim, float) {
    return position == 0 && dim == 0 ? 0.69314718F : 0.0F;
  };
  setup.value = [](std::int64_t position, int, int, float) { return position == 0 ? 3.0F : 0.0F; };
  const Problem problem(setup);
  problem.sink_logits()(0) = std::log(3.0F);
  CHECK(worst_difference(problem.run(), 1.0) <= 1e-5);
}

TEST_CASE("a uniform row of any length averages its values exactly") {
  for (const std::int64_t tokens : {2047, 2048, 2049, 4096, 65536}) {
    Setup setup = one_head({0, tokens, 0}, 16);
    setup.value = [](auto, int, int, float) { return 1.0F; };
    const Problem problem(setup);
    for (DecodeOptions options : all_options()) {
      for (const int num_splits : {0, 1}) {
        options.num_splits = num_splits;
        CAPTURE(name_of(options));
        const Result result = problem.run(options);
        CHECK(worst_difference(result, 1.0) <= 1e-5);
        CHECK(std::abs(result.lse[0] - std::log(static_cast<double>(tokens))) <= 1e-5);
      }
    }
    CHECK(worst_difference(problem.run<float16>(), 1.0) <= 1e-3);
  }
}

TEST_CASE("a single token is its own stored value, for any size of the query") {
  for (const float gain : {1.0F, 1e4F}) {
    for (const Lengths& lengths : {Lengths{0, 1, 0}, Lengths{0, 0, 1}, Lengths{1, 0, 0}}) {
      Setup setup;
      setup.sequences = {lengths};
      setup.query_gain = gain;
      const Problem problem(setup);
      const Sequence& sequence = problem.sequences()[0];
      for (const DecodeOptions& options : all_options()) {
        CAPTURE(name_of(options));
        const Result result = problem.run(options);
        for (int head = 0; head < 2; ++head) {
          std::vector<float> expected(sequence.values.begin() + head * 128,
                                      sequence.values.begin() + head * 128 + 128);
          if (lengths.history > 0) {
            expected = problem.stored_value(0, 0, head);
          }
          for (std::size_t d = 0; d < 128; ++d) {
            // Codes times scale plus zero is rounded once more or less than in the decoder.
            const double tolerance = lengths.history > 0 ? 4e-6 : 0;
            CHECK(std::abs(result.output[static_cast<std::size_t>(2 * head) * 128 + d] -
                           static_cast<double>(expected[d])) <= tolerance);
          }
        }
      }
    }
  }
}

TEST_CASE("logits of +-1e5 neither overflow nor lose the answer") {
  for (const Lengths& lengths : {Lengths{0, 200, 0}, Lengths{0, 0, 200}, Lengths{3, 150, 47}}) {
    for (const float size : {1e5F, -1e5F}) {
      Setup setup;
      setup.kv_heads = 1;
      setup.sequences = {lengths};
      setup.sm_scale = 1;
      // Token 100 has a logit of about `size`, all others of -size; along (1, 1, ..., 1).
      setup.key = [](std::int64_t position, int, int dim, float) {
        return (position == 100 ? 1.0F : -1.0F) * (dim % 2 == 0 ? 1.5F : 0.5F);
      };
      setup.query = [size](int, int, int dim, float) {
        return size / 160 * (dim % 2 == 0 ? 1.5F : 0.5F);
      };
      const Problem problem(setup);
      const Result expected = problem.reference();
      for (DecodeOptions options : all_options()) {
        for (const int num_splits : {0, 2}) {
          options.num_splits = num_splits;
          CAPTURE(name_of(options));
          CAPTURE(size);
          const Result result = problem.run(options);
          if (size > 0) {
            // One token with a byte for its weight.
            CHECK(output_error(result.output, expected) <=
                  (options.exactness == Exactness::fast ? 8e-3 : 1e-4));
          } else {
            // Equal logits of 1e5 up to the rounding of float: weights may differ, the answer is an
            // average.
            for (const double x : result.output) {
              CHECK(std::abs(x) <= 4.5);
            }
          }
          CHECK(std::abs(result.lse[0] / expected.lse[0] - 1) <=
                (options.exactness == Exactness::exact ? 1e-4 : 1e-2));
        }
      }
    }
  }
}

TEST_CASE("a million tiny weights beside a large one are not lost in a float sum") {
  // Token 0 has weight 1 and value 0, 2^20 - 1 others weight 2^-25 and value 1. One running float
  // would stay at 1.
  constexpr std::int64_t tokens = std::int64_t{1} << 20;
  Setup setup = one_head({0, 128, 0}, 16);
  setup.tiles_per_page = 1;
  setup.sm_scale = 1;
  setup.key = [](std::int64_t position, int, int, float normal) {
    return position == 0 ? normal : 0.0F;
  };
  setup.value = [](std::int64_t position, int, int, float) { return position == 0 ? 0.0F : 1.0F; };
  const Problem problem(setup);
  const auto key = problem.stored_key(0, 0, 0);
  double squared = 0;
  for (const float x : key) {
    squared += static_cast<double>(x) * static_cast<double>(x);
  }
  for (std::size_t d = 0; d < key.size(); ++d) {
    problem.queries()(0, 0, 0, d) =
        static_cast<float>(25 * std::log(2.0) / squared * static_cast<double>(key[d]));
  }
  // The second page again and again.
  std::vector<std::byte*> pages(tokens / 64, problem.record(0).history.pages[1]);
  pages[0] = problem.record(0).history.pages[0];
  DecodeSequence& record = problem.record(0);
  record.history = {pages.data(), tokens / 64, 1};
  record.history_end = tokens;
  record.query_position = tokens - 1;
  DecodeProblem shape = problem.shape();
  shape.max_history_tokens = tokens;
  const double tiny = static_cast<double>(tokens - 1) * 0x1p-25;
  for (DecodeOptions options : all_options()) {
    for (const int num_splits : {0, 1, 2}) {
      options.num_splits = num_splits;
      CAPTURE(name_of(options));
      const Result result = problem.run_shape(shape, options);
      const double logit_error = options.exactness == Exactness::exact ? 2e-3 : 0.1;
      CHECK(worst_difference(result, tiny / (1 + tiny)) <= tiny * logit_error);
      CHECK(std::abs(result.lse[0] - 25 * std::log(2.0) - std::log1p(tiny)) <= logit_error);
    }
  }
}

TEST_CASE("zero and constant tokens stay finite and exact") {
  for (const int dim : {64, 80, 96, 120, 128, 576}) {
    for (const KeyCodec codec : {KeyCodec::mse, KeyCodec::inner_product, KeyCodec::float8}) {
      Setup setup;
      setup.format = make_format(codec, codec == KeyCodec::float8 ? 8 : 3, dim, ValueCodec::grouped,
                                 4, dim, dim);
      setup.kv_heads = 1;
      setup.sequences = {{0, 3, 0}};
      // Tokens of zeros only: logits of exactly 0, values of exactly 3.25.
      setup.key = [](auto, int, int, float) { return 0.0F; };
      setup.value = [](auto, int, int, float) { return 3.25F; };
      setup.query_gain = 1000;
      const Problem problem(setup);
      for (const DecodeOptions& options : all_options()) {
        CAPTURE(name_of(options));
        const Result result = problem.run(options);
        CHECK(worst_difference(result, 3.25) <= 1e-6);
        CHECK(std::abs(result.lse[0] - std::log(3.0)) <= 1e-6);
      }
    }
  }
}

TEST_CASE(
    "a query that is no number gives no number, not the answer of a query that sees nothing") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity, 1e36F}) {
    for (const Lengths& lengths : {Lengths{0, 70, 0}, Lengths{0, 0, 5}, Lengths{2, 70, 5}}) {
      Setup setup;
      setup.sequences = {lengths, lengths, {}};
      const Problem problem(setup);
      const Result good = problem.run();
      // One head of the first sequence, and the whole empty one, as padding may hold anything.
      problem.queries()(0, 0, 1, 3) = bad;
      problem.queries()(2, 0, 0, 0) = bad;
      const auto dim = static_cast<std::size_t>(setup.format.value_dim);
      for (const DecodeOptions& options : all_options()) {
        CAPTURE(name_of(options));
        CAPTURE(bad);
        const Result result = problem.run(options);
        const auto heads = static_cast<std::size_t>(problem.query_heads());
        bool spoiled = true;
        bool finite = true;
        for (std::size_t i = 0; i < result.output.size(); ++i) {
          const std::size_t row = i / dim;
          const double x = result.output[i];
          if (row == 1) {
            spoiled = spoiled && x != x;
          } else {
            finite = finite && x - x == 0;
          }
          if (row >= 2 * heads) {
            finite = finite && x == 0;
          }
        }
        CHECK(spoiled);
        CHECK(finite);
        CHECK(result.lse[1] != result.lse[1]);
        CHECK(result.lse[2 * heads] == -static_cast<double>(infinity));
      }
      CHECK(good.output != problem.run().output);
    }
  }
}
