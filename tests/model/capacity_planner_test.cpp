#include <turboquant/model/capacity_planner.hpp>
#include <turboquant/model/hf_config.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>

#include <cstdint>
#include <string>
#include <vector>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

/// Qwen3.5-35B-A3B: 10 of 40 layers attend, the others are gated delta nets.
const std::string qwen35 =
    R"({"model_type":"qwen3_5_moe","text_config":{"model_type":"qwen3_5_moe_text",)"
    R"("num_hidden_layers":40,"full_attention_interval":4,"hidden_size":2048,)"
    R"("num_attention_heads":16,"num_key_value_heads":2,"head_dim":256,"linear_num_key_heads":16,)"
    R"("linear_num_value_heads":32,"linear_key_head_dim":128,"linear_value_head_dim":128,)"
    R"("linear_conv_kernel_dim":4,"mamba_ssm_dtype":"float32","dtype":"bfloat16",)"
    R"("mtp_num_hidden_layers":1}})";

PlanOptions options_for(std::string_view preset, std::int64_t context = 131072) {
  PlanOptions options;
  if (!preset.empty()) {
    options.codec = find_cache_preset(preset);
  }
  options.memory_bytes = std::int64_t{80} << 30;
  options.context_tokens = context;
  return options;
}

const LayerClass& class_named(const CachePlan& plan, std::string_view part) {
  for (const LayerClass& c : plan.classes) {
    if (mentions(c.name, part)) {
      return c;
    }
  }
  FAIL("no class named ", std::string(part));
  return plan.classes.front();
}

}  // namespace

TEST_CASE("36 dense layers, k3v4, four of them bf16: 3.165x") {
  const CachePlan plan = plan_cache(dense_model(36, 8, 128), options_for("turboquant_k3v4_nc"));
  CHECK(plan.kv_ratio() == doctest::Approx(36.0 * 512 / (32 * 118 + 4 * 512)));
  CHECK(plan.kv_ratio() == doctest::Approx(3.165).epsilon(1e-4));
  CHECK(plan.total_ratio() == plan.kv_ratio());
  CHECK(plan.num_compressed_layers == 32);
  CHECK(plan.summary() == "compresses 32 of 36 layers; KV 3.16x");
  CHECK(class_named(plan, "skipped").layers == std::vector<std::int64_t>{0, 1, 34, 35});
}

TEST_CASE("Qwen3.5-35B-A3B: 10 of 40 layers; 31 % saved when states are 60 % of the cache") {
  const ModelConfig model = parse_model_config(qwen35);
  // 30 states of 2146304 bytes against 10 layers of 2048 bytes a token.
  const CachePlan plan = plan_cache(model, options_for("turboquant_k3v4_nc", 2096));
  CHECK(plan.num_compressed_layers == 10);
  CHECK(plan.num_layers == 40);
  CHECK(plan.state_bytes == 30 * 2146304);
  CHECK(plan.dense_kv_bytes == 2096 * 10 * 2048);
  const double share = static_cast<double>(plan.state_bytes) /
                       static_cast<double>(plan.state_bytes + plan.dense_kv_bytes);
  CHECK(share == doctest::Approx(0.6).epsilon(1e-3));
  CHECK(1.0 - 1.0 / plan.total_ratio() == doctest::Approx(0.31).epsilon(2e-3));
  CHECK(plan.kv_ratio() == doctest::Approx(1024.0 / 230.0));
  CHECK(plan.summary() == "compresses 10 of 40 layers; KV 4.45x; total with recurrent state 1.45x");
  CHECK(model.mtp_layers == std::vector<std::int64_t>{40});
}

