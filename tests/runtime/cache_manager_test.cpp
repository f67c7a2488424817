#include "runtime/runtime_test_support.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace runtime_test;
using cache_test::AllocationCounter;
using cache_test::contains;
using cache_test::error_of;
using turboquant::bfloat16;
using turboquant::CacheMode;
using turboquant::LayerOptions;

namespace {

constexpr KVShape plain_shape{.kv_heads = 2, .key_dim = 16, .value_dim = 16};

/// The bytes of a layer of a sequence: history tiles, then window numbers.
template <class T>
std::vector<std::byte> contents(Manager<T>& manager, std::int64_t layer, SequenceId id) {
  const auto view = manager.view(HostExec(), layer, id);
  std::vector<std::byte> bytes;
  if (manager.engine(layer, id).compressed()) {
    const auto& store = manager.engine(layer, id).store();
    bytes = cache_test::history_bytes<T>(view.history, store.codec().format(), store.kv_heads());
  }
  const auto window = cache_test::window_numbers(view, manager.engine(layer, id).options().shape);
  const auto* from = reinterpret_cast<const std::byte*>(window.data());
  bytes.insert(bytes.end(), from, from + window.size() * sizeof(T));
  return bytes;
}

Tokens<float> means(std::int64_t count, float first) {
  Tokens<float> tokens(0, 0, count, plain_shape);
  Kokkos::deep_copy(tokens.keys, 0.0F);
  for (std::size_t t = 0; t < std::size_t(count); ++t) {
    for (std::size_t i = 0; i < 32; ++i) {
      tokens.values.data()[t * 32 + i] = first + float(t);
    }
  }
  return tokens;
}

}  // namespace

TEST_CASE("sequences of different lengths in one call are the same as one by one") {
  const LayerOptions options = layer(plain_shape, 3, 4, 100);
  Manager<float> batch({.layers = {options, options}});
  Manager<float> singles({.layers = {options, options}});
  const std::vector<SequenceId> ids{batch.open(), batch.open(), batch.open(), batch.open()};
  const std::vector<SequenceId> others{singles.open(), singles.open(), singles.open(),
                                       singles.open()};
  const Tokens<float> tokens(5, 0, 600, plain_shape);
  for (const auto& offsets : std::vector<std::vector<std::int64_t>>{
           {0, 5, 5, 300, 301}, {0, 1, 2, 3, 4}, {0, 0, 599, 599, 600}, {0, 100, 164, 165, 600}}) {
    for (std::int64_t layer_index = 0; layer_index < 2; ++layer_index) {
      const auto rows = offsets.back();
      batch.append(HostExec(), layer_index, ids, offsets, tokens.keys_from(0, rows),
                   tokens.values_from(0, rows));
      for (std::size_t i = 0; i < 4; ++i) {
        append(singles, layer_index, others[i], tokens, offsets[i], offsets[i + 1]);
        CHECK(batch.length(layer_index, ids[i]) == singles.length(layer_index, others[i]));
        CHECK(contents(batch, layer_index, ids[i]) == contents(singles, layer_index, others[i]));
      }
    }
  }
  const HostQueries q = queries(3, 4, 2, 4, 16);
  const auto all = attend(batch, 1, ids, q, 16);
  for (std::size_t i = 0; i < 4; ++i) {
    HostQueries one("one", 1, 2, 4, 16);
    std::copy_n(&q(i, 0, 0, 0), one.size(), one.data());
    const auto single = attend(singles, 1, {others[i]}, one, 16);
    CHECK(std::memcmp(single.output.data(), &all.output(i, 0, 0, 0), single.output.size() * 4) ==
          0);
    CHECK(std::memcmp(single.lse.data(), &all.lse(i, 0, 0), single.lse.size() * 4) == 0);
  }
}

TEST_CASE("what happens to one sequence never shows in another") {
  Manager<float> manager({.layers = {layer(plain_shape, 4, 4, 4)}});
  const std::vector<SequenceId> ids{manager.open(), manager.open(), manager.open()};
  const std::vector<std::int64_t> lengths{5, 9, 3};
  for (std::size_t s = 0; s < 3; ++s) {
    append(manager, 0, ids[s], means(lengths[s], float(100 * s)), 0, lengths[s]);
  }
  manager.close(ids[1]);  // the longest
  const auto untouched = contents(manager, 0, ids[2]);
  append(manager, 0, ids[0], means(4, 5.0F), 0, 4);
  CHECK(contents(manager, 0, ids[2]) == untouched);
  append(manager, 0, ids[2], means(4, 203.0F), 0, 4);
  const auto result = attend(manager, 0, {ids[0], ids[2]}, queries(1, 2, 1, 2, 16), 16);
  CHECK(std::fabs(result.output(0, 0, 0, 0) - 4.0F) < 0.01F);
  CHECK(std::fabs(result.output(1, 0, 0, 0) - 203.0F) < 0.1F);
  CHECK(contains(error_of([&] { manager.close(ids[1]); }),
                 "sequence is 1, expected one that is open"));
  CHECK(manager.open() == 3);
}

