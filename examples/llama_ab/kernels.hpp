#pragma once

// The dense arithmetic of the decoder, single-threaded, compiled for several instruction sets;
// `kernels()` chooses the best that this processor has. Plain pointers only: the files that are
// compiled for other instruction sets share no inline function with the rest of the program.

#include <cstdint>

namespace llama_ab {

/// Attention of consecutive queries over uncompressed rows, for one kv head.
struct ExactAttention {
  const void* keys = nullptr;    ///< bfloat16 or float, first row of the head
  const void* values = nullptr;  ///< likewise
  std::int64_t key_stride = 0;   ///< numbers between two tokens
  std::int64_t value_stride = 0;
  const float* queries = nullptr;  ///< first query row of the head's group
  float* output = nullptr;         ///< likewise
  std::int64_t query_stride = 0;   ///< numbers between two tokens
  std::int64_t output_stride = 0;
  std::int64_t count = 0;     ///< queries, at most `max_queries`
  std::int64_t position = 0;  ///< of the first query; it sees the rows 0 to `position`
  int group = 1;              ///< query heads, one behind another
  int key_dim = 0;
  int value_dim = 0;
  float sm_scale = 1;
  float* scratch = nullptr;  ///< `attention_scratch` floats
};

/// How two rows of logits differ.
struct LogitDistance {
  double exact_log_sum = 0;  ///< log of the sum of the exponentials
  double other_log_sum = 0;
  double divergence = 0;  ///< Kullback-Leibler divergence of the other from the exact distribution
  std::int64_t exact_top = 0;  ///< index of the largest
  std::int64_t other_top = 0;
};

struct Kernels {
  const char* name;
  /// out[r * out_stride + c] = sum over k of x[r * depth + k] * weights[c * depth + k]
  void (*product)(const float* x, std::int64_t rows, std::int64_t depth, const float* weights,
                  std::int64_t columns, float* out, std::int64_t out_stride);
  void (*attend_bf16)(const ExactAttention& part);
  void (*attend_f32)(const ExactAttention& part);
  /// gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i]
  void (*swiglu)(float* gate, const float* up, std::int64_t count);
  /// out = x / root mean square of x * weights
  void (*rms_norm)(const float* x, const float* weights, float epsilon, std::int64_t count,
                   float* out);
  LogitDistance (*compare)(const float* exact, const float* other, std::int64_t count);
};

/// Queries of one call of `attend`, and tokens of one of its blocks.
inline constexpr std::int64_t max_queries = 32;
inline constexpr std::int64_t token_block = 128;

/// Floats of scratch memory of one call of `attend`.
[[nodiscard]] constexpr std::int64_t attention_scratch(int group, int key_dim, int value_dim) {
  const std::int64_t rows = max_queries * group;
  return rows * (key_dim + value_dim + token_block + 2) + token_block * (key_dim + value_dim);
}

/// The kernels of an instruction set; each is defined in its own object.
namespace plain {
extern const Kernels kernels;
}
namespace x86_v3 {
extern const Kernels kernels;
}
namespace x86_v4 {
extern const Kernels kernels;
}

/// The best kernels for this processor.
[[nodiscard]] const Kernels& kernels();

}  // namespace llama_ab
