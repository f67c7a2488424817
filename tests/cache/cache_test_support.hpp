#pragma once

// Rows, readings and counters that the tests of caches share.

#include <turboquant/base/random.hpp>
#include <turboquant/cache/capture_engine.hpp>
#include <turboquant/device/tile_decoder.hpp>

#include <Kokkos_Core.hpp>
#include <support/host_kernels.hpp>
#include <support/one_thread.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace cache_test {

using Host = Kokkos::HostSpace;
// One thread where Kokkos has it: tests launch many tiny kernels.
using HostExec = turboquant::test::OneThread;

template <class T>
using HostRows = Kokkos::View<T***, Kokkos::LayoutRight, Host>;

template <class T>
T number(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return T::from_float(x);
  }
}

template <class T>
float to_float(T x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return x.to_float();
  }
}

/// A view of which the caller sets every element; usable on any thread.
template <class View, class... Extents>
View uninitialised(const char* label, Extents... extents) {
  return View(Kokkos::view_alloc(std::string(label), Kokkos::WithoutInitializing),
              std::size_t(extents)...);
}

/// Keys and values of consecutive tokens, a pure function of (seed, position): roughly normal
/// numbers.
template <class T>
struct Tokens {
  HostRows<T> keys;
  HostRows<T> values;

  Tokens(std::uint64_t seed, std::int64_t first, std::int64_t count,
         const turboquant::KVShape& shape)
      : keys(uninitialised<HostRows<T>>("keys", count, shape.kv_heads, shape.key_dim)),
        values(uninitialised<HostRows<T>>("values", count, shape.kv_heads, shape.value_dim)) {
    fill(keys, seed, first, 0);
    fill(values, seed, first, 1);
  }

  [[nodiscard]] HostRows<T> keys_from(std::int64_t begin, std::int64_t end) const {
    return Kokkos::subview(keys, range(begin, end), Kokkos::ALL, Kokkos::ALL);
  }
  [[nodiscard]] HostRows<T> values_from(std::int64_t begin, std::int64_t end) const {
    return Kokkos::subview(values, range(begin, end), Kokkos::ALL, Kokkos::ALL);
  }

 private:
  static std::pair<std::size_t, std::size_t> range(std::int64_t begin, std::int64_t end) {
    return {std::size_t(begin), std::size_t(end)};
  }
  static void fill(const HostRows<T>& rows, std::uint64_t seed, std::int64_t first,
                   std::uint64_t kind) {
    const std::size_t row = rows.extent(1) * rows.extent(2);
    for (std::size_t t = 0; t < rows.extent(0); ++t) {
      const turboquant::CounterRng random(seed, 2 * (std::uint64_t(first) + t) + kind);
      for (std::size_t i = 0; i < row; i += 4) {
        const auto words = random.block(i / 4);
        for (std::size_t j = 0; j < 4 && i + j < row; ++j) {
          // The sum of four bytes, centred: close to normal.
          const std::uint32_t w = words[j];
          const auto sum = int((w & 255U) + (w >> 8U & 255U) + (w >> 16U & 255U) + (w >> 24U));
          rows.data()[t * row + i + j] = number<T>(float(sum - 510) / 148.0F);
        }
      }
    }
  }
};

/// A format with a head size and the codec that tests use.
inline turboquant::TileCodecOptions codec_options(int key_dim, int value_dim, int key_bits = 3,
                                                  int value_bits = 4, std::uint64_t seed = 7) {
  turboquant::TileCodecOptions options;
  options.format.key_dim = key_dim;
  options.format.value_dim = value_dim;
  options.format.value_group = value_dim;
  options.format.key_bits = key_bits;
  options.format.value_bits = value_bits;
  options.seed = seed;
  return options;
}

/// The same with key means.
inline turboquant::TileCodecOptions with_key_means(turboquant::TileCodecOptions options) {
  options.format.key_centring = turboquant::KeyCentring::tile_mean;
  return options;
}

/// First byte of the tile of a position.
inline const std::byte* tile_of(const turboquant::KVStoreView& view,
                                const turboquant::TileFormat& format, std::int64_t position,
                                int head) {
  const std::int64_t tile = (position - view.page_position) / format.tile_tokens;
  const std::int64_t in_page = head * view.tiles_per_page + tile % view.tiles_per_page;
  return view.pages[tile / view.tiles_per_page] + std::size_t(in_page) * format.bytes();
}

