#pragma once

#include <turboquant/attention/decode_problem.hpp>
#include <turboquant/device/encode_tiles.hpp>
#include <turboquant/device/memory_overlap.hpp>
#include <turboquant/device/paged_tiles.hpp>
#include <turboquant/device/row_view.hpp>
#include <turboquant/device/tile_attention.hpp>
#include <turboquant/device/tile_codec.hpp>
#include <turboquant/math/softmax_state.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace turboquant {

/// Compressed keys of one sequence: tokens [begin, end), counted from the first page. A plain
/// record that kernels read; owns nothing.
struct ScoreSequence {
  PagedTiles history{};
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// What scoring reads.
/// @tparam Query float, float16 or bfloat16
template <class Query, class MemorySpace>
struct ScoreInputs {
  /// (num_sequences, query_heads, key_dim), not rotated
  Kokkos::View<const Query***, Kokkos::LayoutRight, MemorySpace> queries;
  /// (num_sequences)
  Kokkos::View<const ScoreSequence*, MemorySpace> sequences;
};

struct ScoreOptions {
  /// Factor of the logits, up to 1e18 in magnitude; 0 means 1 / sqrt(key_dim), 1 gives inner
  /// products.
  float sm_scale = 0;
};

namespace detail {

/// One work item scores the query heads of one kv head with a run of tiles, `Rows` heads at a time.
template <class Query, int Rows>
struct ScoreTiles {
  /// Enough that rotating the queries once per item costs little.
  static constexpr std::int64_t tiles_per_item = 16;

  TileTables tables;
  const Query* queries;            ///< (num_sequences, query_heads, key_dim)
  const ScoreSequence* sequences;  ///< (num_sequences)
  float* logits;                   ///< (num_sequences, query_heads, columns)
  std::int64_t columns;
  std::int64_t items_per_head;
  int kv_heads;
  int ratio;
  float sm_scale;

  /// Items that cover every column, wherever in a tile a sequence begins.
  [[nodiscard]] static std::int64_t items_for(std::int64_t columns,
                                              std::int64_t tile_tokens) noexcept {
    const std::int64_t tiles = (columns + tile_tokens - 2) / tile_tokens + 1;
    return (tiles + tiles_per_item - 1) / tiles_per_item;
  }

  TURBOQUANT_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t index = item / items_per_head / kv_heads;
    const auto head = static_cast<int>(item / items_per_head % kv_heads);
    const ScoreSequence& sequence = sequences[index];
    const std::int64_t first_tile =
        sequence.begin / tables.format.tile_tokens + item % items_per_head * tiles_per_item;
    float query[2 * Rows * max_tile_dim];
    for (int row = 0; row < ratio; row += Rows) {
      const int count = ratio - row < Rows ? ratio - row : Rows;
      const std::int64_t first_row =
          (index * kv_heads + head) * static_cast<std::int64_t>(ratio) + row;
      prepare(first_row, count, query);
      for (std::int64_t tile = first_tile; tile < first_tile + tiles_per_item; ++tile) {
        score_tile(sequence, tile, head, first_row, count, query);
      }
    }
  }

 private:
  /// Rotated and scaled queries, then their sketches where the codec has some.
  TURBOQUANT_FUNCTION void prepare(std::int64_t first_row, int count, float* query) const {
    const int dim = tables.format.key_dim;
    float spare[max_tile_dim];
    float* sketched = query + count * dim;
    for (int row = 0; row < count; ++row) {
      float* out = query + row * dim;
      for (int d = 0; d < dim; ++d) {
        out[d] = to_float(queries[(first_row + row) * dim + d]);
      }
      tables.key_rotation.template forward<1>(out, spare);
      if (tables.format.key_codec == KeyCodec::inner_product) {
        for (int d = 0; d < dim; ++d) {
          sketched[row * dim + d] = out[d];
        }
        tables.sketch.template forward<1>(sketched + row * dim, spare);
      }
    }
    PrepareArguments arguments;
    arguments.queries = query;
    arguments.sketched = sketched;
    arguments.rows = count;
    arguments.logit_scale = sm_scale;
    // Number by number, so in place.
    PortableAttention::prepare(tables, arguments, reinterpret_cast<std::byte*>(query));
  }

