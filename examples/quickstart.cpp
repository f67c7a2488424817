#include <turboquant/base/random.hpp>
#include <turboquant/math/exact_functions.hpp>
#include <turboquant/quant/mse_quantizer.hpp>

#include <cstddef>
#include <cstdio>
#include <span>
#include <vector>

int main() {
  using namespace turboquant;
  constexpr int head_dim = 128;
  constexpr std::size_t tokens = 1000;
  std::vector<float> keys(tokens * head_dim);  // (tokens, head_dim), of one kv head
  const CounterRng rng(/*seed=*/1, /*stream=*/0);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = static_cast<float>(normal(rng, i));
  }

  const MseQuantizer quantizer(HadamardRotation(head_dim, /*seed=*/42), /*bits=*/3);
  const EncodedVectors encoded = quantizer.encode(keys);

  std::vector<float> scores(tokens);  // inner products with the first key, straight from the codes
  quantizer.scores(std::span(keys).first(head_dim), encoded, scores);
  std::printf("%zu bytes instead of %zu in bf16; <k0, k0> is %.2f, <k0, k1> is %.2f\n",
              encoded.bytes(), keys.size() * 2, static_cast<double>(scores[0]),
              static_cast<double>(scores[1]));
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 ? 0 : 1;
}
