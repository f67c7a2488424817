// Saved engines: equal tokens give equal bytes, what is loaded goes on like what was saved, and
// nothing else is loaded.

#include "cache/cache_test_support.hpp"

#include <turboquant/cache/snapshot.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
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
template <class T>
using Engine = KVCaptureEngine<Host, T>;
using Bytes = std::vector<std::byte>;

namespace {

template <class T>
Bytes saved(const Engine<T>& engine) {
  return save_capture(HostExec(), engine);
}
template <class T>
Engine<T> loaded(const Bytes& bytes, std::optional<TileOrder> order = {}) {
  return load_capture<Host, T>(HostExec(), bytes, std::make_shared<MemoryLedger>(), nullptr, order);
}
template <class T>
void ingest(Engine<T>& engine, const Tokens<T>& tokens, std::int64_t begin, std::int64_t end) {
  engine.ingest(HostExec(), tokens.keys_from(begin, end), tokens.values_from(begin, end));
}

CaptureOptions small_options() {
  CaptureOptions options;
  options.shape = {.kv_heads = 2, .key_dim = 16, .value_dim = 24};
  options.window_capacity = 100;
  options.sinks = 3;
  options.block_size = 128;
  return options;
}

/// An engine of 700 tokens.
Engine<bfloat16> small_engine() {
  Engine<bfloat16> engine(small_options(), Codec(codec_options(16, 24)));
  ingest(engine, Tokens<bfloat16>(5, 0, 700, engine.options().shape), 0, 700);
  return engine;
}

/// Saves, loads and saves again; then lets both go on.
template <class T>
void check_round_trip(Engine<T>& engine, std::uint64_t seed) {
  const Bytes first = saved(engine);
  const bool compressed = engine.compressed();
  const bool mma = compressed && engine.options().shape.key_dim % 16 == 0 &&
                   engine.options().shape.value_dim % 16 == 0;
  for (const TileOrder order : {TileOrder::host, TileOrder::mma}) {
    if (order == TileOrder::mma && !mma) {
      continue;
    }
    CAPTURE(static_cast<int>(order));
    Engine<T> copy = loaded<T>(first, order);
    CHECK(copy.length() == engine.length());
    CHECK(saved(copy) == first);
    if (order == TileOrder::host) {
      // As kernels read it.
      if (compressed) {
        const KVStoreView a = engine.view(HostExec()).history;
        const KVStoreView b = copy.view(HostExec()).history;
        const auto& format = engine.store().codec().format();
        const int heads = engine.options().shape.kv_heads;
        CHECK(a.begin == b.begin);
        CHECK(a.end == b.end);
        CHECK(cache_test::history_bytes<T>(a, format, heads) ==
              cache_test::history_bytes<T>(b, format, heads));
      }
    }
    Engine<T> original = engine.fork();
    const std::int64_t at = engine.length();
    const Tokens<T> more(seed, at, 200, engine.options().shape);
    for (Engine<T>* each : {&original, &copy}) {
      ingest(*each, more, 0, 7);
      ingest(*each, more, 7, 200);
    }
    CHECK(saved(original) == saved(copy));
    const std::int64_t cut = at + 195;
    original.truncate(HostExec(), cut);
    copy.truncate(HostExec(), cut);
    original.flush(HostExec());
    copy.flush(HostExec());
    CHECK(saved(original) == saved(copy));
  }
}

}  // namespace

TEST_CASE("save, load, save: any dimension, codec, number of tokens, window and page") {
  struct Case {
    int dim;
    int key_bits;
    int value_bits;
    KeyCodec codec;
  };
  for (const Case& each :
       {Case{64, 2, 2, KeyCodec::mse}, Case{80, 3, 3, KeyCodec::mse},
        Case{104, 4, 4, KeyCodec::mse}, Case{576, 3, 4, KeyCodec::mse},
        Case{64, 3, 4, KeyCodec::inner_product}, Case{48, 8, 3, KeyCodec::float8}}) {
    for (const std::int64_t count : {0, 1, 2, 9, 320}) {
      for (const std::int64_t window : {0, 30, 128}) {
        for (const std::int64_t block : {0, 64, 256}) {
          CAPTURE(each.dim);
          CAPTURE(static_cast<int>(each.codec));
          CAPTURE(count);
          CAPTURE(window);
          CAPTURE(block);
          TileCodecOptions codec =
              codec_options(each.dim, each.dim, each.key_bits, each.value_bits, 11);
          codec.format.key_codec = each.codec;
          CaptureOptions options;
          options.shape = {.kv_heads = 2, .key_dim = each.dim, .value_dim = each.dim};
          options.window_capacity = window;
          options.sinks = window == 30 ? 2 : 0;
          options.block_size = block;
          Engine<float16> engine(options, Codec(codec));
          ingest(engine, Tokens<float16>(3, 0, count, options.shape), 0, count);
          check_round_trip(engine, 4);
        }
      }
    }
  }
}