  TURBOQUANT_FUNCTION void score_tile(const ScoreSequence& sequence, std::int64_t tile, int head,
                                      std::int64_t first_row, int count, const float* query) const {
    const std::int64_t tile_tokens = tables.format.tile_tokens;
    const std::int64_t before = tile * tile_tokens - sequence.begin;  // column of slot 0
    const std::int64_t last = before + tile_tokens < columns ? before + tile_tokens : columns;
    const std::int64_t valid = sequence.end - sequence.begin;
    float scores[Rows][TileFormat::max_tokens];
    if (before < valid) {
      TileArguments in;
      in.tile = sequence.history.tile(tile, head, tables.format.bytes());
      in.query = reinterpret_cast<const std::byte*>(query);
      in.rows = count;
      PortableAttention::score_tile(tables, in, 0, count, scores);
      for (int row = 0; row < count && tables.format.centres_keys(); ++row) {
        add_key_mean(in.tile, first_row + row, scores[row]);
      }
    }
    for (int row = 0; row < count; ++row) {
      float* out = logits + (first_row + row) * columns;
      for (std::int64_t column = before > 0 ? before : 0; column < last; ++column) {
        out[column] = column < valid ? scores[row][column - before] : negative_infinity;
      }
    }
  }

  /// Adds what the key mean of a tile adds to the scores of a query row.
  TURBOQUANT_FUNCTION void add_key_mean(const std::byte* tile, std::int64_t row,
                                        float* scores) const {
    float query[max_tile_dim];
    for (int d = 0; d < tables.format.key_dim; ++d) {
      query[d] = to_float(queries[row * tables.format.key_dim + d]) * sm_scale;
    }
    PortableAttention::add_key_mean(tables.format, tile, query, scores);
  }

  static TURBOQUANT_FUNCTION float to_float(float x) noexcept { return x; }
  template <class Half>
  static TURBOQUANT_FUNCTION float to_float(Half x) noexcept {
    return x.to_float();
  }
};

inline void require_score_sequence(const char* caller, const TileFormat& format,
                                   const ScoreSequence& sequence, std::int64_t index,
                                   std::int64_t columns) {
  const std::string name = std::string(caller) + ": sequences[" + std::to_string(index) + "]";
  require(sequence.begin >= 0 && sequence.end >= sequence.begin &&
              sequence.end <= std::int64_t{1} << 60U,
          ErrorCode::invalid_argument, name, " is [", sequence.begin, ", ", sequence.end,
          "), expected 0 <= begin <= end <= 2^60");
  require(sequence.end - sequence.begin <= columns, ErrorCode::shape_mismatch, name, " has ",
          sequence.end - sequence.begin, " tokens, expected at most logits.extent(2) = ", columns);
  require_tiles(name.c_str(), format, sequence.history, sequence.begin, sequence.end);
}

[[nodiscard]] constexpr const char* codec_name(KeyCodec codec) noexcept {
  switch (codec) {
    case KeyCodec::mse: return "mse";
    case KeyCodec::inner_product: return "inner_product";
    case KeyCodec::float8: return "float8";
  }
  return "unknown";
}

template <class ExecutionSpace, class MemorySpace, class Query>
void score_keys(const char* caller, KeyCodec codec_of_caller, const ExecutionSpace& exec,
                const TileCodec<MemorySpace>& codec, int kv_heads,
                const ScoreInputs<Query, MemorySpace>& inputs,
                const Kokkos::View<float***, Kokkos::LayoutRight, MemorySpace>& logits,
                const ScoreOptions& options) {
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, MemorySpace>::accessible,
                "the execution space cannot reach the codec's memory space");
  static_cast<void>(row_type_of<Query>);
  require_initialized(caller);
  const TileFormat& format = codec.format();
  require(format.key_codec == codec_of_caller, ErrorCode::invalid_argument, caller,
          ": codec.format().key_codec is ", codec_name(format.key_codec), ", expected ",
          codec_name(codec_of_caller));
  const auto& queries = inputs.queries;
  const auto& sequences = inputs.sequences;
  require(kv_heads >= 1, ErrorCode::invalid_argument, caller, ": kv_heads is ", kv_heads,
          ", expected 1 or more");
  require_logits(caller, options.sm_scale, 0.0F);
  const auto extent = [&](const char* view, std::size_t axis, std::size_t is, std::size_t wanted) {
    require(is == wanted, ErrorCode::shape_mismatch, caller, ": ", view, ".extent(", axis, ") is ",
            is, ", expected ", wanted);
  };
  const std::size_t query_heads = queries.extent(1);
  require(query_heads >= 1 && query_heads <= 65536 &&
              query_heads % static_cast<std::size_t>(kv_heads) == 0,
          ErrorCode::shape_mismatch, caller, ": queries.extent(1) is ", query_heads,
          ", expected a positive multiple of kv_heads = ", kv_heads);
  extent("queries", 2, queries.extent(2), static_cast<std::size_t>(format.key_dim));
  extent("sequences", 0, sequences.extent(0), queries.extent(0));
  extent("logits", 0, logits.extent(0), queries.extent(0));
  extent("logits", 1, logits.extent(1), query_heads);
  require_apart(caller, {byte_range("logits", logits)},
                {byte_range("queries", queries), byte_range("sequences", sequences)});
  const auto columns = static_cast<std::int64_t>(logits.extent(2));
  const auto num_sequences = static_cast<std::int64_t>(sequences.extent(0));
  if constexpr (runs_on_host<ExecutionSpace>) {
    for (std::int64_t i = 0; i < num_sequences; ++i) {
      require_score_sequence(caller, format, sequences.data()[i], i, columns);
    }
    const RowView rows = dense_rows(queries.data(), static_cast<int>(query_heads), format.key_dim);
    const std::int64_t bad =
        first_non_finite(exec, rows, num_sequences, static_cast<int>(query_heads), format.key_dim);
    if (bad >= 0) {
      const std::int64_t head = bad / format.key_dim;
      const auto heads = static_cast<std::int64_t>(query_heads);
      fail(ErrorCode::non_finite, caller, ": queries(", head / heads, ", ", head % heads, ", ",
           bad % format.key_dim, ") is ", rows.read(bad), ", expected a finite number");
    }
  }
  if (num_sequences == 0 || columns == 0) {
    return;
  }
  // A host unpacks a code once for several heads; device threads have little memory of their own.
  using Kernel = ScoreTiles<Query, runs_on_host<ExecutionSpace> ? PortableAttention::block : 1>;
  Kernel kernel;
  kernel.tables = codec.tables();
  kernel.queries = queries.data();
  kernel.sequences = sequences.data();
  kernel.logits = logits.data();
  kernel.columns = columns;
  kernel.items_per_head = Kernel::items_for(columns, format.tile_tokens);
  kernel.kv_heads = kv_heads;
  kernel.ratio = static_cast<int>(query_heads) / kv_heads;
  kernel.sm_scale =
      options.sm_scale != 0 ? options.sm_scale : 1 / std::sqrt(static_cast<float>(format.key_dim));
  Kokkos::parallel_for(std::string("turboquant::") + caller,
                       Kokkos::RangePolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Dynamic>,
                                           Kokkos::IndexType<std::int64_t>>(
                           exec, 0, num_sequences * kv_heads * kernel.items_per_head),
                       kernel);
}

}  // namespace detail

