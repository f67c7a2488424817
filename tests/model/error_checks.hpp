#pragma once

#include <turboquant/base/error.hpp>

#include <doctest/doctest.h>

#include <string>
#include <string_view>

namespace turboquant::test {

/// Calls `call`, which must throw an `Error` of `code`; returns its message.
template <class Call>
std::string error_of(ErrorCode code, Call call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK_MESSAGE(error.code() == code, std::string(error.what()));
    return error.what();
  }
  FAIL("no error was thrown");
  return {};
}

inline bool mentions(const std::string& message, std::string_view part) {
  return message.find(part) != std::string::npos;
}

}  // namespace turboquant::test
