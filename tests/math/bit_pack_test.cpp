#include <turboquant/base/random.hpp>
#include <turboquant/math/bit_pack.hpp>

#include <support/error_of.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <vector>

using namespace turboquant;  // NOLINT(google-build-using-namespace)
using test::error_of;
using test::mentions;

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes packed(const Bytes& codes, int bits) {
  Bytes out(packed_bytes(codes.size(), bits), 0xA5);
  pack(codes, bits, out);
  return out;
}

Bytes random_codes(std::size_t count, int bits, std::uint64_t seed) {
  const CounterRng rng(seed, count);
  Bytes codes(count);
  for (std::size_t i = 0; i < count; ++i) {
    codes[i] = static_cast<std::uint8_t>(rng.below(i, 1U << static_cast<unsigned>(bits)));
  }
  return codes;
}

std::vector<std::size_t> sizes() {
  std::vector<std::size_t> all{160, 192, 576};
  for (std::size_t d = 0; d <= 130; ++d) {
    all.push_back(d);
  }
  return all;
}

}  // namespace

static_assert(packed_bytes(128, 3) == 48 && packed_bytes(0, 3) == 0);

TEST_CASE("golden bytes: 3-bit codes, least significant bit first") {
  CHECK(packed({1, 2, 3, 4, 5, 6, 7, 0}, 3) == Bytes{0xD1, 0x58, 0x1F});
  CHECK(packed({5, 0, 7, 2, 6}, 3) == Bytes{0xC5, 0x65});
  CHECK(packed({0, 0, 7}, 3) == Bytes{0xC0, 0x01});
  CHECK(packed({0, 0, 4}, 3) == Bytes{0x00, 0x01});
  CHECK(packed({7, 7, 7}, 3) == Bytes{0xFF, 0x01});
}

TEST_CASE("golden bytes: other widths") {
  CHECK(packed({1, 0, 0, 1, 1, 0, 1, 0, 1}, 1) == Bytes{0x59, 0x01});
  CHECK(packed({3, 0, 2, 1, 2}, 2) == Bytes{0x63, 0x02});
  CHECK(packed({0xA, 0x5, 0xF}, 4) == Bytes{0x5A, 0x0F});
  CHECK(packed({31, 0, 1}, 5) == Bytes{0x1F, 0x04});
  CHECK(packed({63, 0, 1}, 6) == Bytes{0x3F, 0x10, 0x00});
  CHECK(packed({127, 0, 1}, 7) == Bytes{0x7F, 0x40, 0x00});
  CHECK(packed({1, 255}, 8) == Bytes{0x01, 0xFF});
}

TEST_CASE("the size is exactly ceil(count * bits / 8)") {
  for (int bits = 1; bits <= 8; ++bits) {
    for (std::size_t count = 0; count <= 1024; ++count) {
      REQUIRE(packed_bytes(count, bits) == (count * static_cast<std::size_t>(bits) + 7) / 8);
    }
  }
  CHECK(packed_bytes(5, 3) == 2);
  CHECK(packed_bytes(7, 3) == 3);
  CHECK(packed_bytes(9, 3) == 4);
  CHECK(packed_bytes(13, 3) == 5);
  CHECK(packed_bytes(100, 3) == 38);
  CHECK(packed_bytes(134, 3) == 51);
  CHECK(packed_bytes(std::size_t{1} << 61, 8) == std::size_t{1} << 61);
}

TEST_CASE("bit b of code i is bit i * bits + b of the string and the rest is 0") {
  for (int bits = 1; bits <= 8; ++bits) {
    const auto width = static_cast<std::size_t>(bits);
    for (const std::size_t count : sizes()) {
      const Bytes codes = random_codes(count, bits, 1);
      Bytes expected(packed_bytes(count, bits), 0);
      for (std::size_t position = 0; position < count * width; ++position) {
        const unsigned bit = (unsigned{codes[position / width]} >> (position % width)) & 1U;
        expected[position / 8] =
            static_cast<std::uint8_t>(expected[position / 8] | bit << (position % 8));
      }
      REQUIRE(packed(codes, bits) == expected);
    }
  }
}

