#pragma once

#include <turboquant/base/checked_math.hpp>
#include <turboquant/model/knapsack_bound.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace turboquant {

/// One way to store something: what it takes and what it costs.
struct KnapsackChoice {
  std::int64_t bytes = 0;  ///< 0 or more
  double error = 0;        ///< finite, 0 or more
};

struct KnapsackOptions {
  /// Partial solutions that may be kept, 8 bytes each.
  std::size_t max_states = std::size_t{1} << 25U;
};

/// One choice of every group.
struct KnapsackSolution {
  std::vector<std::size_t> chosen{};  ///< (groups), index into the group's choices
  std::int64_t bytes = 0;
  double error = 0;  ///< sum over the groups, in their order
};

namespace detail {

/// Partial solutions of the groups from one on, by rising bytes and falling error.
class KnapsackFrontier {
 public:
  explicit KnapsackFrontier(std::size_t max_states) : max_states_(max_states) {}

  /// Puts one more group in front. `keep(bytes, error)` tells whether a partial solution may still
  /// become the best one.
  template <class Keep>
  void add(const std::vector<KnapsackItem>& items, const Keep& keep) {
    decided_.push_back(items.size() == 1);
    if (items.size() == 1) {  // nothing to tell apart: no nodes
      for (State& state : states_) {
        state.bytes += items.front().bytes;
        state.error += items.front().error;
      }
      std::erase_if(states_, [&](const State& state) { return !keep(state.bytes, state.error); });
      return;
    }
    std::vector<State> merged;
    std::vector<std::size_t> next(items.size(), 0);
    while (true) {
      // The next candidate by bytes, error and choice; states of one item are sorted already.
      std::size_t first = items.size();
      State best;
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (next[i] < states_.size()) {
          const State& rest = states_[next[i]];
          const State candidate{rest.bytes + items[i].bytes, rest.error + items[i].error,
                                rest.node};
          if (first == items.size() || candidate.bytes < best.bytes ||
              (candidate.bytes == best.bytes && candidate.error < best.error)) {
            first = i;
            best = candidate;
          }
        }
      }
      if (first == items.size()) {
        break;
      }
      ++next[first];
      if ((merged.empty() || best.error < merged.back().error) && keep(best.bytes, best.error)) {
        require(arena_.size() < max_states_, ErrorCode::capacity,
                "solve_choice_knapsack: more than max_states = ", max_states_,
                " partial solutions; round the bytes of the choices up to a coarser multiple");
        arena_.push_back({best.node, static_cast<std::uint32_t>(items[first].choice)});
        best.node = static_cast<std::uint32_t>(arena_.size() - 1);
        merged.push_back(best);
      }
    }
    states_ = std::move(merged);
  }

  /// The choices of all groups, of the solution with the least error and then the fewest bytes.
  [[nodiscard]] std::vector<std::size_t> best(
      const std::vector<std::vector<KnapsackItem>>& groups) const {
    std::vector<std::size_t> choices;
    std::uint32_t node = states_.back().node;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (decided_[groups.size() - 1 - g]) {
        choices.push_back(groups[g].front().choice);
      } else {
        choices.push_back(arena_[node].choice);
        node = arena_[node].rest;
      }
    }
    return choices;
  }

 private:
  struct Node {
    std::uint32_t rest = 0;    ///< the partial solution without the group in front
    std::uint32_t choice = 0;  ///< of that group
  };
  struct State {
    std::int64_t bytes = 0;
    std::int64_t error = 0;
    std::uint32_t node = 0;
  };

  std::size_t max_states_;
  std::vector<Node> arena_{Node{}};     // number 0 stands for no group
  std::vector<State> states_{State{}};  // no group, no bytes, no error
  std::vector<bool> decided_{};         ///< groups with one choice, last to first
};

