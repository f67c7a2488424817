#pragma once

#include <turboquant/base/checked_math.hpp>
#include <turboquant/cache/encode_batch.hpp>
#include <turboquant/cache/host_copy.hpp>
#include <turboquant/cache/kv_store_view.hpp>
#include <turboquant/cache/tile_storage.hpp>
#include <turboquant/cache/token_rows.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace turboquant {

/// The compressed history of one layer and sequence: tiles, of which the last fills in place.
/// A token is quantised once, when it is appended; the bits of tokens that are there never change,
/// so any chunking of the same input gives byte-identical tiles. With key means that holds for
/// appends of whole tiles: the append that begins a tile decides its mean. Forks share memory until
/// one of them writes (paged: page by page). One thread at a time may change a store; any number of
/// threads may read a `view()` until it does. A store that has been moved from is empty, as new.
/// @tparam Space a Kokkos memory space
template <class Space>
class CompressedKVStore {
 public:
  /// @param codec  decides the bytes; shared, not copied
  /// @param ledger counts the memory
  /// @param pool   pages of `page_bytes(...)`, may be shared; null makes one if block_size > 0
  /// @throws Error(invalid_argument) for a block size that is no multiple of a tile's tokens, fewer
  /// than 1 head, or a pool that does not fit
  CompressedKVStore(const TileCodec<Space>& codec, int kv_heads, const KVStoreOptions& options = {},
                    std::shared_ptr<MemoryLedger> ledger = std::make_shared<MemoryLedger>(),
                    std::shared_ptr<PagePool<Space>> pool = nullptr)
      : codec_(codec),
        kv_heads_(kv_heads),
        options_(options),
        ledger_(std::move(ledger)),
        tiles_(codec.format().bytes(), kv_heads,
               (std::max<std::int64_t>)(1, options.block_size / tile()),
               checked_pool(codec, kv_heads, options, ledger_, std::move(pool)), ledger_),
        begin_(options.first_position),
        end_(begin_) {}
  CompressedKVStore(CompressedKVStore&& other) noexcept
      : CompressedKVStore(other, std::move(other.tiles_)) {
    other.forget(other.options_.first_position);
  }
  CompressedKVStore& operator=(CompressedKVStore&& other) noexcept {
    CompressedKVStore taken(std::move(other));
    codec_ = taken.codec_;
    kv_heads_ = taken.kv_heads_;
    options_ = taken.options_;
    ledger_ = taken.ledger_;
    tiles_ = std::move(taken.tiles_);
    begin_ = taken.begin_;
    end_ = taken.end_;
    return *this;
  }

  /// Bytes of one page of a paged store, for its pool.
  /// @throws Error(invalid_argument) for fewer than 1 head or a block size that is no positive
  /// multiple of tile_tokens up to 2^30, Error(overflow) for more than 2^63 - 1 bytes
  [[nodiscard]] static std::size_t page_bytes(const TileFormat& format, int kv_heads,
                                              std::int64_t block_size) {
    require_supported(format);
    require(kv_heads >= 1, ErrorCode::invalid_argument,
            "CompressedKVStore::page_bytes: kv_heads is ", kv_heads, ", expected 1 or more");
    require(block_size > 0 && block_size <= std::int64_t{1} << 30U &&
                block_size % format.tile_tokens == 0,
            ErrorCode::invalid_argument, "CompressedKVStore::page_bytes: block_size is ",
            block_size, ", expected a positive multiple of tile_tokens = ", format.tile_tokens,
            " up to 2^30");
    const ErrorContext context("CompressedKVStore::page_bytes: ");
    const auto bytes = static_cast<std::int64_t>(format.bytes());
    const std::int64_t tiles = checked_mul(kv_heads, block_size / format.tile_tokens);
    return static_cast<std::size_t>(checked_mul(bytes, tiles));
  }

  /// A store of the same tokens that shares all memory. O(pages).
  [[nodiscard]] CompressedKVStore fork() const { return CompressedKVStore(*this, tiles_.fork()); }

