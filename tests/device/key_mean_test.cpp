// Tiles with a key mean: what the mean is, that everything else is the tile of the centred keys,
// and what it is good for.

#include <turboquant/base/random.hpp>
#include <turboquant/device/encode_tiles.hpp>
#include <turboquant/device/tile_decoder.hpp>
#include <turboquant/device/transcode.hpp>

#include <doctest/doctest.h>
#include <support/error_of.hpp>
#include <support/host_kernels.hpp>
#include <support/tile_inputs.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace turboquant;

namespace {

using Exec = Kokkos::DefaultHostExecutionSpace;
using Memory = Kokkos::HostSpace;
using Bytes = std::vector<std::byte>;

TileCodecOptions centred(TileCodecOptions options) {
  options.format.key_centring = KeyCentring::tile_mean;
  return options;
}

TileCodecOptions in_order(TileCodecOptions options, TileOrder order) {
  options.format.order = order;
  return options;
}

// 2 fp16 bytes a dimension and tile, up to 64 bytes.
constexpr TileFormat format_with(int key_dim, KeyCentring centring, TileOrder order) {
  TileFormat format;
  format.key_dim = key_dim;
  format.order = order;
  format.key_centring = centring;
  return format;
}
static_assert(format_with(128, KeyCentring::tile_mean, TileOrder::host).slot_bytes() == 122);
static_assert(format_with(128, KeyCentring::tile_mean, TileOrder::mma).bytes() == 64 * 122);
static_assert(format_with(128, KeyCentring::tile_mean, TileOrder::mma).sub_tile_bytes() ==
              format_with(128, KeyCentring::none, TileOrder::mma).sub_tile_bytes());
static_assert(format_with(128, KeyCentring::tile_mean, TileOrder::mma).key_mean_offset() ==
              64 * 118);
static_assert(format_with(40, KeyCentring::tile_mean, TileOrder::host).key_mean_bytes() == 128);
static_assert(format_with(576, KeyCentring::tile_mean, TileOrder::host).key_mean_bytes() == 1152);
static_assert(format_with(128, KeyCentring::none, TileOrder::host).key_mean_bytes() == 0);
static_assert(!same_content(format_with(128, KeyCentring::tile_mean, TileOrder::host),
                            format_with(128, KeyCentring::none, TileOrder::host)));

std::vector<TileCodecOptions> all_options() {
  using test::make_options;
  std::vector<TileCodecOptions> all;
  for (const int dim : {16, 40, 64, 80, 96, 128, 192, 256, 576}) {
    const int bits = 2 + dim / 16 % 3;
    all.push_back(make_options(KeyCodec::mse, bits, dim, ValueCodec::grouped, bits, dim,
                               dim % 32 == 0 ? 32 : 8));
    all.push_back(make_options(KeyCodec::inner_product, 3, dim, ValueCodec::codebook, 3, dim, dim));
    all.push_back(make_options(KeyCodec::float8, 8, dim, ValueCodec::grouped, 4, dim, dim));
  }
  all.push_back(make_options(KeyCodec::mse, 3, 128, ValueCodec::grouped, 4, 128, 128));
  const std::size_t in_host_order = all.size();
  for (std::size_t i = 0; i < in_host_order; ++i) {
    if (all[i].format.key_dim % 16 == 0) {
      all.push_back(in_order(all[i], TileOrder::mma));
    }
  }
  return all;
}

std::vector<HostArch> arches(TileOrder order) {
  std::vector<HostArch> found{HostArch::portable};
  for (const HostArch arch : {HostArch::avx2, HostArch::avx512}) {
    if (order == TileOrder::host && host_arch_available(arch)) {
      found.push_back(arch);
    }
  }
  return found;
}

struct Piece {
  int first_slot = 0;
  int count = 64;
  int clear_from = 0;
};

/// Encodes one piece of one tile of one head from rows 0 on.
template <class T>
void encode(const TileCodec<Memory>& codec, const T* keys, const float* values, const Piece& piece,
            Bytes& tile, HostArch arch = HostArch::automatic) {
  Kokkos::View<EncodeJob*, Memory> jobs("jobs", 1);
  jobs(0).keys = dense_rows(keys, 1, codec.format().key_dim);
  jobs(0).values = dense_rows(values, 1, codec.format().value_dim);
  jobs(0).tile = tile.data();
  jobs(0).first_slot = piece.first_slot;
  jobs(0).count = piece.count;
  jobs(0).clear_from = piece.clear_from;
  encode_tiles(Exec(), codec, 1, Kokkos::View<const EncodeJob*, Memory>(jobs), arch);
  Exec().fence();
}

Bytes encode_tile(const TileCodecOptions& options, const std::vector<float>& keys,
                  const std::vector<float>& values, int count = 64,
                  HostArch arch = HostArch::portable) {
  const TileCodec<Memory> codec(options);
  Bytes tile(codec.format().bytes(), std::byte{0xFF});
  encode(codec, keys.data(), values.data(), {0, count, 0}, tile, arch);
  return tile;
}

/// The stored mean.
std::vector<float> mean_of(const TileFormat& format, const Bytes& tile) {
  std::vector<float> mean(static_cast<std::size_t>(format.key_dim));
  for (std::size_t d = 0; d < mean.size(); ++d) {
    mean[d] = read_tile_half(tile.data(), format.key_mean_offset() + 2 * d);
  }
  return mean;
}

/// Keys minus the mean, but for those that this would make longer.
std::vector<float> minus(std::vector<float> keys, const TileFormat& format,
                         const std::vector<float>& mean, std::vector<bool>* kept = nullptr) {
  const std::size_t dim = mean.size();
  for (std::size_t token = 0; token < keys.size() / dim; ++token) {
    double longer = 0;  // |x - m|^2 - |x|^2
    for (std::size_t d = 0; d < dim; ++d) {
      const auto x = static_cast<double>(keys[token * dim + d]);
      const auto m = static_cast<double>(mean[d]);
      longer += m * (m - 2 * x);
    }
    const bool keep = format.key_codec != KeyCodec::float8 && longer > 0;
    if (kept != nullptr) {
      kept->push_back(keep);
    }
    for (std::size_t d = 0; d < dim && !keep; ++d) {
      float& x = keys[token * dim + d];
      x = mean[d] == 0 ? x : x - mean[d];
    }
  }
  return keys;
}

float normal(const CounterRng& rng, std::uint64_t i) {
  const double radius = std::sqrt(-2 * std::log(rng.uniform(2 * i)));
  return static_cast<float>(radius * std::cos(6.283185307179586 * rng.uniform(2 * i + 1)));
}

std::vector<float> normals(std::size_t count, std::uint64_t stream) {
  const CounterRng rng(23, stream);
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = normal(rng, i);
  }
  return out;
}

