// Stores, engines and managers with tiles of 16 and 32 tokens: the size of tiles and pages changes
// where tokens lie, never what is stored of them.

#include "runtime/runtime_test_support.hpp"

#include <turboquant/cache/snapshot.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

using cache_test::codec_options;
using cache_test::contains;
using cache_test::error_of;
using cache_test::Host;
using cache_test::HostExec;
using cache_test::Tokens;
using namespace turboquant;
using Codec = TileCodec<Host>;
using Store = CompressedKVStore<Host>;
using Engine = KVCaptureEngine<Host, float>;

namespace {

TileCodecOptions with_tiles_of(TileCodecOptions options, int tokens, TileOrder order) {
  options.format.tile_tokens = tokens;
  options.format.order = order;
  return options;
}

std::vector<TileCodecOptions> codecs() {
  std::vector<TileCodecOptions> all{codec_options(64, 64), codec_options(80, 96, 2, 3),
                                    codec_options(48, 112, 4, 2)};
  auto sketch = codec_options(64, 80, 4, 3);
  sketch.format.key_codec = KeyCodec::inner_product;
  sketch.format.value_codec = ValueCodec::codebook;
  all.push_back(sketch);
  auto float8 = codec_options(48, 64, 8, 4);
  float8.format.key_codec = KeyCodec::float8;
  float8.format.value_group = 32;
  all.push_back(float8);
  return all;
}

template <class Call>
void for_small_tiles(const Call& call) {
  for (const int tokens : {16, 32}) {
    for (const TileOrder order : {TileOrder::host, TileOrder::mma}) {
      CAPTURE(tokens);
      CAPTURE(static_cast<int>(order));
      call(tokens, order);
    }
  }
}

void append(Store& store, const Tokens<float>& tokens, std::int64_t begin, std::int64_t end) {
  store.append<float>(HostExec(), tokens.keys_from(begin, end), tokens.values_from(begin, end));
}
void ingest(Engine& engine, const Tokens<float>& tokens, std::int64_t begin, std::int64_t end) {
  engine.ingest(HostExec(), tokens.keys_from(begin, end), tokens.values_from(begin, end));
}

/// What a store of tiles of 64 tokens holds after one append.
std::vector<std::byte> expected_bytes(const TileCodecOptions& options, const Tokens<float>& tokens,
                                      std::int64_t end) {
  Store store(Codec(options), 2);
  append(store, tokens, 0, end);
  return store.copy_out(HostExec());
}

}  // namespace

TEST_CASE("any size and order of tiles, page size and chunking holds the same codes and numbers") {
  for (const TileCodecOptions& options : codecs()) {
    const KVShape shape{2, options.format.key_dim, options.format.value_dim};
    const Tokens<float> tokens(5, 0, 200, shape);
    const auto expected = expected_bytes(options, tokens, 200);
    for_small_tiles([&](int size, TileOrder order) {
      const Codec codec(with_tiles_of(options, size, order));
      for (const std::int64_t block : {0, size, 3 * size, 128}) {
        for (const std::vector<std::int64_t>& chunks :
             {std::vector<std::int64_t>{200}, {1, 2, 30}, {16}, {15, 17, 64}}) {
          if (block % size != 0) {
            continue;
          }
          Store store(codec, 2, {.block_size = block});
          std::int64_t done = 0;
          for (std::size_t i = 0; done < 200; ++i) {
            const std::int64_t next = std::min<std::int64_t>(200, done + chunks[i % chunks.size()]);
            append(store, tokens, done, next);
            done = next;
          }
          CHECK(store.copy_out(HostExec()) == expected);
        }
      }
    });
  }
}

TEST_CASE("truncation and forks of small tiles equal stores built directly") {
  const TileCodecOptions options = codec_options(64, 64, 3, 3);
  const Tokens<float> tokens(5, 0, 300, {2, 64, 64});
  const Tokens<float> wrong(9, 0, 300, {2, 64, 64});
  for_small_tiles([&](int size, TileOrder order) {
    const Codec codec(with_tiles_of(options, size, order));
    for (const std::int64_t block : {0, size}) {
      for (const std::int64_t cut : {0, 1, 15, 16, 17, 63, 100, 128, 199}) {
        Store store(codec, 2, {.block_size = block});
        append(store, tokens, 0, cut);
        Store fork = store.fork();
        append(fork, wrong, cut, 200);
        CHECK(store.copy_out(HostExec()) == expected_bytes(options, tokens, cut));
        fork.truncate(HostExec(), cut);
        append(fork, tokens, cut, 300);
        CHECK(fork.copy_out(HostExec()) == expected_bytes(options, tokens, 300));
        CHECK(store.copy_out(HostExec()) == expected_bytes(options, tokens, cut));
      }
    }
  });
}

