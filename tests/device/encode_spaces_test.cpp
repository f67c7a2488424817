// Every execution space of this build writes the tile bytes of the host's portable encoder.

#include "support/execution_spaces.hpp"

#include <turboquant/device/encode_tiles.hpp>

#include <doctest/doctest.h>
#include <support/host_kernels.hpp>
#include <support/tile_inputs.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

using namespace turboquant;

namespace {

/// All heads of `tokens` tokens, flat: [head][tile], written in pieces of `chunk` tokens over
/// memory full of ones; pieces of different tiles together.
template <class Exec, class T>
std::vector<std::byte> encode(const Exec& exec, const TileCodecOptions& options, int heads,
                              const std::vector<T>& keys, const std::vector<T>& values, int chunk,
                              HostArch arch = HostArch::automatic) {
  using Space = typename Exec::memory_space;
  const TileCodec<Space> codec(options);
  const TileFormat& format = codec.format();
  const auto tokens = static_cast<int>(keys.size()) / heads / format.key_dim;
  const int num_tiles = (tokens + format.tile_tokens - 1) / format.tile_tokens;
  const auto space_keys = test::to_space<Space>(keys.data(), keys.size());
  const auto space_values = test::to_space<Space>(values.data(), values.size());
  Kokkos::View<std::byte*, Space> tiles(
      "tiles", static_cast<std::size_t>(heads * num_tiles) * format.bytes());
  Kokkos::deep_copy(tiles, std::byte{0xFF});
  std::vector<EncodeJob> waiting;
  const auto encode_waiting = [&] {
    const auto jobs = test::to_space<Space>(waiting.data(), waiting.size());
    encode_tiles(exec, codec, heads, Kokkos::View<const EncodeJob*, Space>(jobs), arch);
    exec.fence();
    waiting.clear();
  };
  for (int token = 0; token < tokens;) {
    const int slot = token % format.tile_tokens;
    if (slot != 0) {
      encode_waiting();
    }
    const int count = std::min({chunk, tokens - token, format.tile_tokens - slot});
    EncodeJob job;
    job.keys =
        dense_rows(space_keys.data() + static_cast<std::ptrdiff_t>(token) * heads * format.key_dim,
                   heads, format.key_dim);
    job.values = dense_rows(
        space_values.data() + static_cast<std::ptrdiff_t>(token) * heads * format.value_dim, heads,
        format.value_dim);
    job.tile = tiles.data() + static_cast<std::size_t>(token / format.tile_tokens) * format.bytes();
    job.head_stride =
        static_cast<std::int64_t>(num_tiles) * static_cast<std::int64_t>(format.bytes());
    job.first_slot = slot;
    job.count = count;
    job.clear_from = slot;
    waiting.push_back(job);
    token += count;
  }
  encode_waiting();
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), tiles);
  return std::vector<std::byte>(host.data(), host.data() + host.size());
}

using test::make_options;

std::vector<TileCodecOptions> all_options() {
  std::vector<TileCodecOptions> all;
  for (const int dim : {16, 40, 64, 80, 96, 112, 128, 192, 256, 576}) {
    for (const int bits : {2, 3, 4}) {
      all.push_back(make_options(KeyCodec::mse, bits, dim, ValueCodec::grouped, bits, dim,
                                 dim % 32 == 0 ? 32 : 8));
    }
    all.push_back(make_options(KeyCodec::inner_product, 3, dim, ValueCodec::codebook, 3, dim, dim));
    all.push_back(make_options(KeyCodec::float8, 8, dim, ValueCodec::grouped, 4, dim, dim));
  }
  for (const ScaleRule rule : {ScaleRule::plain, ScaleRule::unit, ScaleRule::least_squares}) {
    auto options = make_options(KeyCodec::mse, 3, 128, ValueCodec::codebook, 4, 64, 64);
    options.key_scale_rule = rule;
    options.value_scale_rule = rule;
    all.push_back(options);
  }
  const std::size_t in_host_order = all.size();
  for (std::size_t i = 0; i < in_host_order; ++i) {
    TileCodecOptions options = all[i];
    options.format.order = TileOrder::mma;
    if (options.format.key_dim % 16 == 0 && options.format.value_dim % 16 == 0) {
      all.push_back(options);
    }
  }
  // Key means, in both orders; what devices hold in registers, too.
  for (const int dim : {40, 64, 128, 256}) {
    for (const KeyCodec codec : {KeyCodec::mse, KeyCodec::inner_product, KeyCodec::float8}) {
      for (const TileOrder order : {TileOrder::host, TileOrder::mma}) {
        TileCodecOptions options = make_options(codec, codec == KeyCodec::float8 ? 8 : 3, dim,
                                                ValueCodec::grouped, 4, dim, dim);
        options.format.order = order;
        options.format.key_centring = KeyCentring::tile_mean;
        if (order == TileOrder::host || dim % 16 == 0) {
          all.push_back(options);
        }
      }
    }
  }
  return test::in_all_sizes(all);
}

