#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/math/bit_pack.hpp>
#include <turboquant/math/cell_search.hpp>
#include <turboquant/math/hadamard_rotation.hpp>
#include <turboquant/math/integer_grid.hpp>
#include <turboquant/math/lloyd_max.hpp>
#include <turboquant/math/metadata.hpp>
#include <turboquant/math/normalised_vector.hpp>
#include <turboquant/math/scale_rule.hpp>
#include <turboquant/quant/encoded_vectors.hpp>
#include <turboquant/quant/rotation_concept.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace turboquant {

/// Which centroids the codes stand for.
enum class CodebookKind {
  exact,         ///< Lloyd-Max for a coordinate of a unit vector of this dimension, bits 1 to 8
  integer_grid,  ///< `integer_grid(bits)`, bits 1 to 4, as the attention kernels use it
};

struct MseQuantizerOptions {
  ScaleRule scale_rule = ScaleRule::unbiased;
  CodebookKind codebook = CodebookKind::exact;
  MetadataType metadata = MetadataType::float16;
  /// Number of codebook stretches the encoder tries per vector, 1 to 9. It keeps the codes of least
  /// squared error under the rule's scale, so that more candidates never err by more: those whose
  /// levels lie closest in direction to the vector, whatever rule but `plain`, whose scale is
  /// divided by the stretch. With `least_squares`, 3 gain 0.03, 0.18 and 0.44 dB at 2, 3 and 4
  /// bits, 5 gain 0.03, 0.22 and 0.59 dB; the format does not change.
  int scale_candidates = 1;
};

/// Algorithm 1 of TurboQuant (arXiv 2504.19874): rotate, quantise each coordinate with a scalar
/// codebook, keep one scale per vector.
///
/// A zero vector has scale 0 and decodes to exact zeros. Multiplying an input by a power of two
/// leaves its codes unchanged. The stored scale is that of levels with unit variance, about the
/// root mean square of the vector: half metadata holds vectors of a root mean square from 2^-24 to
/// 65504 and saturates at both ends (see `MetadataType`). Decoded numbers are finite. All methods
/// are const and safe to call from several threads; a move is a copy. With `HadamardRotation` the
/// encoded bytes are the same always, with `HaarRotation` for the same build; every vector is
/// encoded by itself, so that any split of a batch gives the same bytes.
template <RandomRotation Rotation = HadamardRotation>
class MseQuantizer {
 public:
  /// @param rotation fixes dim, at least 3, and seed
  /// @param bits     1 to 8 (1 to 4 for the integer grid)
  /// @throws Error(invalid_argument) for `bits`, `rotation.dim()` or `options.scale_candidates`.
  MseQuantizer(Rotation rotation, int bits, MseQuantizerOptions options = {})
      : rotation_(std::move(rotation)),
        options_(options),
        levels_(make_levels(rotation_.dim(), bits, options)) {}
  MseQuantizer(const MseQuantizer&) = default;
  MseQuantizer& operator=(const MseQuantizer&) = default;

  [[nodiscard]] int dim() const noexcept { return rotation_.dim(); }
  [[nodiscard]] int bits() const noexcept { return levels_.bits(); }
  [[nodiscard]] const Rotation& rotation() const noexcept { return rotation_; }
  [[nodiscard]] const MseQuantizerOptions& options() const noexcept { return options_; }
  /// Centroids and boundaries for coordinates of unit variance.
  [[nodiscard]] const Codebook<float>& levels() const noexcept { return levels_; }
  /// What this quantizer writes and reads.
  [[nodiscard]] CodeFormat format() const noexcept {
    return {options_.codebook == CodebookKind::exact ? CodeKind::lloyd_max : CodeKind::integer_grid,
            dim(), bits(), rotation_seed(rotation_), rotation_kind<Rotation>()};
  }
  /// Bytes of codes per vector.
  [[nodiscard]] std::size_t code_bytes() const noexcept { return format().code_bytes(); }
  /// Bytes per vector, codes and scale.
  [[nodiscard]] std::size_t bytes_per_vector() const noexcept {
    return code_bytes() + metadata_bytes(options_.metadata);
  }

  /// Quantises a batch.
  /// @param vectors (count, dim), finite
  /// @throws Error(shape_mismatch) for a size that is no multiple of dim, Error(non_finite) for NaN
  /// or infinity. O(count dim (log dim + 2^bits)).
  [[nodiscard]] EncodedVectors encode(std::span<const float> vectors) const {
    const std::size_t count = require_finite_rows("MseQuantizer::encode", vectors, dim());
    EncodedVectors encoded(count, format(), options_.metadata);
    Scratch scratch(static_cast<std::size_t>(dim()));
    for (std::size_t row = 0; row < count; ++row) {
      encode_row(vectors.subspan(row * scratch.size(), scratch.size()), scratch, encoded, row);
    }
    return encoded;
  }

