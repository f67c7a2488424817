#include <turboquant/device/runtime.hpp>

#include <doctest/doctest.h>

#include <string>
#include <type_traits>

using turboquant::Error;
using turboquant::ErrorCode;
using turboquant::KokkosScope;

TEST_CASE("a scope inside a running Kokkos neither starts nor stops it") {
  REQUIRE(Kokkos::is_initialized());
  {
    const KokkosScope inner;
    CHECK_FALSE(inner.owns_kokkos());
    const KokkosScope nested({.num_threads = 1});
    CHECK_FALSE(nested.owns_kokkos());
  }
  CHECK(Kokkos::is_initialized());
  CHECK_NOTHROW(turboquant::require_initialized("runtime_test"));
}

TEST_CASE("options outside their domain are refused with the value") {
  const auto message_of = [](const turboquant::KokkosOptions& options) {
    try {
      const KokkosScope scope(options);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message_of({.num_threads = 0}) ==
        "KokkosScope: num_threads is 0, expected 1 or more, or -1");
  CHECK(message_of({.num_threads = -2}) ==
        "KokkosScope: num_threads is -2, expected 1 or more, or -1");
  CHECK(message_of({.device_id = -2}) == "KokkosScope: device_id is -2, expected 0 or more, or -1");
}

TEST_CASE("a scope has one owner") {
  CHECK_FALSE(std::is_copy_constructible_v<KokkosScope>);
  CHECK_FALSE(std::is_move_constructible_v<KokkosScope>);
  CHECK_FALSE(std::is_copy_assignable_v<KokkosScope>);
  CHECK_FALSE(std::is_convertible_v<turboquant::KokkosOptions, KokkosScope>);
}
