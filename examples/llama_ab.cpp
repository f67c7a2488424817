// An A/B engine: a Llama-architecture model out of a GGUF file over a KV cache of this library, in
// any of its formats and modes, against the same model over exact rows.
//
// Prints perplexity, distance of the predictions, memory and speed on a text, and how many hidden
// facts are found again. Exit code: 0; 2 for a wrong file or argument; 1 when an output cannot be
// written. Errors are one line on stderr.

#include "llama_ab/calibration.hpp"
#include "llama_ab/decoder.hpp"
#include "llama_ab/needles.hpp"
#include "llama_ab/perplexity.hpp"
#include "llama_ab/report.hpp"
#include "llama_ab/text.hpp"
#include "llama_ab/tokenizer.hpp"
#include "program/numbers.hpp"
#include "program/program.hpp"

#include <turboquant/base/config.hpp>
#include <turboquant/device/runtime.hpp>
#include <turboquant/io/message_text.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace {

using namespace llama_ab;

struct Arguments {
  std::string model;
  std::string text = LLAMA_AB_TEXT;
  std::vector<std::string> caches;
  std::vector<std::string> plans;
  std::string calibrate;
  std::string budget = "tq_k3v3";
  std::string measure = "predictions";
  double shadow = 0;
  std::string mode = "full_tq";
  std::string json;
  std::string logits;
  std::string command;
  std::int64_t tokens = 0;
  std::int64_t chunk = 64;
  std::optional<std::int64_t> decode;  ///< nothing: 64, or all tokens
  std::vector<std::int64_t> contexts;
  int threads = -1;
  std::uint64_t seed = 0;
  bool full = false;
  bool list = false;
};

/// Where the target llama_ab_model puts the model.
std::string default_model() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  const std::string root = cache != nullptr && *cache != '\0' ? std::string(cache)
                           : home != nullptr && *home != '\0' ? std::string(home) + "/.cache"
                                                              : std::string();
  return root.empty() ? root : root + "/" + LLAMA_AB_MODEL;
}

std::vector<std::string> default_caches(bool full) {
  const std::vector<std::string> best{"tq_k4v4+rotated+mean", "tq_k3v4+rotated+mean",
                                      "tq_k3v3+mean", "tq_k2v2_mean"};
  if (!full) {
    return best;
  }
  std::vector<std::string> names{"f32"};
  for (const turboquant::CacheCodec& preset : turboquant::cache_presets) {
    names.emplace_back(preset.name);
  }
  names.insert(names.end(), best.begin(), best.end() - 1);
  return names;
}

/// Logits of every token with float rows, for comparison with other implementations.
void write_logits(const Arguments& arguments, const Model& model, const Exec& exec,
                  const std::vector<TokenId>& ids, std::ostream& file) {
  const auto cache =
      make_cache(model.config, parse_plan("f32", model.config), CacheMode::off, exec);
  Decoder decoder(model, exec);
  const auto tokens = static_cast<std::int64_t>(ids.size());
  for (std::int64_t at = 0; at < tokens;) {
    const std::int64_t count = (std::min)(arguments.chunk, tokens - at);
    const auto logits = decoder.forward(
        *cache,
        std::span(ids).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)),
        count);
    file.write(reinterpret_cast<const char*>(logits.data()),
               static_cast<std::streamsize>(logits.size_bytes()));
    at += count;
  }
  std::cout << "logits (" << tokens << ", " << model.config.vocabulary << "), float\n";
}

