#pragma once

// A manager with its inputs and a plain model of attention in double precision.

#include "cache/cache_test_support.hpp"

#include <turboquant/device/tile_decoder.hpp>
#include <turboquant/runtime/cache_manager.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace runtime_test {

using cache_test::Host;
using cache_test::HostExec;
using cache_test::HostRows;
using cache_test::Tokens;
using turboquant::KVShape;
using turboquant::SequenceId;

template <class T>
using Manager = turboquant::CacheManager<Host, T>;
using HostQueries = Kokkos::View<float****, Kokkos::LayoutRight, Host>;
using HostLse = Kokkos::View<float***, Kokkos::LayoutRight, Host>;
using Options = turboquant::AttentionOptions<Host>;

inline Options exact() {
  Options options;
  options.exactness = turboquant::Exactness::exact;
  return options;
}

/// A layer of the given sizes; no codec for 0 bits.
inline turboquant::LayerOptions layer(const KVShape& shape, int key_bits = 3, int value_bits = 4,
                                      std::int64_t window = 128, std::int64_t block = 64) {
  turboquant::LayerOptions options;
  options.capture.shape = shape;
  options.capture.window_capacity = window;
  options.capture.block_size = block;
  if (key_bits > 0) {
    options.codec = cache_test::codec_options(shape.key_dim, shape.value_dim, key_bits, value_bits);
  }
  return options;
}

/// The same layer with key means.
inline turboquant::LayerOptions with_key_means(turboquant::LayerOptions options) {
  options.codec->format.key_centring = turboquant::KeyCentring::tile_mean;
  return options;
}

template <class T>
void append(Manager<T>& manager, std::int64_t layer, SequenceId sequence, const Tokens<T>& tokens,
            std::int64_t begin, std::int64_t end) {
  const std::vector<SequenceId> ids{sequence};
  const std::vector<std::int64_t> offsets{0, end - begin};
  manager.append(HostExec(), layer, ids, offsets, tokens.keys_from(begin, end),
                 tokens.values_from(begin, end));
}

/// Output and log-sum-exp of a batch.
struct Attention {
  HostQueries output;
  HostLse lse;
};

template <class T>
Attention attend(Manager<T>& manager, std::int64_t layer, const std::vector<SequenceId>& ids,
                 const HostQueries& queries, int value_dim, const Options& options = exact(),
                 bool shadow = false) {
  Attention result{
      cache_test::uninitialised<HostQueries>("output", queries.extent(0), queries.extent(1),
                                             queries.extent(2), value_dim),
      cache_test::uninitialised<HostLse>("lse", queries.extent(0), queries.extent(1),
                                         queries.extent(2))};
  if (shadow) {
    manager.shadow_attend(HostExec(), layer, ids, queries, result.output, result.lse, options);
  } else {
    manager.attend(HostExec(), layer, ids, queries, result.output, result.lse, options);
  }
  return result;
}

inline HostQueries queries(std::uint64_t seed, std::size_t sequences, std::size_t m,
                           std::size_t heads, int dim) {
  const Tokens<float> rows(seed, 0, std::int64_t(sequences * m), {int(heads), dim, 8});
  auto all = cache_test::uninitialised<HostQueries>("queries", sequences, m, heads, dim);
  std::copy_n(rows.keys.data(), rows.keys.size(), all.data());
  return all;
}

/// Keys and values of the tokens that a layer of a sequence holds, as floats: decoded history,
/// exact window and sinks.
struct HeldTokens {
  std::vector<std::int64_t> positions;
  std::vector<float> keys;    ///< (tokens, kv_heads, key_dim)
  std::vector<float> values;  ///< (tokens, kv_heads, value_dim)
};

template <class T>
HeldTokens read_back(const turboquant::CaptureView<T>& view, const KVShape& shape,
                     const turboquant::TileCodec<Host>* codec) {
  HeldTokens held;
  const auto add_row = [&](const T* keys, const T* values, std::int64_t row,
                           std::int64_t position) {
    held.positions.push_back(position);
    for (std::int64_t i = 0; i < shape.key_numbers(); ++i) {
      held.keys.push_back(cache_test::to_float(keys[row * shape.key_numbers() + i]));
    }
    for (std::int64_t i = 0; i < shape.value_numbers(); ++i) {
      held.values.push_back(cache_test::to_float(values[row * shape.value_numbers() + i]));
    }
  };
  for (std::int64_t i = 0; i < view.sink_count; ++i) {
    add_row(view.sink_keys, view.sink_values, i, i);
  }
  std::vector<float> row(std::size_t(std::max(shape.key_dim, shape.value_dim)));
  std::vector<float> scratch(2 * row.size());
  for (std::int64_t p = view.history.begin; p < view.history.end; ++p) {
    held.positions.push_back(p);
    const auto slot = std::size_t(p - view.history.page_position) % codec->format().tokens();
    for (int h = 0; h < shape.kv_heads; ++h) {
      const std::byte* tile = cache_test::tile_of(view.history, codec->format(), p, h);
      turboquant::decode_key(codec->tables(), tile, slot, row.data(), scratch.data());
      held.keys.insert(held.keys.end(), row.begin(), row.begin() + shape.key_dim);
    }
    for (int h = 0; h < shape.kv_heads; ++h) {
      const std::byte* tile = cache_test::tile_of(view.history, codec->format(), p, h);
      turboquant::decode_value(codec->tables(), tile, slot, row.data(), scratch.data());
      held.values.insert(held.values.end(), row.begin(), row.begin() + shape.value_dim);
    }
  }
  for (std::int64_t i = 0; i < view.window_end - view.window_begin; ++i) {
    add_row(view.window_keys, view.window_values, (view.window_start + i) % view.window_rows,
            view.window_begin + i);
  }
  return held;
}

