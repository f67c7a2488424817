#pragma once

#include <turboquant/base/random.hpp>
#include <turboquant/device/butterfly_signs.hpp>
#include <turboquant/device/kokkos_compat.hpp>
#include <turboquant/device/lasting_view.hpp>
#include <turboquant/device/runtime.hpp>
#include <turboquant/device/tile_format.hpp>
#include <turboquant/math/hadamard_rotation.hpp>
#include <turboquant/math/integer_grid.hpp>
#include <turboquant/math/orthogonal_sketch.hpp>
#include <turboquant/math/scale_rule.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace turboquant {

/// Everything that decides the bytes of a tile. Two stores can exchange tiles exactly if their
/// options are equal.
struct TileCodecOptions {
  TileFormat format{};
  /// Selects the rotations: `HadamardRotation(key_dim, seed)` for keys, derived seeds for sketch
  /// and values.
  std::uint64_t seed = 0;
  /// Of mse keys. inner_product keys use `ScaleRule::plain`, as published.
  ScaleRule key_scale_rule = ScaleRule::unbiased;
  /// Of codebook values.
  ScaleRule value_scale_rule = ScaleRule::least_squares;

  /// Seed of the `HadamardRotation` whose signs an inner_product tile stores.
  [[nodiscard]] constexpr std::uint64_t sketch_seed() const noexcept {
    return CounterRng(seed, 0x736B6574).bits64(0);
  }
  /// Seed of the `HadamardRotation` of codebook values.
  [[nodiscard]] constexpr std::uint64_t value_seed() const noexcept {
    return CounterRng(seed, 0x76616C75).bits64(0);
  }

  friend constexpr bool operator==(const TileCodecOptions&,
                                   const TileCodecOptions&) noexcept = default;
};

/// A scalar codebook of up to 16 levels where a kernel can read it.
struct KernelCodebook {
  int bits = 0;
  const float* levels = nullptr;      ///< (2^bits), ascending, unit-variance coordinates
  const float* boundaries = nullptr;  ///< (2^bits - 1), ascending
};

/// What kernels read of a `TileCodec`: formats, pointers into its tables and constants. Trivially
/// copyable.
struct TileTables {
  TileFormat format{};
  HadamardTransform key_rotation{};
  HadamardTransform sketch{};          ///< inner_product only
  HadamardTransform value_rotation{};  ///< codebook values only
  /// (rounds, size) `ButterflySigns` of the two rotations, 16-byte aligned; null where they have
  /// none
  const float* key_butterflies = nullptr;
  const float* value_butterflies = nullptr;
  KernelCodebook key_codebook{};
  KernelCodebook value_codebook{};
  ScaleRule key_scale_rule = ScaleRule::unbiased;
  ScaleRule value_scale_rule = ScaleRule::least_squares;
  /// Factor of a stored residual scale times the sum of sketched query and signs.
  float residual_factor = 0;

  /// Whether queries and stored keys live in the rotated space.
  [[nodiscard]] TURBOQUANT_FUNCTION bool rotates_keys() const noexcept {
    return format.key_codec != KeyCodec::float8;
  }
  /// Whether attention over the tile gives rotated outputs.
  [[nodiscard]] TURBOQUANT_FUNCTION bool rotates_values() const noexcept {
    return format.value_codec == ValueCodec::codebook;
  }
};

/// The tables of one tile format in one memory space.
///
/// Made on the host; copies share the tables, and a move is a copy. Immutable, so concurrent use is
/// safe.
/// @tparam MemorySpace a Kokkos memory space
template <class MemorySpace>
class TileCodec {
 public:
  using memory_space = MemorySpace;

  /// @throws Error(unsupported) for a format outside its documented domain, Error(invalid_argument)
  /// for a number that is no scale rule, Error(not_initialized) before Kokkos runs.
  explicit TileCodec(const TileCodecOptions& options) : options_(options) {
    require_supported(options.format);
    for (const auto& [name, rule] : {std::pair{"key_scale_rule", options.key_scale_rule},
                                     std::pair{"value_scale_rule", options.value_scale_rule}}) {
      require(rule >= ScaleRule::plain && rule <= ScaleRule::unbiased, ErrorCode::invalid_argument,
              "TileCodec: ", name, " is ", static_cast<int>(rule),
              ", expected plain, unit, least_squares or unbiased");
    }
    require_initialized("TileCodec");
    const TileFormat& format = options.format;
    Builder builder;
    std::size_t key_rotation = 0;
    std::size_t sketch = 0;
    std::size_t value_rotation = 0;
    tables_.format = format;
    tables_.key_scale_rule =
        format.key_codec == KeyCodec::inner_product ? ScaleRule::plain : options.key_scale_rule;
    tables_.value_scale_rule = options.value_scale_rule;
    if (tables_.rotates_keys()) {
      key_rotation = builder.add(HadamardRotation(format.key_dim, options.seed));
      tables_.key_codebook.bits = format.key_code_bits();
    }
    if (format.key_codec == KeyCodec::inner_product) {
      const HadamardRotation rotation(format.key_dim, options.sketch_seed());
      sketch = builder.add(rotation);
      tables_.residual_factor =
          static_cast<float>(OrthogonalSketch<HadamardRotation>(rotation).factor() *
                             std::sqrt(static_cast<double>(format.key_dim)));
    }
    if (tables_.rotates_values()) {
      value_rotation = builder.add(HadamardRotation(format.value_dim, options.value_seed()));
      tables_.value_codebook.bits = format.value_bits;
    }
    const std::size_t key_levels = builder.add(tables_.key_codebook.bits);
    const std::size_t value_levels = builder.add(tables_.value_codebook.bits);

    const auto floats = upload<float>("turboquant::TileCodec::floats", builder.floats);
    const auto words = upload<std::uint32_t>("turboquant::TileCodec::permutations", builder.words);
    tables_.key_rotation = builder.transform(key_rotation, floats.data(), words.data());
    tables_.sketch = builder.transform(sketch, floats.data(), words.data());
    tables_.value_rotation = builder.transform(value_rotation, floats.data(), words.data());
    tables_.key_butterflies = builder.butterflies(key_rotation, floats.data());
    tables_.value_butterflies = builder.butterflies(value_rotation, floats.data());
    point(tables_.key_codebook, floats.data() + key_levels);
    point(tables_.value_codebook, floats.data() + value_levels);
    floats_ = detail::LastingView(floats);
    words_ = detail::LastingView(words);
  }

