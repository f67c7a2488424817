#pragma once

#include <turboquant/base/checked_math.hpp>
#include <turboquant/base/codec.hpp>
#include <turboquant/model/argument_checks.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace turboquant {

/// The choice of codecs and bits, without a head size.
struct CacheCodec {
  std::string_view name;  ///< must outlive the codec; preset names are literals
  KeyCodec key_codec = KeyCodec::mse;
  int key_bits = 3;  ///< bits per key element, 1..8 (inner product 2..8, fp8 exactly 8)
  ValueCodec value_codec = ValueCodec::grouped;
  int value_bits = 4;            ///< bits per value element, 1..8
  std::int64_t value_group = 0;  ///< elements per group; 0 = the whole head
  bool norm_correction = false;  ///< renormalise the quantised key to unit length
  /// Round a slot up to an even number of bytes, as the published pages do; tiles never are, so
  /// that an odd slot of theirs is one byte shorter.
  bool even_slot = true;
  std::string_view summary{};
  KeyCentring key_centring = KeyCentring::none;
};

namespace detail {

inline constexpr std::array<std::string_view, 3> key_codec_names{"mse", "inner_product", "float8"};
inline constexpr std::array<std::string_view, 2> key_centring_names{"none", "tile_mean"};
inline constexpr std::array<std::string_view, 2> value_codec_names{"grouped", "codebook"};

}  // namespace detail

/// Every named preset: the published four, the reference implementation's two, this library's own.
inline constexpr std::array cache_presets{
    CacheCodec{"turboquant_k8v4", KeyCodec::float8, 8, ValueCodec::grouped, 4, 0, false, true,
               "published: fp8 keys, 4-bit values"},
    CacheCodec{"turboquant_4bit_nc", KeyCodec::mse, 4, ValueCodec::grouped, 4, 0, true, true,
               "published: 4-bit keys and values, norm correction"},
    CacheCodec{"turboquant_k3v4_nc", KeyCodec::mse, 3, ValueCodec::grouped, 4, 0, true, true,
               "published: 3-bit keys, 4-bit values, norm correction"},
    CacheCodec{"turboquant_3bit_nc", KeyCodec::mse, 3, ValueCodec::grouped, 3, 0, true, true,
               "published: 3-bit keys and values, norm correction"},
    CacheCodec{"k3v2", KeyCodec::inner_product, 3, ValueCodec::grouped, 2, 32, false, false,
               "reference: 2-bit keys + sign sketch, 2-bit values in groups of 32"},
    CacheCodec{"k3v4", KeyCodec::inner_product, 3, ValueCodec::grouped, 4, 32, false, false,
               "reference: 2-bit keys + sign sketch, 4-bit values in groups of 32"},
    CacheCodec{"tq_k4v4", KeyCodec::mse, 4, ValueCodec::grouped, 4, 0, false, false,
               "4-bit keys with the unbiased scale, 4-bit values in one group"},
    CacheCodec{"tq_k3v4", KeyCodec::mse, 3, ValueCodec::grouped, 4, 0, false, false,
               "3-bit keys with the unbiased scale, 4-bit values in one group"},
    CacheCodec{"tq_k3v4_g32", KeyCodec::mse, 3, ValueCodec::grouped, 4, 32, false, false,
               "3-bit keys with the unbiased scale, 4-bit values in groups of 32"},
    CacheCodec{"tq_k3v3", KeyCodec::mse, 3, ValueCodec::codebook, 3, 0, false, false,
               "3-bit keys with the unbiased scale, 3-bit rotated codebook values"},
    CacheCodec{"tq_k3v2", KeyCodec::mse, 3, ValueCodec::codebook, 2, 0, false, false,
               "3-bit keys with the unbiased scale, 2-bit rotated codebook values"},
    CacheCodec{"tq_k2v2", KeyCodec::mse, 2, ValueCodec::codebook, 2, 0, false, false,
               "2-bit keys with the unbiased scale, 2-bit rotated codebook values"},
    CacheCodec{"tq_k4v4_mean", KeyCodec::mse, 4, ValueCodec::grouped, 4, 0, false, false,
               "tq_k4v4 with a key mean per 64 tokens, for models with a key bias",
               KeyCentring::tile_mean},
    CacheCodec{"tq_k3v4_mean", KeyCodec::mse, 3, ValueCodec::grouped, 4, 0, false, false,
               "tq_k3v4 with a key mean per 64 tokens, for models with a key bias",
               KeyCentring::tile_mean},
    CacheCodec{"tq_k2v2_mean", KeyCodec::mse, 2, ValueCodec::codebook, 2, 0, false, false,
               "tq_k2v2 with a key mean per 64 tokens, for models with a key bias",
               KeyCentring::tile_mean}};

