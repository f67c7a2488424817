#include <turboquant/base/checked_math.hpp>

#include <support/error_of.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>
#include <limits>

using namespace turboquant;  // NOLINT(google-build-using-namespace)
using test::error_of;
using test::mentions;

namespace {

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t lowest = std::numeric_limits<std::int64_t>::min();

}  // namespace

static_assert(checked_mul(3, 5) == 15 && checked_add(3, 5) == 8 && ceil_div(7, 2) == 4);
static_assert(round_up(65, 64) == 128 && checked_lcm(12, 18) == 36);

TEST_CASE("products and sums are exact up to the limit and refuse beyond it") {
  CHECK(checked_mul(0, largest) == 0);
  CHECK(checked_mul(largest, 0) == 0);
  CHECK(checked_mul(largest, 1) == largest);
  CHECK(checked_mul(largest / 7, 7) == largest);
  CHECK(checked_mul(3037000499, 3037000499) == 3037000499 * 3037000499);
  CHECK(checked_add(largest, 0) == largest);
  CHECK(checked_add(largest - 5, 5) == largest);
  error_of(ErrorCode::overflow, [] { (void)checked_mul(largest / 7 + 1, 7); });
  error_of(ErrorCode::overflow, [] { (void)checked_mul(3037000500, 3037000500); });
  error_of(ErrorCode::overflow,
           [] { (void)checked_mul(std::int64_t{1} << 32, std::int64_t{1} << 32); });
  error_of(ErrorCode::overflow, [] { (void)checked_add(largest, 1); });
  error_of(ErrorCode::overflow, [] { (void)checked_add(largest, largest); });
}

TEST_CASE("messages name the arguments and the expectation") {
  const auto product =
      error_of(ErrorCode::overflow, [] { (void)checked_mul(5000000000, 4000000000); });
  CHECK(mentions(product, "5000000000"));
  CHECK(mentions(product, "4000000000"));
  CHECK(mentions(product, "9223372036854775807"));
  const auto negative = error_of(ErrorCode::invalid_argument, [] { (void)checked_add(-3, 4); });
  CHECK(mentions(negative, "-3"));
  CHECK(mentions(negative, "expected"));
}

TEST_CASE("negative and zero arguments outside the domain are refused") {
  for (const std::int64_t negative : {std::int64_t{-1}, lowest}) {
    error_of(ErrorCode::invalid_argument, [=] { (void)checked_mul(negative, 1); });
    error_of(ErrorCode::invalid_argument, [=] { (void)checked_mul(1, negative); });
    error_of(ErrorCode::invalid_argument, [=] { (void)checked_mul(negative, negative); });
    error_of(ErrorCode::invalid_argument, [=] { (void)checked_add(negative, 1); });
    error_of(ErrorCode::invalid_argument, [=] { (void)checked_add(1, negative); });
    error_of(ErrorCode::invalid_argument, [=] { (void)ceil_div(negative, 1); });
    error_of(ErrorCode::invalid_argument, [=] { (void)ceil_div(1, negative); });
    error_of(ErrorCode::invalid_argument, [=] { (void)round_up(1, negative); });
    error_of(ErrorCode::invalid_argument, [=] { (void)checked_lcm(negative, 1); });
    error_of(ErrorCode::invalid_argument, [=] { (void)checked_lcm(1, negative); });
  }
  error_of(ErrorCode::invalid_argument, [] { (void)ceil_div(1, 0); });
  error_of(ErrorCode::invalid_argument, [] { (void)round_up(1, 0); });
  error_of(ErrorCode::invalid_argument, [] { (void)checked_lcm(0, 4); });
  error_of(ErrorCode::invalid_argument, [] { (void)checked_lcm(4, 0); });
}

TEST_CASE("division rounds up without overflow at the limit") {
  for (std::int64_t a = 0; a < 100; ++a) {
    for (std::int64_t b = 1; b < 20; ++b) {
      const std::int64_t quotient = ceil_div(a, b);
      REQUIRE(quotient * b >= a);
      REQUIRE((quotient - 1) * b < a);
    }
  }
  CHECK(ceil_div(largest, 1) == largest);
  CHECK(ceil_div(largest, 2) == largest / 2 + 1);
  CHECK(ceil_div(largest, largest) == 1);
}

TEST_CASE("rounding up is idempotent and refuses a multiple beyond 64 bits") {
  for (std::int64_t a = 0; a < 300; ++a) {
    const std::int64_t padded = round_up(a, 48);
    REQUIRE(padded % 48 == 0);
    REQUIRE(padded - a >= 0);
    REQUIRE(padded - a < 48);
    REQUIRE(round_up(padded, 48) == padded);
  }
  CHECK(round_up(largest, 1) == largest);
  error_of(ErrorCode::overflow, [] { (void)round_up(largest, 2); });
}

TEST_CASE("the least common multiple fits where the plain product does not") {
  CHECK(checked_lcm(1, 1) == 1);
  CHECK(checked_lcm(largest, largest) == largest);
  CHECK(checked_lcm(std::int64_t{1} << 40, std::int64_t{1} << 41) == std::int64_t{1} << 41);
  error_of(ErrorCode::overflow, [] { (void)checked_lcm(largest, largest - 1); });
  for (std::int64_t a = 1; a < 40; ++a) {
    for (std::int64_t b = 1; b < 40; ++b) {
      std::int64_t expected = a;
      while (expected % b != 0) {
        expected += a;
      }
      REQUIRE(checked_lcm(a, b) == expected);
    }
  }
}