/// Appends tokens [begin, end).
template <class Space>
void append(turboquant::CompressedKVStore<Space>& store, const Tokens<float>& tokens,
            std::int64_t begin, std::int64_t end) {
  store.template append<float>(HostExec(), tokens.keys_from(begin, end),
                               tokens.values_from(begin, end));
}

/// All bytes of all tiles that hold tokens, tile by tile and head by head.
template <class Space>
std::vector<std::byte> bytes_of(turboquant::CompressedKVStore<Space>& store) {
  const HostExec exec;
  const turboquant::KVStoreView view = store.view(exec);
  const turboquant::TileFormat& format = store.codec().format();
  std::vector<std::byte> bytes;
  for (std::int64_t p = view.begin; p < view.end; p += format.tile_tokens) {
    for (int head = 0; head < store.kv_heads(); ++head) {
      const std::byte* tile = tile_of(view, format, p, head);
      bytes.insert(bytes.end(), tile, tile + format.bytes());
    }
  }
  return bytes;
}

/// The history of an engine as `bytes_of` a store.
template <class T>
std::vector<std::byte> history_bytes(const turboquant::KVStoreView& view,
                                     const turboquant::TileFormat& format, int kv_heads) {
  std::vector<std::byte> bytes;
  for (std::int64_t p = view.begin; p < view.end; p += format.tile_tokens) {
    for (int head = 0; head < kv_heads; ++head) {
      const std::byte* tile = tile_of(view, format, p, head);
      bytes.insert(bytes.end(), tile, tile + format.bytes());
    }
  }
  return bytes;
}

/// The exact window of an engine's view in token order: keys, then values.
template <class T>
std::vector<T> window_numbers(const turboquant::CaptureView<T>& view,
                              const turboquant::KVShape& shape) {
  std::vector<T> numbers;
  const auto add = [&](const T* rows, std::int64_t row) {
    for (std::int64_t i = 0; i < view.window_end - view.window_begin; ++i) {
      const T* from = rows + (view.window_start + i) % view.window_rows * row;
      numbers.insert(numbers.end(), from, from + row);
    }
  };
  add(view.window_keys, shape.key_numbers());
  add(view.window_values, shape.value_numbers());
  return numbers;
}

/// Whether two arrays of numbers hold the same bits.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}
template <class View>
bool same_bits(const View& a, const View& b) {
  return a.size() == b.size() &&
         (a.size() == 0 ||
          std::memcmp(a.data(), b.data(), a.size() * sizeof(typename View::value_type)) == 0);
}

/// Counts what Kokkos allocates and frees under labels of the library, through Kokkos's own tool
/// callbacks.
class AllocationCounter {
 public:
  AllocationCounter() {
    live() = 0;
    peak() = 0;
    count() = 0;
    Kokkos::Tools::Experimental::set_allocate_data_callback(
        [](Kokkos::Tools::SpaceHandle, const char* label, const void*, std::uint64_t bytes) {
          if (is_ours(label)) {
            live() += std::int64_t(bytes);
            peak() = std::max(peak(), live());
            ++count();
          }
        });
    Kokkos::Tools::Experimental::set_deallocate_data_callback(
        [](Kokkos::Tools::SpaceHandle, const char* label, const void*, std::uint64_t bytes) {
          if (is_ours(label)) {
            live() -= std::int64_t(bytes);
          }
        });
  }
  AllocationCounter(const AllocationCounter&) = delete;
  AllocationCounter& operator=(const AllocationCounter&) = delete;
  ~AllocationCounter() {
    Kokkos::Tools::Experimental::set_allocate_data_callback(nullptr);
    Kokkos::Tools::Experimental::set_deallocate_data_callback(nullptr);
  }

  /// Bytes allocated and not freed since construction.
  [[nodiscard]] std::int64_t bytes() const { return live(); }
  [[nodiscard]] std::int64_t peak_bytes() const { return peak(); }
  [[nodiscard]] std::int64_t allocations() const { return count(); }
  void reset_peak() { peak() = live(); }

 private:
  static bool is_ours(const char* label) { return std::strncmp(label, "turboquant::", 12) == 0; }
  static std::int64_t& live() {
    static std::int64_t bytes = 0;
    return bytes;
  }
  static std::int64_t& peak() {
    static std::int64_t bytes = 0;
    return bytes;
  }
  static std::int64_t& count() {
    static std::int64_t allocations = 0;
    return allocations;
  }
};

/// The code of the error that `call` throws; nothing where it throws none.
template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const turboquant::Error& error) {
    return std::string(turboquant::to_string(error.code())) + ": " + error.what();
  }
  return "no error";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace cache_test
