#pragma once

// Which layers need their bits: measured on a prompt, then the best plan within a budget.

#include "decoder.hpp"
#include "perplexity.hpp"
#include "progress.hpp"

#include <turboquant/model/bit_allocation.hpp>
#include <turboquant/runtime/codec_errors.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace llama_ab {

/// Exact rows of every layer, kept for calibration; attention is the engine's.
class RecordingCache final : public SequenceCache {
 public:
  struct Layer {
    std::vector<float> keys;
    std::vector<float> values;
    std::vector<float> queries;
  };

  RecordingCache(const ModelConfig& config, const Exec& exec)
      : config_(config),
        inner_(make_cache(config, {.name = "bf16"}, CacheMode::off, exec)),
        layers_(static_cast<std::size_t>(config.layers)) {}

  [[nodiscard]] const std::vector<Layer>& layers() const noexcept { return layers_; }
  [[nodiscard]] std::int64_t length() const noexcept override { return inner_->length(); }
  [[nodiscard]] bool can_prefill() const noexcept override { return true; }
  void attend(const AttentionStep& step, Step kind) override {
    inner_->attend(step, kind);
    Layer& layer = layers_[static_cast<std::size_t>(step.layer)];
    const auto keep = [&](std::vector<float>& to, const float* from, std::int64_t numbers) {
      to.insert(to.end(), from, from + step.count * numbers);
    };
    keep(layer.keys, step.keys, config_.kv_heads * config_.key_dim);
    keep(layer.values, step.values, config_.kv_heads * config_.value_dim);
    keep(layer.queries, step.queries, config_.query_heads * config_.key_dim);
  }
  void advance(std::int64_t count) noexcept override { inner_->advance(count); }
  void branch(const std::function<void()>& work) override { inner_->branch(work); }
  [[nodiscard]] std::size_t bytes() const override { return inner_->bytes(); }
  [[nodiscard]] std::size_t peak_bytes() const override { return inner_->peak_bytes(); }
  [[nodiscard]] turboquant::ShadowReport shadow_report() const override { return {}; }

 private:
  ModelConfig config_;
  std::unique_ptr<SequenceCache> inner_;
  std::vector<Layer> layers_;
};

/// What is measured of a layer's bits.
enum class CalibrateBy {
  attention,    ///< the error of its attention output
  predictions,  ///< the divergence of the model's predictions while this layer alone is compressed
};

