// The orders of a tile: golden places and bytes, and rearranging without loss.

#include <turboquant/base/random.hpp>
#include <turboquant/device/runtime.hpp>
#include <turboquant/device/tile_decoder.hpp>
#include <turboquant/device/transcode.hpp>

#include <doctest/doctest.h>
#include <support/error_of.hpp>
#include <support/fnv.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

using namespace turboquant;

namespace {

using Exec = Kokkos::DefaultHostExecutionSpace;
using Bytes = Kokkos::View<std::byte*, Kokkos::HostSpace>;
using ConstBytes = Kokkos::View<const std::byte*, Kokkos::HostSpace>;

TileFormat in_order(TileFormat format, TileOrder order) {
  format.order = order;
  return format;
}

std::vector<TileFormat> formats() {
  std::vector<TileFormat> all;
  for (const int dim : {16, 48, 64, 80, 96, 112, 128, 192, 256, 576}) {
    for (const int bits : {2, 3, 4}) {
      TileFormat format;
      format.key_bits = bits;
      format.key_dim = dim;
      format.value_bits = bits == 4 ? 2 : bits + 1;
      format.value_dim = dim;
      format.value_group = 16;
      all.push_back(format);
      format.key_codec = bits == 2 ? KeyCodec::float8 : KeyCodec::inner_product;
      format.key_bits = bits == 2 ? 8 : bits;
      format.value_codec = ValueCodec::codebook;
      format.value_group = dim;
      all.push_back(format);
    }
  }
  TileFormat different;
  different.key_dim = 192;
  all.push_back(different);
  return all;
}

/// Bytes that are all different enough, several tiles.
std::vector<std::byte> random_bytes(std::size_t count) {
  const CounterRng rng(11, 3);
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>(rng.bits32(i));
  }
  return bytes;
}

void transcode(const TileFormat& from, const std::vector<std::byte>& tiles, const TileFormat& to,
               std::vector<std::byte>& out) {
  const Exec exec;
  transcode_tiles(exec, from, ConstBytes(tiles.data(), tiles.size()), to,
                  Bytes(out.data(), out.size()));
  exec.fence();
}

// What the operands of an 8 x 8 matrix unit ask for, spelled out for the default format.
constexpr TileFormat mma_default = [] {
  TileFormat format;
  format.order = TileOrder::mma;
  return format;
}();
static_assert(mma_default.sub_tile_tokens() == 32);
static_assert(mma_default.sub_tile_bytes() == 32 * 118);
static_assert(mma_default.bytes() == TileFormat{}.bytes());
// Token 0, dim 0: lane 0, word 0, nibble 0. Token 1 is lane 4; dim 32 is lane 1.
static_assert(mma_default.key_code_bit(0, 0, 0) == TileBit{0, 0});
static_assert(mma_default.key_code_bit(1, 0, 0) == TileBit{4 * 16, 0});
static_assert(mma_default.key_code_bit(0, 32, 0) == TileBit{16, 0});
// Dims 8 to 15 are the second selector: the first word of the second plane, 512 bytes on.
static_assert(mma_default.key_code_bit(0, 8, 2) == TileBit{512, 2});
// Dims 24 to 31 are the fourth selector, whose bits lie in bit 3 of the nibbles of the three
// planes.
static_assert(mma_default.key_code_bit(0, 24, 0) == TileBit{0, 3});
static_assert(mma_default.key_code_bit(0, 25, 1) == TileBit{512, 7});
static_assert(mma_default.key_code_bit(0, 24, 2) == TileBit{1024, 3});
// Token 8 is the second word of the lane, token 32 the second sub-tile.
static_assert(mma_default.key_code_bit(8, 0, 0) == TileBit{4, 0});
static_assert(mma_default.key_code_bit(32, 0, 0) == TileBit{32 * 118, 0});
// Scales: the four tokens of a lane's rows lie together.
static_assert(mma_default.key_scale_byte(0) == 32 * 48);
static_assert(mma_default.key_scale_byte(8) == 32 * 48 + 2);
static_assert(mma_default.key_scale_byte(1) == 32 * 48 + 8);
static_assert(mma_default.value_scale_byte(1) == 32 * 50 + 2);
static_assert(mma_default.value_scale_byte(8) == 32 * 50 + 4);
static_assert(mma_default.value_scale_byte(2) == 32 * 50 + 16);
static_assert(mma_default.value_zero_byte(0) == 32 * 52);
// Values: a byte is one token, two dims; tokens 0, 8, 1, 9 are bytes 0 to 3 of lane 0.
static_assert(mma_default.value_code_bit(0, 0, 0) == TileBit{32 * 54, 0});
static_assert(mma_default.value_code_bit(0, 1, 0) == TileBit{32 * 54, 4});
static_assert(mma_default.value_code_bit(8, 0, 0) == TileBit{32 * 54 + 1, 0});
static_assert(mma_default.value_code_bit(1, 0, 3) == TileBit{32 * 54 + 2, 3});
static_assert(mma_default.value_code_bit(2, 0, 0) == TileBit{32 * 54 + 16, 0});
static_assert(mma_default.value_code_bit(0, 2, 0) == TileBit{32 * 54 + 64, 0});
static_assert(mma_default.value_code_bit(0, 16, 0) == TileBit{32 * 54 + 4, 0});

}  // namespace

