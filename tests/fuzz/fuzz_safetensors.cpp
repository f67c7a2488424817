// Headers of safetensors files: 2 bytes say how long the data is, the rest is the header. What is
// accepted covers the data without gap or overlap, and every tensor's bytes are those of its shape
// and type.
#include "fuzz/fuzz_input.hpp"

#include <turboquant/io/safetensors_header.hpp>

#include <algorithm>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  const std::int64_t data_bytes = input.take<std::uint16_t>();
  const std::string_view json(reinterpret_cast<const char*>(input.data()), input.size());
  try {
    const turboquant::SafetensorsHeader header =
        turboquant::parse_safetensors_header(json, data_bytes, "fuzz");
    std::int64_t covered = 0;
    for (const turboquant::TensorEntry& tensor : header.tensors) {
      expect(tensor.begin == covered && tensor.end >= tensor.begin);
      // Checked before the product, which may leave 64 bits on the way to 0.
      const bool none = std::count(tensor.shape.begin(), tensor.shape.end(), 0) > 0;
      std::int64_t elements = none ? 0 : 1;
      for (const std::int64_t extent : tensor.shape) {
        expect(extent >= 0);
        elements *= none ? 1 : extent;
      }
      expect(elements == tensor.num_elements);
      expect(elements == 0 ? tensor.end == tensor.begin
                           : (tensor.end - tensor.begin) % elements == 0);
      covered = tensor.end;
    }
    expect(covered == data_bytes);
  } catch (const turboquant::Error& error) {
    const std::string_view message = error.what();
    expect(!message.empty() && message.find('\n') == std::string_view::npos);
  }
  return 0;
}
