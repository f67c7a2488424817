#include <turboquant/model/recurrent_state.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>

#include <cstdint>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

constexpr auto fp32 = CacheDType::float32;
constexpr auto bf16 = CacheDType::bfloat16;

RecurrentGeometry delta_net(std::int64_t value_heads) {
  return {.kind = RecurrentKind::gated_delta_net,
          .num_heads = value_heads,
          .num_key_heads = 16,
          .key_head_dim = 128,
          .value_head_dim = 128,
          .conv_kernel = 4,
          .state_dtype = fp32};
}

RecurrentGeometry mamba2(std::int64_t heads, std::int64_t width, std::int64_t groups,
                         std::int64_t state, CacheDType dtype = bf16) {
  return {.kind = RecurrentKind::mamba2,
          .num_heads = heads,
          .value_head_dim = width,
          .inner_size = heads * width,
          .num_groups = groups,
          .state_size = state,
          .conv_kernel = 4,
          .state_dtype = dtype};
}

std::int64_t bytes(const RecurrentGeometry& geometry, const RecurrentStateOptions& options = {}) {
  return recurrent_state_spec(geometry, options).page_size_bytes();
}

}  // namespace

TEST_CASE("state bytes of real models") {
  CHECK(bytes(delta_net(32)) == 2146304);  // Qwen3-Next-80B-A3B
  CHECK(bytes(delta_net(48)) == 3207168);  // Qwen3.8-27B
  CHECK(bytes(delta_net(48), {.num_speculative_tokens = 7}) == 3350528);
  CHECK(bytes(delta_net(32), {.num_speculative_tokens = 3}) == 2195456);
  CHECK(bytes(delta_net(48), {.tensor_parallel = 2}) == 1603584);
  CHECK(bytes({.kind = RecurrentKind::mamba1,
               .inner_size = 8192,
               .state_size = 16,
               .conv_kernel = 4}) == 311296);             // Jamba-v0.1
  CHECK(bytes(mamba2(64, 64, 8, 128, fp32)) == 2134016);  // Nemotron-3-Nano-30B-A3B
  CHECK(bytes(mamba2(128, 64, 8, 128)) == 2158592);       // Nemotron-H-8B
  CHECK(bytes(mamba2(48, 64, 1, 128)) == 806400);         // Granite-4.0-H-tiny
  CHECK(bytes(mamba2(24, 128, 1, 256)) == 1594368);       // Falcon-H1-7B
  CHECK(bytes(mamba2(128, 64, 1, 128)) == 2147840);       // Bamba-9B
  CHECK(bytes(mamba2(80, 64, 1, 64)) == 686848);          // Zamba2-2.7B
  CHECK(bytes({.kind = RecurrentKind::lightning, .num_heads = 64, .key_head_dim = 128}) ==
        2097152);  // MiniMax-Text-01
  CHECK(bytes({.kind = RecurrentKind::short_convolution, .inner_size = 2048, .conv_kernel = 3}) ==
        8192);  // LFM2-2.6B
  // Three convolution windows of 32 x 128 channels and 32 matrices of 128 x 128.
  CHECK(bytes({.kind = RecurrentKind::kimi_delta,
               .num_heads = 32,
               .key_head_dim = 128,
               .conv_kernel = 4,
               .state_dtype = fp32}) ==
        3 * 3 * 4096 * 2 + 32 * 128 * 128 * 4);  // Kimi-Linear-48B-A3B
}

TEST_CASE("ranks share a state; groups they cannot share are replicated") {
  CHECK(2 * bytes(mamba2(128, 64, 8, 128), {.tensor_parallel = 2}) ==
        bytes(mamba2(128, 64, 8, 128)));
  const std::int64_t replicated = bytes(mamba2(48, 64, 1, 128), {.tensor_parallel = 2});
  CHECK(replicated == (3072 / 2 + 2 * 128) * 3 * 2 + 24 * 64 * 128 * 2);
  CHECK(bytes(mamba2(64, 32, 0, 64)) == 3 * 2048 * 2 + 64 * 32 * 64 * 2);
}

TEST_CASE("speculative tokens ask for states of their own") {
  const MambaSpec spec = recurrent_state_spec(delta_net(32), {.num_speculative_tokens = 3});
  CHECK(spec.num_speculative_blocks == 3);
  CHECK(spec.arrays.front().shape == std::vector<std::int64_t>{6, 8192});
}

