#pragma once

// Random decode problems with a double-precision reference over the same stored codes.

#include <turboquant/attention/decode.hpp>
#include <turboquant/base/random.hpp>
#include <turboquant/device/encode_tiles.hpp>
#include <turboquant/device/tile_decoder.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

namespace decode_fixture {

using namespace turboquant;
using Exec = Kokkos::DefaultHostExecutionSpace;
using Memory = Kokkos::HostSpace;

/// Standard normal numbers; number i of a stream is always the same.
class Normals {
 public:
  explicit Normals(std::uint64_t stream) : rng_(7, stream) {}
  float next() {
    const double radius = std::sqrt(-2 * std::log(rng_.uniform(index_)));
    const double angle = 6.283185307179586 * rng_.uniform(index_ + 1);
    index_ += 2;
    return static_cast<float>(radius * std::cos(angle));
  }
  std::vector<float> take(std::size_t count) {
    std::vector<float> out(count);
    for (float& x : out) {
      x = next();
    }
    return out;
  }

 private:
  CounterRng rng_;
  std::uint64_t index_ = 0;
};

struct Lengths {
  std::int64_t sinks = 0;
  std::int64_t history = 0;
  std::int64_t window = 0;
};

struct Setup {
  TileFormat format{};
  int kv_heads = 2;
  int ratio = 2;
  int num_queries = 1;
  std::vector<Lengths> sequences{{0, 300, 0}};
  std::int64_t sliding_window = 0;
  float soft_cap = 0;
  float sm_scale = 0;
  bool learned_sinks = false;
  std::int64_t tiles_per_page = 2;
  /// Tokens at the front of the first page that are not part of the history any more.
  std::int64_t evicted = 0;
  /// The ring holds the window from this row on.
  std::int64_t ring_start = 3;
  /// Queries stand this many tokens before the end of the sequence (tokens after them are masked).
  std::int64_t look_back = 0;
  float query_gain = 1;
  /// Overrides of single numbers of keys and values; the defaults are normal.
  std::function<float(std::int64_t position, int head, int dim, float normal)> key;
  std::function<float(std::int64_t position, int head, int dim, float normal)> value;
  std::function<float(int query, int head, int dim, float normal)> query;
  std::uint64_t stream = 0;
  TileCodecOptions codec{};
};

/// One sequence: raw rows of all tokens, tiles of its history, ring of its window.
struct Sequence {
  Lengths lengths;
  std::vector<float> keys;    // (tokens, kv_heads, key_dim)
  std::vector<float> values;  // (tokens, kv_heads, value_dim)
  std::vector<std::vector<std::byte>> page_memory;
  std::vector<std::byte*> pages;
  std::vector<float> ring_keys;
  std::vector<float> ring_values;
  std::int64_t capacity = 0;
  [[nodiscard]] std::int64_t tokens() const {
    return lengths.sinks + lengths.history + lengths.window;
  }
};

struct Result {
  std::vector<double> output;  // (sequences, queries, query_heads, value_dim)
  std::vector<double> lse;     // (sequences, queries, query_heads)
  /// (sequences, queries, query_heads), only in references: mean length of the values, weighted
  /// like the output.
  std::vector<double> length;
};

class Problem {
 public:
  explicit Problem(const Setup& setup) : setup_(setup), codec_(options_of(setup)) {
    const TileFormat& format = setup.format;
    Normals normals(setup.stream);
    queries_ = Kokkos::View<float****, Kokkos::LayoutRight, Memory>(
        "queries", setup.sequences.size(), static_cast<std::size_t>(setup.num_queries),
        static_cast<std::size_t>(query_heads()), static_cast<std::size_t>(format.key_dim));
    for (std::size_t i = 0; i < queries_.size(); ++i) {
      const auto dim = static_cast<int>(i % static_cast<std::size_t>(format.key_dim));
      const auto row = static_cast<int>(i / static_cast<std::size_t>(format.key_dim));
      const float normal = normals.next() * setup.query_gain;
      queries_.data()[i] = setup.query ? setup.query(row / query_heads() % setup.num_queries,
                                                     row % query_heads(), dim, normal)
                                       : normal;
    }
    if (setup.learned_sinks) {
      sink_logits_ = Kokkos::View<float*, Memory>("sinks", static_cast<std::size_t>(query_heads()));
      for (std::size_t i = 0; i < sink_logits_.size(); ++i) {
        sink_logits_(i) = normals.next();
      }
    }
    records_ = Kokkos::View<DecodeSequence*, Memory>("records", setup.sequences.size());
    sequences_.resize(setup.sequences.size());
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      build(setup.sequences[i], normals, sequences_[i], records_(i));
    }
  }

