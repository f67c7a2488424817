#pragma once

#include <turboquant/model/layer_class.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace turboquant {

/// What a sequence and the pools look like, whatever the strategy.
struct PoolProblem {
  std::int64_t memory_bytes = 0;  ///< of one rank, for the caches alone
  SequenceLimits limits{};        ///< context, step size, state mode
  std::int64_t state_block_size =
      1;  ///< tokens between kept states in pools of their own, mode `all`
  BlockPolicy block_policy = BlockPolicy::fill;
  std::vector<std::int64_t> prompt_lengths{};  ///< tokens; what each would allocate is reported
};

/// What a short sequence costs in large pages.
struct PromptUse {
  std::int64_t tokens = 0;
  std::int64_t allocated_bytes = 0;
  double used_fraction = 0.0;  ///< of the allocated bytes
};

/// One way to lay the pages out, and what fits then.
struct PoolPlan {
  UnificationStrategy strategy = UnificationStrategy::lcm;
  bool available = true;                ///< false where the common page exceeds 64 bits
  UnifiedPages pages{};                 ///< one entry per class
  LayerGrouping grouping{};             ///< of a shared pool; empty for separate pools
  std::int64_t bytes_per_sequence = 0;  ///< allocated for one sequence of the whole context
  double waste = 0.0;                   ///< fraction of these bytes that holds nothing
  /// Mean bytes over all lengths up to the context: here half-filled pages count.
  double mean_bytes_per_sequence = 0.0;
  std::int64_t capacity_sequences = 0;  ///< sequences of the whole context that fit
  std::int64_t capacity_tokens = 0;     ///< tokens in sequences of that context
  std::int64_t longest_sequence = 0;    ///< tokens of the longest single sequence that fits
  /// Tokens between possible prefix-cache hits; nothing where states are not kept at boundaries.
  std::optional<std::int64_t> prefix_granularity{};
  std::vector<PromptUse> prompts{};  ///< one per `PoolProblem::prompt_lengths`
};

namespace detail {

/// True when the LCM of the attention pages fits 64 bits.
inline bool lcm_fits(std::span<const PageClass> classes) {
  std::int64_t common = 1;
  for (const PageClass& c : classes) {
    if (c.scales_with_block_size) {
      const std::int64_t factor = c.page_size_bytes / std::gcd(common, c.page_size_bytes);
      if (common > (std::numeric_limits<std::int64_t>::max)() / factor) {
        return false;
      }
      common *= factor;
    }
  }
  std::int64_t largest = 0;
  for (const PageClass& c : classes) {
    largest = (std::max)(largest, c.page_size_bytes);
  }
  return common <= (std::numeric_limits<std::int64_t>::max)() - largest;
}

/// floor(a * b / c) without a 128-bit product; `b` tokens of at most 2^62.
inline std::int64_t scaled(std::int64_t a, std::int64_t b, std::int64_t c) {
  const auto rest =
      static_cast<long double>(a % c) * static_cast<long double>(b) / static_cast<long double>(c);
  return checked_add(checked_mul(a / c, b), static_cast<std::int64_t>(rest));
}

/// Tokens between kept states: the prefix granularity of a shared pool, else the problem's own.
inline std::int64_t state_block(const PoolPlan& plan, const PoolProblem& problem) {
  return plan.strategy == UnificationStrategy::separate_pools ? problem.state_block_size
                                                              : plan.pages.prefix_granularity;
}

/// Pages of one layer of `c` for a sequence of `tokens`.
inline std::int64_t pages_per_layer(const LayerClass& c, const UnifiedPage& page,
                                    const PoolPlan& plan, const PoolProblem& problem,
                                    std::int64_t tokens) {
  if (c.is_state()) {
    switch (problem.limits.mamba_cache_mode) {
      case MambaCacheMode::none: return checked_add(1, c.num_speculative_blocks);
      case MambaCacheMode::align: return checked_add(2, c.num_speculative_blocks);
      case MambaCacheMode::all:
        return checked_add(ceil_div(tokens, state_block(plan, problem)), c.num_speculative_blocks);
    }
  }
  if (c.window) {
    const std::int64_t resident =
        (std::min)(checked_add(*c.window - 1, problem.limits.max_num_batched_tokens), tokens);
    return checked_add(ceil_div(resident, page.block_size), 1);
  }
  return ceil_div(tokens, page.block_size);
}

/// Layers of `c` with the padding layers of its groups.
inline std::int64_t allocated_layers(const LayerClass& c, const PoolPlan& plan) {
  return plan.grouping.group_size > 0 ? round_up(c.num_layers(), plan.grouping.group_size)
                                      : c.num_layers();
}

/// Bytes allocated for one sequence of `tokens`.
inline std::int64_t sequence_bytes(std::span<const LayerClass> classes, const PoolPlan& plan,
                                   const PoolProblem& problem, std::int64_t tokens) {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const UnifiedPage& page = plan.pages.classes[i];
    const std::int64_t layers = allocated_layers(classes[i], plan);
    const std::int64_t pages = pages_per_layer(classes[i], page, plan, problem, tokens);
    constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)();
    require(pages <= most / layers && layers * pages <= (most - total) / page.page_size_bytes,
            ErrorCode::overflow, "plan_pools: a sequence of ", tokens, " tokens takes ", pages,
            " pages of ", page.page_size_bytes, " bytes in each of ", layers,
            " layers, expected less than 2^63 bytes");
    total += layers * pages * page.page_size_bytes;
  }
  return total;
}

