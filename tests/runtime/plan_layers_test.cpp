// A planned cache as the layers of a manager.

#include "runtime/runtime_test_support.hpp"

#include <turboquant/model/capacity_planner.hpp>
#include <turboquant/runtime/plan_layers.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <vector>

using namespace runtime_test;
using cache_test::contains;
using cache_test::error_of;
using namespace turboquant;

namespace {

LayerConfig full_layer(std::int64_t heads, std::int64_t size) {
  LayerConfig layer;
  layer.attention = AttentionKind::full;
  layer.num_kv_heads = heads;
  layer.head_size = size;
  return layer;
}

/// Full layers, one that reads the cache of another, a window and a recurrent layer.
ModelConfig mixed_model() {
  ModelConfig model;
  model.layers.assign(8, full_layer(2, 64));
  model.layers[3].kv_source = 2;
  model.layers[4].attention = AttentionKind::sliding;
  model.layers[4].window = 50;
  model.layers[5] = {};
  model.layers[5].has_recurrent_state = true;
  return model;
}

PlanOptions plan_options(const char* preset) {
  PlanOptions options;
  options.codec = find_cache_preset(preset);
  options.memory_bytes = std::int64_t{1} << 30U;
  options.context_tokens = 4096;
  options.recurrent_state_bytes = 1000;
  options.skip_layers = {"0", "7"};
  return options;
}

}  // namespace

TEST_CASE("every planned layer becomes the layer that it says") {
  const CachePlan plan = plan_cache(mixed_model(), plan_options("tq_k3v4"));
  CaptureOptions defaults;
  defaults.window_capacity = 32;
  defaults.sinks = 4;
  const std::vector<LayerOptions> layers = planned_layers(plan.caches, defaults, 9);
  REQUIRE(layers.size() == 8);
  for (const std::size_t exact : {0U, 4U, 7U}) {
    CHECK(!layers[exact].codec);
    CHECK(layers[exact].capture.shape == KVShape{2, 64, 64});
  }
  CHECK(layers[4].capture.sliding_window == 50);
  for (const std::size_t compressed : {1U, 2U, 6U}) {
    REQUIRE(layers[compressed].codec);
    const TileFormat& format = layers[compressed].codec->format;
    CHECK(format.tile_tokens == 16);
    CHECK(layers[compressed].capture.block_size == 16);
    CHECK(layers[compressed].codec->seed == 9);
    CHECK(layers[compressed].capture.sinks == 4);
    // A page of the plan has room for the tiles.
    const auto& spec = std::get<TQFullAttentionSpec>(plan.caches[compressed].attention);
    CHECK(std::int64_t(CompressedKVStore<Host>::page_bytes(format, 2, 16)) <=
          spec.page_size_bytes());
  }
  CHECK(layers[3].source == std::optional<std::int64_t>(2));
  CHECK(!layers[5].has_cache);
}

TEST_CASE("a manager of planned layers attends in all of them") {
  for (const char* preset : {"tq_k4v4", "k3v4", "turboquant_k8v4"}) {
    const CachePlan plan = plan_cache(mixed_model(), plan_options(preset));
    CaptureOptions defaults;
    defaults.window_capacity = 32;
    const std::vector<LayerOptions> layers = planned_layers(plan.caches, defaults);
    Manager<float> manager({.layers = layers});
    const auto id = manager.open();
    const Tokens<float> tokens(3, 0, 333, {2, 64, 64});
    for (const std::int64_t i : {0, 1, 2, 4, 6, 7}) {
      append(manager, i, id, tokens, 0, 333);
      CHECK(attention_error(manager, i, id, 1, 4, layers[std::size_t(i)]) < 5e-4);
    }
  }
}

