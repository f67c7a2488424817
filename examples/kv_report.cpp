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
#include "program/numbers.hpp"
#include "program/program.hpp"

#include <turboquant/base/error.hpp>
#include <turboquant/device/runtime.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <new>
#include <string>
#include <vector>

namespace {

struct Arguments {
  std::string file = TURBOQUANT_FIXTURE;
  std::string json;
  std::vector<std::string> presets;
  std::vector<int> layers;
  std::uint64_t seed = 0;
  double sm_scale = 0;
  bool list = false;
};

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

void report(const Arguments& arguments, bool has_sm_scale) {
  kv_report::ReportOptions options;
  options.presets = chosen_presets(arguments.presets);
  options.seed = arguments.seed;
  if (has_sm_scale) {
    constexpr double limit = kv_report::ReportOptions::max_sm_scale;
    turboquant::require(arguments.sm_scale > 0 && arguments.sm_scale <= limit,
                        turboquant::ErrorCode::invalid_argument, "--sm-scale is ",
                        arguments.sm_scale, ", expected more than 0 and at most ", limit);
    options.sm_scale = arguments.sm_scale;
  }
  // All input is read and checked before the parallel run time starts.
  const kv_report::Capture capture = kv_report::load_capture(arguments.file, arguments.layers);
  const program::OutputFile json("--json", arguments.json);
  json.require_not(arguments.file);
  json.require_writable();
  const turboquant::KokkosScope kokkos;
  const std::vector<kv_report::Section> sections = kv_report::measure(capture.layers, options);

  const std::string name = std::filesystem::path(arguments.file).filename().string();
  std::cout << name << ", seed " << options.seed << "\n";
  for (const kv_report::Section& section : sections) {
    std::cout << "\n" << kv_report::table_text(section);
  }
  std::cout << "\n" << kv_report::legend_text();
  kv_report::print_unused(capture.unused);
  program::flush_output();
  if (json.wanted()) {
    json.write([&](std::ostream& out) {
      out << kv_report::report_json(name, options, sections)
                 .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
          << '\n';
    });
  }
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
      ->check(program::integer<std::uint64_t>())
      ->capture_default_str();
  const CLI::Option* const sm_scale =
      app.add_option("--sm-scale", arguments.sm_scale,
                     "factor of the logits, at most 1e6 (default: 1 / sqrt(head_dim))");
  const CLI::Option* const list =
      app.add_flag("--list", arguments.list, "list the codecs and exit; takes no other argument");
  return program::run("kv_report", app, argc, argv, [&] {
    if (arguments.list) {
      program::require_alone(app, list);
      return print_catalogue();
    }
    turboquant::require(json->count() == 0 || !arguments.json.empty(),
                        turboquant::ErrorCode::invalid_argument,
                        "--json '': expected the name of a file");
    try {
      report(arguments, sm_scale->count() > 0);
    } catch (const std::bad_alloc&) {
      turboquant::fail(turboquant::ErrorCode::out_of_range, arguments.file,
                       ": not enough memory (choose fewer layers with --layer)");
    }
  });
}
