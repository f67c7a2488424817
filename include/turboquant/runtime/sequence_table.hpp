#pragma once

#include <turboquant/cache/snapshot.hpp>
#include <turboquant/runtime/cache_layers.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace turboquant {

/// Names a sequence of one manager; never used twice there.
///
/// Every manager counts from 0, so that managers which are driven alike give the same names. The
/// name of another manager's sequence is refused only where no sequence of that name is open.
using SequenceId = std::int64_t;

namespace detail {

/// The open sequences of a model: for each layer with a cache of its own a `CacheEntry`.
template <class Space, class T>
class SequenceTable {
 public:
  using Rows = TokenRows<Space, T>;
  using Engine = KVCaptureEngine<Space, T>;
  using Entry = CacheEntry<Space, T>;
  using Entries = std::vector<std::optional<Entry>>;  ///< one a layer

  /// An append on its way.
  struct Batch {
    const CacheLayer<Space>* layer = nullptr;
    std::vector<Entry*> entries;
    std::vector<typename Engine::Plan> plans;
    AppendBatch<T> work;
  };

  /// Gives what an append that does not happen has acquired back to where it came from.
  class Rollback {
   public:
    explicit Rollback(Batch& batch) : growth_(batch.layer->pool.get()), batch_(&batch) {}
    Rollback(Rollback&& other) noexcept
        : growth_(std::move(other.growth_)), batch_(std::exchange(other.batch_, nullptr)) {}
    Rollback& operator=(Rollback&&) = delete;
    ~Rollback() {
      if (batch_ != nullptr) {
        batch_->plans.clear();
      }
    }
    void dismiss() noexcept {
      batch_ = nullptr;
      growth_.keep();
    }

   private:
    PoolGrowth<Space> growth_;  // ends after the plans, whose pages it frees
    Batch* batch_;
  };

