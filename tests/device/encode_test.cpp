// Tiles hold the very codes and scales of the host quantizers, whatever the chunking, the execution
// space and the instruction set.

#include <turboquant/device/encode_tiles.hpp>
#include <turboquant/device/tile_decoder.hpp>
#include <turboquant/device/transcode.hpp>
#include <turboquant/quant/inner_product_quantizer.hpp>
#include <turboquant/quant/value_quantizer.hpp>

#include <doctest/doctest.h>
#include <support/error_of.hpp>
#include <support/host_kernels.hpp>
#include <support/one_thread.hpp>
#include <support/tile_inputs.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

using namespace turboquant;

namespace {

using Exec = Kokkos::DefaultHostExecutionSpace;
using Memory = Kokkos::HostSpace;

struct Tiles {
  std::vector<std::byte> memory;
  [[nodiscard]] const std::byte* tile(std::size_t index, std::size_t bytes) const {
    return memory.data() + index * bytes;
  }
};

/// All heads of `tokens` tokens, flat: [head][tile]. Written in pieces of `chunk` tokens over
/// memory full of ones.
template <class ExecutionSpace, class T>
Tiles encode(const ExecutionSpace& exec, const TileCodec<Memory>& codec, int heads,
             const std::vector<T>& keys, const std::vector<T>& values, int chunk,
             HostArch arch = HostArch::automatic) {
  const TileFormat& format = codec.format();
  const auto tokens = static_cast<int>(keys.size()) / heads / format.key_dim;
  const int num_tiles = (tokens + format.tile_tokens - 1) / format.tile_tokens;
  Tiles tiles;
  tiles.memory.assign(static_cast<std::size_t>(heads * num_tiles) * format.bytes(),
                      std::byte{0xFF});
  for (int token = 0; token < tokens;) {
    const int slot = token % format.tile_tokens;
    const int count = std::min({chunk, tokens - token, format.tile_tokens - slot});
    Kokkos::View<EncodeJob*, Memory> jobs("jobs", 1);
    jobs(0).keys =
        dense_rows(keys.data() + static_cast<std::ptrdiff_t>(token) * heads * format.key_dim, heads,
                   format.key_dim);
    jobs(0).values =
        dense_rows(values.data() + static_cast<std::ptrdiff_t>(token) * heads * format.value_dim,
                   heads, format.value_dim);
    jobs(0).tile =
        tiles.memory.data() + static_cast<std::size_t>(token / format.tile_tokens) * format.bytes();
    jobs(0).head_stride =
        static_cast<std::int64_t>(num_tiles) * static_cast<std::int64_t>(format.bytes());
    jobs(0).first_slot = slot;
    jobs(0).count = count;
    jobs(0).clear_from = slot;
    encode_tiles(exec, codec, heads, Kokkos::View<const EncodeJob*, Memory>(jobs), arch);
    exec.fence();
    token += count;
  }
  return tiles;
}

using test::make_options;

std::vector<TileCodecOptions> all_options() {
  std::vector<TileCodecOptions> all;
  for (const int dim : {16, 40, 80, 96, 128, 192, 256, 576}) {
    for (const int bits : {2, 3, 4}) {
      all.push_back(make_options(KeyCodec::mse, bits, dim, ValueCodec::grouped, bits, dim,
                                 dim % 32 == 0 ? 32 : 8));
    }
    all.push_back(make_options(KeyCodec::inner_product, 3, dim, ValueCodec::codebook, 3, dim, dim));
    all.push_back(make_options(KeyCodec::float8, 8, dim, ValueCodec::grouped, 4, dim, dim));
  }
  auto ip4 = make_options(KeyCodec::inner_product, 4, 128, ValueCodec::codebook, 4, 64, 64);
  ip4.value_scale_rule = ScaleRule::unit;
  all.push_back(ip4);
  auto plain = make_options(KeyCodec::mse, 3, 64, ValueCodec::codebook, 2, 128, 128);
  plain.key_scale_rule = ScaleRule::least_squares;
  all.push_back(plain);
  // Places in mma order have a test of their own; here a few formats are enough.
  const std::size_t in_host_order = all.size();
  for (std::size_t i = 0; i < in_host_order; i += 4) {
    TileCodecOptions options = all[i];
    options.format.order = TileOrder::mma;
    if (options.format.key_dim % 16 == 0 && options.format.value_dim % 16 == 0) {
      all.push_back(options);
    }
  }
  return test::in_all_sizes(all);
}

}  // namespace

