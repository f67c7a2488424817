// Attention on every execution space of this build against double precision on the same codes.

#include "space_problem.hpp"

#include <turboquant/device/preferred_order.hpp>

#include <doctest/doctest.h>
#include <support/one_thread.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <type_traits>

using namespace decode_fixture;

namespace {

/// The reference on any device; matrix units have a test of their own.
constexpr DecodeOptions portable{.device = DeviceArch::portable};
constexpr DecodeOptions dot{.device = DeviceArch::dot};

/// Integers of 15 bits stay below this, whatever the tokens.
constexpr double dot_bound = 1e-3;

/// Of all checks so far.
double worst_dot_error = 0;

template <class ExecutionSpace>
void check_dot_products(const ExecutionSpace& exec, const SpaceProblem<ExecutionSpace>& there,
                        const Result& expected) {
  if (!detail::dot_refusal(there.codec().format()).empty()) {
    CHECK_THROWS_AS(static_cast<void>(there.run(exec, dot)), Error);
    return;
  }
  for (const int splits : {0, 3}) {
    DecodeOptions options = dot;
    options.num_splits = splits;
    CAPTURE(splits);
    const Result first = there.run(exec, options);
    worst_dot_error = std::max(worst_dot_error, output_error(first.output, expected));
    CHECK(output_error(first.output, expected) <= dot_bound);
    CHECK(largest_difference(first.lse, expected.lse) <= dot_bound);
    const Result again = there.run(exec, options);
    CHECK(first.output == again.output);
    CHECK(first.lse == again.lse);
  }
}

void check(const Setup& setup) {
  const Problem problem(setup);
  const Result expected = problem.reference();
  CAPTURE(setup.format.key_dim);
  CAPTURE(setup.format.value_dim);
  CAPTURE(setup.format.key_bits);
  CAPTURE(setup.format.value_bits);
  CAPTURE(setup.format.value_group);
  CAPTURE(static_cast<int>(setup.format.key_codec));
  CAPTURE(static_cast<int>(setup.format.value_codec));
  CAPTURE(static_cast<int>(setup.format.order));
  test::for_each_execution_space("decode_spaces", [&](const auto& exec) {
    CAPTURE(std::string(exec.name()));
    const SpaceProblem<std::decay_t<decltype(exec)>> there(problem);
    const Result first = there.run(exec, portable);
    CHECK(output_error(first.output, expected) <= bound(Exactness::exact));
    CHECK(largest_difference(first.lse, expected.lse) <= 2e-4);
    const Result again = there.run(exec, portable);
    CHECK(first.output == again.output);
    CHECK(first.lse == again.lse);
    if constexpr (detail::has_dot_products<std::decay_t<decltype(exec)>>) {
      check_dot_products(exec, there, expected);
    }
  });
}

/// In host order, and in mma order where the dimensions allow it.
void check_orders(Setup setup) {
  check(setup);
  if (setup.format.key_dim % 16 == 0 && setup.format.value_dim % 16 == 0) {
    setup.format.order = TileOrder::mma;
    check(setup);
  }
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
      for (const int group : {8, 32, 128}) {
        Setup setup;
        setup.format =
            make_format(keys.codec, keys.bits, 128, ValueCodec::grouped, bits, 128, group);
        setup.sequences = {{0, 150, 0}};
        check_orders(setup);
      }
      Setup setup;
      setup.format = make_format(keys.codec, keys.bits, 128, ValueCodec::codebook, bits, 128, 128);
      setup.sequences = {{0, 150, 0}};
      check_orders(setup);
    }
  }
}

TEST_CASE("head dimensions, different for keys and values") {
  struct Dims {
    int key;
    int value;
    int group;
  };
  for (const Dims dims :
       {Dims{24, 40, 8}, Dims{64, 64, 32}, Dims{80, 80, 80}, Dims{96, 96, 32}, Dims{112, 112, 56},
        Dims{192, 128, 128}, Dims{256, 256, 32}, Dims{576, 512, 512}}) {
    for (const KeyCodec codec : {KeyCodec::mse, KeyCodec::inner_product, KeyCodec::float8}) {
      Setup setup;
      setup.format = make_format(codec, codec == KeyCodec::float8 ? 8 : 3, dims.key,
                                 ValueCodec::grouped, 4, dims.value, dims.group);
      setup.kv_heads = 1;
      setup.ratio = 3;
      setup.sequences = {{2, 70, 9}};
      check_orders(setup);
    }
  }
}

