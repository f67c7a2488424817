#include <turboquant/model/page_spec.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>
#include "golden_csv.hpp"

#include <array>
#include <cstdint>
#include <limits>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

FullAttentionSpec full_spec() {
  FullAttentionSpec spec;
  spec.num_kv_heads = 8;
  spec.head_size = 128;
  return spec;
}

TQFullAttentionSpec tq_spec() {
  return {16, 8, TurboQuantConfig::from_cache_dtype("turboquant_k3v4_nc", 128), {}};
}

SlidingWindowSpec window_spec() {
  SlidingWindowSpec spec;
  spec.num_kv_heads = 8;
  spec.head_size = 64;
  spec.sliding_window = 128;
  return spec;
}

MambaSpec state_spec() {
  MambaSpec spec;
  spec.arrays = {{{3, 8192}, CacheDType::bfloat16}, {{32, 128, 128}, CacheDType::float32}};
  return spec;
}

}  // namespace

TEST_CASE("page sizes of the published presets and of bf16") {
  const auto rows = test::golden_rows("pages.csv");
  REQUIRE(rows.size() == 57);
  for (const auto& row : rows) {
    CAPTURE(row[3]);
    const std::int64_t d = test::number(row, 0);
    const TQFullAttentionSpec tq{test::number(row, 2),
                                 test::number(row, 1),
                                 TurboQuantConfig::from_cache_dtype(row[3], d),
                                 {}};
    FullAttentionSpec dense;
    dense.block_size = test::number(row, 2);
    dense.num_kv_heads = test::number(row, 1);
    dense.head_size = d;
    CHECK(tq.page_size_bytes() == test::number(row, 4));
    CHECK(dense.page_size_bytes() == test::number(row, 5));
    CHECK(tq.bytes_per_token() == test::number(row, 6));
    CHECK(dense.bytes_per_token() == test::number(row, 7));
    CHECK(checked_lcm(tq.bytes_per_token(), dense.bytes_per_token()) == test::number(row, 8));
  }
}

TEST_CASE("planner and cache agree on one slot: d = 128, 8 heads, 16 tokens") {
  const TQFullAttentionSpec spec{
      16, 8, TurboQuantConfig::from_cache_dtype("turboquant_4bit_nc", 128), {}};
  CHECK(spec.tq_slot_size() == 64 + 2 + 64 + 4);
  CHECK(spec.page_size_bytes() == 17152);
}

TEST_CASE("value width, element type and padding enter the page") {
  FullAttentionSpec spec = full_spec();
  CHECK(spec.page_size_bytes() == 16 * 8 * 256 * 2);
  spec.head_size_v = 64;
  CHECK(spec.page_size_bytes() == 16 * 8 * 192 * 2);
  spec.dtype = CacheDType::float8_e4m3;
  CHECK(spec.page_size_bytes() == 16 * 8 * 192);
  spec.page_size_padded = 32768;
  CHECK(spec.real_page_size_bytes() == 24576);
  CHECK(spec.page_size_bytes() == 32768);
  CHECK(spec.max_memory_usage_bytes({.max_model_len = 17}) == 2 * 32768);
  spec.page_size_padded = 24575;
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)spec.page_size_bytes(); }),
                 "page_size_padded is 24575"));

  MLAAttentionSpec latent;
  latent.head_size = 576;
  CHECK(latent.page_size_bytes() == 16 * 576 * 2);
  CHECK(latent.max_memory_usage_bytes({.max_model_len = 33}) == 3 * 16 * 576 * 2);
}

