#pragma once

#include <turboquant/device/arch/cuda_mma_prepare.hpp>
#include <turboquant/device/arch/cuda_mma_registers.hpp>
#include <turboquant/math/softmax_state.hpp>

#include <cstddef>
#include <cstdint>

namespace turboquant::detail::cuda {

/// Tokens that rows may see, as numbers within the tiles of one team: token 0 is slot 0 of its
/// first tile.
struct StepMask {
  /// Numbers are cut off at this distance; a team walks fewer tokens.
  static constexpr int far = 1 << 29;

  int begin = 0;  ///< tokens outside [begin, end) hold nothing
  int end = 0;
  int newest = far;  ///< query j sees the tokens after oldest + j, up to newest + j
  int oldest = -far;
  int first_row = 0;
  int rows = 0;  ///< rows of this team; row i belongs to query (first_row + i) / ratio
  int ratio = 1;

  /// Every row sees the tokens [full_begin, full_end).
  KOKKOS_FORCEINLINE_FUNCTION int full_begin() const {
    const int first = oldest + (first_row + rows - 1) / ratio + 1;
    return first > begin ? first : begin;
  }
  KOKKOS_FORCEINLINE_FUNCTION int full_end() const {
    const int past = newest + 1 + first_row / ratio;
    return past < end ? past : end;
  }
  /// The tokens that a row sees.
  KOKKOS_FORCEINLINE_FUNCTION void visible(int row, int& first, int& past) const {
    const int query = (first_row + row) / ratio;
    first = oldest + query + 1 > begin ? oldest + query + 1 : begin;
    past = newest + query + 1 < end ? newest + query + 1 : end;
  }
};

/// The maximum of nothing: the difference of two is a number.
inline constexpr float unseen = -1e30F;

/// The running softmax of one warp for up to 4 `Sets` query rows, spread over its lanes: lane
/// 4 r + c works for rows c and 4 + c.
///
/// Keys are the first operand of int8 products (16 tokens, 32 dimensions); a row of the query is
/// two columns of the second operand, the high and low byte of a 15-bit integer. Weights are fp16
/// times 2^8: their products with the stored scales stay normal numbers for scales from 2^-16 on.
/// Value codes are operands as they are, as subnormal fp16 (code 2^-24).
template <class Shape, int Sets>
struct MmaState {
  /// The weights of tokens at the running maximum are 2^lift; larger scales need smaller weights.
  static constexpr float usual_lift = 8;
  static constexpr float low_lift = -8;
  /// The maximum may grow by this much (log 2) before everything is rescaled.
  static constexpr float slack = 6;

  float output[Shape::value_tiles][4];  ///< sums of weight, scale and code
  float zero[Shape::groups][4];         ///< sums of weight and zero point, sums of weights
  float reference[Sets];                ///< logit of weight 1
  float lift;
  Word query[Shape::key_steps][2 * Sets];
  float query_scale[Sets];

