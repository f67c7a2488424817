#include "runtime/runtime_test_support.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace runtime_test;
using cache_test::contains;
using cache_test::error_of;
using turboquant::CacheMode;
using turboquant::LayerOptions;

namespace {

/// Tokens of which only chosen numbers are not zero.
template <class KeyOf, class ValueOf>
Tokens<float> made_tokens(std::int64_t count, const KVShape& shape, KeyOf&& key, ValueOf&& value) {
  Tokens<float> tokens(0, 0, count, shape);
  for (std::size_t t = 0; t < std::size_t(count); ++t) {
    for (std::size_t h = 0; h < std::size_t(shape.kv_heads); ++h) {
      for (std::size_t d = 0; d < std::size_t(shape.key_dim); ++d) {
        tokens.keys(t, h, d) = key(std::int64_t(t), int(h));
      }
      for (std::size_t d = 0; d < std::size_t(shape.value_dim); ++d) {
        tokens.values(t, h, d) = value(std::int64_t(t), int(h));
      }
    }
  }
  return tokens;
}

/// With zero keys the output is the mean of the visible values.
Tokens<float> zero_keys(std::int64_t count, const KVShape& shape) {
  return made_tokens(
      count, shape, [](auto, int) { return 0.0F; }, [](std::int64_t t, int) { return float(t); });
}

void check_all(const HostQueries& output, double expected, double tolerance) {
  for (std::size_t i = 0; i < output.size(); ++i) {
    CHECK(std::fabs(double(output.data()[i]) - expected) <= tolerance);
  }
}

/// Layers that hold 20 tokens exactly, compressed, and in both ways.
std::vector<LayerOptions> segment_mixes(const KVShape& shape) {
  return {layer(shape, 0), layer(shape, 3, 4, 0), layer(shape, 3, 4, 8), layer(shape, 3, 4, 128)};
}

}  // namespace

