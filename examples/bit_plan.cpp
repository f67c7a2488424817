// Measures what every choice of bits does to the attention of each layer, on captured keys, values
// and queries, and prints the plan of least total error that takes no more bytes than a uniform
// one.
//
// Input: a safetensors file as kv_report reads it, with queries. --output writes the plan, for
// `load_bit_plan`; layers that were not captured stay exact in it. Exit code: 0; 2 for a wrong file
// or argument, 1 when the output cannot be written.

#include "kv_report/capture.hpp"
#include "program/numbers.hpp"
#include "program/program.hpp"

#include <turboquant/device/runtime.hpp>
#include <turboquant/model/bit_allocation.hpp>
#include <turboquant/model/hf_bit_plan.hpp>
#include <turboquant/runtime/codec_errors.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

namespace {

using turboquant::BitAllocation;
using turboquant::BitChoice;
using turboquant::BitPlan;
using turboquant::KeyCentring;
using turboquant::LayerCodec;
using turboquant::LayerShape;

struct Arguments {
  std::string file = TURBOQUANT_FIXTURE;
  int key_bits = 3;
  int value_bits = 3;
  std::int64_t budget = 0;
  std::int64_t window = 0;
  bool key_means = false;
  std::string output;
};

turboquant::CalibrationRows rows_of(const kv_report::LayerCapture& layer) {
  turboquant::CalibrationRows rows;
  rows.shape = {layer.kv_heads, layer.key_dim, layer.value_dim};
  rows.query_heads = layer.query_heads;
  rows.keys = layer.keys;
  rows.values = layer.values;
  rows.queries = layer.queries;
  rows.query_positions = layer.query_positions;
  return rows;
}

void print(const kv_report::Capture& capture, const std::vector<std::vector<BitChoice>>& layers,
           const BitPlan& uniform, const BitAllocation& best) {
  std::printf("%5s %20s %20s\n", "layer", "uniform", "plan");
  double total = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    double errors[2] = {0, 0};
    const LayerCodec codecs[2] = {*uniform.layers[i], *best.plan.layers[i]};
    for (const BitChoice& choice : layers[i]) {
      for (std::size_t p = 0; p < 2; ++p) {
        errors[p] = choice.codec == codecs[p] ? choice.error : errors[p];
      }
    }
    std::printf("%5d", capture.layers[i].layer);
    for (std::size_t p = 0; p < 2; ++p) {
      std::printf("   K%d V%d  error %.4f", codecs[p].key_bits, codecs[p].value_bits, errors[p]);
    }
    std::printf("\n");
    total += errors[0];
  }
  std::printf("total error %.4f, with the plan %.4f; %lld bytes a token\n", total, best.error,
              static_cast<long long>(best.bytes));
}

BitAllocation plan(const kv_report::Capture& capture, const Arguments& arguments) {
  // What each choice of bits costs each layer.
  const std::vector<LayerCodec> codecs = turboquant::default_codec_choices(
      arguments.key_means ? KeyCentring::tile_mean : KeyCentring::none);
  const BitPlan uniform = turboquant::uniform_plan(static_cast<std::int64_t>(capture.layers.size()),
                                                   {.key_bits = arguments.key_bits,
                                                    .value_bits = arguments.value_bits,
                                                    .key_centring = codecs.front().key_centring});
  std::vector<LayerShape> shapes;
  std::vector<std::vector<BitChoice>> layers;
  for (const kv_report::LayerCapture& layer : capture.layers) {
    const turboquant::CalibrationRows rows = rows_of(layer);
    const std::vector<double> errors =
        turboquant::measure_codec_errors(rows, codecs, {.exact_window = arguments.window});
    shapes.push_back(rows.shape);
    layers.push_back(turboquant::bit_choices(rows.shape, codecs, errors));
  }
  // The best plan that takes no more bytes than a uniform one.
  const std::int64_t budget =
      arguments.budget > 0 ? arguments.budget : turboquant::bytes_per_token(uniform, shapes);
  BitAllocation best = turboquant::allocate_bits(layers, budget);

  print(capture, layers, uniform, best);
  kv_report::print_unused(capture.unused);
  return best;
}

/// The plan of all layers up to the last captured one; those that were not captured stay exact.
BitPlan at_their_layers(const kv_report::Capture& capture, const BitPlan& captured) {
  BitPlan plan;
  for (std::size_t i = 0; i < captured.layers.size(); ++i) {
    const auto layer = static_cast<std::size_t>(capture.layers[i].layer);
    plan.layers.resize(std::max(plan.layers.size(), layer + 1));
    plan.layers[layer] = captured.layers[i];
  }
  return plan;
}

void run(const Arguments& arguments) {
  const program::OutputFile output("--output", arguments.output);
  output.require_not(arguments.file);
  const kv_report::Capture capture = kv_report::load_capture(arguments.file, {});
  for (const kv_report::LayerCapture& layer : capture.layers) {
    turboquant::require(layer.query_heads > 0, turboquant::ErrorCode::format, arguments.file,
                        ": layer ", layer.layer, " has no queries");
  }
  const turboquant::KokkosScope kokkos;
  const BitAllocation best = plan(capture, arguments);
  if (output.wanted()) {
    program::write_output(
        [&] { turboquant::save_bit_plan(arguments.output, at_their_layers(capture, best.plan)); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("The plan of key and value bits per layer that errs least within a budget of bytes");
  app.add_option("file", arguments.file,
                 "safetensors file (default: the fixture of this repository)")
      ->check(program::file_name());
  app.add_option("--key-bits", arguments.key_bits, "of the uniform plan: 2, 3 or 4")
      ->check(program::integer<int>())
      ->capture_default_str();
  app.add_option("--value-bits", arguments.value_bits, "of the uniform plan: 2, 3 or 4")
      ->check(program::integer<int>())
      ->capture_default_str();
  app.add_option("--budget", arguments.budget,
                 "bytes of a token in all layers (default: those of the uniform plan)")
      ->check(program::integer<std::int64_t>(1));
  app.add_option("--window", arguments.window, "newest tokens that stay exact")
      ->check(program::integer<std::int64_t>(0))
      ->capture_default_str();
  app.add_flag("--key-means", arguments.key_means, "store a mean of every 64 keys");
  app.add_option("--output", arguments.output, "file for the plan")->check(program::file_name());
  return program::run("bit_plan", app, argc, argv, [&] { run(arguments); });
}
