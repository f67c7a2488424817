// Stores and capture engines whose tiles have a key mean.

#include "cache/cache_test_support.hpp"

#include <turboquant/cache/capture_engine.hpp>
#include <turboquant/device/encode_tiles.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using cache_test::bytes_of;
using cache_test::codec_options;
using cache_test::contains;
using cache_test::error_of;
using cache_test::Host;
using cache_test::HostExec;
using cache_test::Tokens;
using cache_test::with_key_means;
using turboquant::bfloat16;
using turboquant::CaptureOptions;
using turboquant::CounterRng;
using turboquant::float16;
using turboquant::KVShape;
using Codec = turboquant::TileCodec<Host>;
using Store = turboquant::CompressedKVStore<Host>;
template <class T>
using Engine = turboquant::KVCaptureEngine<Host, T>;

namespace {

constexpr KVShape mean_shape{.kv_heads = 2, .key_dim = 16, .value_dim = 24};

Codec codec() {
  return Codec(with_key_means(codec_options(16, 24)));
}

/// Tokens whose keys have a bias of their own for every head and dimension.
template <class T>
Tokens<T> biased(std::uint64_t seed, std::int64_t count) {
  Tokens<T> tokens(seed, 0, count, mean_shape);
  for (std::size_t i = 0; i < tokens.keys.size(); ++i) {
    T& x = tokens.keys.data()[i];
    x = cache_test::number<T>(cache_test::to_float(x) + 10 * float(i % 32 % 5));
  }
  return tokens;
}

/// The tiles of tokens [begin, end), each from one job: [tile][head].
template <class T>
std::vector<std::byte> whole_tiles(const Codec& codec, const Tokens<T>& tokens, std::int64_t begin,
                                   std::int64_t end) {
  const std::size_t bytes = codec.format().bytes();
  std::vector<std::byte> tiles;
  for (std::int64_t p = begin; p < end; p += 64) {
    std::vector<std::byte> tile(2 * bytes);
    Kokkos::View<turboquant::EncodeJob*, Host> jobs("jobs", 1);
    jobs(0).keys = turboquant::dense_rows(&tokens.keys(std::size_t(p), 0, 0), 2, 16);
    jobs(0).values = turboquant::dense_rows(&tokens.values(std::size_t(p), 0, 0), 2, 24);
    jobs(0).tile = tile.data();
    jobs(0).head_stride = std::int64_t(bytes);
    jobs(0).count = int(std::min<std::int64_t>(64, end - p));
    jobs(0).clear_from = 0;
    turboquant::encode_tiles(HostExec(), codec, 2,
                             Kokkos::View<const turboquant::EncodeJob*, Host>(jobs));
    HostExec().fence();
    tiles.insert(tiles.end(), tile.begin(), tile.end());
  }
  return tiles;
}

template <class T>
std::vector<std::byte> history(Engine<T>& engine) {
  return cache_test::history_bytes<T>(engine.view(HostExec()).history,
                                      engine.store().codec().format(), 2);
}

template <class T>
void ingest(Engine<T>& engine, const Tokens<T>& tokens, std::int64_t begin, std::int64_t end) {
  engine.ingest(HostExec(), tokens.keys_from(begin, end), tokens.values_from(begin, end));
}

std::vector<float> decoded_key(const turboquant::KVStoreView& view, const Codec& codec,
                               std::int64_t position, int head) {
  std::vector<float> key(16);
  std::vector<float> scratch(32);
  turboquant::decode_key(codec.tables(), cache_test::tile_of(view, codec.format(), position, head),
                         std::size_t(position - view.page_position) % 64, key.data(),
                         scratch.data());
  return key;
}

}  // namespace

