#pragma once

#include <turboquant/base/error.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant {

/// What kernels read of a `CompressedKVStore`. A plain record; valid until the store changes.
///
/// Token at position p is slot (p - page_position) % n of tile (p - page_position) / n, with n the
/// `tile_tokens` of the format; tile t is tile t % tiles_per_page of page t / tiles_per_page; a
/// page is [kv head][tile in page][tile bytes].
struct KVStoreView {
  std::byte* const* pages = nullptr;  ///< (num_pages), in the store's memory space
  std::int64_t num_pages = 0;
  std::int64_t tiles_per_page = 1;
  std::int64_t page_position = 0;  ///< position of slot 0 of page 0
  std::int64_t begin = 0;          ///< the positions [begin, end) hold tokens
  std::int64_t end = 0;

  friend bool operator==(const KVStoreView&, const KVStoreView&) = default;
};

struct KVStoreOptions {
  /// Tokens of a page, a multiple of the format's `tile_tokens`; 0 stores the tiles flat, as one
  /// block that grows.
  std::int64_t block_size = 0;
  std::int64_t first_position = 0;  ///< position of the first token
};

/// @throws Error(invalid_argument) naming the field outside its domain.
inline void require_valid(const char* caller, const KVStoreOptions& options, int tile_tokens) {
  require(options.block_size >= 0 && options.block_size <= std::int64_t{1} << 30U &&
              options.block_size % tile_tokens == 0,
          ErrorCode::invalid_argument, caller, ": block_size is ", options.block_size,
          ", expected 0 (flat) or a multiple of tile_tokens = ", tile_tokens, " up to 2^30");
  require(options.first_position >= 0 && options.first_position <= std::int64_t{1} << 40U,
          ErrorCode::invalid_argument, caller, ": first_position is ", options.first_position,
          ", expected 0 to 2^40");
}

}  // namespace turboquant
