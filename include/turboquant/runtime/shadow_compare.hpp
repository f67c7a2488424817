#pragma once

#include <turboquant/attention/scores.hpp>
#include <turboquant/base/random.hpp>
#include <turboquant/runtime/cache_manager.hpp>
#include <turboquant/runtime/shadow_kernels.hpp>
#include <turboquant/runtime/shadow_report.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace turboquant {

struct ShadowOptions {
  double sample_fraction = 0.01;  ///< of the steps that are compared, 0 to 1
  std::uint64_t seed = 0;         ///< which ones
};

/// Compares an engine's own attention with the library's from the compressed cache, on a sample of
/// the decode steps, while the engine runs: for `CacheMode::capture_only`, and for any mode that
/// stores.
///
/// Whether a step is compared is decided once for all its layers, by the number of the step and the
/// seed alone: the same steps in every run. A step that is not costs a comparison of two numbers a
/// layer. Calls have the strong guarantee: a failed one changes nothing, and costs no more than its
/// row of the report. It belongs to the thread of its manager, which must outlive it, and charges
/// its memory to the manager's ledger.
/// @tparam Space, T as of the manager
template <class Space, class T>
class ShadowCompare {
 public:
  /// @throws Error(invalid_argument) for a fraction outside 0 to 1
  explicit ShadowCompare(CacheManager<Space, T>& manager, const ShadowOptions& options = {})
      : manager_(&manager),
        options_(options),
        layers_(static_cast<std::size_t>(manager.num_layers())),
        scratch_(manager.ledger()),
        upload_(manager.ledger()) {
    require(options.sample_fraction >= 0 && options.sample_fraction <= 1,
            ErrorCode::invalid_argument, "ShadowCompare: sample_fraction is ",
            options.sample_fraction, ", expected 0 to 1");
  }
  ShadowCompare(const ShadowCompare&) = delete;
  ShadowCompare& operator=(const ShadowCompare&) = delete;

  /// Whether step number `step` is one of those that are compared; counted from 0.
  [[nodiscard]] bool samples(std::uint64_t step) const noexcept {
    return CounterRng(options_.seed, 0x73686164).uniform(step) < options_.sample_fraction;
  }

  /// Begins the next decode step. Call it once before the layers of a step.
  /// @return whether the step is compared
  bool begin_step() noexcept {
    sampled_ = samples(steps_);
    ++steps_;
    sampled_steps_ += sampled_ ? 1 : 0;
    return sampled_;
  }

  /// Compares one layer of the step, if the step is one that is compared. Call it after the step's
  /// tokens have been appended; a step may have several calls a layer, for sequences of their own.
  ///
  /// @param sequences     (n)
  /// @param queries       (n, m, query_heads, key_dim), as of `CacheManager::shadow_attend`
  /// @param engine_output (n, m, query_heads, value_dim), float, float16 or bfloat16: what the
  /// engine computed
  /// @param options       as of `CacheManager::shadow_attend`
  /// @param engine_logits (n, m, query_heads, columns) or empty: the scaled, capped attention
  /// logits that go into the engine's softmax, column i of token i; columns that a query does not
  /// see are not read
  /// @return whether anything was compared
  /// @throws what `CacheManager::shadow_attend` throws, Error(shape_mismatch) for engine arrays of
  /// another shape, Error(capacity). Waits for `exec`. O(attention).
  template <class Exec, class Queries, class Output>
  bool compare(
      const Exec& exec, std::int64_t layer, std::span<const SequenceId> sequences,
      const Queries& queries, const Output& engine_output,
      const AttentionOptions<Space>& options = {},
      const Kokkos::View<const float****, Kokkos::LayoutRight, Space>& engine_logits = {}) {
    if (!sampled_) {
      return false;
    }
    constexpr const char* caller = "ShadowCompare::compare";
    const LedgerCall call(manager_->ledger(), caller);
    using Query = typename Queries::non_const_value_type;
    using Number = typename Output::non_const_value_type;
    const Kokkos::View<const Query****, Kokkos::LayoutRight, Space> in(queries);
    const Kokkos::View<const Number****, Kokkos::LayoutRight, Space> engine(engine_output);
    const bool has_logits = engine_logits.extent(3) > 0;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      require(engine.extent(axis) == in.extent(axis), ErrorCode::shape_mismatch, caller,
              ": engine_output.extent(", axis, ") is ", engine.extent(axis),
              ", expected that of queries, ", in.extent(axis));
      require(!has_logits || engine_logits.extent(axis) == in.extent(axis),
              ErrorCode::shape_mismatch, caller, ": engine_logits.extent(", axis, ") is ",
              engine_logits.extent(axis), ", expected that of queries, ", in.extent(axis));
    }
    require(layer >= 0 && layer < manager_->num_layers(), ErrorCode::out_of_range, caller,
            ": layer is ", layer, ", expected 0 to ", manager_->num_layers() - 1);
    detail::ShadowProblem problem;
    problem.num_queries = static_cast<std::int64_t>(in.extent(1));
    problem.query_heads = static_cast<std::int64_t>(in.extent(2));
    problem.rows = static_cast<std::int64_t>(in.extent(0) * in.extent(1) * in.extent(2));
    problem.value_dim = static_cast<int>(engine.extent(3));
    problem.columns = has_logits ? static_cast<std::int64_t>(engine_logits.extent(3)) : 0;
    if (problem.rows == 0 || sequences.empty()) {
      return false;
    }
    const int value_dim = manager_->engine(layer, sequences.front()).options().shape.value_dim;
    require(problem.value_dim == value_dim, ErrorCode::shape_mismatch, caller,
            ": engine_output.extent(3) is ", problem.value_dim,
            ", expected value_dim = ", value_dim);
    std::vector<detail::ShadowSequence> records;
    std::vector<ScoreSequence> scored;
    if (has_logits) {
      describe(exec, caller, layer, sequences, options, problem, records, scored);
    }

