#include <turboquant/base/random.hpp>
#include <turboquant/model/unification.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

PageClass attention(std::int64_t page, std::int64_t block = 16) {
  return {"attention " + std::to_string(page), page, block, true};
}

PageClass state(std::int64_t page) {
  return {"state", page, 1, false};
}

/// One to five classes: attention pages with small factors, and up to two fixed pages.
std::vector<PageClass> random_classes(const CounterRng& rng, std::uint64_t& draw) {
  std::vector<PageClass> classes;
  const std::uint32_t num_attention = rng.below(draw++, 4);
  const std::uint32_t num_states = rng.below(draw++, 3) + (num_attention == 0 ? 1 : 0);
  for (std::uint32_t i = 0; i < num_attention; ++i) {
    const std::int64_t per_token = 2 * (1 + rng.below(draw++, 600));
    const std::int64_t block = 16 << rng.below(draw++, 3);
    classes.push_back(attention(per_token * block, block));
  }
  for (std::uint32_t i = 0; i < num_states; ++i) {
    classes.push_back(state(1 + rng.below(draw++, 4'000'000)));
  }
  return classes;
}

void check_laws(const std::vector<PageClass>& classes, UnificationStrategy strategy,
                const UnifiedPages& result) {
  REQUIRE(result.classes.size() == classes.size());
  REQUIRE(result.page_size_bytes.has_value());
  const std::int64_t page = *result.page_size_bytes;
  std::int64_t unit = 1;
  std::int64_t largest = 0;
  bool equal = true;
  for (const PageClass& c : classes) {
    if (c.scales_with_block_size) {
      unit = strategy == UnificationStrategy::lcm ? checked_lcm(unit, c.page_size_bytes)
                                                  : std::max(unit, c.page_size_bytes);
    }
    largest = std::max(largest, c.page_size_bytes);
    equal = equal && c.page_size_bytes == classes.front().page_size_bytes;
  }
  REQUIRE(result.unchanged == equal);
  // Minimal: a multiple of the unit that holds every page, and one unit less would not.
  REQUIRE(page >= largest);
  REQUIRE((equal || page % unit == 0));
  REQUIRE((equal || page - unit < largest));
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const UnifiedPage& u = result.classes[i];
    REQUIRE(u.page_size_bytes == page);
    REQUIRE(u.padding_bytes >= 0);
    REQUIRE(u.block_size == classes[i].block_size * u.scale);
    REQUIRE(u.scale * classes[i].page_size_bytes + u.padding_bytes == page);
    if (!classes[i].scales_with_block_size) {
      REQUIRE(u.scale == 1);
      REQUIRE(u.block_size == classes[i].block_size);
    } else if (strategy == UnificationStrategy::lcm) {
      REQUIRE(u.padding_bytes == 0);
    } else {
      REQUIRE(u.padding_bytes < classes[i].page_size_bytes);
    }
    if (u.scales_with_block_size) {
      REQUIRE(result.prefix_granularity % u.block_size == 0);
    }
  }
}

}  // namespace

TEST_CASE("20,000 random sets: pages equal, minimal, sizes conserved, idempotent") {
  const CounterRng rng(20260101, 4);
  std::uint64_t draw = 0;
  for (int set = 0; set < 20'000; ++set) {
    const std::vector<PageClass> classes = random_classes(rng, draw);
    CAPTURE(set);
    for (const auto strategy : {UnificationStrategy::lcm, UnificationStrategy::padded}) {
      const UnifiedPages result = unify_pages(classes, strategy);
      check_laws(classes, strategy, result);
      // The unified pages are equal, so unifying them again changes nothing.
      std::vector<PageClass> again;
      for (const UnifiedPage& u : result.classes) {
        again.push_back({u.name, u.page_size_bytes, u.block_size, u.scales_with_block_size});
      }
      const UnifiedPages second = unify_pages(again, strategy);
      REQUIRE(second.unchanged);
      for (std::size_t i = 0; i < again.size(); ++i) {
        REQUIRE(second.classes[i].page_size_bytes == again[i].page_size_bytes);
        REQUIRE(second.classes[i].block_size == again[i].block_size);
        REQUIRE(second.classes[i].padding_bytes == 0);
      }
    }
    const UnifiedPages pools = unify_pages(classes, UnificationStrategy::separate_pools);
    REQUIRE_FALSE(pools.page_size_bytes.has_value());
    for (std::size_t i = 0; i < classes.size(); ++i) {
      REQUIRE(pools.classes[i].page_size_bytes == classes[i].page_size_bytes);
      REQUIRE(pools.classes[i].block_size == classes[i].block_size);
      REQUIRE(pools.classes[i].padding_bytes == 0);
    }
  }
}

