#include "cache/cache_test_support.hpp"

#include <turboquant/cache/kv_store.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

using cache_test::AllocationCounter;
using cache_test::bytes_of;
using cache_test::codec_options;
using cache_test::contains;
using cache_test::error_of;
using cache_test::HostExec;
using cache_test::Tokens;
using turboquant::CounterRng;
using turboquant::KVStoreOptions;
using turboquant::KVStoreView;
using Codec = turboquant::TileCodec<Kokkos::HostSpace>;
using Store = turboquant::CompressedKVStore<Kokkos::HostSpace>;

namespace {

std::vector<std::byte> direct(const Codec& codec, int heads, const Tokens<float>& tokens,
                              std::int64_t end) {
  Store store(codec, heads);
  append(store, tokens, 0, end);
  return bytes_of(store);
}

std::vector<turboquant::TileCodecOptions> formats() {
  std::vector<turboquant::TileCodecOptions> all{codec_options(64, 64), codec_options(80, 96, 2, 3),
                                                codec_options(40, 48, 4, 2)};
  auto sketch = codec_options(64, 64, 3, 2);
  sketch.format.key_codec = turboquant::KeyCodec::inner_product;
  sketch.format.value_group = 32;
  all.push_back(sketch);
  auto float8 = codec_options(48, 64, 8, 4);
  float8.format.key_codec = turboquant::KeyCodec::float8;
  float8.format.value_codec = turboquant::ValueCodec::codebook;
  all.push_back(float8);
  return all;
}

/// Whether a store can be appended to a store.
template <class S>
concept can_append = requires(S& a, S& b) {
  a.append(HostExec(), b);
}
|| requires(S& a, S& b) {
  a.append(HostExec(), b.view(HostExec()));
}
|| requires(S& a, S& b) {
  a.template append<float>(HostExec(), b.view(HostExec()));
};

}  // namespace

TEST_CASE("an empty store answers everything") {
  for (const std::int64_t block : {0, 128}) {
    Store store(Codec(codec_options(64, 64)), 2, {.block_size = block});
    CHECK(store.num_tokens() == 0);
    CHECK(store.num_chunks() == 0);
    CHECK(store.tile_bytes() == 0);
    const KVStoreView view = store.view(HostExec());
    CHECK(view.num_pages == 0);
    CHECK(view.begin == view.end);
    CHECK_NOTHROW(store.truncate(HostExec(), 0));
    CHECK_NOTHROW(store.reset());
    const Tokens<float> none(1, 0, 0, store.shape());
    CHECK_NOTHROW(append(store, none, 0, 0));
    CHECK(store.view(HostExec()) == view);
  }
}

TEST_CASE("any chunking of the same tokens gives the same bytes, flat or paged") {
  for (const auto& options : formats()) {
    const Codec codec(options);
    const Tokens<float> tokens(5, 0, 200, {2, options.format.key_dim, options.format.value_dim});
    const auto expected = direct(codec, 2, tokens, 200);
    CHECK(expected.size() == 2 * 4 * options.format.bytes());
    const std::vector<std::vector<std::int64_t>> chunkings{
        {1}, {7, 33}, {16, 16, 8}, {64}, {63, 1, 65, 71}, {5, 59}, {199, 1}};
    for (const std::int64_t block : {0, 64, 128, 640}) {
      for (const auto& chunks : chunkings) {
        for (const bool read_between : {false, true}) {
          Store store(codec, 2, {.block_size = block});
          std::int64_t done = 0;
          for (std::size_t i = 0; done < 200; ++i) {
            const std::int64_t next = std::min<std::int64_t>(200, done + chunks[i % chunks.size()]);
            append(store, tokens, done, next);
            done = next;
            if (read_between) {
              static_cast<void>(store.view(HostExec()));
            }
          }
          CHECK(bytes_of(store) == expected);
        }
      }
    }
  }
}

