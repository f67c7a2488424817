#pragma once

#include <turboquant/base/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace turboquant::detail {

inline constexpr std::size_t knapsack_max_groups = 10'000;
inline constexpr std::size_t knapsack_max_choices = 4'096;

/// An error as an integer: units of 2^-48 of the power of two above `largest`, so that 10,000 of
/// them fit 62 bits.
[[nodiscard]] inline std::int64_t knapsack_units(double error, double largest) noexcept {
  if (!(largest > 0)) {
    return 0;
  }
  int exponent = 0;
  static_cast<void>(std::frexp(largest, &exponent));
  return std::llround(std::ldexp(error, 48 - exponent));
}

/// `a * b < c * d` for non-negative numbers, without overflow.
[[nodiscard]] constexpr bool product_less(std::int64_t a, std::int64_t b, std::int64_t c,
                                          std::int64_t d) noexcept {
  struct Wide {
    std::uint64_t high;
    std::uint64_t low;
  };
  const auto multiply = [](std::int64_t x, std::int64_t y) {
    const auto low_half = [](std::uint64_t v) { return v & 0xFFFFFFFFU; };
    const auto u = static_cast<std::uint64_t>(x);
    const auto v = static_cast<std::uint64_t>(y);
    const std::uint64_t low = low_half(u) * low_half(v);
    const std::uint64_t middle = (u >> 32U) * low_half(v) + (low >> 32U);
    const std::uint64_t other = low_half(u) * (v >> 32U) + low_half(middle);
    return Wide{(u >> 32U) * (v >> 32U) + (middle >> 32U) + (other >> 32U),
                (other << 32U) | low_half(low)};
  };
  const Wide left = multiply(a, b);
  const Wide right = multiply(c, d);
  return left.high < right.high || (left.high == right.high && left.low < right.low);
}

/// A choice in whole units.
struct KnapsackItem {
  std::int64_t bytes = 0;
  std::int64_t error = 0;
  std::size_t choice = 0;  ///< its index among the caller's
};

/// The problem without what every solution has: bytes are counted from the smallest choice of each
/// group in units of their greatest common divisor, and no choice is left that another one of its
/// group beats.
struct KnapsackProblem {
  explicit KnapsackProblem(std::int64_t bytes) : capacity(bytes) {}

  /// Adds a group: by rising bytes, errors falling.
  void add(std::vector<KnapsackItem> items) {
    std::stable_sort(items.begin(), items.end(), [](const KnapsackItem& a, const KnapsackItem& b) {
      return a.bytes < b.bytes || (a.bytes == b.bytes && a.error < b.error);
    });
    std::vector<KnapsackItem> kept;
    for (const KnapsackItem& item : items) {
      if (kept.empty() || item.error < kept.back().error) {
        kept.push_back(item);
      }
    }
    groups.push_back(std::move(kept));
  }

  void normalise() {
    std::int64_t unit = 0;
    std::int64_t most = 0;
    for (auto& group : groups) {
      const std::int64_t smallest = group.front().bytes;
      capacity -= smallest;
      for (KnapsackItem& item : group) {
        item.bytes -= smallest;
        unit = std::gcd(unit, item.bytes);
      }
      most += group.back().bytes;
    }
    capacity = (std::min)(capacity, most);
    if (unit > 1) {
      capacity /= unit;
      for (auto& group : groups) {
        for (KnapsackItem& item : group) {
          item.bytes /= unit;
        }
      }
    }
  }

  std::vector<std::vector<KnapsackItem>> groups{};
  std::int64_t capacity;
};

