#include "cache/cache_test_support.hpp"

#include <turboquant/cache/ring_buffer.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

using cache_test::AllocationCounter;
using cache_test::contains;
using cache_test::error_of;
using cache_test::HostExec;
using cache_test::HostRows;
using turboquant::KVShape;
using turboquant::RingBufferOptions;

namespace {

constexpr KVShape ring_shape{.kv_heads = 2, .key_dim = 4, .value_dim = 8};

/// A ring and everything that has left it, as token numbers.
template <class T>
class Numbered {
 public:
  explicit Numbered(const RingBufferOptions& options) : ring(ring_shape, options) {}

  void append(std::int64_t count) {
    HostRows<T> keys("keys", std::size_t(count), 2, 4);
    HostRows<T> values("values", std::size_t(count), 2, 8);
    for (std::int64_t i = 0; i < count; ++i, ++next) {
      fill(keys, i, float(next));
      fill(values, i, -float(next));
    }
    ring.append(exec, keys, values, [&](const auto& k, const auto& v) { read(k, v, left); });
  }

  [[nodiscard]] std::vector<std::int64_t> contents() const {
    HostRows<T> keys("keys", std::size_t(ring.size()), 2, 4);
    HostRows<T> values("values", std::size_t(ring.size()), 2, 8);
    ring.read(exec, keys, values);
    std::vector<std::int64_t> tokens;
    read(keys, values, tokens);
    return tokens;
  }

  static std::vector<std::int64_t> count_up(std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> tokens;
    for (std::int64_t t = begin; t < end; ++t) {
      tokens.push_back(t);
    }
    return tokens;
  }

  HostExec exec;
  turboquant::RingBuffer<Kokkos::HostSpace, T> ring;
  std::vector<std::int64_t> left;
  std::int64_t next = 0;

 private:
  static void fill(const HostRows<T>& rows, std::int64_t token, float value) {
    for (std::size_t h = 0; h < rows.extent(1); ++h) {
      for (std::size_t d = 0; d < rows.extent(2); ++d) {
        rows(std::size_t(token), h, d) = cache_test::number<T>(value);
      }
    }
  }
  template <class Keys, class Values>
  static void read(const Keys& keys, const Values& values, std::vector<std::int64_t>& tokens) {
    for (std::size_t t = 0; t < keys.extent(0); ++t) {
      const float token = cache_test::to_float(keys(t, 0, 0));
      for (std::size_t i = 0; i < 8; ++i) {
        CHECK(cache_test::to_float(keys(t, i / 4, i % 4)) == token);
        CHECK(cache_test::to_float(values(t, i / 4, i)) == -token);
      }
      tokens.push_back(std::int64_t(token));
    }
  }
};

}  // namespace

TEST_CASE("what left and what is there are all tokens in order, for any capacity and chunks") {
  for (const std::int64_t capacity : {0, 1, 7, 8, 62, 63, 64, 100, 128, 200}) {
    for (const std::int64_t chunk : {1, 3, 64, 129, 500}) {
      CAPTURE(capacity);
      CAPTURE(chunk);
      Numbered<float> tokens({.capacity = capacity});
      while (tokens.next < 500) {
        const std::int64_t count = std::min(chunk, 500 - tokens.next);
        tokens.append(count);
        CHECK(tokens.ring.begin() == std::int64_t(tokens.left.size()));
        CHECK(tokens.ring.end() == tokens.next);
        CHECK(tokens.ring.size() <= capacity);
        if (!tokens.left.empty()) {
          CHECK(tokens.ring.size() >= capacity - 64);
        }
      }
      CHECK(tokens.left == Numbered<float>::count_up(0, tokens.ring.begin()));
      CHECK(tokens.contents() == Numbered<float>::count_up(tokens.ring.begin(), 500));
    }
  }
}

TEST_CASE("the window does not depend on how tokens were split into calls") {
  for (const std::int64_t capacity : {0, 8, 63, 64, 100, 128}) {
    for (const std::int64_t total : {1, 8, 9, 63, 64, 65, 129, 192, 193, 300}) {
      Numbered<float> whole({.capacity = capacity});
      whole.append(total);
      Numbered<float> singles({.capacity = capacity});
      for (std::int64_t i = 0; i < total; ++i) {
        singles.append(1);
      }
      CHECK(whole.ring.begin() == singles.ring.begin());
      CHECK(whole.left == singles.left);
      CHECK(whole.contents() == singles.contents());
    }
  }
}

