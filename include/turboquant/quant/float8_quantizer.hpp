#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/base/float8.hpp>
#include <turboquant/math/metadata.hpp>
#include <turboquant/math/normalised_vector.hpp>
#include <turboquant/quant/encoded_vectors.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace turboquant {

/// Keys as fp8 (e4m3): every coordinate divided by the vector's scale and rounded to the nearest
/// fp8 number.
///
/// The scale, max |x| / 448 stored rounded up, maps the largest magnitude to 448 at most, so
/// nothing saturates unless the scale does, which a half does where max |x| exceeds 448 * 65504.
/// Coordinates down to 2^-14 of the largest keep 3 mantissa bits; smaller ones lie on a grid finer
/// than 2^-17 of it. Same bits always.
class Float8Quantizer {
 public:
  /// @param dim 1 to 65,536
  /// @throws Error(invalid_argument) for `dim`.
  explicit Float8Quantizer(int dim, MetadataType metadata = MetadataType::float16)
      : dim_(dim), metadata_(metadata) {
    require(dim >= 1 && dim <= 65536, ErrorCode::invalid_argument, "Float8Quantizer: dim is ", dim,
            ", expected 1 to 65536");
    MetadataArray::checked("Float8Quantizer", metadata);
  }

  [[nodiscard]] int dim() const noexcept { return dim_; }
  [[nodiscard]] CodeFormat format() const noexcept { return {CodeKind::float8_e4m3, dim_, 8, 0}; }
  /// Bytes per vector: one per coordinate and the scale.
  [[nodiscard]] std::size_t bytes_per_vector() const noexcept {
    return static_cast<std::size_t>(dim_) + metadata_bytes(metadata_);
  }

  /// Quantises a batch.
  /// @param vectors (count, dim), finite
  /// @throws Error(shape_mismatch) for a size that is no multiple of dim, Error(non_finite) for NaN
  /// or infinity.
  [[nodiscard]] EncodedVectors encode(std::span<const float> vectors) const {
    const std::size_t count = require_finite_rows("Float8Quantizer::encode", vectors, dim_);
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
      const float stored = stored_scale_above(largest / double{float8_e4m3_max}, metadata_);
      encoded.scales.set(row, stored);
      const auto scale =
          static_cast<float>(std::ldexp(detail::exact_double(stored), -input.exponent));
      std::uint8_t* codes = encoded.row(row);
      for (std::size_t i = 0; i < d; ++i) {
        codes[i] = float8_e4m3::from_float(normalised[i] / scale).bits;
      }
    }
    return encoded;
  }

  /// Reconstructs a batch: `scale * code`.
  /// @param encoded made by a quantizer of the same dim and metadata
  /// @param out     (count, dim)
  /// @throws Error(shape_mismatch) for another format or size.
  void decode(const EncodedVectors& encoded, std::span<float> out) const {
    require_encoded("Float8Quantizer::decode", encoded, format(), metadata_, out.size());
    const auto d = static_cast<std::size_t>(dim_);
    for (std::size_t i = 0; i < encoded.codes.size(); ++i) {
      require((encoded.codes[i] & 0x7FU) != 0x7FU, ErrorCode::format,
              "Float8Quantizer::decode: encoded.codes[", i, "] is ", unsigned{encoded.codes[i]},
              ", the code of NaN, expected a number");
    }
    for (std::size_t row = 0; row < encoded.count; ++row) {
      const float scale = encoded.scales[row];
      const std::uint8_t* codes = encoded.row(row);
      for (std::size_t i = 0; i < d; ++i) {
        out[row * d + i] = detail::saturated(scale * float8_e4m3{codes[i]}.to_float());
      }
    }
  }

 private:
  int dim_;
  MetadataType metadata_;
};

}  // namespace turboquant
