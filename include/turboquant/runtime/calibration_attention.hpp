#pragma once

#include <turboquant/device/kokkos_compat.hpp>
#include <turboquant/model/bit_plan.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace turboquant {

/// Keys, values and queries of one layer, captured on a calibration prompt. Query head h reads kv
/// head h / (query_heads / kv_heads). Does not own them.
struct CalibrationRows {
  LayerShape shape{};
  std::int64_t query_heads = 0;  ///< a multiple of kv_heads
  /// (tokens, kv_heads, key_dim), finite, as they are appended to the cache: after RoPE
  std::span<const float> keys{};
  std::span<const float> values{};   ///< (tokens, kv_heads, value_dim), finite
  std::span<const float> queries{};  ///< (positions, query_heads, key_dim), finite, after RoPE
  /// (positions); query i sees tokens 0 to query_positions[i]
  std::span<const std::int64_t> query_positions{};
  float sm_scale = 0;  ///< factor of the logits; 0 means 1 / sqrt(key_dim)

  [[nodiscard]] std::size_t tokens() const noexcept {
    return keys.size() / static_cast<std::size_t>(shape.kv_heads * shape.key_dim);
  }
};

namespace detail {

inline void require_calibration_rows(const char* caller, const CalibrationRows& rows) {
  const auto size = [&](const char* name, std::int64_t value, std::int64_t most) {
    require(value >= 1 && value <= most, ErrorCode::invalid_argument, caller, ": ", name, " is ",
            value, ", expected 1 to ", most);
  };
  size("shape.kv_heads", rows.shape.kv_heads, 1024);
  size("shape.key_dim", rows.shape.key_dim, 1024);
  size("shape.value_dim", rows.shape.value_dim, 1024);
  size("query_heads", rows.query_heads, 65536);
  require(rows.query_heads % rows.shape.kv_heads == 0, ErrorCode::shape_mismatch, caller,
          ": query_heads is ", rows.query_heads,
          ", expected a multiple of kv_heads = ", rows.shape.kv_heads);
  const auto extent = [&](const char* name, std::size_t is, std::size_t expected,
                          const char* shape) {
    require(is == expected, ErrorCode::shape_mismatch, caller, ": ", name, ".size() is ", is,
            ", expected ", expected, ", ", shape);
  };
  const std::size_t tokens = rows.tokens();
  const auto kv_heads = static_cast<std::size_t>(rows.shape.kv_heads);
  extent("keys", rows.keys.size(), tokens * kv_heads * static_cast<std::size_t>(rows.shape.key_dim),
         "(tokens, kv_heads, key_dim)");
  extent("values", rows.values.size(),
         tokens * kv_heads * static_cast<std::size_t>(rows.shape.value_dim),
         "(tokens, kv_heads, value_dim)");
  extent(
      "queries", rows.queries.size(),
      rows.query_positions.size() * static_cast<std::size_t>(rows.query_heads * rows.shape.key_dim),
      "(positions, query_heads, key_dim)");
  for (std::size_t i = 0; i < rows.query_positions.size(); ++i) {
    const std::int64_t position = rows.query_positions[i];
    require(position >= 0 && position < static_cast<std::int64_t>(tokens), ErrorCode::out_of_range,
            caller, ": query_positions[", i, "] is ", position,
            ", expected 0 to one less than the ", tokens, " tokens");
  }
  require(!rows.query_positions.empty(), ErrorCode::invalid_argument, caller,
          ": query_positions is empty, expected at least one query");
  require(std::isfinite(rows.sm_scale), ErrorCode::invalid_argument, caller, ": sm_scale is ",
          rows.sm_scale, ", expected a finite number");
  for (const auto& [name, numbers] :
       {std::pair{"keys", rows.keys}, std::pair{"values", rows.values},
        std::pair{"queries", rows.queries}}) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      require(std::isfinite(numbers[i]), ErrorCode::non_finite, caller, ": ", name, "[", i, "] is ",
              numbers[i], ", expected a finite number");
    }
  }
}

