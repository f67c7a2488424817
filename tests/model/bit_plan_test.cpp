#include <turboquant/model/bit_plan.hpp>
#include <turboquant/model/layer_cache.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

/// Mse keys and values of the given bits.
constexpr LayerCodec bits(int key_bits, int value_bits, ValueCodec values = ValueCodec::codebook) {
  return {.key_bits = key_bits, .value_codec = values, .value_bits = value_bits};
}

std::vector<int> key_bits_of(const BitPlan& plan) {
  std::vector<int> all;
  for (const auto& layer : plan.layers) {
    all.push_back(layer ? layer->key_bits : 0);
  }
  return all;
}

}  // namespace

TEST_CASE("bytes of a slot are codes and fp16 scales, nothing else") {
  // Head size 128: 16 bytes a bit; a key has one scale, a sketch another, values one or two a
  // group.
  CHECK(slot_bytes(bits(2, 2), 128, 128) == 32 + 2 + 32 + 2);
  CHECK(slot_bytes(bits(3, 3), 128, 128) == 48 + 2 + 48 + 2);
  CHECK(slot_bytes(bits(4, 4), 128, 128) == 64 + 2 + 64 + 2);
  CHECK(slot_bytes(bits(3, 4, ValueCodec::grouped), 128, 128) == 118);
  LayerCodec codec = bits(3, 4, ValueCodec::grouped);
  codec.value_group = 32;
  CHECK(slot_bytes(codec, 128, 128) == 130);
  codec.key_codec = KeyCodec::inner_product;
  CHECK(slot_bytes(codec, 128, 128) == 132);
  codec.key_codec = KeyCodec::float8;
  codec.key_bits = 8;
  CHECK(slot_bytes(codec, 128, 128) == 128 + 64 + 16);
  codec = bits(3, 3);
  codec.key_centring = KeyCentring::tile_mean;
  CHECK(slot_bytes(codec, 128, 128) == 104);               // 256 bytes of mean for 64 tokens
  CHECK(slot_bytes(bits(3, 2), 24, 16) == 9 + 2 + 4 + 2);  // no padding to an even number
}

TEST_CASE("bytes of a plan are those of its layers, exact ones as rows and none without heads") {
  const BitPlan plan{{bits(2, 2), bits(4, 3), std::nullopt, std::nullopt}};
  const std::vector<LayerShape> shapes{{8, 128, 128}, {3, 64, 64}, {8, 128, 64}, {0, 0, 0}};
  const std::int64_t compressed = 8 * 68 + 3 * (32 + 2 + 24 + 2);
  CHECK(bytes_per_token(plan, shapes) == compressed + 8 * 192 * 2);
  CHECK(bytes_per_token(plan, shapes, 4) == compressed + 8 * 192 * 4);
  CHECK(bytes_per_token({}, {}) == 0);
}

TEST_CASE("every preset that tiles have is a layer codec and comes back with its name") {
  for (const CacheCodec& preset : cache_presets) {
    CAPTURE(preset.name);
    const LayerCodec codec = layer_codec(preset);
    const CacheCodec back = cache_codec(codec);
    CHECK(back.name == preset.name);
    CHECK(layer_codec(back) == codec);
    CHECK(slot_bytes(codec, 128, 128) == TurboQuantConfig(preset, 128).slot_size());
  }
  CHECK(cache_codec(bits(4, 2)).name == "bit_plan");
  CacheCodec eight = find_cache_preset("tq_k4v4");
  eight.value_bits = 8;
  CHECK(mentions(error_of(ErrorCode::unsupported, [&] { (void)layer_codec(eight); }),
                 "value_bits is 8, expected 2, 3 or 4"));
}

TEST_CASE("a plan gives pages the bytes of its layers") {
  const BitPlan plan{{bits(2, 3), bits(4, 4)}};
  LayerCacheOptions options;
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    options.layer_codecs.emplace_back(static_cast<std::int64_t>(i), cache_codec(*plan.layers[i]));
  }
  options.block_size = 64;
  const auto caches = assign_layer_caches(dense_model(2, 8, 128), options);
  for (std::size_t i = 0; i < caches.size(); ++i) {
    const auto& spec = std::get<TQFullAttentionSpec>(caches[i].attention);
    CHECK(spec.page_size_bytes() ==
          64 * layer_bytes_per_token(plan.layers[i], LayerShape{8, 128, 128}));
  }
}

TEST_CASE("pages of slots with an odd number of bytes have no padding either") {
  LayerCacheOptions options;
  options.layer_codecs.emplace_back(0, cache_codec(bits(3, 2)));
  options.block_size = 64;
  const auto caches = assign_layer_caches(dense_model(1, 1, 24), options);
  CHECK(slot_bytes(bits(3, 2), 24, 24) == 19);
  CHECK(std::get<TQFullAttentionSpec>(caches[0].attention).page_size_bytes() == 64 * 19);
}

