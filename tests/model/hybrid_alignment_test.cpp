#include <turboquant/model/hybrid_alignment.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>
#include "golden_csv.hpp"

#include <array>
#include <cstdint>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

std::int64_t bytes_per_token(const std::string& preset, std::int64_t heads, std::int64_t width) {
  return preset == "bf16"
             ? heads * width * 4
             : heads * TurboQuantConfig::from_cache_dtype(preset, width).slot_size_aligned();
}

}  // namespace

TEST_CASE("published alignment of real hybrids, with and without skipped layers") {
  const auto rows = test::golden_rows("hybrid_alignment.csv");
  REQUIRE(rows.size() == 52);
  int with_skip = 0;
  for (const auto& row : rows) {
    CAPTURE(row[0]);
    CAPTURE(row[4]);
    const std::int64_t width = test::number(row, 1);
    const std::int64_t heads = test::number(row, 2);
    HybridAlignmentProblem problem;
    problem.bytes_per_token = bytes_per_token(row[4], heads, width);
    problem.mamba_page_size_bytes = test::number(row, 3);
    const HybridAlignment plain = align_hybrid_pages(problem);
    CHECK(plain.bytes_per_token == test::number(row, 5));
    CHECK(plain.block_size == test::number(row, 6));
    CHECK(plain.attention_block_size == test::number(row, 6));
    CHECK(plain.page_size_bytes == test::number(row, 7));
    CHECK(plain.mamba_page_padding_bytes == test::number(row, 8));
    CHECK_FALSE(plain.skip_block_size.has_value());
    if (test::number(row, 9) == 0) {
      continue;
    }
    ++with_skip;
    problem.skip_bytes_per_token = bytes_per_token("bf16", heads, width);
    const HybridAlignment skip = align_hybrid_pages(problem);
    CHECK(skip.bytes_per_token == test::number(row, 9));
    CHECK(skip.block_size == test::number(row, 10));
    CHECK(skip.page_size_bytes == test::number(row, 11));
    CHECK(skip.attention_block_size == test::number(row, 12));
    CHECK(skip.skip_block_size == test::number(row, 13));
    CHECK(skip.mamba_page_padding_bytes == test::number(row, 14));

    // The general unification of 16-token pages gives the same page.
    const std::array classes{PageClass{"tq", 16 * problem.bytes_per_token, 16, true},
                             PageClass{"skipped", 16 * *problem.skip_bytes_per_token, 16, true},
                             PageClass{"state", problem.mamba_page_size_bytes, 1, false}};
    const UnifiedPages unified = unify_pages(classes, UnificationStrategy::lcm);
    CHECK(*unified.page_size_bytes == skip.page_size_bytes);
    CHECK(unified.classes[0].block_size == skip.attention_block_size);
    CHECK(unified.classes[1].block_size == *skip.skip_block_size);
  }
  CHECK(with_skip == 42);
}

TEST_CASE("block sizes reported from the field") {
  const auto block = [](std::int64_t per_token, std::int64_t state) {
    HybridAlignmentProblem problem;
    problem.bytes_per_token = per_token;
    problem.mamba_page_size_bytes = state;
    return align_hybrid_pages(problem).block_size;
  };
  CHECK(block(4096, 2146304) == 528);   // bf16, 4 KV heads of 256
  CHECK(block(4096, 3207168) == 784);   // 48 value heads
  CHECK(block(2048, 2146304) == 1056);  // bf16, 2 KV heads of 256
  CHECK(block(2048, 3350528) == 1648);  // fp8, 7 speculative tokens
  CHECK(block(776, 2195456) == 2832);   // k8v4, 3 speculative tokens
  CHECK(block(776, 12651904) == 16304);
}