    const auto rows = static_cast<std::size_t>(problem.rows);
    detail::ScratchLayout pieces;
    const std::size_t results_at = pieces.add(rows * sizeof(detail::ShadowRow));
    const std::size_t output_at =
        pieces.add(rows * static_cast<std::size_t>(problem.value_dim) * sizeof(float));
    const std::size_t lse_at = pieces.add(rows * sizeof(float));
    const std::size_t logits_at =
        pieces.add(rows * static_cast<std::size_t>(problem.columns) * sizeof(float));
    const std::size_t history_at =
        pieces.add(rows * static_cast<std::size_t>(problem.history_columns) * sizeof(float));
    std::vector<detail::ShadowRow> results(rows);
    scratch_.reserve(pieces.bytes());
    std::byte* const memory = scratch_.data();
    auto* const library = reinterpret_cast<float*>(memory + output_at);
    auto* const lse = reinterpret_cast<float*>(memory + lse_at);
    manager_->shadow_attend(
        exec, layer, sequences, in,
        Kokkos::View<float****, Kokkos::LayoutRight, Space>(library, in.extent(0), in.extent(1),
                                                            in.extent(2), engine.extent(3)),
        Kokkos::View<float***, Kokkos::LayoutRight, Space>(lse, in.extent(0), in.extent(1),
                                                           in.extent(2)),
        options);

