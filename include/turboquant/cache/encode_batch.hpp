#pragma once

#include <turboquant/cache/job_upload.hpp>
#include <turboquant/cache/token_rows.hpp>
#include <turboquant/device/encode_tiles.hpp>
#include <turboquant/device/tile_codec.hpp>
#include <turboquant/device/tile_slots.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace turboquant::detail {

/// Where a tile of every kv head is.
struct TileAddress {
  std::byte* head0 = nullptr;
  std::int64_t head_stride = 0;  ///< bytes to the same tile of the next kv head
};

/// Zeroes the slots of a tile from one on, one kv head an iteration.
struct ClearSlots {
  TileFormat format;
  TileAddress tile;
  std::size_t slot;

  TURBOQUANT_FUNCTION void operator()(std::int64_t head) const {
    clear_slots(format, slot, format.tokens(),
                reinterpret_cast<unsigned char*>(tile.head0 + head * tile.head_stride));
  }
};

[[nodiscard]] inline const std::string& clear_tile_label() {
  static const std::string label("turboquant::clear_tile");
  return label;
}

/// Zeroes the slots of a tile from `slot` on in every kv head; allocates nothing once its label is
/// there.
template <class Exec>
void clear_tile(const Exec& exec, const TileFormat& format, int kv_heads, const TileAddress& tile,
                std::int64_t slot) {
  Kokkos::parallel_for(
      clear_tile_label(),
      Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, kv_heads),
      ClearSlots{format, tile, static_cast<std::size_t>(slot)});
}

/// Everything an append launches, in order: copies of shared pages and of rows that are encoded
/// together, encoding, copies of rows.
///
/// Tokens of one tile that come from different arrays are encoded one after another, in phases;
/// within a phase no two jobs share a tile. Where the tokens of a tile need each other, for its key
/// mean, they are brought together first.
template <class T>
struct AppendBatch {
  static constexpr std::size_t phases = 3;

  std::vector<CopyJob<std::byte>> pages;
  std::vector<CopyJob<T>> gathers;
  std::vector<std::shared_ptr<std::byte>> gathered;  ///< what `gathers` fill
  std::array<std::vector<EncodeJob>, phases> encodes;
  std::vector<CopyJob<T>> rows;

  /// Allocates what `run` needs.
  /// @throws Error(capacity)
  template <class Exec, class Space>
  void reserve(JobUpload<Space>& upload) const {
    static_cast<void>(copy_blocks_label());
    upload.template reserve_for<Exec>(0, pages);
    for (std::size_t phase = 0; phase < phases; ++phase) {
      upload.template reserve_for<Exec>(1 + phase, encodes[phase]);
    }
    upload.template reserve_for<Exec>(1 + phases, rows);
    upload.template reserve_for<Exec>(2 + phases, gathers);
  }

  /// Launches everything on `exec` and waits; cannot fail after `reserve`.
  /// @param codec may be null where nothing is encoded
  template <class Exec, class Space>
  void run(const Exec& exec, const TileCodec<Space>* codec, int kv_heads,
           JobUpload<Space>& upload) const {
    copy_blocks<std::byte>(exec, upload.put(exec, 0, pages), pages.size());
    copy_blocks<T>(exec, upload.put(exec, 2 + phases, gathers), gathers.size());
    for (std::size_t phase = 0; phase < phases; ++phase) {
      if (!encodes[phase].empty()) {
        encode_tiles(exec, *codec, kv_heads,
                     Kokkos::View<const EncodeJob*, Space>(
                         upload.put(exec, 1 + phase, encodes[phase]), encodes[phase].size()));
      }
    }
    copy_blocks<T>(exec, upload.put(exec, 1 + phases, rows), rows.size());
    exec.fence();
  }
};

}  // namespace turboquant::detail