TEST_CASE("an overflow by one token never empties the window") {
  Numbered<float> small({.capacity = 8});
  for (std::int64_t n = 1; n <= 30; ++n) {
    small.append(1);
    CHECK(small.ring.size() == std::min<std::int64_t>(n, 8));
  }
  Numbered<float> standard({});
  for (std::int64_t n = 1; n <= 400; ++n) {
    standard.append(1);
    CHECK(standard.ring.size() >= std::min<std::int64_t>(n, 65));
    CHECK(standard.left.size() % 64 == 0);
  }
}

TEST_CASE("chunks of 6 and 14 keep their order") {
  Numbered<float> tokens({.capacity = 8});
  tokens.append(6);
  tokens.append(14);
  CHECK(tokens.left == Numbered<float>::count_up(0, 12));
  CHECK(tokens.contents() == Numbered<float>::count_up(12, 20));
}

TEST_CASE("capacity 0 lets everything through") {
  Numbered<float> tokens({.capacity = 0});
  tokens.append(1);
  tokens.append(5);
  CHECK(tokens.left == Numbered<float>::count_up(0, 6));
  CHECK(tokens.ring.size() == 0);
  CHECK(tokens.ring.bytes() == 0);
}

TEST_CASE("positions start and multiples are counted where the caller says") {
  Numbered<float> tokens({.capacity = 128, .flush_tokens = 64, .first_position = 5});
  tokens.append(129);
  CHECK(tokens.ring.begin() == 69);
  CHECK(tokens.ring.end() == 134);
}

TEST_CASE("truncation, then appends, equals a ring built directly") {
  Numbered<float> tokens({.capacity = 8});
  tokens.append(25);  // wrapped three times
  tokens.ring.truncate(23);
  tokens.next = 23;
  tokens.append(2);
  Numbered<float> direct({.capacity = 8});
  direct.append(25);
  CHECK(tokens.contents() == direct.contents());

  tokens.ring.truncate(10);  // before the oldest
  CHECK(tokens.ring.size() == 0);
  CHECK(tokens.ring.begin() == 10);
  tokens.next = 10;
  tokens.append(3);
  CHECK(tokens.contents() == std::vector<std::int64_t>{10, 11, 12});
  CHECK(contains(error_of([&] { tokens.ring.truncate(14); }), "end is 14, expected 0 to 13"));
  CHECK(contains(error_of([&] { tokens.ring.truncate(-1); }), "out_of_range"));
}

TEST_CASE_TEMPLATE("numbers come back bit by bit, in their own type", T, float, turboquant::float16,
                   turboquant::bfloat16) {
  turboquant::RingBuffer<Kokkos::HostSpace, T> ring(ring_shape,
                                                    {.capacity = 10, .flush_tokens = 1});
  const cache_test::Tokens<T> in(3, 0, 25, ring_shape);
  const HostExec exec;
  in.keys(24, 1, 3) = cache_test::number<T>(1.0009765625F);
  ring.append(exec, in.keys, in.values, [](const auto&, const auto&) {});
  HostRows<T> keys("keys", 10, 2, 4);
  HostRows<T> values("values", 10, 2, 8);
  ring.read(exec, keys, values);
  CHECK(cache_test::same_bits(keys, in.keys_from(15, 25)));
  CHECK(cache_test::same_bits(values, in.values_from(15, 25)));
  const bool seven_bits = std::is_same_v<T, turboquant::bfloat16>;
  CHECK(cache_test::to_float(keys(9, 1, 3)) == (seven_bits ? 1.0F : 1.0009765625F));
}