TEST_CASE_TEMPLATE("any chunks give the tiles of whole tiles in one piece", T, float, float16,
                   bfloat16) {
  const Tokens<T> tokens = biased<T>(5, 900);
  const Codec shared = codec();
  const bool all = std::is_same_v<T, float>;
  for (const std::int64_t capacity :
       all ? std::vector<std::int64_t>{63, 64, 128} : std::vector<std::int64_t>{100}) {
    for (const std::int64_t sinks :
         all ? std::vector<std::int64_t>{0, 4, 70} : std::vector<std::int64_t>{4}) {
      for (const std::int64_t block : {0, 128}) {
        CAPTURE(capacity);
        CAPTURE(sinks);
        CAPTURE(block);
        const CaptureOptions options{
            .shape = mean_shape, .window_capacity = capacity, .sinks = sinks, .block_size = block};
        for (const std::vector<std::int64_t>& chunks :
             {std::vector<std::int64_t>{900}, {1, 2, 1, 60, 64, 1, 0, 300, 129, 1, 341}, {7}}) {
          Engine<T> engine(options, shared);
          std::int64_t done = 0;
          for (std::size_t i = 0; done < 900; ++i) {
            const std::int64_t next = std::min<std::int64_t>(900, done + chunks[i % chunks.size()]);
            ingest(engine, tokens, done, next);
            done = next;
          }
          CHECK(engine.window_begin() > 700);
          CHECK(history(engine) == whole_tiles(shared, tokens, sinks, engine.window_begin()));
        }
      }
    }
  }
}

TEST_CASE("a window that cannot hold a tile back is refused") {
  for (const std::int64_t capacity : {0, 8, 62}) {
    CHECK(contains(error_of([&] {
                     Engine<float>({.shape = mean_shape, .window_capacity = capacity}, codec());
                   }),
                   "window_capacity is " + std::to_string(capacity) +
                       ", expected at least 63 with key_centring tile_mean"));
  }
  CHECK_NOTHROW(Engine<float>({.shape = mean_shape, .window_capacity = 63}, codec()));
}

TEST_CASE("a store that is appended to in whole tiles holds the same bytes, flat or paged") {
  const Tokens<float> tokens = biased<float>(6, 400);
  const Codec shared = codec();
  const auto expected = whole_tiles(shared, tokens, 0, 400);
  for (const std::int64_t block : {0, 64, 128}) {
    for (const std::int64_t chunk : {64, 128, 192, 400}) {
      Store store(shared, 2, {.block_size = block});
      for (std::int64_t done = 0; done < 400; done += chunk) {
        append(store, tokens, done, std::min<std::int64_t>(400, done + chunk));
      }
      CHECK(bytes_of(store) == expected);
    }
  }
}

TEST_CASE("tokens keep their bits while others join their tile, leave it, or fork from it") {
  const Tokens<float> tokens = biased<float>(7, 300);
  const Tokens<float> others = biased<float>(8, 300);
  const Codec shared = codec();
  for (const std::int64_t block : {0, 64}) {
    Store store(shared, 2, {.block_size = block});
    append(store, tokens, 0, 90);
    const auto begun = bytes_of(store);
    CHECK(begun == whole_tiles(shared, tokens, 0, 90));
    append(store, others, 0, 40);
    store.truncate(HostExec(), 90);
    CHECK(bytes_of(store) == begun);
    Store fork = store.fork();
    append(fork, others, 0, 5);
    append(fork, others, 5, 100);
    CHECK(bytes_of(store) == begun);
    Store again = store.fork();
    append(again, others, 0, 100);
    CHECK(bytes_of(again) == bytes_of(fork));  // however many at a time join the tile
    // One token alone in its tile, and none.
    store.truncate(HostExec(), 65);
    append(store, tokens, 65, 66);
    store.truncate(HostExec(), 64);
    append(store, tokens, 64, 90);
    CHECK(bytes_of(store) == begun);
    // A tile may begin in its middle.
    store.restart(70);
    append(store, tokens, 70, 90);
    const auto key = decoded_key(store.view(HostExec()), shared, 80, 1);
    for (std::size_t d = 0; d < 16; ++d) {
      CHECK(std::abs(key[d] - tokens.keys(80, 1, d)) < 1.5);
    }
  }
}