TEST_CASE("block sizes of the shared pool are the published ones") {
  const ModelConfig model = parse_model_config(qwen35);
  const auto attention_block = [&](PlanOptions options) {
    const CachePlan plan = plan_cache(model, options);
    return plan.pool(UnificationStrategy::lcm).pages.classes.back().block_size;
  };
  const auto options = [&](std::string_view preset, std::int64_t speculative) {
    PlanOptions o = options_for(preset);
    o.num_speculative_tokens = speculative;
    return o;
  };
  CHECK(attention_block(options("", 0)) == 1056);
  CHECK(attention_block(options("turboquant_k8v4", 0)) == 2768);
  CHECK(attention_block(options("turboquant_k8v4", 3)) == 2832);
  CHECK(attention_block(options("turboquant_4bit_nc", 0)) == 4096);

  // Qwen3.8-27B with an fp8 cache and 7 speculative tokens.
  ModelConfig large = model;
  large.recurrent->num_heads = 48;
  for (LayerConfig& layer : large.layers) {
    if (layer.attention == AttentionKind::full) {
      layer.num_kv_heads = 4;
    }
  }
  PlanOptions fp8 = options("", 7);
  fp8.dense_dtype = CacheDType::float8_e4m3;
  const CachePlan plan = plan_cache(large, fp8);
  CHECK(plan.pool(UnificationStrategy::lcm).pages.classes.back().block_size == 1648);
  PlanOptions bf16 = options("", 0);
  CHECK(plan_cache(large, bf16).pool(UnificationStrategy::lcm).pages.classes.back().block_size ==
        784);
  large.recurrent->num_heads = 32;
  CHECK(plan_cache(large, bf16).pool(UnificationStrategy::lcm).pages.classes.back().block_size ==
        528);
}

TEST_CASE("skipped layers of a hybrid: the LCM page is large, the alternatives are not") {
  const ModelConfig model = parse_model_config(qwen35);
  PlanOptions options = options_for("turboquant_k8v4");
  options.skip_layers = {"3"};
  const CachePlan plan = plan_cache(model, options);
  CHECK(plan.num_compressed_layers == 9);
  const PoolPlan& lcm = plan.pool(UnificationStrategy::lcm);
  CHECK(*lcm.pages.page_size_bytes == 3178496);
  const PoolPlan& padded = plan.pool(UnificationStrategy::padded);
  CHECK(*padded.pages.page_size_bytes == 2162688);
  CHECK(padded.mean_bytes_per_sequence < lcm.mean_bytes_per_sequence);
  const PoolPlan& pools = plan.pool(UnificationStrategy::separate_pools);
  CHECK(pools.mean_bytes_per_sequence < padded.mean_bytes_per_sequence);
  // At full length the padded pool wastes little; in short contexts its large pages do not pay.
  CHECK(plan.recommended == UnificationStrategy::padded);
  options.context_tokens = 8192;
  CHECK(plan_cache(model, options).recommended == UnificationStrategy::separate_pools);
  for (const std::string_view part : {"lcm", "padded", "separate_pools", "%"}) {
    CHECK(mentions(plan.reason, part));
  }
}

TEST_CASE("capacity follows from the bytes of a sequence") {
  for (const std::string_view preset : {"turboquant_k3v4_nc", "turboquant_k8v4", "tq_k2v2"}) {
    for (const std::int64_t context : {1, 17, 4096, 131072}) {
      for (const bool hybrid : {false, true}) {
        const ModelConfig model = hybrid ? parse_model_config(qwen35) : dense_model(32, 8, 128);
        const CachePlan plan = plan_cache(model, options_for(preset, context));
        for (const PoolPlan& pool : plan.pools) {
          REQUIRE(pool.available);
          const std::int64_t memory = std::int64_t{80} << 30;
          REQUIRE(pool.capacity_sequences * pool.bytes_per_sequence <= memory);
          REQUIRE((pool.capacity_sequences + 1) * pool.bytes_per_sequence > memory);
          // Tokens count the share of a sequence that does not fit whole.
          REQUIRE(pool.capacity_tokens / context == pool.capacity_sequences);
          REQUIRE(pool.longest_sequence >= context);
          REQUIRE(pool.waste >= 0.0);
          REQUIRE(pool.waste < 1.0);
          REQUIRE(pool.mean_bytes_per_sequence <=
                  static_cast<double>(pool.bytes_per_sequence) * 1.0001);
        }
        const PoolPlan& best = plan.pool(plan.recommended);
        REQUIRE(best.mean_bytes_per_sequence <=
                plan.pool(UnificationStrategy::padded).mean_bytes_per_sequence * 1.02);
        REQUIRE(plan.kv_bytes < plan.dense_kv_bytes);
      }
    }
  }
}

