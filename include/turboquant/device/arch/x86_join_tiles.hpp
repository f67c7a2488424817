#pragma once

#include <turboquant/device/arch/x86_target.hpp>
#include <turboquant/device/attention_operations.hpp>
#include <turboquant/device/tile_words.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

/// @file
/// Tiles of 16 or 32 tokens put together to one of 64, in host order: rows side by side. Vector
/// units then take pages of any size by the same kernels, which give the same bits.

#if TURBOQUANT_X86

namespace turboquant::detail {

/// Copies `rows` rows of `Bytes` bytes to their place in rows that are four or two times as long.
template <std::size_t Bytes>
void join_rows(const unsigned char* from, std::size_t rows, std::size_t stride,
               unsigned char* to) noexcept {
  for (std::size_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * stride, from + row * Bytes, Bytes);
  }
}

/// The words of 32 tokens with 3-bit codes from two tiles' planes, for one run of dimensions.
/// @param even planes of the first 16 tokens, `width` words of 16 bits each
/// @param odd  of the others
/// @param out  three rows of `width` dwords
inline void join_value_planes(const unsigned char* even, const unsigned char* odd,
                              std::size_t width, unsigned char* out) noexcept {
  for (std::size_t d = 0; d < width; ++d) {
    std::uint32_t words[3] = {};
    for (unsigned bit = 0; bit < 3; ++bit) {
      const unsigned char* const a = even + 2 * (bit * width + d);
      const unsigned char* const b = odd + 2 * (bit * width + d);
      words[0] |= spread_byte(a[0]) << bit;
      words[1] |= spread_byte(a[1]) << bit;
      words[2] |= spread_byte(b[0]) << bit;
      words[bit] |= spread_byte(b[1]) << 3U;
    }
    for (std::size_t row = 0; row < 3; ++row) {
      store_word(out + 4 * (row * width + d), words[row]);
    }
  }
}

/// Puts a small tile into a tile of 64 tokens at slot `first`; values of 3 bits in planes are left
/// out.
template <std::size_t Tokens>
void join_tile(const TileFormat& small, const unsigned char* from, std::size_t first,
               const TileFormat& whole, unsigned char* to) noexcept {
  constexpr std::size_t all = TileFormat::max_tokens;
  const auto join_keys = [&](const KeySection& in, const KeySection& out) {
    const std::size_t words = in.word_dims() * in.width / 32;
    join_rows<4 * Tokens>(from + in.offset, words, 4 * all, to + out.offset + 4 * first);
    join_rows<Tokens>(from + in.offset + 4 * Tokens * words,
                      (in.dim - in.word_dims()) / 8 * in.width, all,
                      to + out.offset + 4 * all * words + first);
  };
  join_keys(key_codes(small), key_codes(whole));
  if (small.key_codec == KeyCodec::inner_product) {
    join_keys(key_signs(small), key_signs(whole));
  }
  join_rows<2 * Tokens>(from + small.key_scales_offset(), small.metadata_bytes() / 2, 2 * all,
                        to + whole.key_scales_offset() + 2 * first);
  const ValueSection in = value_codes(small);
  const ValueSection out = value_codes(whole);
  if (!host_order::has_value_planes(in.width, Tokens)) {
    for (std::size_t d = 0; d < in.dim; d += 32) {
      const std::size_t words = Tokens * in.width / 32 * in.row_words(d);
      std::memcpy(to + out.offset + 4 * (out.column(d) + first / Tokens * words),
                  from + in.offset + 4 * in.column(d), 4 * words);
    }
  }
}

/// Puts the small tiles of 64 tokens together; slots without a tile become zero.
/// @param small format of the tiles, in host order
/// @param whole the same with tiles of 64 tokens
/// @param to    (whole.bytes())
template <std::size_t Tokens>
void join_tiles(const TileFormat& small, const std::byte* const* tiles, const TileFormat& whole,
                unsigned char* to) noexcept {
  constexpr std::size_t count = TileFormat::max_tokens / Tokens;
  const unsigned char* from[count] = {};
  bool complete = true;
  for (std::size_t i = 0; i < count; ++i) {
    from[i] = reinterpret_cast<const unsigned char*>(tiles[i]);
    complete = complete && from[i] != nullptr;
  }
  if (!complete) {
    std::memset(to, 0, whole.bytes());
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (from[i] != nullptr) {
      join_tile<Tokens>(small, from[i], i * Tokens, whole, to);
    }
  }
  const ValueSection in = value_codes(small);
  if (!host_order::has_value_planes(in.width, Tokens)) {
    return;
  }
  const ValueSection out = value_codes(whole);
  static constexpr unsigned char nothing[32 * 6] = {};
  for (std::size_t i = 0; i < count; i += 2) {
    for (std::size_t d = 0; d < in.dim; d += 32) {
      const std::size_t at = in.offset + 4 * in.column(d);
      const std::size_t width = in.row_words(d);
      join_value_planes(from[i] != nullptr ? from[i] + at : nothing,
                        from[i + 1] != nullptr ? from[i + 1] + at : nothing, width,
                        to + out.offset + 4 * (out.column(d) + i / 2 * 3 * width));
    }
  }
}

/// Bytes of the largest tile of 64 tokens: 576 key and value dimensions, fp8 keys, values of 4 bits
/// in groups of 8.
inline constexpr std::size_t max_tile_bytes =
    TileFormat::max_tokens * (576 + 576 / 2 + 4 * (576 / 8));

/// `Attend` for tiles of any size.
/// @tparam Attend takes tiles of 64 tokens
template <void (*Attend)(const TileTables&, const TileArguments&) noexcept>
void attend_joined(const TileTables& tables, const TileArguments& in) noexcept {
  TileTables joined = tables;
  joined.format.tile_tokens = static_cast<int>(TileFormat::max_tokens);
  alignas(64) unsigned char tile[max_tile_bytes];
  if (tables.format.tile_tokens == 16) {
    join_tiles<16>(tables.format, in.small_tiles, joined.format, tile);
  } else {
    join_tiles<32>(tables.format, in.small_tiles, joined.format, tile);
  }
  for (const std::byte* next : in.next_small_tiles) {
    if (next != nullptr) {
      prefetch_bytes(reinterpret_cast<const unsigned char*>(next), tables.format.bytes());
    }
  }
  TileArguments whole = in;
  whole.tile = reinterpret_cast<const std::byte*>(tile);
  whole.next = nullptr;
  Attend(joined, whole);
}

}  // namespace turboquant::detail

#endif
