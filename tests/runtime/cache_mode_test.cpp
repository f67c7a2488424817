#include "cache/cache_test_support.hpp"

#include <turboquant/runtime/cache_mode.hpp>

#include <doctest/doctest.h>

using cache_test::contains;
using cache_test::error_of;
using turboquant::AttentionBy;
using turboquant::CacheMode;
using turboquant::EngineCache;
using turboquant::traits_of;

TEST_CASE("the mode table says who computes what") {
  CHECK_FALSE(traits_of(CacheMode::off).stores);
  CHECK(traits_of(CacheMode::off).engine_cache == EngineCache::needed);
  CHECK(traits_of(CacheMode::capture_only).stores);
  CHECK(traits_of(CacheMode::capture_only).decode == AttentionBy::caller);
  CHECK(traits_of(CacheMode::hybrid).prefill == AttentionBy::caller);
  CHECK(traits_of(CacheMode::hybrid).decode == AttentionBy::library);
  CHECK(traits_of(CacheMode::hybrid).engine_cache == EngineCache::during_prefill);
  CHECK(traits_of(CacheMode::full_tq).prefill == AttentionBy::library);
  CHECK(traits_of(CacheMode::full_tq).engine_cache == EngineCache::none);
}

TEST_CASE("names and modes are one to one, anything else is refused") {
  for (const auto& row : turboquant::cache_modes) {
    CHECK(turboquant::parse_cache_mode(turboquant::to_string(row.mode)) == row.mode);
    CHECK(traits_of(row.mode).mode == row.mode);
  }
  for (const char* name : {"", "OFF", "full", "hybrid ", "active"}) {
    CHECK(contains(error_of([&] { static_cast<void>(turboquant::parse_cache_mode(name)); }),
                   "expected off, capture_only, hybrid or full_tq"));
  }
  CHECK(contains(error_of([] { static_cast<void>(traits_of(CacheMode{7})); }),
                 "value is 7, expected 0 to 3"));
}
