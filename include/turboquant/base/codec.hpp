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

/// What is subtracted from keys before they are stored, and added back to their logits exactly.
///
/// Keys of models with a key-projection bias share a vector that can be many times their spread;
/// without it the codes are spent on what all tokens have in common.
enum class KeyCentring : std::uint8_t {
  none,
  /// A mean of the keys of each tile of 64 tokens, fp16, stored with the tile. A key that it would
  /// make longer is stored without it, but for float8, where it is subtracted from every key: a key
  /// of zeros comes back as the mean less its e4m3 rounding there, and as zeros with other codecs.
  tile_mean,
};

/// How a value vector is stored.
enum class ValueCodec : std::uint8_t {
  grouped,   ///< asymmetric min-max groups along the head dimension, fp16 scale and zero point each
  codebook,  ///< rotated, codebook codes and one fp16 scale
};

}  // namespace turboquant
