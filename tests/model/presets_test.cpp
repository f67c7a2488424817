#include <turboquant/model/presets.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>
#include "golden_csv.hpp"

#include <cstdint>
#include <string>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

TEST_CASE("slot sizes obey the formulas for every preset and head size") {
  for (const CacheCodec& preset : cache_presets) {
    for (std::int64_t d = 1; d <= 600; ++d) {
      const TurboQuantConfig config(preset, d);
      CAPTURE(preset.name);
      CAPTURE(d);
      REQUIRE(config.slot_size() ==
              config.key_packed_size() + config.key_mean_size() + config.value_packed_size());
      const std::int64_t padding = preset.even_slot ? config.slot_size() % 2 : 0;
      REQUIRE(config.slot_size_aligned() == config.slot_size() + padding);
      // Codes alone need bits * d / 8 bytes; metadata comes on top.
      REQUIRE(8 * config.key_packed_size() >= d * config.key_quant_bits());
      REQUIRE(8 * config.value_packed_size() > d * config.value_quant_bits());
      if (d > 1) {
        REQUIRE(config.slot_size() >= TurboQuantConfig(preset, d - 1).slot_size());
      }
    }
  }
}

TEST_CASE("only the published presets round a slot up to an even number of bytes") {
  for (const CacheCodec& preset : cache_presets) {
    CHECK(preset.even_slot == (preset.name.substr(0, 11) == "turboquant_"));
  }
}

TEST_CASE("packed sizes of the published presets") {
  const auto rows = test::golden_rows("slots.csv");
  REQUIRE(rows.size() == 51);
  for (const auto& row : rows) {
    CAPTURE(row[0]);
    CAPTURE(row[1]);
    const auto config = TurboQuantConfig::from_cache_dtype(row[1], test::number(row, 0));
    CHECK(config.key_packed_size() == test::number(row, 2));
    CHECK(config.value_packed_size() == test::number(row, 3));
    CHECK(config.slot_size() == test::number(row, 4));
    CHECK(config.slot_size_aligned() == test::number(row, 5));
  }
}

TEST_CASE("published fields") {
  const auto k8v4 = TurboQuantConfig::from_cache_dtype("turboquant_k8v4", 128);
  CHECK(k8v4.key_fp8());
  CHECK(k8v4.key_mse_bits() == 0);
  CHECK(k8v4.mse_bits() == 4);
  CHECK(k8v4.n_centroids() == 16);
  CHECK_FALSE(k8v4.norm_correction());

  const auto nc4 = TurboQuantConfig::from_cache_dtype("turboquant_4bit_nc", 128);
  CHECK_FALSE(nc4.key_fp8());
  CHECK(nc4.mse_bits() == 4);
  CHECK(nc4.key_mse_bits() == 4);
  CHECK(nc4.centroid_bits() == 4);
  CHECK(nc4.n_centroids() == 16);
  CHECK(nc4.norm_correction());
  CHECK(nc4.slot_size_aligned() == 134);

  const auto k3v4 = TurboQuantConfig::from_cache_dtype("turboquant_k3v4_nc", 128);
  CHECK(k3v4.mse_bits() == 3);
  CHECK(k3v4.n_centroids() == 8);
  CHECK(k3v4.value_quant_bits() == 4);
  CHECK(k3v4.slot_size_aligned() == 118);
  CHECK(k3v4.dense_slot_size(2) == 512);
  CHECK(TurboQuantConfig::from_cache_dtype("turboquant_k3v4_nc", 80).slot_size_aligned() == 76);

  const auto nc3 = TurboQuantConfig::from_cache_dtype("turboquant_3bit_nc", 128);
  CHECK(nc3.value_quant_bits() == 3);
  CHECK(nc3.slot_size_aligned() == 102);
}

TEST_CASE("reference and own presets at head size 128") {
  const auto slot = [](std::string_view name) {
    return TurboQuantConfig::from_cache_dtype(name, 128).slot_size_aligned();
  };
  // 2-bit indices + signs + two fp16 norms, values with four fp16 pairs.
  CHECK(slot("k3v2") == (32 + 16 + 4) + (32 + 16));
  CHECK(slot("k3v4") == (32 + 16 + 4) + (64 + 16));
  CHECK(TurboQuantConfig::from_cache_dtype("k3v4", 128).key_mse_bits() == 2);
  CHECK(TurboQuantConfig::from_cache_dtype("k3v4", 128).num_value_groups() == 4);
  CHECK(TurboQuantConfig::from_cache_dtype("k3v4", 80).num_value_groups() == 3);
  CHECK(slot("tq_k4v4") == 134);
  CHECK(slot("tq_k3v4") == 118);
  CHECK(slot("tq_k3v4_g32") == 130);
  CHECK(slot("tq_k3v3") == 100);
  CHECK(slot("tq_k3v2") == 84);
  CHECK(slot("tq_k2v2") == 68);
  // 128 fp16 numbers for 64 tokens, up to a multiple of 64 bytes.
  CHECK(slot("tq_k4v4_mean") == 138);
  CHECK(slot("tq_k3v4_mean") == 122);
  CHECK(slot("tq_k2v2_mean") == 72);
  CHECK(TurboQuantConfig::from_cache_dtype("tq_k3v4_mean", 80).key_mean_size() == 3);
  CHECK(TurboQuantConfig::from_cache_dtype("tq_k3v4", 80).key_mean_size() == 0);
}

