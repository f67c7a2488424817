#pragma once

#include <turboquant/device/kokkos_compat.hpp>
#include <turboquant/device/memory_overlap.hpp>
#include <turboquant/device/runtime.hpp>
#include <turboquant/device/tile_words.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant {

namespace detail {

/// Copies a run of tokens from one tile into another of the same content in another order or size.
/// @param tile of the first token, which is slot `slot` of it
/// @param count multiple of 8
/// @param out all zero in the slots of the run, which begins at `out_slot`
inline TURBOQUANT_FUNCTION void transcode_slots(const TileFormat& from, const unsigned char* tile,
                                                std::size_t slot, const TileFormat& to,
                                                unsigned char* out, std::size_t out_slot,
                                                std::size_t count) noexcept {
  const auto key_groups = static_cast<std::size_t>(from.key_dim) / 8;
  const auto copy_half = [&](std::size_t source, std::size_t at) {
    out[at] = tile[source];
    out[at + 1] = tile[source + 1];
  };
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t token = slot + i;
    const std::size_t target = out_slot + i;
    if (from.key_codec == KeyCodec::float8) {
      for (std::size_t d = 0; d < 8 * key_groups; ++d) {
        out[to.key_code_bit(target, d, 0).byte] = tile[from.key_code_bit(token, d, 0).byte];
      }
    } else {
      for (std::size_t group = 0; group < key_groups; ++group) {
        key_codes(to).write_nibbles(out, group, target,
                                    key_codes(from).read_nibbles(tile, group, token));
        if (from.key_codec == KeyCodec::inner_product) {
          key_signs(to).write_nibbles(out, group, target,
                                      key_signs(from).read_nibbles(tile, group, token));
        }
      }
      copy_half(from.key_scale_byte(token), to.key_scale_byte(target));
      if (from.key_codec == KeyCodec::inner_product) {
        copy_half(from.residual_scale_byte(token), to.residual_scale_byte(target));
      }
    }
    for (std::size_t group = 0; group < from.value_groups(); ++group) {
      copy_half(from.value_scale_byte(token, group), to.value_scale_byte(target, group));
      if (from.value_codec == ValueCodec::grouped) {
        copy_half(from.value_zero_byte(token, group), to.value_zero_byte(target, group));
      }
    }
  }
  for (std::size_t i = 0; i < from.key_mean_bytes(); ++i) {
    out[to.key_mean_offset() + i] = tile[from.key_mean_offset() + i];
  }
  for (std::size_t group = 0; group < count / 8; ++group) {
    for (std::size_t d = 0; d < static_cast<std::size_t>(from.value_dim); ++d) {
      value_codes(to).write_nibbles(out, out_slot / 8 + group, d,
                                    value_codes(from).read_nibbles(tile, slot / 8 + group, d));
    }
  }
}

/// One work item takes 64 tokens: a tile, or smaller tiles that follow each other, on either side.
struct TranscodeKernel {
  TileFormat from;
  const std::byte* tiles;
  TileFormat to;
  std::byte* out;

  [[nodiscard]] TURBOQUANT_FUNCTION std::size_t run_bytes() const noexcept {
    return TileFormat::max_tokens / from.tokens() * from.bytes();
  }

  TURBOQUANT_FUNCTION void operator()(std::int64_t run) const {
    const auto start = static_cast<std::size_t>(run) * run_bytes();
    const auto* const source = reinterpret_cast<const unsigned char*>(tiles) + start;
    auto* const target = reinterpret_cast<unsigned char*>(out) + start;
    for (std::size_t i = 0; i < run_bytes(); ++i) {
      target[i] = 0;
    }
    const std::size_t count = from.tokens() < to.tokens() ? from.tokens() : to.tokens();
    for (std::size_t token = 0; token < TileFormat::max_tokens; token += count) {
      transcode_slots(from, source + token / from.tokens() * from.bytes(), token % from.tokens(),
                      to, target + token / to.tokens() * to.bytes(), token % to.tokens(), count);
    }
  }
};

}  // namespace detail

/// Rearranges tiles into another order or tiles of another size, without loss: there and back gives
/// the same bytes.
///
/// @param exec  execution space instance that can reach both arrays
/// @param from  format of `tiles`
/// @param tiles one tile after another, of a multiple of 64 tokens
/// @param to    format of `out`, the same content as `from`
/// @param out   as large as `tiles`, does not overlap it
/// @throws Error(unsupported) for a format outside its domain, Error(invalid_argument) for formats
/// of different content, overlapping or misaligned arrays, Error(shape_mismatch) for sizes that
/// differ or are no multiple of 64 tokens; nothing is written then. One kernel, no allocation;
/// asynchronous until `exec.fence()`. O(bytes). Same bits always.
template <class ExecutionSpace, class MemorySpace>
void transcode_tiles(const ExecutionSpace& exec, const TileFormat& from,
                     const Kokkos::View<const std::byte*, MemorySpace>& tiles, const TileFormat& to,
                     const Kokkos::View<std::byte*, MemorySpace>& out) {
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, MemorySpace>::accessible,
                "the execution space cannot reach the tiles");
  require_initialized("transcode_tiles");
  require_supported(from);
  require_supported(to);
  require(same_content(from, to), ErrorCode::invalid_argument,
          "transcode_tiles: from and to hold different codes (", from.slot_bytes(), " and ",
          to.slot_bytes(),
          " bytes per token), expected formats that differ in order and tile_tokens only");
  require(tiles.extent(0) == out.extent(0), ErrorCode::shape_mismatch,
          "transcode_tiles: out.extent(0) is ", out.extent(0),
          ", expected tiles.extent(0) = ", tiles.extent(0));
  const std::size_t run_bytes = detail::TranscodeKernel{from, nullptr, to, nullptr}.run_bytes();
  require(tiles.extent(0) % run_bytes == 0, ErrorCode::shape_mismatch,
          "transcode_tiles: tiles.extent(0) is ", tiles.extent(0),
          ", expected a multiple of the bytes of 64 tokens = ", run_bytes);
  const auto* const first = tiles.data();
  require(reinterpret_cast<std::uintptr_t>(first) % detail::tile_alignment == 0 &&
              reinterpret_cast<std::uintptr_t>(out.data()) % detail::tile_alignment == 0,
          ErrorCode::invalid_argument, "transcode_tiles: tiles or out begins at no multiple of ",
          detail::tile_alignment, " bytes");
  detail::require_apart("transcode_tiles", {detail::byte_range("out", out)},
                        {detail::byte_range("tiles", tiles)});
  Kokkos::parallel_for("turboquant::transcode_tiles",
                       Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>(
                           exec, 0, static_cast<std::int64_t>(tiles.extent(0) / run_bytes)),
                       detail::TranscodeKernel{from, first, to, out.data()});
}

}  // namespace turboquant