/// The keys of a test: some have a bias where they are centred, others have not.
std::vector<float> test_keys(const TileFormat& format, std::size_t rows, std::uint64_t stream) {
  const auto dim = static_cast<std::size_t>(format.key_dim);
  std::vector<float> keys = test::hard_rows(rows, dim, stream);
  for (std::size_t i = 0; i < keys.size() && format.centres_keys(); ++i) {
    keys[i] += i / dim % 8 == 2 ? -3.0F : static_cast<float>(i % dim % 5) * 10;
  }
  return keys;
}

/// Checks that teams write the bytes of one thread: what devices run, on the host's spaces too,
/// where a team may be a single thread.
/// @param keys   (64, 2, key_dim)
/// @param values (64, 2, value_dim)
void check_team(const TileCodecOptions& options, const std::vector<float>& keys,
                const std::vector<float>& values) {
  const int heads = 2;
  const TileFormat& format = options.format;
  const TileCodec<Kokkos::HostSpace> codec(options);
  const Kokkos::DefaultHostExecutionSpace exec;
  const std::vector<std::byte> expected =
      encode(exec, options, heads, keys, values, 64, HostArch::portable);
  std::vector<std::byte> tiles(expected.size() + 16, std::byte{0xFF});
  std::vector<EncodeJob> jobs(64 / format.tokens());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::size_t row = i * heads * format.tokens();
    jobs[i].keys = dense_rows(keys.data() + row * static_cast<std::size_t>(format.key_dim), heads,
                              format.key_dim);
    jobs[i].values = dense_rows(values.data() + row * static_cast<std::size_t>(format.value_dim),
                                heads, format.value_dim);
    jobs[i].tile = tiles.data() + i * format.bytes();
    jobs[i].head_stride = static_cast<std::int64_t>(jobs.size() * format.bytes());
    jobs[i].count = format.tile_tokens;
    jobs[i].clear_from = 0;
  }
  const bool launched = detail::launch_team_encoder("teams", exec, codec.tables(), jobs.data(),
                                                    static_cast<std::int64_t>(jobs.size()), heads);
  exec.fence();
  CHECK(launched == (format.bytes() < 48000));
  if (launched) {
    CHECK(std::equal(expected.begin(), expected.end(), tiles.begin()));
  }
}

