#pragma once

// How well a model predicts a text with each cache, all in step with the exact one, so that logits
// are compared and forgotten.

#include "decoder.hpp"
#include "progress.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace llama_ab {

/// Sums over predictions.
struct PredictionSums {
  std::int64_t count = 0;
  double loss = 0;  ///< of -log probability of the token that came
  double gain = 0;  ///< of the loss minus the exact cache's
  double squared_gain = 0;
  double divergence = 0;  ///< of KL(exact, this)
  std::int64_t same_top = 0;

  [[nodiscard]] double mean(double sum) const {
    return count > 0 ? sum / static_cast<double>(count) : 0.0;
  }
  [[nodiscard]] double perplexity() const { return std::exp(mean(loss)); }
  /// Perplexity over the exact cache's, minus 1.
  [[nodiscard]] double delta() const { return std::expm1(mean(gain)); }
  /// Standard error of `delta`, as if tokens were independent.
  [[nodiscard]] double delta_error() const {
    const double variance = mean(squared_gain) - mean(gain) * mean(gain);
    return count > 1 ? (1 + delta()) *
                           std::sqrt(std::fmax(variance, 0.0) / static_cast<double>(count - 1))
                     : 0.0;
  }
  [[nodiscard]] double kl() const { return mean(divergence); }
  [[nodiscard]] double top1() const { return mean(static_cast<double>(same_top)); }

  PredictionSums& operator+=(const PredictionSums& other) {
    count += other.count;
    loss += other.loss;
    gain += other.gain;
    squared_gain += other.squared_gain;
    divergence += other.divergence;
    same_top += other.same_top;
    return *this;
  }
};

/// One cache's line.
struct PerplexityRow {
  std::string cache;
  PredictionSums prefill;  ///< predictions of prompt chunks
  PredictionSums decode;   ///< of single steps
  double prefill_seconds = 0;
  double decode_seconds = 0;
  turboquant::ShadowReport shadow{};
  std::int64_t tokens = 0;     ///< in the cache at the end
  std::size_t bytes = 0;       ///< of them
  std::size_t peak_bytes = 0;  ///< of the library

  [[nodiscard]] PredictionSums all() const {
    PredictionSums sums = prefill;
    sums += decode;
    return sums;
  }
};

struct PerplexityOptions {
  std::int64_t chunk = 64;          ///< tokens of a prefill step
  std::int64_t decode_tokens = 64;  ///< the last tokens, taken one by one
  CacheMode mode = CacheMode::full_tq;
  double shadow = 0;  ///< share of decode steps that are compared in mode capture_only
};

namespace detail {

/// Compares rows of logits, in order, whatever the number of threads.
/// @param next  (rows) the tokens that came
/// @param name  of the other cache, for messages
/// @param first number of the first row
/// @throws turboquant::Error(non_finite)
[[nodiscard]] inline PredictionSums compare_logits(const Exec& exec, std::span<const float> exact,
                                                   std::span<const float> other,
                                                   std::span<const TokenId> next,
                                                   const std::string& name, std::int64_t first) {
  const std::size_t vocabulary = exact.size() / next.size();
  std::vector<LogitDistance> distances(next.size());
  Kokkos::parallel_for(
      "llama_ab::compare_logits",
      Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>(exec, 0, next.size()),
      [&](const std::size_t row) {
        distances[row] =
            kernels().compare(exact.data() + row * vocabulary, other.data() + row * vocabulary,
                              static_cast<std::int64_t>(vocabulary));
      });
  exec.fence();
  PredictionSums sums;
  for (std::size_t row = 0; row < next.size(); ++row) {
    const LogitDistance& distance = distances[row];
    const std::size_t at = row * vocabulary + static_cast<std::size_t>(next[row]);
    const double loss = distance.other_log_sum - static_cast<double>(other[at]);
    const double gain = loss - (distance.exact_log_sum - static_cast<double>(exact[at]));
    require(std::isfinite(loss) && std::isfinite(gain) && std::isfinite(distance.divergence),
            ErrorCode::non_finite, name, ": the logits of prediction ",
            first + static_cast<std::int64_t>(row), " are not finite");
    ++sums.count;
    sums.loss += loss;
    sums.gain += gain;
    sums.squared_gain += gain * gain;
    sums.divergence += distance.divergence;
    sums.same_top += distance.exact_top == distance.other_top ? 1 : 0;
  }
  return sums;
}

}  // namespace detail

/// Predicts each token of a text from those before it, with exact rows in bfloat16 first and then
/// each of the plans.
/// @param ids one more token than are put into the caches
[[nodiscard]] inline std::vector<PerplexityRow> measure_perplexity(
    const Model& model, const Exec& exec, std::span<const TokenId> ids,
    const std::vector<CachePlan>& plans, const PerplexityOptions& options) {
  require(ids.size() >= 2, ErrorCode::invalid_argument, "measure_perplexity: ", ids.size(),
          " tokens, expected at least 2");
  const auto tokens = static_cast<std::int64_t>(ids.size()) - 1;
  const std::int64_t single = std::clamp<std::int64_t>(options.decode_tokens, 0, tokens);
  Decoder exact(model, exec);
  Decoder other(model, exec);
  const std::unique_ptr<SequenceCache> reference =
      make_cache(model.config, {.name = "bf16"}, CacheMode::off, exec);
  std::vector<std::unique_ptr<SequenceCache>> caches;
  std::vector<PerplexityRow> rows(1);
  rows[0].cache = "bf16";
  for (const CachePlan& plan : plans) {
    caches.push_back(make_cache(model.config, plan, options.mode, exec, options.shadow));
    rows.emplace_back();
    rows.back().cache = plan.name;
  }
  Progress progress("perplexity", tokens * static_cast<std::int64_t>(rows.size()));
  for (std::int64_t at = 0; at < tokens;) {
    const bool decode = at >= tokens - single;
    const std::int64_t count = decode ? 1 : (std::min)(options.chunk, tokens - single - at);
    const Step kind = decode ? Step::decode : Step::prefill;
    const auto step = ids.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count));
    const auto next =
        ids.subspan(static_cast<std::size_t>(at) + 1, static_cast<std::size_t>(count));
    const auto take = [&](Decoder& decoder, SequenceCache& cache, PerplexityRow& row) {
      const Stopwatch watch;
      const std::span<const float> logits = decoder.forward(cache, step, count, kind);
      (decode ? row.decode_seconds : row.prefill_seconds) += watch.seconds();
      return logits;
    };
    const std::span<const float> truth = take(exact, *reference, rows[0]);
    (decode ? rows[0].decode : rows[0].prefill) +=
        detail::compare_logits(exec, truth, truth, next, rows[0].cache, at);
    progress.advance(count);
    for (std::size_t i = 0; i < caches.size(); ++i) {
      PerplexityRow& row = rows[i + 1];
      const std::span<const float> logits = take(other, *caches[i], row);
      (decode ? row.decode : row.prefill) +=
          detail::compare_logits(exec, truth, logits, next, row.cache, at);
      progress.advance(count);
    }
    at += count;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const SequenceCache& cache = i == 0 ? *reference : *caches[i - 1];
    rows[i].tokens = cache.length();
    rows[i].bytes = cache.bytes();
    rows[i].peak_bytes = cache.peak_bytes();
    rows[i].shadow = cache.shadow_report();
  }
  return rows;
}

}  // namespace llama_ab
