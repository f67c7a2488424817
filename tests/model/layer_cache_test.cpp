#include <turboquant/model/layer_class.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>

#include <cstdint>
#include <set>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

const TQFullAttentionSpec* compressed(const LayerCache& cache) {
  return std::get_if<TQFullAttentionSpec>(&cache.attention);
}

LayerCacheOptions with_preset(std::string_view name) {
  LayerCacheOptions options;
  options.codec = find_cache_preset(name);
  return options;
}

/// Full and windowed layers in turn; the last `shared` ones read earlier caches.
ModelConfig alternating(std::int64_t num_layers, std::int64_t shared) {
  ModelConfig model = dense_model(num_layers, 2, 256);
  for (std::int64_t i = 0; i < num_layers; ++i) {
    LayerConfig& layer = model.layers[static_cast<std::size_t>(i)];
    if (i % 2 == 0) {
      layer.attention = AttentionKind::sliding;
      layer.window = 512;
    }
    if (i >= num_layers - shared) {
      const std::int64_t last_owner = num_layers - shared - 1;
      layer.kv_source = last_owner - (last_owner % 2 == i % 2 ? 0 : 1);
    }
  }
  return model;
}

}  // namespace

TEST_CASE("the bytes and the backend are one choice") {
  // A compressed spec has no element type and a dense one always has a concrete type, so neither a
  // skipped layer of unknown type nor a compressed layer on the default backend can be written.
  static_assert(std::is_same_v<decltype(FullAttentionSpec::dtype), CacheDType>);
  static_assert(!std::is_default_constructible_v<TQFullAttentionSpec>);
  const ModelConfig model = dense_model(8, 8, 128);
  LayerCacheOptions options = with_preset("turboquant_k3v4_nc");
  options.skip = merge_skip_layers(std::vector<std::string>{"sliding_window"},
                                   get_boundary_skip_layers(model));
  const std::vector<LayerCache> caches = assign_layer_caches(model, options);
  REQUIRE(caches.size() == 8);
  const std::set<std::size_t> skipped{0, 1, 6, 7};
  for (std::size_t i = 0; i < caches.size(); ++i) {
    CHECK(caches[i].skipped == (skipped.count(i) == 1));
    if (caches[i].skipped) {
      CHECK(attention_backend(caches[i].attention) == "default");
      CHECK(std::get<FullAttentionSpec>(caches[i].attention).dtype == CacheDType::bfloat16);
    } else {
      CHECK(attention_backend(caches[i].attention) == "turboquant");
      REQUIRE(compressed(caches[i]) != nullptr);
      CHECK(compressed(caches[i])->config.name() == "turboquant_k3v4_nc");
    }
  }
  const std::vector<LayerClass> classes = classify_layers(caches);
  REQUIRE(classes.size() == 2);
  CHECK(classes[0].skipped);
  CHECK(classes[0].layers == std::vector<std::int64_t>{0, 1, 6, 7});
  CHECK(classes[1].compressed);
  CHECK(classes[1].num_layers() == 4);
  CHECK(classes[1].page_size_bytes() == 15104);
}

TEST_CASE("skipped layers use the model's element type, or the one asked for") {
  ModelConfig model = dense_model(4, 8, 128);
  model.dtype = CacheDType::float16;
  LayerCacheOptions options = with_preset("turboquant_4bit_nc");
  options.skip.layers = {1};
  CHECK(std::get<FullAttentionSpec>(assign_layer_caches(model, options)[1].attention).dtype ==
        CacheDType::float16);
  options.dense_dtype = CacheDType::float8_e4m3;
  CHECK(std::get<FullAttentionSpec>(assign_layer_caches(model, options)[1].attention).dtype ==
        CacheDType::float8_e4m3);
}

TEST_CASE("windows stay exact and bounded") {
  const auto caches = assign_layer_caches(alternating(6, 0), with_preset("turboquant_k8v4"));
  for (std::size_t i = 0; i < caches.size(); ++i) {
    CHECK((compressed(caches[i]) != nullptr) == (i % 2 == 1));
    CHECK(std::holds_alternative<SlidingWindowSpec>(caches[i].attention) == (i % 2 == 0));
  }
}

