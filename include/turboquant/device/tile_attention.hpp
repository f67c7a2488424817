#pragma once

#include <turboquant/base/float8.hpp>
#include <turboquant/device/attention_operations.hpp>
#include <turboquant/device/key_mean.hpp>
#include <turboquant/device/tile_words.hpp>
#include <turboquant/math/softmax_state.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace turboquant::detail {

/// `cap * tanh(logit / cap)`.
[[nodiscard]] inline TURBOQUANT_FUNCTION float soft_capped(float logit, float cap) noexcept {
  return cap * std::tanh(logit / cap);
}

/// Tile attention in float on any processor: what the other tile operations are measured against.
///
/// Uses the stored scales and exact levels; the only error is the rounding of float sums. Query
/// rows are taken in blocks of `block` so that a code is unpacked once per block. Same bits always.
struct PortableAttention {
  static constexpr int block = 4;
  static constexpr int max_tokens = static_cast<int>(TileFormat::max_tokens);

  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t query_bytes(const TileTables& tables,
                                                                   int rows) noexcept {
    const std::size_t vectors = tables.format.key_codec == KeyCodec::inner_product ? 2 : 1;
    return vectors * static_cast<std::size_t>(rows * tables.format.key_dim) * sizeof(float);
  }
  [[nodiscard]] static TURBOQUANT_FUNCTION std::size_t state_bytes(const TileTables& tables,
                                                                   int rows) noexcept {
    return static_cast<std::size_t>(rows * (tables.format.value_dim + 2)) * sizeof(float);
  }

  static TURBOQUANT_FUNCTION void prepare(const TileTables& tables, const PrepareArguments& in,
                                          std::byte* query) noexcept {
    const int count = in.rows * tables.format.key_dim;
    auto* out = reinterpret_cast<float*>(query);
    for (int i = 0; i < count; ++i) {
      out[i] = in.queries[i] * in.logit_scale;
    }
    if (tables.format.key_codec == KeyCodec::inner_product) {
      for (int i = 0; i < count; ++i) {
        out[count + i] = in.sketched[i] * (in.logit_scale * tables.residual_factor);
      }
    }
  }

  static TURBOQUANT_FUNCTION void reset(const TileTables& tables, int rows,
                                        std::byte* state) noexcept {
    const State at(tables, rows, state);
    for (int i = 0; i < rows * tables.format.value_dim; ++i) {
      at.output[i] = 0.0F;
    }
    for (int row = 0; row < rows; ++row) {
      at.maximum[row] = negative_infinity;
      at.sum[row] = 0.0F;
    }
  }

  static TURBOQUANT_FUNCTION void attend(const TileTables& tables,
                                         const TileArguments& in) noexcept {
    for_each_tile(tables.format, in, [&](const TileArguments& tile) { attend_tile(tables, tile); });
  }

  static TURBOQUANT_FUNCTION void attend_tile(const TileTables& tables,
                                              const TileArguments& in) noexcept {
    const State state(tables, in.rows, in.state);
    const int tokens = tables.format.tile_tokens;
    for (int row = 0; row < in.rows; row += block) {
      const int count = in.rows - row < block ? in.rows - row : block;
      float logits[block][max_tokens];
      score_tile(tables, in, row, count, logits);
      for (int r = 0; r < count && tables.format.centres_keys(); ++r) {
        add_key_mean(tables.format, in.tile, in.plain_queries + (row + r) * tables.format.key_dim,
                     logits[r]);
      }
      bool any = false;
      for (int r = 0; r < count; ++r) {
        const TokenRange::Slots slots = in.tokens.visible(row + r);
        mask_and_cap(slots, in.soft_cap, tokens, logits[r]);
        any = take_logits(logits[r], tokens, state.maximum + row + r, state.sum + row + r,
                          state.output + (row + r) * tables.format.value_dim,
                          tables.format.value_dim) ||
              any;
      }
      if (any) {
        add_values(tables, in, state.output + row * tables.format.value_dim, count, logits);
      }
    }
  }

  static TURBOQUANT_FUNCTION void finish(const TileTables& tables,
                                         const FinishArguments& out) noexcept {
    const State at(tables, out.rows, const_cast<std::byte*>(out.state));
    for (int i = 0; i < out.rows * tables.format.value_dim; ++i) {
      out.output[i] = at.output[i];
    }
    for (int row = 0; row < out.rows; ++row) {
      out.maximum[row] = at.maximum[row];
      out.sum[row] = at.sum[row];
    }
  }

