#pragma once

#include <turboquant/attention/decode_problem.hpp>
#include <turboquant/attention/dot_plan.hpp>
#include <turboquant/attention/mma_plan.hpp>
#include <turboquant/base/checked_math.hpp>
#include <turboquant/device/encode_tiles.hpp>
#include <turboquant/device/tile_attention.hpp>
#include <turboquant/math/softmax_state.hpp>

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

namespace turboquant {

namespace detail {

/// Tile attention through the host's function pointers; annotated like its kernels, never called on
/// a device.
struct HostAttentionCalls {
  HostAttention calls{};

  [[nodiscard]] TURBOQUANT_FUNCTION bool wants_next() const { return calls.wants_next; }
  TURBOQUANT_FUNCTION void prepare(const TileTables& tables, const PrepareArguments& in,
                                   std::byte* query) const {
    calls.prepare(tables, in, query);
  }
  TURBOQUANT_FUNCTION void reset(const TileTables& tables, int rows, std::byte* state) const {
    calls.reset(tables, rows, state);
  }
  TURBOQUANT_FUNCTION void attend(const TileTables& tables, const TileArguments& in) const {
    calls.attend(tables, in);
  }
  TURBOQUANT_FUNCTION void finish(const TileTables& tables, const FinishArguments& out) const {
    calls.finish(tables, out);
  }
  TURBOQUANT_FUNCTION void attend_rows(const RowArguments& in) const { calls.attend_rows(in); }
};

/// Tile attention in float, compiled into the kernel.
struct PortableAttentionCalls {
  [[nodiscard]] TURBOQUANT_FUNCTION bool wants_next() const { return false; }
  TURBOQUANT_FUNCTION void prepare(const TileTables& tables, const PrepareArguments& in,
                                   std::byte* query) const {
    PortableAttention::prepare(tables, in, query);
  }
  TURBOQUANT_FUNCTION void reset(const TileTables& tables, int rows, std::byte* state) const {
    PortableAttention::reset(tables, rows, state);
  }
  TURBOQUANT_FUNCTION void attend(const TileTables& tables, const TileArguments& in) const {
    PortableAttention::attend(tables, in);
  }
  TURBOQUANT_FUNCTION void finish(const TileTables& tables, const FinishArguments& out) const {
    PortableAttention::finish(tables, out);
  }
  TURBOQUANT_FUNCTION void attend_rows(const RowArguments& in) const { detail::attend_rows(in); }
};

/// Shapes, constants and where everything is in the workspace; what kernels read of a plan.
struct DecodeLayout {
  static constexpr std::int64_t alignment = 64;

  int num_sequences = 0;
  int num_queries = 1;
  int kv_heads = 1;
  int ratio = 1;       ///< query heads per kv head
  int rows = 1;        ///< query rows per kv head: ratio * num_queries
  int num_splits = 1;  ///< parts of the history
  /// Parts of a sequence in the workspace: the exact rows are part number num_splits. On matrix
  /// units, parts of the history take them too, and a single part needs no workspace.
  int parts = 2;
  std::int64_t tiles_per_split = 0;  ///< 0: the tiles of a sequence divided evenly
  std::int64_t sliding_window = 0;
  float logit_scale = 0;  ///< softmax scale times log2(e)
  float soft_cap = 0;     ///< in units of log 2
  int sets = 1;           ///< matrix units: a team takes up to 4 sets rows
  int team_rows = 4;      ///< dot products: rows of a team
  int row_blocks = 1;     ///< matrix units and dot products: teams that share the rows of a kv head
  bool ring = false;      ///< matrix units: tiles are copied into rings
  int team_warps = 8;     ///< rings: warps of a team
  int ring_stages = 0;    ///< rings: steps of a ring
  int resident_teams = 1;  ///< rings: teams that a multiprocessor has room for
  int cluster = 1;         ///< rings: teams of a part
  /// Matrix units: the last part of a walk to be done merges them all; otherwise a second kernel
  /// does.
  bool parts_meet = false;
  std::uint64_t mark = 0;  ///< what parts that meet leave in the workspace

