#pragma once

#include <turboquant/base/float8.hpp>
#include <turboquant/device/key_mean.hpp>
#include <turboquant/device/tile_codec.hpp>
#include <turboquant/device/tile_words.hpp>
#include <turboquant/math/value_group.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant {

namespace detail {

/// Adds what `KeyCentring` subtracted, where the format does.
inline TURBOQUANT_FUNCTION void add_key_mean(const TileFormat& format, const std::byte* tile,
                                             std::size_t token, float* key) noexcept {
  const auto* bytes = reinterpret_cast<const unsigned char*>(tile);
  if (format.centres_keys() && is_centred(format, bytes, token)) {
    const unsigned char* const mean = bytes + format.key_mean_offset();
    for (std::size_t d = 0; d < static_cast<std::size_t>(format.key_dim); ++d) {
      key[d] += load_half(mean + 2 * d);
    }
  }
}

}  // namespace detail

/// The code of (token, dim) read bit by bit through the maps of `TileFormat`: slow, and what faster
/// readers are tested against.
[[nodiscard]] inline TURBOQUANT_FUNCTION unsigned read_key_code(const TileFormat& format,
                                                                const std::byte* tile,
                                                                std::size_t token,
                                                                std::size_t dim) noexcept {
  unsigned code = 0;
  for (unsigned bit = 0; bit < static_cast<unsigned>(format.key_code_bits()); ++bit) {
    const TileBit at = format.key_code_bit(token, dim, bit);
    code |= ((static_cast<unsigned>(tile[at.byte]) >> at.bit) & 1U) << bit;
  }
  return code;
}

/// 1 where the sketch sign of (token, dim) is negative.
[[nodiscard]] inline TURBOQUANT_FUNCTION unsigned read_key_sign(const TileFormat& format,
                                                                const std::byte* tile,
                                                                std::size_t token,
                                                                std::size_t dim) noexcept {
  const TileBit at = format.key_sign_bit(token, dim);
  return (static_cast<unsigned>(tile[at.byte]) >> at.bit) & 1U;
}

/// The value code of (token, dim).
[[nodiscard]] inline TURBOQUANT_FUNCTION unsigned read_value_code(const TileFormat& format,
                                                                  const std::byte* tile,
                                                                  std::size_t token,
                                                                  std::size_t dim) noexcept {
  unsigned code = 0;
  for (unsigned bit = 0; bit < static_cast<unsigned>(format.value_bits); ++bit) {
    const TileBit at = format.value_code_bit(token, dim, bit);
    code |= ((static_cast<unsigned>(tile[at.byte]) >> at.bit) & 1U) << bit;
  }
  return code;
}

/// The fp16 number that begins at a byte of a tile, for example `format.key_scale_byte(token)`.
[[nodiscard]] inline TURBOQUANT_FUNCTION float read_tile_half(const std::byte* tile,
                                                              std::size_t byte) noexcept {
  return detail::load_half(reinterpret_cast<const unsigned char*>(tile) + byte);
}

/// Reconstructs the key of one slot, not rotated.
/// @param tables  of a codec whose memory this code can read
/// @param out     (key_dim)
/// @param scratch (2 * key_dim)
/// O(key_dim log key_dim). Same bits always.
inline TURBOQUANT_FUNCTION void decode_key(const TileTables& tables, const std::byte* tile,
                                           std::size_t token, float* out, float* scratch) noexcept {
  const TileFormat& format = tables.format;
  const auto dim = static_cast<std::size_t>(format.key_dim);
  if (format.key_codec == KeyCodec::float8) {
    for (std::size_t d = 0; d < dim; ++d) {
      out[d] =
          float8_e4m3{static_cast<std::uint8_t>(read_key_code(format, tile, token, d))}.to_float();
    }
    detail::add_key_mean(format, tile, token, out);
    return;
  }
  const float stored = read_tile_half(tile, format.key_scale_byte(token));
  const float scale = stored < 0 ? -stored : stored;  // the sign is a mark, see `is_centred`
  for (std::size_t d = 0; d < dim; ++d) {
    out[d] = scale * tables.key_codebook.levels[read_key_code(format, tile, token, d)];
  }
  if (format.key_codec == KeyCodec::inner_product) {
    for (std::size_t d = 0; d < dim; ++d) {
      scratch[d] = read_key_sign(format, tile, token, d) != 0 ? -1.0F : 1.0F;
    }
    tables.sketch.inverse<1>(scratch, scratch + dim);
    const float factor =
        tables.residual_factor * read_tile_half(tile, format.residual_scale_byte(token));
    for (std::size_t d = 0; d < dim; ++d) {
      out[d] += factor * scratch[d];
    }
  }
  tables.key_rotation.inverse<1>(out, scratch);
  detail::add_key_mean(format, tile, token, out);
}

/// Reconstructs the value of one slot, not rotated.
/// @param tables  of a codec whose memory this code can read
/// @param out     (value_dim)
/// @param scratch (value_dim)
/// O(value_dim log value_dim). Same bits always.
inline TURBOQUANT_FUNCTION void decode_value(const TileTables& tables, const std::byte* tile,
                                             std::size_t token, float* out,
                                             float* scratch) noexcept {
  const TileFormat& format = tables.format;
  const auto size = static_cast<std::size_t>(format.value_group);
  for (std::size_t d = 0; d < static_cast<std::size_t>(format.value_dim); ++d) {
    const unsigned code = read_value_code(format, tile, token, d);
    const float scale = read_tile_half(tile, format.value_scale_byte(token, d / size));
    if (format.value_codec == ValueCodec::grouped) {
      out[d] = value_of_code(scale, static_cast<int>(code),
                             read_tile_half(tile, format.value_zero_byte(token, d / size)));
    } else {
      out[d] = scale * tables.value_codebook.levels[code];
    }
  }
  if (tables.rotates_values()) {
    tables.value_rotation.inverse<1>(out, scratch);
  }
}

}  // namespace turboquant