TEST_CASE("skipping the target of a shared cache skips its readers, and the other way round") {
  const ModelConfig model = alternating(10, 4);  // layers 6..9 read 4 (windowed) and 5 (full)
  CHECK(model.cache_owner(7) == 5);
  CHECK(model.cache_owner(8) == 4);
  LayerCacheOptions options = with_preset("turboquant_k8v4");
  for (const std::int64_t skip : {5, 7, 9}) {
    options.skip.layers = {skip};
    const auto caches = assign_layer_caches(model, options);
    CHECK(caches[5].skipped);
    CHECK(caches[7].skipped);
    CHECK(caches[9].skipped);
    CHECK_FALSE(caches[3].skipped);
    CHECK(std::holds_alternative<FullAttentionSpec>(caches[5].attention));
    CHECK(std::get<SharedCache>(caches[9].attention).source == 5);
    CHECK(compressed(caches[3]) != nullptr);
  }
  options.skip.layers.clear();
  // Readers cost nothing: only layers 0..5 are in a class.
  std::int64_t owners = 0;
  for (const LayerClass& c : classify_layers(assign_layer_caches(model, options))) {
    owners += c.num_layers();
  }
  CHECK(owners == 6);
}

TEST_CASE("skip entries are absolute and must name a layer with attention") {
  ModelConfig model = dense_model(8, 2, 256);
  for (const std::size_t i : {0U, 1U, 2U, 4U, 5U, 6U}) {
    model.layers[i] = LayerConfig{.has_recurrent_state = true};
  }
  LayerCacheOptions options = with_preset("turboquant_k8v4");
  options.recurrent_state_bytes = 2146304;
  options.skip.layers = {3};
  const auto caches = assign_layer_caches(model, options);
  CHECK(caches[3].skipped);
  CHECK(compressed(caches[7]) != nullptr);
  CHECK(caches[0].state->page_size_bytes() == 2146304);
  options.skip.layers = {1};
  CHECK(mentions(
      error_of(ErrorCode::invalid_argument, [&] { (void)assign_layer_caches(model, options); }),
      "skip layer is 1, a recurrent layer"));
  options.skip.layers = {8};
  error_of(ErrorCode::out_of_range, [&] { (void)assign_layer_caches(model, options); });
  options.skip.layers.clear();
  options.skip.names = {"windows"};
  CHECK(mentions(
      error_of(ErrorCode::invalid_argument, [&] { (void)assign_layer_caches(model, options); }),
      "sliding_window"));
}

TEST_CASE("parallel hybrids keep a token cache and a state in every layer") {
  ModelConfig model = dense_model(4, 2, 128);
  for (LayerConfig& layer : model.layers) {
    layer.has_recurrent_state = true;
  }
  LayerCacheOptions options = with_preset("turboquant_3bit_nc");
  options.recurrent_state_bytes = 1000;
  for (const LayerCache& cache : assign_layer_caches(model, options)) {
    CHECK(compressed(cache) != nullptr);
    CHECK(cache.state.has_value());
  }
  const auto classes = classify_layers(assign_layer_caches(model, options));
  REQUIRE(classes.size() == 2);
  CHECK(classes[0].num_layers() == 4);
  CHECK(classes[1].is_state());
}

TEST_CASE("latents are not compressed") {
  ModelConfig model = dense_model(2, 32, 72);
  model.mla = MlaGeometry{512, 64, 128, 128};
  for (LayerConfig& layer : model.layers) {
    layer.is_mla = true;
  }
  const auto caches = assign_layer_caches(model, with_preset("turboquant_k3v4_nc"));
  CHECK(std::get<MLAAttentionSpec>(caches[0].attention).head_size == 576);
  CHECK(attention_backend(caches[0].attention) == "default");
}

