#include <turboquant/base/float16.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>

using turboquant::float16;

namespace {

std::uint16_t rounded(float value) {
  return float16::from_float(value).bits;
}

std::uint16_t rounded_bits(std::uint32_t float_bits) {
  return rounded(std::bit_cast<float>(float_bits));
}

bool is_nan(std::uint16_t bits) {
  return (bits & 0x7FFFU) > 0x7C00U;
}

/// The value of finite half bits from its definition.
double defined_value(std::uint16_t bits) {
  const int exponent = (bits >> 10U) & 0x1F;
  const int mantissa = bits & 0x3FF;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

}  // namespace

static_assert(std::is_trivially_copyable_v<float16> && sizeof(float16) == 2);
static_assert(float16::from_float(1.0F).bits == 0x3C00 && float16{0x3C00}.to_float() == 1.0F);
static_assert(turboquant::float16_max == float16{0x7BFF}.to_float());
static_assert(turboquant::float16_min_subnormal == float16{0x0001}.to_float());

TEST_CASE("the end of the range rounds to the largest half or infinity") {
  CHECK(rounded(65504.0F) == 0x7BFF);
  CHECK(rounded(65519.99F) == 0x7BFF);
  CHECK(rounded(65520.0F) == 0x7C00);
  CHECK(rounded(-65520.0F) == 0xFC00);
  CHECK(rounded(std::numeric_limits<float>::max()) == 0x7C00);
  CHECK(rounded(std::numeric_limits<float>::infinity()) == 0x7C00);
  CHECK(rounded(-std::numeric_limits<float>::infinity()) == 0xFC00);
}

TEST_CASE("subnormals are kept and ties go to even") {
  CHECK(rounded(0x1p-14F) == 0x0400);
  CHECK(rounded_bits(0x387FE000U) == 0x0400);
  CHECK(rounded_bits(0x387FC000U) == 0x03FF);
  CHECK(rounded(0x1p-24F) == 0x0001);
  CHECK(rounded(0x1p-25F) == 0x0000);
  CHECK(rounded(0x1.00001p-25F) == 0x0001);
  CHECK(rounded(0x1.8p-24F) == 0x0002);
  CHECK(rounded(-0.0F) == 0x8000);
  CHECK(rounded(-0x1p-26F) == 0x8000);
  CHECK(rounded(std::numeric_limits<float>::denorm_min()) == 0x0000);
}

TEST_CASE("NaN stays a quiet NaN of the same sign") {
  for (const std::uint32_t nan :
       {0x7F800001U, 0x7FFFFFFFU, 0xFF800001U, 0xFFFFFFFFU, 0x7FC00000U, 0x7F801FFFU}) {
    CHECK(is_nan(rounded_bits(nan)));
    CHECK((rounded_bits(nan) & 0x0200U) != 0);
    CHECK((rounded_bits(nan) >> 15U) == (nan >> 31U));
  }
}

TEST_CASE("every half has its defined value and survives the way through float") {
  int finite_or_infinite = 0;
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const float16 half{static_cast<std::uint16_t>(bits)};
    if (is_nan(half.bits)) {
      CHECK(std::isnan(half.to_float()));
      CHECK(is_nan(rounded(half.to_float())));
      continue;
    }
    ++finite_or_infinite;
    REQUIRE(float16::from_float(half.to_float()) == half);
    if ((bits & 0x7C00U) != 0x7C00U) {
      REQUIRE(double{half.to_float()} == defined_value(half.bits));
      REQUIRE(std::signbit(half.to_float()) == ((bits & 0x8000U) != 0));
    } else {
      REQUIRE(std::isinf(half.to_float()));
    }
  }
  CHECK(finite_or_infinite == 63490);
}

TEST_CASE("between neighbours the nearest wins, the midpoint goes to the even one") {
  for (std::uint32_t bits = 0; bits < 0x7BFFU; ++bits) {
    const double low = defined_value(static_cast<std::uint16_t>(bits));
    const double high = defined_value(static_cast<std::uint16_t>(bits + 1U));
    const auto middle = static_cast<float>((low + high) / 2);
    const float before = std::nextafter(middle, 0.0F);
    const float after = std::nextafter(middle, 1e6F);
    REQUIRE(rounded(before) == bits);
    REQUIRE(rounded(after) == bits + 1U);
    REQUIRE(rounded(middle) == (bits % 2 == 0 ? bits : bits + 1U));
    REQUIRE(rounded(-after) == ((bits + 1U) | 0x8000U));
  }
}
