#include "runtime/runtime_test_support.hpp"

#include <turboquant/model/bit_allocation.hpp>
#include <turboquant/runtime/codec_errors.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

using namespace runtime_test;
using cache_test::contains;
using cache_test::error_of;
using turboquant::CalibrationOptions;
using turboquant::CalibrationRows;
using turboquant::KeyCodec;
using turboquant::LayerCodec;
using turboquant::ValueCodec;

namespace {

/// Rows of a layer, and queries at some positions.
struct Prompt {
  Prompt(std::uint64_t seed, const KVShape& kv_shape, std::int64_t heads, std::int64_t count,
         std::vector<std::int64_t> at)
      : shape(kv_shape),
        query_heads(heads),
        positions(std::move(at)),
        tokens(seed, 0, count, kv_shape),
        query_rows(seed + 1000, 0, std::int64_t(positions.size()),
                   {int(heads), kv_shape.key_dim, 8}) {}

  [[nodiscard]] CalibrationRows rows() const {
    CalibrationRows result;
    result.shape = {shape.kv_heads, shape.key_dim, shape.value_dim};
    result.query_heads = query_heads;
    result.keys = {tokens.keys.data(), tokens.keys.size()};
    result.values = {tokens.values.data(), tokens.values.size()};
    result.queries = {query_rows.keys.data(), query_rows.keys.size()};
    result.query_positions = positions;
    return result;
  }

  KVShape shape;
  std::int64_t query_heads;
  std::vector<std::int64_t> positions;
  Tokens<float> tokens;
  Tokens<float> query_rows;
};

const KVShape small_shape{.kv_heads = 2, .key_dim = 64, .value_dim = 48};

std::vector<double> measure(const Prompt& prompt, const std::vector<LayerCodec>& codecs,
                            const CalibrationOptions& options = {}) {
  return turboquant::measure_codec_errors(prompt.rows(), codecs, options);
}

std::vector<LayerCodec> varied_codecs() {
  std::vector<LayerCodec> codecs = turboquant::default_codec_choices();
  for (const KeyCodec key : {KeyCodec::inner_product, KeyCodec::float8, KeyCodec::mse}) {
    for (const std::int64_t group : {0, 16}) {
      codecs.push_back({key, key == KeyCodec::float8 ? 8 : 3, ValueCodec::grouped, 4, group,
                        key == KeyCodec::mse});
    }
  }
  for (const int bits : {2, 4}) {
    codecs.push_back({.key_bits = bits, .key_centring = turboquant::KeyCentring::tile_mean});
  }
  return codecs;
}

}  // namespace

TEST_CASE("errors are those of a manager's attention with the same codec, window and sinks") {
  const Prompt prompt(3, small_shape, 4, 200, {199});
  const auto codecs = varied_codecs();
  for (const std::int64_t sinks : {0, 4, 7}) {
    // What leaves the window are whole tiles: two of them with a capacity of 72.
    CalibrationOptions options{.exact_window = 200 - 128 - sinks, .sinks = sinks, .seed = 5};
    const std::vector<double> errors = measure(prompt, codecs, options);
    REQUIRE(errors.size() == codecs.size());
    for (std::size_t i = 0; i < codecs.size(); ++i) {
      CAPTURE(i);
      turboquant::LayerOptions coded = layer(small_shape, 0, 0, 72);
      coded.capture.sinks = sinks;
      coded.codec = turboquant::tile_codec_options(codecs[i], 64, 48, options.seed);
      Manager<float> manager({.layers = {layer(small_shape, 0), coded}});
      const auto id = manager.open();
      for (const std::int64_t l : {0, 1}) {
        append(manager, l, id, prompt.tokens, 0, 200);
      }
      REQUIRE(manager.stats(1, id).history_tokens == 128);
      HostQueries queries("queries", 1, 1, 4, 64);
      std::copy_n(prompt.query_rows.keys.data(), queries.size(), queries.data());
      const auto reference = attend(manager, 0, {id}, queries, 48).output;
      const auto stored = attend(manager, 1, {id}, queries, 48).output;
      double error = 0;
      double norm = 0;
      for (std::size_t j = 0; j < reference.size(); ++j) {
        error += std::pow(double(stored.data()[j]) - double(reference.data()[j]), 2);
        norm += std::pow(double(reference.data()[j]), 2);
      }
      CHECK(std::sqrt(errors[i]) == doctest::Approx(std::sqrt(error / norm)).epsilon(0.005));
    }
  }
}

