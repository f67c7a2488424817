#pragma once

#include <turboquant/base/float8.hpp>
#include <turboquant/device/encode_lanes.hpp>
#include <turboquant/device/tile_store.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace turboquant::detail {

/// Algorithm 1 in every lane: `scratch.vector` holds the input before, the rotated normalised
/// vector after; codes, levels and the stored scales are set.
template <class Steps>
TURBOQUANT_FUNCTION void quantise_lanes(const HadamardTransform& rotation,
                                        const KernelCodebook& codebook, ScaleRule rule,
                                        typename Steps::Scratch& scratch) noexcept {
  constexpr std::size_t Lanes = Steps::lanes;
  const std::size_t dim = rotation.dim;
  Steps::normalise(dim, scratch);
  Steps::forward(rotation, scratch);
  float factor[Lanes];
  Steps::factors(dim, scratch, factor);
  Steps::search(codebook, factor, dim, scratch);
  double projection[Lanes] = {};
  double level_squared[Lanes] = {};
  if (needs_projection(rule)) {
    Steps::dot(scratch.vector, scratch.levels, dim, projection);
  }
  if (needs_level_squares(rule)) {
    Steps::dot(scratch.levels, scratch.levels, dim, level_squared);
  }
  Steps::scales(dim, rule, projection, level_squared, scratch);
}

/// The sketch of Algorithm 2 after `quantise_lanes`: signs as 1-bit codes in `scratch.codes`,
/// residual scales in `scratch.scale`.
template <class Steps>
TURBOQUANT_FUNCTION void sketch_lanes(const HadamardTransform& sketch,
                                      typename Steps::Scratch& scratch) noexcept {
  constexpr std::size_t Lanes = Steps::lanes;
  const std::size_t dim = sketch.dim;
  double factor[Lanes];
  std::int32_t exponent[Lanes];
  for (std::size_t lane = 0; lane < Lanes; ++lane) {
    // In units of 2^exponent; the stored scale comes back exactly.
    exponent[lane] = scratch.exponent[lane];
    factor[lane] = static_cast<double>(static_cast<float>(
        std::ldexp(exact_double(scratch.scale[lane].to_float()), -exponent[lane])));
  }
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      float& x = scratch.vector[i * Lanes + lane];
      x = static_cast<float>(static_cast<double>(x) -
                             factor[lane] * static_cast<double>(scratch.levels[i * Lanes + lane]));
    }
  }
  Steps::normalise(dim, scratch);
  for (std::size_t lane = 0; lane < Lanes; ++lane) {
    const double root_mean_square = std::sqrt(scratch.squared[lane] / static_cast<double>(dim));
    scratch.scale[lane] = float16::from_float(
        stored_scale(std::ldexp(root_mean_square, scratch.exponent[lane] + exponent[lane]),
                     MetadataType::float16));
  }
  Steps::forward(sketch, scratch);
  for (std::size_t i = 0; i < dim * Lanes; ++i) {
    scratch.codes[i] = scratch.vector[i] < 0.0F ? 1 : 0;
  }
}

/// Keys in `scratch.vector` into slots whose bits are zero.
/// @param words how words that tokens share are changed; see `PlainWords`
template <class Steps, class Words>
TURBOQUANT_FUNCTION void encode_keys(const TileTables& tables, LaneSlots lanes, const Words& words,
                                     typename Steps::Scratch& scratch,
                                     unsigned char* tile) noexcept {
  constexpr std::size_t Lanes = Steps::lanes;
  const TileFormat& format = tables.format;
  if (format.key_codec == KeyCodec::float8) {
    for (std::size_t d = 0; d < static_cast<std::size_t>(format.key_dim); ++d) {
      for (std::size_t lane = 0; lane < lanes.count; ++lane) {
        const TileBit at = format.key_code_bit(lanes.slot + lane, d, 0);
        tile[at.byte] = float8_e4m3::from_float(scratch.vector[d * Lanes + lane]).bits;
      }
    }
    return;
  }
  quantise_lanes<Steps>(tables.key_rotation, tables.key_codebook, tables.key_scale_rule, scratch);
  Steps::store_keys(key_codes(format), scratch.codes, lanes, words, tile);
  store_scales<Lanes>(key_scales(format), scratch.scale, lanes, tile);
  if (format.key_codec == KeyCodec::inner_product) {
    sketch_lanes<Steps>(tables.sketch, scratch);
    Steps::store_keys(key_signs(format), scratch.codes, lanes, words, tile);
    store_scales<Lanes>(residual_scales(format), scratch.scale, lanes, tile);
  }
}

