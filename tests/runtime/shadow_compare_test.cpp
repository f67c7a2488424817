#include "runtime/runtime_test_support.hpp"

#include <turboquant/runtime/bit_plan_layers.hpp>
#include <turboquant/runtime/shadow_compare.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

using namespace runtime_test;
using cache_test::contains;
using cache_test::error_of;
using turboquant::CacheMode;
using turboquant::LayerOptions;
using turboquant::ShadowCompare;
using turboquant::ShadowReport;

namespace {

using Shadow = ShadowCompare<Host, float>;
using Logits = Kokkos::View<float****, Kokkos::LayoutRight, Host>;

// It points to its manager and is one of a kind, as that is.
static_assert(!std::is_move_constructible_v<Shadow> && !std::is_move_assignable_v<Shadow>);
static_assert(!std::is_move_constructible_v<Manager<float>>);

const KVShape compared_shape{.kv_heads = 2, .key_dim = 64, .value_dim = 48};

constexpr double not_seen = std::numeric_limits<double>::quiet_NaN();

Manager<float> capture_manager(const std::vector<LayerOptions>& layers) {
  return Manager<float>({.layers = layers, .mode = CacheMode::capture_only});
}

/// Layers in which the newest tokens of 150 are in every place.
std::vector<LayerOptions> mixed_layers() {
  std::vector<LayerOptions> layers{layer(compared_shape, 0), layer(compared_shape, 2, 2, 0),
                                   layer(compared_shape, 3, 4, 70),
                                   layer(compared_shape, 4, 4, 20)};
  layers[2].capture.sinks = 5;
  layers.push_back(layer(compared_shape, 3, 4, 16));
  layers.back().capture.sliding_window = 50;
  layers.back().capture.sinks = 3;
  layers.push_back(layer(compared_shape, 3, 4, 16));
  layers.back().codec =
      turboquant::tile_codec_options({.key_codec = turboquant::KeyCodec::inner_product}, 64, 48);
  layers.push_back(layer(compared_shape, 3, 4, 16));
  layers.back().codec = turboquant::tile_codec_options(
      {.key_codec = turboquant::KeyCodec::float8, .key_bits = 8}, 64, 48);
  return layers;
}

/// Logits of one head over tokens that are held or given, NaN where a query does not see.
/// @param keys (tokens, kv_heads, key_dim) of the positions
std::vector<double> logits_of(const std::vector<std::int64_t>& positions, const float* keys,
                              const float* query, int kv_head, std::int64_t position,
                              const LayerOptions& options, double soft_cap, std::size_t columns) {
  std::vector<double> all(columns, not_seen);
  for (std::size_t t = 0; t < positions.size(); ++t) {
    const std::int64_t p = positions[t];
    const std::int64_t window = options.capture.sliding_window;
    if (p > position || (window > 0 && p <= position - window && p >= options.capture.sinks)) {
      continue;
    }
    double sum = 0;
    for (std::size_t d = 0; d < 64; ++d) {
      sum += double(query[d]) * double(keys[(2 * t + std::size_t(kv_head)) * 64 + d]);
    }
    sum /= 8;
    all[std::size_t(p)] = soft_cap > 0 ? soft_cap * std::tanh(sum / soft_cap) : sum;
  }
  return all;
}

struct Expected {
  double squares = 0;
  double kl = 0;
  std::int64_t logits = 0;
  std::int64_t rows = 0;
  std::int64_t same_top = 0;

  void add(const std::vector<double>& exact, const std::vector<double>& other) {
    std::vector<std::size_t> seen;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      if (!std::isnan(exact[i])) {
        seen.push_back(i);
      }
    }
    double sum_exact = 0;
    double sum_other = 0;
    std::size_t top = seen.front();
    std::size_t other_top = seen.front();
    for (const std::size_t i : seen) {
      sum_exact += std::exp(exact[i]);
      sum_other += std::exp(other[i]);
      squares += (exact[i] - other[i]) * (exact[i] - other[i]);
      top = exact[i] > exact[top] ? i : top;
      other_top = other[i] > other[other_top] ? i : other_top;
    }
    for (const std::size_t i : seen) {
      kl += std::exp(exact[i]) / sum_exact *
            (exact[i] - std::log(sum_exact) - other[i] + std::log(sum_other));
    }
    logits += std::int64_t(seen.size());
    ++rows;
    same_top += top == other_top ? 1 : 0;
  }
};

