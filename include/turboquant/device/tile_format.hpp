#pragma once

#include <turboquant/base/codec.hpp>
#include <turboquant/base/error.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant {

/// A bit inside a tile: bit `bit` (0 the lowest) of byte `byte`.
struct TileBit {
  std::size_t byte = 0;
  unsigned bit = 0;

  friend constexpr bool operator==(TileBit, TileBit) noexcept = default;
};

/// What one tile holds and where: 64 tokens of one kv head, self-contained and contiguous, without
/// padding.
///
/// This is format version 1 in *host order*: one dword is one token x 8 (3 and 4 bits), 16 (2 bits)
/// or 4 (fp8) key dimensions, or one value dimension x 8 or 16 tokens, so that a processor scores
/// 16 tokens or accumulates 16 dimensions with one vector register and no horizontal sum. Fields in
/// walking order, all little-endian:
///
///   key codes       per 32 dimensions `bits` (4 bits: 4, fp8: 8) rows of 64 dwords. The low
///   nibbles of bytes 0..3 of a dword
///                   are dimensions 0..3, the high nibbles dimensions 4..7. 3 bits: bit 3 of every
///                   nibble of rows 0, 1, 2 is bit 0, 1, 2 of the fourth group of 8 dimensions. 2
///                   bits: the upper half of a nibble belongs to dimensions 8..15. Up to 3 bits a
///                   rest of 8, 16 or 24 dimensions follows as byte planes: per 8 dimensions `bits`
///                   rows of 64 bytes, bit j of a byte being dimension j.
///   key signs       inner_product only, as 1-bit codes: bit w of nibble n of a dword is dimension
///   8 w + n; 1 = negative key scales      [64] fp16; not for float8 residual scales [64] fp16;
///   inner_product only value scales    [groups][64] fp16 value zeros     [groups][64] fp16;
///   grouped only value codes     per 32 dimensions `2 bits` rows of 32 dwords (the last block may
///   be narrower): a dword is one
///                   dimension x 8 tokens (4 bits) or 16 tokens (2 bits), lowest bits first. 3
///                   bits: 32 tokens take 3 dwords of 8 nibbles; bit 3 of the nibbles holds the
///                   fourth group of 8 tokens as for keys.
///
/// Values of odd tokens are stored mirrored: scale negative, zero point at the maximum, code
/// `2^bits - 1 - c`. Sums of codes over tokens then have no large common mean, which an accumulator
/// of limited precision would lose.
struct TileFormat {
  static constexpr int version = 1;
  static constexpr std::size_t tokens = 64;

  KeyCodec key_codec = KeyCodec::mse;
  int key_bits = 3;   ///< stored bits per key dimension, the sign of inner_product included
  int key_dim = 128;  ///< multiple of 8, 16 to 576
  ValueCodec value_codec = ValueCodec::grouped;
  int value_bits = 4;   ///< 2, 3 or 4
  int value_dim = 128;  ///< multiple of 8, 16 to 576
  int value_group =
      128;  ///< dimensions per value group, a divisor of value_dim; value_dim for codebook

  friend constexpr bool operator==(const TileFormat&, const TileFormat&) noexcept = default;

