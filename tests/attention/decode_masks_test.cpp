// What a query may see: causality, sliding windows, sinks, nothing.

#include "decode_fixture.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace decode_fixture;

namespace {

constexpr double nothing = -std::numeric_limits<double>::infinity();

/// Twenty tokens in every mix of compressed and exact.
const Lengths mixes[] = {{0, 20, 0}, {0, 0, 20}, {0, 12, 8}, {4, 16, 0}, {4, 8, 8}, {20, 0, 0}};

Setup small(const Lengths& lengths) {
  Setup setup;
  setup.format = make_format(KeyCodec::mse, 3, 64, ValueCodec::grouped, 4, 64, 32);
  setup.sequences = {lengths};
  setup.key = [](auto, int, int, float) { return 0.0F; };
  setup.value = [](std::int64_t position, int, int, float) { return static_cast<float>(position); };
  return setup;
}

void check_constant(const Result& result, double output, double tolerance) {
  double worst = 0;
  for (const double x : result.output) {
    worst = std::abs(x - output) <= worst ? worst : std::abs(x - output);
  }
  CHECK(worst <= tolerance);
}

}  // namespace

TEST_CASE("sliding windows, sinks, soft cap, own scale, learned sinks") {
  for (const std::int64_t window : {1, 5, 64, 100, 1000}) {
    Setup setup;
    setup.sequences = {{4, 300, 40}, {0, 90, 0}};
    setup.num_queries = 4;
    setup.sliding_window = window;
    setup.soft_cap = 20;
    setup.sm_scale = 0.11F;
    setup.learned_sinks = true;
    check_all(setup);
  }
}

TEST_CASE("one to eight queries see the tokens before them and themselves") {
  for (int queries = 1; queries <= 8; ++queries) {
    for (const Lengths& lengths : mixes) {
      Setup setup = small(lengths);
      setup.num_queries = queries;
      const Problem problem(setup);
      for (const DecodeOptions& options : all_options()) {
        const Result result = problem.run(options);
        CAPTURE(name_of(options));
        const std::size_t row = result.output.size() / static_cast<std::size_t>(queries);
        for (int query = 0; query < queries; ++query) {
          // Mean of 0 to the query's position; 4-bit values of a token are exact, all being equal.
          const double expected = (20 - queries + query) / 2.0;
          CAPTURE(query);
          CHECK(std::abs(result.output[static_cast<std::size_t>(query) * row] - expected) <= 1e-4);
          CHECK(std::abs(result.lse[static_cast<std::size_t>(query) * row / 64] -
                         std::log(2 * expected + 1)) <= 1e-5);
        }
      }
    }
  }
}

TEST_CASE("tokens after a query are masked, also whole tiles of them") {
  for (const std::int64_t look_back : {1, 30, 100, 250}) {
    Setup setup;
    setup.sequences = {{0, 220, 50}};
    setup.num_queries = 8;
    setup.look_back = look_back;
    check_all(setup);
  }
}

TEST_CASE("a sliding window is the mean of the newest tokens, in every mix of segments") {
  for (const Lengths& lengths : mixes) {
    if (lengths.sinks > 0) {
      continue;  // sinks stay visible
    }
    for (const int window : {1, 4, 8, 12, 20, 64}) {
      Setup setup = small(lengths);
      setup.sliding_window = window;
      const Problem problem(setup);
      const double oldest = window < 20 ? 20 - window : 0;
      for (const DecodeOptions& options : all_options()) {
        CAPTURE(name_of(options));
        check_constant(problem.run(options), (oldest + 19) / 2, 1e-4);
      }
    }
  }
}

TEST_CASE(
    "a query that sees nothing gets zeros and -infinity, with a learned sink the sink's logit") {
  for (const bool learned : {false, true}) {
    for (const Lengths& lengths : {Lengths{0, 200, 0}, Lengths{0, 0, 70}, Lengths{0, 100, 70},
                                   Lengths{0, 0, 0}, Lengths{0, 1, 0}}) {
      Setup setup;
      setup.sequences = {lengths, lengths};
      setup.num_queries = 3;
      setup.learned_sinks = learned;
      const Problem problem(setup);
      // All tokens lie after the queries.
      for (std::size_t i = 0; i < 2; ++i) {
        DecodeSequence& record = problem.record(i);
        record.page_position += 1000;
        record.history_begin += 1000;
        record.history_end += 1000;
        record.window_position += 1000;
        record.query_position = 500;
      }
      for (const DecodeOptions& options : all_options()) {
        const Result result = problem.run(options);
        CAPTURE(name_of(options));
        bool right = true;
        for (const double x : result.output) {
          right = right && x == 0 && !std::signbit(x);
        }
        for (std::size_t i = 0; i < result.lse.size(); ++i) {
          const double expected =
              learned ? static_cast<double>(problem.sink_logits()(i % 4)) : nothing;
          right = right && result.lse[i] == expected;
        }
        CHECK(right);
      }
    }
  }
}

