#pragma once

// Inputs and measures that the quantizer tests share.

#include <turboquant/base/error.hpp>
#include <turboquant/base/random.hpp>

#include <support/csv_rows.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <span>
#include <string>
#include <vector>

namespace turboquant::test {

/// Standard normal numbers for statistics. They may differ in the last bit between C libraries.
inline std::vector<float> gaussian(std::size_t count, std::uint64_t seed) {
  const CounterRng rng(seed, 7001);
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; i += 2) {
    const double radius = std::sqrt(-2 * std::log(rng.uniform(i)));
    const double angle = 2 * std::numbers::pi * rng.uniform(i + 1);
    x[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < count) {
      x[i + 1] = static_cast<float>(radius * std::sin(angle));
    }
  }
  return x;
}

/// Bell-shaped numbers from integer arithmetic only: the same bits on every machine and build.
inline std::vector<float> exact_bell(std::size_t count, std::uint64_t seed) {
  const CounterRng rng(seed, 7002);
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t sum = 0;
    for (const std::uint32_t word : rng.block(i)) {
      sum += static_cast<std::int32_t>(word >> 12U) - (1 << 19);
    }
    x[i] = static_cast<float>(sum) * 0x1p-19F;
  }
  return x;
}

inline double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += double{a[i]} * double{b[i]};
  }
  return sum;
}

inline double squared_distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
  }
  return sum;
}

inline double cosine(std::span<const float> a, std::span<const float> b) {
  return dot(a, b) / std::sqrt(dot(a, a) * dot(b, b));
}

/// `x` times 2^exponent, exactly, also for subnormal results.
inline std::vector<float> times_power_of_two(std::span<const float> x, int exponent) {
  std::vector<float> result;
  for (const float v : x) {
    result.push_back(std::ldexp(v, exponent));
  }
  return result;
}

/// Decodes into memory that starts as NaN, so that a coordinate left unwritten shows.
template <class Quantizer, class Encoded>
std::vector<float> decode(const Quantizer& quantizer, const Encoded& encoded, std::size_t size) {
  std::vector<float> out(size, std::numeric_limits<float>::quiet_NaN());
  quantizer.decode(encoded, out);
  return out;
}

inline bool all_finite(std::span<const float> x) {
  for (const float v : x) {
    if (!std::isfinite(v)) {
      return false;
    }
  }
  return true;
}

/// Whether `call` throws an `Error` of this code whose message contains `part`.
template <class Call>
bool throws(ErrorCode code, const std::string& part, Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code() == code && std::string(error.what()).find(part) != std::string::npos;
  }
  return false;
}

/// One line of tests/data/distortion.csv.
struct Distortion {
  int dim;
  int bits;
  double plain, plain_sd, unit, least_squares, unbiased, gaussian, orthogonal;
};

inline std::vector<Distortion> distortion_table() {
  std::vector<Distortion> result;
  for (const auto& row : csv_rows("distortion.csv")) {
    const auto number = [&row](std::size_t i) { return std::stod(row.at(i)); };
    result.push_back({std::stoi(row.at(0)), std::stoi(row.at(1)), number(2), number(3), number(4),
                      number(5), number(6), number(7), number(8)});
  }
  return result;
}

inline Distortion distortion(int dim, int bits) {
  for (const Distortion& row : distortion_table()) {
    if (row.dim == dim && row.bits == bits) {
      return row;
    }
  }
  fail(ErrorCode::out_of_range, "distortion: no row for dim ", dim, " and ", bits, " bits");
}

}  // namespace turboquant::test
