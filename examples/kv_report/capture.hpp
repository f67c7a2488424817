#pragma once

// Keys, values and queries captured from a model, as a safetensors file holds them.

#include <turboquant/base/error.hpp>
#include <turboquant/io/message_text.hpp>
#include <turboquant/io/safetensors.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kv_report {

using turboquant::ErrorCode;
using turboquant::fail;
using turboquant::require;

/// One layer. Query head h attends to kv head h / (query_heads / kv_heads).
struct LayerCapture {
  int layer = 0;
  std::int64_t tokens = 0;
  std::int64_t kv_heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  std::int64_t query_heads = 0;               ///< 0 without queries
  std::vector<float> keys;                    ///< (tokens, kv_heads, key_dim)
  std::vector<float> values;                  ///< (tokens, kv_heads, value_dim)
  std::vector<float> queries;                 ///< (query_positions.size(), query_heads, key_dim)
  std::vector<std::int64_t> query_positions;  ///< query i attends to tokens 0 to query_positions[i]

  /// The vectors of one head, one after another: (rows, dim).
  [[nodiscard]] static std::vector<float> head(std::span<const float> all, std::int64_t num_heads,
                                               std::int64_t index, std::int64_t dim) {
    const auto d = static_cast<std::size_t>(dim);
    const std::size_t stride = static_cast<std::size_t>(num_heads) * d;
    std::vector<float> rows;
    rows.reserve(all.size() / static_cast<std::size_t>(num_heads));
    for (std::size_t start = static_cast<std::size_t>(index) * d; start < all.size();
         start += stride) {
      const auto row = all.subspan(start, d);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
  }
};

/// The layers of a file and the names of the tensors that belong to none.
struct Capture {
  std::vector<LayerCapture> layers;  ///< ascending
  std::vector<std::string> unused;
};

/// The most numbers that are loaded, 4 GiB as floats.
inline constexpr std::int64_t max_loaded_elements = std::int64_t{1} << 30;

namespace detail {

inline constexpr std::string_view positions_name = "query_positions";

/// `layers.<i>.key`, `.value` and `.query`; null where absent.
struct LayerTensors {
  const turboquant::TensorEntry* key = nullptr;
  const turboquant::TensorEntry* value = nullptr;
  const turboquant::TensorEntry* query = nullptr;
};

/// Sorts a tensor into its layer; false when its name has another form.
inline bool assign(const turboquant::TensorEntry& entry, std::map<int, LayerTensors>& layers) {
  constexpr std::string_view prefix = "layers.";
  const std::string_view name = entry.name;
  const std::size_t dot = name.rfind('.');
  if (name.substr(0, prefix.size()) != prefix || dot < prefix.size()) {
    return false;
  }
  const std::string_view digits = name.substr(prefix.size(), dot - prefix.size());
  const std::string_view role = name.substr(dot + 1);
  int layer = -1;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
  // One spelling a layer: no sign, no leading zero.
  if (parsed.ec != std::errc() || layer < 0 || std::to_string(layer) != digits) {
    return false;
  }
  if (role == "key") {
    layers[layer].key = &entry;
  } else if (role == "value") {
    layers[layer].value = &entry;
  } else if (role == "query") {
    layers[layer].query = &entry;
  } else {
    return false;
  }
  return true;
}

inline std::string shape_of(const turboquant::TensorEntry& entry) {
  return turboquant::detail::shape_text(entry.shape);
}

inline void require_rank_three(const std::string& path, const turboquant::TensorEntry& entry,
                               const char* axes) {
  require(entry.shape.size() == 3 && entry.num_elements > 0, ErrorCode::shape_mismatch, path, ": ",
          entry.name, " has shape ", shape_of(entry), ", expected ", axes, ", all positive");
  require(entry.shape[2] >= 3 && entry.shape[2] <= 4096, ErrorCode::shape_mismatch, path, ": ",
          entry.name, " has shape ", shape_of(entry), ", expected a head_dim of 3 to 4096");
}

/// Checks the shapes of one layer against each other and fills in its sizes.
inline LayerCapture describe(const std::string& path, int layer, const LayerTensors& tensors,
                             const turboquant::TensorEntry* positions) {
  const std::string name = "layers." + std::to_string(layer);
  require(tensors.key != nullptr, ErrorCode::format, path, ": ", name, " has no tensor ", name,
          ".key");
  require(tensors.value != nullptr, ErrorCode::format, path, ": ", name, " has no tensor ", name,
          ".value");
  require_rank_three(path, *tensors.key, "(tokens, kv_heads, head_dim)");
  require_rank_three(path, *tensors.value, "(tokens, kv_heads, head_dim)");
  const auto& key = tensors.key->shape;
  const auto& value = tensors.value->shape;
  require(value[0] == key[0] && value[1] == key[1], ErrorCode::shape_mismatch, path, ": ", name,
          ".value has shape ", shape_of(*tensors.value), ", expected the tokens and kv_heads of ",
          name, ".key, ", shape_of(*tensors.key));
  LayerCapture result;
  result.layer = layer;
  result.tokens = key[0];
  result.kv_heads = key[1];
  result.key_dim = key[2];
  result.value_dim = value[2];
  if (tensors.query != nullptr) {
    require_rank_three(path, *tensors.query, "(positions, query_heads, head_dim)");
    const auto& query = tensors.query->shape;
    require(query[2] == key[2], ErrorCode::shape_mismatch, path, ": ", name, ".query has shape ",
            shape_of(*tensors.query), ", expected the head_dim of ", name, ".key, ", key[2]);
    require(query[1] % key[1] == 0, ErrorCode::shape_mismatch, path, ": ", name, ".query has ",
            query[1], " heads, expected a multiple of the ", key[1], " kv_heads of ", name, ".key");
    require(positions != nullptr || query[0] <= key[0], ErrorCode::shape_mismatch, path, ": ", name,
            ".query has ", query[0], " positions, expected at most the ", key[0], " tokens of ",
            name, ".key");
    require(positions == nullptr || positions->num_elements == query[0], ErrorCode::shape_mismatch,
            path, ": ", positions_name, " has shape ",
            positions == nullptr ? "" : shape_of(*positions), ", expected the ", query[0],
            " positions of ", name, ".query");
    result.query_heads = query[1];
    result.query_positions.resize(static_cast<std::size_t>(query[0]));
  }
  return result;
}

inline std::string layer_list(const std::map<int, LayerTensors>& layers) {
  std::string text;
  for (const auto& [layer, tensors] : layers) {
    text += text.empty() ? "" : ", ";
    text += std::to_string(layer);
  }
  return text;
}

inline void load(turboquant::SafetensorsFile& file, const LayerTensors& tensors,
                 const turboquant::TensorEntry* positions, LayerCapture& layer) {
  const auto read = [&](const turboquant::TensorEntry& entry, std::vector<float>& out) {
    out.resize(static_cast<std::size_t>(entry.num_elements));
    file.read_floats(entry.name, out);
  };
  read(*tensors.key, layer.keys);
  read(*tensors.value, layer.values);
  if (tensors.query == nullptr) {
    return;
  }
  read(*tensors.query, layer.queries);
  std::vector<std::int64_t>& at = layer.query_positions;
  if (positions == nullptr) {
    for (std::size_t i = 0; i < at.size(); ++i) {
      at[i] = layer.tokens - static_cast<std::int64_t>(at.size() - i);
    }
    return;
  }
  file.read_integers(positions_name, at);
  for (std::size_t i = 0; i < at.size(); ++i) {
    require(at[i] >= 0 && at[i] < layer.tokens, ErrorCode::out_of_range, file.path(), ": ",
            positions_name, "[", i, "] is ", at[i], ", expected 0 to ", layer.tokens - 1,
            ", the tokens of layer ", layer.layer);
  }
}

}  // namespace detail

/// Reads and checks the chosen layers of a file; none chosen means all.
/// @throws turboquant::Error with one line that names the file, the tensor and the fault.
inline Capture load_capture(const std::string& path, const std::vector<int>& chosen) {
  turboquant::SafetensorsFile file(path);
  Capture capture;
  std::map<int, detail::LayerTensors> layers;
  const turboquant::TensorEntry* positions = nullptr;
  for (const turboquant::TensorEntry& entry : file.tensors()) {
    if (entry.name == detail::positions_name) {
      require(entry.shape.size() == 1, ErrorCode::shape_mismatch, path, ": ",
              detail::positions_name, " has shape ", detail::shape_of(entry),
              ", expected one axis, (positions)");
      positions = &entry;
    } else if (!detail::assign(entry, layers)) {
      capture.unused.push_back(turboquant::detail::in_quotes(entry.name));
    }
  }
  require(!layers.empty(), ErrorCode::format, path,
          ": holds no tensor layers.<i>.key, layers.<i>.value or layers.<i>.query");
  for (const int layer : chosen) {
    require(layers.contains(layer), ErrorCode::out_of_range, "--layer ", layer, ": ", path,
            " has the layers ", detail::layer_list(layers));
  }
  std::int64_t elements = 0;
  for (const auto& [layer, tensors] : layers) {
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), layer) == chosen.end()) {
      continue;
    }
    capture.layers.push_back(detail::describe(path, layer, tensors, positions));
    for (const auto* const entry : {tensors.key, tensors.value, tensors.query}) {
      // Bounded by the file's length, hence far from overflow.
      elements += entry == nullptr ? 0 : entry->num_elements;
    }
  }
  const bool any_query =
      std::any_of(capture.layers.begin(), capture.layers.end(),
                  [](const LayerCapture& layer) { return layer.query_heads > 0; });
  if (positions != nullptr && !any_query) {
    capture.unused.push_back(turboquant::detail::in_quotes(detail::positions_name));
  }
  require(elements <= max_loaded_elements, ErrorCode::capacity, path, ": the chosen layers hold ",
          elements, " numbers, expected at most ", max_loaded_elements,
          " (choose fewer with --layer)");
  for (LayerCapture& layer : capture.layers) {
    detail::load(file, layers.at(layer.layer), positions, layer);
  }
  return capture;
}

/// Names tensors of a file that the program has no use for.
inline void print_unused(const std::vector<std::string>& tensors) {
  constexpr std::size_t shown = 5;
  if (tensors.empty()) {
    return;
  }
  std::cout << "not used      " << tensors.size()
            << (tensors.size() == 1 ? " tensor: " : " tensors: ");
  for (std::size_t i = 0; i < std::min(shown, tensors.size()); ++i) {
    std::cout << (i == 0 ? "" : ", ") << tensors[i];
  }
  std::cout << (tensors.size() > shown ? ", ...\n" : "\n");
}

}  // namespace kv_report