  /// Bits of a key code without the sketch sign.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION int key_code_bits() const noexcept {
    return key_codec == KeyCodec::inner_product ? key_bits - 1 : key_bits;
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t value_groups() const noexcept {
    return static_cast<std::size_t>(value_dim / value_group);
  }

  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t key_codes_offset() const noexcept {
    return 0;
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t key_signs_offset() const noexcept {
    return tokens * static_cast<std::size_t>(key_dim * key_code_bits()) / 8;
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t key_scales_offset() const noexcept {
    return key_signs_offset() + (key_codec == KeyCodec::inner_product
                                     ? tokens * static_cast<std::size_t>(key_dim) / 8
                                     : 0);
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t residual_scales_offset() const noexcept {
    return key_scales_offset() + (key_codec == KeyCodec::float8 ? 0 : 2 * tokens);
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t value_scales_offset() const noexcept {
    return residual_scales_offset() + (key_codec == KeyCodec::inner_product ? 2 * tokens : 0);
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t value_zeros_offset() const noexcept {
    return value_scales_offset() + 2 * tokens * value_groups();
  }
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t value_codes_offset() const noexcept {
    return value_zeros_offset() +
           (value_codec == ValueCodec::grouped ? 2 * tokens * value_groups() : 0);
  }
  /// Bytes of one tile, a multiple of 64.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t bytes() const noexcept {
    return value_codes_offset() + tokens * static_cast<std::size_t>(value_dim * value_bits) / 8;
  }
  /// Bytes per token and kv head: `bytes() / 64`, exactly.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t slot_bytes() const noexcept {
    return bytes() / tokens;
  }

  /// Where bit `bit` of the key code of (token, dim) is; 0 <= token < 64, 0 <= dim < key_dim.
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
  /// Where bit `bit` of the value code of (token, dim) is; 0 <= token < 64, 0 <= dim < value_dim.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION TileBit value_code_bit(std::size_t token,
                                                                     std::size_t dim,
                                                                     unsigned bit) const noexcept {
    const auto width_bits = static_cast<unsigned>(value_bits);
    const std::size_t block = dim / 32;
    const std::size_t rest = static_cast<std::size_t>(value_dim) - 32 * block;
    const std::size_t row_width = rest < 32 ? rest : 32;
    std::size_t row = 0;
    unsigned position = 0;
    if (width_bits == 3) {
      const std::size_t group = token % 32 / 8;
      const auto nibble = static_cast<unsigned>(token % 8) * 4;
      row = token / 32 * 3 + (group < 3 ? group : bit);
      position = nibble + (group < 3 ? bit : 3);
    } else {
      const std::size_t per_word = 32 / width_bits;
      row = token / per_word;
      position = static_cast<unsigned>(token % per_word) * width_bits + bit;
    }
    const std::size_t word = block * 64 * width_bits + row * row_width + dim % 32;
    return in_word(value_codes_offset(), word, position);
  }

 private:
  static constexpr TURBOQUANT_FUNCTION TileBit in_word(std::size_t offset, std::size_t word,
                                                       unsigned bit) noexcept {
    return {offset + 4 * word + bit / 8, bit % 8};
  }

  /// Position of nibble n of 8 in a dword: low nibbles of bytes 0..3, then their high nibbles.
  static constexpr TURBOQUANT_FUNCTION unsigned nibble_position(std::size_t n) noexcept {
    return static_cast<unsigned>(n % 4 * 8 + n / 4 * 4);
  }

  [[nodiscard]] constexpr TURBOQUANT_FUNCTION TileBit key_bit(std::size_t offset, unsigned width,
                                                              std::size_t token, std::size_t dim,
                                                              unsigned bit) const noexcept {
    if (width == 8) {
      return in_word(offset, dim / 4 * tokens + token, static_cast<unsigned>(dim % 4) * 8 + bit);
    }
    if (width == 4) {
      return in_word(offset, dim / 8 * tokens + token, nibble_position(dim % 8) + bit);
    }
    const std::size_t block = dim / 32;
    const std::size_t whole = static_cast<std::size_t>(key_dim) / 32;
    const std::size_t group = dim % 32 / 8;
    if (block == whole) {
      const std::size_t plane = group * width + bit;
      return {offset + whole * 4 * tokens * width + plane * tokens + token,
              static_cast<unsigned>(dim % 8)};
    }
    const unsigned nibble = nibble_position(dim % 8);
    switch (width) {
      case 1: return in_word(offset, block * tokens + token, nibble + static_cast<unsigned>(group));
      case 2:
        return in_word(offset, (2 * block + group / 2) * tokens + token,
                       nibble + 2 * static_cast<unsigned>(group % 2) + bit);
      default:
        return in_word(offset, (3 * block + (group < 3 ? group : bit)) * tokens + token,
                       nibble + (group < 3 ? bit : 3));
    }
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
}

}  // namespace turboquant