  [[nodiscard]] int query_heads() const { return setup_.kv_heads * setup_.ratio; }
  [[nodiscard]] const Setup& setup() const { return setup_; }
  [[nodiscard]] const TileCodec<Memory>& codec() const { return codec_; }
  [[nodiscard]] const Kokkos::View<float****, Kokkos::LayoutRight, Memory>& queries() const {
    return queries_;
  }
  [[nodiscard]] const std::vector<Sequence>& sequences() const { return sequences_; }
  [[nodiscard]] const DecodeSequence& record(std::size_t i) const { return records_(i); }
  [[nodiscard]] const Kokkos::View<float*, Memory>& sink_logits() const { return sink_logits_; }
  [[nodiscard]] Sequence& sequence(std::size_t i) { return sequences_[i]; }
  [[nodiscard]] DecodeSequence& record(std::size_t i) { return records_(i); }
  [[nodiscard]] Kokkos::View<float*, Memory>& sink_logits() { return sink_logits_; }

  [[nodiscard]] DecodeProblem shape() const {
    DecodeProblem problem;
    problem.num_sequences = static_cast<int>(sequences_.size());
    problem.num_queries = setup_.num_queries;
    problem.query_heads = query_heads();
    problem.kv_heads = setup_.kv_heads;
    for (const Sequence& sequence : sequences_) {
      problem.max_history_tokens = std::max(problem.max_history_tokens, sequence.lengths.history);
    }
    problem.sm_scale = setup_.sm_scale;
    problem.logits_soft_cap = setup_.soft_cap;
    problem.sliding_window = setup_.sliding_window;
    return problem;
  }

  template <class Output = float, class ExecutionSpace = Exec>
  [[nodiscard]] Result run(const DecodeOptions& options = {},
                           const ExecutionSpace& exec = {}) const {
    const auto plan = plan_decode(exec, codec_, shape(), options);
    return run_plan<Output>(exec, plan);
  }

  template <class Output = float, class ExecutionSpace>
  [[nodiscard]] Result run_plan(const ExecutionSpace& exec,
                                const DecodePlan<ExecutionSpace, Memory>& plan) const {
    Kokkos::View<Output****, Kokkos::LayoutRight, Memory> output(
        "output", queries_.extent(0), queries_.extent(1), queries_.extent(2),
        static_cast<std::size_t>(setup_.format.value_dim));
    Kokkos::View<float***, Kokkos::LayoutRight, Memory> lse("lse", queries_.extent(0),
                                                            queries_.extent(1), queries_.extent(2));
    Kokkos::View<std::byte*, Memory> workspace(Kokkos::ViewAllocateWithoutInitializing("workspace"),
                                               static_cast<std::size_t>(plan.workspace_bytes()));
    std::memset(static_cast<void*>(workspace.data()), 0xFF, workspace.size());
    DecodeInputs<float, Memory> inputs;
    inputs.queries = queries_;
    inputs.sequences = records_;
    inputs.sink_logits = sink_logits_;
    run_decode(exec, plan, inputs, output, lse, workspace);
    exec.fence();
    Result result;
    for (std::size_t i = 0; i < output.size(); ++i) {
      result.output.push_back(number(output.data()[i]));
    }
    result.lse.assign(lse.data(), lse.data() + lse.size());
    return result;
  }

