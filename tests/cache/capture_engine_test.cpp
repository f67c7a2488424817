#include "cache/cache_test_support.hpp"

#include <turboquant/cache/capture_engine.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

using cache_test::AllocationCounter;
using cache_test::codec_options;
using cache_test::contains;
using cache_test::error_of;
using cache_test::Host;
using cache_test::HostExec;
using cache_test::Tokens;
using turboquant::bfloat16;
using turboquant::CaptureOptions;
using turboquant::CaptureView;
using turboquant::float16;
using turboquant::KVShape;
using Codec = turboquant::TileCodec<Host>;
template <class T>
using Engine = turboquant::KVCaptureEngine<Host, T>;

namespace {

constexpr KVShape shape{.kv_heads = 2, .key_dim = 16, .value_dim = 24};

Codec codec() {
  return Codec(codec_options(16, 24));
}

template <class T>
void ingest(Engine<T>& engine, const Tokens<T>& tokens, std::int64_t begin, std::int64_t end) {
  engine.ingest(HostExec(), tokens.keys_from(begin, end), tokens.values_from(begin, end));
}

/// Everything an engine holds, as bytes that a test can compare: history tiles, window and sink
/// rows.
template <class T>
struct Contents {
  std::vector<std::byte> history;
  std::vector<T> window;
  std::vector<T> sinks;
  std::int64_t history_begin = 0;
  std::int64_t window_begin = 0;
  std::int64_t length = 0;

  explicit Contents(Engine<T>& engine) {
    const CaptureView<T> view = engine.view(HostExec());
    if (engine.compressed()) {
      history = cache_test::history_bytes<T>(view.history, engine.store().codec().format(),
                                             shape.kv_heads);
    }
    window = cache_test::window_numbers(view, shape);
    CaptureView<T> as_window;
    as_window.window_keys = view.sink_keys;
    as_window.window_values = view.sink_values;
    as_window.window_end = view.sink_count;
    as_window.window_rows = std::max<std::int64_t>(1, view.sink_count);
    sinks = cache_test::window_numbers(as_window, shape);
    history_begin = engine.history_begin();
    window_begin = view.window_begin;
    length = view.length;
  }
  friend bool operator==(const Contents& a, const Contents& b) {
    return a.history == b.history && cache_test::same_bits(a.window, b.window) &&
           cache_test::same_bits(a.sinks, b.sinks) && a.history_begin == b.history_begin &&
           a.window_begin == b.window_begin && a.length == b.length;
  }
};

/// The invariant: sinks, history and window are all tokens [0, length) in order, with the right
/// bits.
template <class T>
void check_invariant(Engine<T>& engine, const Tokens<T>& tokens) {
  const CaptureView<T> view = engine.view(HostExec());
  const std::int64_t sinks = std::min(engine.options().sinks, view.length);
  CHECK(view.sink_count == sinks);
  CHECK(view.window_end == std::max(view.length, engine.options().sinks));
  if (engine.compressed()) {
    CHECK(view.history.end == view.window_begin);
    if (engine.options().sliding_window == 0) {
      CHECK(view.history.begin == engine.options().sinks);
    }
    Engine<T> direct({.shape = shape, .window_capacity = 0}, engine.store().codec());
    const std::int64_t from = view.history.begin;
    direct.ingest(HostExec(), tokens.keys_from(from, view.history.end),
                  tokens.values_from(from, view.history.end));
    const CaptureView<T> expected = direct.view(HostExec());
    if ((view.history.begin - view.history.page_position) % 64 == 0) {
      const turboquant::TileFormat& format = engine.store().codec().format();
      CHECK(cache_test::history_bytes<T>(view.history, format, 2) ==
            cache_test::history_bytes<T>(expected.history, format, 2));
    }
  }
  std::vector<T> expected;
  const auto add = [&](const auto& rows, std::int64_t row) {
    expected.insert(expected.end(), rows.data() + view.window_begin * row,
                    rows.data() + view.window_end * row);
  };
  if (view.window_begin < view.window_end) {
    add(tokens.keys, shape.key_numbers());
    add(tokens.values, shape.value_numbers());
  }
  CHECK(cache_test::same_bits(cache_test::window_numbers(view, shape), expected));
  CHECK((sinks == 0 || std::memcmp(view.sink_keys, tokens.keys.data(),
                                   std::size_t(sinks * shape.key_numbers()) * sizeof(T)) == 0));
  CHECK((sinks == 0 || std::memcmp(view.sink_values, tokens.values.data(),
                                   std::size_t(sinks * shape.value_numbers()) * sizeof(T)) == 0));
}

}  // namespace

