// Attention over tiles and exact rows against a double-precision reference on the same codes: every
// format.

#include "decode_fixture.hpp"

#include <doctest/doctest.h>

using namespace decode_fixture;

TEST_CASE("every key codec, value codec, bit width and group size, in both tile orders") {
  struct Keys {
    KeyCodec codec;
    int bits;
  };
  for (const TileOrder order : {TileOrder::host, TileOrder::mma}) {
    for (const Keys keys : {Keys{KeyCodec::mse, 2}, Keys{KeyCodec::mse, 3}, Keys{KeyCodec::mse, 4},
                            Keys{KeyCodec::inner_product, 3}, Keys{KeyCodec::inner_product, 4},
                            Keys{KeyCodec::float8, 8}}) {
      for (const int bits : {2, 3, 4}) {
        for (const int group : {8, 16, 32, 128}) {
          Setup setup;
          setup.format =
              make_format(keys.codec, keys.bits, 128, ValueCodec::grouped, bits, 128, group, order);
          setup.sequences = {{0, 150, 0}};
          check_all(setup);
        }
        Setup setup;
        setup.format =
            make_format(keys.codec, keys.bits, 128, ValueCodec::codebook, bits, 128, 128, order);
        setup.sequences = {{0, 150, 0}};
        check_all(setup);
      }
    }
  }
}

TEST_CASE("every head dimension that is a multiple of 8, different for keys and values") {
  struct Dims {
    int key;
    int value;
    int group;
  };
  for (const Dims dims : {Dims{16, 16, 16}, Dims{24, 40, 8}, Dims{48, 48, 16}, Dims{64, 64, 32},
                          Dims{72, 56, 56}, Dims{80, 80, 80}, Dims{96, 96, 32}, Dims{112, 112, 56},
                          Dims{120, 120, 24}, Dims{160, 160, 32}, Dims{192, 128, 128},
                          Dims{256, 256, 32}, Dims{576, 512, 512}, Dims{512, 576, 96}}) {
    for (const TileOrder order : {TileOrder::host, TileOrder::mma}) {
      if (order == TileOrder::mma && (dims.key % 16 != 0 || dims.value % 16 != 0)) {
        continue;
      }
      for (const int key_bits : {2, 3, 4}) {
        Setup setup;
        setup.format = make_format(KeyCodec::mse, key_bits, dims.key, ValueCodec::grouped, key_bits,
                                   dims.value, dims.group, order);
        setup.kv_heads = 1;
        setup.ratio = 3;
        setup.sequences = {{2, 70, 9}};
        check_all(setup);
      }
      for (const KeyCodec codec : {KeyCodec::inner_product, KeyCodec::float8}) {
        Setup setup;
        setup.format = make_format(codec, codec == KeyCodec::float8 ? 8 : 3, dims.key,
                                   ValueCodec::codebook, 3, dims.value, dims.value, order);
        setup.kv_heads = 1;
        setup.ratio = 2;
        setup.sequences = {{0, 70, 0}};
        check_all(setup);
      }
    }
  }
}

TEST_CASE("every ratio of query heads to kv heads, one to eight queries") {
  for (int ratio = 1; ratio <= 16; ++ratio) {
    Setup setup;
    setup.format.value_group = 32;
    setup.ratio = ratio;
    setup.num_queries = 1 + ratio % 8;
    setup.sequences = {{0, 130, 70}, {4, 64, 3}};
    check_all(setup);
  }
}

TEST_CASE("random shapes") {
  const CounterRng rng(21, 0);
  std::uint64_t drawn = 0;
  const auto draw = [&](int below) {
    return static_cast<int>(rng.uniform(drawn++) * below) % below;
  };
  for (int round = 0; round < 40; ++round) {
    Setup setup;
    const KeyCodec keys[] = {KeyCodec::mse, KeyCodec::inner_product, KeyCodec::float8};
    const KeyCodec codec = keys[draw(3)];
    const int key_bits = codec == KeyCodec::float8 ? 8 : 3 + draw(2);
    const int key_dim = 8 * (2 + draw(24));
    const int groups = 1 + draw(3);
    const bool grouped = draw(3) > 0;
    const int value_dim = 8 * (2 + draw(6)) * groups;
    setup.format =
        make_format(codec, key_bits, key_dim, grouped ? ValueCodec::grouped : ValueCodec::codebook,
                    2 + draw(3), value_dim, grouped ? value_dim / groups : value_dim);
    setup.kv_heads = 1 + draw(3);
    setup.ratio = 1 + draw(9);
    setup.num_queries = 1 + draw(8);
    setup.tiles_per_page = 1 + draw(4);
    setup.sequences = {{draw(5), draw(400), draw(90)}, {0, draw(70), draw(3)}};
    setup.sliding_window = draw(2) == 0 ? 0 : 1 + draw(300);
    setup.soft_cap = draw(2) == 0 ? 0.0F : 5.0F;
    setup.learned_sinks = draw(2) == 0;
    setup.ring_start = draw(5);
    setup.look_back = draw(3) == 0 ? draw(100) : 0;
    setup.stream = static_cast<std::uint64_t>(round);
    CAPTURE(round);
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
    for (const DecodeOptions& options : all_options()) {
      CAPTURE(name_of(options));
      const double documented = options.exactness == Exactness::exact  ? 2e-5
                                : options.exactness == Exactness::int8 ? 1e-3
                                                                       : 2.5e-3;
      CHECK(output_error(problem.run(options).output, expected) <= documented);
    }
  }
}

TEST_CASE("output in half precision") {
  Setup setup;
  setup.sequences = {{1, 200, 20}};
  const Problem problem(setup);
  const Result expected = problem.reference();
  CHECK(output_error(problem.run<float16>().output, expected) <= 1e-3);
  CHECK(output_error(problem.run<bfloat16>().output, expected) <= 8e-3);
}
