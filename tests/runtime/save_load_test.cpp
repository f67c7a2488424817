// Sequences of a manager that are saved and loaded, there or elsewhere.

#include "runtime/runtime_test_support.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

using cache_test::contains;
using cache_test::error_of;
using namespace runtime_test;
using turboquant::CacheManagerOptions;
using turboquant::CacheMode;
using turboquant::LayerOptions;
using Bytes = std::vector<std::byte>;

namespace {

constexpr KVShape saved_shape{.kv_heads = 2, .key_dim = 64, .value_dim = 32};

/// A compressed layer, one with a sliding window, one that reads the first, an exact one and one
/// without a cache.
std::vector<LayerOptions> layers() {
  LayerOptions sliding = layer(saved_shape, 4, 2);
  sliding.capture.sliding_window = 100;
  LayerOptions reads;
  reads.source = 0;
  LayerOptions none;
  none.has_cache = false;
  return {layer(saved_shape), sliding, reads, layer(saved_shape, 0), none};
}

const std::vector<std::int64_t> owners{0, 1, 3};

template <class T>
SequenceId fill(Manager<T>& manager, std::int64_t count) {
  const SequenceId id = manager.open();
  for (const std::int64_t owner : owners) {
    append(manager, owner, id, Tokens<T>(std::uint64_t(owner), 0, count, saved_shape), 0, count);
  }
  return id;
}

HostQueries some_queries(std::size_t sequences) {
  HostQueries queries("queries", sequences, 2, 4, saved_shape.key_dim);
  for (std::size_t i = 0; i < queries.size(); ++i) {
    queries.data()[i] = float(int(i * 37 % 101) - 50) / 40.0F;
  }
  return queries;
}

template <class T>
void check_same_attention(Manager<T>& a, SequenceId in_a, Manager<T>& b, SequenceId in_b) {
  for (const std::int64_t number : {0, 1, 2, 3}) {
    CAPTURE(number);
    const Attention first = attend(a, number, {in_a}, some_queries(1), saved_shape.value_dim);
    const Attention second = attend(b, number, {in_b}, some_queries(1), saved_shape.value_dim);
    CHECK(cache_test::same_bits(first.output, second.output));
    CHECK(cache_test::same_bits(first.lse, second.lse));
  }
}

}  // namespace

TEST_CASE_TEMPLATE("a loaded sequence attends, grows and is saved like the one that was saved", T,
                   float, turboquant::float16, turboquant::bfloat16) {
  for (const std::int64_t count : {0, 2, 65, 700}) {
    CAPTURE(count);
    Manager<T> manager({.layers = layers(), .mode = CacheMode::full_tq});
    Manager<T> other({.layers = layers(), .mode = CacheMode::hybrid});
    static_cast<void>(fill(other, 5));
    const SequenceId id = fill(manager, count);
    const Bytes bytes = manager.save(HostExec(), id);
    const SequenceId here = manager.load(HostExec(), bytes);
    const SequenceId there = other.load(HostExec(), bytes);
    CHECK(here != id);
    CHECK(other.save(HostExec(), there) == bytes);
    if (count > 1) {
      check_same_attention(manager, id, other, there);
      check_same_attention(manager, id, manager, here);
    }
    for (const std::int64_t owner : owners) {
      const Tokens<T> more(77, count, 150, saved_shape);
      append(manager, owner, id, more, 0, 150);
      append(manager, owner, here, more, 0, 150);
      append(other, owner, there, more, 0, 150);
    }
    check_same_attention(manager, id, other, there);
    check_same_attention(manager, id, manager, here);
    CHECK(manager.save(HostExec(), id) == other.save(HostExec(), there));
  }
}

