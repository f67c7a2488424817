#pragma once

#include <turboquant/model/layer_class.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace turboquant {

/// What a sequence and the pools look like, whatever the strategy.
struct PoolProblem {
  std::int64_t memory_bytes = 0;  ///< of one rank, for the caches alone
  SequenceLimits limits{};        ///< context, step size, state mode
  /// Tokens between kept states (mode `all`) where no pages of tokens share their pool.
  std::int64_t state_block_size = 1;
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
  bool available = true;                ///< false where a page or a sum exceeds 64 bits
  std::string unavailable_because{};    ///< what exceeds them; nothing else is set then
  UnifiedPages pages{};                 ///< one entry per class
  LayerGrouping grouping{};             ///< of a shared pool; empty for separate pools
  std::int64_t bytes_per_sequence = 0;  ///< allocated for one sequence of the whole context
  double waste = 0.0;                   ///< fraction of these bytes that holds nothing
  /// Mean bytes over all lengths up to the context: here half-filled pages count.
  double mean_bytes_per_sequence = 0.0;
  std::int64_t capacity_sequences = 0;  ///< sequences of the whole context that fit
  /// Tokens in sequences of that context, the memory beside whole ones by its share:
  /// floor(memory_bytes * context / bytes_per_sequence).
  std::int64_t capacity_tokens = 0;
  std::int64_t longest_sequence = 0;  ///< tokens of the longest single sequence that fits
  /// Tokens between possible prefix-cache hits; nothing where states are not kept at boundaries.
  std::optional<std::int64_t> prefix_granularity{};
  std::vector<PromptUse> prompts{};  ///< one per `PoolProblem::prompt_lengths`
};

