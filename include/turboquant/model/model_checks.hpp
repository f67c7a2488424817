#pragma once

#include <turboquant/model/argument_checks.hpp>
#include <turboquant/model/model_config.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace turboquant::detail {

/// Whether the cache of `source` keeps every token that `reader` attends to.
inline bool keeps_enough(const LayerConfig& source, const LayerConfig& reader) {
  if (source.attention == AttentionKind::full) {
    return true;
  }
  return source.attention == reader.attention &&
         (!source.window || !reader.window || *source.window >= *reader.window);
}

/// Refuses a reader of another layer's cache that cannot read it.
inline void require_cache_source(std::string_view where, const ModelConfig& model,
                                 std::int64_t index) {
  const std::int64_t owner = model.cache_owner(index);
  const LayerConfig& reader = model.layers[static_cast<std::size_t>(index)];
  const LayerConfig& source = model.layers[static_cast<std::size_t>(owner)];
  const auto require_source = [&](bool ok, std::string_view expected) {
    require(ok, ErrorCode::invalid_argument, where, ": kv_source of layer ", index, " is ", owner,
            ", expected ", expected);
  };
  require_source(owner < index, "an earlier layer");
  require_source(source.attention != AttentionKind::none, "a layer with attention");
  require_source(keeps_enough(source, reader),
                 "a layer that keeps all tokens which this one attends to");
  require_source(source.is_mla == reader.is_mla || source.attention != reader.attention,
                 "a layer that keeps latents where this one reads them");
  const auto require_width = [&](std::string_view field, std::optional<std::int64_t> ours,
                                 std::optional<std::int64_t> theirs) {
    require(!ours || !theirs || *ours == *theirs, ErrorCode::invalid_argument, where, ": ", field,
            " of layer ", index, " is ", ours.value_or(0), ", expected ", theirs.value_or(0),
            " as in layer ", owner, ", whose cache it reads");
  };
  require_width("num_kv_heads", reader.num_kv_heads, source.num_kv_heads);
  require_width("head_size", reader.head_size, source.head_size);
  const auto value_width = [](const LayerConfig& layer) {
    return layer.head_size_v ? layer.head_size_v : layer.head_size;
  };
  require_width("head_size_v", value_width(reader), value_width(source));
}

/// Refuses a model whose layers cannot be: too many, kinds of attention that are none, windows
/// without tokens, readers of caches that are not there. What is merely not stated is left to who
/// needs it. O(layers).
inline void require_model(std::string_view where, const ModelConfig& model) {
  require(model.num_layers() <= max_model_layers, ErrorCode::invalid_argument, where,
          ": the model has ", model.num_layers(), " layers, expected at most ", max_model_layers);
  for (std::int64_t i = 0; i < model.num_layers(); ++i) {
    const LayerConfig& layer = model.layers[static_cast<std::size_t>(i)];
    require(layer.attention >= AttentionKind::none && layer.attention <= AttentionKind::chunked,
            ErrorCode::invalid_argument, where, ": attention of layer ", i, " is ",
            static_cast<int>(layer.attention), ", expected none, full, sliding or chunked");
    require(layer.window.value_or(1) > 0, ErrorCode::invalid_argument, where, ": window of layer ",
            i, " is ", layer.window.value_or(1), ", expected a positive number of tokens");
    if (layer.kv_source && layer.attention != AttentionKind::none) {
      require_cache_source(where, model, i);
    }
  }
}

}  // namespace turboquant::detail