void check_same(const ShadowReport& a, const ShadowReport& b) {
  CHECK(a.steps == b.steps);
  CHECK(a.sampled_steps == b.sampled_steps);
  CHECK(a.to_text() == b.to_text());
  REQUIRE(a.layers.size() == b.layers.size());
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    CHECK(a.layers[i].rows == b.layers[i].rows);
    CHECK(a.layers[i].output_error == b.layers[i].output_error);
    CHECK(a.layers[i].worst_row_error == b.layers[i].worst_row_error);
    CHECK(a.layers[i].cosine == b.layers[i].cosine);
    CHECK(a.layers[i].attention.kl == b.layers[i].attention.kl);
    CHECK(a.layers[i].attention.rms == b.layers[i].attention.rms);
  }
}

}  // namespace

TEST_CASE("which steps are compared depends on seed and number alone, about the fraction of them") {
  Manager<float> manager = capture_manager({layer(compared_shape)});
  for (const double fraction : {0.01, 0.3}) {
    Shadow shadow(manager, {.sample_fraction = fraction, .seed = 7});
    const Shadow again(manager, {.sample_fraction = fraction, .seed = 7});
    std::set<std::uint64_t> chosen;
    for (std::uint64_t step = 0; step < 20'000; ++step) {
      const bool sampled = shadow.begin_step();
      REQUIRE(sampled == again.samples(step));
      if (sampled) {
        chosen.insert(step);
      }
    }
    const double expected = 20'000 * fraction;
    CHECK(std::fabs(double(chosen.size()) - expected) < 5 * std::sqrt(expected));
    CHECK(shadow.report().sampled_steps == chosen.size());
    CHECK(shadow.report().steps == 20'000);
    const Shadow other(manager, {.sample_fraction = fraction, .seed = 8});
    CHECK(std::any_of(chosen.begin(), chosen.end(),
                      [&](std::uint64_t step) { return !other.samples(step); }));
    // A larger fraction compares all of a smaller one's steps, too.
    const Shadow more(manager, {.sample_fraction = 2 * fraction, .seed = 7});
    CHECK(std::all_of(chosen.begin(), chosen.end(),
                      [&](std::uint64_t step) { return more.samples(step); }));
  }
  const Shadow none(manager, {.sample_fraction = 0});
  const Shadow all(manager, {.sample_fraction = 1});
  for (std::uint64_t step = 0; step < 1000; ++step) {
    CHECK(!none.samples(step));
    CHECK(all.samples(step));
  }
}

TEST_CASE("an engine that computes what the library computes does not differ") {
  for (const CacheMode mode : {CacheMode::capture_only, CacheMode::hybrid, CacheMode::full_tq}) {
    const auto layers = mixed_layers();
    Manager<float> manager({.layers = layers, .mode = mode});
    Shadow shadow(manager, {.sample_fraction = 1});
    const auto id = manager.open();
    CHECK(shadow.begin_step());
    for (std::size_t l = 0; l < layers.size(); ++l) {
      append(manager, std::int64_t(l), id, Tokens<float>(l, 0, 150, compared_shape), 0, 150);
      const HostQueries q = queries(1, 1, 2, 4, 64);
      const auto own = attend(manager, std::int64_t(l), {id}, q, 48, {}, true).output;
      CHECK(shadow.compare(HostExec(), std::int64_t(l), std::vector{id}, q, own));
      const auto report = shadow.report().layers[l];
      CHECK(report.rows == 8);
      CHECK(report.output_error == 0);
      CHECK(report.worst_row_error == 0);
      CHECK(report.cosine == doctest::Approx(1));
      CHECK(report.attention.rows == 0);
    }
  }
}

TEST_CASE("output errors are those of the outputs") {
  Manager<float> manager =
      capture_manager({layer(compared_shape, 0), layer(compared_shape, 2, 2, 0)});
  Shadow shadow(manager, {.sample_fraction = 1});
  const auto id = manager.open();
  double error = 0;
  double norm = 0;
  double cosines = 0;
  double worst = 0;
  int rows = 0;
  const Tokens<float> tokens(5, 0, 131, compared_shape);
  for (std::int64_t end = 128; end <= 131; ++end) {
    append(manager, 0, id, tokens, end == 128 ? 0 : end - 1, end);
    append(manager, 1, id, tokens, end == 128 ? 0 : end - 1, end);
    const HostQueries q = queries(std::uint64_t(end), 1, 1, 4, 64);
    const auto exact = attend(manager, 0, {id}, q, 48, {}, true).output;
    const auto stored = attend(manager, 1, {id}, q, 48, {}, true).output;
    shadow.begin_step();
    CHECK(shadow.compare(HostExec(), 1, std::vector{id}, q, exact));
    for (std::size_t h = 0; h < 4; ++h, ++rows) {
      double e = 0;
      double n = 0;
      double s = 0;
      double p = 0;
      for (std::size_t d = 0; d < 48; ++d) {
        const double x = double(exact(0, 0, h, d));
        const double y = double(stored(0, 0, h, d));
        e += (x - y) * (x - y);
        n += x * x;
        s += y * y;
        p += x * y;
      }
      error += e;
      norm += n;
      cosines += p / std::sqrt(n * s);
      worst = std::max(worst, std::sqrt(e / n));
    }
  }
  const auto report = shadow.report().layers[1];
  CHECK(report.rows == rows);
  CHECK(report.output_error == doctest::Approx(std::sqrt(error / norm)).epsilon(1e-12));
  CHECK(report.worst_row_error == doctest::Approx(worst).epsilon(1e-12));
  CHECK(report.cosine == doctest::Approx(cosines / rows).epsilon(1e-12));
  CHECK(report.output_error > 0.05);
  CHECK(shadow.report().layers[0].rows == 0);
}

TEST_CASE("attention logits, their divergence and their top token are those of what is stored") {
  const auto layers = mixed_layers();
  for (const double soft_cap : {0.0, 5.0}) {
    for (const std::size_t m : {1U, 3U}) {
      Manager<float> manager = capture_manager(layers);
      Shadow shadow(manager, {.sample_fraction = 1});
      // Ragged, one of them empty.
      const std::vector<SequenceId> ids{manager.open(), manager.open(), manager.open()};
      const std::vector<std::int64_t> lengths{150, 0, 4};
      constexpr std::size_t columns = 160;
      Options options;
      options.logits_soft_cap = float(soft_cap);
      shadow.begin_step();
      for (std::size_t l = 0; l < layers.size(); ++l) {
        CAPTURE(l);
        const Tokens<float> tokens(100 + l, 0, 150, compared_shape);
        for (std::size_t i = 0; i < ids.size(); ++i) {
          // In steps, so that the rows of the window go round.
          for (std::int64_t begin = 0; begin < lengths[i]; begin += 7) {
            append(manager, std::int64_t(l), ids[i], tokens, begin,
                   std::min(begin + 7, lengths[i]));
          }
        }
        const HostQueries q = queries(l, 3, m, 4, 64);
        Logits engine("logits", 3, m, 4, columns);
        Kokkos::deep_copy(engine, std::numeric_limits<float>::quiet_NaN());
        Expected expected;
        std::optional<turboquant::TileCodec<Host>> codec;
        if (layers[l].codec) {
          codec.emplace(*layers[l].codec);
        }
        for (std::size_t i = 0; i < ids.size(); ++i) {
          if (lengths[i] == 0) {
            continue;
          }
          const HeldTokens held = read_back(manager.view(HostExec(), std::int64_t(l), ids[i]),
                                            compared_shape, codec ? &*codec : nullptr);
          std::vector<std::int64_t> positions(static_cast<std::size_t>(lengths[i]));
          for (std::size_t t = 0; t < positions.size(); ++t) {
            positions[t] = std::int64_t(t);
          }
          for (std::size_t j = 0; j < m; ++j) {
            const std::int64_t position = lengths[i] - std::int64_t(m) + std::int64_t(j);
            for (std::size_t h = 0; h < 4; ++h) {
              const auto exact = logits_of(positions, tokens.keys.data(), &q(i, j, h, 0),
                                           int(h / 2), position, layers[l], soft_cap, columns);
              const auto stored = logits_of(held.positions, held.keys.data(), &q(i, j, h, 0),
                                            int(h / 2), position, layers[l], soft_cap, columns);
              expected.add(exact, stored);
              for (std::size_t c = 0; c < columns; ++c) {
                engine(i, j, h, c) = float(exact[c]);
              }
            }
          }
        }
        const auto own = attend(manager, std::int64_t(l), ids, q, 48, options, true).output;
        CHECK(shadow.compare(HostExec(), std::int64_t(l), ids, q, own, options, engine));
        const auto report = shadow.report().layers[l].attention;
        CHECK(report.rows == expected.rows);
        CHECK(report.non_finite_rows == 0);
        CHECK(report.logits == expected.logits);
        const double rows = double(expected.rows);
        CHECK(std::fabs(report.rms - std::sqrt(expected.squares / double(expected.logits))) < 2e-6);
        CHECK(std::fabs(report.kl - expected.kl / rows) < 1e-6);
        CHECK(report.top1 == double(expected.same_top) / rows);
        CHECK((report.kl > 1e-4) == codec.has_value());
        CHECK(shadow.report().layers[l].rows == 2 * std::int64_t(m) * 4);
      }
    }
  }
}

TEST_CASE("a batch reports what its sequences report one by one") {
  const std::vector<LayerOptions> layers{layer(compared_shape, 3, 4, 16),
                                         layer(compared_shape, 2, 2, 0)};
  Manager<float> manager = capture_manager(layers);
  Shadow together(manager, {.sample_fraction = 1});
  Shadow apart(manager, {.sample_fraction = 1});
  const std::vector<SequenceId> ids{manager.open(), manager.open()};
  together.begin_step();
  apart.begin_step();
  for (const std::int64_t l : {0, 1}) {
    append(manager, l, ids[0], Tokens<float>(1, 0, 100, compared_shape), 0, 100);
    append(manager, l, ids[1], Tokens<float>(2, 0, 140, compared_shape), 0, 140);
    const HostQueries q = queries(3, 2, 1, 4, 64);
    const HostQueries engine = queries(4, 2, 1, 4, 48);
    Logits logits("logits", 2, 1, 4, 140);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      logits.data()[i] = float(i % 7);
    }
    CHECK(together.compare(HostExec(), l, ids, q, engine, {}, logits));
    for (std::size_t i = 0; i < 2; ++i) {
      const auto one = std::pair(i, i + 1);
      const auto all = Kokkos::ALL;
      CHECK(apart.compare(HostExec(), l, std::vector{ids[i]},
                          HostQueries(Kokkos::subview(q, one, all, all, all)),
                          HostQueries(Kokkos::subview(engine, one, all, all, all)), {},
                          Logits(Kokkos::subview(logits, one, all, all, all))));
    }
  }
  check_same(together.report(), apart.report());
}