TEST_CASE("tiles hold the codes and scales of the host quantizers") {
  for (const TileCodecOptions& options : all_options()) {
    const TileFormat& format = options.format;
    CAPTURE(format.key_dim);
    CAPTURE(static_cast<int>(format.key_codec));
    CAPTURE(format.key_bits);
    CAPTURE(format.tile_tokens);
    const TileCodec<Memory> codec(options);
    const auto key_dim = static_cast<std::size_t>(format.key_dim);
    const auto value_dim = static_cast<std::size_t>(format.value_dim);
    const std::size_t tokens = 130;
    const std::vector<float> keys = test::hard_rows(tokens, key_dim, 0);
    const std::vector<float> values = test::hard_rows(tokens, value_dim, 1);
    const Tiles tiles = encode(Exec(), codec, 1, keys, values, 64);

    bool codes_equal = true;
    bool scales_equal = true;
    const auto half = [&](std::size_t token, std::size_t byte) {
      return read_tile_half(tiles.tile(token / format.tokens(), format.bytes()), byte);
    };
    const MseQuantizerOptions key_options{.scale_rule = format.key_codec == KeyCodec::inner_product
                                                            ? ScaleRule::plain
                                                            : options.key_scale_rule,
                                          .codebook = CodebookKind::integer_grid};
    const HadamardRotation rotation(format.key_dim, options.seed);
    const auto compare_keys = [&](const EncodedVectors& expected) {
      for (std::size_t token = 0; token < tokens; ++token) {
        const std::byte* tile = tiles.tile(token / format.tokens(), format.bytes());
        for (std::size_t d = 0; d < key_dim; ++d) {
          codes_equal =
              codes_equal && read_key_code(format, tile, token % format.tokens(), d) ==
                                 read_code(expected.row(token), d, format.key_code_bits());
        }
        scales_equal =
            scales_equal &&
            half(token, format.key_scale_byte(token % format.tokens())) == expected.scales[token];
      }
    };
    if (format.key_codec == KeyCodec::mse) {
      compare_keys(MseQuantizer<>(rotation, format.key_bits, key_options).encode(keys));
    } else if (format.key_codec == KeyCodec::inner_product) {
      const OrthogonalSketch<HadamardRotation> sketch(
          HadamardRotation(format.key_dim, options.sketch_seed()));
      const InnerProductQuantizer<HadamardRotation, OrthogonalSketch<HadamardRotation>> quantizer(
          rotation, format.key_bits, sketch, key_options);
      const EncodedSketches expected = quantizer.encode(keys);
      compare_keys(expected.mse);
      for (std::size_t token = 0; token < tokens; ++token) {
        for (std::size_t d = 0; d < key_dim; ++d) {
          codes_equal = codes_equal &&
                        read_key_sign(format, tiles.tile(token / format.tokens(), format.bytes()),
                                      token % format.tokens(), d) ==
                            read_code(expected.signs.data() + token * expected.sign_bytes, d, 1);
        }
        scales_equal =
            scales_equal && half(token, format.residual_scale_byte(token % format.tokens())) ==
                                expected.residual_scales[token];
      }
    } else {
      for (std::size_t token = 0; token < tokens; ++token) {
        for (std::size_t d = 0; d < key_dim; ++d) {
          codes_equal = codes_equal &&
                        read_key_code(format, tiles.tile(token / format.tokens(), format.bytes()),
                                      token % format.tokens(),
                                      d) == float8_e4m3::from_float(keys[token * key_dim + d]).bits;
        }
      }
    }
    CHECK(codes_equal);
    CHECK(scales_equal);

    const unsigned top = (1U << static_cast<unsigned>(format.value_bits)) - 1U;
    if (format.value_codec == ValueCodec::codebook) {
      const MseQuantizer<> quantizer(
          HadamardRotation(format.value_dim, options.value_seed()), format.value_bits,
          {.scale_rule = options.value_scale_rule, .codebook = CodebookKind::integer_grid});
      const EncodedVectors expected = quantizer.encode(values);
      for (std::size_t token = 0; token < tokens; ++token) {
        const bool mirrored = token % 2 != 0;
        for (std::size_t d = 0; d < value_dim; ++d) {
          const unsigned code = read_code(expected.row(token), d, format.value_bits);
          codes_equal =
              codes_equal &&
              read_value_code(format, tiles.tile(token / format.tokens(), format.bytes()),
                              token % format.tokens(), d) == (mirrored ? top - code : code);
        }
        scales_equal =
            scales_equal && half(token, format.value_scale_byte(token % format.tokens())) ==
                                (mirrored ? -expected.scales[token] : expected.scales[token]);
      }
    } else {
      // Odd tokens are the mirror image: the quantizer's codes of the negated vector.
      std::vector<float> mirrored_values = values;
      for (std::size_t i = 0; i < values.size(); ++i) {
        mirrored_values[i] = i / value_dim % 2 != 0 ? -values[i] : values[i];
      }
      const ValueQuantizer quantizer(format.value_dim, format.value_bits,
                                     {.group_size = format.value_group});
      const EncodedValues expected = quantizer.encode(mirrored_values);
      for (std::size_t token = 0; token < tokens; ++token) {
        const float sign = token % 2 != 0 ? -1.0F : 1.0F;
        for (std::size_t d = 0; d < value_dim; ++d) {
          codes_equal = codes_equal &&
                        read_value_code(format, tiles.tile(token / format.tokens(), format.bytes()),
                                        token % format.tokens(), d) ==
                            read_code(expected.codes.data() + token * expected.code_bytes, d,
                                      format.value_bits);
        }
        for (std::size_t group = 0; group < format.value_groups(); ++group) {
          const std::size_t at = token * format.value_groups() + group;
          scales_equal = scales_equal &&
                         half(token, format.value_scale_byte(token % format.tokens(), group)) ==
                             sign * expected.scales[at];
          scales_equal =
              scales_equal && half(token, format.value_zero_byte(token % format.tokens(), group)) ==
                                  sign * expected.zeros[at];
        }
      }
    }
    CHECK(codes_equal);
    CHECK(scales_equal);
  }
}

