// The llama_ab program: what it prints and refuses, on a small model, and, where the real model is,
// its known perplexity.

#include "../../examples/llama_ab/mapped_file.hpp"
#include "../../examples/llama_ab/tokenizer.hpp"
#include "gguf_writer.hpp"

#include <io/safetensors_writer.hpp>
#include <support/error_of.hpp>
#include <turboquant/model/hf_bit_plan.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

using namespace turboquant::test;

namespace {

std::string contents(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

struct Result {
  int exit_code = -1;
  std::string output;
  std::string errors;
};

std::string word(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return result + "'";
}

/// Runs the program with a folder of its own as the user's cache.
Result run(const TemporaryDirectory& directory, const std::vector<std::string>& arguments,
           const std::string& output = "") {
  std::string command =
      "env XDG_CACHE_HOME=" + word(directory.file("cache")) + " " + word(LLAMA_AB_PROGRAM);
  for (const std::string& argument : arguments) {
    command += " " + word(argument);
  }
  command += " </dev/null >" + word(output.empty() ? directory.file("out") : output) + " 2>" +
             word(directory.file("err"));
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(directory.file("out")),
          contents(directory.file("err"))};
}

bool one_line(const std::string& errors, const std::string& part) {
  return std::count(errors.begin(), errors.end(), '\n') == 1 &&
         errors.rfind("llama_ab: ", 0) == 0 && mentions(errors, part);
}

std::string small_model(const TemporaryDirectory& directory) {
  return directory.write("model.gguf", SmallModel{.context = 2048}.writer().bytes());
}

std::string some_text(const TemporaryDirectory& directory) {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += "the cab that ate the abba, line " + std::to_string(i) + "\n";
  }
  return directory.write("text.txt", text);
}

std::string contents_of_plan() {
  return turboquant::to_json(turboquant::uniform_plan(SmallModel{}.layers, {}));
}

}  // namespace

TEST_CASE("table and JSON on a small model") {
  const TemporaryDirectory directory;
  const std::string json = directory.file("report.json");
  const Result result = run(directory, {"--model",   small_model(directory),
                                        "--text",    some_text(directory),
                                        "--tokens",  "300",
                                        "--chunk",   "50",
                                        "--decode",  "10",
                                        "--context", "2000",
                                        "--threads", "1",
                                        "--json",    json,
                                        "--cache",   "tq_k4v4",
                                        "--cache",   "tq_k2v2+window=0"});
  CHECK_MESSAGE(result.exit_code == 0, result.errors);
  CHECK(result.errors.empty());
  CHECK(mentions(result.output, "model.gguf, 300 tokens of text.txt, mode full_tq, chunks of 50"));
  const auto report = nlohmann::json::parse(contents(json));
  REQUIRE(report["perplexity"].size() == 3);
  CHECK(report["perplexity"][0]["cache"] == "bf16");
  CHECK(report["perplexity"][2]["cache"] == "tq_k2v2+window=0");
  for (const auto& row : report["perplexity"]) {
    CHECK(row["predictions"] == 300);
    CHECK(row["decode"]["predictions"] == 10);
    CHECK(row["tokens"] == 300);
    CHECK(row["perplexity"] > 1.0);
    CHECK(row["prefill_tokens_per_second"] > 0.0);
    CHECK(mentions(result.output, row["cache"].get<std::string>()));
    CHECK(mentions(result.output, std::to_string(row["kv_bytes"].get<std::size_t>())));
  }
  CHECK(report["perplexity"][2]["kv_bytes"] < report["perplexity"][1]["kv_bytes"]);
  REQUIRE(report["needles"].size() == 3);
  CHECK(report["needles"][0]["hits"].size() == 10);
  CHECK(report["peak_resident_bytes"] > 1'000'000);
  CHECK(mentions(report["command"].get<std::string>(), "--chunk 50"));
}

