#pragma once

// Golden bytes of every codec. The file is compiled several times, with different compiler options:
// the same seed and input give the same bytes whatever those are.
//
// The hashes were written by this file itself, compiled with g++ 12 at -O2; the input is made of
// integers, so that no C library has a part in it. A change of any of them is a change of the
// stored format.

#include <turboquant/math/haar_rotation.hpp>
#include <turboquant/math/orthogonal_sketch.hpp>
#include <turboquant/quant/float8_quantizer.hpp>
#include <turboquant/quant/inner_product_quantizer.hpp>
#include <turboquant/quant/int8_quantizer.hpp>
#include <turboquant/quant/mse_quantizer.hpp>
#include <turboquant/quant/value_quantizer.hpp>

#include <doctest/doctest.h>

#include "quant/support.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace turboquant::test {

/// FNV-1a, 64 bits.
class Hash {
 public:
  void add(std::span<const std::uint8_t> bytes) {
    for (const std::uint8_t byte : bytes) {
      value_ = (value_ ^ byte) * 0x100000001B3ULL;
    }
  }
  void add(const EncodedVectors& encoded) {
    add(encoded.codes);
    add(encoded.scales.bytes());
  }
  void add(const EncodedSketches& encoded) {
    add(encoded.mse);
    add(encoded.signs);
    add(encoded.residual_scales.bytes());
  }
  void add(const EncodedValues& encoded) {
    add(encoded.codes);
    add(encoded.scales.bytes());
    add(encoded.zeros.bytes());
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325ULL;
};

/// Bell-shaped vectors, with a zero vector, an outlier, tiny and huge lengths among them.
inline std::vector<float> golden_input(int dim) {
  const auto d = static_cast<std::size_t>(dim);
  auto x = exact_bell(d * 24, 1);
  for (std::size_t i = 0; i < d; ++i) {
    x[2 * d + i] = 0.0F;
    x[5 * d + i] *= 0x1p-90F;
    x[6 * d + i] *= 0x1p+90F;
    x[7 * d + i] *= 0x1p-20F;
  }
  x[3 * d + 1] = 100.0F;
  return x;
}

template <class... Encoded>
std::uint64_t hash_of(const Encoded&... encoded) {
  Hash hash;
  (hash.add(encoded), ...);
  return hash.value();
}

/// Name and hash of everything that has golden bytes.
inline std::vector<std::pair<std::string, std::uint64_t>> encoded_hashes() {
  std::vector<std::pair<std::string, std::uint64_t>> result;
  for (const int dim : {64, 80, 128, 576}) {
    const auto x = golden_input(dim);
    const HadamardRotation rotation(dim, 42);
    const std::string at = " dim " + std::to_string(dim);
    Hash exact;
    for (int bits = 1; bits <= 8; ++bits) {
      exact.add(MseQuantizer(rotation, bits).encode(x));
    }
    result.emplace_back("codebooks" + at, exact.value());
    Hash grid;
    for (int bits = 1; bits <= 4; ++bits) {
      grid.add(MseQuantizer(rotation, bits, {.codebook = CodebookKind::integer_grid}).encode(x));
    }
    result.emplace_back("grids" + at, grid.value());
    Hash rules;
    for (const ScaleRule rule :
         {ScaleRule::plain, ScaleRule::unit, ScaleRule::least_squares, ScaleRule::unbiased}) {
      rules.add(MseQuantizer(rotation, 3, {.scale_rule = rule, .metadata = MetadataType::float32})
                    .encode(x));
    }
    result.emplace_back("scale rules" + at, rules.value());
    result.emplace_back("scale search" + at,
                        hash_of(MseQuantizer(rotation, 3, {.scale_candidates = 5}).encode(x)));
    const OrthogonalSketch sketch(HadamardRotation(dim, 43));
    result.emplace_back("sketch" + at,
                        hash_of(InnerProductQuantizer(rotation, 3, sketch).encode(x),
                                InnerProductQuantizer(rotation, 4, sketch,
                                                      {.scale_rule = ScaleRule::unbiased,
                                                       .metadata = MetadataType::float32})
                                    .encode(x)));
    Hash values;
    for (int bits = 1; bits <= 8; ++bits) {
      values.add(ValueQuantizer(dim, bits, {.group_size = 32}).encode(x));
      values.add(ValueQuantizer(dim, bits, {.metadata = MetadataType::float32}).encode(x));
    }
    result.emplace_back("values" + at, values.value());
    result.emplace_back("byte keys" + at,
                        hash_of(Int8Quantizer(dim).encode(x), Float8Quantizer(dim).encode(x),
                                Int8Quantizer(dim, MetadataType::float32).encode(x),
                                Float8Quantizer(dim, MetadataType::float32).encode(x)));
  }
  return result;
}

/// The Haar rotation's matrix applied in double and a fixed order.
struct HaarInDouble {
  HaarRotation rotation;
  [[nodiscard]] int dim() const { return rotation.dim(); }
  void apply(std::span<const float> in, std::span<float> out) const {
    for (int i = 0; i < dim(); ++i) {
      double sum = 0;
      for (int j = 0; j < dim(); ++j) {
        sum += double{rotation.matrix()(i, j)} * double{in[static_cast<std::size_t>(j)]};
      }
      out[static_cast<std::size_t>(i)] = static_cast<float>(sum);
    }
  }
  void apply_inverse(std::span<const float> in, std::span<float> out) const {
    rotation.apply_inverse(in, out);
  }
};

TEST_CASE("encoded bytes do not depend on compiler options") {
  const std::vector<std::pair<std::string, std::uint64_t>> golden{
      {"codebooks dim 64", 0xCF2D3B27CCD674BAULL},
      {"grids dim 64", 0xD021D339D193287EULL},
      {"scale rules dim 64", 0xB6F3898402C6094AULL},
      {"scale search dim 64", 0x546A4003BBCAB0C3ULL},
      {"sketch dim 64", 0x3E79B69D47B76EBDULL},
      {"values dim 64", 0xC9DE5808A514BD3FULL},
      {"byte keys dim 64", 0x73C8B5C3B9404E10ULL},
      {"codebooks dim 80", 0xB4287C27FCB58AE0ULL},
      {"grids dim 80", 0x480856D6DE31FC8DULL},
      {"scale rules dim 80", 0xDC94005FC4269FC8ULL},
      {"scale search dim 80", 0x71B90DFC998E2B15ULL},
      {"sketch dim 80", 0x39119693C547E802ULL},
      {"values dim 80", 0x61AA139301565CBAULL},
      {"byte keys dim 80", 0x67F56B7CE7CD14E2ULL},
      {"codebooks dim 128", 0xC141041927E2ECDEULL},
      {"grids dim 128", 0xEE8C632F85739EA5ULL},
      {"scale rules dim 128", 0x7EE5178A1488F5D9ULL},
      {"scale search dim 128", 0xA882F9C949123646ULL},
      {"sketch dim 128", 0x973E092851FAC796ULL},
      {"values dim 128", 0x97825F67F2CD394EULL},
      {"byte keys dim 128", 0xBB1923AB3782217FULL},
      {"codebooks dim 576", 0x0FBD049C5D220EECULL},
      {"grids dim 576", 0xDC0C5BC3832CA036ULL},
      {"scale rules dim 576", 0xB27F7D7D7520FB60ULL},
      {"scale search dim 576", 0x3F275741CA3BB810ULL},
      {"sketch dim 576", 0x81D864DC22928265ULL},
      {"values dim 576", 0xEC61D478764E286BULL},
      {"byte keys dim 576", 0x134F01CCFDA0AF90ULL},
  };
  const auto hashes = encoded_hashes();
  REQUIRE(hashes.size() == golden.size());
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    CAPTURE(hashes[i].first);
    CHECK(hashes[i].first == golden[i].first);
    CHECK(hashes[i].second == golden[i].second);
  }
}

TEST_CASE("Haar rotation: fewer than 5 in a million codes differ from those of exact products") {
  const int dim = 80;
  const auto x = exact_bell(std::size_t{80} * 5000, 2);
  const HaarRotation rotation(dim, 3);
  const auto in_float = MseQuantizer(rotation, 3).encode(x);
  const auto in_double = MseQuantizer(HaarInDouble{rotation}, 3).encode(x);
  std::size_t different = 0;
  for (std::size_t row = 0; row < in_float.count; ++row) {
    for (std::size_t i = 0; i < 80; ++i) {
      different +=
          read_code(in_float.row(row), i, 3) != read_code(in_double.row(row), i, 3) ? 1U : 0U;
    }
  }
  CHECK(static_cast<double>(different) < 5e-6 * static_cast<double>(x.size()));
}

}  // namespace turboquant::test