TEST_CASE("with everything compressed masked, one exact token is the answer") {
  Setup setup;
  setup.sequences = {{0, 150, 1}};
  setup.value = [](std::int64_t position, int, int, float normal) {
    return position == 150 ? 7.0F : normal;
  };
  const Problem problem(setup);
  problem.record(0).page_position += 1000;
  problem.record(0).history_begin += 1000;
  problem.record(0).history_end += 1000;
  const Sequence& sequence = problem.sequences()[0];
  for (const DecodeOptions& options : all_options()) {
    const Result result = problem.run(options);
    CAPTURE(name_of(options));
    check_constant(result, 7, 0);
    for (std::size_t head = 0; head < 4; ++head) {
      double logit = 0;
      for (std::size_t d = 0; d < 128; ++d) {
        logit += static_cast<double>(problem.queries()(0, 0, head, d)) *
                 static_cast<double>(sequence.keys[(150 * 2 + head / 2) * 128 + d]);
      }
      CHECK(std::abs(result.lse[head] - logit / std::sqrt(128.0)) <= 1e-5);
    }
  }
}

TEST_CASE("a batch of no sequences and a plan of no history do nothing") {
  Setup setup;
  setup.sequences = {};
  CHECK(Problem(setup).run().output.empty());
  setup.sequences = {{0, 0, 0}};
  check_all(setup);
}

TEST_CASE("every query head reads the kv head of its group, and every element is written") {
  struct Heads {
    int query;
    int kv;
  };
  for (const Heads heads : {Heads{28, 4}, Heads{24, 4}, Heads{40, 8}, Heads{15, 3}, Heads{12, 2},
                            Heads{8, 2}, Heads{71, 1}}) {
    for (const Lengths& lengths : mixes) {
      Setup setup = small(lengths);
      setup.kv_heads = heads.kv;
      setup.ratio = heads.query / heads.kv;
      setup.value = [](std::int64_t, int head, int, float) { return static_cast<float>(head); };
      const Problem problem(setup);
      for (const DecodeOptions& options : all_options()) {
        const Result result = problem.run(options);
        CAPTURE(name_of(options));
        REQUIRE(result.output.size() == static_cast<std::size_t>(heads.query) * 64);
        double worst = 0;
        for (std::size_t i = 0; i < result.output.size(); ++i) {
          const auto head = static_cast<int>(i / 64) / setup.ratio;
          const double error = std::abs(result.output[i] - head);
          worst = error <= worst ? worst : error;
        }
        CHECK(worst <= 1e-5);
      }
    }
  }
}

TEST_CASE("keys are never used as values, and no token is lost or doubled between the segments") {
  for (std::int64_t split = 0; split <= 14; ++split) {
    Setup setup = small({0, split, 14 - split});
    setup.key = [](auto, int, int, float) { return 3.0F; };
    setup.query = [](int, int, int, float) { return 0.0F; };
    setup.value = [](std::int64_t position, int, int, float) {
      return static_cast<float>(1 << position);
    };
    const Problem problem(setup);
    for (const DecodeOptions& options : all_options()) {
      CAPTURE(name_of(options));
      CAPTURE(split);
      // A power of two per token: the binary digits of 14 times the output name the tokens.
      check_constant(problem.run(options), 16383.0 / 14, 0.02);
    }
  }
}

TEST_CASE("a query's bits do not depend on tokens that it does not see") {
  constexpr std::int64_t tokens = 200;
  constexpr int queries = 8;
  // Tokens behind the fourth query, and those that have left the fourth query's window.
  for (const std::int64_t window : {0, 16}) {
    const std::int64_t fourth = tokens - queries + 3;
    const auto unseen = [&](std::int64_t position) {
      return window == 0 ? position > fourth : position <= fourth - window;
    };
    const auto problem = [&](float gain) {
      Setup setup;
      setup.format = make_format(KeyCodec::mse, 3, 64, ValueCodec::grouped, 4, 64, 32);
      setup.sequences = {{0, tokens, 0}};
      setup.num_queries = queries;
      setup.sliding_window = window;
      setup.value = [&unseen, gain](std::int64_t position, int, int, float normal) {
        return unseen(position) ? gain * normal : normal;
      };
      return Problem(setup);
    };
    const Problem ordinary = problem(1);
    const Problem outlying = problem(1e4F);
    for (const DecodeOptions& options : all_options()) {
      CAPTURE(name_of(options));
      const Result a = ordinary.run(options);
      const Result b = outlying.run(options);
      const std::size_t row = a.output.size() / queries;
      const std::size_t begin = window == 0 ? 0 : 3 * row;
      const std::size_t end = window == 0 ? 4 * row : queries * row;
      for (std::size_t i = begin; i < end; ++i) {
        REQUIRE(a.output[i] == b.output[i]);
      }
      CHECK(a.output != b.output);
    }
  }
}

TEST_CASE("a token that outweighs all others is as precise as its own values") {
  for (const float size : {1e-3F, 1e-4F}) {
    Setup setup = small({0, 64, 0});
    setup.sm_scale = 1;
    setup.query = [](int, int, int dim, float) { return dim == 0 ? 8.0F : 0.0F; };
    setup.key = [](std::int64_t position, int, int dim, float) {
      return position == 20 && dim == 0 ? 8.0F : 0.0F;
    };
    setup.value = [size](std::int64_t position, int, int, float normal) {
      return position == 20 ? size * normal : normal;
    };
    const Problem problem(setup);
    const Result expected = problem.reference();
    for (const DecodeOptions& options : all_options()) {
      CAPTURE(name_of(options));
      CHECK(output_error(problem.run(options).output, expected) <= bound(options.exactness));
    }
  }
}
