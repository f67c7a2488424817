#pragma once

#include <turboquant/base/checked_math.hpp>
#include <turboquant/cache/capture_contents.hpp>
#include <turboquant/cache/encode_batch.hpp>
#include <turboquant/cache/kv_store.hpp>
#include <turboquant/cache/paged_source.hpp>
#include <turboquant/cache/ring_buffer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace turboquant {

/// What kernels read of a `KVCaptureEngine`. A plain record; valid until the engine changes.
template <class T>
struct CaptureView {
  KVStoreView history{};             ///< empty where the layer is not compressed
  const T* window_keys = nullptr;    ///< (window_rows, kv_heads, key_dim), a ring
  const T* window_values = nullptr;  ///< (window_rows, kv_heads, value_dim)
  std::int64_t window_rows = 0;
  std::int64_t window_start = 0;  ///< row of the oldest token
  std::int64_t window_begin = 0;  ///< its position
  std::int64_t window_end = 0;
  const T* sink_keys = nullptr;  ///< (sink_count, kv_heads, key_dim), positions 0...
  const T* sink_values = nullptr;
  std::int64_t sink_count = 0;
  std::int64_t length = 0;  ///< tokens captured, those given up included
};

/// The write path of one layer and sequence: sinks, exact window and compressed history.
///
/// After every call the tokens are, in order: sinks [0, sinks), history [history_begin,
/// window_begin), window [window_begin, length); nothing is lost, doubled or out of order. Without
/// a codec the layer is not compressed and the window holds everything. Calls have the strong
/// guarantee: a failed call changes nothing. One thread at a time may change an engine; views may
/// be read by many. An engine that has been moved from is empty, as after construction.
/// @tparam Space a Kokkos memory space
/// @tparam T     number type of the rows: `float`, `float16` or `bfloat16`. Input of another type
/// must be converted by
///               the caller, so that nothing is rounded unnoticed and codes do not depend on the
///               path of a token.
template <class Space, class T>
class KVCaptureEngine {
 public:
  using Rows = TokenRows<Space, T>;
  using Store = CompressedKVStore<Space>;

  /// @param codec  nothing leaves the layer uncompressed
  /// @param ledger counts the memory
  /// @param pool   pages shared with other engines of the same format and heads; null makes a pool
  /// of its own
  /// @throws Error(invalid_argument), Error(shape_mismatch) for options outside their domain or
  /// that disagree with the
  ///         codec, Error(unsupported) for a sliding window over flat history, or a small window
  ///         with key means
  KVCaptureEngine(const CaptureOptions& options, std::optional<TileCodec<Space>> codec,
                  std::shared_ptr<MemoryLedger> ledger = std::make_shared<MemoryLedger>(),
                  std::shared_ptr<PagePool<Space>> pool = nullptr)
      : options_(detail::checked(options, codec)),
        ledger_(std::move(ledger)),
        sinks_(options.shape, {.capacity = options.sinks, .flush_tokens = 1, .first_position = 0},
               ledger_),
        window_(options.shape, detail::window_options(options, codec.has_value()), ledger_),
        upload_(ledger_) {
    if (codec) {
      const ErrorContext context("KVCaptureEngine: ");
      store_.emplace(
          *codec, options.shape.kv_heads,
          KVStoreOptions{.block_size = options.block_size, .first_position = options.sinks},
          ledger_, std::move(pool));
    }
  }
  KVCaptureEngine(KVCaptureEngine&& other) noexcept
      : options_(other.options_),
        ledger_(other.ledger_),
        sinks_(std::move(other.sinks_)),
        window_(std::move(other.window_)),
        store_(std::move(other.store_)),
        upload_(other.ledger_) {}
  KVCaptureEngine& operator=(KVCaptureEngine&& other) noexcept {
    KVCaptureEngine taken(std::move(other));
    options_ = taken.options_;
    ledger_ = taken.ledger_;
    sinks_ = std::move(taken.sinks_);
    window_ = std::move(taken.window_);
    store_ = std::move(taken.store_);
    upload_ = detail::JobUpload<Space>(ledger_);
    return *this;
  }

  /// An engine with the same tokens; memory is shared until one of the two writes to it. O(pages).
  [[nodiscard]] KVCaptureEngine fork() const { return KVCaptureEngine(*this, 0); }

