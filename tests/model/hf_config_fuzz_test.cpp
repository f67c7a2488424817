#include <turboquant/base/random.hpp>

#include <doctest/doctest.h>

#include "fuzz_hf_config.hpp"

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

/// One configuration per line of the golden models, and fragments that mutations splice in.
std::vector<std::string> seeds() {
  std::vector<std::string> lines;
  std::ifstream file(TURBOQUANT_TEST_DATA_DIR "/model/hybrid_models.json");
  for (std::string line; std::getline(file, line);) {
    const std::size_t start = line.find("\"config\":");
    const std::size_t end = line.find(",\"is_hybrid\"");
    if (start != std::string::npos && end != std::string::npos) {
      lines.push_back(line.substr(start + 9, end - start - 9));
    }
  }
  return lines;
}

const char* const fragments[] = {"null",
                                 "NaN",
                                 "-1",
                                 "0",
                                 "9223372036854775807",
                                 "1e400",
                                 "[]",
                                 "{}",
                                 "\"full_attention\"",
                                 "[[[[[[[[",
                                 "true",
                                 "\"\\u",
                                 "\xff\xfe",
                                 ",,",
                                 "\"kv_lora_rank\":4,",
                                 "\"layer_types\":null,",
                                 "\"head_dim\":0,",
                                 "\"num_kv_shared_layers\":1,",
                                 "\"sliding_window\":1,"};

void run(const std::string& text) {
  REQUIRE(LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()) ==
          0);
}

}  // namespace

TEST_CASE("the fuzz body holds on the seeds and on 20,000 mutations of them") {
  const std::vector<std::string> corpus = seeds();
  REQUIRE(corpus.size() == 19);
  for (const std::string& seed : corpus) {
    run(seed);
  }
  const turboquant::CounterRng rng(7, 11);
  std::uint64_t draw = 0;
  const auto below = [&](std::size_t bound) -> std::size_t {
    return rng.below(draw++, static_cast<std::uint32_t>(bound));
  };
  for (int i = 0; i < 20'000; ++i) {
    std::string text = corpus[below(corpus.size())];
    for (std::size_t edits = 1 + below(4); edits > 0 && !text.empty(); --edits) {
      const std::size_t at = below(text.size());
      switch (below(4)) {
        case 0: text[at] = static_cast<char>(below(256)); break;
        case 1: text.erase(at, 1 + below(8)); break;
        case 2: text.insert(at, fragments[below(std::size(fragments))]); break;
        default: {
          const std::string& other = corpus[below(corpus.size())];
          text = text.substr(0, at) + other.substr(below(other.size()));
        }
      }
    }
    run(text);
  }
}

TEST_CASE("field values replaced by others keep the body's promises") {
  // Whole values, so that the text stays well formed and the rules themselves are reached.
  for (const std::string& seed : seeds()) {
    for (std::size_t colon = seed.find("\":"); colon != std::string::npos;
         colon = seed.find("\":", colon + 2)) {
      const std::size_t start = colon + 2;
      if (seed[start] == '[' || seed[start] == '{') {
        continue;
      }
      const std::size_t end = seed.find_first_of(",}", start);
      for (const std::string value : {"null", "0", "1", "2", "3", "10000", "1048576", "2147483647",
                                      "-1", "\"x\"", "1.5", "[0,1]", "{}", "true"}) {
        run(seed.substr(0, start) + value + seed.substr(end));
      }
    }
  }
}