TEST_CASE("any chunking, execution space and instruction set gives the same bytes") {
  for (const TileCodecOptions& options : all_options()) {
    const TileFormat& format = options.format;
    CAPTURE(format.key_dim);
    CAPTURE(static_cast<int>(format.key_codec));
    CAPTURE(format.key_bits);
    CAPTURE(format.tile_tokens);
    const TileCodec<Memory> codec(options);
    const int heads = 2;
    const std::size_t rows = 150 * heads;
    const std::vector<float> keys =
        test::hard_rows(rows, static_cast<std::size_t>(format.key_dim), 2);
    const std::vector<float> values =
        test::hard_rows(rows, static_cast<std::size_t>(format.value_dim), 3);
    const Tiles expected =
        encode(test::OneThread(), codec, heads, keys, values, 64, HostArch::portable);
    const bool small = format.tile_tokens < 64;
    for (const int chunk : small ? std::vector{3, 17} : std::vector{1, 3, 8, 17, 50}) {
      CHECK(encode(Exec(), codec, heads, keys, values, chunk, HostArch::portable).memory ==
            expected.memory);
    }
    for (const HostArch arch : {HostArch::automatic, HostArch::avx2, HostArch::avx512}) {
      const bool any_order = arch == HostArch::automatic;
      if (host_arch_available(arch) && (any_order || format.order == TileOrder::host)) {
        CHECK(encode(Exec(), codec, heads, keys, values, 64, arch).memory == expected.memory);
        CHECK(encode(Exec(), codec, heads, keys, values, 11, arch).memory == expected.memory);
      }
    }
    // One lane, as a device encodes.
    std::vector<std::byte> tile(format.bytes(), std::byte{0xFF});
    detail::EncodeArguments in;
    in.keys = dense_rows(keys.data(), heads, format.key_dim);
    in.values = dense_rows(values.data(), heads, format.value_dim);
    in.count = format.tile_tokens;
    in.tile = tile.data();
    detail::encode_slots<detail::PortableEncodeSteps<1>>(codec.tables(), in);
    CHECK(tile == std::vector<std::byte>(
                      expected.memory.begin(),
                      expected.memory.begin() + static_cast<std::ptrdiff_t>(format.bytes())));
  }
}

