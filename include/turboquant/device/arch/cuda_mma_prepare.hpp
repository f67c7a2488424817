#pragma once

#include <turboquant/device/arch/cuda_mma_instructions.hpp>
#include <turboquant/device/row_view.hpp>
#include <turboquant/math/hadamard_transform.hpp>

#include <bit>
#include <cmath>
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

/// Whether a rotation of `dim` coordinates does not permute them in blocks.
[[nodiscard]] constexpr bool rotates_in_registers(int dim) noexcept {
  return (dim & (dim - 1)) == 0;
}

/// `x = R x` without the factor, for dimensions that are powers of two: lane l holds coordinates
/// l + 32 j. The additions are those of `HadamardTransform`.
/// @param sign of all rounds, for the lane's coordinates
template <int Each, int Rounds>
KOKKOS_FORCEINLINE_FUNCTION void rotate_in_registers(int lane, const float (&sign)[Rounds][Each],
                                                     float (&x)[Each]) {
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int round = 0; round < Rounds; ++round) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < Each; ++j) {
      x[j] *= sign[round][j];
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int width = 1; width < 32; width *= 2) {
      const float own_sign = (lane & width) != 0 ? -1.0F : 1.0F;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < Each; ++j) {
        x[j] = std::fma(x[j], own_sign, from_lane_xor(x[j], width));
      }
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int width = 1; width < Each; width *= 2) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < Each; ++j) {
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

/// The query rows of one warp on their way to its registers, and the signs of their rotation: lane
/// l holds coordinates l + 32 j. What is loaded behind tiles waits for all of them, so everything
/// is loaded before.
/// @tparam Rows of a warp at most
template <int Dim, int Rows>
struct QueryRows {
  static constexpr int each = Dim / 32;
  static constexpr int rounds =
      rotates_in_registers(Dim) ? static_cast<int>(hadamard_rounds(Dim)) : 1;

  Word bits[Rows][each];  ///< as stored; the next row first
  float sign[rounds][each];

  /// @param first numbers in the queries at which the warp's rows begin; negative where there is
  /// none
  KOKKOS_FORCEINLINE_FUNCTION void load(const QueryPreparation& in, int lane,
                                        const std::int64_t (&first)[Rows]) {
    const bool wide = in.queries.type == RowType::float32;
    // Nothing here waits for what it loads.
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int row = 0; row < Rows; ++row) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < each; ++j) {
        bits[row][j] = 0;
      }
      if (first[row] < 0) {
        continue;
      }
      if (wide) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int j = 0; j < each; ++j) {
          bits[row][j] = static_cast<const Word*>(in.queries.data)[first[row] + lane + 32 * j];
        }
      } else {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int j = 0; j < each; ++j) {
          bits[row][j] =
              static_cast<const std::uint16_t*>(in.queries.data)[first[row] + lane + 32 * j];
        }
      }
    }
    if constexpr (rotates_in_registers(Dim)) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int round = 0; round < rounds; ++round) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int j = 0; j < each; ++j) {
          sign[round][j] = in.rotation.signs[round * Dim + lane + 32 * j];
        }
      }
    }
  }
  /// Takes the next row.
  KOKKOS_FORCEINLINE_FUNCTION void take(RowType type, float (&x)[each]) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int j = 0; j < each; ++j) {
      const Word next = bits[0][j];
      x[j] = std::bit_cast<float>(type == RowType::bfloat16 ? next << 16U : next);
      if (type == RowType::float16) {
        x[j] = unpack_halves(next).first;
      }
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int row = 0; row + 1 < Rows; ++row) {
        bits[row][j] = bits[row + 1][j];
      }
    }
  }
};

/// One warp prepares its next row.
/// @param slot    number of the row in `rows`
/// @param scratch (2 Dim), 16-byte aligned
template <int Dim, int Sets, int Rows>
KOKKOS_FORCEINLINE_FUNCTION void prepare_row(const QueryPreparation& in,
                                             QueryRows<Dim, Rows>& queries, int lane, int slot,
                                             PreparedRows<Dim, Sets>& rows, float* scratch) {
  constexpr int each = Dim / 32;
  float x[each];
  queries.take(in.queries.type, x);
  if constexpr (rotates_in_registers(Dim)) {
    rotate_in_registers(lane, queries.sign, x);
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
  // Magnitudes in the order of unsigned integers, where NaN is the largest.
  Word largest = 0;
  TURBOQUANT_UNROLL_IN_KERNELS
  for (int j = 0; j < each; ++j) {
    const Word magnitude = std::bit_cast<Word>(x[j]) & 0x7FFFFFFFU;
    largest = magnitude > largest ? magnitude : largest;
  }
  // The high byte is at most 127, the low one -128 to 127.
  constexpr float limit = 127.0F * 256.0F;
  const float step = max_of_magnitudes(std::bit_cast<float>(largest)) * (1 / limit);
  // The reciprocal must stay finite; a query this small has no effect on any logit. A negative
  // softmax scale turns the query, so that hidden tokens stay at minus infinity.
  const float inverse = step >= 1e-35F ? reciprocal_of(in.unit < 0 ? -step : step) : 0.0F;
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
    // NaN stays, and makes all weights NaN.
    const float scale = step * (in.unit < 0 ? -in.unit : in.unit);
    rows.scale[slot] = scale < 1e-30F ? 1e-30F : scale;
  }
  sync_lanes();
}

}  // namespace turboquant::detail::cuda