TEST_CASE_TEMPLATE("after every call store and window are all tokens in order, for any chunks", T,
                   float, float16, bfloat16) {
  const Tokens<T> tokens(5, 0, 700, shape);
  const bool all = std::is_same_v<T, float>;
  for (const std::int64_t capacity :
       all ? std::vector<std::int64_t>{0, 8, 63, 64, 100, 128} : std::vector<std::int64_t>{100}) {
    for (const std::int64_t sinks :
         all ? std::vector<std::int64_t>{0, 4, 70} : std::vector<std::int64_t>{4}) {
      for (const std::int64_t block : {0, 128}) {
        CAPTURE(capacity);
        CAPTURE(sinks);
        const CaptureOptions options{
            .shape = shape, .window_capacity = capacity, .sinks = sinks, .block_size = block};
        Engine<T> engine(options, codec());
        std::int64_t done = 0;
        for (const std::int64_t count : {1, 2, 1, 60, 64, 1, 0, 300, 129, 1, 141}) {
          ingest(engine, tokens, done, done + count);
          done += count;
          CHECK(engine.length() == done);
          check_invariant(engine, tokens);
        }
        Engine<T> whole(options, codec());
        ingest(whole, tokens, 0, 700);
        CHECK(Contents<T>(engine) == Contents<T>(whole));
      }
    }
  }
}

TEST_CASE("an uncompressed layer holds every token exactly") {
  const Tokens<float> tokens(5, 0, 900, shape);
  Engine<float> engine({.shape = shape, .sinks = 3}, std::nullopt);
  for (std::int64_t done = 0; done < 900; done += 90) {
    ingest(engine, tokens, done, done + 90);
    check_invariant(engine, tokens);
  }
  CHECK(engine.window_begin() == 3);
  CHECK_NOTHROW(engine.flush(HostExec()));
  engine.truncate(HostExec(), 500);
  ingest(engine, tokens, 500, 600);
  check_invariant(engine, tokens);
  CHECK(contains(error_of([&] { static_cast<void>(engine.store()); }), "not compressed"));
}

TEST_CASE("flush compresses everything and later tokens take the free slots") {
  const Tokens<float> tokens(5, 0, 500, shape);
  for (const std::int64_t block : {0, 128}) {
    Engine<float> engine({.shape = shape, .block_size = block}, codec());
    ingest(engine, tokens, 0, 150);
    engine.flush(HostExec());
    CHECK(engine.window_begin() == 150);
    check_invariant(engine, tokens);
    ingest(engine, tokens, 150, 151);
    CHECK(engine.window_begin() == 150);
    ingest(engine, tokens, 151, 300);
    CHECK(engine.window_begin() == 192);
    check_invariant(engine, tokens);
    engine.flush(HostExec());
    engine.flush(HostExec());
    check_invariant(engine, tokens);
  }
}

TEST_CASE(
    "rollback across the border of window and store, then the same tokens, is as if nothing had "
    "happened") {
  const Tokens<float> tokens(5, 0, 600, shape);
  const Tokens<float> wrong(6, 0, 600, shape);
  const Codec shared_codec = codec();
  for (const std::int64_t capacity : {0, 8, 128}) {
    for (const std::int64_t sinks : {0, 4}) {
      for (const std::int64_t cut : {0, 1, 4, 5, 63, 64, 65, 100, 128, 132, 150, 192, 199}) {
        CAPTURE(capacity);
        CAPTURE(cut);
        const CaptureOptions options{
            .shape = shape, .window_capacity = capacity, .sinks = sinks, .block_size = 64};
        Engine<float> engine(options, shared_codec);
        ingest(engine, tokens, 0, cut);
        ingest(engine, wrong, cut, 400);
        engine.truncate(HostExec(), cut);
        CHECK(engine.length() == cut);
        check_invariant(engine, tokens);
        for (std::int64_t t = cut; t < 600; t += 150) {
          ingest(engine, tokens, t, std::min<std::int64_t>(600, t + 150));
          check_invariant(engine, tokens);
        }
        // Once everything cut away has been replaced, nothing remembers the rollback.
        Engine<float> direct(options, shared_codec);
        ingest(direct, tokens, 0, 600);
        CHECK(Contents<float>(engine) == Contents<float>(direct));
      }
    }
  }
  Engine<float> engine({.shape = shape}, codec());
  ingest(engine, tokens, 0, 10);
  CHECK(contains(error_of([&] { engine.truncate(HostExec(), 11); }),
                 "length is 11, expected 0 to 10"));
  CHECK(contains(error_of([&] { engine.truncate(HostExec(), -1); }), "out_of_range"));
  CHECK(engine.length() == 10);
}

