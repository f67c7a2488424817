// Memory that runs out at every possible place: an operation that fails changes nothing, and works
// afterwards.

#include "runtime/runtime_test_support.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>
#include <vector>

namespace {

/// Heap allocations until one fails; negative: none does.
std::atomic<int> allocations_left{-1};

void* allocate(std::size_t bytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) {
    throw std::bad_alloc();
  }
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes);
}
void* operator new[](std::size_t bytes) {
  return allocate(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

using namespace runtime_test;
using cache_test::contains;
using cache_test::error_of;
using turboquant::CacheMode;
using turboquant::LayerOptions;

namespace {

constexpr KVShape shape{.kv_heads = 2, .key_dim = 16, .value_dim = 16};

/// Runs `operation` with the k-th heap allocation failing, for k = 0, 1, ... until it succeeds.
/// @return how often it failed
template <class Operation, class Unchanged>
int fail_everywhere(Operation&& operation, Unchanged&& unchanged) {
  for (int k = 0; k < 1000; ++k) {
    bool failed = false;
    allocations_left = k;
    try {
      operation();
    } catch (const std::bad_alloc&) {
      failed = true;
    } catch (const turboquant::Error& error) {
      // Memory of a Kokkos space, whose allocator has heap memory of its own.
      REQUIRE(error.code() == turboquant::ErrorCode::capacity);
      failed = true;
    }
    allocations_left = -1;
    if (!failed) {
      return k;
    }
    REQUIRE(unchanged());
  }
  FAIL("the operation never succeeds");
  return 0;
}

/// The same with a memory limit that leaves room for k * 64 more bytes.
template <class Operation, class Unchanged>
int limit_everywhere(turboquant::MemoryLedger& ledger, Operation&& operation,
                     Unchanged&& unchanged) {
  int failures = 0;
  for (std::size_t room = 0;; room += 64) {
    ledger.set_limit(ledger.total() + room);
    const std::string error = error_of(operation);
    ledger.set_limit(turboquant::MemoryLedger::unlimited);
    if (error == "no error") {
      return failures;
    }
    // The call, then the allocation.
    REQUIRE(contains(error, "capacity: CacheManager::"));
    REQUIRE((contains(error, ": turboquant::") || contains(error, ": PagePool: ")));
    REQUIRE(unchanged());
    ++failures;
  }
}

std::vector<std::byte> contents(Manager<float>& manager, const std::vector<SequenceId>& ids) {
  std::vector<std::byte> bytes;
  for (const SequenceId id : ids) {
    for (const std::int64_t l : {0, 1}) {
      const auto view = manager.view(HostExec(), l, id);
      if (manager.engine(l, id).compressed()) {
        const auto part = cache_test::history_bytes<float>(
            view.history, manager.engine(l, id).store().codec().format(), 2);
        bytes.insert(bytes.end(), part.begin(), part.end());
      }
      const auto window = cache_test::window_numbers(view, shape);
      const auto* from = reinterpret_cast<const std::byte*>(window.data());
      bytes.insert(bytes.end(), from, from + window.size() * sizeof(float));
    }
  }
  return bytes;
}

/// Sequences in awkward states: cut tiles, shared pages, full windows.
struct Scene {
  Manager<float> manager{{.layers = {layer(shape, 3, 4, 70), layer(shape, 0)},
                          .mode = CacheMode::full_tq,
                          .slab_pages = 1}};
  Tokens<float> tokens{5, 0, 700, shape};
  std::vector<SequenceId> ids;

  Scene() {
    ids = {manager.open(), manager.open()};
    for (const std::int64_t l : {0, 1}) {
      append(manager, l, ids[0], tokens, 0, 300);
      append(manager, l, ids[1], tokens, 0, 200);
    }
    manager.truncate(HostExec(), ids[1], 100);
    ids.push_back(manager.fork(HostExec(), ids[0]));
    ids.push_back(manager.fork(HostExec(), ids[1]));
  }
};

}  // namespace

TEST_CASE("the first truncation of a process fails in no layer after another has changed") {
  // Nothing before this has cut a tile, so that whatever is made once is still to be made.
  Manager<float> manager({.layers = {layer(shape, 0), layer(shape, 3, 4, 70)}});
  const Tokens<float> tokens(5, 0, 300, shape);
  const auto id = manager.open();
  for (const std::int64_t l : {0, 1}) {
    append(manager, l, id, tokens, 0, 300);
  }
  const int failures =
      fail_everywhere([&] { manager.truncate(HostExec(), id, 100); },
                      [&] { return manager.length(0, id) == 300 && manager.length(1, id) == 300; });
  CHECK(failures >= 1);
  CHECK(manager.length(0, id) == 100);
  CHECK(manager.length(1, id) == 100);
}

TEST_CASE("a store survives a failure of any allocation of append, view, fork and truncate") {
  const turboquant::TileCodec<Host> codec(cache_test::codec_options(16, 16));
  const Tokens<float> tokens(5, 0, 300, shape);
  for (const std::int64_t block : {0, 64}) {
    turboquant::CompressedKVStore<Host> store(codec, 2, {.block_size = block});
    int failures = 0;
    for (int round = 0; round < 3; ++round) {
      auto before = cache_test::bytes_of(store);
      const std::int64_t length = store.num_tokens();
      const auto unchanged = [&] {
        return store.num_tokens() == length && cache_test::bytes_of(store) == before;
      };
      failures += fail_everywhere(
          [&] {
            store.append<float>(HostExec(), tokens.keys_from(0, 100), tokens.values_from(0, 100));
          },
          unchanged);
      CHECK(store.num_tokens() == length + 100);
      failures += fail_everywhere([&] { static_cast<void>(store.view(HostExec())); },
                                  [&] { return store.num_tokens() == length + 100; });
      before = cache_test::bytes_of(store);
      failures += fail_everywhere([&] { static_cast<void>(store.fork()); },
                                  [&] { return cache_test::bytes_of(store) == before; });
      fail_everywhere([&] { store.truncate(HostExec(), length + 90); },
                      [&] { return store.num_tokens() == length + 100; });
    }
    CHECK(failures >= 20);
    turboquant::CompressedKVStore<Host> direct(codec, 2);
    for (int round = 0; round < 3; ++round) {
      direct.append<float>(HostExec(), tokens.keys_from(0, 100), tokens.values_from(0, 100));
      direct.truncate(HostExec(), direct.num_tokens() - 10);
    }
    CHECK(cache_test::bytes_of(store) == cache_test::bytes_of(direct));
  }
}

TEST_CASE("a manager survives a failure of any heap allocation of append, fork, open and prefill") {
  Scene scene;
  auto& manager = scene.manager;
  const auto before = contents(manager, scene.ids);
  const std::size_t sequences = manager.num_sequences();
  const auto unchanged = [&] {
    return contents(manager, scene.ids) == before && manager.num_sequences() == sequences &&
           manager.length(0, scene.ids[0]) == 300;
  };
  int failures = fail_everywhere([&] { manager.close(manager.open()); }, unchanged);
  failures += fail_everywhere([&] { manager.close(manager.fork(HostExec(), scene.ids[0], 150)); },
                              unchanged);
  const std::vector<std::int64_t> offsets{0, 100, 101, 400, 600};
  failures += fail_everywhere(
      [&] {
        manager.append(HostExec(), 0, scene.ids, offsets, scene.tokens.keys_from(0, 600),
                       scene.tokens.values_from(0, 600));
      },
      unchanged);
  CHECK(manager.length(0, scene.ids[0]) == 400);
  CHECK(failures >= 40);
}

TEST_CASE("truncation and forks with a length fail in no layer after another has changed") {
  Scene scene;
  auto& manager = scene.manager;
  const auto before = contents(manager, scene.ids);
  const std::size_t sequences = manager.num_sequences();
  const auto unchanged = [&] {
    return contents(manager, scene.ids) == before && manager.num_sequences() == sequences &&
           manager.length(0, scene.ids[2]) == 300 && manager.length(1, scene.ids[2]) == 300;
  };
  const int forks = fail_everywhere(
      [&] { manager.close(manager.fork(HostExec(), scene.ids[1], 90)); }, unchanged);
  CHECK(forks >= 3);
  fail_everywhere([&] { manager.truncate(HostExec(), scene.ids[2], 77); }, unchanged);
  CHECK(manager.length(0, scene.ids[2]) == 77);
  CHECK(manager.length(1, scene.ids[2]) == 77);
}

TEST_CASE("a prefill stores nothing and keeps no memory, wherever it fails") {
  Scene scene;
  auto& manager = scene.manager;
  manager.trim();
  const auto before = contents(manager, scene.ids);
  const std::size_t pages = manager.memory_use().codes + manager.memory_use().metadata;
  const std::size_t free_pages = manager.memory_use().free_pages;
  const std::size_t exact = manager.memory_use().exact_window;
  const auto unchanged = [&] {
    const auto use = manager.memory_use();
    return contents(manager, scene.ids) == before && use.codes + use.metadata == pages &&
           use.free_pages == free_pages && use.exact_window == exact;
  };
  const Tokens<float> query_rows(6, 0, 33, {4, 16, 8});
  const Kokkos::View<float***, Kokkos::LayoutRight, Host> output("output", 33, 4, 16);
  const Kokkos::View<float**, Kokkos::LayoutRight, Host> lse("lse", 33, 4);
  const std::vector<std::int64_t> offsets{0, 100, 101, 250, 400};
  const std::vector<std::int64_t> queries_at{0, 16, 17, 17, 33};
  const auto prefill = [&](const Options& options) {
    manager.prefill(HostExec(), 0, scene.ids, offsets, scene.tokens.keys_from(0, 400),
                    scene.tokens.values_from(0, 400), queries_at, query_rows.keys, output, lse,
                    options);
  };
  Options bad;
  bad.sm_scale = std::numeric_limits<float>::infinity();
  CHECK(contains(error_of([&] { prefill(bad); }), "sm_scale is inf"));
  CHECK(unchanged());
  int failures = limit_everywhere(
      *manager.ledger(), [&] { prefill({}); }, unchanged);
  CHECK(failures >= 20);
  CHECK(manager.length(0, scene.ids[3]) == 250);
  Scene other;
  auto& second = other.manager;
  const auto second_before = contents(second, other.ids);
  const std::size_t second_free = second.memory_use().free_pages;
  failures = fail_everywhere(
      [&] {
        second.prefill(HostExec(), 0, other.ids, offsets, other.tokens.keys_from(0, 400),
                       other.tokens.values_from(0, 400), queries_at, query_rows.keys, output, lse);
      },
      [&] {
        return contents(second, other.ids) == second_before &&
               second.memory_use().free_pages == second_free;
      });
  CHECK(failures >= 60);
}

TEST_CASE("a memory limit of exactly what is needed suffices, one byte less is refused") {
  const Tokens<float> tokens(5, 0, 300, shape);
  const turboquant::CacheManagerOptions options{.layers = {layer(shape, 3, 4, 70), layer(shape, 0)},
                                                .slab_pages = 1};
  const auto fill = [&](Manager<float>& manager) {
    const auto id = manager.open();
    append(manager, 0, id, tokens, 0, 300);
    append(manager, 1, id, tokens, 0, 300);
  };
  Manager<float> measured(options);
  fill(measured);
  const std::size_t needed = measured.ledger()->peak();
  CHECK(needed > 0);
  for (const std::size_t missing : {std::size_t{0}, std::size_t{1}}) {
    auto limited = options;
    limited.memory_limit_bytes = needed - missing;
    Manager<float> manager(limited);
    const std::string error = error_of([&] { fill(manager); });
    CHECK((error == "no error") == (missing == 0));
    CHECK(contains(error, missing == 0 ? "no error" : "capacity"));
  }
  auto none = options;
  none.memory_limit_bytes = 0;
  Manager<float> manager(none);
  const auto id = manager.open();
  for (const std::int64_t l : {0, 1}) {
    CHECK(contains(error_of([&] { append(manager, l, id, tokens, 0, 1); }),
                   "capacity: CacheManager::append: turboquant::RingBuffer"));
    CHECK_NOTHROW(append(manager, l, id, tokens, 0, 0));
    CHECK(manager.length(l, id) == 0);
  }
  CHECK(manager.ledger()->total() == 0);
  CHECK_NOTHROW(manager.close(manager.fork(HostExec(), id)));
}

TEST_CASE("a memory limit anywhere below what an append needs leaves everything as it was") {
  Scene scene;
  auto& manager = scene.manager;
  const std::vector<std::int64_t> offsets{0, 100, 101, 400, 600};
  for (const std::int64_t l : {0, 1}) {
    const auto before = contents(manager, scene.ids);
    const auto use = manager.memory_use().total();
    const int failures = limit_everywhere(
        *manager.ledger(),
        [&] {
          manager.append(HostExec(), l, scene.ids, offsets, scene.tokens.keys_from(0, 600),
                         scene.tokens.values_from(0, 600));
        },
        [&] {
          return contents(manager, scene.ids) == before && manager.memory_use().total() == use;
        });
    CHECK(failures >= 20);
    CHECK(manager.length(l, scene.ids[3]) == 300);
  }
}

TEST_CASE("a memory limit below what attention or prefill needs writes and stores nothing") {
  Scene scene;
  auto& manager = scene.manager;
  const auto before = contents(manager, scene.ids);
  manager.trim();
  const Tokens<float> query_rows(6, 0, 50, {4, 16, 8});
  const Kokkos::View<float***, Kokkos::LayoutRight, Host> output("output", 50, 4, 16);
  const Kokkos::View<float**, Kokkos::LayoutRight, Host> lse("lse", 50, 4);
  const std::vector<std::int64_t> offsets{0, 50};
  Kokkos::deep_copy(output, 7.0F);
  manager.set_memory_limit(manager.ledger()->total() + 100);
  const std::string error = error_of([&] {
    manager.prefill(HostExec(), 0, std::vector{scene.ids[0]}, offsets,
                    scene.tokens.keys_from(0, 50), scene.tokens.values_from(0, 50), offsets,
                    query_rows.keys, output, lse);
  });
  CHECK(contains(error, "capacity: CacheManager::prefill: turboquant::CacheManager::workspace: "));
  CHECK(
      std::all_of(output.data(), output.data() + output.size(), [](float x) { return x == 7.0F; }));
  CHECK(contains(error_of([&] { attend(manager, 0, {scene.ids[0]}, queries(1, 1, 1, 4, 16), 16); }),
                 "capacity: CacheManager::attend: turboquant::CacheManager::workspace: "));
  CHECK(contains(error_of([&] {
                   attend(manager, 0, {scene.ids[0]}, queries(1, 1, 1, 4, 16), 16, exact(), true);
                 }),
                 "capacity: CacheManager::shadow_attend: "));
  manager.set_memory_limit(turboquant::MemoryLedger::unlimited);
  CHECK(contents(manager, scene.ids) == before);
  CHECK_NOTHROW(attend(manager, 0, {scene.ids[0]}, queries(1, 1, 1, 4, 16), 16));
}
