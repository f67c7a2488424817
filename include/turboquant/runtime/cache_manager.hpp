#pragma once

#include <turboquant/runtime/cache_mode.hpp>
#include <turboquant/runtime/prefill_run.hpp>
#include <turboquant/runtime/sequence_table.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace turboquant {

struct CacheManagerOptions {
  std::vector<LayerOptions> layers{};
  CacheMode mode = CacheMode::hybrid;
  std::size_t memory_limit_bytes =
      MemoryLedger::unlimited;  ///< of everything in `memory_use()` but codec tables
  std::size_t slab_pages = 0;   ///< pages of one allocation; 0 chooses about 64 KiB
  /// Workspace that is there from the start, so that appends up to the limit leave room for
  /// attention: `workspace_bytes()` of a `plan_decode` for the largest step. 0 allocates when the
  /// first call needs some. On accelerators, a step's records come on top, up to 400 bytes a
  /// sequence.
  std::size_t workspace_bytes = 0;
};

/// The caches of a model: layers x sequences, batches of sequences in one call, under one memory
/// limit.
///
/// Every call has the strong guarantee: a failed one changes nothing. A batch gives the same bits
/// as its sequences one by one. Managers are independent of each other; one thread at a time may
/// use one.
/// @tparam Space a Kokkos memory space
/// @tparam T     number type of the rows: `float`, `float16` or `bfloat16`
template <class Space, class T>
class CacheManager {
 public:
  using Rows = TokenRows<Space, T>;

  /// @throws Error naming the layer and the field
  explicit CacheManager(const CacheManagerOptions& options)
      : ledger_(std::make_shared<MemoryLedger>(options.memory_limit_bytes)),
        table_(options.layers, ledger_, options.slab_pages),
        mode_(traits_of(options.mode).mode),
        workspace_bytes_(options.workspace_bytes),
        scratch_(ledger_) {
    const LedgerCall call(ledger_, "CacheManager: workspace_bytes");
    scratch_.reserve(workspace_bytes_);
  }
  CacheManager(const CacheManager&) = delete;
  CacheManager& operator=(const CacheManager&) = delete;

  [[nodiscard]] CacheMode mode() const noexcept { return mode_; }
  [[nodiscard]] std::int64_t num_layers() const noexcept {
    return static_cast<std::int64_t>(table_.layers().size());
  }
  [[nodiscard]] std::size_t num_sequences() const noexcept { return table_.size(); }
  [[nodiscard]] const std::shared_ptr<MemoryLedger>& ledger() const noexcept { return ledger_; }

  /// Changes the mode of this manager.
  /// @throws Error(unsupported) where the tokens of an open sequence exist nowhere in the new mode:
  /// leaving full_tq
  ///         with open sequences, and entering it with sequences that missed tokens in mode off
  void set_mode(CacheMode mode) {
    const CacheMode wanted = traits_of(mode).mode;
    require(mode_ != CacheMode::full_tq || wanted == mode_ || table_.size() == 0,
            ErrorCode::unsupported, "CacheManager::set_mode: ", table_.size(),
            " sequences are open whose tokens no engine cache holds; "
            "close them before leaving full_tq for ",
            to_string(wanted));
    if (wanted == CacheMode::full_tq) {
      for (const auto& [id, entries] : table_.sequences()) {
        for (const auto& entry : entries) {
          if (entry) {
            Table::require_complete("CacheManager::set_mode", id, *entry);
          }
        }
      }
    }
    mode_ = wanted;
  }

  /// Starts an empty sequence. O(layers).
  [[nodiscard]] SequenceId open() { return table_.open(); }

  /// Starts a sequence with the first `length` tokens of another one; memory is shared until one of
  /// them writes.
  /// @param length nothing shares all tokens
  /// @throws Error(out_of_range). Never allocates device memory. O(pages).
  template <class Exec>
  [[nodiscard]] SequenceId fork(const Exec& exec, SequenceId parent,
                                std::optional<std::int64_t> length = {}) {
    return table_.fork(exec, parent, length);
  }