TEST_CASE("a token has the same codes whether it came through the window or not") {
  // Both paths encode the same bits of the same type, so a window type never changes codes.
  const Tokens<bfloat16> tokens(5, 0, 128, shape);
  Engine<bfloat16> through({.shape = shape, .window_capacity = 128}, codec());
  for (std::int64_t t = 0; t < 128; ++t) {
    ingest(through, tokens, t, t + 1);
  }
  through.flush(HostExec());
  Engine<bfloat16> past({.shape = shape, .window_capacity = 0}, codec());
  ingest(past, tokens, 0, 128);
  CHECK(Contents<bfloat16>(through).history == Contents<bfloat16>(past).history);
}

TEST_CASE("a sliding window bounds memory and refuses to roll back into what is gone") {
  const Tokens<float> tokens(5, 0, 4000, shape);
  for (const bool compressed : {true, false}) {
    for (const std::int64_t sinks : {0, 4}) {
      const auto ledger = std::make_shared<turboquant::MemoryLedger>();
      const CaptureOptions options{
          .shape = shape, .sinks = sinks, .sliding_window = 300, .block_size = 64};
      const auto chosen = compressed ? std::optional<Codec>(codec()) : std::nullopt;
      Engine<float> engine(options, chosen, ledger);
      std::size_t at_1000 = 0;
      for (std::int64_t t = 0; t < 4000; t += 40) {
        ingest(engine, tokens, t, t + 40);
        check_invariant(engine, tokens);
        CHECK(engine.history_begin() <= std::max(sinks, t + 40 - 300 - 8));
        at_1000 = t == 960 ? ledger->total() : at_1000;
      }
      CHECK(ledger->total() == at_1000);
      // One long chunk drops what it passes by and ends in the same state.
      Engine<float> whole(options, chosen);
      ingest(whole, tokens, 0, 4000);
      CHECK(Contents<float>(whole) == Contents<float>(engine));

      CHECK_NOTHROW(engine.truncate(HostExec(), 3992));
      check_invariant(engine, tokens);
      CHECK(contains(error_of([&] { engine.truncate(HostExec(), 3000); }),
                     "have left the sliding window of 300"));
      CHECK(engine.length() == 3992);
      CHECK_NOTHROW(engine.truncate(HostExec(), 0));
      ingest(engine, tokens, 0, 700);
      check_invariant(engine, tokens);
    }
  }
  CHECK(contains(error_of([] {
                   Engine<float>({.shape = shape, .sliding_window = 10, .block_size = 0}, codec());
                 }),
                 "block_size is 0 (flat)"));
}

TEST_CASE("windows smaller than a tile and than the exact window keep order and positions") {
  const Tokens<float> tokens(5, 0, 1500, shape);
  const Tokens<float> wrong(6, 0, 1500, shape);
  for (const std::int64_t window : {1, 3, 12, 64}) {
    for (const std::int64_t capacity : {0, 8, 128}) {
      for (const std::int64_t sinks : {0, 5}) {
        CAPTURE(window);
        CAPTURE(capacity);
        CAPTURE(sinks);
        const CaptureOptions options{.shape = shape,
                                     .window_capacity = capacity,
                                     .sinks = sinks,
                                     .sliding_window = window,
                                     .block_size = 64};
        const auto ledger = std::make_shared<turboquant::MemoryLedger>();
        Engine<float> engine(options, codec(), ledger);
        std::int64_t done = 0;
        std::size_t bytes = 0;
        for (const std::int64_t count : {1, 1, 62, 64, 3, 0, 200, 129, 40, 1, 99, 200}) {
          ingest(engine, tokens, done, done + count);
          done += count;
          check_invariant(engine, tokens);
          // A proposal that is rolled back, as in speculative decoding.
          ingest(engine, wrong, done, done + 8);
          engine.truncate(HostExec(), done);
          check_invariant(engine, tokens);
          Engine<float> child = engine.fork();
          CHECK(Contents<float>(child) == Contents<float>(engine));
          ingest(child, tokens, done, done + 70);
          check_invariant(child, tokens);
          bytes = done == 600 ? ledger->total() : bytes;
        }
        CHECK(done == 800);
        // Pages of 64 tokens: what is kept is bounded by window, rollback and one page on each
        // side.
        CHECK(ledger->total() <= bytes);
        CHECK(engine.store().num_tokens() <= window + 8 + 2 * 64);
      }
    }
  }
}

