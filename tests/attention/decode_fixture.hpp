#pragma once

// Random decode problems with a double-precision reference over the same stored codes.
//
// The library's kernels are instantiated in decode_fixture.cpp alone, so that any number of test
// files costs their compilation once.

#include <turboquant/attention/decode_problem.hpp>
#include <turboquant/device/tile_codec.hpp>

#include <support/host_kernels.hpp>
#include <support/tile_inputs.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace decode_fixture {

using namespace turboquant;
using Memory = Kokkos::HostSpace;

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
  /// Bytes of 0xFF behind the tiles of every page.
  std::size_t page_padding = 0;
  /// Whether workspaces hold what the allocator left there, and unused slots zeros, so that
  /// valgrind sees what is read before it is written; both hold 0xFF otherwise.
  bool undefined_workspace = false;
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

class Normals;

/// What a decode call reads and writes, for tests that change it.
struct Call {
  Kokkos::View<float****, Kokkos::LayoutRight, Memory> queries;
  Kokkos::View<DecodeSequence*, Memory> sequences;
  Kokkos::View<float*, Memory> sink_logits;
  Kokkos::View<float****, Kokkos::LayoutRight, Memory> output;
  Kokkos::View<float***, Kokkos::LayoutRight, Memory> lse;
  Kokkos::View<std::byte*, Memory> workspace;
};

struct PlanFacts {
  int num_splits = 0;
  std::int64_t workspace_bytes = 0;
  std::string description;
};

class Problem {
 public:
  explicit Problem(const Setup& setup);

  [[nodiscard]] const Setup& setup() const { return setup_; }
  [[nodiscard]] int query_heads() const { return setup_.kv_heads * setup_.ratio; }
  [[nodiscard]] const TileCodec<Memory>& codec() const { return codec_; }
  [[nodiscard]] const std::vector<Sequence>& sequences() const { return sequences_; }
  [[nodiscard]] DecodeSequence& record(std::size_t i) const { return records_(i); }
  [[nodiscard]] const Kokkos::View<float*, Memory>& sink_logits() const { return sink_logits_; }
  [[nodiscard]] const Kokkos::View<float****, Kokkos::LayoutRight, Memory>& queries() const {
    return queries_;
  }

  [[nodiscard]] DecodeProblem shape() const;

  /// Plan, run on the default host space, fence.
  /// @tparam Output float, float16 or bfloat16
  template <class Output = float>
  [[nodiscard]] Result run(const DecodeOptions& options = {}) const;
  /// The same for a shape that is not `shape()`.
  [[nodiscard]] Result run_shape(const DecodeProblem& shape, const DecodeOptions& options) const;
  /// The same on one thread.
  [[nodiscard]] Result run_on_one_thread(const DecodeOptions& options = {}) const;
  /// One plan, run twice.
  [[nodiscard]] std::pair<Result, Result> run_twice(const DecodeOptions& options = {}) const;

  [[nodiscard]] PlanFacts plan(const DecodeProblem& shape, const DecodeOptions& options = {}) const;
  /// Arguments that fit `shape()`; output and lse hold 7.
  [[nodiscard]] Call call(const DecodeOptions& options = {}) const;
  /// Plans for a shape and runs with arguments of the test's own.
  void decode(const DecodeProblem& shape, const DecodeOptions& options, const Call& call) const;

  /// Softmax in double over the decoded keys and values.
  [[nodiscard]] Result reference() const;
  /// What the tiles hold of token `token` of the history: (key_dim), (value_dim).
  [[nodiscard]] std::vector<float> stored_key(std::size_t sequence, std::int64_t token,
                                              int head) const;
  [[nodiscard]] std::vector<float> stored_value(std::size_t sequence, std::int64_t token,
                                                int head) const;

 private:
  void build(const Lengths& lengths, Normals& normals, Sequence& sequence, DecodeSequence& record);
  void encode_history(Sequence& sequence, DecodeSequence& record);

  Setup setup_;
  TileCodec<Memory> codec_;
  Kokkos::View<float****, Kokkos::LayoutRight, Memory> queries_;
  Kokkos::View<float*, Memory> sink_logits_;
  Kokkos::View<DecodeSequence*, Memory> records_;
  std::vector<Sequence> sequences_;
};

/// Largest error of an output row: |output - expected| over the mean length of the values it
/// averages. Where nothing is visible the output must be exactly zero.
double output_error(const std::vector<double>& output, const Result& expected);

/// Largest absolute difference; infinities must agree.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b);

/// The tile operations that this processor has for tiles in an order.
std::vector<HostArch> arches(TileOrder order = TileOrder::host);

/// Options for every available arch and every exactness.
std::vector<DecodeOptions> all_options(TileOrder order = TileOrder::host);

/// Of the options, for messages.
std::string name_of(const DecodeOptions& options);

/// Bounds on `output_error` for logits with a standard deviation of 1. An 8-bit query shifts every
/// logit by about 0.006 of it, 16-bit weights round by up to 2^-14 of the largest; few tokens do
/// not average that out.
inline double bound(Exactness exactness) {
  return exactness == Exactness::exact ? 4e-4 : 2.5e-2;
}

/// Output and log-sum-exp of every arch and exactness against the reference.
void check_all(const Setup& setup);

using test::make_format;

}  // namespace decode_fixture
