// The same bytes and the same attention on every execution space of this build, an accelerator
// included.

#include "runtime/runtime_test_support.hpp"

#include <turboquant/device/transcode.hpp>
#include <turboquant/runtime/shadow_compare.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

using namespace runtime_test;
using turboquant::CacheMode;
using turboquant::LayerOptions;

namespace {

/// Copies in both directions between the host and a space.
template <class Space, class T>
struct DeviceRows {
  Kokkos::View<T***, Kokkos::LayoutRight, Space> rows;

  explicit DeviceRows(const HostRows<T>& host)
      : rows("rows", host.extent(0), host.extent(1), host.extent(2)) {
    Kokkos::deep_copy(rows, host);
  }
};

struct Outcome {
  std::vector<std::byte> tiles;
  std::vector<std::vector<std::byte>> snapshots;
  std::vector<float> output;
};

struct Case {
  KVShape shape{};
  bool key_means = false;
  int tile_tokens = 64;  ///< of a page, too
};

/// Prefill, decode, fork, rollback and a shared page, on one space; tiles of 64 tokens in host
/// order, smaller ones in snapshots alone.
template <class Exec>
Outcome run(const Case& test) {
  const KVShape& shape = test.shape;
  using Space = typename Exec::memory_space;
  const Exec exec;
  LayerOptions options = layer(shape, 3, 4, 100, test.tile_tokens);
  options.codec->format.tile_tokens = test.tile_tokens;
  if (test.key_means) {
    options = with_key_means(options);
  }
  options.capture.sinks = 2;
  turboquant::CacheManager<Space, float> manager({.layers = {options}, .mode = CacheMode::full_tq});
  const Tokens<float> tokens(5, 0, 400, shape);
  const Tokens<float> query_rows(6, 0, 400, {4, 64, 8});
  const DeviceRows<Space, float> keys(tokens.keys);
  const DeviceRows<Space, float> values(tokens.values);
  const DeviceRows<Space, float> queries(query_rows.keys);
  Kokkos::View<float***, Kokkos::LayoutRight, Space> output("output", 400, 4,
                                                            std::size_t(shape.value_dim));
  Kokkos::View<float**, Kokkos::LayoutRight, Space> lse("lse", 400, 4);
  const auto a = manager.open();
  const auto b = manager.open();
  const std::vector<std::int64_t> offsets{0, 150, 400};
  for (int round = 0; round < 2; ++round) {
    manager.prefill(exec, 0, std::vector{a, b}, offsets, keys.rows, values.rows, offsets,
                    queries.rows, output, lse, {});
  }
  const auto c = manager.fork(exec, b, 333);
  manager.truncate(exec, a, 130);
  manager.append(exec, 0, std::vector{c, a}, offsets, keys.rows, values.rows);
  Kokkos::View<float****, Kokkos::LayoutRight, Space> newest("newest", 3, 2, 4, 64);
  Kokkos::View<float****, Kokkos::LayoutRight, Space> decoded("decoded", 3, 2, 4,
                                                              std::size_t(shape.value_dim));
  Kokkos::View<float***, Kokkos::LayoutRight, Space> sums("sums", 3, 2, 4);
  HostQueries host_newest("newest", 3, 2, 4, 64);
  std::copy_n(query_rows.keys.data(), host_newest.size(), host_newest.data());
  Kokkos::deep_copy(newest, host_newest);
  manager.attend(exec, 0, std::vector{a, b, c}, newest, decoded, sums);

  Outcome outcome;
  const auto take = [&](const auto& view) {
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
    outcome.output.insert(outcome.output.end(), host.data(), host.data() + host.size());
  };
  take(output);
  take(lse);
  take(decoded);
  take(sums);
  const auto& format = manager.engine(0, a).store().codec().format();
  for (const auto id : {a, b, c}) {
    outcome.snapshots.push_back(manager.save(exec, id));
    const auto loaded = manager.load(exec, outcome.snapshots.back());
    CHECK(manager.save(exec, loaded) == outcome.snapshots.back());
    manager.close(loaded);
    if (test.tile_tokens != 64) {
      continue;
    }
    const auto view = manager.view(exec, 0, id);
    std::vector<std::byte*> pages(std::size_t(view.history.num_pages));
    using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
    Kokkos::deep_copy(
        Kokkos::View<std::byte**, Kokkos::LayoutRight, Host, Unmanaged>(
            reinterpret_cast<std::byte*>(pages.data()), pages.size(), sizeof(std::byte*)),
        Kokkos::View<const std::byte**, Kokkos::LayoutRight, Space, Unmanaged>(
            reinterpret_cast<const std::byte*>(view.history.pages), pages.size(),
            sizeof(std::byte*)));
    // Whole tiles only: what lies behind the last tile of a page is not defined.
    const auto tiles = std::size_t(view.history.end - view.history.page_position + 63) / 64;
    REQUIRE(view.history.tiles_per_page == 1);
    for (std::size_t tile = 0; tile < tiles; ++tile) {
      Kokkos::View<std::byte*, Host> bytes("bytes", format.bytes() * 2);
      Kokkos::deep_copy(
          bytes, Kokkos::View<const std::byte*, Space, Unmanaged>(pages[tile], bytes.size()));
      turboquant::TileFormat in_host_order = format;
      in_host_order.order = turboquant::TileOrder::host;
      Kokkos::View<std::byte*, Host> out("out", bytes.size());
      turboquant::transcode_tiles(HostExec(), format, Kokkos::View<const std::byte*, Host>(bytes),
                                  in_host_order, out);
      HostExec().fence();
      outcome.tiles.insert(outcome.tiles.end(), out.data(), out.data() + out.size());
    }
  }
  return outcome;
}

template <class Exec>
void compare(const char* name, const Case& test, const Outcome& expected) {
  const Outcome outcome = run<Exec>(test);
  CAPTURE(std::string(name));
  CHECK(outcome.tiles == expected.tiles);
  CHECK(outcome.snapshots == expected.snapshots);
  REQUIRE(outcome.output.size() == expected.output.size());
  double worst = 0;
  for (std::size_t i = 0; i < expected.output.size(); ++i) {
    worst = std::max(worst, std::fabs(double(outcome.output[i]) - double(expected.output[i])));
  }
  MESSAGE(std::string(name), ": ", outcome.tiles.size(),
          " tile bytes equal, attention differs by at most ", worst);
  CHECK(worst < 5e-3);
}

/// What a shadow comparison reports of made-up outputs and logits, on one space.
template <class Exec>
turboquant::ShadowLayer shadow(const KVShape& shape) {
  using Space = typename Exec::memory_space;
  const Exec exec;
  LayerOptions options = layer(shape, 3, 4, 20);
  options.capture.sinks = 3;
  turboquant::CacheManager<Space, float> manager(
      {.layers = {options}, .mode = CacheMode::capture_only});
  turboquant::ShadowCompare<Space, float> compare(manager, {.sample_fraction = 1});
  const Tokens<float> tokens(5, 0, 250, shape);
  const DeviceRows<Space, float> keys(tokens.keys);
  const DeviceRows<Space, float> values(tokens.values);
  const std::vector<SequenceId> ids{manager.open(), manager.open()};
  manager.append(exec, 0, ids, std::vector<std::int64_t>{0, 100, 250}, keys.rows, values.rows);
  const auto on_device = [](const HostQueries& host) {
    Kokkos::View<float****, Kokkos::LayoutRight, Space> copy("copy", host.extent(0), host.extent(1),
                                                             host.extent(2), host.extent(3));
    Kokkos::deep_copy(copy, host);
    return copy;
  };
  compare.begin_step();
  CHECK(compare.compare(exec, 0, ids, on_device(queries(1, 2, 2, 4, 64)),
                        on_device(queries(2, 2, 2, 4, shape.value_dim)), {},
                        on_device(queries(3, 2, 2, 4, 160))));
  return compare.report().layers[0];
}

}  // namespace

