// Tiles of 16 and 32 tokens, for pages as small: the size of tiles changes no bit where vector
// units put tiles together, and stays within the bounds elsewhere.

#include "decode_fixture.hpp"

#include <doctest/doctest.h>

using namespace decode_fixture;

namespace {

TileFormat with_tiles_of(TileFormat format, int tokens) {
  format.tile_tokens = tokens;
  return format;
}

/// Every way to store keys and values, dimensions with and without a rest.
std::vector<TileFormat> formats() {
  std::vector<TileFormat> all;
  for (const int dim : {16, 40, 128}) {
    for (const int bits : {2, 3, 4}) {
      all.push_back(make_format(KeyCodec::mse, bits, dim, ValueCodec::grouped, bits, dim, dim));
    }
    all.push_back(make_format(KeyCodec::inner_product, 4, dim, ValueCodec::codebook, 3, dim, dim));
    all.push_back(make_format(KeyCodec::float8, 8, dim, ValueCodec::grouped, 2, dim, 8));
  }
  all.push_back(make_format(KeyCodec::inner_product, 3, 96, ValueCodec::grouped, 3, 120, 24));
  return all;
}

}  // namespace

TEST_CASE("in host order the size of tiles changes no bit of what vector units compute") {
  for (const TileFormat& format : formats()) {
    Setup setup;
    setup.format = format;
    setup.sequences = {{0, 200, 10}, {3, 64, 0}, {0, 17, 0}};
    const Problem whole(setup);
    for (const int tokens : {16, 32}) {
      setup.format = with_tiles_of(format, tokens);
      setup.tiles_per_page = tokens == 16 ? 1 : 3;
      const Problem small(setup);
      for (DecodeOptions options : all_options()) {
        if (options.arch == HostArch::portable) {
          continue;  // takes tile after tile
        }
        options.num_splits = tokens == 16 ? 3 : 0;
        CAPTURE(name_of(options));
        CAPTURE(format.key_dim);
        CAPTURE(tokens);
        const Result expected = whole.run_on_one_thread(options);
        const Result result = small.run_on_one_thread(options);
        CHECK(result.output == expected.output);
        CHECK(result.lse == expected.lse);
      }
    }
  }
}

TEST_CASE("small tiles of every format in every order are within the bounds") {
  for (const TileFormat& format : formats()) {
    for (const int tokens : {16, 32}) {
      for (const TileOrder order : {TileOrder::host, TileOrder::mma}) {
        Setup setup;
        setup.format = with_tiles_of(format, tokens);
        setup.format.order = order;
        if (order == TileOrder::mma && (format.key_dim % 16 != 0 || format.value_dim % 16 != 0)) {
          continue;
        }
        setup.sequences = {{4, 90, 40}};
        setup.num_queries = 2;
        setup.kv_heads = 1;
        setup.tiles_per_page = 1;
        check_all(setup);
      }
    }
  }
}

TEST_CASE("lengths around the borders of small tiles, windows, masks and evicted pages") {
  for (const int tokens : {16, 32}) {
    for (const std::int64_t history : {1, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 200}) {
      Setup setup;
      setup.format = with_tiles_of(TileFormat{}, tokens);
      setup.tiles_per_page = 1;
      setup.sequences = {{0, history, 3}};
      setup.num_queries = 2;
      setup.kv_heads = 1;
      check_all(setup);
      setup.look_back = history / 3;
      check_all(setup);
      setup.sliding_window = 20;
      check_all(setup);
      if (history > tokens) {
        setup.evicted = history / tokens * tokens / 2;
        setup.look_back = 0;
        check_all(setup);
      }
    }
  }
}

TEST_CASE("tokens beyond the pages of small tiles are refused") {
  Setup setup;
  setup.format.tile_tokens = 16;
  setup.tiles_per_page = 1;
  setup.sequences = {{0, 40, 0}};
  const Problem problem(setup);
  const Call call = problem.call();
  call.sequences(0).history.num_pages = 2;
  try {
    problem.decode(problem.shape(), {}, call);
    FAIL("40 tokens in two pages of 16 were accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::out_of_range);
  }
}