TEST_CASE("values may be narrower than keys") {
  const auto config = TurboQuantConfig::from_cache_dtype("turboquant_k3v4_nc", 192, 128);
  CHECK(config.key_packed_size() == 74);
  CHECK(config.value_packed_size() == 68);
  CHECK(config.dense_slot_size(2) == 640);
}

TEST_CASE("an unknown preset lists the known ones") {
  for (const std::string name : {"", "turboquant", "turboquant_5bit_nc", "auto", "fp8", "K3V4"}) {
    const std::string message = error_of(
        ErrorCode::invalid_argument, [&] { (void)TurboQuantConfig::from_cache_dtype(name, 128); });
    CHECK(mentions(message, '"' + name + '"'));
    for (const CacheCodec& preset : cache_presets) {
      CHECK(mentions(message, preset.name));
    }
  }
}

TEST_CASE("sizes and bits outside their domain") {
  for (const std::int64_t d : {std::int64_t{0}, std::int64_t{-1}, INT64_MIN, INT64_MAX,
                               TurboQuantConfig::max_head_size + 1}) {
    CHECK(mentions(error_of(ErrorCode::invalid_argument,
                            [&] { (void)TurboQuantConfig::from_cache_dtype("k3v4", d); }),
                   "head_size is " + std::to_string(d)));
    CHECK(mentions(error_of(ErrorCode::invalid_argument,
                            [&] { (void)TurboQuantConfig::from_cache_dtype("k3v4", 64, d); }),
                   "head_size_v is"));
  }
  const auto refuse = [](CacheCodec codec, std::string_view field) {
    CHECK(mentions(
        error_of(ErrorCode::invalid_argument, [&] { (void)TurboQuantConfig(codec, 64); }), field));
  };
  refuse({.name = "x", .key_bits = 0}, "key_bits");
  refuse({.name = "x", .key_bits = 9}, "key_bits");
  refuse({.name = "x", .key_codec = KeyCodec::inner_product, .key_bits = 1}, "key_bits");
  refuse({.name = "x", .key_codec = KeyCodec::float8, .key_bits = 4}, "key_bits");
  refuse({.name = "x", .value_bits = 0}, "value_bits");
  refuse({.name = "x", .value_bits = 9}, "value_bits");
  refuse({.name = "x", .value_group = -32}, "value_group");
  refuse({.name = "x", .key_centring = static_cast<KeyCentring>(2)}, "key_centring");
  refuse({.name = "x", .key_codec = static_cast<KeyCodec>(3)}, "key_codec is 3");
  refuse({.name = "x", .key_codec = static_cast<KeyCodec>(255)}, "key_codec is 255");
  refuse({.name = "x", .value_codec = static_cast<ValueCodec>(2)}, "value_codec is 2");
  refuse({.name = "x", .value_codec = ValueCodec::codebook, .value_group = 32},
         "value_group is 32, expected 0 for codebook values");
  for (const KeyCodec keys : {KeyCodec::float8, KeyCodec::inner_product}) {
    refuse({.name = "x", .key_codec = keys, .key_bits = 8, .norm_correction = true},
           "norm_correction is 1, expected 0");
  }
  const TurboQuantConfig config = TurboQuantConfig::from_cache_dtype("k3v4", 64);
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)config.dense_slot_size(-2); }),
                 "TurboQuantConfig::dense_slot_size: element_bytes is -2"));
  CHECK(mentions(error_of(ErrorCode::overflow, [&] { (void)config.dense_slot_size(INT64_MAX); }),
                 "element_bytes is 92"));
}

TEST_CASE("head sizes that the codecs can encode") {
  const auto encodable = [](std::string_view name, std::int64_t d, std::int64_t d_v) {
    return TurboQuantConfig::from_cache_dtype(name, d, d_v).encodable_head_sizes();
  };
  CHECK(encodable("turboquant_k3v4_nc", 3, 1));
  CHECK_FALSE(encodable("turboquant_k3v4_nc", 2, 64));
  CHECK(encodable("turboquant_k8v4", 1, 1));
  CHECK(encodable("tq_k3v3", 3, 3));
  CHECK_FALSE(encodable("tq_k3v3", 64, 2));
  CHECK(encodable("tq_k3v3", 65536, 65536));
  CHECK_FALSE(encodable("turboquant_k8v4", 65537, 64));
  CHECK_FALSE(encodable("turboquant_k8v4", 64, 65537));
}
