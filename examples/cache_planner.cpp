// Plans the KV cache of a model from its config.json: which layers compress, what a page costs,
// which block sizes make attention and recurrent pages agree, how many tokens fit, what is wasted.
//
//   cache_planner [config.json] --preset turboquant_k3v4_nc --memory 80GiB --context 131072

#include "program/numbers.hpp"
#include "program/program.hpp"
#include "program/table.hpp"

#include <turboquant/model/capacity_planner.hpp>
#include <turboquant/model/hf_config.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace turboquant;

// The fields of Qwen3.5-35B-A3B's config.json that decide its cache.
constexpr std::string_view bundled_name = "Qwen3.5-35B-A3B (bundled)";
constexpr std::string_view bundled_config = R"({
  "architectures": ["Qwen3_5MoeForConditionalGeneration"],
  "model_type": "qwen3_5_moe",
  "text_config": {
    "model_type": "qwen3_5_moe_text",
    "dtype": "bfloat16",
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "mtp_num_hidden_layers": 1
  }
})";

/// "80GiB", "500MB", "1048576": a positive number of bytes.
std::int64_t parse_bytes(const std::string& text) {
  std::int64_t amount = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), amount);
  require(error == std::errc() && amount > 0, ErrorCode::invalid_argument, "--memory is \"", text,
          "\", expected a positive whole number with an optional unit such as GiB or GB");
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const std::string_view prefixes = "KMGT";
  std::int64_t factor = 1;
  if (unit == "B" || unit.empty()) {
    return amount;
  }
  const std::size_t power = prefixes.find(unit.front());
  const bool binary = unit.substr(1) == "iB";
  require(power != std::string_view::npos && (binary || unit.substr(1) == "B"),
          ErrorCode::invalid_argument, "--memory has the unit \"", unit,
          "\", expected B, KB, MB, GB, TB, KiB, MiB, GiB or TiB");
  for (std::size_t i = 0; i <= power; ++i) {
    factor *= binary ? 1024 : 1000;
  }
  require(amount <= (std::numeric_limits<std::int64_t>::max)() / factor, ErrorCode::overflow,
          "--memory is \"", text, "\", expected fewer than 2^63 bytes");
  return amount * factor;
}

std::int64_t parse_number(std::string_view option, std::string_view text) {
  const auto number = program::parse_integer<std::int64_t>(text);
  require(number.has_value(), ErrorCode::invalid_argument, option, " is \"", text,
          "\", expected a whole number of at most 64 bits");
  return *number;
}

/// The parts of every list between commas, empty ones included; CLI11 would drop those.
std::vector<std::string> split(const std::vector<std::string>& lists) {
  std::vector<std::string> parts;
  for (const std::string& list : lists) {
    std::size_t begin = 0;
    for (std::size_t comma = list.find(','); comma != std::string::npos;
         comma = list.find(',', begin)) {
      parts.push_back(list.substr(begin, comma - begin));
      begin = comma + 1;
    }
    parts.push_back(list.substr(begin));
  }
  return parts;
}

/// Where a model is read from.
std::filesystem::path source_of(const std::string& config) {
  std::error_code ignored;
  return std::filesystem::is_directory(config, ignored)
             ? std::filesystem::path(config) / "config.json"
             : std::filesystem::path(config);
}

MambaCacheMode parse_mode(const std::string& name) {
  for (const MambaCacheMode mode :
       {MambaCacheMode::none, MambaCacheMode::align, MambaCacheMode::all}) {
    if (to_string(mode) == name) {
      return mode;
    }
  }
  fail(ErrorCode::invalid_argument, "--mamba-cache-mode is \"", name,
       "\", expected none, align or all");
}

std::string joined(const std::vector<std::int64_t>& layers) {
  std::string text;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    std::size_t last = i;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) {
      ++last;
    }
    text += (text.empty() ? "" : ",") + std::to_string(layers[i]);
    if (last > i) {
      text += (last == i + 1 ? "," : "-") + std::to_string(layers[last]);
    }
    i = last;
  }
  return text;
}

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

std::string ratio(std::int64_t ours, std::int64_t theirs) {
  return theirs == 0 ? "-"
                     : fixed(static_cast<double>(ours) / static_cast<double>(theirs), 2) + "x";
}

