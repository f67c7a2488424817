#pragma once

#include <turboquant/attention/decode_kernels.hpp>
#include <turboquant/attention/decode_plan.hpp>
#include <turboquant/attention/dot_decode.hpp>
#include <turboquant/attention/merge_parts.hpp>
#include <turboquant/attention/mma_decode.hpp>
#include <turboquant/device/memory_overlap.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace turboquant {

/// What a decode step reads.
/// @tparam Query float, float16 or bfloat16
template <class Query, class MemorySpace>
struct DecodeInputs {
  /// (num_sequences, num_queries, query_heads, key_dim), not rotated. Finite, and below 2^100 in
  /// magnitude times the softmax scale and log2(e): one with NaN or infinity gives NaN for output
  /// and lse where its sequence has tokens, a larger one may. So scaled, its products with the
  /// numbers of exact keys are below 2^118.
  Kokkos::View<const Query****, Kokkos::LayoutRight, MemorySpace> queries;
  /// (num_sequences)
  Kokkos::View<const DecodeSequence*, MemorySpace> sequences;
  /// (query_heads) or empty: learned logits that join each head's softmax denominator once, without
  /// a value. They are not read for checking: NaN gives NaN for output and lse of its head,
  /// +infinity an output of 0 and an lse of +infinity (with dot products and matrix units NaN).
  Kokkos::View<const float*, MemorySpace> sink_logits{};
};

namespace detail {

template <class View>
void require_extents(const char* name, const View& view,
                     std::initializer_list<std::int64_t> expected) {
  const char* const shape[] = {"num_sequences", "num_queries", "query_heads", "dim"};
  std::size_t axis = 0;
  for (const std::int64_t extent : expected) {
    require(static_cast<std::int64_t>(view.extent(axis)) == extent, ErrorCode::shape_mismatch,
            "run_decode: ", name, ".extent(", axis, ") is ", view.extent(axis), ", expected ",
            shape[axis], " = ", extent);
    ++axis;
  }
}

}  // namespace detail