/// A good solution, and how good a better one can be at most.
///
/// The linear relaxation takes the steps between the corners of each group's convex hull by falling
/// gain per byte; where it ends exactly at a corner, its solution is the best one. Otherwise the
/// gain per byte of the step that no longer fits is the multiplier of the Lagrange bound:
/// sum of min(error + multiplier * bytes) - multiplier * capacity. It is evaluated in double with a
/// margin above its rounding errors, so that it never excludes a best solution.
class KnapsackBound {
 public:
  explicit KnapsackBound(const KnapsackProblem& problem) : capacity_(problem.capacity) {
    const std::vector<Step> steps = hull_steps(problem);
    std::vector<std::size_t> level(problem.groups.size(), 0);  // index into the group's items
    std::vector<bool> blocked(problem.groups.size(), false);
    std::int64_t left = capacity_;
    bool split = false;
    for (const Step& step : steps) {
      if (left == 0) {
        break;  // at a corner, whether a step has been left out is what decides
      }
      if (step.bytes > left || blocked[step.group]) {
        blocked[step.group] = true;
        if (!split) {
          split = true;
          multiplier_ = static_cast<double>(step.gain) / static_cast<double>(step.bytes);
        }
        continue;
      }
      left -= step.bytes;
      level[step.group] = step.item;
    }
    optimal_ = !split;
    std::int64_t error = 0;
    for (std::size_t g = 0; g < level.size(); ++g) {
      incumbent_.push_back(problem.groups[g][level[g]].choice);
      error += problem.groups[g][level[g]].error;
    }
    least_ = {0.0};
    double size = static_cast<double>(error) + multiplier_ * static_cast<double>(capacity_);
    for (const auto& group : problem.groups) {
      least_.push_back(least_.back() + least_of(group));
      size += static_cast<double>(group.front().error) +
              multiplier_ * static_cast<double>(group.back().bytes);
    }
    const double rounding =
        std::numeric_limits<double>::epsilon() * static_cast<double>(problem.groups.size() + 16);
    best_ = static_cast<double>(error) + 4 * rounding * size;
  }

  /// The choices of a solution within the capacity.
  [[nodiscard]] const std::vector<std::size_t>& incumbent() const noexcept { return incumbent_; }
  /// Whether the incumbent is known to be a best solution.
  [[nodiscard]] bool is_optimal() const noexcept { return optimal_; }

  /// Whether choices of groups `group` on that take `bytes` and err by `error` may be part of a
  /// solution as good as the incumbent.
  [[nodiscard]] bool may_improve(std::size_t group, std::int64_t bytes,
                                 std::int64_t error) const noexcept {
    return least_[group] + priced(bytes, error) <= allowance();
  }

  /// Removes the choices that no solution as good as the incumbent has.
  /// @return whether there were any
  bool exclude(KnapsackProblem& problem) const {
    const double all = least_.back();
    bool any = false;
    for (auto& group : problem.groups) {
      const double least = least_of(group);
      const auto removed = std::erase_if(group, [&](const KnapsackItem& item) {
        return all - least + priced(item.bytes, item.error) > allowance();
      });
      any = any || removed > 0;
    }
    return any;
  }

 private:
  /// From one corner of a group's hull to the next.
  struct Step {
    std::int64_t gain = 0;
    std::int64_t bytes = 0;
    std::size_t group = 0;
    std::size_t item = 0;  ///< where it leads
  };

  [[nodiscard]] static std::vector<Step> hull_steps(const KnapsackProblem& problem) {
    std::vector<Step> steps;
    for (std::size_t g = 0; g < problem.groups.size(); ++g) {
      const auto& items = problem.groups[g];
      std::vector<std::size_t> hull{0};
      const auto step = [&](std::size_t from, std::size_t to) {
        return Step{items[from].error - items[to].error, items[to].bytes - items[from].bytes, g,
                    to};
      };
      for (std::size_t i = 1; i < items.size(); ++i) {
        while (hull.size() > 1 &&
               !steeper(step(hull[hull.size() - 2], hull.back()), step(hull.back(), i))) {
          hull.pop_back();
        }
        hull.push_back(i);
      }
      for (std::size_t i = 1; i < hull.size(); ++i) {
        steps.push_back(step(hull[i - 1], hull[i]));
      }
    }
    std::stable_sort(steps.begin(), steps.end(), steeper);
    return steps;
  }
  static bool steeper(const Step& a, const Step& b) noexcept {
    return product_less(b.gain, a.bytes, a.gain, b.bytes);
  }

  [[nodiscard]] double priced(std::int64_t bytes, std::int64_t error) const noexcept {
    return static_cast<double>(error) + multiplier_ * static_cast<double>(bytes);
  }
  [[nodiscard]] double least_of(const std::vector<KnapsackItem>& group) const noexcept {
    double least = std::numeric_limits<double>::infinity();
    for (const KnapsackItem& item : group) {
      least = (std::min)(least, priced(item.bytes, item.error));
    }
    return least;
  }
  /// What error + multiplier * bytes may be at most.
  [[nodiscard]] double allowance() const noexcept {
    return best_ + multiplier_ * static_cast<double>(capacity_);
  }

  std::int64_t capacity_;
  double multiplier_ = 0;
  double best_ = 0;  ///< error of the incumbent and the margin
  bool optimal_ = false;
  std::vector<std::size_t> incumbent_{};
  std::vector<double> least_{};  ///< (groups + 1), sums of the least priced items of groups before
};

}  // namespace turboquant::detail