TEST_CASE("engine outputs of any number type") {
  Manager<float> manager = capture_manager({layer(compared_shape, 0)});
  Shadow shadow(manager, {.sample_fraction = 1});
  const auto id = manager.open();
  append(manager, 0, id, Tokens<float>(1, 0, 30, compared_shape), 0, 30);
  const HostQueries q = queries(1, 1, 1, 4, 64);
  const auto own = attend(manager, 0, {id}, q, 48, {}, true).output;
  Kokkos::View<turboquant::bfloat16****, Kokkos::LayoutRight, Host> rounded("rounded", 1, 1, 4, 48);
  std::transform(own.data(), own.data() + own.size(), rounded.data(),
                 turboquant::bfloat16::from_float);
  shadow.begin_step();
  CHECK(shadow.compare(HostExec(), 0, std::vector{id}, q, rounded));
  const double error = shadow.report().layers[0].output_error;
  CHECK(error > 1e-4);
  CHECK(error < 0x1p-8);
}

TEST_CASE("numbers that are not finite are counted, not averaged") {
  Manager<float> manager = capture_manager({layer(compared_shape, 0)});
  Shadow shadow(manager, {.sample_fraction = 1});
  const auto id = manager.open();
  append(manager, 0, id, Tokens<float>(1, 0, 10, compared_shape), 0, 10);
  const HostQueries q = queries(1, 1, 1, 4, 64);
  const auto own = attend(manager, 0, {id}, q, 48, {}, true).output;
  Logits logits("logits", 1, 1, 4, 10);
  own(0, 0, 1, 47) = std::numeric_limits<float>::quiet_NaN();
  own(0, 0, 2, 0) = -std::numeric_limits<float>::infinity();
  logits(0, 0, 3, 9) = std::numeric_limits<float>::infinity();
  shadow.begin_step();
  CHECK(shadow.compare(HostExec(), 0, std::vector{id}, q, own, {}, logits));
  const auto report = shadow.report().layers[0];
  CHECK(report.rows == 2);
  CHECK(report.non_finite_rows == 2);
  CHECK(report.output_error == 0);
  CHECK(report.attention.rows == 3);
  CHECK(report.attention.non_finite_rows == 1);
  CHECK(std::isfinite(report.attention.kl));
}

