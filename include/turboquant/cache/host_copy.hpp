#pragma once

#include <turboquant/base/checked_math.hpp>
#include <turboquant/base/error.hpp>
#include <turboquant/device/encode_tiles.hpp>
#include <turboquant/device/tile_slots.hpp>
#include <turboquant/device/transcode.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

/// @file
/// What stores hold, copied to the host in one form whatever the memory space, the order of tiles
/// and the state of rings and pages.

namespace turboquant::detail {

/// Copies `count` numbers between memory spaces, one of them the host's. Waits for `exec`.
template <class To, class From, class T, class Exec>
void copy_between(const Exec& exec, const T* from, T* to, std::int64_t count) {
  if (count > 0) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    if constexpr (runs_on_host<Exec>) {
      std::memcpy(to, from, bytes);
    } else {
      using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
      Kokkos::deep_copy(
          exec, Kokkos::View<std::byte*, To, Unmanaged>(reinterpret_cast<std::byte*>(to), bytes),
          Kokkos::View<const std::byte*, From, Unmanaged>(reinterpret_cast<const std::byte*>(from),
                                                          bytes));
      exec.fence();
    }
  }
}
template <class Space, class T, class Exec>
void copy_to_host(const Exec& exec, const T* from, T* to, std::int64_t count) {
  copy_between<Kokkos::HostSpace, Space>(exec, from, to, count);
}
template <class Space, class T, class Exec>
void copy_from_host(const Exec& exec, const T* from, T* to, std::int64_t count) {
  copy_between<Space, Kokkos::HostSpace>(exec, from, to, count);
}

/// The tiles of 64 tokens of slots [begin, end) of a sequence.
struct TileRun {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  static constexpr auto tokens = static_cast<std::int64_t>(TileFormat::max_tokens);

  [[nodiscard]] std::int64_t first() const noexcept { return begin / tokens; }
  [[nodiscard]] std::int64_t count() const noexcept {
    return end > begin ? (end - 1) / tokens + 1 - first() : 0;
  }
  /// Slots of tile `t` of the run that hold tokens: [first, second).
  [[nodiscard]] std::pair<std::size_t, std::size_t> slots(std::int64_t t) const noexcept {
    const std::int64_t start = (first() + t) * tokens;
    const std::int64_t from = begin > start ? begin - start : 0;
    const std::int64_t to = end - start < tokens ? end - start : tokens;
    return {static_cast<std::size_t>(from), static_cast<std::size_t>(to)};
  }
};

/// The format of tiles outside stores.
[[nodiscard]] inline TileFormat host_format(TileFormat format) noexcept {
  format.order = TileOrder::host;
  format.tile_tokens = static_cast<int>(TileFormat::max_tokens);
  return format;
}

/// Rewrites tiles, one after another, of whole runs of 64 tokens, in another format of the same
/// content.
inline void reorder_tiles(const TileFormat& from, const TileFormat& to,
                          std::vector<std::byte>& tiles) {
  if (from == to) {
    return;
  }
  std::vector<std::byte> out(tiles.size());
  const TranscodeKernel kernel{from, tiles.data(), to, out.data()};
  for (std::size_t run = 0; run < tiles.size() / kernel.run_bytes(); ++run) {
    kernel(static_cast<std::int64_t>(run));
  }
  tiles = std::move(out);
}

/// Calls `call(address, at)` for every tile of a run that a store has, with its `TileAddress` and
/// the offset of head 0 in (kv_heads, run.count(), 64 tokens).
template <class Address, class Call>
void for_each_stored_tile(const TileFormat& format, const TileRun& run, const Address& address,
                          const Call& call) {
  const std::int64_t tokens = format.tile_tokens;
  const std::int64_t start = run.first() * TileRun::tokens / tokens;
  const std::int64_t end = run.end > run.begin ? (run.end - 1) / tokens + 1 : start;
  for (std::int64_t tile = run.begin / tokens; tile < end; ++tile) {
    call(address(tile), (tile - start) * static_cast<std::int64_t>(format.bytes()));
  }
}

/// Calls `call(tile, t)` for every tile of (kv_heads, run.count(), tile bytes).
template <class Call>
void for_each_tile(const TileFormat& format, int kv_heads, const TileRun& run,
                   std::vector<std::byte>& tiles, const Call& call) {
  auto* tile = reinterpret_cast<unsigned char*>(tiles.data());
  for (int head = 0; head < kv_heads; ++head) {
    for (std::int64_t t = 0; t < run.count(); ++t, tile += format.bytes()) {
      call(tile, t);
    }
  }
}