std::vector<float> decoded_keys(const TileCodec<Memory>& codec, const Bytes& tile,
                                std::size_t count = 64) {
  const auto dim = static_cast<std::size_t>(codec.format().key_dim);
  std::vector<float> keys(count * dim);
  std::vector<float> scratch(2 * dim);
  for (std::size_t token = 0; token < count; ++token) {
    decode_key(codec.tables(), tile.data(), token, keys.data() + token * dim, scratch.data());
  }
  return keys;
}

}  // namespace

TEST_CASE("a tile with a key mean is the tile of the centred keys, and the mean behind it") {
  for (const TileCodecOptions& options : all_options()) {
    const TileFormat& format = options.format;
    CAPTURE(format.key_dim);
    CAPTURE(static_cast<int>(format.key_codec));
    CAPTURE(static_cast<int>(format.order));
    const TileFormat with = centred(options).format;
    CHECK(with.bytes() == format.bytes() + with.key_mean_bytes());
    CHECK(with.bytes() % 64 == 0);
    CHECK(with.bytes() == 64 * with.slot_bytes());
    const auto dim = static_cast<std::size_t>(format.key_dim);
    std::vector<float> keys = test::hard_rows(64, dim, 0);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      // One in eight tokens has the opposite bias.
      keys[i] += static_cast<float>(i % dim % 5) * (i / dim % 8 == 2 ? -30.0F : 30.0F);
    }
    const std::vector<float> values =
        test::hard_rows(64, static_cast<std::size_t>(format.value_dim), 1);
    for (const int count : {64, 33, 1}) {
      const Bytes tile = encode_tile(centred(options), keys, values, count);
      std::vector<bool> kept;
      Bytes expected =
          encode_tile(options, minus(keys, with, mean_of(with, tile), &kept), values, count);
      int marked = 0;
      for (std::size_t token = 0; token < static_cast<std::size_t>(count); ++token) {
        if (kept[token]) {
          expected[format.key_scale_byte(token) + 1] |= std::byte{0x80};
          ++marked;
        }
      }
      CHECK((marked >= 4) == (count > 30 && format.key_codec != KeyCodec::float8));
      CHECK(marked < 20);
      CHECK(std::equal(expected.begin(), expected.end(), tile.begin()));
      CHECK(
          std::all_of(tile.begin() + static_cast<std::ptrdiff_t>(with.key_mean_offset() + 2 * dim),
                      tile.end(), [](std::byte byte) { return byte == std::byte{0}; }));
      for (const HostArch arch : arches(format.order)) {
        CAPTURE(std::string(to_string(arch)));
        CHECK(encode_tile(centred(options), keys, values, count, arch) == tile);
      }
    }
    // One lane, as a device encodes what does not fill a tile.
    const TileCodec<Memory> codec(centred(options));
    Bytes tile(with.bytes(), std::byte{0xFF});
    detail::EncodeArguments in;
    in.keys = dense_rows(keys.data(), 1, format.key_dim);
    in.values = dense_rows(values.data(), 1, format.value_dim);
    in.count = 64;
    in.tile = tile.data();
    detail::encode_slots<detail::PortableEncodeSteps<1>>(codec.tables(), in);
    CHECK(tile == encode_tile(centred(options), keys, values));
  }
}

