#include <turboquant/base/random.hpp>

#include <doctest/doctest.h>

#include "fuzz_hf_config.hpp"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace {

/// Families that the golden models have none of.
const char* const families[] = {
    R"({"model_type":"phi3","num_hidden_layers":8,"sliding_window":64,"max_position_embeddings":64,)"
    R"("rope_scaling":{"factor":1},"num_attention_heads":4,"head_dim":64})",
    R"({"model_type":"falcon","num_hidden_layers":8,"num_attention_heads":71,"hidden_size":4544,)"
    R"("multi_query":true,"num_kv_heads":71,"new_decoder_architecture":false})",
    R"({"model_type":"step3p5","num_hidden_layers":8,"num_attention_groups":8,"sliding_window":64,)"
    R"("layer_types":["full_attention","sliding_attention"],"attention_other_setting":)"
    R"({"num_attention_heads":96,"num_attention_groups":8}})",
    R"({"model_type":"gemma3n_text","num_kv_shared_layers":15,"use_cla":true,"cla_share_factor":2})",
    R"({"model_type":"samba","num_hidden_layers":4,"hidden_size":2048,"state_size":16,)"
    R"("conv_kernel":4,"expand":2,"attn":{"layers":[1,3],"num_heads":16,"window_size":64}})",
    R"({"num_hidden_layers":12,"layer_group_size":5,"num_attention_heads":8,"head_dim":64,)"
    R"("lightning_nh":4,"use_mla":false,"kv_lora_rank":512,"v_head_dim":0})",
    R"({"model_type":"afmoe","num_hidden_layers":8,"sliding_window":64,"num_attention_heads":8,)"
    R"("head_dim":64,"global_attn_every_n_layers":4,"attn_logit_softcapping":30.0})",
    R"({"model_type":"plamo2","num_hidden_layers":8,"mamba_step":2,"full_attention_idx":[1],)"
    R"("attention_window_size":64,"num_attention_heads":4,"hidden_size_per_head":64})",
    R"({"model_type":"longcat_flash","num_layers":4,"kv_lora_rank":512,"qk_rope_head_dim":64})",
    R"({"model_type":"recurrent_gemma","num_hidden_layers":6,"lru_width":64,"conv1d_width":4,)"
    R"("attention_window_size":64,"num_attention_heads":4,"head_dim":64,)"
    R"("block_types":["recurrent","attention"]})"};

/// One configuration per line of the golden models, the families, and fragments that mutations
/// splice in.
std::vector<std::string> seeds() {
  std::vector<std::string> lines(std::begin(families), std::end(families));
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
  REQUIRE(corpus.size() == 19 + std::size(families));
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
