#pragma once

#include <turboquant/base/codec.hpp>
#include <turboquant/base/error.hpp>
#include <turboquant/device/host_order.hpp>
#include <turboquant/device/mma_order.hpp>
#include <turboquant/device/tile_order.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace turboquant {

/// What one tile holds and where: 64, or for smaller pages 32 or 16, tokens of one kv head,
/// self-contained and contiguous, without padding. This is format version 1.
///
/// Its fields, in walking order, little-endian, for every sub-tile (in host order a tile is one):
/// - key codes
/// - key signs of the sketch, 1 = negative (inner_product only)
/// - key scales, fp16 (not for float8)
/// - residual scales, fp16 (inner_product only)
/// - value scales, fp16, group after group
/// - value zero points, fp16, group after group (grouped only)
/// - value codes
///
/// Where a bit or number is in its field depends on the order: `host_order.hpp`, `mma_order.hpp`.
/// With `KeyCentring::tile_mean` there follow, once per tile and behind all sub-tiles:
/// - the key mean, fp16, dimension after dimension, not rotated; then zeros up to a multiple of 64
///   bytes
///
/// Codes and scale of a key are then those of the key minus this mean, or, where that is longer
/// than the key, of the key itself, and the sign bit of its scale is set (`key_mean.hpp`; fp8 keys
/// have no scale and are all centred).
///
/// Values of odd tokens are stored mirrored: scale negative, zero point at the maximum, code
/// `2^bits - 1 - c`. Sums of codes over tokens then have no large common mean, which an accumulator
/// of limited precision would lose.
struct TileFormat {
  static constexpr int version = 1;
  /// Tokens of a tile at most; kernels take as many in a step, whatever the size of tiles.
  static constexpr std::size_t max_tokens = 64;

  KeyCodec key_codec = KeyCodec::mse;
  int key_bits = 3;   ///< stored bits per key dimension, the sign of inner_product included
  int key_dim = 128;  ///< multiple of 8, 16 to 576
  ValueCodec value_codec = ValueCodec::grouped;
  int value_bits = 4;   ///< 2, 3 or 4
  int value_dim = 128;  ///< multiple of 8, 16 to 576
  int value_group =
      128;  ///< dimensions per value group, a divisor of value_dim; value_dim for codebook

  TileOrder order = TileOrder::host;
  KeyCentring key_centring = KeyCentring::none;
  int tile_tokens = 64;  ///< 16, 32 or 64; 64 with key means. Pages hold whole tiles.

  friend constexpr bool operator==(const TileFormat&, const TileFormat&) noexcept = default;

  /// Bits of a key code without the sketch sign.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION int key_code_bits() const noexcept {
    return key_codec == KeyCodec::inner_product ? key_bits - 1 : key_bits;
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t value_groups() const noexcept {
    return static_cast<std::size_t>(value_dim / value_group);
  }

  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t tokens() const noexcept {
    return static_cast<std::size_t>(tile_tokens);
  }
  /// Tokens that lie together with all their fields: those of a tile in host order.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t sub_tile_tokens() const noexcept {
    if (order == TileOrder::host) {
      return tokens();
    }
    return detail::mma_order::sub_tile_tokens(static_cast<std::size_t>(key_dim),
                                              static_cast<std::size_t>(value_dim), tokens());
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t sub_tile_bytes() const noexcept {
    return sub_tile_tokens() * token_bytes();
  }

