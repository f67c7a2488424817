#include "cache/cache_test_support.hpp"

#include <turboquant/cache/page_pool.hpp>

#include <doctest/doctest.h>

#include <limits>
#include <memory>
#include <set>
#include <vector>

using cache_test::AllocationCounter;
using cache_test::contains;
using cache_test::error_of;
using turboquant::MemoryKind;
using turboquant::MemoryLedger;
using Pool = turboquant::PagePool<Kokkos::HostSpace>;

TEST_CASE("pages are distinct, aligned, and counted while anyone holds them") {
  const auto ledger = std::make_shared<MemoryLedger>();
  Pool pool(ledger, {.page_bytes = 100, .slab_pages = 4});
  CHECK(pool.page_bytes() == 128);
  std::vector<Pool::Page> pages;
  std::set<std::byte*> distinct;
  for (int i = 0; i < 9; ++i) {
    pages.push_back(pool.acquire());
    distinct.insert(pages.back().get());
    CHECK(reinterpret_cast<std::uintptr_t>(pages.back().get()) % 64 == 0);
  }
  CHECK(distinct.size() == 9);
  CHECK(pool.num_pages() == 12);
  CHECK(pool.free_pages() == 3);
  Pool::Page second_owner = pages[0];
  pages[0] = nullptr;
  CHECK(pool.used_pages() == 9);
  second_owner = nullptr;
  CHECK(pool.used_pages() == 8);
  CHECK(ledger->total() == 12 * 128);
}

TEST_CASE("the ledger holds what the allocator handed out, to the byte, and nothing afterwards") {
  const AllocationCounter counter;
  {
    const auto ledger = std::make_shared<MemoryLedger>();
    Pool pool(ledger, {.page_bytes = 4000, .slab_pages = 3});
    const auto page = pool.acquire();
    CHECK(counter.bytes() == std::int64_t(ledger->total()));
    pool.reserve(10);
    CHECK(counter.bytes() == std::int64_t(ledger->total()));
    CHECK(ledger->bytes(MemoryKind::pages) == ledger->total());
    pool.trim();
    CHECK(counter.bytes() == 3 * 4032);
    CHECK(counter.bytes() == std::int64_t(ledger->total()));
  }
  CHECK(counter.bytes() == 0);
}

TEST_CASE("a page outlives its pool") {
  const auto ledger = std::make_shared<MemoryLedger>();
  Pool::Page page;
  {
    Pool pool(ledger, {.page_bytes = 64, .slab_pages = 1});
    page = pool.acquire();
  }
  std::memset(page.get(), 1, 64);
  CHECK(ledger->total() == 64);
  page = nullptr;
  CHECK(ledger->total() == 0);
}

TEST_CASE("the limit is hard, the last bytes below it are used, and a refusal changes nothing") {
  const auto ledger = std::make_shared<MemoryLedger>(64 * 10 + 63);
  Pool pool(ledger, {.page_bytes = 64, .slab_pages = 4});
  std::vector<Pool::Page> pages;
  for (int i = 0; i < 10; ++i) {
    pages.push_back(pool.acquire());
  }
  const std::string refusal = error_of([&] { pages.push_back(pool.acquire()); });
  CHECK(contains(refusal, "capacity"));
  CHECK(contains(refusal,
                 "64 bytes do not fit the memory limit of 703 bytes, of which 640 are in use"));
  CHECK(pages.size() == 10);
  CHECK(pool.num_pages() == 10);
  CHECK(pool.free_pages() == 0);
  pages.pop_back();
  CHECK(contains(error_of([&] { pool.reserve(2); }), "1 more pages of 64 bytes are needed"));
  CHECK(ledger->total() == 640);
  CHECK_NOTHROW(pool.reserve(1));
}

TEST_CASE("memory that the machine does not have is refused, and nothing changes") {
  const auto ledger = std::make_shared<MemoryLedger>();
  Pool pool(ledger, {.page_bytes = std::size_t{1} << 40U});
  // Beyond every address space, whatever the system promises.
  CHECK(contains(error_of([&] { pool.reserve(std::size_t{1} << 20U); }),
                 "capacity: turboquant::PagePool::slab: 1152921504606846976 bytes cannot be "
                 "allocated in Host"));
  CHECK(pool.num_pages() == 0);
  CHECK(ledger->total() == 0);
}

TEST_CASE("sizes next to the largest are rounded up to no small one") {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  static_assert(turboquant::detail::round_up_bytes(0) == 0);
  static_assert(turboquant::detail::round_up_bytes(65) == 128);
  static_assert(turboquant::detail::round_up_bytes(most - 63) == most - 63);
  static_assert(turboquant::detail::round_up_bytes(most) == most - 63);
  const auto ledger = std::make_shared<MemoryLedger>();
  for (const std::size_t bytes : {most, most - 100, most / 2 + 1}) {
    CHECK(contains(error_of([&] {
                     static_cast<void>(turboquant::detail::allocate_bytes<Kokkos::HostSpace>(
                         ledger, MemoryKind::workspace, bytes, "test"));
                   }),
                   "capacity: test: "));
    CHECK(ledger->total() == 0);
  }
}

