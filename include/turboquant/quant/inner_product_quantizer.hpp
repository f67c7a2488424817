#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/math/bit_pack.hpp>
#include <turboquant/math/metadata.hpp>
#include <turboquant/math/normalised_vector.hpp>
#include <turboquant/math/ordered_sum.hpp>
#include <turboquant/math/orthogonal_sketch.hpp>
#include <turboquant/math/scale_rule.hpp>
#include <turboquant/quant/encoded_vectors.hpp>
#include <turboquant/quant/mse_quantizer.hpp>
#include <turboquant/quant/rotation_concept.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace turboquant {

/// Which sketch made the signs of a batch; kept once per batch, as `CodeFormat` is.
struct SketchFormat {
  std::uint64_t seed = 0;  ///< 0 where the sketch names none
  int kind = 0;  ///< 0 where it names none; the library's own use 1 (Gaussian), 2 (orthogonal from
                 ///< Hadamard) and 3 (orthogonal from Haar)

  friend bool operator==(const SketchFormat&, const SketchFormat&) = default;
};

/// A batch of vectors as Algorithm 2 stores them: the Algorithm 1 part, and per vector the signs
/// and the length of the residual's sketch.
struct EncodedSketches {
  EncodedVectors mse;
  SketchFormat sketch;
  std::size_t sign_bytes = 0;       ///< bytes of signs per vector
  std::vector<std::uint8_t> signs;  ///< (count, sign_bytes), 1 bit per coordinate
  MetadataArray residual_scales;    ///< (count), |residual| / sqrt(dim)

  /// @param format of the Algorithm 1 part
  EncodedSketches(std::size_t num_vectors, const CodeFormat& format,
                  const SketchFormat& sketch_format, MetadataType type)
      : mse(num_vectors, format, type),
        sketch(sketch_format),
        sign_bytes(packed_bytes(static_cast<std::size_t>(format.dim), 1)),
        signs(num_vectors * sign_bytes),
        residual_scales(type, num_vectors) {}

  [[nodiscard]] std::size_t count() const noexcept { return mse.count; }
  /// Bytes allocated for codes, signs and both scales.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return mse.bytes() + signs.size() + residual_scales.bytes().size();
  }

  friend bool operator==(const EncodedSketches&, const EncodedSketches&) = default;
};

/// Algorithm 2 of TurboQuant: `bits - 1` bits of Algorithm 1, then one sign per coordinate of a
/// random sketch of the residual, which makes inner products unbiased.
///
/// The residual is taken against the stored (rounded) scale, so rounding adds no bias, and sketched
/// in the rotated space. The expectation is over sketches: one fixed sketch errs in a fixed
/// direction. A zero vector has both scales 0 and decodes to exact zeros; signs of multiples by
/// powers of two are equal. A sketch with a `seed()` and a `kind` marks what it encodes, so that
/// another one is refused at decoding. A move is a copy.
/// @tparam Sketch `GaussianSketch` (the published method) or `OrthogonalSketch<...>`
template <RandomRotation Rotation, class Sketch>
class InnerProductQuantizer {
 public:
  /// @param rotation fixes dim
  /// @param bits     total bits per coordinate, 2 to 8 (2 to 5 with the integer grid)
  /// @param sketch   of the same dim
  /// @param options  for the Algorithm 1 part; as published the scale rule is `plain`
  /// @throws Error(invalid_argument) for `bits`, Error(shape_mismatch) for a sketch of another dim.
  InnerProductQuantizer(Rotation rotation, int bits, Sketch sketch,
                        MseQuantizerOptions options = {.scale_rule = ScaleRule::plain})
      : mse_(std::move(rotation), check_bits(bits, options) - 1, options),
        sketch_(std::move(sketch)) {
    require(sketch_.dim() == mse_.dim(), ErrorCode::shape_mismatch,
            "InnerProductQuantizer: sketch.dim() is ", sketch_.dim(),
            ", expected rotation.dim() = ", mse_.dim());
  }
  InnerProductQuantizer(const InnerProductQuantizer&) = default;
  InnerProductQuantizer& operator=(const InnerProductQuantizer&) = default;

