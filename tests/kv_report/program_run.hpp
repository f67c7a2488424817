#pragma once

// Runs the kv_report program and takes its report apart.

#include <io/safetensors_writer.hpp>

#include <nlohmann/json.hpp>

#include <sys/wait.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace turboquant::test {

inline std::string contents(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

struct ProgramResult {
  int exit_code = -1;
  std::string output;
  std::string errors;

  [[nodiscard]] bool one_error_line() const {
    return std::count(errors.begin(), errors.end(), '\n') == 1 && errors.back() == '\n' &&
           errors.rfind("kv_report: ", 0) == 0;
  }
};

/// `text` as one word of the shell.
inline std::string shell_word(const std::string& text) {
  std::string word = "'";
  for (const char c : text) {
    word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  word += "'";
  return word;
}

/// Runs the program with `arguments`; `environment` holds NAME=value words, and `output` is where
/// its standard output goes when that is not to be read.
inline ProgramResult run_program(const std::vector<std::string>& arguments,
                                 const std::string& environment = "",
                                 const std::string& output = "") {
  const TemporaryDirectory directory;
  std::string command = environment.empty() ? "" : "env " + environment + " ";
  command += shell_word(TURBOQUANT_KV_REPORT);
  for (const std::string& argument : arguments) {
    command += " ";
    command += shell_word(argument);
  }
  command += " </dev/null >" + shell_word(output.empty() ? directory.file("out") : output) + " 2>" +
             shell_word(directory.file("err"));
  const int status = std::system(command.c_str());
  ProgramResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.output = contents(directory.file("out"));
  result.errors = contents(directory.file("err"));
  return result;
}

/// A table of the report: its heading, and its lines cut into words.
struct Table {
  std::string heading;
  std::vector<std::vector<std::string>> lines;
};

/// The tables of a report's text: each begins after an empty line and has a title line that starts
/// with "preset".
inline std::vector<Table> tables_of(const std::string& text) {
  std::vector<Table> tables;
  std::istringstream stream(text);
  std::string previous;
  std::string line;
  bool inside = false;
  while (std::getline(stream, line)) {
    if (line.rfind("preset ", 0) == 0) {
      tables.push_back({previous, {}});
      inside = true;
    } else if (line.empty()) {
      inside = false;
    } else if (inside) {
      std::istringstream words(line);
      tables.back().lines.emplace_back(std::istream_iterator<std::string>(words),
                                       std::istream_iterator<std::string>());
    }
    previous = line;
  }
  return tables;
}

/// Runs the program with `--json` and returns the parsed file; the text goes to `result`.
inline nlohmann::json run_json(std::vector<std::string> arguments, ProgramResult& result,
                               const std::string& environment = "") {
  const TemporaryDirectory directory;
  arguments.insert(arguments.end(), {"--json", directory.file("report.json")});
  result = run_program(arguments, environment);
  return nlohmann::json::parse(contents(directory.file("report.json")), nullptr, false);
}

}  // namespace turboquant::test