TEST_CASE("a step that is not compared does nothing") {
  Manager<float> manager = capture_manager({layer(compared_shape)});
  Shadow shadow(manager, {.sample_fraction = 0});
  const auto id = manager.open();
  append(manager, 0, id, Tokens<float>(1, 0, 200, compared_shape), 0, 200);
  const HostQueries q = queries(1, 1, 1, 4, 64);
  const auto before = manager.memory_use().total();
  CHECK(!shadow.compare(HostExec(), 0, std::vector{id}, q, queries(1, 1, 1, 4, 48)));
  CHECK(!shadow.begin_step());
  CHECK(!shadow.compare(HostExec(), 0, std::vector{id}, q, queries(1, 1, 1, 4, 48)));
  CHECK(!shadow.compare_logits(std::vector{1.0F}, std::vector{2.0F}, 1));
  CHECK(shadow.report().layers[0].rows == 0);
  CHECK(shadow.report().model.rows == 0);
  CHECK(manager.memory_use().total() == before);
}

TEST_CASE("model logits") {
  Manager<float> manager = capture_manager({layer(compared_shape)});
  Shadow shadow(manager, {.sample_fraction = 1});
  shadow.begin_step();
  const std::vector<float> engine{0, 1, 2, 3, 0, 0};
  const std::vector<float> library{0, 1, 1, 5, 0, 0};
  CHECK(shadow.compare_logits(engine, library, 3));
  CHECK(!shadow.compare_logits({}, {}, 3));
  const auto report = shadow.report().model;
  CHECK(report.rows == 2);
  CHECK(report.logits == 6);
  CHECK(report.rms == doctest::Approx(std::sqrt((1 + 4) / 6.0)));
  CHECK(report.top1 == 0.5);  // of equal logits the first counts
  const auto kl = [](const std::vector<double>& a, const std::vector<double>& b) {
    double sum_a = 0;
    double sum_b = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      sum_a += std::exp(a[i]);
      sum_b += std::exp(b[i]);
    }
    double result = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      result += std::exp(a[i]) / sum_a * (a[i] - b[i] - std::log(sum_a) + std::log(sum_b));
    }
    return result;
  };
  CHECK(report.kl == doctest::Approx((kl({0, 1, 2}, {0, 1, 1}) + kl({3, 0, 0}, {5, 0, 0})) / 2));
  CHECK(contains(shadow.report().to_text(), "\nmodel        2"));
  shadow.reset();
  CHECK(shadow.report().model.rows == 0);
  CHECK(shadow.report().steps == 0);
  CHECK(!shadow.compare_logits(engine, library, 3));
}