TEST_CASE("the same rows have the same codes and numbers in tiles of any size") {
  const int heads = 2;
  for (const TileCodecOptions& options : all_options()) {
    const TileFormat& format = options.format;
    CAPTURE(format.key_dim);
    CAPTURE(static_cast<int>(format.key_codec));
    CAPTURE(format.key_bits);
    CAPTURE(format.tile_tokens);
    const std::vector<float> keys =
        test::hard_rows(128 * heads, static_cast<std::size_t>(format.key_dim), 8);
    const std::vector<float> values =
        test::hard_rows(128 * heads, static_cast<std::size_t>(format.value_dim), 9);
    TileCodecOptions large = options;
    large.format.tile_tokens = 64;
    const Tiles in_large = encode(Exec(), TileCodec<Memory>(large), heads, keys, values, 64);
    const Tiles tiles = encode(Exec(), TileCodec<Memory>(options), heads, keys, values, 64);
    const auto transcoded = [](const TileFormat& from, const Tiles& source, const TileFormat& to) {
      std::vector<std::byte> out(source.memory.size(), std::byte{0xFF});
      transcode_tiles(
          Exec(), from,
          Kokkos::View<const std::byte*, Memory>(source.memory.data(), source.memory.size()), to,
          Kokkos::View<std::byte*, Memory>(out.data(), out.size()));
      Exec().fence();
      return out;
    };
    CHECK(transcoded(format, tiles, large.format) == in_large.memory);
    CHECK(transcoded(large.format, in_large, format) == tiles.memory);
  }
}

TEST_CASE("half-precision rows give the bytes of the same rows in float") {
  const TileCodec<Memory> codec{TileCodecOptions{}};
  const std::vector<float> keys = test::hard_rows(64, 128, 4);
  const std::vector<float> values = test::hard_rows(64, 128, 5);
  const auto check = [&](auto half) {
    using Half = decltype(half);
    std::vector<Half> half_keys;
    std::vector<Half> half_values;
    std::vector<float> same_keys;
    std::vector<float> same_values;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const float limit = 60000;
      half_keys.push_back(Half::from_float(std::fmin(std::fmax(keys[i], -limit), limit)));
      half_values.push_back(Half::from_float(std::fmin(std::fmax(values[i], -limit), limit)));
      same_keys.push_back(half_keys.back().to_float());
      same_values.push_back(half_values.back().to_float());
    }
    CHECK(encode(Exec(), codec, 1, half_keys, half_values, 64).memory ==
          encode(Exec(), codec, 1, same_keys, same_values, 64).memory);
  };
  check(float16{});
  check(bfloat16{});
}

