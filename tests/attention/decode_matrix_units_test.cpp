// Attention on matrix units against double precision on the same codes; skipped where there are
// none.

#include "space_problem.hpp"

#include <turboquant/device/arch/cuda_target.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

using namespace decode_fixture;

namespace {

using Device = Kokkos::DefaultExecutionSpace;

/// Whether matrix units are here; a line says so where not.
bool available() {
  if constexpr (detail::has_matrix_units<Device>) {
    if (detail::device_properties(Device()).compute_capability >= 80) {
      return true;
    }
  }
  std::puts("decode_matrix_units: skipped: no device with matrix units");
  return false;
}

TileFormat make_format(int key_bits, int value_bits, int dim, int group) {
  TileFormat format;
  format.key_bits = key_bits;
  format.key_dim = dim;
  format.value_bits = value_bits;
  format.value_dim = dim;
  format.value_group = group;
  format.order = TileOrder::mma;
  return format;
}

/// Largest error of a row relative to its own length.
double relative_error(const std::vector<double>& output, const Result& expected) {
  double worst = 0;
  const std::size_t dim = expected.output.size() / expected.lse.size();
  for (std::size_t row = 0; row < expected.lse.size(); ++row) {
    double difference = 0;
    double length = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      const double delta = output[row * dim + d] - expected.output[row * dim + d];
      difference += delta * delta;
      length += expected.output[row * dim + d] * expected.output[row * dim + d];
    }
    const double error =
        length > 0 ? std::sqrt(difference / length) : (difference == 0 ? 0 : 1e300);
    worst = error <= worst ? worst : error;
  }
  return worst;
}

struct Errors {
  double output = 0;
  double lse = 0;
};

/// Whether tiles can be copied into rings.
bool has_rings() {
  if constexpr (detail::has_bulk_copies<Device>) {
    return detail::device_properties(Device()).code_architecture >= 900;
  }
  return false;
}

struct Way {
  DeviceArch device = DeviceArch::matrix_units;
  RingTeams teams = RingTeams::automatic;
  int cluster = 0;
};

void ask_for(const Way& way, DecodeOptions& options) {
  options.device = way.device;
  options.ring_teams = way.teams;
  options.cluster = way.cluster;
}

/// Every way in which tiles come to the warps and results together.
std::vector<Way> ways() {
  std::vector<Way> all{{}, {DeviceArch::matrix_units_plain}};
  if (has_rings()) {
    for (const int cluster : {1, 2}) {
      all.push_back({DeviceArch::matrix_units_ring, RingTeams::eight_warps, cluster});
    }
    for (const int cluster : {1, 3, 8, 16}) {
      all.push_back({DeviceArch::matrix_units_ring, RingTeams::two_warps, cluster});
    }
  }
  return all;
}

/// In every way; runs twice, and the second run must give the same bits.
/// @param bound on the error of outputs and sums
Errors check(const Setup& setup, DecodeOptions options = {}, double bound = 1e-3) {
  CAPTURE(setup.format.key_dim);
  CAPTURE(setup.format.key_bits);
  CAPTURE(setup.format.value_bits);
  CAPTURE(setup.format.value_group);
  CAPTURE(setup.ratio);
  CAPTURE(setup.num_queries);
  CAPTURE(options.num_splits);
  const Device exec;
  const Problem problem(setup);
  const Result expected = problem.reference();
  const SpaceProblem<Device> there(problem);
  Errors worst;
  for (const Way& way : ways()) {
    ask_for(way, options);
    const std::string plan = plan_decode(exec, there.codec(), there.shape(), options).describe();
    CAPTURE(plan);
    const Result first = there.run(exec, options);
    const Result again = there.run(exec, options);
    const Errors errors{output_error(first.output, expected),
                        largest_difference(first.lse, expected.lse)};
    CHECK(errors.output <= bound);
    CHECK(errors.lse <= bound);
    CHECK(first.output == again.output);
    CHECK(first.lse == again.lse);
    worst.output = std::max(worst.output, errors.output);
    worst.lse = std::max(worst.lse, errors.lse);
  }
  return worst;
}

