#pragma once

#include <turboquant/model/model_config.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace turboquant {

/// Options of `get_boundary_skip_layers`.
struct BoundaryOptions {
  /// Protect the first and last n of the full-attention list, hybrids included, instead of the
  /// published rule (first and last n layers of dense models, none of hybrids).
  bool protect_full_attention_list = false;
};

/// Layers that boundary protection leaves uncompressed: the first and last `n`, at most half each.
///
/// Published rule by default: dense models (no recurrent layers) skip the first and last n of all
/// layers; hybrids skip none, because 2 + 2 layers would be 40 % of a 10-layer attention list.
/// Returns ascending layer indices. O(layers), deterministic.
/// @throws Error(invalid_argument) for a negative `n`.
[[nodiscard]] inline std::vector<std::int64_t> get_boundary_skip_layers(
    const ModelConfig& model, std::int64_t n = 2, BoundaryOptions options = {}) {
  require(n >= 0, ErrorCode::invalid_argument, "get_boundary_skip_layers: n is ", n,
          ", expected 0 or more");
  std::vector<std::int64_t> candidates;
  if (options.protect_full_attention_list) {
    candidates = model.full_attention_layers();
  } else if (!model.is_hybrid()) {
    for (std::int64_t i = 0; i < model.num_layers(); ++i) {
      candidates.push_back(i);
    }
  }
  const auto half = static_cast<std::int64_t>(candidates.size() / 2);
  const auto kept = static_cast<std::size_t>((std::min)(n, half));
  std::vector<std::int64_t> skipped;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (i < kept || i >= candidates.size() - kept) {
      skipped.push_back(candidates[i]);
    }
  }
  return skipped;
}

/// A skip list: absolute layer indices and names of layer kinds.
struct SkipList {
  std::vector<std::int64_t> layers{};  ///< ascending, unique
  std::vector<std::string> names{};    ///< non-numeric entries such as "sliding_window", in order

  /// The entries as strings, indices first.
  [[nodiscard]] std::vector<std::string> entries() const {
    std::vector<std::string> all;
    for (const std::int64_t layer : layers) {
      all.push_back(std::to_string(layer));
    }
    for (const std::string& name : names) {
      all.push_back(name);
    }
    return all;
  }
};

namespace detail {

/// Puts a number where it belongs among ascending ones, once.
inline void insert_ascending(std::vector<std::int64_t>& numbers, std::int64_t added) {
  const auto at = std::lower_bound(numbers.begin(), numbers.end(), added);
  if (at == numbers.end() || *at != added) {
    numbers.insert(at, added);
  }
}

}  // namespace detail

/// Joins a user's skip list with boundary protection; non-numeric entries are kept as they are.
/// @param user absolute layer indices ("3") or kind names ("sliding_window").
/// @throws Error(invalid_argument) for an empty entry, a negative index or one beyond 64 bits.
[[nodiscard]] inline SkipList merge_skip_layers(std::span<const std::string> user,
                                                std::span<const std::int64_t> boundary = {}) {
  SkipList merged;
  for (const std::int64_t layer : boundary) {
    detail::insert_ascending(merged.layers, layer);
  }
  for (const std::string& entry : user) {
    const bool numeric =
        !entry.empty() && entry.find_first_not_of("+-0123456789") == std::string::npos;
    if (numeric) {
      std::int64_t layer = -1;
      const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), layer);
      require(error == std::errc() && end == entry.data() + entry.size() && layer >= 0,
              ErrorCode::invalid_argument, "merge_skip_layers: entry is \"", entry,
              "\", expected a layer index of 0 or more, or a name");
      detail::insert_ascending(merged.layers, layer);
    } else {
      require(!entry.empty(), ErrorCode::invalid_argument,
              "merge_skip_layers: entry is \"\", expected a layer index or a name");
      if (std::find(merged.names.begin(), merged.names.end(), entry) == merged.names.end()) {
        merged.names.push_back(entry);
      }
    }
  }
  require(merged.layers.empty() || merged.layers.front() >= 0, ErrorCode::invalid_argument,
          "merge_skip_layers: boundary holds ", merged.layers.empty() ? 0 : merged.layers.front(),
          ", expected layer indices of 0 or more");
  return merged;
}

/// Key and value bits of one layer.
struct LayerBits {
  int key_bits = 3;
  int value_bits = 4;
};

/// Bits per layer when boundary layers get more: first and last `n` (at most half each) of
/// `num_layers` get `extra` bits on top, up to 8, and never fewer than asked.
/// @throws Error(invalid_argument) for negative counts, more than 10,000 layers or bits
/// outside 1..8.
[[nodiscard]] inline std::vector<LayerBits> protect_boundary_bits(std::int64_t num_layers,
                                                                  LayerBits base,
                                                                  std::int64_t n = 2,
                                                                  int extra = 1) {
  constexpr int max_bits = 8;
  require(num_layers >= 0 && n >= 0 && extra >= 0, ErrorCode::invalid_argument,
          "protect_boundary_bits: num_layers, n and extra are ", num_layers, ", ", n, " and ",
          extra, ", expected 0 or more");
  require(base.key_bits >= 1 && base.key_bits <= max_bits && base.value_bits >= 1 &&
              base.value_bits <= max_bits,
          ErrorCode::invalid_argument, "protect_boundary_bits: bits are ", base.key_bits, " and ",
          base.value_bits, ", expected 1..8");
  require(num_layers <= max_model_layers, ErrorCode::invalid_argument,
          "protect_boundary_bits: num_layers is ", num_layers, ", expected 0..", max_model_layers);
  const auto raise = [&](int bits) { return bits + (std::min)(extra, max_bits - bits); };
  const std::int64_t kept = (std::min)(n, num_layers / 2);
  std::vector<LayerBits> bits(static_cast<std::size_t>(num_layers), base);
  for (std::int64_t i = 0; i < num_layers; ++i) {
    if (i < kept || i >= num_layers - kept) {
      bits[static_cast<std::size_t>(i)] = {raise(base.key_bits), raise(base.value_bits)};
    }
  }
  return bits;
}

}  // namespace turboquant
