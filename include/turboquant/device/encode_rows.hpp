#pragma once

#include <turboquant/device/encode_registers.hpp>
#include <turboquant/device/row_view.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

/// @file
/// Rows of a tile on their way through scratch memory, where every token has a slot. The lanes of a
/// hardware vector fetch rows side by side, 16 bytes each, and then read the numbers of their own
/// tokens, 8 in a row. What a vector fetches it reads itself, so that teams need not meet.

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

/// What a token has in scratch memory: rows, then a rotated vector, then codes.
/// @tparam Lanes lanes of a token
template <std::size_t Dim, int Lanes>
struct TokenSlot {
  static constexpr int room = Dim >= 128 ? 512 : static_cast<int>(Dim) * 4;
  /// Words of 8 codes take the place of what they were made of, where it is there at once.
  static constexpr int codes_at = Dim > 128 ? room : 0;
  /// Bytes from token to token, so that neighbours find 16 bytes each in different banks.
  static constexpr int pitch = room + (Dim > 128 ? static_cast<int>(Dim) / 2 : 0) + 16 * Lanes;
};

/// The rows of the `Width / Lanes` tokens that a hardware vector takes at a time.
/// @tparam Width lanes of the hardware vector
template <std::size_t Dim, int Lanes, int Width>
class RowStage {
 public:
  using Vector = LaneVector<Dim, Lanes>;
  using Slot = TokenSlot<Dim, Lanes>;
  static constexpr int tokens = Width / Lanes;
  static constexpr int runs = Vector::size / 8;  ///< of 8 numbers of a lane
  static_assert(Width % Lanes == 0);

  /// @param rows  of token 0 on
  /// @param slots of the vector's tokens, 16-byte aligned
  /// @param at    where rows begin in slots
  KOKKOS_FORCEINLINE_FUNCTION RowStage(const RowView& rows, int head, std::size_t first,
                                       unsigned char* slots, int at, int lane)
      : slots_(slots + at), lane_(lane), type_(rows.type) {
    const auto bytes = static_cast<std::int64_t>(row_type_bytes(rows.type));
    rows_ = static_cast<const unsigned char*>(rows.data) +
            rows.offset(static_cast<std::int64_t>(first), head) * bytes;
    stride_ = rows.token_stride * bytes;
  }

  /// Begins to fetch rows, or what of them finds room. The lanes have met since they last read.
  KOKKOS_FORCEINLINE_FUNCTION void begin() const { fetch(0); }
  /// `begin` was called before.
  KOKKOS_FORCEINLINE_FUNCTION void expect() { fetched_ = 0; }

  /// Calls with each run of this lane from `first` to `end` and its 8 numbers.
  template <class Body>
  KOKKOS_FORCEINLINE_FUNCTION void for_runs(int first, int end, const Body& body) {
    switch (type_) {
      case RowType::float16: return for_runs_of<float16>(first, end, body);
      case RowType::bfloat16: return for_runs_of<bfloat16>(first, end, body);
      default: return for_runs_of<float>(first, end, body);
    }
  }

  /// All numbers of this lane, each made by `number` of what is stored and its place.
  template <class Number>
  KOKKOS_FORCEINLINE_FUNCTION void take(Vector& vector, const Number& number) {
    switch (type_) {
      case RowType::float16: return take_of<float16>(vector, number);
      case RowType::bfloat16: return take_of<bfloat16>(vector, number);
      default: return take_of<float>(vector, number);
    }
  }

