#pragma once

#include <turboquant/cache/memory_ledger.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace turboquant {

struct PagePoolOptions {
  std::size_t page_bytes = 0;  ///< at least 1; rounded up to a multiple of 64
  /// Pages of one allocation; 0 chooses about 64 KiB. Near the memory limit smaller allocations are
  /// made.
  std::size_t slab_pages = 0;
};

/// Pages of one size, made from allocations that never move.
///
/// A page is shared by its owners and returns to the pool with the last one. The ledger's limit is
/// hard. All use, page handles included, must be on one thread at a time. Copies are handles of the
/// same pool, and so is what a move leaves behind.
/// @tparam Space a Kokkos memory space
template <class Space>
class PagePool {
 public:
  /// A page: uninitialised bytes, 64-byte aligned. `use_count()` is its reference count; it keeps
  /// the memory alive even beyond the pool.
  using Page = std::shared_ptr<std::byte>;

  /// @throws Error(invalid_argument) for page_bytes = 0 or a null ledger.
  PagePool(const std::shared_ptr<MemoryLedger>& ledger, const PagePoolOptions& options)
      : state_(std::make_shared<State>()) {
    require(ledger != nullptr, ErrorCode::invalid_argument,
            "PagePool: ledger is null, expected a MemoryLedger");
    require(options.page_bytes >= 1 && options.page_bytes <= std::size_t{1} << 40U,
            ErrorCode::invalid_argument, "PagePool: page_bytes is ", options.page_bytes,
            ", expected 1 to 2^40");
    require(options.slab_pages <= std::size_t{1} << 20U, ErrorCode::invalid_argument,
            "PagePool: slab_pages is ", options.slab_pages, ", expected 0 to 2^20");
    state_->ledger = ledger;
    state_->page_bytes = detail::round_up_bytes(options.page_bytes);
    state_->slab_pages =
        options.slab_pages > 0
            ? options.slab_pages
            : (std::max<std::size_t>)(1, (std::size_t{1} << 16U) / state_->page_bytes);
  }

  PagePool(const PagePool&) = default;
  PagePool& operator=(const PagePool&) = default;

  /// A page nobody else has.
  /// @throws Error(capacity) beyond the limit or what the machine has; the pool is unchanged. O(1)
  /// amortised.
  [[nodiscard]] Page acquire() {
    if (state_->free.empty()) {
      grow(1);
    }
    return take();
  }

  /// Makes sure that `count` pages are free, so that as many calls of `acquire` succeed.
  /// @throws Error(capacity) beyond the limit or what the machine has; nothing is allocated then.
  void reserve(std::size_t count) {
    const std::size_t missing = count - (std::min)(count, state_->free.size());
    const std::size_t affordable = state_->ledger->available() / state_->page_bytes;
    require(missing <= affordable, ErrorCode::capacity, state_->ledger->call(),
            "PagePool: ", missing, " more pages of ", state_->page_bytes,
            " bytes are needed, but the memory limit of ", state_->ledger->limit(),
            " bytes, of which ", state_->ledger->total(), " are in use, leaves room for ",
            affordable);
    while (state_->free.size() < count) {
      grow(count - state_->free.size());
    }
  }

  /// Frees the newest allocations of which no page is used, as long as more than `keep_pages` pages
  /// are allocated. O(pages log pages).
  void trim(std::size_t keep_pages = 0) {
    State& state = *state_;
    constexpr std::less<> before{};
    std::sort(state.free.begin(), state.free.end(), before);
    for (std::size_t s = state.slabs.size(); s-- > 0 && state.pages > keep_pages;) {
      const Slab& slab = state.slabs[s];
      const auto first =
          std::lower_bound(state.free.begin(), state.free.end(), slab.memory.get(), before);
      const auto last = std::lower_bound(first, state.free.end(),
                                         slab.memory.get() + slab.pages * state.page_bytes, before);
      if (static_cast<std::size_t>(last - first) == slab.pages) {
        state.pages -= slab.pages;
        state.free.erase(first, last);
        state.slabs.erase(state.slabs.begin() + static_cast<std::ptrdiff_t>(s));
      }
    }
  }

  [[nodiscard]] std::size_t page_bytes() const noexcept { return state_->page_bytes; }
  [[nodiscard]] std::size_t num_pages() const noexcept { return state_->pages; }
  [[nodiscard]] std::size_t free_pages() const noexcept { return state_->free.size(); }
  [[nodiscard]] std::size_t used_pages() const noexcept { return num_pages() - free_pages(); }
  [[nodiscard]] const std::shared_ptr<MemoryLedger>& ledger() const noexcept {
    return state_->ledger;
  }

 private:
  struct Slab {
    std::shared_ptr<std::byte> memory;
    std::size_t pages = 0;
  };
  struct State {
    std::shared_ptr<MemoryLedger> ledger;
    std::size_t page_bytes = 0;
    std::size_t slab_pages = 0;
    std::size_t pages = 0;
    std::vector<Slab> slabs;
    std::vector<std::byte*>
        free;  ///< its capacity is at least `pages`, so that giving back never allocates
  };

  void grow(std::size_t wanted) {
    State& state = *state_;
    const std::size_t affordable = state.ledger->available() / state.page_bytes;
    const std::size_t count =
        std::clamp(affordable, std::size_t{1}, (std::max)(wanted, state.slab_pages));
    Slab slab;
    slab.memory = detail::allocate_bytes<Space>(
        state.ledger, MemoryKind::pages, count * state.page_bytes, "turboquant::PagePool::slab");
    slab.pages = count;
    state.slabs.reserve(state.slabs.size() + 1);
    state.free.reserve(state.pages + count);
    for (std::size_t i = count; i-- > 0;) {
      state.free.push_back(slab.memory.get() + i * state.page_bytes);
    }
    state.pages += count;
    state.slabs.push_back(std::move(slab));
  }

  Page take() {
    std::byte* const page = state_->free.back();
    // Should the handle's own allocation fail, its deleter gives the page back.
    state_->free.pop_back();
    return Page(page, [state = state_](std::byte* returned) { state->free.push_back(returned); });
  }

  std::shared_ptr<State> state_;
};

namespace detail {

/// Frees the pages that a pool has grown by since, unless they are kept.
template <class Space>
class PoolGrowth {
 public:
  /// @param pool may be null: nothing is done then
  explicit PoolGrowth(PagePool<Space>* pool)
      : pool_(pool), pages_(pool != nullptr ? pool->num_pages() : 0) {}
  PoolGrowth(PoolGrowth&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), pages_(other.pages_) {}
  PoolGrowth& operator=(PoolGrowth&&) = delete;
  ~PoolGrowth() {
    if (pool_ != nullptr) {
      pool_->trim(pages_);
    }
  }
  void keep() noexcept { pool_ = nullptr; }

 private:
  PagePool<Space>* pool_;
  std::size_t pages_;
};

}  // namespace detail
}  // namespace turboquant