TEST_CASE("tiles of 16 and 32 tokens, one or more a page") {
  for (const int tokens : {16, 32}) {
    for (const int dim : {64, 80, 128}) {
      for (const KeyCodec codec : {KeyCodec::mse, KeyCodec::inner_product, KeyCodec::float8}) {
        Setup setup;
        setup.format = make_format(codec, codec == KeyCodec::float8 ? 8 : 3, dim,
                                   ValueCodec::grouped, codec == KeyCodec::mse ? 4 : 3, dim, dim);
        setup.format.tile_tokens = tokens;
        setup.tiles_per_page = dim == 64 ? 1 : 3;
        setup.num_queries = 2;
        setup.sequences = {{2, 150, 9}, {0, 15, 0}, {0, 64, 1}};
        check_orders(setup);
        setup.sliding_window = 70;
        setup.evicted = 2 * tokens;
        setup.sequences = {{0, 333, 20}};
        check_orders(setup);
      }
    }
  }
}

TEST_CASE("ratios, several queries, ragged batches, windows, sinks and masks") {
  for (const int ratio : {1, 3, 4, 5, 8, 16}) {
    Setup setup;
    setup.format.value_group = 32;
    setup.ratio = ratio;
    setup.num_queries = 1 + ratio % 8;
    setup.sequences = {{0, 0, 5}, {3, 500, 17}, {0, 1, 0}, {0, 0, 0}, {1, 0, 0}, {0, 1025, 128}};
    check_orders(setup);
    setup.sliding_window = 100;
    setup.soft_cap = 20;
    setup.sm_scale = 0.11F;
    setup.learned_sinks = true;
    setup.look_back = 30;
    check_orders(setup);
  }
  for (const std::int64_t evicted : {1, 100, 299}) {
    Setup setup;
    setup.sequences = {{2, 300, 10}};
    setup.evicted = evicted;
    check_orders(setup);
  }
}

TEST_CASE("tiles with a key mean") {
  for (const KeyCodec codec : {KeyCodec::mse, KeyCodec::inner_product, KeyCodec::float8}) {
    for (const int dim : {40, 64, 128, 256}) {
      Setup setup;
      setup.format = make_format(codec, codec == KeyCodec::float8 ? 8 : 3, dim, ValueCodec::grouped,
                                 4, dim, dim);
      setup.format.key_centring = KeyCentring::tile_mean;
      setup.key = [](std::int64_t position, int head, int d, float normal) {
        // One token of 50 has no bias and is stored as it is.
        const float bias = position % 50 == 4 ? 0.0F : 30.0F;
        return normal + bias * std::sin(static_cast<float>(3 * d + 50 * head));
      };
      setup.query_gain = 0.07F;
      setup.ratio = 3;
      setup.num_queries = 2;
      setup.sequences = {{2, 150, 9}, {0, 1, 0}, {0, 700, 0}};
      check_orders(setup);
    }
  }
}

TEST_CASE("values far from one, and far from each other") {
  for (const float size : {1e-4F, 3000.0F}) {
    Setup setup;
    setup.sequences = {{0, 400, 0}};
    setup.value = [size](std::int64_t position, int, int, float normal) {
      return position % 10 == 7 ? size * normal : normal;
    };
    check_orders(setup);
  }
}

TEST_CASE("a token that outweighs all others does not hide them") {
  // Like an attention sink: the others weigh 2^-14 each, together as much as the one.
  Setup setup;
  setup.format.value_group = 32;
  setup.kv_heads = 1;
  setup.ratio = 4;
  setup.sm_scale = 1;
  setup.sequences = {{0, 16385, 0}};
  setup.key = [](std::int64_t position, int, int d, float) {
    return position == 100 && d == 0 ? 9.704F : 0.0F;
  };
  setup.query = [](int, int, int d, float) { return d == 0 ? 1.0F : 0.0F; };
  setup.value = [](std::int64_t position, int, int, float normal) {
    return position == 100 ? 0.0F : 1.0F + 0.1F * normal;
  };
  check(setup);
}

