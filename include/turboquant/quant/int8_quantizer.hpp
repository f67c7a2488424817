#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/math/metadata.hpp>
#include <turboquant/math/normalised_vector.hpp>
#include <turboquant/quant/encoded_vectors.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace turboquant {

/// Keys as int8 with one symmetric scale per token: code = round(x / scale), scale = max |x| / 127,
/// stored rounded up.
///
/// Ties round half away from zero; codes are in [-127, 127], stored as two's complement bytes.
/// |decoded - x| <= scale / 2 unless the scale saturates, which a half does where max |x| exceeds
/// 127 * 65504. Same bits always.
class Int8Quantizer {
 public:
  /// @param dim 1 to 65,536
  /// @throws Error(invalid_argument) for `dim`.
  explicit Int8Quantizer(int dim, MetadataType metadata = MetadataType::float16)
      : dim_(dim), metadata_(metadata) {
    require(dim >= 1 && dim <= 65536, ErrorCode::invalid_argument, "Int8Quantizer: dim is ", dim,
            ", expected 1 to 65536");
    MetadataArray::checked("Int8Quantizer", metadata);
  }

  [[nodiscard]] int dim() const noexcept { return dim_; }
  [[nodiscard]] CodeFormat format() const noexcept { return {CodeKind::int8, dim_, 8, 0}; }
  /// Bytes per vector: one per coordinate and the scale.
  [[nodiscard]] std::size_t bytes_per_vector() const noexcept {
    return static_cast<std::size_t>(dim_) + metadata_bytes(metadata_);
  }

  /// Quantises a batch.
  /// @param vectors (count, dim), finite
  /// @throws Error(shape_mismatch) for a size that is no multiple of dim, Error(non_finite) for NaN
  /// or infinity.
  [[nodiscard]] EncodedVectors encode(std::span<const float> vectors) const {
    const std::size_t count = require_finite_rows("Int8Quantizer::encode", vectors, dim_);
    const auto d = static_cast<std::size_t>(dim_);
    EncodedVectors encoded(count, format(), metadata_);
    std::vector<float> normalised(d);
    for (std::size_t row = 0; row < count; ++row) {
      const NormalisedVector input = normalise(vectors.subspan(row * d, d), normalised.data());
      if (!(input.squared > 0)) {
        continue;  // codes and scale are 0 already
      }
      // Everything here is in units of 2^exponent; the stored scale comes back exactly.
      const double largest = std::ldexp(double{largest_magnitude(normalised)}, input.exponent);
      const float stored = stored_scale_above(largest / 127, metadata_);
      encoded.scales.set(row, stored);
      const double scale = std::ldexp(detail::exact_double(stored), -input.exponent);
      std::uint8_t* codes = encoded.row(row);
      for (std::size_t i = 0; i < d; ++i) {
        const double quotient = double{normalised[i]} / scale;
        const double steps = quotient + (quotient < 0 ? -0.5 : 0.5);
        const double clamped = steps > 127 ? 127 : (steps < -127 ? -127 : steps);
        codes[i] = static_cast<std::uint8_t>(static_cast<int>(clamped));
      }
    }
    return encoded;
  }

  /// Reconstructs a batch: `scale * code`.
  /// @param encoded made by a quantizer of the same dim and metadata
  /// @param out     (count, dim)
  /// @throws Error(shape_mismatch) for another format or size.
  void decode(const EncodedVectors& encoded, std::span<float> out) const {
    require_encoded("Int8Quantizer::decode", encoded, format(), metadata_, out.size());
    const auto d = static_cast<std::size_t>(dim_);
    for (std::size_t row = 0; row < encoded.count; ++row) {
      const float scale = encoded.scales[row];
      const std::uint8_t* codes = encoded.row(row);
      for (std::size_t i = 0; i < d; ++i) {
        out[row * d + i] =
            detail::saturated(scale * static_cast<float>(static_cast<std::int8_t>(codes[i])));
      }
    }
  }

 private:
  int dim_;
  MetadataType metadata_;
};

}  // namespace turboquant