/// The stored numbers of one min-max group of one token.
struct GroupNumbers {
  float16 scale{};
  float16 zero{};
  float magnitude = 0;  ///< of the scale
  bool mirrored = false;

  GroupNumbers() = default;
  TURBOQUANT_FUNCTION GroupNumbers(float lowest, float highest, int top, bool odd_token) noexcept
      : magnitude(
            stored_range(exact_double(highest) - exact_double(lowest), top, MetadataType::float16)),
        mirrored(odd_token) {
    scale = float16::from_float(odd_token ? -magnitude : magnitude);
    zero = float16::from_float(stored_zero(odd_token ? highest : lowest, MetadataType::float16));
  }

  /// What the distance from the zero point is divided by.
  [[nodiscard]] TURBOQUANT_FUNCTION double divisor() const noexcept {
    const double divisor =
        magnitude > 0 ? double{magnitude} : std::numeric_limits<double>::infinity();
    return mirrored ? -divisor : divisor;
  }
};

/// Min-max groups of `scratch.vector`: codes of all groups; scales and zero points go to the tile.
template <class Steps>
TURBOQUANT_FUNCTION void group_lanes(const TileFormat& format, LaneSlots lanes,
                                     typename Steps::Scratch& scratch,
                                     unsigned char* tile) noexcept {
  constexpr std::size_t Lanes = Steps::lanes;
  const auto size = static_cast<std::size_t>(format.value_group);
  const int top = (1 << static_cast<unsigned>(format.value_bits)) - 1;
  for (std::size_t group = 0; group < format.value_groups(); ++group) {
    const float* x = scratch.vector + group * size * Lanes;
    float lowest[Lanes];
    float highest[Lanes];
    Steps::range(x, size, lowest, highest);
    double zero[Lanes];
    double divisor[Lanes];
    float16 scales[Lanes];
    float16 zeros[Lanes];
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      const GroupNumbers numbers(lowest[lane], highest[lane], top, (lanes.slot + lane) % 2 != 0);
      zero[lane] = static_cast<double>(numbers.zero.to_float());
      divisor[lane] = numbers.divisor();
      scales[lane] = numbers.scale;
      zeros[lane] = numbers.zero;
    }
    Steps::group_codes(x, size, zero, divisor, top, scratch.codes + group * size * Lanes);
    store_scales<Lanes>(value_scales(format, group), scales, lanes, tile);
    store_scales<Lanes>(value_zeros(format, group), zeros, lanes, tile);
  }
}

/// Values in `scratch.vector` into slots whose bits are zero.
template <class Steps, class Words>
TURBOQUANT_FUNCTION void encode_values(const TileTables& tables, LaneSlots lanes,
                                       const Words& words, typename Steps::Scratch& scratch,
                                       unsigned char* tile) noexcept {
  constexpr std::size_t Lanes = Steps::lanes;
  const TileFormat& format = tables.format;
  if (format.value_codec == ValueCodec::grouped) {
    group_lanes<Steps>(format, lanes, scratch, tile);
  } else {
    quantise_lanes<Steps>(tables.value_rotation, tables.value_codebook, tables.value_scale_rule,
                          scratch);
    const auto top =
        static_cast<std::uint8_t>((1U << static_cast<unsigned>(format.value_bits)) - 1U);
    for (std::size_t lane = 0; lane < Lanes; ++lane) {
      if ((lanes.slot + lane) % 2 != 0) {
        scratch.scale[lane].bits ^= 0x8000U;
        for (std::size_t d = 0; d < static_cast<std::size_t>(format.value_dim); ++d) {
          std::uint8_t& code = scratch.codes[d * Lanes + lane];
          code = static_cast<std::uint8_t>(top - code);
        }
      }
    }
    store_scales<Lanes>(value_scales(format, 0), scratch.scale, lanes, tile);
  }
  store_value_codes<Lanes>(value_codes(format), scratch.codes, lanes, words, tile);
}

}  // namespace turboquant::detail
