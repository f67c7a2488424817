#pragma once

#include <algorithm>
#include <cstddef>
#include <iomanip>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace program {

/// Rows of text, columns padded to their widest cell; the first column is left-aligned.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { add(std::move(header)); }

  void add(std::vector<std::string> row) {
    widths_.resize(std::max(widths_.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths_[i] = std::max(widths_[i], row[i].size());
    }
    rows_.push_back(std::move(row));
  }

  void print(std::ostream& out, const char* indent = "") const {
    for (const std::vector<std::string>& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        out << (i == 0 ? indent : "  ") << (i == 0 ? std::left : std::right)
            << std::setw(static_cast<int>(widths_[i])) << row[i];
      }
      out << '\n';
    }
  }

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> widths_;
};

}  // namespace program
