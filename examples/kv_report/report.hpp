#pragma once

// Measures codecs on a capture and turns the sums into the rows of a report.

#include "attention_error.hpp"
#include "capture.hpp"
#include "codecs.hpp"
#include "parallel.hpp"
#include "progress.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kv_report {

struct ReportOptions {
  std::vector<std::string> presets;  ///< names of `codec_catalogue`, in the order of the report
  std::uint64_t seed = 0;            ///< of the rotations and sketches
  std::optional<double> sm_scale;    ///< default: 1 / sqrt(head_dim of the keys)

  static constexpr double max_sm_scale = 1e6;
};

/// The attention columns of a row.
struct AttentionRow {
  double logit_error_mean = 0;
  double logit_error_std = 0;
  double output_relative_l2 = 0;
  double output_cosine = 0;
  double kl_divergence = 0;   ///< mean over rows, in nats
  double top1_agreement = 0;  ///< fraction of rows
};

/// One line of a table.
struct Row {
  std::string preset;
  std::int64_t bytes = 0;  ///< of all keys and values
  double key_bytes = 0;    ///< per vector
  double value_bytes = 0;  ///< per vector
  double ratio = 0;        ///< bytes of the same numbers in bf16 / bytes
  double key_cosine = 0;
  double key_relative_mse = 0;
  double value_cosine = 0;
  double value_relative_mse = 0;
  std::optional<AttentionRow> attention;

  [[nodiscard]] double bytes_per_token_head() const { return key_bytes + value_bytes; }
};

/// One table: a layer, or the total of all.
struct Section {
  std::optional<int> layer;      ///< nothing for the total
  std::int64_t token_heads = 0;  ///< tokens x kv heads
  std::int64_t bf16_bytes = 0;   ///< of the same numbers in bf16
  std::int64_t attention_rows = 0;
  std::vector<Row> rows;
};

namespace detail {

/// 0 only for 0 / 0: an error relative to nothing is infinite, and NaN stays NaN.
inline double quotient(double numerator, double denominator) {
  return numerator == 0 && denominator == 0 ? 0.0 : numerator / denominator;
}

inline double mean(double sum, std::int64_t count) {
  return quotient(sum, static_cast<double>(count));
}

inline Row make_row(const std::string& preset, const CodecError& error, std::int64_t bf16_bytes) {
  Row row;
  row.preset = preset;
  row.bytes = error.key.bytes + error.value.bytes;
  row.key_bytes = mean(static_cast<double>(error.key.bytes), error.key.vectors);
  row.value_bytes = mean(static_cast<double>(error.value.bytes), error.value.vectors);
  row.ratio = mean(static_cast<double>(bf16_bytes), row.bytes);
  row.key_cosine = mean(error.key.cosines, error.key.vectors);
  row.key_relative_mse = quotient(error.key.squared_error, error.key.squared_norm);
  row.value_cosine = mean(error.value.cosines, error.value.vectors);
  row.value_relative_mse = quotient(error.value.squared_error, error.value.squared_norm);
  const AttentionError& attention = error.attention;
  if (attention.rows > 0) {
    AttentionRow result;
    result.logit_error_mean = mean(attention.logit_errors, attention.logits);
    const double mean_square = mean(attention.squared_logit_errors, attention.logits);
    const double variance = mean_square - result.logit_error_mean * result.logit_error_mean;
    result.logit_error_std = std::sqrt(variance < 0 ? 0.0 : variance);  // by rounding only
    result.output_relative_l2 =
        std::sqrt(quotient(attention.output.squared_error, attention.output.squared_norm));
    result.output_cosine = mean(attention.output.cosines, attention.output.vectors);
    result.kl_divergence = mean(attention.divergences, attention.rows);
    result.top1_agreement = mean(static_cast<double>(attention.same_top), attention.rows);
    row.attention = result;
  }
  return row;
}

/// Errors of some codecs on one kv head of a layer; the exact attention is computed once for all.
inline std::vector<CodecError> measure_head(const LayerCapture& layer, std::int64_t head,
                                            std::span<const Codec> codecs, double sm_scale) {
  const auto key_dim = static_cast<std::size_t>(layer.key_dim);
  const auto value_dim = static_cast<std::size_t>(layer.value_dim);
  const std::vector<float> keys =
      LayerCapture::head(layer.keys, layer.kv_heads, head, layer.key_dim);
  const std::vector<float> values =
      LayerCapture::head(layer.values, layer.kv_heads, head, layer.value_dim);
  std::vector<CodecError> errors(codecs.size());
  std::vector<HeadAttention> approximate;
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    const Reconstruction key = codecs[i].key(keys);
    const Reconstruction value = codecs[i].value(values);
    errors[i].key = vector_error(keys, key.vectors, key_dim);
    errors[i].key.bytes = static_cast<std::int64_t>(key.bytes);
    errors[i].value = vector_error(values, value.vectors, value_dim);
    errors[i].value.bytes = static_cast<std::int64_t>(value.bytes);
    if (layer.query_heads > 0) {
      approximate.emplace_back(key.vectors, key_dim, value.vectors, value_dim);
    }
  }
  if (layer.query_heads == 0) {
    return errors;
  }
  HeadAttention exact(keys, key_dim, values, value_dim);
  const std::int64_t group = layer.query_heads / layer.kv_heads;
  for (std::int64_t query_head = head * group; query_head < (head + 1) * group; ++query_head) {
    const std::vector<float> queries =
        LayerCapture::head(layer.queries, layer.query_heads, query_head, layer.key_dim);
    for (std::size_t row = 0; row < layer.query_positions.size(); ++row) {
      const auto query = std::span(queries).subspan(row * key_dim, key_dim);
      const auto visible = static_cast<std::size_t>(layer.query_positions[row]) + 1;
      exact.attend(query, visible, sm_scale);
      for (std::size_t i = 0; i < codecs.size(); ++i) {
        approximate[i].attend(query, visible, sm_scale);
        add_row(errors[i].attention, exact, approximate[i]);
      }
    }
  }
  return errors;
}