/// In tiles of 64 tokens as well, whose bits smaller ones must give in every way: steps take the
/// same tokens and the same codes, wherever they lie.
void check_small(Setup setup, DecodeOptions options = {}) {
  CAPTURE(setup.format.tile_tokens);
  CAPTURE(setup.tiles_per_page);
  CAPTURE(setup.sliding_window);
  CAPTURE(setup.evicted);
  CAPTURE(setup.sequences.front().history);
  // Where a handful of tokens are left, roundings do not average out.
  check(setup, options, 2e-3);
  const Device exec;
  const Problem small_problem(setup);
  const SpaceProblem<Device> small(small_problem);
  setup.format.tile_tokens = 64;
  const Problem whole_problem(setup);
  const SpaceProblem<Device> whole(whole_problem);
  for (const Way& way : ways()) {
    ask_for(way, options);
    const std::string plan = plan_decode(exec, small.codec(), small.shape(), options).describe();
    CAPTURE(plan);
    const Result result = small.run(exec, options);
    const Result expected = whole.run(exec, options);
    CHECK(result.output == expected.output);
    CHECK(result.lse == expected.lse);
  }
}

}  // namespace

TEST_CASE("every format that matrix units take") {
  if (!available()) {
    return;
  }
  Errors worst;
  const auto check_format = [&](int key_bits, int value_bits, int dim, int group) {
    for (const int ratio : {4, 7}) {
      Setup setup;
      setup.format = make_format(key_bits, value_bits, dim, group);
      setup.ratio = ratio;
      setup.sequences = {{0, 700, 0}, {0, 64, 0}};
      const Errors errors = check(setup);
      worst.output = std::max(worst.output, errors.output);
      worst.lse = std::max(worst.lse, errors.lse);
    }
  };
  for (const int dim : {64, 96, 128, 192, 256}) {
    check_format(3, 4, dim, dim);
    check_format(3, 4, dim, 32);
  }
  for (const int dim : {64, 128, 256}) {
    check_format(3, 2, dim, dim);
    check_format(4, 4, dim, dim);
    check_format(2, 2, dim, dim);
  }
  MESSAGE("worst output error ", worst.output, ", worst lse error ", worst.lse);
}

TEST_CASE("query heads, several queries, ragged batches, exact rows and masks") {
  if (!available()) {
    return;
  }
  for (const int ratio : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16}) {
    Setup setup;
    setup.format = make_format(3, 4, 128, ratio % 2 == 0 ? 128 : 32);
    setup.ratio = ratio;
    setup.num_queries = 1 + ratio % 8;
    setup.sequences = {{0, 0, 5}, {3, 500, 17}, {0, 1, 0}, {0, 0, 0}, {1, 0, 0}, {0, 1025, 128}};
    check(setup);
    for (const std::int64_t window : {1, 64, 100, 1000}) {
      setup.sliding_window = window;
      setup.learned_sinks = true;
      setup.look_back = 30;
      check(setup);
    }
  }
  for (const float scale : {-0.05F, 0.3F}) {
    Setup setup;
    setup.format = make_format(3, 4, 128, 128);
    setup.sequences = {{2, 300, 10}};
    setup.sm_scale = scale;
    check(setup);
  }
  for (const std::int64_t evicted : {1, 64, 100, 200, 299}) {
    Setup setup;
    setup.format = make_format(3, 4, 64, 64);
    setup.sequences = {{2, 300, 10}};
    setup.evicted = evicted;
    check(setup);
  }
}

