#include <turboquant/model/layer_policy.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>
#include "golden_csv.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

using Indices = std::vector<std::int64_t>;

/// `num_layers` layers of which every fourth attends and the others are recurrent.
ModelConfig hybrid(std::int64_t num_layers) {
  ModelConfig model = dense_model(num_layers, 2, 256);
  for (std::int64_t i = 0; i < num_layers; ++i) {
    if (i % 4 != 3) {
      model.layers[static_cast<std::size_t>(i)] = LayerConfig{.has_recurrent_state = true};
    }
  }
  return model;
}

}  // namespace

TEST_CASE("boundary layers of dense models") {
  const auto rows = test::golden_rows("boundary_skip.csv");
  REQUIRE(rows.size() == 14);
  for (const auto& row : rows) {
    Indices expected;
    if (row.size() > 2) {
      std::istringstream cells(row[2]);
      for (std::int64_t layer = 0; cells >> layer;) {
        expected.push_back(layer);
      }
    }
    CAPTURE(row[0]);
    CAPTURE(row[1]);
    CHECK(get_boundary_skip_layers(dense_model(test::number(row, 0), 8, 128),
                                   test::number(row, 1)) == expected);
  }
  CHECK(get_boundary_skip_layers(dense_model(32, 8, 128)) == Indices{0, 1, 30, 31});
}

TEST_CASE("boundary laws: ascending, unique, symmetric, at most half at each end") {
  for (std::int64_t layers = 0; layers < 50; ++layers) {
    for (std::int64_t n = 0; n < 30; ++n) {
      const Indices skip = get_boundary_skip_layers(dense_model(layers, 8, 128), n);
      REQUIRE(static_cast<std::int64_t>(skip.size()) == 2 * std::min(n, layers / 2));
      REQUIRE(std::is_sorted(skip.begin(), skip.end()));
      REQUIRE(std::adjacent_find(skip.begin(), skip.end()) == skip.end());
      for (const std::int64_t layer : skip) {
        REQUIRE(std::count(skip.begin(), skip.end(), layers - 1 - layer) == 1);
      }
    }
  }
}

TEST_CASE("hybrids skip none, or the ends of the full-attention list on request") {
  const ModelConfig model = hybrid(40);
  CHECK(get_boundary_skip_layers(model).empty());
  const BoundaryOptions by_list{.protect_full_attention_list = true};
  CHECK(get_boundary_skip_layers(model, 2, by_list) == Indices{3, 7, 35, 39});
  CHECK(get_boundary_skip_layers(model, 1, by_list) == Indices{3, 39});
  CHECK(get_boundary_skip_layers(model, 99, by_list).size() == 10);
  CHECK(get_boundary_skip_layers(dense_model(32, 8, 128), 2, by_list) == Indices{0, 1, 30, 31});
}

TEST_CASE("windows alone do not make a hybrid") {
  ModelConfig model = dense_model(6, 4, 64);
  for (const std::size_t i : {0U, 1U, 2U, 4U}) {
    model.layers[i].attention = AttentionKind::sliding;
  }
  CHECK(get_boundary_skip_layers(model, 1) == Indices{0, 5});
  CHECK(get_boundary_skip_layers(model, 1, {.protect_full_attention_list = true}) == Indices{3, 5});
}

TEST_CASE("a boundary layer that reads another layer's cache protects nothing") {
  // As in Gemma 3n: layers 20..34 read 18 (windowed) or 19 (full).
  ModelConfig model = dense_model(35, 2, 256);
  for (std::int64_t i = 0; i < 35; ++i) {
    LayerConfig& layer = model.layers[static_cast<std::size_t>(i)];
    layer.attention = i % 5 == 4 ? AttentionKind::full : AttentionKind::sliding;
    if (i >= 20) {
      layer.kv_source = i % 5 == 4 ? 19 : 18;
    }
  }
  CHECK(get_boundary_skip_layers(model) == Indices{0, 1});
  CHECK(get_boundary_skip_layers(model, 2, {.protect_full_attention_list = true}) == Indices{4, 9});
  // The source itself may be at the boundary.
  const Indices wide = get_boundary_skip_layers(model, 16);
  CHECK(wide.size() == 17);
  CHECK(wide.back() == 19);
  for (std::int64_t n = 0; n <= 40; ++n) {
    for (const std::int64_t layer : get_boundary_skip_layers(model, n)) {
      CHECK(model.cache_owner(layer) == layer);
    }
  }
}

TEST_CASE("a negative n is an error") {
  CHECK(mentions(error_of(ErrorCode::invalid_argument,
                          [] { (void)get_boundary_skip_layers(dense_model(8, 1, 64), -1); }),
                 "n is -1"));
}

TEST_CASE("merging keeps names and drops duplicates") {
  const std::array<std::string, 6> user{"sliding_window", "7", "0",
                                        "sliding_window", "7", "custom"};
  const SkipList merged = merge_skip_layers(user, Indices{0, 1, 30, 31});
  CHECK(merged.layers == Indices{0, 1, 7, 30, 31});
  CHECK(merged.names == std::vector<std::string>{"sliding_window", "custom"});
  CHECK(merged.entries() ==
        std::vector<std::string>{"0", "1", "7", "30", "31", "sliding_window", "custom"});
  CHECK(merge_skip_layers({}).entries().empty());
  for (const std::string bad : {"", "-1", "+1", "1-2", "99999999999999999999", "-"}) {
    error_of(ErrorCode::invalid_argument,
             [&] { (void)merge_skip_layers(std::array<std::string, 1>{bad}); });
  }
  error_of(ErrorCode::invalid_argument, [] { (void)merge_skip_layers({}, Indices{-3}); });
}

TEST_CASE("boundary layers never get fewer bits than asked") {
  for (int key_bits = 1; key_bits <= 8; ++key_bits) {
    for (int value_bits = 1; value_bits <= 8; ++value_bits) {
      for (int extra = 0; extra <= 9; ++extra) {
        const auto bits = protect_boundary_bits(12, {key_bits, value_bits}, 2, extra);
        REQUIRE(bits.size() == 12);
        for (std::size_t i = 0; i < bits.size(); ++i) {
          const bool boundary = i < 2 || i >= 10;
          REQUIRE(bits[i].key_bits == (boundary ? std::min(8, key_bits + extra) : key_bits));
          REQUIRE(bits[i].value_bits == (boundary ? std::min(8, value_bits + extra) : value_bits));
        }
      }
    }
  }
  CHECK(protect_boundary_bits(4, {5, 4})[0].key_bits == 6);
  error_of(ErrorCode::invalid_argument, [] { (void)protect_boundary_bits(4, {0, 4}); });
  error_of(ErrorCode::invalid_argument, [] { (void)protect_boundary_bits(4, {3, 9}); });
  error_of(ErrorCode::invalid_argument, [] { (void)protect_boundary_bits(-1, {3, 4}); });
  error_of(ErrorCode::invalid_argument, [] { (void)protect_boundary_bits(4, {3, 4}, -1); });
  CHECK(protect_boundary_bits(10000, {3, 4}).size() == 10000);
  for (const std::int64_t layers : {std::int64_t{10001}, INT64_MAX}) {
    error_of(ErrorCode::invalid_argument, [&] { (void)protect_boundary_bits(layers, {3, 4}); });
    error_of(ErrorCode::invalid_argument, [&] { (void)dense_model(layers, 8, 128); });
  }
}
