#pragma once

#include <turboquant/model/page_spec.hpp>
#include <turboquant/model/unification.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace turboquant {

/// What a hybrid model's pages are aligned from.
struct HybridAlignmentProblem {
  std::int64_t bytes_per_token = 0;  ///< of one attention layer (compressed, or the only kind)
  std::optional<std::int64_t> skip_bytes_per_token{};  ///< of a layer skipped by compression
  std::int64_t mamba_page_size_bytes = 0;              ///< bytes of one recurrent state
  std::int64_t kernel_alignment = 16;  ///< block sizes are multiples of this many tokens
  MambaCacheMode mamba_cache_mode = MambaCacheMode::none;
  std::int64_t mamba_chunk_size = 256;          ///< tokens of one scan chunk; used by mode `all`
  std::optional<std::int64_t> block_size{};     ///< wanted block; raised where it is too small
  std::optional<std::int64_t> max_model_len{};  ///< the state's block in mode `none`
};

/// The published block-size alignment of attention and recurrent pages.
struct HybridAlignment {
  std::int64_t bytes_per_token = 0;               ///< LCM of the two kinds where layers are skipped
  std::int64_t block_size = 0;                    ///< multiples of `bytes_per_token` in one page
  std::int64_t page_size_bytes = 0;               ///< of every page
  std::int64_t attention_block_size = 0;          ///< tokens of a (compressed) attention page
  std::optional<std::int64_t> skip_block_size{};  ///< tokens of a skipped layer's page
  std::optional<std::int64_t> mamba_block_size{};  ///< tokens between kept states
  std::int64_t mamba_page_padding_bytes = 0;
};

/// The smallest attention block whose page holds a recurrent state, and the state's padding.
///
/// Modes `none` and `align`: block = alignment * ceil(state / (alignment * bytes per token)). Mode
/// `all`: the tokens whose bytes hold a state, rounded up to lcm(chunk, alignment), so that kept
/// states fall on chunk ends. With skipped layers the bytes per token are the LCM of both kinds,
/// and each kind's block is the page divided by its own bytes per token. Deterministic, O(1).
/// @throws Error(invalid_argument) for sizes below 1, Error(overflow) for sizes above 2^40 and
///         results beyond 64 bits.
[[nodiscard]] inline HybridAlignment align_hybrid_pages(const HybridAlignmentProblem& problem) {
  constexpr std::string_view where = "align_hybrid_pages";
  const auto require_size = [&](std::string_view field, std::int64_t value) {
    detail::require_between(where, field, value, 1, std::int64_t{1} << 40);
  };
  require_size("bytes_per_token", problem.bytes_per_token);
  require_size("skip_bytes_per_token", problem.skip_bytes_per_token.value_or(1));
  require_size("mamba_page_size_bytes", problem.mamba_page_size_bytes);
  require_size("kernel_alignment", problem.kernel_alignment);
  require_size("mamba_chunk_size", problem.mamba_chunk_size);
  require_size("block_size", problem.block_size.value_or(1));
  require_size("max_model_len", problem.max_model_len.value_or(1));

  detail::require_cache_mode(where, problem.mamba_cache_mode);

  HybridAlignment result;
  result.bytes_per_token = problem.bytes_per_token;
  if (problem.skip_bytes_per_token) {
    result.bytes_per_token =
        detail::named_lcm(where, {"bytes_per_token", problem.bytes_per_token},
                          {"skip_bytes_per_token", *problem.skip_bytes_per_token});
  }
  const std::int64_t unit =
      problem.mamba_cache_mode == MambaCacheMode::all
          ? detail::named_lcm(where, {"mamba_chunk_size", problem.mamba_chunk_size},
                              {"kernel_alignment", problem.kernel_alignment})
          : problem.kernel_alignment;
  const std::int64_t tokens_per_state =
      ceil_div(problem.mamba_page_size_bytes, result.bytes_per_token);
  const std::int64_t wanted = (std::max)(tokens_per_state, problem.block_size.value_or(1));
  result.block_size = detail::named_mul(where, {"tokens that blocks are multiples of", unit},
                                        {"their number", ceil_div(wanted, unit)});
  result.page_size_bytes = detail::named_mul(where, {"block_size", result.block_size},
                                             {"bytes_per_token", result.bytes_per_token});
  result.attention_block_size = result.page_size_bytes / problem.bytes_per_token;
  std::int64_t granularity = result.attention_block_size;
  if (problem.skip_bytes_per_token) {
    result.skip_block_size = result.page_size_bytes / *problem.skip_bytes_per_token;
    granularity = detail::named_lcm(where, {"attention_block_size", granularity},
                                    {"skip_block_size", *result.skip_block_size});
  }
  result.mamba_page_padding_bytes = result.page_size_bytes - problem.mamba_page_size_bytes;
  result.mamba_block_size = problem.mamba_cache_mode == MambaCacheMode::none
                                ? problem.max_model_len
                                : std::optional<std::int64_t>(granularity);
  return result;
}

}  // namespace turboquant
