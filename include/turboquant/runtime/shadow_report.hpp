#pragma once

#include <turboquant/base/config.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iomanip>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace turboquant {

/// How far logits are from exact ones, over rows of a softmax each.
struct LogitAgreement {
  std::int64_t rows = 0;             ///< compared
  std::int64_t non_finite_rows = 0;  ///< not compared, because a number is NaN or infinite
  std::int64_t logits = 0;           ///< in the rows compared
  double rms = 0;                    ///< root mean square of (library - engine)
  double kl = 0;  ///< mean Kullback-Leibler divergence of the library's softmax from the engine's,
                  ///< in nats
  double top1 = 0;  ///< share of rows whose largest logit is at the same place
};

/// What was compared of one layer. A row is one query head of one query; all numbers are 0 without
/// rows.
struct ShadowLayer {
  std::int64_t rows = 0;
  std::int64_t non_finite_rows = 0;  ///< not compared, because a number is NaN or infinite
  double output_error = 0;     ///< relative L2: sqrt(sum |library - engine|^2 / sum |engine|^2)
  double worst_row_error = 0;  ///< the same of the worst row
  double cosine = 0;           ///< mean
  LogitAgreement attention{};  ///< of attention logits, where the engine gave its own
};

/// What a `ShadowCompare` has seen.
struct ShadowReport {
  std::uint64_t steps = 0;
  std::uint64_t sampled_steps = 0;
  std::vector<ShadowLayer> layers{};  ///< (num_layers)
  LogitAgreement model{};             ///< of model logits, where both were given

  /// A table for people: one line a layer that has rows, then model logits where there are some.
  [[nodiscard]] std::string to_text() const {
    std::ostringstream text;
    text << sampled_steps << " of " << steps << " steps compared\n";
    text << "layer     rows   output  worst row    cosine  logit rms        KL    top-1  not "
            "finite\n";
    const auto logits = [&](const LogitAgreement& agreement) {
      if (agreement.rows == 0) {
        text << std::setw(11) << '-' << std::setw(10) << '-' << std::setw(9) << '-';
      } else {
        text << std::setprecision(4) << std::setw(11) << agreement.rms << std::setprecision(5)
             << std::setw(10) << agreement.kl << std::setprecision(2) << std::setw(8)
             << 100 * agreement.top1 << '%';
      }
    };
    text << std::fixed;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const ShadowLayer& layer = layers[i];
      if (layer.rows + layer.non_finite_rows > 0) {
        text << std::setw(5) << i << std::setw(9) << layer.rows << std::setprecision(5)
             << std::setw(9) << layer.output_error << std::setw(11) << layer.worst_row_error
             << std::setw(10) << layer.cosine;
        logits(layer.attention);
        text << std::setw(12) << layer.non_finite_rows + layer.attention.non_finite_rows << '\n';
      }
    }
    if (model.rows + model.non_finite_rows > 0) {
      text << "model" << std::setw(9) << model.rows << std::setw(30) << ' ';
      logits(model);
      text << std::setw(12) << model.non_finite_rows << '\n';
    }
    return text.str();
  }
};

namespace detail {

/// One row of logits beside an exact one.
struct LogitRow {
  double squared_error = 0;
  double divergence = 0;
  std::int64_t count = 0;
  bool same_top = false;
  bool finite = false;
};

/// Which logits of a row count: those before `sinks` and those in [begin, end).
struct VisibleLogits {
  std::int64_t sinks = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] TURBOQUANT_FUNCTION bool operator()(std::int64_t i) const noexcept {
    return i < sinks || i >= begin;
  }
};

