#pragma once

#include <turboquant/device/attention_operations.hpp>

#include <cstddef>
#include <string_view>

namespace turboquant {

/// Which instructions the host's tile operations use.
enum class HostArch {
  automatic,  ///< the best the processor has, or the environment variable TURBOQUANT_ARCH
  portable,   ///< whatever the compiler makes of plain C++
  avx2,       ///< AVX2, FMA and F16C
  avx512,     ///< AVX-512 F, BW, DQ, VL, VBMI and VNNI
};

[[nodiscard]] constexpr std::string_view to_string(HostArch arch) noexcept {
  switch (arch) {
    case HostArch::automatic: return "automatic";
    case HostArch::portable: return "portable";
    case HostArch::avx2: return "avx2";
    case HostArch::avx512: return "avx512";
  }
  return "unknown";
}

/// How exactly attention follows the stored codes. Errors are those of an output against double
/// precision on the same codes, relative to the mean length of the values that it averages, for
/// logits of a standard deviation up to 1 over thousands of tokens; the tests hold every
/// instruction set to them. Where few tokens share most of the weight, an 8-bit query errs in
/// proportion to the logits (2.5e-2 up to a standard deviation of 4), and `exact` by up to 4e-4.
enum class Exactness {
  int8,   ///< 8-bit query, 16-bit weights: 1e-3
  fast,   ///< 8-bit query, 8-bit weights: 2.5e-3
  exact,  ///< two 8-bit limbs of the query, 16-bit weights, or float: 2e-5
};

[[nodiscard]] constexpr std::string_view to_string(Exactness exactness) noexcept {
  switch (exactness) {
    case Exactness::int8: return "int8";
    case Exactness::fast: return "fast";
    case Exactness::exact: return "exact";
  }
  return "unknown";
}

namespace detail {

/// Tile attention of one format at one exactness; see `attention_operations.hpp` for the arguments.
struct HostAttention {
  std::string_view name;
  std::size_t (*query_bytes)(const TileTables&, int rows) noexcept = nullptr;
  std::size_t (*state_bytes)(const TileTables&, int rows) noexcept = nullptr;
  void (*prepare)(const TileTables&, const PrepareArguments&, std::byte* query) noexcept = nullptr;
  void (*reset)(const TileTables&, int rows, std::byte* state) noexcept = nullptr;
  void (*attend)(const TileTables&, const TileArguments&) noexcept = nullptr;
  void (*finish)(const TileTables&, const FinishArguments&) noexcept = nullptr;
  void (*attend_rows)(const RowArguments&) noexcept = nullptr;
  bool wants_next = false;  ///< whether `TileArguments::next` is of use
};

/// What one instruction set offers.
struct HostOperations {
  HostArch arch = HostArch::portable;
  void (*encode)(const TileTables&, const EncodeArguments&) noexcept = nullptr;
  HostAttention (*attention)(const TileFormat&, Exactness) = nullptr;
};

}  // namespace detail
}  // namespace turboquant
