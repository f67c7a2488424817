#pragma once

#include <turboquant/base/checked_math.hpp>
#include <turboquant/cache/host_copy.hpp>
#include <turboquant/cache/job_upload.hpp>
#include <turboquant/cache/memory_ledger.hpp>
#include <turboquant/cache/token_rows.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace turboquant {

struct RingBufferOptions {
  std::int64_t capacity = 128;     ///< tokens held at most, 0 to 2^40
  std::int64_t flush_tokens = 64;  ///< tokens leave up to a multiple of this, at least 1
  std::int64_t first_position =
      0;  ///< position of the first token; multiples are counted from here
};

/// A run of consecutive rows.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// The window [begin, end) of token positions that a ring buffer holds after an append.
///
/// Nothing leaves while the tokens fit. Otherwise the oldest leave up to a multiple of
/// `flush_tokens` after `first_position`, so that at least `capacity - flush_tokens + 1` tokens
/// stay; a capacity below `flush_tokens - 1` cannot wait for whole multiples and lets exactly the
/// surplus go. The result is a function of the number of tokens, not of how they were split into
/// calls.
[[nodiscard]] constexpr std::int64_t ring_begin_after(const RingBufferOptions& options,
                                                      std::int64_t begin,
                                                      std::int64_t end) noexcept {
  const std::int64_t surplus_end = end - options.capacity;
  if (surplus_end <= begin) {
    return begin;
  }
  if (options.capacity < options.flush_tokens - 1) {
    return surplus_end;
  }
  const std::int64_t past = (surplus_end - options.first_position) % options.flush_tokens;
  return past == 0 ? surplus_end : surplus_end + options.flush_tokens - past;
}

/// The most recent tokens, exactly: keys and values of one layer and sequence in a ring of rows.
///
/// A token is named by its position; the buffer holds the positions [begin, end). What leaves goes
/// to the caller. Memory is allocated with the first token and shared by forks until one of them
/// writes. A buffer that has been moved from is empty, as after construction.
/// @tparam Space a Kokkos memory space
/// @tparam T     `float`, `float16` or `bfloat16`
template <class Space, class T>
class RingBuffer {
 public:
  using Rows = TokenRows<Space, T>;

  /// @throws Error(invalid_argument) for a shape or option outside its domain, or a null ledger
  RingBuffer(const KVShape& shape, const RingBufferOptions& options,
             std::shared_ptr<MemoryLedger> ledger = std::make_shared<MemoryLedger>())
      : shape_(shape),
        options_(options),
        ledger_(std::move(ledger)),
        begin_(options.first_position),
        end_(begin_) {
    require_valid("RingBuffer", shape);
    require(ledger_ != nullptr, ErrorCode::invalid_argument,
            "RingBuffer: ledger is null, expected a MemoryLedger");
    require(options.capacity >= 0 && options.capacity <= max_tokens, ErrorCode::invalid_argument,
            "RingBuffer: capacity is ", options.capacity, ", expected 0 to 2^40");
    require(options.flush_tokens >= 1 && options.flush_tokens <= max_tokens,
            ErrorCode::invalid_argument, "RingBuffer: flush_tokens is ", options.flush_tokens,
            ", expected 1 to 2^40");
    require(options.first_position >= 0 && options.first_position <= max_tokens,
            ErrorCode::invalid_argument, "RingBuffer: first_position is ", options.first_position,
            ", expected 0 to 2^40");
  }
  RingBuffer(RingBuffer&& other) noexcept : RingBuffer(std::as_const(other)) { other.reset(); }
  RingBuffer& operator=(RingBuffer&& other) noexcept {
    if (this != &other) {
      *this = std::as_const(other);
      other.reset();
    }
    return *this;
  }

  /// A buffer of the same contents, which shares their memory until one of the two writes. O(1).
  [[nodiscard]] RingBuffer fork() const { return RingBuffer(*this); }

  [[nodiscard]] const KVShape& shape() const noexcept { return shape_; }
  [[nodiscard]] const RingBufferOptions& options() const noexcept { return options_; }
  [[nodiscard]] std::int64_t capacity() const noexcept { return options_.capacity; }
  [[nodiscard]] std::int64_t begin() const noexcept { return begin_; }
  [[nodiscard]] std::int64_t end() const noexcept { return end_; }
  [[nodiscard]] std::int64_t size() const noexcept { return end_ - begin_; }
  /// Bytes allocated; forks that share memory each report it.
  [[nodiscard]] std::size_t bytes() const noexcept { return storage_bytes(storage_.rows); }

