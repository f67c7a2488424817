// What does not fit is refused at the door, with a name and a number, before anything is written.

#include "decode_fixture.hpp"

#include <doctest/doctest.h>
#include <support/error_of.hpp>

#include <array>
#include <functional>
#include <limits>
#include <string>

using namespace decode_fixture;
using turboquant::test::error_of;
using turboquant::test::mentions;

namespace {

Setup ordinary() {
  Setup setup;
  setup.sequences = {{2, 200, 20}, {0, 65, 0}};
  setup.num_queries = 2;
  return setup;
}

/// The message of a decode whose arguments `change` has spoilt; checks that nothing was written.
std::string refusal(ErrorCode code, const std::function<void(Problem&, Call&)>& change) {
  Problem problem(ordinary());
  Call call = problem.call();
  change(problem, call);
  const std::string message =
      error_of(code, [&] { problem.decode(problem.shape(), DecodeOptions{}, call); });
  bool untouched = true;
  for (std::size_t i = 0; i < call.output.size(); ++i) {
    untouched = untouched && call.output.data()[i] == 7.0F;
  }
  for (std::size_t i = 0; i < call.lse.size(); ++i) {
    untouched = untouched && call.lse.data()[i] == 7.0F;
  }
  for (std::size_t i = 0; i < call.workspace.size(); ++i) {
    untouched = untouched && call.workspace(i) == std::byte{0xFF};
  }
  CHECK(untouched);
  return message;
}

std::string plan_refusal(ErrorCode code,
                         const std::function<void(DecodeProblem&, DecodeOptions&)>& change) {
  const Problem problem(ordinary());
  DecodeProblem shape = problem.shape();
  DecodeOptions options;
  change(shape, options);
  return error_of(code, [&] { static_cast<void>(problem.plan(shape, options)); });
}

void check_message(const std::string& message, const char* part) {
  CHECK_MESSAGE(mentions(message, part), message);
}

constexpr float infinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("views of other shapes") {
  const auto refused = [](const char* part, const std::function<void(Problem&, Call&)>& change) {
    check_message(refusal(ErrorCode::shape_mismatch, change), part);
  };
  refused("queries.extent(0) is 1, expected num_sequences = 2", [](Problem&, Call& call) {
    call.queries = decltype(call.queries)("queries", 1, 2, 4, 128);
  });
  refused("queries.extent(3) is 64, expected dim = 128", [](Problem&, Call& call) {
    call.queries = decltype(call.queries)("queries", 2, 2, 4, 64);
  });
  refused("sequences.extent(0) is 1", [](Problem&, Call& call) {
    call.sequences = Kokkos::subview(call.sequences, std::make_pair(0, 1));
  });
  refused("sink_logits.extent(0) is 3, expected 0 or query_heads = 4",
          [](Problem&, Call& call) { call.sink_logits = decltype(call.sink_logits)("sinks", 3); });
  const Problem problem(ordinary());
  for (const bool of_output : {true, false}) {
    Call call = problem.call();
    if (of_output) {
      call.output = decltype(call.output)("output", 2, 2, 2, 128);
    } else {
      call.lse = decltype(call.lse)("lse", 2, 1, 4);
    }
    check_message(error_of(ErrorCode::shape_mismatch,
                           [&] { problem.decode(problem.shape(), DecodeOptions{}, call); }),
                  of_output ? "output.extent(2) is 2, expected query_heads = 4"
                            : "lse.extent(1) is 1, expected num_queries = 2");
  }
}

TEST_CASE("a workspace that is one byte too small") {
  check_message(refusal(ErrorCode::capacity,
                        [](Problem&, Call& call) {
                          call.workspace = Kokkos::subview(
                              call.workspace,
                              std::make_pair(std::size_t{0}, call.workspace.size() - 1));
                        }),
                "workspace has ");
  check_message(refusal(ErrorCode::capacity,
                        [](Problem&, Call& call) { call.workspace = decltype(call.workspace)(); }),
                "workspace has 0 bytes, expected at least ");
}

TEST_CASE("a workspace at any address works, and nothing is written behind it") {
  const Problem problem(ordinary());
  const Result expected = problem.run();
  for (const std::size_t shift : {1U, 4U, 33U, 63U}) {
    Call call = problem.call();
    const std::size_t bytes = call.workspace.size();
    const Kokkos::View<std::byte*, Memory> larger("workspace", bytes + 128);
    Kokkos::deep_copy(larger, std::byte{0xFF});
    call.workspace = Kokkos::subview(larger, std::make_pair(shift, shift + bytes));
    problem.decode(problem.shape(), DecodeOptions{}, call);
    bool same = true;
    for (std::size_t i = 0; i < call.output.size(); ++i) {
      same = same && static_cast<double>(call.output.data()[i]) == expected.output[i];
    }
    CHECK(same);
    bool untouched = true;
    for (std::size_t i = 0; i < larger.size(); ++i) {
      untouched = untouched && ((i >= shift && i < shift + bytes) || larger(i) == std::byte{0xFF});
    }
    CHECK(untouched);
  }
}

TEST_CASE("records outside their domain") {
  const auto refused = [](ErrorCode code, const char* part,
                          const std::function<void(DecodeSequence&)>& change) {
    check_message(refusal(code, [&](Problem& problem, Call&) { change(problem.record(1)); }), part);
  };
  const auto wrong = ErrorCode::invalid_argument;
  refused(wrong, "sequences[1].history is [", [](DecodeSequence& r) { r.history_begin = -1; });
  refused(wrong, "sequences[1].history is [", [](DecodeSequence& r) { r.history_end = -5; });
  refused(wrong, "sequences[1].history is [", [](DecodeSequence& r) { r.page_position = 1; });
  refused(ErrorCode::capacity, "has 201 tokens, the plan was made for max_history_tokens = 200",
          [](DecodeSequence& r) { r.history_end = 201; });
  refused(ErrorCode::out_of_range, "lie outside the 1 pages of 2 tiles",
          [](DecodeSequence& r) { r.history_end = 129; });
  refused(wrong, "tiles_per_page is 0", [](DecodeSequence& r) { r.history.tiles_per_page = 0; });
  refused(ErrorCode::out_of_range, "lie outside",
          [](DecodeSequence& r) { r.history.pages = nullptr; });
  static std::array<std::byte*, 1> null_page{nullptr};
  refused(wrong, "pages[0] is null", [](DecodeSequence& r) { r.history.pages = null_page.data(); });
  static std::array<std::byte*, 1> crooked_page{};
  refused(wrong, "pages[0] begins at an address that is no multiple of 4 bytes",
          [](DecodeSequence& r) {
            crooked_page[0] = r.history.pages[0] + 2;
            r.history.pages = crooked_page.data();
          });
  refused(wrong, "num_sinks is -1", [](DecodeSequence& r) { r.num_sinks = -1; });
  refused(wrong, "num_sinks is 2, expected 0, or up to 2^40 with sink_keys", [](DecodeSequence& r) {
    r.num_sinks = 2;
    r.sink_keys.data = nullptr;
  });
  refused(wrong, "window_count is -1", [](DecodeSequence& r) { r.window_count = -1; });
  refused(wrong, "window_count is 6, expected 0 to window_capacity = 5",
          [](DecodeSequence& r) { r.window_count = 6; });
  refused(wrong, "window_start is 5", [](DecodeSequence& r) {
    r.window_count = 1;
    r.window_start = 5;
  });
  refused(wrong, "window_start is -1", [](DecodeSequence& r) {
    r.window_count = 1;
    r.window_start = -1;
  });
  constexpr auto no_type = static_cast<RowType>(3);
  refused(wrong, "sink_keys.type is 3, expected float32, float16 or bfloat16",
          [](DecodeSequence& r) { r.sink_keys.type = no_type; });
  refused(wrong, "sink_values.type is 3", [](DecodeSequence& r) { r.sink_values.type = no_type; });
  refused(wrong, "window_keys.type is 3", [](DecodeSequence& r) { r.window_keys.type = no_type; });
  refused(wrong, "window_values.type is 3",
          [](DecodeSequence& r) { r.window_values.type = no_type; });
  refused(wrong, "query_position is -1", [](DecodeSequence& r) { r.query_position = -1; });
  refused(wrong, "query_position is 9223372036854775807, expected 0 to 2^60",
          [](DecodeSequence& r) { r.query_position = std::numeric_limits<std::int64_t>::max(); });
}

TEST_CASE("runs of tokens that share a position, so that a token would count twice") {
  const auto refused = [](const char* part, const std::function<void(DecodeSequence&)>& change) {
    Setup setup;
    setup.sequences = {{2, 70, 5}};
    Problem problem(setup);
    change(problem.record(0));
    const std::string message =
        error_of(ErrorCode::invalid_argument, [&] { static_cast<void>(problem.run()); });
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  };
  refused("history_begin is 1", [](DecodeSequence& r) {
    r.page_position = 1;
    r.history_begin = 1;
    r.history_end = 60;
  });
  refused("history is [-1, 60), expected 0 <= page_position = -1", [](DecodeSequence& r) {
    r.page_position = -1;
    r.history_begin = -1;
    r.history_end = 60;
  });
  refused("window_position is 71, expected num_sinks = 2 or more, and 5 tokens outside the history",
          [](DecodeSequence& r) { r.window_position = 71; });
  refused("window_position is -100", [](DecodeSequence& r) { r.window_position = -100; });
}

TEST_CASE("numbers at the ends of 64 bits are refused before anything is computed from them") {
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const auto refused = [](const char* part, const std::function<void(DecodeSequence&)>& change) {
    check_message(refusal(ErrorCode::invalid_argument,
                          [&](Problem& problem, Call&) { change(problem.record(0)); }),
                  part);
  };
  refused("history is [", [](DecodeSequence& r) {
    r.page_position = least;
    r.history_begin = least;
    r.history_end = most;
  });
  refused("history is [", [](DecodeSequence& r) { r.history_end = most; });
  for (const std::int64_t bad : {most, PagedTiles::max_tiles_per_page + 1, least}) {
    refused("expected 1 to 2^30", [=](DecodeSequence& r) { r.history.tiles_per_page = bad; });
  }
  refused("window_position is -9223372036854775808",
          [](DecodeSequence& r) { r.window_position = least; });
  refused("window_position is 9223372036854775807",
          [](DecodeSequence& r) { r.window_position = most; });
  refused("window_capacity is 9223372036854775807, expected 0 to 2^40", [](DecodeSequence& r) {
    r.window_capacity = most;
    r.window_count = most;
  });
  refused("num_sinks is 9223372036854775807", [](DecodeSequence& r) { r.num_sinks = most; });
}

TEST_CASE("the longest rows and windows that a record may name take no time behind the query") {
  Problem problem(ordinary());
  const Result expected = problem.run();
  Call call = problem.call();
  DecodeSequence& record = problem.record(1);
  // Its sequence has no window; these rows are all behind its queries, and their memory is never
  // read.
  record.window_keys = record.window_values = {call.queries.data(), RowType::float32, 0, 0};
  record.window_capacity = record.window_count = std::int64_t{1} << 40U;
  record.window_position = record.query_position + 2;
  call = problem.call();
  DecodeProblem shape = problem.shape();
  shape.sliding_window = std::numeric_limits<std::int64_t>::max();
  problem.decode(shape, DecodeOptions{}, call);
  bool same = true;
  for (std::size_t i = 0; i < call.output.size(); ++i) {
    same = same && static_cast<double>(call.output.data()[i]) == expected.output[i];
  }
  CHECK(same);
  // In front of a sliding window, too.
  record.window_position = 65;
  record.window_count = (std::int64_t{1} << 40U) - 64;
  record.query_position = std::int64_t{1} << 59U;
  shape.sliding_window = 4;
  call = problem.call();
  problem.decode(shape, DecodeOptions{}, call);
  CHECK(call.output(1, 0, 0, 0) == 0.0F);
  CHECK(call.lse(1, 0, 0) == -infinity);
}

TEST_CASE("memory that a run writes overlaps nothing else of it") {
  const auto refused = [](const char* part, const std::function<void(Call&)>& change) {
    const Problem problem(ordinary());
    Call call = problem.call();
    change(call);
    const std::string message = error_of(ErrorCode::invalid_argument, [&] {
      problem.decode(problem.shape(), DecodeOptions{}, call);
    });
    check_message(message, part);
  };
  using Rows = decltype(Call::queries);
  constexpr std::size_t numbers = std::size_t{2} * 2 * 4 * 128;
  const Kokkos::View<float*, Memory> memory("memory", 2 * numbers);
  const Rows first(memory.data(), 2, 2, 4, 128);
  const auto rows_from = [&](std::size_t at) { return Rows(memory.data() + at, 2, 2, 4, 128); };
  refused("run_decode: output overlaps queries, expected memory of its own",
          [](Call& call) { call.output = call.queries; });
  // The last number of one is the first of the other.
  refused("output overlaps queries", [&](Call& call) {
    call.output = first;
    call.queries = rows_from(numbers - 1);
  });
  refused("output overlaps queries", [&](Call& call) {
    call.queries = first;
    call.output = rows_from(numbers - 1);
  });
  refused("lse overlaps queries",
          [](Call& call) { call.lse = decltype(call.lse)(call.queries.data(), 2, 2, 4); });
  refused("output overlaps lse",
          [](Call& call) { call.lse = decltype(call.lse)(call.output.data() + 100, 2, 2, 4); });
  refused("workspace overlaps queries", [](Call& call) {
    call.queries = Rows(reinterpret_cast<float*>(call.workspace.data()), 2, 2, 4, 128);
  });
  refused("lse overlaps sink_logits",
          [](Call& call) { call.sink_logits = decltype(call.sink_logits)(call.lse.data(), 4); });
  refused("workspace overlaps sequences", [](Call& call) {
    call.sequences =
        decltype(call.sequences)(reinterpret_cast<DecodeSequence*>(call.workspace.data()), 2);
  });
  // Neighbours that touch are apart.
  const Problem problem(ordinary());
  Call call = problem.call();
  Kokkos::deep_copy(first, call.queries);
  call.queries = first;
  call.output = rows_from(numbers);
  problem.decode(problem.shape(), DecodeOptions{}, call);
  CHECK(static_cast<double>(call.output(0, 0, 0, 0)) == problem.run().output[0]);
}

TEST_CASE("block-table entries that are negative or beyond the pool") {
  std::array<std::byte, 4 * 64> pool{};
  std::array<std::byte*, 3> pages{};
  for (const std::int32_t bad : {-1, 4, std::numeric_limits<std::int32_t>::min(),
                                 std::numeric_limits<std::int32_t>::max()}) {
    const std::array<std::int32_t, 3> table{3, 0, bad};
    const std::string message = error_of(
        ErrorCode::out_of_range, [&] { read_block_table(pool.data(), 64, 4, table, pages); });
    check_message(message,
                  ("block_table[2] is " + std::to_string(bad) + ", expected 0 to 3").c_str());
    CHECK(pages == std::array<std::byte*, 3>{});
  }
  read_block_table(pool.data(), 64, 4, std::array<std::int32_t, 3>{3, 0, 2}, pages);
  CHECK(pages == std::array<std::byte*, 3>{pool.data() + 192, pool.data(), pool.data() + 128});
}

TEST_CASE("pools that cannot be are refused, and no address is written") {
  alignas(64) std::array<std::byte, 4 * 64> pool{};
  std::array<std::byte*, 2> pages{};
  const std::array<std::int32_t, 2> table{1, 0};
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const auto refused = [&](ErrorCode code, const char* part, std::byte* base, std::int64_t stride,
                           std::int64_t pool_pages) {
    check_message(error_of(code, [&] { read_block_table(base, stride, pool_pages, table, pages); }),
                  part);
    CHECK(pages == std::array<std::byte*, 2>{});
  };
  const auto wrong = ErrorCode::invalid_argument;
  refused(wrong, "base is null", nullptr, 64, 4);
  refused(wrong, "base begins at an address that is no multiple of 4", pool.data() + 2, 64, 3);
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-64}, std::int64_t{66},
                                 std::numeric_limits<std::int64_t>::min(), most}) {
    refused(wrong, "expected a positive multiple of 4", pool.data(), bad, 4);
  }
  refused(wrong, "pool_pages is -1, expected 0 or more", pool.data(), 64, -1);
  refused(ErrorCode::out_of_range, "pool_pages is 0, expected pages for the 2 entries", pool.data(),
          64, 0);
  refused(ErrorCode::overflow, "beyond the address space", pool.data(), std::int64_t{1} << 40U,
          most);
  refused(ErrorCode::overflow, "beyond the address space", pool.data(), most - 3, 2);
  // Without entries no address is made.
  read_block_table(nullptr, 64, 0, {}, {});
}