  SequenceTable(const std::vector<LayerOptions>& layers,
                const std::shared_ptr<MemoryLedger>& ledger, std::size_t slab_pages)
      : layers_(layers, ledger, slab_pages), upload_(ledger) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const ErrorContext context("CacheManager: layers[", i, "]: ");
      const CacheLayer<Space>& layer = layers_[i];
      if (layer.owner == i && layer.options.has_cache) {
        empty_.push_back(
            Entry{Engine(layer.options.capture, layer.options.codec ? layer.codec : std::nullopt,
                         ledger, layer.pool),
                  0});
      } else {
        empty_.push_back(std::nullopt);
      }
    }
  }

  [[nodiscard]] const CacheLayers<Space>& layers() const noexcept { return layers_; }
  [[nodiscard]] std::size_t size() const noexcept { return sequences_.size(); }
  [[nodiscard]] const std::map<SequenceId, Entries>& sequences() const noexcept {
    return sequences_;
  }
  [[nodiscard]] std::size_t upload_bytes() const noexcept { return upload_.bytes(); }
  [[nodiscard]] JobUpload<Space>& upload() noexcept { return upload_; }

  [[nodiscard]] SequenceId open() { return add(copy_of(empty_)); }

  template <class Exec>
  [[nodiscard]] SequenceId fork(const Exec& exec, SequenceId parent,
                                std::optional<std::int64_t> length) {
    const Entries& source = entries("CacheManager::fork", parent);
    if (length) {
      require_truncatable("CacheManager::fork", source, *length);
    }
    Entries copy = copy_of(source);
    if (length) {
      truncate_entries(exec, copy, *length);
    }
    return add(std::move(copy));
  }

  template <class Exec>
  void truncate(const Exec& exec, SequenceId sequence, std::int64_t length) {
    Entries& found = entries("CacheManager::truncate", sequence);
    require_truncatable("CacheManager::truncate", found, length);
    truncate_entries(exec, found, length);
  }

  void close(SequenceId sequence) {
    static_cast<void>(entries("CacheManager::close", sequence));
    sequences_.erase(sequence);
  }

  template <class Exec>
  [[nodiscard]] std::vector<std::byte> save(const Exec& exec, SequenceId sequence) {
    constexpr const char* caller = "CacheManager::save";
    const Entries& found = entries(caller, sequence);
    std::vector<SnapshotLayer<T>> layers;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i]) {
        require_complete(caller, sequence, *found[i]);
        layers.push_back(snapshot_layer(exec, static_cast<std::int64_t>(i), found[i]->engine));
      }
    }
    return write_snapshot(layers);
  }

  template <class Exec>
  [[nodiscard]] SequenceId load(const Exec& exec, std::span<const std::byte> bytes) {
    constexpr const char* caller = "CacheManager::load";
    std::vector<SnapshotLayer<T>> layers = read_snapshot<T>(caller, bytes);
    std::vector<PoolGrowth<Space>> growth;
    for (const auto& pool : layers_.pools()) {
      growth.emplace_back(pool.pages.get());
    }
    Entries loaded = copy_of(empty_);
    std::size_t next = 0;
    for (std::size_t i = 0; i < loaded.size(); ++i) {
      if (loaded[i]) {
        require(next < layers.size() && layers[next].number == static_cast<std::int64_t>(i),
                ErrorCode::shape_mismatch, caller, ": the snapshot has no layer ", i,
                " at its place, expected the layers of this manager that own a cache");
        SnapshotLayer<T>& layer = layers[next++];
        const LayerOptions& options = layers_[i].options;
        require_same_layer(caller, layer, options.capture, options.codec);
        const ErrorContext context(caller, ": layer ", i, ": ");
        loaded[i]->engine.restore(exec, std::move(layer.contents));
      }
    }
    require(next == layers.size(), ErrorCode::shape_mismatch, caller, ": the snapshot has ",
            layers.size(), " layers, expected ", next);
    const SequenceId id = add(std::move(loaded));
    for (PoolGrowth<Space>& pool : growth) {
      pool.keep();
    }
    return id;
  }

  [[nodiscard]] Entries& entries(const char* caller, SequenceId sequence) {
    const auto found = sequences_.find(sequence);
    require(found != sequences_.end(), ErrorCode::out_of_range, caller, ": sequence is ", sequence,
            ", expected one that is open");
    return found->second;
  }

  /// The entry that layer `layer` of a sequence reads.
  [[nodiscard]] Entry& entry(const char* caller, std::int64_t layer, SequenceId sequence) {
    const CacheLayer<Space>& owner = layers_.owner_of(caller, layer);
    return *entries(caller, sequence)[owner.owner];
  }

  /// @throws Error(unsupported) where tokens went by in mode off
  static void require_complete(const char* caller, SequenceId sequence, const Entry& entry) {
    require(entry.missed == 0, ErrorCode::unsupported, caller, ": sequence ", sequence, " lacks ",
            entry.missed, " tokens from position ", entry.engine.length(),
            " on, which were appended in mode off; truncate it to ", entry.engine.length(),
            " or close it");
  }

  /// Checks everything about an append but the numbers in the rows and the memory.
  [[nodiscard]] Batch checked_batch(const char* caller, std::int64_t layer,
                                    std::span<const SequenceId> sequences,
                                    std::span<const std::int64_t> cu_seqlens, const Rows& keys,
                                    const Rows& values) {
    Batch batch;
    batch.layer = &layers_.owner_of(caller, layer);
    require(batch.layer->owner == static_cast<std::size_t>(layer), ErrorCode::unsupported, caller,
            ": layer ", layer, " reads the cache of layer ", batch.layer->owner,
            ", expected the layer that owns it");
    const std::int64_t rows =
        detail::require_rows(caller, keys, values, batch.layer->options.capture.shape);
    require_offsets(caller, "cu_seqlens", cu_seqlens, sequences.size(), rows);
    std::set<SequenceId> seen;
    for (const SequenceId sequence : sequences) {
      batch.entries.push_back(&entry(caller, layer, sequence));
      require(seen.insert(sequence).second, ErrorCode::invalid_argument, caller, ": sequence ",
              sequence, " appears twice, expected different sequences");
      batch.entries.back()->engine.require_apart(caller, keys, values);
    }
    return batch;
  }

  /// Does everything of an append that can fail; nothing is changed.
  template <class Exec>
  [[nodiscard]] Rollback prepare(const Exec& exec, const char* caller, Batch& batch,
                                 std::span<const SequenceId> sequences,
                                 std::span<const std::int64_t> cu_seqlens, const Rows& keys,
                                 const Rows& values) {
    for (std::size_t i = 0; i < batch.entries.size(); ++i) {
      require_complete(caller, sequences[i], *batch.entries[i]);
    }
    require_attendable(exec, caller, keys, values);
    PagePool<Space>* const pool = batch.layer->pool.get();
    Rollback rollback(batch);
    std::size_t pages = 0;
    for (std::size_t i = 0; i < batch.entries.size(); ++i) {
      const Engine& engine = batch.entries[i]->engine;
      const std::int64_t count = cu_seqlens[i + 1] - cu_seqlens[i];
      pages += engine.pages_needed(count, engine.begin_after(count));
    }
    if (pool != nullptr) {
      pool->reserve(pages);
    }
    const KVShape& shape = batch.layer->options.capture.shape;
    for (std::size_t i = 0; i < batch.entries.size(); ++i) {
      Engine& engine = batch.entries[i]->engine;
      const std::int64_t count = cu_seqlens[i + 1] - cu_seqlens[i];
      batch.plans.push_back(engine.prepare(count, keys.data() + cu_seqlens[i] * shape.key_numbers(),
                                           values.data() + cu_seqlens[i] * shape.value_numbers(),
                                           engine.begin_after(count), batch.work));
    }
    batch.work.template reserve<Exec>(upload_);
    return rollback;
  }

  /// Makes a prepared append happen.
  template <class Exec>
  void finish(const Exec& exec, Batch& batch, Rollback& rollback) {
    batch.work.run(exec, &*batch.layer->codec, batch.layer->options.capture.shape.kv_heads,
                   upload_);
    for (std::size_t i = 0; i < batch.entries.size(); ++i) {
      batch.entries[i]->engine.commit(std::move(batch.plans[i]));
    }
    rollback.dismiss();
  }

 private:
  [[nodiscard]] static Entries copy_of(const Entries& source) {
    Entries copy;
    copy.reserve(source.size());
    for (const std::optional<Entry>& entry : source) {
      copy.push_back(entry ? std::optional<Entry>(Entry{entry->engine.fork(), entry->missed})
                           : std::nullopt);
    }
    return copy;
  }

  [[nodiscard]] SequenceId add(Entries&& entries) {
    sequences_.emplace(next_id_, std::move(entries));
    return next_id_++;
  }

  static void require_truncatable(const char* caller, const Entries& entries, std::int64_t length) {
    require(length >= 0, ErrorCode::out_of_range, caller, ": length is ", length,
            ", expected 0 or more");
    for (std::size_t layer = 0; layer < entries.size(); ++layer) {
      if (entries[layer]) {
        const Entry& entry = *entries[layer];
        require(length >= 0 && length <= entry.length(), ErrorCode::out_of_range, caller,
                ": length is ", length, ", expected 0 to ", entry.length(),
                ", the tokens in layer ", layer);
        entry.engine.require_truncatable(caller, (std::min)(length, entry.engine.length()));
      }
    }
  }

  template <class Exec>
  static void truncate_entries(const Exec& exec, Entries& entries, std::int64_t length) {
    static_cast<void>(clear_tile_label());  // so that no layer can fail after another has changed
    for (std::optional<Entry>& entry : entries) {
      if (entry) {
        entry->missed = (std::max<std::int64_t>)(0, length - entry->engine.length());
        entry->engine.truncate(exec, (std::min)(length, entry->engine.length()));
      }
    }
  }

  CacheLayers<Space> layers_;
  Entries empty_;  ///< what sequences start from
  std::map<SequenceId, Entries> sequences_;
  SequenceId next_id_ = 0;
  JobUpload<Space> upload_;
};

}  // namespace detail
}  // namespace turboquant
