#pragma once

#include <turboquant/cache/capture_engine.hpp>
#include <turboquant/cache/job_upload.hpp>
#include <turboquant/runtime/attention_run.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace turboquant::detail {

/// One sequence's part of a prefill: the captured prefix, the chunk behind it, and queries at the
/// chunk's newest tokens.
template <class T, class Query, class Output>
struct PrefillPart {
  CaptureView<T> prefix{};
  const T* keys = nullptr;    ///< (count, kv_heads, key_dim)
  const T* values = nullptr;  ///< (count, kv_heads, value_dim)
  std::int64_t count = 0;
  const Query* queries =
      nullptr;  ///< (num_queries, query_heads, key_dim), at the last positions of the chunk
  std::int64_t num_queries = 0;
  Output* output = nullptr;  ///< (num_queries, query_heads, value_dim)
  float* lse = nullptr;      ///< (num_queries, query_heads)
};

/// Prefill attention, block of queries by block of queries: each sees sinks, compressed prefix and
/// exact window of what is captured, and the raw rows of its chunk up to itself. The scratch memory
/// does not grow with the chunk.
template <class Space, class T, class Exec>
class PrefillRun {
 public:
  /// Queries of one record, and records of one launch.
  static constexpr std::int64_t block = 16;
  static constexpr std::int64_t blocks = 8;

  PrefillRun(const Exec& exec, const TileCodec<Space>& codec, const CaptureOptions& capture,
             int query_heads, const AttentionOptions<Space>& options)
      : exec_(exec),
        codec_(codec),
        capture_(capture),
        query_heads_(query_heads),
        options_(options) {}

  /// Scratch bytes for any part whose prefix holds at most `history` compressed tokens.
  template <class Output>
  [[nodiscard]] std::size_t scratch_bytes(std::int64_t history) const {
    return layout<Output>(blocks, block, history).total;
  }

  /// Allocates what the records of a launch need on their way to the device.
  /// @throws Error(capacity)
  void reserve(JobUpload<Space>& upload) const {
    upload.template reserve_for<Exec>(0, std::vector<DecodeSequence>(blocks));
  }

  template <class Query, class Output>
  void operator()(const PrefillPart<T, Query, Output>& part, std::byte* scratch,
                  JobUpload<Space>& upload) const {
    for (std::int64_t done = 0; done < part.num_queries;) {
      const std::int64_t left = part.num_queries - done;
      const std::int64_t m = (std::min)(left, block);
      const std::int64_t n = (std::min)(left / m, blocks);
      run_group(part, done, n, m, scratch, upload);
      done += n * m;
    }
  }

 private:
  struct Layout {
    std::size_t workspace = 0;
    std::size_t sum_output = 0;  ///< float output so far, where the caller's output is not float
    std::size_t other_output = 0;
    std::size_t other_lse = 0;
    std::size_t total = 0;
  };

  [[nodiscard]] DecodeProblem problem(std::int64_t n, std::int64_t m, std::int64_t history,
                                      bool windowed) const {
    DecodeProblem problem;
    problem.num_sequences = static_cast<int>(n);
    problem.num_queries = static_cast<int>(m);
    problem.query_heads = query_heads_;
    problem.kv_heads = capture_.shape.kv_heads;
    problem.max_history_tokens = history;
    problem.sm_scale = options_.sm_scale;
    problem.logits_soft_cap = options_.logits_soft_cap;
    problem.sliding_window = windowed ? capture_.sliding_window : 0;
    return problem;
  }
  [[nodiscard]] AttentionRun<Space, Exec> plan(std::int64_t n, std::int64_t m, std::int64_t history,
                                               bool windowed) const {
    return {exec_, codec_, problem(n, m, history, windowed),
            DecodeOptions{.exactness = options_.exactness, .num_splits = 1}};
  }

  template <class Output>
  [[nodiscard]] Layout layout(std::int64_t n, std::int64_t m, std::int64_t history) const {
    const auto rows = static_cast<std::size_t>(n * m * query_heads_);
    const std::size_t output =
        rows * static_cast<std::size_t>(capture_.shape.value_dim) * sizeof(float);
    ScratchLayout pieces;
    Layout at;
    at.workspace = pieces.add(plan(n, m, history, true).workspace_bytes());
    at.sum_output = pieces.add(std::is_same_v<Output, float> ? 0 : output);
    at.other_output = pieces.add(output);
    at.other_lse = pieces.add(rows * sizeof(float));
    at.total = pieces.bytes();
    return at;
  }