TEST_CASE("a token's bits do not depend on its neighbours, and stay when others come and go") {
  const Codec codec(codec_options(64, 64));
  const Tokens<float> tokens(5, 0, 100, {1, 64, 64});
  const Tokens<float> others(6, 0, 100, {1, 64, 64});
  Store store(codec, 1, {.block_size = 64});
  append(store, tokens, 0, 40);
  std::vector<float> key(64);
  std::vector<float> scratch(128);
  const auto key_of = [&](std::size_t token) {
    const KVStoreView view = store.view(HostExec());
    turboquant::decode_key(codec.tables(),
                           cache_test::tile_of(view, codec.format(), std::int64_t(token), 0),
                           token % 64, key.data(), scratch.data());
    return key;
  };
  const auto before = key_of(17);
  double error = 0;
  double norm = 0;
  for (std::size_t d = 0; d < 64; ++d) {
    error += std::pow(double(before[d]) - double(tokens.keys(17, 0, d)), 2);
    norm += std::pow(double(tokens.keys(17, 0, d)), 2);
  }
  CHECK(error / norm < 0.1);
  append(store, others, 0, 100);
  CHECK(key_of(17) == before);
  store.truncate(HostExec(), 18);
  CHECK(key_of(17) == before);
  append(store, others, 0, 100);
  CHECK(key_of(17) == before);
}

TEST_CASE("truncation, then appends, equals a store built directly") {
  for (const auto& options : formats()) {
    const Codec codec(options);
    const turboquant::KVShape shape{2, options.format.key_dim, options.format.value_dim};
    const Tokens<float> tokens(5, 0, 300, shape);
    const Tokens<float> wrong(9, 0, 300, shape);
    for (const std::int64_t block : {0, 64, 128}) {
      for (const std::int64_t cut : {0, 1, 7, 63, 64, 65, 100, 127, 128, 199}) {
        Store store(codec, 2, {.block_size = block});
        append(store, tokens, 0, cut);
        append(store, wrong, cut, 200);
        store.truncate(HostExec(), cut);
        CHECK(store.num_tokens() == cut);
        CHECK(bytes_of(store) == direct(codec, 2, tokens, cut));
        append(store, tokens, cut, 300);
        CHECK(bytes_of(store) == direct(codec, 2, tokens, 300));
      }
    }
  }
  Store store(Codec(codec_options(64, 64)), 1);
  const Tokens<float> tokens(5, 0, 10, {1, 64, 64});
  append(store, tokens, 0, 7);
  const auto before = bytes_of(store);
  CHECK(contains(error_of([&] { store.truncate(HostExec(), 11); }), "end is 11, expected 0 to 7"));
  CHECK(contains(error_of([&] { store.truncate(HostExec(), -1); }), "out_of_range"));
  CHECK(bytes_of(store) == before);
}

TEST_CASE(
    "500 random appends, reads, truncations and resets agree with a store built in one append") {
  const Codec codec(codec_options(16, 16));
  for (const std::int64_t block : {0, 64, 192}) {
    Store store(codec, 1, {.block_size = block});
    std::vector<std::uint64_t> tokens;  // the seed of every token
    const CounterRng random(11, std::uint64_t(block));
    std::uint64_t draw = 0;
    std::uint64_t next_seed = 0;
    for (int op = 0; op < 500; ++op) {
      switch (random.below(draw++, 16)) {
        case 0:
          store.reset();
          tokens.clear();
          break;
        case 1:
        case 2: {
          const auto keep = std::int64_t(random.below(draw++, std::uint32_t(tokens.size() + 1)));
          store.truncate(HostExec(), keep);
          tokens.resize(std::size_t(keep));
          break;
        }
        case 3:
        case 4:
        case 5: {
          Store rebuilt(codec, 1);
          Tokens<float> all(0, 0, std::int64_t(tokens.size()), store.shape());
          for (std::size_t t = 0; t < tokens.size(); ++t) {
            const Tokens<float> one(tokens[t], 0, 1, store.shape());
            for (std::size_t d = 0; d < 16; ++d) {
              all.keys(t, 0, d) = one.keys(0, 0, d);
              all.values(t, 0, d) = one.values(0, 0, d);
            }
          }
          append(rebuilt, all, 0, std::int64_t(tokens.size()));
          const KVStoreView first = store.view(HostExec());
          const std::int64_t merged = store.tokens_merged();
          CHECK(bytes_of(store) == bytes_of(rebuilt));
          CHECK(store.view(HostExec()) == first);
          CHECK(store.tokens_merged() == merged);
          break;
        }
        default: {
          const auto count = std::int64_t(1 + random.below(draw++, 9));
          for (std::int64_t i = 0; i < count; ++i) {
            const Tokens<float> one(next_seed, 0, 1, store.shape());
            append(store, one, 0, 1);
            tokens.push_back(next_seed++);
          }
        }
      }
      CHECK(store.num_tokens() == std::int64_t(tokens.size()));
    }
  }
}

