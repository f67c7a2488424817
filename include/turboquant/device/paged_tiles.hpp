#pragma once

#include <turboquant/base/config.hpp>
#include <turboquant/device/memory_words.hpp>
#include <turboquant/device/tile_format.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace turboquant {

/// Where the tiles of one sequence are: a table of page addresses.
///
/// A page holds [kv head][tile in page][tile bytes]; whatever follows is padding and never touched.
/// Token t of the sequence, counted from the first page, is slot t % n of tile t / n, with n the
/// `tile_tokens` of the format, and tile i is tile i % tiles_per_page of page i / tiles_per_page.
/// One page that grows is a flat store. A plain record that kernels read; owns nothing.
struct PagedTiles {
  /// Beyond it, addresses within a page of many heads would not fit 64 bits.
  static constexpr std::int64_t max_tiles_per_page = std::int64_t{1} << 30U;

  std::byte* const* pages = nullptr;  ///< (num_pages), in token order; each a multiple of 4 bytes,
                                      ///< on devices of 16; of 64 for full speed
  std::int64_t num_pages = 0;
  std::int64_t tiles_per_page = 1;  ///< 1 to max_tiles_per_page

  /// First byte of a tile of one head.
  [[nodiscard]] TURBOQUANT_FUNCTION std::byte* tile(std::int64_t tile, int head,
                                                    std::size_t tile_bytes) const noexcept {
    const std::int64_t in_page =
        static_cast<std::int64_t>(head) * tiles_per_page + tile % tiles_per_page;
    return pages[tile / tiles_per_page] + in_page * static_cast<std::int64_t>(tile_bytes);
  }
};

/// Bytes of a page without padding.
/// @throws Error(invalid_argument) for numbers below 1, Error(overflow) beyond 2^63 - 1 bytes.
[[nodiscard]] constexpr std::size_t page_bytes(const TileFormat& format, int kv_heads,
                                               std::int64_t tiles_per_page) {
  require(kv_heads >= 1 && tiles_per_page >= 1, ErrorCode::invalid_argument,
          "page_bytes: kv_heads is ", kv_heads, " and tiles_per_page is ", tiles_per_page,
          ", expected 1 or more");
  const std::size_t tiles = static_cast<std::size_t>(kv_heads) * format.bytes();
  constexpr std::size_t most = (std::numeric_limits<std::size_t>::max)() / 2;
  require(static_cast<std::size_t>(tiles_per_page) <= most / tiles, ErrorCode::overflow,
          "page_bytes: tiles_per_page is ", tiles_per_page, ", expected at most ", most / tiles,
          " with ", kv_heads, " kv heads");
  return tiles * static_cast<std::size_t>(tiles_per_page);
}

/// Turns an engine's block table into page addresses: `base + block_table[i] * stride_bytes`.
///
/// @param base         page 0 of the pool, a multiple of 4 bytes
/// @param stride_bytes bytes from one page to the next, a positive multiple of 4; at least those of
/// a page, or pages share memory
/// @param pool_pages   pages in the pool, with `base` and `stride_bytes` inside the address space
/// @param block_table  (n), page numbers in token order
/// @param pages        (n), receives the addresses
/// @throws Error(out_of_range) naming the first entry outside [0, pool_pages),
/// Error(shape_mismatch) for other sizes, Error(invalid_argument) and Error(overflow) for a pool
///         that cannot be; `pages` is then unchanged. O(n).
inline void read_block_table(std::byte* base, std::int64_t stride_bytes, std::int64_t pool_pages,
                             std::span<const std::int32_t> block_table,
                             std::span<std::byte*> pages) {
  require(pages.size() == block_table.size(), ErrorCode::shape_mismatch,
          "read_block_table: pages.size() is ", pages.size(),
          ", expected block_table.size() = ", block_table.size());
  constexpr auto alignment = static_cast<std::int64_t>(detail::tile_alignment);
  require(stride_bytes >= alignment && stride_bytes % alignment == 0, ErrorCode::invalid_argument,
          "read_block_table: stride_bytes is ", stride_bytes, ", expected a positive multiple of ",
          alignment);
  require(pool_pages >= 0, ErrorCode::invalid_argument, "read_block_table: pool_pages is ",
          pool_pages, ", expected 0 or more");
  if (block_table.empty()) {
    return;
  }
  require(base != nullptr, ErrorCode::invalid_argument,
          "read_block_table: base is null, expected the memory of page 0");
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  require(address % detail::tile_alignment == 0, ErrorCode::invalid_argument,
          "read_block_table: base begins at an address that is no multiple of ", alignment,
          " bytes");
  require(pool_pages > 0, ErrorCode::out_of_range,
          "read_block_table: pool_pages is 0, expected pages for the ", block_table.size(),
          " entries of block_table");
  constexpr auto last_address =
      static_cast<std::uintptr_t>((std::numeric_limits<std::ptrdiff_t>::max)());
  require(address <= last_address &&
              static_cast<std::uintptr_t>(pool_pages) <=
                  (last_address - address) / static_cast<std::uintptr_t>(stride_bytes),
          ErrorCode::overflow, "read_block_table: ", pool_pages,
          " pages with stride_bytes = ", stride_bytes,
          " from base on end beyond the address space");
  for (std::size_t i = 0; i < block_table.size(); ++i) {
    require(block_table[i] >= 0 && block_table[i] < pool_pages, ErrorCode::out_of_range,
            "read_block_table: block_table[", i, "] is ", block_table[i], ", expected 0 to ",
            pool_pages - 1);
  }
  for (std::size_t i = 0; i < block_table.size(); ++i) {
    pages[i] = base + std::int64_t{block_table[i]} * stride_bytes;
  }
}

/// Checks on the host that tokens [first_token, end_token), counted from the first page, have
/// pages.
/// @throws Error naming what is wrong: `invalid_argument` for a field outside its domain or a null
/// page, `out_of_range`
///         for tokens beyond the table. O(pages).
inline void require_tiles(const char* caller, const TileFormat& format, const PagedTiles& tiles,
                          std::int64_t first_token, std::int64_t end_token) {
  if (first_token >= end_token) {
    return;
  }
  require(tiles.tiles_per_page >= 1 && tiles.tiles_per_page <= PagedTiles::max_tiles_per_page,
          ErrorCode::invalid_argument, caller, ": tiles_per_page is ", tiles.tiles_per_page,
          ", expected 1 to 2^30");
  const std::int64_t tile_tokens = format.tile_tokens;
  const std::int64_t end_page = (end_token - 1) / tile_tokens / tiles.tiles_per_page + 1;
  require(first_token >= 0 && end_page <= tiles.num_pages && tiles.pages != nullptr,
          ErrorCode::out_of_range, caller, ": tokens [", first_token, ", ", end_token,
          ") lie outside the ", tiles.num_pages, " pages of ", tiles.tiles_per_page, " tiles");
  for (std::int64_t page = first_token / tile_tokens / tiles.tiles_per_page; page < end_page;
       ++page) {
    require(tiles.pages[page] != nullptr, ErrorCode::invalid_argument, caller, ": pages[", page,
            "] is null, expected memory");
    require(reinterpret_cast<std::uintptr_t>(tiles.pages[page]) % detail::tile_alignment == 0,
            ErrorCode::invalid_argument, caller, ": pages[", page,
            "] begins at an address that is no multiple of ", detail::tile_alignment, " bytes");
  }
}

}  // namespace turboquant
