#include <turboquant/base/config.hpp>
#include <turboquant/base/error.hpp>

#include <support/error_of.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>

using namespace turboquant;  // NOLINT(google-build-using-namespace)

static_assert(has_exceptions);
static_assert(version == TURBOQUANT_VERSION_MAJOR * 10000 + TURBOQUANT_VERSION_MINOR * 100 +
                             TURBOQUANT_VERSION_PATCH);
static_assert(std::is_base_of_v<std::runtime_error, Error>);
static_assert(std::is_nothrow_copy_constructible_v<Error>);

namespace {

/// Counts how often it is written.
struct Loud {
  int* written;

  operator std::string_view() const {
    ++*written;
    return "loud";
  }
};

}  // namespace

TEST_CASE("fail throws the parts one after another with the code") {
  const std::string message = test::error_of(ErrorCode::shape_mismatch, [] {
    fail(ErrorCode::shape_mismatch, "f: size is ", 28, ", expected ", 32U);
  });
  CHECK(message == "f: size is 28, expected 32");
}

TEST_CASE("numbers are written so that they can be told apart") {
  const std::string message = test::error_of(
      ErrorCode::non_finite, [] { fail(ErrorCode::non_finite, 0.1, " ", -0.0, " ", 1.0F / 3.0F); });
  CHECK(message == "0.10000000000000001 -0 0.3333333432674408");
  constexpr double infinity = std::numeric_limits<double>::infinity();
  CHECK(test::error_of(ErrorCode::io, [] { fail(ErrorCode::io, -infinity, " ", 1e300); }) ==
        "-inf 1.0000000000000001e+300");
}

TEST_CASE("integers of every size are numbers") {
  const std::string message = test::error_of(ErrorCode::io, [] {
    fail(ErrorCode::io, std::int8_t{-7}, " ", std::uint8_t{200}, " ", true, " ",
         std::numeric_limits<std::int64_t>::min(), " ", std::numeric_limits<std::uint64_t>::max());
  });
  CHECK(message == "-7 200 1 -9223372036854775808 18446744073709551615");
}

TEST_CASE("texts may be strings, views and literals") {
  const std::string owner = "string";
  const std::string_view view = std::string_view("views").substr(0, 4);
  CHECK(test::error_of(ErrorCode::io, [&] { fail(ErrorCode::io, owner, " ", view); }) ==
        "string view");
}

TEST_CASE("require is silent and writes nothing when its condition holds") {
  int written = 0;
  require(true, ErrorCode::io, Loud{&written});
  CHECK(written == 0);
  test::error_of(ErrorCode::io, [&] { require(false, ErrorCode::io, Loud{&written}); });
  CHECK(written == 1);
}

TEST_CASE("messages begin with the contexts that live, the outer one first") {
  const auto message = [] {
    return test::error_of(ErrorCode::io, [] { fail(ErrorCode::io, "f: no"); });
  };
  CHECK(ErrorContext::text().empty());
  {
    const ErrorContext outer("layers[", 3, "]: ");
    CHECK(message() == "layers[3]: f: no");
    {
      const ErrorContext inner("heads: ");
      CHECK(message() == "layers[3]: heads: f: no");
      std::string other;
      std::thread([&] { other = message(); }).join();
      CHECK(other == "f: no");  // of its thread alone
    }
    CHECK(message() == "layers[3]: f: no");
    // An exception on its way ends a context like any other exit.
    test::error_of(ErrorCode::io, [] {
      const ErrorContext left("gone: ");
      fail(ErrorCode::io, "f: no");
    });
    CHECK(message() == "layers[3]: f: no");
  }
  CHECK(message() == "f: no");
}

TEST_CASE("an Error can be caught as std::runtime_error and std::exception") {
  CHECK_THROWS_AS(fail(ErrorCode::format, "x"), const std::runtime_error&);
  CHECK_THROWS_AS(fail(ErrorCode::format, "x"), const std::exception&);
}

TEST_CASE("every code has a name of its own") {
  std::set<std::string_view> names;
  for (const ErrorCode code :
       {ErrorCode::invalid_argument, ErrorCode::shape_mismatch, ErrorCode::non_finite,
        ErrorCode::out_of_range, ErrorCode::overflow, ErrorCode::capacity, ErrorCode::unsupported,
        ErrorCode::format, ErrorCode::io, ErrorCode::not_initialized}) {
    names.insert(to_string(code));
  }
  CHECK(names.size() == 10);
  CHECK(names.count("unknown") == 0);
  CHECK(to_string(static_cast<ErrorCode>(255)) == "unknown");
}