  /// Logits of `count` rows from row `first_row` with all slots of a tile, unmasked, without what
  /// its key mean adds.
  static TURBOQUANT_FUNCTION void score_tile(const TileTables& tables, const TileArguments& in,
                                             int first_row, int count,
                                             float (*logits)[max_tokens]) noexcept {
    const TileFormat& format = tables.format;
    const int dim = format.key_dim;
    const int tokens = format.tile_tokens;
    const auto* query = reinterpret_cast<const float*>(in.query) + first_row * dim;
    const auto* tile = reinterpret_cast<const unsigned char*>(in.tile);
    for (int r = 0; r < count; ++r) {
      for (int t = 0; t < tokens; ++t) {
        logits[r][t] = 0.0F;
      }
    }
    if (format.key_codec == KeyCodec::float8) {
      score_float8(format, tile, query, count, logits);
      return;
    }
    score_nibbles(key_codes(format), tables.key_codebook.levels, format.tokens(), tile, query,
                  count, logits);
    scale_logits(key_scales(format), tile, tokens, count, logits);
    if (format.key_codec == KeyCodec::inner_product) {
      float sketch[block][max_tokens] = {};
      const float signs[2] = {1.0F, -1.0F};
      score_nibbles(key_signs(format), signs, format.tokens(), tile, query + in.rows * dim, count,
                    sketch);
      scale_logits(residual_scales(format), tile, tokens, count, sketch);
      for (int r = 0; r < count; ++r) {
        for (int t = 0; t < tokens; ++t) {
          logits[r][t] += sketch[r][t];
        }
      }
    }
  }

  /// Adds what the key mean of a tile adds to the logits of a query.
  /// @param query (key_dim), not rotated, scaled like the logits
  static TURBOQUANT_FUNCTION void add_key_mean(const TileFormat& format, const std::byte* tile,
                                               const float* query, float* logits) noexcept {
    const auto* bytes = reinterpret_cast<const unsigned char*>(tile);
    const float added = key_mean_logit(format, bytes, query);
    for (int t = 0; t < format.tile_tokens; ++t) {
      logits[t] += is_centred(format, bytes, static_cast<std::size_t>(t)) ? added : 0.0F;
    }
  }

  static TURBOQUANT_FUNCTION void mask_and_cap(TokenRange::Slots slots, float soft_cap, int tokens,
                                               float* logits) noexcept {
    for (int t = 0; t < tokens; ++t) {
      if (t < slots.first || t >= slots.end) {
        logits[t] = negative_infinity;
      } else if (soft_cap > 0) {
        logits[t] = soft_capped(logits[t], soft_cap);
      }
    }
  }

  /// Takes `count` logits into a running softmax: they become weights, the state is rescaled to the
  /// new maximum.
  /// @return whether any token is visible
  static TURBOQUANT_FUNCTION bool take_logits(float* logits, int count, float* maximum, float* sum,
                                              float* output, int value_dim) noexcept {
    float highest = negative_infinity;
    for (int t = 0; t < count; ++t) {
      highest = logits[t] > highest ? logits[t] : highest;
    }
    if (highest == negative_infinity) {
      for (int t = 0; t < count; ++t) {
        logits[t] = 0.0F;
      }
      return false;
    }
    if (highest > *maximum) {
      const float factor = exp2_negative(*maximum - highest);
      *maximum = highest;
      *sum *= factor;
      for (int d = 0; d < value_dim; ++d) {
        output[d] *= factor;
      }
    }
    float added = 0.0F;
    for (int t = 0; t < count; ++t) {
      logits[t] = exp2_negative(logits[t] - *maximum);
      added += logits[t];
    }
    *sum += added;
    return true;
  }

 private:
  struct State {
    TURBOQUANT_FUNCTION State(const TileTables& tables, int rows, std::byte* state) noexcept
        : output(reinterpret_cast<float*>(state)),
          maximum(output + rows * tables.format.value_dim),
          sum(maximum + rows) {}

    float* output;
    float* maximum;
    float* sum;
  };

  static TURBOQUANT_FUNCTION void score_nibbles(const KeySection& section, const float* levels,
                                                std::size_t tokens, const unsigned char* tile,
                                                const float* query, int count,
                                                float (*logits)[max_tokens]) noexcept {
    const std::uint32_t mask = (1U << section.width) - 1U;
    for (std::size_t group = 0; group < section.dim / 8; ++group) {
      for (std::size_t t = 0; t < tokens; ++t) {
        const std::uint32_t nibbles = section.read_nibbles(tile, group, t);
        float level[8];
        for (std::size_t n = 0; n < 8; ++n) {
          level[n] = levels[(nibbles >> nibble_shift(n)) & mask];
        }
        for (int r = 0; r < count; ++r) {
          const float* q = query + static_cast<std::size_t>(r) * section.dim + 8 * group;
          float dot = 0.0F;
          for (std::size_t n = 0; n < 8; ++n) {
            dot += q[n] * level[n];
          }
          logits[r][t] += dot;
        }
      }
    }
  }

  static TURBOQUANT_FUNCTION void score_float8(const TileFormat& format, const unsigned char* tile,
                                               const float* query, int count,
                                               float (*logits)[max_tokens]) noexcept {
    const int dim = format.key_dim;
    for (int group = 0; group < dim / 4; ++group) {
      for (int t = 0; t < format.tile_tokens; ++t) {
        // Four dimensions are one dword in every order.
        const auto first = 4 * static_cast<std::size_t>(group);
        const unsigned char* at =
            tile + format.key_code_bit(static_cast<std::size_t>(t), first, 0).byte;
        for (int n = 0; n < 4; ++n) {
          const float key = float8_e4m3{at[n]}.to_float();
          for (int r = 0; r < count; ++r) {
            logits[r][t] += query[r * dim + 4 * group + n] * key;
          }
        }
      }
    }
  }

