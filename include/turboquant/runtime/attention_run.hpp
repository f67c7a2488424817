#pragma once

#include <turboquant/attention/decode.hpp>
#include <turboquant/base/float16.hpp>
#include <turboquant/cache/capture_engine.hpp>
#include <turboquant/cache/job_upload.hpp>
#include <turboquant/device/memory_overlap.hpp>
#include <turboquant/math/softmax_state.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace turboquant {

/// What a call of attention may choose.
template <class Space>
struct AttentionOptions {
  float sm_scale = 0;         ///< factor of the logits; 0 means 1 / sqrt(key_dim)
  float logits_soft_cap = 0;  ///< logits become cap * tanh(logit / cap); 0 means they stay
  Exactness exactness = Exactness::exact;
  /// (query_heads) or empty: learned logits that join each head's softmax denominator once. They
  /// are not read for checking: NaN gives NaN for output and lse of its head, +infinity an output
  /// of 0 and an lse of +infinity (on accelerators NaN), -infinity is no sink. A head that sees no
  /// token has an output of 0 and the learned logit as lse, whatever it is.
  Kokkos::View<const float*, Space> sink_logits{};
};

/// The record of a captured sequence, for a step of `run_decode`, of which the first query is at
/// `query_position`.
///
/// It points into the memory of the capture: an append, a rollback or a copy of shared pages makes
/// another one necessary. Device spaces read records from their own memory.
/// @param view  `KVCaptureEngine::view()`, or `CacheManager::view` of a layer and a sequence
/// @param shape of the layer
template <class T>
[[nodiscard]] DecodeSequence decode_sequence(const CaptureView<T>& view, const KVShape& shape,
                                             std::int64_t query_position) {
  DecodeSequence record;
  record.history = {view.history.pages, view.history.num_pages, view.history.tiles_per_page};
  record.page_position = view.history.page_position;
  record.history_begin = view.history.begin;
  record.history_end = view.history.end;
  record.sink_keys = dense_rows(view.sink_keys, shape.kv_heads, shape.key_dim);
  record.sink_values = dense_rows(view.sink_values, shape.kv_heads, shape.value_dim);
  record.num_sinks = view.sink_count;
  record.window_keys = dense_rows(view.window_keys, shape.kv_heads, shape.key_dim);
  record.window_values = dense_rows(view.window_values, shape.kv_heads, shape.value_dim);
  record.window_capacity = view.window_rows;
  record.window_start = view.window_start;
  record.window_count = view.window_end - view.window_begin;
  record.window_position = view.window_begin;
  record.query_position = query_position;
  return record;
}

namespace detail {

/// The record of consecutive rows alone.
template <class T>
[[nodiscard]] DecodeSequence decode_rows(const T* keys, const T* values, std::int64_t count,
                                         std::int64_t position, const KVShape& shape,
                                         std::int64_t query_position) {
  CaptureView<T> view;
  view.window_keys = keys;
  view.window_values = values;
  view.window_rows = (std::max<std::int64_t>)(count, 1);
  view.window_begin = position;
  view.window_end = position + count;
  return decode_sequence(view, shape, query_position);
}

/// Checks queries (..., query_heads, key_dim), output (..., query_heads, value_dim) and lse (...,
/// query_heads), which must not overlap, and the options.
template <class Queries, class Output, class Lse, class Space>
void require_outputs(const char* caller, const KVShape& shape, const Queries& queries,
                     const Output& output, const Lse& lse, const AttentionOptions<Space>& options) {
  constexpr std::size_t axes = Lse::rank;
  const auto check_extent = [&](const char* name, std::size_t axis, std::size_t is,
                                std::size_t expected) {
    require(is == expected, ErrorCode::shape_mismatch, caller, ": ", name, ".extent(", axis,
            ") is ", is, ", expected ", expected);
  };
  const std::size_t heads = queries.extent(axes - 1);
  require(heads >= 1 && heads <= 65536 && heads % static_cast<std::size_t>(shape.kv_heads) == 0,
          ErrorCode::shape_mismatch, caller, ": queries.extent(", axes - 1, ") is ", heads,
          ", expected a positive multiple of kv_heads = ", shape.kv_heads);
  check_extent("queries", axes, queries.extent(axes), static_cast<std::size_t>(shape.key_dim));
  check_extent("output", axes, output.extent(axes), static_cast<std::size_t>(shape.value_dim));
  for (std::size_t axis = 0; axis < axes; ++axis) {
    check_extent("output", axis, output.extent(axis), queries.extent(axis));
    check_extent("lse", axis, lse.extent(axis), queries.extent(axis));
  }
  require(queries.span_is_contiguous() && output.span_is_contiguous() && lse.span_is_contiguous(),
          ErrorCode::shape_mismatch, caller,
          ": queries, output or lse has padding between its rows, expected contiguous rows");
  const auto& sink_logits = options.sink_logits;
  require(sink_logits.extent(0) == 0 || sink_logits.extent(0) == heads, ErrorCode::shape_mismatch,
          caller, ": sink_logits.extent(0) is ", sink_logits.extent(0),
          ", expected 0 or the query heads, ", heads);
  require_apart(caller, {byte_range("output", output), byte_range("lse", lse)},
                {byte_range("queries", queries), byte_range("sink_logits", sink_logits)});
  require_logits(caller, options.sm_scale, options.logits_soft_cap);
  require_exactness(caller, options.exactness);
}

/// Takes the output over more tokens into the output so far; one work item a query row.
struct MergeOutputs {
  float* output;  ///< (rows, dim)
  float* lse;     ///< (rows)
  const float* other_output;
  const float* other_lse;
  int dim;