TEST_CASE("host order to mma order and back gives the same bytes, and the same codes between") {
  for (const TileFormat& host : formats()) {
    CAPTURE(host.key_dim);
    CAPTURE(host.key_bits);
    CAPTURE(static_cast<int>(host.key_codec));
    const TileFormat mma = in_order(host, TileOrder::mma);
    const std::vector<std::byte> tiles = random_bytes(3 * host.bytes());
    std::vector<std::byte> rearranged(tiles.size(), std::byte{0xAA});
    std::vector<std::byte> back(tiles.size(), std::byte{0x55});
    transcode(host, tiles, mma, rearranged);
    transcode(mma, rearranged, host, back);
    CHECK(tiles == back);
    CHECK(tiles != rearranged);
    bool same = true;
    const std::size_t second = host.bytes();
    for (std::size_t token = 0; token < 64; ++token) {
      for (std::size_t d = 0; d < static_cast<std::size_t>(host.key_dim); ++d) {
        same = same && read_key_code(host, tiles.data() + second, token, d) ==
                           read_key_code(mma, rearranged.data() + second, token, d);
      }
      for (std::size_t d = 0; d < static_cast<std::size_t>(host.value_dim); ++d) {
        same = same && read_value_code(host, tiles.data() + second, token, d) ==
                           read_value_code(mma, rearranged.data() + second, token, d);
      }
    }
    CHECK(same);
  }
}

TEST_CASE("the bytes of version 1 in both orders") {
  // FNV-1a of tiles whose bytes in the other order are those of the generator: changes when any
  // place does.
  test::Fnv in_host_order;
  test::Fnv in_mma_order;
  for (const TileFormat& host : formats()) {
    const TileFormat mma = in_order(host, TileOrder::mma);
    const std::vector<std::byte> tile = random_bytes(host.bytes());
    std::vector<std::byte> rearranged(tile.size());
    transcode(mma, tile, host, rearranged);
    in_host_order.add(std::span<const std::byte>(rearranged));
    transcode(host, tile, mma, rearranged);
    in_mma_order.add(std::span<const std::byte>(rearranged));
  }
  CHECK(in_host_order.value() == 5367906960995234702U);
  CHECK(in_mma_order.value() == 9997304606374124913U);
}

TEST_CASE("transcoding refuses what does not fit") {
  const TileFormat host;
  const TileFormat mma = in_order(host, TileOrder::mma);
  const std::vector<std::byte> tiles = random_bytes(2 * host.bytes());
  std::vector<std::byte> out(tiles.size(), std::byte{7});
  using test::error_of;
  using test::mentions;
  const auto run = [&](const TileFormat& from, const TileFormat& to, std::size_t in_bytes,
                       std::byte* target, std::size_t out_bytes) {
    return [=, &tiles] {
      transcode_tiles(Exec(), from, ConstBytes(tiles.data(), in_bytes), to,
                      Bytes(target, out_bytes));
    };
  };
  const std::size_t bytes = tiles.size();
  TileFormat other = mma;
  other.key_bits = 2;
  CHECK(mentions(error_of(ErrorCode::invalid_argument, run(host, other, bytes, out.data(), bytes)),
                 "differ in order and tile_tokens only"));
  CHECK(mentions(error_of(ErrorCode::shape_mismatch, run(host, mma, bytes, out.data(), bytes - 1)),
                 "out.extent(0) is 15103, expected tiles.extent(0) = 15104"));
  CHECK(mentions(
      error_of(ErrorCode::shape_mismatch, run(host, mma, bytes - 1, out.data(), bytes - 1)),
      "a multiple of the bytes of 64 tokens = 7552"));
  other = mma;
  other.key_dim = 120;
  error_of(ErrorCode::unsupported, run(other, other, bytes, out.data(), bytes));
  error_of(ErrorCode::invalid_argument,
           run(host, mma, bytes, const_cast<std::byte*>(tiles.data()) + 64, bytes));
  error_of(ErrorCode::invalid_argument, run(host, mma, host.bytes(), out.data() + 2, host.bytes()));
  CHECK(out == std::vector<std::byte>(bytes, std::byte{7}));
  CHECK_NOTHROW(run(host, mma, 0, nullptr, 0)());
}
