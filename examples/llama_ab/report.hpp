#pragma once

// Results as tables for people and as JSON for programs; both are written from the same rows.

#include "needles.hpp"
#include "perplexity.hpp"

#include "../program/table.hpp"

#include <nlohmann/json.hpp>

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iomanip>
#include <sstream>
#include <string>
#include <vector>

namespace llama_ab {

/// The most memory that this process has had resident, in bytes.
[[nodiscard]] inline std::size_t peak_resident_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

namespace detail {

[[nodiscard]] inline std::string fixed(double value, int digits, const char* unit = "") {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value << unit;
  return text.str();
}

[[nodiscard]] inline double rate(std::int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
}

[[nodiscard]] inline std::string text_of(const program::Table& table) {
  std::ostringstream text;
  table.print(text);
  return text.str();
}

}  // namespace detail

[[nodiscard]] inline std::string perplexity_text(const std::vector<PerplexityRow>& rows) {
  using detail::fixed;
  program::Table table({"cache", "perplexity", "delta", "+-", "KL", "top-1", "KV bytes", "x bf16",
                        "prefill t/s", "decode t/s", "decode KL"});
  for (const PerplexityRow& row : rows) {
    const PredictionSums sums = row.all();
    table.add({row.cache, fixed(sums.perplexity(), 4), fixed(100 * sums.delta(), 2, "%"),
               fixed(100 * sums.delta_error(), 2, "%"), fixed(sums.kl(), 5),
               fixed(100 * sums.top1(), 2, "%"), std::to_string(row.bytes),
               fixed(static_cast<double>(rows.front().bytes) /
                         static_cast<double>(std::max<std::size_t>(row.bytes, 1)),
                     2),
               fixed(detail::rate(row.prefill.count, row.prefill_seconds), 0),
               fixed(detail::rate(row.decode.count, row.decode_seconds), 1),
               fixed(row.decode.kl(), 5)});
  }
  return detail::text_of(table);
}

inline constexpr const char* perplexity_legend =
    "delta, +-     perplexity over that of exact bf16 rows, minus 1; its standard error\n"
    "KL, top-1     mean Kullback-Leibler divergence of the predictions from those with exact "
    "rows,\n"
    "              in nats; same most likely token\n"
    "KV bytes      of all tokens at the end, as allocated: codes, scales, exact windows, tables\n"
    "decode        the last tokens, one by one\n";

[[nodiscard]] inline std::string needles_text(const std::vector<NeedleRow>& rows) {
  program::Table table({"cache", "context", "hits of 10", "by depth", "copied", "answer loss"});
  for (const NeedleRow& row : rows) {
    std::string depths;
    for (const bool hit : row.hits) {
      depths += hit ? 'x' : '.';
    }
    table.add({row.cache, std::to_string(row.context), std::to_string(row.num_hits()), depths,
               std::to_string(row.copied) + "/" + std::to_string(row.copy_tokens),
               detail::fixed(row.answer_loss, 4)});
  }
  return detail::text_of(table);
}

inline constexpr const char* needles_legend =
    "hits          facts answered word for word, greedily; by depth, first to last\n"
    "copied        leading tokens of a random string in the middle that are repeated exactly\n"
    "answer loss   mean -log probability of the tokens of all answers, in nats\n";

[[nodiscard]] inline nlohmann::ordered_json sums_json(const PredictionSums& sums) {
  nlohmann::ordered_json json;
  json["predictions"] = sums.count;
  json["perplexity"] = sums.perplexity();
  json["delta"] = sums.delta();
  json["delta_standard_error"] = sums.delta_error();
  json["kl_divergence"] = sums.kl();
  json["top1_agreement"] = sums.top1();
  return json;
}

[[nodiscard]] inline nlohmann::ordered_json perplexity_json(
    const std::vector<PerplexityRow>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const PerplexityRow& row : rows) {
    nlohmann::ordered_json line = sums_json(row.all());
    line["cache"] = row.cache;
    line["decode"] = sums_json(row.decode);
    line["tokens"] = row.tokens;
    line["kv_bytes"] = row.bytes;
    line["kv_peak_bytes"] = row.peak_bytes;
    line["prefill_tokens_per_second"] = detail::rate(row.prefill.count, row.prefill_seconds);
    if (row.shadow.sampled_steps > 0) {
      nlohmann::ordered_json shadow;
      shadow["steps"] = row.shadow.steps;
      shadow["compared_steps"] = row.shadow.sampled_steps;
      for (const turboquant::ShadowLayer& layer : row.shadow.layers) {
        shadow["output_error_by_layer"].push_back(layer.output_error);
      }
      line["shadow"] = std::move(shadow);
    }
    line["decode_tokens_per_second"] = detail::rate(row.decode.count, row.decode_seconds);
    list.push_back(std::move(line));
  }
  return list;
}

[[nodiscard]] inline nlohmann::ordered_json needles_json(const std::vector<NeedleRow>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const NeedleRow& row : rows) {
    nlohmann::ordered_json line;
    line["cache"] = row.cache;
    line["context"] = row.context;
    line["hits"] = row.hits;
    line["num_hits"] = row.num_hits();
    line["copied_tokens"] = row.copied;
    line["copy_tokens"] = row.copy_tokens;
    line["answer_loss"] = row.answer_loss;
    list.push_back(std::move(line));
  }
  return list;
}

}  // namespace llama_ab
