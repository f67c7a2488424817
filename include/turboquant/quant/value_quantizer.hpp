#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/math/bit_pack.hpp>
#include <turboquant/math/metadata.hpp>
#include <turboquant/math/normalised_vector.hpp>
#include <turboquant/math/value_group.hpp>
#include <turboquant/quant/encoded_vectors.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace turboquant {

/// How the codes of a batch of values must be read; kept once per batch.
struct ValueFormat {
  int dim = 0;
  int bits = 0;
  int group_size = 0;  ///< coordinates per full group, 1 to dim

  /// Bytes of codes per vector.
  [[nodiscard]] constexpr std::size_t code_bytes() const noexcept {
    return packed_bytes(static_cast<std::size_t>(dim), bits);
  }
  /// Groups per vector: ceil(dim / group_size); 0 without dimensions or a group size.
  [[nodiscard]] constexpr std::size_t groups() const noexcept {
    return dim < 1 || group_size < 1 ? 0 : 1 + static_cast<std::size_t>((dim - 1) / group_size);
  }

  friend bool operator==(const ValueFormat&, const ValueFormat&) = default;
};

/// A batch of value vectors in asymmetric groups: dense codes, one scale and one zero point per
/// group.
struct EncodedValues {
  ValueFormat format;
  std::size_t count = 0;
  std::size_t code_bytes = 0;       ///< bytes of codes per vector
  std::size_t groups = 0;           ///< groups per vector
  std::vector<std::uint8_t> codes;  ///< (count, code_bytes)
  MetadataArray scales;             ///< (count, groups)
  MetadataArray zeros;              ///< (count, groups)

  /// Zeros for `num_vectors` vectors.
  /// @throws Error(invalid_argument) for a dim outside 1 to 65,536, bits outside 1 to 8, a group
  /// size outside 1 to dim or an unknown metadata type, Error(overflow) for more than 2^32 vectors.
  EncodedValues(std::size_t num_vectors, const ValueFormat& value_format, MetadataType type)
      : format(value_format),
        count(checked_count("EncodedValues", num_vectors)),
        code_bytes(checked(value_format).code_bytes()),
        groups(value_format.groups()),
        codes(num_vectors * code_bytes),
        scales(type, num_vectors * groups),
        zeros(type, num_vectors * groups) {}

  /// Bytes allocated for codes, scales and zero points.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return codes.size() + scales.bytes().size() + zeros.bytes().size();
  }

  friend bool operator==(const EncodedValues&, const EncodedValues&) = default;

 private:
  static const ValueFormat& checked(const ValueFormat& format) {
    require(format.dim >= 1 && format.dim <= 65536, ErrorCode::invalid_argument,
            "EncodedValues: format.dim is ", format.dim, ", expected 1 to 65536");
    detail::check_bits("EncodedValues", format.bits);
    require(format.group_size >= 1 && format.group_size <= format.dim, ErrorCode::invalid_argument,
            "EncodedValues: format.group_size is ", format.group_size,
            ", expected 1 to dim = ", format.dim);
    return format;
  }
};

struct ValueQuantizerOptions {
  /// Coordinates per group, counted along the head dimension; 0 means one group of `dim`. The last
  /// group of a vector is shorter where `dim` is no multiple.
  int group_size = 0;
  MetadataType metadata = MetadataType::float16;
};

/// Asymmetric min-max quantization of value vectors in groups along the head dimension.
///
/// A group stores zero = min and scale = (max - min) / (2^bits - 1), both rounded to the metadata
/// type first; code = floor((v - zero) / scale + 1/2) in double, clamped: a tie rounds up. So
/// |decoded - v| <= scale / 2 wherever no code is clamped, and clamping adds at most what rounding
/// took from the range; a constant group decodes to its rounded constant, and a group whose scale
/// rounds to 0 decodes to its zero point. Half metadata saturates beyond zero points of 65504 or
/// scales of 65504. Groups never span tokens: any split of a batch gives the same bytes. Same bits
/// always.
class ValueQuantizer {
 public:
  /// @param dim  1 to 65,536
  /// @param bits 1 to 8
  /// @throws Error(invalid_argument) for `dim`, `bits` or a group size outside 0..dim.
  ValueQuantizer(int dim, int bits, ValueQuantizerOptions options = {})
      : dim_(dim), bits_(bits), options_(options) {
    require(dim >= 1 && dim <= 65536, ErrorCode::invalid_argument, "ValueQuantizer: dim is ", dim,
            ", expected 1 to 65536");
    detail::check_bits("ValueQuantizer", bits);
    require(options.group_size >= 0 && options.group_size <= dim, ErrorCode::invalid_argument,
            "ValueQuantizer: options.group_size is ", options.group_size,
            ", expected 0 (one group) to dim = ", dim);
    MetadataArray::checked("ValueQuantizer", options.metadata);
  }

