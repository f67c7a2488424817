#pragma once

// The codecs that a report compares: how each reconstructs the vectors of one head, and what it
// allocates.

#include <turboquant/base/error.hpp>
#include <turboquant/base/float16.hpp>
#include <turboquant/base/float8.hpp>
#include <turboquant/math/gaussian_sketch.hpp>
#include <turboquant/math/hadamard_rotation.hpp>
#include <turboquant/math/median_of_means.hpp>
#include <turboquant/model/presets.hpp>
#include <turboquant/quant/float8_quantizer.hpp>
#include <turboquant/quant/inner_product_quantizer.hpp>
#include <turboquant/quant/int8_quantizer.hpp>
#include <turboquant/quant/mse_quantizer.hpp>
#include <turboquant/quant/value_quantizer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kv_report {

/// What comes back from a codec.
struct Reconstruction {
  std::vector<float> vectors;  ///< (count, dim)
  std::size_t bytes = 0;       ///< allocated for the encoded form
};

/// Encodes and decodes vectors (count, dim) of one head; safe to call from several threads.
using Transform = std::function<Reconstruction(std::span<const float>)>;

struct Codec {
  Transform key;
  Transform value;
};

/// A name that `--preset` takes.
struct CatalogueEntry {
  std::string_view name;
  std::string_view summary;
};

namespace detail {

using turboquant::CacheCodec;
using turboquant::HadamardRotation;
using turboquant::KeyCodec;
using turboquant::ScaleRule;
using turboquant::ValueCodec;

/// Codecs of the report that are no cache presets.
inline constexpr CatalogueEntry bf16_entry{"bf16", "uncompressed bfloat16, for reference"};
inline constexpr CatalogueEntry fp8_entry{
    "scaled_fp8_k8v4", "fp8 keys with one scale a token, 4-bit values in one group"};
inline constexpr CatalogueEntry int8_entry{
    "int8_k8v4", "int8 keys with one scale a token, 4-bit values in one group"};

/// 4-bit keys and values, both rotated: the fourth of the tq_k<b>v<b> family.
inline constexpr CacheCodec k4v4_rotated{
    "tq_k4v4_rotated",
    KeyCodec::mse,
    4,
    ValueCodec::codebook,
    4,
    0,
    false,
    true,
    "4-bit keys with the unbiased scale, 4-bit rotated codebook values"};

inline Reconstruction through_bf16(std::span<const float> vectors) {
  std::vector<turboquant::bfloat16> stored;
  stored.reserve(vectors.size());
  for (const float x : vectors) {
    stored.push_back(turboquant::bfloat16::from_float(x));
  }
  Reconstruction result;
  result.bytes = stored.size() * sizeof(turboquant::bfloat16);
  result.vectors.reserve(stored.size());
  for (const turboquant::bfloat16 x : stored) {
    result.vectors.push_back(x.to_float());
  }
  return result;
}

/// Encode, count the bytes of what was allocated, decode.
template <class Quantizer>
Transform through(Quantizer quantizer) {
  return [shared = std::make_shared<const Quantizer>(std::move(quantizer))](
             std::span<const float> vectors) {
    const auto encoded = shared->encode(vectors);
    Reconstruction result;
    result.bytes = encoded.bytes();
    result.vectors.resize(vectors.size());
    shared->decode(encoded, result.vectors);
    return result;
  };
}

/// The same for vectors minus the mean of every 64 of them, as tiles of a cache store it; vectors
/// that this would make longer stay as they are.
inline Transform through_centred(const Transform& inner, std::size_t dim) {
  return [inner, dim](std::span<const float> vectors) {
    constexpr std::size_t tile = 64;
    const std::size_t count = vectors.size() / dim;
    std::vector<float> centred(vectors.begin(), vectors.end());
    std::vector<float> tile_means((count + tile - 1) / tile * dim);
    std::vector<float> means(vectors.size());  // of every vector, zeros where it stays
    for (std::size_t first = 0; first < count; first += tile) {
      const std::size_t tokens = std::min(tile, count - first);
      std::vector<float> sums(turboquant::mean_groups * dim);
      for (std::size_t t = 0; t < tokens; ++t) {
        turboquant::add_to_group(t, dim, vectors.data() + (first + t) * dim, sums.data());
      }
      turboquant::median_of_means(tokens, dim, sums.data(),
                                  [&](std::size_t d, turboquant::float16 number) {
                                    tile_means[first / tile * dim + d] = number.to_float();
                                  });
    }
    for (std::size_t t = 0; t < count; ++t) {
      float* const mean = means.data() + t * dim;
      std::copy_n(tile_means.data() + t / tile * dim, dim, mean);
      double product = 0;
      double square = 0;
      for (std::size_t d = 0; d < dim; ++d) {
        product += static_cast<double>(mean[d]) * static_cast<double>(vectors[t * dim + d]);
        square += static_cast<double>(mean[d]) * static_cast<double>(mean[d]);
      }
      if (2 * product < square) {
        std::fill_n(mean, dim, 0.0F);
      }
    }
    for (std::size_t i = 0; i < centred.size(); ++i) {
      centred[i] -= means[i];
    }
    Reconstruction result = inner(centred);
    for (std::size_t i = 0; i < result.vectors.size(); ++i) {
      result.vectors[i] += means[i];
    }
    result.bytes += count * ((2 * dim + tile - 1) / tile);  // a vector's share of a full tile's
    return result;
  };
}

/// Keys of the published fp8 preset: one byte per coordinate and no scale; beyond 448 it saturates.
inline Reconstruction through_plain_fp8(std::span<const float> vectors) {
  std::vector<turboquant::float8_e4m3> stored;
  stored.reserve(vectors.size());
  for (const float x : vectors) {
    stored.push_back(turboquant::float8_e4m3::from_float(x));
  }
  Reconstruction result;
  result.bytes = stored.size() * sizeof(turboquant::float8_e4m3);
  result.vectors.reserve(stored.size());
  for (const turboquant::float8_e4m3 x : stored) {
    result.vectors.push_back(x.to_float());
  }
  return result;
}

inline Transform key_transform(const CacheCodec& codec, int dim, std::uint64_t seed) {
  const HadamardRotation rotation(dim, seed);
  if (codec.key_codec == KeyCodec::float8) {
    return through_plain_fp8;
  }
  if (codec.key_codec == KeyCodec::inner_product) {
    return through(turboquant::InnerProductQuantizer(rotation, codec.key_bits,
                                                     turboquant::GaussianSketch(dim, seed)));
  }
  const ScaleRule rule = codec.norm_correction ? ScaleRule::unit : ScaleRule::unbiased;
  const Transform keys =
      through(turboquant::MseQuantizer(rotation, codec.key_bits, {.scale_rule = rule}));
  return codec.key_centring == turboquant::KeyCentring::none
             ? keys
             : through_centred(keys, static_cast<std::size_t>(dim));
}

inline Transform value_transform(const CacheCodec& codec, int dim, std::uint64_t seed) {
  if (codec.value_codec == ValueCodec::codebook) {
    return through(turboquant::MseQuantizer(HadamardRotation(dim, seed), codec.value_bits,
                                            {.scale_rule = ScaleRule::least_squares}));
  }
  const int group = static_cast<int>(std::min<std::int64_t>(codec.value_group, dim));
  return through(turboquant::ValueQuantizer(dim, codec.value_bits, {.group_size = group}));
}

}  // namespace detail

