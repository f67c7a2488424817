#pragma once

// Writes GGUF files, right and wrong ones, and a small model with a tokenizer.

#include "../../examples/llama_ab/tensor_types.hpp"

#include <turboquant/base/float16.hpp>
#include <turboquant/base/random.hpp>
#include <turboquant/math/exact_functions.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace turboquant::test {

template <class Number>
std::string raw(Number number) {
  static_assert(std::is_arithmetic_v<Number>);
  std::string bytes(sizeof(Number), '\0');
  std::memcpy(bytes.data(), &number, sizeof(Number));
  return bytes;
}

inline std::string raw_text(std::string_view text) {
  return raw<std::uint64_t>(text.size()) + std::string(text);
}

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// The parts of a file; the fields are what tests spoil.
struct GgufWriter {
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> shape;  ///< fastest axis first
    std::uint32_t type = 0;
    std::string data;
    std::int64_t shift = 0;  ///< of the offset, from where the data is
  };

  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;
  std::int64_t more_tensors = 0;  ///< announced beyond those that are there
  std::int64_t more_values = 0;
  std::vector<std::pair<std::string, std::string>> values;  ///< key; type and value
  std::vector<Tensor> tensors;

  void add(const std::string& key, std::uint32_t type, const std::string& value) {
    values.emplace_back(key, raw(type) + value);
  }
  void add_integer(const std::string& key, std::uint32_t value) { add(key, 4, raw(value)); }
  void add_number(const std::string& key, float value) { add(key, 6, raw(value)); }
  void add_text(const std::string& key, std::string_view value) { add(key, 8, raw_text(value)); }
  void add_texts(const std::string& key, const std::vector<std::string>& texts) {
    std::string value = raw<std::uint32_t>(8) + raw<std::uint64_t>(texts.size());
    for (const std::string& text : texts) {
      value += raw_text(text);
    }
    add(key, 9, value);
  }
  void add_integers(const std::string& key, const std::vector<std::int32_t>& numbers) {
    std::string value = raw<std::uint32_t>(5) + raw<std::uint64_t>(numbers.size());
    for (const std::int32_t number : numbers) {
      value += raw(number);
    }
    add(key, 9, value);
  }

  [[nodiscard]] std::string bytes() const {
    std::string file = magic + raw(version) +
                       raw(tensors.size() + static_cast<std::uint64_t>(more_tensors)) +
                       raw(values.size() + static_cast<std::uint64_t>(more_values));
    for (const auto& [key, value] : values) {
      file += raw_text(key) + value;
    }
    std::string data;
    for (const Tensor& tensor : tensors) {
      data.resize((data.size() + alignment - 1) / alignment * alignment, '\0');
      file += raw_text(tensor.name) + raw(static_cast<std::uint32_t>(tensor.shape.size()));
      for (const std::uint64_t extent : tensor.shape) {
        file += raw(extent);
      }
      file +=
          raw(tensor.type) +
          raw(static_cast<std::uint64_t>(static_cast<std::int64_t>(data.size()) + tensor.shift));
      data += tensor.data;
    }
    file.resize((file.size() + alignment - 1) / alignment * alignment, '\0');
    return file + data;
  }
};

/// Sizes of a small model.
struct SmallModel {
  std::uint32_t layers = 2;
  std::uint32_t width = 64;
  std::uint32_t feed_forward = 96;
  std::uint32_t query_heads = 4;
  std::uint32_t kv_heads = 2;
  std::uint32_t context = 512;
  std::uint32_t type = 0;  ///< of matrices: F32 or, with random codes, Q8_0
  bool own_output = false;

  static constexpr std::uint32_t vocabulary = 264;

