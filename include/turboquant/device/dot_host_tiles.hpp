#pragma once

#include <turboquant/device/dot_tables.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// Dot tile operations on tiles in host order: a lane scores tokens `lane + Lanes j` and
/// accumulates dimensions `lane + Lanes slot`, so that lanes side by side read words side by side.
template <int Lanes>
struct HostDotTiles {
  static constexpr TileOrder order = TileOrder::host;
  static constexpr int tokens = static_cast<int>(TileFormat::tokens) / Lanes;

  const DotFormat& in;
  int lane = 0;

  KOKKOS_FORCEINLINE_FUNCTION HostDotTiles(const DotFormat& format, int own_lane)
      : in(format), lane(own_lane) {}

  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION int dim_of_slot(int slot) const {
    return lane + Lanes * slot;
  }
  /// Place in a word of 8 nibbles of dimension `i` of a group of 8.
  [[nodiscard]] static KOKKOS_FORCEINLINE_FUNCTION int nibble_of_dim(const TileFormat&,
                                                                     int /*group*/, int i) {
    return i % 4 * 2 + i / 4;
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float key_half(const unsigned char* tile,
                                                           std::size_t offset, int j) const {
    return finite_half(tile + offset + 2 * static_cast<std::size_t>(lane + Lanes * j));
  }
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION float value_half(const unsigned char* tile,
                                                             std::size_t offset, int j) const {
    return key_half(tile, offset, j);
  }

  /// Products of key codes with the query.
  template <int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void scores(const unsigned char* tile, const DotQuery<Rows>& query,
                                          DotSums<tokens, Rows>& sums) const {
    const unsigned char* section = tile + in.key_codes;
    switch (in.format.key_code_bits()) {
      case 2: return add_words<2>(section, in.key_levels, query, sums);
      case 3: return add_words<3>(section, in.key_levels, query, sums);
      default: return add_words<4>(section, in.key_levels, query, sums);
    }
  }
  /// Products of the signs with the sketched query.
  template <int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void signs(const unsigned char* tile, const DotQuery<Rows>& query,
                                         DotSums<tokens, Rows>& sums) const {
    add_words<1>(tile + in.key_signs, in.sign_levels, query, sums);
  }
  /// Logits of fp8 keys. `query` is (dim, Rows).
  template <int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void float8(const unsigned char* tile, const float* query,
                                          float (&logits)[tokens][Rows]) const {
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int four = 0; four < in.format.key_dim / 4; ++four) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        const std::uint32_t word = row_word(tile + in.key_codes, four, j);
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int n = 0; n < 4; ++n) {
          const float key = finite_float8(word >> static_cast<unsigned>(8 * n));
          const auto row = reinterpret_cast<const FloatPack<Rows>*>(query)[4 * four + n];
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int r = 0; r < Rows; ++r) {
            logits[j][r] += row.numbers[r] * key;
          }
        }
      }
    }
  }

  /// Index and byte of the weight of a token.
  KOKKOS_FORCEINLINE_FUNCTION void weight_place(int j, int& index, int& byte) const {
    const int token = lane + Lanes * j;
    int selector = token / 8;
    int nibble = token % 8;
    if (in.format.value_bits == 2) {
      selector = token / 16 * 2 + token % 2;
      nibble = token % 16 / 2;
    }
    const bool numbers = in.format.value_bits == 4 && in.format.value_codec == ValueCodec::grouped;
    index = 2 * selector + (numbers ? nibble % 2 : nibble / 4);
    byte = numbers ? nibble / 2 : nibble % 4;
  }

  /// Products of value codes with weights, for `Count` slots from `first` on.
  template <int Count, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void values(const unsigned char* tile, int first,
                                          const bool (&active)[Count],
                                          const DotWeights<Rows>& weights,
                                          DotSums<Count, Rows>& sums) const {
    switch (in.format.value_bits) {
      case 2: return add_values<2, false>(tile, first, active, weights, sums);
      case 3: return add_values<3, false>(tile, first, active, weights, sums);
      default:
        return in.format.value_codec == ValueCodec::grouped
                   ? add_values<4, true>(tile, first, active, weights, sums)
                   : add_values<4, false>(tile, first, active, weights, sums);
    }
  }

 private:
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION std::uint32_t row_word(const unsigned char* section,
                                                                   int row, int j) const {
    return load_word(section + 4 * static_cast<std::size_t>(row * 64 + lane + Lanes * j));
  }

  template <int Width, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add_words(const unsigned char* section, const LevelBytes& levels,
                                             const DotQuery<Rows>& query,
                                             DotSums<tokens, Rows>& sums) const {
    const int dim = in.format.key_dim;
    const int blocks = Width == 4 ? (dim + 31) / 32 : dim / 32;
    const int rows = Width == 4 ? dim / 8 : blocks * Width;
    const auto load = [&](int block, std::uint32_t(&words)[tokens][Width]) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int k = 0; k < Width; ++k) {
        const int row = block * Width + k;
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int j = 0; j < tokens; ++j) {
          words[j][k] = row < rows ? row_word(section, row, j) : 0U;
        }
      }
    };
    // Two blocks are on their way while one is multiplied.
    std::uint32_t next[tokens][Width];
    std::uint32_t after[tokens][Width];
    load(0, next);
    load(1, after);
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int block = 0; block < blocks; ++block) {
      std::uint32_t words[tokens][Width];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int k = 0; k < Width; ++k) {
          words[j][k] = next[j][k];
          next[j][k] = after[j][k];
        }
      }
      load(block + 2, after);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int g = 0; g < 4; ++g) {
        std::uint32_t selectors[tokens];
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int j = 0; j < tokens; ++j) {
          selectors[j] = shared_selector<Width>(words[j], g);
        }
        query.template add<Width == 4>(levels, 4 * block + g, selectors, sums);
      }
    }
    if (Width < 4) {
      add_planes<Width>(section, 4 * blocks, levels, query, sums);
    }
  }

  /// The rest of the dimensions, which are byte planes.
  template <int Width, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add_planes(const unsigned char* section, int first_group,
                                              const LevelBytes& levels, const DotQuery<Rows>& query,
                                              DotSums<tokens, Rows>& sums) const {
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int group = first_group; group < in.format.key_dim / 8; ++group) {
      std::uint32_t selectors[tokens];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < tokens; ++j) {
        selectors[j] = 0;
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int bit = 0; bit < Width; ++bit) {
          const std::uint32_t byte =
              section[static_cast<std::size_t>((group * Width + bit) * 64 + lane + Lanes * j)];
          // Bit n of the low half to bit 8 n.
          const std::uint32_t low = ((byte & 15U) * 0x00204081U) & 0x01010101U;
          const std::uint32_t high = ((byte >> 4U) * 0x00204081U) & 0x01010101U;
          selectors[j] |= (low | (high << 4U)) << static_cast<unsigned>(bit);
        }
      }
      query.template add<false>(levels, group, selectors, sums);
    }
  }

  template <int Width, bool Numbers, int Count, int Rows>
  KOKKOS_FORCEINLINE_FUNCTION void add_values(const unsigned char* tile, int first,
                                              const bool (&active)[Count],
                                              const DotWeights<Rows>& weights,
                                              DotSums<Count, Rows>& sums) const {
    const unsigned char* section = tile + in.value_codes;
    const int dim = in.format.value_dim;
    TURBOQUANT_KEEP_LOOP_IN_KERNELS
    for (int quad = 0; quad < 2; ++quad) {
      std::uint32_t words[Count][Width];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < Count; ++i) {
        const int d = dim_of_slot(first + i);
        const int rest = dim - d / 32 * 32;
        const int stride = rest < 32 ? rest : 32;
        const int column = d / 32 * 64 * Width + d % 32;
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int k = 0; k < Width; ++k) {
          words[i][k] = active[i]
                            ? load_word(section + 4 * static_cast<std::size_t>(
                                                          column + (quad * Width + k) * stride))
                            : 0U;
        }
      }
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int g = 0; g < 4; ++g) {
        const int index = 2 * (4 * quad + g);
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int half = 0; half < 2; ++half) {
          const WordPack<Rows> highs = weights.pack(index + half, 0);
          const WordPack<Rows> lows = weights.pack(index + half, 1);
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int i = 0; i < Count; ++i) {
            const std::uint32_t nibbles = shared_selector<Width>(words[i], g);
            const std::uint32_t bytes =
                Numbers
                    ? (nibbles >> static_cast<unsigned>(4 * half)) & 0x0F0F0F0FU
                    : in.value_levels.of<Width == 4>(nibbles >> static_cast<unsigned>(16 * half));
            sums.add(i, bytes, highs, lows);
          }
        }
      }
    }
  }
};

}  // namespace turboquant::detail
