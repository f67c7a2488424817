#pragma once

#include <turboquant/model/page_spec.hpp>
#include <turboquant/model/unification.hpp>

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
/// @throws Error(invalid_argument) for sizes below 1, Error(overflow) beyond 64 bits.
[[nodiscard]] inline HybridAlignment align_hybrid_pages(const HybridAlignmentProblem& problem) {
  constexpr std::string_view where = "align_hybrid_pages";
  detail::require_positive(where, "bytes_per_token", problem.bytes_per_token);
  detail::require_positive(where, "skip_bytes_per_token", problem.skip_bytes_per_token.value_or(1));
  detail::require_positive(where, "mamba_page_size_bytes", problem.mamba_page_size_bytes);
  detail::require_positive(where, "kernel_alignment", problem.kernel_alignment);
  detail::require_positive(where, "mamba_chunk_size", problem.mamba_chunk_size);
  detail::require_positive(where, "block_size", problem.block_size.value_or(1));
  detail::require_positive(where, "max_model_len", problem.max_model_len.value_or(1));

  HybridAlignment result;
  result.bytes_per_token = problem.bytes_per_token;
  if (problem.skip_bytes_per_token) {
    result.bytes_per_token = checked_lcm(problem.bytes_per_token, *problem.skip_bytes_per_token);
  }
  const std::int64_t unit = problem.mamba_cache_mode == MambaCacheMode::all
                                ? checked_lcm(problem.mamba_chunk_size, problem.kernel_alignment)
                                : problem.kernel_alignment;
  const std::int64_t tokens_per_state =
      ceil_div(problem.mamba_page_size_bytes, result.bytes_per_token);
  result.block_size = round_up(tokens_per_state, unit);
  if (problem.block_size && *problem.block_size > result.block_size) {
    result.block_size = round_up(*problem.block_size, unit);
  }
  result.page_size_bytes = checked_mul(result.block_size, result.bytes_per_token);
  result.attention_block_size = result.page_size_bytes / problem.bytes_per_token;
  std::int64_t granularity = result.attention_block_size;
  if (problem.skip_bytes_per_token) {
    result.skip_block_size = result.page_size_bytes / *problem.skip_bytes_per_token;
    granularity = checked_lcm(granularity, *result.skip_block_size);
  }
  result.mamba_page_padding_bytes = result.page_size_bytes - problem.mamba_page_size_bytes;
  result.mamba_block_size = problem.mamba_cache_mode == MambaCacheMode::none
                                ? problem.max_model_len
                                : std::optional<std::int64_t>(granularity);
  return result;
}

}  // namespace turboquant
