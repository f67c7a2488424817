#pragma once

#include <turboquant/device/kokkos_compat.hpp>
#include <turboquant/device/memory_overlap.hpp>
#include <turboquant/device/runtime.hpp>
#include <turboquant/device/tile_words.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant {

namespace detail {

/// Copies the content of one tile into another of the same content in another order.
/// @param out all zero
inline TURBOQUANT_FUNCTION void transcode_fields(const TileFormat& from, const unsigned char* tile,
                                                 const TileFormat& to,
                                                 unsigned char* out) noexcept {
  const auto key_groups = static_cast<std::size_t>(from.key_dim) / 8;
  const auto copy_half = [&](std::size_t source, std::size_t target) {
    out[target] = tile[source];
    out[target + 1] = tile[source + 1];
  };
  for (std::size_t token = 0; token < TileFormat::tokens; ++token) {
    if (from.key_codec == KeyCodec::float8) {
      for (std::size_t d = 0; d < 8 * key_groups; ++d) {
        out[to.key_code_bit(token, d, 0).byte] = tile[from.key_code_bit(token, d, 0).byte];
      }
    } else {
      for (std::size_t group = 0; group < key_groups; ++group) {
        key_codes(to).write_nibbles(out, group, token,
                                    key_codes(from).read_nibbles(tile, group, token));
        if (from.key_codec == KeyCodec::inner_product) {
          key_signs(to).write_nibbles(out, group, token,
                                      key_signs(from).read_nibbles(tile, group, token));
        }
      }
      copy_half(from.key_scale_byte(token), to.key_scale_byte(token));
      if (from.key_codec == KeyCodec::inner_product) {
        copy_half(from.residual_scale_byte(token), to.residual_scale_byte(token));
      }
    }
    for (std::size_t group = 0; group < from.value_groups(); ++group) {
      copy_half(from.value_scale_byte(token, group), to.value_scale_byte(token, group));
      if (from.value_codec == ValueCodec::grouped) {
        copy_half(from.value_zero_byte(token, group), to.value_zero_byte(token, group));
      }
    }
  }
  for (std::size_t i = 0; i < from.key_mean_bytes(); ++i) {
    out[to.key_mean_offset() + i] = tile[from.key_mean_offset() + i];
  }
  for (std::size_t group = 0; group < TileFormat::tokens / 8; ++group) {
    for (std::size_t d = 0; d < static_cast<std::size_t>(from.value_dim); ++d) {
      value_codes(to).write_nibbles(out, group, d, value_codes(from).read_nibbles(tile, group, d));
    }
  }
}

struct TranscodeKernel {
  TileFormat from;
  const std::byte* tiles;
  TileFormat to;
  std::byte* out;

  TURBOQUANT_FUNCTION void operator()(std::int64_t tile) const {
    const auto start = static_cast<std::size_t>(tile) * from.bytes();
    auto* target = reinterpret_cast<unsigned char*>(out) + start;
    for (std::size_t i = 0; i < to.bytes(); ++i) {
      target[i] = 0;
    }
    transcode_fields(from, reinterpret_cast<const unsigned char*>(tiles) + start, to, target);
  }
};

}  // namespace detail

/// Rearranges tiles into another order, without loss: from host order and back gives the same
/// bytes.
///
/// @param exec  execution space instance that can reach both arrays
/// @param from  format of `tiles`
/// @param tiles (num_tiles * from.bytes()), one tile after another
/// @param to    format of `out`, the same content as `from`
/// @param out   as large as `tiles`, does not overlap it
/// @throws Error(unsupported) for a format outside its domain, Error(invalid_argument) for formats
/// of different content, overlapping or misaligned arrays, Error(shape_mismatch) for sizes that
/// differ or are no multiple of a tile; nothing is written then. One kernel, no allocation;
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
          to.slot_bytes(), " bytes per token), expected formats that differ in their order only");
  require(tiles.extent(0) == out.extent(0), ErrorCode::shape_mismatch,
          "transcode_tiles: out.extent(0) is ", out.extent(0),
          ", expected tiles.extent(0) = ", tiles.extent(0));
  require(tiles.extent(0) % from.bytes() == 0, ErrorCode::shape_mismatch,
          "transcode_tiles: tiles.extent(0) is ", tiles.extent(0),
          ", expected a multiple of the bytes of a tile = ", from.bytes());
  const auto* const first = tiles.data();
  require(reinterpret_cast<std::uintptr_t>(first) % detail::tile_alignment == 0 &&
              reinterpret_cast<std::uintptr_t>(out.data()) % detail::tile_alignment == 0,
          ErrorCode::invalid_argument, "transcode_tiles: tiles or out begins at no multiple of ",
          detail::tile_alignment, " bytes");
  detail::require_apart("transcode_tiles", {detail::byte_range("out", out)},
                        {detail::byte_range("tiles", tiles)});
  Kokkos::parallel_for("turboquant::transcode_tiles",
                       Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>(
                           exec, 0, static_cast<std::int64_t>(tiles.extent(0) / from.bytes())),
                       detail::TranscodeKernel{from, first, to, out.data()});
}

}  // namespace turboquant