TEST_CASE("every space reports the same of a shadow comparison") {
  const KVShape shape{.kv_heads = 2, .key_dim = 64, .value_dim = 64};
  const turboquant::ShadowLayer expected = shadow<HostExec>(shape);
  const turboquant::ShadowLayer other = shadow<Kokkos::DefaultExecutionSpace>(shape);
  CHECK(other.rows == 16);
  CHECK(other.attention.logits == expected.attention.logits);
  CHECK(other.output_error == doctest::Approx(expected.output_error).epsilon(2e-3));
  CHECK(std::fabs(other.cosine - expected.cosine) < 2e-3);
  CHECK(other.attention.rms == doctest::Approx(expected.attention.rms).epsilon(1e-4));
  CHECK(other.attention.kl == doctest::Approx(expected.attention.kl).epsilon(1e-4));
  CHECK(other.attention.top1 == expected.attention.top1);
}

TEST_CASE("every space stores the same codes and computes the same attention") {
  // The second shape is one that matrix units take: a device then stores tiles in mma order.
  for (const KVShape& shape : {KVShape{.kv_heads = 2, .key_dim = 64, .value_dim = 32},
                               KVShape{.kv_heads = 2, .key_dim = 64, .value_dim = 64}}) {
    for (const Case& test : {Case{shape, false, 64}, Case{shape, true, 64}, Case{shape, false, 16},
                             Case{shape, false, 32}}) {
      CAPTURE(test.tile_tokens);
      const Outcome expected = run<HostExec>(test);
      compare<Kokkos::DefaultHostExecutionSpace>("default host space", test, expected);
      if (std::is_same_v<Kokkos::DefaultExecutionSpace, Kokkos::DefaultHostExecutionSpace>) {
        MESSAGE("accelerator skipped: no device, this Kokkos was built without one");
      } else {
        compare<Kokkos::DefaultExecutionSpace>("accelerator", test, expected);
      }
    }
  }
}