TEST_CASE("modes") {
  HybridAlignmentProblem problem;
  problem.bytes_per_token = 2048;
  problem.mamba_page_size_bytes = 806400;  // 393.75 tokens
  problem.max_model_len = 32768;
  const HybridAlignment none = align_hybrid_pages(problem);
  CHECK(none.block_size == 400);
  CHECK(none.mamba_block_size == 32768);

  problem.mamba_cache_mode = MambaCacheMode::align;
  const HybridAlignment align = align_hybrid_pages(problem);
  CHECK(align.block_size == 400);
  CHECK(align.mamba_block_size == 400);

  problem.mamba_cache_mode = MambaCacheMode::all;
  const HybridAlignment all = align_hybrid_pages(problem);
  CHECK(all.block_size == 512);
  CHECK(all.mamba_block_size == 512);
  CHECK(all.mamba_page_padding_bytes == 512 * 2048 - 806400);
  problem.mamba_chunk_size = 24;  // lcm(24, 16) = 48
  CHECK(align_hybrid_pages(problem).block_size == 432);
}

TEST_CASE("a wanted block is kept where it is large enough and raised where it is not") {
  HybridAlignmentProblem problem;
  problem.bytes_per_token = 4096;
  problem.mamba_page_size_bytes = 2146304;
  problem.block_size = 16;
  CHECK(align_hybrid_pages(problem).block_size == 528);
  problem.block_size = 1024;
  CHECK(align_hybrid_pages(problem).block_size == 1024);
  CHECK(align_hybrid_pages(problem).mamba_page_padding_bytes == 1024 * 4096 - 2146304);
}

TEST_CASE("alignment laws") {
  for (std::int64_t per_token = 2; per_token < 4000; per_token += 214) {
    for (std::int64_t state = 1; state < 3'000'000; state += 123'457) {
      for (const std::int64_t alignment : {1, 16, 64}) {
        HybridAlignmentProblem problem;
        problem.bytes_per_token = per_token;
        problem.mamba_page_size_bytes = state;
        problem.kernel_alignment = alignment;
        const HybridAlignment result = align_hybrid_pages(problem);
        REQUIRE(result.block_size % alignment == 0);
        REQUIRE(result.page_size_bytes >= state);
        REQUIRE((result.block_size - alignment) * per_token < state);
        REQUIRE(result.mamba_page_padding_bytes == result.page_size_bytes - state);
      }
    }
  }
}

TEST_CASE("sizes outside their domain") {
  const auto refuse = [](auto change, std::string_view field, ErrorCode code) {
    HybridAlignmentProblem problem;
    problem.bytes_per_token = 776;
    problem.mamba_page_size_bytes = 2146304;
    change(problem);
    CHECK(mentions(error_of(code, [&] { (void)align_hybrid_pages(problem); }), field));
  };
  constexpr auto invalid = ErrorCode::invalid_argument;
  refuse([](auto& p) { p.bytes_per_token = 0; }, "bytes_per_token", invalid);
  refuse([](auto& p) { p.skip_bytes_per_token = -1; }, "skip_bytes_per_token", invalid);
  refuse([](auto& p) { p.mamba_page_size_bytes = 0; }, "mamba_page_size_bytes", invalid);
  refuse([](auto& p) { p.kernel_alignment = 0; }, "kernel_alignment", invalid);
  refuse([](auto& p) { p.mamba_chunk_size = -2; }, "mamba_chunk_size", invalid);
  refuse([](auto& p) { p.block_size = 0; }, "block_size", invalid);
  refuse([](auto& p) { p.max_model_len = 0; }, "max_model_len", invalid);
  refuse([](auto& p) { p.mamba_page_size_bytes = INT64_MAX; },
         "mamba_page_size_bytes is 9223372036854775807", ErrorCode::overflow);
  refuse([](auto& p) { p.skip_bytes_per_token = INT64_MAX; },
         "skip_bytes_per_token is 9223372036854775807", ErrorCode::overflow);
  refuse([](auto& p) { p.mamba_cache_mode = static_cast<MambaCacheMode>(3); },
         "mamba_cache_mode is 3", invalid);
}
