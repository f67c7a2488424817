#pragma once

#include <turboquant/base/float16.hpp>
#include <turboquant/device/arch/device_lanes.hpp>
#include <turboquant/device/tile_codec.hpp>
#include <turboquant/device/tile_words.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

/// @file
/// What the dot tile operations look up and where. Keys and values become signed bytes by look-up,
/// queries and weights are integers of 15 bits in two bytes (256 * high + low), and products are
/// taken four at a time.

namespace turboquant::detail {

/// Levels of codes 0 to 15 as signed bytes.
struct LevelBytes {
  ByteTable low{};   ///< of codes 0 to 7
  ByteTable high{};  ///< of codes 8 to 15

  TURBOQUANT_FUNCTION void set(unsigned code, int level) noexcept {
    ByteTable& table = code < 8 ? low : high;
    std::uint32_t& word = code % 8 < 4 ? table.low : table.high;
    word |= (static_cast<std::uint32_t>(level) & 0xFFU) << (8 * (code % 4));
  }

  /// The levels of the codes in the four lowest nibbles.
  /// @tparam Sixteen whether codes have 4 bits; otherwise bit 3 of every nibble is 0
  template <bool Sixteen>
  KOKKOS_FORCEINLINE_FUNCTION std::uint32_t of(std::uint32_t nibbles) const {
    if constexpr (Sixteen) {
      const std::uint32_t lower = look_up(low, nibbles & 0x7777U);
      const std::uint32_t upper = look_up(high, nibbles & 0x7777U);
      const std::uint32_t mask = look_up({0x0000FF00U, 0U}, (nibbles >> 3U) & 0x1111U);
      return (lower & ~mask) | (upper & mask);
    } else {
      return look_up(low, nibbles);
    }
  }

  /// The same where bit 3 of codes is apart.
  /// @param upper all bits of a byte where its code is 8 or more
  KOKKOS_FORCEINLINE_FUNCTION std::uint32_t of_parts(std::uint32_t nibbles,
                                                     std::uint32_t upper) const {
    return (look_up(low, nibbles & 0x7777U) & ~upper) | (look_up(high, nibbles & 0x7777U) & upper);
  }
};

/// The bytes of an integer grid's levels.
[[nodiscard]] inline LevelBytes grid_bytes(int bits) {
  const IntegerGrid grid = integer_grid(bits);
  LevelBytes bytes;
  for (unsigned code = 0; code < 1U << static_cast<unsigned>(bits); ++code) {
    bytes.set(code, grid.level(code));
  }
  return bytes;
}

/// A tile format as the kernels read it: sections, levels and what a unit of a product is worth.
struct DotFormat {
  TileFormat format{};
  LevelBytes key_levels{};
  LevelBytes sign_levels{};
  LevelBytes value_levels{};  ///< codes themselves for grouped values
  float key_step = 1;
  float value_step = 1;
  std::uint32_t tile_bytes = 0;
  std::uint32_t key_codes = 0;
  std::uint32_t key_signs = 0;
  std::uint32_t value_codes = 0;
};

[[nodiscard]] inline DotFormat dot_format(const TileFormat& format) {
  DotFormat out;
  out.format = format;
  if (format.key_codec != KeyCodec::float8) {
    out.key_levels = grid_bytes(format.key_code_bits());
    out.key_step = static_cast<float>(integer_grid(format.key_code_bits()).step);
  }
  out.sign_levels.set(0, 1);
  out.sign_levels.set(1, -1);
  if (format.value_codec == ValueCodec::codebook) {
    out.value_levels = grid_bytes(format.value_bits);
    out.value_step = static_cast<float>(integer_grid(format.value_bits).step);
  } else {
    for (unsigned code = 0; code < 16; ++code) {
      out.value_levels.set(code, static_cast<int>(code));
    }
  }
  out.tile_bytes = static_cast<std::uint32_t>(format.bytes());
  out.key_codes = static_cast<std::uint32_t>(format.key_codes_offset());
  out.key_signs = static_cast<std::uint32_t>(format.key_signs_offset());
  out.value_codes = static_cast<std::uint32_t>(format.value_codes_offset());
  return out;
}

/// `Count` words that lie together, aligned to their size.
template <int Count>
struct alignas(4 * Count) WordPack {
  std::uint32_t words[Count];
};
template <int Count>
struct alignas(4 * Count) FloatPack {
  float numbers[Count];
};

/// Integer dot products of `Count` things with `Rows` rows, by the bytes of the rows' integers.
template <int Count, int Rows>
struct DotSums {
  int high[Count][Rows];
  int low[Count][Rows];

  KOKKOS_FORCEINLINE_FUNCTION void clear() {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Count; ++i) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int r = 0; r < Rows; ++r) {
        high[i][r] = 0;
        low[i][r] = 0;
      }
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION void add(int i, std::uint32_t bytes, const WordPack<Rows>& highs,
                                       const WordPack<Rows>& lows) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int r = 0; r < Rows; ++r) {
      high[i][r] = dot4(bytes, highs.words[r], high[i][r]);
      low[i][r] = dot4(bytes, lows.words[r], low[i][r]);
    }
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float value(int i, int r) const {
    return static_cast<float>(high[i][r]) * 256.0F + static_cast<float>(low[i][r]);
  }
};

