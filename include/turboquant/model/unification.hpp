#pragma once

#include <turboquant/model/argument_checks.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace turboquant {

/// A kind of page before unification.
struct PageClass {
  std::string name{};
  std::int64_t page_size_bytes = 0;  ///< bytes of a page of `block_size` tokens
  std::int64_t block_size = 1;       ///< tokens
  /// True where a page grows with its tokens (attention); false for a recurrent state, whose bytes
  /// are fixed and which can only be padded.
  bool scales_with_block_size = true;
};

/// How pages of several kinds are made to live together.
enum class UnificationStrategy {
  lcm,             ///< one pool; attention blocks grow until all pages are equal (published)
  padded,          ///< one pool; pages are padded to a multiple of the largest attention page
  separate_pools,  ///< a pool per kind, every page its own size
};

[[nodiscard]] constexpr std::string_view to_string(UnificationStrategy strategy) noexcept {
  switch (strategy) {
    case UnificationStrategy::lcm: return "lcm";
    case UnificationStrategy::padded: return "padded";
    case UnificationStrategy::separate_pools: return "separate_pools";
  }
  return "unknown";
}

/// How `UnificationStrategy::padded` picks the tokens of a padded page.
enum class BlockPolicy {
  fill,                  ///< as many base blocks as fit: least padding
  multiple_of_smallest,  ///< the largest multiple of the smallest block that fits
  smallest,              ///< every class uses the smallest block: finest prefix-cache granularity
};

/// A kind of page after unification.
struct UnifiedPage {
  std::string name{};
  std::int64_t page_size_bytes = 0;  ///< bytes allocated
  std::int64_t padding_bytes = 0;    ///< bytes of a page that hold nothing
  std::int64_t block_size = 1;       ///< tokens; unchanged for fixed-size classes
  /// Original blocks of a page; 0 where a policy cuts the page at no multiple of the original
  /// block.
  std::int64_t scale = 1;
  bool scales_with_block_size = true;

  [[nodiscard]] double padding_fraction() const noexcept {
    return page_size_bytes == 0
               ? 0.0
               : static_cast<double>(padding_bytes) / static_cast<double>(page_size_bytes);
  }
};

/// Result of `unify_pages`.
struct UnifiedPages {
  UnificationStrategy strategy = UnificationStrategy::lcm;
  std::vector<UnifiedPage> classes{};  ///< same order as the input
  /// The common page; absent for separate pools and for an empty input.
  std::optional<std::int64_t> page_size_bytes{};
  /// Tokens at which every attention class has a page boundary: the finest prefix-cache hit.
  std::int64_t prefix_granularity = 1;
  bool unchanged = true;  ///< pages were already equal (or pools are separate)
};

/// Tokens at which blocks of all given sizes end together: their least common multiple.
/// @throws Error(invalid_argument) for a size below 1, Error(overflow) beyond 64 bits.
[[nodiscard]] inline std::int64_t prefix_granularity(std::span<const std::int64_t> block_sizes) {
  std::int64_t common = 1;
  for (const std::int64_t size : block_sizes) {
    detail::require_positive("prefix_granularity", "block size", size);
    common = detail::named_lcm("prefix_granularity", {"the multiple so far", common},
                               {"block size", size});
  }
  return common;
}