/// The preset names in declaration order, separated by ", ".
[[nodiscard]] inline std::string cache_preset_names() {
  std::string names;
  for (const CacheCodec& preset : cache_presets) {
    names += names.empty() ? "" : ", ";
    names += preset.name;
  }
  return names;
}

/// The preset called `name`.
/// @throws Error(invalid_argument) for an unknown name; the message lists the known ones.
[[nodiscard]] inline CacheCodec find_cache_preset(std::string_view name) {
  for (const CacheCodec& preset : cache_presets) {
    if (preset.name == name) {
      return preset;
    }
  }
  fail(ErrorCode::invalid_argument, "find_cache_preset: name is \"", name, "\", expected one of ",
       cache_preset_names());
}

/// Bytes of one compressed key and value: a codec bound to the widths of a head.
///
/// Field names and formulas follow the published TurboQuant cache configuration:
/// key = ceil(d * bits / 8) + 2 (fp8: d), value = ceil(d_v * bits / 8) + 4 per group, slot = key +
/// value, aligned slot = slot rounded up to even in the published presets; key means add
/// ceil(d / 32). `slot_size()` is that of tiles (`slot_bytes`), and a page made for the tiles of a
/// published preset takes `cache_codec(layer_codec(preset))`. Any head size is
/// accepted: this is arithmetic, and `encodable_head_sizes` says what the codecs can encode. O(1),
/// deterministic.
class TurboQuantConfig {
 public:
  static constexpr std::int64_t max_head_size = 1 << 20;
  static constexpr std::int64_t max_encodable_head_size = 65536;

  /// @param head_size elements of a key; `head_size_v` elements of a value.
  /// @throws Error(invalid_argument) for sizes outside 1..2^20, bits outside the codec's range, a
  /// codec that is no enumerator, a group of codebook values, norm correction of keys that are not
  /// mse.
  TurboQuantConfig(const CacheCodec& codec, std::int64_t head_size, std::int64_t head_size_v)
      : codec_(codec), head_size_(head_size), head_size_v_(head_size_v) {
    detail::require_enumerator("TurboQuantConfig", "key_codec", codec.key_codec, KeyCodec::float8,
                               "mse, inner_product or float8");
    detail::require_enumerator("TurboQuantConfig", "key_centring", codec.key_centring,
                               KeyCentring::tile_mean, "none or tile_mean");
    detail::require_enumerator("TurboQuantConfig", "value_codec", codec.value_codec,
                               ValueCodec::codebook, "grouped or codebook");
    require_size("head_size", head_size);
    require_size("head_size_v", head_size_v);
    const int least_key_bits = codec.key_codec == KeyCodec::inner_product ? 2
                               : codec.key_codec == KeyCodec::float8      ? 8
                                                                          : 1;
    require(codec.key_bits >= least_key_bits && codec.key_bits <= 8, ErrorCode::invalid_argument,
            "TurboQuantConfig: key_bits is ", codec.key_bits, ", expected ", least_key_bits,
            "..8 for this key codec");
    require(codec.value_bits >= 1 && codec.value_bits <= 8, ErrorCode::invalid_argument,
            "TurboQuantConfig: value_bits is ", codec.value_bits, ", expected 1..8");
    require(codec.value_group >= 0, ErrorCode::invalid_argument,
            "TurboQuantConfig: value_group is ", codec.value_group,
            ", expected 0 (whole head) or a positive number of elements");
    require(codec.value_group == 0 || codec.value_codec == ValueCodec::grouped,
            ErrorCode::invalid_argument, "TurboQuantConfig: value_group is ", codec.value_group,
            ", expected 0 for codebook values");
    require(!codec.norm_correction || codec.key_codec == KeyCodec::mse, ErrorCode::invalid_argument,
            "TurboQuantConfig: norm_correction is 1, expected 0 for keys that are not mse");
  }
  TurboQuantConfig(const CacheCodec& codec, std::int64_t head_size)
      : TurboQuantConfig(codec, head_size, head_size) {}