  TileCodec(const TileCodec&) noexcept = default;
  TileCodec& operator=(const TileCodec&) noexcept = default;

  [[nodiscard]] const TileCodecOptions& options() const noexcept { return options_; }
  [[nodiscard]] const TileFormat& format() const noexcept { return options_.format; }
  /// Valid as long as this codec or a copy of it lives.
  [[nodiscard]] const TileTables& tables() const noexcept { return tables_; }
  /// Bytes allocated for the tables, which copies share.
  [[nodiscard]] std::size_t bytes() const noexcept {
    const auto rounded = [](std::size_t bytes) { return (bytes + 7) / 8 * 8; };
    return rounded(floats_.size() * sizeof(float)) + rounded(words_.size() * sizeof(std::uint32_t));
  }

 private:
  /// Gathers all tables into one array of floats and one of words.
  struct Builder {
    struct Rotation {
      std::size_t dim = 0;
      std::size_t rounds = 0;
      std::size_t signs = 0;
      std::size_t source = 0;
      std::size_t butterflies = 0;
      bool permutes = false;
    };

    std::vector<float> floats;
    std::vector<std::uint32_t> words;
    std::vector<Rotation> rotations{Rotation{}};  // number 0 stands for no rotation

    std::size_t add(const HadamardRotation& rotation) {
      Rotation added;
      added.dim = static_cast<std::size_t>(rotation.dim());
      added.rounds = static_cast<std::size_t>(rotation.rounds());
      added.signs = floats.size();
      added.source = words.size();
      added.permutes = !rotation.permutations().empty();
      floats.insert(floats.end(), rotation.signs().begin(), rotation.signs().end());
      words.insert(words.end(), rotation.permutations().begin(), rotation.permutations().end());
      if (detail::ButterflySigns::fit(rotation)) {
        floats.resize((floats.size() + 3) / 4 * 4);
        added.butterflies = floats.size();
        detail::ButterflySigns::append(rotation, floats);
      }
      rotations.push_back(added);
      return rotations.size() - 1;
    }

    /// Levels, then boundaries; nothing for 0 bits.
    std::size_t add(int bits) {
      const std::size_t first = floats.size();
      if (bits > 0) {
        const Codebook<float> codebook =
            grid_codebook(integer_grid(bits)).template scaled<float>(1.0);
        floats.insert(floats.end(), codebook.centroids().begin(), codebook.centroids().end());
        floats.insert(floats.end(), codebook.boundaries().begin(), codebook.boundaries().end());
      }
      return first;
    }

    [[nodiscard]] HadamardTransform transform(std::size_t number, const float* all_floats,
                                              const std::uint32_t* all_words) const {
      const Rotation& rotation = rotations[number];
      HadamardTransform result;
      if (rotation.dim > 0) {
        result.dim = rotation.dim;
        result.rounds = rotation.rounds;
        result.signs = all_floats + rotation.signs;
        result.source = rotation.permutes ? all_words + rotation.source : nullptr;
      }
      return result;
    }
    [[nodiscard]] const float* butterflies(std::size_t number, const float* all_floats) const {
      const Rotation& rotation = rotations[number];
      return rotation.dim > 0 && !rotation.permutes ? all_floats + rotation.butterflies : nullptr;
    }
  };

  template <class T>
  static Kokkos::View<T*, MemorySpace> upload(const std::string& label,
                                              const std::vector<T>& host) {
    if (host.empty()) {
      return {};
    }
    Kokkos::View<T*, MemorySpace> device(Kokkos::view_alloc(label, Kokkos::WithoutInitializing),
                                         host.size());
    if constexpr (Kokkos::SpaceAccessibility<Kokkos::HostSpace, MemorySpace>::accessible) {
      // No kernel, so that any thread may make a codec.
      std::copy(host.begin(), host.end(), device.data());
    } else {
      const Kokkos::View<const T*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>
          source(host.data(), host.size());
      Kokkos::deep_copy(device, source);
    }
    return device;
  }

  static void point(KernelCodebook& codebook, const float* first) noexcept {
    if (codebook.bits > 0) {
      codebook.levels = first;
      codebook.boundaries =
          codebook.levels + (std::size_t{1} << static_cast<unsigned>(codebook.bits));
    }
  }

  TileCodecOptions options_;
  TileTables tables_;
  detail::LastingView<Kokkos::View<float*, MemorySpace>> floats_;
  detail::LastingView<Kokkos::View<std::uint32_t*, MemorySpace>> words_;
};

}  // namespace turboquant
