#pragma once

// A Llama-architecture model out of a GGUF file: checked sizes and weights as floats.

#include "aligned.hpp"
#include "gguf.hpp"
#include "mapped_file.hpp"

#include <turboquant/base/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llama_ab {

/// Sizes of a decoder.
struct ModelConfig {
  std::int64_t layers = 0;
  std::int64_t width = 0;  ///< of the residual stream
  std::int64_t feed_forward = 0;
  std::int64_t query_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  std::int64_t rotated_dims = 0;  ///< of each head, RoPE
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;
  double rope_base = 10000;
  double norm_epsilon = 1e-5;
};

/// Weights of a layer; a matrix (out, in) is row-major.
struct LayerWeights {
  Floats attention_norm;
  Floats query;
  Floats key;
  Floats value;
  Floats attention_output;
  Floats feed_forward_norm;
  Floats gate;
  Floats up;
  Floats down;
};

/// Everything that a forward pass reads.
struct Model {
  ModelConfig config{};
  Floats embedding;  ///< (vocabulary, width)
  std::vector<LayerWeights> layers;
  Floats output_norm;
  Floats output;  ///< (vocabulary, width); empty where it is the embedding

  [[nodiscard]] const Floats& output_weights() const noexcept {
    return output.empty() ? embedding : output;
  }
};

namespace detail {

/// The sizes in a file's metadata.
/// @throws turboquant::Error(unsupported) for another architecture or a feature that is not there
[[nodiscard]] inline ModelConfig read_config(const GgufFile& file) {
  const auto architecture = file.get<std::string_view>("general.architecture");
  require(architecture == "llama", ErrorCode::unsupported, file.name(), ": the architecture is ",
          turboquant::detail::in_quotes(architecture), ", expected 'llama'");
  const auto integer = [&](const char* key, std::int64_t most) {
    return file.integer(std::string("llama.") + key, 1, most);
  };
  ModelConfig config;
  config.layers = integer("block_count", 1024);
  config.context = integer("context_length", std::int64_t{1} << 30U);
  config.width = integer("embedding_length", 65536);
  config.feed_forward = integer("feed_forward_length", 1 << 20U);
  config.query_heads = integer("attention.head_count", 1024);
  config.kv_heads = file.has("llama.attention.head_count_kv")
                        ? integer("attention.head_count_kv", 1024)
                        : config.query_heads;
  require(config.query_heads % config.kv_heads == 0, ErrorCode::format, file.name(), ": has ",
          config.query_heads, " query heads, expected a multiple of its ", config.kv_heads,
          " kv heads");
  require(file.has("llama.attention.key_length") || config.width % config.query_heads == 0,
          ErrorCode::format, file.name(), ": the width is ", config.width,
          ", expected a multiple of the query heads, ", config.query_heads);
  const std::int64_t head_dim = config.width / config.query_heads;
  const auto dim = [&](const char* key, std::int64_t otherwise) {
    return file.has(std::string("llama.") + key) ? integer(key, 1024) : otherwise;
  };
  config.key_dim = dim("attention.key_length", head_dim);
  config.value_dim = dim("attention.value_length", head_dim);
  config.rotated_dims = dim("rope.dimension_count", config.key_dim);
  require(config.key_dim >= 1 && config.key_dim <= 1024 && config.value_dim >= 1 &&
              config.value_dim <= 1024,
          ErrorCode::unsupported, file.name(), ": heads have ", config.key_dim, " and ",
          config.value_dim, " numbers, expected 1 to 1024");
  require(config.rotated_dims <= config.key_dim && config.rotated_dims % 2 == 0, ErrorCode::format,
          file.name(), ": RoPE turns ", config.rotated_dims,
          " numbers, expected an even number up to ", config.key_dim);
  if (file.has("llama.rope.freq_base")) {
    config.rope_base = file.number("llama.rope.freq_base");
  }
  config.norm_epsilon = file.number("llama.attention.layer_norm_rms_epsilon");
  require(config.rope_base > 0 && config.norm_epsilon >= 0, ErrorCode::format, file.name(),
          ": RoPE base or norm epsilon is not positive");
  if (file.has("llama.rope.scaling.type")) {
    const auto scaling = file.get<std::string_view>("llama.rope.scaling.type");
    require(scaling == "none", ErrorCode::unsupported, file.name(), ": RoPE scaling is ",
            turboquant::detail::in_quotes(scaling), ", expected none");
  }
  for (const char* key : {"llama.expert_count", "llama.attention.sliding_window"}) {
    require(!file.has(key) || file.integer(key, 0, INT64_MAX) == 0, ErrorCode::unsupported,
            file.name(), ": ", key, " is not 0, expected a dense model with full attention");
  }
  // What would change the numbers and is not there.
  const auto neutral = [&](const char* key, double value) {
    require(!file.has(key) || file.number(key) == value, ErrorCode::unsupported, file.name(), ": ",
            key, " is set, expected ", value, " or nothing");
  };
  neutral("llama.rope.scaling.factor", 1);
  neutral("llama.rope.scale_linear", 1);
  neutral("llama.attention.scale", 0);
  neutral("llama.attn_logit_softcapping", 0);
  neutral("llama.final_logit_softcapping", 0);
  neutral("llama.logit_scale", 1);
  neutral("llama.embedding_scale", 1);
  neutral("llama.residual_scale", 1);
  return config;
}

}  // namespace detail