  [[nodiscard]] const TileCodec<Space>& codec() const noexcept { return codec_; }
  [[nodiscard]] const KVStoreOptions& options() const noexcept { return options_; }
  [[nodiscard]] int kv_heads() const noexcept { return kv_heads_; }
  [[nodiscard]] KVShape shape() const noexcept {
    return {kv_heads_, codec_.format().key_dim, codec_.format().value_dim};
  }
  [[nodiscard]] std::int64_t begin() const noexcept { return begin_; }
  [[nodiscard]] std::int64_t end() const noexcept { return end_; }
  [[nodiscard]] std::int64_t num_tokens() const noexcept { return end_ - begin_; }
  /// Blocks of memory: pages, or appended chunks that are not merged yet.
  [[nodiscard]] std::size_t num_chunks() const noexcept { return tiles_.num_blocks(); }
  /// Bytes of all blocks, free room in them included; memory shared with forks counts in each.
  [[nodiscard]] std::size_t tile_bytes() const noexcept { return tiles_.bytes(); }
  /// Bytes of the page table that kernels read.
  [[nodiscard]] std::size_t table_bytes() const noexcept { return tiles_.table_bytes(); }
  /// Tokens that merging has copied so far, all merges together.
  [[nodiscard]] std::int64_t tokens_merged() const noexcept {
    return tiles_.tiles_merged() * tile();
  }

  /// Compresses tokens behind those that are there.
  /// @param keys   (tokens, kv_heads, key_dim), finite; `T` is float, float16 or bfloat16
  /// @param values (tokens, kv_heads, value_dim), finite
  /// @throws Error(shape_mismatch), Error(non_finite), Error(capacity); the store is unchanged
  /// then. Waits for `exec`. O(tokens). Same bits always.
  template <class T, class Exec>
  void append(const Exec& exec, const TokenRows<Space, T>& keys,
              const TokenRows<Space, T>& values) {
    const LedgerCall call(ledger_, "CompressedKVStore::append");
    const std::int64_t count =
        detail::require_rows("CompressedKVStore::append", keys, values, shape());
    detail::require_within(exec, "CompressedKVStore::append", "keys", keys, detail::any_finite);
    detail::require_within(exec, "CompressedKVStore::append", "values", values, detail::any_finite);
    Plan plan = prepare(count, begin_);
    detail::AppendBatch<T> batch;
    collect(plan, std::vector{TokenSource<T>{keys.data(), values.data(), count}}, batch);
    detail::JobUpload<Space> upload(ledger_);
    batch.template reserve<Exec>(upload);
    batch.run(exec, &codec_, kv_heads_, upload);
    commit(std::move(plan));
  }

  /// The tiles as kernels read them. Merges and uploads what has changed since the last call, if
  /// anything. All merges together copy each token O(1) times, never in paged mode.
  /// @throws Error(capacity); the store is unchanged then.
  template <class Exec>
  [[nodiscard]] KVStoreView view(const Exec& exec) {
    const LedgerCall call(ledger_, "CompressedKVStore::view");
    KVStoreView view;
    view.tiles_per_page = tiles_.page_tiles();
    view.page_position = options_.first_position + tiles_.first_tile() * tile();
    view.begin = begin_;
    view.end = end_;
    if (begin_ < end_) {
      view.pages = tiles_.table(exec);
      view.num_pages = static_cast<std::int64_t>(tiles_.num_blocks());
      view.tiles_per_page = tiles_.paged() ? tiles_.page_tiles() : tiles_.extents().front().tiles;
    }
    return view;
  }

