#pragma once

#include <turboquant/base/message.hpp>
#include <turboquant/model/hybrid_alignment.hpp>
#include <turboquant/model/layer_cache.hpp>
#include <turboquant/model/pool_plan.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace turboquant {

/// What to plan for. Memory and sizes are of one tensor-parallel rank.
struct PlanOptions {
  std::optional<CacheCodec> codec{};  ///< nothing = plan the uncompressed cache
  std::int64_t memory_bytes = 0;      ///< bytes for the caches
  std::int64_t context_tokens = 0;    ///< length of a sequence
  std::int64_t tensor_parallel = 1;
  std::int64_t num_speculative_tokens = 0;
  std::int64_t block_size = 16;        ///< tokens of a page before unification
  std::int64_t kernel_alignment = 16;  ///< block sizes are multiples of this many tokens
  MambaCacheMode mamba_cache_mode = MambaCacheMode::none;
  std::int64_t max_num_batched_tokens = 2048;
  std::vector<std::string> skip_layers{};  ///< absolute indices and names, beside the boundary's
  std::int64_t boundary_layers = 2;        ///< n of `get_boundary_skip_layers`
  BoundaryOptions boundary{};
  /// Codecs of single layers by absolute index, before `codec` and boundary protection.
  std::vector<std::pair<std::int64_t, CacheCodec>> layer_codecs{};
  std::optional<CacheDType> dense_dtype{};  ///< of uncompressed caches; default the model's
  std::optional<std::int64_t> recurrent_state_bytes{};
  std::optional<std::int64_t> mamba_chunk_size{};  ///< default the model's, else 256
  BlockPolicy block_policy = BlockPolicy::fill;
  std::vector<std::int64_t> prompt_lengths{};  ///< tokens; see `PoolPlan::prompts`
  /// Separate pools are recommended only when they save more than this fraction of a shared pool:
  /// their split is fixed in advance for one context length.
  double pools_threshold = 0.02;
};

/// What `plan_cache` found out.
struct CachePlan {
  std::vector<LayerCache> caches{};  ///< one per layer
  std::vector<LayerClass> classes{};
  SkipList skip{};                   ///< user's entries and boundary protection
  std::vector<std::string> notes{};  ///< what the plan took for granted
  std::array<PoolPlan, 3> pools{};   ///< lcm, padded, separate_pools
  UnificationStrategy recommended = UnificationStrategy::lcm;
  std::string reason{};  ///< why it is recommended, with numbers
  PoolPlan baseline{};   ///< the uncompressed cache under its own best strategy
  std::int64_t num_layers = 0;
  std::int64_t num_compressed_layers = 0;  ///< layers that own a compressed cache or read one
  std::int64_t kv_bytes = 0;               ///< token caches of one sequence, without page rounding
  std::int64_t dense_kv_bytes = 0;         ///< the same uncompressed
  std::int64_t state_bytes = 0;  ///< recurrent states of one sequence, speculative ones among them

  [[nodiscard]] const PoolPlan& pool(UnificationStrategy strategy) const {
    detail::require_enumerator("CachePlan::pool", "strategy", strategy,
                               UnificationStrategy::separate_pools,
                               "lcm, padded or separate_pools");
    return pools[static_cast<std::size_t>(strategy)];
  }
  /// How many times smaller the token caches are, model-wide; 1 where there are none.
  [[nodiscard]] double kv_ratio() const noexcept {
    return kv_bytes == 0 ? 1.0
                         : static_cast<double>(dense_kv_bytes) / static_cast<double>(kv_bytes);
  }
  /// The same with the recurrent states, which stay as they are.
  [[nodiscard]] double total_ratio() const noexcept {
    const double ours = static_cast<double>(kv_bytes) + static_cast<double>(state_bytes);
    const double dense = static_cast<double>(dense_kv_bytes) + static_cast<double>(state_bytes);
    return ours > 0.0 ? dense / ours : 1.0;
  }
  /// For example "compresses 10 of 40 layers; KV 4.45x; total with recurrent state 1.45x";
  /// "no attention cache" stands for the KV ratio of a model without one.
  [[nodiscard]] std::string summary() const {
    std::string text = "compresses " + std::to_string(num_compressed_layers) + " of " +
                       std::to_string(num_layers) + " layers; ";
    text += kv_bytes > 0 ? "KV " + detail::fixed_point(kv_ratio(), 2) + "x" : "no attention cache";
    if (state_bytes > 0) {
      text += "; total with recurrent state " + detail::fixed_point(total_ratio(), 2) + "x";
    }
    return text;
  }
};