  [[nodiscard]] const CaptureOptions& options() const noexcept { return options_; }
  [[nodiscard]] bool compressed() const noexcept { return store_.has_value(); }
  [[nodiscard]] std::int64_t length() const noexcept {
    return sinks_.end() < options_.sinks ? sinks_.end() : window_.end();
  }
  [[nodiscard]] std::int64_t history_begin() const noexcept {
    return store_ ? store_->begin() : window_.begin();
  }
  [[nodiscard]] std::int64_t window_begin() const noexcept { return window_.begin(); }
  [[nodiscard]] const RingBuffer<Space, T>& sinks() const noexcept { return sinks_; }
  [[nodiscard]] const RingBuffer<Space, T>& window() const noexcept { return window_; }
  /// @throws Error(unsupported) for an uncompressed layer
  [[nodiscard]] const Store& store() const {
    require(store_.has_value(), ErrorCode::unsupported,
            "KVCaptureEngine::store: the layer is not compressed, expected a codec");
    return *store_;
  }

  /// Captures tokens: a prefill, a decode step or anything between.
  /// @param keys   (tokens, kv_heads, key_dim), at most `largest_row_number` = 2^96 in magnitude
  /// @param values (tokens, kv_heads, value_dim), as `keys`
  /// @throws Error(shape_mismatch), Error(non_finite) for NaN or larger numbers, Error(capacity),
  ///         Error(invalid_argument) for rows in the engine's own memory. Waits for `exec`.
  ///         O(tokens). Same bits always, whatever the chunks.
  template <class Exec>
  void ingest(const Exec& exec, const Rows& keys, const Rows& values) {
    take_rows(exec, "KVCaptureEngine::ingest", keys, values);
  }

  /// Captures tokens from an engine's paged cache.
  /// @param source      (2, num_blocks, block_size, kv_heads, head_dim), or HND with the two middle
  /// axes swapped;
  ///                    needs key_dim == value_dim == head_dim
  /// @param block_table block numbers in token order, readable by the host
  /// @param first       first token of the cache's sequence to capture
  /// @param count       number of tokens
  /// @throws what `ingest` throws, and Error(out_of_range) for a block table that is too short or
  /// an entry that is no
  ///         block of the cache. Needs workspace for `count` rows during the call.
  template <class Exec>
  void ingest_paged(const Exec& exec, const PagedSource<Space, T>& source,
                    std::span<const std::int32_t> block_table, std::int64_t first,
                    std::int64_t count) {
    const LedgerCall call(ledger_, "KVCaptureEngine::ingest_paged");
    const auto rows = detail::gather_pages<Space, T>(exec, source, block_table, first, count,
                                                     options_.shape, ledger_);
    take_rows(exec, "KVCaptureEngine::ingest_paged", rows.keys, rows.values);
  }

  /// Compresses the exact window, the last tile partly filled if need be. Nothing to do for an
  /// uncompressed layer. A key mean is then that of the tokens flushed, and stays.
  /// @throws Error(capacity). Waits for `exec`.
  template <class Exec>
  void flush(const Exec& exec) {
    const LedgerCall call(ledger_, "KVCaptureEngine::flush");
    if (store_) {
      take(exec, 0, nullptr, nullptr, window_.end());
    }
  }

  /// Forgets the tokens from position `length` on, in the window or beyond its border in the
  /// history.
  ///
  /// What is left of a cut tile stays as it is; later tokens enter through the exact window and
  /// take the free slots of the tile when they leave it.
  /// @throws Error(out_of_range) for a length above `length()`, or where a sliding window has given
  /// up tokens that the
  ///         shorter sequence sees. Never allocates. Waits for `exec`.
  template <class Exec>
  void truncate(const Exec& exec, std::int64_t length) {
    require_truncatable("KVCaptureEngine::truncate", length);
    const std::int64_t end = (std::max)(length, options_.sinks);
    if (store_ && end < store_->end()) {
      if (end <= store_->begin()) {
        store_->restart(end);
      } else {
        store_->truncate(exec, end);
      }
    }
    if (end < window_.end()) {
      window_.truncate(end);
    }
    sinks_.truncate((std::min)(length, sinks_.end()));
  }

