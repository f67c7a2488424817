#pragma once

#include <turboquant/math/codebook.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// `codes[i] = codebook.encode(x[i] * factor)` for `Width` values, without branches.
///
/// A symmetric codebook needs only its positive boundaries. Magnitudes compare as their bit
/// patterns; one more for numbers that are not negative makes a boundary belong to the cell above
/// it on both sides of 0.
template <std::size_t Width>
void encode_cell_block(const Codebook<float>& codebook, const float* x, float factor,
                       std::uint8_t* codes) noexcept {
  const std::size_t half = codebook.levels() / 2;
  const float* boundary = codebook.boundaries().data() + half;
  std::array<std::int32_t, Width> key;
  std::array<std::int32_t, Width> negative;  // -1 or 0
  std::array<std::int32_t, Width> above{};
  for (std::size_t i = 0; i < Width; ++i) {
    const float scaled = x[i] * factor;
    negative[i] = scaled < 0.0F ? -1 : 0;  // not the sign bit: -0 belongs to the cell above 0
    key[i] = (std::bit_cast<std::int32_t>(scaled) & 0x7FFFFFFF) + 1 + negative[i];
  }
  for (std::size_t j = 0; j + 1 < half; ++j) {
    const auto threshold = std::bit_cast<std::int32_t>(boundary[j]);
    for (std::size_t i = 0; i < Width; ++i) {
      above[i] += key[i] > threshold ? 1 : 0;
    }
  }
  for (std::size_t i = 0; i < Width; ++i) {
    codes[i] =
        static_cast<std::uint8_t>((above[i] ^ negative[i]) + static_cast<std::int32_t>(half));
  }
}

/// `codes[i] = codebook.encode(x[i] * factor)` for a whole array of finite numbers.
/// @param codes (count)
/// O(count 2^bits), several values per instruction. Same bits always.
inline void encode_cells(const Codebook<float>& codebook, const float* x, float factor,
                         std::size_t count, std::uint8_t* codes) noexcept {
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    encode_cell_block<32>(codebook, x + i, factor, codes + i);
  }
  for (; i + 8 <= count; i += 8) {
    encode_cell_block<8>(codebook, x + i, factor, codes + i);
  }
  for (; i < count; ++i) {
    encode_cell_block<1>(codebook, x + i, factor, codes + i);
  }
}

}  // namespace turboquant::detail