  /// Forgets the tokens of a sequence from position `length` on, in all layers.
  /// @throws Error(out_of_range) where a layer has fewer tokens, or has given up tokens that the
  /// shorter sequence sees
  template <class Exec>
  void truncate(const Exec& exec, SequenceId sequence, std::int64_t length) {
    table_.truncate(exec, sequence, length);
  }

  /// All layers of a sequence as bytes: compressed history, exact windows and sinks, options and
  /// codecs (`cache/snapshot.hpp`). Equal tokens under equal options give equal bytes. Waits for
  /// `exec`. O(bytes).
  /// @throws Error(out_of_range) for an unknown sequence, Error(unsupported) for one with a gap
  template <class Exec>
  [[nodiscard]] std::vector<std::byte> save(const Exec& exec, SequenceId sequence) {
    return table_.save(exec, sequence);
  }

  /// Starts a sequence with what `save` gave, in any process, on any machine and in any memory
  /// space; it goes on as the saved one would have, bit for bit.
  /// @param bytes of a manager with the same layers and the same `T`
  /// @throws Error(format) for bytes that are no snapshot, damaged or cut off;
  /// Error(shape_mismatch)
  ///         naming the layer and the field that differs; Error(out_of_range), Error(non_finite)
  ///         for contents that no cache has; Error(unsupported) in mode off; Error(capacity).
  ///         Waits for `exec`. O(bytes).
  template <class Exec>
  [[nodiscard]] SequenceId load(const Exec& exec, std::span<const std::byte> bytes) {
    require(traits_of(mode_).stores, ErrorCode::unsupported,
            "CacheManager::load: the mode is off, in which nothing is stored");
    const LedgerCall call(ledger_, "CacheManager::load");
    return table_.load(exec, bytes);
  }

  /// Ends a sequence and frees what it shares with no other.
  /// @throws Error(out_of_range) for an unknown sequence
  void close(SequenceId sequence) { table_.close(sequence); }

  /// Appends tokens to one layer of several sequences.
  ///
  /// In mode off the tokens are only counted, whatever numbers are in their rows; a sequence that
  /// misses tokens is refused by later calls until it is truncated to what is there.
  /// @param sequences  (n), all different
  /// @param cu_seqlens (n + 1), rows [cu_seqlens[i], cu_seqlens[i + 1]) belong to sequences[i]
  /// @param keys       (rows, kv_heads, key_dim), at most `largest_row_number` = 2^96 in magnitude
  /// @param values     (rows, kv_heads, value_dim), as `keys`
  /// @throws Error(capacity) beyond the memory limit, Error(unsupported) for a layer without a
  ///         cache of its own or a sequence with a gap, Error(shape_mismatch), Error(non_finite)
  ///         for NaN or larger numbers, Error(out_of_range), Error(invalid_argument) for rows in
  ///         the memory of these sequences. Waits for `exec`.
  template <class Exec>
  void append(const Exec& exec, std::int64_t layer, std::span<const SequenceId> sequences,
              std::span<const std::int64_t> cu_seqlens, const Rows& keys, const Rows& values) {
    const LedgerCall call(ledger_, "CacheManager::append");
    auto batch =
        table_.checked_batch("CacheManager::append", layer, sequences, cu_seqlens, keys, values);
    if (mode_ == CacheMode::off) {
      for (std::size_t i = 0; i < batch.entries.size(); ++i) {
        batch.entries[i]->missed += cu_seqlens[i + 1] - cu_seqlens[i];
      }
      return;
    }
    auto rollback =
        table_.prepare(exec, "CacheManager::append", batch, sequences, cu_seqlens, keys, values);
    table_.finish(exec, batch, rollback);
  }

