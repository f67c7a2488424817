#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/math/metadata.hpp>
#include <turboquant/math/normalised_vector.hpp>
#include <turboquant/quant/encoded_vectors.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace turboquant {

/// Keys of one byte a coordinate with one symmetric scale per token: max |x| / (largest number),
/// stored rounded up, so that nothing saturates unless the scale does, which a half does where
/// max |x| exceeds (largest number) * 65504. Same bits always.
/// @tparam Code  what a byte means: `Int8Code` or `Float8Code`
template <class Code>
class ByteQuantizer {
 public:
  /// @param dim 1 to 65,536
  /// @throws Error(invalid_argument) for `dim`.
  explicit ByteQuantizer(int dim, MetadataType metadata = MetadataType::float16)
      : dim_(dim), metadata_(metadata) {
    require(dim >= 1 && dim <= 65536, ErrorCode::invalid_argument, Code::quantizer, ": dim is ",
            dim, ", expected 1 to 65536");
    MetadataArray::checked(Code::quantizer, metadata);
  }

  [[nodiscard]] int dim() const noexcept { return dim_; }
  [[nodiscard]] CodeFormat format() const noexcept { return {Code::kind, dim_, 8, 0}; }
  /// Bytes per vector: one per coordinate and the scale.
  [[nodiscard]] std::size_t bytes_per_vector() const noexcept {
    return static_cast<std::size_t>(dim_) + metadata_bytes(metadata_);
  }

  /// Quantises a batch. O(count dim).
  /// @param vectors (count, dim), finite
  /// @throws Error(shape_mismatch) for a size that is no multiple of dim, Error(non_finite) for NaN
  /// or infinity.
  [[nodiscard]] EncodedVectors encode(std::span<const float> vectors) const {
    const std::string caller = std::string(Code::quantizer) + "::encode";
    const std::size_t count = require_finite_rows(caller.c_str(), vectors, dim_);
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
      const float stored = stored_scale_above(largest / Code::largest, metadata_);
      encoded.scales.set(row, stored);
      const double scale = std::ldexp(detail::exact_double(stored), -input.exponent);
      std::uint8_t* codes = encoded.row(row);
      for (std::size_t i = 0; i < d; ++i) {
        codes[i] = Code::of(normalised[i], scale);
      }
    }
    return encoded;
  }

  /// Reconstructs a batch: `scale * number`. O(count dim).
  /// @param encoded made by a quantizer of the same dim and metadata
  /// @param out     (count, dim)
  /// @throws Error(shape_mismatch) for another format or size, Error(format) for a byte that no
  /// coordinate is encoded as.
  void decode(const EncodedVectors& encoded, std::span<float> out) const {
    const std::string caller = std::string(Code::quantizer) + "::decode";
    require_encoded(caller.c_str(), encoded, format(), metadata_, out.size());
    for (std::size_t i = 0; i < encoded.codes.size(); ++i) {
      require(Code::is_used(encoded.codes[i]), ErrorCode::format, caller, ": encoded.codes[", i,
              "] is ", unsigned{encoded.codes[i]}, ", expected ", Code::used);
    }
    const auto d = static_cast<std::size_t>(dim_);
    for (std::size_t row = 0; row < encoded.count; ++row) {
      const float scale = encoded.scales[row];
      const std::uint8_t* codes = encoded.row(row);
      for (std::size_t i = 0; i < d; ++i) {
        out[row * d + i] = detail::saturated(scale * Code::number(codes[i]));
      }
    }
  }

 private:
  int dim_;
  MetadataType metadata_;
};

}  // namespace turboquant