TEST_CASE("the mean is the median of the means of eight groups of tokens") {
  const TileCodecOptions options = centred(TileCodecOptions{});
  for (const int count : {1, 2, 7, 8, 9, 13, 24, 63, 64}) {
    CAPTURE(count);
    std::vector<float> keys = test::hard_rows(64, 128, 2);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      keys[i] += 7.5F;
    }
    const std::vector<float> mean =
        mean_of(options.format, encode_tile(options, keys, keys, count));
    double worst = 0;
    for (std::size_t d = 0; d < 128; ++d) {
      std::vector<double> groups;
      for (int group = 0; group < std::min(count, 8); ++group) {
        double sum = 0;
        int tokens = 0;
        for (int token = group; token < count; token += 8, ++tokens) {
          sum += static_cast<double>(keys[static_cast<std::size_t>(token) * 128 + d]);
        }
        groups.push_back(std::clamp(sum / tokens, -65504.0, 65504.0));
      }
      std::sort(groups.begin(), groups.end());
      const double expected = (groups[(groups.size() - 1) / 2] + groups[groups.size() / 2]) / 2;
      const double error = std::abs(static_cast<double>(mean[d]) - expected);
      worst = std::max(worst, error / std::max(std::abs(expected), 1.0));
    }
    CHECK(worst <= 0x1p-11 + 1e-6);
  }
}

TEST_CASE("half-precision rows give the bytes of the same rows in float") {
  const TileCodec<Memory> codec(centred(TileCodecOptions{}));
  const std::vector<float> values = test::hard_rows(64, 128, 5);
  const auto check = [&](auto type) {
    using Half = decltype(type);
    std::vector<Half> halves;
    std::vector<float> same;
    for (const float x : test::hard_rows(64, 128, 4)) {
      halves.push_back(Half::from_float(std::fmin(std::fmax(x + 50, -60000.0F), 60000.0F)));
      same.push_back(halves.back().to_float());
    }
    for (const HostArch arch : arches(TileOrder::host)) {
      Bytes a(codec.format().bytes());
      Bytes b(codec.format().bytes());
      encode(codec, halves.data(), values.data(), {0, 64, 0}, a, arch);
      encode(codec, same.data(), values.data(), {0, 64, 0}, b, arch);
      CHECK(a == b);
    }
  };
  check(float16{});
  check(bfloat16{});
}

