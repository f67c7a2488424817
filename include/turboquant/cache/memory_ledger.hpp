#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/device/lasting_view.hpp>
#include <turboquant/device/runtime.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

namespace turboquant {

/// What device memory is allocated for.
enum class MemoryKind : std::uint8_t {
  pages,      ///< compressed tiles, used and free
  exact,      ///< uncompressed rows: windows, sinks, uncompressed layers
  tables,     ///< page tables that kernels read
  workspace,  ///< job lists and scratch memory of running calls
};

namespace detail {
class LedgerEntry;
}  // namespace detail

/// Counts every byte that caches allocate in device memory, by kind, under one hard limit.
///
/// An allocation is charged before it is made and credited after it is freed, so `total()` equals
/// what the allocator has handed out. Several caches may share a ledger; all use must be on one
/// thread at a time.
class MemoryLedger {
 public:
  static constexpr std::size_t unlimited = (std::numeric_limits<std::size_t>::max)();

  /// @param limit_bytes the most `total()` may reach
  explicit MemoryLedger(std::size_t limit_bytes = unlimited) noexcept : limit_(limit_bytes) {}

  /// Adds an allocation that is about to be made.
  /// @param label what it is for; named in the message
  /// @throws Error(capacity) where the limit would be exceeded; nothing is changed.
  void charge(MemoryKind kind, std::size_t bytes, const char* label) {
    std::size_t& used = bytes_[checked("MemoryLedger::charge", kind)];
    require(bytes <= available(), ErrorCode::capacity, call(), label, ": ", bytes,
            " bytes do not fit the memory limit of ", limit_, " bytes, of which ", total_,
            " are in use");
    total_ += bytes;
    used += bytes;
    peak_ = (std::max)(peak_, total_);
  }
  /// Removes an allocation that has been freed.
  /// @throws Error(invalid_argument) for more than is charged of a kind; nothing is changed.
  void credit(MemoryKind kind, std::size_t bytes) {
    const std::size_t used = this->bytes(kind);
    require(bytes <= used, ErrorCode::invalid_argument, "MemoryLedger::credit: bytes is ", bytes,
            ", expected at most what is charged of this kind, ", used);
    release(kind, bytes);
  }

  [[nodiscard]] std::size_t bytes(MemoryKind kind) const {
    return bytes_[checked("MemoryLedger", kind)];
  }
  [[nodiscard]] std::size_t total() const noexcept { return total_; }
  /// The largest `total()` since construction or `reset_peak()`.
  [[nodiscard]] std::size_t peak() const noexcept { return peak_; }
  void reset_peak() noexcept { peak_ = total_; }
  [[nodiscard]] std::size_t limit() const noexcept { return limit_; }
  /// Bytes that may still be allocated.
  [[nodiscard]] std::size_t available() const noexcept {
    return limit_ > total_ ? limit_ - total_ : 0;
  }
  /// For messages: the public function that allocates, and ": "; nothing between calls.
  [[nodiscard]] std::string call() const {
    return call_ == nullptr ? std::string() : std::string(call_) + ": ";
  }
  /// Changes the limit; one below `total()` only stops further allocations.
  void set_limit(std::size_t limit_bytes) noexcept { limit_ = limit_bytes; }

 private:
  friend class LedgerCall;
  friend class detail::LedgerEntry;

  /// Takes off what is still there of an allocation; nobody else's credits can make it fail.
  void release(MemoryKind kind, std::size_t bytes) noexcept {
    std::size_t& used = bytes_[static_cast<std::size_t>(kind)];
    const std::size_t removed = (std::min)(bytes, used);
    used -= removed;
    total_ -= removed;
  }

  /// The index of a kind.
  static std::size_t checked(const char* caller, MemoryKind kind) {
    const auto index = static_cast<std::size_t>(kind);
    require(index <= static_cast<std::size_t>(MemoryKind::workspace), ErrorCode::invalid_argument,
            caller, ": kind is ", index, ", expected pages, exact, tables or workspace");
    return index;
  }