/// Bytes that a sequence of `tokens` really fills.
inline std::int64_t content_bytes(std::span<const LayerClass> classes, std::int64_t tokens) {
  std::int64_t total = 0;
  for (const LayerClass& c : classes) {
    total = checked_add(total, checked_mul(c.num_layers(), c.content_bytes(tokens)));
  }
  return total;
}

/// Mean of ceil(n / block) over n = 1..tokens.
inline double mean_pages(std::int64_t tokens, std::int64_t block) {
  const std::int64_t num_whole = tokens / block;
  const auto whole = static_cast<double>(num_whole);
  const auto rest = static_cast<double>(tokens % block);
  return (static_cast<double>(block) * whole * (whole + 1.0) / 2.0 + rest * (whole + 1.0)) /
         static_cast<double>(tokens);
}

/// Mean pages of one layer over all lengths up to `tokens`.
inline double mean_pages_per_layer(const LayerClass& c, const UnifiedPage& page,
                                   const PoolPlan& plan, const PoolProblem& problem,
                                   std::int64_t tokens) {
  if (c.is_state()) {
    return problem.limits.mamba_cache_mode == MambaCacheMode::all
               ? mean_pages(tokens, state_block(plan, problem)) +
                     static_cast<double>(c.num_speculative_blocks)
               : static_cast<double>(pages_per_layer(c, page, plan, problem, tokens));
  }
  if (!c.window) {
    return mean_pages(tokens, page.block_size);
  }
  const std::int64_t bound =
      (std::min)(checked_add(*c.window - 1, problem.limits.max_num_batched_tokens), tokens);
  const auto growing = static_cast<double>(bound);
  const auto constant = static_cast<double>(tokens - bound);
  return 1.0 + (growing * mean_pages(bound, page.block_size) +
                constant * static_cast<double>(ceil_div(bound, page.block_size))) /
                   static_cast<double>(tokens);
}

/// Mean bytes over all sequence lengths up to `tokens`.
inline double mean_sequence_bytes(std::span<const LayerClass> classes, const PoolPlan& plan,
                                  const PoolProblem& problem, std::int64_t tokens) {
  double mean = 0.0;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const UnifiedPage& page = plan.pages.classes[i];
    mean += static_cast<double>(allocated_layers(classes[i], plan)) *
            static_cast<double>(page.page_size_bytes) *
            mean_pages_per_layer(classes[i], page, plan, problem, tokens);
  }
  return mean;
}