TEST_CASE("reading after every flush of a million tokens copies each token O(1) times") {
  const Codec codec(codec_options(16, 16, 2, 2));
  const Tokens<float> tile(5, 0, 64, {1, 16, 16});
  for (const std::int64_t block : {0, 4096}) {
    const std::int64_t total = block == 0 ? 1 << 20 : 1 << 17;
    const auto ledger = std::make_shared<turboquant::MemoryLedger>();
    Store store(codec, 1, {.block_size = block}, ledger);
    while (store.num_tokens() < total) {
      append(store, tile, 0, 64);
      const KVStoreView view = store.view(HostExec());
      REQUIRE(view.end == store.num_tokens());
    }
    const std::size_t content = std::size_t(total) / 64 * codec.format().bytes();
    CHECK(ledger->peak() < content * 5 / 2);
    if (block == 0) {
      MESSAGE("flat: each token was copied ", double(store.tokens_merged()) / double(total),
              " times, peak ", double(ledger->peak()) / double(content), " x the final size");
      CHECK(store.tokens_merged() <= 6 * total);
      CHECK(store.num_chunks() == 1);
      CHECK(ledger->total() <= content * 5 / 4 + 64);
    } else {
      CHECK(store.tokens_merged() == 0);
      CHECK(ledger->total() <= content + (std::size_t{2} << 20U));
    }
  }
}

TEST_CASE("single-token appends with a read after each cost the same per token at any length") {
  const Codec codec(codec_options(16, 16, 2, 2));
  const auto copies = [&](std::int64_t total) {
    Store store(codec, 1);
    const Tokens<float> one(5, 0, 1, {1, 16, 16});
    for (std::int64_t i = 0; i < total; ++i) {
      append(store, one, 0, 1);
      static_cast<void>(store.view(HostExec()));
    }
    return store.tokens_merged();
  };
  const std::int64_t ten = copies(10000);
  const std::int64_t twenty = copies(20000);
  CHECK(twenty <= 3 * ten);
  CHECK(twenty <= 6 * 20000);
}

TEST_CASE("chunks and their merged form are not both kept") {
  const AllocationCounter counter;
  const Codec codec(codec_options(64, 64));
  const std::int64_t tables = counter.bytes();
  const auto ledger = std::make_shared<turboquant::MemoryLedger>();
  Store store(codec, 2, {}, ledger);
  const Tokens<float> tokens(5, 0, 128, {2, 64, 64});
  for (int i = 0; i < 64; ++i) {
    append(store, tokens, 0, 128);
  }
  CHECK(store.num_chunks() == 64);
  static_cast<void>(store.view(HostExec()));
  CHECK(store.num_chunks() == 1);
  const std::int64_t content = 64 * 2 * 2 * std::int64_t(codec.format().bytes());
  CHECK(counter.bytes() - tables == std::int64_t(ledger->total()));
  CHECK(std::int64_t(store.tile_bytes() + store.table_bytes()) == std::int64_t(ledger->total()));
  CHECK(std::int64_t(ledger->total()) <= content * 11 / 10);
  CHECK(std::int64_t(ledger->peak()) <= content * 21 / 10);
}