TEST_CASE("bits of single layers") {
  const ModelConfig model = dense_model(4, 8, 128);
  const int key_bits[] = {4, 3, 3, 2};
  const int value_bits[] = {4, 2, 3, 8};
  LayerCacheOptions options = with_preset("turboquant_k3v4_nc");
  for (int i = 0; i < 4; ++i) {
    CacheCodec codec;
    codec.name = "custom";
    codec.key_bits = key_bits[i];
    codec.value_bits = value_bits[i];
    options.layer_codecs.emplace_back(i, codec);
  }
  const auto caches = assign_layer_caches(model, options);
  for (std::size_t i = 0; i < caches.size(); ++i) {
    const std::int64_t slot = 128 * key_bits[i] / 8 + 2 + 128 * value_bits[i] / 8 + 4;
    REQUIRE(compressed(caches[i]) != nullptr);
    CHECK(compressed(caches[i])->page_size_bytes() == 16 * 8 * slot);
    CHECK(compressed(caches[i])->config.n_centroids() == 1 << key_bits[i]);
  }
  CHECK(classify_layers(caches).size() == 4);
  options.layer_codecs.emplace_back(4, CacheCodec{});
  error_of(ErrorCode::out_of_range, [&] { (void)assign_layer_caches(model, options); });
  options.layer_codecs = {{0, CacheCodec{.name = "x"}}};
  error_of(ErrorCode::invalid_argument,
           [&] { (void)assign_layer_caches(alternating(4, 0), options); });
}

TEST_CASE("a layer has one codec, and none where it is skipped") {
  const ModelConfig model = dense_model(4, 8, 128);
  LayerCacheOptions options = with_preset("turboquant_k3v4_nc");
  const auto refusal = [&] {
    return error_of(ErrorCode::invalid_argument,
                    [&] { (void)assign_layer_caches(model, options); });
  };
  const CacheCodec k8v4 = find_cache_preset("turboquant_k8v4");
  for (std::int64_t layer = 0; layer < 4; ++layer) {
    options.layer_codecs = {{layer, k8v4}, {layer, k8v4}};
    CHECK(mentions(refusal(), "names layer " + std::to_string(layer) + " twice"));
    options.layer_codecs = {{layer, k8v4}};
    options.skip.layers = {layer};
    CHECK(mentions(refusal(), "gives layer " + std::to_string(layer) + " the codec"));
    options.skip.layers = {(layer + 1) % 4};
    CHECK(compressed(assign_layer_caches(model, options)[static_cast<std::size_t>(layer)])
              ->config.name() == "turboquant_k8v4");
    options.skip = {};
  }
  // Skipping a reader skips what it reads.
  const ModelConfig shared = alternating(10, 4);
  options.layer_codecs = {{5, k8v4}};
  options.skip.layers = {9};
  CHECK(mentions(
      error_of(ErrorCode::invalid_argument, [&] { (void)assign_layer_caches(shared, options); }),
      "gives layer 5 the codec"));
}

TEST_CASE("heads are shared among ranks or replicated") {
  LayerCacheOptions options = with_preset("turboquant_k3v4_nc");
  const auto heads = [&](std::int64_t kv_heads, std::int64_t ranks) {
    options.tensor_parallel = ranks;
    return compressed(assign_layer_caches(dense_model(1, kv_heads, 128), options)[0])->num_kv_heads;
  };
  CHECK(heads(8, 1) == 8);
  CHECK(heads(8, 4) == 2);
  CHECK(heads(2, 8) == 1);
  error_of(ErrorCode::invalid_argument, [&] { (void)heads(6, 4); });
  error_of(ErrorCode::invalid_argument, [&] { (void)heads(8, 0); });
  error_of(ErrorCode::invalid_argument, [&] { (void)heads(8, -1); });
}

TEST_CASE("missing widths are named") {
  ModelConfig model = dense_model(1, 8, 128);
  model.layers[0].head_size.reset();
  const auto assign = [&] { (void)assign_layer_caches(model, with_preset("k3v4")); };
  CHECK(mentions(error_of(ErrorCode::invalid_argument, assign), "head_size"));
  model.layers[0].num_kv_heads.reset();
  CHECK(mentions(error_of(ErrorCode::invalid_argument, assign), "num_kv_heads"));
  model.layers[0] =
      LayerConfig{.attention = AttentionKind::sliding, .num_kv_heads = 8, .head_size = 128};
  CHECK(mentions(error_of(ErrorCode::invalid_argument, assign), "window"));
  model.layers[0] = LayerConfig{.has_recurrent_state = true};
  CHECK(mentions(error_of(ErrorCode::invalid_argument, assign), "recurrent_state_bytes"));
  model.layers[0] = LayerConfig{.attention = AttentionKind::full, .kv_source = 5};
  error_of(ErrorCode::out_of_range, assign);
}