  /// Softmax in double over the decoded keys and values.
  [[nodiscard]] Result reference() const {
    const TileFormat& format = setup_.format;
    const auto key_dim = static_cast<std::size_t>(format.key_dim);
    const auto value_dim = static_cast<std::size_t>(format.value_dim);
    const double scale = setup_.sm_scale != 0 ? static_cast<double>(setup_.sm_scale)
                                              : 1 / std::sqrt(static_cast<double>(format.key_dim));
    Result result;
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      const Sequence& sequence = sequences_[s];
      std::vector<float> keys = sequence.keys;
      std::vector<float> values = sequence.values;
      decode_history(s, keys, values);
      const std::int64_t tokens = sequence.tokens();
      for (int query = 0; query < setup_.num_queries; ++query) {
        const std::int64_t position = records_(s).query_position + query;
        for (int query_head = 0; query_head < query_heads(); ++query_head) {
          const auto head = static_cast<std::size_t>(query_head / setup_.ratio);
          const float* q = &queries_(s, static_cast<std::size_t>(query),
                                     static_cast<std::size_t>(query_head), 0);
          std::vector<double> logits;
          std::vector<std::size_t> visible;
          for (std::int64_t token = 0; token < tokens; ++token) {
            const bool sink = token < sequence.lengths.sinks;
            const bool evicted =
                !sink && token < sequence.lengths.sinks + setup_.evicted && setup_.evicted > 0;
            if (token > position || evicted ||
                (!sink && setup_.sliding_window > 0 && token <= position - setup_.sliding_window)) {
              continue;
            }
            const std::size_t row =
                static_cast<std::size_t>(token) * static_cast<std::size_t>(setup_.kv_heads) + head;
            double logit = 0;
            for (std::size_t d = 0; d < key_dim; ++d) {
              logit += static_cast<double>(q[d]) * static_cast<double>(keys[row * key_dim + d]);
            }
            logit *= scale;
            if (setup_.soft_cap > 0) {
              const auto cap = static_cast<double>(setup_.soft_cap);
              logit = cap * std::tanh(logit / cap);
            }
            logits.push_back(logit);
            visible.push_back(row);
          }
          double highest = -std::numeric_limits<double>::infinity();
          for (const double logit : logits) {
            highest = std::max(highest, logit);
          }
          double sum = 0;
          if (sink_logits_.size() > 0) {
            const auto sink =
                static_cast<double>(sink_logits_(static_cast<std::size_t>(query_head)));
            highest = std::max(highest, sink);
            sum += std::exp(sink - highest);
          }
          std::vector<double> output(value_dim);
          double length = 0;
          for (std::size_t i = 0; i < logits.size(); ++i) {
            const double weight = std::exp(logits[i] - highest);
            sum += weight;
            double squared = 0;
            for (std::size_t d = 0; d < value_dim; ++d) {
              const auto value = static_cast<double>(values[visible[i] * value_dim + d]);
              output[d] += weight * value;
              squared += value * value;
            }
            length += weight * std::sqrt(squared);
          }
          result.length.push_back(logits.empty() ? 0.0 : length / sum);
          for (std::size_t d = 0; d < value_dim; ++d) {
            result.output.push_back(logits.empty() ? 0.0 : output[d] / sum);
          }
          result.lse.push_back(sum > 0 ? highest + std::log(sum)
                                       : -std::numeric_limits<double>::infinity());
        }
      }
    }
    return result;
  }

  [[nodiscard]] std::size_t value_dim() const {
    return static_cast<std::size_t>(setup_.format.value_dim);
  }

 private:
  static double number(float x) { return static_cast<double>(x); }
  template <class Half>
  static double number(Half x) {
    return static_cast<double>(x.to_float());
  }

  static TileCodecOptions options_of(const Setup& setup) {
    TileCodecOptions options = setup.codec;
    options.format = setup.format;
    return options;
  }

  void build(const Lengths& lengths, Normals& normals, Sequence& sequence, DecodeSequence& record) {
    const TileFormat& format = setup_.format;
    sequence.lengths = lengths;
    const std::int64_t tokens = sequence.tokens();
    const auto fill = [&](int dim, const auto& change, std::vector<float>& out) {
      for (std::int64_t token = 0; token < tokens; ++token) {
        for (int head = 0; head < setup_.kv_heads; ++head) {
          for (int d = 0; d < dim; ++d) {
            const float normal = normals.next();
            out.push_back(change ? change(token, head, d, normal) : normal);
          }
        }
      }
    };
    fill(format.key_dim, setup_.key, sequence.keys);
    fill(format.value_dim, setup_.value, sequence.values);

    // Sinks and window are exact; history starts behind the sinks.
    const auto key_row = static_cast<std::size_t>(setup_.kv_heads * format.key_dim);
    const auto value_row = static_cast<std::size_t>(setup_.kv_heads * format.value_dim);
    const auto sinks = static_cast<std::size_t>(lengths.sinks);
    const auto history = static_cast<std::size_t>(lengths.history);
    record.num_sinks = lengths.sinks;
    record.sink_keys = dense_rows(sequence.keys.data(), setup_.kv_heads, format.key_dim);
    record.sink_values = dense_rows(sequence.values.data(), setup_.kv_heads, format.value_dim);
    sequence.capacity = lengths.window + 5;
    const auto capacity = static_cast<std::size_t>(sequence.capacity);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    sequence.ring_keys.assign(capacity * key_row, nan);
    sequence.ring_values.assign(capacity * value_row, nan);
    for (std::size_t i = 0; i < static_cast<std::size_t>(lengths.window); ++i) {
      const std::size_t row = (static_cast<std::size_t>(setup_.ring_start) + i) % capacity;
      std::copy_n(sequence.keys.data() + (sinks + history + i) * key_row, key_row,
                  sequence.ring_keys.data() + row * key_row);
      std::copy_n(sequence.values.data() + (sinks + history + i) * value_row, value_row,
                  sequence.ring_values.data() + row * value_row);
    }
    record.window_keys = dense_rows(sequence.ring_keys.data(), setup_.kv_heads, format.key_dim);
    record.window_values =
        dense_rows(sequence.ring_values.data(), setup_.kv_heads, format.value_dim);
    record.window_capacity = sequence.capacity;
    record.window_start = setup_.ring_start;
    record.window_count = lengths.window;
    record.window_position = lengths.sinks + lengths.history;
    record.query_position =
        std::max<std::int64_t>(0, tokens - setup_.num_queries - setup_.look_back);

    encode_history(sequence, record);
  }

  void encode_history(Sequence& sequence, DecodeSequence& record) {
    const TileFormat& format = setup_.format;
    const std::int64_t history = sequence.lengths.history;
    const std::int64_t num_tiles = (history + 63) / 64;
    const std::int64_t num_pages = (num_tiles + setup_.tiles_per_page - 1) / setup_.tiles_per_page;
    for (std::int64_t page = 0; page < num_pages; ++page) {
      // 0xFF everywhere: codes, scales and zero points of unused slots are NaN.
      sequence.page_memory.emplace_back(page_bytes(format, setup_.kv_heads, setup_.tiles_per_page),
                                        std::byte{0xFF});
    }
    for (auto& page : sequence.page_memory) {
      sequence.pages.push_back(page.data());
    }
    record.history = {sequence.pages.data(), num_pages, setup_.tiles_per_page};
    record.page_position = sequence.lengths.sinks;
    record.history_begin = sequence.lengths.sinks + setup_.evicted;
    record.history_end = sequence.lengths.sinks + history;
    Kokkos::View<EncodeJob*, Memory> jobs("jobs", static_cast<std::size_t>(num_tiles));
    for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
      EncodeJob& job = jobs(static_cast<std::size_t>(tile));
      const std::int64_t first = sequence.lengths.sinks + 64 * tile;
      job.keys = dense_rows(sequence.keys.data() + first * setup_.kv_heads * format.key_dim,
                            setup_.kv_heads, format.key_dim);
      job.values = dense_rows(sequence.values.data() + first * setup_.kv_heads * format.value_dim,
                              setup_.kv_heads, format.value_dim);
      job.tile = record.history.tile(tile, 0, format.bytes());
      job.head_stride = setup_.tiles_per_page * static_cast<std::int64_t>(format.bytes());
      job.count = static_cast<int>(std::min<std::int64_t>(64, history - 64 * tile));
    }
    const Exec exec;
    encode_tiles(exec, codec_, setup_.kv_heads, Kokkos::View<const EncodeJob*, Memory>(jobs));
    exec.fence();
    // What has been evicted may have been overwritten by anybody.
    for (std::int64_t tile = 0; tile < setup_.evicted / 64; ++tile) {
      for (int head = 0; head < setup_.kv_heads; ++head) {
        std::memset(record.history.tile(tile, head, format.bytes()), 0xFF, format.bytes());
      }
    }
  }

  void decode_history(std::size_t s, std::vector<float>& keys, std::vector<float>& values) const {
    const TileFormat& format = setup_.format;
    std::vector<float> scratch(2 * 576);
    for (std::int64_t i = setup_.evicted; i < sequences_[s].lengths.history; ++i) {
      for (int head = 0; head < setup_.kv_heads; ++head) {
        const std::byte* tile = records_(s).history.tile(i / 64, head, format.bytes());
        const auto row =
            static_cast<std::size_t>((sequences_[s].lengths.sinks + i) * setup_.kv_heads + head);
        const auto slot = static_cast<std::size_t>(i % 64);
        decode_key(codec_.tables(), tile, slot,
                   keys.data() + row * static_cast<std::size_t>(format.key_dim), scratch.data());
        decode_value(codec_.tables(), tile, slot, values.data() + row * value_dim(),
                     scratch.data());
      }
    }
  }

  Setup setup_;
  TileCodec<Memory> codec_;
  Kokkos::View<float****, Kokkos::LayoutRight, Memory> queries_;
  Kokkos::View<float*, Memory> sink_logits_;
  Kokkos::View<DecodeSequence*, Memory> records_;
  std::vector<Sequence> sequences_;
};