    auto* const row_results = reinterpret_cast<detail::ShadowRow*>(memory + results_at);
    using Policy = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>;
    Kokkos::parallel_for("turboquant::ShadowCompare::output", Policy(exec, 0, problem.rows),
                         detail::CompareOutputs<Number>{engine.data(), library, lse, row_results,
                                                        problem.value_dim});
    if (has_logits) {
      auto* const logits = reinterpret_cast<float*>(memory + logits_at);
      auto* const history = reinterpret_cast<float*>(memory + history_at);
      if (problem.history_columns > 0) {
        const auto& engine_of = manager_->engine(layer, sequences.front());
        ScoreInputs<Query, Space> inputs;
        inputs.queries = decltype(inputs.queries)(in.data(), in.extent(0) * in.extent(1),
                                                  in.extent(2), in.extent(3));
        inputs.sequences = decltype(inputs.sequences)(upload_.put(exec, 0, scored), scored.size());
        detail::score_keys(caller, engine_of.store().codec().format().key_codec, exec,
                           engine_of.store().codec(), problem.kv_heads, inputs,
                           Kokkos::View<float***, Kokkos::LayoutRight, Space>(
                               history, in.extent(0) * in.extent(1), in.extent(2),
                               static_cast<std::size_t>(problem.history_columns)),
                           {.sm_scale = problem.sm_scale});
      }
      const detail::CompareLogits<Query> kernel{problem,    upload_.put(exec, 1, records),
                                                in.data(),  engine_logits.data(),
                                                history,    logits,
                                                row_results};
      Kokkos::parallel_for("turboquant::ShadowCompare::logits", Policy(exec, 0, problem.rows),
                           kernel);
    }
    using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
    Kokkos::deep_copy(
        exec,
        Kokkos::View<std::byte*, Kokkos::HostSpace, Unmanaged>(
            reinterpret_cast<std::byte*>(results.data()), rows * sizeof(detail::ShadowRow)),
        Kokkos::View<const std::byte*, Space, Unmanaged>(memory + results_at,
                                                         rows * sizeof(detail::ShadowRow)));
    exec.fence();
    for (const detail::ShadowRow& row : results) {
      layers_[static_cast<std::size_t>(layer)].add(row, has_logits);
    }
    return true;
  }

  /// Compares model logits, if the step is one that is compared and the caller has computed them
  /// both ways.
  /// @param engine, library (rows, vocabulary), on the host
  /// @throws Error(shape_mismatch) for sizes that differ or are no multiple of the vocabulary,
  /// Error(invalid_argument) for a vocabulary below 1
  bool compare_logits(std::span<const float> engine, std::span<const float> library,
                      std::int64_t vocabulary) {
    constexpr const char* caller = "ShadowCompare::compare_logits";
    if (!sampled_) {
      return false;
    }
    require(vocabulary >= 1, ErrorCode::invalid_argument, caller, ": vocabulary is ", vocabulary,
            ", expected 1 or more");
    const auto width = static_cast<std::size_t>(vocabulary);
    require(engine.size() % width == 0, ErrorCode::shape_mismatch, caller, ": engine.size() is ",
            engine.size(), ", expected a multiple of vocabulary = ", vocabulary);
    require(library.size() == engine.size(), ErrorCode::shape_mismatch, caller,
            ": library.size() is ", library.size(), ", expected engine.size() = ", engine.size());
    for (std::size_t first = 0; first < engine.size(); first += width) {
      model_.add(detail::compare_logit_row(engine.data() + first, library.data() + first,
                                           {.end = vocabulary}));
    }
    return !engine.empty();
  }

  /// Everything since construction or `reset()`. O(layers).
  [[nodiscard]] ShadowReport report() const {
    ShadowReport report;
    report.steps = steps_;
    report.sampled_steps = sampled_steps_;
    for (const detail::ShadowSums& layer : layers_) {
      report.layers.push_back(layer.result());
    }
    report.model = model_.result();
    return report;
  }

  /// Forgets what was compared. The next step is number 0 again.
  void reset() noexcept {
    std::fill(layers_.begin(), layers_.end(), detail::ShadowSums{});
    model_ = {};
    steps_ = 0;
    sampled_steps_ = 0;
    sampled_ = false;
  }

 private:
  /// Where the keys of every query are, for logits.
  template <class Exec>
  void describe(const Exec& exec, const char* caller, std::int64_t layer,
                std::span<const SequenceId> sequences, const AttentionOptions<Space>& options,
                detail::ShadowProblem& problem, std::vector<detail::ShadowSequence>& records,
                std::vector<ScoreSequence>& scored) {
    for (const SequenceId sequence : sequences) {
      const CaptureOptions& capture = manager_->engine(layer, sequence).options();
      const KVShape& shape = capture.shape;
      problem.kv_heads = shape.kv_heads;
      problem.key_dim = shape.key_dim;
      problem.sm_scale = options.sm_scale != 0 ? options.sm_scale
                                               : 1 / std::sqrt(static_cast<float>(shape.key_dim));
      problem.soft_cap = options.logits_soft_cap;
      problem.sliding_window = capture.sliding_window;
      const CaptureView<T> view = manager_->view(exec, layer, sequence);
      require(view.length <= problem.columns, ErrorCode::shape_mismatch, caller,
              ": engine_logits.extent(3) is ", problem.columns, ", expected at least the ",
              view.length, " tokens of sequence ", sequence);
      const std::int64_t first = (std::max<std::int64_t>)(0, view.length - problem.num_queries);
      records.push_back({decode_sequence(view, shape, first), view.length, capture.sinks});
      problem.history_columns =
          (std::max)(problem.history_columns, view.history.end - view.history.begin);
      for (std::int64_t j = 0; j < problem.num_queries; ++j) {
        ScoreSequence record;
        record.history = records.back().record.history;
        record.begin = view.history.begin - view.history.page_position;
        record.end = (std::max)(
            record.begin, (std::min)(view.history.end, first + j + 1) - view.history.page_position);
        scored.push_back(record);
      }
    }
  }

  CacheManager<Space, T>* manager_;
  ShadowOptions options_;
  std::uint64_t steps_ = 0;
  std::uint64_t sampled_steps_ = 0;
  bool sampled_ = false;
  std::vector<detail::ShadowSums> layers_;
  detail::LogitSums model_{};
  detail::ScratchMemory<Space> scratch_;
  detail::JobUpload<Space> upload_;
};

}  // namespace turboquant