TEST_CASE("a state that no attention page divides is padded, not multiplied") {
  const std::array classes{state(12648448), attention(12416)};
  for (const auto strategy : {UnificationStrategy::lcm, UnificationStrategy::padded}) {
    const UnifiedPages result = unify_pages(classes, strategy);
    CHECK(result.page_size_bytes == 12651904);
    CHECK(result.classes[1].scale == 1019);
    CHECK(result.classes[1].block_size == 16304);
    CHECK(result.classes[0].padding_bytes == 3456);
    CHECK(result.classes[0].padding_fraction() == doctest::Approx(0.000273160).epsilon(1e-4));
  }
}

TEST_CASE("a state page keeps its block size") {
  const UnifiedPages small =
      unify_pages(std::array{state(1000), attention(2000)}, UnificationStrategy::lcm);
  CHECK(small.page_size_bytes == 2000);
  CHECK(small.classes[0].block_size == 1);
  CHECK(small.classes[0].padding_bytes == 1000);
  CHECK(small.classes[1].block_size == 16);
  const UnifiedPages divisible =
      unify_pages(std::array{state(6000), attention(2000)}, UnificationStrategy::lcm);
  CHECK(divisible.page_size_bytes == 6000);
  CHECK(divisible.classes[1].block_size == 48);
  CHECK(divisible.classes[0].padding_bytes == 0);
}

TEST_CASE("one skipped layer: lcm blows pages up, padding and pools do not") {
  // 2 KV heads of 256: 4-bit compressed 524 bytes a token, bf16 2048.
  const std::array classes{attention(16 * 524), attention(16 * 2048)};
  const UnifiedPages lcm = unify_pages(classes, UnificationStrategy::lcm);
  CHECK(*lcm.page_size_bytes == 131 * 16 * 2048);
  CHECK(lcm.prefix_granularity == 8192 * 131 * 16 / 16);
  const UnifiedPages padded = unify_pages(classes, UnificationStrategy::padded);
  CHECK(*padded.page_size_bytes == 16 * 2048);
  CHECK(padded.classes[0].block_size == 48);
  CHECK(padded.classes[0].padding_bytes == 16 * 2048 - 48 * 524);
  CHECK(padded.prefix_granularity == 48);
  const UnifiedPages pools = unify_pages(classes, UnificationStrategy::separate_pools);
  CHECK(pools.classes[0].page_size_bytes == 16 * 524);
  CHECK(pools.prefix_granularity == 16);
}

TEST_CASE("degenerate inputs") {
  const UnifiedPages none = unify_pages({}, UnificationStrategy::lcm);
  CHECK(none.classes.empty());
  CHECK_FALSE(none.page_size_bytes.has_value());
  CHECK(none.unchanged);
  for (const auto strategy : {UnificationStrategy::lcm, UnificationStrategy::padded,
                              UnificationStrategy::separate_pools}) {
    for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-5}, INT64_MIN}) {
      CHECK(mentions(error_of(ErrorCode::invalid_argument,
                              [&] { (void)unify_pages(std::array{attention(bad)}, strategy); }),
                     "page_size_bytes of \"attention"));
      CHECK(mentions(error_of(ErrorCode::invalid_argument,
                              [&] { (void)unify_pages(std::array{attention(7, bad)}, strategy); }),
                     "block_size of"));
      error_of(ErrorCode::invalid_argument, [&] {
        (void)unify_pages(std::array{attention(7), state(bad)}, strategy);
      });
    }
    CHECK(unify_pages(std::array{attention(7)}, strategy).unchanged);
    CHECK(unify_pages(std::array{attention(7), attention(7)}, strategy).unchanged);
    CHECK(unify_pages(std::array{attention(7), attention(7)}, strategy).classes[1].block_size ==
          16);
  }
  const UnifiedPages extreme =
      unify_pages(std::array{attention(1, 1), attention(INT64_MAX, 1)}, UnificationStrategy::lcm);
  CHECK(extreme.page_size_bytes == INT64_MAX);
  CHECK(extreme.classes[0].scale == INT64_MAX);
  const std::array blown{attention(1, 16), attention(INT64_MAX, 1)};
  error_of(ErrorCode::overflow, [&] { (void)unify_pages(blown, UnificationStrategy::lcm); });
  error_of(ErrorCode::overflow,
           [&] { (void)unify_pages(blown, UnificationStrategy::padded, BlockPolicy::smallest); });
  CHECK(unify_pages(blown, UnificationStrategy::separate_pools).classes[0].block_size == 16);
}