  TURBOQUANT_FUNCTION void operator()(std::int64_t row) const {
    const MergeWeights weights = merge_weights(lse[row], other_lse[row]);
    for (std::int64_t i = row * dim; i < (row + 1) * dim; ++i) {
      const float first = weights.first == 0.0F ? 0.0F : weights.first * output[i];
      const float second = weights.second == 0.0F ? 0.0F : weights.second * other_output[i];
      output[i] = first + second;
    }
    lse[row] = weights.lse;
  }
};

/// Converts floats to the number type of an output.
template <class Output>
struct StoreNumbers {
  const float* from;
  Output* to;

  TURBOQUANT_FUNCTION void operator()(std::int64_t i) const {
    if constexpr (std::is_same_v<Output, float>) {
      to[i] = from[i];
    } else {
      to[i] = Output::from_float(from[i]);
    }
  }
};

/// Scratch memory that grows and is kept between calls.
template <class Space>
class ScratchMemory {
 public:
  explicit ScratchMemory(std::shared_ptr<MemoryLedger> ledger) : ledger_(std::move(ledger)) {}

  /// Frees what is too small before it allocates, so that both never exist at once.
  /// @throws Error(capacity) where both one after another do not fit the limit; nothing is changed.
  ///         Whatever the allocator throws; there is no scratch memory then.
  void reserve(std::size_t bytes) {
    if (bytes > bytes_) {
      if (round_up_bytes(bytes) <= ledger_->available() + bytes_) {
        release();
      }
      memory_ = allocate_bytes<Space>(ledger_, MemoryKind::workspace, bytes,
                                      "turboquant::CacheManager::workspace");
      bytes_ = round_up_bytes(bytes);
    }
  }
  /// Frees what is more than `bytes`.
  void shrink(std::size_t bytes) {
    if (bytes_ > round_up_bytes(bytes)) {
      release();
      reserve(bytes);
    }
  }
  void release() noexcept {
    memory_ = nullptr;
    bytes_ = 0;
  }
  [[nodiscard]] std::byte* data() const noexcept { return memory_.get(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::shared_ptr<MemoryLedger> ledger_;
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_ = 0;
};

/// Pieces of a scratch memory, in order.
class ScratchLayout {
 public:
  /// Offset of a piece.
  std::size_t add(std::size_t bytes) noexcept {
    const std::size_t offset = end_;
    end_ += round_up_bytes(bytes);
    return offset;
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return end_; }

 private:
  std::size_t end_ = 0;
};

/// Plans and runs one attention over a list of records, without allocation once the scratch memory
/// is there.
template <class Space, class Exec>
class AttentionRun {
 public:
  AttentionRun(const Exec& exec, const TileCodec<Space>& codec, const DecodeProblem& problem,
               const DecodeOptions& options)
      : exec_(exec), plan_(plan_decode(exec, codec, problem, options)) {}

  [[nodiscard]] std::size_t workspace_bytes() const {
    return static_cast<std::size_t>(plan_.workspace_bytes());
  }

  /// @param records readable by the execution space
  /// @param queries (num_sequences, num_queries, query_heads, key_dim); `output` alike with
  /// value_dim; `lse` without dim
  template <class Query, class Output>
  void operator()(const DecodeSequence* records, const Query* queries, Output* output, float* lse,
                  const Kokkos::View<const float*, Space>& sink_logits,
                  std::byte* workspace) const {
    const DecodeProblem& problem = plan_.problem();
    const TileFormat& format = plan_.codec().format();
    const auto n = static_cast<std::size_t>(problem.num_sequences);
    const auto m = static_cast<std::size_t>(problem.num_queries);
    const auto h = static_cast<std::size_t>(problem.query_heads);
    DecodeInputs<Query, Space> inputs;
    inputs.queries =
        decltype(inputs.queries)(queries, n, m, h, static_cast<std::size_t>(format.key_dim));
    inputs.sequences = decltype(inputs.sequences)(records, n);
    inputs.sink_logits = sink_logits;
    run_decode(exec_, plan_, inputs,
               Kokkos::View<Output****, Kokkos::LayoutRight, Space>(
                   output, n, m, h, static_cast<std::size_t>(format.value_dim)),
               Kokkos::View<float***, Kokkos::LayoutRight, Space>(lse, n, m, h),
               Kokkos::View<std::byte*, Space>(workspace, workspace_bytes()));
  }

 private:
  Exec exec_;
  DecodePlan<Exec, Space> plan_;
};

}  // namespace detail
}  // namespace turboquant
