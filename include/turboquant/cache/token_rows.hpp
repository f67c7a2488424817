#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/cache/host_copy.hpp>
#include <turboquant/device/encode_tiles.hpp>
#include <turboquant/device/kokkos_compat.hpp>
#include <turboquant/device/memory_overlap.hpp>
#include <turboquant/device/row_view.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

namespace turboquant {

/// Uncompressed keys or values of some tokens: (tokens, kv_heads, dim), row-major, in the memory
/// space `Space`.
///
/// Every managed or unmanaged `Kokkos::View<T***, Kokkos::LayoutRight, Space>` converts to it.
template <class Space, class T>
using TokenRows =
    Kokkos::View<const T***, Kokkos::LayoutRight, Space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// The sizes that all tokens of a layer share.
struct KVShape {
  int kv_heads = 1;     ///< 1 to 1024
  int key_dim = 128;    ///< numbers of a key, 1 to 1024
  int value_dim = 128;  ///< numbers of a value, 1 to 1024

  [[nodiscard]] constexpr std::int64_t key_numbers() const noexcept {
    return std::int64_t{kv_heads} * key_dim;
  }
  [[nodiscard]] constexpr std::int64_t value_numbers() const noexcept {
    return std::int64_t{kv_heads} * value_dim;
  }

  friend constexpr bool operator==(const KVShape&, const KVShape&) noexcept = default;
};

/// @throws Error(invalid_argument) naming the field outside its domain.
inline void require_valid(const char* caller, const KVShape& shape) {
  const auto in_range = [&](const char* name, int value) {
    require(value >= 1 && value <= 1024, ErrorCode::invalid_argument, caller, ": ", name, " is ",
            value, ", expected 1 to 1024");
  };
  in_range("kv_heads", shape.kv_heads);
  in_range("key_dim", shape.key_dim);
  in_range("value_dim", shape.value_dim);
}

/// A run of consecutive tokens as rows: (count, kv_heads, key_dim) and (count, kv_heads,
/// value_dim).
template <class T>
struct TokenSource {
  const T* keys = nullptr;
  const T* values = nullptr;
  std::int64_t count = 0;
};

namespace detail {

/// Lowers `first` to the number of the first vector with a NaN or a number beyond `limit` in
/// magnitude; one vector a work item.
///
/// A reduction would do, but those of Kokkos use memory that all threads of a process share.
struct FindBeyond {
  RowView rows;
  int heads;
  int dim;
  float limit;
  std::int64_t* first;