  /// Reconstructs a batch.
  /// @param encoded made by a quantizer with the same rotation, bits, codebook and metadata
  /// @param out     (count, dim)
  /// @throws Error(shape_mismatch) for another format or size.
  void decode(const EncodedVectors& encoded, std::span<float> out) const {
    require_encoded("MseQuantizer::decode", encoded, format(), options_.metadata, out.size());
    const auto d = static_cast<std::size_t>(dim());
    std::vector<float> levels(d);
    for (std::size_t row = 0; row < encoded.count; ++row) {
      const std::span<float> decoded = out.subspan(row * d, d);
      const float scale = encoded.scales[row];
      if (scale == 0.0F) {
        std::fill(decoded.begin(), decoded.end(), 0.0F);
        continue;
      }
      // The scale comes last, so that nothing overflows inside the rotation.
      read_levels(encoded, row, levels);
      rotation_.apply_inverse(levels, decoded);
      for (float& x : decoded) {
        x = detail::saturated(scale * x);
      }
    }
  }

  /// Inner products of a query with every encoded vector, from the codes.
  /// @param query  (dim), finite, not rotated
  /// @param scores (count)
  /// @throws Error(shape_mismatch) for another format or size, Error(non_finite) for NaN or
  /// infinity in `query`.
  void scores(std::span<const float> query, const EncodedVectors& encoded,
              std::span<float> scores) const {
    const auto d = static_cast<std::size_t>(dim());
    require(query.size() == d, ErrorCode::shape_mismatch, "MseQuantizer::scores: query.size() is ",
            query.size(), ", expected dim = ", dim());
    require_finite_rows("MseQuantizer::scores (query)", query, dim());
    require(scores.size() == encoded.count, ErrorCode::shape_mismatch,
            "MseQuantizer::scores: scores.size() is ", scores.size(),
            ", expected encoded.count = ", encoded.count);
    require_encoded("MseQuantizer::scores", encoded, format(), options_.metadata,
                    encoded.count * d);
    std::vector<float> rotated(d);
    std::vector<float> levels(d);
    const NormalisedVector input = normalise(query, levels.data());
    rotation_.apply(levels, rotated);
    for (std::size_t row = 0; row < encoded.count; ++row) {
      read_levels(encoded, row, levels);
      const double product =
          double{encoded.scales[row]} * ordered_dot(rotated.data(), levels.data(), d);
      scores[row] = detail::saturated(std::ldexp(product, input.exponent));
    }
  }

 private:
  template <RandomRotation, class>
  friend class InnerProductQuantizer;