 private:
  /// Runs of a lane that find room at a time.
  template <class T>
  [[nodiscard]] static constexpr int together() {
    constexpr int all = static_cast<int>(Dim * sizeof(T));
    return all <= Slot::room ? runs : runs * Slot::room / all;
  }

  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION void read(int run, float (&x)[8]) const {
    constexpr int unit = 16 / static_cast<int>(sizeof(T));
    struct alignas(16) Unit {
      T numbers[unit];
    };
    const auto* const units = reinterpret_cast<const Unit*>(
        slots_ + lane_ / Lanes * Slot::pitch +
        8 * static_cast<int>(sizeof(T)) * (run % together<T>() * Lanes + lane_ % Lanes));
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < 8 / unit; ++i) {
      const Unit found = units[i];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int e = 0; e < unit; ++e) {
        x[i * unit + e] = as_float(found.numbers[e]);
      }
    }
  }

  /// Makes sure that the part of the rows with number `part` is there.
  KOKKOS_FORCEINLINE_FUNCTION void await(int part) {
    if (fetched_ != part) {
      sync_lanes();
      fetch(part);
      fetched_ = part;
      arrived_ = false;
    }
    if (!arrived_) {
      await_copies();
      sync_lanes();
      arrived_ = true;
    }
  }

  template <class T, class Body>
  KOKKOS_FORCEINLINE_FUNCTION void for_runs_of(int first, int end, const Body& body) {
    constexpr int some = together<T>();
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int run = first; run < end;) {
      const int part = run / some;
      const int stop = end < (part + 1) * some ? end : (part + 1) * some;
      await(part);
      // Two at a time: one is on its way while the other is worked on. Their number is even.
      TURBOQUANT_KEEP_LOOP_IN_KERNELS
      for (; run < stop; run += 2) {
        float x[8];
        float next[8];
        read<T>(run, x);
        read<T>(run + 1, next);
        body(run, x);
        body(run + 1, next);
      }
    }
  }

  template <class T, class Number>
  KOKKOS_FORCEINLINE_FUNCTION void take_of(Vector& vector, const Number& number) {
    constexpr int some = together<T>();
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int run = 0; run < runs; ++run) {
      if (run % some == 0) {
        await(run / some);
      }
      float x[8];
      read<T>(run, x);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int e = 0; e < 8; ++e) {
        vector.x[8 * run + e] = number(x[e], 8 * run + e);
      }
    }
  }

  KOKKOS_FORCEINLINE_FUNCTION void fetch(int part) const {
    const int bytes = static_cast<int>(Dim) * static_cast<int>(row_type_bytes(type_));
    const int start = part * Slot::room;
    const int units = (bytes < Slot::room ? bytes : Slot::room) / 16;  // a power of two
    const unsigned char* const rows = rows_ + start;
    // Rows of a caller may begin anywhere.
    if ((reinterpret_cast<std::uintptr_t>(rows_) | static_cast<std::uintptr_t>(stride_)) % 16 ==
        0) {
      if constexpr (Width > 1) {
        const int shift = static_cast<int>(std::bit_width(static_cast<std::uint32_t>(units))) - 1;
        const int step = Width >> shift;  // tokens between two copies of a lane
        const int token = lane_ >> shift;
        const int unit = lane_ & (units - 1);
        const unsigned char* from = rows + token * stride_ + 16 * unit;
        unsigned char* to = slots_ + token * Slot::pitch + 16 * unit;
        const std::int64_t stride = step * stride_;
        TURBOQUANT_KEEP_LOOP_IN_KERNELS
        for (int i = 0; i < tokens / step; i += 4) {
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int j = 0; j < 4; ++j) {
            begin_copy(to, from);
            from += stride;
            to += step * Slot::pitch;
          }
        }
      } else {
        for (int unit = 0; unit < units; ++unit) {
          begin_copy(slots_ + 16 * unit, rows + 16 * unit);
        }
      }
    } else {
      TURBOQUANT_KEEP_LOOP_IN_KERNELS
      for (int item = lane_; item < tokens * units * 8; item += Width) {
        const int token = item / (8 * units);
        const int half = item % (8 * units);
        *reinterpret_cast<std::uint16_t*>(slots_ + token * Slot::pitch + 2 * half) =
            *reinterpret_cast<const std::uint16_t*>(rows + token * stride_ + 2 * half);
      }
    }
  }

  const unsigned char* rows_ = nullptr;
  std::int64_t stride_ = 0;
  unsigned char* slots_ = nullptr;
  int lane_ = 0;
  int fetched_ = -1;
  bool arrived_ = false;
  RowType type_ = RowType::float32;
};

}  // namespace turboquant::detail
