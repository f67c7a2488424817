#include <turboquant/base/float16.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>

using turboquant::bfloat16;

namespace {

std::uint16_t rounded(std::uint32_t float_bits) {
  return bfloat16::from_float(std::bit_cast<float>(float_bits)).bits;
}

bool is_nan(std::uint16_t bits) {
  return (bits & 0x7FFFU) > 0x7F80U;
}

}  // namespace

static_assert(std::is_trivially_copyable_v<bfloat16> && sizeof(bfloat16) == 2);
static_assert(bfloat16::from_float(1.0F).bits == 0x3F80);

TEST_CASE("known roundings, ties to even") {
  CHECK(rounded(0x3F808000U) == 0x3F80);
  CHECK(rounded(0x3F818000U) == 0x3F82);
  CHECK(rounded(0x3F808001U) == 0x3F81);
  CHECK(rounded(0x3F807FFFU) == 0x3F80);
  CHECK(rounded(0x7F7FFFFFU) == 0x7F80);
  CHECK(rounded(0x00008000U) == 0x0000);
  CHECK(rounded(0x00018000U) == 0x0002);
  CHECK(rounded(0x80000000U) == 0x8000);
  CHECK(rounded(0x3E89CCD5U) == 0x3E8A);
}

TEST_CASE("NaN stays a NaN of the same sign, infinity stays infinity") {
  for (const std::uint32_t nan :
       {0x7F800001U, 0xFFFFFFFFU, 0x7FFFFFFFU, 0xFF800001U, 0x7FC00000U, 0x7F80FFFFU}) {
    CHECK(is_nan(rounded(nan)));
    CHECK((rounded(nan) >> 15U) == (nan >> 31U));
  }
  CHECK(rounded(0x7F800000U) == 0x7F80);
  CHECK(rounded(0xFF800000U) == 0xFF80);
}

TEST_CASE("every bfloat16 survives the way through float") {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const bfloat16 value{static_cast<std::uint16_t>(bits)};
    const bfloat16 back = bfloat16::from_float(value.to_float());
    if (is_nan(value.bits)) {
      CHECK(is_nan(back.bits));
    } else {
      REQUIRE(back == value);
    }
  }
}

TEST_CASE("rounding picks the nearest of the two neighbours") {
  for (std::uint32_t bits = 0x00000001U; bits < 0x7F000000U; bits += 7919U) {
    const auto value = std::bit_cast<float>(bits);
    const auto nearest = double{bfloat16::from_float(value).to_float()};
    const auto below = double{bfloat16{static_cast<std::uint16_t>(bits >> 16U)}.to_float()};
    const auto above = double{bfloat16{static_cast<std::uint16_t>((bits >> 16U) + 1U)}.to_float()};
    const double error = std::fabs(nearest - double{value});
    REQUIRE(error <= std::fabs(below - double{value}));
    REQUIRE(error <= std::fabs(above - double{value}));
    REQUIRE(bfloat16::from_float(-value).to_float() == -bfloat16::from_float(value).to_float());
  }
}