/// Attention of every query over exact rows and over each pair of approximate keys and values, in
/// double.
class CalibrationAttention {
 public:
  CalibrationAttention(const CalibrationRows& rows, std::int64_t exact_window, std::int64_t sinks)
      : rows_(rows),
        exact_window_(static_cast<std::size_t>(exact_window)),
        sinks_(static_cast<std::size_t>(sinks)),
        tokens_(rows.tokens()),
        exact_keys_(by_dim(rows.keys)) {}

  /// @param id for `add_pair`; keys (tokens, kv_heads, key_dim)
  void add_keys(std::size_t id, std::span<const float> keys) {
    keys_.push_back({id, by_dim(keys), {}});
  }
  void add_values(std::size_t id, std::vector<float>&& values) {
    values_.push_back({id, std::move(values)});
  }
  /// The next result is that of these keys and values.
  void add_pair(std::size_t keys_id, std::size_t values_id) {
    const auto values = std::find_if(values_.begin(), values_.end(),
                                     [&](const Values& v) { return v.id == values_id; });
    const auto keys =
        std::find_if(keys_.begin(), keys_.end(), [&](const Keys& k) { return k.id == keys_id; });
    keys->pairs.push_back({static_cast<std::size_t>(values - values_.begin()), num_pairs_});
    ++num_pairs_;
  }

