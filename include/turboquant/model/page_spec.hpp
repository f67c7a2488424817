#pragma once

#include <turboquant/model/argument_checks.hpp>
#include <turboquant/model/cache_dtype.hpp>
#include <turboquant/model/presets.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace turboquant {

/// When recurrent states are kept for prefix caching.
enum class MambaCacheMode {
  none,   ///< only the running state
  align,  ///< the running state and the one at the last block boundary
  all,    ///< a state at every block boundary
};

[[nodiscard]] constexpr std::string_view to_string(MambaCacheMode mode) noexcept {
  switch (mode) {
    case MambaCacheMode::none: return "none";
    case MambaCacheMode::align: return "align";
    case MambaCacheMode::all: return "all";
  }
  return "unknown";
}

/// What one sequence may occupy.
struct SequenceLimits {
  std::int64_t max_model_len = 0;              ///< tokens of context
  std::int64_t max_num_batched_tokens = 2048;  ///< tokens one step may add
  MambaCacheMode mamba_cache_mode = MambaCacheMode::none;
};

namespace detail {

inline void require_cache_mode(std::string_view where, MambaCacheMode mode) {
  require_enumerator(where, "mamba_cache_mode", mode, MambaCacheMode::all, "none, align or all");
}

inline std::int64_t padded_page(std::string_view where, std::int64_t content,
                                std::optional<std::int64_t> padded) {
  require(!padded || *padded >= content, ErrorCode::invalid_argument, where,
          ": page_size_padded is ", padded.value_or(0), ", expected at least the page's own ",
          content, " bytes");
  return padded.value_or(content);
}

inline void require_limits(std::string_view where, const SequenceLimits& limits) {
  require_positive(where, "max_model_len", limits.max_model_len);
  require_positive(where, "max_num_batched_tokens", limits.max_num_batched_tokens);
  require_cache_mode(where, limits.mamba_cache_mode);
}

/// Bytes of the keys and values of one token, uncompressed.
inline std::int64_t dense_token_bytes(std::string_view where, std::int64_t num_kv_heads,
                                      std::int64_t head_size, std::int64_t head_size_v,
                                      CacheDType dtype) {
  constexpr std::int64_t max_width = std::int64_t{1} << 40;
  require_positive(where, "num_kv_heads", num_kv_heads);
  require_between(where, "head_size", head_size, 1, max_width);
  require_between(where, "head_size_v", head_size_v, 0, max_width);
  const std::int64_t head_bytes = (head_size + head_size_v) * dtype_size_bytes(dtype);
  return named_mul(where, {"num_kv_heads", num_kv_heads}, {"bytes of a head", head_bytes});
}

/// Bytes of a page of `block_size` tokens.
inline std::int64_t page_bytes(std::string_view where, std::int64_t block_size,
                               std::int64_t bytes_per_token) {
  require_positive(where, "block_size", block_size);
  return named_mul(where, {"block_size", block_size}, {"bytes of a token", bytes_per_token});
}

/// Bytes of the pages of a whole context.
inline std::int64_t context_bytes(std::string_view where, const SequenceLimits& limits,
                                  std::int64_t block_size, std::int64_t page) {
  require_limits(where, limits);
  const std::int64_t blocks = ceil_div(limits.max_model_len, block_size);
  return named_mul(where, {"blocks of max_model_len", blocks}, {"page_size_bytes", page});
}

/// States of one sequence beside the speculative ones: the running one (mode `none`), also the one
/// at the last boundary (`align`), or one a block (`all`).
inline std::int64_t kept_states(MambaCacheMode mode, std::int64_t tokens, std::int64_t block_size) {
  switch (mode) {
    case MambaCacheMode::none: return 1;
    case MambaCacheMode::align: return 2;
    case MambaCacheMode::all: break;
  }
  return ceil_div(tokens, block_size);
}

inline std::string field_text(std::optional<std::int64_t> value) {
  return value ? std::to_string(*value) : "none";
}

template <class Spec>
Spec merge_specs(std::span<const Spec> specs) {
  require(!specs.empty(), ErrorCode::invalid_argument, Spec::spec_name,
          "::merge: specs is empty, expected at least one");
  const std::vector<SpecField> expected = specs.front().fields();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    static_cast<void>(specs[i].page_size_bytes());
    const std::vector<SpecField> actual = specs[i].fields();
    require(actual.size() == expected.size(), ErrorCode::shape_mismatch, Spec::spec_name,
            "::merge: spec ", i, " has ", actual.size(), " fields, expected ", expected.size());
    for (std::size_t f = 0; f < expected.size(); ++f) {
      require(actual[f].value == expected[f].value, ErrorCode::shape_mismatch, Spec::spec_name,
              "::merge: ", expected[f].name, " of spec ", i, " is ", actual[f].value, ", expected ",
              expected[f].value, " as in spec 0");
    }
  }
  return specs.front();
}

}  // namespace detail