TEST_CASE("every mode runs") {
  const TemporaryDirectory directory;
  for (const char* mode : {"off", "capture_only", "hybrid", "full_tq"}) {
    const Result result =
        run(directory, {"--model", small_model(directory), "--text", some_text(directory),
                        "--tokens", "100", "--decode", "5", "--context", "0", "--mode", mode,
                        "--cache", "tq_k3v3", "--threads", "1"});
    CHECK_MESSAGE(result.exit_code == 0, result.errors);
    CHECK(mentions(result.output, std::string("mode ") + mode));
  }
}

TEST_CASE("a calibrated plan is written, evaluated and read again") {
  const TemporaryDirectory directory;
  const std::string plan = directory.file("plan.json");
  const std::string json = directory.file("report.json");
  const std::vector<std::string> usual{"--model",   small_model(directory),
                                       "--text",    some_text(directory),
                                       "--tokens",  "200",
                                       "--decode",  "10",
                                       "--context", "0",
                                       "--threads", "1",
                                       "--json",    json};
  for (const char* measure : {"attention", "predictions"}) {
    std::vector<std::string> arguments = usual;
    arguments.insert(arguments.end(), {"--calibrate", plan, "--measure", measure});
    const Result result = run(directory, arguments);
    CHECK_MESSAGE(result.exit_code == 0, result.errors);
    CHECK(mentions(result.output, "plan of "));
    const auto report = nlohmann::json::parse(contents(json));
    REQUIRE(report["perplexity"].size() == 3);
    CHECK(report["perplexity"][1]["cache"] == "tq_k3v3");
    CHECK(nlohmann::json::parse(contents(plan))["layers"].size() == 2);
  }
  std::vector<std::string> arguments = usual;
  arguments.insert(arguments.end(), {"--plan", plan, "--mode", "capture_only", "--shadow", "1"});
  const Result result = run(directory, arguments);
  CHECK_MESSAGE(result.exit_code == 0, result.errors);
  CHECK(mentions(result.output, "10 of 10 steps compared"));
  const auto report = nlohmann::json::parse(contents(json));
  REQUIRE(report["perplexity"].size() == 2);
  CHECK(report["perplexity"][1]["shadow"]["compared_steps"] == 10);
  CHECK(report["perplexity"][1]["delta"] == 0.0);
}

