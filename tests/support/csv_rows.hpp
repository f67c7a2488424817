#pragma once

#include <turboquant/base/error.hpp>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace turboquant::test {

/// The data rows of tests/data/`name`: comments and the header line are dropped.
inline std::vector<std::vector<std::string>> csv_rows(const std::string& name) {
  std::ifstream file(std::string(TURBOQUANT_TEST_DATA_DIR) + "/" + name);
  require(file.is_open(), ErrorCode::io, "csv_rows: cannot open ", name);
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

}  // namespace turboquant::test
