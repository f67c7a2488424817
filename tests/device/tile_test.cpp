// The tile: sizes, the bit maps, and the word readers and writers that kernels use against the
// maps.

#include <turboquant/base/random.hpp>
#include <turboquant/device/tile_decoder.hpp>
#include <turboquant/device/tile_slots.hpp>

#include <doctest/doctest.h>
#include <support/tile_inputs.hpp>

#include <cstdint>
#include <string>
#include <vector>

using namespace turboquant;

namespace {

using test::make_format;

std::vector<TileFormat> formats() {
  std::vector<TileFormat> all;
  for (const int dim : {16, 24, 40, 64, 80, 120, 128, 192, 576}) {
    for (const int value_bits : {2, 3, 4}) {
      for (const int key_bits : {2, 3, 4}) {
        all.push_back(
            make_format(KeyCodec::mse, key_bits, dim, ValueCodec::grouped, value_bits, dim, 8));
      }
      all.push_back(
          make_format(KeyCodec::inner_product, 3, dim, ValueCodec::codebook, value_bits, dim, dim));
      all.push_back(
          make_format(KeyCodec::inner_product, 4, dim, ValueCodec::grouped, value_bits, dim, dim));
      all.push_back(
          make_format(KeyCodec::float8, 8, dim, ValueCodec::codebook, value_bits, dim, dim));
    }
  }
  all.push_back(make_format(KeyCodec::mse, 3, 192, ValueCodec::grouped, 3, 128, 32));
  all.push_back(make_format(KeyCodec::inner_product, 4, 48, ValueCodec::codebook, 2, 112, 112));
  const std::size_t in_host_order = all.size();
  for (std::size_t i = 0; i < in_host_order; ++i) {
    TileFormat format = all[i];
    format.order = TileOrder::mma;
    if (format.key_dim % 16 == 0 && format.value_dim % 16 == 0) {
      all.push_back(format);
    }
  }
  const std::size_t of_64_tokens = all.size();
  // Every format once, in tiles of 16 or of 32 tokens.
  for (std::size_t i = 0; i < of_64_tokens; ++i) {
    TileFormat format = all[i];
    format.tile_tokens = i % 2 == 0 ? 16 : 32;
    all.push_back(format);
  }
  return all;
}

/// First bytes of all fp16 numbers of the tile's slots [first, end).
std::vector<std::size_t> half_bytes(const TileFormat& format, std::size_t first, std::size_t end) {
  std::vector<std::size_t> all;
  for (std::size_t token = first; token < end; ++token) {
    if (format.key_codec != KeyCodec::float8) {
      all.push_back(format.key_scale_byte(token));
    }
    if (format.key_codec == KeyCodec::inner_product) {
      all.push_back(format.residual_scale_byte(token));
    }
    for (std::size_t group = 0; group < format.value_groups(); ++group) {
      all.push_back(format.value_scale_byte(token, group));
      if (format.value_codec == ValueCodec::grouped) {
        all.push_back(format.value_zero_byte(token, group));
      }
    }
  }
  return all;
}

static_assert(TileFormat::version == 1);
static_assert(TileFormat{}.slot_bytes() == 118);
static_assert(make_format(KeyCodec::mse, 3, 128, ValueCodec::grouped, 4, 128, 32).slot_bytes() ==
              130);
static_assert(make_format(KeyCodec::mse, 4, 128, ValueCodec::grouped, 4, 128, 128).slot_bytes() ==
              134);
static_assert(make_format(KeyCodec::mse, 3, 128, ValueCodec::grouped, 2, 128, 128).slot_bytes() ==
              86);
static_assert(make_format(KeyCodec::mse, 2, 128, ValueCodec::grouped, 2, 128, 128).slot_bytes() ==
              70);
static_assert(make_format(KeyCodec::mse, 3, 128, ValueCodec::codebook, 3, 128, 128).slot_bytes() ==
              100);
static_assert(
    make_format(KeyCodec::float8, 8, 128, ValueCodec::grouped, 4, 128, 128).slot_bytes() == 196);

}  // namespace

