#pragma once

#include <cstdint>

/// @file
/// Attention over uncompressed keys and values as one would write it with Eigen: what attention
/// from tiles is compared with.

namespace turboquant_bench {

/// Part of the tokens of one kv head, for all query heads of its group.
struct EigenPart {
  const void* keys = nullptr;      ///< (tokens, dim), float or bfloat16
  const void* values = nullptr;    ///< (tokens, dim)
  const float* queries = nullptr;  ///< (rows, dim), times the softmax scale
  std::int64_t tokens = 0;
  int rows = 0;  ///< query heads per kv head
  int dim = 0;
  float* output = nullptr;   ///< (rows, dim), sum of weights times values
  float* maximum = nullptr;  ///< (rows)
  float* sum = nullptr;      ///< (rows), sum of weights
};

using EigenAttend = void (*)(const EigenPart&);

/// Compiled with the flags of this build.
namespace eigen_build {
void attend_f32(const EigenPart& part);
void attend_bf16(const EigenPart& part);
}  // namespace eigen_build

/// Compiled for the processor of the machine that compiles; the same code.
namespace eigen_native {
void attend_f32(const EigenPart& part);
void attend_bf16(const EigenPart& part);
}  // namespace eigen_native

}  // namespace turboquant_bench