  /// The preset `name` at `head_size` elements for keys and values.
  /// @throws Error(invalid_argument) for an unknown name (listing the known ones) or a bad size.
  [[nodiscard]] static TurboQuantConfig from_cache_dtype(std::string_view name,
                                                         std::int64_t head_size) {
    return from_cache_dtype(name, head_size, head_size);
  }
  [[nodiscard]] static TurboQuantConfig from_cache_dtype(std::string_view name,
                                                         std::int64_t head_size,
                                                         std::int64_t head_size_v) {
    return TurboQuantConfig(find_cache_preset(name), head_size, head_size_v);
  }

  [[nodiscard]] const CacheCodec& codec() const noexcept { return codec_; }
  [[nodiscard]] std::string_view name() const noexcept { return codec_.name; }
  [[nodiscard]] std::int64_t head_size() const noexcept { return head_size_; }
  [[nodiscard]] std::int64_t head_size_v() const noexcept { return head_size_v_; }
  [[nodiscard]] bool norm_correction() const noexcept { return codec_.norm_correction; }
  [[nodiscard]] bool key_fp8() const noexcept { return codec_.key_codec == KeyCodec::float8; }
  [[nodiscard]] int key_quant_bits() const noexcept { return codec_.key_bits; }
  [[nodiscard]] int value_quant_bits() const noexcept { return codec_.value_bits; }

  /// Index bits of one key element: 0 for fp8, one less than the key bits with a sign sketch.
  [[nodiscard]] int key_mse_bits() const noexcept {
    switch (codec_.key_codec) {
      case KeyCodec::mse: return codec_.key_bits;
      case KeyCodec::inner_product: return codec_.key_bits - 1;
      case KeyCodec::float8: return 0;
    }
    return 0;
  }
  /// Bits that select a centroid; with fp8 keys the published field holds the value bits.
  [[nodiscard]] int mse_bits() const noexcept {
    return key_fp8() ? codec_.value_bits : key_mse_bits();
  }
  [[nodiscard]] int centroid_bits() const noexcept { return mse_bits(); }
  [[nodiscard]] int n_centroids() const noexcept { return 1 << mse_bits(); }

