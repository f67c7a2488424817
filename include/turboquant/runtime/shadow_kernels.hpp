#pragma once

#include <turboquant/attention/decode_problem.hpp>
#include <turboquant/device/tile_attention.hpp>
#include <turboquant/math/softmax_state.hpp>
#include <turboquant/runtime/shadow_report.hpp>

#include <cstdint>

namespace turboquant::detail {

/// Shapes and constants of one comparison.
struct ShadowProblem {
  std::int64_t rows = 0;  ///< sequences x queries x query heads
  std::int64_t num_queries = 1;
  std::int64_t query_heads = 1;
  int kv_heads = 1;
  int key_dim = 0;
  int value_dim = 0;
  std::int64_t columns = 0;          ///< logits of a row
  std::int64_t history_columns = 0;  ///< those of compressed keys, from the first one on
  std::int64_t sliding_window = 0;
  float sm_scale = 0;
  float soft_cap = 0;
};

/// The tokens of one sequence.
struct ShadowSequence {
  DecodeSequence record{};
  std::int64_t length = 0;
  std::int64_t sinks = 0;  ///< first positions that every query sees
};

/// Compares one row of output a work item.
template <class Number>
struct CompareOutputs {
  const Number* engine;  ///< (rows, dim)
  const float* library;  ///< (rows, dim)
  const float* lse;      ///< (rows)
  ShadowRow* results;    ///< (rows), written
  int dim;

  TURBOQUANT_FUNCTION void operator()(std::int64_t row) const {
    results[row] = compare_output_row(engine + row * dim, library + row * dim, dim);
    results[row].visible = lse[row] != negative_infinity;
  }
};

/// Makes the library's logits of one row a work item and compares them with the engine's.
template <class Query>
struct CompareLogits {
  ShadowProblem problem;
  const ShadowSequence* sequences;
  const Query* queries;  ///< (rows, key_dim)
  const float* engine;   ///< (rows, columns)
  const float* history;  ///< (rows, history_columns), of compressed keys
  float* logits;         ///< (rows, columns), written
  ShadowRow* results;    ///< (rows), their logits are written

  TURBOQUANT_FUNCTION void operator()(std::int64_t row) const {
    const std::int64_t per_sequence = problem.num_queries * problem.query_heads;
    const ShadowSequence& sequence = sequences[row / per_sequence];
    const DecodeSequence& record = sequence.record;
    const std::int64_t position = record.query_position + row % per_sequence / problem.query_heads;
    const auto head =
        static_cast<int>(row % problem.query_heads / (problem.query_heads / problem.kv_heads));
    float* const out = logits + row * problem.columns;
    VisibleLogits visible;
    visible.end = position < sequence.length ? position + 1 : sequence.length;
    if (problem.sliding_window > 0) {
      visible.begin = position - problem.sliding_window + 1;
      visible.sinks = sequence.sinks;
    }
    for (std::int64_t token = 0; token < visible.end; ++token) {
      if (!visible(token)) {
        continue;
      }
      float logit = 0;
      if (token >= record.history_begin && token < record.history_end) {
        logit = history[row * problem.history_columns + token - record.history_begin];
      } else if (token < record.num_sinks) {
        logit = exact_logit(row, record.sink_keys, token, head);
      } else {
        const std::int64_t at = record.window_start + token - record.window_position;
        logit = exact_logit(row, record.window_keys,
                            at < record.window_capacity ? at : at - record.window_capacity, head);
      }
      out[token] = problem.soft_cap > 0 ? soft_capped(logit, problem.soft_cap) : logit;
    }
    results[row].logits = compare_logit_row(engine + row * problem.columns, out, visible);
  }

 private:
  TURBOQUANT_FUNCTION float exact_logit(std::int64_t row, const RowView& keys, std::int64_t token,
                                        int head) const {
    const Query* const query = queries + row * problem.key_dim;
    const std::int64_t start = keys.offset(token, head);
    float sum = 0;
    for (int d = 0; d < problem.key_dim; ++d) {
      float number = 0;
      if constexpr (sizeof(Query) == sizeof(float)) {
        number = query[d];
      } else {
        number = query[d].to_float();
      }
      sum += number * keys.read(start + d);
    }
    return sum * problem.sm_scale;
  }
};

}  // namespace turboquant::detail