TEST_CASE("a codec's number does not depend on which others are measured, or in which order") {
  const Prompt prompt(1, small_shape, 2, 130, {0, 64, 100, 129});
  std::vector<LayerCodec> codecs = varied_codecs();
  const std::vector<double> all = measure(prompt, codecs);
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    CHECK(measure(prompt, {codecs[i]}) == std::vector<double>{all[i]});
  }
  std::vector<double> reversed_errors = all;
  std::reverse(codecs.begin(), codecs.end());
  std::reverse(reversed_errors.begin(), reversed_errors.end());
  CHECK(measure(prompt, codecs) == reversed_errors);
  codecs.insert(codecs.begin(), codecs.back());
  CHECK(measure(prompt, codecs).front() == reversed_errors.back());
  CHECK(measure(prompt, {}).empty());
}

TEST_CASE("more bits err less") {
  const Prompt prompt(7, {.kv_heads = 2, .key_dim = 128, .value_dim = 128}, 8, 320,
                      {100, 180, 250, 319});
  const std::vector<double> errors = measure(prompt, turboquant::default_codec_choices());
  for (std::size_t k = 0; k < 3; ++k) {
    for (std::size_t v = 0; v < 3; ++v) {
      CHECK(errors[3 * k + v] > 0);
      if (k > 0) {
        CHECK(errors[3 * k + v] < errors[3 * (k - 1) + v]);
      }
      if (v > 0) {
        CHECK(errors[3 * k + v] < errors[3 * k + v - 1]);
      }
    }
  }
}

TEST_CASE("keys with a common part err less where their mean is stored") {
  Prompt prompt(9, small_shape, 4, 192, {130, 191});
  for (std::size_t i = 0; i < prompt.tokens.keys.size(); ++i) {
    prompt.tokens.keys.data()[i] += float(i % 64 % 7) * 2;
  }
  const auto centred =
      measure(prompt, turboquant::default_codec_choices(turboquant::KeyCentring::tile_mean));
  const auto plain = measure(prompt, turboquant::default_codec_choices());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    CHECK(centred[i] < 0.5 * plain[i]);
  }
}

TEST_CASE("scaling values by powers of two, or queries against sm_scale, changes nothing") {
  Prompt prompt(2, small_shape, 4, 100, {40, 99});
  const auto codecs = turboquant::default_codec_choices();
  const std::vector<double> errors = measure(prompt, codecs);
  Prompt scaled = prompt;
  for (std::size_t i = 0; i < scaled.tokens.values.size(); ++i) {
    scaled.tokens.values.data()[i] *= 16;
  }
  CHECK(measure(scaled, codecs) == errors);
  CalibrationRows rows = scaled.rows();
  rows.sm_scale = 0.125;  // the default of 64 dimensions
  CHECK(turboquant::measure_codec_errors(rows, codecs) == errors);
  for (std::size_t i = 0; i < scaled.query_rows.keys.size(); ++i) {
    scaled.query_rows.keys.data()[i] *= 4;
  }
  rows.sm_scale = 0.03125;
  CHECK(turboquant::measure_codec_errors(rows, codecs) == errors);
}

TEST_CASE("a prompt that measures nothing is refused") {
  const Prompt prompt(4, small_shape, 4, 70, {0, 10, 69});
  const auto codecs = turboquant::default_codec_choices();
  constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  for (const auto& options :
       {turboquant::CalibrationOptions{.exact_window = 70},
        turboquant::CalibrationOptions{.sinks = 70},
        turboquant::CalibrationOptions{.exact_window = 30, .sinks = 40},
        turboquant::CalibrationOptions{.exact_window = largest, .sinks = largest}}) {
    CHECK(error_of([&] {
            static_cast<void>(measure(prompt, codecs, options));
          }).find("expected fewer than the 70 that the last query sees") != std::string::npos);
  }
  CHECK(measure(prompt, codecs, {.exact_window = 30, .sinks = 39})[0] > 0);
  for (const std::int64_t tokens : {70, 0}) {
    const Prompt no_queries(4, small_shape, 4, tokens, {});
    CHECK(error_of([&] {
            static_cast<void>(measure(no_queries, codecs));
          }).find("query_positions is empty, expected at least one query") != std::string::npos);
  }
}