TEST_CASE("forks share their prefix, copy pages on write, and free them when the last one closes") {
  Manager<float> manager({.layers = {layer(plain_shape), layer(plain_shape, 0)}, .slab_pages = 1});
  const AllocationCounter counter;
  const Tokens<float> tokens(5, 0, 500, plain_shape);
  const Tokens<float> others(6, 0, 500, plain_shape);
  const auto parent = manager.open();
  for (const int l : {0, 1}) {
    append(manager, l, parent, tokens, 0, 300);
  }
  const std::int64_t one = counter.bytes();
  const auto child = manager.fork(HostExec(), parent);
  const auto prefix = manager.fork(HostExec(), parent, 100);
  CHECK(counter.bytes() == one);
  CHECK(manager.length(0, prefix) == 100);
  const auto parent_contents = contents(manager, 0, parent);
  CHECK(contents(manager, 0, child) == parent_contents);
  for (const int l : {0, 1}) {
    append(manager, l, child, others, 300, 450);
    append(manager, l, prefix, others, 100, 400);
    CHECK(manager.length(l, parent) == 300);
  }
  CHECK(contents(manager, 0, parent) == parent_contents);

  Manager<float> direct({.layers = {layer(plain_shape), layer(plain_shape, 0)}});
  const auto a = direct.open();
  const auto b = direct.open();
  for (const int l : {0, 1}) {
    append(direct, l, a, tokens, 0, 300);
    append(direct, l, a, others, 300, 450);
    append(direct, l, b, tokens, 0, 100);
    append(direct, l, b, others, 100, 400);
    CHECK(contents(manager, l, child) == contents(direct, l, a));
    CHECK(contents(manager, l, prefix) == contents(direct, l, b));
  }
  manager.close(parent);
  CHECK(contents(manager, 0, child) == contents(direct, 0, a));
  manager.close(child);
  manager.close(prefix);
  manager.trim();
  CHECK(manager.ledger()->total() == 0);
  const auto again = manager.open();
  CHECK(contains(error_of([&] { static_cast<void>(manager.fork(HostExec(), again, 1)); }),
                 "length is 1, expected 0 to 0"));
  CHECK(manager.num_sequences() == 1);
}

TEST_CASE("forks of forks, cut at every depth, hold what was appended on their own path") {
  Manager<float> manager(
      {.layers = {layer(plain_shape, 3, 4, 20), layer(plain_shape, 0)}, .slab_pages = 1});
  const Tokens<float> tokens(5, 0, 2000, plain_shape);
  std::vector<SequenceId> ids{manager.open()};
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> paths{{{0, 200}}};
  for (const int l : {0, 1}) {
    append(manager, l, ids[0], tokens, 0, 200);
  }
  // Each fork cuts its parent and goes on with tokens of its own.
  const std::vector<std::int64_t> cuts{200, 150, 128, 64, 63, 1, 0};
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    ids.push_back(manager.fork(HostExec(), ids.back(), cuts[i]));
    auto path = paths.back();
    std::int64_t left = cuts[i];
    for (auto& [begin, end] : path) {
      end = begin + std::min(left, end - begin);
      left -= end - begin;
    }
    const auto first = std::int64_t(300 + 200 * i);
    path.emplace_back(first, first + 120);
    for (const int l : {0, 1}) {
      append(manager, l, ids.back(), tokens, first, first + 120);
    }
    paths.push_back(path);
  }
  Manager<float> direct({.layers = {layer(plain_shape, 3, 4, 20), layer(plain_shape, 0)}});
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CAPTURE(i);
    const auto id = direct.open();
    for (const auto& [begin, end] : paths[i]) {
      for (const int l : {0, 1}) {
        append(direct, l, id, tokens, begin, end);
      }
    }
    for (const int l : {0, 1}) {
      CHECK(contents(manager, l, ids[i]) == contents(direct, l, id));
    }
  }
  // Close from the middle outwards; the others stay.
  for (const std::size_t i : {3U, 0U, 7U, 4U}) {
    manager.close(ids[i]);
  }
  for (const std::size_t i : {1U, 2U, 5U, 6U}) {
    CHECK(contents(manager, 0, ids[i]) == contents(direct, 0, SequenceId(i)));
    manager.close(ids[i]);
  }
  manager.trim();
  CHECK(manager.ledger()->total() == 0);
}

