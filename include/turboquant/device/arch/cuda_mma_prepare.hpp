#pragma once

#include <turboquant/device/arch/cuda_mma_instructions.hpp>
#include <turboquant/device/row_view.hpp>
#include <turboquant/math/hadamard_transform.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

namespace turboquant::detail::cuda {

/// Query rows of a team as second operands of int8 products: two columns a row, the high and the
/// low byte of integers of 15 bits.
template <int Dim, int Sets>
struct PreparedRows {
  Word words[Dim / 32][32][2 * Sets];
  float scale[4 * Sets];  ///< logit of one unit of a product
};

/// `x = R x` without the factor, for dimensions that are powers of two: lane l holds coordinates
/// l + 32 j. The additions are those of `HadamardTransform`.
template <int Dim>
KOKKOS_FORCEINLINE_FUNCTION void rotate_in_registers(const HadamardTransform& rotation, int lane,
                                                     const float (&first_sign)[Dim / 32],
                                                     float (&x)[Dim / 32]) {
  constexpr int each = Dim / 32;
  float sign[each];
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int j = 0; j < each; ++j) {
    sign[j] = first_sign[j];
  }
  for (std::size_t round = 0; round < rotation.rounds; ++round) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < each; ++j) {
      x[j] *= sign[j];
      if (round + 1 < rotation.rounds) {
        sign[j] = rotation.signs[(round + 1) * Dim + static_cast<std::size_t>(lane + 32 * j)];
      }
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int width = 1; width < 32; width *= 2) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < each; ++j) {
        const float other = from_lane_xor(x[j], width);
        x[j] = (lane & width) != 0 ? other - x[j] : x[j] + other;
      }
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int width = 1; width < each; width *= 2) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < each; ++j) {
        if ((j & width) == 0) {
          const float a = x[j];
          const float b = x[j + width];
          x[j] = a + b;
          x[j + width] = a - b;
        }
      }
    }
  }
}

/// `x = R x` without the last factor, for dimensions that are permuted in blocks.
/// @param x     (dim), in scratch memory
/// @param spare (dim), in scratch memory
KOKKOS_FORCEINLINE_FUNCTION void rotate_in_blocks(const HadamardTransform& rotation, int lane,
                                                  float* x, float* spare) {
  const auto dim = static_cast<int>(rotation.dim);
  for (std::size_t round = 0; round < rotation.rounds; ++round) {
    const float* sign = rotation.signs + round * rotation.dim;
    const std::uint32_t* from = rotation.source + round * rotation.dim;
    for (int i = lane; i < dim; i += 32) {
      spare[i] = x[i];
    }
    sync_lanes();
    for (int i = lane; i < dim; i += 32) {
      x[i] = spare[from[i]] * sign[i];
    }
    sync_lanes();
    for (int start = 0; start < dim;) {
      const auto block =
          static_cast<int>(hadamard_block(rotation.dim, static_cast<std::size_t>(dim - start)));
      for (int width = 1; width < block; width *= 2) {
        for (int pair = lane; pair < block / 2; pair += 32) {
          const int i = start + pair / width * 2 * width + pair % width;
          const float a = x[i];
          const float b = x[i + width];
          x[i] = a + b;
          x[i + width] = a - b;
        }
        sync_lanes();
      }
      const auto factor = static_cast<float>(hadamard_factor(static_cast<std::size_t>(block), 1));
      for (int i = lane; i < block; i += 32) {
        x[start + i] *= factor;
      }
      sync_lanes();
      start += block;
    }
  }
}

/// What turns query rows into operands.
struct QueryPreparation {
  HadamardTransform rotation{};
  float unit = 1;  ///< softmax scale times log2(e), step of the key grid and factor of the rotation
  RowView queries{};
};

/// A query row on its way to the registers of a warp, and the signs of the first rotation round:
/// lane l holds coordinates l + 32 j.
template <int Dim>
struct QueryRow {
  static constexpr int each = Dim / 32;

  Word bits[each];  ///< as stored
  float sign[each];