  [[nodiscard]] int dim() const noexcept { return mse_.dim(); }
  /// Total bits per coordinate.
  [[nodiscard]] int bits() const noexcept { return mse_.bits() + 1; }
  /// The quantizer of the Algorithm 1 part.
  [[nodiscard]] const MseQuantizer<Rotation>& mse() const noexcept { return mse_; }
  [[nodiscard]] const Sketch& sketch() const noexcept { return sketch_; }
  /// What marks the signs that this quantizer writes and reads.
  [[nodiscard]] SketchFormat sketch_format() const noexcept {
    return {detail::seed_of(sketch_), detail::kind_of<Sketch>()};
  }
  /// Bytes per vector: codes, signs and two scales.
  [[nodiscard]] std::size_t bytes_per_vector() const noexcept {
    return mse_.bytes_per_vector() + packed_bytes(static_cast<std::size_t>(dim()), 1) +
           metadata_bytes(mse_.options().metadata);
  }

  /// Quantises a batch.
  /// @param vectors (count, dim), finite
  /// @throws Error(shape_mismatch) for a size that is no multiple of dim, Error(non_finite) for NaN
  /// or infinity.
  [[nodiscard]] EncodedSketches encode(std::span<const float> vectors) const {
    const std::size_t count = require_finite_rows("InnerProductQuantizer::encode", vectors, dim());
    const auto d = static_cast<std::size_t>(dim());
    const MetadataType metadata = mse_.options().metadata;
    EncodedSketches encoded(count, mse_.format(), sketch_format(), metadata);
    typename MseQuantizer<Rotation>::Scratch scratch(d);
    std::vector<float> residual(d);
    std::vector<float> sketched(d);
    for (std::size_t row = 0; row < count; ++row) {
      const NormalisedVector input =
          mse_.encode_row(vectors.subspan(row * d, d), scratch, encoded.mse, row);
      // Everything here is in units of 2^exponent; the stored scale comes back exactly. A product
      // of two floats is exact in double, so that fused and separate operations agree.
      const double scale =
          std::ldexp(detail::exact_double(encoded.mse.scales[row]), -input.exponent);
      const auto factor = static_cast<float>(scale);
      for (std::size_t i = 0; i < d; ++i) {
        residual[i] = static_cast<float>(double{scratch.rotated[i]} -
                                         double{factor} * double{scratch.quantized[i]});
      }
      const NormalisedVector rest = normalise(residual, residual.data());
      const double root_mean_square = std::sqrt(rest.squared / static_cast<double>(d));
      encoded.residual_scales.set(
          row,
          stored_scale(std::ldexp(root_mean_square, rest.exponent + input.exponent), metadata));
      sketch_.apply(residual, sketched);
      pack_signs(sketched, {encoded.signs.data() + row * encoded.sign_bytes, encoded.sign_bytes});
    }
    return encoded;
  }

  /// Reconstructs a batch.
  /// @param encoded made by a quantizer with the same rotation, sketch, bits, codebook and metadata
  /// @param out (count, dim)
  /// @throws Error(shape_mismatch) for another format or size.
  void decode(const EncodedSketches& encoded, std::span<float> out) const {
    check_encoded("InnerProductQuantizer::decode", encoded, out.size());
    const auto d = static_cast<std::size_t>(dim());
    std::vector<float> rotated(d);
    std::vector<float> signs(d);
    std::vector<float> residual(d);
    for (std::size_t row = 0; row < encoded.count(); ++row) {
      const std::span<float> decoded = out.subspan(row * d, d);
      const double scale = double{encoded.mse.scales[row]};
      const double residual_scale = residual_factor() * double{encoded.residual_scales[row]};
      const double unit = std::fmax(scale, residual_scale);
      if (!(unit > 0)) {
        std::fill(decoded.begin(), decoded.end(), 0.0F);
        continue;
      }
      mse_.read_levels(encoded.mse, row, rotated);
      read_signs(encoded, row, signs);
      sketch_.apply_transpose(signs, residual);
      // The larger scale comes last, so that nothing overflows inside the rotation.
      const auto level_factor = static_cast<float>(scale / unit);
      const auto sign_factor = static_cast<float>(residual_scale / unit);
      for (std::size_t i = 0; i < d; ++i) {
        rotated[i] = static_cast<float>(double{level_factor} * double{rotated[i]} +
                                        double{sign_factor} * double{residual[i]});
      }
      mse_.rotation().apply_inverse(rotated, decoded);
      for (float& x : decoded) {
        x = detail::saturated(double{x} * unit);
      }
    }
  }