TEST_CASE("more parts than teams that run at once") {
  if (!available()) {
    return;
  }
  const Device exec;
  for (const int ratio : {4, 7}) {
    for (const int splits : {1, 3}) {
      CAPTURE(ratio);
      CAPTURE(splits);
      Setup setup;
      setup.format = make_format(3, 4, 128, 128);
      setup.kv_heads = 8;
      setup.ratio = ratio;
      setup.sequences.clear();
      for (std::int64_t i = 0; i < 35; ++i) {
        // Without history, with one step, with more steps than a ring holds; with exact rows.
        setup.sequences.push_back({i % 3, i % 7 == 0 ? 0 : i * i % 700, i % 5 == 0 ? i : 0});
      }
      const Problem problem(setup);
      const Result expected = problem.reference();
      const SpaceProblem<Device> there(problem);
      DecodeOptions options;
      options.num_splits = splits;
      const auto plan = plan_decode(exec, there.codec(), there.shape(), options);
      const std::string description = plan.describe();
      CAPTURE(description);
      const auto run = there.prepare_run(plan);
      Kokkos::fence();
      Result first;
      // The first run finds anything in the workspace, the others what the run before has left.
      for (int i = 0; i < 3; ++i) {
        run.poison_outputs();
        run(exec);
        exec.fence();
        const Result result = run.result();
        if (i == 0) {
          first = result;
          CHECK(output_error(first.output, expected) <= 1e-3);
          CHECK(largest_difference(first.lse, expected.lse) <= 1e-3);
        }
        CHECK(result.output == first.output);
        CHECK(result.lse == first.lse);
      }
    }
  }
}

TEST_CASE("lengths around the borders of steps and tiles, any number of parts, any page size") {
  if (!available()) {
    return;
  }
  for (const std::int64_t history : {1, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 511, 2049}) {
    for (const int splits : {0, 1, 3, 70}) {
      Setup setup;
      setup.format = make_format(3, 4, history % 2 == 0 ? 256 : 128, 32);
      setup.kv_heads = 1;
      setup.sequences = {{0, history, 3}};
      setup.tiles_per_page = 1 + history % 3;
      DecodeOptions options;
      options.num_splits = splits;
      check(setup, options);
    }
  }
}

TEST_CASE("small tiles: every format") {
  if (!available()) {
    return;
  }
  for (const int tokens : {16, 32}) {
    const auto check_format = [&](int key_bits, int value_bits, int dim, int group) {
      for (const int ratio : {4, 7}) {
        Setup setup;
        setup.format = make_format(key_bits, value_bits, dim, group);
        setup.format.tile_tokens = tokens;
        setup.ratio = ratio;
        setup.sequences = {{0, 700, 0}, {0, 64, 0}, {0, 23, 0}};
        setup.tiles_per_page = ratio == 4 ? 1 : 3;
        check_small(setup);
      }
    };
    for (const int dim : {64, 128, 256}) {
      check_format(3, 4, dim, dim);
    }
    check_format(3, 4, 128, 32);
    check_format(3, 2, 128, 128);
    check_format(4, 4, 128, 128);
    check_format(2, 2, 128, 128);
  }
}

TEST_CASE("small tiles: lengths that end in every tile of a step, windows, pages that are gone") {
  if (!available()) {
    return;
  }
  for (const int tokens : {16, 32}) {
    for (const std::int64_t history : {1, 15, 16, 17, 32, 33, 48, 49, 63, 65, 100, 129, 530}) {
      for (const int splits : {0, 3}) {
        const int dims[] = {128, 256, 64};
        const int dim = dims[(history + splits) % 3];
        Setup setup;
        setup.format = make_format(3, 4, dim, dim == 128 && history % 2 == 0 ? 32 : dim);
        setup.format.tile_tokens = tokens;
        setup.kv_heads = 1;
        setup.ratio = splits == 0 ? 4 : 6;
        setup.sequences = {{0, history, 3}};
        setup.tiles_per_page = 1 + history % 3;
        DecodeOptions options;
        options.num_splits = splits;
        check_small(setup, options);
        setup.num_queries = 2;
        for (const std::int64_t window : {5, 20, 70}) {
          setup.sliding_window = window;
          check_small(setup, options);
        }
        setup.sliding_window = 0;
        for (const std::int64_t evicted : {history / 3, history - 1}) {
          setup.evicted = evicted;
          check_small(setup, options);
        }
      }
    }
  }
}

