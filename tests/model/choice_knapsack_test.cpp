#include <turboquant/base/random.hpp>
#include <turboquant/model/choice_knapsack.hpp>

#include <doctest/doctest.h>

#include <support/error_of.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

using namespace turboquant;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

using Groups = std::vector<std::vector<KnapsackChoice>>;

/// Draws numbers one after another.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : rng_(seed, 0) {}
  std::uint32_t below(std::uint32_t bound) { return rng_.below(next_++, bound); }
  double uniform() { return rng_.uniform(2 * next_++ + (std::uint64_t{1} << 40U)); }

 private:
  CounterRng rng_;
  std::uint64_t next_ = 0;
};

/// The least error within the budget, and the fewest bytes with it, of all combinations. Errors are
/// integers, so sums are exact.
std::pair<double, std::int64_t> best_of_all(const Groups& groups, std::int64_t budget) {
  std::pair<double, std::int64_t> best{std::numeric_limits<double>::infinity(), 0};
  std::vector<std::size_t> at(groups.size(), 0);
  while (true) {
    std::pair<double, std::int64_t> sum{0, 0};
    for (std::size_t g = 0; g < groups.size(); ++g) {
      sum.first += groups[g][at[g]].error;
      sum.second += groups[g][at[g]].bytes;
    }
    if (sum.second <= budget) {
      best = std::min(best, sum);
    }
    std::size_t g = 0;
    while (g < groups.size() && ++at[g] == groups[g].size()) {
      at[g++] = 0;
    }
    if (g == groups.size()) {
      return best;
    }
  }
}

std::int64_t least_bytes(const Groups& groups) {
  std::int64_t sum = 0;
  for (const auto& group : groups) {
    sum += std::min_element(group.begin(), group.end(), [](auto& a, auto& b) {
             return a.bytes < b.bytes;
           })->bytes;
  }
  return sum;
}

std::int64_t most_bytes(const Groups& groups) {
  std::int64_t sum = 0;
  for (const auto& group : groups) {
    sum += std::max_element(group.begin(), group.end(), [](auto& a, auto& b) {
             return a.bytes < b.bytes;
           })->bytes;
  }
  return sum;
}

/// What a solution says of itself is what its choices add up to.
void check_consistent(const Groups& groups, std::int64_t budget, const KnapsackSolution& solution) {
  REQUIRE(solution.chosen.size() == groups.size());
  std::int64_t bytes = 0;
  double error = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    REQUIRE(solution.chosen[g] < groups[g].size());
    bytes += groups[g][solution.chosen[g]].bytes;
    error += groups[g][solution.chosen[g]].error;
  }
  REQUIRE(bytes == solution.bytes);
  REQUIRE(error == solution.error);
  REQUIRE(bytes <= budget);
}

/// Groups whose errors fall, mostly, as their bytes rise.
Groups bit_like(Draw& draw, std::size_t num_groups, std::uint32_t max_choices,
                std::uint32_t byte_step) {
  Groups groups(num_groups);
  for (auto& group : groups) {
    const std::uint32_t choices = 1 + draw.below(max_choices);
    double error = 1 + double(draw.below(1000));
    for (std::uint32_t c = 0; c < choices; ++c) {
      group.push_back({std::int64_t(68 + byte_step * (c + draw.below(2))), error});
      error = std::floor(error * (0.1 + 0.5 * draw.uniform()));
    }
  }
  return groups;
}

}  // namespace

TEST_CASE("the solution is the best of all combinations, in error and then in bytes") {
  int feasible = 0;
  int with_slack = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    Draw draw(seed);
    Groups groups;
    if (seed % 4 == 0) {
      groups = bit_like(draw, 1 + draw.below(6), 4, 16);
    } else {
      groups.resize(1 + draw.below(6));
      // Few distinct numbers make ties, many make every gap.
      const std::uint32_t bytes = seed % 4 == 1 ? 4 : 1000;
      const std::uint32_t errors = seed % 3 == 0 ? 3 : 500;
      for (auto& group : groups) {
        for (std::uint32_t c = 0; c <= draw.below(5); ++c) {
          group.push_back({std::int64_t(draw.below(bytes)), double(draw.below(errors))});
        }
        if (group.empty()) {
          group.push_back({1, 1});
        }
      }
    }
    const std::int64_t least = least_bytes(groups);
    const std::int64_t most = most_bytes(groups);
    for (int i = 0; i < 6; ++i) {
      const std::int64_t budget =
          i == 0 ? most : least + std::int64_t(draw.below(std::uint32_t(most - least + 1)));
      const KnapsackSolution solution = solve_choice_knapsack(groups, budget);
      check_consistent(groups, budget, solution);
      const auto best = best_of_all(groups, budget);
      CAPTURE(seed);
      CAPTURE(budget);
      REQUIRE(solution.error == best.first);
      REQUIRE(solution.bytes == best.second);
      ++feasible;
      with_slack += solution.bytes < budget ? 1 : 0;
    }
  }
  CHECK(feasible == 24000);
  CHECK(with_slack > 5000);
}