  /// Where kernels find the tokens: token at position p is row `(start() + p - begin()) % rows()`.
  [[nodiscard]] const T* keys() const noexcept {
    return storage_.keys;
  }  ///< (rows, kv_heads, key_dim)
  [[nodiscard]] const T* values() const noexcept {
    return storage_.values;
  }  ///< (rows, kv_heads, value_dim)
  [[nodiscard]] std::int64_t rows() const noexcept { return storage_.rows; }
  [[nodiscard]] std::int64_t start() const noexcept { return start_; }
  /// The memory of the rows.
  [[nodiscard]] detail::ByteRange memory() const noexcept {
    return {"the memory of the exact rows", storage_.memory.get(), bytes()};
  }

  /// Appends tokens and hands those that leave to `sink`, oldest first.
  ///
  /// @param keys   (tokens, kv_heads, key_dim), any number of tokens
  /// @param values (tokens, kv_heads, value_dim)
  /// @param sink   called at most three times as `sink(keys, values)` with rows of consecutive
  /// tokens, which are
  ///               valid until work submitted to `exec` during the call has run
  /// @throws Error(shape_mismatch), Error(non_finite), Error(capacity), Error(invalid_argument) for
  ///         rows in the buffer's own memory, and what `sink` throws; the buffer is unchanged then.
  ///         Waits for `exec`. O(tokens). Same bits always.
  template <class Exec, class Sink>
  void append(const Exec& exec, const Rows& keys, const Rows& values, Sink&& sink) {
    const LedgerCall call(ledger_, "RingBuffer::append");
    const std::int64_t count = detail::require_rows("RingBuffer::append", keys, values, shape_);
    detail::require_rows_apart("RingBuffer::append", keys, values, {memory()});
    detail::require_within(exec, "RingBuffer::append", "keys", keys, detail::any_finite);
    detail::require_within(exec, "RingBuffer::append", "values", values, detail::any_finite);
    const Plan plan = prepare(count, ring_begin_after(options_, begin_, checked_add(end_, count)));
    std::vector<detail::CopyJob<T>> jobs;
    collect(plan, keys.data(), values.data(), jobs);
    detail::JobUpload<Space> upload(ledger_);
    upload.template reserve_for<Exec>(0, jobs);
    for (const RowRange& range : leaving(plan)) {
      if (range.count > 0) {
        sink(rows_of(storage_.keys, range, shape_.key_dim),
             rows_of(storage_.values, range, shape_.value_dim));
      }
    }
    if (plan.skipped > 0) {
      sink(rows_of(keys.data(), {0, plan.skipped}, shape_.key_dim),
           rows_of(values.data(), {0, plan.skipped}, shape_.value_dim));
    }
    detail::copy_blocks<T>(exec, upload.put(exec, 0, jobs), jobs.size());
    exec.fence();
    commit(plan);
  }

  /// Copies the contents in token order.
  /// @param keys_out   (size(), kv_heads, key_dim); `values_out` (size(), kv_heads, value_dim)
  /// @throws Error(shape_mismatch), Error(invalid_argument) where the outputs overlap each other or
  ///         the buffer. Waits for `exec`. O(size).
  template <class Exec>
  void read(const Exec& exec, const Kokkos::View<T***, Kokkos::LayoutRight, Space>& keys_out,
            const Kokkos::View<T***, Kokkos::LayoutRight, Space>& values_out) const {
    const std::int64_t count =
        detail::require_rows("RingBuffer::read", Rows(keys_out), Rows(values_out), shape_);
    require(count == size(), ErrorCode::shape_mismatch, "RingBuffer::read: keys_out.extent(0) is ",
            count, ", expected size() = ", size());
    detail::require_apart(
        "RingBuffer::read",
        {detail::byte_range("keys_out", keys_out), detail::byte_range("values_out", values_out)},
        {memory()});
    std::vector<detail::CopyJob<T>> jobs;
    std::int64_t row = 0;
    for (const RowRange& range : ranges(begin_, end_)) {
      add_copy(jobs, storage_, range, keys_out.data(), values_out.data(), row);
      row += range.count;
    }
    detail::JobUpload<Space> upload(ledger_);
    detail::copy_blocks<T>(exec, upload.put(exec, 0, jobs), jobs.size());
    exec.fence();
  }

  /// Copies the contents to the host in token order. Waits for `exec`. O(size).
  template <class Exec>
  void copy_out(const Exec& exec, std::vector<T>& keys, std::vector<T>& values) const {
    keys.resize(static_cast<std::size_t>(size() * shape_.key_numbers()));
    values.resize(static_cast<std::size_t>(size() * shape_.value_numbers()));
    std::int64_t row = 0;
    for (const RowRange& range : ranges(begin_, end_)) {
      const auto copy = [&](const T* from, T* to, std::int64_t numbers) {
        detail::copy_to_host<Space>(exec, from + range.first * numbers, to + row * numbers,
                                    range.count * numbers);
      };
      copy(storage_.keys, keys.data(), shape_.key_numbers());
      copy(storage_.values, values.data(), shape_.value_numbers());
      row += range.count;
    }
  }