  // Bytes from the start of the workspace, and per item.
  std::int64_t plain_queries = 0;    ///< (sequences, kv_heads, rows, key_dim) float
  std::int64_t rotated_queries = 0;  ///< the same, once more behind it for sketches
  std::int64_t prepared = 0;         ///< (sequences, kv_heads, prepared_bytes)
  std::int64_t prepared_bytes = 0;
  std::int64_t states = 0;  ///< (sequences, num_splits, kv_heads, state_bytes)
  std::int64_t state_bytes = 0;
  /// (sequences, parts, kv_heads, rows, value_dim) float; on matrix units (sequences, kv_heads,
  /// row_blocks, num_splits, 4 sets, value_dim)
  std::int64_t outputs = 0;
  std::int64_t totals = 0;  ///< on matrix units, (maximum, sum) of each row of outputs, float
  std::int64_t maxima = 0;  ///< (sequences, parts, kv_heads, rows) float
  std::int64_t sums = 0;    ///< the same
  /// (sequences, kv_heads, row_blocks, cluster, num_splits + 1) 8 bytes
  std::int64_t meeting_places = 0;
  std::int64_t bytes = 0;
};

}  // namespace detail

/// How one decode step will run: made once for a shape on the host, used for any number of runs. A
/// move is a copy.
/// @tparam ExecutionSpace Kokkos execution space of the runs
/// @tparam MemorySpace    where tiles, queries and workspace are
template <class ExecutionSpace, class MemorySpace>
class DecodePlan {
 public:
  DecodePlan(const DecodePlan&) = default;
  DecodePlan& operator=(const DecodePlan&) = default;

  [[nodiscard]] const DecodeProblem& problem() const noexcept { return problem_; }
  [[nodiscard]] const TileCodec<MemorySpace>& codec() const noexcept { return codec_; }
  /// Parts a sequence's history is cut into.
  [[nodiscard]] int num_splits() const noexcept { return layout_.num_splits; }
  /// Bytes of workspace that `run_decode` needs.
  [[nodiscard]] std::int64_t workspace_bytes() const noexcept { return layout_.bytes; }

  /// One line for people: shapes, tile operations, splits, workspace.
  [[nodiscard]] std::string describe() const {
    std::ostringstream text;
    const TileFormat& format = codec_.format();
    text << "decode: " << problem_.num_sequences << " sequences x " << problem_.num_queries
         << " queries, " << problem_.query_heads << " query / " << problem_.kv_heads
         << " kv heads, " << format.key_dim << "/" << format.value_dim << " dims, "
         << format.key_bits << "-bit keys, " << format.value_bits << "-bit values, "
         << to_string(format.order) << " order, tiles of " << format.tile_tokens << " tokens, "
         << operations_name_ << ", " << layout_.num_splits << " splits, " << layout_.bytes
         << " B workspace";
    return text.str();
  }

  [[nodiscard]] const detail::DecodeLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] const detail::HostAttention& host_attention() const noexcept { return host_; }
  /// Whether runs use matrix units.
  [[nodiscard]] bool uses_matrix_units() const noexcept { return matrix_units_; }
  /// Whether runs use dot products of four bytes.
  [[nodiscard]] bool uses_dot_products() const noexcept { return dot_products_; }

 private:
  template <class E, class M>
  friend DecodePlan<E, M> plan_decode(const E&, const TileCodec<M>&, const DecodeProblem&,
                                      const DecodeOptions&);

