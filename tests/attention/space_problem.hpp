#pragma once

// A decode problem of the fixture in the memory of any execution space.

#include "decode_fixture.hpp"
#include "dot_on_host.hpp"
#include "support/execution_spaces.hpp"

#include <turboquant/attention/decode.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace decode_fixture {

/// A pointer as the element of a View.
struct PageAddress {
  std::byte* page = nullptr;
};

/// Copies of everything that a decode step reads.
template <class ExecutionSpace>
class SpaceProblem {
 public:
  using Space = typename ExecutionSpace::memory_space;

  explicit SpaceProblem(const Problem& problem)
      : codec_(problem.codec().options()),
        shape_(problem.shape()),
        queries_("queries", problem.queries().extent(0), problem.queries().extent(1),
                 problem.queries().extent(2), problem.queries().extent(3)) {
    Kokkos::deep_copy(queries_, problem.queries());
    sink_logits_ = copy(std::vector<float>(
        problem.sink_logits().data(), problem.sink_logits().data() + problem.sink_logits().size()));
    std::vector<DecodeSequence> records;
    for (std::size_t i = 0; i < problem.sequences().size(); ++i) {
      records.push_back(move(problem, problem.sequences()[i], problem.record(i)));
    }
    records_ = test::to_space<Space>(records.data(), records.size());
  }

  [[nodiscard]] const TileCodec<Space>& codec() const { return codec_; }
  [[nodiscard]] const DecodeProblem& shape() const { return shape_; }

  template <class Output = float>
  [[nodiscard]] Result run(const ExecutionSpace& exec, const DecodeOptions& options = {}) const {
    return run_plan<Output>(exec, plan_decode(exec, codec_, shape_, options));
  }

  template <class Output = float>
  [[nodiscard]] Result run_plan(const ExecutionSpace& exec,
                                const DecodePlan<ExecutionSpace, Space>& plan) const {
    const auto run = prepare_run<Output>(plan);
    Kokkos::fence();
    run(exec);
    exec.fence();
    return run.result();
  }

  /// A plan with inputs, outputs and workspace, to be run any number of times.
  template <class Output>
  struct Run {
    DecodePlan<ExecutionSpace, Space> plan;
    DecodeInputs<float, Space> inputs;
    Kokkos::View<Output****, Kokkos::LayoutRight, Space> output;
    Kokkos::View<float***, Kokkos::LayoutRight, Space> lse;
    Kokkos::View<std::byte*, Space> workspace;

    void operator()(const ExecutionSpace& exec) const {
      run_decode(exec, plan, inputs, output, lse, workspace);
    }
    void poison_outputs() const {
      poison(output);
      poison(lse);
    }
    [[nodiscard]] Result result() const {
      Result result;
      const auto host_output = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), output);
      for (std::size_t i = 0; i < host_output.size(); ++i) {
        result.output.push_back(number(host_output.data()[i]));
      }
      const auto host_lse = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), lse);
      result.lse.assign(host_lse.data(), host_lse.data() + host_lse.size());
      return result;
    }
  };

  /// Outputs and workspace hold NaN.
  template <class Output = float>
  [[nodiscard]] Run<Output> prepare_run(const DecodePlan<ExecutionSpace, Space>& plan) const {
    DecodeInputs<float, Space> inputs;
    inputs.queries = queries_;
    inputs.sequences = records_;
    inputs.sink_logits = sink_logits_;
    using Outputs = decltype(Run<Output>::output);
    using Sums = decltype(Run<Output>::lse);
    using Bytes = decltype(Run<Output>::workspace);
    const auto sequences = queries_.extent(0);
    const auto num_queries = queries_.extent(1);
    const auto heads = queries_.extent(2);
    const Run<Output> run{plan, inputs,
                          Outputs("output", sequences, num_queries, heads,
                                  static_cast<std::size_t>(codec_.format().value_dim)),
                          Sums("lse", sequences, num_queries, heads),
                          Bytes("workspace", static_cast<std::size_t>(plan.workspace_bytes()))};
    run.poison_outputs();
    poison(run.workspace);
    return run;
  }

  /// Multiplies the queries in place.
  void scale_queries(float factor) const {
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), queries_);
    for (std::size_t i = 0; i < host.size(); ++i) {
      host.data()[i] *= factor;
    }
    Kokkos::deep_copy(queries_, host);
  }

 private:
  static double number(float x) { return static_cast<double>(x); }
  template <class Half>
  static double number(Half x) {
    return static_cast<double>(x.to_float());
  }

  /// NaN in every number.
  template <class View>
  static void poison(const View& view) {
    using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
    Kokkos::deep_copy(
        Kokkos::View<std::byte*, Space, Unmanaged>(reinterpret_cast<std::byte*>(view.data()),
                                                   view.size() * sizeof(typename View::value_type)),
        std::byte{0xFF});
  }

  Kokkos::View<float*, Space> copy(const std::vector<float>& host) {
    floats_.push_back(test::to_space<Space>(host.data(), host.size()));
    return floats_.back();
  }

  DecodeSequence move(const Problem& problem, const Sequence& sequence, DecodeSequence record) {
    const Setup& setup = problem.setup();
    std::int64_t seen = record.history_begin;
    if (setup.sliding_window > 0) {
      seen = std::max(seen, record.query_position + 1 - setup.sliding_window);
    }
    std::vector<PageAddress> addresses;
    std::int64_t end = record.page_position;
    for (const auto& page : sequence.page_memory) {
      end += setup.tiles_per_page * setup.format.tile_tokens;
      pages_.push_back(test::to_space<Space>(page.data(), page.size()));
      // A page that no query sees is gone.
      addresses.push_back({end <= seen ? nullptr : pages_.back().data()});
    }
    // Nor is there one behind the table.
    addresses.push_back({nullptr});
    tables_.push_back(test::to_space<Space>(addresses.data(), addresses.size()));
    record.history.pages = reinterpret_cast<std::byte* const*>(tables_.back().data());
    const TileFormat& format = codec_.format();
    const int heads = setup.kv_heads;
    const auto keys = copy(sequence.keys);
    const auto values = copy(sequence.values);
    record.sink_keys = dense_rows(keys.data(), heads, format.key_dim);
    record.sink_values = dense_rows(values.data(), heads, format.value_dim);
    const auto ring_keys = copy(sequence.ring_keys);
    const auto ring_values = copy(sequence.ring_values);
    record.window_keys = dense_rows(ring_keys.data(), heads, format.key_dim);
    record.window_values = dense_rows(ring_values.data(), heads, format.value_dim);
    return record;
  }

  TileCodec<Space> codec_;
  DecodeProblem shape_;
  Kokkos::View<float****, Kokkos::LayoutRight, Space> queries_;
  Kokkos::View<float*, Space> sink_logits_;
  Kokkos::View<DecodeSequence*, Space> records_;
  std::vector<Kokkos::View<std::byte*, Space>> pages_;
  std::vector<Kokkos::View<PageAddress*, Space>> tables_;
  std::vector<Kokkos::View<float*, Space>> floats_;
};

}  // namespace decode_fixture
