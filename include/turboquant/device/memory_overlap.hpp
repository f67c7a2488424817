#pragma once

#include <turboquant/base/error.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace turboquant::detail {

/// The memory of an argument.
struct ByteRange {
  const char* name = "";
  const void* data = nullptr;
  std::size_t bytes = 0;
};

/// The memory of a view, gaps between its rows included.
template <class View>
[[nodiscard]] ByteRange byte_range(const char* name, const View& view) noexcept {
  return {name, view.data(), view.span() * sizeof(typename View::value_type)};
}

/// Whether two ranges share a byte.
[[nodiscard]] inline bool overlap(const ByteRange& a, const ByteRange& b) noexcept {
  const auto first = reinterpret_cast<std::uintptr_t>(a.data);
  const auto second = reinterpret_cast<std::uintptr_t>(b.data);
  return a.bytes > 0 && b.bytes > 0 && first < second + b.bytes && second < first + a.bytes;
}

/// Checks that what a call writes shares no byte with anything else that it writes or reads: its
/// work items run in any order, so that there is no moment up to which an input is needed.
/// @throws Error(invalid_argument) naming both arguments
inline void require_apart(const char* caller, std::initializer_list<ByteRange> written,
                          std::initializer_list<ByteRange> read) {
  const auto require_pair = [caller](const ByteRange& one, const ByteRange& other) {
    require(!overlap(one, other), ErrorCode::invalid_argument, caller, ": ", one.name, " overlaps ",
            other.name, ", expected memory of its own");
  };
  for (const ByteRange* range = written.begin(); range != written.end(); ++range) {
    for (const ByteRange* other = range + 1; other != written.end(); ++other) {
      require_pair(*range, *other);
    }
    for (const ByteRange& other : read) {
      require_pair(*range, other);
    }
  }
}

}  // namespace turboquant::detail
