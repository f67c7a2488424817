#pragma once

#include <turboquant/base/checked_math.hpp>
#include <turboquant/base/message.hpp>

#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>

namespace turboquant::detail {

/// One argument as messages call it.
struct NamedSize {
  std::string_view name;
  std::int64_t value = 0;
};

/// One field of a description as comparisons see it and messages print it.
struct SpecField {
  std::string_view name;
  std::string value;

  friend bool operator==(const SpecField&, const SpecField&) = default;
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

inline void require_not_negative(std::string_view where, std::string_view field,
                                 std::int64_t value) {
  require(value >= 0, ErrorCode::invalid_argument, where, ": ", field, " is ", value,
          ", expected 0 or more");
}

/// Arithmetic on named sizes whose results may exceed 64 bits: the first that does is described,
/// and stands for 2^63 - 1 from then on, so that the caller can refuse it or do without.
class SizeArithmetic {
 public:
  static constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)();

  explicit SizeArithmetic(std::string_view where) : where_(where) {}

  /// What exceeded 64 bits first; empty where nothing did.
  [[nodiscard]] const std::string& excess() const noexcept { return excess_; }
  [[nodiscard]] bool exceeded() const noexcept { return !excess_.empty(); }

  /// @throws Error(invalid_argument) for a negative argument
  [[nodiscard]] std::int64_t add(NamedSize a, NamedSize b) {
    require_sizes(a, b);
    return a.value <= most - b.value ? a.value + b.value : exceed(a, b, "sum");
  }
  /// @throws Error(invalid_argument) for a negative argument
  [[nodiscard]] std::int64_t mul(NamedSize a, NamedSize b) {
    require_sizes(a, b);
    return b.value == 0 || a.value <= most / b.value ? a.value * b.value : exceed(a, b, "product");
  }
  /// The least common multiple of two positive arguments.
  [[nodiscard]] std::int64_t lcm(NamedSize a, NamedSize b) {
    require_positive(where_, a.name, a.value);
    require_positive(where_, b.name, b.value);
    const std::int64_t factor = a.value / std::gcd(a.value, b.value);
    return factor <= most / b.value ? factor * b.value : exceed(a, b, "least common multiple");
  }
  /// Describes a result that exceeds 64 bits.
  template <class... Parts>
  std::int64_t exceed_because(const Parts&... parts) {
    if (!exceeded()) {
      write_message(excess_, {MessagePart(where_), MessagePart(": "), MessagePart(parts)...});
    }
    return most;
  }
  /// @throws Error(overflow) where something exceeded 64 bits
  void require_fits() const { require(!exceeded(), ErrorCode::overflow, excess_); }

 private:
  void require_sizes(NamedSize a, NamedSize b) const {
    require_not_negative(where_, a.name, a.value);
    require_not_negative(where_, b.name, b.value);
  }
  std::int64_t exceed(NamedSize a, NamedSize b, std::string_view what) {
    return exceed_because(a.name, " is ", a.value, " and ", b.name, " is ", b.value, ": their ",
                          what, " exceeds the 64-bit limit ", most);
  }

  std::string_view where_;
  std::string excess_{};
};

/// `a + b` of two non-negative arguments; messages name both.
inline std::int64_t named_add(std::string_view where, NamedSize a, NamedSize b) {
  SizeArithmetic sizes(where);
  const std::int64_t sum = sizes.add(a, b);
  sizes.require_fits();
  return sum;
}

/// `a * b` of two non-negative arguments; messages name both.
inline std::int64_t named_mul(std::string_view where, NamedSize a, NamedSize b) {
  SizeArithmetic sizes(where);
  const std::int64_t product = sizes.mul(a, b);
  sizes.require_fits();
  return product;
}

/// The least common multiple of two positive arguments; messages name both.
inline std::int64_t named_lcm(std::string_view where, NamedSize a, NamedSize b) {
  SizeArithmetic sizes(where);
  const std::int64_t multiple = sizes.lcm(a, b);
  sizes.require_fits();
  return multiple;
}

}  // namespace turboquant::detail