TEST_CASE("layers that cannot be are refused by name") {
  const auto refuse = [](auto change, std::string_view part,
                         ErrorCode code = ErrorCode::invalid_argument) {
    ModelConfig model = alternating(10, 0);
    change(model);
    const std::string message =
        error_of(code, [&] { (void)assign_layer_caches(model, with_preset("turboquant_k8v4")); });
    CHECK_MESSAGE(mentions(message, part), message);
  };
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-7}, INT64_MIN}) {
    for (const std::size_t layer : {std::size_t{0}, std::size_t{5}}) {
      for (const AttentionKind kind :
           {AttentionKind::full, AttentionKind::sliding, AttentionKind::chunked}) {
        refuse(
            [&](ModelConfig& m) {
              m.layers[layer].attention = kind;
              m.layers[layer].window = bad;
            },
            "window of layer " + std::to_string(layer) + " is " + std::to_string(bad));
      }
    }
  }
  refuse([](ModelConfig& m) { m.layers[5].attention = static_cast<AttentionKind>(9); },
         "attention of layer 5 is 9");
  refuse([](ModelConfig& m) { m.layers.resize(10001, m.layers[0]); }, "has 10001 layers");
  refuse([](ModelConfig& m) { m.layers[5].num_kv_heads = INT64_MAX; }, "layer 5: TQFullAtt",
         ErrorCode::overflow);
  refuse([](ModelConfig& m) { m.layers[4].head_size = INT64_MAX; }, "layer 4: SlidingWin",
         ErrorCode::overflow);
  const auto latent = [&](MlaGeometry geometry, std::string_view part,
                          ErrorCode code = ErrorCode::invalid_argument) {
    refuse(
        [&](ModelConfig& m) {
          m.layers[5].is_mla = true;
          m.mla = geometry;
        },
        part, code);
    // Nothing adds widths up unchecked.
    error_of(code, [&] {
      (void)geometry.latent_width();
      (void)geometry.expanded_key_width();
    });
  };
  latent({INT64_MAX, 3, {}, {}}, "kv_lora_rank is 92", ErrorCode::overflow);
  latent({-5, 3, {}, {}}, "kv_lora_rank is -5");
  latent({512, -3, {}, {}}, "qk_rope_head_dim is -3");
  const MlaGeometry wide{1, 3, INT64_MAX, {}};
  CHECK(mentions(error_of(ErrorCode::overflow, [&] { (void)wide.expanded_key_width(); }),
                 "qk_nope_head_dim is 92"));
}

TEST_CASE("classes of specs outside their domain name the layer") {
  std::vector<LayerCache> caches =
      assign_layer_caches(alternating(4, 0), with_preset("turboquant_k8v4"));
  auto& window = std::get<SlidingWindowSpec>(caches[2].attention);
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-7}, INT64_MIN}) {
    window.sliding_window = bad;
    CHECK(mentions(
        error_of(ErrorCode::invalid_argument, [&] { (void)classify_layers(caches); }),
        "classify_layers: layer 2: SlidingWindowSpec: sliding_window is " + std::to_string(bad)));
  }
  window.sliding_window = 512;
  window.block_size = INT64_MAX;
  CHECK(mentions(error_of(ErrorCode::overflow, [&] { (void)classify_layers(caches); }),
                 "classify_layers: layer 2: SlidingWindowSpec: block_size is"));
  window.block_size = 16;
  caches[3].state = MambaSpec{};
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)classify_layers(caches); }),
                 "classify_layers: layer 3: MambaSpec: arrays is empty"));
}