  /// Attention of the newest tokens of several sequences over all their tokens, in modes hybrid and
  /// full_tq.
  ///
  /// @param queries (n, m, query_heads, key_dim), m of 0 to 8: query j of a sequence stands at
  /// position length - m + j
  ///                and sees the tokens up to itself. Append the m tokens first.
  /// @param output  (n, m, query_heads, value_dim), float, float16 or bfloat16; zero for an empty
  /// sequence
  /// @param lse     (n, m, query_heads), float: natural log of the softmax denominator; -infinity
  /// for an empty sequence
  /// @throws Error(unsupported) in another mode or for a sequence with a gap; Error(out_of_range)
  ///         for a sequence of 1 to m - 1 tokens; Error(shape_mismatch); Error(invalid_argument)
  ///         for options outside their domain, or where output or lse overlap each other or an
  ///         input (the memory of the caches themselves is not compared); Error(capacity) where
  ///         workspace does not fit the limit, naming its bytes. Waits for `exec`.
  template <class Exec, class Queries, class Output, class Lse>
  void attend(const Exec& exec, std::int64_t layer, std::span<const SequenceId> sequences,
              const Queries& queries, const Output& output, const Lse& lse,
              const AttentionOptions<Space>& options = {}) {
    require(traits_of(mode_).decode == AttentionBy::library, ErrorCode::unsupported,
            "CacheManager::attend: the mode is ", to_string(mode_),
            ", in which the caller computes attention; expected hybrid or full_tq");
    decode(exec, "CacheManager::attend", layer, sequences, queries, output, lse, options);
  }

  /// `attend` for comparison with the engine's own attention, in any mode that stores.
  template <class Exec, class Queries, class Output, class Lse>
  void shadow_attend(const Exec& exec, std::int64_t layer, std::span<const SequenceId> sequences,
                     const Queries& queries, const Output& output, const Lse& lse,
                     const AttentionOptions<Space>& options = {}) {
    require(traits_of(mode_).stores, ErrorCode::unsupported,
            "CacheManager::shadow_attend: the mode is off, in which nothing is stored");
    decode(exec, "CacheManager::shadow_attend", layer, sequences, queries, output, lse, options);
  }