/// Largest error of an output row: |output - expected| over the mean length of the values it
/// averages. Where nothing is visible the output must be exactly zero.
inline double output_error(const std::vector<double>& output, const Result& expected) {
  double worst = output.size() == expected.output.size() ? 0.0 : 1e300;
  const std::size_t dim = expected.lse.empty() ? 1 : expected.output.size() / expected.lse.size();
  for (std::size_t row = 0; row < expected.lse.size(); ++row) {
    double difference = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      const double delta = output[row * dim + d] - expected.output[row * dim + d];
      difference += delta * delta;
    }
    const double error = expected.length[row] > 0 ? std::sqrt(difference) / expected.length[row]
                                                  : (difference == 0 ? 0.0 : 1e300);
    // Not std::max: NaN must count as an error.
    if (!(error <= worst)) {
      worst = error;
    }
  }
  return worst;
}

/// Largest absolute difference; infinities must agree.
inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0.0 : 1e300;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double error = a[i] == b[i] ? 0.0 : std::abs(a[i] - b[i]);
    if (!(error <= worst)) {
      worst = error;
    }
  }
  return worst;
}

inline const char* arch_name(HostArch arch) {
  return to_string(arch).data();
}

/// The tile operations that this processor can run.
inline std::vector<HostArch> arches() {
  std::vector<HostArch> found;
  for (const HostArch arch : {HostArch::portable, HostArch::avx2, HostArch::avx512}) {
    if (host_arch_available(arch)) {
      found.push_back(arch);
    }
  }
  return found;
}

/// Bounds on `output_error` for logits with a standard deviation of 1. An 8-bit query shifts every
/// logit by about 0.006 of it; few tokens do not average that out.
inline double bound(Exactness exactness) {
  return exactness == Exactness::exact ? 2e-4 : 2.5e-2;
}

}  // namespace decode_fixture
