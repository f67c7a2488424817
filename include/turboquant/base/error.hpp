#pragma once

#include <turboquant/base/config.hpp>

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace turboquant {

/// What kind of mistake an `Error` reports.
enum class ErrorCode {
  invalid_argument,  ///< a parameter outside its documented domain
  shape_mismatch,    ///< extents that disagree with each other or with the object
  non_finite,        ///< NaN or infinity where finite numbers are required
  out_of_range,      ///< an index or count outside what exists
  overflow,          ///< a size or product that does not fit 64 bits (or the documented limit)
  capacity,          ///< a memory limit would be exceeded
  unsupported,       ///< a combination that has no implementation
  format,            ///< malformed bytes in a file or buffer
  io,                ///< the operating system refused a file operation
  not_initialized,   ///< a run-time environment that must be started first
};

/// The short name of an error code, for example "invalid_argument".
[[nodiscard]] constexpr std::string_view to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::shape_mismatch: return "shape_mismatch";
    case ErrorCode::non_finite: return "non_finite";
    case ErrorCode::out_of_range: return "out_of_range";
    case ErrorCode::overflow: return "overflow";
    case ErrorCode::capacity: return "capacity";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::format: return "format";
    case ErrorCode::io: return "io";
    case ErrorCode::not_initialized: return "not_initialized";
  }
  return "unknown";
}

/// The one exception type of the library.
///
/// `what()` names the function, the argument, its value and what was expected. Compiled with
/// exceptions switched off, the message goes to stderr and the program ends with `std::abort`.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// Throws `Error(code, parts...)`, the parts written one after another.
template <class... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  std::ostringstream message;
  message.precision(17);
  (message << ... << parts);
  TURBOQUANT_THROW(Error(code, message.str()));
}

/// Throws `Error(code, parts...)` unless `condition` holds. The parts are written only on failure.
template <class... Parts>
constexpr void require(bool condition, ErrorCode code, const Parts&... parts) {
  if (!condition) [[unlikely]] {
    fail(code, parts...);
  }
}

}  // namespace turboquant