TEST_CASE("a layer reads only caches that it can read") {
  // Layers 0, 2, ... are windowed, 1, 3, ... full.
  const auto refuse = [](std::int64_t reader, std::int64_t source, auto change,
                         std::string_view part, ErrorCode code = ErrorCode::invalid_argument) {
    ModelConfig model = alternating(10, 0);
    model.layers[static_cast<std::size_t>(reader)].kv_source = source;
    change(model.layers);
    const std::string message =
        error_of(code, [&] { (void)assign_layer_caches(model, with_preset("turboquant_k8v4")); });
    CHECK_MESSAGE(mentions(message, "of layer " + std::to_string(reader) + " is "), message);
    CHECK_MESSAGE(mentions(message, part), message);
  };
  const auto nothing = [](std::vector<LayerConfig>&) {};
  refuse(5, -1, nothing, "owns its cache", ErrorCode::out_of_range);
  refuse(5, 10, nothing, "owns its cache", ErrorCode::out_of_range);
  refuse(5, 7, nothing, "kv_source of layer 5 is 7, expected an earlier layer");
  refuse(
      5, 3, [](auto& layers) { layers[3] = LayerConfig{}; }, "a layer with attention");
  refuse(
      5, 3, [](auto& layers) { layers[3] = LayerConfig{.has_recurrent_state = true}; },
      "a layer with attention");
  refuse(5, 4, nothing, "a layer that keeps all tokens");
  refuse(
      4, 2, [](auto& layers) { layers[4].window = 513; }, "a layer that keeps all tokens");
  refuse(
      4, 2, [](auto& layers) { layers[2].attention = AttentionKind::chunked; },
      "a layer that keeps all tokens");
  refuse(
      5, 3, [](auto& layers) { layers[3].is_mla = true; }, "latents");
  refuse(
      5, 3, [](auto& layers) { layers[5].head_size = 64; }, "expected 256 as in layer 3");
  refuse(
      5, 3, [](auto& layers) { layers[5].head_size_v = 64; }, "head_size_v of layer 5 is 64");
  refuse(
      5, 3, [](auto& layers) { layers[5].num_kv_heads = 4; }, "num_kv_heads of layer 5 is 4");

  const auto accept = [](std::int64_t reader, std::int64_t source, auto change) {
    ModelConfig model = alternating(10, 0);
    model.layers[static_cast<std::size_t>(reader)].kv_source = source;
    change(model.layers);
    const auto caches = assign_layer_caches(model, with_preset("turboquant_k8v4"));
    CHECK(std::get<SharedCache>(caches[static_cast<std::size_t>(reader)].attention).source ==
          source);
  };
  accept(5, 3, nothing);
  // Where a reader sees fewer tokens than its source does, its cache says how many.
  const auto window_of = [](std::int64_t reader, std::int64_t source, auto change) {
    ModelConfig model = alternating(10, 0);
    model.layers[static_cast<std::size_t>(reader)].kv_source = source;
    change(model.layers);
    const auto caches = assign_layer_caches(model, with_preset("turboquant_k8v4"));
    return std::get<SharedCache>(caches[static_cast<std::size_t>(reader)].attention).window;
  };
  CHECK(window_of(5, 3, nothing) == std::nullopt);
  CHECK(window_of(4, 2, nothing) == std::nullopt);
  CHECK(window_of(4, 3, nothing) == 512);
  CHECK(window_of(4, 2, [](auto& layers) { layers[4].window = 100; }) == 100);
  CHECK(window_of(4, 3, [](auto& layers) { layers[4].attention = AttentionKind::chunked; }) == 512);
  accept(4, 3, nothing);  // a window of what a full layer keeps
  accept(4, 2, nothing);
  accept(4, 2, [](auto& layers) { layers[4].window = 100; });
  accept(5, 3, [](auto& layers) {
    layers[5].num_kv_heads.reset();
    layers[5].head_size.reset();
    layers[3].head_size_v = 256;
  });

  // Without attention there is nothing to read.
  ModelConfig model = alternating(10, 0);
  model.layers[5] = LayerConfig{.kv_source = 3};
  CHECK(model.cache_owner(5) == 5);
  CHECK(std::holds_alternative<std::monostate>(
      assign_layer_caches(model, with_preset("turboquant_k8v4"))[5].attention));
  LayerCacheOptions skipping = with_preset("turboquant_k8v4");
  skipping.skip.layers = {5};
  CHECK_FALSE(assign_layer_caches(model, skipping)[3].skipped);
}

TEST_CASE("ranks share query heads evenly") {
  ModelConfig model = dense_model(2, 2, 128);
  model.num_attention_heads = 12;
  LayerCacheOptions options = with_preset("turboquant_k8v4");
  for (const std::int64_t ranks : {1, 2, 4, 6, 12}) {
    options.tensor_parallel = ranks;
    CHECK(compressed(assign_layer_caches(model, options)[0])->num_kv_heads == (ranks == 1 ? 2 : 1));
  }
  for (const std::int64_t ranks : {8, 16, 24}) {
    options.tensor_parallel = ranks;
    CHECK(mentions(
        error_of(ErrorCode::invalid_argument, [&] { (void)assign_layer_caches(model, options); }),
        "num_attention_heads is 12, expected a multiple of tensor_parallel = " +
            std::to_string(ranks)));
  }
}