/// Attention logits of queries with compressed keys of Algorithm 1, straight from the codes.
///
/// @param exec      execution space instance; the kernel is enqueued, nothing waits
/// @param codec     of the tiles; `KeyCodec::mse`
/// @param kv_heads  heads of the tiles; query head h reads kv head h / (query_heads / kv_heads)
/// @param inputs    queries and records of the keys
/// @param logits    (num_sequences, query_heads, max_tokens), written: column i is token begin + i
/// of the sequence, -infinity from its end on
/// @param options   scale
/// @throws Error before anything is written: `invalid_argument` or `shape_mismatch` for arguments
///         that do not fit each other or overlap; on host spaces also for records outside their
///         domain (on device spaces records and queries are not read here), `out_of_range` for
///         tokens without a page, `non_finite` for a query with NaN or infinity, whose logits are
///         NaN on devices.
/// Float arithmetic with the stored scales and exact levels on every execution space. One kernel,
/// no workspace, no copy between memory spaces. O(tokens query_heads key_dim). Same bits for every
/// batch, number of threads and run of one build.
template <class ExecutionSpace, class MemorySpace, class Query>
void mse_score(const ExecutionSpace& exec, const TileCodec<MemorySpace>& codec, int kv_heads,
               const ScoreInputs<Query, MemorySpace>& inputs,
               const Kokkos::View<float***, Kokkos::LayoutRight, MemorySpace>& logits,
               const ScoreOptions& options = {}) {
  detail::score_keys("mse_score", KeyCodec::mse, exec, codec, kv_heads, inputs, logits, options);
}

/// Attention logits of queries with compressed keys of Algorithm 2: the Algorithm 1 part plus the
/// sketched query against the signs of the residual, which makes inner products unbiased over the
/// sketch.
///
/// Parameters, errors and cost are those of `mse_score`; the codec has `KeyCodec::inner_product`.
template <class ExecutionSpace, class MemorySpace, class Query>
void inner_product_score(const ExecutionSpace& exec, const TileCodec<MemorySpace>& codec,
                         int kv_heads, const ScoreInputs<Query, MemorySpace>& inputs,
                         const Kokkos::View<float***, Kokkos::LayoutRight, MemorySpace>& logits,
                         const ScoreOptions& options = {}) {
  detail::score_keys("inner_product_score", KeyCodec::inner_product, exec, codec, kv_heads, inputs,
                     logits, options);
}

}  // namespace turboquant
