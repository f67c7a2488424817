#pragma once

#include <turboquant/model/page_spec.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace turboquant {

/// The family of a recurrent layer, which decides the shapes of its state.
enum class RecurrentKind {
  gated_delta_net,    ///< Qwen3-Next, Qwen3.5: one convolution over q, k, v + (heads, dv, dk)
  kimi_delta,         ///< Kimi Linear: three convolutions + (heads, d, d)
  mamba1,             ///< convolution + (inner, state)
  mamba2,             ///< convolution over x, B, C + (heads, head_dim, state)
  lightning,          ///< MiniMax linear attention: (heads, d, d), no convolution
  short_convolution,  ///< LFM2: convolution only
  rg_lru,             ///< RecurrentGemma: convolution + (inner)
  rwkv4,  ///< RWKV 4: the last token's row twice, three running sums of (state), or (inner)
};

/// Sizes from which the state of one recurrent layer follows. Unused ones stay 0.
struct RecurrentGeometry {
  RecurrentKind kind = RecurrentKind::mamba2;
  std::int64_t num_heads = 0;       ///< value heads or state heads
  std::int64_t num_key_heads = 0;   ///< gated delta net
  std::int64_t key_head_dim = 0;    ///< gated delta net, kimi_delta, lightning
  std::int64_t value_head_dim = 0;  ///< gated delta net; head width of mamba2
  std::int64_t inner_size = 0;   ///< channels of mamba1, mamba2, short_convolution, rg_lru, rwkv4
  std::int64_t num_groups = 0;   ///< mamba2; 0 = no B and C in the convolution
  std::int64_t state_size = 0;   ///< mamba1, mamba2; width of rwkv4's sums, 0 = inner_size
  std::int64_t conv_kernel = 0;  ///< taps of the convolution
  CacheDType conv_dtype = CacheDType::bfloat16;
  CacheDType state_dtype = CacheDType::bfloat16;
  std::optional<std::int64_t>
      chunk_size{};  ///< tokens of one scan chunk, where the model states it
};

/// How a recurrent state is split and extended.
struct RecurrentStateOptions {
  std::int64_t tensor_parallel = 1;
  std::int64_t num_speculative_tokens = 0;  ///< rows added to every convolution window
  std::int64_t block_size = 1;              ///< tokens between kept states
};

namespace detail {

/// `total` divided among ranks.
inline std::int64_t per_rank(std::string_view field, std::int64_t total, std::int64_t ranks) {
  require(total > 0, ErrorCode::invalid_argument, "recurrent_state_spec: ", field, " is ", total,
          ", expected a positive number");
  require(ranks > 0 && total % ranks == 0, ErrorCode::invalid_argument,
          "recurrent_state_spec: ", field, " is ", total,
          ", expected a multiple of tensor_parallel = ", ranks);
  return total / ranks;
}

}  // namespace detail

