#include <turboquant/model/pool_plan.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

constexpr std::array strategies{UnificationStrategy::lcm, UnificationStrategy::padded,
                                UnificationStrategy::separate_pools};

LayerClass attention(std::int64_t num_layers, std::int64_t bytes_per_token,
                     std::int64_t block_size = 16) {
  LayerClass c;
  c.name = "attention";
  c.backend = "default";
  for (std::int64_t i = 0; i < num_layers; ++i) {
    c.layers.push_back(i);
  }
  c.bytes_per_token = bytes_per_token;
  c.block_size = block_size;
  return c;
}

LayerClass state(std::int64_t num_layers, std::int64_t state_bytes) {
  LayerClass c = attention(num_layers, 0, 1);
  c.name = "state";
  c.backend = "state";
  c.state_bytes = state_bytes;
  return c;
}

PoolProblem problem_for(std::int64_t memory, std::int64_t tokens,
                        MambaCacheMode mode = MambaCacheMode::none) {
  PoolProblem problem;
  problem.memory_bytes = memory;
  problem.limits = {tokens, 2048, mode};
  return problem;
}

}  // namespace

TEST_CASE("every field of a class is checked and named") {
  const auto refuse = [](auto change, std::string_view part,
                         ErrorCode code = ErrorCode::invalid_argument) {
    std::vector<LayerClass> classes{attention(2, 512), state(2, 4096)};
    change(classes[0], classes[1]);
    for (const UnificationStrategy strategy : strategies) {
      const std::string message = error_of(code, [&] {
        (void)plan_pools(classes, problem_for(1 << 30, 4096, MambaCacheMode::all), strategy);
      });
      CHECK_MESSAGE(mentions(message, "plan_pools: classes[" + std::string(part)), message);
    }
  };
  constexpr std::int64_t most = INT64_MAX;
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-3}, INT64_MIN}) {
    const std::string is = " is " + std::to_string(bad);
    refuse([&](auto& a, auto&) { a.bytes_per_token = bad; }, "0].bytes_per_token" + is);
    refuse([&](auto& a, auto&) { a.block_size = bad; }, "0].block_size" + is);
    refuse([&](auto&, auto& b) { b.block_size = bad; }, "1].block_size" + is);
    refuse([&](auto& a, auto&) { a.window = bad; }, "0].window" + is);
    if (bad < 0) {
      refuse([&](auto&, auto& b) { b.state_bytes = bad; }, "1].state_bytes" + is);
      refuse([&](auto& a, auto&) { a.state_bytes = bad; }, "0].state_bytes" + is);
      refuse([&](auto& a, auto&) { a.num_speculative_blocks = bad; },
             "0].num_speculative_blocks" + is);
      refuse([&](auto&, auto& b) { b.num_speculative_blocks = bad; },
             "1].num_speculative_blocks" + is);
      refuse([&](auto& a, auto&) { a.layers[0] = bad; }, "0].layers" + is);
    }
  }
  refuse([](auto& a, auto&) { a.layers.clear(); }, "0].layers.size() is 0");
  refuse([](auto&, auto& b) { b.layers.clear(); }, "1].layers.size() is 0");
  refuse([](auto& a, auto&) { a.layers.resize(10001); }, "0].layers.size() is 10001");
  refuse([](auto& a, auto&) { a.layers = {5, 5}; }, "0].layers is 5");
  refuse([](auto& a, auto&) { a.num_speculative_blocks = 1; }, "0].num_speculative_blocks is 1");
  refuse([](auto&, auto& b) { b.state_bytes = 0; }, "1].bytes_per_token is 0");
  refuse([](auto&, auto& b) { b.bytes_per_token = 7; }, "1].bytes_per_token is 7");
  refuse([](auto&, auto& b) { b.window = 7; }, "1].window is 7");
  refuse([](auto& a, auto&) { a.block_size = most; }, "0]: LayerClass: block_size is",
         ErrorCode::overflow);
}