TEST_CASE("forks share pages, copy on write, and never change each other") {
  const Codec codec(codec_options(64, 64));
  const Tokens<float> tokens(5, 0, 300, {2, 64, 64});
  const Tokens<float> others(6, 0, 300, {2, 64, 64});
  for (const std::int64_t block : {0, 64, 128}) {
    CAPTURE(block);
    const auto ledger = std::make_shared<turboquant::MemoryLedger>();
    Store parent(codec, 2, {.block_size = block}, ledger);
    append(parent, tokens, 0, 150);
    const auto parent_bytes = bytes_of(parent);
    const std::size_t pages = ledger->bytes(turboquant::MemoryKind::pages);
    Store child = parent.fork();
    CHECK(ledger->bytes(turboquant::MemoryKind::pages) == pages);
    CHECK(bytes_of(child) == parent_bytes);

    append(child, others, 0, 100);
    CHECK(bytes_of(parent) == parent_bytes);
    Store expected(codec, 2);
    append(expected, tokens, 0, 150);
    append(expected, others, 0, 100);
    CHECK(bytes_of(child) == bytes_of(expected));

    // The parent has its last page for itself now and writes in place.
    append(parent, tokens, 150, 300);
    CHECK(bytes_of(parent) == direct(codec, 2, tokens, 300));
    CHECK(bytes_of(child) == bytes_of(expected));

    // Cut inside shared memory: the other one keeps its tokens, the cut one starts over cleanly.
    Store cut = parent.fork();
    cut.truncate(HostExec(), 70);
    append(cut, others, 0, 10);
    CHECK(bytes_of(parent) == direct(codec, 2, tokens, 300));
    Store cut_expected(codec, 2);
    append(cut_expected, tokens, 0, 70);
    append(cut_expected, others, 0, 10);
    CHECK(bytes_of(cut) == bytes_of(cut_expected));
  }
}

TEST_CASE(
    "pages of a shared pool come back, and the pool's limit is a clear refusal that changes "
    "nothing") {
  const Codec codec(codec_options(64, 64));
  const std::size_t page = Store::page_bytes(codec.format(), 2, 64);
  const auto ledger = std::make_shared<turboquant::MemoryLedger>(page * 5 + 4096);
  const auto pool = std::make_shared<turboquant::PagePool<Kokkos::HostSpace>>(
      ledger, turboquant::PagePoolOptions{.page_bytes = page, .slab_pages = 1});
  const Tokens<float> tokens(5, 0, 400, {2, 64, 64});
  Store first(codec, 2, {.block_size = 64}, ledger, pool);
  append(first, tokens, 0, 200);
  {
    Store second(codec, 2, {.block_size = 64}, ledger, pool);
    append(second, tokens, 0, 64);
    CHECK(pool->used_pages() == 5);
    const auto before = bytes_of(first);
    CHECK(contains(error_of([&] { append(first, tokens, 200, 300); }), "capacity"));
    CHECK(first.num_tokens() == 200);
    CHECK(bytes_of(first) == before);
    CHECK(contains(error_of([&] { append(second, tokens, 64, 400); }), "capacity"));
    CHECK(second.num_tokens() == 64);
    CHECK_NOTHROW(append(first, tokens, 200, 256));  // fits the last tile
  }
  CHECK(pool->used_pages() == 4);
  append(first, tokens, 256, 300);
  CHECK(bytes_of(first) == direct(codec, 2, tokens, 300));
}

TEST_CASE("a view is right after pages have gone to another store and come from it") {
  const Codec codec(codec_options(64, 64));
  const std::size_t page = Store::page_bytes(codec.format(), 2, 64);
  const auto ledger = std::make_shared<turboquant::MemoryLedger>();
  const auto pool = std::make_shared<turboquant::PagePool<Kokkos::HostSpace>>(
      ledger, turboquant::PagePoolOptions{.page_bytes = page, .slab_pages = 8});
  const Tokens<float> tokens(5, 0, 400, {2, 64, 64});
  const Tokens<float> others(6, 0, 400, {2, 64, 64});
  Store first(codec, 2, {.block_size = 64}, ledger, pool);
  Store second(codec, 2, {.block_size = 64}, ledger, pool);
  append(first, others, 0, 320);
  static_cast<void>(first.view(HostExec()));
  // As many pages as before, but others, and no view in between.
  first.truncate(HostExec(), 0);
  append(second, others, 0, 100);
  append(first, tokens, 0, 320);
  CHECK(bytes_of(first) == direct(codec, 2, tokens, 320));
  first.truncate(HostExec(), 128);
  append(second, others, 100, 200);
  append(first, tokens, 128, 320);
  CHECK(bytes_of(first) == direct(codec, 2, tokens, 320));
  CHECK(bytes_of(second) == direct(codec, 2, others, 200));
}