/// Reads the weights, all of which must be known and finite.
/// @throws turboquant::Error naming what is missing, of the wrong shape, unknown or not finite
[[nodiscard]] inline Model load_model(const GgufFile& file) {
  Model model;
  ModelConfig& config = model.config;
  config = detail::read_config(file);
  std::set<std::string, std::less<>> used;
  const auto read = [&](const std::string& name, std::vector<std::int64_t> shape) {
    const GgufTensor& tensor = file.tensor(name + ".weight", shape);
    used.insert(tensor.name);
    Floats numbers(tensor.num_elements);
    dequantize(tensor.type, tensor.bytes, numbers);
    const auto bad = std::find_if(numbers.begin(), numbers.end(),
                                  [](float number) { return !std::isfinite(number); });
    require(bad == numbers.end(), ErrorCode::non_finite, file.name(), ": tensor ",
            turboquant::detail::in_quotes(tensor.name), " has a number that is not finite at ",
            bad - numbers.begin());
    return numbers;
  };
  const auto embedding = file.tensors().find("token_embd.weight");
  require(embedding != file.tensors().end() && embedding->second.shape.size() == 2,
          ErrorCode::format, file.name(), ": has no matrix 'token_embd.weight'");
  config.vocabulary = embedding->second.shape[1];
  const std::int64_t queries = config.query_heads * config.key_dim;
  const std::int64_t keys = config.kv_heads * config.key_dim;
  const std::int64_t values = config.kv_heads * config.value_dim;
  const std::int64_t outputs = config.query_heads * config.value_dim;
  const std::int64_t width = config.width;
  model.embedding = read("token_embd", {width, config.vocabulary});
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    LayerWeights layer;
    layer.attention_norm = read(prefix + "attn_norm", {width});
    layer.query = read(prefix + "attn_q", {width, queries});
    layer.key = read(prefix + "attn_k", {width, keys});
    layer.value = read(prefix + "attn_v", {width, values});
    layer.attention_output = read(prefix + "attn_output", {outputs, width});
    layer.feed_forward_norm = read(prefix + "ffn_norm", {width});
    layer.gate = read(prefix + "ffn_gate", {width, config.feed_forward});
    layer.up = read(prefix + "ffn_up", {width, config.feed_forward});
    layer.down = read(prefix + "ffn_down", {config.feed_forward, width});
    model.layers.push_back(std::move(layer));
  }
  model.output_norm = read("output_norm", {width});
  if (file.tensors().find("output.weight") != file.tensors().end()) {
    model.output = read("output", {width, config.vocabulary});
  }
  for (const auto& [name, tensor] : file.tensors()) {
    require(used.find(name) != used.end(), ErrorCode::unsupported, file.name(), ": tensor ",
            turboquant::detail::in_quotes(name), " is unknown, expected a plain Llama model");
  }
  return model;
}

}  // namespace llama_ab
