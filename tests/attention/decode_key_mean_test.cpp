// Attention and scores over tiles with a key mean, against double precision on the same codes.

#include "decode_fixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

using namespace decode_fixture;

namespace {

/// Keys with a bias of their own for every head and dimension, `size` times their spread; one in
/// nine has none, and is stored as it is.
Setup biased(TileFormat format, float size = 30) {
  Setup setup;
  setup.format = format;
  setup.format.key_centring = KeyCentring::tile_mean;
  setup.query_gain = 2 / size;  // logits with a standard deviation of about 1
  setup.key = [size](std::int64_t position, int head, int dim, float normal) {
    const float bias = position % 50 == 4 ? 0.0F : size;
    return normal + bias * std::sin(static_cast<float>(3 * dim + 50 * head));
  };
  return setup;
}

}  // namespace

TEST_CASE("key means: every key codec, value codec, order and head dimension") {
  struct Keys {
    KeyCodec codec;
    int bits;
  };
  for (const Keys keys : {Keys{KeyCodec::mse, 2}, Keys{KeyCodec::mse, 3}, Keys{KeyCodec::mse, 4},
                          Keys{KeyCodec::inner_product, 3}, Keys{KeyCodec::float8, 8}}) {
    for (const int dim : {16, 24, 64, 80, 120, 128, 256, 576}) {
      for (const TileOrder order : {TileOrder::host, TileOrder::mma}) {
        if (order == TileOrder::mma && dim % 16 != 0) {
          continue;
        }
        const bool table = dim % 32 == 0;
        Setup setup = biased(make_format(keys.codec, keys.bits, dim,
                                         table ? ValueCodec::codebook : ValueCodec::grouped, 3, dim,
                                         table ? dim : 8, order));
        setup.ratio = 3;
        setup.sequences = {{2, 150, 9}, {0, 1, 0}};
        check_all(setup);
      }
    }
  }
}

TEST_CASE("key means: ratios, several queries, masks, caps, windows, sinks and evicted tokens") {
  for (const int ratio : {1, 2, 3, 4, 7, 8}) {
    Setup setup = biased(TileFormat{});
    setup.ratio = ratio;
    setup.num_queries = 1 + ratio % 4;
    setup.sequences = {{0, 0, 5}, {3, 500, 17}, {0, 65, 0}, {0, 0, 0}, {0, 1025, 128}};
    check_all(setup);
    setup.sliding_window = 100;
    setup.sm_scale = 0.05F;
    setup.soft_cap = 20;
    setup.learned_sinks = true;
    setup.look_back = 30;
    check_all(setup);
  }
  for (const std::int64_t evicted : {1, 100, 299}) {
    Setup setup = biased(TileFormat{});
    setup.sequences = {{2, 300, 10}};
    setup.evicted = evicted;
    check_all(setup);
  }
}

TEST_CASE("key means: hard rows") {
  const std::vector<float> rows = turboquant::test::hard_rows(64, 128, 3);
  for (const KeyCodec codec : {KeyCodec::mse, KeyCodec::inner_product}) {
    Setup setup = biased(make_format(codec, 3, 128, ValueCodec::grouped, 4, 128, 128));
    setup.key = [&](std::int64_t position, int head, int dim, float) {
      const auto row = static_cast<std::size_t>(position * 2 + head) % 64;
      // Attention itself needs logits that float can tell apart.
      return std::clamp(rows[row * 128 + static_cast<std::size_t>(dim)], -300.0F, 300.0F) + 30;
    };
    setup.query_gain = 0.01F;
    setup.sequences = {{0, 300, 3}};
    check_all(setup);
  }
}

TEST_CASE("key means: any split agrees, batch equals singles, one thread gives the same bits") {
  Setup setup = biased(TileFormat{});
  setup.ratio = 3;
  setup.num_queries = 2;
  setup.sequences = {{3, 3000, 70}, {0, 100, 0}, {0, 0, 9}, {0, 1111, 0}};
  const Problem problem(setup);
  const Result expected = problem.reference();
  for (DecodeOptions options : all_options()) {
    const Result automatic = problem.run(options);
    CAPTURE(name_of(options));
    const Result serial = problem.run_on_one_thread(options);
    CHECK(automatic.output == serial.output);
    CHECK(automatic.lse == serial.lse);
    for (const int num_splits : {1, 2, 7, 47, 48, 200}) {
      options.num_splits = num_splits;
      CAPTURE(num_splits);
      const Result result = problem.run(options);
      CHECK(output_error(result.output, expected) <= bound(options.exactness));
      CHECK(largest_difference(result.lse, automatic.lse) <= 2e-5);
    }
    options.num_splits = 0;
    for (std::size_t i = 0; i < setup.sequences.size(); ++i) {
      DecodeProblem shape = problem.shape();
      shape.num_sequences = 1;
      Call call = problem.call(options);
      call.queries = decltype(call.queries)("queries", 1, 2, 6, 128);
      std::copy_n(problem.queries().data() + i * call.queries.size(), call.queries.size(),
                  call.queries.data());
      call.sequences = Kokkos::subview(call.sequences, std::make_pair(i, i + 1));
      call.output = decltype(call.output)("output", 1, 2, 6, 128);
      call.lse = decltype(call.lse)("lse", 1, 2, 6);
      problem.decode(shape, options, call);
      const std::size_t rows = call.lse.size();
      CHECK(std::equal(call.lse.data(), call.lse.data() + rows,
                       automatic.lse.begin() + static_cast<std::ptrdiff_t>(i * rows)));
      CHECK(std::equal(
          call.output.data(), call.output.data() + call.output.size(),
          automatic.output.begin() + static_cast<std::ptrdiff_t>(i * call.output.size())));
    }
  }
}

TEST_CASE("key means keep an 8-bit query from rounding what all tokens share") {
  // Without means the query's rounding meets the bias; with them it meets the spread alone.
  Setup setup = biased(TileFormat{});
  setup.sequences = {{0, 1000, 0}};
  DecodeOptions options;
  options.exactness = Exactness::int8;
  const Problem with(setup);
  setup.format.key_centring = KeyCentring::none;
  const Problem without(setup);
  const auto error = [&](const Problem& problem) {
    return largest_difference(problem.run(options).lse, problem.reference().lse);
  };
  CHECK(error(with) < 0.02);
  CHECK(error(with) < error(without));
}

TEST_CASE("key means of 10,000 times the spread") {
  Setup setup = biased(TileFormat{}, 1e4F);
  setup.sequences = {{0, 500, 9}};
  const Problem problem(setup);
  const Result expected = problem.reference();
  for (const DecodeOptions& options : all_options()) {
    CAPTURE(name_of(options));
    const Result result = problem.run(options);
    CHECK(output_error(result.output, expected) <= bound(options.exactness));
    CHECK(largest_difference(result.lse, expected.lse) <= 2e-3);
  }
}