TEST_CASE("a store restarts at any position, with nothing of what was there before") {
  const Codec codec(codec_options(64, 64));
  const Tokens<float> tokens(5, 0, 600, {2, 64, 64});
  for (const std::int64_t block : {0, 64, 256}) {
    for (const std::int64_t position : {0, 1, 50, 64, 130, 300}) {
      CAPTURE(block);
      CAPTURE(position);
      std::vector<std::vector<std::byte>> contents;
      for (const std::uint64_t seed : {6U, 7U}) {
        // Memory that comes back is full of other tokens.
        const Tokens<float> others(seed, 0, 300, {2, 64, 64});
        Store store(codec, 2, {.block_size = block});
        append(store, others, 0, 300);
        store.restart(position);
        CHECK(store.num_tokens() == 0);
        CHECK(store.begin() == position);
        CHECK(store.tile_bytes() == 0);
        append(store, tokens, position, position + 20);
        append(store, tokens, position + 20, 400);
        append(store, tokens, 400, 600);
        const KVStoreView view = store.view(HostExec());
        CHECK(view.begin == position);
        CHECK(view.end == 600);
        contents.push_back(bytes_of(store));
        // Token 599 where the view says it is.
        std::vector<float> key(64);
        std::vector<float> scratch(128);
        turboquant::decode_key(codec.tables(), cache_test::tile_of(view, codec.format(), 599, 1),
                               static_cast<std::size_t>((599 - view.page_position) % 64),
                               key.data(), scratch.data());
        Store alone(codec, 2);
        append(alone, tokens, 599, 600);
        std::vector<float> expected(64);
        turboquant::decode_key(codec.tables(),
                               cache_test::tile_of(alone.view(HostExec()), codec.format(), 0, 1), 0,
                               expected.data(), scratch.data());
        CHECK(key == expected);
      }
      CHECK(contents[0] == contents[1]);
    }
  }
}

TEST_CASE(
    "stores of different codecs cannot be joined: only rows go in, and one codec makes them") {
  // What a store takes is rows; there is no call that takes tiles or another store.
  CHECK_FALSE(can_append<Store>);
  CHECK_FALSE(std::is_copy_constructible_v<Store>);
  CHECK_FALSE(std::is_copy_assignable_v<Store>);
  // Formats of pages of equal size that mean different things may share a pool, never a tile.
  const Codec wide_keys(codec_options(64, 64, 4, 2));
  const Codec wide_values(codec_options(64, 64, 2, 4));
  REQUIRE(wide_keys.format().bytes() == wide_values.format().bytes());
  const auto ledger = std::make_shared<turboquant::MemoryLedger>();
  const auto pool = std::make_shared<turboquant::PagePool<Kokkos::HostSpace>>(
      ledger,
      turboquant::PagePoolOptions{.page_bytes = Store::page_bytes(wide_keys.format(), 2, 64)});
  const Tokens<float> tokens(5, 0, 300, {2, 64, 64});
  Store keys(wide_keys, 2, {.block_size = 64}, ledger, pool);
  Store values(wide_values, 2, {.block_size = 64}, ledger, pool);
  for (std::int64_t done = 0; done < 300; done += 30) {
    append(keys, tokens, done, done + 30);
    append(values, tokens, done, done + 30);
  }
  CHECK(bytes_of(keys) == direct(wide_keys, 2, tokens, 300));
  CHECK(bytes_of(values) == direct(wide_values, 2, tokens, 300));
  CHECK(bytes_of(keys) != bytes_of(values));
  // Options name everything that decides bytes, so that codecs can be told apart before rows are
  // captured again.
  const auto options = codec_options(80, 80);
  for (auto other : {codec_options(80, 80, 4), codec_options(80, 80, 3, 3),
                     codec_options(80, 80, 3, 4, 8), codec_options(96, 80)}) {
    CHECK_FALSE(other == options);
  }
  auto grouped = options;
  grouped.format.value_group = 40;
  CHECK_FALSE(grouped == options);
}