namespace detail {

inline void require_page_classes(std::span<const PageClass> classes) {
  for (const PageClass& c : classes) {
    require(c.page_size_bytes > 0, ErrorCode::invalid_argument,
            "unify_pages: page_size_bytes of \"", c.name, "\" is ", c.page_size_bytes,
            ", expected a positive number");
    require(c.block_size > 0, ErrorCode::invalid_argument, "unify_pages: block_size of \"", c.name,
            "\" is ", c.block_size, ", expected a positive number");
  }
}

/// The unit a common page is a multiple of: the LCM, or the largest, of the attention pages.
inline std::int64_t page_unit(std::span<const PageClass> classes, bool use_lcm,
                              SizeArithmetic& sizes) {
  std::int64_t unit = 1;
  for (const PageClass& c : classes) {
    if (c.scales_with_block_size) {
      unit = use_lcm
                 ? sizes.lcm({"the multiple so far", unit}, {"page_size_bytes", c.page_size_bytes})
                 : (std::max)(unit, c.page_size_bytes);
    }
  }
  return unit;
}

inline std::int64_t largest_page(std::span<const PageClass> classes) {
  std::int64_t largest = 0;
  for (const PageClass& c : classes) {
    largest = (std::max)(largest, c.page_size_bytes);
  }
  return largest;
}

/// Tokens of the base blocks that fit a page of `page` bytes.
inline std::int64_t filled_block(const PageClass& c, std::int64_t page, SizeArithmetic& sizes) {
  return sizes.mul({"block_size", c.block_size},
                   {"blocks of a common page", page / c.page_size_bytes});
}

/// The smallest block among the attention classes when each fills a page of `page` bytes.
inline std::int64_t smallest_filled_block(std::span<const PageClass> classes, std::int64_t page,
                                          SizeArithmetic& sizes) {
  std::int64_t smallest = 0;
  for (const PageClass& c : classes) {
    if (c.scales_with_block_size) {
      const std::int64_t block = filled_block(c, page, sizes);
      smallest = smallest == 0 ? block : (std::min)(smallest, block);
    }
  }
  return std::max<std::int64_t>(smallest, 1);
}

/// Bytes that `tokens` tokens of `c` fill. A class whose bytes divide among its tokens can hold any
/// number of them, any other class whole base blocks only.
inline std::int64_t filled_bytes(const PageClass& c, std::int64_t tokens) {
  if (c.page_size_bytes % c.block_size == 0) {
    return named_mul("unify_pages", {"bytes of a token", c.page_size_bytes / c.block_size},
                     {"tokens of a page", tokens});
  }
  require(tokens % c.block_size == 0, ErrorCode::unsupported, "unify_pages: block_size of \"",
          c.name, "\" is ", c.block_size, ", which does not divide the smallest block ", tokens,
          "; use BlockPolicy::fill");
  return named_mul("unify_pages", {"page_size_bytes", c.page_size_bytes},
                   {"blocks of a page", tokens / c.block_size});
}

/// Tokens of `c` in one page of `page` bytes under `policy`.
inline std::int64_t tokens_per_page(const PageClass& c, std::int64_t page, BlockPolicy policy,
                                    std::int64_t smallest, SizeArithmetic& sizes) {
  if (policy == BlockPolicy::fill) {
    return filled_block(c, page, sizes);
  }
  const std::int64_t bytes = filled_bytes(c, smallest);
  return policy == BlockPolicy::smallest
             ? smallest
             : sizes.mul({"smallest block", smallest},
                         {"smallest blocks of a common page", page / bytes});
}

inline bool equal_blocks(std::span<const PageClass> classes) {
  std::int64_t block = 0;
  for (const PageClass& c : classes) {
    if (c.scales_with_block_size) {
      if (block != 0 && c.block_size != block) {
        return false;
      }
      block = c.block_size;
    }
  }
  return true;
}

/// `unify_pages`; what exceeds 64 bits is left to the caller, for whom the result is then nothing.
inline UnifiedPages unify(std::span<const PageClass> classes, UnificationStrategy strategy,
                          BlockPolicy policy, SizeArithmetic& sizes) {
  const std::int64_t largest = largest_page(classes);
  const bool equal = std::all_of(classes.begin(), classes.end(),
                                 [&](const PageClass& c) { return c.page_size_bytes == largest; });
  const bool pools = strategy == UnificationStrategy::separate_pools;
  UnifiedPages result;
  result.strategy = strategy;
  const bool needs_smallest =
      strategy == UnificationStrategy::padded && policy != BlockPolicy::fill;
  result.unchanged = pools || (equal && (!needs_smallest || equal_blocks(classes)));
  std::int64_t page = largest;
  if (!result.unchanged) {
    const std::int64_t unit = page_unit(classes, strategy == UnificationStrategy::lcm, sizes);
    page = sizes.mul({"common page_size_bytes", unit}, {"its multiple", ceil_div(largest, unit)});
  }
  if (!pools && !classes.empty()) {
    result.page_size_bytes = page;
  }
  const std::int64_t smallest =
      needs_smallest && !result.unchanged ? smallest_filled_block(classes, page, sizes) : 1;
  for (const PageClass& c : classes) {
    if (sizes.exceeded()) {
      return result;
    }
    UnifiedPage unified;
    unified.name = c.name;
    unified.scales_with_block_size = c.scales_with_block_size;
    unified.page_size_bytes = pools ? c.page_size_bytes : page;
    unified.block_size = c.block_size;
    unified.padding_bytes = unified.page_size_bytes - c.page_size_bytes;
    if (c.scales_with_block_size && !result.unchanged) {
      const BlockPolicy used = needs_smallest ? policy : BlockPolicy::fill;
      unified.block_size = tokens_per_page(c, page, used, smallest, sizes);
      if (sizes.exceeded()) {
        return result;
      }
      const bool whole = unified.block_size % c.block_size == 0;
      unified.scale = whole ? unified.block_size / c.block_size : 0;
      unified.padding_bytes =
          page - (whole ? c.page_size_bytes * unified.scale : filled_bytes(c, unified.block_size));
    }
    if (c.scales_with_block_size) {
      result.prefix_granularity =
          sizes.lcm({"prefix granularity so far", result.prefix_granularity},
                    {"block_size", unified.block_size});
    }
    result.classes.push_back(std::move(unified));
  }
  return result;
}

}  // namespace detail

