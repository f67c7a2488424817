#pragma once

#include <turboquant/device/attention_operations.hpp>
#include <turboquant/device/tile_encoder.hpp>

#include <cstddef>
#include <cstring>

namespace turboquant::detail {

/// Zeroes keys, signs and numbers of slots [first, end) of a tile in host order.
inline TURBOQUANT_FUNCTION void clear_host_slots(const TileFormat& format, std::size_t first,
                                                 std::size_t end, unsigned char* tile) noexcept {
  const auto clear_rows = [&](std::size_t offset, std::size_t rows, std::size_t bytes) {
    for (std::size_t row = 0; row < rows; ++row) {
      std::memset(tile + offset + (row * format.tokens() + first) * bytes, 0,
                  (end - first) * bytes);
    }
  };
  const auto clear_keys = [&](const KeySection& section) {
    const std::size_t words = section.word_dims() * section.width / 32;
    clear_rows(section.offset, words, 4);
    clear_rows(section.offset + 4 * words * format.tokens(),
               (section.dim - section.word_dims()) / 8 * section.width, 1);
  };
  clear_keys(key_codes(format));
  if (format.key_codec == KeyCodec::inner_product) {
    clear_keys(key_signs(format));
  }
  clear_rows(format.key_scales_offset(), format.metadata_bytes() / 2, 2);
}

/// The same in any order, field by field.
inline TURBOQUANT_FUNCTION void clear_any_slots(const TileFormat& format, std::size_t first,
                                                std::size_t end, unsigned char* tile) noexcept {
  const auto dim = static_cast<std::size_t>(format.key_dim);
  for (std::size_t token = first; token < end; ++token) {
    if (format.key_codec == KeyCodec::float8) {
      for (std::size_t d = 0; d < dim; ++d) {
        tile[format.key_code_bit(token, d, 0).byte] = 0;
      }
    } else {
      for (std::size_t group = 0; group < dim / 8; ++group) {
        key_codes(format).write_nibbles(tile, group, token, 0);
        if (format.key_codec == KeyCodec::inner_product) {
          key_signs(format).write_nibbles(tile, group, token, 0);
        }
      }
      store_half(tile + format.key_scale_byte(token), {});
      if (format.key_codec == KeyCodec::inner_product) {
        store_half(tile + format.residual_scale_byte(token), {});
      }
    }
    for (std::size_t group = 0; group < format.value_groups(); ++group) {
      store_half(tile + format.value_scale_byte(token, group), {});
      if (format.value_codec == ValueCodec::grouped) {
        store_half(tile + format.value_zero_byte(token, group), {});
      }
    }
  }
}

/// Zeroes slots [first, end) of a tile; of all slots, its key mean too.
inline TURBOQUANT_FUNCTION void clear_slots(const TileFormat& format, std::size_t first,
                                            std::size_t end, unsigned char* tile) noexcept {
  if (first >= end) {
    return;
  }
  if (first == 0 && end == format.tokens()) {
    std::memset(tile, 0, format.bytes());
    return;
  }
  if (format.order == TileOrder::host) {
    clear_host_slots(format, first, end, tile);
  } else {
    clear_any_slots(format, first, end, tile);
  }
  const ValueSection values = value_codes(format);
  for (std::size_t group = first / 8; 8 * group < end; ++group) {
    unsigned keep = 0;
    for (unsigned i = 0; i < 8; ++i) {
      const std::size_t slot = 8 * group + i;
      keep |= slot < first || slot >= end ? 1U << i : 0U;
    }
    for (std::size_t d = 0; d < values.dim; ++d) {
      values.keep_tokens(tile, group, d, keep);
    }
  }
}

/// Makes the key mean of a tile; what follows it up to the tile's end becomes zero.
template <class Steps>
TURBOQUANT_FUNCTION void encode_key_mean(const TileFormat& format, const EncodeArguments& in,
                                         typename Steps::Scratch& scratch,
                                         unsigned char* tile) noexcept {
  const auto dim = static_cast<std::size_t>(format.key_dim);
  unsigned char* const mean = tile + format.key_mean_offset();
  Steps::key_mean(in.keys, in.head, static_cast<std::size_t>(in.count), dim, scratch, mean);
  for (std::size_t i = 2 * dim; i < format.key_mean_bytes(); ++i) {
    mean[i] = 0;
  }
}

/// `encode_keys` of keys minus the key mean of their tile.
template <class Steps, class Words>
TURBOQUANT_FUNCTION void encode_centred_keys(const TileTables& tables, LaneSlots lanes,
                                             const Words& words, typename Steps::Scratch& scratch,
                                             unsigned char* tile) noexcept {
  const TileFormat& format = tables.format;
  bool kept[Steps::lanes];
  Steps::subtract_mean(tile + format.key_mean_offset(), static_cast<std::size_t>(format.key_dim),
                       format.key_codec == KeyCodec::float8, scratch, kept);
  encode_keys<Steps>(tables, lanes, words, scratch, tile);
  for (std::size_t lane = 0; lane < lanes.count; ++lane) {
    if (kept[lane]) {
      mark_not_centred(format, lanes.slot + lane, tile);
    }
  }
}

/// Encodes one head of one tile.
template <class Steps>
TURBOQUANT_FUNCTION void encode_slots(const TileTables& tables,
                                      const EncodeArguments& in) noexcept {
  const TileFormat& format = tables.format;
  auto* tile = reinterpret_cast<unsigned char*>(in.tile);
  const auto clear_from = static_cast<std::size_t>(in.clear_from);
  const auto first_slot = static_cast<std::size_t>(in.first_slot);
  const auto count = static_cast<std::size_t>(in.count);
  clear_slots(format, clear_from, format.tokens(), tile);
  clear_slots(format, first_slot, first_slot + count < clear_from ? first_slot + count : clear_from,
              tile);
  constexpr std::size_t lanes_of_steps = Steps::lanes;
  typename Steps::Scratch scratch;
  if (format.centres_keys() && in.begins_tile()) {
    encode_key_mean<Steps>(format, in, scratch, tile);
  }
  for (std::size_t done = 0; done < count;) {
    const std::size_t slot = first_slot + done;
    const std::size_t to_boundary = lanes_of_steps - slot % lanes_of_steps;
    const std::size_t left = count - done;
    const LaneSlots lanes{slot, left < to_boundary ? left : to_boundary};
    Steps::load(in.keys, in.head, done, lanes.count, static_cast<std::size_t>(format.key_dim),
                scratch);
    if (format.centres_keys()) {
      encode_centred_keys<Steps>(tables, lanes, PlainWords(), scratch, tile);
    } else {
      encode_keys<Steps>(tables, lanes, PlainWords(), scratch, tile);
    }
    if (format.value_codec != ValueCodec::grouped ||
        !Steps::grouped_rows(format, in.values, in.head, done, lanes, tile)) {
      Steps::load(in.values, in.head, done, lanes.count, static_cast<std::size_t>(format.value_dim),
                  scratch);
      encode_values<Steps>(tables, lanes, PlainWords(), scratch, tile);
    }
    done += lanes.count;
  }
}

}  // namespace turboquant::detail