TEST_CASE("small tiles: ragged batches with exact rows, more steps than a ring and a warp hold") {
  if (!available()) {
    return;
  }
  for (const int tokens : {16, 32}) {
    for (const int ratio : {1, 4, 8}) {
      Setup setup;
      setup.format = make_format(3, 4, 128, 128);
      setup.format.tile_tokens = tokens;
      setup.ratio = ratio;
      setup.num_queries = 1 + ratio % 3;
      setup.tiles_per_page = ratio;
      setup.sequences = {{0, 0, 5},  {3, 500, 17}, {0, 1, 0},     {0, 0, 0},
                         {1, 37, 0}, {0, 6025, 9}, {2, 2049, 128}};
      check_small(setup);
      setup.sliding_window = 300;
      setup.learned_sinks = true;
      setup.look_back = 30;
      check_small(setup);
    }
  }
}

TEST_CASE("values far from one, and far from each other") {
  if (!available()) {
    return;
  }
  for (const float size : {1e-4F, 0.02F, 30.0F, 3000.0F}) {
    Setup setup;
    setup.format = make_format(3, 4, 128, 128);
    setup.sequences = {{0, 1500, 0}};
    setup.value = [size](std::int64_t, int, int, float normal) { return size * normal; };
    check(setup);
    // One token in ten is large.
    setup.value = [size](std::int64_t position, int, int, float normal) {
      return position % 10 == 7 ? size * normal : normal;
    };
    check(setup);
  }
}

TEST_CASE("diffuse and peaked heads over long histories") {
  if (!available()) {
    return;
  }
  const Device exec;
  for (const std::int64_t history : {2000, 32768, 131072}) {
    for (const float gain : {0.0F, 1.0F, 6.0F}) {
      for (const float mean : {0.0F, 2.0F}) {
        Setup setup;
        setup.format = make_format(3, 4, 128, 128);
        setup.kv_heads = 1;
        setup.ratio = 4;
        setup.query_gain = gain;
        setup.sequences = {{0, history, 0}};
        setup.tiles_per_page = 4;
        setup.value = [mean](std::int64_t, int, int, float normal) { return mean + normal; };
        const Problem problem(setup);
        const Result expected = problem.reference();
        const SpaceProblem<Device> there(problem);
        double worst = 0;
        for (const Way& way : ways()) {
          DecodeOptions options;
          ask_for(way, options);
          const std::string plan =
              plan_decode(exec, there.codec(), there.shape(), options).describe();
          const double error = relative_error(there.run(exec, options).output, expected);
          CAPTURE(history);
          CAPTURE(gain);
          CAPTURE(mean);
          CAPTURE(plan);
          CHECK(error <= 2e-3);
          worst = std::max(worst, error);
        }
        MESSAGE("history ", history, " gain ", gain, " mean ", mean, ": relative error ", worst);
      }
    }
  }
}

TEST_CASE("rings of any length give the same bits") {
  if (!available() || !has_rings()) {
    return;
  }
  const Device exec;
  for (const int dim : {64, 128, 256}) {
    for (const int ratio : {3, 7}) {
      for (const int splits : {1, 3}) {
        CAPTURE(dim);
        CAPTURE(ratio);
        CAPTURE(splits);
        Setup setup;
        setup.format = make_format(3, 4, dim, dim);
        setup.ratio = ratio;
        setup.sequences = {{1, 900, 3}, {0, 64, 0}, {0, 2000, 70}, {2, 0, 5}};
        const Problem problem(setup);
        const SpaceProblem<Device> there(problem);
        for (const int cluster : {1, 3}) {
          DecodeOptions options;
          options.device = DeviceArch::matrix_units_ring;
          options.ring_teams = RingTeams::two_warps;
          options.num_splits = splits;
          options.cluster = cluster;
          options.ring_stages = 2;
          const Result expected = there.run(exec, options);
          for (const int stages : {3, 4}) {
            CAPTURE(stages);
            options.ring_stages = stages;
            const Result result = there.run(exec, options);
            CHECK(result.output == expected.output);
            CHECK(result.lse == expected.lse);
          }
        }
      }
    }
  }
}

