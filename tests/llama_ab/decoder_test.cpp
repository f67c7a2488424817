// The decoder on a small model: against a plain forward pass in double precision, in every mode of
// the cache, whatever the chunks; perplexity and hidden facts on it.

#include "../../examples/llama_ab/decoder.hpp"
#include "../../examples/llama_ab/calibration.hpp"
#include "../../examples/llama_ab/needles.hpp"
#include "../../examples/llama_ab/perplexity.hpp"
#include "gguf_writer.hpp"
#include "reference_model.hpp"

#include <io/safetensors_writer.hpp>
#include <support/error_of.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

using namespace turboquant;
using namespace turboquant::test;
using namespace llama_ab;

namespace {

Model load(const SmallModel& small) {
  const std::string bytes = small.writer().bytes();
  return load_model(GgufFile(as_bytes(bytes), "m.gguf"));
}

std::vector<TokenId> random_ids(std::size_t count, std::uint64_t stream = 0) {
  const CounterRng rng(9, stream);
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<TokenId>(rng.bits64(i) % SmallModel::vocabulary));
  }
  return ids;
}

/// Logits of all tokens through a cache, in chunks; the last `single` one by one.
std::vector<float> run(const Model& model, SequenceCache& cache, const std::vector<TokenId>& ids,
                       std::size_t chunk, std::size_t single = 0) {
  Decoder decoder(model, Exec());
  std::vector<float> all;
  for (std::size_t at = 0; at < ids.size();) {
    const bool decode = at + single >= ids.size();
    const std::size_t count = decode ? 1 : std::min(chunk, ids.size() - single - at);
    const auto logits =
        decoder.forward(cache, std::span(ids).subspan(at, count), static_cast<std::int64_t>(count),
                        decode ? Step::decode : Step::prefill);
    all.insert(all.end(), logits.begin(), logits.end());
    at += count;
  }
  return all;
}

std::vector<float> run(const Model& model, const std::string& plan, CacheMode mode,
                       const std::vector<TokenId>& ids, std::size_t chunk, std::size_t single = 0) {
  const auto cache = make_cache(model.config, parse_plan(plan, model.config), mode, Exec());
  return run(model, *cache, ids, chunk, single);
}

/// Attention that differs in its last bits makes keys and values of later layers round to bfloat16
/// otherwise, now and then.
constexpr double rounding = 0.01;

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::fmax(largest, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return largest;
}

}  // namespace

TEST_CASE("logits are those of a plain forward pass in double precision") {
  for (const SmallModel& small :
       {SmallModel{}, SmallModel{.layers = 1, .query_heads = 2, .kv_heads = 2, .type = 8},
        SmallModel{
            .layers = 3, .feed_forward = 160, .kv_heads = 1, .type = 8, .own_output = true}}) {
    const Model model = load(small);
    const std::vector<TokenId> ids = random_ids(40);
    const Rows expected = reference_logits(model, ids);
    double size = 0;
    double error = 0;
    const std::vector<float> logits = run(model, "f32", CacheMode::off, ids, 16, 3);
    for (std::size_t t = 0; t < ids.size(); ++t) {
      for (std::size_t v = 0; v < expected[t].size(); ++v) {
        size = std::fmax(size, std::fabs(expected[t][v]));
        error = std::fmax(
            error,
            std::fabs(expected[t][v] - static_cast<double>(logits[t * expected[t].size() + v])));
      }
    }
    CHECK(size > 1);
    CHECK(error < 1e-5 * size);
  }
}

TEST_CASE("chunks and single steps do not matter where rows are exact") {
  const Model model = load({});
  const std::vector<TokenId> ids = random_ids(150);
  for (const std::string plan : {"bf16", "f32"}) {
    const std::vector<float> whole = run(model, plan, CacheMode::off, ids, ids.size());
    for (const std::size_t chunk : {1U, 7U, 64U}) {
      CHECK(largest_difference(whole, run(model, plan, CacheMode::off, ids, chunk, 5)) <
            (plan == "f32" ? 2e-4 : rounding));
    }
  }
}