namespace detail {

/// floor(a * b / c), exactly, of sizes whose result fits 64 bits; c > 0.
constexpr std::int64_t scaled(std::int64_t a, std::int64_t b, std::int64_t c) {
  // Long division of (a mod c) * b, one bit of b after the other: the remainder stays below c.
  const auto divisor = static_cast<std::uint64_t>(c);
  const auto digit = static_cast<std::uint64_t>(a % c);
  std::uint64_t quotient = 0;
  std::uint64_t remainder = 0;
  const auto carry = [&] {
    if (remainder >= divisor) {
      remainder -= divisor;
      ++quotient;
    }
  };
  for (int bit = 62; bit >= 0; --bit) {
    quotient *= 2;
    remainder *= 2;
    carry();
    remainder += (static_cast<std::uint64_t>(b) >> bit & 1U) != 0 ? digit : 0;
    carry();
  }
  return checked_add(checked_mul(a / c, b), static_cast<std::int64_t>(quotient));
}

/// Tokens between kept states: the prefix granularity of pages of tokens in the same pool, else the
/// problem's own.
inline std::int64_t state_block(const PoolPlan& plan, const PoolProblem& problem) {
  const bool beside_tokens =
      plan.strategy != UnificationStrategy::separate_pools &&
      std::any_of(plan.pages.classes.begin(), plan.pages.classes.end(),
                  [](const UnifiedPage& page) { return page.scales_with_block_size; });
  return beside_tokens ? plan.pages.prefix_granularity : problem.state_block_size;
}

/// Tokens of a window that may be resident: the newest of it and those of one step, at most all.
inline std::int64_t resident_tokens(std::int64_t window, const SequenceLimits& limits,
                                    std::int64_t tokens) {
  const std::int64_t outside = tokens - (window - 1);
  return outside <= limits.max_num_batched_tokens ? tokens
                                                  : window - 1 + limits.max_num_batched_tokens;
}

/// Pages of one layer of `c` for a sequence of `tokens`.
inline std::int64_t pages_per_layer(const LayerClass& c, const UnifiedPage& page,
                                    const PoolPlan& plan, const PoolProblem& problem,
                                    std::int64_t tokens, SizeArithmetic& sizes) {
  if (c.is_state()) {
    return sizes.add({"kept states", kept_states(problem.limits.mamba_cache_mode, tokens,
                                                 state_block(plan, problem))},
                     {"num_speculative_blocks", c.num_speculative_blocks});
  }
  if (c.window) {
    return sizes.add(
        {"filled pages of the window",
         ceil_div(resident_tokens(*c.window, problem.limits, tokens), page.block_size)},
        {"pages more", 1});
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
                                   const PoolProblem& problem, std::int64_t tokens,
                                   SizeArithmetic& sizes) {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const UnifiedPage& page = plan.pages.classes[i];
    const std::int64_t layers = allocated_layers(classes[i], plan);
    const std::int64_t pages = pages_per_layer(classes[i], page, plan, problem, tokens, sizes);
    if (pages > sizes.most / layers ||
        layers * pages > (sizes.most - total) / page.page_size_bytes) {
      return sizes.exceed_because("a sequence of ", tokens, " tokens takes ", pages, " pages of ",
                                  page.page_size_bytes, " bytes in each of ", layers,
                                  " layers, expected less than 2^63 bytes");
    }
    total += layers * pages * page.page_size_bytes;
  }
  return total;
}

/// Bytes that a sequence of `tokens` really fills.
inline std::int64_t content_bytes(std::span<const LayerClass> classes, std::int64_t tokens) {
  std::int64_t total = 0;
  for (const LayerClass& c : classes) {
    total =
        named_add("plan_pools", {"bytes of earlier classes", total},
                  {"bytes of this one", named_mul("plan_pools", {"layers", c.num_layers()},
                                                  {"bytes of a layer", c.content_bytes(tokens)})});
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
    const MambaCacheMode mode = problem.limits.mamba_cache_mode;
    const std::int64_t block = state_block(plan, problem);
    const double kept = mode == MambaCacheMode::all
                            ? mean_pages(tokens, block)
                            : static_cast<double>(kept_states(mode, tokens, block));
    return kept + static_cast<double>(c.num_speculative_blocks);
  }
  if (!c.window) {
    return mean_pages(tokens, page.block_size);
  }
  const std::int64_t bound = resident_tokens(*c.window, problem.limits, tokens);
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
  const auto fits = [&](std::int64_t tokens) {
    SizeArithmetic sizes("plan_pools");
    const std::int64_t bytes = sequence_bytes(classes, plan, problem, tokens, sizes);
    return !sizes.exceeded() && bytes <= problem.memory_bytes;
  };
  std::int64_t low = 0;
  std::int64_t high = std::int64_t{1} << 32;
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// Checks every argument of `plan_pools`.
inline void require_pool_arguments(std::span<const LayerClass> classes, const PoolProblem& problem,
                                   UnificationStrategy strategy) {
  constexpr std::string_view where = "plan_pools";
  require_positive(where, "memory_bytes", problem.memory_bytes);
  require_positive(where, "state_block_size", problem.state_block_size);
  require_limits(where, problem.limits);
  require_enumerator(where, "strategy", strategy, UnificationStrategy::separate_pools,
                     "lcm, padded or separate_pools");
  require_enumerator(where, "block_policy", problem.block_policy, BlockPolicy::smallest,
                     "fill, multiple_of_smallest or smallest");
  for (const std::int64_t length : problem.prompt_lengths) {
    require_positive(where, "prompt length", length);
  }
  for (std::size_t i = 0; i < classes.size(); ++i) {
    require_valid(classes[i], where, i);
  }
}

/// What fits in the pages of `plan`.
inline void count_capacity(PoolPlan& plan, std::span<const LayerClass> classes,
                           const PoolProblem& problem, SizeArithmetic& sizes) {
  const std::int64_t tokens = problem.limits.max_model_len;
  plan.bytes_per_sequence = sequence_bytes(classes, plan, problem, tokens, sizes);
  if (sizes.exceeded() || plan.bytes_per_sequence == 0) {
    return;
  }
  const std::int64_t content = content_bytes(classes, tokens);
  plan.waste = (std::max)(
      0.0, 1.0 - static_cast<double>(content) / static_cast<double>(plan.bytes_per_sequence));
  plan.mean_bytes_per_sequence = mean_sequence_bytes(classes, plan, problem, tokens);
  plan.capacity_sequences = problem.memory_bytes / plan.bytes_per_sequence;
  if (plan.capacity_sequences >= sizes.most / tokens) {
    sizes.exceed_because("memory_bytes is ", problem.memory_bytes, ", room for ",
                         plan.capacity_sequences, " sequences of ", tokens,
                         " tokens, expected below 2^63 tokens");
    return;
  }
  plan.capacity_tokens = scaled(problem.memory_bytes, tokens, plan.bytes_per_sequence);
  plan.longest_sequence = longest_context(classes, plan, problem);
}

/// What a prompt of `tokens` allocates.
inline PromptUse prompt_use(std::span<const LayerClass> classes, const PoolPlan& plan,
                            const PoolProblem& problem, std::int64_t tokens,
                            SizeArithmetic& sizes) {
  PromptUse use;
  use.tokens = tokens;
  use.allocated_bytes = sequence_bytes(classes, plan, problem, tokens, sizes);
  if (!sizes.exceeded() && use.allocated_bytes > 0) {
    use.used_fraction = static_cast<double>(content_bytes(classes, tokens)) /
                        static_cast<double>(use.allocated_bytes);
  }
  return use;
}

/// `plan_pools`; where `sizes` are exceeded, the result is nothing.
inline PoolPlan lay_out_pools(std::span<const LayerClass> classes, const PoolProblem& problem,
                              UnificationStrategy strategy, SizeArithmetic& sizes) {
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
  plan.pages = unify(page_classes, strategy, problem.block_policy, sizes);
  if (sizes.exceeded()) {
    return plan;
  }
  if (strategy != UnificationStrategy::separate_pools) {
    plan.grouping = group_layers(counts);
  }
  count_capacity(plan, classes, problem, sizes);
  for (const std::int64_t length : problem.prompt_lengths) {
    plan.prompts.push_back(prompt_use(classes, plan, problem, length, sizes));
  }
  if (!has_state) {
    plan.prefix_granularity = plan.pages.prefix_granularity;
  } else if (problem.limits.mamba_cache_mode != MambaCacheMode::none) {
    plan.prefix_granularity = sizes.lcm({"prefix granularity", plan.pages.prefix_granularity},
                                        {"state_block_size", state_block(plan, problem)});
  }
  return plan;
}

}  // namespace detail

/// Lays the pages of `classes` out by `strategy` and counts what fits.
///
/// A shared pool counts the padding layers of its groups. Separate pools share the memory in the
/// proportion that a sequence of the whole context needs. States of mode `all` are kept at the page
/// boundaries of the tokens beside them, and every `state_block_size` tokens in a pool of their
/// own. A strategy some of whose pages or sums exceed 64 bits is not available, which is no error:
/// others may be. Deterministic.
/// @throws Error(invalid_argument) for numbers of the problem below 1 and fields of a class outside
/// their domain, which the message names; Error(overflow) for a class whose own page exceeds 64
/// bits
[[nodiscard]] inline PoolPlan plan_pools(std::span<const LayerClass> classes,
                                         const PoolProblem& problem, UnificationStrategy strategy) {
  detail::require_pool_arguments(classes, problem, strategy);
  detail::SizeArithmetic sizes("plan_pools");
  PoolPlan plan = detail::lay_out_pools(classes, problem, strategy, sizes);
  if (sizes.exceeded()) {
    plan = {};
    plan.strategy = strategy;
    plan.available = false;
    plan.unavailable_because = sizes.excess();
  }
  return plan;
}

}  // namespace turboquant