  /// Whether no token before position `end` has been given up that a query at `position` sees.
  [[nodiscard]] bool sees_all(std::int64_t position, std::int64_t end) const noexcept {
    const std::int64_t first = (std::max)(
        options_.sinks, options_.sliding_window > 0 ? position - options_.sliding_window + 1 : 0);
    return first >= end || history_begin() <= first;
  }

  /// @throws Error(invalid_argument) in the name of `caller` for rows in memory that appends write
  void require_apart(const char* caller, const Rows& keys, const Rows& values) const {
    detail::require_rows_apart(caller, keys, values, {sinks_.memory(), window_.memory()});
  }

  /// @throws what `truncate` would, in the name of `caller`; changes nothing
  void require_truncatable(const char* caller, std::int64_t length) const {
    require(length >= 0 && length <= this->length(), ErrorCode::out_of_range, caller,
            ": length is ", length, ", expected 0 to ", this->length());
    require(sees_all(length, length), ErrorCode::out_of_range, caller, ": length is ", length,
            ", but tokens before ", history_begin(), " have left the sliding window of ",
            options_.sliding_window, "; rollback_tokens is ", options_.rollback_tokens);
  }

  /// The tokens as kernels read them; does work only after changes.
  /// @throws Error(capacity); nothing is changed. Waits for `exec` if there is work.
  template <class Exec>
  [[nodiscard]] CaptureView<T> view(const Exec& exec) {
    const LedgerCall call(ledger_, "KVCaptureEngine::view");
    CaptureView<T> view;
    if (store_) {
      view.history = store_->view(exec);
    }
    view.window_keys = window_.keys();
    view.window_values = window_.values();
    view.window_rows = window_.rows();
    view.window_start = window_.start();
    view.window_begin = window_.begin();
    view.window_end = window_.end();
    view.sink_keys = sinks_.keys();
    view.sink_values = sinks_.values();
    view.sink_count = sinks_.size();
    view.length = length();
    return view;
  }

  /// Everything that is stored, on the host. Waits for `exec`. O(bytes).
  template <class Exec>
  [[nodiscard]] CaptureContents<T> contents(const Exec& exec) const {
    CaptureContents<T> out;
    out.length = length();
    out.history_begin = history_begin();
    out.window_begin = window_.begin();
    sinks_.copy_out(exec, out.sink_keys, out.sink_values);
    window_.copy_out(exec, out.window_keys, out.window_values);
    if (store_) {
      out.tiles = store_->copy_out(exec);
    }
    return out;
  }

  /// Fills an empty engine with what one of equal options held. What follows is as it would have
  /// been there, bit for bit.
  /// @throws Error(invalid_argument) unless this engine is empty, Error(out_of_range),
  ///         Error(shape_mismatch) and Error(non_finite) for contents that no engine of these
  ///         options has, Error(capacity); nothing is changed then. Waits for `exec`. O(bytes).
  template <class Exec>
  void restore(const Exec& exec, CaptureContents<T> contents) {
    const LedgerCall call(ledger_, "KVCaptureEngine::restore");
    require(length() == 0 && history_begin() == options_.sinks, ErrorCode::invalid_argument,
            "KVCaptureEngine::restore: the engine holds ", length(),
            " tokens, expected an empty one");
    detail::require_contents("KVCaptureEngine::restore", options_, store_.has_value(), contents);
    KVCaptureEngine filled = fork();
    if (store_) {
      const detail::TileRun run = store_->run_of(contents.history_begin, contents.window_begin);
      detail::check_tiles("KVCaptureEngine::restore", store_->codec().format(),
                          options_.shape.kv_heads, run, contents.tiles);
      filled.store_->assign(exec, contents.history_begin, contents.window_begin,
                            std::move(contents.tiles));
    }
    const std::int64_t end = (std::max)(contents.length, options_.sinks);
    filled.sinks_.assign(exec, 0, (std::min)(contents.length, options_.sinks),
                         contents.sink_keys.data(), contents.sink_values.data());
    filled.window_.assign(exec, contents.window_begin, end - contents.window_begin,
                          contents.window_keys.data(), contents.window_values.data());
    *this = std::move(filled);
  }

  /// A prepared append: everything that can fail has been done, nothing has changed.
  struct Plan {
    typename RingBuffer<Space, T>::Plan sinks;
    typename RingBuffer<Space, T>::Plan window;
    std::optional<typename Store::Plan> store;
  };

