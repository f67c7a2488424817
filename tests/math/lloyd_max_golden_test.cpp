#include <turboquant/math/lloyd_max.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

// codebooks.txt comes from another solver; codebooks.py beside it describes the lines.
TEST_CASE("centroids and distortion agree with an independent solver") {
  std::ifstream file(TURBOQUANT_TEST_DATA_DIR "/codebooks.txt");
  REQUIRE(file.is_open());
  std::set<int> dims;
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    std::istringstream fields(line);
    int dim = 0;
    int bits = 0;
    double mse = 0;
    fields >> dim >> bits >> mse;
    REQUIRE(fields.good());
    dims.insert(dim);
    const auto solved = turboquant::solve_lloyd_max(dim, bits);
    CAPTURE(line);
    CHECK(std::fabs(solved.mse_per_coordinate - mse) < 1e-10);
    CHECK(std::fabs(solved.mse_per_coordinate / mse - 1) < 1e-9);
    const std::size_t half = solved.codebook.levels() / 2;
    std::size_t values = 0;
    std::size_t index = 0;
    for (double value = 0; fields >> index >> value; ++values) {
      REQUIRE(index < half);
      CHECK(std::fabs(solved.codebook.centroids()[half + index] - value) < 1e-9);
    }
    CHECK(values == (half <= 8 ? half : 5));
  }
  CHECK(lines == 23 * 8);
  CHECK(dims.size() == 23);
}
