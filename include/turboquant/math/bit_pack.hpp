#pragma once

#include <turboquant/base/error.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

/// @file
/// Dense codes of 1 to 8 bits, least significant bit first: bit `b` of code `i` is bit `i * bits +
/// b` of the byte string, bit 0 of a byte being its lowest. A 3-bit code takes 3 bits; the unused
/// high bits of the last byte are 0.

namespace turboquant {

/// Bytes of `count` codes: `ceil(count * bits / 8)`, for `bits` in 1..8.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t packed_bytes(std::size_t count,
                                                                     int bits) noexcept {
  const auto width = static_cast<std::size_t>(bits);
  return count / 8 * width + (count % 8 * width + 7) / 8;
}

/// Code `index` of a packed byte string, for `bits` in 1..8; reads no byte past the last one the
/// code touches.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION std::uint8_t read_code(const std::uint8_t* bytes,
                                                                   std::size_t index,
                                                                   int bits) noexcept {
  const std::size_t group = index / 8 * static_cast<std::size_t>(bits);
  const auto bit = static_cast<unsigned>(index % 8) * static_cast<unsigned>(bits);
  const std::uint8_t* at = bytes + group + bit / 8;
  unsigned word = at[0];
  if (bit % 8 + static_cast<unsigned>(bits) > 8) {
    word |= static_cast<unsigned>(at[1]) << 8U;
  }
  return static_cast<std::uint8_t>((word >> (bit % 8)) &
                                   ((1U << static_cast<unsigned>(bits)) - 1U));
}

namespace detail {

inline void check_bits(const char* caller, int bits) {
  require(bits >= 1 && bits <= 8, ErrorCode::invalid_argument, caller, ": bits is ", bits,
          ", expected 1 to 8");
}

/// Packs `count <= 8` codes into `(count * bits + 7) / 8` bytes; codes are known to fit.
inline void pack_group(const std::uint8_t* codes, std::size_t count, unsigned bits,
                       std::uint8_t* out) noexcept {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < count; ++i) {
    word |= std::uint64_t{codes[i]} << (bits * static_cast<unsigned>(i));
  }
  const std::size_t bytes = (count * bits + 7) / 8;
  for (std::size_t i = 0; i < bytes; ++i) {
    out[i] = static_cast<std::uint8_t>(word >> (8U * static_cast<unsigned>(i)));
  }
}

/// Packs 8 codes into `Bits` bytes by closing the gaps between neighbours, then between pairs, then
/// between fours.
template <unsigned Bits>
void pack_eight(const std::uint8_t* codes, std::uint8_t* out) noexcept {
  static_assert(std::endian::native == std::endian::little);
  constexpr std::uint64_t one = (1ULL << Bits) - 1;
  constexpr std::uint64_t two = (1ULL << (2 * Bits)) - 1;
  constexpr std::uint64_t four = (1ULL << (4 * Bits)) - 1;
  constexpr std::uint64_t pairs = 0x0001000100010001ULL;
  constexpr std::uint64_t fours = 0x0000000100000001ULL;
  std::uint64_t word = 0;
  std::memcpy(&word, codes, 8);
  word = (word & (one * pairs)) | ((word >> (8 - Bits)) & ((one << Bits) * pairs));
  word = (word & (two * fours)) | ((word >> (16 - 2 * Bits)) & ((two << (2 * Bits)) * fours));
  word = (word & four) | ((word >> (32 - 4 * Bits)) & (four << (4 * Bits)));
  std::memcpy(out, &word, Bits);
}

/// `pack` with a width known at compile time, without argument checks.
template <unsigned Bits>
void pack_width(const std::uint8_t* codes, std::size_t count, std::uint8_t* out) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8, out += Bits) {
    pack_eight<Bits>(codes + i, out);
  }
  pack_group(codes + i, count - i, Bits, out);
}

