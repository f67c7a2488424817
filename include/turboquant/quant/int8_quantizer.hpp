#pragma once

#include <turboquant/quant/byte_quantizer.hpp>

#include <cstdint>

namespace turboquant {

/// A byte is round(x / scale), ties half away from zero, in two's complement.
struct Int8Code {
  static constexpr const char* quantizer = "Int8Quantizer";
  static constexpr const char* used = "any byte but 128 (-127 to 127 are used)";
  static constexpr CodeKind kind = CodeKind::int8;
  static constexpr double largest = 127;

  [[nodiscard]] static std::uint8_t of(float x, double scale) noexcept {
    const double quotient = double{x} / scale;
    const double steps = quotient + (quotient < 0 ? -0.5 : 0.5);
    const double clamped = steps > 127 ? 127 : (steps < -127 ? -127 : steps);
    return static_cast<std::uint8_t>(static_cast<int>(clamped));
  }
  [[nodiscard]] static bool is_used(std::uint8_t code) noexcept { return code != 128; }
  [[nodiscard]] static float number(std::uint8_t code) noexcept {
    return static_cast<float>(static_cast<std::int8_t>(code));
  }
};

/// Keys as int8: scale = max |x| / 127. |decoded - x| <= scale / 2 unless the scale saturates.
using Int8Quantizer = ByteQuantizer<Int8Code>;

}  // namespace turboquant
