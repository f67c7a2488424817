#pragma once

#include <turboquant/model/layer_cache.hpp>
#include <turboquant/model/unification.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace turboquant {

/// Layers whose caches are alike: one kind of page.
struct LayerClass {
  std::string name{};                       ///< for example "full attention, turboquant_k3v4_nc"
  std::string_view backend{};               ///< "turboquant", "default" or "state"
  std::vector<std::int64_t> layers{};       ///< absolute indices, ascending
  std::int64_t bytes_per_token = 0;         ///< of one layer and rank; 0 for a recurrent state
  std::int64_t state_bytes = 0;             ///< of one state of one layer and rank; 0 for attention
  std::int64_t num_speculative_blocks = 0;  ///< states kept beside the running one
  std::optional<std::int64_t> window{};     ///< tokens, where the attention is bounded
  std::int64_t block_size = 1;              ///< tokens of a page before unification
  bool compressed = false;
  bool skipped = false;  ///< left uncompressed by the skip list

  [[nodiscard]] std::int64_t num_layers() const noexcept {
    return static_cast<std::int64_t>(layers.size());
  }
  [[nodiscard]] bool is_state() const noexcept { return state_bytes > 0; }
  /// Bytes of one layer's page before unification.
  [[nodiscard]] std::int64_t page_size_bytes() const {
    return is_state() ? state_bytes
                      : detail::named_mul("LayerClass", {"block_size", block_size},
                                          {"bytes_per_token", bytes_per_token});
  }
  [[nodiscard]] PageClass page_class() const {
    return {name, page_size_bytes(), is_state() ? 1 : block_size, !is_state()};
  }
  /// Bytes that `tokens` tokens really fill in one layer, without any page rounding.
  [[nodiscard]] std::int64_t content_bytes(std::int64_t tokens) const {
    if (is_state()) {
      return detail::named_mul(
          "LayerClass", {"state_bytes", state_bytes},
          {"states", detail::named_add("LayerClass", {"running states", 1},
                                       {"num_speculative_blocks", num_speculative_blocks})});
    }
    return detail::named_mul("LayerClass",
                             {"tokens", window ? (std::min)(*window, tokens) : tokens},
                             {"bytes_per_token", bytes_per_token});
  }
};

/// Checks every number of a class.
/// @param caller, index how messages call it: "caller: classes[index].field"
/// @throws Error(invalid_argument) naming the field, its value and what is expected,
/// Error(overflow) for a page beyond 64 bits. O(layers).
inline void require_valid(const LayerClass& c, std::string_view caller, std::size_t index) {
  const auto require_field = [&](bool ok, std::string_view field, std::int64_t value,
                                 std::string_view expected) {
    require(ok, ErrorCode::invalid_argument, caller, ": classes[", index, "].", field, " is ",
            value, ", expected ", expected);
  };
  require_field(c.num_layers() >= 1 && c.num_layers() <= max_model_layers, "layers.size()",
                c.num_layers(), "1 to 10000");
  std::int64_t previous = -1;
  for (const std::int64_t layer : c.layers) {
    require_field(layer > previous, "layers", layer, "indices of 0 or more, ascending");
    previous = layer;
  }
  require_field(c.block_size > 0, "block_size", c.block_size, "a positive number of tokens");
  require_field(c.state_bytes >= 0, "state_bytes", c.state_bytes, "0 or more");
  require_field(c.num_speculative_blocks >= 0, "num_speculative_blocks", c.num_speculative_blocks,
                "0 or more");
  require_field(c.window.value_or(1) > 0, "window", c.window.value_or(1),
                "a positive number of tokens");
  if (c.is_state()) {
    require_field(c.bytes_per_token == 0, "bytes_per_token", c.bytes_per_token,
                  "0 for a recurrent state");
    require_field(!c.window, "window", c.window.value_or(0), "none for a recurrent state");
  } else {
    require_field(c.bytes_per_token > 0, "bytes_per_token", c.bytes_per_token,
                  "a positive number, or state_bytes");
    require_field(c.num_speculative_blocks == 0, "num_speculative_blocks", c.num_speculative_blocks,
                  "0 for attention");
  }
  const ErrorContext context(caller, ": classes[", index, "]: ");
  static_cast<void>(c.page_size_bytes());
}