  // First byte of each field, from the start of its sub-tile.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t key_codes_offset() const noexcept {
    return 0;
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t key_signs_offset() const noexcept {
    return sub_tile_tokens() * key_code_bytes();
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t key_scales_offset() const noexcept {
    return sub_tile_tokens() * (key_code_bytes() + key_sign_bytes());
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t residual_scales_offset() const noexcept {
    return key_scales_offset() + (key_codec == KeyCodec::float8 ? 0 : 2 * sub_tile_tokens());
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t value_scales_offset() const noexcept {
    return residual_scales_offset() +
           (key_codec == KeyCodec::inner_product ? 2 * sub_tile_tokens() : 0);
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t value_zeros_offset() const noexcept {
    return value_scales_offset() + 2 * sub_tile_tokens() * value_groups();
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t value_codes_offset() const noexcept {
    return value_zeros_offset() +
           (value_codec == ValueCodec::grouped ? 2 * sub_tile_tokens() * value_groups() : 0);
  }

  [[nodiscard]] constexpr TURBOQUANT_FUNCTION bool centres_keys() const noexcept {
    return key_centring != KeyCentring::none;
  }
  /// First byte of the fp16 key mean, from the start of the tile in every order.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t key_mean_offset() const noexcept {
    return tokens() * token_bytes();
  }
  /// Bytes of the key mean of a tile with its padding, a multiple of 64; 0 without means.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t key_mean_bytes() const noexcept {
    return centres_keys() ? (2 * static_cast<std::size_t>(key_dim) + 63) / 64 * 64 : 0;
  }

  /// Bytes of one tile, a multiple of `tile_tokens`; the same in every order.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t bytes() const noexcept {
    return tokens() * token_bytes() + key_mean_bytes();
  }
  /// Bytes per token and kv head, its share of the key mean included.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t slot_bytes() const noexcept {
    return token_bytes() + key_mean_bytes() / tokens();
  }
  /// Bytes per token and kv head of scales and zero points.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t metadata_bytes() const noexcept {
    const std::size_t keys =
        key_codec == KeyCodec::float8 ? 0 : (key_codec == KeyCodec::inner_product ? 2 : 1);
    return 2 * (keys + value_groups() * (value_codec == ValueCodec::grouped ? 2 : 1));
  }