TEST_CASE("lcm divides before it multiplies and reports overflow") {
  CHECK(checked_lcm(checked_lcm(12416, 12418), 12422) == 478811853184);
  CHECK(checked_lcm(std::int64_t{1} << 62, std::int64_t{1} << 62) == std::int64_t{1} << 62);
  error_of(ErrorCode::overflow, [] {
    (void)unify_pages(std::array{attention(12416), attention(12418), attention(12422),
                                 attention(12434), attention(12446), attention(12454)},
                      UnificationStrategy::lcm);
  });
}

TEST_CASE("prefix granularity and the policies that keep it small") {
  CHECK(prefix_granularity(std::array<std::int64_t, 2>{1536, 3456}) == 13824);
  CHECK(prefix_granularity({}) == 1);
  error_of(ErrorCode::invalid_argument, [] {
    (void)prefix_granularity(std::array<std::int64_t, 2>{16, 0});
  });
  error_of(ErrorCode::overflow, [] {
    (void)prefix_granularity(std::array<std::int64_t, 2>{INT64_MAX, INT64_MAX - 1});
  });

  // A page of 3456 * 4 bytes: one class fills it with 1536 tokens of 9 bytes, the other with 3456.
  const std::array classes{attention(1536 * 9, 1536), attention(128 * 4, 128)};
  const auto unify = [&](BlockPolicy policy) {
    return unify_pages(classes, UnificationStrategy::padded, policy);
  };
  const UnifiedPages fill = unify(BlockPolicy::fill);
  CHECK(fill.classes[0].block_size == 1536);
  CHECK(fill.classes[1].block_size == 3456);
  CHECK(fill.prefix_granularity == 13824);
  const UnifiedPages multiple = unify(BlockPolicy::multiple_of_smallest);
  CHECK(multiple.classes[1].block_size == 3072);
  CHECK(multiple.prefix_granularity == 3072);
  const UnifiedPages smallest = unify(BlockPolicy::smallest);
  CHECK(smallest.classes[1].block_size == 1536);
  CHECK(smallest.prefix_granularity == 1536);
  CHECK(smallest.classes[1].padding_bytes == 3456 * 4 - 1536 * 4);
  // 130 bytes in 32 tokens: such a page can only be used whole.
  error_of(ErrorCode::unsupported, [] {
    (void)unify_pages(std::array{attention(48 * 9, 48), attention(130, 32)},
                      UnificationStrategy::padded, BlockPolicy::smallest);
  });

  // Equal pages whose blocks differ: nothing to unify, unless blocks are to agree.
  for (const std::int64_t longer : {std::int64_t{3456} * 4, std::int64_t{3456} * 6}) {
    const std::array blocks{attention(1536 * 9, 1536), attention(longer, 3456)};
    const UnifiedPages cut =
        unify_pages(blocks, UnificationStrategy::padded, BlockPolicy::smallest);
    CHECK_FALSE(cut.unchanged);
    CHECK(cut.prefix_granularity == 1536);
    const UnifiedPages whole =
        unify_pages(blocks, UnificationStrategy::padded, BlockPolicy::multiple_of_smallest);
    CHECK(whole.prefix_granularity == 3072);
    for (const UnifiedPages* pages : {&cut, &whole}) {
      CHECK(pages->classes[0].block_size == 1536);
      CHECK(pages->classes[1].scale == 0);
      for (std::size_t i = 0; i < 2; ++i) {
        const UnifiedPage& page = pages->classes[i];
        const std::int64_t per_token = blocks[i].page_size_bytes / blocks[i].block_size;
        CHECK(page.page_size_bytes == *pages->page_size_bytes);
        CHECK(page.block_size * per_token + page.padding_bytes == page.page_size_bytes);
        CHECK(page.padding_bytes >= 0);
      }
    }
  }
  CHECK(unify_pages(std::array{attention(1536 * 9, 1536), attention(3456 * 4, 3456)},
                    UnificationStrategy::padded)
            .prefix_granularity == 13824);
}