TEST_CASE("a failed call changes nothing") {
  Manager<float> manager = capture_manager({layer(compared_shape, 3, 4, 0), layer(compared_shape)});
  Shadow shadow(manager, {.sample_fraction = 1});
  const auto id = manager.open();
  for (const std::int64_t l : {0, 1}) {
    append(manager, l, id, Tokens<float>(1, 0, 130, compared_shape), 0, 130);
  }
  const HostQueries q = queries(1, 1, 1, 4, 64);
  const HostQueries engine = queries(2, 1, 1, 4, 48);
  const Logits logits("logits", 1, 1, 4, 130);
  shadow.begin_step();
  CHECK(shadow.compare(HostExec(), 0, std::vector{id}, q, engine, {}, logits));
  const ShadowReport before = shadow.report();
  const auto refusal = [&](std::int64_t l, SequenceId of, const HostQueries& asked,
                           const HostQueries& output, const Logits& given) {
    return error_of([&] {
      static_cast<void>(shadow.compare(HostExec(), l, std::vector{of}, asked, output, {}, given));
    });
  };
  CHECK(contains(refusal(2, id, q, engine, logits), "layer is 2, expected 0 to 1"));
  CHECK(contains(refusal(-1, id, q, engine, {}), "layer is -1"));
  CHECK(contains(refusal(0, id + 1, q, engine, logits), "expected one that is open"));
  CHECK(contains(refusal(0, id, q, queries(2, 1, 1, 4, 64), logits),
                 "ShadowCompare::compare: engine_output.extent(3) is 64, expected value_dim = 48"));
  CHECK(contains(refusal(0, id, q, queries(2, 1, 1, 2, 48), logits),
                 "engine_output.extent(2) is 2, expected that of queries, 4"));
  CHECK(
      contains(refusal(0, id, q, queries(2, 2, 1, 4, 48), logits), "engine_output.extent(0) is 2"));
  CHECK(contains(refusal(0, id, q, engine, Logits("logits", 1, 1, 2, 130)),
                 "engine_logits.extent(2) is 2"));
  CHECK(contains(refusal(0, id, q, engine, Logits("logits", 1, 1, 4, 129)),
                 "engine_logits.extent(3) is 129, expected at least the 130 tokens"));
  CHECK(contains(refusal(0, id, queries(1, 1, 1, 4, 32), engine, {}), "extent(3) is 32"));
  CHECK(contains(refusal(0, id, queries(1, 1, 9, 4, 64), queries(1, 1, 9, 4, 48), {}),
                 "extent(1) is 9"));
  manager.set_memory_limit(0);
  const HostQueries many = queries(1, 1, 8, 64, 64);
  CHECK(contains(refusal(0, id, many, queries(2, 1, 8, 64, 48), {}), "capacity"));
  manager.set_memory_limit(turboquant::MemoryLedger::unlimited);
  CHECK(contains(error_of([&] {
                   static_cast<void>(
                       shadow.compare_logits(std::vector<float>(5), std::vector<float>(5), 2));
                 }),
                 "engine.size() is 5, expected a multiple of vocabulary = 2"));
  CHECK(contains(error_of([&] {
                   static_cast<void>(
                       shadow.compare_logits(std::vector<float>(4), std::vector<float>(2), 2));
                 }),
                 "library.size() is 2"));
  CHECK(contains(error_of([&] { static_cast<void>(shadow.compare_logits({}, {}, 0)); }),
                 "vocabulary is 0"));
  check_same(shadow.report(), before);
  // And works afterwards.
  CHECK(shadow.compare(HostExec(), 1, std::vector{id}, q, engine, {}, logits));
  CHECK(shadow.report().layers[1].rows == 4);
}

