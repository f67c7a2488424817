#pragma once

#include <array>
#include <cstddef>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <string_view>

namespace turboquant::detail {

/// Text or a number of an error's message. Messages are put together in hundreds of places, each
/// with arguments of other types; one type for all of them keeps the compiler's work small where
/// chains of stream operators do not.
class MessagePart {
 public:
  constexpr explicit MessagePart(std::string_view text) : kind_(Kind::text), text_(text) {}
  constexpr explicit MessagePart(const char* text) : kind_(Kind::text), text_(text) {}
  explicit MessagePart(const std::string& text) : kind_(Kind::text), text_(text) {}
  explicit MessagePart(char) = delete;  // a text of one character, or a number?
  constexpr explicit MessagePart(int number) : MessagePart(static_cast<long long>(number)) {}
  constexpr explicit MessagePart(long number) : MessagePart(static_cast<long long>(number)) {}
  constexpr explicit MessagePart(long long number) : kind_(Kind::integer), integer_(number) {}
  constexpr explicit MessagePart(unsigned number)
      : MessagePart(static_cast<unsigned long long>(number)) {}
  constexpr explicit MessagePart(unsigned long number)
      : MessagePart(static_cast<unsigned long long>(number)) {}
  constexpr explicit MessagePart(unsigned long long number)
      : kind_(Kind::natural), natural_(number) {}
  constexpr explicit MessagePart(double number) : kind_(Kind::real), real_(number) {}

  /// Numbers with fractions get 17 digits, which tell any two of them apart.
  void append_to(std::string& message) const {
    switch (kind_) {
      case Kind::text: message += text_; break;
      case Kind::integer: message += std::to_string(integer_); break;
      case Kind::natural: message += std::to_string(natural_); break;
      case Kind::real: {
        std::array<char, 32> digits{};
        std::snprintf(digits.data(), digits.size(), "%.17g", real_);
        message += digits.data();
        break;
      }
    }
  }

 private:
  enum class Kind { text, integer, natural, real };

  Kind kind_;
  std::string_view text_;
  long long integer_ = 0;
  unsigned long long natural_ = 0;
  double real_ = 0;
};

/// `number` with `digits` digits behind the point.
[[nodiscard]] inline std::string fixed_point(double number, int digits) {
  const int size = std::snprintf(nullptr, 0, "%.*f", digits, number);
  std::string text(static_cast<std::size_t>(size), ' ');
  std::snprintf(text.data(), text.size() + 1, "%.*f", digits, number);
  return text;
}

/// `text` between quotes on one line: control bytes become '?', and what exceeds `limit` bytes is
/// cut.
[[nodiscard]] inline std::string in_quotes(std::string_view text, std::size_t limit = 80) {
  std::string result = "'";
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    result += byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  result += text.size() > limit ? "...'" : "'";
  return result;
}

inline void write_message(std::string& message, std::initializer_list<MessagePart> parts) {
  for (const MessagePart& part : parts) {
    part.append_to(message);
  }
}

}  // namespace turboquant::detail
