#include "kernels.hpp"

namespace llama_ab {

const Kernels& kernels() {
#ifdef LLAMA_AB_X86
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512cd") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0) {
    return x86_v4::kernels;
  }
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
      __builtin_cpu_supports("bmi2") != 0) {
    return x86_v3::kernels;
  }
#endif
  return plain::kernels;
}

}  // namespace llama_ab
