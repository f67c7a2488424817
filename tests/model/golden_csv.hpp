#pragma once

#include <turboquant/base/error.hpp>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace turboquant::test {

/// The data rows of tests/data/model/`name`: comments and the header line are dropped.
inline std::vector<std::vector<std::string>> golden_rows(const std::string& name) {
  std::ifstream file(std::string(TURBOQUANT_TEST_DATA_DIR) + "/model/" + name);
  require(file.is_open(), ErrorCode::io, "golden_rows: cannot open ", name);
  std::vector<std::vector<std::string>> rows;
  bool header_seen = false;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') {
      continue;
    }
    if (!header_seen) {
      header_seen = true;
      continue;
    }
    std::vector<std::string> cells;
    std::istringstream stream(line);
    for (std::string cell; std::getline(stream, cell, ',');) {
      cells.push_back(cell);
    }
    rows.push_back(cells);
  }
  return rows;
}

inline std::int64_t number(const std::vector<std::string>& row, std::size_t column) {
  return std::stoll(row.at(column));
}

}  // namespace turboquant::test