TEST_CASE("modes: who computes attention") {
  const Model model = load({});
  const std::vector<TokenId> ids = random_ids(200);
  const std::vector<float> exact = run(model, "bf16", CacheMode::off, ids, 32, 40);
  // While everything is in the exact window, the library's attention is that of the engine.
  for (const CacheMode mode : {CacheMode::hybrid, CacheMode::full_tq}) {
    CHECK(largest_difference(exact, run(model, "tq_k3v3+window=200", mode, ids, 32, 40)) <
          rounding);
    CHECK(largest_difference(
              exact, run(model, "tq_k3v3+window=0+first=1+last=1", mode, ids, 32, 40)) < rounding);
    // Compressed tokens change logits, and more bits change them less.
    const double few = largest_difference(exact, run(model, "tq_k2v2+window=0", mode, ids, 32, 40));
    const double many =
        largest_difference(exact, run(model, "tq_k4v4+window=0", mode, ids, 32, 40));
    CHECK(few > 10 * rounding);
    CHECK(many < few / 2);
  }
  // Where the engine computes, compression changes nothing at all.
  for (const CacheMode mode : {CacheMode::off, CacheMode::capture_only}) {
    CHECK(run(model, "tq_k2v2+window=0", mode, ids, 32, 40) == exact);
  }
  // In mode hybrid prompts are exact and generated tokens are not.
  const std::vector<float> hybrid = run(model, "tq_k2v2+window=0", CacheMode::hybrid, ids, 32, 40);
  const auto prompt = static_cast<std::ptrdiff_t>(160 * SmallModel::vocabulary);
  CHECK(std::equal(hybrid.begin(), hybrid.begin() + prompt, exact.begin()));
  CHECK(!std::equal(hybrid.begin() + prompt, hybrid.end(), exact.begin() + prompt));
}

TEST_CASE("what the modes hold") {
  const Model model = load({});
  const std::vector<TokenId> ids = random_ids(300);
  const std::size_t row_bytes = 2 * 2 * (2 * 16) * ids.size() * 2;  // layers, k and v, heads, bf16
  const auto bytes = [&](const std::string& plan, CacheMode mode, std::size_t single) {
    const auto cache = make_cache(model.config, parse_plan(plan, model.config), mode, Exec());
    static_cast<void>(run(model, *cache, ids, 64, single));
    CHECK(cache->length() == 300);
    return cache->bytes();
  };
  CHECK(bytes("bf16", CacheMode::full_tq, 0) == row_bytes);
  CHECK(bytes("tq_k4v4", CacheMode::off, 0) == row_bytes);
  CHECK(bytes("tq_k4v4", CacheMode::capture_only, 0) > row_bytes);
  CHECK(bytes("tq_k4v4+window=0", CacheMode::hybrid, 0) > row_bytes);
  CHECK(bytes("tq_k4v4+window=0", CacheMode::hybrid, 1) < row_bytes);
  CHECK(bytes("tq_k4v4+window=0", CacheMode::full_tq, 0) < row_bytes);
  CHECK(bytes("tq_k2v2+window=0", CacheMode::full_tq, 0) <
        bytes("tq_k4v4+window=0", CacheMode::full_tq, 0));
}

TEST_CASE("an engine in mode hybrid has no rows for a prompt after it began to generate") {
  const Model model = load({});
  Decoder decoder(model, Exec());
  const auto cache =
      make_cache(model.config, parse_plan("tq_k4v4", model.config), CacheMode::hybrid, Exec());
  const std::vector<TokenId> ids = random_ids(4);
  static_cast<void>(decoder.forward(*cache, ids, 1));
  CHECK(cache->can_prefill());
  static_cast<void>(decoder.forward(*cache, std::span(ids).first(1), 1, Step::decode));
  CHECK(!cache->can_prefill());
  CHECK(mentions(
      error_of(ErrorCode::unsupported, [&] { static_cast<void>(decoder.forward(*cache, ids, 1)); }),
      "expected decode steps"));
}

TEST_CASE("branches leave the trunk as it was") {
  const Model model = load({});
  const std::vector<TokenId> ids = random_ids(180);
  for (const CacheMode mode : {CacheMode::off, CacheMode::full_tq}) {
    const CachePlan plan = parse_plan("tq_k3v3+window=64", model.config);
    const auto untouched = make_cache(model.config, plan, mode, Exec());
    const std::vector<float> expected = run(model, *untouched, ids, 60);
    const auto cache = make_cache(model.config, plan, mode, Exec());
    Decoder decoder(model, Exec());
    std::vector<float> got;
    for (std::size_t at = 0; at < ids.size(); at += 60) {
      for (std::uint64_t stream = 1; stream < 3; ++stream) {
        cache->branch([&] {
          static_cast<void>(decoder.forward(*cache, random_ids(100, stream), 0));
          CHECK(cache->length() == static_cast<std::int64_t>(at) + 100);
        });
        CHECK(cache->length() == static_cast<std::int64_t>(at));
      }
      const auto logits = decoder.forward(*cache, std::span(ids).subspan(at, 60), 60);
      got.insert(got.end(), logits.begin(), logits.end());
    }
    CHECK(got == expected);
  }
}