  /// Bytes of one packed key, scales included.
  [[nodiscard]] std::int64_t key_packed_size() const {
    switch (codec_.key_codec) {
      case KeyCodec::mse: return packed_bytes(head_size_, codec_.key_bits) + fp16_bytes;
      case KeyCodec::inner_product:
        return packed_bytes(head_size_, codec_.key_bits - 1) + packed_bytes(head_size_, 1) +
               2 * fp16_bytes;
      case KeyCodec::float8: return head_size_;
    }
    return 0;
  }
  /// Number of scales a packed value carries.
  [[nodiscard]] std::int64_t num_value_groups() const {
    return codec_.value_group > 0 ? ceil_div(head_size_v_, codec_.value_group) : 1;
  }
  /// Bytes of one packed value, scales and zero points included.
  [[nodiscard]] std::int64_t value_packed_size() const {
    const std::int64_t codes = packed_bytes(head_size_v_, codec_.value_bits);
    const bool has_zero = codec_.value_codec == ValueCodec::grouped;
    return codes + num_value_groups() * (has_zero ? 2 * fp16_bytes : fp16_bytes);
  }
  /// A token's share of the fp16 key mean of its tile of 64 tokens, which is padded to 64 bytes.
  [[nodiscard]] std::int64_t key_mean_size() const {
    return codec_.key_centring == KeyCentring::none ? 0 : ceil_div(fp16_bytes * head_size_, 64);
  }
  /// Bytes of one key and value of one head and token.
  [[nodiscard]] std::int64_t slot_size() const {
    return key_packed_size() + key_mean_size() + value_packed_size();
  }
  /// What a page holds per head and token: `slot_size()`, up to an even number with `even_slot`.
  [[nodiscard]] std::int64_t slot_size_aligned() const {
    return codec_.even_slot ? round_up(slot_size(), 2) : slot_size();
  }
  /// Bytes of the same key and value in an uncompressed cache of `element_bytes` per element.
  [[nodiscard]] std::int64_t dense_slot_size(std::int64_t element_bytes) const {
    return detail::named_mul("TurboQuantConfig::dense_slot_size",
                             {"head_size + head_size_v", head_size_ + head_size_v_},
                             {"element_bytes", element_bytes});
  }

  /// True when keys (values) are rotated before they are coded.
  [[nodiscard]] bool rotates_keys() const noexcept { return !key_fp8(); }
  [[nodiscard]] bool rotates_values() const noexcept {
    return codec_.value_codec == ValueCodec::codebook;
  }
  /// Whether the codecs can encode heads of these sizes: 1..65536 elements, and a rotation needs at
  /// least 3.
  [[nodiscard]] bool encodable_head_sizes() const noexcept {
    return head_size_ >= (rotates_keys() ? 3 : 1) && head_size_ <= max_encodable_head_size &&
           head_size_v_ >= (rotates_values() ? 3 : 1) && head_size_v_ <= max_encodable_head_size;
  }

  /// Everything by which two configurations differ.
  [[nodiscard]] std::vector<detail::SpecField> fields() const {
    const auto name_of = [](const auto& names, auto enumerator) {
      return std::string(names.at(static_cast<std::size_t>(enumerator)));
    };
    return {{"head_size", std::to_string(head_size_)},
            {"head_size_v", std::to_string(head_size_v_)},
            {"preset", std::string(codec_.name)},
            {"key_codec", name_of(detail::key_codec_names, codec_.key_codec)},
            {"key_bits", std::to_string(codec_.key_bits)},
            {"key_centring", name_of(detail::key_centring_names, codec_.key_centring)},
            {"norm_correction", std::to_string(static_cast<int>(codec_.norm_correction))},
            {"value_codec", name_of(detail::value_codec_names, codec_.value_codec)},
            {"value_bits", std::to_string(codec_.value_bits)},
            {"value_group", std::to_string(codec_.value_group)},
            {"even_slot", std::to_string(static_cast<int>(codec_.even_slot))}};
  }

  friend bool operator==(const TurboQuantConfig& a, const TurboQuantConfig& b) {
    return a.fields() == b.fields();
  }

 private:
  static constexpr std::int64_t fp16_bytes = 2;

  static void require_size(std::string_view what, std::int64_t size) {
    require(size >= 1 && size <= max_head_size, ErrorCode::invalid_argument,
            "TurboQuantConfig: ", what, " is ", size, ", expected 1..", max_head_size);
  }
  [[nodiscard]] static std::int64_t packed_bytes(std::int64_t elements, int bits) {
    return ceil_div(checked_mul(elements, bits), 8);
  }

  CacheCodec codec_;
  std::int64_t head_size_;
  std::int64_t head_size_v_;
};

}  // namespace turboquant