/// The largest context whose single sequence fits, up to 2^32 tokens.
inline std::int64_t longest_context(std::span<const LayerClass> classes, const PoolPlan& plan,
                                    const PoolProblem& problem) {
  std::int64_t low = 0;
  // Every token fills its bytes: memory bounds the search before products can overflow.
  std::int64_t densest = 1;
  for (const LayerClass& c : classes) {
    densest = (std::max)(densest, c.window ? 1 : c.bytes_per_token);
  }
  std::int64_t high = (std::min)(std::int64_t{1} << 32, problem.memory_bytes / densest);
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (sequence_bytes(classes, plan, problem, middle) <= problem.memory_bytes) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace detail

/// Lays the pages of `classes` out by `strategy` and counts what fits.
///
/// A shared pool counts the padding layers of its groups. Separate pools share the memory in the
/// proportion that a sequence of the whole context needs. Deterministic.
/// @throws Error(invalid_argument) for sizes below 1, Error(overflow) beyond 64 bits.
[[nodiscard]] inline PoolPlan plan_pools(std::span<const LayerClass> classes,
                                         const PoolProblem& problem, UnificationStrategy strategy) {
  detail::require_positive("plan_pools", "memory_bytes", problem.memory_bytes);
  detail::require_positive("plan_pools", "state_block_size", problem.state_block_size);
  detail::require_limits("plan_pools", problem.limits);
  detail::require_enumerator("plan_pools", "strategy", strategy,
                             UnificationStrategy::separate_pools, "lcm, padded or separate_pools");
  detail::require_enumerator("plan_pools", "block_policy", problem.block_policy,
                             BlockPolicy::smallest, "fill, multiple_of_smallest or smallest");
  std::vector<PageClass> page_classes;
  std::vector<std::int64_t> counts;
  bool has_state = false;
  for (const LayerClass& c : classes) {
    page_classes.push_back(c.page_class());
    counts.push_back(c.num_layers());
    has_state = has_state || c.is_state();
  }
  PoolPlan plan;
  plan.strategy = strategy;
  if (strategy == UnificationStrategy::lcm && !detail::lcm_fits(page_classes)) {
    plan.available = false;
    return plan;
  }
  plan.pages = unify_pages(page_classes, strategy, problem.block_policy);
  if (strategy != UnificationStrategy::separate_pools) {
    plan.grouping = group_layers(counts);
  }
  const std::int64_t tokens = problem.limits.max_model_len;
  plan.bytes_per_sequence = detail::sequence_bytes(classes, plan, problem, tokens);
  if (plan.bytes_per_sequence > 0) {
    const std::int64_t content = detail::content_bytes(classes, tokens);
    plan.waste = (std::max)(
        0.0, 1.0 - static_cast<double>(content) / static_cast<double>(plan.bytes_per_sequence));
    plan.mean_bytes_per_sequence = detail::mean_sequence_bytes(classes, plan, problem, tokens);
    plan.capacity_sequences = problem.memory_bytes / plan.bytes_per_sequence;
    require(plan.capacity_sequences < (std::numeric_limits<std::int64_t>::max)() / tokens,
            ErrorCode::overflow, "plan_pools: memory_bytes is ", problem.memory_bytes,
            ", room for ", plan.capacity_sequences, " sequences of ", tokens,
            " tokens, expected below 2^63 tokens");
    plan.capacity_tokens = detail::scaled(problem.memory_bytes, tokens, plan.bytes_per_sequence);
    plan.longest_sequence = detail::longest_context(classes, plan, problem);
  }
  for (const std::int64_t length : problem.prompt_lengths) {
    detail::require_positive("plan_pools", "prompt length", length);
    PromptUse use;
    use.tokens = length;
    use.allocated_bytes = detail::sequence_bytes(classes, plan, problem, length);
    use.used_fraction = static_cast<double>(detail::content_bytes(classes, length)) /
                        static_cast<double>(use.allocated_bytes);
    plan.prompts.push_back(use);
  }
  if (!has_state) {
    plan.prefix_granularity = plan.pages.prefix_granularity;
  } else if (problem.limits.mamba_cache_mode != MambaCacheMode::none) {
    plan.prefix_granularity =
        detail::named_lcm("plan_pools", {"prefix granularity", plan.pages.prefix_granularity},
                          {"state_block_size", detail::state_block(plan, problem)});
  }
  return plan;
}

}  // namespace turboquant
