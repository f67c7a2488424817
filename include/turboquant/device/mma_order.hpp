#pragma once

#include <turboquant/device/tile_order.hpp>

#include <cstddef>

/// @file
/// Where bits are in mma order.
///
/// A tile is a row of self-contained *sub-tiles* of 16, 32 or 64 tokens, each with all fields. Code
/// words belong to 32 lanes: lane 4 r + c (r 0 to 7, c 0 to 3) owns the same number of dwords as
/// every other, and four of its dwords lie together, so that 32 lanes load 512 consecutive bytes.
/// The lane numbers are those of an 8 x 8 matrix operand, whose row is r and whose columns are 2 c
/// and 2 c + 1 (16 bits) or 4 c to 4 c + 3 (8 bits).
///
/// Codes are arranged in *selectors*, dwords of 8 nibbles of one code each. Selectors of less than
/// 4 bits share dwords: 4, 2 or, at 3 bits, 4 in 3 (bit 3 of the nibbles of three dwords holds the
/// fourth selector). What is left of a small tile's selectors and fills no dwords with the others
/// follows as byte planes: per selector `bits` rows of 32 bytes, one a lane, bit n being nibble
/// n's.
///
///   keys    selector nt D/32 + ks of a lane: token 8 nt + r, dimensions c W + 8 ks to c W + 8 ks +
///   7
///           with W = D / 32 * 8. A rest of 16 dimensions follows: selector nt/2 holds dimensions 4
///           c to 4 c + 3 of the rest for token 8 nt + r (nibbles 0 to 3) and token 8 (nt + 1) + r.
///           Of a 4-bit code, bit 3 of nibble n is bit 7 of byte n, or bit 3 of byte n - 4. fp8: 2
///           dwords take the place of a selector.
///   values  selector ks D/16 + mt: dimensions 16 mt + 2 r and 16 mt + 2 r + 1 of four tokens,
///           16 ks + {2 c, 2 c + 8, 2 c + 1, 2 c + 9} of grouped and 16 ks + {2 c, 2 c + 1, 2 c +
///           8, 2 c + 9} of codebook values, one byte a token, the even dimension in its low
///           nibble.
///   fp16    keys: number r NT + nt is of token 8 nt + r, with NT = tokens / 8. Values: number
///           2 c NT + 2 nt + e is of token 8 nt + 2 c + e.

namespace turboquant::detail::mma_order {

/// Whether the order can hold vectors of `dim` coordinates.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION bool fits(std::size_t dim) noexcept {
  return dim % 16 == 0;
}

/// Selectors of one lane for `tokens` tokens of `dim` coordinates, of keys or values.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t selectors(std::size_t tokens,
                                                                  std::size_t dim) noexcept {
  return tokens * dim / 256;
}

/// Tokens of a sub-tile: as many as registers of a warp hold at once, and enough that selectors of
/// 1 to 3 bits fill dwords, but not more than the tile has.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t sub_tile_tokens(
    std::size_t key_dim, std::size_t value_dim, std::size_t tile_tokens = 64) noexcept {
  const std::size_t widest = key_dim > value_dim ? key_dim : value_dim;
  std::size_t tokens = widest <= 64 ? 64 : (widest <= 128 ? 32 : 16);
  while (tokens < 64 && (tokens * key_dim % 1024 != 0 || tokens * value_dim % 1024 != 0)) {
    tokens *= 2;
  }
  return tokens < tile_tokens ? tokens : tile_tokens;
}

/// Byte, from the start of its section, of dword `word` of `words` of a lane. Less than four dwords
/// at the end lie together too.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t word_byte(std::size_t lane,
                                                                  std::size_t word,
                                                                  std::size_t words) noexcept {
  const std::size_t start = word / 4 * 4;
  const std::size_t together = words - start < 4 ? words - start : 4;
  return 128 * start + 4 * (lane * together + word - start);
}

/// How many of a lane's `count` selectors fill dwords with each other.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t packed_selectors(
    unsigned width, std::size_t count) noexcept {
  const std::size_t together = width >= 4 ? 1 : (width == 2 ? 2 : 4);
  return count / together * together;
}

