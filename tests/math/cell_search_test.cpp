#include <turboquant/base/random.hpp>
#include <turboquant/math/cell_search.hpp>
#include <turboquant/math/lloyd_max.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

using namespace turboquant;  // NOLINT(google-build-using-namespace)

namespace {

/// Random values, every boundary with its two neighbours, and extreme values.
std::vector<float> inputs(const Codebook<float>& codebook) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x{0.0F, -0.0F};
  for (const float extreme :
       {std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min(),
        std::numeric_limits<float>::max()}) {
    x.push_back(extreme);
    x.push_back(-extreme);
  }
  for (const float boundary : codebook.boundaries()) {
    x.push_back(boundary);
    x.push_back(std::nextafter(boundary, infinity));
    x.push_back(std::nextafter(boundary, -infinity));
  }
  const CounterRng rng(1, 2);
  for (std::uint64_t i = 0; i < 100; ++i) {
    x.push_back(static_cast<float>(8 * rng.uniform(i) - 4));
  }
  return x;
}

}  // namespace

TEST_CASE("searching an array gives the codes of searching one by one, for every width and size") {
  for (int bits = 1; bits <= 8; ++bits) {
    const auto codebook = lloyd_max(64, bits).codebook.scaled<float>(8.0);
    const std::vector<float> x = inputs(codebook);
    for (const float factor : {1.0F, 0.37F, 2.5F}) {
      for (std::size_t count = 0; count <= x.size(); count += count < 80 ? 1 : 41) {
        std::vector<std::uint8_t> codes(count + 1, 0xEE);
        detail::encode_cells(codebook, x.data(), factor, count, codes.data());
        for (std::size_t i = 0; i < count; ++i) {
          REQUIRE(codes[i] == codebook.encode(x[i] * factor));
        }
        REQUIRE(codes[count] == 0xEE);
      }
    }
  }
}