  /// Where bit `bit` of the key code of (token, dim) is; 0 <= token < tile_tokens, 0 <= dim <
  /// key_dim.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION TileBit key_code_bit(std::size_t token,
                                                                   std::size_t dim,
                                                                   unsigned bit) const noexcept {
    return key_bit(key_codes_offset(), static_cast<unsigned>(key_code_bits()), token, dim, bit);
  }
  /// Where the sketch sign of (token, dim) is (inner_product only).
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION TileBit key_sign_bit(std::size_t token,
                                                                   std::size_t dim) const noexcept {
    return key_bit(key_signs_offset(), 1, token, dim, 0);
  }
  /// Where bit `bit` of the value code of (token, dim) is; 0 <= token < tile_tokens, 0 <= dim <
  /// value_dim.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION TileBit value_code_bit(std::size_t token,
                                                                     std::size_t dim,
                                                                     unsigned bit) const noexcept {
    const auto width = static_cast<unsigned>(value_bits);
    const auto value_dims = static_cast<std::size_t>(value_dim);
    if (order == TileOrder::host) {
      return detail::host_order::value_bit(value_codes_offset(), width, tokens(), value_dims, token,
                                           dim, bit);
    }
    const std::size_t start = sub_tile(token) + value_codes_offset();
    const bool table = value_codec == ValueCodec::codebook;
    return mma_bit(
        start, width, table, value_dims,
        detail::mma_order::value_nibble(table, value_dims, token % sub_tile_tokens(), dim), bit);
  }

  /// First byte of the fp16 key scale of a token; not for float8.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t key_scale_byte(
      std::size_t token) const noexcept {
    return key_half(key_scales_offset(), token);
  }
  /// First byte of the fp16 residual scale of a token (inner_product only).
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t residual_scale_byte(
      std::size_t token) const noexcept {
    return key_half(residual_scales_offset(), token);
  }
  /// First byte of the fp16 scale of a token's value group.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t value_scale_byte(
      std::size_t token, std::size_t group = 0) const noexcept {
    return value_half(value_scales_offset(), token, group);
  }
  /// First byte of the fp16 zero point of a token's value group (grouped only).
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t value_zero_byte(
      std::size_t token, std::size_t group = 0) const noexcept {
    return value_half(value_zeros_offset(), token, group);
  }

 private:
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t token_bytes() const noexcept {
    return key_code_bytes() + key_sign_bytes() + metadata_bytes() +
           static_cast<std::size_t>(value_dim * value_bits) / 8;
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t key_code_bytes() const noexcept {
    return static_cast<std::size_t>(key_dim * key_code_bits()) / 8;
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t key_sign_bytes() const noexcept {
    return key_codec == KeyCodec::inner_product ? static_cast<std::size_t>(key_dim) / 8 : 0;
  }

  /// First byte of the sub-tile of a token.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t sub_tile(
      std::size_t token) const noexcept {
    return token / sub_tile_tokens() * sub_tile_bytes();
  }

  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t key_half(
      std::size_t offset, std::size_t token) const noexcept {
    const std::size_t each = sub_tile_tokens();
    return order == TileOrder::host
               ? offset + 2 * token
               : sub_tile(token) + offset + 2 * detail::mma_order::key_half(each, token % each);
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t value_half(
      std::size_t offset, std::size_t token, std::size_t group) const noexcept {
    const std::size_t each = sub_tile_tokens();
    const std::size_t in_group =
        order == TileOrder::host ? token : detail::mma_order::value_half(each, token % each);
    return sub_tile(token) + offset + 2 * (group * each + in_group);
  }

  [[nodiscard]] constexpr TURBOQUANT_FUNCTION TileBit key_bit(std::size_t offset, unsigned width,
                                                              std::size_t token, std::size_t dim,
                                                              unsigned bit) const noexcept {
    const auto key_dims = static_cast<std::size_t>(key_dim);
    if (order == TileOrder::host) {
      return detail::host_order::key_bit(offset, width, tokens(), key_dims, token, dim, bit);
    }
    return mma_bit(
        sub_tile(token) + offset, width, true, key_dims,
        detail::mma_order::key_nibble(sub_tile_tokens(), key_dims, token % sub_tile_tokens(), dim),
        bit);
  }

  [[nodiscard]] constexpr TURBOQUANT_FUNCTION TileBit mma_bit(std::size_t start, unsigned width,
                                                              bool table, std::size_t dim,
                                                              detail::mma_order::Nibble at,
                                                              unsigned bit) const noexcept {
    const std::size_t count = detail::mma_order::selectors(sub_tile_tokens(), dim);
    const std::size_t packed = detail::mma_order::packed_selectors(width, count);
    if (at.selector >= packed) {
      return {start + detail::mma_order::plane_byte(width, packed, at.selector, bit) + at.lane,
              static_cast<unsigned>(at.nibble)};
    }
    if (width == 8) {
      const detail::mma_order::Nibble byte = detail::mma_order::float8_byte(at);
      return {
          start + detail::mma_order::word_byte(byte.lane, byte.selector, 2 * count) + byte.nibble,
          bit};
    }
    const detail::mma_order::WordBit in_word =
        detail::mma_order::selector_bit(width, table, packed, at.selector, at.nibble, bit);
    return {start + detail::mma_order::word_byte(at.lane, in_word.word, packed * width / 4) +
                in_word.bit / 8,
            in_word.bit % 8};
  }
};

/// Checks every field of a format.
/// @throws Error(unsupported) naming the field, its value and what is supported.
constexpr void require_supported(const TileFormat& format) {
  const auto dim_ok = [](int dim) { return dim >= 16 && dim <= 576 && dim % 8 == 0; };
  require(dim_ok(format.key_dim), ErrorCode::unsupported, "TileFormat: key_dim is ", format.key_dim,
          ", expected a multiple of 8 from 16 to 576");
  require(dim_ok(format.value_dim), ErrorCode::unsupported, "TileFormat: value_dim is ",
          format.value_dim, ", expected a multiple of 8 from 16 to 576");
  require(format.key_codec == KeyCodec::mse || format.key_codec == KeyCodec::inner_product ||
              format.key_codec == KeyCodec::float8,
          ErrorCode::unsupported, "TileFormat: key_codec is ", static_cast<int>(format.key_codec),
          ", expected mse, inner_product or float8");
  require(format.value_codec == ValueCodec::grouped || format.value_codec == ValueCodec::codebook,
          ErrorCode::unsupported, "TileFormat: value_codec is ",
          static_cast<int>(format.value_codec), ", expected grouped or codebook");
  require(format.order == TileOrder::host || format.order == TileOrder::mma, ErrorCode::unsupported,
          "TileFormat: order is ", static_cast<int>(format.order), ", expected host or mma");
  require(format.tile_tokens == 16 || format.tile_tokens == 32 || format.tile_tokens == 64,
          ErrorCode::unsupported, "TileFormat: tile_tokens is ", format.tile_tokens,
          ", expected 16, 32 or 64");
  require(format.key_centring == KeyCentring::none || format.key_centring == KeyCentring::tile_mean,
          ErrorCode::unsupported, "TileFormat: key_centring is ",
          static_cast<int>(format.key_centring), ", expected none or tile_mean");
  require(format.key_centring == KeyCentring::none || format.tile_tokens == 64,
          ErrorCode::unsupported, "TileFormat: tile_tokens is ", format.tile_tokens,
          ", expected 64 with key_centring tile_mean");
  switch (format.key_codec) {
    case KeyCodec::mse:
      require(format.key_bits >= 2 && format.key_bits <= 4, ErrorCode::unsupported,
              "TileFormat: key_bits is ", format.key_bits, ", expected 2, 3 or 4 for mse keys");
      break;
    case KeyCodec::inner_product:
      require(format.key_bits == 3 || format.key_bits == 4, ErrorCode::unsupported,
              "TileFormat: key_bits is ", format.key_bits,
              ", expected 3 or 4 for inner_product keys");
      break;
    case KeyCodec::float8:
      require(format.key_bits == 8, ErrorCode::unsupported, "TileFormat: key_bits is ",
              format.key_bits, ", expected 8 for float8 keys");
      break;
  }
  require(format.value_bits >= 2 && format.value_bits <= 4, ErrorCode::unsupported,
          "TileFormat: value_bits is ", format.value_bits, ", expected 2, 3 or 4");
  require(format.value_group >= 8 && format.value_group % 8 == 0 &&
              format.value_dim % format.value_group == 0,
          ErrorCode::unsupported, "TileFormat: value_group is ", format.value_group,
          ", expected a multiple of 8 that divides value_dim = ", format.value_dim);
  require(format.value_codec == ValueCodec::grouped || format.value_group == format.value_dim,
          ErrorCode::unsupported, "TileFormat: value_group is ", format.value_group,
          ", expected value_dim = ", format.value_dim, " for codebook values");
  for (const auto& [name, dim] :
       {std::pair{"key_dim", format.key_dim}, std::pair{"value_dim", format.value_dim}}) {
    require(
        format.order == TileOrder::host || detail::mma_order::fits(static_cast<std::size_t>(dim)),
        ErrorCode::unsupported, "TileFormat: ", name, " is ", dim,
        ", expected a multiple of 16 in mma order");
  }
}

/// The largest `tile_tokens` of which pages of `block_size` tokens hold whole numbers: larger tiles
/// are encoded and read faster.
/// @throws Error(unsupported) for a block size that is no positive multiple of 16
[[nodiscard]] constexpr int largest_tile(std::int64_t block_size) {
  require(block_size > 0 && block_size % 16 == 0, ErrorCode::unsupported,
          "largest_tile: block_size is ", block_size, ", expected a positive multiple of 16");
  return block_size % 64 == 0 ? 64 : (block_size % 32 == 0 ? 32 : 16);
}

/// Whether tiles of both formats hold the same codes and numbers, in whatever order and in tiles of
/// whatever size.
[[nodiscard]] constexpr bool same_content(TileFormat a, const TileFormat& b) noexcept {
  a.order = b.order;
  a.tile_tokens = b.tile_tokens;
  return a == b;
}

}  // namespace turboquant
