#pragma once

#include <cstdint>

namespace turboquant {

/// How a key vector is stored.
enum class KeyCodec : std::uint8_t {
  mse,            ///< Algorithm 1: rotated, codebook codes and one fp16 scale
  inner_product,  ///< Algorithm 2: codes of one bit less, one sketch sign per dimension, fp16 scale
                  ///< and residual scale
  float8,         ///< one e4m3 byte per dimension, neither rotated nor scaled
};

/// How a value vector is stored.
enum class ValueCodec : std::uint8_t {
  grouped,   ///< asymmetric min-max groups along the head dimension, fp16 scale and zero point each
  codebook,  ///< rotated, codebook codes and one fp16 scale
};

}  // namespace turboquant