TEST_CASE("mean bytes equal the average over every length") {
  const std::string windowed =
      R"({"num_hidden_layers":3,"layer_types":["sliding_attention","full_attention",)"
      R"("sliding_attention"],"sliding_window":128,"num_attention_heads":4,"head_dim":64})";
  for (const std::string& text : {qwen35, windowed}) {
    const ModelConfig model = parse_model_config(text);
    PlanOptions options = options_for("turboquant_k8v4", 3000);
    options.mamba_cache_mode = MambaCacheMode::all;
    options.mamba_chunk_size = 64;
    options.max_num_batched_tokens = 500;
    options.boundary_layers = 0;
    const CachePlan plan = plan_cache(model, options);
    PoolProblem problem;
    problem.memory_bytes = options.memory_bytes;
    problem.limits = {3000, options.max_num_batched_tokens, options.mamba_cache_mode};
    const PoolPlan& pool = plan.pool(UnificationStrategy::padded);
    double sum = 0.0;
    for (std::int64_t tokens = 1; tokens <= 3000; ++tokens) {
      detail::SizeArithmetic sizes("test");
      sum +=
          static_cast<double>(detail::sequence_bytes(plan.classes, pool, problem, tokens, sizes));
      REQUIRE_FALSE(sizes.exceeded());
    }
    CHECK(pool.mean_bytes_per_sequence == doctest::Approx(sum / 3000.0).epsilon(1e-12));
    CHECK(pool.prefix_granularity.has_value());
  }
  // Window 128 and 500 tokens a step: 627 tokens resident in 40 pages, and one page more.
  PlanOptions options = options_for("turboquant_k8v4", 3008);
  options.max_num_batched_tokens = 500;
  options.boundary_layers = 0;
  const CachePlan plan = plan_cache(parse_model_config(windowed), options);
  const std::int64_t dense_page = 16 * 4 * 64 * 2 * 2;
  CHECK(plan.pool(UnificationStrategy::separate_pools).bytes_per_sequence ==
        2 * 41 * dense_page + 188 * 16 * 4 * 100);
}

TEST_CASE("prefix caching needs states at boundaries") {
  const ModelConfig model = parse_model_config(qwen35);
  PlanOptions options = options_for("turboquant_k8v4");
  CHECK_FALSE(plan_cache(model, options).pool(UnificationStrategy::lcm).prefix_granularity);
  options.mamba_cache_mode = MambaCacheMode::align;
  CHECK(plan_cache(model, options).pool(UnificationStrategy::lcm).prefix_granularity == 2768);
  const CachePlan dense = plan_cache(dense_model(36, 8, 128), options_for("turboquant_k3v4_nc"));
  CHECK(dense.pool(UnificationStrategy::separate_pools).prefix_granularity == 16);
  CHECK(dense.pool(UnificationStrategy::padded).prefix_granularity == 64);
  CHECK(dense.pool(UnificationStrategy::lcm).prefix_granularity == 59 * 4096);
}

TEST_CASE("what short prompts cost is reported") {
  PlanOptions options = options_for("turboquant_k8v4");
  options.prompt_lengths = {12, 7000};
  options.recurrent_state_bytes = 12651904;
  const CachePlan plan = plan_cache(parse_model_config(qwen35), options);
  const PoolPlan& lcm = plan.pool(UnificationStrategy::lcm);
  CHECK(lcm.pages.classes.back().block_size == 16304);
  REQUIRE(lcm.prompts.size() == 2);
  // Ten attention pages and thirty states of one page each.
  CHECK(lcm.prompts[0].allocated_bytes == 40 * std::int64_t{12651904});
  CHECK(lcm.prompts[0].used_fraction ==
        doctest::Approx((10.0 * 12 * 776 + 30.0 * 12651904) / (40.0 * 12651904)));
  const PoolPlan& pools = plan.pool(UnificationStrategy::separate_pools);
  CHECK(pools.prompts[0].allocated_bytes == 10 * 12416 + 30 * std::int64_t{12651904});
  options.prompt_lengths = {0};
  error_of(ErrorCode::invalid_argument,
           [&] { (void)plan_cache(parse_model_config(qwen35), options); });
}

TEST_CASE("windowed layers cost their window") {
  const ModelConfig model = parse_model_config(
      R"({"model_type":"gemma3_text","num_hidden_layers":6,"sliding_window":1024,)"
      R"("num_attention_heads":8,"num_key_value_heads":4,"head_dim":256,"dtype":"bfloat16"})");
  PlanOptions options = options_for("turboquant_4bit_nc", 65536);
  options.boundary_layers = 0;
  const CachePlan plan = plan_cache(model, options);
  CHECK(plan.num_compressed_layers == 1);
  CHECK(plan.kv_bytes == 5 * 1024 * 4096 + 65536 * 4 * 262);
  CHECK(plan.dense_kv_bytes == 5 * 1024 * 4096 + 65536 * 4096);
  // Boundary protection of all layers reaches the last one, the only full-attention layer.
  options.boundary_layers = 1;
  error_of(ErrorCode::unsupported, [&] { (void)plan_cache(model, options); });
}