/// A finite half.
KOKKOS_FORCEINLINE_FUNCTION float finite_half(const unsigned char* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, std::assume_aligned<2>(at), 2);
  const std::uint32_t sign = (bits & 0x8000U) << 16U;
  return std::bit_cast<float>(((bits & 0x7FFFU) << 13U) | sign) * 0x1p112F;
}

/// An e4m3 number that is no NaN.
KOKKOS_FORCEINLINE_FUNCTION float finite_float8(std::uint32_t byte) {
  return std::bit_cast<float>(((byte & 0x7FU) << 20U) | ((byte & 0x80U) << 24U)) * 0x1p120F;
}

/// Nibbles of selector `g` of the four that `Width` words hold.
template <int Width>
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t shared_selector(const std::uint32_t (&words)[Width],
                                                          int g) {
  if constexpr (Width == 1) {
    return (words[0] >> static_cast<unsigned>(g)) & 0x11111111U;
  } else if constexpr (Width == 2) {
    return (words[g / 2] >> static_cast<unsigned>(g % 2 * 2)) & 0x33333333U;
  } else if constexpr (Width == 3) {
    return g < 3 ? words[g < 3 ? g : 0] & 0x77777777U
                 : ((words[0] >> 3U) & 0x11111111U) | ((words[1] >> 2U) & 0x22222222U) |
                       ((words[2] >> 1U) & 0x44444444U);
  } else {
    return words[g];
  }
}

/// Query rows of a team in scratch memory, as the products of 8 dimensions read them:
/// [group of 8][half][high, low][row] words of 4 dimensions each.
template <int Rows>
struct DotQuery {
  std::uint32_t* words = nullptr;

  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION int groups(int dim) {
    return (dim + 31) / 32 * 4;
  }
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION int size(int dim) {
    return groups(dim) * 4 * Rows;
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION const WordPack<Rows>& pack(int group, int half,
                                                                       int limb) const {
    return reinterpret_cast<const WordPack<Rows>*>(words)[(group * 2 + half) * 2 + limb];
  }

  /// Adds the products of the dimensions of a group with the codes of `Tokens` tokens.
  template <bool Sixteen, int Tokens>
  KOKKOS_FORCEINLINE_FUNCTION void add(const LevelBytes& levels, int group,
                                       const std::uint32_t (&selectors)[Tokens],
                                       DotSums<Tokens, Rows>& sums) const {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int half = 0; half < 2; ++half) {
      const WordPack<Rows> highs = pack(group, half, 0);
      const WordPack<Rows> lows = pack(group, half, 1);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < Tokens; ++j) {
        sums.add(j, levels.of<Sixteen>(selectors[j] >> static_cast<unsigned>(16 * half)), highs,
                 lows);
      }
    }
  }

  /// The same for selectors of 4-bit codes in mma order: bit 3 of nibble n is bit 7 of byte n, or
  /// bit 3 of byte n - 4.
  template <int Tokens>
  KOKKOS_FORCEINLINE_FUNCTION void add_signed(const LevelBytes& levels, int group,
                                              const std::uint32_t (&selectors)[Tokens],
                                              DotSums<Tokens, Rows>& sums) const {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int half = 0; half < 2; ++half) {
      const WordPack<Rows> highs = pack(group, half, 0);
      const WordPack<Rows> lows = pack(group, half, 1);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < Tokens; ++j) {
        const std::uint32_t signs = (selectors[j] >> (half == 0 ? 7U : 3U)) & 0x01010101U;
        sums.add(j,
                 levels.of_parts(selectors[j] >> static_cast<unsigned>(16 * half), signs * 0xFFU),
                 highs, lows);
      }
    }
  }
};

/// Weights of one warp in scratch memory: [index][high, low][row] words of 4 tokens each, where a
/// pair of an index and a byte is a token.
template <int Rows>
struct DotWeights {
  static constexpr int indices = 16;
  static constexpr int size = indices * 2 * Rows;

  std::uint32_t* words = nullptr;

  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION const WordPack<Rows>& pack(int index, int limb) const {
    return reinterpret_cast<const WordPack<Rows>*>(words)[index * 2 + limb];
  }
  KOKKOS_FORCEINLINE_FUNCTION void set(int index, int byte, int row, int value) const {
    const int high = (value + 128) >> 8;
    auto* bytes = reinterpret_cast<std::int8_t*>(words + (index * 2) * Rows + row) + byte;
    bytes[0] = static_cast<std::int8_t>(high);
    bytes[4 * Rows] = static_cast<std::int8_t>(value - 256 * high);
  }
};

}  // namespace turboquant::detail