TEST_CASE("unpack inverts pack within allocations of the exact size") {
  for (int bits = 1; bits <= 8; ++bits) {
    for (const std::size_t count : sizes()) {
      const Bytes codes = random_codes(count, bits, 2);
      const std::size_t size = packed_bytes(count, bits);
      const auto bytes = std::make_unique<std::uint8_t[]>(size);
      const auto back = std::make_unique<std::uint8_t[]>(count);
      pack(codes, bits, std::span<std::uint8_t>(bytes.get(), size));
      unpack(std::span<const std::uint8_t>(bytes.get(), size), bits,
             std::span<std::uint8_t>(back.get(), count));
      for (std::size_t i = 0; i < count; ++i) {
        REQUIRE(back[i] == codes[i]);
        REQUIRE(read_code(bytes.get(), i, bits) == codes[i]);
      }
    }
  }
}

TEST_CASE("the largest code of every width survives next to zeros") {
  for (int bits = 1; bits <= 8; ++bits) {
    const auto top = static_cast<std::uint8_t>((1U << static_cast<unsigned>(bits)) - 1U);
    for (std::size_t at = 0; at < 17; ++at) {
      Bytes codes(17, 0);
      codes[at] = top;
      Bytes back(17, 0xEE);
      unpack(packed(codes, bits), bits, back);
      REQUIRE(back == codes);
    }
  }
}

TEST_CASE("a failed call names the argument and leaves the output alone") {
  const Bytes codes{1, 2, 9, 3};
  Bytes out(2, 0x77);
  const auto too_large = error_of(ErrorCode::invalid_argument, [&] { pack(codes, 3, out); });
  CHECK(mentions(too_large, "codes[2] is 9"));
  CHECK(mentions(too_large, "2^3"));
  for (const int bits :
       {0, -1, 9, 64, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()}) {
    CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { pack(codes, bits, out); }),
                   "expected 1 to 8"));
    Bytes target(4, 0x66);
    error_of(ErrorCode::invalid_argument, [&] { unpack(out, bits, target); });
    CHECK(target == Bytes(4, 0x66));
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
    Bytes wrong(size, 0x77);
    const Bytes fitting{1, 2, 3, 4};
    const auto message = error_of(ErrorCode::shape_mismatch, [&] { pack(fitting, 3, wrong); });
    CHECK(mentions(message, "packed_bytes(4, 3) = 2"));
    CHECK(wrong == Bytes(size, 0x77));
    Bytes target(4, 0x66);
    error_of(ErrorCode::shape_mismatch, [&] { unpack(wrong, 3, target); });
    CHECK(target == Bytes(4, 0x66));
  }
  CHECK(out == Bytes(2, 0x77));
}

TEST_CASE("signs: zeros of both signs give the same bit, and spare bits are 0") {
  const std::vector<float> values{1, -1, +0.0F, -0.0F, 2, -2, 0, -0.0F, 5, -5, 0, 0, 1};
  Bytes bytes(2, 0xFF);
  pack_signs(values, bytes);
  CHECK(bytes == Bytes{0x22, 0x02});
  float sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float sign = read_sign(bytes.data(), i);
    CHECK((sign == 1.0F || sign == -1.0F));
    CHECK(sign == (values[i] < 0.0F ? -1.0F : 1.0F));
    sum += sign;
  }
  CHECK(sum == 7.0F);
}

TEST_CASE("signs agree with packing one-bit codes for every size") {
  for (const std::size_t count : sizes()) {
    const Bytes codes = random_codes(count, 1, 3);
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = codes[i] != 0 ? -0.5F : (i % 3 == 0 ? 0.0F : 2.0F);
    }
    Bytes bytes(packed_bytes(count, 1), 0xFF);
    pack_signs(values, bytes);
    REQUIRE(bytes == packed(codes, 1));
  }
}

TEST_CASE("signs of special values, and a wrong size is refused untouched") {
  CHECK(sign_bit(std::numeric_limits<float>::quiet_NaN()) == 0);
  CHECK(sign_bit(-std::numeric_limits<float>::quiet_NaN()) == 0);
  CHECK(sign_bit(-std::numeric_limits<float>::infinity()) == 1);
  CHECK(sign_bit(-std::numeric_limits<float>::denorm_min()) == 1);
  const std::vector<float> values(9, -1.0F);
  for (const std::size_t size : {std::size_t{1}, std::size_t{3}}) {
    Bytes wrong(size, 0x77);
    error_of(ErrorCode::shape_mismatch, [&] { pack_signs(values, wrong); });
    CHECK(wrong == Bytes(size, 0x77));
  }
}
