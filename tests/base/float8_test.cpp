#include <turboquant/base/float8.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>

using turboquant::float8_e4m3;

namespace {

unsigned rounded(float value) {
  return float8_e4m3::from_float(value).bits;
}

/// The value of non-NaN bits from the definition of the format.
double defined_value(unsigned bits) {
  const int exponent = static_cast<int>(bits >> 3U) & 0xF;
  const int mantissa = static_cast<int>(bits & 7U);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (bits & 0x80U) != 0 ? -magnitude : magnitude;
}

}  // namespace

static_assert(std::is_trivially_copyable_v<float8_e4m3> && sizeof(float8_e4m3) == 1);
static_assert(float8_e4m3::from_float(1.0F).bits == 0x38);
static_assert(turboquant::float8_e4m3_max == float8_e4m3{0x7E}.to_float());

TEST_CASE("every code has its defined value and survives the way through float") {
  for (unsigned bits = 0; bits < 256; ++bits) {
    const float8_e4m3 code{static_cast<std::uint8_t>(bits)};
    if ((bits & 0x7FU) == 0x7FU) {
      CHECK(std::isnan(code.to_float()));
      CHECK(rounded(code.to_float()) == bits);
      continue;
    }
    CHECK(double{code.to_float()} == defined_value(bits));
    CHECK(std::signbit(code.to_float()) == (bits >= 128));
    CHECK(rounded(code.to_float()) == bits);
  }
}

TEST_CASE("between neighbours the nearest wins, the midpoint goes to the even one") {
  for (unsigned bits = 0; bits < 0x7EU; ++bits) {
    const auto middle = static_cast<float>((defined_value(bits) + defined_value(bits + 1)) / 2);
    CHECK(rounded(std::nextafter(middle, 0.0F)) == bits);
    CHECK(rounded(std::nextafter(middle, 1e6F)) == bits + 1);
    CHECK(rounded(middle) == (bits % 2 == 0 ? bits : bits + 1));
    CHECK(rounded(-middle) == (0x80U | (bits % 2 == 0 ? bits : bits + 1)));
  }
}

TEST_CASE("large magnitudes and infinity saturate, tiny ones become zero, NaN stays NaN") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float large :
       {448.0F, 448.1F, 464.0F, 480.0F, 1e10F, std::numeric_limits<float>::max(), infinity}) {
    CHECK(rounded(large) == 0x7EU);
    CHECK(rounded(-large) == 0xFEU);
  }
  CHECK(rounded(0x1p-10F) == 0);
  CHECK(rounded(0x1.000002p-10F) == 1);
  CHECK(rounded(std::numeric_limits<float>::denorm_min()) == 0);
  CHECK(rounded(-0.0F) == 0x80U);
  for (const std::uint32_t nan : {0x7F800001U, 0x7FFFFFFFU, 0x7FC00000U}) {
    CHECK(rounded(std::bit_cast<float>(nan)) == 0x7FU);
    CHECK(rounded(std::bit_cast<float>(nan | 0x80000000U)) == 0xFFU);
  }
}