  static TURBOQUANT_FUNCTION void scale_logits(const HalfSection& scales, const unsigned char* tile,
                                               int tokens, int count,
                                               float (*logits)[max_tokens]) noexcept {
    for (int t = 0; t < tokens; ++t) {
      const float stored = load_half(tile + scales.byte(static_cast<std::size_t>(t)));
      const float scale = stored < 0 ? -stored : stored;  // the sign is a mark, see `is_centred`
      for (int r = 0; r < count; ++r) {
        logits[r][t] *= scale;
      }
    }
  }

  /// Adds weights times values; weights of invisible tokens are 0 and what their slots hold is not
  /// touched.
  static TURBOQUANT_FUNCTION void add_values(const TileTables& tables, const TileArguments& in,
                                             float* output, int count,
                                             const float (*weights)[max_tokens]) noexcept {
    const TileFormat& format = tables.format;
    const ValueSection section = value_codes(format);
    const std::uint32_t mask = (1U << section.width) - 1U;
    const auto* tile = reinterpret_cast<const unsigned char*>(in.tile);
    const bool grouped = format.value_codec == ValueCodec::grouped;
    float levels[16];
    for (std::uint32_t code = 0; code <= mask; ++code) {
      levels[code] = grouped ? static_cast<float>(code) : tables.value_codebook.levels[code];
    }
    for (std::size_t group = 0; group < format.value_groups(); ++group) {
      const HalfSection scales = value_scales(format, group);
      const HalfSection zeros = value_zeros(format, group);
      float scaled[block][max_tokens] = {};
      float zero_sum[block] = {};
      for (int t = in.tokens.first; t < in.tokens.end; ++t) {
        const auto token = static_cast<std::size_t>(t);
        const float scale = load_half(tile + scales.byte(token));
        const float zero = grouped ? load_half(tile + zeros.byte(token)) : 0.0F;
        for (int r = 0; r < count; ++r) {
          scaled[r][t] = weights[r][t] * scale;
          zero_sum[r] += weights[r][t] * zero;
        }
      }
      for (int i = 0; i < format.value_group; ++i) {
        const std::size_t d =
            group * static_cast<std::size_t>(format.value_group) + static_cast<std::size_t>(i);
        float sums[block] = {};
        for (std::size_t eight = 0; eight < format.tokens() / 8; ++eight) {
          const std::uint32_t nibbles = section.read_nibbles(tile, eight, d);
          for (std::size_t t = 0; t < 8; ++t) {
            const float level = levels[(nibbles >> (4 * t)) & mask];
            for (int r = 0; r < count; ++r) {
              sums[r] += scaled[r][8 * eight + t] * level;
            }
          }
        }
        for (int r = 0; r < count; ++r) {
          output[static_cast<std::size_t>(r * format.value_dim) + d] += sums[r] + zero_sum[r];
        }
      }
    }
  }
};

/// Attention over uncompressed rows in float, up to 64 tokens a call. Same bits always.
inline TURBOQUANT_FUNCTION void attend_rows(const RowArguments& in) noexcept {
  constexpr int tokens = PortableAttention::max_tokens;
  float vector[576];
  float logits[PortableAttention::block][tokens];
  for (int row = 0; row < in.rows; row += PortableAttention::block) {
    const int count =
        in.rows - row < PortableAttention::block ? in.rows - row : PortableAttention::block;
    for (int t = in.tokens.first; t < in.tokens.end; ++t) {
      in.keys.read_row((in.start + t) % in.capacity, in.head, static_cast<std::size_t>(in.key_dim),
                       vector);
      for (int r = 0; r < count; ++r) {
        const float* query = in.queries + (row + r) * in.key_dim;
        float lanes[8] = {};
        for (int d = 0; d < in.key_dim; d += 8) {
          for (int lane = 0; lane < 8; ++lane) {
            lanes[lane] += query[d + lane] * vector[d + lane];
          }
        }
        logits[r][t] = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
                       ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
      }
    }
    for (int r = 0; r < count; ++r) {
      PortableAttention::mask_and_cap(in.tokens.visible(row + r), in.soft_cap, tokens, logits[r]);
      PortableAttention::take_logits(logits[r], tokens, in.maximum + row + r, in.sum + row + r,
                                     in.output + (row + r) * in.value_dim, in.value_dim);
    }
    for (int t = in.tokens.first; t < in.tokens.end; ++t) {
      in.values.read_row((in.start + t) % in.capacity, in.head,
                         static_cast<std::size_t>(in.value_dim), vector);
      for (int r = 0; r < count; ++r) {
        const float weight = logits[r][t];
        float* output = in.output + (row + r) * in.value_dim;
        for (int d = 0; d < in.value_dim; ++d) {
          output[d] += weight * vector[d];
        }
      }
    }
  }
}

}  // namespace turboquant::detail