TEST_CASE("the first layers get more key bits, and no layer gets fewer") {
  const BitPlan plan = initial_layers_key_bits(uniform_plan(6, bits(3, 2)), 2, 4);
  CHECK(key_bits_of(plan) == std::vector<int>{4, 4, 3, 3, 3, 3});
  for (const auto& layer : plan.layers) {
    CHECK(layer->value_bits == 2);
  }
  CHECK(initial_layers_key_bits(plan, 0, 4) == plan);
  CHECK(initial_layers_key_bits(plan, 6, 2) == plan);
  CHECK(initial_layers_key_bits(plan, std::numeric_limits<std::int64_t>::max(), 4) ==
        uniform_plan(6, bits(4, 2)));
  // fp8 keys and exact layers have more bits than any.
  BitPlan mixed{{std::nullopt, bits(2, 2), bits(3, 2)}};
  mixed.layers[2]->key_codec = KeyCodec::float8;
  mixed.layers[2]->key_bits = 8;
  CHECK(key_bits_of(initial_layers_key_bits(mixed, 3, 3)) == std::vector<int>{0, 3, 8});
  CHECK(
      mentions(error_of(ErrorCode::unsupported, [&] { (void)initial_layers_key_bits(plan, 2, 5); }),
               "key_bits is 5, expected 2, 3 or 4"));
  CHECK(mentions(
      error_of(ErrorCode::invalid_argument, [&] { (void)initial_layers_key_bits(plan, -1, 4); }),
      "n is -1"));
}

TEST_CASE("what tiles do not have is refused, with layer, field, value and expectation") {
  const auto message = [](ErrorCode code, LayerCodec codec) {
    return error_of(code, [&] { require_valid(BitPlan{{std::nullopt, codec}}); });
  };
  for (const int wrong : {-1, 0, 1, 5, 8, 1 << 30}) {
    CHECK(mentions(message(ErrorCode::unsupported, bits(wrong, 2)),
                   "BitPlan: layers[1].key_bits is " + std::to_string(wrong) +
                       ", expected 2, 3 or 4 for mse keys"));
    CHECK(mentions(message(ErrorCode::unsupported, bits(2, wrong)),
                   "layers[1].value_bits is " + std::to_string(wrong)));
  }
  LayerCodec codec = bits(2, 2);
  codec.key_codec = KeyCodec::inner_product;
  CHECK(mentions(message(ErrorCode::unsupported, codec), "3 or 4 for inner_product keys"));
  codec.key_codec = KeyCodec::float8;
  CHECK(mentions(message(ErrorCode::unsupported, codec), "8 for float8 keys"));
  codec.key_bits = 8;
  codec.norm_correction = true;
  CHECK(mentions(message(ErrorCode::unsupported, codec), "norm_correction is 1"));
  codec = bits(2, 2);
  codec.value_group = 32;
  CHECK(mentions(message(ErrorCode::unsupported, codec),
                 "value_group is 32, expected 0 for codebook"));
  codec.value_codec = ValueCodec::grouped;
  codec.value_group = 12;
  CHECK(mentions(message(ErrorCode::unsupported, codec), "value_group is 12"));
  codec = bits(2, 2);
  codec.key_codec = static_cast<KeyCodec>(3);
  CHECK(mentions(message(ErrorCode::invalid_argument, codec), "layers[1].key_codec is 3"));
  codec = bits(2, 2);
  codec.key_centring = static_cast<KeyCentring>(2);
  CHECK(mentions(message(ErrorCode::invalid_argument, codec), "layers[1].key_centring is 2"));
  codec = bits(2, 2);
  codec.value_codec = static_cast<ValueCodec>(255);
  CHECK(mentions(message(ErrorCode::invalid_argument, codec), "layers[1].value_codec is 255"));
}

TEST_CASE("messages name layers only where there are some") {
  const LayerCodec wrong = bits(5, 2);
  const auto starts = [](const std::string& message, const std::string& part) {
    CHECK_MESSAGE(message.rfind(part, 0) == 0, message);
  };
  constexpr ErrorCode code = ErrorCode::unsupported;
  const std::string rest = "key_bits is 5, expected 2, 3 or 4 for mse keys";
  starts(error_of(code, [&] { (void)slot_bytes(wrong, 64, 64); }), "slot_bytes: " + rest);
  starts(error_of(code, [&] { (void)cache_codec(wrong); }), "cache_codec: " + rest);
  starts(error_of(code, [&] { (void)uniform_plan(4, wrong); }), "uniform_plan: " + rest);
  starts(error_of(code, [&] { require_valid(wrong); }), "LayerCodec: " + rest);
  starts(error_of(code, [&] { require_valid(wrong, "caller", 7); }), "caller: layers[7]." + rest);
}

