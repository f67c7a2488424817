#pragma once

#include <turboquant/device/dot_products.hpp>
#include <turboquant/device/row_view.hpp>
#include <turboquant/math/hadamard_transform.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// Threads that share work, and how they wait for each other. Name `Sync`: HIP compilers take
/// deduction for a function of the host.
template <class Sync>
struct SharedWork {
  int thread = 0;
  int threads = 1;
  Sync sync;
};

/// Walsh-Hadamard transform of the blocks of one round, times `factor` of each block where blocks
/// are permuted.
template <class Sync>
KOKKOS_FORCEINLINE_FUNCTION void transform_blocks(const SharedWork<Sync>& work,
                                                  const HadamardTransform& rotation, float* x) {
  const auto dim = static_cast<int>(rotation.dim);
  for (int start = 0; start < dim;) {
    const int block =
        rotation.source == nullptr
            ? dim
            : static_cast<int>(hadamard_block(rotation.dim, static_cast<std::size_t>(dim - start)));
    for (int width = 1; width < block; width *= 2) {
      for (int pair = work.thread; pair < block / 2; pair += work.threads) {
        const int i = start + 2 * pair - (pair & (width - 1));
        const float a = x[i];
        const float b = x[i + width];
        x[i] = a + b;
        x[i + width] = a - b;
      }
      work.sync();
    }
    if (rotation.source != nullptr) {
      const auto factor = static_cast<float>(hadamard_factor(static_cast<std::size_t>(block), 1));
      for (int i = work.thread; i < block; i += work.threads) {
        x[start + i] *= factor;
      }
      work.sync();
    }
    start += block;
  }
}

template <class Sync>
KOKKOS_FORCEINLINE_FUNCTION void scale_whole(const SharedWork<Sync>& work,
                                             const HadamardTransform& rotation, float* x) {
  if (rotation.source == nullptr) {
    const auto factor = static_cast<float>(hadamard_factor(rotation.dim, rotation.rounds));
    for (int i = work.thread; i < static_cast<int>(rotation.dim); i += work.threads) {
      x[i] *= factor;
    }
    work.sync();
  }
}

/// `HadamardTransform::forward` by several threads.
/// @param x     (dim), in scratch memory
/// @param spare (dim), in scratch memory
template <class Sync>
KOKKOS_FORCEINLINE_FUNCTION void rotate_shared(const SharedWork<Sync>& work,
                                               const HadamardTransform& rotation, float* x,
                                               float* spare) {
  const auto dim = static_cast<int>(rotation.dim);
  for (std::size_t round = 0; round < rotation.rounds; ++round) {
    const float* sign = rotation.signs + round * rotation.dim;
    const std::uint32_t* from =
        rotation.source == nullptr ? nullptr : rotation.source + round * rotation.dim;
    for (int i = work.thread; i < dim; i += work.threads) {
      spare[i] = x[i];
    }
    work.sync();
    for (int i = work.thread; i < dim; i += work.threads) {
      x[i] = spare[from == nullptr ? static_cast<std::uint32_t>(i) : from[i]] * sign[i];
    }
    work.sync();
    transform_blocks(work, rotation, x);
  }
  scale_whole(work, rotation, x);
}

/// `HadamardTransform::inverse` by several threads.
template <class Sync>
KOKKOS_FORCEINLINE_FUNCTION void rotate_back_shared(const SharedWork<Sync>& work,
                                                    const HadamardTransform& rotation, float* x,
                                                    float* spare) {
  const auto dim = static_cast<int>(rotation.dim);
  for (std::size_t round = rotation.rounds; round-- > 0;) {
    const float* sign = rotation.signs + round * rotation.dim;
    const std::uint32_t* to =
        rotation.source == nullptr ? nullptr : rotation.source + round * rotation.dim;
    transform_blocks(work, rotation, x);
    for (int i = work.thread; i < dim; i += work.threads) {
      spare[to == nullptr ? static_cast<std::uint32_t>(i) : to[i]] = x[i] * sign[i];
    }
    work.sync();
    for (int i = work.thread; i < dim; i += work.threads) {
      x[i] = spare[i];
    }
    work.sync();
  }
  scale_whole(work, rotation, x);
}

/// Rounds one row to integers of 15 bits in a team's query words, by one warp.
/// @param x (dim), in scratch memory, seen by all lanes
/// @return what a unit is worth
template <class Tiles, int Lanes, int Rows>
KOKKOS_FORCEINLINE_FUNCTION float round_query(const TileFormat& format, int lane, int row,
                                              const float* x, const DotQuery<Rows>& query) {
  constexpr float limit = 127.0F * 256.0F;
  const int dim = format.key_dim;
  float largest = 0;
  for (int d = lane; d < dim; d += Lanes) {
    const float magnitude = x[d] < 0 ? -x[d] : x[d];
    largest = magnitude > largest ? magnitude : largest;
  }
  largest = max_over_lanes<Lanes>(largest);
  // The reciprocal must stay finite; a query this small has no effect on any logit.
  const float inverse = largest >= 1e-30F ? limit / largest : 0.0F;
  for (int d = lane; d < 8 * DotQuery<Rows>::groups(dim); d += Lanes) {
    int integer = 0;
    if (d < dim) {
      const float scaled = x[d] * inverse;
      // The product may exceed the limit by a rounding; what is no number stays below it, too.
      const float above = scaled > -limit ? scaled : -limit;
      const float bounded = above < limit ? above : limit;
      integer = static_cast<int>(bounded + (bounded < 0 ? -0.5F : 0.5F));
    }
    const int nibble = Tiles::nibble_of_dim(format, d / 8, d % 8);
    set_integer(query.packs[d / 8 * 2 + nibble / 4], nibble % 4, row, integer);
  }
  return largest * (1.0F / limit);
}

}  // namespace turboquant::detail
