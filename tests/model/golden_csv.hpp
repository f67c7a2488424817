#pragma once

#include <support/csv_rows.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace turboquant::test {

/// `csv_rows` of tests/data/model/`name`.
inline std::vector<std::vector<std::string>> golden_rows(const std::string& name) {
  return csv_rows("model/" + name);
}

inline std::int64_t number(const std::vector<std::string>& row, std::size_t column) {
  return std::stoll(row.at(column));
}

}  // namespace turboquant::test