  /// Every byte as a token, some merges, and two control tokens.
  static void add_tokenizer(GgufWriter& writer) {
    std::vector<std::string> tokens;
    unsigned next = 256;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool visible = (byte >= 33 && byte < 127) || (byte >= 161 && byte < 173) || byte >= 174;
      const unsigned point = visible ? byte : next++;
      std::string glyph;
      if (point < 128) {
        glyph += static_cast<char>(point);
      } else {
        glyph += static_cast<char>(0xC0U | point >> 6U);
        glyph += static_cast<char>(0x80U | (point & 63U));
      }
      tokens.push_back(glyph);
    }
    const std::string blank = tokens[32];
    std::vector<std::string> merges;
    for (const auto& [left, right] : {std::pair<std::string, std::string>{"t", "h"},
                                      {"th", "e"},
                                      {"a", "b"},
                                      {"b", "a"},
                                      {blank, "the"},
                                      {"ab", "ab"}}) {
      merges.push_back(left + " " + right);
      tokens.push_back(left + right);
    }
    tokens.emplace_back("<|end|>");
    tokens.emplace_back("<|ending|>");
    std::vector<std::int32_t> types(tokens.size(), 1);
    types[types.size() - 1] = 3;
    types[types.size() - 2] = 3;
    writer.add_text("tokenizer.ggml.model", "gpt2");
    writer.add_text("tokenizer.ggml.pre", "smollm");
    writer.add_texts("tokenizer.ggml.tokens", tokens);
    writer.add_integers("tokenizer.ggml.token_type", types);
    writer.add_texts("tokenizer.ggml.merges", merges);
  }

  static std::string floats(std::uint64_t count, std::uint64_t stream, float scale, float offset) {
    const CounterRng rng(5, stream);
    std::string data;
    for (std::uint64_t i = 0; i < count; ++i) {
      data += raw(offset + scale * static_cast<float>(normal(rng, i)));
    }
    return data;
  }

  [[nodiscard]] GgufWriter writer() const {
    GgufWriter file;
    file.add_text("general.architecture", "llama");
    file.add_integer("llama.block_count", layers);
    file.add_integer("llama.context_length", context);
    file.add_integer("llama.embedding_length", width);
    file.add_integer("llama.feed_forward_length", feed_forward);
    file.add_integer("llama.attention.head_count", query_heads);
    file.add_integer("llama.attention.head_count_kv", kv_heads);
    file.add_number("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    file.add_number("llama.rope.freq_base", 1000.0F);
    add_tokenizer(file);
    std::uint64_t stream = 0;
    const auto matrix = [&](const std::string& name, std::uint64_t in, std::uint64_t out,
                            float scale) {
      std::string data;
      if (type == 0) {
        data = floats(in * out, ++stream, scale, 0);
      } else {
        const CounterRng rng(6, ++stream);
        const float16 block_scale = float16::from_float(scale / 74.0F);  // of uniform bytes
        for (std::uint64_t i = 0; i < in * out / 32; ++i) {
          data += raw(block_scale.bits);
          for (std::uint64_t k = 0; k < 32; ++k) {
            data += static_cast<char>(rng.bits64(i * 32 + k) & 255U);
          }
        }
      }
      file.tensors.push_back({name + ".weight", {in, out}, type, data});
    };
    const auto norm = [&](const std::string& name) {
      file.tensors.push_back({name + ".weight", {width}, 0, floats(width, ++stream, 0.1F, 1)});
    };
    const float scale = 1.5F / 8.0F;  // of products of 64 numbers
    matrix("token_embd", width, vocabulary, 1.0F);
    for (std::uint32_t i = 0; i < layers; ++i) {
      const std::string prefix = "blk." + std::to_string(i) + ".";
      const std::uint64_t kv = std::uint64_t{width} / query_heads * kv_heads;
      norm(prefix + "attn_norm");
      matrix(prefix + "attn_q", width, width, scale);
      matrix(prefix + "attn_k", width, kv, scale);
      matrix(prefix + "attn_v", width, kv, scale);
      matrix(prefix + "attn_output", width, width, scale);
      norm(prefix + "ffn_norm");
      matrix(prefix + "ffn_gate", width, feed_forward, scale);
      matrix(prefix + "ffn_up", width, feed_forward, scale);
      matrix(prefix + "ffn_down", feed_forward, width, scale);
    }
    norm("output_norm");
    if (own_output) {
      matrix("output", width, vocabulary, scale);
    }
    return file;
  }
};

}  // namespace turboquant::test
