#pragma once

// Attention over uncompressed rows in double precision, and the distance of an output from it.

#include "../kv_report/capture.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace streaming_decode {

/// Output of every query head over the first `visible` tokens of a layer: (query_heads, value_dim).
/// @param query (query_heads, key_dim)
inline std::vector<double> exact_attention(const kv_report::LayerCapture& layer, const float* query,
                                           std::int64_t visible) {
  const auto heads = static_cast<std::size_t>(layer.query_heads);
  const auto kv_heads = static_cast<std::size_t>(layer.kv_heads);
  const auto key_dim = static_cast<std::size_t>(layer.key_dim);
  const auto value_dim = static_cast<std::size_t>(layer.value_dim);
  const auto tokens = static_cast<std::size_t>(visible);
  std::vector<double> output(heads * value_dim);
  std::vector<double> weights(tokens);
  for (std::size_t head = 0; head < heads; ++head) {
    const std::size_t kv_head = head / (heads / kv_heads);
    double largest = -HUGE_VAL;
    for (std::size_t t = 0; t < tokens; ++t) {
      double logit = 0;
      for (std::size_t d = 0; d < key_dim; ++d) {
        logit += static_cast<double>(query[head * key_dim + d]) *
                 static_cast<double>(layer.keys[(t * kv_heads + kv_head) * key_dim + d]);
      }
      weights[t] = logit / std::sqrt(static_cast<double>(key_dim));
      largest = std::fmax(largest, weights[t]);
    }
    double sum = 0;
    for (std::size_t t = 0; t < tokens; ++t) {
      weights[t] = std::exp(weights[t] - largest);
      sum += weights[t];
      for (std::size_t d = 0; d < value_dim; ++d) {
        output[head * value_dim + d] +=
            weights[t] *
            static_cast<double>(layer.values[(t * kv_heads + kv_head) * value_dim + d]);
      }
    }
    for (std::size_t d = 0; d < value_dim; ++d) {
      output[head * value_dim + d] /= sum;
    }
  }
  return output;
}

/// Sums from which a relative distance is made.
struct Distance {
  double squared_error = 0;
  double squared_norm = 0;

  void add(const std::vector<double>& exact, const float* approximate) {
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double difference = static_cast<double>(approximate[i]) - exact[i];
      squared_error += difference * difference;
      squared_norm += exact[i] * exact[i];
    }
  }
  [[nodiscard]] double relative() const {
    return squared_norm > 0 ? std::sqrt(squared_error / squared_norm) : 0.0;
  }
};

}  // namespace streaming_decode