  /// Forgets the tokens from position `end` on. Never allocates: freed slots are zeroed now, or, in
  /// memory that a fork shares, before the next write.
  /// @throws Error(out_of_range) unless begin() <= end <= this->end(). Waits for `exec`.
  template <class Exec>
  void truncate(const Exec& exec, std::int64_t end) {
    require(end >= begin_ && end <= end_, ErrorCode::out_of_range,
            "CompressedKVStore::truncate: end is ", end, ", expected ", begin_, " to ", end_);
    if (end == end_) {
      return;
    }
    static_cast<void>(detail::clear_tile_label());  // the one thing that could fail
    const std::int64_t slots = end - options_.first_position;
    tiles_.truncate((slots + tile() - 1) / tile());
    end_ = end;
    if (slots % tile() != 0 && tiles_.owns_last_block()) {
      clear(exec, slots);
    }
  }

  /// Forgets everything and frees the memory; the next token has the first position.
  void reset() noexcept { forget(options_.first_position); }

  /// Forgets everything and frees the memory; the next token has position `position`.
  /// @throws Error(out_of_range) unless first_position <= position <= end()
  void restart(std::int64_t position) {
    require(position >= options_.first_position && position <= end_, ErrorCode::out_of_range,
            "CompressedKVStore::restart: position is ", position, ", expected ",
            options_.first_position, " to ", end_);
    forget(position);
  }

  [[nodiscard]] detail::TileRun run_of(std::int64_t begin, std::int64_t end) const noexcept {
    return {begin - options_.first_position, end - options_.first_position};
  }
  /// Copies all tiles to the host: (kv_heads, tiles, tile bytes) in host order and tiles of 64
  /// tokens, slots without a token zero. Waits for `exec`. O(bytes).
  template <class Exec>
  [[nodiscard]] std::vector<std::byte> copy_out(const Exec& exec) const {
    return detail::copy_tiles_out<Space>(exec, codec_.format(), kv_heads_, run_of(begin_, end_),
                                         [&](std::int64_t t) { return tiles_.address(t); });
  }
  /// Fills an empty store with the tokens [begin, end), from tiles as `copy_out` gives them.
  /// @throws Error(invalid_argument) unless the store is empty, Error(out_of_range) unless
  ///         first_position <= begin <= end, Error(shape_mismatch) for another number of bytes,
  ///         Error(capacity); the store is unchanged then. Waits for `exec`. O(bytes).
  template <class Exec>
  void assign(const Exec& exec, std::int64_t begin, std::int64_t end,
              std::vector<std::byte> tiles) {
    constexpr const char* caller = "CompressedKVStore::assign";
    require(num_tokens() == 0 && num_chunks() == 0, ErrorCode::invalid_argument, caller,
            ": the store holds ", num_tokens(), " tokens, expected an empty one");
    require(begin >= options_.first_position && begin <= end, ErrorCode::out_of_range, caller,
            ": begin is ", begin, " and end is ", end, ", expected ", options_.first_position,
            " <= begin <= end");
    const detail::TileRun run = run_of(begin, end);
    detail::require_tile_bytes(caller, codec_.format(), kv_heads_, run, tiles.size());
    Plan plan{tiles_.prepare(slot_tile(begin), slot_tile_end(end)), 0, begin, end};
    detail::copy_tiles_in<Space>(exec, codec_.format(), kv_heads_, run, std::move(tiles),
                                 [&](std::int64_t t) { return tiles_.address(plan.tiles, t); });
    commit(std::move(plan));
  }

  /// A prepared append: everything that can fail has been done, nothing has changed.
  struct Plan {
    typename detail::TileStorage<Space>::Plan tiles;
    std::int64_t skipped = 0;  ///< leading tokens that are not stored
    std::int64_t begin = 0;    ///< after the append
    std::int64_t end = 0;
  };

  /// Pages that `prepare` with the same arguments acquires from the pool.
  [[nodiscard]] std::size_t pages_needed(std::int64_t count, std::int64_t keep) const noexcept {
    const std::int64_t end = end_ + count;
    const std::int64_t first = (std::max)(end_, begin_after(end, keep));
    return end > first ? tiles_.pages_needed(slot_tile(first), slot_tile_end(end)) : 0;
  }