/// Uncompressed attention over the whole history.
///
/// page = block_size * num_kv_heads * (head_size + head_size_v) * element bytes.
struct FullAttentionSpec {
  static constexpr std::string_view spec_name = "FullAttentionSpec";

  std::int64_t block_size = 16;  ///< tokens of one page
  std::int64_t num_kv_heads = 0;
  std::int64_t head_size = 0;
  std::optional<std::int64_t> head_size_v{};  ///< value width where it differs from `head_size`
  CacheDType dtype = CacheDType::bfloat16;
  std::optional<std::int64_t>
      page_size_padded{};  ///< bytes allocated per page, if more than needed

  /// Bytes of one token. @throws Error(invalid_argument | overflow).
  [[nodiscard]] std::int64_t bytes_per_token() const {
    detail::require_positive(spec_name, "head_size_v", head_size_v.value_or(1));
    return detail::dense_token_bytes(spec_name, num_kv_heads, head_size,
                                     head_size_v.value_or(head_size), dtype);
  }
  /// Bytes a page needs.
  [[nodiscard]] std::int64_t real_page_size_bytes() const {
    return detail::page_bytes(spec_name, block_size, bytes_per_token());
  }
  /// Bytes a page occupies: `page_size_padded` where it is set.
  [[nodiscard]] std::int64_t page_size_bytes() const {
    return detail::padded_page(spec_name, real_page_size_bytes(), page_size_padded);
  }
  /// Bytes of a sequence of `limits.max_model_len` tokens.
  [[nodiscard]] std::int64_t max_memory_usage_bytes(const SequenceLimits& limits) const {
    return detail::context_bytes(spec_name, limits, block_size, page_size_bytes());
  }
  [[nodiscard]] std::vector<detail::SpecField> fields() const {
    return {{"block_size", std::to_string(block_size)},
            {"num_kv_heads", std::to_string(num_kv_heads)},
            {"head_size", std::to_string(head_size)},
            {"head_size_v", std::to_string(head_size_v.value_or(head_size))},
            {"dtype", std::string(to_string(dtype))},
            {"page_size_padded", detail::field_text(page_size_padded)}};
  }
  /// The common spec of one cache group.
  /// @throws Error(shape_mismatch) naming the first field that differs.
  [[nodiscard]] static FullAttentionSpec merge(std::span<const FullAttentionSpec> specs) {
    return detail::merge_specs(specs);
  }
};

/// TurboQuant-compressed attention over the whole history.
///
/// page = block_size * num_kv_heads * slot_size_aligned.
struct TQFullAttentionSpec {
  static constexpr std::string_view spec_name = "TQFullAttentionSpec";

  std::int64_t block_size = 16;  ///< tokens of one page
  std::int64_t num_kv_heads = 0;
  TurboQuantConfig config;  ///< codec and head sizes; the only source of the slot size
  std::optional<std::int64_t> page_size_padded{};

  [[nodiscard]] std::int64_t tq_slot_size() const { return config.slot_size_aligned(); }
  [[nodiscard]] std::int64_t bytes_per_token() const {
    detail::require_positive(spec_name, "num_kv_heads", num_kv_heads);
    return detail::named_mul(spec_name, {"num_kv_heads", num_kv_heads},
                             {"tq_slot_size", tq_slot_size()});
  }
  [[nodiscard]] std::int64_t real_page_size_bytes() const {
    return detail::page_bytes(spec_name, block_size, bytes_per_token());
  }
  [[nodiscard]] std::int64_t page_size_bytes() const {
    return detail::padded_page(spec_name, real_page_size_bytes(), page_size_padded);
  }
  [[nodiscard]] std::int64_t max_memory_usage_bytes(const SequenceLimits& limits) const {
    return detail::context_bytes(spec_name, limits, block_size, page_size_bytes());
  }
  [[nodiscard]] std::vector<detail::SpecField> fields() const {
    std::vector<detail::SpecField> all = config.fields();
    all.push_back({"block_size", std::to_string(block_size)});
    all.push_back({"num_kv_heads", std::to_string(num_kv_heads)});
    all.push_back({"page_size_padded", detail::field_text(page_size_padded)});
    return all;
  }
  [[nodiscard]] static TQFullAttentionSpec merge(std::span<const TQFullAttentionSpec> specs) {
    return detail::merge_specs(specs);
  }
};