TEST_CASE(
    "tokens that join a tile use the mean that is there, and the first ones keep their bits") {
  for (const TileOrder order : {TileOrder::host, TileOrder::mma}) {
    const TileCodecOptions options = centred(in_order(TileCodecOptions{}, order));
    const TileCodec<Memory> codec(options);
    const TileFormat& format = codec.format();
    std::vector<float> keys = test::hard_rows(64, 128, 6);
    for (float& x : keys) {
      x += 20;
    }
    const std::vector<float> values = test::hard_rows(64, 128, 7);
    for (const HostArch arch : arches(order)) {
      CAPTURE(std::string(to_string(arch)));
      Bytes begun(format.bytes(), std::byte{0xFF});
      encode(codec, keys.data(), values.data(), {0, 20, 0}, begun, arch);
      Bytes tile = begun;
      // In any pieces.
      Bytes other = begun;
      encode(codec, keys.data() + 20 * 128, values.data() + 20 * 128, {20, 44, 20}, tile, arch);
      for (int slot = 20; slot < 64; slot += 11) {
        encode(codec, keys.data() + slot * 128, values.data() + slot * 128, {slot, 11, 64}, other,
               arch);
      }
      CHECK(tile == other);
      CHECK(mean_of(format, tile) == mean_of(format, begun));
      std::vector<bool> kept;
      Bytes plain = encode_tile(in_order(TileCodecOptions{}, order),
                                minus(keys, format, mean_of(format, begun), &kept), values);
      for (std::size_t token = 0; token < 64; ++token) {
        plain[format.key_scale_byte(token) + 1] |= kept[token] ? std::byte{0x80} : std::byte{0};
      }
      CHECK(std::equal(plain.begin(), plain.end(), tile.begin()));
      // A truncated tile keeps its mean; an empty one loses it.
      detail::clear_slots(format, 20, 64, reinterpret_cast<unsigned char*>(tile.data()));
      CHECK(tile == begun);
      encode(codec, keys.data(), values.data(), {0, 0, 0}, tile, arch);
      CHECK(tile == Bytes(tile.size(), std::byte{0}));
      // A tile may begin with any slot.
      encode(codec, keys.data() + 128, values.data() + 128, {1, 63, 0}, tile, arch);
      CHECK(mean_of(format, tile) != std::vector<float>(static_cast<std::size_t>(format.key_dim)));
      const auto back = decoded_keys(codec, tile);
      CHECK(std::abs(back[128 * 17] - keys[128 * 17]) < 2);
    }
  }
}

TEST_CASE("both orders hold the same mean, and rearranging loses nothing") {
  for (const TileCodecOptions& options : all_options()) {
    if (options.format.order != TileOrder::mma) {
      continue;
    }
    const TileFormat mma = centred(options).format;
    TileFormat host = mma;
    host.order = TileOrder::host;
    const auto dim = static_cast<std::size_t>(mma.key_dim);
    const auto keys = test::hard_rows(64, dim, 8);
    const auto values = test::hard_rows(64, static_cast<std::size_t>(mma.value_dim), 9);
    const Bytes tile = encode_tile(centred(options), keys, values);
    Bytes rearranged(tile.size(), std::byte{0xAA});
    Bytes back(tile.size(), std::byte{0x55});
    const auto transcode = [](const TileFormat& from, const Bytes& in, const TileFormat& to,
                              Bytes& out) {
      transcode_tiles(Exec(), from, Kokkos::View<const std::byte*, Memory>(in.data(), in.size()),
                      to, Kokkos::View<std::byte*, Memory>(out.data(), out.size()));
      Exec().fence();
    };
    transcode(mma, tile, host, rearranged);
    transcode(host, rearranged, mma, back);
    CHECK(tile == back);
    CHECK(rearranged == encode_tile(centred(in_order(options, TileOrder::host)), keys, values));
    TileFormat without = host;
    without.key_centring = KeyCentring::none;
    test::error_of(ErrorCode::invalid_argument, [&] { transcode(mma, tile, without, rearranged); });
  }
}

TEST_CASE("a format with an unknown centring is refused") {
  TileCodecOptions options;
  options.format.key_centring = static_cast<KeyCentring>(7);
  CHECK(test::error_of(ErrorCode::unsupported, [&] { TileCodec<Memory> codec(options); }) ==
        "TileFormat: key_centring is 7, expected none or tile_mean");
}

