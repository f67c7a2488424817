#pragma once

#include <turboquant/cache/encode_batch.hpp>
#include <turboquant/cache/host_copy.hpp>
#include <turboquant/cache/job_upload.hpp>
#include <turboquant/cache/memory_ledger.hpp>
#include <turboquant/cache/page_pool.hpp>
#include <turboquant/cache/token_rows.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace turboquant::detail {

/// Tiles 0, 1, ... of one sequence in blocks of memory, each block [kv head][tile in block][tile
/// bytes].
///
/// *Paged*: every block is a page of a pool. *Flat*: blocks are what single appends needed, and
/// `merge` makes one block of them, with room to grow by a quarter, so that all merges together
/// copy each tile O(1) times. Blocks are shared by forks until one of them writes.
template <class Space>
class TileStorage {
 public:
  using Block = std::shared_ptr<std::byte>;

  /// Consecutive tiles in one block.
  struct Extent {
    Block memory;
    std::int64_t first_tile = 0;
    std::int64_t tiles = 0;  ///< room for so many
  };

  /// A prepared write: the memory is there, nothing has changed.
  struct Plan {
    Block replacement;  ///< takes the place of the last block, which is shared
    std::vector<Extent> added;
    std::int64_t end_tile = 0;  ///< after the write
    Block table;                ///< takes the place of the page table, which is too small
    std::size_t table_room = 0;
  };

  /// Paged where `pool` is given.
  TileStorage(std::size_t tile_bytes, int kv_heads, std::int64_t page_tiles,
              std::shared_ptr<PagePool<Space>> pool, std::shared_ptr<MemoryLedger> ledger)
      : tile_bytes_(tile_bytes),
        kv_heads_(kv_heads),
        page_tiles_(page_tiles),
        pool_(std::move(pool)),
        ledger_(std::move(ledger)) {}
  /// `other` is empty then, as after construction.
  TileStorage(TileStorage&& other) noexcept
      : TileStorage(other.tile_bytes_, other.kv_heads_, other.page_tiles_, other.pool_,
                    other.ledger_) {
    swap_tiles(other);
  }
  TileStorage& operator=(TileStorage&& other) noexcept {
    TileStorage taken(std::move(other));
    tile_bytes_ = taken.tile_bytes_;
    kv_heads_ = taken.kv_heads_;
    page_tiles_ = taken.page_tiles_;
    pool_ = taken.pool_;
    ledger_ = taken.ledger_;
    swap_tiles(taken);
    return *this;
  }
  TileStorage& operator=(const TileStorage&) = delete;

  /// The same tiles, sharing all blocks.
  [[nodiscard]] TileStorage fork() const {
    TileStorage copy(tile_bytes_, kv_heads_, page_tiles_, pool_, ledger_);
    copy.extents_ = extents_;
    copy.end_tile_ = end_tile_;
    copy.first_tile_when_empty_ = first_tile_when_empty_;
    return copy;
  }

  [[nodiscard]] bool paged() const noexcept { return pool_ != nullptr; }
  [[nodiscard]] std::int64_t page_tiles() const noexcept { return page_tiles_; }
  [[nodiscard]] std::int64_t end_tile() const noexcept { return end_tile_; }
  /// The first tile that is still there; above 0 after `drop_front`.
  [[nodiscard]] std::int64_t first_tile() const noexcept {
    return extents_.empty() ? first_tile_when_empty_ : extents_.front().first_tile;
  }
  [[nodiscard]] std::size_t num_blocks() const noexcept { return extents_.size(); }
  [[nodiscard]] const std::vector<Extent>& extents() const noexcept { return extents_; }
  [[nodiscard]] std::int64_t tiles_merged() const noexcept { return tiles_merged_; }
  [[nodiscard]] std::size_t block_bytes(std::int64_t tiles) const noexcept {
    return static_cast<std::size_t>(tiles) * static_cast<std::size_t>(kv_heads_) * tile_bytes_;
  }
  /// Bytes of all blocks; forks that share a block each count it.
  [[nodiscard]] std::size_t bytes() const noexcept {
    std::size_t total = 0;
    for (const Extent& extent : extents_) {
      total += paged() ? pool_->page_bytes() : round_up_bytes(block_bytes(extent.tiles));
    }
    return total;
  }

