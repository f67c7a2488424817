// Feeds the keys, values and queries of a real model to a cache token by token, in every mode, and
// prints the bytes, the ratio to 16-bit rows and the error of attention as the context grows.
//
// Input: a safetensors file as kv_report reads it, with queries. Exit code: 0; 2 for a wrong file
// or argument, 1 when the output cannot be written. The query at a context length is that of the
// file at this position, or, before its first one, one of the file's queries in turn.

#include "kv_report/capture.hpp"
#include "kv_report/progress.hpp"
#include "program/program.hpp"
#include "streaming_decode/exact_attention.hpp"

#include <turboquant/runtime/cache_manager.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace {

using turboquant::bfloat16;
using turboquant::CacheMode;
using turboquant::SequenceId;
using Space = Kokkos::HostSpace;
using Exec = Kokkos::DefaultHostExecutionSpace;
using Manager = turboquant::CacheManager<Space, bfloat16>;

struct Arguments {
  std::string file = TURBOQUANT_FIXTURE;
  int key_bits = 3;
  int value_bits = 4;
  std::int64_t window = 128;
  std::int64_t every = 128;
};

/// One line of the table: what a mode holds at a context length.
struct Line {
  std::int64_t context = 0;
  std::size_t bytes = 0;
  std::size_t dense_bytes = 0;
  bool library = false;  ///< whether the library computed attention
  streaming_decode::Distance distance{};
};

const char* text(turboquant::EngineCache cache) {
  switch (cache) {
    case turboquant::EngineCache::needed: return "needed";
    case turboquant::EngineCache::during_prefill: return "during prefill";
    case turboquant::EngineCache::none: return "never allocated";
  }
  return "";
}

Kokkos::View<bfloat16***, Kokkos::LayoutRight, Space> token_rows(const std::vector<float>& all,
                                                                 std::int64_t token,
                                                                 std::int64_t heads,
                                                                 std::int64_t dim) {
  Kokkos::View<bfloat16***, Kokkos::LayoutRight, Space> rows(
      "token", 1, static_cast<std::size_t>(heads), static_cast<std::size_t>(dim));
  const float* from = all.data() + token * heads * dim;
  std::transform(from, from + heads * dim, rows.data(), bfloat16::from_float);
  return rows;
}

Manager make_manager(const kv_report::Capture& capture, const Arguments& arguments,
                     CacheMode mode) {
  turboquant::CacheManagerOptions options;
  options.mode = mode;
  for (const kv_report::LayerCapture& captured : capture.layers) {
    turboquant::LayerOptions layer;
    layer.capture.shape = {static_cast<int>(captured.kv_heads), static_cast<int>(captured.key_dim),
                           static_cast<int>(captured.value_dim)};
    layer.capture.window_capacity = arguments.window;
    layer.capture.block_size = 64;
    layer.codec.emplace();
    layer.codec->format.key_bits = arguments.key_bits;
    layer.codec->format.key_dim = static_cast<int>(captured.key_dim);
    layer.codec->format.value_bits = arguments.value_bits;
    layer.codec->format.value_dim = static_cast<int>(captured.value_dim);
    layer.codec->format.value_group = static_cast<int>(captured.value_dim);
    options.layers.push_back(layer);
  }
  options.slab_pages = 1;
  return Manager(options);
}

/// Streams all layers through one mode.
std::vector<Line> stream(const kv_report::Capture& capture, const Arguments& arguments,
                         CacheMode mode, kv_report::Progress& progress) {
  const Exec exec;
  Manager manager = make_manager(capture, arguments, mode);
  const std::vector<SequenceId> sequence{manager.open()};
  const std::vector<std::int64_t> one_token{0, 1};
  const std::int64_t tokens = capture.layers.front().tokens;
  std::vector<Line> lines;
  for (std::int64_t token = 0; token < tokens; ++token) {
    const bool shown = (token + 1) % arguments.every == 0 || token + 1 == tokens;
    Line line;
    line.context = token + 1;
    for (std::size_t l = 0; l < capture.layers.size(); ++l) {
      const kv_report::LayerCapture& layer = capture.layers[l];
      const auto keys = token_rows(layer.keys, token, layer.kv_heads, layer.key_dim);
      const auto values = token_rows(layer.values, token, layer.kv_heads, layer.value_dim);
      const auto found =
          std::find(layer.query_positions.begin(), layer.query_positions.end(), token);
      const auto row = found != layer.query_positions.end()
                           ? found - layer.query_positions.begin()
                           : token % static_cast<std::int64_t>(layer.query_positions.size());
      const auto heads = static_cast<std::size_t>(layer.query_heads);
      const auto key_dim = static_cast<std::size_t>(layer.key_dim);
      const auto value_dim = static_cast<std::size_t>(layer.value_dim);
      const float* query = layer.queries.data() + row * layer.query_heads * layer.key_dim;
      const Kokkos::View<const float***, Kokkos::LayoutRight, Space> rows(query, 1, heads, key_dim);
      const Kokkos::View<float***, Kokkos::LayoutRight, Space> output("output", 1, heads,
                                                                      value_dim);
      const Kokkos::View<float**, Kokkos::LayoutRight, Space> lse("lse", 1, heads);
      const auto index = static_cast<std::int64_t>(l);
      if (mode == CacheMode::full_tq) {
        manager.prefill(exec, index, sequence, one_token, keys, values, one_token, rows, output,
                        lse);
        line.library = true;
      } else {
        manager.append(exec, index, sequence, one_token, keys, values);
        if (shown && mode != CacheMode::off) {
          const Kokkos::View<const float****, Kokkos::LayoutRight, Space> queries(query, 1, 1,
                                                                                  heads, key_dim);
          const Kokkos::View<float****, Kokkos::LayoutRight, Space> out(output.data(), 1, 1, heads,
                                                                        value_dim);
          const Kokkos::View<float***, Kokkos::LayoutRight, Space> sums(lse.data(), 1, 1, heads);
          if (mode == CacheMode::hybrid) {
            manager.attend(exec, index, sequence, queries, out, sums);
          } else {
            manager.shadow_attend(exec, index, sequence, queries, out, sums);
          }
          line.library = true;
        }
      }
      if (shown) {
        const auto stats = manager.stats(index, sequence.front());
        line.bytes += stats.history_bytes + stats.exact_bytes;
        line.dense_bytes += 2 * static_cast<std::size_t>((token + 1) * layer.kv_heads *
                                                         (layer.key_dim + layer.value_dim));
        if (line.library) {
          line.distance.add(streaming_decode::exact_attention(layer, query, token + 1),
                            output.data());
        }
      }
    }
    if (shown) {
      lines.push_back(line);
    }
    progress.advance();
  }
  return lines;
}

