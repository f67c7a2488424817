#pragma once

// Number types of GGUF tensors, and their numbers as floats. A row is a whole number of blocks.

#include <turboquant/base/error.hpp>
#include <turboquant/base/float16.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace llama_ab {

/// Numbers as GGUF files name them.
enum class TensorType : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q8_0 = 8,
  q4_k = 12,
  q6_k = 14,
  bf16 = 30,
};

struct TensorTypeTraits {
  TensorType type;
  std::string_view name;
  std::size_t block_numbers;
  std::size_t block_bytes;
};

inline constexpr std::array<TensorTypeTraits, 8> tensor_types{{
    {TensorType::f32, "F32", 1, 4},
    {TensorType::f16, "F16", 1, 2},
    {TensorType::q4_0, "Q4_0", 32, 18},
    {TensorType::q4_1, "Q4_1", 32, 20},
    {TensorType::q8_0, "Q8_0", 32, 34},
    {TensorType::q4_k, "Q4_K", 256, 144},
    {TensorType::q6_k, "Q6_K", 256, 210},
    {TensorType::bf16, "BF16", 1, 2},
}};

/// The row of a type, or null for a number that is none of them.
[[nodiscard]] constexpr const TensorTypeTraits* find_tensor_type(std::uint32_t number) noexcept {
  for (const TensorTypeTraits& row : tensor_types) {
    if (static_cast<std::uint32_t>(row.type) == number) {
      return &row;
    }
  }
  return nullptr;
}

namespace detail {

[[nodiscard]] inline unsigned byte_at(const std::byte* p, std::size_t i) noexcept {
  return std::to_integer<unsigned>(p[i]);
}
[[nodiscard]] inline float signed_byte(const std::byte* p, std::size_t i) noexcept {
  return static_cast<float>(static_cast<std::int8_t>(byte_at(p, i)));
}
[[nodiscard]] inline float half_at(const std::byte* p) noexcept {
  return turboquant::float16{static_cast<std::uint16_t>(byte_at(p, 0) | byte_at(p, 1) << 8U)}
      .to_float();
}
[[nodiscard]] inline float low(unsigned byte) noexcept {
  return static_cast<float>(byte & 15U);
}
[[nodiscard]] inline float high(unsigned byte) noexcept {
  return static_cast<float>(byte >> 4U);
}

/// 16 bytes hold numbers 0..15 in their low and 16..31 in their high halves.
inline void read_nibbles(const std::byte* codes, float scale, float offset, float* out) noexcept {
  for (std::size_t i = 0; i < 16; ++i) {
    out[i] = low(byte_at(codes, i)) * scale + offset;
    out[i + 16] = high(byte_at(codes, i)) * scale + offset;
  }
}

/// Sub-block `j` of Q4_K: two 6-bit numbers of the 12 bytes, scale and minimum.
struct SubBlock {
  float scale;
  float minimum;
};
[[nodiscard]] inline SubBlock sub_block(const std::byte* packed, std::size_t j) noexcept {
  if (j < 4) {
    return {static_cast<float>(byte_at(packed, j) & 63U),
            static_cast<float>(byte_at(packed, j + 4) & 63U)};
  }
  const unsigned both = byte_at(packed, j + 4);
  return {static_cast<float>((both & 15U) | byte_at(packed, j - 4) >> 6U << 4U),
          static_cast<float>(both >> 4U | byte_at(packed, j) >> 6U << 4U)};
}

/// Half-precision scale and minimum, 8 sub-blocks of 32; two sub-blocks share 32 bytes.
inline void read_q4_k(const std::byte* block, float* out) noexcept {
  const float scale = half_at(block);
  const float minimum = half_at(block + 2);
  const std::byte* const codes = block + 16;
  for (std::size_t pair = 0; pair < 4; ++pair) {
    const SubBlock first = sub_block(block + 4, 2 * pair);
    const SubBlock second = sub_block(block + 4, 2 * pair + 1);
    for (std::size_t i = 0; i < 32; ++i) {
      const unsigned byte = byte_at(codes, pair * 32 + i);
      out[pair * 64 + i] = scale * first.scale * low(byte) - minimum * first.minimum;
      out[pair * 64 + 32 + i] = scale * second.scale * high(byte) - minimum * second.minimum;
    }
  }
}

/// 128 bytes of low halves, 64 of upper pairs of bits, 16 signed scales, half-precision scale.
inline void read_q6_k(const std::byte* block, float* out) noexcept {
  const float scale = half_at(block + 208);
  for (std::size_t half = 0; half < 2; ++half) {
    const std::byte* const lower = block + half * 64;
    const std::byte* const upper = block + 128 + half * 32;
    const std::byte* const scales = block + 192 + half * 8;
    for (std::size_t i = 0; i < 32; ++i) {
      for (std::size_t part = 0; part < 4; ++part) {
        const unsigned byte = byte_at(lower, i + part % 2 * 32);
        const unsigned four = part < 2 ? byte & 15U : byte >> 4U;
        const unsigned two = byte_at(upper, i) >> 2U * part & 3U;
        const float code = static_cast<float>(four | two << 4U) - 32.0F;
        out[half * 128 + part * 32 + i] = scale * signed_byte(scales, 2 * part + i / 16) * code;
      }
    }
  }
}

inline void read_block(TensorType type, const std::byte* block, float* out) noexcept {
  switch (type) {
    case TensorType::f32: std::memcpy(out, block, sizeof(float)); break;
    case TensorType::f16: *out = half_at(block); break;
    case TensorType::bf16:
      *out = turboquant::bfloat16{static_cast<std::uint16_t>(byte_at(block, 0) | byte_at(block, 1)
                                                                                     << 8U)}
                 .to_float();
      break;
    case TensorType::q4_0: {
      const float scale = half_at(block);
      read_nibbles(block + 2, scale, -8.0F * scale, out);
      break;
    }
    case TensorType::q4_1: read_nibbles(block + 4, half_at(block), half_at(block + 2), out); break;
    case TensorType::q8_0:
      for (std::size_t i = 0; i < 32; ++i) {
        out[i] = signed_byte(block + 2, i) * half_at(block);
      }
      break;
    case TensorType::q4_k: read_q4_k(block, out); break;
    case TensorType::q6_k: read_q6_k(block, out); break;
  }
}

}  // namespace detail

/// Reads whole blocks as floats.
/// @param bytes of exactly the blocks of `out.size()` numbers
/// @throws turboquant::Error(shape_mismatch) for other sizes
inline void dequantize(TensorType type, std::span<const std::byte> bytes, std::span<float> out) {
  const TensorTypeTraits* const traits = find_tensor_type(static_cast<std::uint32_t>(type));
  turboquant::require(traits != nullptr, turboquant::ErrorCode::unsupported, "dequantize: type is ",
                      static_cast<std::uint32_t>(type), ", expected a known one");
  turboquant::require(
      out.size() % traits->block_numbers == 0 &&
          bytes.size() / traits->block_bytes == out.size() / traits->block_numbers &&
          bytes.size() % traits->block_bytes == 0,
      turboquant::ErrorCode::shape_mismatch, "dequantize: ", bytes.size(), " bytes of ",
      traits->name, " for ", out.size(), " numbers, expected ", traits->block_bytes,
      " bytes for every ", traits->block_numbers);
  for (std::size_t i = 0; i < out.size() / traits->block_numbers; ++i) {
    detail::read_block(type, bytes.data() + i * traits->block_bytes,
                       out.data() + i * traits->block_numbers);
  }
}

}  // namespace llama_ab