  /// Runs `n` blocks of `m` queries from query `first` on.
  template <class Query, class Output>
  void run_group(const PrefillPart<T, Query, Output>& part, std::int64_t first, std::int64_t n,
                 std::int64_t m, std::byte* scratch, JobUpload<Space>& upload) const {
    const std::int64_t history = part.prefix.history.end - part.prefix.history.begin;
    const Layout at = layout<Output>(n, m, history);
    const std::int64_t rows = n * m * query_heads_;
    Output* const output = part.output + first * query_heads_ * capture_.shape.value_dim;
    float* const lse = part.lse + first * query_heads_;
    float* sum_output = nullptr;
    if constexpr (std::is_same_v<Output, float>) {
      sum_output = output;
    } else {
      sum_output = reinterpret_cast<float*>(scratch + at.sum_output);
    }
    auto* const other_output = reinterpret_cast<float*>(scratch + at.other_output);
    auto* const other_lse = reinterpret_cast<float*>(scratch + at.other_lse);
    bool is_first = true;
    const auto take = [&](const std::vector<DecodeSequence>& records, std::int64_t in_history,
                          bool windowed) {
      const AttentionRun<Space, Exec> run = plan(n, m, in_history, windowed);
      // Learned sink logits belong to the denominator once.
      run(upload.put(exec_, 0, records),
          part.queries + first * query_heads_ * capture_.shape.key_dim,
          is_first ? sum_output : other_output, is_first ? lse : other_lse,
          is_first ? options_.sink_logits : Kokkos::View<const float*, Space>(),
          scratch + at.workspace);
      if (!is_first) {
        Kokkos::parallel_for(
            "turboquant::PrefillRun::merge",
            Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec_, 0, rows),
            MergeOutputs{sum_output, lse, other_output, other_lse, capture_.shape.value_dim});
      }
      exec_.fence();  // before the records go
      is_first = false;
    };

    const std::int64_t chunk_begin = part.prefix.length;
    const std::int64_t query_begin = chunk_begin + part.count - part.num_queries + first;
    const auto records_of = [&](const auto& make) {
      std::vector<DecodeSequence> records;
      for (std::int64_t i = 0; i < n; ++i) {
        records.push_back(make(query_begin + i * m));
      }
      return records;
    };
    // Tokens of the chunk that are attention sinks stay visible beyond the sliding window.
    const std::int64_t sinks =
        capture_.sliding_window > 0
            ? std::clamp<std::int64_t>(capture_.sinks - chunk_begin, 0, part.count)
            : 0;
    const auto chunk = [&](std::int64_t from, std::int64_t to) {
      return records_of([&](std::int64_t position) {
        const std::int64_t end = (std::min)(to, position + m - chunk_begin);
        return decode_rows(part.keys + from * capture_.shape.key_numbers(),
                           part.values + from * capture_.shape.value_numbers(),
                           (std::max<std::int64_t>)(0, end - from), chunk_begin + from,
                           capture_.shape, position);
      });
    };
    take(chunk(sinks, part.count), 0, true);
    if (sinks > 0) {
      take(chunk(0, sinks), 0, false);
    }
    if (chunk_begin > 0) {
      take(records_of([&](std::int64_t position) {
             return decode_sequence(part.prefix, capture_.shape, position);
           }),
           history, true);
    }
    if constexpr (!std::is_same_v<Output, float>) {
      Kokkos::parallel_for("turboquant::PrefillRun::store",
                           Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(
                               exec_, 0, rows * capture_.shape.value_dim),
                           StoreNumbers<Output>{sum_output, output});
      exec_.fence();
    }
  }

  Exec exec_;
  const TileCodec<Space>& codec_;
  const CaptureOptions& capture_;
  int query_heads_;
  const AttentionOptions<Space>& options_;
};

}  // namespace turboquant::detail