/// Whether no number of a tile's slots [first, end) is NaN or infinite.
[[nodiscard]] inline bool is_finite_tile(const TileFormat& format, const unsigned char* tile,
                                         std::size_t first, std::size_t end) noexcept {
  const auto finite_half = [&](std::size_t at) { return (tile[at + 1] & 0x7CU) != 0x7CU; };
  bool finite = true;
  for (std::size_t at = 0; at < format.key_mean_bytes(); at += 2) {
    finite = finite && finite_half(format.key_mean_offset() + at);
  }
  for (std::size_t token = first; token < end; ++token) {
    if (format.key_codec == KeyCodec::float8) {
      for (std::size_t d = 0; d < static_cast<std::size_t>(format.key_dim); ++d) {
        finite = finite && (tile[format.key_code_bit(token, d, 0).byte] & 0x7FU) != 0x7FU;
      }
    } else {
      finite = finite && finite_half(format.key_scale_byte(token));
    }
    if (format.key_codec == KeyCodec::inner_product) {
      finite = finite && finite_half(format.residual_scale_byte(token));
    }
    for (std::size_t group = 0; group < format.value_groups(); ++group) {
      finite = finite && finite_half(format.value_scale_byte(token, group)) &&
               (format.value_codec != ValueCodec::grouped ||
                finite_half(format.value_zero_byte(token, group)));
    }
  }
  return finite;
}

/// Copies tiles to the host: (kv_heads, run.count(), tile bytes) in host order and of 64 tokens,
/// slots without a token zero.
/// @param address `address(tile)` is the `TileAddress` of a tile of the sequence
template <class Space, class Exec, class Address>
[[nodiscard]] std::vector<std::byte> copy_tiles_out(const Exec& exec, const TileFormat& format,
                                                    int kv_heads, const TileRun& run,
                                                    const Address& address) {
  const TileFormat host = host_format(format);
  const std::int64_t head_bytes = run.count() * static_cast<std::int64_t>(host.bytes());
  std::vector<std::byte> tiles(static_cast<std::size_t>(kv_heads * head_bytes));
  for_each_stored_tile(format, run, address, [&](const auto& from, std::int64_t at) {
    for (std::int64_t head = 0; head < kv_heads; ++head) {
      copy_to_host<Space>(exec, from.head0 + head * from.head_stride,
                          tiles.data() + head * head_bytes + at,
                          static_cast<std::int64_t>(format.bytes()));
    }
  });
  reorder_tiles(format, host, tiles);
  for_each_tile(host, kv_heads, run, tiles, [&](unsigned char* tile, std::int64_t t) {
    clear_slots(host, 0, run.slots(t).first, tile);
    clear_slots(host, run.slots(t).second, TileFormat::max_tokens, tile);
  });
  return tiles;
}

/// Copies tiles as `copy_tiles_out` gives them to where `address` says.
template <class Space, class Exec, class Address>
void copy_tiles_in(const Exec& exec, const TileFormat& format, int kv_heads, const TileRun& run,
                   std::vector<std::byte> tiles, const Address& address) {
  const TileFormat host = host_format(format);
  const std::int64_t head_bytes = run.count() * static_cast<std::int64_t>(host.bytes());
  reorder_tiles(host, format, tiles);
  for_each_stored_tile(format, run, address, [&](const auto& to, std::int64_t at) {
    for (std::int64_t head = 0; head < kv_heads; ++head) {
      copy_from_host<Space>(exec, tiles.data() + head * head_bytes + at,
                            to.head0 + head * to.head_stride,
                            static_cast<std::int64_t>(format.bytes()));
    }
  });
}

/// @throws Error(shape_mismatch) unless `bytes` is the size of (kv_heads, run.count(), tile bytes)
inline void require_tile_bytes(const char* caller, const TileFormat& format, int kv_heads,
                               const TileRun& run, std::size_t bytes) {
  const std::int64_t each =
      checked_mul(kv_heads, static_cast<std::int64_t>(host_format(format).bytes()));
  require(run.count() <= (std::numeric_limits<std::int64_t>::max)() / each,
          ErrorCode::shape_mismatch, caller, ": tiles has ", bytes, " bytes, expected those of ",
          run.count(), " tiles of ", each, " bytes in all kv heads");
  const std::int64_t expected = run.count() * each;
  require(static_cast<std::int64_t>(bytes) == expected, ErrorCode::shape_mismatch, caller,
          ": tiles has ", bytes, " bytes, expected ", expected);
}

/// Checks tiles that come from outside, and zeroes their slots without a token.
/// @throws Error(shape_mismatch), Error(non_finite)
inline void check_tiles(const char* caller, const TileFormat& format, int kv_heads,
                        const TileRun& run, std::vector<std::byte>& tiles) {
  const TileFormat host = host_format(format);
  require_tile_bytes(caller, format, kv_heads, run, tiles.size());
  for_each_tile(host, kv_heads, run, tiles, [&](unsigned char* tile, std::int64_t t) {
    const auto [first, end] = run.slots(t);
    require(is_finite_tile(host, tile, first, end), ErrorCode::non_finite, caller, ": tile ", t,
            " holds NaN or infinity, expected finite scales, zero points and means");
    clear_slots(host, 0, first, tile);
    clear_slots(host, end, TileFormat::max_tokens, tile);
  });
}

}  // namespace turboquant::detail
