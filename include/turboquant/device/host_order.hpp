#pragma once

#include <turboquant/device/tile_order.hpp>

#include <cstddef>

/// @file
/// Where bits are in host order.
///
/// One dword is one token x 8 (3 and 4 bits), 16 (2 bits), 32 (signs) or 4 (fp8) key dimensions, or
/// one value dimension x 8 or 16 tokens, so that a processor scores 16 tokens or accumulates 16
/// dimensions with one vector register and no horizontal sum.
/// - Key codes: per 32 dimensions `bits` (4 bits: 4, fp8: 8) rows of 64 dwords, one a token. The
/// low
///   nibbles of bytes 0 to 3 of a dword are dimensions 0 to 3, the high nibbles dimensions 4 to 7.
///   3 bits: bit 3 of every nibble of rows 0, 1, 2 is bit 0, 1, 2 of the fourth group of 8
///   dimensions. 2 bits: the upper half of a nibble belongs to dimensions 8 to 15. Signs: bit w of
///   nibble n is dimension 8 w + n. Up to 3 bits a rest of 8, 16 or 24 dimensions follows as byte
///   planes: per 8 dimensions `bits` rows of 64 bytes, bit j of a byte being dimension j.
/// - Value codes: per 32 dimensions `2 bits` rows of 32 dwords (the last block may be narrower). A
///   dword is one dimension x 8 tokens (4 bits) or 16 tokens (2 bits), lowest bits first. 3 bits:
///   32 tokens take 3 dwords of 8 nibbles; bit 3 of the nibbles holds the fourth group of 8 tokens
///   as for keys.
/// - fp16: one a token.
///
/// A tile of 32 or 16 tokens has as many tokens in its rows instead of 64. Three bits of 16 tokens
/// fill no dwords: per 32 value dimensions 3 rows of 32 words of 16 bits, bit t of a word of row b
/// being bit b of the code of token t.

namespace turboquant::detail::host_order {

constexpr TURBOQUANT_FUNCTION TileBit in_word(std::size_t section, std::size_t word,
                                              unsigned bit) noexcept {
  return {section + 4 * word + bit / 8, bit % 8};
}

/// Lowest bit of nibble n of 8 in a dword: low nibbles of bytes 0..3, then their high nibbles.
constexpr TURBOQUANT_FUNCTION unsigned nibble_shift(std::size_t n) noexcept {
  return static_cast<unsigned>(n % 4 * 8 + n / 4 * 4);
}

/// Bit `bit` of the key code of `width` bits of (token, dim) of a tile of `tokens` tokens;
/// `section` is the first byte.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION TileBit key_bit(std::size_t section, unsigned width,
                                                            std::size_t tokens, std::size_t key_dim,
                                                            std::size_t token, std::size_t dim,
                                                            unsigned bit) noexcept {
  if (width == 8) {
    return in_word(section, dim / 4 * tokens + token, static_cast<unsigned>(dim % 4) * 8 + bit);
  }
  if (width == 4) {
    return in_word(section, dim / 8 * tokens + token, nibble_shift(dim % 8) + bit);
  }
  const std::size_t block = dim / 32;
  const std::size_t whole = key_dim / 32;
  const std::size_t group = dim % 32 / 8;
  if (block == whole) {
    const std::size_t plane = group * width + bit;
    return {section + whole * 4 * tokens * width + plane * tokens + token,
            static_cast<unsigned>(dim % 8)};
  }
  const unsigned nibble = nibble_shift(dim % 8);
  switch (width) {
    case 1: return in_word(section, block * tokens + token, nibble + static_cast<unsigned>(group));
    case 2:
      return in_word(section, (2 * block + group / 2) * tokens + token,
                     nibble + 2 * static_cast<unsigned>(group % 2) + bit);
    default:
      return in_word(section, (3 * block + (group < 3 ? group : bit)) * tokens + token,
                     nibble + (group < 3 ? bit : 3));
  }
}

/// Whether values of `width` bits of a tile of `tokens` tokens are rows of 16-bit words, a bit a
/// token.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION bool has_value_planes(unsigned width,
                                                                  std::size_t tokens) noexcept {
  return width == 3 && tokens == 16;
}

/// Bit `bit` of the value code of `width` bits of (token, dim) of a tile of `tokens` tokens.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION TileBit value_bit(std::size_t section, unsigned width,
                                                              std::size_t tokens,
                                                              std::size_t value_dim,
                                                              std::size_t token, std::size_t dim,
                                                              unsigned bit) noexcept {
  const std::size_t block = dim / 32;
  const std::size_t rest = value_dim - 32 * block;
  const std::size_t row_width = rest < 32 ? rest : 32;
  if (has_value_planes(width, tokens)) {
    return {section + block * 32 * 6 + 2 * (bit * row_width + dim % 32) + token / 8,
            static_cast<unsigned>(token % 8)};
  }
  std::size_t row = 0;
  unsigned position = 0;
  if (width == 3) {
    const std::size_t group = token % 32 / 8;
    const auto nibble = static_cast<unsigned>(token % 8) * 4;
    row = token / 32 * 3 + (group < 3 ? group : bit);
    position = nibble + (group < 3 ? bit : 3);
  } else {
    const std::size_t per_word = 32 / width;
    row = token / per_word;
    position = static_cast<unsigned>(token % per_word) * width + bit;
  }
  return in_word(section, block * tokens * width + row * row_width + dim % 32, position);
}

}  // namespace turboquant::detail::host_order