TEST_CASE(
    "a window of one token can be rolled back to any length, and positions go on from there") {
  // The next token sees itself alone, so nothing that is gone is missed.
  const Tokens<float> tokens(5, 0, 900, shape);
  for (const std::int64_t capacity : {0, 128}) {
    for (const std::int64_t sinks : {0, 5}) {
      for (const std::int64_t length : {0, 3, 5, 50, 64, 333, 399}) {
        CAPTURE(capacity);
        CAPTURE(sinks);
        CAPTURE(length);
        const CaptureOptions options{.shape = shape,
                                     .window_capacity = capacity,
                                     .sinks = sinks,
                                     .sliding_window = 1,
                                     .block_size = 64};
        Engine<float> engine(options, codec());
        ingest(engine, tokens, 0, 400);
        engine.truncate(HostExec(), length);
        CHECK(engine.length() == length);
        ingest(engine, tokens, length, length + 1);
        CHECK(engine.sees_all(length, length + 1));
        for (std::int64_t done = length + 1; done < length + 300; done += 23) {
          ingest(engine, tokens, done, done + 23);
          const CaptureView<float> view = engine.view(HostExec());
          CHECK(view.history.end == view.window_begin);
          CHECK(view.window_end == view.length);
          CHECK(engine.sees_all(view.length - 8, view.length));
        }
        check_invariant(engine, tokens);
      }
    }
  }
  turboquant::CompressedKVStore<Host> store(codec(), 2, {.block_size = 64, .first_position = 5});
  CHECK(contains(error_of([&] { store.restart(6); }), "position is 6, expected 5 to 5"));
  CHECK(contains(error_of([&] { store.restart(4); }), "position is 4"));
}

TEST_CASE("after a rollback, a query whose window reaches what is gone is told apart") {
  const Tokens<float> tokens(5, 0, 400, shape);
  Engine<float> engine(
      {.shape = shape, .window_capacity = 0, .sliding_window = 4, .block_size = 64}, codec());
  ingest(engine, tokens, 0, 332);  // needs positions from 320 on, the start of a page
  CHECK(engine.history_begin() == 320);
  CHECK(engine.sees_all(331, 332));
  CHECK(engine.sees_all(323, 332));
  CHECK_FALSE(engine.sees_all(322, 332));
  engine.truncate(HostExec(), 324);
  CHECK(engine.sees_all(323, 324));
  CHECK_FALSE(engine.sees_all(322, 324));
}

TEST_CASE_TEMPLATE("a zero token comes back as zeros and leaves its neighbours alone", T, float,
                   float16, bfloat16) {
  for (const int dim : {64, 80, 96, 120, 128, 576}) {
    for (const int bits : {2, 3, 4}) {
      CAPTURE(dim);
      CAPTURE(bits);
      const KVShape square{.kv_heads = 2, .key_dim = dim, .value_dim = dim};
      const Codec codec(codec_options(dim, dim, bits, bits));
      const Tokens<T> others(5, 0, 2, square);
      Tokens<T> with_zero(5, 0, 3, square);
      const auto copy_row = [&](std::size_t to, std::size_t from) {
        std::copy_n(&others.keys(from, 0, 0), 2 * dim, &with_zero.keys(to, 0, 0));
        std::copy_n(&others.values(from, 0, 0), 2 * dim, &with_zero.values(to, 0, 0));
      };
      copy_row(0, 0);
      copy_row(2, 1);
      std::fill_n(&with_zero.keys(1, 0, 0), 2 * dim, cache_test::number<T>(0.0F));
      std::fill_n(&with_zero.values(1, 0, 0), 2 * dim, cache_test::number<T>(0.0F));
      const CaptureOptions options{.shape = square, .window_capacity = 0};
      Engine<T> engine(options, codec);
      Engine<T> never(options, codec);
      ingest(engine, with_zero, 0, 3);
      ingest(never, others, 0, 2);
      std::vector<float> row(static_cast<std::size_t>(dim));
      std::vector<float> scratch(2 * row.size());
      const auto decoded = [&](Engine<T>& from, std::size_t token, int head, bool key) {
        const std::byte* tile =
            cache_test::tile_of(from.view(HostExec()).history, codec.format(), 0, head);
        if (key) {
          turboquant::decode_key(codec.tables(), tile, token, row.data(), scratch.data());
        } else {
          turboquant::decode_value(codec.tables(), tile, token, row.data(), scratch.data());
        }
        return row;
      };
      for (const int head : {0, 1}) {
        for (const bool key : {true, false}) {
          CHECK(decoded(engine, 1, head, key) == std::vector<float>(row.size(), 0.0F));
          // Values of odd tokens are stored mirrored, so token 2 stays even: compare the keys.
          CHECK(decoded(engine, 0, head, key) == decoded(never, 0, head, key));
        }
        CHECK(decoded(engine, 2, head, true) == decoded(never, 1, head, true));
      }
    }
  }
}

