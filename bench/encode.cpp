// Vectors per second of every quantizer on one thread: items_per_second of the output.
//
//     encode --benchmark_filter=mse_encode/128/3 --benchmark_repetitions=9

#include <turboquant/base/random.hpp>
#include <turboquant/math/gaussian_sketch.hpp>
#include <turboquant/math/hadamard_rotation.hpp>
#include <turboquant/math/orthogonal_sketch.hpp>
#include <turboquant/quant/float8_quantizer.hpp>
#include <turboquant/quant/inner_product_quantizer.hpp>
#include <turboquant/quant/int8_quantizer.hpp>
#include <turboquant/quant/mse_quantizer.hpp>
#include <turboquant/quant/value_quantizer.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace {

using namespace turboquant;

constexpr std::size_t count = 1024;

/// Bell-shaped numbers (count, dim).
std::vector<float> vectors(int dim) {
  const CounterRng rng(1, 1);
  std::vector<float> x(count * static_cast<std::size_t>(dim));
  for (std::size_t i = 0; i < x.size(); ++i) {
    double sum = -2;
    for (std::uint64_t k = 0; k < 4; ++k) {
      sum += rng.uniform(4 * i + k);
    }
    x[i] = static_cast<float>(sum);
  }
  return x;
}

template <class Quantizer>
void encode(benchmark::State& state, const Quantizer& quantizer) {
  const std::vector<float> x = vectors(quantizer.dim());
  for (auto _ : state) {
    auto encoded = quantizer.encode(x);
    benchmark::DoNotOptimize(encoded);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(count));
  state.counters["bytes_per_vector"] = static_cast<double>(quantizer.bytes_per_vector());
}

template <class Quantizer>
void decode(benchmark::State& state, const Quantizer& quantizer) {
  const std::vector<float> x = vectors(quantizer.dim());
  const auto encoded = quantizer.encode(x);
  std::vector<float> out(x.size());
  for (auto _ : state) {
    quantizer.decode(encoded, out);
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(count));
}

template <class Quantizer>
void score(benchmark::State& state, const Quantizer& quantizer) {
  const std::vector<float> x = vectors(quantizer.dim());
  const auto encoded = quantizer.encode(x);
  std::vector<float> scores(count);
  for (auto _ : state) {
    quantizer.scores(std::span<const float>(x.data(), static_cast<std::size_t>(quantizer.dim())),
                     encoded, scores);
    benchmark::DoNotOptimize(scores.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(count));
}

HadamardRotation rotation(const benchmark::State& state) {
  return {static_cast<int>(state.range(0)), 1};
}
int bits(const benchmark::State& state) {
  return static_cast<int>(state.range(1));
}

void mse_encode(benchmark::State& state) {
  encode(state, MseQuantizer(rotation(state), bits(state)));
}
void mse_encode_grid(benchmark::State& state) {
  encode(state,
         MseQuantizer(rotation(state), bits(state), {.codebook = CodebookKind::integer_grid}));
}
void mse_encode_3_scales(benchmark::State& state) {
  encode(state, MseQuantizer(rotation(state), bits(state),
                             {.scale_rule = ScaleRule::least_squares, .scale_candidates = 3}));
}
void mse_decode(benchmark::State& state) {
  decode(state, MseQuantizer(rotation(state), bits(state)));
}
void mse_scores(benchmark::State& state) {
  score(state, MseQuantizer(rotation(state), bits(state)));
}

void sketch_encode_gaussian(benchmark::State& state) {
  encode(state, InnerProductQuantizer(rotation(state), bits(state),
                                      GaussianSketch(rotation(state).dim(), 2)));
}
void sketch_encode_hadamard(benchmark::State& state) {
  encode(state,
         InnerProductQuantizer(rotation(state), bits(state),
                               OrthogonalSketch(HadamardRotation(rotation(state).dim(), 2))));
}
void sketch_decode_hadamard(benchmark::State& state) {
  decode(state,
         InnerProductQuantizer(rotation(state), bits(state),
                               OrthogonalSketch(HadamardRotation(rotation(state).dim(), 2))));
}

void value_encode(benchmark::State& state) {
  encode(state, ValueQuantizer(rotation(state).dim(), bits(state)));
}
void value_encode_groups_of_32(benchmark::State& state) {
  encode(state, ValueQuantizer(rotation(state).dim(), bits(state), {.group_size = 32}));
}
void value_decode(benchmark::State& state) {
  decode(state, ValueQuantizer(rotation(state).dim(), bits(state)));
}

void int8_encode(benchmark::State& state) {
  encode(state, Int8Quantizer(static_cast<int>(state.range(0))));
}
void float8_encode(benchmark::State& state) {
  encode(state, Float8Quantizer(static_cast<int>(state.range(0))));
}

BENCHMARK(mse_encode)->ArgNames({"dim", "bits"})->ArgsProduct({{64, 80, 128, 256}, {2, 3, 4}});
BENCHMARK(mse_encode)->ArgNames({"dim", "bits"})->Args({128, 8});
BENCHMARK(mse_encode_grid)->ArgNames({"dim", "bits"})->ArgsProduct({{64, 128, 256}, {2, 3, 4}});
BENCHMARK(mse_encode_3_scales)->ArgNames({"dim", "bits"})->Args({128, 3})->Args({128, 4});
BENCHMARK(mse_decode)->ArgNames({"dim", "bits"})->ArgsProduct({{64, 128, 256}, {3}});
BENCHMARK(mse_scores)->ArgNames({"dim", "bits"})->Args({128, 3});
BENCHMARK(sketch_encode_gaussian)->ArgNames({"dim", "bits"})->Args({128, 3});
BENCHMARK(sketch_encode_hadamard)->ArgNames({"dim", "bits"})->Args({64, 3})->Args({128, 3});
BENCHMARK(sketch_decode_hadamard)->ArgNames({"dim", "bits"})->Args({128, 3});
BENCHMARK(value_encode)->ArgNames({"dim", "bits"})->ArgsProduct({{64, 128}, {2, 3, 4}});
BENCHMARK(value_encode_groups_of_32)->ArgNames({"dim", "bits"})->Args({128, 4});
BENCHMARK(value_decode)->ArgNames({"dim", "bits"})->Args({128, 4});
BENCHMARK(int8_encode)->ArgName("dim")->Arg(128);
BENCHMARK(float8_encode)->ArgName("dim")->Arg(128);

}  // namespace

BENCHMARK_MAIN();
