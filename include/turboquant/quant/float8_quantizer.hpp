#pragma once

#include <turboquant/base/float8.hpp>
#include <turboquant/quant/byte_quantizer.hpp>

#include <cstdint>

namespace turboquant {

/// A byte is the fp8 number (e4m3) nearest to x / scale.
struct Float8Code {
  static constexpr const char* quantizer = "Float8Quantizer";
  static constexpr const char* used = "a number, not NaN (127, 255)";
  static constexpr CodeKind kind = CodeKind::float8_e4m3;
  static constexpr double largest = double{float8_e4m3_max};

  [[nodiscard]] static std::uint8_t of(float x, double scale) noexcept {
    return float8_e4m3::from_float(x / static_cast<float>(scale)).bits;
  }
  [[nodiscard]] static bool is_used(std::uint8_t code) noexcept { return (code & 0x7FU) != 0x7FU; }
  [[nodiscard]] static float number(std::uint8_t code) noexcept {
    return float8_e4m3{code}.to_float();
  }
};

/// Keys as fp8 (e4m3): scale = max |x| / 448. Coordinates down to 2^-14 of the largest keep 3
/// mantissa bits; smaller ones lie on a grid finer than 2^-17 of it.
using Float8Quantizer = ByteQuantizer<Float8Code>;

}  // namespace turboquant