/// What `--memory` was understood as.
std::string memory_text(const std::string& memory, std::int64_t bytes) {
  std::string text = std::to_string(bytes) + " bytes";
  if (!memory.empty() && memory.find_first_not_of("0123456789") == std::string::npos) {
    text +=
        " (--memory " + memory + " has no unit, which means bytes; for example " + memory + "GiB)";
  }
  return text;
}

/// What a reader of the plan should know, of the model and of the plan.
std::vector<std::string> all_notes(const ModelConfig& model, const CachePlan& plan) {
  std::vector<std::string> notes = model.notes;
  notes.insert(notes.end(), plan.notes.begin(), plan.notes.end());
  return notes;
}

/// Whether any layout has room for anything.
bool anything_fits(const CachePlan& plan) {
  const auto fits = [](const PoolPlan& pool) {
    return pool.capacity_sequences > 0 || pool.capacity_tokens > 0 || pool.longest_sequence > 0;
  };
  return fits(plan.baseline) || std::any_of(plan.pools.begin(), plan.pools.end(), fits);
}

void print_plan(std::ostream& out, const std::string& name, const ModelConfig& model,
                const PlanOptions& options, const std::string& memory, const CachePlan& plan) {
  const std::string dense(to_string(options.dense_dtype.value_or(model.dtype)));
  out << name << ": " << model.num_layers() << " layers, told by " << model.layer_rule << '\n';
  for (const std::string& note : all_notes(model, plan)) {
    out << "  note: " << note << '\n';
  }
  if (!model.mtp_layers.empty()) {
    out << "  multi-token-prediction layers outside the plan: " << joined(model.mtp_layers) << '\n';
  }
  if (!plan.skip.entries().empty()) {
    out << "  skipped: " << joined(plan.skip.layers);
    for (const std::string& entry : plan.skip.names) {
      out << ' ' << entry;
    }
    out << '\n';
  }
  out << '\n'
      << plan.summary() << " (against " << dense << ", " << options.context_tokens
      << " tokens)\n\nLayer classes, per layer and rank\n";
  program::Table classes({"class", "layers", "backend", "bytes/token", "state bytes", "which"});
  for (const LayerClass& c : plan.classes) {
    classes.add({c.name, std::to_string(c.num_layers()), std::string(c.backend),
                 c.is_state() ? "-" : std::to_string(c.bytes_per_token),
                 c.is_state() ? std::to_string(c.state_bytes) : "-", joined(c.layers)});
  }
  classes.print(out, "  ");
  for (const PoolPlan& pool : plan.pools) {
    out << '\n'
        << to_string(pool.strategy) << (pool.strategy == plan.recommended ? "  <- recommended" : "")
        << '\n';
    if (!pool.available) {
      out << "  not available: " << pool.unavailable_because << '\n';
      continue;
    }
    program::Table pages({"class", "block tokens", "page bytes", "padding bytes", "padding"});
    for (const UnifiedPage& page : pool.pages.classes) {
      pages.add({page.name, page.scales_with_block_size ? std::to_string(page.block_size) : "-",
                 std::to_string(page.page_size_bytes), std::to_string(page.padding_bytes),
                 fixed(100.0 * page.padding_fraction(), 2) + " %"});
    }
    pages.print(out, "  ");
    out << "  bytes of a sequence " << pool.bytes_per_sequence << ", waste "
        << fixed(100.0 * pool.waste, 1) << " %, prefix hits "
        << (pool.prefix_granularity
                ? "every " + std::to_string(*pool.prefix_granularity) + " tokens"
                : "none (states are not kept at block boundaries)")
        << '\n';
    for (const PromptUse& prompt : pool.prompts) {
      out << "  a prompt of " << prompt.tokens << " tokens allocates " << prompt.allocated_bytes
          << " bytes and uses " << fixed(100.0 * prompt.used_fraction, 2) << " %\n";
    }
  }
  out << "\nCapacity in " << memory_text(memory, options.memory_bytes) << '\n';
  if (!anything_fits(plan)) {
    out << "  nothing fits: a sequence of " << options.context_tokens << " tokens takes "
        << plan.pool(plan.recommended).bytes_per_sequence << " bytes\n";
    return;
  }
  program::Table capacity(
      {"layout", "sequences", "tokens", "longest sequence", "tokens against " + dense});
  capacity.add({dense + ", " + std::string(to_string(plan.baseline.strategy)),
                std::to_string(plan.baseline.capacity_sequences),
                std::to_string(plan.baseline.capacity_tokens),
                std::to_string(plan.baseline.longest_sequence), "1.00x"});
  for (const PoolPlan& pool : plan.pools) {
    if (pool.available) {
      capacity.add({std::string(to_string(pool.strategy)), std::to_string(pool.capacity_sequences),
                    std::to_string(pool.capacity_tokens), std::to_string(pool.longest_sequence),
                    ratio(pool.capacity_tokens, plan.baseline.capacity_tokens)});
    }
  }
  capacity.print(out, "  ");
  out << "\nWhy " << to_string(plan.recommended) << ": " << plan.reason << '\n';
}

