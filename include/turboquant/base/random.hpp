#pragma once

#include <turboquant/base/config.hpp>

#include <array>
#include <cstdint>

namespace turboquant {

/// Counter-based generator Philox-4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as
/// easy as 1, 2, 3", SC 2011): number `index` of stream `stream` is a pure function of (seed,
/// stream, index).
///
/// Integer arithmetic only: the same seed gives the same bytes on every compiler and backend. O(1)
/// per draw, no state to share, so any order and any number of threads draw the same sequence.
class CounterRng {
 public:
  constexpr TURBOQUANT_FUNCTION CounterRng(std::uint64_t seed, std::uint64_t stream) noexcept
      : seed_(seed), stream_(stream) {}

  /// Four independent 32-bit words: block `block` of the stream.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::array<std::uint32_t, 4> block(
      std::uint64_t block) const noexcept {
    std::array<std::uint32_t, 4> x{low(block), high(block), low(stream_), high(stream_)};
    std::uint32_t key0 = low(seed_);
    std::uint32_t key1 = high(seed_);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * x[0];
      const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * x[2];
      x = {high(product1) ^ x[1] ^ key0, low(product1), high(product0) ^ x[3] ^ key1,
           low(product0)};
      key0 += 0x9E3779B9U;
      key1 += 0xBB67AE85U;
    }
    return x;
  }

  /// 32 uniform bits.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::uint32_t bits32(
      std::uint64_t index) const noexcept {
    return block(index / 4)[index % 4];
  }

  /// 64 uniform bits.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::uint64_t bits64(
      std::uint64_t index) const noexcept {
    const auto words = block(index / 2);
    const auto half = 2 * (index % 2);
    return words[half] | (std::uint64_t{words[half + 1]} << 32U);
  }

  /// A uniform integer in [0, bound), `bound > 0`. The bias is below `bound / 2^32`.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION std::uint32_t below(
      std::uint64_t index, std::uint32_t bound) const noexcept {
    return high(std::uint64_t{bits32(index)} * bound);
  }

  /// A uniform number in the open interval (0, 1): odd multiples of 2^-53.
  [[nodiscard]] constexpr TURBOQUANT_FUNCTION double uniform(std::uint64_t index) const noexcept {
    constexpr double unit = 1.0 / 9007199254740992.0;  // 2^-53
    return (static_cast<double>(bits64(index) >> 12U) * 2.0 + 1.0) * unit;
  }

 private:
  static constexpr TURBOQUANT_FUNCTION std::uint32_t low(std::uint64_t x) noexcept {
    return static_cast<std::uint32_t>(x);
  }
  static constexpr TURBOQUANT_FUNCTION std::uint32_t high(std::uint64_t x) noexcept {
    return static_cast<std::uint32_t>(x >> 32U);
  }

  std::uint64_t seed_;
  std::uint64_t stream_;
};

}  // namespace turboquant