/// Byte, from the start of its section, of lane 0 in the plane of a bit of a selector that is not
/// packed.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t plane_byte(unsigned width,
                                                                   std::size_t packed,
                                                                   std::size_t selector,
                                                                   unsigned bit) noexcept {
  return 32 * (packed * width + (selector - packed) * width + bit);
}

/// A nibble of a selector of a lane.
struct Nibble {
  std::size_t lane = 0;
  std::size_t selector = 0;
  std::size_t nibble = 0;
};

/// The nibble of the key code of (token of the sub-tile, dim).
[[nodiscard]] constexpr TURBOQUANT_FUNCTION Nibble key_nibble(std::size_t tokens,
                                                              std::size_t key_dim,
                                                              std::size_t token,
                                                              std::size_t dim) noexcept {
  const std::size_t blocks = key_dim / 32;
  const std::size_t row = token % 8;
  const std::size_t nt = token / 8;
  if (dim < 32 * blocks) {
    const std::size_t column = dim / (8 * blocks);
    return {4 * row + column, nt * blocks + dim % (8 * blocks) / 8, dim % 8};
  }
  const std::size_t rest = dim - 32 * blocks;
  return {4 * row + rest / 4, tokens / 8 * blocks + nt / 2, nt % 2 * 4 + rest % 4};
}

/// The nibble of the value code of (token of the sub-tile, dim).
/// @param table whether codes index a table (codebook) or are numbers (grouped)
[[nodiscard]] constexpr TURBOQUANT_FUNCTION Nibble value_nibble(bool table, std::size_t value_dim,
                                                                std::size_t token,
                                                                std::size_t dim) noexcept {
  const std::size_t column = token % 8 / 2;
  const std::size_t odd = token % 2;
  const std::size_t upper = token % 16 / 8;
  const std::size_t byte = table ? 2 * upper + odd : 2 * odd + upper;
  return {dim % 16 / 2 * 4 + column, token / 16 * (value_dim / 16) + dim / 16, 2 * byte + dim % 2};
}

/// The byte of the fp8 key at the place of a nibble: two dwords of a lane take the place of a
/// selector.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION Nibble float8_byte(Nibble at) noexcept {
  return {at.lane, 2 * at.selector + at.nibble / 4, at.nibble % 4};
}

/// Number of the fp16 of a token among those of its sub-tile.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t key_half(std::size_t tokens,
                                                                 std::size_t token) noexcept {
  return token % 8 * (tokens / 8) + token / 8;
}
[[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t value_half(std::size_t tokens,
                                                                   std::size_t token) noexcept {
  return token % 8 / 2 * (tokens / 4) + token / 8 * 2 + token % 2;
}

/// A dword of a lane and a bit of it.
struct WordBit {
  std::size_t word = 0;
  unsigned bit = 0;
};

/// Where bit `bit` of a nibble of a selector is.
/// @param width bits per code, 1 to 4
/// @param table whether codes index a table: keys and codebook values
/// @param count packed selectors of the lane
[[nodiscard]] constexpr TURBOQUANT_FUNCTION WordBit selector_bit(unsigned width, bool table,
                                                                 std::size_t count,
                                                                 std::size_t selector,
                                                                 std::size_t nibble,
                                                                 unsigned bit) noexcept {
  const auto start = static_cast<unsigned>(4 * nibble);
  switch (width) {
    case 1: return {selector / 4, start + static_cast<unsigned>(selector % 4)};
    case 2: {
      const auto odd = static_cast<unsigned>(selector % 2);
      if (table) {
        return {selector / 2, start + 2 * odd + bit};
      }
      // Both numbers of a byte and both selectors in turn, so that one mask drops the lower ones.
      return {selector / 2, static_cast<unsigned>(nibble / 2 * 8 + nibble % 2 * 2) + 4 * odd + bit};
    }
    case 3: {
      const std::size_t quarter = count / 4;
      if (selector % 4 < 3) {
        return {selector / 4 + selector % 4 * quarter, start + bit};
      }
      return {selector / 4 + bit * quarter, start + 3};
    }
    default:
      if (table && bit == 3) {
        return {selector, static_cast<unsigned>(nibble < 4 ? 8 * nibble + 7 : 8 * nibble - 29)};
      }
      return {selector, start + bit};
  }
}

}  // namespace turboquant::detail::mma_order
