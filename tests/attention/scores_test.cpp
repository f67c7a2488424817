// Logits straight from the codes against double precision on the decoded keys.

#include "decode_fixture.hpp"

#include <turboquant/attention/scores.hpp>

#include <doctest/doctest.h>
#include <support/error_of.hpp>
#include <support/one_thread.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

using namespace decode_fixture;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

using Exec = Kokkos::DefaultHostExecutionSpace;
using Logits = Kokkos::View<float***, Kokkos::LayoutRight, Memory>;

/// Scores all or part of the histories of a problem of one query each.
template <class Query = float, class ExecutionSpace = Exec>
struct Scoring {
  Kokkos::View<Query***, Kokkos::LayoutRight, Memory> queries;
  Kokkos::View<ScoreSequence*, Memory> sequences;
  Logits logits;

  Scoring(const Problem& problem, std::size_t columns)
      : queries("queries", problem.queries().extent(0), problem.queries().extent(2),
                problem.queries().extent(3)),
        sequences("sequences", queries.extent(0)),
        logits("logits", queries.extent(0), queries.extent(1), columns) {
    for (std::size_t i = 0; i < queries.size(); ++i) {
      if constexpr (std::is_same_v<Query, float>) {
        queries.data()[i] = problem.queries().data()[i];
      } else {
        queries.data()[i] = Query::from_float(problem.queries().data()[i]);
      }
    }
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      sequences(i) = {problem.record(i).history, 0, problem.setup().sequences[i].history};
    }
    Kokkos::deep_copy(logits, 7.0F);
  }

  void run(const Problem& problem, const ScoreOptions& options = {}, int kv_heads = 0) const {
    ScoreInputs<Query, Memory> inputs;
    inputs.queries = queries;
    inputs.sequences = sequences;
    const ExecutionSpace exec;
    const int heads = kv_heads == 0 ? problem.setup().kv_heads : kv_heads;
    if (problem.codec().format().key_codec == KeyCodec::inner_product) {
      inner_product_score(exec, problem.codec(), heads, inputs, logits, options);
    } else {
      mse_score(exec, problem.codec(), heads, inputs, logits, options);
    }
    exec.fence();
  }
};

double number(float x) {
  return static_cast<double>(x);
}
template <class Half>
double number(Half x) {
  return static_cast<double>(x.to_float());
}

/// Every logit against <query, decoded key> * scale; relative to the lengths of both.
template <class Query, class ExecutionSpace>
void check_logits(const Problem& problem, const Scoring<Query, ExecutionSpace>& scoring,
                  double scale) {
  const auto dim = static_cast<std::size_t>(problem.codec().format().key_dim);
  double worst = 0;
  bool ends = true;
  for (std::size_t s = 0; s < scoring.sequences.size(); ++s) {
    const ScoreSequence& sequence = scoring.sequences(s);
    const auto valid = static_cast<std::size_t>(sequence.end - sequence.begin);
    for (std::size_t head = 0; head < scoring.logits.extent(1); ++head) {
      for (std::size_t i = 0; i < scoring.logits.extent(2); ++i) {
        const float logit = scoring.logits(s, head, i);
        if (i >= valid) {
          ends = ends && logit == -std::numeric_limits<float>::infinity();
          continue;
        }
        const auto key = problem.stored_key(s, sequence.begin + static_cast<std::int64_t>(i),
                                            static_cast<int>(head) / problem.setup().ratio);
        double dot = 0;
        double squares = 0;
        double query_squares = 0;
        for (std::size_t d = 0; d < dim; ++d) {
          const double q = number(scoring.queries(s, head, d));
          dot += q * number(key[d]);
          squares += number(key[d]) * number(key[d]);
          query_squares += q * q;
        }
        const double length = std::sqrt(squares * query_squares) + 1e-30;
        const double error = std::abs(number(logit) / scale - dot) / length;
        worst = error <= worst ? worst : error;
      }
    }
  }
  CHECK(worst <= 2e-6);
  CHECK(ends);
}

Setup scored(const TileFormat& format) {
  Setup setup;
  setup.format = format;
  setup.ratio = 5;
  setup.sequences = {{0, 150, 0}, {0, 1, 0}, {0, 0, 0}, {0, 64, 0}};
  return setup;
}

}  // namespace