TEST_CASE("rings that have wrapped, sliding windows, exact layers and key means") {
  for (const bool compressed : {true, false}) {
    for (const std::int64_t sliding : {0, 90}) {
      for (const bool means : {false, true}) {
        CAPTURE(compressed);
        CAPTURE(sliding);
        CAPTURE(means);
        CaptureOptions options = small_options();
        options.sliding_window = sliding;
        options.rollback_tokens = 12;
        TileCodecOptions codec = codec_options(16, 24);
        if (means) {
          codec = cache_test::with_key_means(codec);
        }
        Engine<float> engine(options, compressed ? std::optional(Codec(codec)) : std::nullopt);
        const Tokens<float> tokens(9, 0, 1000, options.shape);
        for (std::int64_t at = 0; at < 1000; at += 50) {
          ingest(engine, tokens, at, at + 50);
          if (at % 150 == 0) {
            check_round_trip(engine, 21);
          }
        }
        engine.truncate(HostExec(), 995);
        check_round_trip(engine, 22);
      }
    }
  }
}

TEST_CASE(
    "bytes depend on the tokens alone: not on chunks, forks, order of tiles or pages that are "
    "shared") {
  const CaptureOptions options = small_options();
  const Tokens<bfloat16> tokens(5, 0, 700, options.shape);
  const Bytes expected = saved(small_engine());
  Engine<bfloat16> one_by_one(options, Codec(codec_options(16, 24)));
  for (std::int64_t i = 0; i < 700; ++i) {
    ingest(one_by_one, tokens, i, i + 1);
  }
  CHECK(saved(one_by_one) == expected);
  Engine<bfloat16> parent = one_by_one.fork();
  ingest(parent, tokens, 0, 300);
  CHECK(saved(one_by_one) == expected);
  parent.truncate(HostExec(), 700);
  CHECK(saved(parent) != expected);  // its window has moved on
  CHECK(saved(parent) == saved(loaded<bfloat16>(saved(parent))));
}

TEST_CASE("slots behind the last token are zero, whatever a shared page still holds") {
  Engine<bfloat16> engine = small_engine();
  Engine<bfloat16> keeper = engine.fork();  // pages stay shared: nothing is zeroed in place
  const std::int64_t cut = engine.window_begin() - 30;
  engine.truncate(HostExec(), cut);
  Engine<bfloat16> alone = loaded<bfloat16>(saved(small_engine()));
  alone.truncate(HostExec(), cut);
  CHECK(saved(engine) == saved(alone));
}