TEST_CASE("planned layers take any bit plan and keep their pages and tiles") {
  for (const std::int64_t block_size : {16, 32, 48, 64, 128}) {
    PlanOptions options = plan_options("tq_k3v4");
    options.block_size = block_size;
    CaptureOptions defaults;
    defaults.window_capacity = 32;
    const auto planned = planned_layers(plan_cache(mixed_model(), options).caches, defaults);
    BitPlan plan = uniform_plan(8, {.key_bits = 3, .value_bits = 3});
    plan.layers[3].reset();
    plan.layers[4].reset();
    plan.layers[5].reset();
    const auto layers = with_bit_plan(planned, plan);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      CHECK(layers[i].capture.block_size == planned[i].capture.block_size);
      if (planned[i].codec) {
        CHECK(layers[i].codec->format.tile_tokens == planned[i].codec->format.tile_tokens);
        CHECK(layers[i].codec->format.value_bits == 3);
      }
    }
    Manager<float> manager({.layers = layers});
    const auto id = manager.open();
    const Tokens<float> tokens(3, 0, 333, {2, 64, 64});
    for (const std::int64_t i : {0, 1, 4, 7}) {
      append(manager, i, id, tokens, 0, 333);
      CHECK(attention_error(manager, i, id, 1, 4, layers[std::size_t(i)]) < 5e-4);
    }
  }
}

TEST_CASE("chunked attention is planned and refused as a layer of a manager") {
  ModelConfig model = mixed_model();
  model.layers[4].attention = AttentionKind::chunked;
  const CachePlan plan = plan_cache(model, plan_options("tq_k3v4"));
  CHECK(contains(error_of([&] { static_cast<void>(planned_layers(plan.caches)); }),
                 "planned_layers: caches[4]: it has chunked attention over chunks of 50 tokens, "
                 "expected a sliding window or full attention"));
  // A chunk that holds the context is full attention.
  model.layers[4].window = 4096;
  CHECK(planned_layers(plan_cache(model, plan_options("tq_k3v4")).caches)[4].codec.has_value());
}

TEST_CASE("a layer that sees less of a shared cache than its owner is refused") {
  ModelConfig model = mixed_model();
  model.layers[6].kv_source = 2;
  const auto refusal = [&] {
    return error_of([&] {
      static_cast<void>(planned_layers(plan_cache(model, plan_options("tq_k3v4")).caches));
    });
  };
  CHECK(refusal() == "no error");
  for (const AttentionKind kind : {AttentionKind::sliding, AttentionKind::chunked}) {
    model.layers[6].attention = kind;
    model.layers[6].window = 50;
    CHECK(contains(refusal(),
                   "planned_layers: caches[6]: it sees 50 tokens of the cache of layer 2, which "
                   "sees more, expected the same"));
  }
  // The window of its owner.
  model.layers[6].attention = AttentionKind::sliding;
  model.layers[6].kv_source = 4;
  CHECK(refusal() == "no error");
  model.layers[6].window = 49;
  CHECK(contains(refusal(), "caches[6]: it sees 49 tokens of the cache of layer 4"));
}

TEST_CASE("what a manager cannot hold is refused with its layer") {
  ModelConfig latent;
  latent.layers.assign(1, full_layer(1, 64));
  latent.layers[0].is_mla = true;
  latent.mla = MlaGeometry{512, 64, {}, {}};
  CHECK(contains(
      error_of([&] { static_cast<void>(planned_layers(assign_layer_caches(latent, {}))); }),
      "planned_layers: caches[0]: it keeps a latent of 576 numbers"));
  ModelConfig plain;
  plain.layers.assign(2, full_layer(2, 64));
  LayerCacheOptions options;
  options.codec = find_cache_preset("tq_k3v4");
  options.block_size = 24;
  CHECK(contains(
      error_of([&] { static_cast<void>(planned_layers(assign_layer_caches(plain, options))); }),
      "caches[0]: largest_tile: block_size is 24, expected a positive multiple of 16"));
  options.block_size = 16;
  options.codec = find_cache_preset("tq_k3v4_mean");
  CHECK(contains(
      error_of([&] { static_cast<void>(planned_layers(assign_layer_caches(plain, options))); }),
      "tile_tokens is 16, expected 64 with key_centring tile_mean"));
  plain.layers[1].head_size = 100;
  options.codec = find_cache_preset("tq_k3v4");
  CHECK(contains(
      error_of([&] { static_cast<void>(planned_layers(assign_layer_caches(plain, options))); }),
      "planned_layers: caches[1]: "));
}