TEST_CASE("names of sequences that are closed, foreign or made up are refused by every call") {
  Manager<float> manager({.layers = {layer(plain_shape)}, .mode = CacheMode::full_tq});
  Manager<float> other({.layers = {layer(plain_shape)}});
  const auto open = manager.open();
  const Tokens<float> tokens(5, 0, 9, plain_shape);
  append(manager, 0, open, tokens, 0, 9);
  const auto closed = manager.open();
  manager.close(closed);
  SequenceId foreign = 0;
  while (foreign < 2) {
    foreign = other.open();
  }
  const auto before = contents(manager, 0, open);
  const Kokkos::View<float***, Kokkos::LayoutRight, Host> rows("rows", 9, 1, 16);
  const Kokkos::View<float**, Kokkos::LayoutRight, Host> lse("lse", 9, 1);
  const std::vector<std::int64_t> offsets{0, 9};
  constexpr auto huge = std::numeric_limits<SequenceId>::max();
  for (const SequenceId id : {closed, foreign, SequenceId(-1), huge}) {
    const std::vector<SequenceId> ids{id};
    const std::vector<std::string> errors{
        error_of([&] { manager.close(id); }),
        error_of([&] { static_cast<void>(manager.fork(HostExec(), id)); }),
        error_of([&] { manager.truncate(HostExec(), id, 0); }),
        error_of([&] { append(manager, 0, id, tokens, 0, 9); }),
        error_of([&] { append(manager, 0, id, tokens, 0, 0); }),
        error_of([&] { attend(manager, 0, ids, queries(2, 1, 1, 2, 16), 16); }),
        error_of([&] { attend(manager, 0, ids, queries(2, 1, 1, 2, 16), 16, exact(), true); }),
        error_of([&] {
          manager.prefill(HostExec(), 0, ids, offsets, tokens.keys, tokens.values, offsets, rows,
                          rows, lse);
        }),
        error_of([&] { static_cast<void>(manager.stats(0, id)); }),
        error_of([&] { static_cast<void>(manager.length(0, id)); }),
        error_of([&] { static_cast<void>(manager.engine(0, id)); }),
        error_of([&] { static_cast<void>(manager.view(HostExec(), 0, id)); })};
    for (const std::string& error : errors) {
      CHECK(contains(error, "out_of_range"));
      CHECK(contains(error, "sequence is " + std::to_string(id) + ", expected one that is open"));
    }
  }
  CHECK(contents(manager, 0, open) == before);
  CHECK(contains(error_of([&] { manager.truncate(HostExec(), open, -1); }), "length is -1"));
  CHECK(contains(error_of([&] { static_cast<void>(manager.fork(HostExec(), open, -1)); }),
                 "length is -1"));
  CHECK(contains(error_of([&] { manager.truncate(HostExec(), open, huge); }), "length is 9223"));
}

TEST_CASE("appends of no tokens change nothing, alone and within a batch") {
  Manager<float> manager({.layers = {layer(plain_shape), layer(plain_shape, 0)}});
  const std::vector<SequenceId> ids{manager.open(), manager.open()};
  const Tokens<float> tokens(5, 0, 300, plain_shape);
  for (const std::int64_t l : {0, 1}) {
    append(manager, l, ids[0], tokens, 0, 0);
    CHECK(manager.length(l, ids[0]) == 0);
    append(manager, l, ids[0], tokens, 0, 200);
    const auto before = contents(manager, l, ids[0]);
    append(manager, l, ids[0], tokens, 0, 0);
    manager.append(HostExec(), l, {}, std::vector<std::int64_t>{0}, tokens.keys_from(0, 0),
                   tokens.values_from(0, 0));
    manager.append(HostExec(), l, ids, std::vector<std::int64_t>{0, 0, 40}, tokens.keys_from(0, 40),
                   tokens.values_from(0, 40));
    CHECK(contents(manager, l, ids[0]) == before);
    CHECK(manager.length(l, ids[1]) == 40);
  }
  CHECK(contains(error_of([&] {
                   manager.append(HostExec(), 0, {}, {}, tokens.keys_from(0, 0),
                                  tokens.values_from(0, 0));
                 }),
                 "cu_seqlens.size() is 0, expected one more than the 0 sequences"));
}