TEST_CASE("memory of a sequence") {
  CHECK(full_spec().max_memory_usage_bytes({.max_model_len = 16}) == 65536);
  CHECK(full_spec().max_memory_usage_bytes({.max_model_len = 17}) == 131072);
  CHECK(tq_spec().max_memory_usage_bytes({.max_model_len = 32}) == 2 * 15104);

  const SlidingWindowSpec window = window_spec();
  const std::int64_t page = window.page_size_bytes();
  // 127 + 2048 tokens resident = 136 pages, and one because a window need not start on a page.
  CHECK(window.max_memory_usage_bytes({.max_model_len = 131072}) == 137 * page);
  CHECK(window.max_memory_usage_bytes({.max_model_len = 100}) == 8 * page);

  MambaSpec state = state_spec();
  CHECK(state.page_size_bytes() == 2146304);
  state.block_size = 256;
  state.num_speculative_blocks = 3;
  const auto states = [&](MambaCacheMode mode) {
    return state.max_memory_usage_bytes({.max_model_len = 1025, .mamba_cache_mode = mode}) /
           state.page_size_bytes();
  };
  CHECK(states(MambaCacheMode::none) == 4);
  CHECK(states(MambaCacheMode::align) == 5);
  CHECK(states(MambaCacheMode::all) == 5 + 3);
}

TEST_CASE("sizes of zero or less, and sizes beyond 64 bits, are errors") {
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-1}, INT64_MIN}) {
    FullAttentionSpec full = full_spec();
    full.block_size = bad;
    CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)full.page_size_bytes(); }),
                   "block_size"));
    full = full_spec();
    full.num_kv_heads = bad;
    CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)full.page_size_bytes(); }),
                   "num_kv_heads"));
    full = full_spec();
    full.head_size = bad;
    CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)full.page_size_bytes(); }),
                   "head_size"));
    full = full_spec();
    full.head_size_v = bad;
    CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)full.page_size_bytes(); }),
                   "head_size_v"));
    CHECK(mentions(
        error_of(ErrorCode::invalid_argument,
                 [&] { (void)full_spec().max_memory_usage_bytes({.max_model_len = bad}); }),
        "max_model_len"));
    SlidingWindowSpec window = window_spec();
    window.sliding_window = bad;
    CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)window.page_size_bytes(); }),
                   "sliding_window"));
    MambaSpec state = state_spec();
    state.arrays[0].shape[1] = bad;
    CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)state.page_size_bytes(); }),
                   "state extent"));
    TQFullAttentionSpec tq = tq_spec();
    tq.num_kv_heads = bad;
    CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)tq.page_size_bytes(); }),
                   "num_kv_heads"));
  }
  MambaSpec empty;
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)empty.page_size_bytes(); }),
                 "arrays is empty"));

  FullAttentionSpec huge = full_spec();
  huge.block_size = std::int64_t{1} << 62;
  error_of(ErrorCode::overflow, [&] { (void)huge.page_size_bytes(); });
  huge = full_spec();
  huge.head_size = INT64_MAX;
  error_of(ErrorCode::overflow, [&] { (void)huge.page_size_bytes(); });
  error_of(ErrorCode::overflow,
           [&] { (void)full_spec().max_memory_usage_bytes({.max_model_len = INT64_MAX}); });
  SlidingWindowSpec wide = window_spec();
  wide.sliding_window = INT64_MAX;
  error_of(ErrorCode::overflow, [&] {
    (void)wide.max_memory_usage_bytes({.max_model_len = 64, .max_num_batched_tokens = INT64_MAX});
  });
  MambaSpec state = state_spec();
  state.arrays[0].shape = {INT64_MAX, 2};
  error_of(ErrorCode::overflow, [&] { (void)state.page_size_bytes(); });
}

