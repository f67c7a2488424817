#pragma once

#include <turboquant/base/error.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace turboquant {

/// Element type of an uncompressed cache. There is no "auto": every spec names its bytes.
enum class CacheDType { float32, float16, bfloat16, float8_e4m3, int8 };

/// Bytes of one element.
/// @throws Error(invalid_argument) for a number that is no enumerator.
[[nodiscard]] constexpr std::int64_t dtype_size_bytes(CacheDType dtype) {
  switch (dtype) {
    case CacheDType::float32: return 4;
    case CacheDType::float16:
    case CacheDType::bfloat16: return 2;
    case CacheDType::float8_e4m3:
    case CacheDType::int8: return 1;
  }
  fail(ErrorCode::invalid_argument, "dtype_size_bytes: dtype is ", static_cast<int>(dtype),
       ", expected float32, float16, bfloat16, float8_e4m3 or int8");
}

/// The canonical spelling, for example "bfloat16".
[[nodiscard]] constexpr std::string_view to_string(CacheDType dtype) noexcept {
  switch (dtype) {
    case CacheDType::float32: return "float32";
    case CacheDType::float16: return "float16";
    case CacheDType::bfloat16: return "bfloat16";
    case CacheDType::float8_e4m3: return "float8_e4m3";
    case CacheDType::int8: return "int8";
  }
  return "unknown";
}

/// The type named by `name` ("bfloat16", "bf16", "torch.float16", "half", "fp8", ...), or nothing.
[[nodiscard]] constexpr std::optional<CacheDType> find_cache_dtype(std::string_view name) noexcept {
  constexpr std::string_view torch_prefix = "torch.";
  if (name.substr(0, torch_prefix.size()) == torch_prefix) {
    name.remove_prefix(torch_prefix.size());
  }
  struct Spelling {
    std::string_view name;
    CacheDType dtype;
  };
  constexpr std::array spellings{Spelling{"float32", CacheDType::float32},
                                 Spelling{"float", CacheDType::float32},
                                 Spelling{"fp32", CacheDType::float32},
                                 Spelling{"float16", CacheDType::float16},
                                 Spelling{"half", CacheDType::float16},
                                 Spelling{"fp16", CacheDType::float16},
                                 Spelling{"bfloat16", CacheDType::bfloat16},
                                 Spelling{"bf16", CacheDType::bfloat16},
                                 Spelling{"fp8", CacheDType::float8_e4m3},
                                 Spelling{"fp8_e4m3", CacheDType::float8_e4m3},
                                 Spelling{"float8_e4m3", CacheDType::float8_e4m3},
                                 Spelling{"float8_e4m3fn", CacheDType::float8_e4m3},
                                 Spelling{"int8", CacheDType::int8}};
  for (const Spelling& spelling : spellings) {
    if (spelling.name == name) {
      return spelling.dtype;
    }
  }
  return std::nullopt;
}

/// The type named by `name`.
/// @throws Error(invalid_argument) for an unknown name, and for "auto", which names no size.
[[nodiscard]] constexpr CacheDType parse_cache_dtype(std::string_view name) {
  const std::optional<CacheDType> dtype = find_cache_dtype(name);
  require(dtype.has_value(), ErrorCode::invalid_argument, "parse_cache_dtype: name is \"", name,
          "\", expected float32, float16, bfloat16, fp8 or int8 (\"auto\" is not a type)");
  return *dtype;
}

}  // namespace turboquant