TEST_CASE("every bit of the codes has a place of its own, and all places together fill the tile") {
  for (const TileFormat& format : formats()) {
    std::vector<int> owners(format.bytes() * 8);
    bool inside = true;
    const auto take = [&](TileBit at) {
      if (at.byte < format.bytes()) {
        ++owners[at.byte * 8 + at.bit];
      } else {
        inside = false;
      }
    };
    for (std::size_t token = 0; token < format.tokens(); ++token) {
      for (std::size_t d = 0; d < static_cast<std::size_t>(format.key_dim); ++d) {
        for (unsigned bit = 0; bit < static_cast<unsigned>(format.key_code_bits()); ++bit) {
          take(format.key_code_bit(token, d, bit));
        }
        if (format.key_codec == KeyCodec::inner_product) {
          take(format.key_sign_bit(token, d));
        }
      }
      for (std::size_t d = 0; d < static_cast<std::size_t>(format.value_dim); ++d) {
        for (unsigned bit = 0; bit < static_cast<unsigned>(format.value_bits); ++bit) {
          take(format.value_code_bit(token, d, bit));
        }
      }
    }
    for (const std::size_t byte : half_bytes(format, 0, format.tokens())) {
      for (unsigned bit = 0; bit < 16; ++bit) {
        take({byte + bit / 8, bit % 8});
      }
    }
    bool once = true;
    for (const int count : owners) {
      once = once && count == 1;
    }
    CHECK(inside);
    CHECK(once);
    CHECK(format.bytes() % format.tokens() == 0);
    TileFormat whole = format;
    whole.tile_tokens = 64;
    CHECK(64 / format.tokens() * format.bytes() == whole.bytes());
  }
}

TEST_CASE("words read and write what the bit maps say") {
  const CounterRng rng(5, 0);
  for (const TileFormat& format : formats()) {
    std::vector<std::byte> tile(format.bytes());
    for (std::size_t i = 0; i < tile.size(); ++i) {
      tile[i] = static_cast<std::byte>(rng.bits32(i));
    }
    const auto* bytes = reinterpret_cast<const unsigned char*>(tile.data());
    std::vector<std::byte> copy(format.bytes());
    auto* out = reinterpret_cast<unsigned char*>(copy.data());
    bool same = true;
    const auto compare = [&](const detail::KeySection& section, const auto& read) {
      for (std::size_t group = 0; group < section.dim / 8; ++group) {
        for (std::size_t token = 0; token < format.tokens(); ++token) {
          const std::uint32_t nibbles = section.read_nibbles(bytes, group, token);
          for (std::size_t n = 0; n < 8; ++n) {
            const std::uint32_t code =
                (nibbles >> detail::nibble_shift(n)) & ((1U << section.width) - 1U);
            same = same && code == read(token, 8 * group + n);
          }
          section.write_nibbles(out, group, token, nibbles);
        }
      }
    };
    if (format.key_codec != KeyCodec::float8) {
      compare(detail::key_codes(format), [&](std::size_t token, std::size_t d) {
        return read_key_code(format, tile.data(), token, d);
      });
    }
    if (format.key_codec == KeyCodec::inner_product) {
      compare(detail::key_signs(format), [&](std::size_t token, std::size_t d) {
        return read_key_sign(format, tile.data(), token, d);
      });
    }
    const detail::ValueSection values = detail::value_codes(format);
    for (std::size_t group = 0; group < format.tokens() / 8; ++group) {
      for (std::size_t d = 0; d < values.dim; ++d) {
        const std::uint32_t nibbles = values.read_nibbles(bytes, group, d);
        for (std::size_t t = 0; t < 8; ++t) {
          same = same && ((nibbles >> (4 * t)) & 15U) ==
                             read_value_code(format, tile.data(), 8 * group + t, d);
        }
        values.write_nibbles(out, group, d, nibbles);
      }
    }
    CHECK(same);
    // Written into zeros, all code bytes are back.
    for (const std::size_t byte : half_bytes(format, 0, format.tokens())) {
      copy[byte] = tile[byte];
      copy[byte + 1] = tile[byte + 1];
    }
    if (format.key_codec == KeyCodec::float8) {
      const std::size_t tokens = format.tokens();
      for (std::size_t i = 0; i < tokens * static_cast<std::size_t>(format.key_dim); ++i) {
        const std::size_t byte = format.key_code_bit(i % tokens, i / tokens, 0).byte;
        copy[byte] = tile[byte];
      }
    }
    CHECK(same);
    CHECK(tile == copy);
  }
}