  DecodePlan(const ExecutionSpace& exec, const TileCodec<MemorySpace>& codec,
             const DecodeProblem& problem, const DecodeOptions& options)
      : codec_(codec), problem_(problem) {
    const TileTables& tables = codec.tables();
    const TileFormat& format = codec.format();
    layout_.num_sequences = problem.num_sequences;
    layout_.num_queries = problem.num_queries;
    layout_.kv_heads = problem.kv_heads;
    layout_.ratio = problem.query_heads / problem.kv_heads;
    layout_.rows = static_cast<int>(checked_mul(layout_.ratio, problem.num_queries));
    // A window beyond every position sees everything; positions minus it fit 64 bits.
    constexpr std::int64_t whole = std::int64_t{1} << 61U;
    layout_.sliding_window = problem.sliding_window < whole ? problem.sliding_window : whole;
    const double scale = problem.sm_scale != 0 ? double{problem.sm_scale}
                                               : 1 / std::sqrt(static_cast<double>(format.key_dim));
    layout_.logit_scale = static_cast<float>(scale * log2_e);
    layout_.soft_cap = static_cast<float>(double{problem.logits_soft_cap} * log2_e);
    choose_splits(options);
    if constexpr (!detail::has_matrix_units<ExecutionSpace>) {
      require(options.device == DeviceArch::automatic || options.device == DeviceArch::portable ||
                  options.device == DeviceArch::dot,
              ErrorCode::unsupported,
              "plan_decode: matrix units were asked for, but this execution space has none in this "
              "build");
    }
    if constexpr (detail::runs_on_host<ExecutionSpace>) {
      if (options.device == DeviceArch::dot) {
        choose_dot_products(exec, options, {});
        return;
      }
      const detail::HostOperations& operations = detail::host_operations(options.arch, format);
      host_ = operations.attention(format, options.exactness);
      operations_name_ =
          std::string(to_string(operations.arch)) + " (" + std::string(host_.name) + ")";
      lay_out(host_.query_bytes(tables, layout_.rows), host_.state_bytes(tables, layout_.rows));
    } else {
      choose_device_operations(exec, options);
    }
  }

  void choose_device_operations(const ExecutionSpace& exec, const DecodeOptions& options) {
    const TileTables& tables = codec_.tables();
    operations_name_ = "portable float (asked for)";
    std::string without_matrix_units;
    if constexpr (detail::has_matrix_units<ExecutionSpace>) {
      const detail::DeviceProperties device = detail::device_properties(exec);
      const detail::cuda::ClusterCapacity* capacity = nullptr;
      if constexpr (detail::has_bulk_copies<ExecutionSpace>) {
        if (device.code_architecture >= 900) {
          capacity = &detail::cuda::cluster_capacity(exec);
        }
      }
      const detail::MmaPlan mma =
          detail::plan_mma(codec_.format(), problem_, device, capacity, options);
      const bool asked = options.device == DeviceArch::matrix_units ||
                         options.device == DeviceArch::matrix_units_plain ||
                         options.device == DeviceArch::matrix_units_ring;
      require(mma.used() || !asked, ErrorCode::unsupported,
              "plan_decode: matrix units were asked for, but ", mma.refusal);
      if (mma.used() && (options.device == DeviceArch::automatic || asked)) {
        use_matrix_units(mma);
        return;
      }
      without_matrix_units = mma.refusal;
    }
    if (options.device != DeviceArch::portable &&
        choose_dot_products(exec, options, without_matrix_units)) {
      return;
    }
    lay_out(detail::PortableAttention::query_bytes(tables, layout_.rows),
            detail::PortableAttention::state_bytes(tables, layout_.rows));
  }