TEST_CASE("a tensor-parallel rank plans its share") {
  const ModelConfig model = parse_model_config(qwen35);
  PlanOptions options = options_for("turboquant_k8v4");
  const CachePlan whole = plan_cache(model, options);
  options.tensor_parallel = 2;
  const CachePlan half = plan_cache(model, options);
  CHECK(2 * half.kv_bytes == whole.kv_bytes);
  CHECK(2 * half.state_bytes == whole.state_bytes);
  options.tensor_parallel = 4;  // two KV heads on four ranks: replicated
  CHECK(plan_cache(model, options).kv_bytes == half.kv_bytes);
}

TEST_CASE("a plan that compresses nothing is an error that says why") {
  const auto refusal = [](const std::string& text, PlanOptions options) {
    return error_of(ErrorCode::unsupported,
                    [&] { (void)plan_cache(parse_model_config(text), options); });
  };
  const PlanOptions options = options_for("turboquant_k3v4_nc");
  const std::string mamba = R"({"model_type":"mamba2","num_hidden_layers":4,"num_heads":128,)"
                            R"("head_dim":64,"n_groups":1,"state_size":128,"conv_kernel":4})";
  CHECK(mentions(refusal(mamba, options), "no attention layer"));
  CHECK(mentions(refusal(R"({"model_type":"mistral","num_hidden_layers":2,"sliding_window":64,)"
                         R"("num_attention_heads":4,"num_key_value_heads":4,"head_dim":64})",
                         options),
                 "only a window"));
  CHECK(mentions(refusal(R"({"num_hidden_layers":4,"kv_lora_rank":512,"qk_rope_head_dim":64,)"
                         R"("num_attention_heads":4})",
                         options),
                 "latents"));
  CHECK(mentions(
      refusal(R"({"num_hidden_layers":4,"num_attention_heads":4,"head_dim":64})", options),
      "every full-attention layer is skipped, by skip_layers or the boundary protection of "
      "boundary_layers"));
  // Without a codec the same models can be planned.
  CHECK(plan_cache(parse_model_config(mamba), options_for("")).kv_bytes == 0);
}

TEST_CASE("equal pages need no unification") {
  PlanOptions options = options_for("turboquant_k3v4_nc");
  options.boundary_layers = 0;
  const CachePlan plan = plan_cache(dense_model(36, 8, 128), options);
  CHECK(plan.recommended == UnificationStrategy::lcm);
  CHECK(mentions(plan.reason, "equal already"));
  CHECK(plan.pool(plan.recommended).pages.unchanged);
  CHECK(plan.kv_ratio() == doctest::Approx(512.0 / 118.0));
}

TEST_CASE("three layers keep the middle one compressed") {
  const CachePlan plan = plan_cache(dense_model(3, 8, 128), options_for("turboquant_k3v4_nc"));
  CHECK(plan.skip.layers == std::vector<std::int64_t>{0, 2});
  CHECK(plan.num_compressed_layers == 1);
}

TEST_CASE("a window that holds the whole context is planned as full attention") {
  const ModelConfig mistral = parse_model_config(
      R"({"model_type":"mistral","num_hidden_layers":32,"num_attention_heads":32,)"
      R"("num_key_value_heads":8,"head_dim":128,"sliding_window":4096})");
  const ModelConfig dense = dense_model(32, 8, 128);
  for (const std::int64_t context : {1, 4095, 4096}) {
    const PlanOptions options = options_for("turboquant_k3v4_nc", context);
    const CachePlan plan = plan_cache(mistral, options);
    CHECK(plan.num_compressed_layers == 28);
    CHECK(plan.kv_bytes == plan_cache(dense, options).kv_bytes);
    CHECK(plan.dense_kv_bytes == plan_cache(dense, options).dense_kv_bytes);
    REQUIRE(plan.notes.size() == 1);
    CHECK(mentions(plan.notes[0], "32 layers have a window of at least"));
    CHECK(plan_cache(dense, options).notes.empty());
  }
  CHECK(mentions(error_of(ErrorCode::unsupported,
                          [&] { (void)plan_cache(mistral, options_for("tq_k3v4", 4097)); }),
                 "shorter than context_tokens"));
  CHECK(mistral.layers[0].attention == AttentionKind::sliding);
}