namespace detail {

[[nodiscard]] inline turboquant::LayerShape layer_shape(const ModelConfig& config) {
  return {config.kv_heads, config.key_dim, config.value_dim};
}

/// Errors of `codecs` in every layer: (layers, codecs).
[[nodiscard]] inline std::vector<std::vector<double>> attention_errors(
    const Model& model, const Exec& exec, std::span<const TokenId> ids,
    std::span<const turboquant::LayerCodec> codecs) {
  const ModelConfig& config = model.config;
  RecordingCache cache(config, exec);
  Decoder decoder(model, exec);
  static_cast<void>(decoder.forward(cache, ids, 0));
  // Queries of the second half, which have something to look at.
  std::vector<std::int64_t> positions;
  const auto tokens = static_cast<std::int64_t>(ids.size());
  for (std::int64_t at = tokens / 2; at < tokens; at += std::max<std::int64_t>(1, tokens / 64)) {
    positions.push_back(at);
  }
  const std::int64_t numbers = config.query_heads * config.key_dim;
  std::vector<std::vector<double>> errors;
  Progress progress("calibrating", config.layers);
  for (const RecordingCache::Layer& layer : cache.layers()) {
    std::vector<float> queries;
    for (const std::int64_t at : positions) {
      const auto begin = layer.queries.begin() + at * numbers;
      queries.insert(queries.end(), begin, begin + numbers);
    }
    turboquant::CalibrationRows rows;
    rows.shape = layer_shape(config);
    rows.query_heads = config.query_heads;
    rows.keys = layer.keys;
    rows.values = layer.values;
    rows.queries = queries;
    rows.query_positions = positions;
    errors.push_back(turboquant::measure_codec_errors(rows, codecs));
    progress.advance(1);
  }
  return errors;
}

/// The same by the divergence of predictions. Keys and values are measured apart, beside 4 bits of
/// the other, and added.
[[nodiscard]] inline std::vector<std::vector<double>> prediction_errors(
    const Model& model, const Exec& exec, std::span<const TokenId> ids,
    std::span<const turboquant::LayerCodec> codecs, std::int64_t chunk) {
  const ModelConfig& config = model.config;
  Decoder exact(model, exec);
  const auto tokens = static_cast<std::int64_t>(ids.size()) - 1;
  const auto reference = make_cache(config, {.name = "bf16"}, CacheMode::off, exec);
  std::vector<float> truth;
  for (std::int64_t at = 0; at < tokens; at += chunk) {
    const std::int64_t count = std::min(chunk, tokens - at);
    const auto logits = exact.forward(
        *reference, ids.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)),
        count);
    truth.insert(truth.end(), logits.begin(), logits.end());
  }
  Decoder decoder(model, exec);
  Progress progress("calibrating", config.layers * tokens * 5);
  const auto divergence = [&](std::int64_t layer, const turboquant::LayerCodec& codec) {
    CachePlan plan;
    plan.bits.emplace();
    plan.bits->layers.resize(static_cast<std::size_t>(config.layers));
    plan.bits->layers[static_cast<std::size_t>(layer)] = codec;
    plan.window = 0;
    const auto cache = make_cache(config, plan, CacheMode::full_tq, exec);
    PredictionSums sums;
    for (std::int64_t at = 0; at < tokens; at += chunk) {
      const std::int64_t count = std::min(chunk, tokens - at);
      const auto logits = decoder.forward(
          *cache, ids.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)),
          count);
      sums += compare_logits(
          exec,
          std::span(truth).subspan(static_cast<std::size_t>(at * config.vocabulary), logits.size()),
          logits, ids.subspan(static_cast<std::size_t>(at) + 1, static_cast<std::size_t>(count)),
          "--calibrate", at);
      progress.advance(count);
    }
    return std::max(sums.kl(), 0.0);
  };
  std::vector<std::vector<double>> errors;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const double both = divergence(layer, {.key_bits = 4, .value_bits = 4});
    double by_key[5] = {0, 0, 0, 0, both};
    double by_value[5] = {0, 0, 0, 0, both};
    for (const int bits : {2, 3}) {
      by_key[bits] = divergence(layer, {.key_bits = bits, .value_bits = 4});
      by_value[bits] = divergence(layer, {.key_bits = 4, .value_bits = bits});
    }
    std::vector<double> row;
    for (const turboquant::LayerCodec& codec : codecs) {
      row.push_back(std::max(by_key[codec.key_bits] + by_value[codec.value_bits] - both, 0.0));
    }
    errors.push_back(std::move(row));
  }
  return errors;
}

}  // namespace detail

/// The plan of least error among keys and values of 2 to 4 bits that takes no more than `budget`.
/// @param ids a prompt of its own, of which at most `tokens` are taken
[[nodiscard]] inline turboquant::BitAllocation calibrate(const Model& model, const Exec& exec,
                                                         std::span<const TokenId> ids,
                                                         const turboquant::LayerCodec& budget,
                                                         CalibrateBy by, std::int64_t chunk) {
  const std::vector<turboquant::LayerCodec> codecs = turboquant::default_codec_choices();
  const std::vector<std::vector<double>> errors =
      by == CalibrateBy::attention ? detail::attention_errors(model, exec, ids, codecs)
                                   : detail::prediction_errors(model, exec, ids, codecs, chunk);
  const turboquant::LayerShape shape = detail::layer_shape(model.config);
  std::vector<std::vector<turboquant::BitChoice>> choices;
  for (const std::vector<double>& row : errors) {
    choices.push_back(turboquant::bit_choices(shape, codecs, row));
  }
  return turboquant::allocate_bits(
      choices, model.config.layers * turboquant::layer_bytes_per_token(budget, shape));
}

/// "K 4 3 3 ... V 4 4 3 ...", one number a layer.
[[nodiscard]] inline std::string plan_text(const turboquant::BitPlan& plan) {
  std::string keys = "keys  ";
  std::string values = "values";
  for (const auto& layer : plan.layers) {
    keys += layer ? " " + std::to_string(layer->key_bits) : " -";
    values += layer ? " " + std::to_string(layer->value_bits) : " -";
  }
  return keys + "\n" + values + "\n";
}

}  // namespace llama_ab
