// Quantised blocks: against another implementation, and refused sizes.

#include "../../examples/llama_ab/tensor_types.hpp"

#include <support/error_of.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

using namespace turboquant;
using namespace turboquant::test;

TEST_CASE("blocks hold the numbers that the Python package gguf reads from them") {
  std::ifstream stream(std::string(TURBOQUANT_TEST_DATA_DIR) + "/gguf_blocks.txt");
  REQUIRE(stream.good());
  std::set<std::string> seen;
  std::string line;
  while (std::getline(stream, line)) {
    std::istringstream words(line);
    std::string name;
    std::string hex;
    words >> name >> hex;
    const llama_ab::TensorTypeTraits* traits = nullptr;
    for (const llama_ab::TensorTypeTraits& row : llama_ab::tensor_types) {
      traits = row.name == name ? &row : traits;
    }
    REQUIRE_MESSAGE(traits != nullptr, name);
    seen.insert(name);
    std::vector<std::byte> bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
      bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
    REQUIRE(bytes.size() == traits->block_bytes);
    std::vector<float> expected;
    for (float number = 0; words >> number;) {
      expected.push_back(number);
    }
    REQUIRE(expected.size() == traits->block_numbers);
    std::vector<float> numbers(expected.size());
    llama_ab::dequantize(traits->type, bytes, numbers);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      CHECK_MESSAGE(std::fabs(numbers[i] - expected[i]) <= 1e-6F * (1 + std::fabs(expected[i])),
                    name, " ", i);
    }
  }
  CHECK(seen.size() == llama_ab::tensor_types.size());
}

TEST_CASE("blocks do not depend on their neighbours") {
  for (const llama_ab::TensorTypeTraits& traits : llama_ab::tensor_types) {
    std::vector<std::byte> bytes(3 * traits.block_bytes);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(i * 7 % 60);  // no special half-precision number
    }
    std::vector<float> all(3 * traits.block_numbers);
    llama_ab::dequantize(traits.type, bytes, all);
    std::vector<float> middle(traits.block_numbers);
    llama_ab::dequantize(traits.type,
                         std::span(bytes).subspan(traits.block_bytes, traits.block_bytes), middle);
    const auto at = static_cast<std::ptrdiff_t>(traits.block_numbers);
    CHECK(middle == std::vector<float>(all.begin() + at, all.begin() + 2 * at));
  }
}

TEST_CASE("other sizes are refused") {
  std::vector<float> numbers(48);
  const std::vector<std::byte> bytes(68);
  for (const std::size_t count : {std::size_t{48}, std::size_t{32}}) {
    CHECK(mentions(error_of(ErrorCode::shape_mismatch,
                            [&] {
                              llama_ab::dequantize(llama_ab::TensorType::q8_0, bytes,
                                                   std::span(numbers).first(count));
                            }),
                   "68 bytes of Q8_0"));
  }
  CHECK(mentions(
      error_of(ErrorCode::unsupported,
               [&] { llama_ab::dequantize(static_cast<llama_ab::TensorType>(7), bytes, numbers); }),
      "type is 7"));
}
