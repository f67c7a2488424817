#pragma once

#include <turboquant/base/error.hpp>

#include <cstdint>
#include <limits>
#include <numeric>

namespace turboquant {

/// `a * b` for non-negative sizes.
/// @throws Error(invalid_argument) for a negative factor, Error(overflow) when the product exceeds
/// 2^63 - 1.
[[nodiscard]] constexpr std::int64_t checked_mul(std::int64_t a, std::int64_t b) {
  require(a >= 0 && b >= 0, ErrorCode::invalid_argument, "checked_mul: factors are ", a, " and ", b,
          ", expected non-negative sizes");
  require(b == 0 || a <= (std::numeric_limits<std::int64_t>::max)() / b, ErrorCode::overflow,
          "checked_mul: ", a, " * ", b, " exceeds the 64-bit limit 9223372036854775807");
  return a * b;
}

/// `a + b` for non-negative sizes.
/// @throws Error(invalid_argument) for a negative term, Error(overflow) when the sum exceeds 2^63
/// - 1.
[[nodiscard]] constexpr std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  require(a >= 0 && b >= 0, ErrorCode::invalid_argument, "checked_add: terms are ", a, " and ", b,
          ", expected non-negative sizes");
  require(a <= (std::numeric_limits<std::int64_t>::max)() - b, ErrorCode::overflow,
          "checked_add: ", a, " + ", b, " exceeds the 64-bit limit 9223372036854775807");
  return a + b;
}

/// `ceil(a / b)` for `a >= 0`, `b > 0`.
/// @throws Error(invalid_argument) outside that domain.
[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  require(a >= 0 && b > 0, ErrorCode::invalid_argument, "ceil_div: arguments are ", a, " and ", b,
          ", expected a >= 0 and b > 0");
  return a / b + (a % b != 0 ? 1 : 0);
}

/// The smallest multiple of `multiple` that is at least `a`.
/// @throws Error(invalid_argument) unless `a >= 0` and `multiple > 0`; Error(overflow) beyond 64
/// bits.
[[nodiscard]] constexpr std::int64_t round_up(std::int64_t a, std::int64_t multiple) {
  return checked_mul(ceil_div(a, multiple), multiple);
}

/// The least common multiple of two positive sizes; divides by the gcd before it multiplies.
/// @throws Error(invalid_argument) for a size below 1, Error(overflow) beyond 64 bits.
[[nodiscard]] constexpr std::int64_t checked_lcm(std::int64_t a, std::int64_t b) {
  require(a > 0 && b > 0, ErrorCode::invalid_argument, "checked_lcm: arguments are ", a, " and ", b,
          ", expected positive sizes");
  return checked_mul(a / std::gcd(a, b), b);
}

}  // namespace turboquant
