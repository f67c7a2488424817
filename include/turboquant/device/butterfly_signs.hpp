#pragma once

#include <turboquant/math/hadamard_rotation.hpp>

#include <cstddef>
#include <vector>

namespace turboquant::detail {

/// The signs of a rotation as butterflies take them.
///
/// `s a + t b` and `s a - t b` are `s (a + u b)` and `s (a - u b)` with u = s t, so that both
/// numbers have the sign s before the next stage, where the same holds. A round has a record of 8
/// numbers for every 8 coordinates: the four factors u of the stage of width 1, two of width 2, one
/// of width 4, and a number without meaning. Then come dim / 16 factors for the stage of width 8,
/// dim / 32 for the next and so on; the last number is the sign that all coordinates have in the
/// end, of this round and those before.
struct ButterflySigns {
  /// Numbers of a round.
  [[nodiscard]] static constexpr TURBOQUANT_FUNCTION std::size_t size(std::size_t dim) noexcept {
    return dim + dim / 8;
  }
  /// Where the factors of the stage of that width begin, 8 or more.
  [[nodiscard]] static constexpr TURBOQUANT_FUNCTION std::size_t stage(std::size_t dim,
                                                                       std::size_t width) noexcept {
    return size(dim) - dim / width;
  }

  /// Whether a rotation is the plain kind that has them: without permutations.
  [[nodiscard]] static bool fit(const HadamardRotation& rotation) noexcept {
    return rotation.permutations().empty();
  }

  /// Adds the numbers of a rotation that has them, (rounds, size).
  static void append(const HadamardRotation& rotation, std::vector<float>& out) {
    const auto dim = static_cast<std::size_t>(rotation.dim());
    float common = 1;
    for (std::size_t first = 0; first < rotation.signs().size(); first += dim) {
      const auto* const signs = rotation.signs().data() + first;
      const auto add = [&](std::size_t begin, std::size_t end, std::size_t width) {
        for (std::size_t i = begin; i < end; i += 2 * width) {
          out.push_back(signs[i] * signs[i + width]);
        }
      };
      for (std::size_t run = 0; run < dim; run += 8) {
        add(run, run + 8, 1);
        add(run, run + 8, 2);
        add(run, run + 8, 4);
        out.push_back(0);
      }
      for (std::size_t width = 8; width < dim; width *= 2) {
        add(0, dim, width);
      }
      common *= signs[0];
      out.push_back(common);
    }
  }
};

}  // namespace turboquant::detail
