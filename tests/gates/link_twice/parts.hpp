#pragma once

#include <turboquant/base/config.hpp>
#include <turboquant/math/lloyd_max.hpp>

const void* address_seen_by_one();
const void* address_seen_by_two();
int version_seen_by_one();
int version_seen_by_two();

/// The one entry that every caller in the process must share.
inline const void* address_of_codebook_cache() {
  return &turboquant::lloyd_max(16, 2);
}
