// Operations on a cache manager, valid and not: lengths agree with a plain model, a refused call
// changes nothing, and a manager without sequences holds no token.
#include "fuzz/fuzz_input.hpp"
#include "support/host_kernels.hpp"
#include "support/one_thread.hpp"

#include <turboquant/device/runtime.hpp>
#include <turboquant/runtime/cache_manager.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace {

using Space = Kokkos::HostSpace;
using Manager = turboquant::CacheManager<Space, float>;
using Rows = Kokkos::View<float***, Kokkos::LayoutRight, Space>;

constexpr std::size_t max_sequences = 6;
constexpr std::int64_t max_tokens = 700;

/// @param kind 0 keeps tokens exact, others compress them in pages of 64, 32 and 16
std::vector<turboquant::LayerOptions> layers(std::size_t kind) {
  turboquant::LayerOptions layer;
  layer.capture.shape = {.kv_heads = 1, .key_dim = 16, .value_dim = 16};
  layer.capture.window_capacity = 70;
  if (kind > 0) {
    const int page = 128 >> kind;
    layer.capture.block_size = page;
    layer.codec.emplace();
    layer.codec->format.tile_tokens = page;
    layer.codec->format.key_dim = 16;
    layer.codec->format.value_dim = 16;
    layer.codec->format.value_group = 16;
  }
  return {layer};
}

/// A name that is known, or one that may not be.
turboquant::SequenceId pick(FuzzInput& input,
                            const std::map<turboquant::SequenceId, std::int64_t>& lengths) {
  const std::size_t which = input.below(max_sequences + 2);
  if (which < lengths.size()) {
    return std::next(lengths.begin(), static_cast<std::ptrdiff_t>(which))->first;
  }
  return static_cast<turboquant::SequenceId>(which);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const turboquant::KokkosScope kokkos;
  const turboquant::test::OneThread exec;
  FuzzInput input(data, size);
  Manager manager({.layers = layers(input.below(4))});
  std::map<turboquant::SequenceId, std::int64_t> lengths;
  for (int operation = 0; operation < 40 && !input.empty(); ++operation) {
    const std::size_t memory = manager.memory_use().total();
    const std::map<turboquant::SequenceId, std::int64_t> before = lengths;
    try {
      const std::size_t kind = input.below(8);
      if (kind == 0 && lengths.size() < max_sequences) {
        const turboquant::SequenceId id = manager.open();
        expect(lengths.emplace(id, 0).second);
      } else if (kind == 1 && lengths.size() < max_sequences) {
        const turboquant::SequenceId parent = pick(input, lengths);
        const std::int64_t length = input.take<std::int16_t>() % 800;
        const turboquant::SequenceId id = manager.fork(exec, parent, length);
        expect(lengths.count(parent) == 1 && length >= 0 && length <= lengths[parent]);
        expect(lengths.emplace(id, length).second);
      } else if (kind == 2) {
        const turboquant::SequenceId id = pick(input, lengths);
        manager.close(id);
        expect(lengths.erase(id) == 1);
      } else if (kind == 3) {
        const turboquant::SequenceId id = pick(input, lengths);
        const std::int64_t length = input.take<std::int16_t>() % 800;
        manager.truncate(exec, id, length);
        expect(lengths.count(id) == 1 && length >= 0 && length <= lengths[id]);
        lengths[id] = length;
      } else {
        // One or two sequences; offsets that may be wrong by one, rows that may hold a NaN.
        const std::vector<turboquant::SequenceId> ids =
            input.below(3) == 0 ? std::vector{pick(input, lengths), pick(input, lengths)}
                                : std::vector{pick(input, lengths)};
        const auto tokens = static_cast<std::int64_t>(input.take<std::uint8_t>());
        std::vector<std::int64_t> offsets{0};
        for (std::size_t i = 0; i < ids.size(); ++i) {
          offsets.push_back(i + 1 == ids.size() ? tokens : tokens / 3);
        }
        const bool wrong_end = input.below(16) == 0;
        offsets.back() += wrong_end ? 1 : 0;
        const Rows rows("rows", static_cast<std::size_t>(tokens), 1, 16);
        for (std::size_t i = 0; i < rows.size(); ++i) {
          rows.data()[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) * 0.02F;
        }
        bool known = std::all_of(ids.begin(), ids.end(), [&](turboquant::SequenceId id) {
          return lengths.count(id) == 1 && lengths[id] + tokens <= max_tokens;
        });
        if (!known && std::all_of(ids.begin(), ids.end(), [&](turboquant::SequenceId id) {
              return lengths.count(id) == 1;
            })) {
          continue;  // long enough
        }
        manager.append(exec, 0, ids, offsets, rows, rows);
        exec.fence();
        expect(known && !wrong_end && (ids.size() == 1 || ids[0] != ids[1]));
        for (std::size_t i = 0; i < ids.size(); ++i) {
          lengths[ids[i]] += offsets[i + 1] - offsets[i];
        }
      }
    } catch (const turboquant::Error& error) {
      expect(error.what()[0] != '\0');
      lengths = before;
      expect(manager.memory_use().total() == memory);
    }
    expect(manager.num_sequences() == lengths.size());
    for (const auto& [id, length] : lengths) {
      const turboquant::SequenceStats stats = manager.stats(0, id);
      expect(stats.length == length &&
             stats.history_tokens + stats.window_tokens + stats.sink_tokens == length);
    }
  }
  for (const auto& [id, length] : lengths) {
    manager.close(id);
  }
  const turboquant::MemoryUse use = manager.memory_use();
  expect(use.codes == 0 && use.metadata == 0 && use.exact_window == 0);
  return 0;
}
