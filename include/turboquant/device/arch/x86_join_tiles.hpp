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

/// Exchanges the bits of every dword that `mask` selects with those `Shift` places above.
template <int Shift>
TURBOQUANT_AVX2_INLINE __m256i swap_bits(__m256i x, std::uint32_t mask) noexcept {
  const __m256i changed = _mm256_and_si256(_mm256_xor_si256(_mm256_srli_epi32(x, Shift), x),
                                           _mm256_set1_epi32(static_cast<int>(mask)));
  return _mm256_xor_si256(x, _mm256_xor_si256(changed, _mm256_slli_epi32(changed, Shift)));
}

/// Nibbles 0 to 7 of every dword from bits 0 to 7 of its bytes: byte 0 has their bits 0, byte 1
/// their bits 2, byte 2 their bits 1, byte 3 their bits 3. Of the five bits of a bit's place, two
/// change ends with three: as many exchanges, since the bytes come in this order.
TURBOQUANT_AVX2_INLINE __m256i nibbles_of_planes(__m256i planes) noexcept {
  planes = swap_bits<12>(planes, 0x0000F0F0U);
  planes = swap_bits<6>(planes, 0x00CC00CCU);
  return swap_bits<3>(planes, 0x0A0A0A0AU);
}

/// The words of 32 tokens with 3-bit codes from two tiles' planes, for one run of dimensions.
/// @param even  planes of the first 16 tokens, `width` words of 16 bits each
/// @param odd   of the others
/// @param width a multiple of 8
/// @param out   three rows of `width` dwords
TURBOQUANT_AVX2 inline void join_value_planes(const unsigned char* even, const unsigned char* odd,
                                              std::size_t width, unsigned char* out) noexcept {
  const __m256i low = _mm256_set1_epi32(0x00FF00FF);
  for (std::size_t d = 0; d < width; d += 8) {
    __m256i a[3];
    __m256i b[3];
    TURBOQUANT_UNROLL
    for (std::size_t bit = 0; bit < 3; ++bit) {
      const std::size_t at = 2 * (bit * width + d);
      a[bit] = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(even + at)));
      b[bit] = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(odd + at)));
    }
    // Planes 0 and 1 of every word are bytes 0 and 2 of a dword; its plane 2 and the spare plane
    // are bytes 1 and 3.
    const __m256i pair[2] = {_mm256_or_si256(a[0], _mm256_slli_epi32(a[1], 16)),
                             _mm256_or_si256(b[0], _mm256_slli_epi32(b[1], 16))};
    const __m256i front[3] = {_mm256_and_si256(pair[0], low),
                              _mm256_and_si256(_mm256_srli_epi32(pair[0], 8), low),
                              _mm256_and_si256(pair[1], low)};
    const __m256i plane_2[3] = {a[2], _mm256_srli_epi32(a[2], 8), b[2]};
    TURBOQUANT_UNROLL
    for (std::size_t row = 0; row < 3; ++row) {
      const __m256i second =
          _mm256_and_si256(_mm256_slli_epi32(plane_2[row], 8), _mm256_set1_epi32(0x0000FF00));
      const __m256i spare = _mm256_slli_epi32(_mm256_srli_epi32(b[row], 8), 24);
      const __m256i planes = _mm256_or_si256(front[row], _mm256_or_si256(second, spare));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 4 * (row * width + d)),
                          nibbles_of_planes(planes));
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
      const unsigned char* const source = from + in.offset + 4 * in.column(d);
      unsigned char* const target = to + out.offset + 4 * (out.column(d) + first / Tokens * words);
      std::memcpy(target, source, 4 * words);
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