/// The state of one recurrent layer on one rank.
///
/// Convolution windows hold `conv_kernel - 1 + num_speculative_tokens` rows. mamba2 groups that the
/// ranks cannot share are replicated. With speculative tokens the spec asks for one state block
/// more per token. O(1), deterministic.
/// @throws Error(invalid_argument) for a missing size, one that the ranks do not divide, and a
/// mamba2 inner size that is not that of its heads; Error(overflow) beyond 64 bits.
[[nodiscard]] inline MambaSpec recurrent_state_spec(const RecurrentGeometry& geometry,
                                                    const RecurrentStateOptions& options = {}) {
  constexpr std::string_view caller = "recurrent_state_spec";
  const std::int64_t ranks = options.tensor_parallel;
  detail::require_positive(caller, "tensor_parallel", ranks);
  detail::require_positive(caller, "block_size", options.block_size);
  detail::require_not_negative(caller, "num_speculative_tokens", options.num_speculative_tokens);
  detail::require_enumerator(caller, "kind", geometry.kind, RecurrentKind::rwkv4,
                             "a RecurrentKind");
  MambaSpec spec;
  spec.block_size = options.block_size;
  spec.num_speculative_blocks = options.num_speculative_tokens;
  const auto add_convolution = [&](std::int64_t channels) {
    require(geometry.conv_kernel > 1, ErrorCode::invalid_argument, caller, ": conv_kernel is ",
            geometry.conv_kernel, ", expected at least 2");
    const std::int64_t rows =
        detail::named_add(caller, {"conv_kernel - 1", geometry.conv_kernel - 1},
                          {"num_speculative_tokens", options.num_speculative_tokens});
    spec.arrays.push_back({{rows, channels}, geometry.conv_dtype});
  };
  const auto share = [&](std::string_view field, std::int64_t total) {
    return detail::per_rank(field, total, ranks);
  };
  const auto size_of = [&](std::string_view field, std::int64_t size) {
    detail::require_positive(caller, field, size);
    return size;
  };
  const auto add_state = [&](std::vector<std::int64_t> shape) {
    spec.arrays.push_back({std::move(shape), geometry.state_dtype});
  };
  switch (geometry.kind) {
    case RecurrentKind::gated_delta_net: {
      const std::int64_t heads = share("num_heads", geometry.num_heads);
      const std::int64_t key_heads = share("num_key_heads", geometry.num_key_heads);
      const std::int64_t key_dim = size_of("key_head_dim", geometry.key_head_dim);
      const std::int64_t value_dim = size_of("value_head_dim", geometry.value_head_dim);
      const std::int64_t keys =
          detail::named_mul(caller, {"num_key_heads", key_heads}, {"key_head_dim", key_dim});
      const std::int64_t values =
          detail::named_mul(caller, {"num_heads", heads}, {"value_head_dim", value_dim});
      add_convolution(detail::named_add(
          caller,
          {"channels of queries and keys",
           detail::named_mul(caller, {"their number", 2}, {"channels of keys", keys})},
          {"channels of values", values}));
      add_state({heads, value_dim, key_dim});
      break;
    }
    case RecurrentKind::kimi_delta: {
      const std::int64_t heads = share("num_heads", geometry.num_heads);
      const std::int64_t dim = size_of("key_head_dim", geometry.key_head_dim);
      for (int i = 0; i < 3; ++i) {
        add_convolution(detail::named_mul(caller, {"num_heads", heads}, {"key_head_dim", dim}));
      }
      add_state({heads, dim, dim});
      break;
    }
    case RecurrentKind::mamba1: {
      const std::int64_t inner = share("inner_size", geometry.inner_size);
      add_convolution(inner);
      add_state({inner, size_of("state_size", geometry.state_size)});
      break;
    }
    case RecurrentKind::mamba2: {
      detail::require_not_negative(caller, "num_groups", geometry.num_groups);
      const std::int64_t width = size_of("value_head_dim", geometry.value_head_dim);
      const std::int64_t state = size_of("state_size", geometry.state_size);
      const std::int64_t inner = share("inner_size", geometry.inner_size);
      const std::int64_t heads = share("num_heads", geometry.num_heads);
      require(inner == detail::named_mul(caller, {"num_heads", heads}, {"value_head_dim", width}),
              ErrorCode::invalid_argument, caller, ": inner_size is ", geometry.inner_size,
              ", expected num_heads x value_head_dim = ", geometry.num_heads, " x ", width);
      const std::int64_t groups = ceil_div(geometry.num_groups, ranks);
      const std::int64_t one =
          detail::named_mul(caller, {"groups of a rank", groups}, {"state_size", state});
      add_convolution(detail::named_add(
          caller, {"inner_size", inner},
          {"channels of B and C",
           detail::named_mul(caller, {"their number", 2}, {"channels of B", one})}));
      add_state({heads, width, state});
      break;
    }
    case RecurrentKind::lightning: {
      const std::int64_t dim = size_of("key_head_dim", geometry.key_head_dim);
      add_state({share("num_heads", geometry.num_heads), dim, dim});
      break;
    }
    case RecurrentKind::short_convolution:
      add_convolution(share("inner_size", geometry.inner_size));
      break;
    case RecurrentKind::rg_lru: {
      const std::int64_t inner = share("inner_size", geometry.inner_size);
      add_convolution(inner);
      add_state({inner});
      break;
    }
    case RecurrentKind::rwkv4: {
      // Rows are read whole by every rank.
      const std::int64_t inner = share("inner_size", geometry.inner_size);
      spec.arrays.push_back({{2, geometry.inner_size}, geometry.conv_dtype});
      add_state({3, geometry.state_size == 0 ? inner : share("state_size", geometry.state_size)});
      break;
    }
  }
  static_cast<void>(spec.page_size_bytes());
  return spec;
}

}  // namespace turboquant