TEST_CASE("truncation rolls every layer back, or none") {
  Manager<float> manager(
      {.layers = {layer(plain_shape), layer(plain_shape, 0), layer(plain_shape, 2, 2, 0)}});
  const Tokens<float> tokens(5, 0, 300, plain_shape);
  const auto id = manager.open();
  for (const int l : {0, 1, 2}) {
    append(manager, l, id, tokens, 0, l == 2 ? 250 : 300);
  }
  CHECK(contains(error_of([&] { manager.truncate(HostExec(), id, 260); }),
                 "length is 260, expected 0 to 250, the tokens in layer 2"));
  CHECK(manager.length(0, id) == 300);
  manager.truncate(HostExec(), id, 133);
  for (const int l : {0, 1, 2}) {
    CHECK(manager.length(l, id) == 133);
    append(manager, l, id, tokens, 133, 300);
    CHECK(attention_error(manager, l, id, 8, 4,
                          l == 0   ? layer(plain_shape)
                          : l == 1 ? layer(plain_shape, 0)
                                   : layer(plain_shape, 2, 2, 0)) < 5e-4);
  }
}

TEST_CASE("every layer uses its own bits, and costs what they cost") {
  std::vector<LayerOptions> layers;
  const KVShape wide{.kv_heads = 2, .key_dim = 64, .value_dim = 64};
  for (const auto& [key_bits, value_bits] :
       {std::pair{4, 4}, std::pair{3, 2}, std::pair{3, 3}, std::pair{2, 4}, std::pair{0, 0}}) {
    layers.push_back(layer(wide, key_bits, value_bits, 0));
  }
  Manager<float> manager({.layers = layers});
  const auto id = manager.open();
  const Tokens<float> tokens(5, 0, 128, wide);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    append(manager, std::int64_t(l), id, tokens, 0, 128);
    CHECK(attention_error(manager, std::int64_t(l), id, 1, 4, layers[l]) < 5e-4);
    const auto stats = manager.stats(std::int64_t(l), id);
    if (layers[l].codec) {
      const auto bits =
          std::size_t(layers[l].codec->format.key_bits + layers[l].codec->format.value_bits);
      CHECK(stats.history_bytes == 128U * 2 * (64 * bits / 8 + 2 + 4));
      CHECK(stats.exact_bytes == 0);
    } else {
      CHECK(stats.history_bytes == 0);
      CHECK(stats.window_tokens == 128);
    }
    CHECK(stats.dense_bytes == 128U * 2 * 128 * 2);
  }
}

TEST_CASE("layers that read another layer's cache see it and never write it") {
  LayerOptions reader;
  reader.source = 1;
  LayerOptions recurrent;
  recurrent.has_cache = false;
  Manager<float> manager({.layers = {recurrent, layer(plain_shape), reader, reader}});
  const auto id = manager.open();
  const Tokens<float> tokens(5, 0, 300, plain_shape);
  append(manager, 1, id, tokens, 0, 300);
  const auto before = contents(manager, 1, id);
  CHECK(contains(error_of([&] { append(manager, 2, id, tokens, 0, 10); }),
                 "layer 2 reads the cache of layer 1"));
  CHECK(contains(error_of([&] { append(manager, 0, id, tokens, 0, 10); }),
                 "layer 0 has no token cache"));
  CHECK(contains(error_of([&] { append(manager, 4, id, tokens, 0, 10); }),
                 "layer is 4, expected 0 to 3"));
  CHECK(contains(error_of([&] { append(manager, -1, id, tokens, 0, 10); }), "layer is -1"));
  CHECK(contents(manager, 1, id) == before);
  const HostQueries q = queries(2, 1, 3, 4, 16);
  const auto owner = attend(manager, 1, {id}, q, 16);
  const auto shared = attend(manager, 3, {id}, q, 16);
  CHECK(cache_test::same_bits(owner.output, shared.output));
  CHECK(cache_test::same_bits(owner.lse, shared.lse));
}

TEST_CASE("every mode stores and computes what the table says") {
  const Tokens<float> tokens(5, 0, 30, plain_shape);
  const HostQueries q = queries(2, 1, 1, 2, 16);
  for (const auto& mode : turboquant::cache_modes) {
    Manager<float> manager({.layers = {layer(plain_shape)}, .mode = mode.mode});
    const AllocationCounter counter;
    const auto id = manager.open();
    append(manager, 0, id, tokens, 0, 30);
    CHECK(manager.length(0, id) == 30);
    CHECK(manager.stats(0, id).window_tokens == (mode.stores ? 30 : 0));
    CHECK((counter.bytes() > 0) == mode.stores);
    const std::string decode = error_of([&] { attend(manager, 0, {id}, q, 16); });
    CHECK(contains(decode, "expected hybrid or full_tq") ==
          (mode.decode == turboquant::AttentionBy::caller));
    CHECK((decode == "no error") == (mode.decode == turboquant::AttentionBy::library));
    const std::string shadow = error_of([&] { attend(manager, 0, {id}, q, 16, exact(), true); });
    CHECK((shadow == "no error") == mode.stores);
  }
}