  /// @param without_matrix_units why there are none, or empty
  /// @return false where dot products cannot take the step; the name of the operations says why
  bool choose_dot_products(const ExecutionSpace& exec, const DecodeOptions& options,
                           const std::string& without_matrix_units) {
    constexpr int lanes = detail::lanes_of<ExecutionSpace>;
    constexpr bool on_host = detail::runs_on_host<ExecutionSpace>;
    detail::DotPlan dot =
        detail::plan_dot(codec_.format(), problem_, lanes, std::int64_t{exec.concurrency()},
                         on_host ? layout_.num_splits : options.num_splits);
    if (!detail::has_dot_products<ExecutionSpace>) {
      dot.refusal = on_host ? "host spaces have none" : "the lanes of the device are unknown";
    }
    require(dot.used() || options.device != DeviceArch::dot, ErrorCode::unsupported,
            "plan_decode: dot products were asked for, but ", dot.refusal);
    const std::string why =
        "no matrix units" + (without_matrix_units.empty() ? "" : ": " + without_matrix_units);
    if (!dot.used()) {
      operations_name_ = "portable float (" + why + "; no dot products: " + dot.refusal + ")";
      return false;
    }
    dot_products_ = true;
    operations_name_ = "dot products of bytes, 15-bit queries and weights (" +
                       (options.device == DeviceArch::dot ? "asked for" : why) + ")";
    layout_.team_rows = dot.team_rows;
    layout_.row_blocks = dot.row_blocks;
    if (!on_host) {
      layout_.num_splits = dot.num_splits;
      layout_.tiles_per_split = 0;
    }
    layout_.parts = layout_.num_splits + 1;
    Sections section;
    lay_out_parts(section);
    return true;
  }

  void choose_splits(const DecodeOptions& options) {
    require(options.num_splits >= 0 && options.num_splits <= 65536, ErrorCode::invalid_argument,
            "plan_decode: num_splits is ", options.num_splits, ", expected 0 (automatic) to 65536");
    require(options.cluster >= 0 && options.cluster <= detail::cuda::most_cluster_blocks,
            ErrorCode::invalid_argument, "plan_decode: cluster is ", options.cluster,
            ", expected 0 (automatic) to ", detail::cuda::most_cluster_blocks);
    require(options.ring_stages == 0 || (options.ring_stages >= 2 && options.ring_stages <= 4),
            ErrorCode::invalid_argument, "plan_decode: ring_stages is ", options.ring_stages,
            ", expected 0 (automatic) or 2 to 4");
    if (options.num_splits > 0) {
      layout_.num_splits = options.num_splits;
      return;
    }
    // A history that does not begin on a tile boundary touches one tile more.
    constexpr auto tile_tokens = static_cast<std::int64_t>(TileFormat::max_tokens);
    const std::int64_t tiles =
        problem_.max_history_tokens == 0
            ? 0
            : checked_add(ceil_div(problem_.max_history_tokens, tile_tokens), 1);
    const std::int64_t splits = ceil_div(tiles, DecodeOptions::default_tiles_per_split);
    // Beyond 2^16 parts (more than 60 million tokens) the parts grow.
    constexpr std::int64_t most = 65536;
    layout_.num_splits = static_cast<int>(splits < 1 ? 1 : (splits > most ? most : splits));
    layout_.tiles_per_split = splits > most ? 0 : DecodeOptions::default_tiles_per_split;
  }

  /// Hands out sections of the workspace one after another.
  struct Sections {
    ErrorContext context{"plan_decode: workspace: "};
    std::int64_t end = 0;

    std::int64_t operator()(std::int64_t count, std::int64_t bytes_each) {
      const std::int64_t start = end;
      end = checked_add(end,
                        round_up(checked_mul(count, bytes_each), detail::DecodeLayout::alignment));
      return start;
    }
    /// Bytes in all, with room to align the start.
    [[nodiscard]] std::int64_t bytes() const {
      return end == 0 ? 0 : checked_add(end, detail::DecodeLayout::alignment);
    }
  };

  void lay_out_parts(Sections& section) {
    const std::int64_t heads = checked_mul(layout_.num_sequences, layout_.kv_heads);
    const std::int64_t rows =
        checked_mul(checked_mul(heads, layout_.rows), std::int64_t{layout_.parts});
    layout_.outputs = section(rows, 4 * codec_.format().value_dim);
    layout_.maxima = section(rows, 4);
    layout_.sums = section(rows, 4);
    layout_.bytes = section.bytes();
  }