/// `pack` without argument checks: every code is below `2^bits` and `bits` is 1 to 8.
inline void pack_unchecked(const std::uint8_t* codes, std::size_t count, int bits,
                           std::uint8_t* out) noexcept {
  switch (bits) {
    case 1: return pack_width<1>(codes, count, out);
    case 2: return pack_width<2>(codes, count, out);
    case 3: return pack_width<3>(codes, count, out);
    case 4: return pack_width<4>(codes, count, out);
    case 5: return pack_width<5>(codes, count, out);
    case 6: return pack_width<6>(codes, count, out);
    case 7: return pack_width<7>(codes, count, out);
    default: return pack_width<8>(codes, count, out);
  }
}

}  // namespace detail

/// Packs codes densely.
/// @param codes (count), each below `2^bits`
/// @param bits  1 to 8
/// @param out   (packed_bytes(count, bits))
/// @throws Error(invalid_argument) for `bits` or a code outside its range, Error(shape_mismatch)
/// for a wrong
///         output size; `out` is then unchanged.
/// O(count). Same bits always.
inline void pack(std::span<const std::uint8_t> codes, int bits, std::span<std::uint8_t> out) {
  detail::check_bits("pack", bits);
  require(out.size() == packed_bytes(codes.size(), bits), ErrorCode::shape_mismatch,
          "pack: out.size() is ", out.size(), ", expected packed_bytes(", codes.size(), ", ", bits,
          ") = ", packed_bytes(codes.size(), bits));
  for (std::size_t i = 0; i < codes.size(); ++i) {
    require(unsigned{codes[i]} >> static_cast<unsigned>(bits) == 0, ErrorCode::invalid_argument,
            "pack: codes[", i, "] is ", unsigned{codes[i]}, ", expected below 2^", bits);
  }
  detail::pack_unchecked(codes.data(), codes.size(), bits, out.data());
}

/// Inverse of `pack`.
/// @param bytes (packed_bytes(codes.size(), bits))
/// @param bits  1 to 8
/// @param codes (count)
/// @throws Error(invalid_argument) for `bits`, Error(shape_mismatch) for a wrong input size.
inline void unpack(std::span<const std::uint8_t> bytes, int bits, std::span<std::uint8_t> codes) {
  detail::check_bits("unpack", bits);
  require(bytes.size() == packed_bytes(codes.size(), bits), ErrorCode::shape_mismatch,
          "unpack: bytes.size() is ", bytes.size(), ", expected packed_bytes(", codes.size(), ", ",
          bits, ") = ", packed_bytes(codes.size(), bits));
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = read_code(bytes.data(), i, bits);
  }
}

/// The sign bit that sketches store: 1 for `value < 0`, 0 otherwise (so +0, -0 and NaN give 0).
[[nodiscard]] constexpr TURBOQUANT_FUNCTION std::uint8_t sign_bit(float value) noexcept {
  return value < 0.0F ? std::uint8_t{1} : std::uint8_t{0};
}

/// Packs `sign_bit` of each value, one bit per value, dense.
/// @param values (count)
/// @param out    (packed_bytes(count, 1))
/// @throws Error(shape_mismatch) for a wrong output size.
inline void pack_signs(std::span<const float> values, std::span<std::uint8_t> out) {
  require(out.size() == packed_bytes(values.size(), 1), ErrorCode::shape_mismatch,
          "pack_signs: out.size() is ", out.size(), ", expected ", packed_bytes(values.size(), 1));
  for (std::size_t byte = 0; byte < out.size(); ++byte) {
    unsigned word = 0;
    for (std::size_t i = 8 * byte; i < values.size() && i < 8 * byte + 8; ++i) {
      word |= static_cast<unsigned>(sign_bit(values[i])) << (i % 8);
    }
    out[byte] = static_cast<std::uint8_t>(word);
  }
}

/// Sign `index` of a packed sketch: -1 for a set bit, +1 otherwise.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION float read_sign(const std::uint8_t* bytes,
                                                            std::size_t index) noexcept {
  return read_code(bytes, index, 1) != 0 ? -1.0F : 1.0F;
}

}  // namespace turboquant