/// Checks `CellSearch` against `search_cells` at and beside the boundaries, on both sides of 0.
template <int Bits>
void check_cells() {
  const TileCodec<Kokkos::HostSpace> codec(
      make_options(KeyCodec::mse, Bits, 128, ValueCodec::grouped, Bits, 128, 128));
  const KernelCodebook& codebook = codec.tables().key_codebook;
  std::vector<float> numbers = {0.0F, -0.0F, 1e-30F, -1e-30F};
  for (int i = 0; i + 1 < 1 << Bits; ++i) {
    const float boundary = codebook.boundaries[i];
    for (const float x :
         {boundary, std::nextafter(boundary, 9.0F), std::nextafter(boundary, -9.0F)}) {
      numbers.insert(numbers.end(), {x, -x});
    }
  }
  numbers.resize((numbers.size() + 7) / 8 * 8, 1.0F);
  detail::EncoderScratch<1> scratch;
  std::copy(numbers.begin(), numbers.end(), scratch.vector);
  const float one = 1.0F;
  detail::search_cells<1>(codebook, &one, numbers.size(), scratch);
  detail::CellSearch<Bits> search(codebook, one, one, false);
  for (std::size_t first = 0; first < numbers.size(); first += 8) {
    float x[8];
    std::copy_n(numbers.data() + first, 8, x);
    const std::uint32_t codes = search.codes(x);
    for (std::size_t i = 0; i < 8; ++i) {
      CAPTURE(x[i]);
      CHECK(((codes >> (4 * i)) & 15U) == scratch.codes[first + i]);
    }
  }
}

}  // namespace

TEST_CASE("codes of numbers at the boundaries of cells") {
  check_cells<2>();
  check_cells<3>();
  check_cells<4>();
}

TEST_CASE("every execution space writes the same bytes") {
  const int heads = 2;
  for (const TileCodecOptions& options : all_options()) {
    const TileFormat& format = options.format;
    CAPTURE(format.key_dim);
    CAPTURE(static_cast<int>(format.key_codec));
    CAPTURE(format.key_bits);
    CAPTURE(format.value_bits);
    CAPTURE(static_cast<int>(format.order));
    CAPTURE(static_cast<int>(format.key_centring));
    CAPTURE(format.tile_tokens);
    const std::size_t rows = 150 * heads;
    const std::vector<float> keys = test_keys(format, rows, 2);
    const std::vector<float> values =
        test::hard_rows(rows, static_cast<std::size_t>(format.value_dim), 3);
    const auto on_host = [&](int chunk) {
      return encode(Kokkos::DefaultHostExecutionSpace(), options, heads, keys, values, chunk,
                    HostArch::portable);
    };
    const std::vector<std::byte> expected = on_host(64);
    // The tokens that begin a tile decide its key mean.
    const std::vector<std::byte> in_pieces = format.centres_keys() ? on_host(11) : expected;
    test::for_each_execution_space("encode_spaces", [&](const auto& exec) {
      CAPTURE(std::string(exec.name()));
      CHECK(encode(exec, options, heads, keys, values, 64) == expected);
      CHECK(encode(exec, options, heads, keys, values, 11) == in_pieces);
    });
  }
}

TEST_CASE("rows in half precision") {
  const std::vector<float> keys = test::hard_rows(150, 128, 4);
  const auto check = [&](auto type) {
    using Half = decltype(type);
    std::vector<Half> halves;
    std::vector<float> same;
    for (const float x : keys) {
      halves.push_back(Half::from_float(std::fmin(std::fmax(x, -60000.0F), 60000.0F)));
      same.push_back(halves.back().to_float());
    }
    for (const TileCodecOptions& options : test::in_all_sizes({TileCodecOptions()})) {
      CAPTURE(options.format.tile_tokens);
      const auto expected = encode(Kokkos::DefaultHostExecutionSpace(), options, 1, same, same, 64,
                                   HostArch::portable);
      test::for_each_execution_space("encode_spaces", [&](const auto& exec) {
        CAPTURE(std::string(exec.name()));
        CHECK(encode(exec, options, 1, halves, halves, 64) == expected);
      });
    }
  };
  check(float16{});
  check(bfloat16{});
}