TEST_CASE("outliers of any size do not disturb the other tokens of their tile") {
  const TileCodec<Memory> codec(centred(TileCodecOptions{}));
  const std::vector<float> values(64 * 128, 1.0F);
  const auto worst_of = [&](const std::vector<float>& keys, const std::vector<std::size_t>& skip) {
    Bytes tile(codec.format().bytes());
    encode(codec, keys.data(), values.data(), {0, 64, 0}, tile);
    const auto back = decoded_keys(codec, tile);
    double worst = 0;
    for (std::size_t token = 0; token < 64; ++token) {
      double squared = 0;
      for (std::size_t d = 0; d < 128; ++d) {
        const double error =
            static_cast<double>(back[token * 128 + d]) - static_cast<double>(keys[token * 128 + d]);
        squared += error * error;
      }
      if (std::find(skip.begin(), skip.end(), token) == skip.end()) {
        worst = std::max(worst, squared / 128);
      }
    }
    return worst;
  };
  std::vector<float> keys = normals(64 * 128, 1);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] += 30;
  }
  const double without = worst_of(keys, {});
  CHECK(without < 0.15);
  for (const float size : {1e3F, 1e30F, -3e38F}) {
    std::vector<float> outliers = keys;
    for (const std::size_t token : {0U, 9U, 61U}) {
      std::fill_n(outliers.begin() + static_cast<std::ptrdiff_t>(token * 128), 128, size);
    }
    CHECK(worst_of(outliers, {0, 9, 61}) < 1.5 * without);
  }
}

TEST_CASE("a key that its mean would make longer comes back as without means, zeros as zeros") {
  const std::vector<float> values(64 * 128, 1.0F);
  for (const KeyCodec key_codec : {KeyCodec::mse, KeyCodec::inner_product}) {
    TileCodecOptions options;
    options.format.key_codec = key_codec;
    std::vector<float> keys = normals(64 * 128, 7);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      keys[i] += 30;
    }
    // Like the key of an attention sink, whose logits matter most.
    for (std::size_t d = 0; d < 128; ++d) {
      keys[d] = static_cast<float>(d % 3) - 1.5F;
      keys[128 * 40 + d] = 0;
    }
    const TileCodec<Memory> with(centred(options));
    const TileCodec<Memory> without(options);
    const auto a = decoded_keys(with, encode_tile(centred(options), keys, values));
    const auto b = decoded_keys(without, encode_tile(options, keys, values));
    CHECK(std::equal(a.begin(), a.begin() + 128, b.begin()));
    CHECK(
        std::all_of(a.begin() + 128 * 40, a.begin() + 128 * 41, [](float x) { return x == 0.0F; }));
    CHECK(std::abs(a[128] - keys[128]) < 2);
  }
}

TEST_CASE("zero, constant, lone, tiny and huge keys") {
  const TileCodec<Memory> codec(centred(TileCodecOptions{}));
  const std::vector<float> values(64 * 128, 1.0F);
  const auto back = [&](const std::vector<float>& keys, int count) {
    Bytes tile(codec.format().bytes(), std::byte{0xFF});
    encode(codec, keys.data(), values.data(), {0, count, 0}, tile);
    return decoded_keys(codec, tile, static_cast<std::size_t>(count));
  };
  CHECK(back(std::vector<float>(64 * 128, 0.0F), 64) == std::vector<float>(64 * 128, 0.0F));
  // What fp16 holds comes back exactly where all tokens are alike.
  CHECK(back(std::vector<float>(64 * 128, -40.25F), 64) == std::vector<float>(64 * 128, -40.25F));
  CHECK(back(std::vector<float>(64 * 128, 1024.0F), 1) == std::vector<float>(128, 1024.0F));
  const auto close = [&](float size, int count, double bound) {
    std::vector<float> keys = normals(64 * 128, 2);
    for (float& x : keys) {
      x = size * (1 + x / 64);
    }
    const auto out = back(keys, count);
    double worst = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(out[i]) - static_cast<double>(keys[i])));
    }
    CHECK(worst <= bound * static_cast<double>(size));
  };
  for (const int count : {1, 17, 64}) {
    close(1.0F, count, 0.02);
    close(1e4F, count, 0.02);
    close(6e4F, count, 0.02);
    close(1e-3F, count, 0.02);
    // Beyond fp16 the rest stays in the key.
    close(1e5F, count, 0.3);
    close(1e-7F, count, 1.0);
  }
}