TEST_CASE("logits of every codec and head dimension, in both tile orders") {
  for (const TileOrder order : {TileOrder::host, TileOrder::mma}) {
    for (const int dim : {16, 24, 64, 80, 96, 120, 128, 256, 576}) {
      if (order == TileOrder::mma && dim % 16 != 0) {
        continue;
      }
      struct Keys {
        KeyCodec codec;
        int bits;
      };
      for (const Keys keys :
           {Keys{KeyCodec::mse, 2}, Keys{KeyCodec::mse, 3}, Keys{KeyCodec::mse, 4},
            Keys{KeyCodec::inner_product, 3}, Keys{KeyCodec::inner_product, 4}}) {
        for (const KeyCentring centring : {KeyCentring::none, KeyCentring::tile_mean}) {
          TileFormat format =
              make_format(keys.codec, keys.bits, dim, ValueCodec::grouped, 2, 16, 16, order);
          format.key_centring = centring;
          Setup setup = scored(format);
          setup.key = [centring](std::int64_t, int, int d, float normal) {
            return centring == KeyCentring::none ? normal : normal + static_cast<float>(d % 7);
          };
          const Problem problem(setup);
          CAPTURE(dim);
          CAPTURE(static_cast<int>(keys.codec));
          CAPTURE(keys.bits);
          CAPTURE(static_cast<int>(order));
          CAPTURE(static_cast<int>(centring));
          const Scoring<> scoring(problem, 200);
          scoring.run(problem);
          check_logits(problem, scoring, 1 / std::sqrt(static_cast<double>(dim)));
        }
      }
    }
  }
}

TEST_CASE("the scale is the model's; queries may be 16-bit; one thread gives the same bits") {
  const Problem problem(scored(TileFormat{}));
  const Scoring<> scoring(problem, 150);
  scoring.run(problem, {.sm_scale = 0.7F});
  check_logits(problem, scoring, static_cast<double>(0.7F));
  const Scoring<float, turboquant::test::OneThread> serial(problem, 150);
  serial.run(problem, {.sm_scale = 0.7F});
  bool same = true;
  for (std::size_t i = 0; i < scoring.logits.size(); ++i) {
    same = same && scoring.logits.data()[i] == serial.logits.data()[i];
  }
  CHECK(same);
  const Scoring<bfloat16> brief(problem, 150);
  brief.run(problem, {.sm_scale = 1});
  check_logits(problem, brief, 1);
  const Scoring<float16> half(problem, 150);
  half.run(problem, {.sm_scale = 1});
  check_logits(problem, half, 1);
}

TEST_CASE("any part of a history has the bits of the whole, in any number of columns") {
  Setup setup = scored(TileFormat{});
  setup.sequences = {{0, 2500, 0}, {0, 2500, 0}};
  const Problem problem(setup);
  const Scoring<> whole(problem, 2500);
  whole.run(problem);
  check_logits(problem, whole, 1 / std::sqrt(128.0));
  for (const std::int64_t begin : {0, 1, 63, 64, 1000, 2499, 2500}) {
    for (const std::size_t columns : {1U, 2U, 63U, 64U, 65U, 1023U, 1024U, 1025U, 2600U}) {
      const Scoring<> part(problem, columns);
      for (std::size_t s = 0; s < 2; ++s) {
        part.sequences(s).begin = begin;
        part.sequences(s).end =
            std::min<std::int64_t>(begin + static_cast<std::int64_t>(columns), 2500);
      }
      part.run(problem);
      bool same = true;
      for (std::size_t i = 0; i < part.logits.size(); ++i) {
        const std::size_t column = i % columns + static_cast<std::size_t>(begin);
        const float expected = column < 2500
                                   ? whole.logits(i / columns / 10, i / columns % 10, column)
                                   : -std::numeric_limits<float>::infinity();
        same = same && part.logits.data()[i] == expected;
      }
      CAPTURE(begin);
      CAPTURE(columns);
      CHECK(same);
    }
  }
}

TEST_CASE("zero keys have logits of exactly 0, whatever is beside them") {
  for (const int dim : {64, 80, 96, 120, 128, 576}) {
    for (const int bits : {2, 3, 4}) {
      for (const KeyCodec codec : {KeyCodec::mse, KeyCodec::inner_product}) {
        if (codec == KeyCodec::inner_product && bits == 2) {
          continue;
        }
        Setup setup = scored(make_format(codec, bits, dim, ValueCodec::grouped, 2, 16, 16));
        setup.sequences = {{0, 3, 0}, {0, 2, 0}};
        setup.query_gain = 1e4F;
        setup.key = [](std::int64_t position, int, int, float normal) {
          return position == 1 ? 0.0F : normal;
        };
        const Problem problem(setup);
        const Scoring<> scoring(problem, 3);
        scoring.run(problem);
        for (std::size_t head = 0; head < 10; ++head) {
          CHECK(scoring.logits(0, head, 1) == 0.0F);
          CHECK(scoring.logits(1, head, 1) == 0.0F);
          CHECK(scoring.logits(0, head, 0) != 0.0F);
        }
      }
    }
  }
}