TEST_CASE("RG-LRU shares its channels among ranks, RWKV 4 its sums but not the rows it keeps") {
  const auto bytes_of = [](RecurrentKind kind, std::int64_t ranks) {
    RecurrentGeometry geometry;
    geometry.kind = kind;
    geometry.inner_size = 2560;
    geometry.conv_kernel = 4;
    geometry.state_dtype = CacheDType::float32;
    return recurrent_state_spec(geometry, {.tensor_parallel = ranks}).page_size_bytes();
  };
  for (const std::int64_t ranks : {1, 2, 4}) {
    CHECK(bytes_of(RecurrentKind::rg_lru, ranks) == 2560 / ranks * (3 * 2 + 4));
    CHECK(bytes_of(RecurrentKind::rwkv4, ranks) == 2560 * 2 * 2 + 2560 / ranks * 3 * 4);
  }
  error_of(ErrorCode::invalid_argument, [&] { (void)bytes_of(RecurrentKind::rg_lru, 3); });
}

TEST_CASE("sizes outside their domain") {
  const auto refuse = [](RecurrentGeometry geometry, RecurrentStateOptions options,
                         std::string_view field) {
    CHECK(mentions(error_of(ErrorCode::invalid_argument,
                            [&] { (void)recurrent_state_spec(geometry, options); }),
                   field));
  };
  refuse(delta_net(0), {}, "num_heads is 0");
  refuse(delta_net(-32), {}, "num_heads is -32");
  refuse(delta_net(30), {.tensor_parallel = 4}, "tensor_parallel = 4");
  refuse(delta_net(32), {.tensor_parallel = 0}, "tensor_parallel is 0");
  refuse(delta_net(32), {.num_speculative_tokens = -1}, "num_speculative_tokens");
  RecurrentGeometry no_taps = delta_net(32);
  no_taps.conv_kernel = 1;
  refuse(no_taps, {}, "conv_kernel is 1");
  refuse(mamba2(64, 64, -1, 128), {}, "num_groups");
  RecurrentGeometry no_state = mamba2(64, 64, 1, 128);
  no_state.state_size = 0;
  refuse(no_state, {}, "state_size is 0");
  RecurrentGeometry other_heads = mamba2(128, 64, 1, 128);
  other_heads.num_heads = 127;
  refuse(other_heads, {}, "inner_size is 8192, expected num_heads x value_head_dim = 127 x 64");
  refuse(delta_net(32), {.block_size = 0}, "block_size is 0");
}

TEST_CASE("every size of every kind is named when it is negative, zero or too large") {
  constexpr std::int64_t most = INT64_MAX;
  for (int kind = 0; kind <= static_cast<int>(RecurrentKind::rwkv4); ++kind) {
    for (const std::int64_t size : {std::int64_t{-1}, std::int64_t{0}, most, most / 2, INT64_MIN}) {
      RecurrentGeometry all{.kind = static_cast<RecurrentKind>(kind)};
      for (const auto field : {&RecurrentGeometry::num_heads, &RecurrentGeometry::num_key_heads,
                               &RecurrentGeometry::key_head_dim, &RecurrentGeometry::value_head_dim,
                               &RecurrentGeometry::inner_size, &RecurrentGeometry::num_groups,
                               &RecurrentGeometry::state_size, &RecurrentGeometry::conv_kernel}) {
        all.*field = size;
      }
      const std::string message =
          error_of(size > 0 ? ErrorCode::overflow : ErrorCode::invalid_argument,
                   [&] { (void)recurrent_state_spec(all); });
      CHECK_MESSAGE(!mentions(message, "checked_"), message);
      CHECK_MESSAGE(mentions(message, size > 0 ? "64-bit limit" : " is " + std::to_string(size)),
                    message);
    }
  }
  const std::string message = error_of(ErrorCode::overflow, [&] {
    (void)recurrent_state_spec(delta_net(32), {.num_speculative_tokens = most});
  });
  CHECK(mentions(message, "recurrent_state_spec: conv_kernel - 1 is 3"));
  CHECK(mentions(message, "num_speculative_tokens is " + std::to_string(most)));
}