  /// Pages that `prepare` would acquire; 0 for flat storage.
  [[nodiscard]] std::size_t pages_needed(std::int64_t first, std::int64_t end) const noexcept {
    if (!paged() || end <= first) {
      return 0;
    }
    const std::int64_t missing = (std::max<std::int64_t>)(0, end - room_end(first));
    return static_cast<std::size_t>((missing + page_tiles_ - 1) / page_tiles_) +
           (must_copy(first) ? 1U : 0U);
  }

  /// Prepares a write to the tiles [first, end), of which at most the last one exists already.
  ///
  /// Whole blocks between the present end and `first` may be skipped; after the commit
  /// `drop_front(first)` must give up what lies before the gap. Paged storage has room in its page
  /// table then, so that reading what was written needs no memory.
  /// @throws Error(capacity); nothing is changed.
  [[nodiscard]] Plan prepare(std::int64_t first, std::int64_t end) {
    Plan plan;
    plan.end_tile = (std::max)(end_tile_, end);
    if (end <= first) {
      return plan;
    }
    if (must_copy(first)) {
      plan.replacement = allocate(extents_.back().tiles);
    }
    std::int64_t next = room_end(first);
    while (next < end) {
      const std::int64_t tiles = paged() ? page_tiles_ : end - next;
      plan.added.push_back({allocate(tiles), next, tiles});
      next += tiles;
    }
    const std::size_t blocks = extents_.size() + plan.added.size();
    extents_.reserve(blocks);
    if (paged() && table_room_ < blocks) {
      plan.table_room = grown_table_room(blocks);
      plan.table = allocate_table(plan.table_room);
    }
    return plan;
  }

  /// Where `tile` will be after `commit(plan)`.
  [[nodiscard]] TileAddress address(const Plan& plan, std::int64_t tile) const noexcept {
    if (!plan.added.empty() && tile >= plan.added.front().first_tile) {
      const auto index = static_cast<std::size_t>((tile - plan.added.front().first_tile) /
                                                  plan.added.front().tiles);
      return in_block(plan.added[index].memory.get(), plan.added[index], tile);
    }
    const Extent& last = extents_.back();
    return in_block(plan.replacement != nullptr ? plan.replacement.get() : last.memory.get(), last,
                    tile);
  }

  /// Where `tile` is; `first_tile() <= tile < end_tile()`.
  [[nodiscard]] TileAddress address(std::int64_t tile) const noexcept {
    const Extent& extent =
        *(std::upper_bound(extents_.begin(), extents_.end(), tile,
                           [](std::int64_t t, const Extent& e) { return t < e.first_tile; }) -
          1);
    return in_block(extent.memory.get(), extent, tile);
  }

  /// Whether `tile` holds something already.
  [[nodiscard]] bool holds(std::int64_t tile) const noexcept {
    return !extents_.empty() && tile < end_tile_;
  }

  /// Adds the copy of a shared block that the plan replaces.
  void collect(const Plan& plan, std::vector<CopyJob<std::byte>>& jobs) const {
    if (plan.replacement != nullptr) {
      add_copies(jobs, extents_.back(), plan.replacement.get(), extents_.back().tiles, 0,
                 (std::min)(extents_.back().tiles, end_tile_ - extents_.back().first_tile));
    }
  }