namespace detail {

inline std::string class_name(std::string_view kind, const LayerCache& cache) {
  std::string name(kind);
  if (const auto* tq = std::get_if<TQFullAttentionSpec>(&cache.attention)) {
    return name + ", " + std::string(tq->config.name());
  }
  return cache.skipped ? name + ", skipped" : name;
}

/// The class of one layer's token cache, with that layer as its only member.
inline std::optional<LayerClass> attention_class(const LayerCache& cache, std::int64_t layer) {
  LayerClass c;
  c.backend = attention_backend(cache.attention);
  c.layers = {layer};
  c.skipped = cache.skipped;
  if (const auto* tq = std::get_if<TQFullAttentionSpec>(&cache.attention)) {
    c.name = class_name("full attention", cache);
    c.bytes_per_token = tq->bytes_per_token();
    c.block_size = tq->block_size;
    c.compressed = true;
  } else if (const auto* full = std::get_if<FullAttentionSpec>(&cache.attention)) {
    c.name = class_name("full attention", cache);
    c.bytes_per_token = full->bytes_per_token();
    c.block_size = full->block_size;
  } else if (const auto* sliding = std::get_if<SlidingWindowSpec>(&cache.attention)) {
    c.name = "window " + std::to_string(sliding->sliding_window);
    c.bytes_per_token = sliding->bytes_per_token();
    c.block_size = sliding->block_size;
    c.window = sliding->sliding_window;
  } else if (const auto* latent = std::get_if<MLAAttentionSpec>(&cache.attention)) {
    c.name = class_name("latent attention", cache);
    c.bytes_per_token = latent->bytes_per_token();
    c.block_size = latent->block_size;
  } else {
    return std::nullopt;
  }
  return c;
}

inline LayerClass state_class(const MambaSpec& state, std::int64_t layer) {
  LayerClass c;
  c.name = "recurrent state";
  c.backend = "state";
  c.layers = {layer};
  c.state_bytes = state.real_page_size_bytes();
  c.num_speculative_blocks = state.num_speculative_blocks;
  return c;
}

inline bool same_class(const LayerClass& a, const LayerClass& b) {
  return a.name == b.name && a.backend == b.backend && a.bytes_per_token == b.bytes_per_token &&
         a.state_bytes == b.state_bytes && a.block_size == b.block_size && a.window == b.window &&
         a.num_speculative_blocks == b.num_speculative_blocks;
}

inline void add_to_classes(std::vector<LayerClass>& classes, LayerClass added) {
  for (LayerClass& c : classes) {
    if (same_class(c, added)) {
      c.layers.push_back(added.layers.front());
      return;
    }
  }
  classes.push_back(std::move(added));
}

}  // namespace detail

/// Groups the layers of `caches` into classes, in order of first appearance; layers that own no
/// cache are in none. O(layers * classes), deterministic.
/// @throws Error(invalid_argument | overflow) for a spec outside its domain, naming the layer
[[nodiscard]] inline std::vector<LayerClass> classify_layers(
    const std::vector<LayerCache>& caches) {
  std::vector<LayerClass> classes;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i);
    detail::require_page_sizes("classify_layers", layer, caches[i]);
    if (std::optional<LayerClass> attention = detail::attention_class(caches[i], layer)) {
      detail::add_to_classes(classes, std::move(*attention));
    }
    if (caches[i].state) {
      detail::add_to_classes(classes, detail::state_class(*caches[i].state, layer));
    }
  }
  return classes;
}

}  // namespace turboquant