nlohmann::json pool_json(const PoolPlan& pool) {
  nlohmann::json json = {{"strategy", to_string(pool.strategy)}, {"available", pool.available}};
  if (!pool.available) {
    json["unavailable_because"] = pool.unavailable_because;
    return json;
  }
  for (const UnifiedPage& page : pool.pages.classes) {
    json["classes"].push_back({{"class", page.name},
                               {"block_size", page.block_size},
                               {"page_size_bytes", page.page_size_bytes},
                               {"padding_bytes", page.padding_bytes}});
  }
  for (const PromptUse& prompt : pool.prompts) {
    json["prompts"].push_back({{"tokens", prompt.tokens},
                               {"allocated_bytes", prompt.allocated_bytes},
                               {"used_fraction", prompt.used_fraction}});
  }
  json["bytes_per_sequence"] = pool.bytes_per_sequence;
  json["mean_bytes_per_sequence"] = pool.mean_bytes_per_sequence;
  json["waste"] = pool.waste;
  json["capacity_sequences"] = pool.capacity_sequences;
  json["capacity_tokens"] = pool.capacity_tokens;
  json["longest_sequence"] = pool.longest_sequence;
  json["group_size"] = pool.grouping.group_size;
  json["padding_layers"] = pool.grouping.padding_layers;
  json["prefix_granularity"] =
      pool.prefix_granularity ? nlohmann::json(*pool.prefix_granularity) : nlohmann::json(nullptr);
  return json;
}

nlohmann::json plan_json(const std::string& name, const ModelConfig& model,
                         const PlanOptions& options, const CachePlan& plan) {
  nlohmann::json json = {{"model", name},
                         {"layer_rule", model.layer_rule},
                         {"num_layers", plan.num_layers},
                         {"is_hybrid", model.is_hybrid()},
                         {"full_attention_layers", model.full_attention_layers()},
                         {"mtp_layers", model.mtp_layers},
                         {"notes", all_notes(model, plan)},
                         {"preset", options.codec ? options.codec->name : "none"},
                         {"memory_bytes", options.memory_bytes},
                         {"context_tokens", options.context_tokens},
                         {"tensor_parallel", options.tensor_parallel},
                         {"skip", plan.skip.entries()},
                         {"num_compressed_layers", plan.num_compressed_layers},
                         {"kv_bytes", plan.kv_bytes},
                         {"dense_kv_bytes", plan.dense_kv_bytes},
                         {"state_bytes", plan.state_bytes},
                         {"summary", plan.summary()},
                         {"recommended", to_string(plan.recommended)},
                         {"reason", plan.reason},
                         {"baseline", pool_json(plan.baseline)}};
  // A model without an attention cache has no ratio.
  json["kv_ratio"] = plan.kv_bytes > 0 ? nlohmann::json(plan.kv_ratio()) : nlohmann::json(nullptr);
  json["total_ratio"] = plan.total_ratio();
  for (const LayerClass& c : plan.classes) {
    json["classes"].push_back({{"class", c.name},
                               {"backend", c.backend},
                               {"layers", c.layers},
                               {"bytes_per_token", c.bytes_per_token},
                               {"state_bytes", c.state_bytes}});
  }
  for (const PoolPlan& pool : plan.pools) {
    json["strategies"].push_back(pool_json(pool));
  }
  return json;
}

