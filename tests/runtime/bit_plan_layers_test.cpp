#include "runtime/runtime_test_support.hpp"

#include <turboquant/model/value_policy.hpp>
#include <turboquant/runtime/bit_plan_layers.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <vector>

using namespace runtime_test;
using cache_test::contains;
using cache_test::error_of;
using turboquant::BitPlan;
using turboquant::KeyCodec;
using turboquant::LayerCodec;
using turboquant::LayerOptions;
using turboquant::ValueCodec;

namespace {

std::vector<LayerOptions> plain_layers(std::size_t count, const KVShape& shape) {
  return std::vector<LayerOptions>(count, layer(shape, 0, 0, 0));
}

}  // namespace

TEST_CASE("a plan's bytes are those of tiles, and what tiles refuse a plan refuses, too") {
  int accepted = 0;
  int refused = 0;
  for (int key = 0; key < 3; ++key) {
    for (const int key_bits : {1, 2, 3, 4, 5, 8}) {
      for (int value = 0; value < 2; ++value) {
        for (const int value_bits : {1, 2, 3, 4, 5, 8}) {
          for (const std::int64_t group : {0, 8, 12, 32, 48}) {
            for (const std::pair<int, int>& dims :
                 {std::pair{128, 128}, std::pair{24, 16}, std::pair{80, 96}, std::pair{192, 128},
                  std::pair{576, 512}, std::pair{8, 64}, std::pair{64, 100}, std::pair{64, 584}}) {
              const int key_dim = dims.first;
              const int value_dim = dims.second;
              const LayerCodec codec{static_cast<KeyCodec>(key),
                                     key_bits,
                                     static_cast<ValueCodec>(value),
                                     value_bits,
                                     group,
                                     false,
                                     key_bits % 2 == 0 ? turboquant::KeyCentring::tile_mean
                                                       : turboquant::KeyCentring::none};
              turboquant::TileFormat format;
              format.key_codec = codec.key_codec;
              format.key_bits = key_bits;
              format.key_dim = key_dim;
              format.key_centring = codec.key_centring;
              format.value_codec = codec.value_codec;
              format.value_bits = value_bits;
              format.value_dim = value_dim;
              format.value_group = group == 0 ? value_dim : int(group);
              const std::string by_tiles = error_of([&] { turboquant::require_supported(format); });
              const std::string by_plan = error_of([&] {
                const auto options = turboquant::tile_codec_options(codec, key_dim, value_dim, 7);
                CHECK(options.format == format);
                CHECK(options.seed == 7);
                CHECK(turboquant::slot_bytes(codec, key_dim, value_dim) ==
                      std::int64_t(format.slot_bytes()));
              });
              // A group of the whole head is a group of codebook values, which a plan writes as 0.
              const bool whole = codec.value_codec == ValueCodec::codebook && group == value_dim;
              if (!whole) {
                REQUIRE((by_tiles == "no error") == (by_plan == "no error"));
              }
              ++(by_plan == "no error" ? accepted : refused);
            }
          }
        }
      }
    }
  }
  CHECK(accepted > 300);
  CHECK(refused > 500);
}

TEST_CASE("norm correction is the unit scale rule") {
  CHECK(turboquant::tile_codec_options({.norm_correction = true}, 64, 64).key_scale_rule ==
        turboquant::ScaleRule::unit);
  CHECK(turboquant::tile_codec_options({}, 64, 64).key_scale_rule ==
        turboquant::ScaleRule::unbiased);
}

TEST_CASE("a manager of a plan stores every layer with its bits and its bytes") {
  const KVShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 80};
  const BitPlan plan{{LayerCodec{.key_bits = 4, .value_bits = 2},
                      LayerCodec{.key_bits = 3, .value_bits = 4}, std::nullopt,
                      LayerCodec{.key_bits = 2, .value_bits = 3},
                      LayerCodec{KeyCodec::float8, 8, ValueCodec::grouped, 4, 16, false}}};
  const auto layers = turboquant::with_bit_plan(plain_layers(5, shape), plan, 3);
  const auto shapes = turboquant::layer_shapes(layers);
  Manager<turboquant::bfloat16> manager({.layers = layers});
  const auto id = manager.open();
  constexpr std::int64_t tokens = 192;
  for (std::int64_t i = 0; i < 5; ++i) {
    append(manager, i, id, Tokens<turboquant::bfloat16>(1, 0, tokens, shape), 0, tokens);
    const auto stats = manager.stats(i, id);
    const auto& codec = plan.layers[std::size_t(i)];
    const std::int64_t bytes =
        tokens * turboquant::layer_bytes_per_token(codec, shapes[std::size_t(i)]);
    CHECK(std::int64_t(codec ? stats.history_bytes : stats.dense_bytes) == bytes);
    CHECK(attention_error(manager, i, id, 1, 4, layers[std::size_t(i)]) < 1e-3);
  }
  const auto use = manager.memory_use();
  const std::int64_t exact = tokens * turboquant::layer_bytes_per_token({}, shapes[2]);
  CHECK(std::int64_t(use.codes + use.metadata) ==
        tokens * turboquant::bytes_per_token(plan, shapes) - exact);
}

