#pragma once

#include <turboquant/model/bit_plan.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turboquant {

/// What a cache is asked to be good at.
enum class ServiceClass : std::uint8_t {
  throughput,  ///< 2-bit values: most tokens
  balanced,    ///< 3-bit values
  quality,     ///< 4-bit values: least error
};

namespace detail {

inline constexpr std::array<std::string_view, 3> service_class_names{"throughput", "balanced",
                                                                     "quality"};

}  // namespace detail

/// The name of a service class.
/// @throws Error(invalid_argument) for a number that is no class
[[nodiscard]] constexpr std::string_view to_string(ServiceClass service) {
  const auto index = static_cast<std::size_t>(service);
  require(index < detail::service_class_names.size(), ErrorCode::invalid_argument,
          "ServiceClass: value is ", index, ", expected 0 to 2 (throughput, balanced, quality)");
  return detail::service_class_names[index];
}

/// The service class called `name`.
/// @throws Error(invalid_argument) for any other text
[[nodiscard]] constexpr ServiceClass parse_service_class(std::string_view name) {
  for (std::size_t i = 0; i < detail::service_class_names.size(); ++i) {
    if (detail::service_class_names[i] == name) {
      return static_cast<ServiceClass>(i);
    }
  }
  fail(ErrorCode::invalid_argument, "parse_service_class: name is \"", name,
       "\", expected throughput, balanced or quality");
}

/// Chooses the value bits, and with them the codec of a layer, by service class.
///
/// With as many key bits as value bits a head of 128 dimensions takes 68, 100 or 132 bytes a token
/// instead of 512 in bfloat16: 7.53, 5.12 or 3.88 times smaller.
struct ValuePolicy {
  ServiceClass service = ServiceClass::balanced;
  int key_bits = 0;  ///< of mse keys: 2, 3 or 4; 0 = as many as value bits
  /// Rotated codebook values need fewer bytes and err less; matrix units of GPUs have kernels for
  /// grouped ones alone, and for 3 bits of neither.
  ValueCodec value_codec = ValueCodec::codebook;

  /// Value bits of the class: 2, 3 or 4.
  /// @throws Error(invalid_argument) for a number that is no class
  [[nodiscard]] constexpr int value_bits() const {
    static_cast<void>(to_string(service));
    return 2 + static_cast<int>(service);
  }
  /// The codec of every layer.
  /// @throws Error(invalid_argument), Error(unsupported) for key bits that mse keys do not have
  [[nodiscard]] LayerCodec codec() const {
    LayerCodec codec;
    codec.value_bits = value_bits();
    codec.key_bits = key_bits == 0 ? codec.value_bits : key_bits;
    codec.value_codec = value_codec;
    require_valid(codec, "ValuePolicy");
    return codec;
  }
};

/// A plan between the service classes, for any ratio between theirs: 0 is `throughput` in every
/// layer (2-bit keys and values), 0.5 `balanced` (3 bits), 1 `quality` (4 bits).
///
/// `round(position * 4 * num_layers)` single bits are handed out one by one, to keys before values
/// and to earlier layers before later ones: an error of a key moves weight to another token, and an
/// error of an early layer passes through all others. So bytes grow by one bit of one layer's keys
/// or values at a time. Where errors have been measured, `allocate_bits` does better.
/// @throws Error(invalid_argument) for a position outside 0 to 1 or a number of layers outside 0 to
/// 10,000. O(layers).
[[nodiscard]] inline BitPlan blended_plan(std::int64_t num_layers, double position,
                                          ValueCodec value_codec = ValueCodec::codebook) {
  detail::require_plan_layers("blended_plan", num_layers);
  require(position >= 0 && position <= 1, ErrorCode::invalid_argument, "blended_plan: position is ",
          position, ", expected 0 (throughput) to 1 (quality)");
  BitPlan plan =
      uniform_plan(num_layers, ValuePolicy{ServiceClass::throughput, 0, value_codec}.codec());
  const std::int64_t bits = std::llround(position * 4 * static_cast<double>(num_layers));
  for (std::int64_t bit = 0; bit < bits; ++bit) {
    LayerCodec& codec = *plan.layers[static_cast<std::size_t>(bit % num_layers)];
    ++(bit / num_layers % 2 == 0 ? codec.key_bits : codec.value_bits);
  }
  return plan;
}

}  // namespace turboquant