void list_presets(std::ostream& out) {
  program::Table table({"preset", "bytes at d = 64", "128", "256", "bf16 / preset at 128", "what"});
  for (const CacheCodec& preset : cache_presets) {
    const auto slot = [&](std::int64_t d) {
      return TurboQuantConfig(preset, d).slot_size_aligned();
    };
    table.add({std::string(preset.name), std::to_string(slot(64)), std::to_string(slot(128)),
               std::to_string(slot(256)), ratio(512, slot(128)), std::string(preset.summary)});
  }
  table.print(out, "  ");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Plans the KV cache of a model from its Hugging Face config.json."};
  std::string config;
  std::string preset = "turboquant_k3v4_nc";
  std::string memory = "80GiB";
  std::string mode = "none";
  std::string dense;
  std::string json_file;
  std::vector<std::string> skip_layers;
  std::vector<std::string> prompts;
  bool list = false;
  PlanOptions options;
  options.context_tokens = 131072;

  const auto add_number = [&](const char* name, std::int64_t& target, const char* what) {
    app.add_option(name, target, what)
        ->check(program::integer<std::int64_t>())
        ->capture_default_str();
  };

  auto* config_option =
      app.add_option("config", config, "config.json or its directory; a bundled one without it");
  app.add_option("--preset", preset, "cache preset, or none")->capture_default_str();
  app.add_option("--memory", memory, "bytes for the cache of one rank, e.g. 80GiB")
      ->capture_default_str();
  add_number("--context", options.context_tokens, "tokens of a sequence");
  add_number("--tensor-parallel", options.tensor_parallel, "ranks");
  app.add_option("--skip-layers", skip_layers,
                 "layers left uncompressed: absolute indices or names, separated by commas")
      ->allow_extra_args(false);
  add_number("--boundary", options.boundary_layers,
             "first and last n layers left uncompressed in dense models");
  app.add_flag("--protect-full-attention", options.boundary.protect_full_attention_list,
               "count the boundary in the list of full-attention layers, hybrids included");
  add_number("--speculative-tokens", options.num_speculative_tokens, "tokens drafted ahead");
  app.add_option("--mamba-cache-mode", mode, "none, align or all")->capture_default_str();
  add_number("--block-size", options.block_size, "tokens of a page before unification");
  add_number("--kernel-alignment", options.kernel_alignment, "block sizes are multiples of this");
  app.add_option("--prompt", prompts, "prompt lengths to report, separated by commas")
      ->allow_extra_args(false);
  std::int64_t state_bytes = 0;
  const auto* state_option =
      app.add_option("--state-bytes", state_bytes,
                     "bytes of one recurrent state, instead of the file's sizes")
          ->check(program::integer<std::int64_t>());
  auto* dense_option =
      app.add_option("--dense-dtype", dense, "element type of uncompressed caches, e.g. fp8");
  auto* json_option = app.add_option("--json", json_file, "also write the plan to this file");
  app.add_flag("--list-presets", list, "print the presets and their bytes per token and head");
  return program::run("cache_planner", app, argc, argv, [&] {
    if (list) {
      return list_presets(std::cout);
    }
    require(config_option->count() == 0 || !config.empty(), ErrorCode::invalid_argument,
            "config is \"\", expected a path");
    require(json_option->count() == 0 || !json_file.empty(), ErrorCode::invalid_argument,
            "--json is \"\", expected a path");
    if (preset != "none") {
      options.codec = find_cache_preset(preset);
    }
    options.memory_bytes = parse_bytes(memory);
    options.mamba_cache_mode = parse_mode(mode);
    options.skip_layers = split(skip_layers);
    for (const std::string& length : split(prompts)) {
      options.prompt_lengths.push_back(parse_number("--prompt", length));
    }
    if (dense_option->count() > 0) {
      options.dense_dtype = parse_cache_dtype(dense);
    }
    if (state_option->count() > 0) {
      options.recurrent_state_bytes = state_bytes;
    }
    const std::string name = config.empty() ? std::string(bundled_name) : config;
    const ModelConfig model =
        config.empty() ? parse_model_config(bundled_config) : load_model_config(config);
    const CachePlan plan = plan_cache(model, options);
    const program::OutputFile json("--json", json_file);
    json.require_not(source_of(config));
    json.require_writable();
    print_plan(std::cout, name, model, options, memory, plan);
    program::flush_output();
    if (json.wanted()) {
      json.write([&](std::ostream& out) {
        out << plan_json(name, model, options, plan)
                   .dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
            << '\n';
      });
    }
  });
}