  void use_matrix_units(const detail::MmaPlan& mma) {
    matrix_units_ = true;
    operations_name_ = "matrix units (15-bit queries, fp16 weights), " + mma.describe();
    layout_.sets = mma.sets;
    layout_.row_blocks = mma.row_blocks;
    layout_.num_splits = mma.num_splits;
    layout_.tiles_per_split = 0;
    layout_.ring = mma.ring;
    layout_.team_warps = mma.team_warps;
    layout_.ring_stages = mma.ring_stages;
    layout_.resident_teams = mma.resident_teams;
    layout_.cluster = mma.cluster;
    layout_.parts = mma.num_splits > 1 ? mma.num_splits : 0;
    Sections section;
    layout_.parts_meet = mma.num_splits > 1 && mma.parts_meet;
    const std::int64_t walks = checked_mul(checked_mul(layout_.num_sequences, layout_.kv_heads),
                                           std::int64_t{layout_.row_blocks});
    if (layout_.parts_meet) {
      layout_.mark = detail::next_mark();
      layout_.meeting_places = section(checked_mul(checked_mul(walks, std::int64_t{mma.cluster}),
                                                   std::int64_t{mma.num_splits} + 1),
                                       8);
    }
    const std::int64_t rows =
        checked_mul(checked_mul(walks, std::int64_t{layout_.parts}), std::int64_t{4} * mma.sets);
    layout_.outputs = section(rows, 4 * codec_.format().value_dim);
    layout_.totals = section(rows, 8);
    layout_.bytes = section.bytes();
  }

  void lay_out(std::size_t prepared_bytes, std::size_t state_bytes) {
    const TileFormat& format = codec_.format();
    Sections section;
    const std::int64_t heads = checked_mul(layout_.num_sequences, layout_.kv_heads);
    const std::int64_t rows = checked_mul(heads, layout_.rows);
    const std::int64_t vectors = format.key_codec == KeyCodec::inner_product ? 2 : 1;
    layout_.prepared_bytes =
        round_up(static_cast<std::int64_t>(prepared_bytes), detail::DecodeLayout::alignment);
    layout_.state_bytes =
        round_up(static_cast<std::int64_t>(state_bytes), detail::DecodeLayout::alignment);
    layout_.plain_queries = section(rows, 4 * format.key_dim);
    layout_.rotated_queries = section(checked_mul(rows, vectors), 4 * format.key_dim);
    layout_.prepared = section(heads, layout_.prepared_bytes);
    layout_.states = section(checked_mul(heads, layout_.num_splits), layout_.state_bytes);
    layout_.parts = layout_.num_splits + 1;
    lay_out_parts(section);
  }

  TileCodec<MemorySpace> codec_;
  DecodeProblem problem_;
  detail::DecodeLayout layout_{};
  detail::HostAttention host_{};
  std::string operations_name_;
  bool matrix_units_ = false;
  bool dot_products_ = false;
};

/// Plans attention over compressed tiles and exact rows.
///
/// @param exec    execution space instance of the runs
/// @param codec   of the tiles
/// @param problem shapes and semantics
/// @param options exactness, splits and tile operations
/// @throws Error(invalid_argument) naming a field outside its domain, Error(overflow) for a
/// workspace beyond 2^63 bytes,
///         Error(unsupported) for tile operations that cannot run here.
template <class ExecutionSpace, class MemorySpace>
[[nodiscard]] DecodePlan<ExecutionSpace, MemorySpace> plan_decode(
    const ExecutionSpace& exec, const TileCodec<MemorySpace>& codec, const DecodeProblem& problem,
    const DecodeOptions& options = {}) {
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, MemorySpace>::accessible,
                "the execution space cannot reach the codec's memory space");
  require_initialized("plan_decode");
  detail::require_problem(problem);
  detail::require_options(options);
  return DecodePlan<ExecutionSpace, MemorySpace>(exec, codec, problem, options);
}

}  // namespace turboquant