TEST_CASE("chunked attention is planned like a window of a chunk, and the plan says so") {
  ModelConfig model = dense_model(8, 8, 128);
  for (const std::size_t layer : {1U, 2U, 5U}) {
    model.layers[layer].attention = AttentionKind::sliding;
    model.layers[layer].window = 512;
  }
  const CachePlan sliding = plan_cache(model, options_for("turboquant_k3v4_nc", 4096));
  CHECK(sliding.notes.empty());
  for (const std::size_t layer : {1U, 2U, 5U}) {
    model.layers[layer].attention = AttentionKind::chunked;
  }
  const CachePlan chunked = plan_cache(model, options_for("turboquant_k3v4_nc", 4096));
  REQUIRE(chunked.notes.size() == 1);
  CHECK(mentions(chunked.notes[0], "3 layers have chunked attention"));
  CHECK(chunked.kv_bytes == sliding.kv_bytes);
  CHECK(chunked.pools[0].capacity_tokens == sliding.pools[0].capacity_tokens);
  CHECK(std::get<SlidingWindowSpec>(chunked.caches[2].attention).chunked);
  CHECK_FALSE(std::get<SlidingWindowSpec>(sliding.caches[2].attention).chunked);
  // No chunk ends within the context.
  CHECK_FALSE(
      mentions(plan_cache(model, options_for("turboquant_k3v4_nc", 512)).notes.at(0), "chunked"));
}

TEST_CASE("a layer's own codec goes before boundary protection, not before a user's skip list") {
  const ModelConfig model = dense_model(32, 8, 128);
  PlanOptions options = options_for("turboquant_k3v4_nc");
  for (const std::int64_t layer : {0, 1, 15, 30, 31}) {
    options.layer_codecs = {{layer, find_cache_preset("turboquant_k8v4")}};
    const CachePlan plan = plan_cache(model, options);
    CHECK(class_named(plan, "turboquant_k8v4").layers == std::vector<std::int64_t>{layer});
    CHECK(plan.num_compressed_layers == (layer == 15 ? 28 : 29));
    options.skip_layers = {std::to_string(layer)};
    CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)plan_cache(model, options); }),
                   "gives layer " + std::to_string(layer) + " the codec"));
    options.skip_layers.clear();
  }
}

TEST_CASE("Gemma 3n: the last layers own no cache, so that theirs is compressed") {
  const CachePlan plan = plan_cache(parse_model_config(R"({"model_type":"gemma3n_text"})"),
                                    options_for("turboquant_k3v4_nc", 32768));
  // Layers 4, 9, 14 and 19, and 24, 29 and 34, which read the last of them.
  CHECK(plan.num_compressed_layers == 7);
  CHECK(plan.skip.layers == std::vector<std::int64_t>{0, 1});
}

TEST_CASE("RecurrentGemma and RWKV 4 are counted, without anything to compress") {
  const ModelConfig gemma = parse_model_config(
      R"({"model_type":"recurrent_gemma","num_hidden_layers":26,"hidden_size":2560,)"
      R"("num_attention_heads":10,"num_key_value_heads":1,"head_dim":256,"lru_width":2560,)"
      R"("attention_window_size":2048,"block_types":["recurrent","recurrent","attention"]})");
  const CachePlan plan = plan_cache(gemma, options_for("", 8192));
  CHECK(plan.state_bytes == 18 * 2560 * (3 * 2 + 4));
  CHECK(plan.kv_bytes == 8 * 2048 * 256 * 2 * 2);
  CHECK(mentions(error_of(ErrorCode::unsupported,
                          [&] { (void)plan_cache(gemma, options_for("tq_k3v4", 8192)); }),
                 "only a window"));
  const ModelConfig rwkv =
      parse_model_config(R"({"model_type":"rwkv","num_hidden_layers":12,"hidden_size":768})");
  CHECK(plan_cache(rwkv, options_for("")).state_bytes == 12 * 768 * (2 * 2 + 3 * 4));
}

