#include <turboquant/math/lloyd_max.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

using turboquant::lloyd_max;
using turboquant::LloydMaxCodebook;

namespace turboquant::test {

/// Defined in lloyd_max_cache_other.cpp: the cache as another translation unit sees it.
const LloydMaxCodebook& lloyd_max_elsewhere(int dim, int bits);

}  // namespace turboquant::test

TEST_CASE("the process has one cache: every translation unit gets the same object") {
  CHECK(&lloyd_max(64, 3) == &lloyd_max(64, 3));
  CHECK(&lloyd_max(64, 3) == &turboquant::test::lloyd_max_elsewhere(64, 3));
  CHECK(&turboquant::test::lloyd_max_elsewhere(72, 2) == &lloyd_max(72, 2));
  CHECK(&lloyd_max(64, 3) != &lloyd_max(64, 4));
  CHECK(&lloyd_max(64, 3) != &lloyd_max(65, 3));
}

TEST_CASE("a cached codebook is the solved one") {
  const LloydMaxCodebook& cached = lloyd_max(96, 5);
  const auto solved = turboquant::solve_lloyd_max(96, 5);
  CHECK(cached.dim == 96);
  CHECK(cached.mse_per_coordinate == solved.mse_per_coordinate);
  CHECK(std::equal(cached.codebook.centroids().begin(), cached.codebook.centroids().end(),
                   solved.codebook.centroids().begin(), solved.codebook.centroids().end()));
}

TEST_CASE("threads that ask at the same moment all get one object per key") {
  constexpr std::size_t num_threads = 8;
  const std::vector<std::pair<int, int>> keys{{200, 1}, {200, 2}, {200, 8},
                                              {201, 4}, {202, 3}, {203, 8}};
  std::vector<std::vector<const LloydMaxCodebook*>> seen(num_threads);
  std::barrier start(static_cast<std::ptrdiff_t>(num_threads));
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < num_threads; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      for (std::size_t k = 0; k < keys.size(); ++k) {
        const auto& key = keys[(k + t / 2) % keys.size()];
        seen[t].push_back(&lloyd_max(key.first, key.second));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (std::size_t t = 0; t < num_threads; ++t) {
    for (std::size_t k = 0; k < keys.size(); ++k) {
      const auto& key = keys[(k + t / 2) % keys.size()];
      CHECK(seen[t][k] == &lloyd_max(key.first, key.second));
      CHECK(seen[t][k]->dim == key.first);
      CHECK(seen[t][k]->codebook.bits() == key.second);
    }
  }
}
