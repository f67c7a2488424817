// Shows what each codec does to keys and values captured from a language model: bytes, distortion,
// attention error.
//
// Input: a safetensors file with tensors
//   layers.<i>.key, layers.<i>.value  (tokens, kv_heads, head_dim), F32, F16 or BF16; keys as
//                                     attention uses them
//   layers.<i>.query                  (positions, query_heads, head_dim), optional
//   query_positions                   (positions), I64, optional; default: the last tokens
// Exit code: 0; 2 for a wrong file or argument; 1 when the output cannot be written. Errors are one
// line on stderr. Numbers that are not finite, which a codec can decode to from very large ones,
// are "nan" or "inf" in the tables and null in JSON.

#include "kv_report/capture.hpp"
#include "kv_report/codecs.hpp"
#include "kv_report/output.hpp"
#include "kv_report/report.hpp"

#include <turboquant/base/error.hpp>
#include <turboquant/device/runtime.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace {

constexpr int wrong_input = 2;
constexpr int no_output = 1;

struct Arguments {
  std::string file = TURBOQUANT_FIXTURE;
  std::string json;
  std::vector<std::string> presets;
  std::vector<int> layers;
  std::string seed = "0";
  double sm_scale = 0;
  bool list = false;
};

/// Writes one line to stderr, whatever names it quotes, and returns `code`.
int complain(std::string message, int code) {
  std::replace_if(
      message.begin(), message.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, '?');
  std::cerr << "kv_report: " << message << '\n';
  return code;
}

/// What `exit_code` is once everything printed has really been written.
int after_flush(int exit_code) {
  return std::cout.flush() ? exit_code : complain("standard output cannot be written", no_output);
}

void print_catalogue() {
  for (const kv_report::CatalogueEntry& entry : kv_report::codec_catalogue()) {
    std::cout << std::left << std::setw(20) << entry.name << ' ' << entry.summary << '\n';
  }
}

/// The chosen names without repetitions, or all.
std::vector<std::string> chosen_presets(const std::vector<std::string>& names) {
  std::vector<std::string> chosen;
  std::string known;
  for (const kv_report::CatalogueEntry& entry : kv_report::codec_catalogue()) {
    known += known.empty() ? "" : ", ";
    known += entry.name;
    if (names.empty() || std::find(names.begin(), names.end(), entry.name) != names.end()) {
      chosen.emplace_back(entry.name);
    }
  }
  for (const std::string& name : names) {
    turboquant::require(std::find(chosen.begin(), chosen.end(), name) != chosen.end(),
                        turboquant::ErrorCode::invalid_argument, "--preset ",
                        turboquant::detail::in_quotes(name), ": expected one of ", known);
  }
  return chosen;
}

/// All 64 bits of a seed, which a number parser of signed or rounding kind would lose.
std::uint64_t parse_seed(const std::string& text) {
  std::uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, seed);
  turboquant::require(
      parsed.ec == std::errc() && parsed.ptr == end, turboquant::ErrorCode::invalid_argument,
      "--seed ", turboquant::detail::in_quotes(text), ": expected an integer from 0 to 2^64 - 1");
  return seed;
}

void print_unused(const std::vector<std::string>& tensors) {
  constexpr std::size_t shown = 5;
  if (tensors.empty()) {
    return;
  }
  std::cout << "not used      " << tensors.size()
            << (tensors.size() == 1 ? " tensor: " : " tensors: ");
  for (std::size_t i = 0; i < std::min(shown, tensors.size()); ++i) {
    std::cout << (i == 0 ? "" : ", ") << tensors[i];
  }
  std::cout << (tensors.size() > shown ? ", ...\n" : "\n");
}

/// Whether both paths lead to one file, by whatever links.
bool same_file(const std::string& a, const std::string& b) {
  std::error_code absent;
  return std::filesystem::equivalent(a, b, absent);
}

int report(const Arguments& arguments, bool has_sm_scale) {
  kv_report::ReportOptions options;
  options.presets = chosen_presets(arguments.presets);
  options.seed = parse_seed(arguments.seed);
  if (has_sm_scale) {
    constexpr double limit = kv_report::ReportOptions::max_sm_scale;
    turboquant::require(arguments.sm_scale > 0 && arguments.sm_scale <= limit,
                        turboquant::ErrorCode::invalid_argument, "--sm-scale is ",
                        arguments.sm_scale, ", expected more than 0 and at most ", limit);
    options.sm_scale = arguments.sm_scale;
  }
  // All input is read and checked before the parallel run time starts.
  const kv_report::Capture capture = kv_report::load_capture(arguments.file, arguments.layers);
  std::ofstream json;
  if (!arguments.json.empty()) {
    turboquant::require(!same_file(arguments.file, arguments.json),
                        turboquant::ErrorCode::invalid_argument, "--json ", arguments.json,
                        ": is the input file, expected another one");
    // Opened for appending: an existing file keeps its contents until there is a report.
    json.open(arguments.json, std::ios::app);
    if (!json) {
      return complain("--json " + arguments.json + ": cannot be opened for writing", no_output);
    }
    json.close();
  }
  const turboquant::KokkosScope kokkos;
  const std::vector<kv_report::Section> sections = kv_report::measure(capture.layers, options);

  const std::string name = std::filesystem::path(arguments.file).filename().string();
  std::cout << name << ", seed " << options.seed << "\n";
  for (const kv_report::Section& section : sections) {
    std::cout << "\n" << kv_report::table_text(section);
  }
  std::cout << "\n" << kv_report::legend_text();
  print_unused(capture.unused);
  if (const int code = after_flush(0); code != 0) {
    return code;
  }
  if (!arguments.json.empty()) {
    json.open(arguments.json, std::ios::trunc);
    json << kv_report::report_json(name, options, sections)
                .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
         << '\n';
    if (!json.flush()) {
      return complain("--json " + arguments.json + ": cannot be written", no_output);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Bytes, distortion and attention error of each codec on captured keys and values");
  app.add_option("file", arguments.file,
                 "safetensors file (default: the fixture of this repository)");
  const CLI::Option* const json =
      app.add_option("--json", arguments.json, "also write the report to this file");
  app.add_option("--preset", arguments.presets, "only this codec; may be repeated")
      ->expected(1)
      ->take_all();
  app.add_option("--layer", arguments.layers, "only this layer; may be repeated")
      ->expected(1)
      ->take_all();
  app.add_option("--seed", arguments.seed, "seed of the random rotations and sketches")
      ->capture_default_str();
  const CLI::Option* const sm_scale =
      app.add_option("--sm-scale", arguments.sm_scale,
                     "factor of the logits, at most 1e6 (default: 1 / sqrt(head_dim))");
  const CLI::Option* const list =
      app.add_flag("--list", arguments.list, "list the codecs and exit; takes no other argument");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return after_flush(app.exit(error));
    }
    return complain(std::string(error.what()) + " (--help lists the arguments)", wrong_input);
  }
  if (arguments.list) {
    for (const CLI::Option* const option : app.get_options()) {
      if (option != list && option->count() > 0) {
        return complain(
            "--list is given with " + option->get_name() + ", expected no other argument",
            wrong_input);
      }
    }
    print_catalogue();
    return after_flush(0);
  }
  if (json->count() > 0 && arguments.json.empty()) {
    return complain("--json '': expected the name of a file", wrong_input);
  }
  try {
    return report(arguments, sm_scale->count() > 0);
  } catch (const std::bad_alloc&) {
    return complain(arguments.file + ": not enough memory (choose fewer layers with --layer)",
                    wrong_input);
  } catch (const std::exception& error) {
    return complain(error.what(), wrong_input);
  }
}