TEST_CASE(
    "attention agrees with a double-precision model over what is stored, in every mix of "
    "segments") {
  for (const auto& [query_heads, kv_heads] :
       {std::pair{8, 2}, std::pair{5, 1}, std::pair{12, 2}, std::pair{28, 4}}) {
    for (const auto& [key_dim, value_dim] : {std::pair{64, 64}, std::pair{80, 48}}) {
      const KVShape shape{.kv_heads = kv_heads, .key_dim = key_dim, .value_dim = value_dim};
      for (LayerOptions options :
           {layer(shape), layer(shape, 0), layer(shape, 2, 2, 0), layer(shape, 4, 3, 70, 256)}) {
        for (const std::int64_t sinks : {0, 4}) {
          for (const std::int64_t window : {0, 50}) {
            options.capture.sinks = sinks;
            options.capture.sliding_window = window;
            Manager<float> manager({.layers = {options}});
            const auto id = manager.open();
            const Tokens<float> tokens(3, 0, 333, shape);
            append(manager, 0, id, tokens, 0, 333);
            for (const std::size_t m : {1U, 2U, 8U}) {
              CHECK(attention_error(manager, 0, id, m, std::size_t(query_heads), options) < 5e-4);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("every query head reads the kv head of its group, for ratios 7, 6, 5, 3 and 2") {
  for (const auto& [query_heads, kv_heads] :
       {std::pair{28, 4}, std::pair{24, 4}, std::pair{40, 8}, std::pair{15, 3}, std::pair{12, 2},
        std::pair{12, 6}}) {
    const KVShape shape{.kv_heads = kv_heads, .key_dim = 64, .value_dim = 64};
    for (const LayerOptions& options : segment_mixes(shape)) {
      Manager<float> manager({.layers = {options}});
      const auto id = manager.open();
      append(manager, 0, id,
             made_tokens(
                 20, shape, [](auto, int) { return 0.0F; }, [](auto, int h) { return float(h); }),
             0, 20);
      const auto result =
          attend(manager, 0, {id}, queries(2, 1, 1, std::size_t(query_heads), 64), 64);
      for (std::size_t h = 0; h < std::size_t(query_heads); ++h) {
        for (std::size_t d = 0; d < 64; ++d) {
          CHECK(std::fabs(result.output(0, 0, h, d) - float(int(h) / (query_heads / kv_heads))) <=
                1e-6F);
        }
      }
    }
  }
}

TEST_CASE(
    "query heads that are no multiple of the kv heads are refused before anything is written") {
  const KVShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 64};
  Manager<float> manager({.layers = {layer(shape)}});
  const auto id = manager.open();
  append(manager, 0, id, zero_keys(5, shape), 0, 5);
  for (const std::size_t heads : {33U, 3U, 1U}) {
    HostQueries output("output", 1, 1, heads, 64);
    HostLse lse("lse", 1, 1, heads);
    Kokkos::deep_copy(output, 7.0F);
    CHECK(contains(error_of([&] {
                     manager.attend(HostExec(), 0, std::vector{id}, queries(1, 1, 1, heads, 64),
                                    output, lse);
                   }),
                   "expected a positive multiple of kv_heads = 2"));
    check_all(output, 7.0, 0.0);
  }
  const HostQueries none("queries", 1, 1, 0, 64);
  CHECK(contains(error_of([&] { attend(manager, 0, {id}, none, 64); }), "queries.extent(2) is 0"));
}

TEST_CASE("one kv head serves 71 query heads") {
  const KVShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  Manager<float> manager({.layers = {layer(shape, 3, 4, 8)}});
  const auto id = manager.open();
  append(manager, 0, id, zero_keys(9, shape), 0, 9);
  const auto result = attend(manager, 0, {id}, queries(1, 1, 1, 71, 64), 64);
  check_all(result.output, 4.0, 1e-6);
}

TEST_CASE("empty sequences give zeros and a log-sum-exp of -infinity") {
  const KVShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 80};
  for (const LayerOptions& options : segment_mixes(shape)) {
    Manager<float> manager({.layers = {options}});
    const auto full = manager.open();
    const auto empty = manager.open();
    append(manager, 0, full, zero_keys(9, shape), 0, 9);
    for (const std::size_t m : {1U, 3U}) {
      HostQueries q = queries(1, 2, m, 4, 64);
      Attention result{HostQueries("output", 2, m, 4, 80), HostLse("lse", 2, m, 4)};
      Kokkos::deep_copy(result.output, 7.0F);
      manager.attend(HostExec(), 0, std::vector{empty, full}, q, result.output, result.lse,
                     exact());
      for (std::size_t j = 0; j < m; ++j) {
        for (std::size_t h = 0; h < 4; ++h) {
          CHECK(result.lse(0, j, h) == -std::numeric_limits<float>::infinity());
          for (std::size_t d = 0; d < 80; ++d) {
            CHECK(result.output(0, j, h, d) == 0.0F);
            CHECK(std::fabs(result.output(1, j, h, d) - float(9 - m + j) / 2) < 1e-5F);
          }
        }
      }
    }
    CHECK(attend(manager, 0, {}, queries(1, 0, 1, 4, 64), 80).output.size() == 0);
    CHECK(attend(manager, 0, {empty, full}, queries(1, 2, 0, 4, 64), 80).output.size() == 0);
    append(manager, 0, empty, zero_keys(2, shape), 0, 2);
    CHECK(contains(error_of([&] { attend(manager, 0, {empty}, queries(1, 1, 3, 4, 64), 80); }),
                   "has 2 tokens, expected none or at least the 3 of the queries"));
  }
}

TEST_CASE("a single token gives its own value, bit by bit from the window") {
  const KVShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 64};
  for (const bool compressed : {false, true}) {
    Manager<float> manager({.layers = {layer(shape, 3, 4, compressed ? 0 : 128)}});
    const auto id = manager.open();
    const Tokens<float> token(4, 0, 1, shape);
    append(manager, 0, id, token, 0, 1);
    const turboquant::TileCodec<Host> codec(cache_test::codec_options(64, 64));
    const HeldTokens held = read_back(manager.view(HostExec(), 0, id), shape, &codec);
    for (const float size : {1.0F, 1e4F}) {
      HostQueries q = queries(6, 1, 1, 4, 64);
      for (std::size_t i = 0; i < q.size(); ++i) {
        q.data()[i] *= size;
      }
      const auto result = attend(manager, 0, {id}, q, 64);
      for (std::size_t h = 0; h < 4; ++h) {
        for (std::size_t d = 0; d < 64; ++d) {
          const float expected = held.values[h / 2 * 64 + d];
          if (compressed) {
            CHECK(std::fabs(result.output(0, 0, h, d) - expected) <=
                  1e-5F * std::fmax(1.0F, std::fabs(expected)));
          } else {
            CHECK(result.output(0, 0, h, d) == expected);
          }
        }
      }
    }
  }
}

TEST_CASE("a sliding window shows the newest tokens only") {
  const KVShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  const std::array<std::pair<std::int64_t, double>, 6> cases{
      {{1, 19}, {4, 17.5}, {8, 15.5}, {12, 13.5}, {20, 9.5}, {64, 9.5}}};
  for (LayerOptions options : {layer(shape, 0), layer(shape, 3, 4, 8), layer(shape, 3, 4, 0)}) {
    for (const auto& [window, mean] : cases) {
      options.capture.sliding_window = window;
      Manager<float> manager({.layers = {options}});
      const auto id = manager.open();
      append(manager, 0, id, zero_keys(20, shape), 0, 20);
      check_all(attend(manager, 0, {id}, queries(1, 1, 1, 2, 64), 64).output, mean, 0.02);
    }
  }
}

TEST_CASE("a sliding window bounds memory and stays right long after tokens were given up") {
  const KVShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  for (LayerOptions options : {layer(shape, 0), layer(shape, 3, 4, 8), layer(shape, 3, 4, 0)}) {
    for (const std::int64_t window : {1, 4, 12, 64}) {
      options.capture.sliding_window = window;
      Manager<float> manager({.layers = {options}, .slab_pages = 1});
      const auto id = manager.open();
      const std::int64_t n = 10 * window + 300;
      append(manager, 0, id, zero_keys(n, shape), 0, n);
      const double mean = double(n - 1) - double(window - 1) / 2;
      check_all(attend(manager, 0, {id}, queries(1, 1, 1, 2, 64), 64).output, mean, 1e-3 * mean);
      const auto stats = manager.stats(0, id);
      CHECK(stats.history_tokens + stats.window_tokens <= window + 8 + 2 * 64);
      // Queries of which each has its own window.
      const auto eight = attend(manager, 0, {id}, queries(1, 1, 8, 2, 64), 64);
      for (std::size_t j = 0; j < 8; ++j) {
        CHECK(std::fabs(double(eight.output(0, j, 0, 0)) - (mean - 7 + double(j))) < 1e-3 * mean);
      }
    }
  }
}

TEST_CASE("after a rollback, queries that would miss tokens of their window are refused") {
  const KVShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  for (LayerOptions options : {layer(shape, 0), layer(shape, 3, 4, 0)}) {
    options.capture.sliding_window = 4;
    Manager<float> manager({.layers = {options}, .slab_pages = 1});
    const auto id = manager.open();
    append(manager, 0, id, zero_keys(332, shape), 0, 332);  // pages begin at 320
    CHECK_NOTHROW(attend(manager, 0, {id}, queries(1, 1, 8, 2, 64), 64));
    manager.truncate(HostExec(), id, 324);
    check_all(attend(manager, 0, {id}, queries(1, 1, 1, 2, 64), 64).output, 321.5, 1.0);
    const std::string refusal =
        error_of([&] { attend(manager, 0, {id}, queries(1, 1, 8, 2, 64), 64); });
    CHECK(contains(refusal, "has given up tokens before 320 that the query at 316 sees"));
    CHECK(contains(refusal, "more rollback_tokens than 8"));
    CHECK(manager.length(0, id) == 324);
  }
}

TEST_CASE("masked history does not show: one visible token in the window gives its value") {
  const KVShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  LayerOptions options = layer(shape, 3, 4, 1);
  options.capture.sliding_window = 1;
  Manager<float> manager({.layers = {options}});
  const auto id = manager.open();
  Tokens<float> tokens(8, 0, 41, shape);
  std::fill_n(&tokens.values(40, 0, 0), 64, 7.0F);
  append(manager, 0, id, tokens, 0, 41);
  CHECK(manager.stats(0, id).history_tokens > 0);
  CHECK(manager.stats(0, id).window_tokens == 1);
  const HostQueries q = queries(1, 1, 1, 1, 64);
  const auto result = attend(manager, 0, {id}, q, 64);
  check_all(result.output, 7.0, 0.0);
  double logit = 0;
  for (std::size_t d = 0; d < 64; ++d) {
    logit += double(q(0, 0, 0, d)) * double(tokens.keys(40, 0, d)) / 8;
  }
  CHECK(std::fabs(double(result.lse(0, 0, 0)) - logit) < 1e-5);
}

TEST_CASE("long uniform rows average without drift, in float and half precision") {
  const KVShape shape{.kv_heads = 1, .key_dim = 16, .value_dim = 16};
  Manager<float> manager({.layers = {layer(shape, 3, 4, 64, 1024)}});
  const auto id = manager.open();
  const Tokens<float> ones = made_tokens(
      4096, shape, [](auto, int) { return 0.0F; }, [](auto, int) { return 1.0F; });
  std::int64_t n = 0;
  for (const std::int64_t total : {2047, 2048, 2049, 4096, 65536}) {
    while (n < total) {
      const std::int64_t count = std::min<std::int64_t>(4096, total - n);
      append(manager, 0, id, ones, 0, count);
      n += count;
    }
    const HostQueries q = queries(1, 1, 1, 2, 16);
    const auto result = attend(manager, 0, {id}, q, 16);
    check_all(result.output, 1.0, 1e-5);
    CHECK(std::fabs(double(result.lse(0, 0, 0)) - std::log(double(total))) < 1e-5);
    const Kokkos::View<turboquant::float16****, Host> half("half", 1, 1, 2, 16);
    manager.attend(HostExec(), 0, std::vector{id}, q, half, result.lse);
    CHECK(std::fabs(double(half(0, 0, 1, 3).to_float()) - 1.0) < 1e-3);
  }
}

TEST_CASE(
    "scale, soft cap and learned sinks give the numbers of the formulas, wherever tokens are") {
  const KVShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  // Keys along the first axis do not survive quantisation bit by bit, so that the compressed form
  // is told by a tolerance of its own; zero keys are exact in every form.
  const auto one_axis = [&](float key0, float key1, float value0, float value1) {
    Tokens<float> tokens = made_tokens(
        2, shape, [](auto, int) { return 0.0F; }, [](auto, int) { return 0.0F; });
    tokens.keys(0, 0, 0) = key0;
    tokens.keys(1, 0, 0) = key1;
    std::fill_n(&tokens.values(0, 0, 0), 64, value0);
    std::fill_n(&tokens.values(1, 0, 0), 64, value1);
    return tokens;
  };
  HostQueries q("queries", 1, 1, 1, 64);
  q(0, 0, 0, 0) = 2.0F;
  const auto ln2 = float(std::log(2.0));
  struct Case {
    Tokens<float> tokens;
    float sm_scale;
    float soft_cap;
    double expected;
  };
  const std::vector<Case> cases{
      {one_axis(ln2, 0, 3, 0), 0.5F, 0, 2.0},         // softmax of (ln 2, 0)
      {one_axis(0.5F, 0, 1, 0), 1.0F, 1, 0.6816997},  // sigmoid(tanh 1)
      {one_axis(50, 0, 1, 0), 1.0F, 50, 1.0},         // a logit of 100 becomes 48.2
  };
  for (const std::int64_t window : {std::int64_t{128}, std::int64_t{1}}) {
    for (const Case& entry : cases) {
      // The token whose key is not zero is exact; with a window of 1 the other one is compressed.
      const bool swap = window == 1;
      Tokens<float> tokens = entry.tokens;
      Tokens<float> order = made_tokens(
          2, shape, [](auto, int) { return 0.0F; }, [](auto, int) { return 0.0F; });
      for (const std::size_t t : {0U, 1U}) {
        std::copy_n(&tokens.keys(swap ? 1 - t : t, 0, 0), 64, &order.keys(t, 0, 0));
        std::copy_n(&tokens.values(swap ? 1 - t : t, 0, 0), 64, &order.values(t, 0, 0));
      }
      Manager<float> manager({.layers = {layer(shape, 3, 4, window)}});
      const auto id = manager.open();
      append(manager, 0, id, order, 0, 2);
      CHECK(manager.stats(0, id).history_tokens == (swap ? 1 : 0));
      Options options = exact();
      options.sm_scale = entry.sm_scale;
      options.logits_soft_cap = entry.soft_cap;
      const auto result = attend(manager, 0, {id}, q, 64, options);
      check_all(result.output, entry.expected, 1e-5);
      if (entry.soft_cap == 50) {
        CHECK(std::fabs(double(result.lse(0, 0, 0)) - 48.2013790) < 1e-4);
      }
    }
  }
  // Learned sinks: 16 equal tokens and a sink of ln 16 give half; counted per segment it would be
  // less.
  for (const std::int64_t window : {0, 8, 128}) {
    Manager<float> manager({.layers = {layer(shape, 3, 4, window)}});
    const auto id = manager.open();
    append(manager, 0, id,
           made_tokens(
               16, shape, [](auto, int) { return 0.0F; }, [](auto, int) { return 1.0F; }),
           0, 16);
    Options options = exact();
    const Kokkos::View<float*, Host> sink("sink", 1);
    sink(0) = float(std::log(16.0));
    options.sink_logits = sink;
    check_all(attend(manager, 0, {id}, q, 64, options).output, 0.5, 1e-5);
  }
}

TEST_CASE("options of attention outside their domain are refused before anything is written") {
  const KVShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  Manager<float> manager({.layers = {layer(shape)}});
  const auto id = manager.open();
  append(manager, 0, id, zero_keys(9, shape), 0, 9);
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  HostQueries output("output", 1, 1, 2, 64);
  HostLse lse("lse", 1, 1, 2);
  Kokkos::deep_copy(output, 7.0F);
  const auto refusal = [&](float scale, float cap) {
    Options options;
    options.sm_scale = scale;
    options.logits_soft_cap = cap;
    const std::string error = error_of([&] {
      manager.attend(HostExec(), 0, std::vector{id}, queries(1, 1, 1, 2, 64), output, lse, options);
    });
    check_all(output, 7.0, 0.0);
    return error;
  };
  for (const float bad : {nan, infinity, -infinity}) {
    CHECK(contains(refusal(bad, 0), "invalid_argument: CacheManager::attend: sm_scale is"));
    CHECK(contains(refusal(1, bad), "CacheManager::attend: logits_soft_cap is"));
  }
  Options unknown;
  unknown.exactness = turboquant::Exactness(9);
  CHECK(contains(
      error_of([&] { attend(manager, 0, {id}, queries(1, 1, 1, 2, 64), 64, unknown, true); }),
      "invalid_argument: CacheManager::shadow_attend: exactness is 9"));
  CHECK(contains(refusal(1, -1), "logits_soft_cap is -1"));
  // No queries: nothing to compute, for empty and full sequences alike.
  CHECK(attend(manager, 0, {id}, queries(1, 1, 0, 2, 64), 64).output.size() == 0);
  CHECK(contains(error_of([&] { attend(manager, 7, {id}, queries(1, 1, 0, 2, 64), 64); }),
                 "layer is 7"));
}

TEST_CASE("no split between compressed and exact tokens loses or doubles one") {
  const KVShape shape{.kv_heads = 1, .key_dim = 16, .value_dim = 16};
  // A power of two per token: the binary digits of n times the output name the tokens.
  const Tokens<float> tokens = made_tokens(
      14, shape, [](auto, int) { return 0.0F; }, [](std::int64_t t, int) { return float(1 << t); });
  for (std::int64_t split = 0; split <= 14; ++split) {
    LayerOptions options = layer(shape, 3, 4, 14 - split);
    Manager<float> manager({.layers = {options}});
    const auto id = manager.open();
    append(manager, 0, id, tokens, 0, 14);
    CHECK(manager.engine(0, id).window_begin() == split);
    check_all(attend(manager, 0, {id}, queries(1, 1, 1, 1, 16), 16).output, 16383.0 / 14, 0.01);
  }
}

TEST_CASE("in one batch, a sequence with a prefix keeps it and others are not touched") {
  const KVShape shape{.kv_heads = 1, .key_dim = 16, .value_dim = 16};
  const auto constant = [&](std::int64_t n, float v) {
    return made_tokens(
        n, shape, [](auto, int) { return 0.0F; }, [v](auto, int) { return v; });
  };
  for (const LayerOptions& options : segment_mixes(shape)) {
    Manager<float> manager({.layers = {options}, .mode = CacheMode::full_tq});
    const auto a = manager.open();
    const auto b = manager.open();
    append(manager, 0, b, constant(5, 100.0F), 0, 5);
    const Tokens<float> both = made_tokens(
        11, shape, [](auto, int) { return 0.0F; },
        [](std::int64_t t, int) { return t < 10 ? float(t) : 0.0F; });
    const std::vector<std::int64_t> offsets{0, 10, 11};
    const Kokkos::View<float***, Kokkos::LayoutRight, Host> q("q", 11, 1, 16);
    const Kokkos::View<float***, Kokkos::LayoutRight, Host> output("output", 11, 1, 16);
    const Kokkos::View<float**, Kokkos::LayoutRight, Host> lse("lse", 11, 1);
    manager.prefill(HostExec(), 0, std::vector{a, b}, offsets, both.keys, both.values, offsets, q,
                    output, lse, exact());
    CHECK(std::fabs(output(10, 0, 3) - 500.0F / 6) < 1e-3F);
    for (std::size_t t = 0; t < 10; ++t) {
      CHECK(std::fabs(output(t, 0, 3) - float(t) / 2) < 1e-5F);
    }
  }
}

TEST_CASE("keys are never used as values") {
  const KVShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 64};
  const Tokens<float> tokens = made_tokens(
      20, shape, [](auto, int) { return 3.0F; }, [](std::int64_t t, int) { return float(t); });
  for (LayerOptions options : segment_mixes(shape)) {
    for (const std::int64_t sinks : {0, 4}) {
      options.capture.sinks = sinks;
      Manager<float> manager({.layers = {options}});
      const auto id = manager.open();
      append(manager, 0, id, tokens, 0, 20);
      check_all(attend(manager, 0, {id}, HostQueries("queries", 1, 1, 4, 64), 64).output, 9.5,
                0.02);
    }
  }
}

TEST_CASE("value sizes differ from key sizes as the layer says") {
  for (const auto& [key_dim, value_dim] : {std::pair{192, 128}, std::pair{576, 512}}) {
    const KVShape shape{.kv_heads = 1, .key_dim = key_dim, .value_dim = value_dim};
    for (const LayerOptions& options : segment_mixes(shape)) {
      Manager<float> manager({.layers = {options}});
      const auto id = manager.open();
      append(manager, 0, id, zero_keys(20, shape), 0, 20);
      const auto result = attend(manager, 0, {id}, queries(1, 1, 1, 2, key_dim), value_dim);
      CHECK(result.output.extent(3) == std::size_t(value_dim));
      check_all(result.output, 9.5, 1e-5);
    }
  }
}

TEST_CASE("soft cap, scale and learned sink logits follow the model") {
  const KVShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 64};
  for (const LayerOptions& layer_options : {layer(shape), layer(shape, 0), layer(shape, 4, 4, 0)}) {
    Manager<float> manager({.layers = {layer_options}});
    const auto id = manager.open();
    append(manager, 0, id, Tokens<float>(3, 0, 200, shape), 0, 200);
    Options options = exact();
    options.sm_scale = 0.3F;
    options.logits_soft_cap = 2.0F;
    Kokkos::View<float*, Host> logits("logits", 8);
    for (std::size_t h = 0; h < 8; ++h) {
      logits(h) = float(h) - 3;
    }
    options.sink_logits = logits;
    CHECK(attention_error(manager, 0, id, 4, 8, layer_options, 5, options) < 5e-4);
    options.sink_logits = Kokkos::View<float*, Host>("logits", 3);
    CHECK(
        contains(error_of([&] { attend(manager, 0, {id}, queries(1, 1, 1, 8, 64), 64, options); }),
                 "sink_logits.extent(0) is 3"));
  }
}

TEST_CASE("learned sink logits that are no numbers do what the options say") {
  const KVShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const LayerOptions& layer_options : {layer(shape), layer(shape, 0), layer(shape, 4, 4, 0)}) {
    Manager<float> manager({.layers = {layer_options}});
    const auto id = manager.open();
    append(manager, 0, id, Tokens<float>(3, 0, 200, shape), 0, 200);
    const auto empty = manager.open();
    const HostQueries q = queries(1, 1, 1, 2, 64);
    const auto plain = attend(manager, 0, {id}, q, 64);
    for (const float sink : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
      Options options = exact();
      Kokkos::View<float*, Host> logits("logits", 2);
      logits(0) = sink;
      logits(1) = -infinity;
      options.sink_logits = logits;
      const auto result = attend(manager, 0, {id}, q, 64, options);
      const auto nothing = attend(manager, 0, {empty}, q, 64, options);
      CHECK(nothing.output(0, 0, 0, 5) == 0.0F);
      CHECK((std::isnan(sink) ? std::isnan(nothing.lse(0, 0, 0)) : nothing.lse(0, 0, 0) == sink));
      for (std::size_t d = 0; d < 64; ++d) {
        const float x = result.output(0, 0, 0, d);
        CHECK(
            (std::isnan(sink) ? std::isnan(x) : x == (sink > 0 ? 0.0F : plain.output(0, 0, 0, d))));
        CHECK(result.output(0, 0, 1, d) == plain.output(0, 0, 1, d));
      }
      CHECK((std::isnan(sink) ? std::isnan(result.lse(0, 0, 0))
                              : result.lse(0, 0, 0) == (sink > 0 ? sink : plain.lse(0, 0, 0))));
      CHECK(result.lse(0, 0, 1) == plain.lse(0, 0, 1));
    }
  }
}

TEST_CASE("chunks of any size give the attention of one chunk, at every total length") {
  const KVShape shape{.kv_heads = 1, .key_dim = 16, .value_dim = 16};
  const Tokens<float> tokens(5, 0, 129, shape);
  const LayerOptions options = layer(shape, 3, 4, 8);
  for (const std::int64_t total : {15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129}) {
    Manager<float> whole({.layers = {options}});
    const auto reference = whole.open();
    append(whole, 0, reference, tokens, 0, total);
    const HostQueries q = queries(1, 1, 1, 2, 16);
    const auto expected = attend(whole, 0, {reference}, q, 16);
    for (std::int64_t chunk = 1; chunk <= 33; chunk += total == 100 ? 1 : 4) {
      Manager<float> manager({.layers = {options}});
      const auto id = manager.open();
      for (std::int64_t done = 0; done < total; done += chunk) {
        append(manager, 0, id, tokens, done, std::min(total, done + chunk));
      }
      const auto result = attend(manager, 0, {id}, q, 16);
      CHECK(cache_test::same_bits(result.output, expected.output));
      CHECK(std::isfinite(result.output(0, 0, 0, 0)));
    }
  }
}

TEST_CASE("what attention writes overlaps nothing that it reads or writes") {
  const KVShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  Manager<float> manager({.layers = {layer(shape)}});
  const auto id = manager.open();
  append(manager, 0, id, zero_keys(9, shape), 0, 9);
  const HostQueries q = queries(1, 1, 1, 2, 64);
  const HostQueries output("output", 1, 1, 2, 64);
  const HostLse lse("lse", 1, 1, 2);
  const auto refusal = [&](const HostQueries& out, const HostLse& sums,
                           const Options& options = {}) {
    return error_of([&] { manager.attend(HostExec(), 0, std::vector{id}, q, out, sums, options); });
  };
  CHECK(
      contains(refusal(q, lse), "invalid_argument: CacheManager::attend: output overlaps queries"));
  CHECK(
      contains(refusal(output, HostLse(output.data() + 127, 1, 1, 1 + 1)), "output overlaps lse"));
  CHECK(contains(refusal(output, HostLse(q.data() + 3, 1, 1, 2)), "lse overlaps queries"));
  Options sinks;
  sinks.sink_logits = Kokkos::View<const float*, Host>(lse.data(), 2);
  CHECK(contains(refusal(output, lse, sinks), "lse overlaps sink_logits"));
}

namespace {

void check_largest(float query, float key_limit) {
  const KVShape shape{.kv_heads = 1, .key_dim = 576, .value_dim = 64};
  const auto one_query = [&](bool alternating) {
    auto q = cache_test::uninitialised<HostQueries>("queries", 1, 1, 1, 576);
    for (std::size_t d = 0; d < 576; ++d) {
      q(0, 0, 0, d) = alternating && d % 2 == 1 ? -query : query;
    }
    return q;
  };
  Options options = exact();
  options.sm_scale = std::log(2.0F) * 0.999999F;  // so that scaled queries are at the limit
  for (const auto& [window, sinks] : {std::pair{128, 0}, std::pair{8, 0}, std::pair{0, 4}}) {
    LayerOptions one = layer(shape, 3, 4, window);
    one.capture.sinks = sinks;
    for (const LayerOptions& options_of : {one, layer(shape, 0)}) {
      Manager<float> manager({.layers = {options_of}});
      const auto attention = [&](auto&& key, auto&& value, bool alternating,
                                 const Options& chosen) {
        const auto id = manager.open();
        append(manager, 0, id, made_tokens(4, shape, key, value), 0, 4);
        auto result = attend(manager, 0, {id}, one_query(alternating), 64, chosen);
        CHECK(std::isfinite(result.lse(0, 0, 0)));
        manager.close(id);
        return result.output;
      };
      for (const float sign : {1.0F, -1.0F}) {
        const auto largest = [&](std::int64_t, int) { return sign * key_limit; };
        const auto first = [&](std::int64_t t, int) { return t == 0 ? sign * key_limit : 0.0F; };
        const auto opposite = [&](std::int64_t t, int) { return t == 0 ? key_limit : -key_limit; };
        const auto numbered = [](std::int64_t t, int) { return t == 0 ? 7.0F : 1.0F; };
        const auto huge = [](std::int64_t, int) { return 0x1p96F; };
        const bool exact_rows = window > 0 || sinks > 0 || !options_of.codec;
        REQUIRE(exact_rows);
        check_all(attention(first, numbered, false, options), sign > 0 ? 7 : 1, 1e-5);
        check_all(attention(opposite, numbered, false, options), 7, 1e-5);
        check_all(attention(largest, numbered, true, options), 2.5, 1e-5);
        check_all(attention(largest, huge, false, options), 0x1p96, 0x1p80);
        for (const float cap : {1e-45F, 1.0F, 1e4F}) {
          Options capped = options;
          capped.logits_soft_cap = cap;
          check_all(attention(largest, numbered, false, capped), 2.5, 1e-5);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("the largest rows and queries that are taken give finite attention") {
  check_largest(std::nextafter(0x1p100F, 0.0F), 0x1p18F);
  check_largest(std::nextafter(0x1p22F, 0.0F), turboquant::largest_row_number);
}

TEST_CASE("many values of the largest size average without overflow") {
  const KVShape shape{.kv_heads = 1, .key_dim = 16, .value_dim = 16};
  Manager<turboquant::bfloat16> manager({.layers = {layer(shape, 0)}});
  const auto id = manager.open();
  Tokens<turboquant::bfloat16> tokens(5, 0, 5000, shape);
  Kokkos::deep_copy(tokens.keys, turboquant::bfloat16::from_float(0.0F));
  Kokkos::deep_copy(tokens.values, turboquant::bfloat16::from_float(-0x1p96F));
  append(manager, 0, id, tokens, 0, 5000);
  check_all(attend(manager, 0, {id}, queries(3, 1, 1, 2, 16), 16).output, -0x1p96, 0x1p76);
}
