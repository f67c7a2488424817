#include <turboquant/base/random.hpp>

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <thread>
#include <type_traits>
#include <vector>

using turboquant::CounterRng;

static_assert(std::is_trivially_copyable_v<CounterRng>);
static_assert(CounterRng(0, 0).block(0)[0] == 0x6627E8D5U);

// Known answers of Philox-4x32-10 published with its authors' implementation. The seed is the key
// (low word first), the block number the lower and the stream the upper half of the counter.
TEST_CASE("published known answers") {
  using Words = std::array<std::uint32_t, 4>;
  CHECK(CounterRng(0, 0).block(0) == Words{0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U});
  CHECK(CounterRng(~0ULL, ~0ULL).block(~0ULL) ==
        Words{0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU});
  CHECK(CounterRng(0x299F31D0A4093822U, 0x0370734413198A2EU).block(0x85A308D3243F6A88U) ==
        Words{0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U});
}

TEST_CASE("all views of a stream read the same words") {
  const CounterRng rng(123, 45);
  for (std::uint64_t index = 0; index < 64; ++index) {
    CHECK(rng.bits32(index) == rng.block(index / 4)[index % 4]);
    CHECK(rng.bits64(index) ==
          (rng.bits32(2 * index) | (std::uint64_t{rng.bits32(2 * index + 1)} << 32U)));
  }
}

TEST_CASE("seed, stream and index each change the numbers") {
  const CounterRng rng(7, 8);
  CHECK(rng.bits64(0) != rng.bits64(1));
  for (unsigned bit = 0; bit < 64; ++bit) {
    const std::uint64_t flip = std::uint64_t{1} << bit;
    CHECK(CounterRng(7 ^ flip, 8).bits64(0) != rng.bits64(0));
    CHECK(CounterRng(7, 8 ^ flip).bits64(0) != rng.bits64(0));
  }
}

TEST_CASE("any order and any number of threads draw the same sequence") {
  const CounterRng rng(99, 1);
  std::vector<std::uint64_t> sequential(4096);
  for (std::size_t i = 0; i < sequential.size(); ++i) {
    sequential[i] = rng.bits64(i);
  }
  std::vector<std::uint64_t> threaded(sequential.size());
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = threaded.size(); i-- > 0;) {
        if (i % 8 == t) {
          threaded[i] = rng.bits64(i);
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(threaded == sequential);
}

TEST_CASE("uniform numbers are odd multiples of 2^-53 with uniform moments") {
  const CounterRng rng(5, 0);
  constexpr int count = 50000;
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < count; ++i) {
    const double u = rng.uniform(static_cast<std::uint64_t>(i));
    REQUIRE(u > 0.0);
    REQUIRE(u < 1.0);
    const double units = std::ldexp(u, 53);
    REQUIRE(units == std::floor(units));
    REQUIRE(std::fmod(units, 2.0) == 1.0);
    sum += u;
    squares += u * u;
  }
  CHECK(std::fabs(sum / count - 0.5) < 5 * std::sqrt(1.0 / 12 / count));
  CHECK(std::fabs(squares / count - 1.0 / 3) < 5 * std::sqrt(4.0 / 45 / count));
}

TEST_CASE("bounded integers stay in range and hit every value equally often") {
  const CounterRng rng(6, 3);
  for (const std::uint32_t bound : {1U, 2U, 3U, 7U, 10U, 100U}) {
    constexpr std::uint64_t count = 100000;
    std::vector<int> hits(bound);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint32_t value = rng.below(i, bound);
      REQUIRE(value < bound);
      ++hits[value];
    }
    const double expected = static_cast<double>(count) / bound;
    for (const int hit : hits) {
      CHECK(std::fabs(hit - expected) < 5 * std::sqrt(expected));
    }
  }
  CHECK(rng.below(0, 0xFFFFFFFFU) < 0xFFFFFFFFU);
}

TEST_CASE("each of the 32 bits is set half of the time and independent of its neighbour") {
  const CounterRng rng(11, 12);
  constexpr int count = 20000;
  std::array<int, 32> ones{};
  std::array<int, 32> equal_to_next{};
  for (int i = 0; i < count; ++i) {
    const std::uint32_t word = rng.bits32(static_cast<std::uint64_t>(i));
    const std::uint32_t same = ~(word ^ std::rotr(word, 1));
    for (std::size_t bit = 0; bit < 32; ++bit) {
      ones[bit] += static_cast<int>((word >> bit) & 1U);
      equal_to_next[bit] += static_cast<int>((same >> bit) & 1U);
    }
  }
  const double tolerance = 5 * std::sqrt(count / 4.0);
  for (std::size_t bit = 0; bit < 32; ++bit) {
    CHECK(std::fabs(ones[bit] - count / 2.0) < tolerance);
    CHECK(std::fabs(equal_to_next[bit] - count / 2.0) < tolerance);
  }
}