TEST_CASE("tokens that went by in mode off are noticed, never attended around") {
  Manager<float> manager({.layers = {layer(plain_shape)}, .mode = CacheMode::capture_only});
  const Tokens<float> tokens(5, 0, 30, plain_shape);
  const auto id = manager.open();
  const auto whole = manager.open();
  append(manager, 0, id, tokens, 0, 5);
  append(manager, 0, whole, tokens, 0, 5);
  manager.set_mode(CacheMode::off);
  const Tokens<float> any_numbers(5, 0, 10, plain_shape);
  any_numbers.keys(6, 0, 1) = std::numeric_limits<float>::quiet_NaN();
  append(manager, 0, id, any_numbers, 5, 10);
  CHECK(manager.length(0, id) == 10);
  CHECK(manager.stats(0, id).missed_tokens == 5);
  manager.set_mode(CacheMode::hybrid);
  const std::string gap =
      "lacks 5 tokens from position 5 on, which were appended in mode off; truncate it to 5 or "
      "close it";
  CHECK(contains(error_of([&] { append(manager, 0, id, tokens, 10, 15); }), gap));
  const HostQueries q = queries(2, 1, 1, 2, 16);
  CHECK(contains(error_of([&] { attend(manager, 0, {id}, q, 16); }), gap));
  CHECK(contains(error_of([&] { manager.set_mode(CacheMode::full_tq); }), gap));
  CHECK(manager.mode() == CacheMode::hybrid);
  CHECK_NOTHROW(attend(manager, 0, {whole}, q, 16));
  const auto fork = manager.fork(HostExec(), id);
  CHECK(manager.stats(0, fork).missed_tokens == 5);
  manager.truncate(HostExec(), id, 7);
  CHECK(manager.stats(0, id).missed_tokens == 2);
  manager.truncate(HostExec(), id, 5);
  append(manager, 0, id, tokens, 5, 15);
  CHECK(attention_error(manager, 0, id, 1, 2, layer(plain_shape)) < 1e-4);
  manager.close(fork);
  CHECK_NOTHROW(manager.set_mode(CacheMode::full_tq));
}

TEST_CASE("full_tq is not left while sequences are open, because nothing else has their tokens") {
  Manager<float> manager({.layers = {layer(plain_shape)}, .mode = CacheMode::full_tq});
  const auto id = manager.open();
  for (const CacheMode mode : {CacheMode::off, CacheMode::capture_only, CacheMode::hybrid}) {
    CHECK(contains(error_of([&] { manager.set_mode(mode); }),
                   "1 sequences are open whose tokens no engine cache holds"));
  }
  CHECK_NOTHROW(manager.set_mode(CacheMode::full_tq));
  manager.close(id);
  CHECK_NOTHROW(manager.set_mode(CacheMode::off));
  CHECK(contains(error_of([&] { manager.set_mode(CacheMode{9}); }), "value is 9"));
}

TEST_CASE("modes belong to a manager, not to the process") {
  Manager<float> a({.layers = {layer(plain_shape)}, .mode = CacheMode::off});
  Manager<float> b({.layers = {layer(plain_shape)}, .mode = CacheMode::hybrid});
  a.set_mode(CacheMode::capture_only);
  CHECK(b.mode() == CacheMode::hybrid);
}