/// Attention of every query over its sequence: sinks, compressed history and exact window in one
/// softmax.
///
/// @param exec      execution space instance; kernels are enqueued, nothing waits
/// @param plan      for these shapes
/// @param inputs    queries, sequence records and optional learned sink logits
/// @param output    (num_sequences, num_queries, query_heads, value_dim), float, float16 or
/// bfloat16; zero where a query sees
///                  nothing
/// @param lse       (num_sequences, num_queries, query_heads), natural log of the softmax
/// denominator, learned sink included;
///                  -infinity where nothing is visible
/// @param workspace at least `plan.workspace_bytes()`, contents do not matter
/// @throws Error before anything is written: `shape_mismatch` or `capacity` for views that do not
/// fit the plan, `invalid_argument` where output, lse or workspace overlap each other or an input
/// (memory that records name is not compared); on
///         host spaces also for records outside their domain (on device spaces records are not read
///         here).
/// No allocation, no copy between memory spaces; three kernels (two with dot products; on matrix
/// units one, or two where histories are cut into very many parts), which a CUDA graph can capture;
/// on devices, matrix units and dot products need pages aligned to 16 bytes. Runs that overlap in
/// time need workspaces of their own. O(tokens query_heads (key_dim + value_dim)). Same bits for
/// the same plan, records and processor, whatever the number of threads.
template <class ExecutionSpace, class MemorySpace, class Query, class Output>
void run_decode(const ExecutionSpace& exec, const DecodePlan<ExecutionSpace, MemorySpace>& plan,
                const DecodeInputs<Query, MemorySpace>& inputs,
                const Kokkos::View<Output****, Kokkos::LayoutRight, MemorySpace>& output,
                const Kokkos::View<float***, Kokkos::LayoutRight, MemorySpace>& lse,
                const Kokkos::View<std::byte*, MemorySpace>& workspace) {
  static_assert(!std::is_const_v<Output>, "output is written");
  static_cast<void>(row_type_of<Query>);
  static_cast<void>(row_type_of<Output>);
  const DecodeProblem& problem = plan.problem();
  const TileFormat& format = plan.codec().format();
  detail::require_extents(
      "queries", inputs.queries,
      {problem.num_sequences, problem.num_queries, problem.query_heads, format.key_dim});
  detail::require_extents(
      "output", output,
      {problem.num_sequences, problem.num_queries, problem.query_heads, format.value_dim});
  detail::require_extents("lse", lse,
                          {problem.num_sequences, problem.num_queries, problem.query_heads});
  detail::require_extents("sequences", inputs.sequences, {problem.num_sequences});
  require(inputs.sink_logits.extent(0) == 0 ||
              static_cast<std::int64_t>(inputs.sink_logits.extent(0)) == problem.query_heads,
          ErrorCode::shape_mismatch, "run_decode: sink_logits.extent(0) is ",
          inputs.sink_logits.extent(0), ", expected 0 or query_heads = ", problem.query_heads);
  require(static_cast<std::int64_t>(workspace.extent(0)) >= plan.workspace_bytes(),
          ErrorCode::capacity, "run_decode: workspace has ", workspace.extent(0),
          " bytes, expected at least ", plan.workspace_bytes());
  using detail::byte_range;
  detail::require_apart(
      "run_decode",
      {byte_range("output", output), byte_range("lse", lse), byte_range("workspace", workspace)},
      {byte_range("queries", inputs.queries), byte_range("sequences", inputs.sequences),
       byte_range("sink_logits", inputs.sink_logits)});
  if (problem.num_sequences == 0) {
    return;
  }
  if constexpr (detail::runs_on_host<ExecutionSpace>) {
    for (int i = 0; i < problem.num_sequences; ++i) {
      detail::require_sequence(inputs.sequences(static_cast<std::size_t>(i)), i, problem, format);
    }
  }

  const detail::DecodeLayout& layout = plan.layout();
  constexpr auto alignment = static_cast<std::uintptr_t>(detail::DecodeLayout::alignment);
  const auto misaligned = reinterpret_cast<std::uintptr_t>(workspace.data()) % alignment;
  const detail::DecodeWorkspace memory{layout,
                                       workspace.data() + (alignment - misaligned) % alignment};
  const TileTables& tables = plan.codec().tables();
  const float* sink_logits =
      inputs.sink_logits.extent(0) == 0 ? nullptr : inputs.sink_logits.data();
  if constexpr (detail::has_matrix_units<ExecutionSpace>) {
    if (plan.uses_matrix_units()) {
      const RowView queries{inputs.queries.data(), row_type_of<Query>,
                            std::int64_t{problem.query_heads} * format.key_dim, format.key_dim};
      detail::MmaLauncher<ExecutionSpace>(
          exec, tables, memory, inputs.sequences.data(), queries,
          {sink_logits, output.data(), row_type_of<Output>, lse.data()})();
      return;
    }
  }
  if constexpr (detail::has_dot_products<ExecutionSpace>) {
    if (plan.uses_dot_products()) {
      const RowView queries{inputs.queries.data(), row_type_of<Query>,
                            std::int64_t{problem.query_heads} * format.key_dim, format.key_dim};
      detail::run_dot(exec, tables, memory, inputs.sequences.data(), queries, sink_logits,
                      output.data(), lse.data());
      return;
    }
  }
  using Policy = Kokkos::RangePolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Dynamic>,
                                     Kokkos::IndexType<std::int64_t>>;
  const auto launch = [&](const auto& calls) {
    using Calls = std::decay_t<decltype(calls)>;
    const std::int64_t sequences = layout.num_sequences;
    Kokkos::parallel_for(
        "turboquant::run_decode::prepare", Policy(exec, 0, sequences * layout.kv_heads),
        detail::PrepareQueries<Query, Calls>{tables, memory, inputs.queries.data(), calls});
    Kokkos::parallel_for(
        "turboquant::run_decode::attend", Policy(exec, 0, sequences * (layout.num_splits + 1)),
        detail::AttendParts<Calls>{tables, memory, inputs.sequences.data(), calls});
    Kokkos::parallel_for("turboquant::run_decode::merge",
                         Policy(exec, 0, sequences * layout.num_queries * problem.query_heads),
                         detail::MergeParts<Output>{tables, memory, inputs.sequences.data(),
                                                    sink_logits, output.data(), lse.data()});
  };
  if constexpr (detail::runs_on_host<ExecutionSpace>) {
    launch(detail::HostAttentionCalls{plan.host_attention()});
  } else {
    launch(detail::PortableAttentionCalls{});
  }
}

}  // namespace turboquant