TEST_CASE("fractions outside 0 to 1 and mode off are refused") {
  Manager<float> manager({.layers = {layer(compared_shape)}, .mode = CacheMode::off});
  for (const double wrong : {-0.1, 1.1, not_seen}) {
    CHECK(contains(error_of([&] { Shadow(manager, {.sample_fraction = wrong}); }),
                   "sample_fraction is"));
  }
  Shadow shadow(manager, {.sample_fraction = 1});
  const auto id = manager.open();
  shadow.begin_step();
  CHECK(contains(error_of([&] {
                   static_cast<void>(shadow.compare(HostExec(), 0, std::vector{id},
                                                    queries(1, 1, 1, 4, 64),
                                                    queries(1, 1, 1, 4, 48)));
                 }),
                 "the mode is off"));
}

TEST_CASE("the table has a line for every layer that was compared") {
  Manager<float> manager =
      capture_manager({layer(compared_shape), layer(compared_shape), layer(compared_shape)});
  Shadow shadow(manager, {.sample_fraction = 1});
  const auto id = manager.open();
  append(manager, 1, id, Tokens<float>(1, 0, 10, compared_shape), 0, 10);
  shadow.begin_step();
  const HostQueries q = queries(1, 1, 1, 4, 64);
  CHECK(shadow.compare(HostExec(), 1, std::vector{id}, q,
                       attend(manager, 1, {id}, q, 48, {}, true).output));
  const std::string text = shadow.report().to_text();
  CHECK(contains(text, "1 of 1 steps compared\n"));
  CHECK(contains(text, "\n    1        4  0.00000"));
  CHECK(!contains(text, "\n    0 "));
  CHECK(!contains(text, "\n    2 "));
  CHECK(!contains(text, "model"));
}
