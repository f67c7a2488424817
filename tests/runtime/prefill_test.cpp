#include "runtime/runtime_test_support.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

using namespace runtime_test;
using cache_test::AllocationCounter;
using cache_test::contains;
using cache_test::error_of;
using turboquant::bfloat16;
using turboquant::CacheMode;
using turboquant::LayerOptions;

namespace {

template <class T>
using QueryRows = Kokkos::View<T***, Kokkos::LayoutRight, Host>;
using LseRows = Kokkos::View<float**, Kokkos::LayoutRight, Host>;

template <class Output>
struct Prefilled {
  QueryRows<Output> output;
  LseRows lse;
};

/// Prefills tokens [begin, end) of one sequence with queries at all of them, or at the newest
/// `num_queries`.
template <class T, class Output = float>
Prefilled<Output> prefill(Manager<T>& manager, SequenceId id, const Tokens<T>& tokens,
                          const Tokens<float>& queries, std::int64_t begin, std::int64_t end,
                          int value_dim, std::int64_t num_queries = -1,
                          const Options& options = exact()) {
  const std::int64_t m = num_queries < 0 ? end - begin : num_queries;
  const std::size_t heads = queries.keys.extent(1);
  Prefilled<Output> result{
      QueryRows<Output>("output", std::size_t(m), heads, std::size_t(value_dim)),
      LseRows("lse", std::size_t(m), heads)};
  manager.prefill(HostExec(), 0, std::vector{id}, std::vector<std::int64_t>{0, end - begin},
                  tokens.keys_from(begin, end), tokens.values_from(begin, end),
                  std::vector<std::int64_t>{0, m}, queries.keys_from(end - m, end), result.output,
                  result.lse, options);
  return result;
}

/// Difference to the model when the prefix is what the manager held before and the chunk is exact.
double prefill_error(const Prefilled<float>& result, const HeldTokens& prefix,
                     const Tokens<float>& tokens, const Tokens<float>& queries, std::int64_t begin,
                     std::int64_t end, const LayerOptions& layer, const ModelOptions& model) {
  const KVShape& shape = layer.capture.shape;
  HeldTokens all = prefix;
  for (std::int64_t t = begin; t < end; ++t) {
    all.positions.push_back(t);
    all.keys.insert(all.keys.end(), &tokens.keys(std::size_t(t), 0, 0),
                    &tokens.keys(std::size_t(t), 0, 0) + shape.key_numbers());
    all.values.insert(all.values.end(), &tokens.values(std::size_t(t), 0, 0),
                      &tokens.values(std::size_t(t), 0, 0) + shape.value_numbers());
  }
  const std::size_t heads = queries.keys.extent(1);
  const auto m = std::int64_t(result.output.extent(0));
  double worst = 0;
  for (std::int64_t j = 0; j < m; ++j) {
    const std::int64_t position = end - m + j;
    for (std::size_t h = 0; h < heads; ++h) {
      const auto kv_head = int(h / (heads / std::size_t(shape.kv_heads)));
      const auto expected = model_attention(all, shape, &queries.keys(std::size_t(position), h, 0),
                                            kv_head, position, model);
      worst = std::max(worst, difference(&result.output(std::size_t(j), h, 0),
                                         result.lse(std::size_t(j), h), expected));
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("prefill attention is exact inside the chunk and reads the compressed prefix before it") {
  const KVShape shape{.kv_heads = 2, .key_dim = 16, .value_dim = 24};
  const Tokens<float> tokens(5, 0, 420, shape);
  const Tokens<float> queries(6, 0, 420, {4, 16, 8});
  for (LayerOptions options :
       {layer(shape), layer(shape, 2, 2, 0), layer(shape, 0), layer(shape, 4, 4, 70, 256),
        with_key_means(layer(shape, 3, 4, 100))}) {
    for (const std::int64_t sinks : {0, 4, 40}) {
      for (const std::int64_t window : {0, 30, 100}) {
        options.capture.sinks = sinks;
        options.capture.sliding_window = window;
        Manager<float> manager({.layers = {options}, .mode = CacheMode::full_tq});
        const auto id = manager.open();
        const turboquant::TileCodec<Host> codec(options.codec ? *options.codec
                                                              : cache_test::codec_options(16, 24));
        std::int64_t done = 0;
        for (const std::int64_t count : {2, 29, 150, 1, 217, 17}) {
          const HeldTokens prefix = read_back(manager.view(HostExec(), 0, id), shape, &codec);
          const auto result = prefill(manager, id, tokens, queries, done, done + count, 24);
          ModelOptions model;
          model.window = window;
          model.sinks = sinks;
          CHECK(prefill_error(result, prefix, tokens, queries, done, done + count, options, model) <
                5e-4);
          done += count;
        }
        CHECK(manager.length(0, id) == 416);
        // The tokens are stored as a plain append stores them.
        Manager<float> plain({.layers = {options}});
        const auto other = plain.open();
        append(plain, 0, other, tokens, 0, 416);
        const auto a = manager.view(HostExec(), 0, id);
        const auto b = plain.view(HostExec(), 0, other);
        CHECK(cache_test::same_bits(cache_test::window_numbers(a, shape),
                                    cache_test::window_numbers(b, shape)));
        if (options.codec) {
          CHECK(cache_test::history_bytes<float>(a.history, codec.format(), 2) ==
                cache_test::history_bytes<float>(b.history, codec.format(), 2));
        }
      }
    }
  }
}

TEST_CASE("soft cap, scale and learned sink logits count once in prefill") {
  const KVShape shape{.kv_heads = 2, .key_dim = 16, .value_dim = 16};
  const Tokens<float> tokens(5, 0, 300, shape);
  const Tokens<float> queries(6, 0, 300, {4, 16, 8});
  LayerOptions layer_options = layer(shape, 3, 4, 64);
  layer_options.capture.sliding_window = 90;
  layer_options.capture.sinks = 3;
  Options options = exact();
  options.sm_scale = 0.4F;
  options.logits_soft_cap = 3.0F;
  const Kokkos::View<float*, Host> logits("logits", 4);
  Kokkos::deep_copy(logits, 1.5F);
  options.sink_logits = logits;
  ModelOptions model;
  model.sm_scale = double(options.sm_scale);
  model.soft_cap = 3;
  model.window = 90;
  model.sinks = 3;
  model.sink_logit = 1.5;
  Manager<float> manager({.layers = {layer_options}, .mode = CacheMode::full_tq});
  const auto id = manager.open();
  const turboquant::TileCodec<Host> codec(*layer_options.codec);
  for (const auto& [begin, end] : {std::pair{0, 2}, std::pair{2, 200}, std::pair{200, 300}}) {
    const HeldTokens prefix = read_back(manager.view(HostExec(), 0, id), shape, &codec);
    const auto result = prefill(manager, id, tokens, queries, begin, end, 16, -1, options);
    CHECK(prefill_error(result, prefix, tokens, queries, begin, end, layer_options, model) < 5e-4);
  }
}

TEST_CASE("queries at the newest tokens only give the same bits as queries at all") {
  const KVShape shape{.kv_heads = 1, .key_dim = 16, .value_dim = 16};
  const Tokens<float> tokens(5, 0, 300, shape);
  const Tokens<float> queries(6, 0, 300, {3, 16, 8});
  for (const std::int64_t newest : {0, 1, 16, 128}) {
    Manager<float> all({.layers = {layer(shape)}, .mode = CacheMode::full_tq});
    Manager<float> some({.layers = {layer(shape)}, .mode = CacheMode::full_tq});
    const auto a = all.open();
    const auto b = some.open();
    prefill(all, a, tokens, queries, 0, 172, 16);
    prefill(some, b, tokens, queries, 0, 172, 16, newest);
    const auto full = prefill(all, a, tokens, queries, 172, 300, 16);
    const auto part = prefill(some, b, tokens, queries, 172, 300, 16, newest);
    double worst = 0;
    for (std::size_t j = 0; j < std::size_t(newest); ++j) {
      for (std::size_t i = 0; i < 3 * 16; ++i) {
        worst = std::max(worst,
                         std::fabs(double((&part.output(j, 0, 0))[i]) -
                                   double((&full.output(std::size_t(128 - newest) + j, 0, 0))[i])));
      }
    }
    CHECK(worst <= 1e-6);
  }
}

TEST_CASE("a batch gives the bits of its sequences one by one, in bfloat16 too") {
  const KVShape shape{.kv_heads = 2, .key_dim = 32, .value_dim = 16};
  const Tokens<bfloat16> tokens(5, 0, 500, shape);
  const Tokens<float> queries(6, 0, 500, {4, 32, 8});
  const LayerOptions options = layer(shape);
  Manager<bfloat16> batch({.layers = {options}, .mode = CacheMode::full_tq});
  Manager<bfloat16> singles({.layers = {options}, .mode = CacheMode::full_tq});
  const std::vector<SequenceId> ids{batch.open(), batch.open(), batch.open()};
  const std::vector<SequenceId> single_ids{singles.open(), singles.open(), singles.open()};
  for (int round = 0; round < 2; ++round) {
    const std::vector<std::int64_t> offsets{0, 170, 171, 500};
    const QueryRows<bfloat16> output("output", 500, 4, 16);
    const LseRows lse("lse", 500, 4);
    batch.prefill(HostExec(), 0, ids, offsets, tokens.keys, tokens.values, offsets, queries.keys,
                  output, lse, exact());
    for (std::size_t i = 0; i < 3; ++i) {
      const auto one = prefill<bfloat16, bfloat16>(singles, single_ids[i], tokens, queries,
                                                   offsets[i], offsets[i + 1], 16);
      CHECK(std::memcmp(one.output.data(), &output(std::size_t(offsets[i]), 0, 0),
                        one.output.size() * 2) == 0);
      CHECK(std::memcmp(one.lse.data(), &lse(std::size_t(offsets[i]), 0), one.lse.size() * 4) == 0);
    }
  }
}

TEST_CASE("full_tq never leaves attention to the caller; other modes never do prefill") {
  const KVShape shape{.kv_heads = 1, .key_dim = 16, .value_dim = 16};
  const Tokens<float> tokens(5, 0, 20, shape);
  const Tokens<float> queries(6, 0, 20, {1, 16, 8});
  for (const CacheMode mode : {CacheMode::off, CacheMode::capture_only, CacheMode::hybrid}) {
    Manager<float> manager({.layers = {layer(shape)}, .mode = mode});
    const auto id = manager.open();
    CHECK(contains(error_of([&] { prefill(manager, id, tokens, queries, 0, 20, 16); }),
                   "expected full_tq"));
    CHECK(manager.length(0, id) == 0);
  }
  Manager<float> manager({.layers = {layer(shape)}, .mode = CacheMode::full_tq});
  const auto id = manager.open();
  prefill(manager, id, tokens, queries, 0, 12, 16);
  append(manager, 0, id, tokens, 12, 20);
  CHECK(attention_error(manager, 0, id, 8, 1, layer(shape)) < 1e-4);
}

TEST_CASE("shapes that do not fit are refused before anything is written or stored") {
  const KVShape shape{.kv_heads = 2, .key_dim = 16, .value_dim = 16};
  const Tokens<float> tokens(5, 0, 20, shape);
  Manager<float> manager({.layers = {layer(shape)}, .mode = CacheMode::full_tq});
  const auto id = manager.open();
  const auto refusal = [&](std::size_t rows, std::size_t heads, std::size_t out_dim,
                           std::vector<std::int64_t> tokens_at,
                           std::vector<std::int64_t> queries_at) {
    const QueryRows<float> q("q", rows, heads, 16);
    const QueryRows<float> output("output", rows, heads, out_dim);
    const LseRows lse("lse", rows, heads);
    Kokkos::deep_copy(output, 7.0F);
    const std::string error = error_of([&] {
      manager.prefill(HostExec(), 0, std::vector{id}, tokens_at, tokens.keys, tokens.values,
                      queries_at, q, output, lse);
    });
    CHECK(manager.length(0, id) == 0);
    CHECK(std::all_of(output.data(), output.data() + output.size(),
                      [](float x) { return x == 7.0F; }));
    return error;
  };
  CHECK(contains(refusal(20, 3, 16, {0, 20}, {0, 20}),
                 "expected a positive multiple of kv_heads = 2"));
  CHECK(contains(refusal(20, 4, 8, {0, 20}, {0, 20}), "output.extent(2) is 8, expected 16"));
  CHECK(contains(refusal(20, 4, 16, {0, 19}, {0, 20}), "cu_seqlens runs from 0 to 19"));
  CHECK(contains(refusal(21, 4, 16, {0, 20}, {0, 21}),
                 "has 21 queries, expected at most its 20 new tokens"));
  CHECK(contains(refusal(20, 4, 16, {0, 20}, {0, 10, 20}), "cu_queries.size() is 3"));
  CHECK(contains(refusal(20, 4, 16, {0, 20, 20}, {0, 20}), "cu_seqlens.size() is 3"));
}

TEST_CASE("what prefill writes overlaps nothing that it reads, and a refusal stores nothing") {
  const KVShape shape{.kv_heads = 2, .key_dim = 16, .value_dim = 16};
  const Tokens<float> tokens(5, 0, 20, shape);
  const Tokens<float> kept(5, 0, 20, shape);
  Manager<float> manager({.layers = {layer(shape)}, .mode = CacheMode::full_tq});
  const auto id = manager.open();
  const QueryRows<float> q("q", 20, 2, 16);
  const QueryRows<float> output("output", 20, 2, 16);
  const LseRows lse("lse", 20, 2);
  const auto refusal = [&](const QueryRows<float>& out, const LseRows& sums) {
    const std::string error = error_of([&] {
      manager.prefill(HostExec(), 0, std::vector{id}, std::vector<std::int64_t>{0, 20}, tokens.keys,
                      tokens.values, std::vector<std::int64_t>{0, 20}, q, out, sums);
    });
    CHECK(manager.length(0, id) == 0);
    CHECK(
        std::equal(tokens.keys.data(), tokens.keys.data() + tokens.keys.size(), kept.keys.data()));
    CHECK(std::equal(tokens.values.data(), tokens.values.data() + tokens.values.size(),
                     kept.values.data()));
    return error;
  };
  const auto contains_all = [](const std::string& error, const char* part) {
    return contains(error, "invalid_argument: CacheManager::prefill: ") && contains(error, part);
  };
  CHECK(contains_all(refusal(tokens.values, lse), "output overlaps values"));
  CHECK(contains_all(refusal(tokens.keys, lse), "output overlaps keys"));
  CHECK(contains_all(refusal(q, lse), "output overlaps queries"));
  CHECK(contains_all(refusal(output, LseRows(output.data(), 20, 2)), "output overlaps lse"));
  CHECK(contains_all(refusal(output, LseRows(q.data(), 20, 2)), "lse overlaps queries"));
  CHECK(contains_all(refusal(output, LseRows(tokens.keys.data() + 1, 20, 2)), "lse overlaps keys"));
  CHECK(contains_all(refusal(output, LseRows(tokens.values.data() + 1, 20, 2)),
                     "lse overlaps values"));
  // Keys and values are only read, so that they may be the same memory.
  manager.prefill(HostExec(), 0, std::vector{id}, std::vector<std::int64_t>{0, 20}, tokens.keys,
                  tokens.keys, std::vector<std::int64_t>{0, 20}, q, output, lse);
  CHECK(manager.length(0, id) == 20);
}

TEST_CASE_TEMPLATE("prefill and append refuse rows too large, and take the largest", T, float,
                   bfloat16) {
  const KVShape shape{.kv_heads = 2, .key_dim = 16, .value_dim = 16};
  const Tokens<float> queries(9, 0, 20, {4, 16, 16});
  for (const std::int64_t window : {0, 8, 128}) {
    for (const bool key : {true, false}) {
      const float limit = key ? -0x1p96F : 0x1p96F;
      const char* const expected = key ? "keys(13, 1, 5) is -7.9847132533907028e+28, "
                                         "expected at most 2^96"
                                       : "values(13, 1, 5) is 7.9847132533907028e+28, "
                                         "expected at most 2^96";
      Manager<T> manager({.layers = {layer(shape, 3, 4, window)}, .mode = CacheMode::full_tq});
      const auto id = manager.open();
      const Tokens<T> tokens(5, 0, 20, shape);
      T& number = (key ? tokens.keys : tokens.values)(13, 1, 5);
      number = cache_test::number<T>(limit * 1.0078125F);
      const std::string error =
          error_of([&] { prefill<T>(manager, id, tokens, queries, 0, 20, 16); });
      CAPTURE(error);
      CHECK(contains(error, "non_finite"));
      CHECK(contains(error, std::string("CacheManager::prefill: ") + expected));
      CHECK(contains(error_of([&] { append(manager, 0, id, tokens, 0, 20); }),
                     std::string("CacheManager::append: ") + expected));
      CHECK(manager.length(0, id) == 0);
      number = cache_test::number<T>(limit);
      const auto result = prefill<T>(manager, id, tokens, queries, 0, 20, 16);
      CHECK(std::all_of(result.output.data(), result.output.data() + result.output.size(),
                        [](float x) { return std::isfinite(x); }));
      CHECK(std::all_of(result.lse.data(), result.lse.data() + result.lse.size(),
                        [](float x) { return std::isfinite(x); }));
      CHECK(manager.length(0, id) == 20);
    }
  }
}