  /// Squared relative errors of the output, one a pair; 0 where there is nothing to err about.
  template <class Exec>
  [[nodiscard]] std::vector<double> squared_errors(const Exec& exec) const {
    const auto query_heads = static_cast<std::size_t>(rows_.query_heads);
    const std::size_t num_rows = rows_.query_positions.size() * query_heads;
    const std::size_t columns = num_pairs_ + 1;
    std::vector<double> sums(num_rows * columns, 0.0);
    const auto workers = (std::min)(num_rows, static_cast<std::size_t>(exec.concurrency()));
    const std::size_t scratch = tokens_ + 2 * static_cast<std::size_t>(rows_.shape.value_dim);
    std::vector<double> memory(workers * scratch);
    const auto work = [&](std::size_t worker) {
      for (std::size_t row = worker; row < num_rows; row += workers) {
        measure_row(row / query_heads, row % query_heads, memory.data() + worker * scratch,
                    sums.data() + row * columns);
      }
    };
    const Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Static>,
                              Kokkos::IndexType<std::size_t>>
        policy(exec, 0, workers);
    Kokkos::parallel_for("turboquant::measure_codec_errors", policy, work);
    exec.fence();
    std::vector<double> total(columns, 0.0);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      total[i % columns] += sums[i];
    }
    std::vector<double> errors(total.begin(), total.end() - 1);
    for (double& error : errors) {
      error = error == 0 ? 0.0 : error / total.back();
    }
    return errors;
  }

 private:
  struct Pair {
    std::size_t values;  ///< index in values_
    std::size_t result;
  };
  struct Keys {
    std::size_t id;
    std::vector<float> by_dim;  ///< (kv_heads, key_dim, tokens)
    std::vector<Pair> pairs;
  };
  struct Values {
    std::size_t id;
    std::vector<float> rows;  ///< (tokens, kv_heads, value_dim)
  };

  /// Keys with the tokens of a dimension side by side, so that logits need no horizontal sums.
  [[nodiscard]] std::vector<float> by_dim(std::span<const float> keys) const {
    const auto width = static_cast<std::size_t>(rows_.shape.kv_heads * rows_.shape.key_dim);
    std::vector<float> turned(keys.size());
    for (std::size_t token = 0; token < tokens_; ++token) {
      for (std::size_t i = 0; i < width; ++i) {
        turned[i * tokens_ + token] = keys[token * width + i];
      }
    }
    return turned;
  }

  /// Adds the squared errors of one query head, and last its squared length.
  void measure_row(std::size_t query, std::size_t head, double* scratch, double* sums) const {
    const auto key_dim = static_cast<std::size_t>(rows_.shape.key_dim);
    const auto value_dim = static_cast<std::size_t>(rows_.shape.value_dim);
    const auto query_heads = static_cast<std::size_t>(rows_.query_heads);
    const std::size_t kv_head =
        head / (query_heads / static_cast<std::size_t>(rows_.shape.kv_heads));
    const std::size_t visible = static_cast<std::size_t>(rows_.query_positions[query]) + 1;
    const std::size_t begin = (std::min)(sinks_, visible);
    const std::size_t end = (std::max)(begin, visible - (std::min)(exact_window_, visible));
    const float* const q = rows_.queries.data() + (query * query_heads + head) * key_dim;
    double* const weights = scratch;
    double* const exact = scratch + tokens_;
    double* const output = exact + value_dim;
    const auto logits_over = [&](const std::vector<float>& keys, std::size_t from, std::size_t to) {
      for (std::size_t d = 0; d < key_dim; ++d) {
        const float* const key = keys.data() + (kv_head * key_dim + d) * tokens_;
        const double factor = static_cast<double>(q[d]);
        for (std::size_t token = from; token < to; ++token) {
          weights[token] += factor * static_cast<double>(key[token]);
        }
      }
    };
    const auto attend = [&](const std::vector<float>& keys) {
      std::fill_n(weights, visible, 0.0);
      logits_over(exact_keys_, 0, begin);
      logits_over(keys, begin, end);
      logits_over(exact_keys_, end, visible);
      softmax(weights, visible);
    };
    const auto average = [&](std::span<const float> values, double* out) {
      std::fill_n(out, value_dim, 0.0);
      const auto add = [&](std::span<const float> from, std::size_t first, std::size_t last) {
        for (std::size_t token = first; token < last; ++token) {
          const float* const row =
              from.data() +
              (token * static_cast<std::size_t>(rows_.shape.kv_heads) + kv_head) * value_dim;
          for (std::size_t d = 0; d < value_dim; ++d) {
            out[d] += weights[token] * static_cast<double>(row[d]);
          }
        }
      };
      add(rows_.values, 0, begin);
      add(values, begin, end);
      add(rows_.values, end, visible);
    };
    attend(exact_keys_);
    average(rows_.values, exact);
    for (std::size_t d = 0; d < value_dim; ++d) {
      sums[num_pairs_] += exact[d] * exact[d];
    }
    for (const Keys& keys : keys_) {
      attend(keys.by_dim);
      for (const Pair& pair : keys.pairs) {
        average(values_[pair.values].rows, output);
        for (std::size_t d = 0; d < value_dim; ++d) {
          const double difference = output[d] - exact[d];
          sums[pair.result] += difference * difference;
        }
      }
    }
  }

  /// Inner products become weights.
  void softmax(double* logits, std::size_t count) const {
    const double scale = rows_.sm_scale != 0
                             ? static_cast<double>(rows_.sm_scale)
                             : 1 / std::sqrt(static_cast<double>(rows_.shape.key_dim));
    double largest = -std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < count; ++i) {
      logits[i] *= scale;
      largest = (std::max)(largest, logits[i]);
    }
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      logits[i] = std::exp(logits[i] - largest);
      sum += logits[i];
    }
    for (std::size_t i = 0; i < count; ++i) {
      logits[i] /= sum;
    }
  }

  CalibrationRows rows_;
  std::size_t exact_window_;
  std::size_t sinks_;
  std::size_t tokens_;
  std::vector<float> exact_keys_;  ///< (kv_heads, key_dim, tokens)
  std::vector<Keys> keys_{};
  std::vector<Values> values_{};
  std::size_t num_pairs_ = 0;
};

}  // namespace detail
}  // namespace turboquant
