#pragma once

#include <turboquant/base/error.hpp>

#include <doctest/doctest.h>

#include <string>
#include <string_view>

namespace turboquant::test {

/// The message of the `Error` that `call` must throw with `code`.
template <class Call>
std::string error_of(ErrorCode code, Call call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK_MESSAGE(error.code() == code, error.what());
    return error.what();
  }
  FAIL("no error was thrown");
  return {};
}

inline bool mentions(std::string_view message, std::string_view part) {
  return message.find(part) != std::string_view::npos;
}

}  // namespace turboquant::test