TEST_CASE(
    "keys with a bias of 30 times their spread: the logit error falls from over 10 to under 1") {
  constexpr std::size_t dim = 128;
  constexpr std::size_t tokens = 1024;
  constexpr std::size_t num_queries = 32;
  const auto worst_logit = [&](const TileCodecOptions& options, const std::vector<float>& keys) {
    const TileCodec<Memory> codec(options);
    const std::vector<float> queries = normals(num_queries * dim, 3);
    const std::vector<float> values(64 * dim, 1.0F);
    double worst = 0;
    for (std::size_t first = 0; first < tokens; first += 64) {
      Bytes tile(codec.format().bytes());
      encode(codec, keys.data() + first * dim, values.data(), {0, 64, 0}, tile);
      const auto back = decoded_keys(codec, tile);
      for (std::size_t token = 0; token < 64; ++token) {
        for (std::size_t query = 0; query < num_queries; ++query) {
          double error = 0;
          for (std::size_t d = 0; d < dim; ++d) {
            error += static_cast<double>(queries[query * dim + d]) *
                     (static_cast<double>(back[token * dim + d]) -
                      static_cast<double>(keys[(first + token) * dim + d]));
          }
          worst = std::max(worst, std::abs(error) / std::sqrt(static_cast<double>(dim)));
        }
      }
    }
    return worst;
  };
  TileCodecOptions options;  // 3 bits
  TileCodecOptions inner;
  inner.format.key_codec = KeyCodec::inner_product;
  const std::vector<float> bias = normals(dim, 4);
  const std::vector<float> spread = normals(tokens * dim, 5);
  SUBCASE("a constant bias") {
    std::vector<float> keys = spread;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      keys[i] += 30 * bias[i % dim];
    }
    CHECK(worst_logit(options, keys) > 10);
    CHECK(worst_logit(centred(options), keys) < 1);
    CHECK(worst_logit(inner, keys) > 10);
    CHECK(worst_logit(centred(inner), keys) < 2);  // one bit less in the codes
  }
  SUBCASE("a bias of the slow pairs of a rotary embedding, as in the Qwen2 family") {
    for (const double theta : {1e4, 1e6}) {
      // Pair i of 64 turns by theta^(-i/64) a token. The tile's mean catches what turns by less
      // than about 0.05 in 64 tokens: of 1e4 the last 12 pairs, of 1e6 the last 29.
      const std::size_t slow = theta < 1e5 ? 52 : 35;
      std::vector<float> keys = spread;
      for (std::size_t token = 0; token < tokens; ++token) {
        for (std::size_t pair = 0; pair < 64; ++pair) {
          const double size =
              pair >= slow ? 30 * std::sqrt(64.0 / (64.0 - static_cast<double>(slow))) : 0.0;
          const double angle =
              static_cast<double>(token + 5000) * std::pow(theta, -static_cast<double>(pair) / 64);
          const double x = size * static_cast<double>(bias[pair]);
          const double y = size * static_cast<double>(bias[pair + 64]);
          keys[token * dim + pair] += static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
          keys[token * dim + pair + 64] +=
              static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
        }
      }
      CHECK(worst_logit(options, keys) > 10);
      CHECK(worst_logit(centred(options), keys) < 1);
    }
  }
  SUBCASE("a bias of fast pairs has no mean, which costs nothing but bytes") {
    std::vector<float> keys = spread;
    for (std::size_t token = 0; token < tokens; ++token) {
      for (std::size_t pair = 0; pair < 8; ++pair) {
        const double angle =
            static_cast<double>(token + 5000) * std::pow(1e4, -static_cast<double>(pair) / 64);
        keys[token * dim + pair] += static_cast<float>(80 * std::cos(angle));
        keys[token * dim + pair + 64] += static_cast<float>(80 * std::sin(angle));
      }
    }
    const double without = worst_logit(options, keys);
    CHECK(without > 10);
    CHECK(worst_logit(centred(options), keys) < 1.1 * without);
  }
  SUBCASE("a bias of 10,000") {
    std::vector<float> keys = spread;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      keys[i] += 1e4F * bias[i % dim];
    }
    CHECK(worst_logit(options, keys) > 1000);
    CHECK(worst_logit(centred(options), keys) < 10);
  }
}
