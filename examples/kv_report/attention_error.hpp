#pragma once

// What a codec does to the keys, the values and the attention of one kv head.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kv_report {

/// Sums over vectors: how far they are from their reconstructions.
struct VectorError {
  std::int64_t vectors = 0;
  std::int64_t bytes = 0;    ///< allocated by the encoder
  double squared_error = 0;  ///< sum of |x - x~|^2
  double squared_norm = 0;   ///< sum of |x|^2
  double cosines = 0;        ///< sum of cos(x, x~): 1 when both are zero, 0 when one of them is

  VectorError& operator+=(const VectorError& other) {
    vectors += other.vectors;
    bytes += other.bytes;
    squared_error += other.squared_error;
    squared_norm += other.squared_norm;
    cosines += other.cosines;
    return *this;
  }
};

/// Sums over attention rows; a row is one query head at one position.
struct AttentionError {
  std::int64_t rows = 0;
  std::int64_t logits = 0;
  double logit_errors = 0;  ///< sum of (approximate - exact) logits
  double squared_logit_errors = 0;
  double divergences = 0;     ///< sum of KL(exact weights || approximate weights), in nats
  std::int64_t same_top = 0;  ///< rows whose largest weight is at the same token
  VectorError output;

  AttentionError& operator+=(const AttentionError& other) {
    rows += other.rows;
    logits += other.logits;
    logit_errors += other.logit_errors;
    squared_logit_errors += other.squared_logit_errors;
    divergences += other.divergences;
    same_top += other.same_top;
    output += other.output;
    return *this;
  }
};

/// Everything measured of one codec.
struct CodecError {
  VectorError key;
  VectorError value;
  AttentionError attention;

  CodecError& operator+=(const CodecError& other) {
    key += other.key;
    value += other.value;
    attention += other.attention;
    return *this;
  }
};

/// Adds the error of one vector.
template <class Real>
void add_vector(VectorError& error, std::span<const Real> exact,
                std::span<const Real> approximate) {
  double difference = 0;
  double exact_norm = 0;
  double approximate_norm = 0;
  double product = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const auto x = static_cast<double>(exact[i]);
    const auto y = static_cast<double>(approximate[i]);
    difference += (x - y) * (x - y);
    exact_norm += x * x;
    approximate_norm += y * y;
    product += x * y;
  }
  ++error.vectors;
  error.squared_error += difference;
  error.squared_norm += exact_norm;
  if (exact_norm == 0 || approximate_norm == 0) {
    error.cosines += exact_norm == approximate_norm ? 1.0 : 0.0;
  } else {
    error.cosines += product / std::sqrt(exact_norm) / std::sqrt(approximate_norm);
  }
}

/// Errors of a head's vectors.
/// @param exact, approximate  (vectors, dim)
inline VectorError vector_error(std::span<const float> exact, std::span<const float> approximate,
                                std::size_t dim) {
  VectorError error;
  for (std::size_t start = 0; start < exact.size(); start += dim) {
    add_vector(error, exact.subspan(start, dim), approximate.subspan(start, dim));
  }
  return error;
}

/// Causal softmax attention over one kv head in double; the sums run in one fixed order.
class HeadAttention {
 public:
  /// @param keys    (tokens, key_dim)
  /// @param values  (tokens, value_dim)
  HeadAttention(std::span<const float> keys, std::size_t key_dim, std::span<const float> values,
                std::size_t value_dim)
      : tokens_(keys.size() / key_dim),
        keys_by_dim_(keys.size()),
        values_(values.begin(), values.end()),
        logits_(tokens_),
        weights_(tokens_),
        output_(value_dim) {
    for (std::size_t token = 0; token < tokens_; ++token) {
      for (std::size_t i = 0; i < key_dim; ++i) {
        keys_by_dim_[i * tokens_ + token] = static_cast<double>(keys[token * key_dim + i]);
      }
    }
  }

  /// Attention of `query` (key_dim) over the first `visible` tokens.
  void attend(std::span<const float> query, std::size_t visible, double sm_scale) {
    visible_ = visible;
    std::fill_n(logits_.begin(), visible, 0.0);
    for (std::size_t i = 0; i < query.size(); ++i) {
      const double factor = static_cast<double>(query[i]) * sm_scale;
      const double* const key = keys_by_dim_.data() + i * tokens_;
      for (std::size_t token = 0; token < visible; ++token) {
        logits_[token] += factor * key[token];
      }
    }
    top_ = static_cast<std::size_t>(
        std::max_element(logits_.begin(), logits_.begin() + ptrdiff(visible)) - logits_.begin());
    double sum = 0;
    for (std::size_t token = 0; token < visible; ++token) {
      weights_[token] = std::exp(logits_[token] - logits_[top_]);
      sum += weights_[token];
    }
    log_normaliser_ = logits_[top_] + std::log(sum);
    std::fill(output_.begin(), output_.end(), 0.0);
    for (std::size_t token = 0; token < visible; ++token) {
      weights_[token] /= sum;
      const double* const value = values_.data() + token * output_.size();
      for (std::size_t i = 0; i < output_.size(); ++i) {
        output_[i] += weights_[token] * value[i];
      }
    }
  }

  [[nodiscard]] std::span<const double> logits() const {
    return std::span(logits_).first(visible_);
  }
  [[nodiscard]] std::span<const double> weights() const {
    return std::span(weights_).first(visible_);
  }
  [[nodiscard]] std::span<const double> output() const { return output_; }
  [[nodiscard]] std::size_t top() const { return top_; }
  [[nodiscard]] double log_weight(std::size_t token) const {
    return logits_[token] - log_normaliser_;
  }

 private:
  static std::ptrdiff_t ptrdiff(std::size_t n) { return static_cast<std::ptrdiff_t>(n); }

  std::size_t tokens_;
  std::vector<double>
      keys_by_dim_;  ///< (key_dim, tokens), so that a logit row is summed without a reduction
  std::vector<double> values_;  ///< (tokens, value_dim)
  std::vector<double> logits_;
  std::vector<double> weights_;
  std::vector<double> output_;
  std::size_t visible_ = 0;
  std::size_t top_ = 0;
  double log_normaliser_ = 0;
};

/// Adds the difference between two attentions that were given the same query. Approximate logits
/// that are not finite make the errors NaN or infinite, and such a row has no top token.
inline void add_row(AttentionError& error, const HeadAttention& exact,
                    const HeadAttention& approximate) {
  double divergence = 0;
  for (std::size_t token = 0; token < exact.logits().size(); ++token) {
    const double difference = approximate.logits()[token] - exact.logits()[token];
    error.logit_errors += difference;
    error.squared_logit_errors += difference * difference;
    divergence +=
        exact.weights()[token] * (exact.log_weight(token) - approximate.log_weight(token));
  }
  ++error.rows;
  error.logits += static_cast<std::int64_t>(exact.logits().size());
  error.divergences += divergence < 0 ? 0.0 : divergence;  // below zero by rounding only
  const bool has_top = std::isfinite(approximate.log_weight(approximate.top()));
  error.same_top += has_top && exact.top() == approximate.top() ? 1 : 0;
  add_vector(error.output, exact.output(), approximate.output());
}

}  // namespace kv_report
