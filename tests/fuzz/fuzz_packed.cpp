// Round trips of packed numbers: codes of 1 to 8 bits, half precision and 8-bit floats, vectors of
// a quantizer.
#include "fuzz/fuzz_input.hpp"

#include <turboquant/base/float16.hpp>
#include <turboquant/base/float8.hpp>
#include <turboquant/math/bit_pack.hpp>
#include <turboquant/quant/mse_quantizer.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

namespace {

void codes(FuzzInput& input) {
  const int bits = 1 + static_cast<int>(input.below(8));
  std::vector<std::uint8_t> codes(input.data(), input.data() + input.size());
  for (std::uint8_t& code : codes) {
    code = static_cast<std::uint8_t>(code & ((1U << static_cast<unsigned>(bits)) - 1U));
  }
  std::vector<std::uint8_t> packed(turboquant::packed_bytes(codes.size(), bits));
  turboquant::pack(codes, bits, packed);
  std::vector<std::uint8_t> unpacked(codes.size());
  turboquant::unpack(packed, bits, unpacked);
  expect(unpacked == codes);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    expect(turboquant::read_code(packed.data(), i, bits) == codes[i]);
  }
  packed.push_back(0);
  bool refused = false;
  try {
    turboquant::pack(codes, bits, packed);
  } catch (const turboquant::Error& error) {
    refused = error.code() == turboquant::ErrorCode::shape_mismatch;
  }
  expect(refused);
}

/// The narrow type holds the numbers that it gives.
template <class Narrow, class Bits>
void narrow_float(FuzzInput& input) {
  while (!input.empty()) {
    const Narrow narrow{input.take<Bits>()};
    const float wide = narrow.to_float();
    const Narrow again = Narrow::from_float(wide);
    expect(std::isnan(wide) ? std::isnan(again.to_float()) : again.bits == narrow.bits);
  }
}

void vectors(FuzzInput& input) {
  const int dims[] = {3, 8, 16, 24, 40};
  const int dim = dims[input.below(5)];
  const int bits = 1 + static_cast<int>(input.below(4));
  const turboquant::MseQuantizer quantizer(turboquant::HadamardRotation(dim, 5), bits);
  std::vector<float> rows(std::min<std::size_t>(input.size() / 4, 400) / std::size_t(dim) *
                          std::size_t(dim));
  for (float& x : rows) {
    x = input.take<float>();
  }
  const bool finite =
      std::all_of(rows.begin(), rows.end(), [](float x) { return std::isfinite(x); });
  try {
    const turboquant::EncodedVectors encoded = quantizer.encode(rows);
    expect(finite);
    expect(quantizer.encode(rows).codes == encoded.codes);
    std::vector<float> decoded(rows.size());
    quantizer.decode(encoded, decoded);
    expect(std::all_of(decoded.begin(), decoded.end(), [](float x) { return std::isfinite(x); }));
  } catch (const turboquant::Error& error) {
    expect(!finite && error.code() == turboquant::ErrorCode::non_finite);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  switch (input.below(5)) {
    case 0: codes(input); break;
    case 1: narrow_float<turboquant::float16, std::uint16_t>(input); break;
    case 2: narrow_float<turboquant::bfloat16, std::uint16_t>(input); break;
    case 3: narrow_float<turboquant::float8_e4m3, std::uint8_t>(input); break;
    default: vectors(input);
  }
  return 0;
}