void evaluate(const Arguments& arguments) {
  const std::string path = arguments.model.empty() ? default_model() : arguments.model;
  std::error_code status;
  require(
      !arguments.model.empty() || std::filesystem::exists(path, status), ErrorCode::io,
      "no model: give one with --model FILE, or build the target llama_ab_model, which fetches ",
      "one to ", path);
  const std::string name = std::filesystem::path(path).filename().string();
  const program::OutputFile json("--json", arguments.json);
  const program::OutputFile logits("--logits", arguments.logits);
  const program::OutputFile calibrated("--calibrate", arguments.calibrate);
  json.require_not(calibrated);
  for (const program::OutputFile* output : {&json, &logits, &calibrated}) {
    output->require_not(path);
    output->require_not(arguments.text);
    for (const std::string& plan : arguments.plans) {
      output->require_not(plan);
    }
    for (const std::string& cache : arguments.caches) {
      if (cache.starts_with('@')) {
        output->require_not(cache.substr(1, cache.find('+') - 1));
      }
    }
  }
  const std::string text = read_text(arguments.text);
  const MappedFile mapped(path);
  const GgufFile file(mapped.bytes(), name);
  const Tokenizer tokenizer(file);
  const Model model = load_model(file);
  require(tokenizer.vocabulary() == static_cast<std::size_t>(model.config.vocabulary),
          ErrorCode::format, name, ": has ", tokenizer.vocabulary(), " tokens and embeddings for ",
          model.config.vocabulary);
  std::vector<CachePlan> plans;
  const bool usual =
      arguments.caches.empty() && arguments.plans.empty() && arguments.calibrate.empty();
  for (const std::string& cache : usual ? default_caches(arguments.full) : arguments.caches) {
    plans.push_back(parse_plan(cache, model.config));
  }
  for (const std::string& plan : arguments.plans) {
    plans.push_back(parse_plan("@" + plan, model.config));
  }
  const CachePlan budget = parse_plan(arguments.budget, model.config);
  require(arguments.calibrate.empty() || budget.codec.has_value(), ErrorCode::invalid_argument,
          "--budget ", turboquant::detail::in_quotes(arguments.budget), ": expected a preset");
  const CacheMode mode = turboquant::parse_cache_mode(arguments.mode);
  require(arguments.shadow == 0 || mode == CacheMode::capture_only, ErrorCode::invalid_argument,
          "--shadow is ", arguments.shadow, " in mode ", arguments.mode,
          ", expected --mode capture_only");
  const std::vector<TokenId> all = tokenizer.encode(text);
  const std::int64_t wanted =
      arguments.tokens > 0 ? arguments.tokens : (arguments.full ? 8192 : 2048);
  const auto available = static_cast<std::int64_t>(all.size());
  require(wanted < available && wanted <= model.config.context, ErrorCode::out_of_range,
          "--tokens is ", wanted, ", expected at most ",
          (std::min)(available - 1, model.config.context), " (text and context of the model)");
  const std::int64_t decode = arguments.decode.value_or((std::min)(wanted, std::int64_t{64}));
  require(decode <= wanted, ErrorCode::out_of_range, "--decode is ", decode,
          ", expected at most the tokens to predict, ", wanted);
  const std::vector<TokenId> ids(all.begin(), all.begin() + wanted + 1);
  const std::int64_t rest = available - wanted - 1;
  require(arguments.calibrate.empty() || rest >= 128, ErrorCode::out_of_range,
          "--calibrate: ", rest,
          " tokens of the text are not predicted, expected at least 128 to calibrate with");
  // The usual contexts as far as the text reaches; those that were asked for must fit.
  std::vector<std::int64_t> contexts = arguments.contexts;
  if (contexts.empty()) {
    contexts = arguments.full ? std::vector<std::int64_t>{2048, 4096, 8192}
                              : std::vector<std::int64_t>{2048};
    std::erase_if(contexts, [&](std::int64_t context) {
      return context > (std::min)(available, model.config.context);
    });
  }
  std::erase(contexts, 0);
  std::vector<Haystack> haystacks;
  for (const std::int64_t context : contexts) {
    require(context <= model.config.context, ErrorCode::out_of_range, "--context is ", context,
            ", expected at most the model's ", model.config.context);
    haystacks.push_back(make_haystack(tokenizer, all, context, arguments.seed));
  }
  for (const program::OutputFile* output : {&json, &logits, &calibrated}) {
    output->require_writable();
  }

  const turboquant::KokkosScope kokkos({.num_threads = arguments.threads});
  const Exec exec;
  if (logits.wanted()) {
    return logits.write([&](std::ostream& out) {
      write_logits(arguments, model, exec, {ids.begin(), ids.end() - 1}, out);
    });
  }
  if (!arguments.calibrate.empty()) {
    const auto begin = all.begin() + wanted + 1;
    const std::vector<TokenId> prompt(begin, begin + (std::min<std::int64_t>)(rest, 512));
    const turboquant::TileFormat& format = budget.codec->format;
    const turboquant::BitAllocation allocation = calibrate(
        model, exec, prompt,
        {.key_codec = format.key_codec,
         .key_bits = format.key_bits,
         .value_codec = format.value_codec,
         .value_bits = format.value_bits,
         .value_group =
             format.value_codec == turboquant::ValueCodec::grouped ? format.value_group : 0},
        arguments.measure == "attention" ? CalibrateBy::attention : CalibrateBy::predictions,
        arguments.chunk);
    program::write_output([&] { turboquant::save_bit_plan(arguments.calibrate, allocation.plan); });
    std::cout << "plan of " << allocation.bytes << " bytes a token, from " << prompt.size()
              << " tokens behind those predicted\n"
              << plan_text(allocation.plan) << '\n';
    plans.push_back(budget);
    plans.push_back(parse_plan("@" + arguments.calibrate, model.config));
  }
  nlohmann::ordered_json report;
  report["version"] = std::to_string(TURBOQUANT_VERSION_MAJOR) + "." +
                      std::to_string(TURBOQUANT_VERSION_MINOR) + "." +
                      std::to_string(TURBOQUANT_VERSION_PATCH);
  report["command"] = arguments.command;
  report["seed"] = arguments.seed;
  report["model"] = name;
  report["text"] = std::filesystem::path(arguments.text).filename().string();
  report["mode"] = arguments.mode;
  report["chunk"] = arguments.chunk;
  report["threads"] = exec.concurrency();
  report["kernels"] = kernels().name;
  std::cout << name << ", " << wanted << " tokens of " << report["text"].get<std::string>()
            << ", mode " << arguments.mode << ", chunks of " << arguments.chunk << ", "
            << exec.concurrency() << " threads, " << kernels().name << "\n\n";
  const std::vector<PerplexityRow> rows = measure_perplexity(model, exec, ids, plans,
                                                             {.chunk = arguments.chunk,
                                                              .decode_tokens = decode,
                                                              .mode = mode,
                                                              .shadow = arguments.shadow});
  std::cout << perplexity_text(rows) << '\n' << std::flush;
  report["perplexity"] = perplexity_json(rows);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (!plans[i].exact() && wanted <= plans[i].window + plans[i].sinks) {
      std::cout << plans[i].name << ": all " << wanted << " tokens are in the exact window of "
                << plans[i].window << "; nothing is compressed\n";
    }
  }
  for (const PerplexityRow& row : rows) {
    if (row.shadow.sampled_steps > 0) {
      std::cout << row.cache << ": attention beside the engine's, " << row.shadow.to_text() << '\n';
    }
  }
  std::vector<NeedleRow> needles;
  for (std::size_t i = 0; i < haystacks.size(); ++i) {
    const std::vector<NeedleRow> found =
        measure_needles(model, exec, haystacks[i], plans, mode, arguments.chunk, contexts[i]);
    needles.insert(needles.end(), found.begin(), found.end());
  }
  if (!needles.empty()) {
    std::cout << needles_text(needles) << '\n';
    report["needles"] = needles_json(needles);
  }
  const std::size_t resident = peak_resident_bytes();
  report["peak_resident_bytes"] = resident;
  std::cout << perplexity_legend << (needles.empty() ? "" : needles_legend)
            << "peak memory   of the process, all caches at once: " << resident / 1'000'000
            << " MB\n";
  program::flush_output();
  if (json.wanted()) {
    json.write([&](std::ostream& out) {
      out << report.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  for (int i = 0; i < argc; ++i) {
    arguments.command += i == 0 ? "llama_ab" : std::string(" ") + argv[i];
  }
  CLI::App app(
      "Perplexity, memory, speed and recall of a language model with each kind of KV cache");
  const CLI::Validator file = program::file_name();
  app.add_option("--model", arguments.model,
                 "GGUF file of a Llama model (default: what the target llama_ab_model fetched)")
      ->check(file);
  app.add_option("--text", arguments.text, "text to predict (default: a text of this repository)")
      ->check(file);
  CLI::Option* const caches =
      app.add_option("--cache", arguments.caches,
                     std::string("may be repeated: ") + std::string(plan_help))
          ->expected(1)
          ->take_all();
  CLI::Option* const plans =
      app.add_option("--plan", arguments.plans, "a bit plan to evaluate, JSON; may be repeated")
          ->check(file)
          ->expected(1)
          ->take_all();
  CLI::Option* const calibrate =
      app.add_option("--calibrate", arguments.calibrate,
                     "measure which layers need their bits, write the best plan to this file, and "
                     "evaluate it")
          ->check(file);
  app.add_option("--budget", arguments.budget, "of --calibrate: no more bytes than this preset")
      ->needs(calibrate)
      ->capture_default_str();
  app.add_option("--measure", arguments.measure,
                 "of --calibrate: predictions of the model or attention outputs of layers")
      ->check(CLI::IsMember({"predictions", "attention"}))
      ->needs(calibrate)
      ->capture_default_str();
  CLI::Option* const shadow =
      app.add_option("--shadow", arguments.shadow,
                     "in mode capture_only, compare this share of the decode steps, 0 to 1")
          ->check(CLI::Range(0.0, 1.0));
  app.add_option("--mode", arguments.mode, "off, capture_only, hybrid or full_tq")
      ->capture_default_str();
  constexpr std::int64_t most = std::int64_t{1} << 20U;
  const CLI::Validator counts = program::integer<std::int64_t>(1, most);
  app.add_option("--tokens", arguments.tokens, "tokens to predict (default: 2048, --full 8192)")
      ->check(counts);
  app.add_option("--chunk", arguments.chunk, "tokens of a prefill step")
      ->check(counts)
      ->capture_default_str();
  app.add_option("--decode", arguments.decode,
                 "of the tokens, so many last ones one by one (default: 64, or all)")
      ->check(program::integer<std::int64_t>(0, most));
  CLI::Option* const contexts =
      app.add_option("--context", arguments.contexts,
                     "context of a needle test; may be repeated; 0 for none (default: 2048, --full "
                     "4096 and 8192 too)")
          ->check(program::integer<std::int64_t>(0, most))
          ->expected(1)
          ->take_all();
  app.add_option("--seed", arguments.seed, "of the hidden facts")
      ->check(program::integer<std::uint64_t>())
      ->capture_default_str();
  app.add_option("--threads", arguments.threads,
                 "host threads (default: all; on a busy machine, waiting threads cost the others "
                 "their time unless the environment has OMP_WAIT_POLICY=passive)")
      ->check(program::integer<int>(1, 1024));
  CLI::Option* const json =
      app.add_option("--json", arguments.json, "also write the results to this file")->check(file);
  CLI::Option* const logits =
      app.add_option("--logits", arguments.logits,
                     "only write the logits of every token with float rows to this file")
          ->check(file);
  bool is_quick = false;
  CLI::Option* const quick = app.add_flag("--quick", is_quick, "a few minutes (default)");
  app.add_flag("--full", arguments.full, "all presets, 8,192 tokens")->excludes(quick);
  for (CLI::Option* const other : {caches, plans, calibrate, shadow, contexts, json}) {
    logits->excludes(other);
  }
  const CLI::Option* const list =
      app.add_flag("--list", arguments.list, "list the presets and exit; takes no other argument");
  return program::run("llama_ab", app, argc, argv, [&] {
    if (!arguments.list) {
      return evaluate(arguments);
    }
    program::require_alone(app, list);
    for (const turboquant::CacheCodec& preset : turboquant::cache_presets) {
      std::cout << std::left << std::setw(20) << preset.name << ' ' << preset.summary << '\n';
    }
  });
}