TEST_CASE("trim frees only allocations without a used page") {
  const auto ledger = std::make_shared<MemoryLedger>();
  Pool pool(ledger, {.page_bytes = 64, .slab_pages = 2});
  std::vector<Pool::Page> pages;
  for (int i = 0; i < 6; ++i) {
    pages.push_back(pool.acquire());
  }
  // Two pages of one allocation, one of another.
  pages.erase(pages.begin(), pages.begin() + 3);
  pool.trim();
  CHECK(pool.num_pages() == 4);
  CHECK(pool.free_pages() == 1);
  const auto reused = pool.acquire();
  CHECK(pool.num_pages() == 4);
}

TEST_CASE("trim keeps as many pages as it is told, and the ledger follows by kind") {
  const auto ledger = std::make_shared<MemoryLedger>();
  Pool pool(ledger, {.page_bytes = 64, .slab_pages = 2});
  for (const std::size_t pages : {2U, 4U, 6U, 8U, 10U}) {  // allocations of two pages
    pool.reserve(pages);
    CHECK(pool.num_pages() == pages);
  }
  pool.trim(8);
  CHECK(pool.num_pages() == 8);
  pool.trim(8);
  CHECK(pool.num_pages() == 8);
  CHECK(ledger->bytes(MemoryKind::pages) == 8 * 64);
  CHECK(ledger->bytes(MemoryKind::exact) == 0);
  pool.trim();
  CHECK(ledger->bytes(MemoryKind::pages) == 0);
  // Sizes that are no multiple of 64 are charged as they are allocated.
  auto odd = turboquant::detail::allocate_bytes<Kokkos::HostSpace>(ledger, MemoryKind::tables, 65,
                                                                   "turboquant::test");
  CHECK(ledger->bytes(MemoryKind::tables) == 128);
  odd = nullptr;
  CHECK(ledger->bytes(MemoryKind::tables) == 0);
}

TEST_CASE("arguments outside their domain are refused by name") {
  const auto ledger = std::make_shared<MemoryLedger>();
  CHECK(contains(error_of([&] { Pool(ledger, {}); }), "page_bytes is 0, expected 1 to 2^40"));
  CHECK(contains(error_of([&] {
                   Pool(ledger, {.page_bytes = 64, .slab_pages = (std::size_t{1} << 20U) + 1});
                 }),
                 "slab_pages is 1048577, expected 0 to 2^20"));
  CHECK(contains(error_of([&] { Pool(nullptr, {.page_bytes = 64}); }), "ledger is null"));
}

TEST_CASE("the ledger's peak is the most that was in use at once") {
  MemoryLedger ledger(100);
  ledger.charge(MemoryKind::exact, 60, "first");
  ledger.credit(MemoryKind::exact, 60);
  ledger.charge(MemoryKind::tables, 30, "second");
  CHECK(ledger.peak() == 60);
  ledger.reset_peak();
  CHECK(ledger.peak() == 30);
  CHECK(ledger.available() == 70);
  CHECK(contains(error_of([&] { ledger.charge(MemoryKind::pages, 71, "third"); }),
                 "third: 71 bytes do not fit"));
  ledger.set_limit(10);
  CHECK(ledger.available() == 0);
}

TEST_CASE("a ledger is credited with no more than it was charged") {
  const auto ledger = std::make_shared<MemoryLedger>(1000);
  ledger->charge(MemoryKind::exact, 5, "rows");
  ledger->charge(MemoryKind::pages, 100, "pages");
  CHECK(error_of([&] { ledger->credit(MemoryKind::exact, 6); }) ==
        "invalid_argument: MemoryLedger::credit: bytes is 6, expected at most what is charged of "
        "this kind, 5");
  CHECK(contains(error_of([&] { ledger->credit(MemoryKind(4), 0); }), "kind is 4, expected pages"));
  CHECK(contains(error_of([&] { ledger->charge(MemoryKind(9), 1, "x"); }), "kind is 9"));
  CHECK(contains(error_of([&] { static_cast<void>(ledger->bytes(MemoryKind(255))); }),
                 "kind is 255"));
  CHECK(ledger->total() == 105);
  CHECK(ledger->bytes(MemoryKind::exact) == 5);
  {
    Pool pool(ledger, {.page_bytes = 64, .slab_pages = 1});
    const auto page = pool.acquire();
    ledger->credit(MemoryKind::pages, 164);  // the pool's own, too
  }
  CHECK(ledger->total() == 5);
  ledger->credit(MemoryKind::exact, 5);
  CHECK(ledger->total() == 0);
}

TEST_CASE("a pool that has been moved from is a handle of the same pages") {
  const auto ledger = std::make_shared<MemoryLedger>();
  Pool one(ledger, {.page_bytes = 100, .slab_pages = 2});
  const Pool other(std::move(one));
  const auto page = one.acquire();
  CHECK(one.page_bytes() == 128);
  CHECK(other.used_pages() == 1);
}