TEST_CASE("a manager of other layers refuses, naming layer and field, and changes nothing") {
  Manager<float> manager({.layers = layers()});
  const Bytes bytes = manager.save(HostExec(), fill(manager, 300));
  const auto refuses = [&](const char* part, auto&& change) {
    std::vector<LayerOptions> changed = layers();
    change(changed);
    Manager<float> other({.layers = changed});
    const SequenceId open = other.open();
    const std::size_t before = other.memory_use().total();
    const std::string message = error_of([&] { static_cast<void>(other.load(HostExec(), bytes)); });
    CAPTURE(message);
    CHECK(contains(message, part));
    CHECK(contains(message, "CacheManager::load: "));
    CHECK(other.num_sequences() == 1);
    CHECK(other.length(0, open) == 0);
    CHECK(other.memory_use().total() == before);
  };
  // As many bytes a row, other meaning.
  refuses("layer 1 was stored with key_bits = 4, expected that of the cache, 2",
          [](std::vector<LayerOptions>& l) {
            l[1].codec =
                cache_test::codec_options(saved_shape.key_dim, saved_shape.value_dim, 2, 4);
          });
  refuses("value_group = 32, expected that of the cache, 16",
          [](std::vector<LayerOptions>& l) { l[0].codec->format.value_group = 16; });
  refuses("seed = 7, expected that of the cache, 8",
          [](std::vector<LayerOptions>& l) { l[0].codec->seed = 8; });
  refuses("key_scale_rule", [](std::vector<LayerOptions>& l) {
    l[0].codec->key_scale_rule = turboquant::ScaleRule::unit;
  });
  refuses("key_centring",
          [](std::vector<LayerOptions>& l) { l[0] = with_key_means(std::move(l[0])); });
  refuses("sinks = 0, expected that of the cache, 4",
          [](std::vector<LayerOptions>& l) { l[3].capture.sinks = 4; });
  refuses("sliding_window", [](std::vector<LayerOptions>& l) { l[1].capture.sliding_window = 99; });
  refuses("kv_heads = 2, expected that of the cache, 1",
          [](std::vector<LayerOptions>& l) { l[3].capture.shape.kv_heads = 1; });
  refuses("layer 3 was stored uncompressed, expected compressed",
          [](std::vector<LayerOptions>& l) { l[3] = layer(saved_shape); });
  refuses("layer 0 was stored compressed, expected uncompressed",
          [](std::vector<LayerOptions>& l) { l[0] = layer(saved_shape, 0); });
  refuses("no layer 2", [](std::vector<LayerOptions>& l) { l[2] = layer(saved_shape); });
  refuses("3 layers, expected 2", [](std::vector<LayerOptions>& l) { l.resize(3); });
}

TEST_CASE("modes, gaps, unknown sequences, damaged bytes, other numbers and the memory limit") {
  Manager<float> manager({.layers = layers()});
  const SequenceId id = fill(manager, 300);
  const Bytes bytes = manager.save(HostExec(), id);
  CHECK(contains(error_of([&] { static_cast<void>(manager.save(HostExec(), 99)); }),
                 "CacheManager::save: sequence is 99"));
  Manager<turboquant::bfloat16> halves({.layers = layers()});
  CHECK(contains(error_of([&] { static_cast<void>(halves.load(HostExec(), bytes)); }),
                 "number type 0, expected 2"));
  CHECK(contains(error_of([&] { static_cast<void>(manager.load(HostExec(), Bytes{})); }),
                 "format: CacheManager::load: the bytes end at 0"));
  Bytes damaged = bytes;
  damaged[damaged.size() / 2] ^= std::byte{4};
  CHECK(contains(error_of([&] { static_cast<void>(manager.load(HostExec(), damaged)); }),
                 "CacheManager::load: the checksum"));
  manager.set_mode(CacheMode::off);
  append(manager, 0, id, Tokens<float>(1, 300, 1, saved_shape), 0, 1);
  CHECK(contains(error_of([&] { static_cast<void>(manager.save(HostExec(), id)); }),
                 "lacks 1 tokens"));
  CHECK(contains(error_of([&] { static_cast<void>(manager.load(HostExec(), bytes)); }),
                 "the mode is off"));

  Manager<float> enough({.layers = layers()});
  static_cast<void>(enough.load(HostExec(), bytes));
  const std::size_t needed = enough.ledger()->peak();
  for (std::size_t limit = 1000; limit < needed; limit += needed / 23) {
    Manager<float> small({.layers = layers(), .memory_limit_bytes = limit});
    const std::size_t before = small.memory_use().total();
    const std::string message = error_of([&] { static_cast<void>(small.load(HostExec(), bytes)); });
    CAPTURE(message);
    CHECK(contains(message, "capacity: "));
    CHECK(contains(message, "CacheManager::load"));
    CHECK(small.num_sequences() == 0);
    CHECK(small.memory_use().total() == before);
  }
}
