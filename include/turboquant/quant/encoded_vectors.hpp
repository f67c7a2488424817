#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/math/bit_pack.hpp>
#include <turboquant/math/metadata.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace turboquant {

/// What the codes of a batch stand for.
enum class CodeKind {
  lloyd_max,     ///< `lloyd_max(dim, bits)` of a rotated vector
  integer_grid,  ///< `integer_grid(bits)` of a rotated vector
  float8_e4m3,   ///< one fp8 number per coordinate
  int8,          ///< one signed byte per coordinate
};

/// The short name of a code kind, for example "lloyd_max".
[[nodiscard]] constexpr std::string_view to_string(CodeKind kind) noexcept {
  switch (kind) {
    case CodeKind::lloyd_max: return "lloyd_max";
    case CodeKind::integer_grid: return "integer_grid";
    case CodeKind::float8_e4m3: return "float8_e4m3";
    case CodeKind::int8: return "int8";
  }
  return "unknown";
}

/// How the codes of a batch must be read. It is kept once per batch, so that a quantizer refuses
/// codes it did not make even where the byte counts agree (128 coordinates of 3 bits take the bytes
/// of 96 of 4 bits).
struct CodeFormat {
  CodeKind kind = CodeKind::lloyd_max;
  int dim = 0;
  int bits = 0;
  std::uint64_t rotation_seed = 0;  ///< 0 where there is no rotation or it names no seed
  int rotation_kind = 0;            ///< 0 where there is no rotation or it names no kind

  /// Bytes of codes per vector.
  [[nodiscard]] constexpr std::size_t code_bytes() const noexcept {
    return packed_bytes(static_cast<std::size_t>(dim), bits);
  }

  friend bool operator==(const CodeFormat&, const CodeFormat&) = default;
};

/// `num_vectors`, if a batch may hold so many.
/// @throws Error(overflow) for more than 2^32.
inline std::size_t checked_count(const char* caller, std::size_t num_vectors) {
  require(num_vectors <= (std::size_t{1} << 32U), ErrorCode::overflow, caller, ": num_vectors is ",
          num_vectors, ", expected at most 4294967296");
  return num_vectors;
}

/// A batch of quantized vectors: per vector dense codes and one stored scale.
struct EncodedVectors {
  CodeFormat format;
  std::size_t count = 0;
  std::size_t code_bytes = 0;       ///< bytes of codes per vector
  std::vector<std::uint8_t> codes;  ///< (count, code_bytes), packed as in `bit_pack.hpp`
  MetadataArray scales;             ///< (count)

  /// Zeros for `num_vectors` vectors.
  /// @throws Error(invalid_argument) for a dim below 1, bits outside 1 to 8, or an unknown code
  /// kind or metadata type, Error(overflow) for more than 2^32 vectors.
  EncodedVectors(std::size_t num_vectors, const CodeFormat& code_format, MetadataType type)
      : format(code_format),
        count(checked_count("EncodedVectors", num_vectors)),
        code_bytes(checked_code_bytes(code_format)),
        codes(num_vectors * code_bytes),
        scales(type, num_vectors) {}

  /// Bytes allocated for codes and scales.
  [[nodiscard]] std::size_t bytes() const noexcept { return codes.size() + scales.bytes().size(); }
  [[nodiscard]] const std::uint8_t* row(std::size_t i) const noexcept {
    return codes.data() + i * code_bytes;
  }
  [[nodiscard]] std::uint8_t* row(std::size_t i) noexcept { return codes.data() + i * code_bytes; }

  friend bool operator==(const EncodedVectors&, const EncodedVectors&) = default;

 private:
  static std::size_t checked_code_bytes(const CodeFormat& format) {
    require(format.dim >= 1 && format.dim <= (1 << 20), ErrorCode::invalid_argument,
            "EncodedVectors: format.dim is ", format.dim, ", expected 1 to 1048576");
    detail::check_bits("EncodedVectors", format.bits);
    require(to_string(format.kind) != "unknown", ErrorCode::invalid_argument,
            "EncodedVectors: format.kind is CodeKind(", static_cast<int>(format.kind),
            "), expected lloyd_max, integer_grid, float8_e4m3 or int8");
    return format.code_bytes();
  }
};

/// Checks a batch against the format and scales of the quantizer that is to read it.
/// @param elements size of the array (count, dim) that goes with it
/// @throws Error(shape_mismatch) naming the field that differs.
inline void require_encoded(const char* caller, const EncodedVectors& encoded,
                            const CodeFormat& expected, MetadataType metadata,
                            std::size_t elements) {
  const CodeFormat& format = encoded.format;
  require(format.kind == expected.kind, ErrorCode::shape_mismatch, caller,
          ": encoded.format.kind is ", to_string(format.kind), ", expected ",
          to_string(expected.kind));
  require(format.dim == expected.dim, ErrorCode::shape_mismatch, caller, ": encoded.format.dim is ",
          format.dim, ", expected ", expected.dim);
  require(format.bits == expected.bits, ErrorCode::shape_mismatch, caller,
          ": encoded.format.bits is ", format.bits, ", expected ", expected.bits);
  require(format.rotation_seed == expected.rotation_seed, ErrorCode::shape_mismatch, caller,
          ": encoded.format.rotation_seed is ", format.rotation_seed, ", expected ",
          expected.rotation_seed);
  require(format.rotation_kind == expected.rotation_kind, ErrorCode::shape_mismatch, caller,
          ": encoded.format.rotation_kind is ", format.rotation_kind, ", expected ",
          expected.rotation_kind);
  require(encoded.scales.type() == metadata, ErrorCode::shape_mismatch, caller,
          ": encoded.scales has ", metadata_bytes(encoded.scales.type()), "-byte scales, expected ",
          metadata_bytes(metadata));
  require(encoded.scales.size() == encoded.count && encoded.code_bytes == expected.code_bytes() &&
              encoded.codes.size() / encoded.code_bytes == encoded.count &&
              encoded.codes.size() % encoded.code_bytes == 0,
          ErrorCode::shape_mismatch, caller, ": encoded holds ", encoded.codes.size(),
          " bytes of codes, ", encoded.code_bytes, " per vector, and ", encoded.scales.size(),
          " scales, expected ", expected.code_bytes(),
          " per vector and a scale each for encoded.count = ", encoded.count);
  require(elements == encoded.count * static_cast<std::size_t>(expected.dim),
          ErrorCode::shape_mismatch, caller, ": the other array holds ", elements,
          " numbers, expected ", encoded.count, " * ", expected.dim);
  require_finite(caller, "encoded.scales", encoded.scales);
}

}  // namespace turboquant