TEST_CASE("the kernel form of a rotation gives the bits of the host's") {
  for (const int dim : {16, 24, 80, 96, 112, 120, 128, 160, 192, 256, 512, 576}) {
    const HadamardRotation rotation(dim, 9);
    HadamardTransform transform;
    transform.dim = static_cast<std::size_t>(dim);
    transform.rounds = static_cast<std::size_t>(rotation.rounds());
    transform.signs = rotation.signs().data();
    transform.source = rotation.permutations().empty() ? nullptr : rotation.permutations().data();
    const std::vector<float> rows = test::hard_rows(4, static_cast<std::size_t>(dim), 6);
    std::vector<float> lanes(rows.size());
    std::vector<float> scratch(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      lanes[i % static_cast<std::size_t>(dim) * 4 + i / static_cast<std::size_t>(dim)] = rows[i];
    }
    std::vector<float> back = lanes;
    transform.forward<4>(lanes.data(), scratch.data());
    transform.inverse<4>(back.data(), scratch.data());
    bool same = true;
    for (std::size_t lane = 0; lane < 4; ++lane) {
      const std::span<const float> row(rows.data() + lane * static_cast<std::size_t>(dim),
                                       static_cast<std::size_t>(dim));
      std::vector<float> expected(row.size());
      rotation.apply(row, expected);
      for (std::size_t i = 0; i < row.size(); ++i) {
        same = same && lanes[4 * i + lane] == expected[i];
      }
      rotation.apply_inverse(row, expected);
      for (std::size_t i = 0; i < row.size(); ++i) {
        same = same && back[4 * i + lane] == expected[i];
      }
    }
    CHECK(same);
  }
}

TEST_CASE("numbers that are not finite are found, and harm nothing if nobody looked") {
  const TileCodec<Memory> codec{TileCodecOptions{}};
  std::vector<float> rows = test::hard_rows(6, 128, 7);
  const RowView view = dense_rows(rows.data(), 2, 128);
  CHECK(first_non_finite(Exec(), view, 3, 2, 128) == -1);
  CHECK(first_non_finite(Exec(), view, 0, 2, 128) == -1);
  rows[300] = std::numeric_limits<float>::infinity();
  rows[500] = std::numeric_limits<float>::quiet_NaN();
  CHECK(first_non_finite(Exec(), view, 3, 2, 128) == 300);
  rows[300] = 0;
  CHECK(first_non_finite(Exec(), view, 3, 2, 128) == 500);
  CHECK_NOTHROW(encode(Exec(), codec, 2, rows, rows, 64));
}

