#include "decode_fixture.hpp"

#include "dot_on_host.hpp"

#include <turboquant/attention/decode.hpp>
#include <turboquant/base/random.hpp>
#include <turboquant/device/encode_tiles.hpp>
#include <turboquant/device/tile_decoder.hpp>

#include <doctest/doctest.h>
#include <support/one_thread.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace decode_fixture {

using Exec = Kokkos::DefaultHostExecutionSpace;

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

namespace {

TileCodecOptions options_of(const Setup& setup) {
  TileCodecOptions options = setup.codec;
  options.format = setup.format;
  return options;
}

double number(float x) {
  return static_cast<double>(x);
}
template <class Half>
double number(Half x) {
  return static_cast<double>(x.to_float());
}

template <class Output, class ExecutionSpace>
Result run_plan(const ExecutionSpace& exec, const DecodePlan<ExecutionSpace, Memory>& plan,
                const Call& call) {
  const Kokkos::View<Output****, Kokkos::LayoutRight, Memory> output(
      "output", call.output.extent(0), call.output.extent(1), call.output.extent(2),
      call.output.extent(3));
  DecodeInputs<float, Memory> inputs;
  inputs.queries = call.queries;
  inputs.sequences = call.sequences;
  inputs.sink_logits = call.sink_logits;
  run_decode(exec, plan, inputs, output, call.lse, call.workspace);
  exec.fence();
  Result result;
  for (std::size_t i = 0; i < output.size(); ++i) {
    result.output.push_back(number(output.data()[i]));
  }
  result.lse.assign(call.lse.data(), call.lse.data() + call.lse.size());
  return result;
}

}  // namespace