TEST_CASE("forks share memory until one writes, and never see each other's tokens") {
  const AllocationCounter counter;
  Numbered<float> tokens({.capacity = 8});
  tokens.append(20);
  const std::int64_t allocated = counter.bytes();
  auto fork = tokens.ring.fork();
  CHECK(counter.bytes() == allocated);
  CHECK(fork.keys() == tokens.ring.keys());
  const auto before = tokens.contents();
  const cache_test::Tokens<float> other(1, 0, 3, ring_shape);
  fork.append(tokens.exec, other.keys, other.values, [](const auto&, const auto&) {});
  CHECK(counter.bytes() == 2 * allocated);
  CHECK(tokens.contents() == before);
  CHECK(fork.end() == 23);
  HostRows<float> keys("keys", 8, 2, 4);
  HostRows<float> values("values", 8, 2, 8);
  fork.read(tokens.exec, keys, values);
  CHECK(keys(4, 0, 0) == 19.0F);
  CHECK(keys(5, 0, 0) == other.keys(0, 0, 0));
}

TEST_CASE("a failed append leaves the ring as it was") {
  Numbered<float> tokens({.capacity = 8});
  tokens.append(11);
  const auto before = tokens.contents();
  const auto unchanged = [&] { return tokens.contents() == before && tokens.ring.end() == 11; };
  const auto nothing = [](const auto&, const auto&) {};
  const auto try_append = [&](const HostRows<float>& keys, const HostRows<float>& values) {
    return error_of([&] { tokens.ring.append(tokens.exec, keys, values, nothing); });
  };
  const cache_test::Tokens<float> three(1, 0, 3, ring_shape);
  const cache_test::Tokens<float> one(1, 0, 1, ring_shape);

  // One row is never broadcast over several tokens.
  CHECK(contains(try_append(three.keys, one.values),
                 "values.extent(0) is 1, expected keys.extent(0) = 3"));
  CHECK(unchanged());
  const HostRows<float> wide("wide", 2, 3, 4);
  CHECK(contains(try_append(wide, three.values), "keys is (2, 3, 4), expected (tokens, 2, 4)"));
  CHECK(unchanged());
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    const cache_test::Tokens<float> poisoned(1, 0, 3, ring_shape);
    poisoned.keys(1, 1, 2) = bad;
    const std::string is = std::isnan(bad) ? "nan" : (bad > 0 ? "inf" : "-inf");
    CHECK(contains(try_append(poisoned.keys, three.values),
                   "keys(1, 1, 2) is " + is + ", expected a finite number"));
    CHECK(unchanged());
    const cache_test::Tokens<float> late(1, 0, 3, ring_shape);
    late.values(2, 0, 7) = bad;
    CHECK(contains(try_append(late.keys, late.values),
                   "values(2, 0, 7) is " + is + ", expected a finite number"));
    CHECK(unchanged());
  }
  CHECK_THROWS_AS(tokens.ring.append(tokens.exec, three.keys, three.values,
                                     [](const auto&, const auto&) {
                                       throw std::runtime_error("the sink refuses");
                                     }),
                  std::runtime_error);
  CHECK(unchanged());
  const HostRows<float> small("small", 2, 2, 4);
  const HostRows<float> small_values("small", 2, 2, 8);
  CHECK(contains(error_of([&] { tokens.ring.read(tokens.exec, small, small_values); }),
                 "expected size() = 8"));
}

TEST_CASE("memory comes with the first token, grows by a quarter, and obeys the ledger") {
  const auto ledger = std::make_shared<turboquant::MemoryLedger>(1 << 20U);
  turboquant::RingBuffer<Kokkos::HostSpace, float> ring(
      ring_shape, {.capacity = 1 << 30, .flush_tokens = 1}, ledger);
  CHECK(ledger->total() == 0);
  const HostExec exec;
  const cache_test::Tokens<float> rows(1, 0, 100, ring_shape);
  std::int64_t copied = 0;
  std::int64_t appended = 0;
  const auto nothing = [](const auto&, const auto&) {};
  std::string refusal;
  while (refusal.empty()) {
    const std::int64_t before = ring.rows();
    const std::int64_t held = ring.size();
    try {
      ring.append(exec, rows.keys, rows.values, nothing);
      appended += 100;
      copied += ring.rows() != before ? held : 0;
    } catch (const turboquant::Error& error) {
      refusal = error.what();
      CHECK(error.code() == turboquant::ErrorCode::capacity);
      CHECK(ring.size() == held);
    }
  }
  CHECK(contains(refusal, "turboquant::RingBuffer::rows"));
  CHECK(appended > 2000);
  CHECK(copied <= 5 * appended);
}