TEST_CASE("queries that are no numbers give none, with dot products too") {
  Setup setup;
  setup.sequences = {{1, 200, 20}};
  setup.query = [](int, int head, int d, float normal) {
    return head == 1 && d == 7 ? std::numeric_limits<float>::infinity() : normal;
  };
  const Problem problem(setup);
  test::for_each_execution_space("decode_spaces", [&](const auto& exec) {
    using Exec = std::decay_t<decltype(exec)>;
    if constexpr (detail::has_dot_products<Exec>) {
      const Result result = SpaceProblem<Exec>(problem).run(exec, dot);
      const std::size_t dim = result.output.size() / result.lse.size();
      for (std::size_t head = 0; head < result.lse.size(); ++head) {
        CHECK(std::isnan(result.lse[head]) == (head == 1));
        CHECK(std::isnan(result.output[head * dim + 5]) == (head == 1));
      }
    }
  });
}

TEST_CASE("plans say why dot products run or not") {
  if constexpr (!detail::has_dot_products<test::OneThread>) {
    std::puts("decode_spaces: dot products skipped: this Kokkos has no Serial space");
    return;
  }
  const auto plan = [](TileFormat format, DeviceArch device) {
    TileCodecOptions options;
    options.format = format;
    DecodeProblem problem;
    problem.query_heads = 4;
    problem.max_history_tokens = 1000;
    const test::OneThread exec;
    return plan_decode(exec, TileCodec<Kokkos::HostSpace>(options), problem, {.device = device})
        .describe();
  };
  const auto contains = [](const std::string& text, const char* part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  contains(plan(TileFormat(), DeviceArch::dot),
           "dot products of bytes, 15-bit queries and weights (asked for)");
  CHECK(plan(TileFormat(), DeviceArch::automatic).find("dot products") == std::string::npos);
  TileFormat format;
  format.key_dim = 264;
  CHECK_THROWS_WITH_AS(static_cast<void>(plan(format, DeviceArch::dot)),
                       "plan_decode: dot products were asked for, but keys or values have more "
                       "than 256 dimensions",
                       Error);
  format = TileFormat();
  format.value_group = 8;
  CHECK_THROWS_WITH_AS(
      static_cast<void>(plan(format, DeviceArch::dot)),
      "plan_decode: dot products were asked for, but values have more than 8 groups", Error);
}

TEST_CASE("accelerators keep tiles in the order that their operations read fastest") {
  const TileFormat covered = make_format(KeyCodec::mse, 3, 128, ValueCodec::grouped, 4, 128, 128);
  const TileFormat others[] = {
      make_format(KeyCodec::mse, 3, 80, ValueCodec::grouped, 4, 80, 80),
      make_format(KeyCodec::inner_product, 3, 128, ValueCodec::grouped, 4, 128, 128),
      make_format(KeyCodec::mse, 3, 128, ValueCodec::codebook, 3, 128, 128),
  };
  test::for_each_execution_space("decode_spaces", [&](const auto& exec) {
    using Exec = std::decay_t<decltype(exec)>;
    using Space = typename Exec::memory_space;
    CAPTURE(std::string(exec.name()));
    for (const TileOrder named : {TileOrder::host, TileOrder::mma}) {
      for (TileFormat format : others) {
        format.order = named;
        CHECK(preferred_order<Space>(format) ==
              (detail::runs_on_host<Exec> ? named : TileOrder::host));
      }
      TileFormat format = covered;
      format.order = named;
      const bool units = detail::has_matrix_units<Exec> &&
                         detail::device_properties(exec).compute_capability >= 80;
      const TileOrder on_device = units ? TileOrder::mma : TileOrder::host;
      CHECK(preferred_order<Space>(format) == (detail::runs_on_host<Exec> ? named : on_device));
    }
  });
}

TEST_CASE("output in half precision") {
  Setup setup;
  setup.sequences = {{1, 200, 20}};
  const Problem problem(setup);
  const Result expected = problem.reference();
  test::for_each_execution_space("decode_spaces", [&](const auto& exec) {
    CAPTURE(std::string(exec.name()));
    const SpaceProblem<std::decay_t<decltype(exec)>> there(problem);
    CHECK(output_error(there.template run<float16>(exec, portable).output, expected) <= 1e-3);
    CHECK(output_error(there.template run<bfloat16>(exec, portable).output, expected) <= 8e-3);
  });
}