  /// Unbiased inner products of a query with every encoded vector, from codes and signs.
  /// @param query  (dim), finite, not rotated
  /// @param scores (count)
  /// @throws Error(shape_mismatch) for another format or size, Error(non_finite) for NaN or
  /// infinity in `query`.
  void scores(std::span<const float> query, const EncodedSketches& encoded,
              std::span<float> scores) const {
    const auto d = static_cast<std::size_t>(dim());
    constexpr const char* caller = "InnerProductQuantizer::scores";
    require(query.size() == d, ErrorCode::shape_mismatch, caller, ": query.size() is ",
            query.size(), ", expected dim = ", dim());
    require_finite_rows("InnerProductQuantizer::scores (query)", query, dim());
    require(scores.size() == encoded.count(), ErrorCode::shape_mismatch, caller,
            ": scores.size() is ", scores.size(), ", expected encoded.count() = ", encoded.count());
    check_encoded(caller, encoded, encoded.count() * d);
    std::vector<float> rotated(d);
    std::vector<float> sketched(d);
    std::vector<float> factors(d);
    const NormalisedVector input = normalise(query, factors.data());
    mse_.rotation().apply(factors, rotated);
    sketch_.apply(rotated, sketched);
    for (std::size_t row = 0; row < encoded.count(); ++row) {
      mse_.read_levels(encoded.mse, row, factors);
      const double from_levels = ordered_dot(rotated.data(), factors.data(), d);
      read_signs(encoded, row, factors);
      const double from_signs = ordered_dot(sketched.data(), factors.data(), d);
      const double sum =
          std::fma(double{encoded.mse.scales[row]}, from_levels,
                   residual_factor() * double{encoded.residual_scales[row]} * from_signs);
      scores[row] = detail::saturated(std::ldexp(sum, input.exponent));
    }
  }

 private:
  static int check_bits(int bits, const MseQuantizerOptions& options) {
    const int most = options.codebook == CodebookKind::integer_grid ? 5 : 8;
    require(bits >= 2 && bits <= most, ErrorCode::invalid_argument,
            "InnerProductQuantizer: bits is ", bits, ", expected 2 to ", most,
            " (one of them is the sign)");
    return bits;
  }

  /// The sketch's factor for a stored |residual| / sqrt(dim).
  [[nodiscard]] double residual_factor() const noexcept {
    return sketch_.factor() * std::sqrt(static_cast<double>(dim()));
  }

  static void read_signs(const EncodedSketches& encoded, std::size_t row,
                         std::span<float> signs) noexcept {
    const std::uint8_t* bytes = encoded.signs.data() + row * encoded.sign_bytes;
    for (std::size_t i = 0; i < signs.size(); ++i) {
      signs[i] = read_sign(bytes, i);
    }
  }

  void check_encoded(const char* caller, const EncodedSketches& encoded,
                     std::size_t elements) const {
    require_encoded(caller, encoded.mse, mse_.format(), mse_.options().metadata, elements);
    const SketchFormat sketch = sketch_format();
    require(encoded.sketch.kind == sketch.kind, ErrorCode::shape_mismatch, caller,
            ": encoded.sketch.kind is ", encoded.sketch.kind, ", expected ", sketch.kind);
    require(encoded.sketch.seed == sketch.seed, ErrorCode::shape_mismatch, caller,
            ": encoded.sketch.seed is ", encoded.sketch.seed, ", expected ", sketch.seed);
    const std::size_t expected = packed_bytes(static_cast<std::size_t>(dim()), 1);
    require(encoded.residual_scales.type() == mse_.options().metadata, ErrorCode::shape_mismatch,
            caller, ": encoded.residual_scales has ",
            metadata_bytes(encoded.residual_scales.type()), "-byte scales, expected ",
            metadata_bytes(mse_.options().metadata));
    require(encoded.sign_bytes == expected && encoded.signs.size() / expected == encoded.count() &&
                encoded.signs.size() % expected == 0 &&
                encoded.residual_scales.size() == encoded.count(),
            ErrorCode::shape_mismatch, caller, ": encoded holds ", encoded.signs.size(),
            " bytes of signs, ", encoded.sign_bytes, " per vector, and ",
            encoded.residual_scales.size(), " residual scales, expected ", expected,
            " per vector and a scale each for encoded.count() = ", encoded.count());
    require_finite(caller, "encoded.residual_scales", encoded.residual_scales);
  }

  MseQuantizer<Rotation> mse_;
  Sketch sketch_;
};

}  // namespace turboquant