TEST_CASE("wrong steps are refused and change nothing") {
  const Model model = load({.context = 64});
  Decoder decoder(model, Exec());
  const auto cache =
      make_cache(model.config, parse_plan("tq_k4v4", model.config), CacheMode::full_tq, Exec());
  const auto refused = [&](ErrorCode code, const std::vector<TokenId>& ids, std::int64_t wanted,
                           Step kind = Step::prefill) {
    const std::string message =
        error_of(code, [&] { static_cast<void>(decoder.forward(*cache, ids, wanted, kind)); });
    CHECK(cache->length() == 0);
    return message;
  };
  CHECK(mentions(refused(ErrorCode::out_of_range, {}, 0), "0 tokens"));
  CHECK(mentions(refused(ErrorCode::out_of_range, random_ids(65), 1), "65 tokens after 0"));
  CHECK(mentions(refused(ErrorCode::out_of_range, {1, -1}, 1), "token is -1"));
  CHECK(mentions(refused(ErrorCode::out_of_range, {SmallModel::vocabulary}, 1), "token is 264"));
  CHECK(mentions(refused(ErrorCode::out_of_range, {1, 2}, 3), "wanted is 3"));
  CHECK(mentions(refused(ErrorCode::invalid_argument, {1, 2}, 1, Step::decode), "has 2 tokens"));
}

TEST_CASE("plans") {
  const llama_ab::ModelConfig config{.layers = 4, .kv_heads = 2, .key_dim = 64, .value_dim = 64};
  const CachePlan plan = parse_plan(
      "tq_k3v4+rotated+vb=3+rule=unit+vrule=plain+seed=5+window=64+sinks=4+first=1", config);
  REQUIRE(plan.codec.has_value());
  CHECK(plan.codec->format.key_bits == 3);
  CHECK(plan.codec->format.value_bits == 3);
  CHECK(plan.codec->format.value_codec == ValueCodec::codebook);
  CHECK(plan.codec->key_scale_rule == ScaleRule::unit);
  CHECK(plan.codec->value_scale_rule == ScaleRule::plain);
  const std::vector<LayerOptions> layers = plan.layers(config);
  CHECK(!layers[0].codec.has_value());
  REQUIRE(layers[1].codec.has_value());
  CHECK(layers[1].codec->format == plan.codec->format);
  CHECK(layers[1].codec->seed == 5);
  CHECK(layers[3].capture.window_capacity == 64);
  CHECK(layers[3].capture.sinks == 4);
  CHECK(parse_plan("tq_k3v4+g=16", config).codec->format.value_group == 16);
  CHECK(parse_plan("tq_k3v4+qjl", config).codec->format.key_codec == KeyCodec::inner_product);
  CHECK(parse_plan("bf16", config).exact());
  for (const CacheCodec& preset : cache_presets) {
    CHECK(!parse_plan(preset.name, config).exact());
  }
  for (const char* wrong :
       {"", "nothing", "bf16+window=1", "tq_k3v4+", "tq_k3v4+window", "tq_k3v4+window=-1",
        "tq_k3v4+window=1x", "tq_k3v4+rule=best", "tq_k3v4+odd=1", "tq_k3v4+seed=1e3"}) {
    CHECK(!error_of(ErrorCode::invalid_argument, [&] {
             static_cast<void>(parse_plan(wrong, config));
           }).empty());
  }
  CHECK(mentions(error_of(ErrorCode::unsupported,
                          [&] { static_cast<void>(parse_plan("tq_k3v4+kb=7", config)); }),
                 "key_bits is 7"));
}