TEST_CASE("jobs outside their domain are refused before anything is written") {
  const TileCodec<Memory> codec{TileCodecOptions{}};
  const std::vector<float> rows(64 * 128, 1.0F);
  std::vector<std::byte> tile(codec.format().bytes(), std::byte{0x5A});
  const auto message = [&](const auto& change) {
    Kokkos::View<EncodeJob*, Memory> jobs("jobs", 2);
    for (std::size_t i = 0; i < 2; ++i) {
      jobs(i).keys = dense_rows(rows.data(), 1, 128);
      jobs(i).values = dense_rows(rows.data(), 1, 128);
      jobs(i).tile = tile.data();
      jobs(i).count = i == 0 ? 64 : 0;
    }
    change(jobs(1));
    try {
      encode_tiles(Exec(), codec, 1, Kokkos::View<const EncodeJob*, Memory>(jobs));
    } catch (const Error& error) {
      CHECK(tile == std::vector<std::byte>(tile.size(), std::byte{0x5A}));
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(message([](EncodeJob& job) { job.first_slot = -1; }) ==
        "encode_tiles: jobs[1].first_slot is -1, expected 0 to tile_tokens = 64");
  CHECK(message([](EncodeJob& job) {
          job.first_slot = 60;
          job.count = 5;
        }) == "encode_tiles: jobs[1].count is 5, expected 0 to tile_tokens - first_slot = 4");
  CHECK(message([](EncodeJob& job) { job.clear_from = 65; }) ==
        "encode_tiles: jobs[1].clear_from is 65, expected 0 to 64");
  CHECK(message([](EncodeJob& job) { job.keys.type = static_cast<RowType>(3); }) ==
        "encode_tiles: jobs[1].keys.type is 3, expected float32, float16 or bfloat16");
  CHECK(message([](EncodeJob& job) { job.values.type = static_cast<RowType>(255); }) ==
        "encode_tiles: jobs[1].values.type is 255, expected float32, float16 or bfloat16");
  RowView wrong = dense_rows(rows.data(), 1, 128);
  wrong.type = static_cast<RowType>(3);
  CHECK(test::error_of(ErrorCode::invalid_argument, [&] {
          (void)first_non_finite(Exec(), wrong, 1, 1, 128);
        }) == "first_non_finite: rows.type is 3, expected float32, float16 or bfloat16");
  CHECK(message([](EncodeJob& job) { job.tile = nullptr; }) ==
        "encode_tiles: jobs[1].tile is null, expected memory");
  CHECK(message([](EncodeJob& job) { job.tile += 2; }) ==
        "encode_tiles: jobs[1].tile is no multiple of 4 bytes, expected one");
  CHECK(message([](EncodeJob& job) {
          job.count = 1;
          job.keys.data = nullptr;
        }) == "encode_tiles: jobs[1].keys or values is null, expected 1 rows");
}

TEST_CASE("jobs that do not fit a small tile are refused") {
  TileCodecOptions options;
  options.format.tile_tokens = 16;
  const TileCodec<Memory> codec(options);
  const std::vector<float> rows(64 * 128, 1.0F);
  std::vector<std::byte> tile(codec.format().bytes());
  Kokkos::View<EncodeJob*, Memory> jobs("jobs", 1);
  jobs(0).keys = dense_rows(rows.data(), 1, 128);
  jobs(0).values = dense_rows(rows.data(), 1, 128);
  jobs(0).tile = tile.data();
  const auto message = [&](int first_slot, int count) {
    jobs(0).first_slot = first_slot;
    jobs(0).count = count;
    return test::error_of(ErrorCode::invalid_argument, [&] {
      encode_tiles(Exec(), codec, 1, Kokkos::View<const EncodeJob*, Memory>(jobs));
    });
  };
  CHECK(message(0, 17) ==
        "encode_tiles: jobs[0].count is 17, expected 0 to tile_tokens - first_slot = 16");
  CHECK(message(17, 0) == "encode_tiles: jobs[0].first_slot is 17, expected 0 to tile_tokens = 16");
}

TEST_CASE("numbers that are no scale rule are refused") {
  for (const int wrong : {-1, 4, 1 << 20}) {
    for (const bool of_keys : {true, false}) {
      TileCodecOptions options;
      (of_keys ? options.key_scale_rule : options.value_scale_rule) = static_cast<ScaleRule>(wrong);
      const std::string message = test::error_of(ErrorCode::invalid_argument,
                                                 [&] { const TileCodec<Memory> codec(options); });
      CHECK(message ==
            std::string("TileCodec: ") + (of_keys ? "key_scale_rule is " : "value_scale_rule is ") +
                std::to_string(wrong) + ", expected plain, unit, least_squares or unbiased");
    }
  }
}

TEST_CASE("golden tile: the bytes of version 1 do not change") {
  // FNV-1a of the tile of 64 rows made by the loop below. Written by this test when the format was
  // fixed.
  const auto fingerprint = [](const TileCodecOptions& options) {
    const TileCodec<Memory> codec(options);
    const auto make = [](int dim, unsigned salt) {
      std::vector<float> rows(64 * static_cast<std::size_t>(dim));
      std::uint32_t state = 12345U + salt;
      for (float& x : rows) {
        state = state * 1664525U + 1013904223U;
        x = static_cast<float>(static_cast<int>(state >> 16U) - 32768) / 16384.0F;
      }
      return rows;
    };
    const Tiles tiles = encode(Exec(), codec, 1, make(options.format.key_dim, 0),
                               make(options.format.value_dim, 1), 64);
    std::uint64_t hash = 0xCBF29CE484222325U;
    for (const std::byte byte : tiles.memory) {
      hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001B3U;
    }
    return hash;
  };
  CHECK(fingerprint(make_options(KeyCodec::mse, 3, 128, ValueCodec::grouped, 4, 128, 128)) ==
        17182397960820692809U);
  CHECK(fingerprint(make_options(KeyCodec::mse, 2, 80, ValueCodec::grouped, 2, 80, 80)) ==
        12020644579201768071U);
  CHECK(fingerprint(make_options(KeyCodec::mse, 4, 256, ValueCodec::grouped, 3, 256, 32)) ==
        18274271811910394489U);
  CHECK(fingerprint(make_options(KeyCodec::inner_product, 4, 64, ValueCodec::codebook, 3, 120,
                                 120)) == 3871560171549201875U);
  CHECK(fingerprint(make_options(KeyCodec::float8, 8, 192, ValueCodec::codebook, 4, 128, 128)) ==
        1714806879239962167U);
  const auto smaller = [](TileCodecOptions options, int tokens, TileOrder order) {
    options.format.tile_tokens = tokens;
    options.format.order = order;
    return options;
  };
  const auto default_format = make_options(KeyCodec::mse, 3, 128, ValueCodec::grouped, 4, 128, 128);
  const auto planes = make_options(KeyCodec::mse, 2, 80, ValueCodec::codebook, 3, 80, 80);
  CHECK(fingerprint(smaller(default_format, 32, TileOrder::host)) == 4762188618607633093U);
  CHECK(fingerprint(smaller(default_format, 16, TileOrder::mma)) == 2663044559689315267U);
  CHECK(fingerprint(smaller(planes, 16, TileOrder::host)) == 7351654539817385374U);
  CHECK(fingerprint(smaller(planes, 16, TileOrder::mma)) == 17180428790998590426U);
}

TEST_CASE("value codes next to every border are those of a division") {
  // The zero point is -14.5 scales, so a tiny number lies next to the border of codes 14 and 15.
  for (const float scale : {0.75F, 0.3125F, 1.25F, 0.6875F, 3.5F, 0.109375F}) {
    TileCodecOptions options;
    options.format.value_group = 32;
    const std::vector<float> keys(64 * 128, 1.0F);
    std::vector<float> values(64 * 128);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto in_group = static_cast<float>(i % 32);
      const float tiny = std::ldexp(1.0F + in_group / 32, -50 - static_cast<int>(i / 32 % 8));
      const float border = (std::fmod(in_group, 16.0F) - 14.5F) * scale;
      values[i] = i % 32 == 0   ? -14.5F * scale
                  : i % 32 == 1 ? 0.5F * scale
                  : i % 3 == 0  ? tiny
                  : i % 3 == 1  ? -tiny
                                : border;
    }
    const std::vector<std::byte> expected =
        encode(Exec(), TileCodec<Memory>(options), 1, keys, values, 64, HostArch::portable).memory;
    std::vector<float> mirrored = values;
    for (std::size_t i = 0; i < values.size(); ++i) {
      mirrored[i] = i / 128 % 2 != 0 ? -values[i] : values[i];
    }
    const EncodedValues quantised = ValueQuantizer(128, 4, {.group_size = 32}).encode(mirrored);
    bool same = true;
    for (std::size_t token = 0; token < 64; ++token) {
      for (std::size_t d = 0; d < 128; ++d) {
        same = same && read_value_code(options.format, expected.data(), token, d) ==
                           read_code(quantised.codes.data() + token * quantised.code_bytes, d, 4);
      }
    }
    CHECK(same);
    for (const HostArch arch : {HostArch::avx2, HostArch::avx512}) {
      if (host_arch_available(arch)) {
        CHECK(encode(Exec(), TileCodec<Memory>(options), 1, keys, values, 64, arch).memory ==
              expected);
      }
    }
  }
}