/// Uncompressed attention over the newest `sliding_window` tokens, or over those of the current
/// chunk of so many tokens, which bounds what is kept in the same way.
struct SlidingWindowSpec {
  static constexpr std::string_view spec_name = "SlidingWindowSpec";

  std::int64_t block_size = 16;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_size = 0;
  std::optional<std::int64_t> head_size_v{};
  CacheDType dtype = CacheDType::bfloat16;
  std::int64_t sliding_window = 0;  ///< tokens
  std::optional<std::int64_t> page_size_padded{};
  bool chunked = false;  ///< a query sees the tokens of its own chunk, not the newest ones

  [[nodiscard]] FullAttentionSpec as_full() const {
    return {block_size, num_kv_heads, head_size, head_size_v, dtype, page_size_padded};
  }
  [[nodiscard]] std::int64_t bytes_per_token() const {
    detail::require_positive(spec_name, "head_size_v", head_size_v.value_or(1));
    return detail::dense_token_bytes(spec_name, num_kv_heads, head_size,
                                     head_size_v.value_or(head_size), dtype);
  }
  [[nodiscard]] std::int64_t real_page_size_bytes() const {
    detail::require_positive(spec_name, "sliding_window", sliding_window);
    return detail::page_bytes(spec_name, block_size, bytes_per_token());
  }
  [[nodiscard]] std::int64_t page_size_bytes() const {
    return detail::padded_page(spec_name, real_page_size_bytes(), page_size_padded);
  }
  /// Tokens that may be resident: the window plus one step's tokens, at most the whole context.
  [[nodiscard]] std::int64_t resident_tokens(const SequenceLimits& limits) const {
    detail::require_limits(spec_name, limits);
    detail::require_positive(spec_name, "sliding_window", sliding_window);
    const std::int64_t newest =
        detail::named_add(spec_name, {"sliding_window", sliding_window},
                          {"max_num_batched_tokens", limits.max_num_batched_tokens});
    return (std::min)(newest - 1, limits.max_model_len);
  }
  /// One page more than the resident tokens fill, because the window need not start on a page.
  [[nodiscard]] std::int64_t max_memory_usage_bytes(const SequenceLimits& limits) const {
    const std::int64_t page = page_size_bytes();
    const std::int64_t blocks = detail::named_add(
        spec_name, {"filled blocks of the window", ceil_div(resident_tokens(limits), block_size)},
        {"blocks more", 1});
    return detail::named_mul(spec_name, {"blocks of the window", blocks},
                             {"page_size_bytes", page});
  }
  [[nodiscard]] std::vector<detail::SpecField> fields() const {
    std::vector<detail::SpecField> all = as_full().fields();
    all.push_back({"sliding_window", std::to_string(sliding_window)});
    all.push_back({"chunked", chunked ? "true" : "false"});
    return all;
  }
  [[nodiscard]] static SlidingWindowSpec merge(std::span<const SlidingWindowSpec> specs) {
    return detail::merge_specs(specs);
  }
};

/// Multi-head latent attention: one latent per token serves as key and value.
///
/// page = block_size * num_kv_heads * head_size * element bytes, head_size = latent + rope width.
struct MLAAttentionSpec {
  static constexpr std::string_view spec_name = "MLAAttentionSpec";

  std::int64_t block_size = 16;
  std::int64_t num_kv_heads = 1;
  std::int64_t head_size = 0;  ///< kv_lora_rank + qk_rope_head_dim
  CacheDType dtype = CacheDType::bfloat16;
  std::optional<std::int64_t> page_size_padded{};