TEST_CASE("bit plans from files") {
  const llama_ab::ModelConfig config{.layers = 3, .kv_heads = 2, .key_dim = 64, .value_dim = 64};
  const TemporaryDirectory directory;
  BitPlan bits = uniform_plan(3, {.key_bits = 3, .value_bits = 2});
  bits.layers[1].reset();
  save_bit_plan(directory.file("plan.json"), bits);
  const CachePlan plan =
      parse_plan("@" + directory.file("plan.json") + "+window=64+mean+seed=2", config);
  CHECK(!plan.exact());
  const std::vector<LayerOptions> layers = plan.layers(config);
  CHECK(layers[0].codec->format.key_bits == 3);
  CHECK(layers[0].codec->format.value_bits == 2);
  CHECK(layers[0].codec->format.key_centring == KeyCentring::tile_mean);
  CHECK(layers[0].codec->seed == 2);
  CHECK(layers[0].capture.window_capacity == 64);
  CHECK(!layers[1].codec.has_value());
  CHECK(mentions(error_of(ErrorCode::invalid_argument,
                          [&] {
                            static_cast<void>(
                                parse_plan("@" + directory.file("plan.json") + "+kb=4", config));
                          }),
                 "'kb=4' is unknown or not for a bit plan"));
  CHECK(mentions(error_of(ErrorCode::shape_mismatch,
                          [&] {
                            static_cast<void>(parse_plan(
                                "@" + directory.file("plan.json"),
                                {.layers = 4, .kv_heads = 2, .key_dim = 64, .value_dim = 64}));
                          }),
                 "has 3 layers, expected the model's 4"));
  CHECK(parse_plan("tq_k3v3+mean", config).layers(config)[0].codec->format.key_centring ==
        KeyCentring::tile_mean);
}

TEST_CASE("calibration gives a plan within its budget, no worse than the uniform one") {
  const Model model = load({});
  const std::vector<TokenId> ids = random_ids(160);
  const std::vector<LayerCodec> codecs = default_codec_choices();
  const LayerShape shape{2, 16, 16};
  const LayerCodec budget{.key_bits = 3, .value_bits = 3};
  const std::int64_t bytes = 2 * layer_bytes_per_token(budget, shape);
  const auto errors = llama_ab::detail::prediction_errors(model, Exec(), ids, codecs, 64);
  const auto outputs = llama_ab::detail::attention_errors(model, Exec(), ids, codecs);
  for (const auto& measured : {errors, outputs}) {
    REQUIRE(measured.size() == 2);
    for (const std::vector<double>& row : measured) {
      REQUIRE(row.size() == codecs.size());
      CHECK(row.front() > row.back());  // 2 and 2 bits, 4 and 4 bits
      CHECK(row.back() > 0);
    }
  }
  for (const CalibrateBy by : {CalibrateBy::attention, CalibrateBy::predictions}) {
    const BitAllocation allocation = calibrate(model, Exec(), ids, budget, by, 64);
    CHECK(allocation.bytes <= bytes);
    CHECK(allocation.plan.layers.size() == 2);
    const auto& measured = by == CalibrateBy::attention ? outputs : errors;
    const auto uniform =
        static_cast<std::size_t>(std::find(codecs.begin(), codecs.end(), budget) - codecs.begin());
    CHECK(allocation.error <= measured[0][uniform] + measured[1][uniform]);
    CHECK(plan_text(allocation.plan).rfind("keys ", 0) == 0);
  }
}

TEST_CASE("in the shadow of capture_only, attention is compared and not changed") {
  const Model model = load({});
  const std::vector<TokenId> ids = random_ids(201);
  const auto measured = [&](const std::string& plan, double share) {
    return measure_perplexity(
        model, Exec(), ids, {parse_plan(plan, model.config)},
        {.chunk = 64, .decode_tokens = 40, .mode = CacheMode::capture_only, .shadow = share})[1];
  };
  const PerplexityRow none = measured("tq_k2v2+window=0", 0);
  CHECK(none.shadow.steps == 40);
  CHECK(none.shadow.sampled_steps == 0);
  const PerplexityRow coarse = measured("tq_k2v2+window=0", 1);
  const PerplexityRow fine = measured("tq_k4v4+window=0", 1);
  for (const PerplexityRow* row : {&coarse, &fine}) {
    CHECK(row->all().loss == none.all().loss);
    CHECK(row->all().kl() == none.all().kl());
    CHECK(row->shadow.sampled_steps == 40);
    REQUIRE(row->shadow.layers.size() == 2);
    CHECK(row->shadow.layers[1].rows == 40 * 4);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(fine.shadow.layers[i].output_error > 0);
    CHECK(coarse.shadow.layers[i].output_error > 2 * fine.shadow.layers[i].output_error);
  }
}

