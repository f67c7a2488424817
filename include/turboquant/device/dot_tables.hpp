#pragma once

#include <turboquant/base/float16.hpp>
#include <turboquant/device/arch/wide_products.hpp>
#include <turboquant/device/tile_codec.hpp>
#include <turboquant/device/tile_words.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

/// @file
/// What the dot tile operations look up and where. Keys and values become signed bytes by look-up,
/// queries and weights are integers of 15 bits, and products are taken four at a time.

namespace turboquant::detail {

/// Where bit 3 of the codes in the nibbles of a selector is.
enum class HighBits {
  none,       ///< codes have 3 bits at most; bit 3 of every nibble is 0
  in_nibble,  ///< in its place
  apart,      ///< of nibble n in bit 7 of byte n, or in bit 3 of byte n - 4
};

/// Levels of codes 0 to 15 as signed bytes.
struct LevelBytes {
  ByteTable low{};   ///< of codes 0 to 7
  ByteTable high{};  ///< of codes 8 to 15

  constexpr TURBOQUANT_FUNCTION void set(unsigned code, int level) noexcept {
    ByteTable& table = code < 8 ? low : high;
    std::uint32_t& word = code % 8 < 4 ? table.low : table.high;
    word |= (static_cast<std::uint32_t>(level) & 0xFFU) << (8 * (code % 4));
  }

  /// The levels of 8 codes, four bytes of which are those of nibbles 4 `half` to 4 `half` + 3.
  template <HighBits Place>
  KOKKOS_FORCEINLINE_FUNCTION void of(std::uint32_t selector, std::uint32_t (&bytes)[2]) const {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int half = 0; half < 2; ++half) {
      const auto shift = static_cast<unsigned>(16 * half);
      if constexpr (Place == HighBits::none) {
        bytes[half] = look_up(low, selector >> shift);
      } else {
        const std::uint32_t nibbles = (selector & 0x77777777U) >> shift;
        const std::uint32_t upper = Place == HighBits::in_nibble
                                        ? nibble_signs(selector, half)
                                        : byte_signs(half == 0 ? selector : selector << 4U);
        bytes[half] = (look_up(low, nibbles) & ~upper) | (look_up(high, nibbles) & upper);
      }
    }
  }
};

/// The bytes of an integer grid's levels.
[[nodiscard]] constexpr LevelBytes grid_bytes(int bits) {
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

[[nodiscard]] constexpr DotFormat dot_format(const TileFormat& format) {
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

/// A format that kernels read when they run.
struct AnyDotFormat {
  DotFormat tables{};

  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION const DotFormat& get() const { return tables; }
};

/// A format that kernels are compiled for: mse keys and grouped values of 128 dimensions.
template <TileOrder Order, int KeyBits, int ValueBits, int ValueGroup>
struct FixedDotFormat {
  [[nodiscard]] static constexpr TURBOQUANT_FUNCTION TileFormat format() noexcept {
    TileFormat format;
    format.key_bits = KeyBits;
    format.value_bits = ValueBits;
    format.value_group = ValueGroup;
    format.order = Order;
    return format;
  }
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION DotFormat get() {
    constexpr DotFormat constants = dot_format(format());
    DotFormat tables = constants;
    // In registers, not in every look-up.
    for (std::uint32_t* word : {&tables.key_levels.low.low, &tables.key_levels.low.high}) {
      *word = static_cast<std::uint32_t>(unknown_number(static_cast<int>(*word)));
    }
    return tables;
  }
};

/// Calls `call` with the `FixedDotFormat` that has a kernel for tiles of `format`.
/// @return whether there is one
template <TileOrder Order, class Call>
bool with_fixed_format(const TileFormat& format, const Call& call) {
  const auto call_if_equal = [&](const auto& fixed) {
    const bool equal = fixed.format() == format;
    if (equal) {
      call(fixed);
    }
    return equal;
  };
  return call_if_equal(FixedDotFormat<Order, 3, 4, 128>{}) ||
         call_if_equal(FixedDotFormat<Order, 3, 4, 32>{}) ||
         call_if_equal(FixedDotFormat<Order, 3, 2, 128>{}) ||
         call_if_equal(FixedDotFormat<Order, 4, 4, 128>{}) ||
         call_if_equal(FixedDotFormat<Order, 2, 2, 128>{});
}

/// `Count` numbers that lie together, aligned to their size.
template <int Count>
struct alignas(4 * Count) FloatPack {
  float numbers[Count];
};

/// An e4m3 number that is no NaN.
KOKKOS_FORCEINLINE_FUNCTION float finite_float8(std::uint32_t byte) {
  return std::bit_cast<float>(((byte & 0x7FU) << 20U) | ((byte & 0x80U) << 24U)) * 0x1p120F;
}

/// The finite half at an even address.
KOKKOS_FORCEINLINE_FUNCTION float finite_half(const unsigned char* at) {
  return float_of_half(load_half_bits(at));
}

/// Finite halves that lie together, as they are stored.
template <int Count>
struct PackedHalves {
  std::uint32_t words[(Count + 1) / 2];

  KOKKOS_FORCEINLINE_FUNCTION void load(const unsigned char* at) {
    if constexpr (Count % 2 == 0) {
      load_words(at, words);
    } else {
      static_assert(Count == 1);
      words[0] = load_half_bits(at);
    }
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float operator[](int i) const {
    return float_of_half((words[i / 2] >> static_cast<unsigned>(i % 2 * 16)) & 0xFFFFU);
  }
};

/// Finite halves, each with a place of its own.
template <int Count>
struct SingleHalves {
  std::uint16_t bits[Count];

  KOKKOS_FORCEINLINE_FUNCTION void load(int i, const unsigned char* at) {
    bits[i] = load_half_bits(at);
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float operator[](int i) const {
    return float_of_half(bits[i]);
  }
};

/// Nibbles of selector `g` of those that words of codes hold: 4 of 1 bit in a word, 2 of 2 bits, 4
/// of 3 bits in three words, 1 of 4 bits.
template <int Width, int Words>
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t selector_of(const std::uint32_t (&words)[Words], int g) {
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

}  // namespace turboquant::detail