TEST_CASE("a greedy choice by gain per byte would not do") {
  // Greedy takes the first group's step (9 per byte) and has no room for the second's.
  const Groups groups{{{0, 100}, {10, 10}}, {{0, 100}, {15, 1}}};
  const KnapsackSolution solution = solve_choice_knapsack(groups, 15);
  CHECK(solution.chosen == std::vector<std::size_t>{0, 1});
  CHECK(solution.error == 101);
  // A choice that is above the convex hull is the best one at its own budget.
  const Groups bent{{{0, 100}, {10, 99}, {20, 0}}};
  CHECK(solve_choice_knapsack(bent, 10).chosen == std::vector<std::size_t>{1});
  CHECK(solve_choice_knapsack(bent, 9).chosen == std::vector<std::size_t>{0});
  CHECK(solve_choice_knapsack(bent, 20).chosen == std::vector<std::size_t>{2});
}

TEST_CASE("laws: more budget is never worse, scaling bytes or errors changes nothing") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Draw draw(seed);
    const Groups groups = bit_like(draw, 20, 5, 16);
    double before = std::numeric_limits<double>::infinity();
    for (std::int64_t budget = least_bytes(groups); budget <= most_bytes(groups) + 64;
         budget += 7) {
      const KnapsackSolution solution = solve_choice_knapsack(groups, budget);
      check_consistent(groups, budget, solution);
      REQUIRE(solution.error <= before);
      before = solution.error;
      if (budget % 5 == 0) {
        Groups scaled = groups;
        for (auto& group : scaled) {
          for (KnapsackChoice& choice : group) {
            choice.bytes *= std::int64_t{1} << 40U;
            choice.error = std::ldexp(choice.error, -900);
          }
        }
        REQUIRE(solve_choice_knapsack(scaled, budget * (std::int64_t{1} << 40U)).chosen ==
                solution.chosen);
      }
    }
    CHECK(solve_choice_knapsack(groups, std::numeric_limits<std::int64_t>::max()).error == before);
  }
}

TEST_CASE("permuting the groups permutes a solution that is the only one") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Draw draw(seed);
    Groups groups(12);
    for (auto& group : groups) {
      double error = 1;
      for (std::int64_t bytes = 68; bytes <= 132; bytes += 16) {
        group.push_back({bytes, error});
        error *= 0.1 + 0.8 * draw.uniform();  // 53 random bits: no two sums agree
      }
    }
    std::vector<std::size_t> order(groups.size());
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[draw.below(std::uint32_t(i))]);
    }
    Groups permuted;
    for (const std::size_t g : order) {
      permuted.push_back(groups[g]);
    }
    const std::int64_t budget = least_bytes(groups) + 16 * std::int64_t(draw.below(48));
    const KnapsackSolution solution = solve_choice_knapsack(groups, budget);
    const KnapsackSolution other = solve_choice_knapsack(permuted, budget);
    for (std::size_t i = 0; i < order.size(); ++i) {
      REQUIRE(other.chosen[i] == solution.chosen[order[i]]);
    }
  }
}