TEST_CASE("a query that is no number gives NaN, to its own row alone") {
  if (!available()) {
    return;
  }
  const Device exec;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const int dim : {64, 128, 256}) {
    for (const int ratio : {3, 7}) {
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
        CAPTURE(dim);
        CAPTURE(ratio);
        CAPTURE(bad);
        Setup setup;
        setup.format = make_format(3, 4, dim, dim);
        setup.ratio = ratio;
        // Compressed and exact tokens, either alone.
        setup.sequences = {{1, 700, 20}, {0, 300, 0}, {2, 0, 30}};
        setup.query = [&](int, int head, int d, float normal) {
          return head == 1 && d == 5 ? bad : normal;
        };
        const Problem problem(setup);
        const SpaceProblem<Device> there(problem);
        const auto heads = static_cast<std::size_t>(problem.query_heads());
        for (const Way& way : ways()) {
          for (const int splits : {1, 3}) {
            DecodeOptions options;
            ask_for(way, options);
            options.num_splits = splits;
            const Result result = there.run(exec, options);
            for (std::size_t row = 0; row < result.lse.size(); ++row) {
              const bool own = row % heads == 1;
              CHECK(std::isnan(result.lse[row]) == own);
              for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) {
                REQUIRE(std::isnan(result.output[row * static_cast<std::size_t>(dim) + d]) == own);
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("output in half precision") {
  if (!available()) {
    return;
  }
  Setup setup;
  setup.format = make_format(3, 4, 128, 32);
  setup.sequences = {{1, 200, 20}};
  const Problem problem(setup);
  const Result expected = problem.reference();
  const SpaceProblem<Device> there(problem);
  CHECK(output_error(there.run<float16>(Device()).output, expected) <= 2e-3);
  CHECK(output_error(there.run<bfloat16>(Device()).output, expected) <= 8e-3);
}

TEST_CASE("plans say which operations run and why") {
  const auto plan = [](TileFormat format, DeviceArch device, float soft_cap = 0) {
    TileCodecOptions options;
    options.format = format;
    DecodeProblem problem;
    problem.query_heads = 4;
    problem.max_history_tokens = 1000;
    problem.logits_soft_cap = soft_cap;
    DecodeOptions decode;
    decode.device = device;
    const Device exec;
    try {
      return plan_decode(exec, TileCodec<Device::memory_space>(options), problem, decode)
          .describe();
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::unsupported);
      return std::string(error.what());
    }
  };
  const auto contains = [](const std::string& text, const char* part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  const TileFormat good = make_format(3, 4, 128, 128);
  if (!available()) {
    contains(plan(good, DeviceArch::matrix_units), "matrix units were asked for, but");
    contains(plan(good, DeviceArch::matrix_units_plain), "matrix units were asked for, but");
    contains(plan(good, DeviceArch::matrix_units_ring), "matrix units were asked for, but");
    return;
  }
  contains(plan(good, DeviceArch::automatic), "matrix units (15-bit queries, fp16 weights)");
  contains(plan(good, DeviceArch::automatic),
           has_rings() ? "tiles copied into rings" : "compute capability");
  contains(plan(good, DeviceArch::matrix_units_plain),
           "tiles loaded into registers (plain loads were asked for)");
  contains(plan(good, DeviceArch::matrix_units_ring),
           has_rings() ? "tiles copied into rings" : "asked for, but");
  contains(plan(good, DeviceArch::portable), "portable float (asked for)");
  contains(plan(good, DeviceArch::automatic, 20), "(no matrix units: logits are capped)");
  TileFormat format = good;
  format.order = TileOrder::host;
  contains(plan(format, DeviceArch::automatic), "(no matrix units: tiles are in host order)");
  contains(plan(format, DeviceArch::matrix_units), "asked for, but tiles are in host order");
  format = good;
  format.key_codec = KeyCodec::inner_product;
  contains(plan(format, DeviceArch::automatic), "keys are not mse codes");
  format = good;
  format.value_codec = ValueCodec::codebook;
  contains(plan(format, DeviceArch::automatic), "values are not grouped");
  contains(plan(make_format(3, 4, 80, 80), DeviceArch::automatic), "dimensions are not");
  contains(plan(make_format(3, 4, 128, 64), DeviceArch::automatic), "value groups are neither");
  contains(plan(make_format(2, 4, 128, 128), DeviceArch::automatic), "bits of keys and values");
  contains(plan(make_format(4, 4, 128, 32), DeviceArch::automatic), "with bits other than 3/4");
  const auto in_tiles_of = [](int tokens, TileFormat small) {
    small.tile_tokens = tokens;
    return small;
  };
  for (const int tokens : {16, 32}) {
    CAPTURE(tokens);
    contains(plan(in_tiles_of(tokens, good), DeviceArch::automatic),
             "matrix units (15-bit queries, fp16 weights)");
    contains(plan(in_tiles_of(tokens, make_format(3, 4, 96, 96)), DeviceArch::automatic),
             "(no matrix units: with tiles of 16 or 32 tokens only 64, 128 or 256 dimensions");
    contains(plan(in_tiles_of(tokens, make_format(3, 4, 64, 32)), DeviceArch::automatic),
             "(no matrix units: with tiles of 16 or 32 tokens value groups of 32");
    contains(plan(in_tiles_of(tokens, make_format(4, 4, 256, 256)), DeviceArch::matrix_units),
             "asked for, but with bits other than 3/4");
  }
}

#if defined(KOKKOS_ENABLE_CUDA)

TEST_CASE("a captured step replays with the bits of an ordinary one, with new inputs in place") {
  if (!available()) {
    return;
  }
  Setup setup;
  setup.format = make_format(3, 4, 128, 128);
  setup.ratio = 4;
  setup.sequences = {{2, 3000, 40}, {0, 100, 5}};
  const Problem problem(setup);
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  for (const Way& way : ways()) {
    for (const int splits : {1, 5}) {
      const Device exec(stream);
      SpaceProblem<Device> there(problem);
      DecodeOptions options;
      ask_for(way, options);
      options.num_splits = splits;
      const auto plan = plan_decode(exec, there.codec(), there.shape(), options);
      const std::string description = plan.describe();
      CAPTURE(description);
      const auto run = there.prepare_run(plan);
      Kokkos::fence();
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
      run(exec);
      REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
      std::size_t nodes = 0;
      REQUIRE(cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
      CHECK(nodes == (splits == 1 || plan.layout().parts_meet ? 1 : 2));
      REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
      for (int round = 0; round < 2; ++round) {
        there.scale_queries(round == 0 ? 1.0F : 0.7F);
        Kokkos::fence();
        run(exec);
        exec.fence();
        const Result eager = run.result();
        bool same = true;
        for (int replay = 0; replay < 1000; ++replay) {
          REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
          if (replay % 250 == 0 || replay == 999) {
            REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
            const Result result = run.result();
            same = same && result.output == eager.output && result.lse == eager.lse;
            run.poison_outputs();
            Kokkos::fence();
          }
        }
        REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
        CHECK(same);
      }
      cudaGraphExecDestroy(executable);
      cudaGraphDestroy(graph);
    }
  }
  cudaStreamDestroy(stream);
}

#endif
