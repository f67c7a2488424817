// replay <folder> <mutations>: runs a fuzz body on every file of the folder, then on mutations of
// them, the same ones every time. What libFuzzer finds beyond that is kept by adding its file to
// the folder.
#include "fuzz/fuzz_input.hpp"

#include <turboquant/base/random.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

using Bytes = std::vector<std::uint8_t>;

std::vector<Bytes> read_folder(const char* folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> files;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return files;
}

void run(const Bytes& input) {
  // A copy of its own size, so that a sanitizer sees reads past the end.
  const Bytes copy(input.begin(), input.end());
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
}

/// A few edits: bytes, integers that are special, cut, doubled or spliced parts.
Bytes mutated(const std::vector<Bytes>& corpus, const turboquant::CounterRng& rng) {
  std::uint64_t draw = 0;
  const auto below = [&](std::size_t bound) -> std::size_t {
    return rng.below(draw++, static_cast<std::uint32_t>(bound));
  };
  Bytes bytes = corpus[below(corpus.size())];
  for (std::size_t edits = 1 + below(4); edits > 0 && !bytes.empty(); --edits) {
    const std::size_t at = below(bytes.size());
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t length = std::min(bytes.size() - at, 1 + below(9));
    switch (below(6)) {
      case 0: *place = static_cast<std::uint8_t>(below(256)); break;
      case 1: *place = static_cast<std::uint8_t>(*place ^ (1U << below(8))); break;
      case 2: bytes.erase(place, place + static_cast<std::ptrdiff_t>(length)); break;
      case 3: {
        const Bytes part(place, place + static_cast<std::ptrdiff_t>(length));
        bytes.insert(place, part.begin(), part.end());
        break;
      }
      case 4: {
        const std::uint8_t special[] = {0x00, 0x01, 0x7F, 0x80, 0xFF};
        std::fill_n(place, length, special[below(std::size(special))]);
        break;
      }
      default: {
        const Bytes& other = corpus[below(corpus.size())];
        bytes.resize(at);
        bytes.insert(bytes.end(),
                     other.begin() + static_cast<std::ptrdiff_t>(below(other.size() + 1)),
                     other.end());
      }
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<Bytes> corpus = argc == 3 ? read_folder(argv[1]) : std::vector<Bytes>();
  if (corpus.empty()) {
    std::fputs("usage: replay <folder with at least one file> <mutations>\n", stderr);
    return 2;
  }
  run({});
  for (const Bytes& input : corpus) {
    run(input);
  }
  const unsigned long count = std::strtoul(argv[2], nullptr, 10);
  for (unsigned long i = 0; i < count; ++i) {
    run(mutated(corpus, turboquant::CounterRng(7, i)));
  }
  std::printf("%zu files and %lu mutations\n", corpus.size(), count);
  return 0;
}
