#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/base/float16.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace turboquant {

/// How a quantizer stores its scales and zero points.
enum class MetadataType {
  /// 2 bytes; positive scales saturate to [2^-24, 65504], zero points to [-65504, 65504]. Vectors
  /// of a
  /// root mean square below 2^-14 lose precision, those below 2^-24 come back too large.
  float16,
  float32,  ///< 4 bytes; saturates to the range of float, down to its subnormal numbers
};

/// Bytes of one stored number: 2 or 4.
[[nodiscard]] constexpr std::size_t metadata_bytes(MetadataType type) noexcept {
  return type == MetadataType::float16 ? 2 : 4;
}

namespace detail {

/// The float nearest to a number, or the largest finite one of its sign.
[[nodiscard]] inline TURBOQUANT_FUNCTION float saturated(double x) noexcept {
  constexpr double largest = (std::numeric_limits<float>::max)();
  return static_cast<float>(x > largest ? largest : (x < -largest ? -largest : x));
}

/// `x`, an infinity replaced by the largest finite number of its sign.
[[nodiscard]] inline TURBOQUANT_FUNCTION float saturated(float x) noexcept {
  constexpr float largest = (std::numeric_limits<float>::max)();
  return x > largest ? largest : (x < -largest ? -largest : x);
}

/// `x` with -0 replaced by +0; by its bits, because some processors read subnormal numbers as 0.
[[nodiscard]] inline TURBOQUANT_FUNCTION float positive_zero(float x) noexcept {
  return std::bit_cast<std::uint32_t>(x) == 0x80000000U ? 0.0F : x;
}

/// `saturated(x)` for `x >= 0`, also where the processor flushes subnormal floats to 0.
[[nodiscard]] inline TURBOQUANT_FUNCTION float saturated_exact(double x) noexcept {
  return x < 0x1p-126
             ? std::bit_cast<float>(static_cast<std::uint32_t>(std::nearbyint(x * 0x1p149)))
             : saturated(x);
}

}  // namespace detail

/// The stored form of a scale, as a float: 0 stays 0, a positive scale stays positive and finite.
/// @param scale at least 0, may exceed the range of float
/// Same bits always.
[[nodiscard]] inline TURBOQUANT_FUNCTION float stored_scale(double scale,
                                                            MetadataType type) noexcept {
  if (!(scale > 0)) {
    return 0.0F;
  }
  if (type == MetadataType::float16) {
    const double clamped =
        std::fmin(std::fmax(scale, double{float16_min_subnormal}), double{float16_max});
    return float16::from_float(static_cast<float>(clamped)).to_float();
  }
  return detail::saturated_exact(std::fmax(scale, 0x1p-149));
}

/// The smallest stored number that is at least `scale`, or the largest one: with it no code has to
/// be clamped.
/// @param scale at least 0, may exceed the range of float
/// Same bits always.
[[nodiscard]] inline TURBOQUANT_FUNCTION float stored_scale_above(double scale,
                                                                  MetadataType type) noexcept {
  if (!(scale > 0)) {
    return 0.0F;
  }
  if (type == MetadataType::float16) {
    const double clamped =
        std::fmin(std::fmax(scale, double{float16_min_subnormal}), double{float16_max});
    float16 half = float16::from_float(static_cast<float>(clamped));
    half.bits = static_cast<std::uint16_t>(half.bits + (double{half.to_float()} < clamped ? 1 : 0));
    return half.to_float();
  }
  const double clamped =
      std::fmin(std::fmax(scale, 0x1p-149), double{(std::numeric_limits<float>::max)()});
  const double units = clamped < 0x1p-126 ? std::ceil(clamped * 0x1p149) : 0.0;
  if (units > 0) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(units));
  }
  const auto nearest = static_cast<float>(clamped);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(nearest) +
                              (double{nearest} < clamped ? 1U : 0U));
}

/// The stored form of a zero point, as a float: finite for every finite argument, never -0.
[[nodiscard]] inline TURBOQUANT_FUNCTION float stored_zero(float zero, MetadataType type) noexcept {
  if (type == MetadataType::float32) {
    return detail::positive_zero(zero);
  }
  return detail::positive_zero(
      float16::from_float(std::fmin(std::fmax(zero, -float16_max), float16_max)).to_float());
}

/// An array of stored numbers of one metadata type; the bytes are what a cache would hold.
class MetadataArray {
 public:
  /// Zeros.
  /// @throws Error(invalid_argument) for a value that is no `MetadataType`, Error(overflow) for
  /// more than 2^63 - 1 bytes.
  MetadataArray(MetadataType type, std::size_t count)
      : type_(checked("MetadataArray", type)), bytes_(checked_bytes(type, count)) {}

  /// `type`, if it is one.
  static MetadataType checked(const char* caller, MetadataType type) {
    require(type == MetadataType::float16 || type == MetadataType::float32,
            ErrorCode::invalid_argument, caller, ": metadata is MetadataType(",
            static_cast<int>(type), "), expected float16 or float32");
    return type;
  }

  [[nodiscard]] MetadataType type() const noexcept { return type_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size() / metadata_bytes(type_); }
  /// (size * metadata_bytes), little-endian on every supported machine.
  [[nodiscard]] const std::vector<std::uint8_t>& bytes() const noexcept { return bytes_; }

  /// Number `i` as a float, exact.
  [[nodiscard]] float operator[](std::size_t i) const noexcept {
    if (type_ == MetadataType::float16) {
      float16 half;
      std::memcpy(&half.bits, bytes_.data() + 2 * i, 2);
      return half.to_float();
    }
    float value = 0;
    std::memcpy(&value, bytes_.data() + 4 * i, 4);
    return value;
  }

  /// Stores a number that is already in stored form (`stored_scale`, `stored_zero`).
  void set(std::size_t i, float value) noexcept {
    if (type_ == MetadataType::float16) {
      const float16 half = float16::from_float(value);
      std::memcpy(bytes_.data() + 2 * i, &half.bits, 2);
    } else {
      std::memcpy(bytes_.data() + 4 * i, &value, 4);
    }
  }

  friend bool operator==(const MetadataArray&, const MetadataArray&) = default;

 private:
  static std::size_t checked_bytes(MetadataType type, std::size_t count) {
    const std::size_t most = (std::numeric_limits<std::size_t>::max)() / 2 / metadata_bytes(type);
    require(count <= most, ErrorCode::overflow, "MetadataArray: count is ", count,
            ", expected at most ", most);
    return count * metadata_bytes(type);
  }

  MetadataType type_;
  std::vector<std::uint8_t> bytes_;
};

/// Checks that stored numbers are finite, as those of an encoder always are.
/// @throws Error(format) naming the first that is not.
inline void require_finite(const char* caller, const char* name, const MetadataArray& numbers) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    require(std::isfinite(numbers[i]), ErrorCode::format, caller, ": ", name, "[", i, "] is ",
            numbers[i], ", expected a finite number");
  }
}

}  // namespace turboquant