TEST_CASE("clearing slots touches no other slot") {
  const CounterRng rng(6, 0);
  for (const TileFormat& format : formats()) {
    struct Range {
      std::size_t first;
      std::size_t end;
    };
    const std::size_t tokens = format.tokens();
    for (const Range range :
         {Range{0, tokens}, Range{1, tokens}, Range{0, 1}, Range{7, 9},
          Range{tokens / 4, tokens / 2 + 3}, Range{tokens - 1, tokens}, Range{5, 5}}) {
      std::vector<std::byte> tile(format.bytes());
      for (std::size_t i = 0; i < tile.size(); ++i) {
        tile[i] = static_cast<std::byte>(rng.bits32(i));
      }
      const std::vector<std::byte> before = tile;
      detail::clear_slots(format, range.first, range.end,
                          reinterpret_cast<unsigned char*>(tile.data()));
      bool good = true;
      for (std::size_t token = 0; token < format.tokens(); ++token) {
        const bool cleared = token >= range.first && token < range.end;
        for (std::size_t d = 0; d < static_cast<std::size_t>(format.key_dim); ++d) {
          const unsigned code = read_key_code(format, tile.data(), token, d);
          good = good && code == (cleared ? 0U : read_key_code(format, before.data(), token, d));
          if (format.key_codec == KeyCodec::inner_product) {
            const unsigned sign = read_key_sign(format, tile.data(), token, d);
            good = good && sign == (cleared ? 0U : read_key_sign(format, before.data(), token, d));
          }
        }
        for (std::size_t d = 0; d < static_cast<std::size_t>(format.value_dim); ++d) {
          const unsigned code = read_value_code(format, tile.data(), token, d);
          good = good && code == (cleared ? 0U : read_value_code(format, before.data(), token, d));
        }
        for (const std::size_t byte : half_bytes(format, token, token + 1)) {
          good = good && tile[byte] == (cleared ? std::byte{0} : before[byte]);
          good = good && tile[byte + 1] == (cleared ? std::byte{0} : before[byte + 1]);
        }
      }
      CHECK(good);
    }
  }
}

TEST_CASE("formats outside the domain are refused with field and value") {
  const auto message = [](const TileFormat& format) {
    try {
      require_supported(format);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::unsupported);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  TileFormat format;
  CHECK(message(format) == "accepted");
  format.key_dim = 100;
  CHECK(message(format) == "TileFormat: key_dim is 100, expected a multiple of 8 from 16 to 576");
  format = {};
  format.value_dim = 584;
  CHECK(message(format) == "TileFormat: value_dim is 584, expected a multiple of 8 from 16 to 576");
  format = {};
  format.key_bits = 5;
  CHECK(message(format) == "TileFormat: key_bits is 5, expected 2, 3 or 4 for mse keys");
  format = {};
  format.key_codec = KeyCodec::inner_product;
  format.key_bits = 2;
  CHECK(message(format) == "TileFormat: key_bits is 2, expected 3 or 4 for inner_product keys");
  format = {};
  format.value_group = 48;
  CHECK(message(format) ==
        "TileFormat: value_group is 48, expected a multiple of 8 that divides value_dim = 128");
  format = {};
  format.value_codec = ValueCodec::codebook;
  format.value_group = 32;
  CHECK(message(format) ==
        "TileFormat: value_group is 32, expected value_dim = 128 for codebook values");
  for (const int tokens : {0, 8, 48, 128, -16}) {
    format = {};
    format.tile_tokens = tokens;
    CHECK(message(format) ==
          "TileFormat: tile_tokens is " + std::to_string(tokens) + ", expected 16, 32 or 64");
  }
  format = {};
  format.tile_tokens = 32;
  CHECK(message(format) == "accepted");
  format.key_centring = KeyCentring::tile_mean;
  CHECK(message(format) ==
        "TileFormat: tile_tokens is 32, expected 64 with key_centring tile_mean");
  format = {};
  format.order = TileOrder::mma;
  format.key_dim = 120;
  CHECK(message(format) == "TileFormat: key_dim is 120, expected a multiple of 16 in mma order");
  format = {};
  format.order = TileOrder::mma;
  format.value_dim = 72;
  format.value_group = 72;
  CHECK(message(format) == "TileFormat: value_dim is 72, expected a multiple of 16 in mma order");
}