TEST_CASE("options outside their domain are refused by name") {
  using Ring = turboquant::RingBuffer<Kokkos::HostSpace, float>;
  CHECK(contains(error_of([] { Ring(ring_shape, {.capacity = -1}); }), "capacity is -1"));
  CHECK(contains(error_of([] { Ring(ring_shape, {.flush_tokens = 0}); }), "flush_tokens is 0"));
  CHECK(
      contains(error_of([] { Ring(ring_shape, {.first_position = -2}); }), "first_position is -2"));
  CHECK(contains(error_of([] { Ring({.kv_heads = 0}, {}); }), "kv_heads is 0"));
  CHECK(contains(error_of([] { Ring({.key_dim = 1025}, {}); }), "key_dim is 1025"));
  CHECK_FALSE(std::is_copy_constructible_v<Ring>);
}

TEST_CASE("a ring that has been moved from is empty, and works again") {
  Numbered<float> one({.capacity = 64, .flush_tokens = 8, .first_position = 5});
  one.append(100);
  REQUIRE(one.ring.begin() > 5);
  const std::int64_t size = one.ring.size();
  turboquant::RingBuffer<Kokkos::HostSpace, float> other(std::move(one.ring));
  CHECK(other.size() == size);
  CHECK(one.ring.begin() == 5);
  CHECK(one.ring.size() == 0);
  CHECK(one.ring.bytes() == 0);
  CHECK(one.ring.keys() == nullptr);
  CHECK(one.contents().empty());
  one.next = 0;
  one.append(3);
  CHECK(one.contents() == Numbered<float>::count_up(0, 3));
  CHECK(other.size() == size);
  other = std::move(one.ring);
  CHECK(other.size() == 3);
  CHECK(one.ring.size() == 0);
  auto& same = other;
  other = std::move(same);
  CHECK(other.size() == 3);
}

TEST_CASE("rows in the ring's own memory are refused, and outputs that overlap") {
  Numbered<float> numbered({.capacity = 64, .flush_tokens = 8});
  numbered.append(8);
  auto& ring = numbered.ring;
  using Rows = turboquant::TokenRows<Kokkos::HostSpace, float>;
  const Rows own_keys(ring.keys() + 8, 2, 2, 4);
  const Rows own_values(ring.values() + 16, 2, 2, 8);
  const HostRows<float> keys("keys", 2, 2, 4);
  const HostRows<float> values("values", 2, 2, 8);
  const auto nothing = [](const auto&, const auto&) {};
  const auto refusal = [&](const Rows& k, const Rows& v) {
    const std::string error = error_of([&] { ring.append(HostExec(), k, v, nothing); });
    CHECK(numbered.contents() == Numbered<float>::count_up(0, 8));
    return error;
  };
  CHECK(
      contains(refusal(own_keys, values),
               "invalid_argument: RingBuffer::append: keys overlaps the memory of the exact rows"));
  CHECK(contains(refusal(keys, own_values), "values overlaps the memory of the exact rows"));
  const Kokkos::View<float*, Kokkos::HostSpace> memory("memory", 8 * 8 + 8 * 16);
  const HostRows<float> low(memory.data(), 8, 2, 4);
  CHECK(contains(
      error_of([&] { ring.read(HostExec(), low, HostRows<float>(memory.data() + 63, 8, 2, 8)); }),
      "RingBuffer::read: keys_out overlaps values_out"));
  ring.read(HostExec(), low, HostRows<float>(memory.data() + 64, 8, 2, 8));
  CHECK(memory(64 + 7 * 16) == -7.0F);
  // Neighbours that touch are apart, in either order.
  ring.read(HostExec(), HostRows<float>(memory.data() + 128, 8, 2, 4),
            HostRows<float>(memory.data(), 8, 2, 8));
  CHECK(memory(7 * 16) == -7.0F);
}

