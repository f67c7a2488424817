#pragma once

// The forward pass of a Llama model as it is defined: double precision, no cache, one loop for each
// sum. What the decoder is compared with.

#include "../../examples/llama_ab/model.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace turboquant::test {

using Rows = std::vector<std::vector<double>>;

inline std::vector<double> times(const llama_ab::Floats& weights, const std::vector<double>& x) {
  std::vector<double> y(weights.size() / x.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    y[i / x.size()] += static_cast<double>(weights[i]) * x[i % x.size()];
  }
  return y;
}

inline std::vector<double> rms_normed(const llama_ab::Floats& weights, const std::vector<double>& x,
                                      double epsilon) {
  double sum = 0;
  for (const double v : x) {
    sum += v * v;
  }
  std::vector<double> y(x);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] *=
        static_cast<double>(weights[i]) / std::sqrt(sum / static_cast<double>(x.size()) + epsilon);
  }
  return y;
}

/// RoPE over neighbours.
inline void rotate(std::vector<double>& row, const llama_ab::ModelConfig& config,
                   std::int64_t position) {
  const auto dim = static_cast<std::size_t>(config.key_dim);
  for (std::size_t start = 0; start < row.size(); start += dim) {
    for (std::int64_t i = 0; i < config.rotated_dims; i += 2) {
      const double angle = static_cast<double>(position) /
                           std::pow(config.rope_base, static_cast<double>(i) /
                                                          static_cast<double>(config.rotated_dims));
      double& a = row[start + static_cast<std::size_t>(i)];
      double& b = row[start + static_cast<std::size_t>(i) + 1];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = turned;
    }
  }
}

/// Logits of every token: (tokens, vocabulary).
inline Rows reference_logits(const llama_ab::Model& model, const std::vector<std::int32_t>& ids) {
  const llama_ab::ModelConfig& config = model.config;
  const auto key_dim = static_cast<std::size_t>(config.key_dim);
  const auto value_dim = static_cast<std::size_t>(config.value_dim);
  const auto heads = static_cast<std::size_t>(config.query_heads);
  const auto group = static_cast<std::size_t>(config.query_heads / config.kv_heads);
  const auto width = static_cast<std::size_t>(config.width);
  Rows stream;
  for (const std::int32_t id : ids) {
    const float* const row = model.embedding.data() + static_cast<std::size_t>(id) * width;
    stream.emplace_back(row, row + width);
  }
  for (const llama_ab::LayerWeights& layer : model.layers) {
    Rows keys;
    Rows values;
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const std::vector<double> x =
          rms_normed(layer.attention_norm, stream[t], config.norm_epsilon);
      std::vector<double> query = times(layer.query, x);
      keys.push_back(times(layer.key, x));
      values.push_back(times(layer.value, x));
      rotate(query, config, static_cast<std::int64_t>(t));
      rotate(keys.back(), config, static_cast<std::int64_t>(t));
      std::vector<double> attention(heads * value_dim);
      for (std::size_t head = 0; head < heads; ++head) {
        double sum = 0;
        std::vector<double> output(value_dim);
        for (std::size_t s = 0; s <= t; ++s) {
          double score = 0;
          for (std::size_t d = 0; d < key_dim; ++d) {
            score += query[head * key_dim + d] * keys[s][head / group * key_dim + d];
          }
          const double weight = std::exp(score / std::sqrt(static_cast<double>(key_dim)));
          sum += weight;
          for (std::size_t d = 0; d < value_dim; ++d) {
            output[d] += weight * values[s][head / group * value_dim + d];
          }
        }
        for (std::size_t d = 0; d < value_dim; ++d) {
          attention[head * value_dim + d] = output[d] / sum;
        }
      }
      const std::vector<double> added = times(layer.attention_output, attention);
      for (std::size_t i = 0; i < width; ++i) {
        stream[t][i] += added[i];
      }
      const std::vector<double> y =
          rms_normed(layer.feed_forward_norm, stream[t], config.norm_epsilon);
      std::vector<double> gate = times(layer.gate, y);
      const std::vector<double> up = times(layer.up, y);
      for (std::size_t i = 0; i < gate.size(); ++i) {
        gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
      }
      const std::vector<double> down = times(layer.down, gate);
      for (std::size_t i = 0; i < width; ++i) {
        stream[t][i] += down[i];
      }
    }
  }
  Rows logits;
  for (const std::vector<double>& row : stream) {
    logits.push_back(
        times(model.output_weights(), rms_normed(model.output_norm, row, config.norm_epsilon)));
  }
  return logits;
}

}  // namespace turboquant::test
