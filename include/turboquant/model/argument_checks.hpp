#pragma once

#include <turboquant/base/checked_math.hpp>

#include <cstdint>
#include <limits>
#include <numeric>
#include <string_view>

namespace turboquant::detail {

/// One argument as messages call it.
struct NamedSize {
  std::string_view name;
  std::int64_t value = 0;
};

inline void require_positive(std::string_view where, std::string_view field, std::int64_t value) {
  require(value > 0, ErrorCode::invalid_argument, where, ": ", field, " is ", value,
          ", expected a positive number");
}

inline void require_between(std::string_view where, std::string_view field, std::int64_t value,
                            std::int64_t low, std::int64_t high,
                            ErrorCode above = ErrorCode::overflow) {
  require(value >= low, ErrorCode::invalid_argument, where, ": ", field, " is ", value,
          ", expected ", low, "..", high);
  require(value <= high, above, where, ": ", field, " is ", value, ", which exceeds the limit ",
          high);
}

/// Refuses a number that was cast to an enumeration whose values are 0..`last`.
template <class Enum>
constexpr void require_enumerator(std::string_view where, std::string_view field, Enum value,
                                  Enum last, std::string_view names) {
  require(static_cast<int>(value) >= 0 && static_cast<int>(value) <= static_cast<int>(last),
          ErrorCode::invalid_argument, where, ": ", field, " is ", static_cast<int>(value),
          ", expected ", names);
}

/// `a * b` of two non-negative arguments; the message of an overflow names both.
inline std::int64_t named_mul(std::string_view where, NamedSize a, NamedSize b) {
  require(b.value == 0 || a.value <= (std::numeric_limits<std::int64_t>::max)() / b.value,
          ErrorCode::overflow, where, ": ", a.name, " is ", a.value, " and ", b.name, " is ",
          b.value, ": their product exceeds the 64-bit limit 9223372036854775807");
  return checked_mul(a.value, b.value);
}

/// The least common multiple of two positive arguments; the message of an overflow names both.
inline std::int64_t named_lcm(std::string_view where, NamedSize a, NamedSize b) {
  const std::int64_t factor = a.value / std::gcd(a.value, b.value);
  require(factor <= (std::numeric_limits<std::int64_t>::max)() / b.value, ErrorCode::overflow,
          where, ": ", a.name, " is ", a.value, " and ", b.name, " is ", b.value,
          ": their least common multiple exceeds the 64-bit limit 9223372036854775807");
  return checked_lcm(a.value, b.value);
}

}  // namespace turboquant::detail