namespace detail {

inline std::string percent(double fraction) {
  return fixed_point(100.0 * fraction, 1) + " %";
}

inline std::array<PoolPlan, 3> plan_all_pools(std::span<const LayerClass> classes,
                                              const PoolProblem& problem) {
  return {plan_pools(classes, problem, UnificationStrategy::lcm),
          plan_pools(classes, problem, UnificationStrategy::padded),
          plan_pools(classes, problem, UnificationStrategy::separate_pools)};
}

/// The shared pool with fewer bytes, or with the finer prefix granularity where bytes differ by
/// less than `threshold`; the one that is available, if only one is.
inline const PoolPlan& better_shared_pool(const PoolPlan& lcm, const PoolPlan& padded,
                                          double threshold) {
  if (!lcm.available || !padded.available) {
    return lcm.available ? lcm : padded;
  }
  const std::int64_t finer = padded.pages.prefix_granularity - lcm.pages.prefix_granularity;
  const double allowance = finer < 0 ? 1.0 - threshold : finer > 0 ? 1.0 + threshold : 1.0;
  const bool use_lcm = lcm.pages.unchanged ||
                       lcm.mean_bytes_per_sequence <= padded.mean_bytes_per_sequence * allowance;
  return use_lcm ? lcm : padded;
}

inline std::string describe_pool(const PoolPlan& plan) {
  if (!plan.available) {
    return std::string(to_string(plan.strategy)) + ": not available, " + plan.unavailable_because;
  }
  std::string text = std::string(to_string(plan.strategy)) + ": " +
                     std::to_string(static_cast<std::int64_t>(plan.mean_bytes_per_sequence)) +
                     " bytes a sequence on average, " + percent(plan.waste) +
                     " waste at full length";
  if (plan.pages.page_size_bytes) {
    text += ", pages of " + std::to_string(*plan.pages.page_size_bytes);
  }
  if (plan.prefix_granularity) {
    text += ", prefix hits every " + std::to_string(*plan.prefix_granularity) + " tokens";
  }
  return text;
}

/// The better shared pool; separate pools where they save more than `threshold` of it, or alone are
/// available.
/// @throws Error(overflow) where no strategy is available for the caches that `which` names
inline UnificationStrategy best_strategy(const std::array<PoolPlan, 3>& pools, double threshold,
                                         std::string_view which) {
  const PoolPlan& shared = better_shared_pool(pools[0], pools[1], threshold);
  const PoolPlan& separate = pools[2];
  require(shared.available || separate.available, ErrorCode::overflow, "plan_cache: the ", which,
          " cache has no layout: ", describe_pool(pools[0]), "; ", describe_pool(pools[1]), "; ",
          describe_pool(pools[2]));
  const bool saves = separate.available &&
                     (!shared.available || separate.mean_bytes_per_sequence <
                                               shared.mean_bytes_per_sequence * (1.0 - threshold));
  return saves ? UnificationStrategy::separate_pools : shared.strategy;
}

inline std::string recommendation(const std::array<PoolPlan, 3>& pools, UnificationStrategy chosen,
                                  double threshold) {
  std::string text;
  if (pools[0].available && pools[0].pages.unchanged) {
    text = "all pages are equal already, nothing has to be unified";
  } else if (std::count_if(pools.begin(), pools.end(),
                           [](const PoolPlan& plan) { return plan.available; }) == 1) {
    text = "only " + std::string(to_string(chosen)) + " is available";
  } else if (chosen == UnificationStrategy::separate_pools) {
    text = "separate pools save more than " + percent(threshold) + " of the best shared pool";
  } else {
    text = std::string(to_string(chosen)) +
           " is the best shared pool (bytes, then prefix granularity within " + percent(threshold) +
           "), and separate pools save no more than that";
  }
  for (const PoolPlan& plan : pools) {
    text += "; " + describe_pool(plan);
  }
  return text;
}

inline void require_compressed(const ModelConfig& model, const PlanOptions& options,
                               std::int64_t num_compressed) {
  if (!options.codec || num_compressed > 0) {
    return;
  }
  std::string_view why =
      "every full-attention layer is skipped, by skip_layers or the boundary protection of "
      "boundary_layers";
  if (model.attention_presence() == AttentionPresence::none) {
    why = "the model has no attention layer";
  } else if (model.attention_presence() == AttentionPresence::windowed_only) {
    why =
        "every attention layer keeps only a window shorter than context_tokens, which stays exact";
  } else if (model.mla) {
    why = "its full attention caches latents, which these codecs do not compress";
  }
  fail(ErrorCode::unsupported, "plan_cache: ", options.codec->name, " compresses no layer of ",
       model.num_layers(), ": ", why);
}

/// Refuses every option outside its domain, whether or not the model has a use for it.
inline void require_options(const PlanOptions& options) {
  constexpr std::string_view where = "plan_cache";
  constexpr std::int64_t max_tokens = std::int64_t{1} << 32;
  constexpr std::int64_t max_count = 1 << 20;
  require_between(where, "memory_bytes", options.memory_bytes, 1, std::int64_t{1} << 60);
  require_between(where, "context_tokens", options.context_tokens, 1, max_tokens,
                  ErrorCode::out_of_range);
  require_between(where, "max_num_batched_tokens", options.max_num_batched_tokens, 1, max_tokens);
  require_between(where, "tensor_parallel", options.tensor_parallel, 1, max_count);
  require_between(where, "num_speculative_tokens", options.num_speculative_tokens, 0, max_count);
  require_between(where, "kernel_alignment", options.kernel_alignment, 1, max_count);
  require_between(where, "block_size", options.block_size, 1, max_count);
  require_between(where, "mamba_chunk_size", options.mamba_chunk_size.value_or(1), 1, max_count);
  require_between(where, "recurrent_state_bytes", options.recurrent_state_bytes.value_or(1), 1,
                  std::int64_t{1} << 40);
  for (const std::int64_t length : options.prompt_lengths) {
    require_between(where, "prompt length", length, 1, max_tokens);
  }
  require_cache_mode(where, options.mamba_cache_mode);
  require_enumerator(where, "block_policy", options.block_policy, BlockPolicy::smallest,
                     "fill, multiple_of_smallest or smallest");
  require_enumerator(where, "dense_dtype", options.dense_dtype.value_or(CacheDType::bfloat16),
                     CacheDType::int8, "float32, float16, bfloat16, float8_e4m3 or int8");
  require(options.block_size % options.kernel_alignment == 0, ErrorCode::invalid_argument,
          "plan_cache: block_size is ", options.block_size,
          ", expected a multiple of kernel_alignment = ", options.kernel_alignment);
  require(options.pools_threshold >= 0.0 && options.pools_threshold < 1.0,
          ErrorCode::invalid_argument, "plan_cache: pools_threshold is ", options.pools_threshold,
          ", expected 0 <= x < 1");
}

/// Tokens between kept states when they live in a pool of their own: those whose bytes hold a
/// state, or where no tokens are kept, one block of `block_size` tokens.
inline std::int64_t own_state_block(const std::vector<LayerClass>& classes,
                                    const PlanOptions& options, std::int64_t chunk,
                                    std::int64_t block_size) {
  std::int64_t state = 0;
  std::int64_t per_token = 0;
  for (const LayerClass& c : classes) {
    state = (std::max)(state, c.state_bytes);
    per_token = (std::max)(per_token, c.bytes_per_token);
  }
  if (state == 0 || per_token == 0) {
    return block_size;
  }
  HybridAlignmentProblem problem;
  problem.bytes_per_token = per_token;
  problem.mamba_page_size_bytes = state;
  problem.kernel_alignment = options.kernel_alignment;
  problem.mamba_cache_mode = options.mamba_cache_mode;
  problem.mamba_chunk_size = chunk;
  problem.block_size = block_size;
  return align_hybrid_pages(problem).block_size;
}

}  // namespace detail

