#pragma once

// A report as tables for people and as JSON for programs; both are written from the same rows.

#include "report.hpp"

#include "../program/table.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

namespace kv_report {

namespace detail {

/// `value` as `format`, which prints one number, says; "nan", "inf" or "-inf" when it is not
/// finite.
inline std::string formatted(const char* format, double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  const int length = std::snprintf(nullptr, 0, format, value);
  std::string text(static_cast<std::size_t>(std::max(length, 0)) + 1, '\0');
  std::snprintf(text.data(), text.size(), format, value);
  text.pop_back();
  return text;
}

/// An error measure: 0 when exact, four decimals where they say enough, three or four digits
/// elsewhere.
inline std::string error_text(double value) {
  const double size = std::fabs(value);
  if (size == 0) {
    return "0";
  }
  if (size < 0.01) {
    return formatted("%.2e", value);
  }
  return formatted(size < 1e5 ? "%.4f" : "%.4g", value);
}

inline std::vector<std::string> cells(const Row& row) {
  std::vector<std::string> text{
      row.preset,
      formatted("%.6g", row.bytes_per_token_head()),
      formatted("%.2f", row.ratio),
      std::to_string(row.bytes),
      formatted("%.5f", row.key_cosine),
      error_text(row.key_relative_mse),
      formatted("%.5f", row.value_cosine),
      error_text(row.value_relative_mse),
  };
  if (row.attention) {
    text.push_back(error_text(row.attention->logit_error_std));
    text.push_back(error_text(row.attention->output_relative_l2));
    text.push_back(formatted("%.5f", row.attention->output_cosine));
    text.push_back(error_text(row.attention->kl_divergence));
    text.push_back(formatted("%.2f%%", 100 * row.attention->top1_agreement));
  } else {
    text.resize(13, "-");
  }
  return text;
}

}  // namespace detail

/// One table, headed by a line that says what it is of.
inline std::string table_text(const Section& section) {
  program::Table table({"preset", "B/token-head", "x bf16", "bytes", "key cos", "key MSE",
                        "value cos", "value MSE", "logit sd", "out L2", "out cos", "KL", "top-1"});
  for (const Row& row : section.rows) {
    table.add(detail::cells(row));
  }
  std::ostringstream text;
  if (section.layer) {
    text << "Layer " << *section.layer;
  } else {
    text << "Total";
  }
  text << ": " << section.token_heads << " token-heads, " << section.bf16_bytes
       << " bytes in bf16, " << section.attention_rows << " attention rows\n";
  table.print(text);
  return text.str();
}

/// What the columns mean.
inline const char* legend_text() {
  return "B/token-head  bytes of one key and one value of one head: codes, scales, zero points and "
         "norms\n"
         "x bf16        how many times smaller than bf16\n"
         "cos, MSE      mean cosine (1 of two zero vectors, 0 of one); squared error relative to "
         "the squared length,\n"
         "              over all vectors\n"
         "logit sd      standard deviation of (approximate - exact) scaled attention logits\n"
         "out L2, cos   attention output: relative L2 error over all rows; mean cosine\n"
         "KL            mean Kullback-Leibler divergence of the attention weights from the exact "
         "ones, in nats\n"
         "top-1         rows whose largest attention weight stays at the same token\n"
         "nan, inf      not finite, because decoded numbers are not (null in JSON)\n";
}

/// The same numbers, unrounded; numbers that are not finite are null, and so are the attention
/// fields without queries.
inline nlohmann::ordered_json report_json(const std::string& file, const ReportOptions& options,
                                          const std::vector<Section>& sections) {
  using Json = nlohmann::ordered_json;
  Json root;
  root["file"] = file;
  root["seed"] = options.seed;
  root["sm_scale"] = options.sm_scale ? Json(*options.sm_scale) : Json(nullptr);
  root["layers"] = Json::array();
  for (const Section& section : sections) {
    Json table;
    if (section.layer) {
      table["layer"] = *section.layer;
    }
    table["token_heads"] = section.token_heads;
    table["bf16_bytes"] = section.bf16_bytes;
    table["attention_rows"] = section.attention_rows;
    table["rows"] = Json::array();
    for (const Row& row : section.rows) {
      Json line;
      line["preset"] = row.preset;
      line["bytes"] = row.bytes;
      line["bytes_per_token_head"] = row.bytes_per_token_head();
      line["key_bytes"] = row.key_bytes;
      line["value_bytes"] = row.value_bytes;
      line["ratio_to_bf16"] = row.ratio;
      line["key_cosine"] = row.key_cosine;
      line["key_relative_mse"] = row.key_relative_mse;
      line["value_cosine"] = row.value_cosine;
      line["value_relative_mse"] = row.value_relative_mse;
      const auto attention = [&](const char* name, double AttentionRow::*field) {
        line[name] = row.attention ? Json((*row.attention).*field) : Json(nullptr);
      };
      attention("logit_error_mean", &AttentionRow::logit_error_mean);
      attention("logit_error_std", &AttentionRow::logit_error_std);
      attention("output_relative_l2", &AttentionRow::output_relative_l2);
      attention("output_cosine", &AttentionRow::output_cosine);
      attention("kl_divergence", &AttentionRow::kl_divergence);
      attention("top1_agreement", &AttentionRow::top1_agreement);
      table["rows"].push_back(std::move(line));
    }
    if (section.layer) {
      root["layers"].push_back(std::move(table));
    } else {
      root["total"] = std::move(table);
    }
  }
  return root;
}

}  // namespace kv_report