  [[nodiscard]] int dim() const noexcept { return dim_; }
  [[nodiscard]] int bits() const noexcept { return bits_; }
  [[nodiscard]] const ValueQuantizerOptions& options() const noexcept { return options_; }
  [[nodiscard]] ValueFormat format() const noexcept {
    return {dim_, bits_, options_.group_size == 0 ? dim_ : options_.group_size};
  }
  /// Coordinates per full group.
  [[nodiscard]] std::size_t group_size() const noexcept {
    return static_cast<std::size_t>(format().group_size);
  }
  /// Groups per vector: ceil(dim / group_size).
  [[nodiscard]] std::size_t groups() const noexcept { return format().groups(); }
  /// Bytes of codes per vector.
  [[nodiscard]] std::size_t code_bytes() const noexcept { return format().code_bytes(); }
  /// Bytes per vector: codes, scales and zero points.
  [[nodiscard]] std::size_t bytes_per_vector() const noexcept {
    return code_bytes() + 2 * groups() * metadata_bytes(options_.metadata);
  }

  /// Quantises a batch.
  /// @param vectors (count, dim), finite
  /// @throws Error(shape_mismatch) for a size that is no multiple of dim, Error(non_finite) for NaN
  /// or infinity. O(count dim).
  [[nodiscard]] EncodedValues encode(std::span<const float> vectors) const {
    const std::size_t count = require_finite_rows("ValueQuantizer::encode", vectors, dim_);
    const auto d = static_cast<std::size_t>(dim_);
    EncodedValues encoded(count, format(), options_.metadata);
    std::vector<std::uint8_t> codes(d);
    for (std::size_t row = 0; row < count; ++row) {
      std::size_t group = row * encoded.groups;
      for (std::size_t first = 0; first < d; first += group_size(), ++group) {
        const std::size_t size = (std::min)(group_size(), d - first);
        const Group stored =
            encode_group(vectors.subspan(row * d + first, size), codes.data() + first);
        encoded.scales.set(group, stored.scale);
        encoded.zeros.set(group, stored.zero);
      }
      detail::pack_unchecked(codes.data(), d, bits_,
                             encoded.codes.data() + row * encoded.code_bytes);
    }
    return encoded;
  }

  /// Reconstructs a batch: `zero + scale * code`.
  /// @param encoded made by a quantizer of the same dim, bits, group size and metadata
  /// @param out     (count, dim)
  /// @throws Error(shape_mismatch) for another format or size.
  void decode(const EncodedValues& encoded, std::span<float> out) const {
    check_encoded(encoded, out.size());
    const auto d = static_cast<std::size_t>(dim_);
    for (std::size_t row = 0; row < encoded.count; ++row) {
      const std::uint8_t* codes = encoded.codes.data() + row * encoded.code_bytes;
      std::size_t group = row * encoded.groups;
      for (std::size_t first = 0; first < d; first += group_size(), ++group) {
        const float scale = encoded.scales[group];
        const float zero = encoded.zeros[group];
        for (std::size_t i = first; i < (std::min)(first + group_size(), d); ++i) {
          out[row * d + i] = value_of_code(scale, read_code(codes, i, bits_), zero);
        }
      }
    }
  }

 private:
  struct Group {
    float scale;
    float zero;
  };

