#pragma once

#include <turboquant/base/checked_math.hpp>
#include <turboquant/cache/job_upload.hpp>
#include <turboquant/cache/memory_ledger.hpp>
#include <turboquant/cache/token_rows.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace turboquant {

/// The order of the axes inside a block of an engine's cache.
enum class BlockLayout : std::uint8_t {
  nhd,  ///< (block_size, kv_heads, head_dim)
  hnd,  ///< (kv_heads, block_size, head_dim)
};

/// An engine's paged cache: (2, num_blocks, block...) with keys at 0 and values at 1 of the first
/// axis, row-major.
template <class Space, class T>
struct PagedSource {
  /// (2, num_blocks, block_size, kv_heads, head_dim) or (2, num_blocks, kv_heads, block_size,
  /// head_dim)
  Kokkos::View<const T*****, Kokkos::LayoutRight, Space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>
      blocks{};
  BlockLayout layout = BlockLayout::nhd;

  [[nodiscard]] std::int64_t block_size() const noexcept {
    return static_cast<std::int64_t>(blocks.extent(layout == BlockLayout::nhd ? 2 : 3));
  }
  [[nodiscard]] std::int64_t kv_heads() const noexcept {
    return static_cast<std::int64_t>(blocks.extent(layout == BlockLayout::nhd ? 3 : 2));
  }
};

namespace detail {

/// Copies one number of a token from its block to its row.
template <class T>
struct GatherRows {
  const T* blocks;  ///< (num_blocks, block...)
  T* rows;          ///< (tokens, kv_heads, head_dim)
  const std::int32_t* block_table;
  std::int64_t first;
  std::int64_t block_size;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  bool heads_outside;

  TURBOQUANT_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t d = i % head_dim;
    const std::int64_t head = i / head_dim % kv_heads;
    const std::int64_t token = first + i / head_dim / kv_heads;
    const std::int64_t block = block_table[token / block_size];
    const std::int64_t slot = token % block_size;
    const std::int64_t inside = heads_outside ? head * block_size + slot : slot * kv_heads + head;
    rows[i] = blocks[(block * block_size * kv_heads + inside) * head_dim + d];
  }
};

/// Rows in workspace memory.
template <class Space, class T>
struct GatheredRows {
  std::shared_ptr<std::byte> memory;
  TokenRows<Space, T> keys;
  TokenRows<Space, T> values;
};

/// @throws Error naming what does not fit
template <class Space, class T>
void require_paged_source(const PagedSource<Space, T>& source,
                          std::span<const std::int32_t> block_table, std::int64_t first,
                          std::int64_t count, const KVShape& shape) {
  const char* caller = "KVCaptureEngine::ingest_paged";
  const auto& blocks = source.blocks;
  require(source.layout == BlockLayout::nhd || source.layout == BlockLayout::hnd,
          ErrorCode::invalid_argument, caller, ": layout is BlockLayout(",
          static_cast<int>(source.layout), "), expected nhd or hnd");
  require(shape.key_dim == shape.value_dim, ErrorCode::unsupported, caller, ": key_dim is ",
          shape.key_dim, " and value_dim is ", shape.value_dim,
          ", expected equal sizes for a cache of both");
  require(blocks.extent(0) == 2 && source.kv_heads() == shape.kv_heads &&
              blocks.extent(4) == static_cast<std::size_t>(shape.key_dim) &&
              source.block_size() >= 1,
          ErrorCode::shape_mismatch, caller, ": blocks is (", blocks.extent(0), ", ",
          blocks.extent(1), ", ", blocks.extent(2), ", ", blocks.extent(3), ", ", blocks.extent(4),
          "), expected 2, num_blocks, then block_size and ", shape.kv_heads,
          " kv heads in the order of the layout, then head_dim ", shape.key_dim);
  require(blocks.data() != nullptr || blocks.size() == 0, ErrorCode::invalid_argument, caller,
          ": blocks.data() is null, expected the memory of the blocks");
  require(first >= 0 && count >= 0, ErrorCode::invalid_argument, caller, ": first is ", first,
          " and count is ", count, ", expected 0 or more");
  constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)();
  require(count <= most - first, ErrorCode::out_of_range, caller, ": first is ", first,
          " and count is ", count, ", expected tokens before position ", most);
  const std::int64_t needed = ceil_div(first + count, source.block_size());
  require(count == 0 || static_cast<std::int64_t>(block_table.size()) >= needed,
          ErrorCode::out_of_range, caller, ": block_table has ", block_table.size(),
          " entries, expected at least ", needed, " for tokens ", first, " to ", first + count);
  for (std::int64_t i = first / source.block_size(); count > 0 && i < needed; ++i) {
    const std::int32_t block = block_table[static_cast<std::size_t>(i)];
    require(block >= 0 && static_cast<std::size_t>(block) < blocks.extent(1),
            ErrorCode::out_of_range, caller, ": block_table[", i, "] is ", block,
            ", expected 0 to ", static_cast<std::int64_t>(blocks.extent(1)) - 1);
  }
}

/// Gathers tokens [first, first + count) of a paged sequence into contiguous rows.
template <class Space, class T, class Exec>
[[nodiscard]] GatheredRows<Space, T> gather_pages(const Exec& exec,
                                                  const PagedSource<Space, T>& source,
                                                  std::span<const std::int32_t> block_table,
                                                  std::int64_t first, std::int64_t count,
                                                  const KVShape& shape,
                                                  const std::shared_ptr<MemoryLedger>& ledger) {
  require_paged_source(source, block_table, first, count, shape);
  const std::int64_t numbers = checked_mul(count, shape.key_numbers());
  const std::size_t half =
      round_up_bytes(static_cast<std::size_t>(checked_mul(numbers, sizeof(T))));
  GatheredRows<Space, T> rows;
  rows.memory = allocate_bytes<Space>(ledger, MemoryKind::workspace, 2 * half,
                                      "turboquant::gather_pages::rows");
  const std::vector<std::int32_t> table(block_table.begin(), block_table.end());
  JobUpload<Space> upload(ledger);
  const std::int32_t* const entries = upload.put(exec, 0, table);
  auto* const keys = reinterpret_cast<T*>(rows.memory.get());
  auto* const values = reinterpret_cast<T*>(rows.memory.get() + half);
  const auto heads = static_cast<std::size_t>(shape.kv_heads);
  const auto dim = static_cast<std::size_t>(shape.key_dim);
  const std::size_t plane =
      source.blocks.extent(1) * source.blocks.extent(2) * source.blocks.extent(3) * dim;
  for (const auto& [from, to] :
       {std::pair{source.blocks.data(), keys}, std::pair{source.blocks.data() + plane, values}}) {
    Kokkos::parallel_for(
        "turboquant::gather_pages",
        Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, numbers),
        GatherRows<T>{from, to, entries, first, source.block_size(), shape.kv_heads, shape.key_dim,
                      source.layout == BlockLayout::hnd});
  }
  exec.fence();
  rows.keys = TokenRows<Space, T>(keys, static_cast<std::size_t>(count), heads, dim);
  rows.values = TokenRows<Space, T>(values, static_cast<std::size_t>(count), heads, dim);
  return rows;
}

}  // namespace detail
}  // namespace turboquant