TEST_CASE("many groups and large budgets") {
  constexpr std::size_t count = 10'000;
  SUBCASE("of random errors") {
    for (const std::uint32_t step : {16U, 1U, 123'457U}) {
      Draw draw(step);
      Groups groups(count);
      for (auto& group : groups) {
        double error = draw.uniform();
        for (std::int64_t bits = 0; bits < 9; ++bits) {
          group.push_back({68 + bits * step, error});
          error *= 0.2 + 0.6 * draw.uniform();
        }
      }
      const std::int64_t budget = (least_bytes(groups) + most_bytes(groups)) / 2 + 5;
      const KnapsackSolution solution = solve_choice_knapsack(groups, budget);
      check_consistent(groups, budget, solution);
      CHECK(budget - solution.bytes < 10 * std::int64_t(step));
    }
  }
  SUBCASE("all alike") {
    const Groups groups(count, {{68, 1.0}, {84, 0.25}, {100, 0.0625}, {132, 0.015625}});
    for (const std::int64_t extra : {0, 16, 159'999, 160'000, 250'000, 320'016, 640'000}) {
      const KnapsackSolution solution =
          solve_choice_knapsack(groups, 68 * std::int64_t(count) + extra);
      check_consistent(groups, 68 * std::int64_t(count) + extra, solution);
      const double first = std::min<double>(double(extra / 16), count);
      const double second = std::clamp<double>(double(extra / 16) - count, 0, count);
      const double third = std::clamp<double>(double((extra - 320'000) / 32), 0, count);
      CHECK(solution.error == count - 0.75 * first - 0.1875 * second - 0.046875 * third);
    }
  }
  SUBCASE("of the largest numbers") {
    const std::int64_t huge = std::numeric_limits<std::int64_t>::max() / 2;
    const Groups groups{{{1, 3e300}, {huge, 1e-300}}, {{2, 1e308}, {huge, 0}}};
    CHECK(solve_choice_knapsack(groups, huge + 2).chosen == std::vector<std::size_t>{0, 1});
    CHECK(solve_choice_knapsack(groups, 2 * huge).chosen == std::vector<std::size_t>{1, 1});
  }
}

TEST_CASE("more work than allowed is refused, and a hard instance within it is solved") {
  // Weights without structure, gains that equal them: no bound excludes anything.
  Draw draw(7);
  Groups groups(24);
  for (auto& group : groups) {
    const auto weight = std::int64_t(1'000'000 + draw.below(1'000'000));
    group = {{0, double(weight)}, {weight, 0}};
  }
  const std::int64_t budget = most_bytes(groups) / 2;
  CHECK(
      mentions(error_of(ErrorCode::capacity,
                        [&] { (void)solve_choice_knapsack(groups, budget, {.max_states = 1000}); }),
               "more than max_states = 1000 partial solutions"));
  groups.resize(16);
  const std::int64_t smaller = most_bytes(groups) / 2;
  const KnapsackSolution solution = solve_choice_knapsack(groups, smaller);
  CHECK(solution.error == best_of_all(groups, smaller).first);
}

TEST_CASE("corner cases") {
  const KnapsackSolution none = solve_choice_knapsack({}, 0);
  CHECK(none.chosen.empty());
  CHECK(none.bytes == 0);
  CHECK(none.error == 0);
  CHECK(solve_choice_knapsack(Groups{{{5, 0}}}, 5).chosen == std::vector<std::size_t>{0});
  CHECK(solve_choice_knapsack(Groups{{{0, 0}, {0, 0}}}, 0).chosen == std::vector<std::size_t>{0});
  // A larger choice that gains nothing is not taken.
  CHECK(solve_choice_knapsack(Groups{{{9, 1}, {5, 1}}}, 100).chosen == std::vector<std::size_t>{1});
}

TEST_CASE("what cannot be solved is refused with its numbers") {
  const auto message = [](ErrorCode code, const Groups& groups, std::int64_t budget) {
    return error_of(code, [&] { (void)solve_choice_knapsack(groups, budget); });
  };
  CHECK(mentions(message(ErrorCode::capacity, {{{10, 1}}, {{20, 1}, {15, 2}}}, 24),
                 "budget_bytes is 24, expected at least 25, the smallest choices of all 2 groups"));
  CHECK(mentions(message(ErrorCode::invalid_argument, {{{1, 1}}}, -1), "budget_bytes is -1"));
  CHECK(mentions(message(ErrorCode::invalid_argument, {{{1, 1}}, {}}, 9), "groups[1] has 0"));
  CHECK(mentions(message(ErrorCode::invalid_argument, {{{-1, 1}}}, 9), "groups[0][0].bytes is -1"));
  CHECK(mentions(message(ErrorCode::invalid_argument, {{{1, 1}, {1, -0.5}}}, 9),
                 "groups[0][1].error is -0.5"));
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    CHECK(mentions(message(ErrorCode::non_finite, {{{1, 1}}, {{1, bad}}}, 9),
                   "groups[1][0].error is"));
  }
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK(mentions(message(ErrorCode::overflow, {{{1, 1}, {most, 0}}, {{1, 1}}}, 9),
                 "groups 0 to 1 exceed the 64-bit limit"));
  constexpr double huge = 1.7e308;
  CHECK(mentions(message(ErrorCode::overflow, {{{1, huge}}, {{1, 0}}, {{1, huge}, {2, 1}}}, 9),
                 "the largest errors of groups 0 to 2"));
  CHECK(solve_choice_knapsack(Groups{{{1, huge}, {2, 1}}, {{1, 1e306}}}, 2).error == huge + 1e306);
  CHECK(mentions(message(ErrorCode::invalid_argument, Groups(10'001, {{1, 1}}), 9),
                 "groups.size() is 10001, expected at most 10000"));
  CHECK(mentions(error_of(ErrorCode::invalid_argument,
                          [] { (void)solve_choice_knapsack({}, 0, {.max_states = 0}); }),
                 "max_states is 0"));
}