TEST_CASE("a batch that cannot be stored as a whole is not stored at all") {
  const KVShape wide{.kv_heads = 2, .key_dim = 64, .value_dim = 64};
  Manager<float> manager({.layers = {layer(wide, 3, 4, 64)}, .slab_pages = 1});
  const std::vector<SequenceId> ids{manager.open(), manager.open()};
  const Tokens<float> tokens(5, 0, 900, wide);
  const std::vector<std::int64_t> first{0, 200, 400};
  manager.append(HostExec(), 0, ids, first, tokens.keys_from(0, 400), tokens.values_from(0, 400));
  const auto a = contents(manager, 0, ids[0]);
  const auto b = contents(manager, 0, ids[1]);
  const auto use = manager.memory_use().total();
  const auto unchanged = [&] {
    return contents(manager, 0, ids[0]) == a && contents(manager, 0, ids[1]) == b &&
           manager.length(0, ids[0]) == 200 && manager.length(0, ids[1]) == 200 &&
           manager.memory_use().total() == use;
  };
  const auto refusal = [&](const std::vector<SequenceId>& which,
                           const std::vector<std::int64_t>& offsets, const Tokens<float>& rows) {
    const std::string error =
        error_of([&] { manager.append(HostExec(), 0, which, offsets, rows.keys, rows.values); });
    CHECK(unchanged());
    return error;
  };
  // The first sequence would fit, the second would not.
  const std::size_t page = manager.engine(0, ids[0]).store().tile_bytes() / 3;
  manager.set_memory_limit(manager.ledger()->total() + 4 * page);
  const std::string too_much = refusal(ids, {0, 100, 900}, tokens);
  CHECK(contains(too_much, "capacity"));
  CHECK(contains(too_much, "leaves room for 4"));  // told for the batch as a whole
  manager.set_memory_limit(turboquant::MemoryLedger::unlimited);
  Tokens<float> poisoned(5, 0, 900, wide);
  poisoned.keys(899, 1, 63) = std::numeric_limits<float>::quiet_NaN();
  CHECK(contains(refusal(ids, {0, 100, 900}, poisoned), "keys(899, 1, 63) is nan"));
  CHECK(contains(refusal({ids[0], ids[0]}, {0, 100, 900}, tokens), "sequence 0 appears twice"));
  CHECK(contains(refusal({ids[0], 77}, {0, 100, 900}, tokens),
                 "sequence is 77, expected one that is open"));
  CHECK(contains(refusal(ids, {0, 100, 899}, tokens),
                 "cu_seqlens runs from 0 to 899, expected 0 to the number of rows, 900"));
  CHECK(contains(refusal(ids, {1, 100, 900}, tokens), "cu_seqlens runs from 1"));
  CHECK(contains(refusal(ids, {0, 950, 900}, tokens),
                 "cu_seqlens[2] is 900, expected at least cu_seqlens[1] = 950"));
  CHECK(contains(refusal(ids, {0, 900}, tokens), "cu_seqlens.size() is 2"));
  CHECK(contains(refusal(ids, {0, 2, 4}, Tokens<float>(5, 0, 4, {4, 64, 32})),
                 "keys is (4, 4, 64), expected (tokens, 2, 64)"));
  manager.append(HostExec(), 0, ids, std::vector<std::int64_t>{0, 100, 900}, tokens.keys,
                 tokens.values);
  CHECK(manager.length(0, ids[1]) == 1000);
}

TEST_CASE("outputs may be 16-bit and views of default layout") {
  Manager<bfloat16> manager({.layers = {layer(plain_shape)}});
  const auto id = manager.open();
  append(manager, 0, id, Tokens<bfloat16>(5, 0, 300, plain_shape), 0, 300);
  const HostQueries q = queries(2, 1, 1, 4, 16);
  const auto expected = attend(manager, 0, {id}, q, 16);
  const Kokkos::View<turboquant::float16****, Host> output("output", 1, 1, 4, 16);
  const Kokkos::View<float***, Host> lse("lse", 1, 1, 4);
  manager.attend(HostExec(), 0, std::vector{id}, q, output, lse, exact());
  for (std::size_t h = 0; h < 4; ++h) {
    CHECK(lse(0, 0, h) == expected.lse(0, 0, h));
    for (std::size_t d = 0; d < 16; ++d) {
      CHECK(output(0, 0, h, d).bits ==
            turboquant::float16::from_float(expected.output(0, 0, h, d)).bits);
    }
  }
  const auto refusal = [&](std::size_t n, std::size_t m, std::size_t dim) {
    const HostQueries bad("bad", n, m, 4, dim);
    return error_of([&] { attend(manager, 0, {id}, bad, 16); });
  };
  CHECK(contains(refusal(2, 1, 16), "queries.extent(0) is 2, expected the number of sequences, 1"));
  CHECK(contains(refusal(1, 9, 16), "queries.extent(1) is 9, expected 0 to 8"));
  CHECK(contains(refusal(1, 1, 24), "queries.extent(3) is 24, expected 16"));
}