Problem::Problem(const Setup& setup) : setup_(setup), codec_(options_of(setup)) {
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

DecodeProblem Problem::shape() const {
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

PlanFacts Problem::plan(const DecodeProblem& shape, const DecodeOptions& options) const {
  const auto plan = plan_decode(Exec(), codec_, shape, options);
  return {plan.num_splits(), plan.workspace_bytes(), plan.describe()};
}

Call Problem::call(const DecodeOptions& options) const {
  Call call;
  call.queries = queries_;
  call.sequences = records_;
  call.sink_logits = sink_logits_;
  call.output =
      decltype(call.output)("output", queries_.extent(0), queries_.extent(1), queries_.extent(2),
                            static_cast<std::size_t>(setup_.format.value_dim));
  call.lse = decltype(call.lse)("lse", queries_.extent(0), queries_.extent(1), queries_.extent(2));
  call.workspace =
      decltype(call.workspace)(Kokkos::ViewAllocateWithoutInitializing("workspace"),
                               static_cast<std::size_t>(plan(shape(), options).workspace_bytes));
  std::fill_n(call.output.data(), call.output.size(), 7.0F);
  std::fill_n(call.lse.data(), call.lse.size(), 7.0F);
  if (!setup_.undefined_workspace) {
    std::memset(static_cast<void*>(call.workspace.data()), 0xFF, call.workspace.size());
  }
  return call;
}

void Problem::decode(const DecodeProblem& shape, const DecodeOptions& options,
                     const Call& call) const {
  const Exec exec;
  const auto plan = plan_decode(exec, codec_, shape, options);
  DecodeInputs<float, Memory> inputs;
  inputs.queries = call.queries;
  inputs.sequences = call.sequences;
  inputs.sink_logits = call.sink_logits;
  run_decode(exec, plan, inputs, call.output, call.lse, call.workspace);
  exec.fence();
}

template <class Output>
Result Problem::run(const DecodeOptions& options) const {
  const Exec exec;
  return run_plan<Output>(exec, plan_decode(exec, codec_, shape(), options), call(options));
}
template Result Problem::run<float>(const DecodeOptions&) const;
template Result Problem::run<float16>(const DecodeOptions&) const;
template Result Problem::run<bfloat16>(const DecodeOptions&) const;

Result Problem::run_shape(const DecodeProblem& shape, const DecodeOptions& options) const {
  Call arguments = call(options);
  arguments.workspace = decltype(arguments.workspace)(
      "workspace", static_cast<std::size_t>(plan(shape, options).workspace_bytes));
  const Exec exec;
  return run_plan<float>(exec, plan_decode(exec, codec_, shape, options), arguments);
}

Result Problem::run_on_one_thread(const DecodeOptions& options) const {
  const test::OneThread exec;
  return run_plan<float>(exec, plan_decode(exec, codec_, shape(), options), call(options));
}

std::pair<Result, Result> Problem::run_twice(const DecodeOptions& options) const {
  const Exec exec;
  const auto plan = plan_decode(exec, codec_, shape(), options);
  const Call arguments = call(options);
  Result first = run_plan<float>(exec, plan, arguments);
  return {std::move(first), run_plan<float>(exec, plan, arguments)};
}

std::vector<float> Problem::stored_key(std::size_t sequence, std::int64_t token, int head) const {
  const TileFormat& format = setup_.format;
  std::vector<float> key(static_cast<std::size_t>(format.key_dim));
  std::vector<float> scratch(2 * key.size());
  decode_key(codec_.tables(),
             records_(sequence).history.tile(token / format.tile_tokens, head, format.bytes()),
             static_cast<std::size_t>(token % format.tile_tokens), key.data(), scratch.data());
  return key;
}

std::vector<float> Problem::stored_value(std::size_t sequence, std::int64_t token, int head) const {
  const TileFormat& format = setup_.format;
  std::vector<float> value(static_cast<std::size_t>(format.value_dim));
  std::vector<float> scratch(value.size());
  decode_value(codec_.tables(),
               records_(sequence).history.tile(token / format.tile_tokens, head, format.bytes()),
               static_cast<std::size_t>(token % format.tile_tokens), value.data(), scratch.data());
  return value;
}

Result Problem::reference() const {
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
    for (std::int64_t i = setup_.evicted; i < sequence.lengths.history; ++i) {
      for (int head = 0; head < setup_.kv_heads; ++head) {
        const auto row =
            static_cast<std::size_t>((sequence.lengths.sinks + i) * setup_.kv_heads + head);
        const auto key = stored_key(s, i, head);
        const auto value = stored_value(s, i, head);
        std::copy(key.begin(), key.end(),
                  keys.begin() + static_cast<std::ptrdiff_t>(row * key_dim));
        std::copy(value.begin(), value.end(),
                  values.begin() + static_cast<std::ptrdiff_t>(row * value_dim));
      }
    }
    const std::int64_t tokens = sequence.tokens();
    for (int query = 0; query < setup_.num_queries; ++query) {
      const std::int64_t position = records_(s).query_position + query;
      for (int query_head = 0; query_head < query_heads(); ++query_head) {
        const auto head = static_cast<std::size_t>(query_head / setup_.ratio);
        const float* q =
            &queries_(s, static_cast<std::size_t>(query), static_cast<std::size_t>(query_head), 0);
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
          const auto sink = static_cast<double>(sink_logits_(static_cast<std::size_t>(query_head)));
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

void Problem::build(const Lengths& lengths, Normals& normals, Sequence& sequence,
                    DecodeSequence& record) {
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
  record.window_values = dense_rows(sequence.ring_values.data(), setup_.kv_heads, format.value_dim);
  record.window_capacity = sequence.capacity;
  record.window_start = setup_.ring_start;
  record.window_count = lengths.window;
  record.window_position = lengths.sinks + lengths.history;
  record.query_position = std::max<std::int64_t>(0, tokens - setup_.num_queries - setup_.look_back);

  encode_history(sequence, record);
}

void Problem::encode_history(Sequence& sequence, DecodeSequence& record) {
  const TileFormat& format = setup_.format;
  const std::int64_t history = sequence.lengths.history;
  const std::int64_t tokens = format.tile_tokens;
  const std::int64_t num_tiles = (history + tokens - 1) / tokens;
  const std::int64_t num_pages = (num_tiles + setup_.tiles_per_page - 1) / setup_.tiles_per_page;
  for (std::int64_t page = 0; page < num_pages; ++page) {
    // 0xFF everywhere: codes, scales and zero points of unused slots are NaN.
    sequence.page_memory.emplace_back(
        page_bytes(format, setup_.kv_heads, setup_.tiles_per_page) + setup_.page_padding,
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
    const std::int64_t first = sequence.lengths.sinks + tokens * tile;
    job.keys = dense_rows(sequence.keys.data() + first * setup_.kv_heads * format.key_dim,
                          setup_.kv_heads, format.key_dim);
    job.values = dense_rows(sequence.values.data() + first * setup_.kv_heads * format.value_dim,
                            setup_.kv_heads, format.value_dim);
    job.tile = record.history.tile(tile, 0, format.bytes());
    job.head_stride = setup_.tiles_per_page * static_cast<std::int64_t>(format.bytes());
    job.clear_from = setup_.undefined_workspace ? 0 : 64;
    job.count = static_cast<int>(std::min(tokens, history - tokens * tile));
  }
  const Exec exec;
  // Not through TURBOQUANT_ARCH, which is for what the tests test.
  encode_tiles(exec, codec_, setup_.kv_heads, Kokkos::View<const EncodeJob*, Memory>(jobs),
               arches(format.order).back());
  exec.fence();
  // What has been evicted may have been overwritten by anybody.
  for (std::int64_t tile = 0; tile < setup_.evicted / tokens; ++tile) {
    for (int head = 0; head < setup_.kv_heads; ++head) {
      std::memset(record.history.tile(tile, head, format.bytes()), 0xFF, format.bytes());
    }
  }
}

double output_error(const std::vector<double>& output, const Result& expected) {
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
double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0.0 : 1e300;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double error = a[i] == b[i] ? 0.0 : std::abs(a[i] - b[i]);
    if (!(error <= worst)) {
      worst = error;
    }
  }
  return worst;
}

std::vector<HostArch> arches(TileOrder order) {
  if (order != TileOrder::host) {
    return {HostArch::portable};
  }
  std::vector<HostArch> found;
  for (const HostArch arch : {HostArch::portable, HostArch::avx2, HostArch::avx512}) {
    if (host_arch_available(arch)) {
      found.push_back(arch);
    }
  }
  return found;
}

std::vector<DecodeOptions> all_options(TileOrder order) {
  std::vector<DecodeOptions> all;
  for (const HostArch arch : arches(order)) {
    for (const Exactness exactness : {Exactness::exact, Exactness::int8, Exactness::fast}) {
      if (arch == HostArch::portable && exactness != Exactness::exact) {
        continue;  // float operations at every level
      }
      DecodeOptions options;
      options.arch = arch;
      options.exactness = exactness;
      all.push_back(options);
    }
  }
  return all;
}

std::string name_of(const DecodeOptions& options) {
  return std::string(to_string(options.arch)) + " " + std::string(to_string(options.exactness)) +
         ", " + std::to_string(options.num_splits) + " splits";
}

void check_all(const Setup& setup) {
  const Problem problem(setup);
  const Result expected = problem.reference();
  for (const DecodeOptions& options : all_options(setup.format.order)) {
    const Result result = problem.run(options);
    CAPTURE(name_of(options));
    CAPTURE(setup.format.key_dim);
    CAPTURE(setup.format.value_dim);
    CAPTURE(setup.format.key_bits);
    CAPTURE(setup.format.value_bits);
    CAPTURE(setup.format.value_group);
    CAPTURE(static_cast<int>(setup.format.key_codec));
    CAPTURE(static_cast<int>(setup.format.value_codec));
    CAPTURE(static_cast<int>(setup.format.order));
    CHECK(output_error(result.output, expected) <= bound(options.exactness));
    CHECK(largest_difference(result.lse, expected.lse) <=
          (options.exactness == Exactness::exact ? 2e-4 : 2.5e-2));
  }
}

}  // namespace decode_fixture