/// A kv head and the codecs measured on it together: enough to share the exact attention, few
/// enough to bound the memory of a thread.
struct Task {
  static constexpr std::size_t max_codecs = 4;

  std::size_t layer = 0;
  std::int64_t head = 0;
  std::size_t first_codec = 0;
};

}  // namespace detail

/// One section per layer, then the total. The result does not depend on the number of threads.
inline std::vector<Section> measure(const std::vector<LayerCapture>& layers,
                                    const ReportOptions& options) {
  // Layers of one shape share their codecs.
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Codec>> codecs;
  std::vector<detail::Task> tasks;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const LayerCapture& layer = layers[l];
    std::vector<Codec>& shared = codecs[{layer.key_dim, layer.value_dim}];
    if (shared.empty()) {
      for (const std::string& name : options.presets) {
        shared.push_back(make_codec(name, static_cast<int>(layer.key_dim),
                                    static_cast<int>(layer.value_dim), options.seed));
      }
    }
    for (std::int64_t head = 0; head < layer.kv_heads; ++head) {
      for (std::size_t first = 0; first < options.presets.size();
           first += detail::Task::max_codecs) {
        tasks.push_back({l, head, first});
      }
    }
  }
  std::vector<std::vector<CodecError>> errors(tasks.size());
  {
    Progress progress("measuring", tasks.size());
    for_each_task(tasks.size(), [&](std::size_t i) {
      const detail::Task& task = tasks[i];
      const LayerCapture& layer = layers[task.layer];
      const double sm_scale =
          options.sm_scale.value_or(1 / std::sqrt(static_cast<double>(layer.key_dim)));
      const auto chosen = std::span(codecs.at({layer.key_dim, layer.value_dim}));
      const std::size_t count =
          std::min(detail::Task::max_codecs, chosen.size() - task.first_codec);
      errors[i] =
          detail::measure_head(layer, task.head, chosen.subspan(task.first_codec, count), sm_scale);
      progress.advance();
    });
  }
  // Sums in the order of the tasks, whoever ran them.
  std::vector<std::vector<CodecError>> by_layer(layers.size(),
                                                std::vector<CodecError>(options.presets.size()));
  std::vector<CodecError> all(options.presets.size());
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    for (std::size_t codec = 0; codec < errors[i].size(); ++codec) {
      by_layer[tasks[i].layer][tasks[i].first_codec + codec] += errors[i][codec];
    }
  }
  std::vector<Section> sections;
  Section total;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    Section section;
    section.layer = layers[l].layer;
    section.token_heads = layers[l].tokens * layers[l].kv_heads;
    section.bf16_bytes = 2 * section.token_heads * (layers[l].key_dim + layers[l].value_dim);
    section.attention_rows =
        layers[l].query_heads * static_cast<std::int64_t>(layers[l].query_positions.size());
    for (std::size_t codec = 0; codec < options.presets.size(); ++codec) {
      section.rows.push_back(
          detail::make_row(options.presets[codec], by_layer[l][codec], section.bf16_bytes));
      all[codec] += by_layer[l][codec];
    }
    total.token_heads += section.token_heads;
    total.bf16_bytes += section.bf16_bytes;
    total.attention_rows += section.attention_rows;
    sections.push_back(std::move(section));
  }
  for (std::size_t codec = 0; codec < options.presets.size(); ++codec) {
    total.rows.push_back(detail::make_row(options.presets[codec], all[codec], total.bf16_bytes));
  }
  sections.push_back(std::move(total));
  return sections;
}

}  // namespace kv_report