  void operator()(std::int64_t vector) const {
    const std::int64_t start = rows.offset(vector / heads, static_cast<int>(vector % heads));
    for (int d = 0; d < dim; ++d) {
      if (!is_within(rows.read(start + d), limit)) [[unlikely]] {
        Kokkos::atomic_fetch_min(first, vector * dim + d);
        return;
      }
    }
  }
};

/// The limit of numbers that need only be finite.
inline constexpr float any_finite = (std::numeric_limits<float>::max)();

/// What a message says of a number that `is_within` refuses.
/// @param limit `any_finite` or a power of two
[[nodiscard]] inline std::string expected_within(float limit) {
  return limit == any_finite ? "a finite number"
                             : "at most 2^" + std::to_string(std::ilogb(limit)) + " in magnitude";
}

/// @throws Error(non_finite) naming the first number that is NaN or beyond `limit` in magnitude.
/// Waits for `exec`.
template <class Exec, class Rows>
void require_within(const Exec& exec, const char* caller, const char* name, const Rows& rows,
                    float limit) {
  const auto tokens = static_cast<std::int64_t>(rows.extent(0));
  if (tokens == 0) {
    return;
  }
  const auto heads = static_cast<int>(rows.extent(1));
  const auto dim = static_cast<int>(rows.extent(2));
  const RowView view = dense_rows(rows.data(), heads, dim);
  std::int64_t bad = -1;
  if constexpr (runs_on_host<Exec>) {
    constexpr std::int64_t none = (std::numeric_limits<std::int64_t>::max)();
    std::int64_t first = none;
    Kokkos::parallel_for(
        "turboquant::require_within",
        Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, tokens * heads),
        FindBeyond{view, heads, dim, limit, &first});
    exec.fence();
    bad = first == none ? -1 : first;
  } else {
    require_initialized(caller);
    bad = first_beyond(exec, view, tokens, heads, dim, limit);
  }
  if (bad >= 0) {
    typename Rows::non_const_value_type number{};
    copy_to_host<typename Rows::memory_space>(exec, rows.data() + bad, &number, 1);
    fail(ErrorCode::non_finite, caller, ": ", name, "(", bad / dim / heads, ", ", bad / dim % heads,
         ", ", bad % dim, ") is ", dense_rows(&number, 1, 1).read(0), ", expected ",
         expected_within(limit));
  }
}

/// Checks numbers on the host.
/// @throws Error(non_finite) naming the first that is NaN or beyond `limit` in magnitude. O(count).
template <class T>
void require_numbers_within(const char* caller, const char* name, const T* numbers,
                            std::int64_t count, float limit) {
  const RowView view = dense_rows(numbers, 1, 1);
  for (std::int64_t i = 0; i < count; ++i) {
    if (!is_within(view.read(i), limit)) [[unlikely]] {
      fail(ErrorCode::non_finite, caller, ": ", name, "[", i, "] is ", view.read(i), ", expected ",
           expected_within(limit));
    }
  }
}

/// Checks rows that attention is to read exactly, now or until they are compressed.
/// @throws what `require_within` does
template <class Exec, class Rows>
void require_attendable(const Exec& exec, const char* caller, const Rows& keys,
                        const Rows& values) {
  require_within(exec, caller, "keys", keys, largest_row_number);
  require_within(exec, caller, "values", values, largest_row_number);
}

/// Checks the extents of keys and values against each other and the layer.
/// @return the number of tokens
template <class Rows>
std::int64_t require_rows(const char* caller, const Rows& keys, const Rows& values,
                          const KVShape& shape) {
  const auto check_rows = [&](const char* name, const Rows& rows, int dim) {
    require(rows.extent(0) == 0 || (rows.extent(1) == static_cast<std::size_t>(shape.kv_heads) &&
                                    rows.extent(2) == static_cast<std::size_t>(dim)),
            ErrorCode::shape_mismatch, caller, ": ", name, " is (", rows.extent(0), ", ",
            rows.extent(1), ", ", rows.extent(2), "), expected (tokens, ", shape.kv_heads, ", ",
            dim, ")");
    require(rows.extent(0) == 0 || rows.data() != nullptr, ErrorCode::invalid_argument, caller,
            ": ", name, ".data() is null, expected the memory of ", rows.extent(0), " rows");
    require(rows.span_is_contiguous(), ErrorCode::shape_mismatch, caller, ": ", name,
            " has padding between its tokens, expected contiguous rows");
  };
  check_rows("keys", keys, shape.key_dim);
  check_rows("values", values, shape.value_dim);
  require(keys.extent(0) == values.extent(0), ErrorCode::shape_mismatch, caller,
          ": values.extent(0) is ", values.extent(0),
          ", expected keys.extent(0) = ", keys.extent(0));
  return static_cast<std::int64_t>(keys.extent(0));
}

/// Checks that rows to append are not in memory that the append writes.
inline void require_rows_apart(const char* caller, const auto& keys, const auto& values,
                               std::initializer_list<ByteRange> written) {
  require_apart(caller, {byte_range("keys", keys)}, written);
  require_apart(caller, {byte_range("values", values)}, written);
}

/// A block of numbers to copy inside one memory space.
template <class T>
struct CopyJob {
  const T* from = nullptr;
  T* to = nullptr;
  std::int64_t numbers = 0;
};

/// Runs one `CopyJob` a team.
template <class T>
struct CopyBlocksByTeam {
  const CopyJob<T>* jobs;

  template <class Member>
  TURBOQUANT_FUNCTION void operator()(const Member& team) const {
    const CopyJob<T> job = jobs[team.league_rank()];
    const auto size = static_cast<std::int64_t>(team.team_size());
    for (std::int64_t i = team.team_rank(); i < job.numbers; i += size) {
      job.to[i] = job.from[i];
    }
  }
};

/// Runs one `CopyJob` a work item.
template <class T>
struct CopyBlocks {
  const CopyJob<T>* jobs;

  void operator()(std::int64_t i) const { std::copy_n(jobs[i].from, jobs[i].numbers, jobs[i].to); }
};

/// Kernel names as Kokkos takes them, made once, so that a launch allocates nothing and cannot
/// fail.
[[nodiscard]] inline const std::string& copy_blocks_label() {
  static const std::string label("turboquant::copy_blocks");
  return label;
}

/// Copies blocks that do not overlap, in one launch.
/// @param jobs readable by `exec`
template <class T, class Exec>
void copy_blocks(const Exec& exec, const CopyJob<T>* jobs, std::size_t count) {
  if (count == 0) {
    return;
  }
  if constexpr (runs_on_host<Exec>) {
    // No teams on the host: their scratch memory is shared by all threads of a process.
    Kokkos::parallel_for(copy_blocks_label(),
                         Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(
                             exec, 0, static_cast<std::int64_t>(count)),
                         CopyBlocks<T>{jobs});
  } else {
    Kokkos::parallel_for(copy_blocks_label(),
                         Kokkos::TeamPolicy<Exec>(exec, static_cast<int>(count), Kokkos::AUTO),
                         CopyBlocksByTeam<T>{jobs});
  }
}

}  // namespace detail
}  // namespace turboquant