TEST_CASE(
    "codes do not depend on the size of a vector, and scales saturate instead of overflowing") {
  const Codec codec(codec_options(64, 64));
  const turboquant::KVShape shape{1, 64, 64};
  const Tokens<float> tokens(5, 0, 2, shape);
  const auto stored = [&](const auto& change) {
    Tokens<float> changed(5, 0, 2, shape);
    for (std::size_t i = 0; i < changed.keys.size(); ++i) {
      changed.keys.data()[i] = change(tokens.keys.data()[i], i % 64);
    }
    Store store(codec, 1);
    append(store, changed, 0, 2);
    std::vector<float> key(64);
    std::vector<float> scratch(128);
    turboquant::decode_key(codec.tables(),
                           cache_test::tile_of(store.view(HostExec()), codec.format(), 1, 0), 1,
                           key.data(), scratch.data());
    CHECK(std::all_of(key.begin(), key.end(), [](float x) { return std::isfinite(x); }));
    auto bytes = bytes_of(store);
    bytes.resize(codec.format().key_scales_offset());
    return std::pair(bytes, key);
  };
  const auto plain = stored([](float x, std::size_t) { return x; });
  for (const int power : {-120, -100, -60, -30, -3, 3, 10, 30, 60, 100, 120}) {
    CAPTURE(power);
    const auto scaled = stored([&](float x, std::size_t) { return std::ldexp(x, power); });
    CHECK(scaled.first == plain.first);
    for (std::size_t d = 0; d < 64; ++d) {
      if (power == -3 || power == 3) {  // scales that halves hold
        CHECK(scaled.second[d] == std::ldexp(plain.second[d], power));
      }
    }
  }
  // Subnormal inputs: the codes of the pattern; the smallest scale of 2^-24 bounds what comes back.
  const auto pattern = [](float, std::size_t d) {
    return float(d % 4 + 1) * (d % 2 ? -1.0F : 1.0F);
  };
  const auto normal = stored(pattern);
  const auto subnormal =
      stored([&](float x, std::size_t d) { return std::ldexp(pattern(x, d), -140); });
  CHECK(subnormal.first == normal.first);
  CHECK(std::all_of(subnormal.second.begin(), subnormal.second.end(),
                    [](float x) { return std::fabs(x) < 1e-6F; }));
  // Sums of squares beyond float, and single numbers near its limits.
  static_cast<void>(stored([](float, std::size_t) { return 1e38F; }));
  static_cast<void>(stored([](float, std::size_t d) { return d == 0 ? 3e19F : 4e19F; }));
  static_cast<void>(stored([](float, std::size_t d) { return d == 0 ? 3e-23F : 0.0F; }));
}

TEST_CASE("constant and nearly constant value groups come back as they were") {
  for (const int bits : {2, 3, 4}) {
    for (const int group : {16, 32, 64}) {
      auto options = codec_options(64, 64, 3, bits);
      options.format.value_group = group;
      const Codec codec(options);
      const auto come_back = [&](const auto& value) {
        Tokens<float> tokens(5, 0, 2, {1, 64, 64});
        for (std::size_t i = 0; i < 128; ++i) {
          tokens.values.data()[i] = value(i % 64);
        }
        Store store(codec, 1);
        append(store, tokens, 0, 2);
        std::vector<float> all(64);
        std::vector<float> scratch(128);
        const std::byte* tile = cache_test::tile_of(store.view(HostExec()), codec.format(), 0, 0);
        turboquant::decode_value(codec.tables(), tile, 0, all.data(), scratch.data());
        // Odd tokens are stored mirrored and come back the same.
        std::vector<float> odd(64);
        turboquant::decode_value(codec.tables(), tile, 1, odd.data(), scratch.data());
        for (std::size_t d = 0; d < 64; ++d) {
          CHECK(std::fabs(odd[d] - all[d]) <= 1e-3F * std::fabs(all[d]) + 6e-8F);
        }
        return all;
      };
      for (const float c : {0.0F, -0.0F, 3.25F, -7.0F, 0.1F, 65504.0F, 1e-6F}) {
        CAPTURE(c);
        const float rounded = turboquant::float16::from_float(c).to_float();
        for (const float x : come_back([&](std::size_t) { return c; })) {
          CHECK(x == rounded);
        }
      }
      for (const float x : come_back([](std::size_t d) { return d % 4 == 3 ? 1e-8F : 0.0F; })) {
        CHECK(std::fabs(x) <= 6e-8F);
      }
      for (const float x :
           come_back([](std::size_t d) { return d % 4 == 3 ? 100.0F + 0x1p-17F : 100.0F; })) {
        CHECK(std::fabs(x - 100.0F) <= 0x1p-17F + 0.0313F);
      }
    }
  }
}