  /// Where the window begins after `count` more tokens.
  [[nodiscard]] std::int64_t begin_after(std::int64_t count) const {
    const std::int64_t to_window = count - to_sinks(count);
    return ring_begin_after(window_.options(), window_.begin(),
                            checked_add(window_.end(), to_window));
  }
  /// Pages that `prepare` with the same arguments acquires from the pool.
  [[nodiscard]] std::size_t pages_needed(std::int64_t count, std::int64_t window_begin) const {
    return store_ ? store_->pages_needed(window_begin - window_.begin(), keep_after(count)) : 0;
  }

  /// Prepares an append and adds its work to `batch`; the rows must be finite.
  /// @param window_begin `begin_after(count)`, or the new end to compress everything
  /// @throws Error(capacity); nothing is changed, and `batch` must be discarded.
  [[nodiscard]] Plan prepare(std::int64_t count, const T* keys, const T* values,
                             std::int64_t window_begin, detail::AppendBatch<T>& batch) {
    const std::int64_t to_sink = to_sinks(count);
    Plan plan;
    plan.sinks = sinks_.prepare(to_sink, sinks_.begin());
    sinks_.collect(plan.sinks, keys, values, batch.rows);
    if (to_sink > 0) {
      keys += to_sink * options_.shape.key_numbers();
      values += to_sink * options_.shape.value_numbers();
    }
    plan.window = window_.prepare(count - to_sink, window_begin);
    window_.collect(plan.window, keys, values, batch.rows);
    if (store_ && (window_begin > window_.begin() || options_.sliding_window > 0)) {
      plan.store = store_->prepare(window_begin - window_.begin(), keep_after(count));
      std::vector<TokenSource<T>> sources;
      for (const RowRange& range : window_.leaving(plan.window)) {
        if (range.count > 0) {
          sources.push_back({window_.keys() + range.first * options_.shape.key_numbers(),
                             window_.values() + range.first * options_.shape.value_numbers(),
                             range.count});
        }
      }
      if (plan.window.skipped > 0) {
        sources.push_back({keys, values, plan.window.skipped});
      }
      store_->collect(*plan.store, sources, batch);
    }
    return plan;
  }

  void commit(Plan&& plan) noexcept {
    sinks_.commit(plan.sinks);
    window_.commit(plan.window);
    if (plan.store) {
      store_->commit(std::move(*plan.store));
    }
  }

 private:
  KVCaptureEngine(const KVCaptureEngine& other, int)
      : options_(other.options_),
        ledger_(other.ledger_),
        sinks_(other.sinks_.fork()),
        window_(other.window_.fork()),
        upload_(other.ledger_) {
    if (other.store_) {
      store_.emplace(other.store_->fork());
    }
  }

  [[nodiscard]] std::int64_t to_sinks(std::int64_t count) const noexcept {
    return (std::min)(count, options_.sinks - sinks_.end());
  }
  /// The first position that must stay after `count` more tokens.
  [[nodiscard]] std::int64_t keep_after(std::int64_t count) const noexcept {
    return options_.sliding_window > 0
               ? length() + count - options_.sliding_window - options_.rollback_tokens
               : 0;
  }

  template <class Exec>
  void take_rows(const Exec& exec, const char* caller, const Rows& keys, const Rows& values) {
    const LedgerCall call(ledger_, caller);
    const std::int64_t count = detail::require_rows(caller, keys, values, options_.shape);
    require_apart(caller, keys, values);
    detail::require_attendable(exec, caller, keys, values);
    take(exec, count, keys.data(), values.data(), begin_after(count));
  }

  template <class Exec>
  void take(const Exec& exec, std::int64_t count, const T* keys, const T* values,
            std::int64_t window_begin) {
    detail::AppendBatch<T> batch;
    Plan plan = prepare(count, keys, values, window_begin, batch);
    batch.template reserve<Exec>(upload_);
    batch.run(exec, store_ ? &store_->codec() : nullptr, options_.shape.kv_heads, upload_);
    commit(std::move(plan));
  }

  CaptureOptions options_;
  std::shared_ptr<MemoryLedger> ledger_;
  RingBuffer<Space, T> sinks_;
  RingBuffer<Space, T> window_;
  std::optional<Store> store_;
  detail::JobUpload<Space> upload_;
};

}  // namespace turboquant
