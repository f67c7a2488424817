#pragma once

#include <turboquant/device/arch/ring_teams.hpp>
#include <turboquant/device/arch/select.hpp>
#include <turboquant/device/paged_tiles.hpp>
#include <turboquant/device/row_view.hpp>
#include <turboquant/device/tile_codec.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

namespace turboquant {

/// The shape of a decode step, which a plan fixes.
struct DecodeProblem {
  int num_sequences = 1;  ///< 0 to 2^20
  int num_queries = 1;    ///< query tokens per sequence, 1 to 1024: more than one for speculative
                          ///< decoding and prefill
  /// 1 to 65536, a multiple of kv_heads: query head h reads kv head h / (query_heads / kv_heads).
  /// With the query tokens that are up to 2^20 query rows a kv head.
  int query_heads = 1;
  int kv_heads = 1;
  /// The largest number of compressed tokens, history_end - history_begin, that a sequence will
  /// have.
  std::int64_t max_history_tokens = 0;
  /// Factor of the logits, up to 1e18 in magnitude; 0 means 1 / sqrt(key_dim).
  float sm_scale = 0;
  /// Logits become `cap * tanh(logit / cap)`; up to 1e4, beyond which float cannot tell the
  /// logits apart; 0 means they stay.
  float logits_soft_cap = 0;
  /// A query sees this many newest tokens, itself included, and the exact sinks; 0 means all.
  std::int64_t sliding_window = 0;
};

/// Which operations attend on an accelerator.
enum class DeviceArch {
  automatic,  ///< matrix units where device, tile format and problem allow it, else dot products
  portable,   ///< float, the reference on any device
  dot,        ///< dot products of four bytes: any device whose lanes run in step; host spaces have
              ///< none but in the library's tests
  matrix_units,        ///< 8 x 8 matrix units: compute capability 8.0 or newer
  matrix_units_plain,  ///< the same with tiles loaded into registers
  matrix_units_ring,   ///< the same with tiles copied into rings: compute capability 9.0 or newer
};

/// What may differ without changing what is computed, beyond rounding.
struct DecodeOptions {
  Exactness exactness = Exactness::exact;
  /// Parts a sequence's history is cut into; 0 cuts every `default_tiles_per_split` tiles, so that
  /// a sequence gives the same bits alone and in any batch, on any number of threads.
  int num_splits = 0;
  HostArch arch = HostArch::automatic;  ///< host spaces only
  /// Device spaces only. Matrix units and dot products err by up to 1e-3 of the mean
  /// length of the values averaged, whatever the exactness; automatic splits then depend on the
  /// device and the batch.
  DeviceArch device = DeviceArch::automatic;  ///< refused where the device or format has none
  /// With rings: teams of a part that exchange results without memory, 1 to 16; 0 chooses.
  int cluster = 0;
  RingTeams ring_teams = RingTeams::automatic;  ///< with rings
  int ring_stages = 0;  ///< with rings: steps of 64 tokens (32 for wide heads), 2 to 4; 0 chooses

  static constexpr std::int64_t default_tiles_per_split = 16;
};

/// The memory of one sequence, as kernels read it. Update records between runs without a new plan.
/// A plain record; owns nothing.
///
/// A sequence is three disjoint runs of tokens at absolute positions, each of which may be empty:
/// exact sinks at [0, num_sinks), compressed tokens at [history_begin, history_end), of which
/// position p is token p - page_position of the tiles, and the exact window at window_position +
/// [0, window_count). Query j of m is at query_position + j and sees every token at its own
/// position or before, subject to `DecodeProblem::sliding_window`. Exact keys and values are at
/// most `largest_row_number` in magnitude, or results may be NaN, infinite or wrong; rows are not
/// read for checking.
struct DecodeSequence {
  PagedTiles history{};
  std::int64_t page_position = 0;  ///< position of slot 0 of the first page
  std::int64_t history_begin = 0;
  std::int64_t history_end = 0;

  RowView sink_keys{};    ///< (num_sinks, kv_heads, key_dim), not rotated
  RowView sink_values{};  ///< (num_sinks, kv_heads, value_dim)
  std::int64_t num_sinks = 0;