TEST_CASE("contents outside the ring's domain are refused, and nothing changes") {
  Numbered<float> tokens({.capacity = 8, .flush_tokens = 1, .first_position = 3});
  tokens.append(5);
  const std::vector<float> keys(std::size_t(20 * ring_shape.key_numbers()), 2.0F);
  const std::vector<float> values(std::size_t(20 * ring_shape.value_numbers()), 3.0F);
  const auto refusal = [&](std::int64_t begin, std::int64_t count, const float* k, const float* v) {
    const std::string error =
        error_of([&] { tokens.ring.assign(tokens.exec, begin, count, k, v); });
    CHECK(tokens.contents() == tokens.count_up(0, 5));
    CHECK(tokens.ring.begin() == 3);
    return error;
  };
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t count : {std::int64_t{9}, std::int64_t{20}, std::int64_t{-3}, most}) {
    CHECK(refusal(3, count, keys.data(), values.data()) ==
          "out_of_range: RingBuffer::assign: count is " + std::to_string(count) +
              ", expected 0 to the capacity, 8");
  }
  for (const std::int64_t begin : {std::int64_t{2}, std::int64_t{-1}, most}) {
    CHECK(contains(refusal(begin, 4, keys.data(), values.data()),
                   "begin is " + std::to_string(begin) + ", expected 3 to 2^60"));
  }
  CHECK(contains(refusal(3, 4, nullptr, values.data()), "keys or values is null"));
  CHECK(contains(refusal(3, 4, keys.data(), nullptr), "keys or values is null"));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -HUGE_VALF}) {
    for (const std::size_t at : {std::size_t{0}, keys.size() / 5 - 1}) {
      auto wrong = keys;
      wrong[at] = bad;
      CHECK(contains(refusal(3, 4, wrong.data(), values.data()),
                     "non_finite: RingBuffer::assign: keys[" + std::to_string(at) + "] is "));
      wrong = values;
      wrong[std::size_t(4 * ring_shape.value_numbers() - 1)] = bad;
      CHECK(contains(refusal(3, 4, keys.data(), wrong.data()),
                     "non_finite: RingBuffer::assign: values["));
      // What is not taken is not looked at.
      wrong[std::size_t(4 * ring_shape.value_numbers() - 1)] = 0;
      wrong[std::size_t(4 * ring_shape.value_numbers())] = bad;
      Numbered<float> other({.capacity = 8});
      other.ring.assign(other.exec, 0, 4, keys.data(), wrong.data());
      CHECK(other.ring.size() == 4);
    }
  }
  tokens.ring.assign(tokens.exec, 100, 8, keys.data(), values.data());
  CHECK(tokens.ring.begin() == 100);
  CHECK(tokens.ring.size() == 8);
  tokens.ring.assign(tokens.exec, 7, 0, nullptr, nullptr);
  CHECK(tokens.ring.size() == 0);
}

TEST_CASE("ranges cover the positions of the ring in order, and no others are asked for") {
  Numbered<float> tokens({.capacity = 8, .flush_tokens = 1});
  const auto refusal = [&](std::int64_t first, std::int64_t last) {
    return error_of([&] { static_cast<void>(tokens.ring.ranges(first, last)); });
  };
  const auto count = [&](std::int64_t first, std::int64_t last) {
    const auto ranges = tokens.ring.ranges(first, last);
    return ranges[0].count + ranges[1].count;
  };
  CHECK(refusal(0, 1) ==
        "out_of_range: RingBuffer::ranges: first is 0 and last is 1, expected 0 <= first <= last "
        "<= 0");
  CHECK(count(0, 0) == 0);
  for (const std::int64_t added : {5, 1, 7, 3}) {
    tokens.append(added);
    const std::int64_t begin = tokens.ring.begin();
    const std::int64_t end = tokens.ring.end();
    for (std::int64_t first = begin; first <= end; ++first) {
      for (std::int64_t last = first; last <= end; ++last) {
        CHECK(count(first, last) == last - first);
      }
      CHECK(contains(refusal(first, end + 1), "RingBuffer::ranges: first is "));
      CHECK(contains(refusal(begin - 1, first), "RingBuffer::ranges: first is "));
    }
    CHECK(contains(refusal(end, begin), "RingBuffer::ranges: first is "));
  }
  tokens.ring.truncate(3);
  CHECK(contains(refusal(3, 4), "expected 3 <= first <= last <= 3"));
}