TEST_CASE("numbers of a problem outside their domain") {
  const std::vector<LayerClass> classes{attention(2, 512)};
  const auto refuse = [&](auto change, std::string_view part) {
    PoolProblem problem = problem_for(1 << 30, 4096);
    change(problem);
    const std::string message = error_of(ErrorCode::invalid_argument, [&] {
      (void)plan_pools(classes, problem, UnificationStrategy::padded);
    });
    CHECK_MESSAGE(mentions(message, "plan_pools: " + std::string(part)), message);
  };
  refuse([](auto& p) { p.memory_bytes = 0; }, "memory_bytes is 0");
  refuse([](auto& p) { p.limits.max_model_len = 0; }, "max_model_len is 0");
  refuse([](auto& p) { p.limits.max_num_batched_tokens = -1; }, "max_num_batched_tokens is -1");
  refuse([](auto& p) { p.state_block_size = 0; }, "state_block_size is 0");
  refuse([](auto& p) { p.prompt_lengths = {5, -1}; }, "prompt length is -1");
}

TEST_CASE("a strategy beyond 64 bits is not available and says why; the others are planned") {
  // Pages whose multiple fits 64 bits, though not six layers of it.
  std::vector<LayerClass> primes;
  for (const std::int64_t bytes : {99991, 99989, 99971, 500}) {
    primes.push_back(attention(6, bytes));
  }
  const PoolProblem problem = problem_for(std::int64_t{80} << 30, 131072);
  const PoolPlan lcm = plan_pools(primes, problem, UnificationStrategy::lcm);
  CHECK_FALSE(lcm.available);
  CHECK(lcm.strategy == UnificationStrategy::lcm);
  CHECK_MESSAGE(mentions(lcm.unavailable_because, "plan_pools: "), lcm.unavailable_because);
  CHECK(mentions(lcm.unavailable_because, "a sequence of 131072 tokens takes"));
  CHECK(lcm.pages.classes.empty());
  CHECK(lcm.bytes_per_sequence == 0);
  for (const UnificationStrategy strategy :
       {UnificationStrategy::padded, UnificationStrategy::separate_pools}) {
    const PoolPlan plan = plan_pools(primes, problem, strategy);
    CHECK(plan.available);
    CHECK(plan.unavailable_because.empty());
    CHECK(plan.capacity_tokens > 0);
  }
  // Every later product, too: sequences, numbers of states, windows, prompts, tokens in memory.
  const auto unavailable = [](std::vector<LayerClass> classes, const PoolProblem& p,
                              std::string_view part) {
    for (const UnificationStrategy strategy : strategies) {
      const PoolPlan plan = plan_pools(classes, p, strategy);
      CHECK_FALSE(plan.available);
      CHECK_MESSAGE(mentions(plan.unavailable_because, part), plan.unavailable_because);
    }
  };
  constexpr std::int64_t most = INT64_MAX;
  unavailable({attention(3, std::int64_t{1} << 40)}, problem_for(1, std::int64_t{1} << 40),
              "a sequence of 1099511627776 tokens");
  LayerClass speculating = state(1, 1);
  speculating.num_speculative_blocks = most;
  std::vector<LayerClass> endless{attention(1, 1, 1)};
  endless[0].window = most;
  for (const UnificationStrategy strategy : strategies) {
    // A window that holds every token has one page more than fits.
    CHECK_FALSE(plan_pools(endless, problem_for(1, most), strategy).available);
    CHECK(plan_pools(endless, problem_for(1 << 20, 1000), strategy).available);
  }
  PoolProblem prompts = problem_for(1 << 30, 4096);
  prompts.prompt_lengths = {most};
  unavailable({attention(3, 512)}, prompts, "a sequence of " + std::to_string(most) + " tokens");
  unavailable({state(1, 1)}, problem_for(std::int64_t{1} << 60, 4096),
              "memory_bytes is 1152921504606846976, room for");
  CHECK(mentions(error_of(ErrorCode::overflow, [&] { (void)speculating.content_bytes(1); }),
                 "num_speculative_blocks is " + std::to_string(most)));
}

