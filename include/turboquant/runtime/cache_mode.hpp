#pragma once

#include <turboquant/base/error.hpp>

#include <array>
#include <cstdint>
#include <string_view>

namespace turboquant {

/// What a `CacheManager` stores and computes.
enum class CacheMode : std::uint8_t {
  off,           ///< nothing is stored; tokens are only counted
  capture_only,  ///< tokens are stored beside the engine's own cache, for comparison
  hybrid,        ///< the library computes decode attention, the caller prefill attention
  full_tq,       ///< the library computes all attention; the engine has no cache of its own
};

/// Who computes an attention.
enum class AttentionBy : std::uint8_t { caller, library };

/// Whether the inference engine needs its own uncompressed KV cache.
enum class EngineCache : std::uint8_t {
  needed,          ///< always
  during_prefill,  ///< until the prompt has been processed
  none,            ///< never allocated
};

/// One row of the mode table.
struct CacheModeTraits {
  CacheMode mode;
  std::string_view name;
  bool stores;
  AttentionBy prefill;
  AttentionBy decode;
  EngineCache engine_cache;
};

/// The mode table, in the order of the enumerators.
inline constexpr std::array<CacheModeTraits, 4> cache_modes{{
    {CacheMode::off, "off", false, AttentionBy::caller, AttentionBy::caller, EngineCache::needed},
    {CacheMode::capture_only, "capture_only", true, AttentionBy::caller, AttentionBy::caller,
     EngineCache::needed},
    {CacheMode::hybrid, "hybrid", true, AttentionBy::caller, AttentionBy::library,
     EngineCache::during_prefill},
    {CacheMode::full_tq, "full_tq", true, AttentionBy::library, AttentionBy::library,
     EngineCache::none},
}};

/// The row of `mode`.
/// @throws Error(invalid_argument) for a number that is no mode.
[[nodiscard]] constexpr const CacheModeTraits& traits_of(CacheMode mode) {
  const auto row = static_cast<std::size_t>(mode);
  require(row < cache_modes.size(), ErrorCode::invalid_argument, "CacheMode: value is ", row,
          ", expected 0 to 3 (off, capture_only, hybrid, full_tq)");
  return cache_modes[row];
}

/// The name of a mode.
[[nodiscard]] constexpr std::string_view to_string(CacheMode mode) {
  return traits_of(mode).name;
}

/// The mode called `name`.
/// @throws Error(invalid_argument) for any other text.
[[nodiscard]] constexpr CacheMode parse_cache_mode(std::string_view name) {
  for (const CacheModeTraits& row : cache_modes) {
    if (row.name == name) {
      return row.mode;
    }
  }
  fail(ErrorCode::invalid_argument, "parse_cache_mode: name is \"", name,
       "\", expected off, capture_only, hybrid or full_tq");
}

}  // namespace turboquant