  RowView window_keys{};    ///< (window_capacity, kv_heads, key_dim), a ring: token i is row
  RowView window_values{};  ///< (window_start + i) % window_capacity
  std::int64_t window_capacity = 0;
  std::int64_t window_start = 0;
  std::int64_t window_count = 0;
  std::int64_t window_position = 0;

  std::int64_t query_position = 0;
};

namespace detail {

/// What a softmax can be made of.
inline void require_logits(const char* caller, float sm_scale, float logits_soft_cap) {
  // A NaN is not in the range either.
  require(sm_scale >= -1e18F && sm_scale <= 1e18F, ErrorCode::invalid_argument, caller,
          ": sm_scale is ", sm_scale, ", expected a finite number of at most 1e18 in magnitude");
  require(logits_soft_cap >= 0 && logits_soft_cap <= 1e4F, ErrorCode::invalid_argument, caller,
          ": logits_soft_cap is ", logits_soft_cap,
          ", expected 0 (none) or a positive number of at most 10000");
}

inline void require_enumerator(const char* caller, const char* name, int value, int last,
                               const char* names) {
  require(value >= 0 && value <= last, ErrorCode::invalid_argument, caller, ": ", name, " is ",
          value, ", expected ", names);
}

inline void require_exactness(const char* caller, Exactness exactness) {
  require_enumerator(caller, "exactness", static_cast<int>(exactness),
                     static_cast<int>(Exactness::exact), "int8, fast or exact");
}

inline void require_problem(const DecodeProblem& problem) {
  const auto at_least = [](const char* name, std::int64_t value, std::int64_t lowest) {
    require(value >= lowest, ErrorCode::invalid_argument, "plan_decode: ", name, " is ", value,
            ", expected ", lowest, " or more");
  };
  const auto in_range = [](const char* name, int value, int lowest, int highest) {
    require(value >= lowest && value <= highest, ErrorCode::invalid_argument, "plan_decode: ", name,
            " is ", value, ", expected ", lowest, " to ", highest);
  };
  in_range("num_sequences", problem.num_sequences, 0, 1 << 20);
  in_range("kv_heads", problem.kv_heads, 1, 65536);
  in_range("query_heads", problem.query_heads, 1, 65536);
  at_least("max_history_tokens", problem.max_history_tokens, 0);
  at_least("sliding_window", problem.sliding_window, 0);
  in_range("num_queries", problem.num_queries, 1, 1024);
  require(problem.query_heads % problem.kv_heads == 0, ErrorCode::invalid_argument,
          "plan_decode: query_heads is ", problem.query_heads,
          ", expected a multiple of kv_heads = ", problem.kv_heads);
  constexpr int most_rows = 1 << 20;
  const int ratio = problem.query_heads / problem.kv_heads;
  require(problem.num_queries <= most_rows / ratio, ErrorCode::invalid_argument,
          "plan_decode: num_queries is ", problem.num_queries, ", expected at most ",
          most_rows / ratio, " with ", ratio, " query heads a kv head");
  require_logits("plan_decode", problem.sm_scale, problem.logits_soft_cap);
}

inline void require_options(const DecodeOptions& options) {
  const auto enumerator = [](const char* name, int value, int last, const char* names) {
    require_enumerator("plan_decode", name, value, last, names);
  };
  require_exactness("plan_decode", options.exactness);
  enumerator("arch", static_cast<int>(options.arch), static_cast<int>(HostArch::avx512),
             "automatic, portable, avx2 or avx512");
  enumerator("device", static_cast<int>(options.device),
             static_cast<int>(DeviceArch::matrix_units_ring),
             "automatic, portable, dot, matrix_units, matrix_units_plain or matrix_units_ring");
  enumerator("ring_teams", static_cast<int>(options.ring_teams),
             static_cast<int>(RingTeams::eight_warps), "automatic, two_warps or eight_warps");
}

/// Checks a record on the host, block table included.
inline void require_sequence(const DecodeSequence& sequence, std::int64_t index,
                             const DecodeProblem& problem, const TileFormat& format) {
  const auto name = [&](const char* field) {
    return std::string("run_decode: sequences[") + std::to_string(index) + "]." + field;
  };
  // Before anything is computed from them, so that nothing overflows.
  constexpr std::int64_t last_position = std::int64_t{1} << 60U;
  constexpr std::int64_t most_rows = std::int64_t{1} << 40U;
  require(sequence.page_position >= 0 && sequence.history_begin >= sequence.page_position &&
              sequence.history_end >= sequence.history_begin &&
              sequence.history_end <= last_position,
          ErrorCode::invalid_argument, name("history"), " is [", sequence.history_begin, ", ",
          sequence.history_end, "), expected 0 <= page_position = ", sequence.page_position,
          " <= begin <= end <= 2^60");
  require(sequence.history_end - sequence.history_begin <= problem.max_history_tokens,
          ErrorCode::capacity, name("history"), " has ",
          sequence.history_end - sequence.history_begin,
          " tokens, the plan was made for max_history_tokens = ", problem.max_history_tokens);
  require_tiles(name("history").c_str(), format, sequence.history,
                sequence.history_begin - sequence.page_position,
                sequence.history_end - sequence.page_position);
  require(sequence.num_sinks >= 0 && sequence.num_sinks <= most_rows &&
              (sequence.num_sinks == 0 ||
               (sequence.sink_keys.data != nullptr && sequence.sink_values.data != nullptr)),
          ErrorCode::invalid_argument, name("num_sinks"), " is ", sequence.num_sinks,
          ", expected 0, or up to 2^40 with sink_keys and sink_values");
  require(sequence.window_capacity >= 0 && sequence.window_capacity <= most_rows,
          ErrorCode::invalid_argument, name("window_capacity"), " is ", sequence.window_capacity,
          ", expected 0 to 2^40");
  require(sequence.window_count >= 0 && sequence.window_count <= sequence.window_capacity,
          ErrorCode::invalid_argument, name("window_count"), " is ", sequence.window_count,
          ", expected 0 to window_capacity = ", sequence.window_capacity);
  require(sequence.window_count == 0 ||
              (sequence.window_keys.data != nullptr && sequence.window_values.data != nullptr &&
               sequence.window_start >= 0 && sequence.window_start < sequence.window_capacity),
          ErrorCode::invalid_argument, name("window_start"), " is ", sequence.window_start,
          ", expected 0 to window_capacity - 1 = ", sequence.window_capacity - 1,
          " with window_keys and window_values");
  for (const auto& [field, rows] : {std::pair{"sink_keys", &sequence.sink_keys},
                                    std::pair{"sink_values", &sequence.sink_values},
                                    std::pair{"window_keys", &sequence.window_keys},
                                    std::pair{"window_values", &sequence.window_values}}) {
    require(is_row_type(rows->type), ErrorCode::invalid_argument, name(field), ".type is ",
            static_cast<int>(rows->type), ", expected float32, float16 or bfloat16");
  }
  require(sequence.query_position >= 0 && sequence.query_position <= last_position,
          ErrorCode::invalid_argument, name("query_position"), " is ", sequence.query_position,
          ", expected 0 to 2^60");
  // The three runs of tokens must not share a position, or a token would count twice.
  const bool has_history = sequence.history_begin < sequence.history_end;
  require(!has_history || sequence.history_begin >= sequence.num_sinks, ErrorCode::invalid_argument,
          name("history_begin"), " is ", sequence.history_begin,
          ", expected num_sinks = ", sequence.num_sinks, " or more");
  const auto is_apart = [&] {
    return !has_history || sequence.window_position >= sequence.history_end ||
           sequence.history_begin - sequence.window_position >= sequence.window_count;
  };
  require(sequence.window_count == 0 || (sequence.window_position >= sequence.num_sinks &&
                                         sequence.window_position <= last_position && is_apart()),
          ErrorCode::invalid_argument, name("window_position"), " is ", sequence.window_position,
          ", expected num_sinks = ", sequence.num_sinks, " or more, and ", sequence.window_count,
          " tokens outside the history [", sequence.history_begin, ", ", sequence.history_end, ")");
}

}  // namespace detail

}  // namespace turboquant