TEST_CASE("states without tokens beside them are kept where the problem says, in every layout") {
  for (const std::int64_t block : {16, 256, 1000}) {
    for (const UnificationStrategy strategy : strategies) {
      PoolProblem problem = problem_for(std::int64_t{80} << 30, 131072, MambaCacheMode::all);
      problem.state_block_size = block;
      const std::vector<LayerClass> classes{state(64, 4096)};
      const PoolPlan plan = plan_pools(classes, problem, strategy);
      CHECK(plan.bytes_per_sequence == 64 * 4096 * ((131072 + block - 1) / block));
      CHECK(plan.prefix_granularity == block);
      problem.limits.mamba_cache_mode = MambaCacheMode::align;
      CHECK(plan_pools(classes, problem, strategy).prefix_granularity == block);
      CHECK(plan_pools(classes, problem, strategy).bytes_per_sequence == 64 * 4096 * 2);
    }
  }
  // Beside tokens they are kept at the boundaries of their pages.
  PoolProblem problem = problem_for(std::int64_t{80} << 30, 131072, MambaCacheMode::all);
  problem.state_block_size = 1000;
  const std::vector<LayerClass> both{attention(1, 256), state(1, 4096)};
  CHECK(plan_pools(both, problem, UnificationStrategy::padded).prefix_granularity == 16);
  CHECK(plan_pools(both, problem, UnificationStrategy::separate_pools).prefix_granularity == 2000);
}

TEST_CASE("tokens in memory are exact") {
  // 3 layers of 542 bytes a token and a state, 4 times the memory of a sequence and a bit less.
  PoolProblem problem = problem_for(3040549578363685, 3796865260);
  problem.limits.max_num_batched_tokens = 1;
  std::vector<LayerClass> classes{attention(3, 542), state(1, 1808378)};
  classes[1].layers = {3};
  CHECK(plan_pools(classes, problem, UnificationStrategy::separate_pools).capacity_tokens ==
        1869956140550);

  static_assert(detail::scaled(7, 5, 3) == 11);
  static_assert(detail::scaled(INT64_MAX, 1, 1) == INT64_MAX);
  static_assert(detail::scaled(INT64_MAX - 1, INT64_MAX, INT64_MAX) == INT64_MAX - 1);
  static_assert(detail::scaled(0, INT64_MAX, 1) == 0);
  // q = floor(a b / c) is the only q near it for which a b - q c, modulo 2^64, is in 0..c-1.
  std::uint64_t random = 1;
  const auto next = [&](int bits) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::int64_t>(random >> (64 - bits));
  };
  for (int i = 0; i < 200000; ++i) {
    const std::int64_t c = 1 + next(20 + i % 43);
    const std::int64_t a = next(63) % c;
    const std::int64_t b = next(1 + i % 62);
    const std::int64_t q = detail::scaled(a, b, c);
    const double near = static_cast<double>(a) * static_cast<double>(b) / static_cast<double>(c);
    REQUIRE(static_cast<double>(q) == doctest::Approx(near).epsilon(1e-12).scale(1e12));
    REQUIRE(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b) -
                static_cast<std::uint64_t>(q) * static_cast<std::uint64_t>(c) <
            static_cast<std::uint64_t>(c));
  }
}

TEST_CASE("without classes nothing is allocated and nothing is used") {
  PoolProblem problem = problem_for(1, 1);
  problem.prompt_lengths = {1, 100};
  for (const UnificationStrategy strategy : strategies) {
    const PoolPlan plan = plan_pools({}, problem, strategy);
    CHECK(plan.available);
    REQUIRE(plan.prompts.size() == 2);
    for (const PromptUse& use : plan.prompts) {
      CHECK(use.allocated_bytes == 0);
      CHECK(use.used_fraction == 0.0);
    }
  }
}
