// Attention over tiles and exact rows against a double-precision reference on the same codes.

#include "decode_fixture.hpp"

#include <doctest/doctest.h>

using namespace decode_fixture;

namespace {

constexpr Exactness levels[] = {Exactness::exact, Exactness::int8, Exactness::fast};

void check_all(const Setup& setup) {
  const Problem problem(setup);
  const Result expected = problem.reference();
  for (const HostArch arch : arches()) {
    for (const Exactness exactness : levels) {
      DecodeOptions options;
      options.arch = arch;
      options.exactness = exactness;
      const Result result = problem.run(options);
      CAPTURE(arch_name(arch));
      CAPTURE(to_string(exactness).data());
      CAPTURE(setup.format.key_dim);
      CAPTURE(setup.format.value_dim);
      CAPTURE(setup.format.key_bits);
      CAPTURE(setup.format.value_bits);
      CAPTURE(setup.format.value_group);
      CAPTURE(static_cast<int>(setup.format.key_codec));
      CAPTURE(static_cast<int>(setup.format.value_codec));
      CHECK(output_error(result.output, expected) <= bound(exactness));
      CHECK(largest_difference(result.lse, expected.lse) <=
            (exactness == Exactness::exact ? 2e-4 : 2.5e-2));
    }
  }
}

TileFormat make_format(KeyCodec keys, int key_bits, int key_dim, ValueCodec values, int value_bits,
                       int value_dim, int group) {
  TileFormat format;
  format.key_codec = keys;
  format.key_bits = key_bits;
  format.key_dim = key_dim;
  format.value_codec = values;
  format.value_bits = value_bits;
  format.value_dim = value_dim;
  format.value_group = group;
  return format;
}

}  // namespace

TEST_CASE("every key codec, value codec and bit width") {
  struct Keys {
    KeyCodec codec;
    int bits;
  };
  for (const Keys keys : {Keys{KeyCodec::mse, 2}, Keys{KeyCodec::mse, 3}, Keys{KeyCodec::mse, 4},
                          Keys{KeyCodec::inner_product, 3}, Keys{KeyCodec::inner_product, 4},
                          Keys{KeyCodec::float8, 8}}) {
    for (const int bits : {2, 3, 4}) {
      for (const int group : {8, 16, 32, 128}) {
        Setup setup;
        setup.format =
            make_format(keys.codec, keys.bits, 128, ValueCodec::grouped, bits, 128, group);
        setup.sequences = {{0, 150, 0}};
        check_all(setup);
      }
      Setup setup;
      setup.format = make_format(keys.codec, keys.bits, 128, ValueCodec::codebook, bits, 128, 128);
      setup.sequences = {{0, 150, 0}};
      check_all(setup);
    }
  }
}

TEST_CASE("every head dimension that is a multiple of 8, different for keys and values") {
  struct Dims {
    int key;
    int value;
    int group;
  };
  for (const Dims dims :
       {Dims{16, 16, 16}, Dims{24, 40, 8}, Dims{64, 64, 32}, Dims{72, 56, 56}, Dims{80, 80, 80},
        Dims{96, 96, 32}, Dims{112, 112, 56}, Dims{120, 120, 24}, Dims{160, 160, 32},
        Dims{192, 128, 128}, Dims{256, 256, 32}, Dims{576, 512, 512}, Dims{512, 576, 96}}) {
    for (const int key_bits : {2, 3, 4}) {
      Setup setup;
      setup.format = make_format(KeyCodec::mse, key_bits, dims.key, ValueCodec::grouped, key_bits,
                                 dims.value, dims.group);
      setup.kv_heads = 1;
      setup.ratio = 3;
      setup.sequences = {{2, 70, 9}};
      check_all(setup);
    }
    for (const KeyCodec codec : {KeyCodec::inner_product, KeyCodec::float8}) {
      Setup setup;
      setup.format = make_format(codec, codec == KeyCodec::float8 ? 8 : 3, dims.key,
                                 ValueCodec::codebook, 3, dims.value, dims.value);
      setup.kv_heads = 1;
      setup.ratio = 2;
      setup.sequences = {{0, 70, 0}};
      check_all(setup);
    }
  }
}

TEST_CASE("every ratio of query heads to kv heads, one to eight queries") {
  for (const int ratio : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16}) {
    Setup setup;
    setup.format.value_group = 32;
    setup.ratio = ratio;
    setup.num_queries = 1 + ratio % 8;
    setup.sequences = {{0, 130, 70}, {4, 64, 3}};
    check_all(setup);
  }
}

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

TEST_CASE("sequences of different lengths in one batch") {
  Setup setup;
  setup.sequences = {{0, 0, 5}, {3, 500, 17}, {0, 1, 0}, {0, 0, 0}, {1, 0, 0}, {0, 2000, 128}};
  setup.num_queries = 3;
  check_all(setup);
}

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

TEST_CASE("evicted front tokens are not read") {
  for (const std::int64_t evicted : {1, 64, 100, 200, 299}) {
    Setup setup;
    setup.sequences = {{2, 300, 10}};
    setup.evicted = evicted;
    check_all(setup);
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

TEST_CASE("diffuse attention over many tokens averages the rounding of the query out") {
  for (const int group : {32, 128}) {
    Setup setup;
    setup.format.value_group = group;
    setup.ratio = 4;
    setup.sequences = {{0, 2000, 128}};
    const Problem problem(setup);
    const Result expected = problem.reference();
    for (const HostArch arch : arches()) {
      CAPTURE(arch_name(arch));
      const auto error = [&](Exactness exactness) {
        DecodeOptions options;
        options.arch = arch;
        options.exactness = exactness;
        return output_error(problem.run(options).output, expected);
      };
      CHECK(error(Exactness::exact) <= 2e-5);
      CHECK(error(Exactness::int8) <= 1e-3);
      CHECK(error(Exactness::fast) <= 2.5e-3);
    }
  }
}

TEST_CASE("one long sequence") {
  Setup setup;
  setup.kv_heads = 1;
  setup.ratio = 1;
  setup.format.key_dim = 64;
  setup.format.value_dim = 64;
  setup.format.value_group = 64;
  setup.sequences = {{0, 100001, 128}};
  setup.tiles_per_page = 7;
  check_all(setup);
}

TEST_CASE("output and queries in half precision") {
  Setup setup;
  setup.sequences = {{1, 200, 20}};
  const Problem problem(setup);
  const Result expected = problem.reference();
  DecodeOptions options;
  options.exactness = Exactness::exact;
  CHECK(output_error(problem.run<float16>(options).output, expected) <= 1e-3);
  CHECK(output_error(problem.run<bfloat16>(options).output, expected) <= 8e-3);
}