TEST_CASE("wrong arguments and files") {
  const TemporaryDirectory directory;
  const std::string model = small_model(directory);
  const std::string text = some_text(directory);
  const auto refused = [&](std::vector<std::string> arguments, const std::string& part) {
    const Result result = run(directory, arguments);
    CHECK(result.exit_code == 2);
    CHECK(result.output.empty());
    CHECK_MESSAGE(one_line(result.errors, part), result.errors);
  };
  const std::vector<std::string> usual{"--model", model, "--text", text, "--context", "0"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = usual;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  refused({"--text", text}, "build the target llama_ab_model");
  refused({"--model", directory.file("none"), "--text", text}, "cannot be opened");
  refused({"--model", text, "--text", text}, "does not start with 'GGUF'");
  refused({"--model", model, "--text", directory.file("none")}, "cannot be opened");
  refused({"--model", model, "--text", directory.write("empty", "\n\n")}, "has no text");
  refused(with({"--tokens", "1000000"}), "--tokens is 1000000, expected at most");
  refused(with({"--tokens", "0"}), "--tokens");
  refused(with({"--tokens", "100", "--cache", "none"}), "find_cache_preset");
  refused(with({"--tokens", "100", "--cache", "tq_k3v4+odd"}), "'odd' is unknown");
  refused(with({"--tokens", "100", "--mode", "fast"}), "expected off, capture_only");
  refused(with({"--tokens", "100", "--context", "4096"}), "--context is 4096");
  refused(with({"--tokens", "100", "--json", model}), "is an input file");
  refused(with({"--tokens", "100", "--plan", text}), "parse_bit_plan");
  refused(with({"--tokens", "100", "--calibrate", directory.file("p"), "--budget", "bf16"}),
          "expected a preset");
  refused(with({"--tokens", "100", "--calibrate", directory.file("p"), "--measure", "guess"}),
          "--measure");
  refused(with({"--tokens", "100", "--calibrate", model}), "is an input file");
  refused(with({"--tokens", "100", "--shadow", "2"}), "--shadow");
  const std::string plan = directory.write("plan.json", contents_of_plan());
  for (const char* output : {"--json", "--calibrate"}) {
    refused(with({"--tokens", "100", "--plan", plan, output, plan}), "is an input file");
    refused(with({"--tokens", "100", "--cache", "@" + plan + "+mean", output, plan}),
            "is an input file");
    refused(with({output, ""}), "expected the name of a file");
  }
  refused(with({"--plan", plan, "--logits", plan}), "--plan excludes --logits");
  CHECK(contents(plan) == contents_of_plan());
  refused(with({"--tokens", "100", "--calibrate", directory.file("p"), "--json",
                directory.file("./p")}),
          "expected two files");
  refused(with({"--tokens", "100", "--shadow", "0.5"}), "expected --mode capture_only");
  refused(with({"--tokens", "8", "--decode", "9"}), "--decode is 9, expected at most");
  refused(with({"--tokens", "100", "--budget", "tq_k3v3"}), "--budget requires --calibrate");
  refused(with({"--seed", "-1"}), "expected an integer from 0 to 18446744073709551615");
  refused(with({"--seed", "18446744073709551616"}), "expected an integer from 0");
  refused(with({"--logits", "l", "--json", "j"}), "excludes");
  refused(with({"--list"}), "--list is given with");
  for (const char* cache : {"tq_k3v4+kb=2+kb=3", "tq_k3v4+mean+mean", "tq_k3v4+rotated+g=32"}) {
    refused(with({"--tokens", "100", "--cache", cache}), "changes what another change has set");
  }
  refused(with({"--tokens", "100", "--cache", "tq_k3v4+vrule=plain"}), "+vrule is for rotated");
  refused(with({"--tokens", "100", "--cache", "turboquant_k8v4+rule=plain"}), "+rule is for mse");
  refused(with({"--tokens", "100", "--cache", "tq_k3v4+first=99"}), "99 layers stay exact");
  refused(with({"--quick", "--full"}), "--help lists the arguments");
  refused(with({"--frobnicate"}), "--help lists the arguments");
  CHECK(run(directory, with({"--tokens", "100", "--json", directory.file("no/such/folder")}))
            .exit_code == 1);
  if (std::filesystem::exists("/dev/full")) {
    CHECK(run(directory, with({"--tokens", "100", "--threads", "1"}), "/dev/full").exit_code == 1);
  }
  CHECK(run(directory, {"--help"}).exit_code == 0);
  const Result list = run(directory, {"--list"});
  CHECK(list.exit_code == 0);
  CHECK(mentions(list.output, "turboquant_k3v4_nc"));
}

TEST_CASE("the real model, where it has been fetched") {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  const std::string root = cache != nullptr && *cache != '\0' ? std::string(cache)
                           : home != nullptr && *home != '\0' ? std::string(home) + "/.cache"
                                                              : std::string();
  const std::string model = root + "/" + LLAMA_AB_MODEL;
  if (!std::filesystem::exists(model)) {
    std::puts("skipped: the model is not there (the target llama_ab_model fetches it)");
    return;
  }
  const llama_ab::MappedFile mapped(model);
  const llama_ab::GgufFile file(mapped.bytes(), "model");
  const llama_ab::Tokenizer tokenizer(file);
  const std::string data = TURBOQUANT_TEST_DATA_DIR;
  for (const char* name : {"/alice_chapter_1.txt", "/alice_chapters_1_to_4.txt"}) {
    const std::string text = contents(data + name);
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  }
  const TemporaryDirectory directory;
  const std::string json = directory.file("report.json");
  // The text and model of tests/data/capture_smollm2.py, which computes in double precision and
  // prints 23.769.
  const Result result =
      run(directory, {"--model", model, "--text", data + "/alice_chapter_1.txt", "--tokens", "1023",
                      "--context", "0", "--decode", "0", "--cache", "f32", "--json", json});
  REQUIRE_MESSAGE(result.exit_code == 0, result.errors);
  const auto report = nlohmann::json::parse(contents(json));
  CHECK(report["perplexity"][1]["perplexity"].get<double>() ==
        doctest::Approx(23.769).epsilon(2e-5));
}
