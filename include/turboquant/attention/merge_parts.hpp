#pragma once

#include <turboquant/attention/decode_kernels.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace turboquant::detail {

/// Third step: one work item merges the partial outputs of one query row, in part order and in
/// double.
template <class Output>
struct MergeParts {
  TileTables tables;
  DecodeWorkspace workspace;
  const DecodeSequence* sequences;
  const float* sink_logits;  ///< (query_heads) or null
  Output* output;            ///< (sequences, num_queries, query_heads, value_dim)
  float* lse;                ///< (sequences, num_queries, query_heads)

  TURBOQUANT_FUNCTION void operator()(std::int64_t item) const {
    const DecodeLayout& layout = workspace.layout;
    const std::int64_t query_heads = static_cast<std::int64_t>(layout.kv_heads) * layout.ratio;
    const std::int64_t sequence = item / query_heads / layout.num_queries;
    const auto query = static_cast<int>(item / query_heads % layout.num_queries);
    const auto query_head = static_cast<int>(item % query_heads);
    const int head = query_head / layout.ratio;
    const int row = query * layout.ratio + query_head % layout.ratio;
    const int dim = tables.format.value_dim;
    Output* out = output + item * dim;

    if (!is_empty(sequences[sequence]) && !has_usable_query(sequence, head, row)) {
      const float no_number = std::numeric_limits<float>::quiet_NaN();
      for (int d = 0; d < dim; ++d) {
        store(no_number, out[d]);
      }
      lse[item] = no_number;
      return;
    }
    double highest = static_cast<double>(negative_infinity);
    for (int part = 0; part <= layout.num_splits; ++part) {
      const auto maximum = static_cast<double>(
          *workspace.floats(layout.maxima, workspace.part_row(sequence, part, head) + row));
      highest = maximum > highest ? maximum : highest;
    }
    const bool nothing = highest == static_cast<double>(negative_infinity);
    double sum = 0;
    if (sink_logits != nullptr) {
      const double sink = static_cast<double>(sink_logits[query_head]) * log2_e;
      highest = sink > highest ? sink : highest;
      sum = sink == highest ? 1.0 : std::exp2(sink - highest);
    }
    if (nothing) {
      for (int d = 0; d < dim; ++d) {
        store(0.0F, out[d]);
      }
      lse[item] = sink_logits != nullptr ? sink_logits[query_head] : negative_infinity;
      return;
    }
    double total[max_tile_dim];
    for (int d = 0; d < dim; ++d) {
      total[d] = 0;
    }
    for (int part = 0; part < layout.num_splits; ++part) {
      add_part(sequence, part, head, row, highest, total, sum);
    }
    if (tables.rotates_values()) {
      float rotated[max_tile_dim];
      float spare[max_tile_dim];
      for (int d = 0; d < dim; ++d) {
        rotated[d] = static_cast<float>(total[d]);
      }
      tables.value_rotation.template inverse<1>(rotated, spare);
      for (int d = 0; d < dim; ++d) {
        total[d] = static_cast<double>(rotated[d]);
      }
    }
    add_part(sequence, layout.num_splits, head, row, highest, total, sum);
    for (int d = 0; d < dim; ++d) {
      store(static_cast<float>(total[d] / sum), out[d]);
    }
    lse[item] = static_cast<float>((highest + std::log2(sum)) * natural_log_of_2);
  }

 private:
  /// What every number of a scaled query is below. NaN and infinity are not, and must not look like
  /// a query that sees nothing.
  static constexpr float query_limit = 0x1p100F;

  static TURBOQUANT_FUNCTION bool is_empty(const DecodeSequence& sequence) noexcept {
    return sequence.num_sinks == 0 && sequence.window_count == 0 &&
           sequence.history_begin == sequence.history_end;
  }

  [[nodiscard]] TURBOQUANT_FUNCTION bool has_usable_query(std::int64_t sequence, int head,
                                                          int row) const noexcept {
    const DecodeLayout& layout = workspace.layout;
    const int dim = tables.format.key_dim;
    const std::int64_t first = (workspace.head_index(sequence, head) * layout.rows + row) * dim;
    const float* query = workspace.floats(layout.plain_queries, first);
    bool usable = true;
    for (int d = 0; d < dim; ++d) {
      usable = usable && query[d] < query_limit && query[d] > -query_limit;
    }
    return usable;
  }

  TURBOQUANT_FUNCTION void add_part(std::int64_t sequence, int part, int head, int row,
                                    double highest, double* total, double& sum) const noexcept {
    const DecodeLayout& layout = workspace.layout;
    const std::int64_t index = workspace.part_row(sequence, part, head) + row;
    const float maximum = *workspace.floats(layout.maxima, index);
    if (maximum == negative_infinity) {
      return;
    }
    const double weight = std::exp2(static_cast<double>(maximum) - highest);
    const float* from = workspace.floats(layout.outputs, index * tables.format.value_dim);
    for (int d = 0; d < tables.format.value_dim; ++d) {
      total[d] += weight * static_cast<double>(from[d]);
    }
    sum += weight * static_cast<double>(*workspace.floats(layout.sums, index));
  }

  static TURBOQUANT_FUNCTION void store(float x, float& out) noexcept { out = x; }
  template <class Half>
  static TURBOQUANT_FUNCTION void store(float x, Half& out) noexcept {
    out = Half::from_float(x);
  }
};

}  // namespace turboquant::detail