TEST_CASE("rows and tiles may begin anywhere") {
  for (const int bits : {2, 3, 4}) {
    auto in_host_order =
        make_options(KeyCodec::mse, bits, 128, ValueCodec::grouped, bits, 128, 128);
    auto in_mma_order = in_host_order;
    in_mma_order.format.order = TileOrder::mma;
    for (const TileCodecOptions& options : test::in_all_sizes({in_host_order, in_mma_order})) {
      CAPTURE(bits);
      CAPTURE(static_cast<int>(options.format.order));
      CAPTURE(options.format.tile_tokens);
      const std::vector<float> rows = test::hard_rows(options.format.tokens(), 128, 10);
      const std::vector<std::byte> expected = encode(Kokkos::DefaultHostExecutionSpace(), options,
                                                     1, rows, rows, 64, HostArch::portable);
      std::vector<float> shifted(1);
      shifted.insert(shifted.end(), rows.begin(), rows.end());
      test::for_each_execution_space("encode_spaces", [&](const auto& exec) {
        CAPTURE(std::string(exec.name()));
        using Space = typename std::decay_t<decltype(exec)>::memory_space;
        const TileCodec<Space> codec(options);
        const auto data = test::to_space<Space>(shifted.data(), shifted.size());
        Kokkos::View<std::byte*, Space> tile("tile", expected.size() + 4);
        EncodeJob job;
        job.keys = dense_rows(data.data() + 1, 1, 128);
        job.values = job.keys;
        job.tile = tile.data() + 4;
        job.count = options.format.tile_tokens;
        job.clear_from = 0;
        const auto jobs = test::to_space<Space>(&job, 1);
        encode_tiles(exec, codec, 1, Kokkos::View<const EncodeJob*, Space>(jobs));
        exec.fence();
        const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), tile);
        CHECK(std::equal(expected.begin(), expected.end(), host.data() + 4));
      });
    }
  }
}

TEST_CASE("values between two codes") {
  // Rows of few bits: many numbers lie exactly in the middle, or a little below it.
  std::vector<float> rows;
  for (std::size_t i = 0; i < 128 * 128; ++i) {
    const auto number = static_cast<float>((i * i + 7 * i) % 61);
    rows.push_back(i % 128 == 0 ? 0.0F : i % 128 == 1 ? 60.0F : number);
    rows.back() *= 1 + static_cast<float>(i / 128 % 4) * 0x1p-12F;
    rows.back() += static_cast<float>(i / 1024) * 30;
  }
  for (const int bits : {2, 3, 4}) {
    const auto options = make_options(KeyCodec::mse, 3, 128, ValueCodec::grouped, bits, 128, 32);
    const std::vector<std::byte> expected =
        encode(Kokkos::DefaultHostExecutionSpace(), options, 1, rows, rows, 64, HostArch::portable);
    test::for_each_execution_space("encode_spaces", [&](const auto& exec) {
      CAPTURE(std::string(exec.name()));
      CHECK(encode(exec, options, 1, rows, rows, 64) == expected);
    });
    check_team(options, rows, rows);
  }
}

TEST_CASE("numbers that are not finite are found on every execution space") {
  std::vector<float> rows = test::hard_rows(6, 128, 7);
  rows[500] = std::numeric_limits<float>::quiet_NaN();
  test::for_each_execution_space("encode_spaces", [&](const auto& exec) {
    using Space = typename std::decay_t<decltype(exec)>::memory_space;
    std::vector<float> finite = rows;
    finite[500] = 0;
    const auto good = test::to_space<Space>(finite.data(), finite.size());
    CHECK(first_non_finite(exec, dense_rows(good.data(), 2, 128), 3, 2, 128) == -1);
    const auto bad = test::to_space<Space>(rows.data(), rows.size());
    CHECK(first_non_finite(exec, dense_rows(bad.data(), 2, 128), 3, 2, 128) == 500);
  });
}

TEST_CASE("teams that share a tile write the bytes of one thread") {
  for (const TileCodecOptions& options : all_options()) {
    const TileFormat& format = options.format;
    CAPTURE(format.key_dim);
    CAPTURE(static_cast<int>(format.key_codec));
    CAPTURE(format.key_bits);
    CAPTURE(static_cast<int>(format.order));
    CAPTURE(format.tile_tokens);
    check_team(options, test_keys(format, 128, 8),
               test::hard_rows(128, static_cast<std::size_t>(format.value_dim), 9));
  }
}