TEST_CASE("options outside their domain") {
  const ModelConfig model = parse_model_config(qwen35);
  const auto refuse = [&](auto change, std::string_view part,
                          ErrorCode code = ErrorCode::invalid_argument) {
    PlanOptions options = options_for("turboquant_k8v4");
    change(options);
    const std::string message = error_of(code, [&] { (void)plan_cache(model, options); });
    CHECK_MESSAGE(mentions(message, part), message);
  };
  refuse([](auto& o) { o.memory_bytes = 0; }, "memory_bytes");
  refuse([](auto& o) { o.memory_bytes = -1; }, "memory_bytes");
  refuse([](auto& o) { o.context_tokens = 0; }, "context_tokens");
  refuse([](auto& o) { o.context_tokens = INT64_MAX; }, "context_tokens", ErrorCode::out_of_range);
  refuse([](auto& o) { o.block_size = 17; }, "block_size is 17");
  refuse([](auto& o) { o.block_size = 0; }, "block_size");
  refuse([](auto& o) { o.kernel_alignment = -16; }, "kernel_alignment");
  refuse([](auto& o) { o.tensor_parallel = 3; }, "tensor_parallel = 3");
  refuse([](auto& o) { o.tensor_parallel = INT64_MIN; }, "tensor_parallel");
  refuse([](auto& o) { o.boundary_layers = -1; }, "n is -1");
  refuse([](auto& o) { o.num_speculative_tokens = -1; }, "num_speculative_tokens");
  refuse([](auto& o) { o.max_num_batched_tokens = 0; }, "max_num_batched_tokens");
  refuse([](auto& o) { o.mamba_chunk_size = 0; }, "mamba_chunk_size");
  refuse([](auto& o) { o.pools_threshold = 1.0; }, "pools_threshold");
  refuse([](auto& o) { o.skip_layers = {"1"}; }, "skip layer is 1, a recurrent layer");
  refuse([](auto& o) { o.skip_layers = {"40"}; }, "skip layer is 40", ErrorCode::out_of_range);
  refuse([](auto& o) { o.skip_layers = {"all"}; }, "\"all\"");
  refuse([](auto& o) { o.recurrent_state_bytes = 0; }, "recurrent_state_bytes");
  refuse([](auto& o) { o.recurrent_state_bytes = INT64_MAX; }, "recurrent_state_bytes is 92",
         ErrorCode::overflow);
}

TEST_CASE("an option outside its domain is an error even where the model has no use for it") {
  const ModelConfig model = dense_model(8, 8, 128);
  const auto refuse = [&](auto change, std::string_view part,
                          ErrorCode code = ErrorCode::invalid_argument) {
    PlanOptions options = options_for("turboquant_k8v4");
    change(options);
    const std::string message = error_of(code, [&] { (void)plan_cache(model, options); });
    CHECK_MESSAGE(mentions(message, part), message);
  };
  refuse([](auto& o) { o.num_speculative_tokens = -1; }, "num_speculative_tokens is -1");
  refuse([](auto& o) { o.recurrent_state_bytes = -1; }, "recurrent_state_bytes is -1");
  refuse([](auto& o) { o.mamba_cache_mode = static_cast<MambaCacheMode>(7); },
         "mamba_cache_mode is 7");
  refuse([](auto& o) { o.block_policy = static_cast<BlockPolicy>(7); }, "block_policy is 7");
  refuse([](auto& o) { o.dense_dtype = static_cast<CacheDType>(7); }, "dense_dtype is 7");
  refuse([](auto& o) { o.codec->key_codec = static_cast<KeyCodec>(7); }, "key_codec is 7");
  refuse([](auto& o) { o.prompt_lengths = {12, 0}; }, "prompt length is 0");
  for (const std::int64_t huge : {INT64_MAX, INT64_MAX / 16}) {
    const auto over = ErrorCode::overflow;
    refuse([&](auto& o) { o.memory_bytes = INT64_MAX; }, "memory_bytes is 92", over);
    refuse([&](auto& o) { o.block_size = huge / 16 * 16; }, "block_size is ", over);
    refuse([&](auto& o) { o.num_speculative_tokens = huge; }, "num_speculative_tokens is", over);
    refuse([&](auto& o) { o.prompt_lengths = {huge}; }, "prompt length is", over);
    refuse([&](auto& o) { o.max_num_batched_tokens = huge; }, "max_num_batched_tokens", over);
  }
  const CachePlan plan = plan_cache(model, options_for("turboquant_k8v4"));
  CHECK(mentions(error_of(ErrorCode::invalid_argument,
                          [&] { (void)plan.pool(static_cast<UnificationStrategy>(3)); }),
                 "strategy is 3"));
}