TEST_CASE("layers that contradict themselves are refused by number and field") {
  const auto refusal = [](std::vector<LayerOptions> layers) {
    return error_of([&] { const Manager<float> manager({.layers = std::move(layers)}); });
  };
  LayerOptions reader;
  reader.source = 5;
  CHECK(contains(refusal({}), "layers is empty"));
  CHECK(contains(refusal({layer(plain_shape), reader}), "layers[1].source is 5, expected 0 to 1"));
  reader.source = 1;
  CHECK(contains(refusal({layer(plain_shape), reader}),
                 "layers[1].source is 1, expected a layer with a cache of its own"));
  LayerOptions both = layer(plain_shape);
  both.source = 0;
  CHECK(contains(refusal({layer(plain_shape), both}), "layers[1] has a source"));
  LayerOptions none = layer(plain_shape);
  none.has_cache = false;
  CHECK(contains(refusal({none}), "layers[0] has a codec"));
  LayerOptions flat = layer(plain_shape);
  flat.capture.block_size = 0;
  CHECK(contains(refusal({flat}), "layers[0].capture.block_size is 0"));
  LayerOptions negative = layer(plain_shape);
  negative.capture.sinks = -1;
  CHECK(contains(refusal({layer(plain_shape), negative}),
                 "CacheManager: layers[1]: KVCaptureEngine: sinks is -1"));
  LayerOptions headless = layer(plain_shape);
  headless.capture.shape.kv_heads = 0;
  CHECK(contains(refusal({headless}),
                 "CacheManager: layers[0]: KVShape: kv_heads is 0, expected 1 to 1024"));
  LayerOptions mixed = layer(plain_shape);
  mixed.codec->format.key_dim = 32;
  CHECK(contains(refusal({layer(plain_shape), layer(plain_shape), mixed}),
                 "CacheManager: layers[2]: KVCaptureEngine: the codec has key_dim 32"));
  LayerOptions bits = layer(plain_shape);
  bits.codec->format.key_bits = 5;
  CHECK(contains(refusal({layer(plain_shape), bits}),
                 "CacheManager: layers[1]: TileFormat: key_bits is 5"));
  LayerOptions rule = layer(plain_shape);
  rule.codec->key_scale_rule = turboquant::ScaleRule(7);
  CHECK(contains(refusal({rule}), "CacheManager: layers[0]: TileCodec: key_scale_rule is 7"));
  LayerOptions windowed = layer(plain_shape);
  windowed.capture.block_size = 100;
  for (const std::int64_t bad : {100, 16, 1, -64}) {
    windowed.capture.block_size = bad;
    CHECK(
        contains(refusal({layer(plain_shape), windowed}),
                 "CacheManager: layers[1].capture.block_size is " + std::to_string(bad) +
                     ", expected a positive multiple of codec.format.tile_tokens = 64 up to 2^30"));
  }
  CHECK(contains(error_of([] {
                   const Manager<float> manager(
                       {.layers = {layer(plain_shape)}, .slab_pages = std::size_t{1} << 40U});
                 }),
                 "slab_pages is 1099511627776, expected 0 to 2^20"));
  CHECK(contains(error_of([] {
                   const Manager<float> manager(
                       {.layers = {layer(plain_shape)}, .mode = CacheMode{4}});
                 }),
                 "CacheMode: value is 4"));
  LayerOptions odd = layer(plain_shape, 0);
  odd.capture.shape.key_dim = 20;
  CHECK(contains(refusal({odd}), "CacheManager: layers[0]: TileFormat: key_dim is 20"));
  // The context ends with the constructor.
  Manager<float> manager({.layers = {layer(plain_shape)}});
  CHECK(contains(error_of([&] { manager.close(5); }),
                 "out_of_range: CacheManager::close: sequence is 5"));
}

TEST_CASE("rows in a sequence's own memory are refused, and nothing changes") {
  Manager<float> manager({.layers = {layer(plain_shape)}});
  const Tokens<float> tokens(5, 0, 40, plain_shape);
  const auto a = manager.open();
  const auto b = manager.open();
  append(manager, 0, a, tokens, 0, 40);
  const auto& window = manager.engine(0, a).window();
  using Rows = turboquant::TokenRows<Host, float>;
  const Rows keys(window.keys(), 4, std::size_t(plain_shape.kv_heads),
                  std::size_t(plain_shape.key_dim));
  const Rows values(window.values(), 4, std::size_t(plain_shape.kv_heads),
                    std::size_t(plain_shape.value_dim));
  for (const bool alone : {true, false}) {
    const std::vector<SequenceId> ids = alone ? std::vector{a} : std::vector{b, a};
    const std::vector<std::int64_t> offsets =
        alone ? std::vector<std::int64_t>{0, 4} : std::vector<std::int64_t>{0, 2, 4};
    CHECK(contains(
        error_of([&] { manager.append(HostExec(), 0, ids, offsets, keys, values); }),
        "invalid_argument: CacheManager::append: keys overlaps the memory of the exact rows"));
    CHECK(manager.length(0, a) == 40);
    CHECK(manager.length(0, b) == 0);
  }
  // Another sequence's window is an input like any other.
  manager.append(HostExec(), 0, std::vector{b}, std::vector<std::int64_t>{0, 4}, keys, values);
  CHECK(manager.length(0, b) == 4);
}

TEST_CASE("errors name the function of the manager that was called") {
  LayerOptions windowed = layer(plain_shape);
  windowed.capture.sliding_window = 32;
  Manager<float> manager({.layers = {windowed}});
  const Tokens<float> tokens(5, 0, 600, plain_shape);
  const auto id = manager.open();
  append(manager, 0, id, tokens, 0, 600);
  CHECK(contains(error_of([&] { manager.truncate(HostExec(), id, 200); }),
                 "out_of_range: CacheManager::truncate: length is 200, but tokens before"));
  CHECK(contains(error_of([&] { static_cast<void>(manager.fork(HostExec(), id, 200)); }),
                 "out_of_range: CacheManager::fork: length is 200, but tokens before"));
}

