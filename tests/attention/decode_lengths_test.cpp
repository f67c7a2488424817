// Lengths, batches, and what lies beside the tokens.

#include "decode_fixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>

using namespace decode_fixture;

TEST_CASE("lengths around tile and page borders") {
  for (const std::int64_t history : {0, 1, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025}) {
    for (const std::int64_t window :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{64}, std::int64_t{130}}) {
      Setup setup;
      setup.sequences = {{0, history, window}};
      setup.num_queries = 2;
      check_all(setup);
    }
  }
}

TEST_CASE("one long sequence") {
  Setup setup;
  setup.kv_heads = 1;
  setup.ratio = 1;
  setup.format = make_format(KeyCodec::mse, 3, 16, ValueCodec::grouped, 4, 16, 16);
  setup.sequences = {{0, 100001, 128}};
  setup.tiles_per_page = 7;
  check_all(setup);
}

TEST_CASE("sequences of different lengths in one batch") {
  Setup setup;
  setup.sequences = {{0, 0, 5}, {3, 500, 17}, {0, 1, 0}, {0, 0, 0}, {1, 0, 0}, {0, 2000, 128}};
  setup.num_queries = 3;
  check_all(setup);
}

TEST_CASE("a sequence gives the same bits alone and in any batch") {
  Setup setup;
  setup.format.value_group = 32;
  setup.sequences = {{3, 1500, 17}, {0, 65, 0}, {0, 0, 0}, {0, 1100, 128}};
  setup.num_queries = 2;
  const Problem batch(setup);
  for (const int num_splits : {0, 3}) {
    for (DecodeOptions options : all_options()) {
      options.num_splits = num_splits;
      CAPTURE(name_of(options));
      const Result together = batch.run(options);
      const std::size_t rows = together.lse.size() / 4;
      for (std::size_t i = 0; i < 4; ++i) {
        DecodeProblem shape = batch.shape();
        shape.num_sequences = 1;
        shape.max_history_tokens = setup.sequences[i].history;
        Call call = batch.call(options);
        const auto one = std::make_pair(i, i + 1);
        call.queries = decltype(call.queries)("queries", 1, 2, 4, 128);
        std::copy_n(batch.queries().data() + i * call.queries.size(), call.queries.size(),
                    call.queries.data());
        call.sequences = Kokkos::subview(call.sequences, one);
        call.output = decltype(call.output)("output", 1, 2, 4, 128);
        call.lse = decltype(call.lse)("lse", 1, 2, 4);
        batch.decode(shape, options, call);
        bool same = true;
        for (std::size_t k = 0; k < rows * 128; ++k) {
          same = same &&
                 static_cast<double>(call.output.data()[k]) == together.output[i * rows * 128 + k];
        }
        for (std::size_t k = 0; k < rows; ++k) {
          same = same && static_cast<double>(call.lse.data()[k]) == together.lse[i * rows + k];
        }
        CAPTURE(i);
        CHECK(same);
      }
    }
  }
}

TEST_CASE("what lies behind the tiles of a page and in unused slots is never used") {
  for (const std::size_t padding : {std::size_t{64}, std::size_t{4096}}) {
    Setup setup;
    setup.sequences = {{0, 200, 0}, {0, 64, 3}};
    const Problem plain(setup);
    setup.page_padding = padding;
    const Problem padded(setup);
    for (const DecodeOptions& options : all_options()) {
      CAPTURE(name_of(options));
      const Result expected = plain.run(options);
      const Result result = padded.run(options);
      CHECK(result.output == expected.output);
      CHECK(result.lse == expected.lse);
    }
    check_all(setup);
  }
}

TEST_CASE("evicted front tokens are not read") {
  for (const std::int64_t evicted : {1, 64, 100, 200, 299}) {
    Setup setup;
    setup.sequences = {{2, 300, 10}};
    setup.evicted = evicted;
    check_all(setup);
  }
}