TEST_CASE("a model without an attention cache has no ratio to report") {
  ModelConfig model;
  model.layers.resize(3);
  for (LayerConfig& layer : model.layers) {
    layer.has_recurrent_state = true;
  }
  PlanOptions options = options_for("");
  options.recurrent_state_bytes = 4096;
  const CachePlan plan = plan_cache(model, options);
  CHECK(plan.kv_ratio() == 1.0);
  CHECK(plan.total_ratio() == 1.0);
  CHECK(plan.summary() ==
        "compresses 0 of 3 layers; no attention cache; total with recurrent state 1.00x");
  CHECK(CachePlan{}.kv_ratio() == 1.0);
  CHECK(CachePlan{}.total_ratio() == 1.0);
}

TEST_CASE("heads that the codec cannot encode are not planned") {
  for (const std::int64_t width : {std::int64_t{1}, std::int64_t{2}, std::int64_t{65537}}) {
    const ModelConfig model = dense_model(8, 8, width);
    CHECK(mentions(error_of(ErrorCode::unsupported,
                            [&] { (void)plan_cache(model, options_for("turboquant_k3v4_nc")); }),
                   "head_size " + std::to_string(width)));
    CHECK(plan_cache(model, options_for("")).kv_ratio() == 1.0);
  }
  CHECK(plan_cache(dense_model(8, 8, 3), options_for("turboquant_k3v4_nc")).num_compressed_layers ==
        4);
}

TEST_CASE("states of models without attention are kept at chunk ends") {
  // Mamba-Codestral-7B: 64 layers of 128 heads of 64, 8 groups, 128 states, chunks of 256 tokens.
  const std::string text =
      R"({"model_type":"mamba2","num_hidden_layers":64,"hidden_size":4096,"num_heads":128,)"
      R"("head_dim":64,"n_groups":8,"state_size":128,"conv_kernel":4,"expand":2,"chunk_size":256})";
  const ModelConfig model = parse_model_config(text);
  const auto states_of_a_layer = [&](const PlanOptions& options, std::int64_t every) {
    const CachePlan plan = plan_cache(model, options);
    for (const PoolPlan& pool : plan.pools) {
      CHECK(pool.bytes_per_sequence % plan.state_bytes == 0);
      CHECK(pool.bytes_per_sequence / plan.state_bytes ==
            (options.mamba_cache_mode == MambaCacheMode::align ? 2 : 131072 / every));
      CHECK(pool.prefix_granularity == every);
    }
  };
  PlanOptions options = options_for("");
  options.mamba_cache_mode = MambaCacheMode::all;
  states_of_a_layer(options, 256);
  options.mamba_chunk_size = 128;
  states_of_a_layer(options, 128);
  options.block_size = 1024;
  states_of_a_layer(options, 1024);
  options = options_for("");
  options.mamba_cache_mode = MambaCacheMode::align;
  states_of_a_layer(options, 16);
  options.block_size = 64;
  states_of_a_layer(options, 64);

  // Large states fit 64 bits when they are few.
  ModelConfig large;
  large.layers.assign(3, LayerConfig{.has_recurrent_state = true});
  options = options_for("");
  options.mamba_cache_mode = MambaCacheMode::all;
  options.recurrent_state_bytes = std::int64_t{1} << 40;
  CHECK(plan_cache(large, options).pool(UnificationStrategy::lcm).bytes_per_sequence ==
        3 * 512 * (std::int64_t{1} << 40));
}