TEST_CASE("arguments outside their domain are named") {
  const std::array one{attention(64, 16)};
  const auto strategy = static_cast<UnificationStrategy>(3);
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { (void)unify_pages(one, strategy); }),
                 "strategy is 3"));
  CHECK(mentions(error_of(ErrorCode::invalid_argument,
                          [&] {
                            (void)unify_pages(one, UnificationStrategy::lcm,
                                              static_cast<BlockPolicy>(-1));
                          }),
                 "policy is -1"));
  CHECK(mentions(error_of(ErrorCode::invalid_argument,
                          [] { (void)prefix_granularity(std::array<std::int64_t, 1>{0}); }),
                 "prefix_granularity: block size is 0"));
  CHECK(mentions(error_of(ErrorCode::overflow, [] { (void)page_use(INT64_MAX, 16); }),
                 "page_use: num_tokens is 9223372036854775807"));
  CHECK(mentions(error_of(ErrorCode::overflow,
                          [] {
                            (void)unify_pages(
                                std::array{attention(INT64_MAX), attention(INT64_MAX - 1)},
                                UnificationStrategy::lcm);
                          }),
                 "unify_pages: "));
}

TEST_CASE("layer groups") {
  struct Case {
    std::vector<std::int64_t> counts;
    std::int64_t group_size;
    std::int64_t num_groups;
    std::int64_t padding;
  };
  const Case cases[] = {{{20, 30}, 10, 5, 0}, {{10, 16}, 2, 13, 0}, {{12, 13}, 13, 2, 1},
                        {{1, 5}, 1, 6, 0},    {{0, 7}, 7, 1, 0},    {{}, 0, 0, 0},
                        {{0, 0}, 0, 0, 0},    {{30, 10}, 10, 4, 0}, {{5, 29}, 5, 7, 1}};
  for (const Case& c : cases) {
    const LayerGrouping grouping = group_layers(c.counts);
    CHECK(grouping.group_size == c.group_size);
    CHECK(grouping.num_groups == c.num_groups);
    CHECK(grouping.padding_layers == c.padding);
  }
  for (std::int64_t a = 0; a < 40; ++a) {
    for (std::int64_t b = 0; b < 40; ++b) {
      const std::array<std::int64_t, 2> counts{a, b};
      const LayerGrouping grouping = group_layers(counts);
      REQUIRE(grouping.group_size * grouping.num_groups == a + b + grouping.padding_layers);
      REQUIRE(grouping.padding_layers <= 2);
    }
  }
  error_of(ErrorCode::invalid_argument,
           [] { (void)group_layers(std::array<std::int64_t, 1>{-1}); });
  error_of(ErrorCode::invalid_argument,
           [] { (void)group_layers(std::array<std::int64_t, 1>{INT64_MAX}); });
}

TEST_CASE("what short prompts use of large pages") {
  const PageUse tiny = page_use(12, 16304);
  CHECK(tiny.num_pages == 1);
  CHECK(tiny.used_fraction == doctest::Approx(0.000736).epsilon(1e-3));
  CHECK(page_use(7000, 16304).used_fraction == doctest::Approx(0.42934).epsilon(1e-4));
  CHECK(page_use(16305, 16304).num_pages == 2);
  error_of(ErrorCode::invalid_argument, [] { (void)page_use(0, 16); });
  error_of(ErrorCode::invalid_argument, [] { (void)page_use(1, 0); });
}