TEST_CASE(
    "rows of another shape and numbers that are not finite are refused, and nothing is stored") {
  const Codec codec(codec_options(64, 64));
  Store store(codec, 3, {.block_size = 64});
  const Tokens<float> good(5, 0, 70, {3, 64, 64});
  append(store, good, 0, 70);
  const auto before = bytes_of(store);
  const Tokens<float> four_heads(5, 0, 3, {4, 64, 64});  // as many numbers as 4 tokens of 3 heads
  CHECK(contains(error_of([&] { append(store, four_heads, 0, 3); }),
                 "keys is (3, 4, 64), expected (tokens, 3, 64)"));
  const Tokens<float> other_dim(5, 0, 3, {3, 64, 32});
  CHECK(contains(error_of([&] { append(store, other_dim, 0, 3); }), "values is (3, 3, 32)"));
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Tokens<float> poisoned(5, 0, 3, {3, 64, 64});
    poisoned.values(1, 2, 63) = bad;
    CHECK(contains(error_of([&] { append(store, poisoned, 0, 3); }),
                   "values(1, 2, 63) is " + std::string(std::isnan(bad) ? "nan" : "inf") +
                       ", expected a finite number"));
  }
  CHECK(store.num_tokens() == 70);
  CHECK(bytes_of(store) == before);
  CHECK(contains(error_of([&] { Store(codec, 3, {.block_size = 100}); }), "block_size is 100"));
  CHECK(contains(error_of([&] { Store(codec, 0); }), "kv_heads is 0"));
  const auto ledger = std::make_shared<turboquant::MemoryLedger>();
  const auto pool = std::make_shared<turboquant::PagePool<Kokkos::HostSpace>>(
      ledger, turboquant::PagePoolOptions{.page_bytes = 64});
  CHECK(contains(error_of([&] { Store(codec, 3, {.block_size = 64}, ledger, pool); }),
                 "pool->page_bytes() is 64"));
}

TEST_CASE("keys and values of different sizes are stored with their own") {
  for (const auto& [key_dim, value_dim] : {std::pair{192, 128}, std::pair{576, 512}}) {
    const Codec codec(codec_options(key_dim, value_dim));
    Store store(codec, 1, {.block_size = 64});
    const Tokens<float> tokens(5, 0, 20, {1, key_dim, value_dim});
    append(store, tokens, 0, 20);
    CHECK(codec.format().key_scales_offset() == 64U * (std::size_t(key_dim) * 3 / 8));
    CHECK(store.tile_bytes() == codec.format().bytes());
  }
}

TEST_CASE("the published slot sizes are what a page costs") {
  // 4-bit keys and values at 128: 64 + 2 + 64 + 4; 3-bit keys, 4-bit values at 80: 30 + 2 + 40 + 4.
  const Codec four(codec_options(128, 128, 4, 4));
  CHECK(four.format().slot_bytes() == 134);
  CHECK(Store::page_bytes(four.format(), 8, 64) == 4U * 17152);
  CHECK(Codec(codec_options(80, 80, 3, 4)).format().slot_bytes() == 76);
  Store store(four, 8, {.block_size = 64});
  const Tokens<float> tokens(5, 0, 64, {8, 128, 128});
  append(store, tokens, 0, 64);
  CHECK(store.tile_bytes() == 64U * 8 * 134);
}

TEST_CASE("a store that has been moved from is empty, and works again, flat or paged") {
  const Codec codec(codec_options(64, 64));
  for (const std::int64_t block : {0, 64, 128}) {
    Store one(codec, 2, {.block_size = block, .first_position = 7});
    const Tokens<float> tokens(3, 0, 150, one.shape());
    append(one, tokens, 0, 150);
    const auto expected = bytes_of(one);
    Store other(std::move(one));
    CHECK(bytes_of(other) == expected);
    CHECK(one.begin() == 7);
    CHECK(one.num_tokens() == 0);
    CHECK(one.tile_bytes() == 0);
    CHECK(one.view(HostExec()).end == 7);
    append(one, tokens, 0, 150);
    CHECK(bytes_of(one) == expected);
    other.truncate(HostExec(), 20);
    other = std::move(one);
    CHECK(bytes_of(other) == expected);
    CHECK(one.num_tokens() == 0);
    auto& same = other;
    other = std::move(same);
    CHECK(bytes_of(other) == expected);
  }
}