/// What a query may see and how logits are made.
struct ModelOptions {
  double sm_scale = 0;  ///< 0: 1 / sqrt(key_dim)
  double soft_cap = 0;
  std::int64_t window = 0;
  std::int64_t sinks = 0;
  std::optional<double> sink_logit{};
};

/// Attention of one query head over held tokens in double precision.
/// @param position of the query
/// @return output (value_dim), then the log-sum-exp
inline std::vector<double> model_attention(const HeldTokens& held, const KVShape& shape,
                                           const float* query, int kv_head, std::int64_t position,
                                           const ModelOptions& options = {}) {
  const auto dk = std::size_t(shape.key_dim);
  const auto dv = std::size_t(shape.value_dim);
  const double scale = options.sm_scale != 0 ? options.sm_scale : 1 / std::sqrt(double(dk));
  std::vector<std::pair<double, std::size_t>> logits;
  double largest = options.sink_logit.value_or(-std::numeric_limits<double>::infinity());
  for (std::size_t t = 0; t < held.positions.size(); ++t) {
    const std::int64_t p = held.positions[t];
    const bool in_window =
        options.window == 0 || p > position - options.window || p < options.sinks;
    if (p > position || !in_window) {
      continue;
    }
    double logit = 0;
    for (std::size_t d = 0; d < dk; ++d) {
      logit += double(query[d]) *
               double(held.keys[(t * std::size_t(shape.kv_heads) + std::size_t(kv_head)) * dk + d]);
    }
    logit *= scale;
    logit = options.soft_cap > 0 ? options.soft_cap * std::tanh(logit / options.soft_cap) : logit;
    logits.emplace_back(logit, t);
    largest = std::max(largest, logit);
  }
  std::vector<double> result(dv + 1, 0.0);
  result[dv] = -std::numeric_limits<double>::infinity();
  if (logits.empty() && !options.sink_logit) {
    return result;
  }
  double sum = options.sink_logit ? std::exp(*options.sink_logit - largest) : 0.0;
  for (const auto& [logit, t] : logits) {
    const double weight = std::exp(logit - largest);
    sum += weight;
    for (std::size_t d = 0; d < dv; ++d) {
      result[d] +=
          weight *
          double(held.values[(t * std::size_t(shape.kv_heads) + std::size_t(kv_head)) * dv + d]);
    }
  }
  for (std::size_t d = 0; d < dv; ++d) {
    result[d] /= sum;
  }
  result[dv] = largest + std::log(sum);
  return result;
}

/// The largest difference between an attention and the model, over output and log-sum-exp.
inline double difference(const float* output, float lse, const std::vector<double>& model) {
  double worst = 0;
  for (std::size_t d = 0; d + 1 < model.size(); ++d) {
    worst = std::max(worst, std::fabs(double(output[d]) - model[d]));
  }
  if (std::isinf(model.back())) {
    return std::isinf(lse) && lse < 0 ? worst : std::numeric_limits<double>::infinity();
  }
  return std::max(worst, std::fabs(double(lse) - model.back()));
}

/// The largest difference between `attend` for the newest m tokens of a sequence and the model over
/// what is held.
template <class T>
double attention_error(Manager<T>& manager, std::int64_t layer, SequenceId id, std::size_t m,
                       std::size_t query_heads, const turboquant::LayerOptions& layer_options,
                       std::uint64_t seed = 1, const Options& options = exact()) {
  const KVShape& shape = layer_options.capture.shape;
  const HostQueries q = queries(seed, 1, m, query_heads, shape.key_dim);
  const Attention result = attend(manager, layer, {id}, q, shape.value_dim, options);
  std::optional<turboquant::TileCodec<Host>> codec;
  if (layer_options.codec) {
    codec.emplace(*layer_options.codec);
  }
  const HeldTokens held =
      read_back(manager.view(HostExec(), layer, id), shape, codec ? &*codec : nullptr);
  const std::int64_t length = manager.length(layer, id);
  double worst = 0;
  for (std::size_t j = 0; j < m; ++j) {
    for (std::size_t h = 0; h < query_heads; ++h) {
      const auto kv_head = int(h / (query_heads / std::size_t(shape.kv_heads)));
      ModelOptions model;
      model.sm_scale = double(options.sm_scale);
      model.soft_cap = double(options.logits_soft_cap);
      model.window = layer_options.capture.sliding_window;
      model.sinks = layer_options.capture.sinks;
      if (options.sink_logits.extent(0) > 0) {
        model.sink_logit = double(options.sink_logits(h));
      }
      const auto expected = model_attention(
          held, shape, &q(0, j, h, 0), kv_head,
          std::max<std::int64_t>(0, length - std::int64_t(m)) + std::int64_t(j), model);
      worst =
          std::max(worst, difference(&result.output(0, j, h, 0), result.lse(0, j, h), expected));
    }
  }
  return worst;
}

}  // namespace runtime_test
