// Snapshots, damaged and forged: refused, or loaded as something that saves to the same bytes for
// good and goes on like any cache.
//
// The last 8 bytes of an input are ignored: the checksum of the rest takes their place, unless the
// first of them is odd.
#include "fuzz/fuzz_input.hpp"
#include "support/host_kernels.hpp"
#include "support/one_thread.hpp"

#include <turboquant/cache/snapshot.hpp>
#include <turboquant/device/runtime.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using Space = Kokkos::HostSpace;
using Number = turboquant::bfloat16;
using Engine = turboquant::KVCaptureEngine<Space, Number>;
using Bytes = std::vector<std::byte>;

Engine load(const Bytes& bytes) {
  return turboquant::load_capture<Space, Number>(
      turboquant::test::OneThread(), bytes,
      std::make_shared<turboquant::MemoryLedger>(std::size_t{64} << 20U));
}

void check(const Bytes& bytes) {
  const turboquant::test::OneThread exec;
  Engine engine = load(bytes);
  const Bytes saved = turboquant::save_capture(exec, engine);
  Engine again = load(saved);
  expect(turboquant::save_capture(exec, again) == saved);
  const turboquant::KVShape shape = engine.options().shape;
  const auto rows = [&](const std::string& label, int dim) {
    return Kokkos::View<Number***, Kokkos::LayoutRight, Space>(
        label, std::size_t{70}, static_cast<std::size_t>(shape.kv_heads),
        static_cast<std::size_t>(dim));
  };
  const auto keys = rows("keys", shape.key_dim);
  const auto values = rows("values", shape.value_dim);
  for (Engine* each : {&engine, &again}) {
    each->ingest(exec, keys, values);
    each->truncate(exec, each->length() - 3);
    static_cast<void>(each->view(exec));
  }
  expect(turboquant::save_capture(exec, again) == turboquant::save_capture(exec, engine));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const turboquant::KokkosScope kokkos;
  Bytes bytes(size);
  std::transform(data, data + size, bytes.begin(), [](std::uint8_t b) { return std::byte{b}; });
  if (size >= 8 && (data[size - 8] & 1U) == 0) {
    bytes.resize(size - 8);
    turboquant::detail::ByteWriter sealed;
    sealed.append(bytes.data(), bytes.size());
    sealed.number(turboquant::detail::checksum_of(bytes));
    bytes = sealed.take();
  }
  try {
    check(bytes);
  } catch (const turboquant::Error&) {
    // Refused.
  }
  return 0;
}