  void commit(Plan&& plan) noexcept {
    if (plan.replacement != nullptr) {
      extents_.back().memory = std::move(plan.replacement);
      table_valid_ = (std::min)(table_valid_, extents_.size() - 1);
    }
    for (Extent& extent : plan.added) {
      extents_.push_back(std::move(extent));
    }
    end_tile_ = plan.end_tile;
    if (plan.table != nullptr) {
      take_table(std::move(plan.table), plan.table_room);
    }
  }

  /// Forgets the tiles from `end` on and frees the blocks that held nothing else.
  void truncate(std::int64_t end) noexcept {
    const std::int64_t first = first_tile();
    while (!extents_.empty() && extents_.back().first_tile >= end) {
      extents_.pop_back();
    }
    end_tile_ = end;
    first_tile_when_empty_ =
        extents_.empty() ? (std::min)(first, end / page_tiles_ * page_tiles_) : 0;
    table_valid_ = (std::min)(table_valid_, extents_.size());
  }

  /// Frees the blocks whose tiles are all before `tile`; paged storage only.
  void drop_front(std::int64_t tile) noexcept {
    std::size_t count = 0;
    while (count < extents_.size() && extents_[count].first_tile + extents_[count].tiles <= tile) {
      ++count;
    }
    if (count > 0) {
      const std::int64_t next = extents_[count - 1].first_tile + extents_[count - 1].tiles;
      extents_.erase(extents_.begin(), extents_.begin() + static_cast<std::ptrdiff_t>(count));
      first_tile_when_empty_ = next;
      table_valid_ = 0;
    }
  }

  /// Whether the last block belongs to this storage alone.
  [[nodiscard]] bool owns_last_block() const noexcept {
    return !extents_.empty() && extents_.back().memory.use_count() == 1;
  }

  /// The block addresses in token order, for kernels; flat storage is merged into one block first.
  /// Work is done only after changes. Waits for `exec` then.
  /// @throws Error(capacity); nothing is changed.
  template <class Exec>
  [[nodiscard]] std::byte* const* table(const Exec& exec) {
    if (!paged() && extents_.size() > 1) {
      merge(exec);
    }
    if (table_valid_ == extents_.size()) {
      return table_entries();
    }
    if (table_room_ < extents_.size()) {
      const std::size_t room = grown_table_room(extents_.size());
      take_table(allocate_table(room), room);
    }
    std::vector<std::byte*> entries;
    for (std::size_t i = table_valid_; i < extents_.size(); ++i) {
      entries.push_back(extents_[i].memory.get());
    }
    copy_from_host<Space>(exec, entries.data(),
                          reinterpret_cast<std::byte**>(table_.get()) + table_valid_,
                          static_cast<std::int64_t>(entries.size()));
    table_valid_ = extents_.size();
    return table_entries();
  }
  [[nodiscard]] std::size_t table_bytes() const noexcept {
    return round_up_bytes(table_room_ * sizeof(std::byte*));
  }

 private:
  [[nodiscard]] std::size_t grown_table_room(std::size_t blocks) const noexcept {
    return (std::max)(blocks, table_room_ + table_room_ / 2);
  }
  [[nodiscard]] Block allocate_table(std::size_t room) const {
    return allocate_bytes<Space>(ledger_, MemoryKind::tables, room * sizeof(std::byte*),
                                 "turboquant::TileStorage::table");
  }
  void take_table(Block&& table, std::size_t room) noexcept {
    table_ = std::move(table);
    table_room_ = room;
    table_valid_ = 0;
  }
  [[nodiscard]] std::byte* const* table_entries() const noexcept {
    return reinterpret_cast<std::byte* const*>(table_.get());
  }

  /// The end of the tiles that have memory, or the start of the block in which `first` lies where
  /// they have none.
  [[nodiscard]] std::int64_t room_end(std::int64_t first) const noexcept {
    if (extents_.empty() || first > last_room_end()) {
      return first / page_tiles_ * page_tiles_;
    }
    return last_room_end();
  }
  [[nodiscard]] std::int64_t last_room_end() const noexcept {
    return extents_.back().first_tile + extents_.back().tiles;
  }