  /// @param at the row begins at this number; nothing is read where `exists` is false
  KOKKOS_FORCEINLINE_FUNCTION void load(const QueryPreparation& in, std::int64_t at, bool exists,
                                        int lane) {
    const bool wide = in.queries.type == RowType::float32;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < each; ++j) {
      bits[j] = 0;
      sign[j] = 1;
    }
    if (!exists) {
      return;
    }
    // Nothing here waits for what it loads.
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < each; ++j) {
      if (wide) {
        bits[j] = static_cast<const Word*>(in.queries.data)[at + lane + 32 * j];
      } else {
        bits[j] = static_cast<const std::uint16_t*>(in.queries.data)[at + lane + 32 * j];
      }
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < each; ++j) {
      sign[j] = in.rotation.signs[lane + 32 * j];
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION float number(RowType type, int j) const {
    switch (type) {
      case RowType::float16: return float16{static_cast<std::uint16_t>(bits[j])}.to_float();
      case RowType::bfloat16: return bfloat16{static_cast<std::uint16_t>(bits[j])}.to_float();
      default: return std::bit_cast<float>(bits[j]);
    }
  }
};

/// One warp prepares one row.
/// @param slot    number of the row in `rows`
/// @param scratch (2 Dim), 16-byte aligned
template <int Dim, int Sets>
KOKKOS_FORCEINLINE_FUNCTION void prepare_row(const QueryPreparation& in, const QueryRow<Dim>& row,
                                             int lane, int slot, PreparedRows<Dim, Sets>& rows,
                                             float* scratch) {
  constexpr int each = Dim / 32;
  const float sign = in.unit < 0 ? -1.0F : 1.0F;
  float x[each];
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int j = 0; j < each; ++j) {
    x[j] = sign * row.number(in.queries.type, j);
  }
  if constexpr ((Dim & (Dim - 1)) == 0) {
    rotate_in_registers<Dim>(in.rotation, lane, row.sign, x);
  } else {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < each; ++j) {
      scratch[lane + 32 * j] = x[j];
    }
    sync_lanes();
    rotate_in_blocks(in.rotation, lane, scratch, scratch + Dim);
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < each; ++j) {
      x[j] = scratch[lane + 32 * j];
    }
    sync_lanes();
  }
  float largest = 0;
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int j = 0; j < each; ++j) {
    const float magnitude = x[j] < 0 ? -x[j] : x[j];
    largest = magnitude > largest ? magnitude : largest;
  }
  largest = max_over_lanes(largest);
  // The high byte is at most 127, the low one -128 to 127.
  constexpr float limit = 127.0F * 256.0F;
  // The reciprocal must stay finite; a query this small has no effect on any logit.
  const float inverse = largest >= 1e-30F ? limit / largest : 0.0F;
  auto* integers = reinterpret_cast<std::int32_t*>(scratch);
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int j = 0; j < each; ++j) {
    const float scaled = x[j] * inverse;
    integers[lane + 32 * j] = static_cast<std::int32_t>(scaled + (scaled < 0 ? -0.5F : 0.5F));
  }
  sync_lanes();
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int i = lane; i < Dim / 2; i += 32) {
    const int half = i % 2;
    const int low = i / 2 % 2;
    const int column = i / 4 % 4;
    const int product = i / 16;
    const std::int32_t* four = integers + column * (Dim / 4) + 8 * product + 4 * half;
    Word word = 0;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < 4; ++j) {
      const std::int32_t high_byte = (four[j] + 128) >> 8;
      const std::int32_t byte = low != 0 ? four[j] - 256 * high_byte : high_byte;
      word |= (static_cast<Word>(byte) & 0xFFU) << static_cast<unsigned>(8 * j);
    }
    rows.words[product][4 * (2 * (slot % 4) + low) + column][2 * (slot / 4) + half] = word;
  }
  if (lane == 0) {
    const float scale = largest / limit * sign * in.unit;
    // Positive, so that hidden tokens stay at minus infinity.
    rows.scale[slot] = scale > 1e-30F ? scale : 1e-30F;
  }
  sync_lanes();
}

}  // namespace turboquant::detail::cuda