/// Makes the pages of `classes` fit one pool (or leaves them in pools of their own).
///
/// `lcm` and `padded` give every class the same page: the smallest multiple of the LCM (of the
/// largest, when padded) of the attention pages that is at least every fixed page. Attention
/// classes change their block size, fixed classes only their padding. An empty input gives an empty
/// result; a set whose pages are equal already is returned unchanged, unless `policy` asks a padded
/// layout for blocks that agree. A policy shortens a block where a token has a whole number of
/// bytes. Host only, O(classes), deterministic.
/// @throws Error(invalid_argument) for sizes below 1, Error(overflow) when a page or block exceeds
///         64 bits, Error(unsupported) when `policy` needs a block that a class cannot have.
[[nodiscard]] inline UnifiedPages unify_pages(std::span<const PageClass> classes,
                                              UnificationStrategy strategy,
                                              BlockPolicy policy = BlockPolicy::fill) {
  detail::require_enumerator("unify_pages", "strategy", strategy,
                             UnificationStrategy::separate_pools, "lcm, padded or separate_pools");
  detail::require_enumerator("unify_pages", "policy", policy, BlockPolicy::smallest,
                             "fill, multiple_of_smallest or smallest");
  detail::require_page_classes(classes);
  detail::SizeArithmetic sizes("unify_pages");
  UnifiedPages result = detail::unify(classes, strategy, policy, sizes);
  sizes.require_fits();
  return result;
}

/// How layers of several kinds are cut into groups of one size, each with its own block table.
struct LayerGrouping {
  std::int64_t group_size = 0;  ///< layers of a group; 0 without layers
  std::int64_t num_groups = 0;
  std::int64_t padding_layers = 0;  ///< group slots that hold no layer
};

/// Cuts `counts[i]` layers of kind i into groups of one size.
///
/// The group size is the greatest common divisor, which wastes nothing, unless that is 1 although
/// every kind has at least two layers: then the size >= 2 with the fewest padding layers is taken,
/// the largest such size on a tie, because single-layer groups mean one block table per layer.
/// Kinds without layers are ignored. O(kinds * largest count), deterministic.
/// @throws Error(invalid_argument) for a negative count or a count above 2^20.
[[nodiscard]] inline LayerGrouping group_layers(std::span<const std::int64_t> counts) {
  constexpr std::int64_t max_layers = 1 << 20;
  std::int64_t divisor = 0;
  std::int64_t least = 0;
  std::int64_t most = 0;
  for (const std::int64_t count : counts) {
    require(count >= 0 && count <= max_layers, ErrorCode::invalid_argument,
            "group_layers: count is ", count, ", expected 0..", max_layers);
    if (count > 0) {
      divisor = std::gcd(divisor, count);
      least = least == 0 ? count : (std::min)(least, count);
      most = (std::max)(most, count);
    }
  }
  LayerGrouping best;
  if (divisor == 0) {
    return best;
  }
  const auto cut = [&](std::int64_t size) {
    LayerGrouping grouping;
    grouping.group_size = size;
    for (const std::int64_t count : counts) {
      grouping.num_groups += ceil_div(count, size);
      grouping.padding_layers += round_up(count, size) - count;
    }
    return grouping;
  };
  best = cut(divisor);
  if (divisor == 1 && least > 1) {
    best = cut(2);
    for (std::int64_t size = 3; size <= most; ++size) {
      const LayerGrouping candidate = cut(size);
      if (candidate.padding_layers <= best.padding_layers) {
        best = candidate;
      }
    }
  }
  return best;
}

/// How much of its pages a sequence of `num_tokens` uses.
struct PageUse {
  std::int64_t num_pages = 0;
  std::int64_t allocated_tokens = 0;
  double used_fraction = 0.0;  ///< of the allocated tokens
};

/// Page use of a sequence of `num_tokens` in blocks of `block_size` tokens.
/// @throws Error(invalid_argument) unless both are positive, Error(overflow) where the last page
/// ends
///         beyond 64 bits.
[[nodiscard]] inline PageUse page_use(std::int64_t num_tokens, std::int64_t block_size) {
  require(num_tokens > 0, ErrorCode::invalid_argument, "page_use: num_tokens is ", num_tokens,
          ", expected a positive number");
  require(block_size > 0, ErrorCode::invalid_argument, "page_use: block_size is ", block_size,
          ", expected a positive number");
  PageUse use;
  use.num_pages = ceil_div(num_tokens, block_size);
  require(use.num_pages <= (std::numeric_limits<std::int64_t>::max)() / block_size,
          ErrorCode::overflow, "page_use: num_tokens is ", num_tokens, " and block_size is ",
          block_size, ", expected a last page that ends below 2^63");
  use.allocated_tokens = use.num_pages * block_size;
  use.used_fraction = static_cast<double>(num_tokens) / static_cast<double>(use.allocated_tokens);
  return use;
}

}  // namespace turboquant