TEST_CASE("a value policy's codec is a manager's") {
  const KVShape shape{.kv_heads = 1, .key_dim = 128, .value_dim = 128};
  for (const auto service :
       {turboquant::ServiceClass::throughput, turboquant::ServiceClass::balanced,
        turboquant::ServiceClass::quality}) {
    const auto plan = turboquant::uniform_plan(1, turboquant::ValuePolicy{service}.codec());
    const auto layers = turboquant::with_bit_plan(plain_layers(1, shape), plan);
    Manager<float> manager({.layers = layers});
    const auto id = manager.open();
    append(manager, 0, id, Tokens<float>(1, 0, 64, shape), 0, 64);
    CHECK(manager.stats(0, id).ratio() ==
          512.0 / double(turboquant::slot_bytes(*plan.layers[0], 128, 128)));
  }
}

TEST_CASE("a bit plan keeps pages and tiles, whatever they are") {
  const KVShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  const BitPlan plan = turboquant::uniform_plan(1, {});
  for (const std::int64_t block_size : {16, 32, 48, 64, 96, 256}) {
    auto layers = plain_layers(1, shape);
    layers[0].capture.block_size = block_size;
    // Of a layer without tiles of its own: the largest that pages hold.
    auto first = turboquant::with_bit_plan(layers, plan);
    CHECK(first[0].codec->format.tile_tokens == turboquant::largest_tile(block_size));
    for (const int tile_tokens : {16, 32, 64}) {
      if (block_size % tile_tokens == 0) {
        first[0].codec->format.tile_tokens = tile_tokens;
        const auto second = turboquant::with_bit_plan(first, plan, 5);
        CHECK(second[0].codec->format == first[0].codec->format);
        CHECK(second[0].codec->seed == 5);
        CHECK(error_of([&] { const Manager<float> manager({.layers = second}); }) == "no error");
      }
    }
  }
  auto layers = plain_layers(1, shape);
  layers[0].capture.block_size = 24;
  CHECK(contains(error_of([&] { static_cast<void>(turboquant::with_bit_plan(layers, plan)); }),
                 "with_bit_plan: layers[0]: largest_tile: block_size is 24"));
  layers[0].capture.block_size = 32;
  const BitPlan means =
      turboquant::uniform_plan(1, {.key_centring = turboquant::KeyCentring::tile_mean});
  CHECK(contains(error_of([&] { static_cast<void>(turboquant::with_bit_plan(layers, means)); }),
                 "with_bit_plan: layers[0]: TileFormat: tile_tokens is 32, expected 64"));
}

TEST_CASE("a plan that does not fit the layers is refused, with the layer") {
  const KVShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 64};
  auto layers = plain_layers(3, shape);
  const BitPlan plan = turboquant::uniform_plan(3, {});
  const auto message = [&](const std::vector<LayerOptions>& of, const BitPlan& wanted) {
    return error_of([&] { static_cast<void>(turboquant::with_bit_plan(of, wanted)); });
  };
  CHECK(contains(message(layers, turboquant::uniform_plan(4, {})),
                 "with_bit_plan: the plan has 4 layers, expected those of the model, 3"));
  layers[1].has_cache = false;
  CHECK(contains(message(layers, plan), "with_bit_plan: layers[1]: it has a codec in the plan"));
  layers[1].has_cache = true;
  layers[1].source = 0;
  CHECK(contains(message(layers, plan), "with_bit_plan: layers[1]: it has a codec in the plan"));
  BitPlan skipping = plan;
  skipping.layers[1].reset();
  CHECK(message(layers, skipping) == "no error");
  CHECK(turboquant::layer_shapes(layers)[1] == turboquant::LayerShape{});
  layers[2].capture.shape.key_dim = 100;
  CHECK(
      contains(message(layers, skipping), "with_bit_plan: layers[2]: slot_bytes: key_dim is 100"));
  BitPlan wrong = plan;
  wrong.layers[2]->key_bits = 5;
  CHECK(contains(message(plain_layers(3, shape), wrong), "with_bit_plan: layers[2].key_bits is 5"));
  // After an error messages are as before.
  CHECK(
      contains(message(layers, turboquant::uniform_plan(4, {})), "with_bit_plan: the plan has 4"));
}
