#pragma once

#include <turboquant/base/config.hpp>
#include <turboquant/base/message.hpp>

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

namespace turboquant {

/// What kind of mistake an `Error` reports.
enum class ErrorCode {
  invalid_argument,  ///< a parameter outside its documented domain
  shape_mismatch,    ///< extents that disagree with each other or with the object
  non_finite,        ///< NaN, infinity or a number too large for what is computed from it
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

/// While it lives, messages of errors on this thread begin with its parts: for checks in code that
/// cannot know on whose behalf it runs, such as which layer of a model. Contexts nest, the outer
/// one first.
class ErrorContext {
 public:
  template <class... Parts>
  explicit ErrorContext(const Parts&... parts) : outer_(current()) {
    if (outer_ != nullptr) {
      text_ = outer_->text_;
    }
    detail::write_message(text_, {detail::MessagePart(parts)...});
    current() = this;
  }
  ErrorContext(const ErrorContext&) = delete;
  ErrorContext& operator=(const ErrorContext&) = delete;
  ~ErrorContext() { current() = outer_; }

  /// What messages begin with now.
  [[nodiscard]] static std::string_view text() noexcept {
    return current() == nullptr ? std::string_view() : std::string_view(current()->text_);
  }

 private:
  static const ErrorContext*& current() noexcept {
    static thread_local const ErrorContext* innermost = nullptr;
    return innermost;
  }

  const ErrorContext* outer_;
  std::string text_;
};

namespace detail {

[[noreturn]] inline void fail_with(ErrorCode code, std::initializer_list<MessagePart> parts) {
  std::string message(ErrorContext::text());
  write_message(message, parts);
  TURBOQUANT_THROW(Error(code, message));
}

}  // namespace detail

/// Throws `Error(code, parts...)`, the parts written one after another.
template <class... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  detail::fail_with(code, {detail::MessagePart(parts)...});
}

/// Throws `Error(code, parts...)` unless `condition` holds. The parts are written only on failure.
template <class... Parts>
constexpr void require(bool condition, ErrorCode code, const Parts&... parts) {
  if (!condition) [[unlikely]] {
    fail(code, parts...);
  }
}

}  // namespace turboquant