TEST_CASE_TEMPLATE("numbers that are not finite are refused in every type, and nothing changes", T,
                   float, float16, bfloat16) {
  const Tokens<T> tokens(5, 0, 300, shape);
  Engine<T> engine({.shape = shape, .window_capacity = 64, .sinks = 4}, codec());
  ingest(engine, tokens, 0, 200);
  const Contents<T> before(engine);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    const std::string is = std::isnan(bad) ? "nan" : (bad > 0 ? "inf" : "-inf");
    const Tokens<T> poisoned(5, 0, 3, shape);
    poisoned.keys(1, 1, 2) = cache_test::number<T>(bad);
    CHECK(contains(error_of([&] { ingest(engine, poisoned, 0, 3); }),
                   "keys(1, 1, 2) is " + is + ", expected at most 2^96 in magnitude"));
    const Tokens<T> late(5, 0, 3, shape);
    late.values(2, 1, 23) = cache_test::number<T>(bad);
    CHECK(contains(error_of([&] { ingest(engine, late, 0, 3); }),
                   "values(2, 1, 23) is " + is + ", expected at most 2^96 in magnitude"));
    CHECK(Contents<T>(engine) == before);
  }
}

TEST_CASE_TEMPLATE("rows too large for attention are refused, however they come", T, float,
                   bfloat16) {
  constexpr KVShape square{.kv_heads = 2, .key_dim = 16, .value_dim = 16};
  const auto rows_with = [&](bool key, float number) {
    const Tokens<T> tokens(5, 0, 150, square);
    (key ? tokens.keys : tokens.values)(140, 1, 3) = cache_test::number<T>(number);
    return tokens;
  };
  const auto paged_rows = [](const Tokens<T>& tokens) {
    Kokkos::View<T*****, Kokkos::LayoutRight, Host> cache("cache", 2, 10, 16, 2, 16);
    std::copy_n(tokens.keys.data(), tokens.keys.size(), &cache(0, 0, 0, 0, 0));
    std::copy_n(tokens.values.data(), tokens.values.size(), &cache(1, 0, 0, 0, 0));
    return cache;
  };
  const std::vector<std::int32_t> table{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  // Tokens that stay exact, that are compressed at once, and that no query will see.
  for (const CaptureOptions& options :
       {CaptureOptions{.shape = square}, CaptureOptions{.shape = square, .window_capacity = 0},
        CaptureOptions{.shape = square, .sinks = 145},
        CaptureOptions{.shape = square, .window_capacity = 4, .sliding_window = 4}}) {
    for (const bool compressed : {true, false}) {
      const auto empty = [&] {
        return Engine<T>(options,
                         compressed ? std::optional(Codec(codec_options(16, 16))) : std::nullopt);
      };
      for (const bool key : {true, false}) {
        constexpr float limit = turboquant::largest_row_number;
        for (const float sign : {1.0F, -1.0F}) {
          const Tokens<T> good = rows_with(key, sign * limit);
          Engine<T> engine = empty();
          ingest(engine, good, 0, 150);
          engine.flush(HostExec());
          Engine<T> paged = empty();
          paged.ingest_paged(HostExec(), {paged_rows(good)}, table, 0, 150);
          CHECK(paged.length() == 150);

          const Tokens<T> bad = rows_with(key, sign * limit * 1.0078125F);
          const std::string is = std::string(sign > 0 ? "7.98" : "-7.98");
          for (const std::int64_t chunk : {1, 7, 150}) {
            Engine<T> refusing = empty();
            std::int64_t done = 0;
            const std::string error = error_of([&] {
              for (; done < 150; done += chunk) {
                ingest(refusing, bad, done, std::min<std::int64_t>(150, done + chunk));
              }
            });
            CAPTURE(error);
            CHECK(contains(error, std::string("non_finite: KVCaptureEngine::ingest: ") +
                                      (key ? "keys(" : "values(") + std::to_string(140 - done) +
                                      ", 1, 3) is " + is));
            CHECK(contains(error, "expected at most 2^96 in magnitude"));
            CHECK(done == 140 / chunk * chunk);
            CHECK(refusing.length() == done);
          }
          const auto before = engine.contents(HostExec());
          CHECK(contains(
              error_of([&] { engine.ingest_paged(HostExec(), {paged_rows(bad)}, table, 130, 20); }),
              key ? "KVCaptureEngine::ingest_paged: keys(10, 1, 3) is "
                  : "KVCaptureEngine::ingest_paged: values(10, 1, 3) is "));
          CHECK(engine.length() == 150);
          CHECK(engine.contents(HostExec()).tiles == before.tiles);
        }
      }
    }
  }
}

TEST_CASE("rows with padding between tokens are refused, not misread") {
  const KVShape wide{.kv_heads = 1, .key_dim = 72, .value_dim = 72};
  Engine<float> engine({.shape = wide}, Codec(codec_options(72, 72)));
  const Tokens<float> tokens(5, 0, 100, wide);
  const cache_test::HostRows<float> padded(
      Kokkos::view_alloc(std::string("padded"), Kokkos::AllowPadding), 100, 1, 72);
  if (padded.span_is_contiguous()) {
    MESSAGE("this Kokkos does not pad rows of 72 numbers");
  } else {
    CHECK(contains(error_of([&] { engine.ingest(HostExec(), padded, tokens.values); }),
                   "keys has padding between its tokens"));
    CHECK(contains(error_of([&] { engine.ingest(HostExec(), tokens.keys, padded); }),
                   "values has padding between its tokens"));
  }
  CHECK(engine.length() == 0);
}

TEST_CASE("forks are independent and share memory until one writes") {
  const AllocationCounter counter;
  const Tokens<float> tokens(5, 0, 500, shape);
  const Tokens<float> others(6, 0, 500, shape);
  Engine<float> parent({.shape = shape, .sinks = 4, .block_size = 64}, codec());
  ingest(parent, tokens, 0, 400);
  const Contents<float> before(parent);
  const std::int64_t allocated = counter.bytes();
  Engine<float> child = parent.fork();
  CHECK(counter.bytes() == allocated);
  CHECK(Contents<float>(child) == before);
  child.truncate(HostExec(), 100);
  ingest(child, others, 100, 500);
  CHECK(Contents<float>(parent) == before);
  ingest(parent, tokens, 400, 500);
  check_invariant(parent, tokens);
  Engine<float> direct({.shape = shape, .sinks = 4, .block_size = 64}, codec());
  ingest(direct, tokens, 0, 100);
  ingest(direct, others, 100, 500);
  CHECK(Contents<float>(child).window == Contents<float>(direct).window);
  CHECK(Contents<float>(child).history == Contents<float>(direct).history);
}

TEST_CASE_TEMPLATE("paged caches are read in both layouts, scattered and from any first token", T,
                   float, bfloat16) {
  constexpr KVShape square{.kv_heads = 3, .key_dim = 16, .value_dim = 16};
  const Codec square_codec(codec_options(16, 16));
  constexpr std::int64_t block_size = 16;
  constexpr std::int64_t count = 205;
  const Tokens<T> tokens(5, 0, count, square);
  const std::vector<std::int32_t> table{7, 3, 19, 0, 1, 12, 11, 10, 2, 5, 18, 17, 4};
  for (const auto layout : {turboquant::BlockLayout::nhd, turboquant::BlockLayout::hnd}) {
    const bool nhd = layout == turboquant::BlockLayout::nhd;
    Kokkos::View<T*****, Kokkos::LayoutRight, Host> cache("cache", 2, 20, nhd ? 16 : 3,
                                                          nhd ? 3 : 16, 16);
    for (std::int64_t t = 0; t < count; ++t) {
      const auto block = std::size_t(table[std::size_t(t / block_size)]);
      const auto slot = std::size_t(t % block_size);
      for (std::size_t h = 0; h < 3; ++h) {
        for (std::size_t d = 0; d < 16; ++d) {
          const std::size_t a = nhd ? slot : h;
          const std::size_t b = nhd ? h : slot;
          cache(0, block, a, b, d) = tokens.keys(std::size_t(t), h, d);
          cache(1, block, a, b, d) = tokens.values(std::size_t(t), h, d);
        }
      }
    }
    const turboquant::PagedSource<Host, T> source{cache, layout};
    Engine<T> paged({.shape = square}, square_codec);
    paged.ingest_paged(HostExec(), source, table, 0, 150);
    paged.ingest_paged(HostExec(), source, table, 150, 0);
    paged.ingest_paged(HostExec(), source, table, 150, 55);
    Engine<T> plain({.shape = square}, square_codec);
    ingest(plain, tokens, 0, count);
    const auto a = paged.view(HostExec());
    const auto b = plain.view(HostExec());
    CHECK(a.length == count);
    CHECK(cache_test::history_bytes<T>(a.history, square_codec.format(), 3) ==
          cache_test::history_bytes<T>(b.history, square_codec.format(), 3));
    CHECK(cache_test::same_bits(cache_test::window_numbers(a, square),
                                cache_test::window_numbers(b, square)));

    const auto refused = [&](std::vector<std::int32_t> bad, std::int64_t first, std::int64_t n) {
      const std::string error =
          error_of([&] { paged.ingest_paged(HostExec(), source, bad, first, n); });
      CHECK(paged.length() == count);
      return error;
    };
    CHECK(contains(refused({0, 1}, 0, 33), "block_table has 2 entries, expected at least 3"));
    CHECK(contains(refused({0, -1, 2}, 0, 40), "block_table[1] is -1, expected 0 to 19"));
    CHECK(contains(refused({0, 20, 2}, 0, 40), "block_table[1] is 20"));
    CHECK(contains(refused({0}, -1, 4), "first is -1"));
    turboquant::PagedSource<Host, T> null = source;
    null.blocks = decltype(null.blocks)(nullptr, 2, 20, nhd ? 16 : 3, nhd ? 3 : 16, 16);
    CHECK(contains(error_of([&] { paged.ingest_paged(HostExec(), null, table, 0, 10); }),
                   "blocks.data() is null"));
    for (const int unknown : {2, 7, 255}) {
      turboquant::PagedSource<Host, T> odd = source;
      odd.layout = static_cast<turboquant::BlockLayout>(unknown);
      CHECK(error_of([&] { paged.ingest_paged(HostExec(), odd, table, 0, 1); }) ==
            "invalid_argument: KVCaptureEngine::ingest_paged: layout is BlockLayout(" +
                std::to_string(unknown) + "), expected nhd or hnd");
      CHECK(paged.length() == count);
    }
    Engine<T> other({.shape = {.kv_heads = 2, .key_dim = 16, .value_dim = 16}}, square_codec);
    CHECK(contains(error_of([&] { other.ingest_paged(HostExec(), source, table, 0, 10); }),
                   "shape_mismatch"));
  }
}

TEST_CASE("options outside their domain are refused by name") {
  const auto refusal = [](const CaptureOptions& options) {
    return error_of([&] { Engine<float>(options, codec()); });
  };
  CHECK(contains(refusal({.shape = shape, .window_capacity = -1}), "window_capacity is -1"));
  CHECK(contains(refusal({.shape = shape, .sinks = -1}), "sinks is -1"));
  CHECK(contains(refusal({.shape = shape, .sliding_window = -1}), "sliding_window is -1"));
  CHECK(contains(refusal({.shape = shape, .rollback_tokens = 7}), "rollback_tokens is 7"));
  CHECK(contains(refusal({.shape = shape, .block_size = 65}), "block_size is 65"));
  CHECK(contains(refusal({.shape = shape, .block_size = -64}), "block_size is -64"));
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  CHECK(contains(refusal({.shape = shape, .window_capacity = huge}), "window_capacity is 9223"));
  CHECK(contains(refusal({.shape = shape, .sinks = huge}), "sinks is 9223"));
  CHECK(contains(refusal({.shape = shape, .sliding_window = huge}), "sliding_window is 9223"));
  CHECK(contains(refusal({.shape = shape, .rollback_tokens = huge}), "rollback_tokens is 9223"));
  CHECK(contains(refusal({.shape = shape, .block_size = huge}), "block_size is 9223"));
  CHECK(contains(error_of([] { Engine<float>({.shape = shape, .block_size = -1}, std::nullopt); }),
                 "block_size is -1"));
  CHECK(contains(error_of([] { Engine<float>({.shape = shape}, codec(), nullptr); }),
                 "ledger is null"));
  CHECK(contains(
      refusal({.shape = {.kv_heads = 2, .key_dim = 24, .value_dim = 24}}),
      "the codec has key_dim 16 and value_dim 24, expected those of the shape, 24 and 24"));
}

TEST_CASE("an engine that has been moved from is empty, and works again") {
  const Tokens<float> tokens(5, 0, 300, shape);
  for (const bool compressed : {true, false}) {
    const CaptureOptions options{.shape = shape, .window_capacity = 100, .sinks = 3};
    Engine<float> one(options, compressed ? std::optional(codec()) : std::nullopt);
    ingest(one, tokens, 0, 300);
    const Contents<float> expected(one);
    Engine<float> other(std::move(one));
    CHECK(Contents<float>(other) == expected);
    CHECK(one.length() == 0);
    CHECK(one.history_begin() == 3);
    CHECK(one.view(HostExec()).length == 0);
    one.flush(HostExec());
    one.truncate(HostExec(), 0);
    CHECK(one.fork().length() == 0);
    ingest(one, tokens, 0, 300);
    CHECK(Contents<float>(one) == expected);
    other.truncate(HostExec(), 290);
    other = std::move(one);
    CHECK(Contents<float>(other) == expected);
    CHECK(one.length() == 0);
  }
}

TEST_CASE("rows in the engine's own memory are refused, and nothing changes") {
  const Tokens<float> tokens(5, 0, 300, shape);
  Engine<float> engine({.shape = shape, .window_capacity = 100, .sinks = 3}, codec());
  ingest(engine, tokens, 0, 300);
  const Contents<float> before(engine);
  using Rows = turboquant::TokenRows<Host, float>;
  for (const auto* ring : {&engine.window(), &engine.sinks()}) {
    const Rows keys(ring->keys(), 2, 2, 16);
    const Rows values(ring->values(), 2, 2, 24);
    CHECK(contains(
        error_of([&] { engine.ingest(HostExec(), keys, values); }),
        "invalid_argument: KVCaptureEngine::ingest: keys overlaps the memory of the exact rows"));
    CHECK(contains(error_of([&] { engine.ingest(HostExec(), tokens.keys_from(0, 2), values); }),
                   "values overlaps the memory of the exact rows"));
  }
  CHECK(Contents<float>(engine) == before);
}

TEST_CASE("errors of a paged cache name the function that was called") {
  constexpr KVShape square{.kv_heads = 1, .key_dim = 16, .value_dim = 16};
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  Engine<float> engine({.shape = square}, Codec(codec_options(16, 16)));
  const Kokkos::View<float*****, Kokkos::LayoutRight, Host> blocks("blocks", 2, 2, 16, 1, 16);
  const turboquant::PagedSource<Host, float> source{blocks, turboquant::BlockLayout::nhd};
  const std::vector<std::int32_t> table{0, 1};
  CHECK(contains(error_of([&] { engine.ingest_paged(HostExec(), source, table, most, 1); }),
                 "out_of_range: KVCaptureEngine::ingest_paged: first is 9223372036854775807 and "
                 "count is 1, expected tokens before position"));
  blocks(1, 0, 3, 0, 5) = std::numeric_limits<float>::infinity();
  CHECK(contains(error_of([&] { engine.ingest_paged(HostExec(), source, table, 0, 20); }),
                 "non_finite: KVCaptureEngine::ingest_paged: values(3, 0, 5)"));
  CHECK(engine.length() == 0);
}

TEST_CASE("pages of no whole tiles are refused in the engine's name") {
  CHECK(contains(error_of([] { Engine<float>({.shape = shape, .block_size = 16}, codec()); }),
                 "invalid_argument: KVCaptureEngine: CompressedKVStore: block_size is 16, expected "
                 "0 (flat) or a multiple of tile_tokens = 64 up to 2^30"));
}
