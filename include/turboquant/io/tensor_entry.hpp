#pragma once

/// @file
/// One tensor of a safetensors file: its element type, its shape and where its bytes are.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace turboquant {

/// An element type of the safetensors format.
struct TensorType {
  std::string_view name;  ///< spelling in the file, for example "BF16"
  int bits = 0;           ///< bits of one element

  friend constexpr bool operator==(const TensorType& a, const TensorType& b) noexcept {
    return a.name == b.name;
  }
};

/// The element types of the format whose elements are whole bytes.
inline constexpr std::array<TensorType, 17> tensor_types{{
    {"BOOL", 8},
    {"U8", 8},
    {"I8", 8},
    {"F8_E5M2", 8},
    {"F8_E4M3", 8},
    {"F8_E8M0", 8},
    {"I16", 16},
    {"U16", 16},
    {"F16", 16},
    {"BF16", 16},
    {"I32", 32},
    {"U32", 32},
    {"F32", 32},
    {"C64", 64},
    {"F64", 64},
    {"I64", 64},
    {"U64", 64},
}};

/// The other element types of the format; a file that holds one is refused.
inline constexpr std::array<std::string_view, 3> sub_byte_tensor_types{"F4", "F6_E2M3", "F6_E3M2"};

/// One tensor of a file.
struct TensorEntry {
  std::string name;
  TensorType type;
  std::vector<std::int64_t> shape;  ///< row-major; empty for a scalar
  std::int64_t num_elements = 0;
  std::int64_t begin = 0;  ///< first byte, counted from the start of the data
  std::int64_t end = 0;    ///< one past the last byte
};

}  // namespace turboquant