TEST_CASE("queries that see exact tokens alone add no error") {
  const Prompt late(4, small_shape, 4, 70, {69});
  const Prompt both(4, small_shape, 4, 70, {10, 69});
  const auto codecs = turboquant::default_codec_choices();
  const std::vector<double> alone = measure(late, codecs, {.exact_window = 20});
  const std::vector<double> diluted = measure(both, codecs, {.exact_window = 20});
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    CHECK(diluted[i] > 0);
    CHECK(diluted[i] < alone[i]);
  }
}

TEST_CASE("measured errors make a plan") {
  std::vector<std::vector<turboquant::BitChoice>> layers;
  const auto codecs = turboquant::default_codec_choices();
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const Prompt prompt(seed, small_shape, 4, 128, {90, 127});
    layers.push_back(turboquant::bit_choices({2, 64, 48}, codecs, measure(prompt, codecs)));
  }
  const std::int64_t budget = 4 * turboquant::layer_bytes_per_token(codecs[4], {2, 64, 48});
  const auto best = turboquant::allocate_bits(layers, budget);
  double uniform = 0;
  for (const auto& layer : layers) {
    uniform += layer[4].error;
  }
  CHECK(best.error <= uniform);
  CHECK(best.bytes <= budget);
}

TEST_CASE("rows outside their domain are refused") {
  Prompt prompt(1, small_shape, 4, 20, {19});
  const auto codecs = turboquant::default_codec_choices();
  const auto message = [&](const auto& change) {
    CalibrationRows rows = prompt.rows();
    change(rows);
    return error_of([&] { static_cast<void>(turboquant::measure_codec_errors(rows, codecs)); });
  };
  CHECK(contains(message([](CalibrationRows& r) { r.shape.kv_heads = 0; }),
                 "measure_codec_errors: shape.kv_heads is 0"));
  CHECK(
      contains(message([](CalibrationRows& r) { r.shape.key_dim = -64; }), "shape.key_dim is -64"));
  CHECK(contains(message([](CalibrationRows& r) { r.query_heads = 3; }),
                 "query_heads is 3, expected a multiple of kv_heads = 2"));
  CHECK(contains(message([](CalibrationRows& r) { r.keys = r.keys.first(r.keys.size() - 1); }),
                 "keys.size() is 2559"));
  CHECK(contains(message([](CalibrationRows& r) { r.values = r.values.first(96); }),
                 "values.size() is 96, expected 1920"));
  CHECK(contains(message([](CalibrationRows& r) { r.queries = r.queries.first(255); }),
                 "queries.size() is 255, expected 256"));
  CHECK(contains(
      message([](CalibrationRows& r) { r.sm_scale = std::numeric_limits<float>::quiet_NaN(); }),
      "sm_scale is nan"));
  const std::vector<std::int64_t> beyond{20};
  CHECK(contains(message([&](CalibrationRows& r) { r.query_positions = beyond; }),
                 "query_positions[0] is 20, expected 0 to one less than the 20 tokens"));
  const std::vector<std::int64_t> negative{-1};
  CHECK(contains(message([&](CalibrationRows& r) { r.query_positions = negative; }),
                 "query_positions[0] is -1"));
  const auto refusal = [&](const LayerCodec& codec, const CalibrationOptions& options = {}) {
    return error_of([&] { static_cast<void>(measure(prompt, {LayerCodec{}, codec}, options)); });
  };
  CHECK(contains(refusal({.key_bits = 5}), "codecs[1]: slot_bytes: key_bits is 5"));
  CHECK(contains(refusal({}, {.exact_window = -1}), "exact_window is -1"));
  CHECK(contains(refusal({}, {.sinks = -1}), "sinks is -1"));
  for (auto* numbers : {&prompt.tokens.keys, &prompt.tokens.values, &prompt.query_rows.keys}) {
    const float before = numbers->data()[7];
    numbers->data()[7] = std::numeric_limits<float>::infinity();
    CHECK(contains(message([](CalibrationRows&) {}), "[7] is inf, expected a finite number"));
    numbers->data()[7] = before;
  }
  Prompt zeros = prompt;
  std::fill_n(zeros.tokens.values.data(), zeros.tokens.values.size(), 0.0F);
  CHECK(measure(zeros, {LayerCodec{}}) == std::vector<double>{0.0});
}