  /// Prepares an append of `count` tokens after which positions before `keep` need not be there.
  /// @throws Error(capacity); nothing is changed.
  [[nodiscard]] Plan prepare(std::int64_t count, std::int64_t keep) {
    Plan plan;
    plan.end = checked_add(end_, count);
    plan.begin = begin_after(plan.end, keep);
    const std::int64_t first = (std::max)(end_, plan.begin);
    plan.skipped = first - end_;
    plan.tiles = tiles_.prepare(slot_tile(first),
                                plan.end > first ? slot_tile_end(plan.end) : slot_tile(first));
    return plan;
  }

  /// Adds what fills the prepared tiles to a batch.
  /// @param sources the appended tokens in order, in at most 3 runs
  /// @throws Error(capacity); `batch` must be discarded then.
  template <class T>
  void collect(const Plan& plan, const std::vector<TokenSource<T>>& sources,
               detail::AppendBatch<T>& batch) const {
    tiles_.collect(plan.tiles, batch.pages);
    const std::int64_t first = end_ + plan.skipped;
    std::int64_t source_begin = end_;
    std::int64_t p = first;
    for (std::size_t phase = 0; phase < sources.size(); ++phase) {
      const TokenSource<T>& source = sources[phase];
      const std::int64_t source_end = source_begin + source.count;
      while (p < source_end) {
        const std::int64_t slot = (p - options_.first_position) % tile();
        std::int64_t count = (std::min)(tile() - slot, source_end - p);
        const auto at = tiles_.address(plan.tiles, slot_tile(p));
        const std::int64_t row = p - source_begin;
        const T* keys = source.keys + row * shape().key_numbers();
        const T* values = source.values + row * shape().value_numbers();
        const bool is_new = slot == 0 || (p == first && !tiles_.holds(slot_tile(p)));
        const std::int64_t in_tile = (std::min)(tile() - slot, plan.end - p);
        if (codec_.format().centres_keys() && is_new && count < in_tile) {
          count = in_tile;
          const auto together = gather(sources, p - end_, count, batch);
          keys = together.keys;
          values = together.values;
        }
        EncodeJob job;
        job.keys = dense_rows(keys, kv_heads_, codec_.format().key_dim);
        job.values = dense_rows(values, kv_heads_, codec_.format().value_dim);
        job.tile = at.head0;
        job.head_stride = at.head_stride;
        job.first_slot = static_cast<int>(slot);
        job.count = static_cast<int>(count);
        // Whatever was behind the last token is cleared by the first job of a tile, and only by it.
        job.clear_from = slot == 0 || p == first ? job.first_slot : static_cast<int>(tile());
        if (is_new) {
          job.clear_from = 0;
        }
        batch.encodes[phase].push_back(job);
        p += count;
      }
      source_begin = source_end;
    }
  }

  void commit(Plan&& plan) noexcept {
    tiles_.commit(std::move(plan.tiles));
    begin_ = plan.begin;
    end_ = plan.end;
    if (tiles_.paged()) {
      tiles_.drop_front(slot_tile(begin_));
    }
  }

 private:
  /// Tokens of a tile.
  [[nodiscard]] std::int64_t tile() const noexcept { return codec_.format().tile_tokens; }

  CompressedKVStore(const CompressedKVStore& other, detail::TileStorage<Space>&& tiles)
      : codec_(other.codec_),
        kv_heads_(other.kv_heads_),
        options_(other.options_),
        ledger_(other.ledger_),
        tiles_(std::move(tiles)),
        begin_(other.begin_),
        end_(other.end_) {}