inline void require_choices(std::span<const std::vector<KnapsackChoice>> groups,
                            std::int64_t budget_bytes) {
  constexpr const char* caller = "solve_choice_knapsack";
  require(groups.size() <= knapsack_max_groups, ErrorCode::invalid_argument, caller,
          ": groups.size() is ", groups.size(), ", expected at most ", knapsack_max_groups);
  require(budget_bytes >= 0, ErrorCode::invalid_argument, caller, ": budget_bytes is ",
          budget_bytes, ", expected 0 or more");
  std::int64_t most = 0;
  double worst = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    require(!groups[g].empty() && groups[g].size() <= knapsack_max_choices,
            ErrorCode::invalid_argument, caller, ": groups[", g, "] has ", groups[g].size(),
            " choices, expected 1 to ", knapsack_max_choices);
    std::int64_t largest = 0;
    double largest_error = 0;
    for (std::size_t c = 0; c < groups[g].size(); ++c) {
      const KnapsackChoice& choice = groups[g][c];
      require(choice.bytes >= 0, ErrorCode::invalid_argument, caller, ": groups[", g, "][", c,
              "].bytes is ", choice.bytes, ", expected 0 or more");
      require(std::isfinite(choice.error), ErrorCode::non_finite, caller, ": groups[", g, "][", c,
              "].error is ", choice.error, ", expected a finite number");
      require(choice.error >= 0, ErrorCode::invalid_argument, caller, ": groups[", g, "][", c,
              "].error is ", choice.error, ", expected 0 or more");
      largest = (std::max)(largest, choice.bytes);
      largest_error = (std::max)(largest_error, choice.error);
    }
    require(most <= (std::numeric_limits<std::int64_t>::max)() - largest, ErrorCode::overflow,
            caller, ": the largest choices of groups 0 to ", g,
            " exceed the 64-bit limit 9223372036854775807 bytes together");
    most += largest;
    worst += largest_error;
    require(std::isfinite(worst), ErrorCode::overflow, caller,
            ": the largest errors of groups 0 to ", g, ", the last of them ", largest_error,
            ", have no finite sum");
  }
}

}  // namespace detail

/// Takes one choice of every group so that the errors add up to the least possible within a budget
/// of bytes (the multiple-choice knapsack problem), exactly.
///
/// Errors are rounded to multiples of 2^-48 of the power of two above the largest one, then all
/// arithmetic that decides is on integers. Of solutions of the same error the one of the fewest
/// bytes is taken, of several such always the same one. Choices are excluded by a lower bound from
/// Lagrange relaxation, what is left is enumerated as a frontier of partial solutions that no other
/// beats in both bytes and error (Nemhauser and Ullmann, "Discrete dynamic programming and capital
/// allocation", Management Science 15, 1969).
/// @param groups (n), n up to 10,000, each with 1 to 4,096 choices
/// @throws Error(capacity) naming both numbers where the smallest choices exceed the budget, and
/// where more than `max_states` partial solutions would have to be kept; Error(invalid_argument),
/// Error(non_finite), Error(overflow) for choices outside their domain.
/// O(n log n) where choices cost multiples of one another, as bit widths do, and most are excluded;
/// the number of kept solutions bounds time and memory otherwise. Same result always.
[[nodiscard]] inline KnapsackSolution solve_choice_knapsack(
    std::span<const std::vector<KnapsackChoice>> groups, std::int64_t budget_bytes,
    const KnapsackOptions& options = {}) {
  detail::require_choices(groups, budget_bytes);
  require(options.max_states >= 1 && options.max_states <= (std::size_t{1} << 31U),
          ErrorCode::invalid_argument, "solve_choice_knapsack: max_states is ", options.max_states,
          ", expected 1 to 2^31");
  double largest = 0;
  std::int64_t least_bytes = 0;
  for (const auto& group : groups) {
    std::int64_t smallest = group.front().bytes;
    for (const KnapsackChoice& choice : group) {
      smallest = (std::min)(smallest, choice.bytes);
      largest = (std::max)(largest, choice.error);
    }
    least_bytes += smallest;
  }
  require(least_bytes <= budget_bytes, ErrorCode::capacity,
          "solve_choice_knapsack: budget_bytes is ", budget_bytes, ", expected at least ",
          least_bytes, ", the smallest choices of all ", groups.size(), " groups together");

  detail::KnapsackProblem problem(budget_bytes);
  for (const auto& group : groups) {
    std::vector<detail::KnapsackItem> items;
    for (std::size_t c = 0; c < group.size(); ++c) {
      items.push_back({group[c].bytes, detail::knapsack_units(group[c].error, largest), c});
    }
    problem.add(std::move(items));
  }
  problem.normalise();
  detail::KnapsackBound bound(problem);
  for (int round = 0; round < 8 && !bound.is_optimal() && bound.exclude(problem); ++round) {
    problem.normalise();
    bound = detail::KnapsackBound(problem);
  }
  std::vector<std::size_t> chosen = bound.incumbent();
  if (!bound.is_optimal()) {
    detail::KnapsackFrontier frontier(options.max_states);
    for (std::size_t g = problem.groups.size(); g-- > 0;) {
      frontier.add(problem.groups[g], [&](std::int64_t bytes, std::int64_t error) {
        return bytes <= problem.capacity && bound.may_improve(g, bytes, error);
      });
    }
    chosen = frontier.best(problem.groups);
  }

  KnapsackSolution solution;
  solution.chosen = std::move(chosen);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    solution.bytes += groups[g][solution.chosen[g]].bytes;
    solution.error += groups[g][solution.chosen[g]].error;
  }
  return solution;
}

}  // namespace turboquant