TEST_CASE("pages hold the slots of tiles, for every preset and every width that tiles have") {
  std::int64_t num_odd = 0;
  for (const CacheCodec& preset : cache_presets) {
    CAPTURE(preset.name);
    const LayerCodec codec = layer_codec(preset);
    for (std::int64_t dim = 16; dim <= 576; dim += 8) {
      if (preset.value_group != 0 && dim % preset.value_group != 0) {
        continue;  // no tile has a group that ends before the values do
      }
      CAPTURE(dim);
      const std::int64_t tile = slot_bytes(codec, dim, dim);
      const std::int64_t page = TurboQuantConfig(preset, dim).slot_size_aligned();
      // Published pages have one byte more where a slot is odd; others, and pages planned with the
      // codec of the tiles, have none.
      REQUIRE(page == tile + (preset.even_slot ? tile % 2 : 0));
      REQUIRE(TurboQuantConfig(cache_codec(codec), dim).slot_size_aligned() == tile);
      num_odd += preset.even_slot ? tile % 2 : 0;
    }
  }
  CHECK(num_odd == 35);
}

TEST_CASE("sizes that do not fit are refused") {
  for (const std::int64_t dim : {-8, 0, 8, 20, 100, 584}) {
    CHECK(mentions(error_of(ErrorCode::unsupported, [&] { (void)slot_bytes(bits(3, 3), dim, 64); }),
                   "key_dim is " + std::to_string(dim)));
    CHECK(mentions(error_of(ErrorCode::unsupported, [&] { (void)slot_bytes(bits(3, 3), 64, dim); }),
                   "value_dim is " + std::to_string(dim)));
  }
  LayerCodec codec = bits(3, 3, ValueCodec::grouped);
  codec.value_group = 48;
  CHECK(mentions(error_of(ErrorCode::unsupported, [&] { (void)slot_bytes(codec, 64, 64); }),
                 "value_group is 48, expected a divisor of value_dim = 64"));
  const BitPlan plan = uniform_plan(2, bits(3, 3));
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max() / 100;
  CHECK(mentions(error_of(ErrorCode::overflow,
                          [&] {
                            const std::vector<LayerShape> shapes(2, {huge, 128, 128});
                            (void)bytes_per_token(plan, shapes);
                          }),
                 "64-bit limit"));
  const std::vector<LayerShape> one{{8, 128, 128}};
  CHECK(mentions(error_of(ErrorCode::shape_mismatch, [&] { (void)bytes_per_token(plan, one); }),
                 "shapes.size() is 1, expected that of the plan's layers, 2"));
  CHECK(mentions(error_of(ErrorCode::invalid_argument,
                          [&] { (void)layer_bytes_per_token(bits(3, 3), LayerShape{}); }),
                 "kv_heads is 0"));
  CHECK(mentions(error_of(ErrorCode::invalid_argument,
                          [&] {
                            (void)layer_bytes_per_token({}, LayerShape{-1, 64, 64});
                          }),
                 "kv_heads is -1"));
  CHECK(mentions(error_of(ErrorCode::invalid_argument,
                          [&] {
                            (void)layer_bytes_per_token({}, LayerShape{1, 64, 64}, 0);
                          }),
                 "element_bytes is 0"));
  const auto refuse_shape = [](LayerShape shape, std::string_view part,
                               ErrorCode code = ErrorCode::invalid_argument) {
    const std::string message = error_of(code, [&] { (void)layer_bytes_per_token({}, shape); });
    CHECK_MESSAGE(mentions(message, "layer_bytes_per_token: " + std::string(part)), message);
  };
  refuse_shape({1, -64, 64}, "key_dim is -64");
  refuse_shape({1, 64, -64}, "value_dim is -64");
  refuse_shape({1, 0, 64}, "key_dim is 0");
  refuse_shape({1, 64, 0}, "value_dim is 0");
  refuse_shape({0, -64, 64}, "key_dim is -64");
  refuse_shape({0, 64, -64}, "value_dim is -64");
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  refuse_shape({most, 64, 64}, "kv_heads is " + std::to_string(most), ErrorCode::overflow);
  refuse_shape({1, most, 64}, "key_dim is " + std::to_string(most), ErrorCode::overflow);
  refuse_shape({most / 128, 64, 64}, "numbers of a token is", ErrorCode::overflow);
  CHECK(layer_bytes_per_token({}, LayerShape{}) == 0);
  const std::vector<LayerShape> half{{8, 64, 64}, {8, 64, -64}};
  CHECK(mentions(error_of(ErrorCode::invalid_argument,
                          [&] {
                            (void)bytes_per_token({{std::nullopt, std::nullopt}}, half);
                          }),
                 "layer 1: "));
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [] { (void)uniform_plan(10'001, {}); }),
                 "num_layers is 10001"));
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [] { (void)uniform_plan(-1, {}); }),
                 "num_layers is -1"));
}
