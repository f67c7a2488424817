// Same bits from run to run and for any number of threads; any split within a tolerance; which
// instructions run.

#include "decode_fixture.hpp"

#include <doctest/doctest.h>
#include <support/error_of.hpp>

#include <cstdlib>
#include <string>

using namespace decode_fixture;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

Setup varied() {
  Setup setup;
  setup.format.value_group = 32;
  setup.ratio = 3;
  setup.num_queries = 2;
  setup.sequences = {{3, 5000, 70}, {0, 100, 0}, {0, 0, 9}, {0, 2111, 0}};
  return setup;
}

bool same(const Result& a, const Result& b) {
  return a.output == b.output && a.lse == b.lse;
}

}  // namespace

TEST_CASE("every run of a plan gives the same bits, on any number of threads") {
  const Problem problem(varied());
  for (DecodeOptions options : all_options()) {
    for (const int num_splits : {0, 5}) {
      options.num_splits = num_splits;
      CAPTURE(name_of(options));
      const auto [first, second] = problem.run_twice(options);
      CHECK(same(first, second));
      CHECK(same(first, problem.run(options)));
      CHECK(same(first, problem.run_on_one_thread(options)));
    }
  }
}

TEST_CASE("any number of splits agrees with the reference, and with each other") {
  const Problem problem(varied());
  const Result expected = problem.reference();
  for (DecodeOptions options : all_options()) {
    const Result automatic = problem.run(options);
    Result against = expected;
    against.output = automatic.output;
    for (const int num_splits : {1, 2, 3, 7, 16, 79, 80, 200}) {
      options.num_splits = num_splits;
      CAPTURE(name_of(options));
      const Result result = problem.run(options);
      CHECK(output_error(result.output, expected) <= bound(options.exactness));
      // Splits change only how weights are rounded.
      CHECK(output_error(result.output, against) <=
            (options.exactness == Exactness::fast ? 4e-3 : 1e-4));
      CHECK(largest_difference(result.lse, automatic.lse) <= 2e-6);
    }
  }
}

TEST_CASE("the automatic plan cuts every 16 tiles") {
  const Problem problem(varied());
  DecodeProblem shape = problem.shape();
  for (const std::int64_t tokens : {0, 1, 960, 961, 1024, 100000}) {
    shape.max_history_tokens = tokens;
    const std::int64_t tiles = tokens == 0 ? 0 : (tokens + 63) / 64 + 1;
    CHECK(problem.plan(shape).num_splits == (tiles <= 16 ? 1 : (tiles + 15) / 16));
  }
}

TEST_CASE("the environment chooses the instructions") {
  const char* text = std::getenv("TURBOQUANT_ARCH");
  Setup setup;
  setup.sequences = {{0, 300, 0}};
  const Problem problem(setup);
  const std::string name = text == nullptr ? "" : text;
  if (name.empty()) {
    DecodeOptions best;
    best.arch = arches().back();
    CHECK(same(problem.run(), problem.run(best)));
    return;
  }
  for (const HostArch arch : {HostArch::portable, HostArch::avx2, HostArch::avx512}) {
    if (name != to_string(arch)) {
      continue;
    }
    DecodeOptions forced;
    forced.arch = arch;
    for (const HostArch available : arches()) {
      if (available == arch) {
        CHECK(same(problem.run(), problem.run(forced)));
        CHECK(problem.plan(problem.shape()).description ==
              problem.plan(problem.shape(), forced).description);
        return;
      }
    }
    CHECK(mentions(error_of(ErrorCode::unsupported, [&] { static_cast<void>(problem.run()); }),
                   "HostArch: " + name + " needs instructions"));
    return;
  }
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { static_cast<void>(problem.run()); }),
                 "TURBOQUANT_ARCH is \"" + name + "\", expected portable, avx2 or avx512"));
}

TEST_CASE("vector instructions refuse tiles of another order") {
  Setup setup;
  setup.format.order = TileOrder::mma;
  setup.sequences = {{0, 70, 0}};
  const Problem problem(setup);
  for (const HostArch arch : arches()) {
    if (arch != HostArch::portable) {
      DecodeOptions options;
      options.arch = arch;
      CHECK(mentions(
          error_of(ErrorCode::unsupported, [&] { static_cast<void>(problem.run(options)); }),
          "works on tiles in host order"));
    }
  }
}

TEST_CASE("nothing depends on what a workspace holds before") {
  for (const KeyCodec codec : {KeyCodec::mse, KeyCodec::inner_product, KeyCodec::float8}) {
    Setup setup;
    setup.format = make_format(
        codec, codec == KeyCodec::float8 ? 8 : 3, 40,
        codec == KeyCodec::inner_product ? ValueCodec::codebook : ValueCodec::grouped, 4, 24, 24);
    setup.kv_heads = 1;
    setup.ratio = 5;
    setup.sequences = {{2, 70, 3}, {0, 0, 0}, {0, 65, 0}};
    setup.learned_sinks = codec == KeyCodec::float8;
    DecodeOptions options;
    options.num_splits = 3;
    const Result filled = Problem(setup).run(options);
    setup.undefined_workspace = true;
    CHECK(same(Problem(setup).run(options), filled));
  }
}
