#pragma once

#include <turboquant/device/encode_registers.hpp>
#include <turboquant/device/row_view.hpp>

#include <cstddef>
#include <cstdint>

/// @file
/// How the lanes of a token get their numbers: from rows in device memory, 8 in a row at a time,
/// and from each other through scratch memory.

namespace turboquant::detail {

[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float as_float(float x) {
  return x;
}
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float as_float(bfloat16 x) {
  return x.to_float();
}
[[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float as_float(float16 x) {
  return float_of_half(x.bits);
}

struct alignas(16) FourFloats {
  float numbers[4];
};

/// A token's place in scratch memory, where its lanes exchange their numbers.
///
/// Lanes have *runs* of 8 coordinates in turn, or a *piece* of the vector each. The 16-byte units
/// of a piece are permuted, so that the lanes find them in different banks both ways. A lane writes
/// only where it has read before, so that the lanes meet once an exchange.
template <std::size_t Dim, int Lanes>
class LaneExchange {
 public:
  using Vector = LaneVector<Dim, Lanes>;
  /// Bytes from token to token; neighbours are 16 bytes apart in the banks, too.
  static constexpr std::size_t pitch = Dim * sizeof(float) + 16;

  /// @param place `pitch` bytes, 16-byte aligned
  KOKKOS_FORCEINLINE_FUNCTION LaneExchange(unsigned char* place, int part)
      : place_(place), part_(part) {}

  /// From runs to pieces.
  KOKKOS_FORCEINLINE_FUNCTION void gather(Vector& vector) const {
    keep(vector);
    sync_lanes();
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Vector::size; i += 4) {
      load(vector, i, of_piece(i));
    }
  }
  /// From pieces to runs.
  KOKKOS_FORCEINLINE_FUNCTION void deal(Vector& vector) const {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Vector::size; i += 4) {
      store(vector, i, of_piece(i));
    }
    sync_lanes();
    take(vector);
  }

  /// Puts the runs of the lane to their place, for the lane itself.
  KOKKOS_FORCEINLINE_FUNCTION void keep(const Vector& vector) const {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Vector::size; i += 4) {
      store(vector, i, of_runs(i));
    }
  }
  /// The lane's run with that number, which `keep` put there.
  KOKKOS_FORCEINLINE_FUNCTION void kept_run(int number, float (&x)[8]) const {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < 8; ++i) {
      x[i] = of_runs(8 * number + i / 4 * 4)->numbers[i % 4];
    }
  }

  /// Where the numbers of the lane begin in its token's row.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION const unsigned char* place_in(const RowView& rows,
                                                                          int head,
                                                                          std::size_t token) const {
    const auto bytes = static_cast<std::int64_t>(row_type_bytes(rows.type));
    return in_device_memory(static_cast<const unsigned char*>(rows.data)) +
           (rows.offset(static_cast<std::int64_t>(token), head) + Vector::run * part_) * bytes;
  }
  /// Begins to fetch a row.
  KOKKOS_FORCEINLINE_FUNCTION void prefetch_row(RowType type, const unsigned char* place) const {
    const int bytes = static_cast<int>(row_type_bytes(type));
    prefetch(place + part_ * (Vector::size - Vector::run) * bytes);
  }
  /// The runs of a row.
  /// @param place `place_in` the row
  KOKKOS_FORCEINLINE_FUNCTION void read(RowType type, const unsigned char* place,
                                        Vector& vector) const {
    switch (type) {
      case RowType::float16: return read_of<float16>(place, vector);
      case RowType::bfloat16: return read_of<bfloat16>(place, vector);
      default: return read_of<float>(place, vector);
    }
  }

 private:
  static constexpr int units = Vector::size / 4;  ///< of a piece
  static constexpr int swizzle = 8 / Lanes;
  static_assert(units / 2 % Lanes == 0);

  /// Number `i` of the runs of the lane; a multiple of 4.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION FourFloats* of_runs(int i) const {
    constexpr int mask = 2 * Lanes - 1;
    const int first = 2 * Lanes * (i / 8) + i / 4 % 2;  // unit of part 0
    const int change = first / units * swizzle;
    return unit(((2 * part_) ^ (change & mask)) + (first ^ (change & ~mask)));
  }
  /// Number `i` of the piece of the lane.
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION FourFloats* of_piece(int i) const {
    constexpr int mask = (Lanes - 1) * swizzle;
    const int at = i / 4;
    return unit(part_ * units + ((at & mask) ^ (part_ * swizzle)) + (at & ~mask));
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION FourFloats* unit(int number) const {
    return reinterpret_cast<FourFloats*>(place_) + number;
  }
  static KOKKOS_FORCEINLINE_FUNCTION void store(const Vector& vector, int i, FourFloats* to) {
    *to = {{vector.x[i], vector.x[i + 1], vector.x[i + 2], vector.x[i + 3]}};
  }
  static KOKKOS_FORCEINLINE_FUNCTION void load(Vector& vector, int i, const FourFloats* from) {
    const FourFloats four = *from;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int e = 0; e < 4; ++e) {
      vector.x[i + e] = four.numbers[e];
    }
  }

  KOKKOS_FORCEINLINE_FUNCTION void take(Vector& vector) const {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Vector::size; i += 4) {
      load(vector, i, of_runs(i));
    }
  }

  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION void read_of(const unsigned char* place, Vector& vector) const {
    const T* const row = reinterpret_cast<const T*>(place);
    constexpr int together = 16 / static_cast<int>(sizeof(T));
    struct alignas(16) Unit {
      T numbers[together];
    };
    if (reinterpret_cast<std::uintptr_t>(row) % 16 == 0) {
      Unit found[Vector::size / together];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < Vector::size; i += together) {
        found[i / together] = read_once<Unit>(row + Vector::coordinate(0, i));
      }
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < Vector::size; ++i) {
        vector.x[i] = as_float(found[i / together].numbers[i % together]);
      }
      return;
    }
    // Rows of a caller may begin anywhere.
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int i = 0; i < Vector::size; ++i) {
      of_runs(i / 4 * 4)->numbers[i % 4] = as_float(row[Vector::coordinate(0, i)]);
    }
    take(vector);
  }

  unsigned char* place_;
  int part_;
};

}  // namespace turboquant::detail
