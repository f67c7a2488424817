#pragma once

#include <turboquant/device/attention_operations.hpp>

#include <cstddef>
#include <cstring>

/// @file
/// Queries for fp8 keys. A byte of e4m3 shifted into a half is 2^-8 times its number, subnormal
/// ones included, so that one conversion makes floats of pairs of dimensions.

namespace turboquant::detail {

/// Rows of float queries, filled up with zeros to blocks of four.
[[nodiscard]] inline std::size_t float8_query_bytes(const TileTables& tables, int rows) noexcept {
  return static_cast<std::size_t>((rows + 3) / 4 * 4 * tables.format.key_dim) * sizeof(float);
}

/// Every four dimensions in the order 0, 2, 1, 3: those of the even bytes of a dword, then those of
/// the odd ones.
inline void prepare_float8(const TileTables& tables, const PrepareArguments& in,
                           std::byte* query) noexcept {
  const int dim = tables.format.key_dim;
  std::memset(query, 0, float8_query_bytes(tables, in.rows));
  auto* out = reinterpret_cast<float*>(query);
  const float scale = in.logit_scale * 256.0F;
  for (int i = 0; i < in.rows * dim; i += 4) {
    out[i] = in.queries[i] * scale;
    out[i + 1] = in.queries[i + 2] * scale;
    out[i + 2] = in.queries[i + 1] * scale;
    out[i + 3] = in.queries[i + 3] * scale;
  }
}

}  // namespace turboquant::detail