  /// Prefill in mode full_tq: attention of new tokens over all earlier ones and each other, then
  /// `append`.
  ///
  /// Earlier tokens are read as they are stored, those of this call as the exact rows given.
  /// @param cu_queries (n + 1), rows [cu_queries[i], cu_queries[i + 1]) of `queries` stand at the
  /// newest tokens of
  ///                   sequences[i]; equal to `cu_seqlens` for attention at every token
  /// @param queries    (query_rows, query_heads, key_dim)
  /// @param output     (query_rows, query_heads, value_dim), float, float16 or bfloat16
  /// @param lse        (query_rows, query_heads), float
  /// @throws Error(unsupported) in another mode, and what `append` and `attend` do; then nothing is
  ///         stored and nothing written
  template <class Exec, class Queries, class Output, class Lse>
  void prefill(const Exec& exec, std::int64_t layer, std::span<const SequenceId> sequences,
               std::span<const std::int64_t> cu_seqlens, const Rows& keys, const Rows& values,
               std::span<const std::int64_t> cu_queries, const Queries& queries,
               const Output& output, const Lse& lse, const AttentionOptions<Space>& options = {}) {
    constexpr const char* caller = "CacheManager::prefill";
    require(traits_of(mode_).prefill == AttentionBy::library, ErrorCode::unsupported, caller,
            ": the mode is ", to_string(mode_),
            ", in which the caller computes prefill attention; expected full_tq");
    using Query = typename Queries::non_const_value_type;
    using Number = typename Output::value_type;
    const LedgerCall call(ledger_, caller);
    auto batch = table_.checked_batch(caller, layer, sequences, cu_seqlens, keys, values);
    const detail::CacheLayer<Space>& cached = *batch.layer;
    const CaptureOptions& capture = cached.options.capture;
    const Kokkos::View<const Query***, Kokkos::LayoutRight, Space> in(queries);
    const Kokkos::View<Number***, Kokkos::LayoutRight, Space> out(output);
    const Kokkos::View<float**, Kokkos::LayoutRight, Space> sums(lse);
    detail::require_outputs(caller, capture.shape, in, out, sums, options);
    detail::require_apart(caller,
                          {detail::byte_range("output", out), detail::byte_range("lse", sums)},
                          {detail::byte_range("keys", keys), detail::byte_range("values", values)});
    detail::require_offsets(caller, "cu_queries", cu_queries, sequences.size(),
                            static_cast<std::int64_t>(in.extent(0)));
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      require(cu_queries[i + 1] - cu_queries[i] <= cu_seqlens[i + 1] - cu_seqlens[i],
              ErrorCode::shape_mismatch, caller, ": sequence ", sequences[i], " has ",
              cu_queries[i + 1] - cu_queries[i], " queries, expected at most its ",
              cu_seqlens[i + 1] - cu_seqlens[i], " new tokens");
    }
    const auto heads = static_cast<std::int64_t>(in.extent(1));
    const detail::PrefillRun<Space, T, Exec> run(exec, *cached.codec, capture,
                                                 static_cast<int>(heads), options);
    std::vector<detail::PrefillPart<T, Query, Number>> parts;
    std::int64_t history = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      detail::PrefillPart<T, Query, Number> part;
      part.prefix = batch.entries[i]->engine.view(exec);
      part.keys = keys.data() + cu_seqlens[i] * capture.shape.key_numbers();
      part.values = values.data() + cu_seqlens[i] * capture.shape.value_numbers();
      part.count = cu_seqlens[i + 1] - cu_seqlens[i];
      part.queries = in.data() + cu_queries[i] * heads * capture.shape.key_dim;
      part.num_queries = cu_queries[i + 1] - cu_queries[i];
      part.output = out.data() + cu_queries[i] * heads * capture.shape.value_dim;
      part.lse = sums.data() + cu_queries[i] * heads;
      history = (std::max)(history, part.prefix.history.end - part.prefix.history.begin);
      parts.push_back(part);
    }
    scratch_.reserve(run.template scratch_bytes<Number>(history));
    run.reserve(table_.upload());
    auto rollback = table_.prepare(exec, caller, batch, sequences, cu_seqlens, keys, values);
    for (const auto& part : parts) {
      run(part, scratch_.data(), table_.upload());
    }
    table_.finish(exec, batch, rollback);
  }

  /// Device memory by use; `total()` is what the allocator has handed out. O(layers).
  [[nodiscard]] MemoryUse memory_use() const {
    MemoryUse use;
    for (const auto& pool : table_.layers().pools()) {
      const std::size_t used = pool.pages->used_pages() * pool.pages->page_bytes();
      const std::size_t metadata =
          used / pool.format.bytes() * detail::metadata_bytes_of(pool.format);
      use.codes += used - metadata;
      use.metadata += metadata;
      use.free_pages += pool.pages->free_pages() * pool.pages->page_bytes();
    }
    use.exact_window = ledger_->bytes(MemoryKind::exact);
    use.page_tables = ledger_->bytes(MemoryKind::tables);
    use.codec_tables = table_.layers().codec_bytes();
    use.workspace = ledger_->bytes(MemoryKind::workspace);
    return use;
  }

  /// One layer of one sequence.
  /// @throws Error(out_of_range), Error(unsupported) for a layer without a cache. O(pages).
  [[nodiscard]] SequenceStats stats(std::int64_t layer, SequenceId sequence) {
    const auto& entry = table_.entry("CacheManager::stats", layer, sequence);
    const KVCaptureEngine<Space, T>& engine = entry.engine;
    SequenceStats stats;
    stats.length = entry.length();
    stats.missed_tokens = entry.missed;
    stats.history_tokens = engine.compressed() ? engine.store().num_tokens() : 0;
    stats.window_tokens = engine.window().size();
    stats.sink_tokens = engine.sinks().size();
    stats.history_bytes = engine.compressed() ? engine.store().tile_bytes() : 0;
    stats.exact_bytes = engine.window().bytes() + engine.sinks().bytes();
    const KVShape& shape = engine.options().shape;
    stats.dense_bytes = 2 * static_cast<std::size_t>(
                                (stats.history_tokens + stats.window_tokens + stats.sink_tokens) *
                                (shape.key_numbers() + shape.value_numbers()));
    return stats;
  }

  /// Tokens appended to a layer of a sequence, those that went by in mode off included.
  [[nodiscard]] std::int64_t length(std::int64_t layer, SequenceId sequence) {
    return table_.entry("CacheManager::length", layer, sequence).length();
  }
  /// What is stored of a layer of a sequence.
  [[nodiscard]] const KVCaptureEngine<Space, T>& engine(std::int64_t layer, SequenceId sequence) {
    return table_.entry("CacheManager::engine", layer, sequence).engine;
  }
  /// The same as kernels read it; valid until the next call that changes the sequence.
  template <class Exec>
  [[nodiscard]] CaptureView<T> view(const Exec& exec, std::int64_t layer, SequenceId sequence) {
    const LedgerCall call(ledger_, "CacheManager::view");
    return table_.entry("CacheManager::view", layer, sequence).engine.view(exec);
  }

  /// Changes the memory limit; one below what is in use only stops further allocations.
  void set_memory_limit(std::size_t bytes) noexcept { ledger_->set_limit(bytes); }
  /// Gives free pages and workspace beyond `workspace_bytes` back to the system.
  void trim() {
    scratch_.shrink(workspace_bytes_);
    for (const auto& pool : table_.layers().pools()) {
      pool.pages->trim();
    }
  }

 private:
  using Table = detail::SequenceTable<Space, T>;

  template <class Exec, class Queries, class Output, class Lse>
  void decode(const Exec& exec, const char* caller, std::int64_t layer,
              std::span<const SequenceId> sequences, const Queries& queries, const Output& output,
              const Lse& lse, const AttentionOptions<Space>& options) {
    using Query = typename Queries::non_const_value_type;
    using Number = typename Output::value_type;
    const LedgerCall call(ledger_, caller);
    const detail::CacheLayer<Space>& cached = table_.layers().owner_of(caller, layer);
    const CaptureOptions& capture = cached.options.capture;
    const Kokkos::View<const Query****, Kokkos::LayoutRight, Space> in(queries);
    const Kokkos::View<Number****, Kokkos::LayoutRight, Space> out(output);
    const Kokkos::View<float***, Kokkos::LayoutRight, Space> sums(lse);
    const auto m = static_cast<std::int64_t>(in.extent(1));
    detail::require_outputs(caller, capture.shape, in, out, sums, options);
    require(in.extent(0) == sequences.size(), ErrorCode::shape_mismatch, caller,
            ": queries.extent(0) is ", in.extent(0), ", expected the number of sequences, ",
            sequences.size());
    require(m <= 8, ErrorCode::shape_mismatch, caller, ": queries.extent(1) is ", m,
            ", expected 0 to 8");
    std::vector<DecodeSequence> records;
    DecodeProblem problem;
    for (const SequenceId sequence : sequences) {
      auto& entry = table_.entry(caller, layer, sequence);
      Table::require_complete(caller, sequence, entry);
      const std::int64_t length = entry.engine.length();
      require(length == 0 || length >= m, ErrorCode::out_of_range, caller, ": sequence ", sequence,
              " has ", length, " tokens, expected none or at least the ", m, " of the queries");
      require(length == 0 || entry.engine.sees_all(length - m, length), ErrorCode::out_of_range,
              caller, ": sequence ", sequence, " has given up tokens before ",
              entry.engine.history_begin(), " that the query at ", length - m,
              " sees; expected fewer queries after this truncation, or more rollback_tokens than ",
              capture.rollback_tokens);
      const CaptureView<T> view = entry.engine.view(exec);
      problem.max_history_tokens =
          (std::max)(problem.max_history_tokens, view.history.end - view.history.begin);
      records.push_back(
          decode_sequence(view, capture.shape, (std::max<std::int64_t>)(0, length - m)));
    }
    if (m == 0) {
      return;
    }
    problem.num_sequences = static_cast<int>(sequences.size());
    problem.num_queries = static_cast<int>(m);
    problem.query_heads = static_cast<int>(in.extent(2));
    problem.kv_heads = capture.shape.kv_heads;
    problem.sm_scale = options.sm_scale;
    problem.logits_soft_cap = options.logits_soft_cap;
    problem.sliding_window = capture.sliding_window;
    const detail::AttentionRun<Space, Exec> run(exec, *cached.codec, problem,
                                                DecodeOptions{.exactness = options.exactness});
    scratch_.reserve(run.workspace_bytes());
    run(table_.upload().put(exec, 0, records), in.data(), out.data(), sums.data(),
        options.sink_logits, scratch_.data());
    exec.fence();
  }

  std::shared_ptr<MemoryLedger> ledger_;
  Table table_;
  CacheMode mode_;
  std::size_t workspace_bytes_;
  detail::ScratchMemory<Space> scratch_;
};

}  // namespace turboquant