  /// The levels of vector `row`, of unit variance and in the rotated space; times
  /// `encoded.scales[row]` they are the rotated reconstruction.
  /// @param encoded in this quantizer's `format()`
  /// @param out     (dim)
  void read_levels(const EncodedVectors& encoded, std::size_t row,
                   std::span<float> out) const noexcept {
    const float* level = levels_.centroids().data();
    const std::uint8_t* codes = encoded.row(row);
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = level[read_code(codes, i, bits())];
    }
  }

  /// Working memory of one encoder: all arrays (dim).
  struct Scratch {
    explicit Scratch(std::size_t dim)
        : normalised(dim), rotated(dim), quantized(dim), codes(dim), best_codes(dim) {}
    [[nodiscard]] std::size_t size() const noexcept { return normalised.size(); }

    std::vector<float> normalised;
    std::vector<float> rotated;    ///< after `encode_row`: the rotated vector times 2^-exponent
    std::vector<float> quantized;  ///< after `encode_row`: the levels of its codes
    std::vector<std::uint8_t> codes;
    std::vector<std::uint8_t> best_codes;
  };

  /// Quantises one vector into row `row` of `encoded`.
  /// @param vector  (dim), finite
  /// @param scratch made for this dim
  /// @param encoded in this quantizer's `format()` and metadata, more than `row` vectors
  /// @return the power of two and squared length of the input; `scratch` keeps the rotated vector
  /// and levels.
  NormalisedVector encode_row(std::span<const float> vector, Scratch& scratch,
                              EncodedVectors& encoded, std::size_t row) const {
    const auto d = static_cast<std::size_t>(dim());
    const NormalisedVector input = normalise(vector, scratch.normalised.data());
    rotation_.apply(scratch.normalised, scratch.rotated);
    const double root_mean_square = std::sqrt(input.squared / static_cast<double>(d));
    const auto to_unit_variance =
        static_cast<float>(input.squared > 0 ? 1 / root_mean_square : 0.0);
    const double scale = options_.scale_candidates == 1
                             ? quantise(to_unit_variance, input.squared, scratch)
                             : search(to_unit_variance, input.squared, scratch);
    detail::pack_unchecked(scratch.codes.data(), d, bits(), encoded.row(row));
    encoded.scales.set(row, stored_scale(std::ldexp(scale, input.exponent), options_.metadata));
    return input;
  }

  static Codebook<float> make_levels(int dim, int bits, const MseQuantizerOptions& options) {
    const bool grid = options.codebook == CodebookKind::integer_grid;
    require(grid || options.codebook == CodebookKind::exact, ErrorCode::invalid_argument,
            "MseQuantizer: options.codebook is CodebookKind(", static_cast<int>(options.codebook),
            "), expected exact or integer_grid");
    require(options.scale_rule >= ScaleRule::plain && options.scale_rule <= ScaleRule::unbiased,
            ErrorCode::invalid_argument, "MseQuantizer: options.scale_rule is ScaleRule(",
            static_cast<int>(options.scale_rule), "), expected one of the four rules");
    MetadataArray::checked("MseQuantizer", options.metadata);
    require(dim >= 3 && dim <= (1 << 20), ErrorCode::invalid_argument,
            "MseQuantizer: rotation.dim() is ", dim, ", expected 3 to 1048576");
    require(bits >= 1 && bits <= (grid ? 4 : 8), ErrorCode::invalid_argument,
            "MseQuantizer: bits is ", bits,
            grid ? ", expected 1 to 4 for the integer grid" : ", expected 1 to 8");
    require(options.scale_candidates >= 1 && options.scale_candidates <= 9,
            ErrorCode::invalid_argument, "MseQuantizer: options.scale_candidates is ",
            options.scale_candidates, ", expected 1 to 9");
    if (grid) {
      return grid_codebook(integer_grid(bits)).template scaled<float>(1.0);
    }
    return lloyd_max(dim, bits).codebook.template scaled<float>(
        std::sqrt(static_cast<double>(dim)));
  }

  /// Chooses the codes of `rotated * factor * stretch` and returns the scale of the rule.
  double quantise(float factor, double squared, Scratch& scratch,
                  float stretch = 1.0F) const noexcept {
    const std::size_t d = scratch.size();
    detail::encode_cells(levels_, scratch.rotated.data(), factor * stretch, d,
                         scratch.codes.data());
    look_up(scratch);
    const float* y = scratch.rotated.data();
    const float* q = scratch.quantized.data();
    switch (options_.scale_rule) {
      case ScaleRule::plain: return std::sqrt(squared / static_cast<double>(d)) / double{stretch};
      case ScaleRule::unit: return std::sqrt(squared / ordered_dot(q, q, d));
      case ScaleRule::least_squares: return ordered_dot(y, q, d) / ordered_dot(q, q, d);
      case ScaleRule::unbiased: break;
    }
    return squared > 0 ? squared / ordered_dot(y, q, d) : 0.0;
  }

  /// `quantise` with several stretches of the codebook; keeps the codes of least squared error
  /// under their scale.
  double search(float factor, double squared, Scratch& scratch) const noexcept {
    // Measured on Gaussian vectors: this step gains most for 3 to 5 candidates at 2 to 4 bits.
    constexpr float step = 0.09375F;
    const std::size_t d = scratch.size();
    double best_fit = -1;
    double best_scale = 0;
    const int middle = options_.scale_candidates / 2;
    for (int candidate = 0; candidate < options_.scale_candidates; ++candidate) {
      const auto offset = static_cast<float>(candidate - middle);
      const double scale = quantise(factor, squared, scratch, 1.0F + step * offset);
      const double projection = ordered_dot(scratch.rotated.data(), scratch.quantized.data(), d);
      const double length2 = ordered_dot(scratch.quantized.data(), scratch.quantized.data(), d);
      // What is missing to |y|^2 is the squared error, of `plain` under its scale; of the other
      // rules under the best one, which orders candidates as their own scales do.
      const double fit = options_.scale_rule == ScaleRule::plain
                             ? scale * std::fma(-scale, length2, 2 * projection)
                             : projection * projection / length2;
      if (fit > best_fit) {
        best_fit = fit;
        best_scale = scale;
        scratch.best_codes.swap(scratch.codes);
      }
    }
    scratch.best_codes.swap(scratch.codes);
    look_up(scratch);
    return best_scale;
  }

  void look_up(Scratch& scratch) const noexcept {
    constexpr std::size_t width = 8;
    const float* level = levels_.centroids().data();
    const std::uint8_t* codes = scratch.codes.data();
    float* quantized = scratch.quantized.data();
    std::size_t i = 0;
    for (; i + width <= scratch.size(); i += width) {
      for (std::size_t lane = 0; lane < width; ++lane) {
        quantized[i + lane] = level[codes[i + lane]];
      }
    }
    for (; i < scratch.size(); ++i) {
      quantized[i] = level[codes[i]];
    }
  }

  Rotation rotation_;
  MseQuantizerOptions options_;
  Codebook<float> levels_;
};

}  // namespace turboquant
