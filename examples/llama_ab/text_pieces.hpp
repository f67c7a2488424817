#pragma once

// Cuts text into the pieces within which byte-level BPE merges: contractions, words, numbers,
// punctuation, blanks.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace llama_ab {

struct CodePoint {
  std::uint32_t value = 0;
  std::size_t bytes = 1;
  bool valid = true;
};

/// The UTF-8 character at byte `i`; a byte that starts none stands for itself and is not valid.
[[nodiscard]] inline CodePoint code_point_at(std::string_view text, std::size_t i) noexcept {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned first = byte(i);
  if (first < 0x80) {
    return {first, 1, true};
  }
  const std::size_t length = first >= 0xF0 && first < 0xF5   ? 4
                             : first >= 0xE0 && first < 0xF0 ? 3
                             : first >= 0xC2 && first < 0xE0 ? 2
                                                             : 0;
  if (length == 0 || length > text.size() - i) {
    return {first, 1, false};
  }
  std::uint32_t value = first & (0x7FU >> length);
  for (std::size_t k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xC0U) != 0x80U) {
      return {first, 1, false};
    }
    value = value << 6U | (byte(i + k) & 0x3FU);
  }
  const bool shortest = length == 2 || value >= (length == 3 ? 0x800U : 0x10000U);
  if (!shortest || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
    return {first, 1, false};
  }
  return {value, length, true};
}

enum class CharacterClass : std::uint8_t { letter, number, space, other };

/// The class of a character. Exact for ASCII and Latin-1; beyond, blocks of punctuation, symbols,
/// blanks and digits are known and everything else is a letter, which is right for running text.
[[nodiscard]] inline CharacterClass class_of(const CodePoint& point) noexcept {
  struct Range {
    std::uint32_t first;
    std::uint32_t last;
    CharacterClass kind;
  };
  using enum CharacterClass;
  static constexpr Range ranges[] = {
      {0x09, 0x0D, space},      {0x20, 0x20, space},      {0x30, 0x39, number},
      {0x41, 0x5A, letter},     {0x61, 0x7A, letter},     {0x00, 0x7F, other},
      {0x85, 0x85, space},      {0xA0, 0xA0, space},      {0xAA, 0xAA, letter},
      {0xB2, 0xB3, number},     {0xB5, 0xB5, letter},     {0xB9, 0xB9, number},
      {0xBA, 0xBA, letter},     {0xBC, 0xBE, number},     {0x80, 0xBF, other},
      {0xD7, 0xD7, other},      {0xF7, 0xF7, other},      {0x300, 0x36F, other},
      {0x660, 0x669, number},   {0x6F0, 0x6F9, number},   {0x966, 0x96F, number},
      {0x1680, 0x1680, space},  {0x2000, 0x200A, space},  {0x2028, 0x2029, space},
      {0x202F, 0x202F, space},  {0x205F, 0x205F, space},  {0x2070, 0x2070, number},
      {0x2074, 0x2079, number}, {0x2080, 0x2089, number}, {0x200B, 0x206F, other},
      {0x20A0, 0x20FF, other},  {0x2150, 0x2189, number}, {0x2190, 0x245F, other},
      {0x2460, 0x249B, number}, {0x249C, 0x2BFF, other},  {0x3000, 0x3000, space},
      {0x3001, 0x3004, other},  {0x3008, 0x3020, other},  {0xD800, 0xF8FF, other},
      {0xFF10, 0xFF19, number}, {0xFF01, 0xFF20, other},  {0x1F000, 0x1FAFF, other},
  };
  if (!point.valid) {
    return other;
  }
  for (const Range& range : ranges) {
    if (point.value >= range.first && point.value <= range.last) {
      return range.kind;
    }
  }
  return letter;
}

/// The pieces of a text, in order; together they are the text.
/// @param single_digits whether every digit is a piece of its own, without a blank before it
[[nodiscard]] inline std::vector<std::string_view> split_pieces(std::string_view text,
                                                                bool single_digits) {
  std::vector<std::string_view> pieces;
  const auto kind_at = [&](std::size_t i) { return class_of(code_point_at(text, i)); };
  const auto run_end = [&](std::size_t i, CharacterClass kind) {
    while (i < text.size() && kind_at(i) == kind) {
      i += code_point_at(text, i).bytes;
    }
    return i;
  };
  const auto contraction = [&](std::size_t i) -> std::size_t {
    for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
      if (text.substr(i, ending.size()) == ending) {
        return ending.size();
      }
    }
    return 0;
  };
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    const std::size_t begin = text[i] == ' ' && i + 1 < text.size() ? i + 1 : i;
    const CharacterClass kind = kind_at(begin);
    const bool digit = kind == CharacterClass::number && single_digits;
    if (const std::size_t length = contraction(i); length > 0) {
      end = i + length;
    } else if (digit && begin == i) {
      end = i + code_point_at(text, i).bytes;
    } else if (kind != CharacterClass::space && !digit) {
      end = run_end(begin, kind);
    } else {
      // Blanks: all of them before the end or a lone digit, else all but the last one, which the
      // next piece may take.
      const std::size_t blanks = run_end(i, CharacterClass::space);
      const bool at_end =
          blanks == text.size() || (single_digits && kind_at(blanks) == CharacterClass::number);
      end = blanks;
      if (!at_end) {
        std::size_t last = i;
        for (std::size_t k = i; k < blanks; k += code_point_at(text, k).bytes) {
          last = k;
        }
        end = last > i ? last : blanks;
      }
    }
    pieces.push_back(text.substr(i, end - i));
    i = end;
  }
  return pieces;
}

}  // namespace llama_ab