TEST_CASE("a strategy that exceeds 64 bits does not spoil the plan") {
  ModelConfig model = dense_model(60, 1, 128);
  const std::int64_t heads[] = {37, 31, 29, 23, 19, 17, 13, 11, 7, 5};
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    model.layers[i].num_kv_heads = heads[i % 10];
  }
  const CachePlan plan = plan_cache(model, options_for("turboquant_k3v4_nc"));
  const PoolPlan& lcm = plan.pool(UnificationStrategy::lcm);
  CHECK_FALSE(lcm.available);
  CHECK(mentions(lcm.unavailable_because, "64-bit limit") !=
        mentions(lcm.unavailable_because, "2^63"));
  CHECK(plan.pool(UnificationStrategy::padded).available);
  CHECK(plan.pool(UnificationStrategy::separate_pools).available);
  CHECK(plan.recommended != UnificationStrategy::lcm);
  CHECK(plan.baseline.available);
  CHECK(mentions(plan.reason, "lcm: not available, " + lcm.unavailable_because));
  CHECK(plan.num_compressed_layers == 56);

  // Only what no strategy can hold is an error, which says why of each.
  const std::string message = error_of(ErrorCode::overflow, [] {
    PlanOptions options = options_for("", 1 << 20);
    (void)plan_cache(dense_model(10000, 1 << 20, 1 << 10), options);
  });
  for (const std::string_view part : {"lcm: ", "padded: ", "separate_pools: ", "1048576 tokens"}) {
    CHECK_MESSAGE(mentions(message, part), message);
  }
}

TEST_CASE("the longest sequence is found up to the documented limits") {
  for (const std::string_view preset : {"", "turboquant_k3v4_nc"}) {
    PlanOptions options = options_for(preset, 1 << 20);
    options.memory_bytes = std::int64_t{1} << 60;
    const CachePlan plan = plan_cache(dense_model(10000, 1024, 1024), options);
    for (const PoolPlan& pool : plan.pools) {
      CHECK(pool.available);
      const double bytes_per_token =
          static_cast<double>(pool.bytes_per_sequence) / static_cast<double>(1 << 20);
      CHECK(static_cast<double>(pool.longest_sequence) ==
            doctest::Approx(static_cast<double>(options.memory_bytes) / bytes_per_token)
                .epsilon(0.05));
    }
  }
  ModelConfig windows = dense_model(2, 1, 1);
  for (LayerConfig& layer : windows.layers) {
    layer.attention = AttentionKind::sliding;
    layer.window = 16;
  }
  const CachePlan plan = plan_cache(windows, options_for(""));
  CHECK(plan.pool(plan.recommended).longest_sequence == std::int64_t{1} << 32);
}

TEST_CASE("models filled in by hand are checked before anything is computed") {
  const auto refuse = [](auto change, std::string_view part,
                         ErrorCode code = ErrorCode::invalid_argument) {
    ModelConfig model = dense_model(32, 8, 128);
    change(model);
    const std::string message =
        error_of(code, [&] { (void)plan_cache(model, options_for("turboquant_k3v4_nc")); });
    CHECK_MESSAGE(mentions(message, part), message);
  };
  for (const std::int64_t window : {INT64_MIN, std::int64_t{-1}, std::int64_t{0}}) {
    refuse(
        [&](ModelConfig& m) {
          m.layers[5].attention = AttentionKind::sliding;
          m.layers[5].window = window;
        },
        "plan_cache: window of layer 5 is " + std::to_string(window));
  }
  refuse([](ModelConfig& m) { m.layers.resize(20000, m.layers[0]); },
         "plan_cache: the model has 20000 layers, expected at most 10000");
  refuse([](ModelConfig& m) { m.layers[5].kv_source = 9; },
         "plan_cache: kv_source of layer 5 is 9");
  refuse(
      [](ModelConfig& m) {
        m.layers[5].is_mla = true;
        m.mla = MlaGeometry{INT64_MAX, 3, {}, {}};
      },
      "kv_lora_rank is 92", ErrorCode::overflow);
  const auto refuse_codec = [](auto change, std::string_view part) {
    PlanOptions options = options_for("turboquant_k3v4_nc");
    change(*options.codec);
    CHECK(mentions(error_of(ErrorCode::invalid_argument,
                            [&] { (void)plan_cache(dense_model(8, 8, 128), options); }),
                   part));
  };
  refuse_codec(
      [](CacheCodec& c) {
        c.value_codec = ValueCodec::codebook;
        c.value_group = 32;
      },
      "value_group is 32");
  refuse_codec(
      [](CacheCodec& c) {
        c.key_codec = KeyCodec::float8;
        c.key_bits = 8;
      },
      "norm_correction is 1");
  // A layer without attention is not compressed by what its kv_source names.
  ModelConfig model = dense_model(8, 2, 64);
  model.layers[5] = LayerConfig{.kv_source = 4};
  PlanOptions options = options_for("tq_k3v4", 4096);
  options.boundary_layers = 0;
  CHECK(mentions(plan_cache(model, options).summary(), "compresses 7 of 8 layers"));
}