  [[nodiscard]] std::int64_t bytes_per_token() const {
    return detail::dense_token_bytes(spec_name, num_kv_heads, head_size, 0, dtype);
  }
  [[nodiscard]] std::int64_t real_page_size_bytes() const {
    return detail::page_bytes(spec_name, block_size, bytes_per_token());
  }
  [[nodiscard]] std::int64_t page_size_bytes() const {
    return detail::padded_page(spec_name, real_page_size_bytes(), page_size_padded);
  }
  [[nodiscard]] std::int64_t max_memory_usage_bytes(const SequenceLimits& limits) const {
    return detail::context_bytes(spec_name, limits, block_size, page_size_bytes());
  }
  [[nodiscard]] std::vector<detail::SpecField> fields() const {
    return {{"block_size", std::to_string(block_size)},
            {"num_kv_heads", std::to_string(num_kv_heads)},
            {"head_size", std::to_string(head_size)},
            {"dtype", std::string(to_string(dtype))},
            {"page_size_padded", detail::field_text(page_size_padded)}};
  }
  [[nodiscard]] static MLAAttentionSpec merge(std::span<const MLAAttentionSpec> specs) {
    return detail::merge_specs(specs);
  }
};

/// One array of a recurrent state.
struct StateArray {
  std::vector<std::int64_t> shape;
  CacheDType dtype = CacheDType::bfloat16;
};

/// A recurrent layer's state: its page does not grow with tokens, so it can only be padded.
struct MambaSpec {
  static constexpr std::string_view spec_name = "MambaSpec";

  std::vector<StateArray> arrays{};  ///< for example convolution window and recurrent matrix
  std::int64_t block_size = 1;       ///< tokens between kept states (mode `all`)
  std::int64_t num_speculative_blocks = 0;
  std::optional<std::int64_t> page_size_padded{};

  /// Bytes of one state.
  [[nodiscard]] std::int64_t real_page_size_bytes() const {
    detail::require_positive(spec_name, "block_size", block_size);
    require(num_speculative_blocks >= 0, ErrorCode::invalid_argument, spec_name,
            ": num_speculative_blocks is ", num_speculative_blocks, ", expected 0 or more");
    require(!arrays.empty(), ErrorCode::invalid_argument, spec_name,
            ": arrays is empty, expected at least one state array");
    std::int64_t total = 0;
    for (const StateArray& array : arrays) {
      std::int64_t bytes = dtype_size_bytes(array.dtype);
      for (const std::int64_t extent : array.shape) {
        detail::require_positive(spec_name, "state extent", extent);
        bytes = detail::named_mul(spec_name, {"state extent", extent}, {"bytes of a row", bytes});
      }
      require(total <= (std::numeric_limits<std::int64_t>::max)() - bytes, ErrorCode::overflow,
              spec_name, ": arrays have ", total, " and ", bytes,
              " bytes, expected a sum below 2^63");
      total += bytes;
    }
    return total;
  }
  [[nodiscard]] std::int64_t page_size_bytes() const {
    return detail::padded_page(spec_name, real_page_size_bytes(), page_size_padded);
  }
  /// States of one sequence: running (+ boundary or every block) + speculative ones.
  [[nodiscard]] std::int64_t max_states(const SequenceLimits& limits) const {
    detail::require_limits(spec_name, limits);
    detail::require_positive(spec_name, "block_size", block_size);
    return detail::named_add(spec_name,
                             {"kept states", detail::kept_states(limits.mamba_cache_mode,
                                                                 limits.max_model_len, block_size)},
                             {"num_speculative_blocks", num_speculative_blocks});
  }
  [[nodiscard]] std::int64_t max_memory_usage_bytes(const SequenceLimits& limits) const {
    const std::int64_t page = page_size_bytes();
    return detail::named_mul(spec_name, {"states of a sequence", max_states(limits)},
                             {"page_size_bytes", page});
  }
  [[nodiscard]] std::vector<detail::SpecField> fields() const {
    std::string shapes;
    for (const StateArray& array : arrays) {
      shapes += '(';
      for (const std::int64_t extent : array.shape) {
        shapes += std::to_string(extent) + ' ';
      }
      shapes += std::string(to_string(array.dtype)) + ')';
    }
    return {{"arrays", std::move(shapes)},
            {"block_size", std::to_string(block_size)},
            {"num_speculative_blocks", std::to_string(num_speculative_blocks)},
            {"page_size_padded", detail::field_text(page_size_padded)}};
  }
  [[nodiscard]] static MambaSpec merge(std::span<const MambaSpec> specs) {
    return detail::merge_specs(specs);
  }
};

}  // namespace turboquant