TEST_CASE("merge of equal specs returns them; a mismatch names the field") {
  const std::array<FullAttentionSpec, 3> equal{full_spec(), full_spec(), full_spec()};
  CHECK(FullAttentionSpec::merge(equal).page_size_bytes() == full_spec().page_size_bytes());
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [] { (void)FullAttentionSpec::merge({}); }),
                 "empty"));

  const auto differing = [](auto spec, auto change, std::string_view field) {
    std::array<decltype(spec), 2> pair{spec, spec};
    change(pair[1]);
    const std::string message =
        error_of(ErrorCode::shape_mismatch, [&] { (void)decltype(spec)::merge(pair); });
    CHECK_MESSAGE(mentions(message, field), message);
    CHECK(mentions(message, "of spec 1"));
  };
  differing(
      full_spec(), [](auto& s) { s.block_size = 32; }, "block_size");
  differing(
      full_spec(), [](auto& s) { s.num_kv_heads = 4; }, "num_kv_heads");
  differing(
      full_spec(),
      [](auto& s) {
        s.head_size = 64;
        s.head_size_v = 128;
      },
      "head_size ");
  differing(
      full_spec(), [](auto& s) { s.head_size_v = 64; }, "head_size_v");
  differing(
      full_spec(), [](auto& s) { s.dtype = CacheDType::float16; }, "dtype");
  differing(
      full_spec(), [](auto& s) { s.page_size_padded = 1 << 20; }, "page_size_padded");
  differing(
      tq_spec(), [](auto& s) { s.num_kv_heads = 4; }, "num_kv_heads");
  differing(
      tq_spec(),
      [](auto& s) { s.config = TurboQuantConfig::from_cache_dtype("turboquant_3bit_nc", 128); },
      "preset");
  // Two presets whose slots are equally large are still different formats.
  differing(
      tq_spec(), [](auto& s) { s.config = TurboQuantConfig::from_cache_dtype("tq_k3v4", 128); },
      "preset");
  differing(
      window_spec(), [](auto& s) { s.sliding_window = 256; }, "sliding_window");
  differing(
      state_spec(), [](auto& s) { s.arrays[1].dtype = CacheDType::bfloat16; }, "arrays");
  differing(
      state_spec(), [](auto& s) { s.num_speculative_blocks = 1; }, "num_speculative_blocks");
  MLAAttentionSpec latent;
  latent.head_size = 576;
  differing(
      latent, [](auto& s) { s.head_size = 512; }, "head_size");
}

TEST_CASE("element types are named, and auto is not one") {
  CHECK(parse_cache_dtype("torch.bfloat16") == CacheDType::bfloat16);
  CHECK(parse_cache_dtype("half") == CacheDType::float16);
  CHECK(parse_cache_dtype("fp8") == CacheDType::float8_e4m3);
  for (const CacheDType dtype : {CacheDType::float32, CacheDType::float16, CacheDType::bfloat16,
                                 CacheDType::float8_e4m3, CacheDType::int8}) {
    CHECK(parse_cache_dtype(to_string(dtype)) == dtype);
    CHECK(dtype_size_bytes(dtype) >= 1);
  }
  for (const std::string_view bad : {"auto", "", "torch.", "BF16 ", "int4"}) {
    error_of(ErrorCode::invalid_argument, [&] { (void)parse_cache_dtype(bad); });
  }
}

TEST_CASE("an element type that is no enumerator is an error everywhere") {
  const auto unknown = static_cast<CacheDType>(99);
  const auto refuse = [](auto call) {
    CHECK(mentions(error_of(ErrorCode::invalid_argument, call), "dtype is 99"));
  };
  refuse([&] { (void)dtype_size_bytes(unknown); });
  FullAttentionSpec full = full_spec();
  full.dtype = unknown;
  refuse([&] { (void)full.page_size_bytes(); });
  SlidingWindowSpec window = window_spec();
  window.dtype = unknown;
  refuse([&] { (void)window.page_size_bytes(); });
  MambaSpec state = state_spec();
  state.arrays[0].dtype = unknown;
  refuse([&] { (void)state.page_size_bytes(); });
  MLAAttentionSpec latent;
  latent.head_size = 576;
  latent.dtype = unknown;
  refuse([&] { (void)latent.page_size_bytes(); });
}