  KOKKOS_FORCEINLINE_FUNCTION void reset(const PreparedRows<Shape::dim, Sets>& rows, int lane) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Shape::value_tiles; ++i) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int e = 0; e < 4; ++e) {
        output[i][e] = 0;
      }
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Shape::groups; ++i) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int e = 0; e < 4; ++e) {
        zero[i][e] = 0;
      }
    }
    lift = usual_lift;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Shape::key_steps; ++i) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int j = 0; j < 2 * Sets; ++j) {
        query[i][j] = rows.words[i][lane][j];
      }
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int set = 0; set < Sets; ++set) {
      reference[set] = unseen;
      query_scale[set] = rows.scale[4 * set + lane % 4];
    }
  }

  /// Takes over what has been summed elsewhere for row 4 `set` + c: to be called for all of them
  /// before the first step.
  /// @param maximum logit of weight 1 in `sum` and the values
  /// @param value   value(d) is the sum for dimension d, not normalised
  template <class Value>
  KOKKOS_FORCEINLINE_FUNCTION void start(int set, float maximum, float sum, int lane,
                                         const Value& value) {
    constexpr float unit = 16777216.0F;
    const float weight = exp2_of(lift);
    reference[set] = maximum - lift;
    zero[0][2 + set] = sum * weight;
    // The inverse of `value`, with zero points of zero.
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int tile = Shape::value_tiles - 1; tile >= 0; --tile) {
      const float even = value(16 * tile + lane / 4 * 2) * weight;
      const float odd = value(16 * tile + lane / 4 * 2 + 1) * weight;
      float upper = odd * (16 / unit);
      float both = even * (1 / unit) + upper;
      if constexpr (Shape::value_bits == 2) {
        const float rest = tile % 2 == 0 ? output[(tile + 1) % Shape::value_tiles][set] : 0.0F;
        upper = tile % 2 == 0 ? odd * (4 / unit) + rest : odd * (64 / unit);
        both = even * (tile % 2 == 0 ? 1 / unit : 16 / unit) + upper;
      }
      output[tile][set] = both;
      output[tile][2 + set] = upper;
    }
  }

  /// Logits over `query_scale` of tokens 8 i + r, without the stored key scales.
  KOKKOS_FORCEINLINE_FUNCTION void score(const KeyRegisters<Shape>& keys,
                                         float (&logits)[Sets][Shape::blocks]) const {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int sub = 0; sub < Shape::sub_tiles; ++sub) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int pair = 0; pair < Shape::sub_blocks / 2; ++pair) {
        int sums[Sets][4] = {};
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int step = 0; step < Shape::key_steps; ++step) {
          Word levels[4];
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int odd = 0; odd < 2; ++odd) {
            const Word selector = selector_of<Shape::key_bits, Shape::selectors>(
                keys.words[sub], (2 * pair + odd) * Shape::key_steps + step);
            key_levels<Shape::key_bits>(selector, levels[odd], levels[2 + odd]);
          }
          TURBOQUANT_UNROLL_IN_KERNELS
          for (int set = 0; set < Sets; ++set) {
            multiply_add(sums[set], levels, query[step][2 * set], query[step][2 * set + 1]);
          }
        }
        const int block = sub * Shape::sub_blocks + 2 * pair;
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int set = 0; set < Sets; ++set) {
          logits[set][block] = static_cast<float>(sums[set][0] * 256 + sums[set][1]);
          logits[set][block + 1] = static_cast<float>(sums[set][2] * 256 + sums[set][3]);
        }
      }
    }
  }

  KOKKOS_FORCEINLINE_FUNCTION static void scale_logits(const Word (&scales)[Shape::blocks / 2],
                                                       float (&logits)[Sets][Shape::blocks]) {
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int i = 0; i < Shape::blocks / 2; ++i) {
      const FloatPair scale = unpack_halves(scales[i]);
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int set = 0; set < Sets; ++set) {
        logits[set][2 * i] *= scale.first;
        logits[set][2 * i + 1] *= scale.second;
      }
    }
  }

  /// Hides tokens; what the slots of tokens outside [begin, end) hold is not used.
  KOKKOS_FORCEINLINE_FUNCTION static void hide(const StepMask& mask, int first_token, int lane,
                                               float (&logits)[Sets][Shape::blocks],
                                               ValueRegisters<Shape>& values) {
    const int column = lane % 4;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int set = 0; set < Sets; ++set) {
      int first = 0;
      int past = 0;
      mask.visible(4 * set + column, first, past);
      const int token = first_token + lane / 4;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int block = 0; block < Shape::blocks; ++block) {
        const bool seen = token + 8 * block >= first && token + 8 * block < past;
        logits[set][block] = seen ? logits[set][block] : negative_infinity;
      }
    }
    const int first = mask.begin - first_token - 2 * column;
    const int past = mask.end - first_token - 2 * column;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int block = 0; block < Shape::blocks; ++block) {
      const Word even = 8 * block >= first && 8 * block < past ? 0x0000FFFFU : 0U;
      const Word odd = 8 * block + 1 >= first && 8 * block + 1 < past ? 0xFFFF0000U : 0U;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int group = 0; group < Shape::groups; ++group) {
        values.scales[group][block] &= even | odd;
        values.zeros[group][block] &= even | odd;
      }
    }
  }

  /// Logits to weights as operands of the products with values.
  KOKKOS_FORCEINLINE_FUNCTION void weigh(const float (&logits)[Sets][Shape::blocks],
                                         const ValueRegisters<Shape>& values,
                                         Word (&weights)[Shape::blocks]) {
    float highest[Sets];
    bool outgrown = false;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int set = 0; set < Sets; ++set) {
      highest[set] = logits[set][0];
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int block = 1; block < Shape::blocks; ++block) {
        highest[set] = logits[set][block] > highest[set] ? logits[set][block] : highest[set];
      }
      highest[set] *= query_scale[set];
      outgrown = outgrown || highest[set] > reference[set] + (lift + slack);
    }
    // A scale of 2 or more has the upper bit of its exponent set.
    Word scales = 0;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int group = 0; group < Shape::groups; ++group) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int block = 0; block < Shape::blocks; ++block) {
        scales |= values.scales[group][block];
      }
    }
    const bool large = (scales & 0x40004000U) != 0 && lift > low_lift;
    if (any_lane(outgrown || large)) {
      rescale(highest, any_lane(large));
    }
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int block = 0; block < Shape::blocks; ++block) {
      float weight[2] = {0, 0};
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int set = 0; set < Sets; ++set) {
        weight[set] = exp2_of(logits[set][block] * query_scale[set] - reference[set]);
      }
      weights[block] = transpose(pack_halves(weight[0], weight[1]));
    }
  }

  /// Adds the values of a step.
  KOKKOS_FORCEINLINE_FUNCTION void add(const ValueRegisters<Shape>& values,
                                       const Word (&weights)[Shape::blocks]) {
    constexpr Word one = 0x3C003C00U;
    constexpr int tiles_per_group = Shape::value_tiles / Shape::groups;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int group = 0; group < Shape::groups; ++group) {
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int pair = 0; pair < Shape::blocks / 2; ++pair) {
        const Word w0 = weights[2 * pair];
        const Word w1 = weights[2 * pair + 1];
        const Word b0 = multiply_halves(w0, values.scales[group][2 * pair]);
        const Word b1 = multiply_halves(w1, values.scales[group][2 * pair + 1]);
        multiply_add(zero[group], values.zeros[group][2 * pair], one,
                     values.zeros[group][2 * pair + 1], one, w0, w1);
        const int sub = pair / (Shape::sub_blocks / 2);
        const int first = pair % (Shape::sub_blocks / 2) * Shape::value_tiles;
        TURBOQUANT_UNROLL_IN_KERNELS
        for (int i = 0; i < tiles_per_group; ++i) {
          const int tile = group * tiles_per_group + i;
          add_codes(values.words[sub], first + tile, tile, b0, b1);
        }
      }
    }
  }

  /// Dimensions 16 tile + 2 r and 16 tile + 2 r + 1 of row 4 set + c, not normalised.
  KOKKOS_FORCEINLINE_FUNCTION FloatPair value(int set, int tile) const {
    constexpr float unit = 16777216.0F;
    const float z = zero[tile / (Shape::value_tiles / Shape::groups)][set];
    // Row r of a product holds both dimensions of a byte, row r + 8 the upper one alone.
    const float both = output[tile][set];
    const float upper = output[tile][2 + set];
    if constexpr (Shape::value_bits != 2) {
      return {(both - upper) * unit + z, upper * (unit / 16) + z};
    } else if (tile % 2 == 0) {
      const float rest = output[(tile + 1) % Shape::value_tiles][set];
      return {(both - upper) * unit + z, (upper - rest) * (unit / 4) + z};
    } else {
      return {(both - upper) * (unit / 16) + z, upper * (unit / 64) + z};
    }
  }
  /// Sum of the weights of row 4 set + c.
  KOKKOS_FORCEINLINE_FUNCTION float sum(int set) const { return zero[0][2 + set]; }

 private:
  KOKKOS_FORCEINLINE_FUNCTION void rescale(float (&highest)[Sets], bool large) {
    const float before = lift;
    lift = large ? low_lift : lift;
    TURBOQUANT_UNROLL_IN_KERNELS
    for (int set = 0; set < Sets; ++set) {
      const float seen = max_over_rows(highest[set]);
      const float last = reference[set] == unseen ? unseen : reference[set] + before;
      const float maximum = seen > last ? seen : last;
      const float next = maximum == unseen ? unseen : maximum - lift;
      const float factor = exp2_of(reference[set] - next);
      reference[set] = next;
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < Shape::value_tiles; ++i) {
        output[i][set] *= factor;
        output[i][2 + set] *= factor;
      }
      TURBOQUANT_UNROLL_IN_KERNELS
      for (int i = 0; i < Shape::groups; ++i) {
        zero[i][set] *= factor;
        zero[i][2 + set] *= factor;
      }
    }
  }

  /// Adds 16 tokens of 16 dimensions; 2-bit codes come 32 dimensions at a time.
  KOKKOS_FORCEINLINE_FUNCTION void add_codes(const Word (&words)[Shape::value_words], int selector,
                                             int tile, Word b0, Word b1) {
    if constexpr (Shape::value_bits == 2) {
      if (selector % 2 == 0) {
        const Word low = words[selector / 2];
        const Word high = permute_bytes(low, 0, 0x4341U);
        multiply_add(output[tile], low & 0x00FF00FFU, low & 0x00FC00FCU, high, high & 0x00FC00FCU,
                     b0, b1);
        multiply_add(output[tile + 1], low & 0x00F000F0U, low & 0x00C000C0U, high & 0x00F000F0U,
                     high & 0x00C000C0U, b0, b1);
      }
    } else {
      const Word low = selector_of<Shape::value_bits, Shape::selectors>(words, selector);
      const Word high = permute_bytes(low, 0, 0x4341U);
      multiply_add(output[tile], low & 0x00FF00FFU, low & 0x00F000F0U, high, high & 0x00F000F0U, b0,
                   b1);
    }
  }
};

}  // namespace turboquant::detail::cuda