TEST_CASE("a codec that has been moved from keeps its tables") {
  Codec one(codec_options(64, 64));
  const Tokens<float> tokens(3, 0, 70, {.kv_heads = 2, .key_dim = 64, .value_dim = 64});
  const auto expected = direct(one, 2, tokens, 70);
  { const Codec other(std::move(one)); }
  CHECK(direct(one, 2, tokens, 70) == expected);
}

TEST_CASE("pages of no whole tiles are refused by name") {
  const auto refusal = [](int kv_heads, std::int64_t block_size) {
    return error_of([&] {
      static_cast<void>(Store::page_bytes(codec_options(64, 64).format, kv_heads, block_size));
    });
  };
  for (const std::int64_t bad : {0, 16, -64, 100}) {
    CHECK(contains(refusal(2, bad),
                   "invalid_argument: CompressedKVStore::page_bytes: block_size is " +
                       std::to_string(bad) +
                       ", expected a positive multiple of tile_tokens = 64 up to 2^30"));
  }
  CHECK(contains(refusal(0, 64), "CompressedKVStore::page_bytes: kv_heads is 0"));
}

TEST_CASE("tiles that do not fit the tokens are refused, and nothing changes") {
  const Codec codec(codec_options(16, 16));
  const Tokens<float> tokens(5, 0, 150, {2, 16, 16});
  for (const std::int64_t block : {0, 64, 256}) {
    Store source(codec, 2, {.block_size = block, .first_position = 3});
    append(source, tokens, 0, 150);
    const auto tiles = source.copy_out(HostExec());
    const auto refusal = [&](Store& store, std::int64_t begin, std::int64_t end,
                             std::vector<std::byte> bytes) {
      const auto before = bytes_of(store);
      const std::int64_t count = store.num_tokens();
      const std::size_t chunks = store.num_chunks();
      const std::string error =
          error_of([&] { store.assign(HostExec(), begin, end, std::move(bytes)); });
      CHECK(bytes_of(store) == before);
      CHECK(store.num_tokens() == count);
      CHECK(store.num_chunks() == chunks);
      return error;
    };
    CHECK(refusal(source, 3, 153, tiles) ==
          "invalid_argument: CompressedKVStore::assign: the store holds 150 tokens, expected an "
          "empty one");
    Store empty(codec, 2, {.block_size = block, .first_position = 3});
    const std::string needed = std::to_string(tiles.size());
    CHECK(refusal(empty, 3, 153, std::vector<std::byte>(10)) ==
          "shape_mismatch: CompressedKVStore::assign: tiles has 10 bytes, expected " + needed);
    auto longer = tiles;
    longer.push_back({});
    CHECK(contains(refusal(empty, 3, 153, longer), "bytes, expected " + needed));
    CHECK(contains(refusal(empty, 3, 3, tiles), "bytes, expected 0"));
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    CHECK(refusal(empty, 3, most, tiles) != "no error");
    CHECK(refusal(empty, 3, most / 1024, tiles) != "no error");
    CHECK(contains(refusal(empty, 3, std::int64_t{1} << 62U, tiles),
                   "shape_mismatch: CompressedKVStore::assign: tiles has " + needed +
                       " bytes, expected those of 72057594037927936 tiles of "));
    CHECK(contains(refusal(empty, 5, -9, {}), "begin is 5 and end is -9, expected 3 <= begin"));
    CHECK(contains(refusal(empty, 2, 152, tiles), "begin is 2 and end is 152, expected 3 <="));
    CHECK(contains(refusal(empty, 9, 8, {}), "begin is 9 and end is 8"));
    empty.assign(HostExec(), 3, 153, tiles);
    CHECK(bytes_of(empty) == bytes_of(source));
    // Empty is also what has been emptied.
    empty.reset();
    empty.assign(HostExec(), 3, 153, tiles);
    CHECK(bytes_of(empty) == bytes_of(source));
    empty.restart(100);
    empty.assign(HostExec(), 3, 153, tiles);
    CHECK(bytes_of(empty) == bytes_of(source));
    empty.truncate(HostExec(), 3);
    empty.assign(HostExec(), 3, 153, tiles);
    CHECK(bytes_of(empty) == bytes_of(source));
  }
}