  /// Replaces the contents by tokens [begin, begin + count) from rows on the host.
  /// @throws Error(out_of_range) for a count beyond 0 to `capacity()` or a begin beyond
  ///         first_position to 2^60, Error(invalid_argument) for rows at null, Error(non_finite),
  ///         Error(capacity); the buffer is unchanged then. Waits for `exec`. O(count).
  template <class Exec>
  void assign(const Exec& exec, std::int64_t begin, std::int64_t count, const T* keys,
              const T* values) {
    constexpr const char* caller = "RingBuffer::assign";
    require(begin >= options_.first_position && begin <= std::int64_t{1} << 60U,
            ErrorCode::out_of_range, caller, ": begin is ", begin, ", expected ",
            options_.first_position, " to 2^60");
    require(count >= 0 && count <= capacity(), ErrorCode::out_of_range, caller, ": count is ",
            count, ", expected 0 to the capacity, ", capacity());
    require(count == 0 || (keys != nullptr && values != nullptr), ErrorCode::invalid_argument,
            caller, ": keys or values is null, expected ", count, " rows");
    const std::int64_t key_count = count * shape_.key_numbers();
    const std::int64_t value_count = count * shape_.value_numbers();
    detail::require_numbers_within(caller, "keys", keys, key_count, detail::any_finite);
    detail::require_numbers_within(caller, "values", values, value_count, detail::any_finite);
    Plan plan;
    plan.begin = begin;
    plan.end = begin + count;
    if (count > 0) {
      plan.storage = allocate(count);
      detail::copy_from_host<Space>(exec, keys, plan.storage.keys, key_count);
      detail::copy_from_host<Space>(exec, values, plan.storage.values, value_count);
    }
    commit(plan);
  }

  /// Forgets the tokens from position `end` on; a position before `begin()` empties the buffer and
  /// becomes its begin.
  /// @throws Error(out_of_range) unless first_position <= end <= this->end(). O(1).
  void truncate(std::int64_t end) {
    require(end >= options_.first_position && end <= end_, ErrorCode::out_of_range,
            "RingBuffer::truncate: end is ", end, ", expected ", options_.first_position, " to ",
            end_);
    end_ = end;
    begin_ = (std::min)(begin_, end);
  }

  /// The rows that hold the positions [first, last), in order.
  /// @throws Error(out_of_range) unless begin() <= first <= last <= end(). O(1).
  [[nodiscard]] std::array<RowRange, 2> ranges(std::int64_t first, std::int64_t last) const {
    require(first >= begin_ && first <= last && last <= end_, ErrorCode::out_of_range,
            "RingBuffer::ranges: first is ", first, " and last is ", last, ", expected ", begin_,
            " <= first <= last <= ", end_);
    if (first == last) {
      return {};
    }
    const std::int64_t count = last - first;
    const std::int64_t row = (start_ + first - begin_) % storage_.rows;
    const std::int64_t head = (std::min)(count, storage_.rows - row);
    return {RowRange{row, head}, RowRange{0, count - head}};
  }

  /// Memory of the rows.
  struct Storage {
    std::shared_ptr<std::byte> memory;
    T* keys = nullptr;
    T* values = nullptr;
    std::int64_t rows = 0;
  };

  /// A prepared append: everything that can fail has been done, nothing has changed.
  struct Plan {
    Storage storage;           ///< after the append; the present one if it is written in place
    bool moves = false;        ///< the tokens that stay are copied to row 0 of another storage
    std::int64_t start = 0;    ///< after the append
    std::int64_t begin = 0;    ///< after the append
    std::int64_t end = 0;      ///< after the append
    std::int64_t skipped = 0;  ///< leading rows of the input that never enter
  };

  /// Prepares an append of `count` tokens after which the buffer begins at `begin`.
  /// @param begin from `this->begin()` to `end() + count`, at most `capacity` before the latter
  /// @throws Error(capacity); nothing is changed.
  [[nodiscard]] Plan prepare(std::int64_t count, std::int64_t begin) const {
    Plan plan;
    const bool shared = storage_.memory.use_count() > 1;
    plan.begin = begin;
    plan.end = end_ + count;
    plan.skipped = (std::max<std::int64_t>)(0, begin - end_);
    plan.storage = storage_;
    const std::int64_t needed = plan.end - begin;
    const bool writes = count > plan.skipped;
    if (writes && (storage_.rows < needed || shared)) {
      plan.storage = allocate(needed);
      plan.moves = true;
    } else if (storage_.rows > 0) {
      plan.start = (start_ + (std::min)(begin, end_) - begin_) % storage_.rows;
    }
    return plan;
  }

