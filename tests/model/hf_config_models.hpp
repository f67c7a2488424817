#pragma once

// Models from a few fields of a config.json, those that must be refused, and lists of layers.

#include <turboquant/model/hf_config.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "support/error_of.hpp"

namespace turboquant::test {

using Indices = std::vector<std::int64_t>;

/// A model of `num_layers` layers with `fields` after their number.
inline ModelConfig model_of(std::int64_t num_layers, const std::string& fields) {
  return parse_model_config(R"({"num_hidden_layers":)" + std::to_string(num_layers) + "," + fields +
                            "}");
}

/// Such a model must be refused with a message that mentions `part`.
inline void refuse(std::int64_t num_layers, const std::string& fields, ErrorCode code,
                   std::string_view part) {
  CAPTURE(fields);
  const std::string message = error_of(code, [&] { (void)model_of(num_layers, fields); });
  CHECK_MESSAGE(mentions(message, part), message);
}

/// first, first + step, ... below `end`.
inline Indices every(std::int64_t first, std::int64_t step, std::int64_t end) {
  Indices list;
  for (std::int64_t i = first; i < end; i += step) {
    list.push_back(i);
  }
  return list;
}

}  // namespace turboquant::test