  void check_encoded(const EncodedValues& encoded, std::size_t elements) const {
    constexpr const char* caller = "ValueQuantizer::decode";
    const ValueFormat expected = format();
    require(encoded.format.dim == expected.dim, ErrorCode::shape_mismatch, caller,
            ": encoded.format.dim is ", encoded.format.dim, ", expected ", expected.dim);
    require(encoded.format.bits == expected.bits, ErrorCode::shape_mismatch, caller,
            ": encoded.format.bits is ", encoded.format.bits, ", expected ", expected.bits);
    require(encoded.format.group_size == expected.group_size, ErrorCode::shape_mismatch, caller,
            ": encoded.format.group_size is ", encoded.format.group_size, ", expected ",
            expected.group_size);
    require(encoded.scales.type() == options_.metadata && encoded.zeros.type() == options_.metadata,
            ErrorCode::shape_mismatch, caller, ": encoded has ",
            metadata_bytes(encoded.scales.type()), "-byte scales and ",
            metadata_bytes(encoded.zeros.type()), "-byte zeros, expected ",
            metadata_bytes(options_.metadata));
    const auto holds = [&encoded](std::size_t size, std::size_t per_vector) {
      return size / per_vector == encoded.count && size % per_vector == 0;
    };
    require(encoded.code_bytes == expected.code_bytes() && encoded.groups == expected.groups() &&
                holds(encoded.codes.size(), expected.code_bytes()) &&
                holds(encoded.scales.size(), expected.groups()) &&
                holds(encoded.zeros.size(), expected.groups()),
            ErrorCode::shape_mismatch, caller, ": encoded holds ", encoded.codes.size(),
            " bytes of codes, ", encoded.scales.size(), " scales and ", encoded.zeros.size(),
            " zeros, expected ", expected.code_bytes(), ", ", expected.groups(), " and ",
            expected.groups(), " for each of encoded.count = ", encoded.count);
    require(elements == encoded.count * static_cast<std::size_t>(dim_), ErrorCode::shape_mismatch,
            caller, ": out.size() is ", elements, ", expected ", encoded.count, " * ", dim_);
    require_finite(caller, "encoded.scales", encoded.scales);
    require_finite(caller, "encoded.zeros", encoded.zeros);
  }

  Group encode_group(std::span<const float> values, std::uint8_t* codes) const noexcept {
    const auto [lowest, highest] = range_of(values);
    const int top = (1 << static_cast<unsigned>(bits_)) - 1;
    const double range = detail::exact_double(highest) - detail::exact_double(lowest);
    const Group stored{stored_range(range, top, options_.metadata),
                       stored_zero(lowest, options_.metadata)};
    const double scale = detail::exact_double(stored.scale);
    const double divisor = scale > 0 ? scale : std::numeric_limits<double>::infinity();
    const double zero = detail::exact_double(stored.zero);
    const auto assign = [&](auto widen) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        codes[i] = static_cast<std::uint8_t>(value_code(widen(values[i]) - zero, divisor, top));
      }
    };
    if (range >= 0x1p-60) {  // subnormal values are too small to matter
      assign([](float v) { return double{v}; });
    } else {
      assign([](float v) { return detail::exact_double(v); });
    }
    return stored;
  }

  /// Lowest and highest value; compared as integers, so that subnormal numbers are not special. -0
  /// is below +0.
  static std::pair<float, float> range_of(std::span<const float> values) noexcept {
    const auto to_key = [](float value) {
      const auto bits = std::bit_cast<std::int32_t>(value);
      return bits ^ ((bits >> 31) & 0x7FFFFFFF);
    };
    std::int32_t lowest = to_key(values[0]);
    std::int32_t highest = lowest;
    for (const float value : values) {
      const std::int32_t key = to_key(value);
      lowest = key < lowest ? key : lowest;
      highest = key > highest ? key : highest;
    }
    const auto from_key = [](std::int32_t key) {
      return std::bit_cast<float>(key ^ ((key >> 31) & 0x7FFFFFFF));
    };
    return {from_key(lowest), from_key(highest)};
  }

  int dim_;
  int bits_;
  ValueQuantizerOptions options_;
};

}  // namespace turboquant