TEST_CASE("the bytes of pages that cannot be are refused") {
  const TileFormat format;
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK(page_bytes(format, 3, 5) == 15 * format.bytes());
  for (const auto& [heads, tiles] :
       {std::pair<int, std::int64_t>{-1, 4}, {0, 4}, {4, 0}, {4, -1}, {1, -most - 1}}) {
    const std::string message = error_of(
        ErrorCode::invalid_argument, [&] { static_cast<void>(page_bytes(format, heads, tiles)); });
    CHECK(message == "page_bytes: kv_heads is " + std::to_string(heads) +
                         " and tiles_per_page is " + std::to_string(tiles) +
                         ", expected 1 or more");
  }
  const auto bytes = static_cast<std::int64_t>(format.bytes());
  CHECK(page_bytes(format, 1, most / bytes) <= static_cast<std::size_t>(most));
  check_message(error_of(ErrorCode::overflow,
                         [&] { static_cast<void>(page_bytes(format, 1, most / bytes + 1)); }),
                "page_bytes: tiles_per_page is ");
}

TEST_CASE("problems and options outside their domain") {
  const auto refused = [](const char* part,
                          const std::function<void(DecodeProblem&, DecodeOptions&)>& change) {
    check_message(plan_refusal(ErrorCode::invalid_argument, change), part);
  };
  using P = DecodeProblem;
  using O = DecodeOptions;
  for (const int query_heads : {33, 3}) {
    refused("expected a multiple of kv_heads = 2", [=](P& p, O&) {
      p.query_heads = query_heads;
      p.kv_heads = 2;
    });
  }
  constexpr int most = std::numeric_limits<int>::max();
  for (const int bad : {0, -1, 65537, 1 << 30, most}) {
    refused("query_heads is ", [bad](P& p, O&) { p.query_heads = bad; });
    refused("kv_heads is ", [bad](P& p, O&) { p.kv_heads = bad; });
  }
  refused("kv_heads is 0, expected 1 to 65536", [](P& p, O&) { p.kv_heads = 0; });
  for (const int bad : {-1, (1 << 20) + 1, most}) {
    refused("num_sequences is ", [bad](P& p, O&) { p.num_sequences = bad; });
  }
  refused("num_queries is 17, expected at most 16 with 65536 query heads a kv head", [](P& p, O&) {
    p.query_heads = 65536;
    p.kv_heads = 1;
    p.num_queries = 17;
  });
  refused("num_queries is 0, expected 1 to 1024", [](P& p, O&) { p.num_queries = 0; });
  refused("num_queries is 1025", [](P& p, O&) { p.num_queries = 1025; });
  refused("max_history_tokens is -1", [](P& p, O&) { p.max_history_tokens = -1; });
  refused("sliding_window is -1", [](P& p, O&) { p.sliding_window = -1; });
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    refused("sm_scale is ", [bad](P& p, O&) { p.sm_scale = bad; });
    refused("logits_soft_cap is ", [bad](P& p, O&) { p.logits_soft_cap = bad; });
  }
  refused("logits_soft_cap is -1", [](P& p, O&) { p.logits_soft_cap = -1; });
  refused("logits_soft_cap is 10001", [](P& p, O&) { p.logits_soft_cap = 10001; });
  refused("expected a finite number of at most 1e18", [](P& p, O&) { p.sm_scale = 2e18F; });
  refused("num_splits is -1, expected 0 (automatic) to 65536", [](P&, O& o) { o.num_splits = -1; });
  refused("num_splits is 65537", [](P&, O& o) { o.num_splits = 65537; });
  for (const int bad : {-1, 3, 1 << 30}) {
    refused("exactness is ", [bad](P&, O& o) { o.exactness = static_cast<Exactness>(bad); });
  }
  for (const int bad : {-1, 6, 1 << 30}) {
    refused("device is ", [bad](P&, O& o) { o.device = static_cast<DeviceArch>(bad); });
    refused("ring_teams is ", [bad](P&, O& o) { o.ring_teams = static_cast<RingTeams>(bad); });
  }
  for (const int bad : {-1, 4}) {
    refused("arch is ", [bad](P&, O& o) { o.arch = static_cast<HostArch>(bad); });
  }
  refused("plan_decode: exactness is 3, expected int8, fast or exact",
          [](P&, O& o) { o.exactness = static_cast<Exactness>(3); });
  refused("cluster is -1, expected 0 (automatic) to 16", [](P&, O& o) { o.cluster = -1; });
  refused("cluster is 17", [](P&, O& o) { o.cluster = 17; });
  for (const int bad : {-1, 1, 5}) {
    refused("ring_stages is ", [bad](P&, O& o) { o.ring_stages = bad; });
  }
  // Tests have them in the space of one thread.
  if (std::string(Kokkos::DefaultHostExecutionSpace::name()) != "Serial") {
    check_message(
        plan_refusal(ErrorCode::unsupported, [](P&, O& o) { o.device = DeviceArch::dot; }),
        "plan_decode: dot products were asked for, but host spaces have none");
  }
  check_message(plan_refusal(ErrorCode::overflow,
                             [](P& p, O& o) {
                               p.num_sequences = 1 << 20;
                               p.num_queries = 1024;
                               p.query_heads = p.kv_heads = 65536;
                               o.num_splits = 65536;
                             }),
                "plan_decode: workspace: checked_");
}