void run(const Arguments& arguments) {
  const kv_report::Capture capture = kv_report::load_capture(arguments.file, {});
  for (const kv_report::LayerCapture& layer : capture.layers) {
    turboquant::require(layer.query_heads > 0, turboquant::ErrorCode::format, arguments.file,
                        ": layer ", layer.layer, " has no queries");
    turboquant::require(layer.tokens == capture.layers.front().tokens,
                        turboquant::ErrorCode::shape_mismatch, arguments.file, ": layer ",
                        layer.layer, " has ", layer.tokens, " tokens, expected ",
                        capture.layers.front().tokens, " as in the first layer");
  }
  // One sequence, one token at a time: too little work for more threads.
  const turboquant::KokkosScope kokkos({.num_threads = 1});
  const auto total =
      static_cast<std::size_t>(capture.layers.front().tokens) * turboquant::cache_modes.size();
  std::vector<std::vector<Line>> modes;
  {
    kv_report::Progress progress("streaming", total);
    for (const auto& mode : turboquant::cache_modes) {
      modes.push_back(stream(capture, arguments, mode.mode, progress));
    }
  }
  std::printf("%zu layers, %d-bit keys, %d-bit values, exact window of %lld tokens\n\n",
              capture.layers.size(), arguments.key_bits, arguments.value_bits,
              static_cast<long long>(arguments.window));
  std::printf("%-13s %8s %12s %12s %8s %12s   %s\n", "mode", "context", "bytes", "16-bit", "ratio",
              "error", "attention by; engine's own cache");
  for (std::size_t i = 0; i < modes.size(); ++i) {
    const auto& traits = turboquant::cache_modes[i];
    for (const Line& line : modes[i]) {
      const double ratio =
          line.bytes > 0 ? static_cast<double>(line.dense_bytes) / static_cast<double>(line.bytes)
                         : 0.0;
      std::printf("%-13s %8lld %12zu %12zu ", std::string(traits.name).c_str(),
                  static_cast<long long>(line.context), line.bytes, line.dense_bytes);
      if (line.library) {
        std::printf("%8.2f %12.5f", ratio, line.distance.relative());
      } else {
        std::printf("%8s %12s", "-", "-");
      }
      std::printf("   %s; %s\n",
                  traits.decode == turboquant::AttentionBy::library ? "library"
                  : traits.stores ? "caller (error of a shadow run)"
                                  : "caller",
                  text(traits.engine_cache));
    }
  }
  std::printf(
      "\ncontext: tokens. bytes: tiles and exact window as allocated; 16-bit: the same rows "
      "dense.\n"
      "error: relative L2 distance of the attention output from double precision over dense rows,\n"
      "all layers and query heads together.\n");
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Memory and attention error of a streaming cache as the context grows, in every mode");
  app.add_option("file", arguments.file,
                 "safetensors file (default: the fixture of this repository)");
  app.add_option("--key-bits", arguments.key_bits, "2, 3 or 4")->capture_default_str();
  app.add_option("--value-bits", arguments.value_bits, "2, 3 or 4")->capture_default_str();
  app.add_option("--window", arguments.window, "tokens of the exact window")->capture_default_str();
  app.add_option("--every", arguments.every, "tokens between two lines")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30U))
      ->capture_default_str();
  return program::run("streaming_decode", app, argc, argv, [&] { run(arguments); });
}