TEST_CASE("a page holds as many tokens as it says, without room for more") {
  for (const int size : {16, 32, 64}) {
    TileFormat format;
    format.tile_tokens = size;
    CHECK(Store::page_bytes(format, 8, size) == 8 * std::size_t(size) * format.slot_bytes());
    CHECK(format.slot_bytes() == 118);
    Store store(Codec(with_tiles_of(codec_options(64, 64), size, TileOrder::host)), 1,
                {.block_size = size});
    append(store, Tokens<float>(5, 0, 65, {1, 64, 64}), 0, 65);
    CHECK(store.num_chunks() == std::size_t(64 / size + 1));
  }
}

TEST_CASE("engines with small pages hold and save the same tokens") {
  for (const TileCodecOptions& options : codecs()) {
    CaptureOptions capture;
    capture.shape = {2, options.format.key_dim, options.format.value_dim};
    capture.window_capacity = 70;
    capture.sinks = 3;
    capture.block_size = 64;
    const Tokens<float> tokens(5, 0, 400, capture.shape);
    Engine whole(capture, Codec(options));
    ingest(whole, tokens, 0, 400);
    const auto expected = whole.contents(HostExec());
    for_small_tiles([&](int size, TileOrder order) {
      capture.block_size = size;
      Engine small(capture, Codec(with_tiles_of(options, size, order)));
      for (std::int64_t done = 0; done < 400; done += 50) {
        ingest(small, tokens, done, done + 50);
      }
      const auto check = [&](const Engine& engine) {
        const auto contents = engine.contents(HostExec());
        CHECK(contents.length == expected.length);
        CHECK(contents.history_begin == expected.history_begin);
        CHECK(contents.window_begin == expected.window_begin);
        CHECK(contents.tiles == expected.tiles);
        CHECK(contents.window_keys == expected.window_keys);
      };
      check(small);
      const auto saved = save_capture(HostExec(), small);
      for (const TileOrder other : {TileOrder::host, TileOrder::mma}) {
        Engine loaded = load_capture<Host, float>(HostExec(), saved,
                                                  std::make_shared<MemoryLedger>(), nullptr, other);
        CHECK(loaded.store().codec().format().tile_tokens == size);
        check(loaded);
        CHECK(save_capture(HostExec(), loaded) == saved);
      }
    });
  }
}

TEST_CASE("attention of a manager with pages of 16 and 32 tokens") {
  using namespace runtime_test;
  const KVShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 64};
  const Tokens<float> tokens(3, 0, 500, shape);
  for (const std::int64_t window : {0, 100}) {
    const auto attention = [&](int size, TileOrder order) {
      LayerOptions options = layer(shape, 3, 4, 40, size);
      options.codec = with_tiles_of(*options.codec, size, order);
      options.capture.sinks = 4;
      options.capture.sliding_window = window;
      Manager<float> manager({.layers = {options}});
      const auto id = manager.open();
      for (std::int64_t done = 0; done < 500; done += 20) {
        append(manager, 0, id, tokens, done, done + 20);
      }
      return attend(manager, 0, {id}, queries(2, 1, 2, 8, 64), 64);
    };
    const auto expected = attention(64, TileOrder::host);
    for_small_tiles([&](int size, TileOrder order) {
      const auto result = attention(size, order);
      double worst = 0;
      for (std::size_t i = 0; i < result.output.size(); ++i) {
        const double error =
            std::fabs(double(result.output.data()[i]) - double(expected.output.data()[i]));
        worst = error <= worst ? worst : error;
      }
      CHECK(worst <= 5e-4);
    });
  }
}

TEST_CASE("pages that are no whole tiles are refused with both sizes") {
  const auto codec = [](int size) {
    return Codec(with_tiles_of(codec_options(64, 64), size, TileOrder::host));
  };
  CHECK(contains(error_of([&] { Store(codec(16), 1, {.block_size = 24}); }),
                 "block_size is 24, expected 0 (flat) or a multiple of tile_tokens = 16"));
  CHECK(contains(error_of([&] { Store(codec(64), 1, {.block_size = 16}); }),
                 "block_size is 16, expected 0 (flat) or a multiple of tile_tokens = 64"));
  LayerOptions options = runtime_test::layer({.kv_heads = 2, .key_dim = 64, .value_dim = 64});
  options.capture.block_size = 16;
  CHECK(
      contains(error_of([&] { runtime_test::Manager<float>({.layers = {options}}); }),
               "block_size is 16, expected a positive multiple of codec.format.tile_tokens = 64"));
  // A size that no tile has is not the page's fault.
  for (const int bad : {0, -16, 24, 128}) {
    options.codec->format.tile_tokens = bad;
    CHECK(contains(error_of([&] { runtime_test::Manager<float>({.layers = {options}}); }),
                   "CacheManager: layers[0]: TileFormat: tile_tokens is " + std::to_string(bad) +
                       ", expected 16, 32 or 64"));
  }
}