TEST_CASE("scales up to the largest one give finite logits, 16-bit queries are read as they are") {
  const Problem problem(scored(TileFormat{}));
  for (const float scale : {1e18F, -1e18F, 1e-30F}) {
    Scoring<bfloat16> scoring(problem, 150);
    scoring.run(problem, {.sm_scale = scale});
    for (std::int64_t i = 0; i < problem.setup().sequences[0].history; ++i) {
      CHECK(std::isfinite(scoring.logits(0, 0, std::size_t(i))));
    }
  }
  Scoring<float16> scoring(problem, 150);
  scoring.queries(1, 2, 3) = float16::from_float(std::numeric_limits<float>::infinity());
  CHECK(mentions(error_of(ErrorCode::non_finite, [&] { scoring.run(problem); }),
                 "mse_score: queries(1, 2, 3) is inf, expected a finite number"));
}

TEST_CASE("what does not fit is refused before anything is written") {
  const Problem problem(scored(TileFormat{}));
  const auto refused = [&](ErrorCode code, const char* part, const auto& change) {
    Scoring<> scoring(problem, 150);
    ScoreOptions options;
    int kv_heads = 2;
    change(scoring, options, kv_heads);
    const std::string message = error_of(code, [&] { scoring.run(problem, options, kv_heads); });
    CHECK_MESSAGE(mentions(message, part), message);
    bool untouched = true;
    for (std::size_t i = 0; i < scoring.logits.size(); ++i) {
      untouched = untouched && scoring.logits.data()[i] == 7.0F;
    }
    CHECK(untouched);
  };
  using S = Scoring<>;
  using O = ScoreOptions;
  refused(ErrorCode::invalid_argument, "mse_score: kv_heads is -1",
          [](S&, O&, int& heads) { heads = -1; });
  refused(ErrorCode::shape_mismatch, "queries.extent(1) is 10, expected a positive multiple",
          [](S&, O&, int& heads) { heads = 3; });
  refused(ErrorCode::invalid_argument, "sm_scale is ",
          [](S&, O& o, int&) { o.sm_scale = std::numeric_limits<float>::infinity(); });
  for (const float scale : {3e38F, -1.1e18F, std::numeric_limits<float>::quiet_NaN()}) {
    refused(ErrorCode::invalid_argument, "expected a finite number of at most 1e18 in magnitude",
            [&](S&, O& o, int&) { o.sm_scale = scale; });
  }
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    refused(ErrorCode::non_finite, "mse_score: queries(3, 9, 127) is ",
            [&](S& s, O&, int&) { s.queries(3, 9, 127) = bad; });
    refused(ErrorCode::non_finite, "mse_score: queries(0, 2, 5) is ",
            [&](S& s, O&, int&) { s.queries(0, 2, 5) = bad; });
  }
  refused(ErrorCode::shape_mismatch, "queries.extent(2) is 64, expected 128",
          [](S& s, O&, int&) { s.queries = decltype(s.queries)("queries", 4, 10, 64); });
  refused(ErrorCode::shape_mismatch, "sequences.extent(0) is 3, expected 4",
          [](S& s, O&, int&) { s.sequences = Kokkos::subview(s.sequences, std::make_pair(0, 3)); });
  refused(ErrorCode::shape_mismatch, "sequences[0] has 151 tokens, expected at most",
          [](S& s, O&, int&) { s.sequences(0).end = 151; });
  refused(ErrorCode::invalid_argument, "sequences[1] is [2, 1)",
          [](S& s, O&, int&) { s.sequences(1).begin = 2; });
  refused(ErrorCode::invalid_argument, "sequences[1] is [-1, 1)",
          [](S& s, O&, int&) { s.sequences(1).begin = -1; });
  refused(ErrorCode::invalid_argument, "expected 0 <= begin <= end <= 2^60", [](S& s, O&, int&) {
    s.sequences(1).end = std::numeric_limits<std::int64_t>::max();
    s.sequences(1).begin = s.sequences(1).end - 10;
  });
  refused(ErrorCode::invalid_argument, "tiles_per_page is 9223372036854775807", [](S& s, O&, int&) {
    s.sequences(3).history.tiles_per_page = std::numeric_limits<std::int64_t>::max();
  });
  refused(ErrorCode::out_of_range, "sequences[3]: tokens [0, 129) lie outside the 1 pages",
          [](S& s, O&, int&) { s.sequences(3).end = 129; });
  const S scoring(problem, 150);
  ScoreInputs<float, Memory> inputs;
  inputs.queries = scoring.queries;
  inputs.sequences = scoring.sequences;
  CHECK(mentions(
      error_of(ErrorCode::invalid_argument,
               [&] { inner_product_score(Exec(), problem.codec(), 2, inputs, scoring.logits); }),
      "inner_product_score: codec.format().key_codec is mse, expected inner_product"));
  S overlapping(problem, 150);
  overlapping.logits = decltype(overlapping.logits)(overlapping.queries.data() + 5119, 4, 10, 150);
  CHECK(mentions(
      error_of(ErrorCode::invalid_argument, [&] { overlapping.run(problem, ScoreOptions{}, 2); }),
      "mse_score: logits overlaps queries, expected memory of its own"));
}