TEST_CASE("a decode plan that has been moved from is as it was") {
  const turboquant::TileCodec<Host> codec(*layer(plain_shape).codec);
  auto one = turboquant::plan_decode(
      HostExec(), codec,
      {.query_heads = 4, .kv_heads = plain_shape.kv_heads, .max_history_tokens = 4000});
  const std::string expected = one.describe();
  auto other = std::move(one);
  CHECK(one.describe() == expected);
  CHECK(other.describe() == expected);
  other = turboquant::plan_decode(HostExec(), codec, {.kv_heads = 1, .max_history_tokens = 64});
  other = std::move(one);
  CHECK(one.describe() == expected);
  CHECK(other.describe() == expected);
  CHECK(one.workspace_bytes() == other.workspace_bytes());
}

TEST_CASE("appends up to the memory limit leave room for attention where its workspace is kept") {
  const Tokens<float> tokens(5, 0, 4000, plain_shape);
  const HostQueries q = queries(1, 1, 1, 4, plain_shape.key_dim);
  const turboquant::TileCodec<Host> codec(*layer(plain_shape).codec);
  const auto plan = turboquant::plan_decode(
      HostExec(), codec,
      {.query_heads = 4, .kv_heads = plain_shape.kv_heads, .max_history_tokens = 4000});
  const auto wanted = std::size_t(plan.workspace_bytes());
  /// Whether attention fails after as many appends as fit.
  const auto fails = [&](std::size_t limit, std::size_t workspace) {
    Manager<float> manager({.layers = {layer(plain_shape)},
                            .memory_limit_bytes = limit,
                            .slab_pages = 1,
                            .workspace_bytes = workspace});
    const auto id = manager.open();
    std::int64_t length = 0;
    while (error_of([&] { append(manager, 0, id, tokens, length, length + 1); }) == "no error") {
      ++length;
    }
    CHECK(length > 500);
    CHECK(length < 4000);
    const std::string error =
        error_of([&] { static_cast<void>(attend(manager, 0, {id}, q, plain_shape.value_dim)); });
    if (error != "no error") {
      CHECK(
          contains(error, "capacity: CacheManager::attend: turboquant::CacheManager::workspace: "));
      CHECK(contains(error, " bytes do not fit the memory limit of "));
    }
    CHECK(manager.memory_use().total() - manager.memory_use().codec_tables <= limit);
    manager.trim();
    CHECK(manager.memory_use().workspace == (workspace + 63) / 64 * 64);
    return error != "no error";
  };
  int failures = 0;
  for (std::size_t limit = wanted + 100000; limit < wanted + 102000; limit += 64) {
    failures += fails(limit, 0) ? 1 : 0;
    CHECK(!fails(limit, wanted));
  }
  CHECK(failures > 0);
  CHECK(contains(error_of([&] {
                   const Manager<float> manager({.layers = {layer(plain_shape)},
                                                 .memory_limit_bytes = 1000,
                                                 .workspace_bytes = 1001});
                 }),
                 "capacity: CacheManager: workspace_bytes: turboquant::CacheManager::workspace: "
                 "1024 bytes do not fit the memory limit of 1000"));
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  for (const std::size_t workspace : {most, most - 1, most - 63, most - 64, most / 2 + 1}) {
    for (const std::size_t limit : {most, most - 1, std::size_t{1} << 40U}) {
      CAPTURE(workspace);
      CAPTURE(limit);
      CHECK(contains(error_of([&] {
                       const Manager<float> manager({.layers = {layer(plain_shape)},
                                                     .memory_limit_bytes = limit,
                                                     .workspace_bytes = workspace});
                     }),
                     "capacity: CacheManager: workspace_bytes: "
                     "turboquant::CacheManager::workspace: "));
    }
  }
}

TEST_CASE("a call whose workspace does not fit leaves the workspace that is kept") {
  Manager<float> manager({.layers = {layer(plain_shape)}, .workspace_bytes = 640});
  const Tokens<float> tokens(5, 0, 10, plain_shape);
  const auto id = manager.open();
  append(manager, 0, id, tokens, 0, 10);
  manager.set_memory_limit(manager.memory_use().total());
  CHECK(contains(error_of([&] {
                   static_cast<void>(attend(manager, 0, {id},
                                            queries(1, 1, 8, 64, plain_shape.key_dim),
                                            plain_shape.value_dim));
                 }),
                 "capacity: CacheManager::attend: "));
  CHECK(manager.memory_use().workspace == 640);
}