/// Plans the cache of `model`: which layers compress, what pages cost, what fits, what is wasted.
///
/// A layer whose window holds the whole context is planned as full attention. A codec of
/// `layer_codecs` goes before boundary protection; a layer of `skip_layers` may not have one.
/// All three unification strategies are computed and one is recommended, by the bytes allocated for
/// a sequence averaged over lengths up to the context, then by prefix granularity. Ratios compare
/// with the same model uncompressed, counting window and state as they are. A strategy whose sizes
/// exceed 64 bits is not available; the others are planned all the same. O(layers), deterministic.
/// Limits: 2^60 bytes of memory, 2^32 tokens of context, step and prompts, 2^40 bytes of a state,
/// 2^20 for every other size and count.
/// @throws Error(invalid_argument | out_of_range | overflow) for options outside their domain and
/// for a model that `assign_layer_caches` refuses, Error(overflow) where no strategy is available,
/// Error(unsupported) when a codec is given and no layer can use it.
[[nodiscard]] inline CachePlan plan_cache(const ModelConfig& model, const PlanOptions& options) {
  detail::require_options(options);
  detail::require_model("plan_cache", model);
  ModelConfig planned = model;
  const std::int64_t widened = widen_windows(planned, options.context_tokens);
  const std::int64_t chunk = options.mamba_chunk_size.value_or(
      planned.recurrent && planned.recurrent->chunk_size ? *planned.recurrent->chunk_size : 256);
  detail::require_between("plan_cache", "mamba_chunk_size", chunk, 1, 1 << 20);

  CachePlan plan;
  plan.num_layers = planned.num_layers();
  if (widened > 0) {
    plan.notes.push_back(std::to_string(widened) + " layers have a window of at least " +
                         std::to_string(options.context_tokens) +
                         " tokens, the context: full attention");
  }
  const auto chunked = std::count_if(
      planned.layers.begin(), planned.layers.end(),
      [](const LayerConfig& layer) { return layer.attention == AttentionKind::chunked; });
  if (chunked > 0) {
    plan.notes.push_back(std::to_string(chunked) +
                         " layers have chunked attention: planned as a window of a chunk; the "
                         "library computes attention over sliding windows only");
  }
  plan.skip = merge_skip_layers(options.skip_layers);
  LayerCacheOptions cache_options;
  cache_options.codec = options.codec;
  cache_options.layer_codecs = options.layer_codecs;
  cache_options.block_size = options.block_size;
  if (options.mamba_cache_mode == MambaCacheMode::all && planned.is_hybrid()) {
    cache_options.block_size =
        round_up(options.block_size, checked_lcm(chunk, options.kernel_alignment));
  }
  cache_options.tensor_parallel = options.tensor_parallel;
  cache_options.num_speculative_tokens = options.num_speculative_tokens;
  cache_options.dense_dtype = options.dense_dtype;
  cache_options.recurrent_state_bytes = options.recurrent_state_bytes;
  // A user's entry must name a layer with attention; boundary protection skips what it finds.
  static_cast<void>(detail::skipped_owners(planned, plan.skip));
  std::vector<std::int64_t> boundary;
  for (const std::int64_t layer :
       get_boundary_skip_layers(planned, options.boundary_layers, options.boundary)) {
    const bool has_codec = std::any_of(options.layer_codecs.begin(), options.layer_codecs.end(),
                                       [&](const auto& entry) { return entry.first == layer; });
    if (planned.layers[static_cast<std::size_t>(layer)].attention != AttentionKind::none &&
        !has_codec) {
      boundary.push_back(layer);
    }
  }
  plan.skip = merge_skip_layers(options.skip_layers, boundary);
  cache_options.skip = plan.skip;
  plan.caches = assign_layer_caches(planned, cache_options);
  plan.classes = classify_layers(plan.caches);
  for (std::int64_t i = 0; i < planned.num_layers(); ++i) {
    const auto owner = static_cast<std::size_t>(planned.cache_owner(i));
    plan.num_compressed_layers +=
        std::holds_alternative<TQFullAttentionSpec>(plan.caches[owner].attention) ? 1 : 0;
  }
  detail::require_compressed(planned, options, plan.num_compressed_layers);
  require(!plan.classes.empty(), ErrorCode::unsupported, "plan_cache: none of ",
          planned.num_layers(), " layers keeps a cache");

  PoolProblem problem;
  problem.memory_bytes = options.memory_bytes;
  problem.limits = {options.context_tokens, options.max_num_batched_tokens,
                    options.mamba_cache_mode};
  problem.block_policy = options.block_policy;
  problem.prompt_lengths = options.prompt_lengths;
  problem.state_block_size =
      detail::own_state_block(plan.classes, options, chunk, cache_options.block_size);
  plan.pools = detail::plan_all_pools(plan.classes, problem);
  plan.recommended = detail::best_strategy(plan.pools, options.pools_threshold, "planned");
  plan.reason = detail::recommendation(plan.pools, plan.recommended, options.pools_threshold);

  cache_options.codec.reset();
  cache_options.layer_codecs.clear();
  cache_options.skip = {};
  const std::vector<LayerClass> dense =
      classify_layers(assign_layer_caches(planned, cache_options));
  problem.state_block_size =
      detail::own_state_block(dense, options, chunk, cache_options.block_size);
  const std::array<PoolPlan, 3> dense_pools = detail::plan_all_pools(dense, problem);
  plan.baseline = dense_pools.at(static_cast<std::size_t>(
      detail::best_strategy(dense_pools, options.pools_threshold, "uncompressed")));

  for (const LayerClass& c : plan.classes) {
    std::int64_t& sum = c.is_state() ? plan.state_bytes : plan.kv_bytes;
    sum = detail::named_add(
        "plan_cache", {"bytes of earlier classes", sum},
        {"bytes of this one", detail::content_bytes({&c, 1}, options.context_tokens)});
  }
  plan.dense_kv_bytes = detail::content_bytes(dense, options.context_tokens) - plan.state_bytes;
  return plan;
}

}  // namespace turboquant