  static std::shared_ptr<PagePool<Space>> checked_pool(const TileCodec<Space>& codec, int kv_heads,
                                                       const KVStoreOptions& options,
                                                       const std::shared_ptr<MemoryLedger>& ledger,
                                                       std::shared_ptr<PagePool<Space>> pool) {
    require_valid("CompressedKVStore",
                  KVShape{kv_heads, codec.format().key_dim, codec.format().value_dim});
    require(ledger != nullptr, ErrorCode::invalid_argument,
            "CompressedKVStore: ledger is null, expected a MemoryLedger");
    require_valid("CompressedKVStore", options, codec.format().tile_tokens);
    if (options.block_size == 0) {
      require(pool == nullptr, ErrorCode::invalid_argument,
              "CompressedKVStore: block_size is 0 (flat), expected a page size with a pool");
      return nullptr;
    }
    const std::size_t bytes = page_bytes(codec.format(), kv_heads, options.block_size);
    if (pool == nullptr) {
      return std::make_shared<PagePool<Space>>(
          ledger, PagePoolOptions{.page_bytes = bytes, .slab_pages = 0});
    }
    require(pool->page_bytes() == detail::round_up_bytes(bytes), ErrorCode::invalid_argument,
            "CompressedKVStore: pool->page_bytes() is ", pool->page_bytes(), ", expected ",
            detail::round_up_bytes(bytes));
    return pool;
  }

  /// Frees all tiles; the next token has position `position`.
  void forget(std::int64_t position) noexcept {
    tiles_.drop_front(tiles_.end_tile() + tiles_.page_tiles());
    tiles_.truncate(0);
    begin_ = position;
    end_ = position;
  }

  [[nodiscard]] std::int64_t slot_tile(std::int64_t position) const noexcept {
    return (position - options_.first_position) / tile();
  }
  [[nodiscard]] std::int64_t slot_tile_end(std::int64_t end) const noexcept {
    return slot_tile(end + tile() - 1);
  }
  /// Where a paged store begins when it ends at `end` and needs nothing before `keep`: at the start
  /// of a page, the last one at the latest, so that the result depends on both positions alone.
  /// Flat stores keep everything.
  [[nodiscard]] std::int64_t begin_after(std::int64_t end, std::int64_t keep) const noexcept {
    if (!tiles_.paged() || keep <= begin_) {
      return begin_;
    }
    const std::int64_t page = tiles_.page_tiles() * tile();
    const std::int64_t slots = (std::min)(keep, end) - options_.first_position;
    return (std::max)(begin_, options_.first_position + slots / page * page);
  }

  /// Brings tokens [first, first + count) of the appended ones together, so that one job encodes
  /// them.
  template <class T>
  [[nodiscard]] TokenSource<T> gather(const std::vector<TokenSource<T>>& sources,
                                      std::int64_t first, std::int64_t count,
                                      detail::AppendBatch<T>& batch) const {
    const std::int64_t key_numbers = shape().key_numbers();
    const std::int64_t value_numbers = shape().value_numbers();
    batch.gathered.push_back(detail::allocate_bytes<Space>(
        ledger_, MemoryKind::workspace,
        static_cast<std::size_t>(count * (key_numbers + value_numbers)) * sizeof(T),
        "turboquant::CompressedKVStore::gathered"));
    auto* const keys = reinterpret_cast<T*>(batch.gathered.back().get());
    auto* const values = keys + count * key_numbers;
    std::int64_t begin = 0;
    for (const TokenSource<T>& source : sources) {
      const std::int64_t from = (std::max)(first, begin);
      const std::int64_t tokens = (std::min)(first + count, begin + source.count) - from;
      if (tokens > 0) {
        batch.gathers.push_back({source.keys + (from - begin) * key_numbers,
                                 keys + (from - first) * key_numbers, tokens * key_numbers});
        batch.gathers.push_back({source.values + (from - begin) * value_numbers,
                                 values + (from - first) * value_numbers, tokens * value_numbers});
      }
      begin += source.count;
    }
    return {keys, values, count};
  }

  template <class Exec>
  void clear(const Exec& exec, std::int64_t slots) {
    detail::clear_tile(exec, codec_.format(), kv_heads_, tiles_.address(slots / tile()),
                       slots % tile());
    exec.fence();
  }

  TileCodec<Space> codec_;
  int kv_heads_;
  KVStoreOptions options_;
  std::shared_ptr<MemoryLedger> ledger_;
  detail::TileStorage<Space> tiles_;
  std::int64_t begin_;
  std::int64_t end_;
};

}  // namespace turboquant