TEST_CASE("flushes, rollbacks and forks at random leave every token close to what it was") {
  // Without means the bias of 40 alone would cost errors of several units.
  const Codec shared = codec();
  const CaptureOptions options{
      .shape = mean_shape, .window_capacity = 70, .sinks = 3, .block_size = 64};
  const CounterRng random(99, 0);
  std::uint64_t draw = 0;
  std::vector<Tokens<float>> inputs;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    inputs.push_back(biased<float>(20 + seed, 1200));
  }
  Engine<float> engine(options, shared);
  std::vector<std::size_t> from;  // which input each token is of
  double worst = 0;
  for (int step = 0; step < 300; ++step) {
    const auto kind = random.below(draw++, 8);
    const auto length = std::int64_t(from.size());
    if (kind == 0) {
      engine.flush(HostExec());
    } else if (kind == 1) {
      const auto cut = std::int64_t(random.below(draw++, std::uint32_t(length + 1)));
      engine.truncate(HostExec(), cut);
      from.resize(std::size_t(cut));
    } else if (kind == 2) {
      Engine<float> child = engine.fork();
      const auto before = history(engine);
      ingest(child, inputs[0], 0, 150);
      CHECK(history(engine) == before);
    } else {
      const auto count = std::int64_t(random.below(draw++, 90));
      if (length + count <= 1200) {
        const auto input = std::size_t(random.below(draw++, 4));
        ingest(engine, inputs[input], length, length + count);
        from.resize(std::size_t(length + count), input);
      }
    }
    const auto view = engine.view(HostExec());
    CHECK(view.history.end == view.window_begin);
    for (std::int64_t p = view.history.begin; p < view.history.end; p += 7) {
      for (const int head : {0, 1}) {
        const auto key = decoded_key(view.history, shared, p, head);
        for (std::size_t d = 0; d < 16; ++d) {
          const float exact =
              inputs[from[std::size_t(p)]].keys(std::size_t(p), std::size_t(head), d);
          worst = std::max(worst, double(std::abs(key[d] - exact)));
        }
      }
    }
  }
  CHECK(worst < 2.5);
}

TEST_CASE("a sliding window gives up pages and ends in the state of one long chunk") {
  const Tokens<float> tokens = biased<float>(9, 2000);
  const Codec shared = codec();
  const CaptureOptions options{
      .shape = mean_shape, .sinks = 4, .sliding_window = 300, .block_size = 64};
  Engine<float> engine(options, shared);
  for (std::int64_t t = 0; t < 2000; t += 40) {
    ingest(engine, tokens, t, t + 40);
  }
  Engine<float> whole(options, shared);
  ingest(whole, tokens, 0, 2000);
  CHECK(engine.history_begin() == whole.history_begin());
  CHECK(history(engine) == history(whole));
  CHECK(history(engine) ==
        whole_tiles(shared, tokens, engine.history_begin(), engine.window_begin()));
}

TEST_CASE("rows that were brought together cost memory during the call only, and may not fit") {
  const Tokens<float> tokens = biased<float>(10, 600);
  const auto run = [&](std::size_t limit, std::size_t* peak, std::size_t* total) {
    const auto ledger = std::make_shared<turboquant::MemoryLedger>();
    Engine<float> engine({.shape = mean_shape, .window_capacity = 100, .block_size = 64}, codec(),
                         ledger);
    ingest(engine, tokens, 0, 90);
    ledger->set_limit(limit);
    ledger->reset_peak();
    const auto before = history(engine);
    std::string message;
    try {
      ingest(engine, tokens, 90, 600);
    } catch (const turboquant::Error& error) {
      message = error.what();
      CHECK(engine.length() == 90);
      CHECK(history(engine) == before);
    }
    *peak = ledger->peak();
    *total = ledger->total();
    CHECK(ledger->bytes(turboquant::MemoryKind::workspace) == 0);
    return message;
  };
  std::size_t peak = 0;
  std::size_t total = 0;
  CHECK(run(turboquant::MemoryLedger::unlimited, &peak, &total).empty());
  CHECK(peak == total + 64 * 2 * (16 + 24) * sizeof(float));
  CHECK(run(peak, &peak, &total).empty());
  CHECK(contains(run(peak - 1, &peak, &total), "do not fit the memory limit"));
}

TEST_CASE("a page costs what the slot says") {
  const Codec one(with_key_means(codec_options(128, 128)));
  CHECK(one.format().slot_bytes() == 122);
  CHECK(Store::page_bytes(one.format(), 8, 64) == 64U * 8 * 122);
  Store store(one, 8, {.block_size = 64});
  const Tokens<float> tokens(5, 0, 64, {8, 128, 128});
  append(store, tokens, 0, 64);
  CHECK(store.tile_bytes() == 64U * 8 * 122);
}