  /// The rows of the present storage whose tokens leave, oldest first.
  [[nodiscard]] std::array<RowRange, 2> leaving(const Plan& plan) const {
    return ranges(begin_, (std::min)(plan.begin, end_));
  }

  /// Adds the copies that fill the plan's storage; rows that leave must have been read before they
  /// run.
  /// @param keys, values the appended rows
  void collect(const Plan& plan, const T* keys, const T* values,
               std::vector<detail::CopyJob<T>>& jobs) const {
    const std::int64_t kept_begin = (std::min)(plan.begin, end_);
    if (plan.moves) {
      std::int64_t row = 0;
      for (const RowRange& range : ranges(kept_begin, end_)) {
        add_copy(jobs, storage_, range, plan.storage.keys, plan.storage.values, row);
        row += range.count;
      }
    }
    const std::int64_t kept = end_ - kept_begin;
    const std::int64_t added = plan.end - end_ - plan.skipped;
    if (added <= 0) {
      return;
    }
    Storage input;
    input.keys = const_cast<T*>(keys);
    input.values = const_cast<T*>(values);
    const std::int64_t row = (plan.start + kept) % plan.storage.rows;
    const std::int64_t head = (std::min)(added, plan.storage.rows - row);
    add_copy(jobs, input, {plan.skipped, head}, plan.storage.keys, plan.storage.values, row);
    add_copy(jobs, input, {plan.skipped + head, added - head}, plan.storage.keys,
             plan.storage.values, 0);
  }

  /// Makes a prepared append the state of the buffer.
  void commit(const Plan& plan) noexcept {
    storage_ = plan.storage;
    start_ = plan.start;
    begin_ = plan.begin;
    end_ = plan.end;
  }

 private:
  static constexpr std::int64_t max_tokens = std::int64_t{1} << 40U;
  /// Rows of the first allocation, unless the capacity is smaller.
  static constexpr std::int64_t first_rows = 256;

  RingBuffer(const RingBuffer&) = default;
  RingBuffer& operator=(const RingBuffer&) = default;

  void reset() noexcept {
    storage_ = {};
    start_ = 0;
    begin_ = options_.first_position;
    end_ = begin_;
  }

  [[nodiscard]] std::size_t storage_bytes(std::int64_t rows) const noexcept {
    return detail::round_up_bytes(static_cast<std::size_t>(rows * shape_.key_numbers()) *
                                  sizeof(T)) +
           detail::round_up_bytes(static_cast<std::size_t>(rows * shape_.value_numbers()) *
                                  sizeof(T));
  }

  [[nodiscard]] Storage allocate(std::int64_t needed) const {
    Storage storage;
    storage.rows = (std::min)(options_.capacity,
                              (std::max)({needed, first_rows, storage_.rows + storage_.rows / 4}));
    const std::int64_t number_bytes =
        checked_mul(shape_.key_numbers() + shape_.value_numbers(), sizeof(T));
    static_cast<void>(checked_mul(storage.rows, number_bytes));
    storage.memory = detail::allocate_bytes<Space>(
        ledger_, MemoryKind::exact, storage_bytes(storage.rows), "turboquant::RingBuffer::rows");
    storage.keys = reinterpret_cast<T*>(storage.memory.get());
    const auto keys_bytes =
        static_cast<std::size_t>(storage.rows * shape_.key_numbers()) * sizeof(T);
    storage.values =
        reinterpret_cast<T*>(storage.memory.get() + detail::round_up_bytes(keys_bytes));
    return storage;
  }

  void add_copy(std::vector<detail::CopyJob<T>>& jobs, const Storage& from, const RowRange& range,
                T* keys, T* values, std::int64_t row) const {
    if (range.count > 0) {
      const std::int64_t k = shape_.key_numbers();
      const std::int64_t v = shape_.value_numbers();
      jobs.push_back({from.keys + range.first * k, keys + row * k, range.count * k});
      jobs.push_back({from.values + range.first * v, values + row * v, range.count * v});
    }
  }

  [[nodiscard]] Rows rows_of(const T* data, const RowRange& range, int dim) const {
    const std::int64_t row = std::int64_t{shape_.kv_heads} * dim;
    return Rows(data + range.first * row, static_cast<std::size_t>(range.count),
                static_cast<std::size_t>(shape_.kv_heads), static_cast<std::size_t>(dim));
  }

  KVShape shape_;
  RingBufferOptions options_;
  std::shared_ptr<MemoryLedger> ledger_;
  Storage storage_;
  std::int64_t start_ = 0;
  std::int64_t begin_;
  std::int64_t end_;
};

}  // namespace turboquant
