#pragma once

#include <turboquant/base/float16.hpp>
#include <turboquant/math/metadata.hpp>

#include <cmath>

namespace turboquant {

/// The stored scale of a group of values: range / top. Unlike a vector's scale it may round to 0:
/// the group is then constant to within the metadata's resolution.
/// @param range max - min, at least 0
/// @param top   the largest code
[[nodiscard]] inline TURBOQUANT_FUNCTION float stored_range(double range, int top,
                                                            MetadataType type) noexcept {
  const double scale = range / top;
  if (type == MetadataType::float32) {
    return detail::saturated_exact(scale);
  }
  return float16::from_float(static_cast<float>(std::fmin(scale, double{float16_max}))).to_float();
}

/// The code of a value that lies `distance` above the stored zero point: floor(distance / scale +
/// 1/2), clamped.
///
/// Divides, because a product with the reciprocal would miss ties, which round up.
/// @param scale the stored scale; infinity in place of 0
[[nodiscard]] inline TURBOQUANT_FUNCTION int value_code(double distance, double scale,
                                                        int top) noexcept {
  const double steps = distance / scale + 0.5;
  const double not_negative = steps > 0 ? steps : 0;
  return static_cast<int>(not_negative < top ? not_negative : top);
}

/// The value of a code: zero + scale * code, in double and then rounded to a finite float.
[[nodiscard]] inline TURBOQUANT_FUNCTION float value_of_code(float scale, int code,
                                                             float zero) noexcept {
  return detail::saturated(double{zero} + double{scale} * code);
}

}  // namespace turboquant