/// Every codec, in the order of the report.
inline std::vector<CatalogueEntry> codec_catalogue() {
  std::vector<CatalogueEntry> entries{detail::bf16_entry};
  for (const turboquant::CacheCodec& preset : turboquant::cache_presets) {
    entries.push_back({preset.name, preset.summary});
  }
  entries.push_back({detail::k4v4_rotated.name, detail::k4v4_rotated.summary});
  entries.push_back(detail::fp8_entry);
  entries.push_back(detail::int8_entry);
  return entries;
}

/// The codec called `name` for heads of these sizes. Keys and values use different rotations.
/// @throws turboquant::Error(invalid_argument) for a name that is not in the catalogue.
inline Codec make_codec(std::string_view name, int key_dim, int value_dim, std::uint64_t seed) {
  if (name == detail::bf16_entry.name) {
    return {detail::through_bf16, detail::through_bf16};
  }
  const auto four_bit_values = [&] {
    return detail::through(turboquant::ValueQuantizer(value_dim, 4));
  };
  if (name == detail::fp8_entry.name) {
    return {detail::through(turboquant::Float8Quantizer(key_dim)), four_bit_values()};
  }
  if (name == detail::int8_entry.name) {
    return {detail::through(turboquant::Int8Quantizer(key_dim)), four_bit_values()};
  }
  const turboquant::CacheCodec codec = name == detail::k4v4_rotated.name
                                           ? detail::k4v4_rotated
                                           : turboquant::find_cache_preset(name);
  return {detail::key_transform(codec, key_dim, seed),
          detail::value_transform(codec, value_dim, seed + 1)};
}

}  // namespace kv_report
