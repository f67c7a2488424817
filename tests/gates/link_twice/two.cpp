#include "everything.hpp"

#include "parts.hpp"

const void* address_seen_by_two() {
  return address_of_codebook_cache();
}
int version_seen_by_two() {
  return turboquant::version;
}
