#pragma once

#include <turboquant/base/float16.hpp>
#include <turboquant/device/kokkos_compat.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace turboquant {

/// The number type of uncompressed rows.
enum class RowType : std::uint8_t { float32, float16, bfloat16 };

/// Whether a value is one of the enumerators.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION bool is_row_type(RowType type) noexcept {
  return type <= RowType::bfloat16;
}

/// Bytes of one number: 4 or 2.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION std::size_t row_type_bytes(RowType type) noexcept {
  return type == RowType::float32 ? 4 : 2;
}

/// The `RowType` of `float`, `float16` or `bfloat16`.
template <class T>
inline constexpr RowType row_type_of = [] {
  using Number = std::remove_cv_t<T>;
  static_assert(std::is_same_v<Number, float> || std::is_same_v<Number, float16> ||
                    std::is_same_v<Number, bfloat16>,
                "rows are float, turboquant::float16 or turboquant::bfloat16");
  if constexpr (std::is_same_v<Number, float>) {
    return RowType::float32;
  } else if constexpr (std::is_same_v<Number, float16>) {
    return RowType::float16;
  } else {
    return RowType::bfloat16;
  }
}();

/// The largest magnitude of the numbers that appends take, since attention reads them as exact
/// rows.
///
/// A logit in units of log(2) adds at most 576 products of a scaled query's number and a key's,
/// each below 2^118, as `DecodeInputs` asks for: less than 2^127.2. A weighted sum of values has
/// weights of at most 1: over 2^31 tokens, at most 2^31 * 2^96 = 2^127. Floats end at 2^128, so
/// that both leave room for rounding.
inline constexpr float largest_row_number = 0x1p96F;

/// Whether a number is at most `limit` in magnitude, which a NaN is not.
[[nodiscard]] constexpr TURBOQUANT_FUNCTION bool is_within(float x, float limit) noexcept {
  return x >= -limit && x <= limit;
}

/// Uncompressed vectors (tokens, heads, dim), the dimensions of one vector contiguous; does not own
/// them.
///
/// A plain record that kernels read, so the location is not part of its type: the data live in the
/// memory space of the kernel's execution space.
struct RowView {
  const void* data = nullptr;
  RowType type = RowType::float32;
  std::int64_t token_stride = 0;  ///< numbers between the same head of two tokens
  std::int64_t head_stride = 0;   ///< numbers between two heads of one token

  /// Index of the first number of a vector.
  [[nodiscard]] TURBOQUANT_FUNCTION std::int64_t offset(std::int64_t token,
                                                        int head) const noexcept {
    return token * token_stride + head * head_stride;
  }

  /// Number `i` as a float, exact.
  [[nodiscard]] TURBOQUANT_FUNCTION float read(std::int64_t i) const noexcept {
    switch (type) {
      case RowType::float16: return static_cast<const float16*>(data)[i].to_float();
      case RowType::bfloat16: return static_cast<const bfloat16*>(data)[i].to_float();
      default: return static_cast<const float*>(data)[i];
    }
  }

  /// Copies one vector as floats.
  /// @param out (dim), element i at `out[i * stride]`
  TURBOQUANT_FUNCTION void read_row(std::int64_t token, int head, std::size_t dim, float* out,
                                    std::size_t stride = 1) const noexcept {
    const std::int64_t first = offset(token, head);
    switch (type) {
      case RowType::float16:
        return copy(static_cast<const float16*>(data) + first, dim, out, stride);
      case RowType::bfloat16:
        return copy(static_cast<const bfloat16*>(data) + first, dim, out, stride);
      default: break;
    }
    const float* in = static_cast<const float*>(data) + first;
    for (std::size_t i = 0; i < dim; ++i) {
      out[i * stride] = in[i];
    }
  }

 private:
  template <class Half>
  static TURBOQUANT_FUNCTION void copy(const Half* in, std::size_t dim, float* out,
                                       std::size_t stride) noexcept {
    for (std::size_t i = 0; i < dim; ++i) {
      out[i * stride] = in[i].to_float();
    }
  }
};

/// The `RowView` of dense rows.
/// @param data (tokens, heads, dim), row-major
template <class T>
[[nodiscard]] RowView dense_rows(const T* data, int heads, int dim) noexcept {
  return {data, row_type_of<T>, static_cast<std::int64_t>(heads) * dim, dim};
}

}  // namespace turboquant