  /// Whether a write from `first` on starts in a block that somebody else uses too.
  [[nodiscard]] bool must_copy(std::int64_t first) const noexcept {
    return !extents_.empty() && first < room_end(first) && extents_.back().memory.use_count() > 1;
  }

  [[nodiscard]] Block allocate(std::int64_t tiles) {
    if (paged()) {
      return pool_->acquire();
    }
    return allocate_bytes<Space>(ledger_, MemoryKind::pages, block_bytes(tiles),
                                 "turboquant::TileStorage::block");
  }

  [[nodiscard]] TileAddress in_block(std::byte* memory, const Extent& extent,
                                     std::int64_t tile) const noexcept {
    return {memory + static_cast<std::size_t>(tile - extent.first_tile) * tile_bytes_,
            extent.tiles * static_cast<std::int64_t>(tile_bytes_)};
  }

  /// Copies of the first `count` tiles of `from`, head by head, to tiles `at`... of a block with
  /// room for `to_tiles`.
  void add_copies(std::vector<CopyJob<std::byte>>& jobs, const Extent& from, std::byte* to,
                  std::int64_t to_tiles, std::int64_t at, std::int64_t count) const {
    for (std::int64_t head = 0; head < kv_heads_; ++head) {
      jobs.push_back({from.memory.get() + block_offset(from.tiles, head, 0),
                      to + block_offset(to_tiles, head, at),
                      count * static_cast<std::int64_t>(tile_bytes_)});
    }
  }
  [[nodiscard]] std::size_t block_offset(std::int64_t tiles, std::int64_t head,
                                         std::int64_t tile) const noexcept {
    return static_cast<std::size_t>(head * tiles + tile) * tile_bytes_;
  }

  void swap_tiles(TileStorage& other) noexcept {
    std::swap(extents_, other.extents_);
    std::swap(end_tile_, other.end_tile_);
    std::swap(first_tile_when_empty_, other.first_tile_when_empty_);
    std::swap(tiles_merged_, other.tiles_merged_);
    std::swap(table_, other.table_);
    std::swap(table_room_, other.table_room_);
    std::swap(table_valid_, other.table_valid_);
  }

  template <class Exec>
  void merge(const Exec& exec) {
    // The first block is full, or there would be no second one.
    const Extent& front = extents_.front();
    Extent merged;
    merged.first_tile = front.first_tile;
    merged.tiles = (std::max)(end_tile_ - front.first_tile, front.tiles + front.tiles / 4);
    merged.memory = allocate(merged.tiles);
    std::vector<CopyJob<std::byte>> jobs;
    for (std::size_t i = 0; i < extents_.size(); ++i) {
      const std::int64_t first = extents_[i].first_tile;
      const std::int64_t end = i + 1 < extents_.size() ? extents_[i + 1].first_tile : end_tile_;
      add_copies(jobs, extents_[i], merged.memory.get(), merged.tiles, first - merged.first_tile,
                 end - first);
    }
    JobUpload<Space> upload(ledger_);
    copy_blocks<std::byte>(exec, upload.put(exec, 0, jobs), jobs.size());
    exec.fence();
    tiles_merged_ += end_tile_ - merged.first_tile;
    extents_.clear();
    extents_.push_back(std::move(merged));
    table_valid_ = 0;
  }

  std::size_t tile_bytes_;
  int kv_heads_;
  std::int64_t page_tiles_;  ///< 1 for flat storage
  std::shared_ptr<PagePool<Space>> pool_;
  std::shared_ptr<MemoryLedger> ledger_;
  std::vector<Extent> extents_;
  std::int64_t end_tile_ = 0;
  std::int64_t first_tile_when_empty_ = 0;
  std::int64_t tiles_merged_ = 0;
  Block table_;
  std::size_t table_room_ = 0;
  std::size_t table_valid_ = 0;
};

}  // namespace turboquant::detail