TEST_CASE(
    "damaged bytes are refused: every bit flip in any byte, every end, more bytes, another byte "
    "order") {
  CaptureOptions options;
  options.shape = {.kv_heads = 1, .key_dim = 16, .value_dim = 16};
  options.window_capacity = 4;
  Engine<float> engine(options, Codec(codec_options(16, 16)));
  ingest(engine, Tokens<float>(1, 0, 9, options.shape), 0, 9);
  const Bytes good = saved(engine);
  CHECK(saved(loaded<float>(good)) == good);
  for (std::size_t i = 0; i < good.size(); ++i) {
    CAPTURE(i);
    Bytes bad = good;
    bad[i] ^= static_cast<std::byte>(1U << (i % 8));
    CHECK(contains(error_of([&] { static_cast<void>(loaded<float>(bad)); }),
                   "format: load_capture: "));
    bad = good;
    bad.resize(i);
    CHECK(contains(error_of([&] { static_cast<void>(loaded<float>(bad)); }),
                   "format: load_capture: "));
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  CHECK(contains(error_of([&] { static_cast<void>(loaded<float>(longer)); }), "checksum"));
  Bytes swapped = good;
  for (std::size_t i = 0; i + 8 <= swapped.size(); i += 8) {
    std::reverse(swapped.begin() + static_cast<std::ptrdiff_t>(i),
                 swapped.begin() + static_cast<std::ptrdiff_t>(i) + 8);
  }
  CHECK(contains(error_of([&] { static_cast<void>(loaded<float>(swapped)); }), "reverse order"));
  CHECK(contains(error_of([&] { static_cast<void>(loaded<bfloat16>(good)); }), "number type 0"));
}

TEST_CASE("whole bytes of a state that no engine has are refused") {
  using Layer = detail::SnapshotLayer<bfloat16>;
  const Layer good = detail::read_snapshot<bfloat16>("test", saved(small_engine())).front();
  const auto error = [](const Layer& layer) {
    return error_of(
        [&] { static_cast<void>(loaded<bfloat16>(detail::write_snapshot<bfloat16>({layer}))); });
  };
  CHECK(error(good) == "no error");
  const auto refuses = [&](const char* part, auto&& change) {
    Layer layer = good;
    change(layer);
    const std::string message = error(layer);
    CAPTURE(message);
    CHECK(contains(message, part));
  };
  constexpr std::int64_t huge = (std::numeric_limits<std::int64_t>::max)();
  for (const std::int64_t bad : {std::int64_t{-1}, huge, -huge - 1}) {
    refuses("length is ", [&](Layer& layer) { layer.contents.length = bad; });
    refuses("window_begin is ", [&](Layer& layer) { layer.contents.window_begin = bad; });
    refuses("history_begin is ", [&](Layer& layer) { layer.contents.history_begin = bad; });
  }
  refuses("window_keys has", [](Layer& layer) { ++layer.contents.length; });
  refuses("history_begin is 67, expected 3 to 3",
          [](Layer& layer) { layer.contents.history_begin += 64; });
  refuses("window_keys has", [](Layer& layer) { layer.contents.window_keys.pop_back(); });
  refuses("sink_values has", [](Layer& layer) { layer.contents.sink_values.clear(); });
  refuses("tiles has", [](Layer& layer) { layer.contents.tiles.pop_back(); });
  refuses("window_values[5] is nan", [](Layer& layer) {
    layer.contents.window_values[5] = bfloat16::from_float(std::numeric_limits<float>::quiet_NaN());
  });
  refuses("window_keys[5] is 1.58456325028528",
          [](Layer& layer) { layer.contents.window_keys[5] = bfloat16::from_float(0x1p97F); });
  refuses("sink_values[1] is",
          [](Layer& layer) { layer.contents.sink_values[1] = bfloat16::from_float(-0x1p97F); });
  refuses("tile 0 holds NaN", [](Layer& layer) {
    const TileFormat& format = layer.codec->format;
    layer.contents.tiles[format.key_scale_byte(5) + 1] = std::byte{0x7E};
  });
  refuses("tile 1 holds NaN", [](Layer& layer) {
    const TileFormat& format = layer.codec->format;
    layer.contents.tiles[format.bytes() + format.value_zero_byte(63, 0) + 1] = std::byte{0xFC};
  });
  refuses("kv_heads is 0", [](Layer& layer) { layer.options.shape.kv_heads = 0; });
  refuses("block_size is 100", [](Layer& layer) { layer.options.block_size = 100; });
  refuses("key_bits", [](Layer& layer) { layer.codec->format.key_bits = 7; });
  refuses("key_scale_rule",
          [](Layer& layer) { layer.codec->key_scale_rule = static_cast<ScaleRule>(9); });
  refuses("where nothing is compressed", [](Layer& layer) { layer.codec.reset(); });
  Engine<bfloat16> filled = small_engine();
  CHECK(contains(error_of([&] { filled.restore(HostExec(), good.contents); }), "holds 700 tokens"));
}

TEST_CASE("a load beyond the memory limit changes nothing and leaves no memory behind") {
  const Bytes bytes = saved(small_engine());
  const auto enough = std::make_shared<MemoryLedger>();
  static_cast<void>(load_capture<Host, bfloat16>(HostExec(), bytes, enough));
  CHECK(enough->total() == 0);
  for (std::size_t limit = 0; limit < enough->peak(); limit += 1 + enough->peak() / 37) {
    const auto ledger = std::make_shared<MemoryLedger>(limit);
    CHECK(contains(error_of([&] {
                     static_cast<void>(load_capture<Host, bfloat16>(HostExec(), bytes, ledger));
                   }),
                   "capacity: "));
    CHECK(ledger->total() == 0);
  }
}