TEST_CASE("an overflow names the spec, the argument and its value") {
  const std::string most = std::to_string(INT64_MAX);
  const auto refuse = [&](auto spec, auto member, std::string_view field) {
    spec.*member = INT64_MAX;
    const std::string message =
        error_of(ErrorCode::overflow, [&] { (void)spec.page_size_bytes(); });
    CHECK_MESSAGE(mentions(message, decltype(spec)::spec_name), message);
    CHECK_MESSAGE(mentions(message, std::string(field) + " is " + most), message);
  };
  refuse(full_spec(), &FullAttentionSpec::num_kv_heads, "num_kv_heads");
  refuse(full_spec(), &FullAttentionSpec::head_size, "head_size");
  refuse(full_spec(), &FullAttentionSpec::block_size, "block_size");
  refuse(window_spec(), &SlidingWindowSpec::num_kv_heads, "num_kv_heads");
  refuse(window_spec(), &SlidingWindowSpec::block_size, "block_size");
  refuse(tq_spec(), &TQFullAttentionSpec::num_kv_heads, "num_kv_heads");
  SlidingWindowSpec endless = window_spec();
  endless.sliding_window = INT64_MAX;
  CHECK(mentions(error_of(ErrorCode::overflow,
                          [&] { (void)endless.resident_tokens({.max_model_len = 1000}); }),
                 "SlidingWindowSpec: sliding_window is " + most));
}

TEST_CASE("merge and == agree about every field of a codec") {
  const CacheCodec base{"x", KeyCodec::mse, 8, ValueCodec::grouped, 4, 0, false, false};
  const TQFullAttentionSpec spec{16, 8, TurboQuantConfig(base, 128), {}};
  const auto differing = [&](auto change, std::string_view field) {
    CacheCodec codec = base;
    change(codec);
    TQFullAttentionSpec other = spec;
    other.config = TurboQuantConfig(codec, 128);
    CHECK_FALSE(other.config == spec.config);
    const std::array<TQFullAttentionSpec, 2> pair{spec, other};
    const std::string message =
        error_of(ErrorCode::shape_mismatch, [&] { (void)TQFullAttentionSpec::merge(pair); });
    CHECK_MESSAGE(mentions(message, std::string(field) + " of spec 1"), message);
  };
  differing([](auto& c) { c.name = "y"; }, "preset");
  differing([](auto& c) { c.key_codec = KeyCodec::inner_product; }, "key_codec");
  differing([](auto& c) { c.key_codec = KeyCodec::float8; }, "key_codec");
  differing([](auto& c) { c.key_bits = 7; }, "key_bits");
  differing([](auto& c) { c.key_centring = KeyCentring::tile_mean; }, "key_centring");
  differing([](auto& c) { c.norm_correction = true; }, "norm_correction");
  differing([](auto& c) { c.value_codec = ValueCodec::codebook; }, "value_codec");
  differing([](auto& c) { c.value_bits = 5; }, "value_bits");
  differing([](auto& c) { c.value_group = 128; }, "value_group");
  differing([](auto& c) { c.even_slot = true; }, "even_slot");
  CHECK(TurboQuantConfig(base, 128) == spec.config);
  CHECK_FALSE(TurboQuantConfig(base, 64) == spec.config);
  CHECK_FALSE(TurboQuantConfig(base, 128, 64) == spec.config);
}

TEST_CASE("sums of states and blocks are named, too") {
  MambaSpec state = state_spec();
  state.num_speculative_blocks = INT64_MAX;
  for (const MambaCacheMode mode :
       {MambaCacheMode::none, MambaCacheMode::align, MambaCacheMode::all}) {
    const std::string message = error_of(ErrorCode::overflow, [&] {
      (void)state.max_memory_usage_bytes({100, 16, mode});
    });
    CHECK_MESSAGE(mentions(message, "MambaSpec: kept states"), message);
    CHECK(mentions(message, "num_speculative_blocks is " + std::to_string(INT64_MAX)));
  }
  state.num_speculative_blocks = 2;
  state.block_size = 16;
  CHECK(state.max_states({100, 16, MambaCacheMode::none}) == 3);
  CHECK(state.max_states({100, 16, MambaCacheMode::align}) == 4);
  CHECK(state.max_states({100, 16, MambaCacheMode::all}) == 9);
}