/// Compares one row in double. O(logits). Not compared, and `finite` false, with a number that is
/// NaN or infinite.
inline TURBOQUANT_FUNCTION LogitRow compare_logit_row(const float* exact, const float* approximate,
                                                      VisibleLogits visible) noexcept {
  LogitRow row;
  std::int64_t exact_top = -1;
  std::int64_t top = -1;
  for (std::int64_t i = 0; i < visible.end; ++i) {
    if (visible(i)) {
      const double difference = double{approximate[i]} - double{exact[i]};
      if (!(difference * 0 == 0)) {
        return row;
      }
      row.squared_error += difference * difference;
      ++row.count;
      exact_top = exact_top < 0 || exact[i] > exact[exact_top] ? i : exact_top;
      top = top < 0 || approximate[i] > approximate[top] ? i : top;
    }
  }
  if (row.count == 0) {
    return row;
  }
  row.finite = true;
  row.same_top = exact_top == top;
  double exact_sum = 0;
  double sum = 0;
  for (std::int64_t i = 0; i < visible.end; ++i) {
    if (visible(i)) {
      exact_sum += std::exp(double{exact[i]} - double{exact[exact_top]});
      sum += std::exp(double{approximate[i]} - double{approximate[top]});
    }
  }
  const double exact_log = std::log(exact_sum);
  const double log = std::log(sum);
  double divergence = 0;
  for (std::int64_t i = 0; i < visible.end; ++i) {
    if (visible(i)) {
      const double exact_log_weight = double{exact[i]} - double{exact[exact_top]} - exact_log;
      const double log_weight = double{approximate[i]} - double{approximate[top]} - log;
      divergence += std::exp(exact_log_weight) * (exact_log_weight - log_weight);
    }
  }
  row.divergence = divergence < 0 ? 0.0 : divergence;  // below zero by rounding only
  return row;
}

/// One row of output, and of logits where there are some.
struct ShadowRow {
  double squared_error = 0;
  double squared_norm = 0;
  double library_norm = 0;
  double product = 0;
  bool visible = false;  ///< whether the query sees any token
  bool finite = false;
  LogitRow logits{};
};

/// Compares one row of output in double.
template <class Number>
TURBOQUANT_FUNCTION ShadowRow compare_output_row(const Number* engine, const float* library,
                                                 int dim) noexcept {
  ShadowRow row;
  for (int d = 0; d < dim; ++d) {
    double exact = 0;
    if constexpr (sizeof(Number) == sizeof(float)) {
      exact = double{engine[d]};
    } else {
      exact = double{engine[d].to_float()};
    }
    const double difference = double{library[d]} - exact;
    row.squared_error += difference * difference;
    row.squared_norm += exact * exact;
    row.library_norm += double{library[d]} * double{library[d]};
    row.product += exact * double{library[d]};
  }
  row.finite = row.squared_error * 0 == 0;
  return row;
}

/// Sums over rows of logits.
struct LogitSums {
  LogitAgreement counts{};
  double squared_error = 0;
  double divergence = 0;
  std::int64_t same_top = 0;

  void add(const LogitRow& row) noexcept {
    if (!row.finite) {
      ++counts.non_finite_rows;
      return;
    }
    ++counts.rows;
    counts.logits += row.count;
    squared_error += row.squared_error;
    divergence += row.divergence;
    same_top += row.same_top ? 1 : 0;
  }
  [[nodiscard]] LogitAgreement result() const noexcept {
    LogitAgreement agreement = counts;
    if (counts.rows > 0) {
      const auto rows = static_cast<double>(counts.rows);
      agreement.rms = std::sqrt(squared_error / static_cast<double>(counts.logits));
      agreement.kl = divergence / rows;
      agreement.top1 = static_cast<double>(same_top) / rows;
    }
    return agreement;
  }
};

/// Sums over the rows of one layer, in the order in which they come.
struct ShadowSums {
  ShadowLayer counts{};
  double squared_error = 0;
  double squared_norm = 0;
  double cosines = 0;
  LogitSums logits{};

  void add(const ShadowRow& row, bool has_logits) noexcept {
    if (!row.visible) {
      return;
    }
    if (row.finite) {
      ++counts.rows;
      squared_error += row.squared_error;
      squared_norm += row.squared_norm;
      const bool both = row.squared_norm > 0 && row.library_norm > 0;
      cosines += both ? row.product / std::sqrt(row.squared_norm) / std::sqrt(row.library_norm)
                      : (row.squared_norm == row.library_norm ? 1.0 : 0.0);
      counts.worst_row_error =
          (std::max)(counts.worst_row_error, relative(row.squared_error, row.squared_norm));
    } else {
      ++counts.non_finite_rows;
    }
    if (has_logits) {
      logits.add(row.logits);
    }
  }
  [[nodiscard]] ShadowLayer result() const noexcept {
    ShadowLayer layer = counts;
    if (counts.rows > 0) {
      layer.output_error = relative(squared_error, squared_norm);
      layer.cosine = cosines / static_cast<double>(counts.rows);
    }
    layer.attention = logits.result();
    return layer;
  }

 private:
  static double relative(double error, double norm) noexcept {
    return error == 0
               ? 0.0
               : (norm > 0 ? std::sqrt(error / norm) : std::numeric_limits<double>::infinity());
  }
};

}  // namespace detail
}  // namespace turboquant