  std::array<std::size_t, 4> bytes_{};
  std::size_t total_ = 0;
  std::size_t peak_ = 0;
  std::size_t limit_;
  const char* call_ = nullptr;
};

/// While it lives, a ledger's messages name the public function that allocates. Of nested ones the
/// outermost is named.
class LedgerCall {
 public:
  /// @param name a literal
  LedgerCall(const std::shared_ptr<MemoryLedger>& ledger, const char* name) noexcept
      : ledger_(ledger != nullptr && ledger->call_ == nullptr ? ledger.get() : nullptr) {
    if (ledger_ != nullptr) {
      ledger_->call_ = name;
    }
  }
  LedgerCall(const LedgerCall&) = delete;
  LedgerCall& operator=(const LedgerCall&) = delete;
  ~LedgerCall() {
    if (ledger_ != nullptr) {
      ledger_->call_ = nullptr;
    }
  }

 private:
  MemoryLedger* ledger_;
};

namespace detail {

/// Allocations are whole multiples of this, which keeps tiles aligned and sizes exact under every
/// allocator.
inline constexpr std::size_t allocation_granule = 64;

/// Beyond the last multiple it is that one, which nothing has.
[[nodiscard]] constexpr std::size_t round_up_bytes(std::size_t bytes) noexcept {
  constexpr std::size_t last =
      (std::numeric_limits<std::size_t>::max)() / allocation_granule * allocation_granule;
  return bytes > last ? last
                      : (bytes + allocation_granule - 1) / allocation_granule * allocation_granule;
}

/// An entry of the ledger, for as long as the object lives.
class LedgerEntry {
 public:
  LedgerEntry(std::shared_ptr<MemoryLedger> ledger, MemoryKind kind, std::size_t bytes,
              const char* label)
      : ledger_(std::move(ledger)), kind_(kind), bytes_(bytes) {
    ledger_->charge(kind_, bytes_, label);
  }
  LedgerEntry(const LedgerEntry&) = delete;
  LedgerEntry& operator=(const LedgerEntry&) = delete;
  ~LedgerEntry() { ledger_->release(kind_, bytes_); }

 private:
  std::shared_ptr<MemoryLedger> ledger_;
  MemoryKind kind_;
  std::size_t bytes_;
};

/// Uninitialised bytes of a memory space.
/// @param call the public function that allocates, and ": ", or nothing
/// @throws Error(capacity) where there are not as many.
template <class Space>
[[nodiscard]] Kokkos::View<std::byte*, Space> allocate_view(const std::string& call,
                                                            std::size_t bytes, const char* label) {
  // Allocators add headers, for which the largest sizes leave no room.
  if (bytes <= (std::numeric_limits<std::size_t>::max)() / 2) {
    TURBOQUANT_TRY {
      return Kokkos::View<std::byte*, Space>(
          Kokkos::view_alloc(std::string(label), Kokkos::WithoutInitializing), bytes);
    }
    TURBOQUANT_CATCH_ALL {}  // whatever it threw means that there is no memory
  }
  fail(ErrorCode::capacity, call, label, ": ", bytes, " bytes cannot be allocated in ",
       Space::name());
}

/// An allocation and its entry, which outlives it.
template <class Space>
struct ChargedBytes {
  ChargedBytes(const std::shared_ptr<MemoryLedger>& ledger, MemoryKind kind, std::size_t bytes,
               const char* label)
      : entry(ledger, kind, bytes, label),
        view(allocate_view<Space>(ledger->call(), bytes, label)) {}

  LedgerEntry entry;
  LastingView<Kokkos::View<std::byte*, Space>> view;
};

/// Uninitialised device bytes with shared ownership; freed and credited with the last owner.
///
/// `use_count() == 1` tells an owner that it may write in place.
/// @throws Error(capacity) beyond the ledger's limit, or where the memory space has not as many
/// bytes.
template <class Space>
[[nodiscard]] std::shared_ptr<std::byte> allocate_bytes(const std::shared_ptr<MemoryLedger>& ledger,
                                                        MemoryKind kind, std::size_t bytes,
                                                        const char* label) {
  require_initialized(label);
  auto block = std::make_shared<ChargedBytes<Space>>(ledger, kind, round_up_bytes(bytes), label);
  std::byte* const data = block->view.get().data();
  return std::shared_ptr<std::byte>(std::move(block), data);
}

}  // namespace detail
}  // namespace turboquant
