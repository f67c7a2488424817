// GGUF files, and the tokenizer that they describe: tensors lie within the file and have the
// elements of their shape; a tokenizer that is accepted takes any text.
#include "../../examples/llama_ab/gguf.hpp"
#include "../../examples/llama_ab/tokenizer.hpp"
#include "fuzz/fuzz_input.hpp"

#include <cstddef>
#include <functional>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const llama_ab::GgufFile file(bytes, "fuzz");
    for (const auto& [name, tensor] : file.tensors()) {
      expect(name == tensor.name);
      std::size_t elements = 1;
      for (const std::int64_t extent : tensor.shape) {
        expect(extent > 0);
        elements *= static_cast<std::size_t>(extent);
      }
      expect(elements == tensor.num_elements && !tensor.bytes.empty());
      const std::less_equal<const std::byte*> before;
      expect(before(bytes.data(), tensor.bytes.data()) &&
             before(tensor.bytes.data() + tensor.bytes.size(), bytes.data() + bytes.size()));
    }
    const llama_ab::Tokenizer tokenizer(file);
    const auto ids = tokenizer.encode("the abab\n\xff 12", true);
    static_cast<void>(tokenizer.decode(ids));
  } catch (const turboquant::Error& error) {
    expect(error.what()[0] != '\0');
  }
  return 0;
}