TEST_CASE("perplexity, divergence and agreement") {
  const Model model = load({});
  const std::vector<TokenId> ids = random_ids(201);
  const std::vector<CachePlan> plans{parse_plan("bf16", model.config),
                                     parse_plan("tq_k4v4+window=0", model.config),
                                     parse_plan("tq_k2v2+window=0", model.config)};
  const auto rows =
      measure_perplexity(model, Exec(), ids, plans, {.chunk = 32, .decode_tokens = 20});
  REQUIRE(rows.size() == 4);
  // The first two by hand, from a plain forward pass.
  const Rows logits = reference_logits(model, {ids.begin(), ids.end() - 1});
  double loss = 0;
  for (std::size_t t = 0; t + 1 < ids.size(); ++t) {
    double sum = 0;
    for (const double logit : logits[t]) {
      sum += std::exp(logit);
    }
    loss += std::log(sum) - logits[t][static_cast<std::size_t>(ids[t + 1])];
  }
  const double perplexity = std::exp(loss / 200);
  for (const std::size_t i : {0U, 1U}) {
    const PredictionSums sums = rows[i].all();
    CHECK(sums.count == 200);
    CHECK(rows[i].decode.count == 20);
    CHECK(sums.perplexity() == doctest::Approx(perplexity).epsilon(0.01));
    CHECK(sums.delta() == 0);
    CHECK(sums.top1() == 1);
    CHECK(std::fabs(sums.kl()) < 1e-6);
  }
  CHECK(rows[2].all().kl() > 1e-5);
  CHECK(rows[3].all().kl() > 2 * rows[2].all().kl());
  CHECK(rows[3].all().top1() < 1);
  CHECK(rows[3].all().delta() ==
        doctest::Approx(rows[3].all().perplexity() / rows[0].all().perplexity() - 1));
  CHECK(rows[3].bytes < rows[2].bytes);
}

TEST_CASE("haystacks hold every needle once, and answers follow their questions") {
  GgufWriter writer;
  SmallModel::add_tokenizer(writer);
  const std::string bytes = writer.bytes();
  const GgufFile file(as_bytes(bytes), "t.gguf");
  const Tokenizer tokenizer(file);
  const std::vector<TokenId> filler = tokenizer.encode(std::string(6000, 'x'));
  const Haystack haystack = make_haystack(tokenizer, filler, 3000, 1);
  CHECK(haystack.tokens.size() + 96 == 3000);
  const std::string text = tokenizer.decode(haystack.tokens);
  REQUIRE(haystack.facts.size() == needle_facts.size());
  std::size_t last = 0;
  for (const Question& question : haystack.facts) {
    const std::string fact = tokenizer.decode(question.prompt);
    const std::size_t at = text.find(fact + tokenizer.decode(question.answer));
    REQUIRE(at != std::string::npos);
    CHECK(text.find(fact, at + 1) == std::string::npos);
    CHECK(at > last);
    CHECK(question.answer.size() == 4);
    last = at;
  }
  CHECK(text.find(tokenizer.decode(haystack.copy.prompt) +
                  tokenizer.decode(haystack.copy.answer)) != std::string::npos);
  CHECK(make_haystack(tokenizer, filler, 3000, 1).tokens == haystack.tokens);
  CHECK(make_haystack(tokenizer, filler, 3000, 2).tokens != haystack.tokens);
  CHECK(mentions(error_of(ErrorCode::out_of_range,
                          [&] {
                            static_cast<void>(
                                make_haystack(tokenizer, std::span(filler).first(100), 3000, 1));
                          }),
                 "needles: context is 3000, expected "));
}

TEST_CASE("questions go to forks and are judged token by token") {
  const Model model = load({});
  // Answers that are what the model says, one of them with a wrong last token.
  const std::vector<TokenId> context = random_ids(150);
  Decoder decoder(model, Exec());
  Haystack haystack;
  haystack.tokens = context;
  for (std::uint64_t i = 1; i <= 3; ++i) {
    Question question;
    question.prompt = random_ids(5, i);
    const auto cache =
        make_cache(model.config, parse_plan("bf16", model.config), CacheMode::off, Exec());
    static_cast<void>(decoder.forward(*cache, context, 0));
    auto logits = decoder.forward(*cache, question.prompt, 1);
    for (int k = 0; k < 3; ++k) {
      const auto best =
          static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      question.answer.push_back(best);
      logits = decoder.forward(*cache, std::span(&best, 1), 1, Step::decode);
    }
    haystack.facts.push_back(question);
  }
  haystack.facts[1].answer[2] = (haystack.facts[1].answer[2] + 1) % 264;
  haystack.copy = haystack.facts[1];
  for (const CacheMode mode : {CacheMode::full_tq, CacheMode::hybrid}) {
    const auto rows = measure_needles(
        model, Exec(), haystack, {parse_plan("tq_k4v4+window=400", model.config)}, mode, 64, 150);
    REQUIRE(rows.size() == 2);
    for (const NeedleRow& row : rows) {
      CHECK(row.hits == std::vector<bool>{true, false, true});
      CHECK(row.copied == 2);
      CHECK(row.copy_tokens == 3);
      CHECK(row.answer_loss > 0);
    }
  }
}
