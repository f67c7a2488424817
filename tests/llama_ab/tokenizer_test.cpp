// The tokenizer: round trips of any bytes, merges against a plain search, pieces, refusals.

#include "../../examples/llama_ab/tokenizer.hpp"
#include "gguf_writer.hpp"

#include <turboquant/base/random.hpp>

#include <support/error_of.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace turboquant;
using namespace turboquant::test;
using llama_ab::GgufFile;
using llama_ab::Tokenizer;

namespace {

struct File {
  std::string bytes;
  GgufFile file;

  explicit File(const std::function<void(GgufWriter&)>& change = [](GgufWriter&) {})
      : bytes([&] {
          GgufWriter writer;
          SmallModel::add_tokenizer(writer);
          change(writer);
          return writer.bytes();
        }()),
        file(as_bytes(bytes), "t.gguf") {}
};

void set(GgufWriter& writer, const std::string& key, const std::string& value) {
  for (auto& pair : writer.values) {
    if (pair.first == key) {
      pair.second = value;
    }
  }
}

std::string random_text(std::uint64_t stream, std::size_t length, std::string_view alphabet) {
  const CounterRng rng(3, stream);
  std::string text;
  for (std::size_t i = 0; i < length; ++i) {
    text += alphabet.empty() ? static_cast<char>(rng.bits64(i) & 255U)
                             : alphabet[static_cast<std::size_t>(rng.bits64(i) % alphabet.size())];
  }
  return text;
}

std::vector<std::string> pieces(std::string_view text, bool single_digits = true) {
  std::vector<std::string> result;
  for (const std::string_view piece : llama_ab::split_pieces(text, single_digits)) {
    result.emplace_back(piece);
  }
  return result;
}

/// Merges as the method is defined: the best pair, everywhere, from the left.
std::vector<std::string> plain_merges(const std::string& piece) {
  const std::vector<std::pair<std::string, std::string>> ranks{
      {"t", "h"}, {"th", "e"}, {"a", "b"}, {"b", "a"}, {" ", "the"}, {"ab", "ab"}};
  std::vector<std::string> symbols;
  for (const char c : piece) {
    symbols.emplace_back(1, c);
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [left, right] : ranks) {
      std::vector<std::string> merged;
      for (std::size_t i = 0; i < symbols.size(); ++i) {
        if (i + 1 < symbols.size() && symbols[i] == left && symbols[i + 1] == right) {
          merged.push_back(left + right);
          ++i;
          changed = true;
        } else {
          merged.push_back(symbols[i]);
        }
      }
      symbols = merged;
      if (changed) {
        break;
      }
    }
  }
  return symbols;
}

}  // namespace

TEST_CASE("any bytes come back") {
  const File file;
  const Tokenizer tokenizer(file.file);
  CHECK(tokenizer.vocabulary() == SmallModel::vocabulary);
  CHECK(tokenizer.encode("").empty());
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::string bytes = random_text(i, 1 + i, "");
    CHECK(tokenizer.decode(tokenizer.encode(bytes)) == bytes);
    const std::string text = random_text(i, 1 + i, "the abab 12\n\n'st.\xC3\xA9\xE2\x80\x99");
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
    std::string joined;
    for (const std::string& piece : pieces(text)) {
      CHECK(!piece.empty());
      joined += piece;
    }
    CHECK(joined == text);
  }
}

TEST_CASE("merges are those of a plain search") {
  const File file;
  const Tokenizer tokenizer(file.file);
  for (std::uint64_t i = 0; i < 300; ++i) {
    const std::string piece = random_text(i, 1 + i % 40, "abthe");
    std::vector<std::string> got;
    for (const llama_ab::TokenId id : tokenizer.encode(piece)) {
      got.push_back(tokenizer.decode(std::span(&id, 1)));
    }
    CHECK(got == plain_merges(piece));
  }
}

TEST_CASE("a long word takes no quadratic time") {
  const File file;
  const Tokenizer tokenizer(file.file);
  const std::string word(1 << 20U, 'a');
  CHECK(tokenizer.encode(word).size() == word.size());
  CHECK(tokenizer.encode(random_text(1, 1 << 20U, "ab")).size() < word.size());
}

TEST_CASE("pieces") {
  using Texts = std::vector<std::string>;
  CHECK(pieces("Hello world") == Texts{"Hello", " world"});
  CHECK(pieces("it's 12 o'clock") == Texts{"it", "'s", " ", "1", "2", " o", "'", "clock"});
  CHECK(pieces("it's 12 o'clock", false) == Texts{"it", "'s", " 12", " o", "'", "clock"});
  CHECK(pieces("a  b\n\nc \n") == Texts{"a", " ", " b", "\n", "\n", "c", " \n"});
  CHECK(pieces("x   7") == Texts{"x", "   ", "7"});
  CHECK(pieces("x   7", false) == Texts{"x", "  ", " 7"});
  CHECK(pieces("(a, b)!") == Texts{"(", "a", ",", " b", ")!"});
  CHECK(pieces("\xC3\xA9t\xC3\xA9 \xE2\x80\x9Cno\xE2\x80\x9D") ==
        Texts{"\xC3\xA9t\xC3\xA9", " \xE2\x80\x9C", "no", "\xE2\x80\x9D"});
  CHECK(pieces("\xFF\xFE") == Texts{"\xFF\xFE"});
  CHECK(pieces(" ") == Texts{" "});
}

TEST_CASE("names of control tokens stand for them where wanted") {
  const File file;
  const Tokenizer tokenizer(file.file);
  const std::string text = "the<|end|>ab<|ending|>";
  const auto ids = tokenizer.encode(text, true);
  CHECK(ids.size() == 4);
  CHECK(ids.back() == static_cast<llama_ab::TokenId>(SmallModel::vocabulary - 1));
  CHECK(tokenizer.decode(ids) == text);
  CHECK(tokenizer.encode(text).size() > 10);
  CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
}

TEST_CASE("broken tables are refused") {
  const auto refused = [](ErrorCode code, const std::function<void(GgufWriter&)>& change) {
    const File file(change);
    return error_of(code, [&] { static_cast<void>(Tokenizer(file.file)); });
  };
  CHECK(mentions(refused(ErrorCode::unsupported,
                         [](auto& w) {
                           set(w, "tokenizer.ggml.model",
                               raw<std::uint32_t>(8) + raw_text("llama"));
                         }),
                 "the tokenizer is 'llama'"));
  CHECK(mentions(refused(ErrorCode::unsupported,
                         [](auto& w) {
                           set(w, "tokenizer.ggml.pre", raw<std::uint32_t>(8) + raw_text("qwen2"));
                         }),
                 "the pre-tokenizer is 'qwen2'"));
  CHECK(mentions(refused(ErrorCode::format,
                         [](auto& w) {
                           GgufWriter other;
                           other.add_integers("x", {1, 2});
                           set(w, "tokenizer.ggml.token_type", other.values[0].second);
                         }),
                 "token_type' has 2 numbers"));
  for (const char* merge : {"t", "t ", " t", "zz a", "t zz"}) {
    CHECK(mentions(refused(ErrorCode::format,
                           [&](auto& w) {
                             GgufWriter other;
                             other.add_texts("x", {merge});
                             set(w, "tokenizer.ggml.merges", other.values[0].second);
                           }),
                   "merge '"));
  }
  const File small([](auto& w) {
    GgufWriter other;
    other.add_texts("x", {"a", "b"});
    set(w, "tokenizer.ggml.tokens", other.values[0].second);
    GgufWriter none;
    none.add_texts("x", {});
    set(w, "tokenizer.ggml.merges", none.values[0].second);
    GgufWriter types;
    types.add_integers("x", {1, 1});
    set(w, "tokenizer.ggml.token_type", types.values[0].second);
  });
  const Tokenizer tokenizer(small.file);
  CHECK(tokenizer.encode("ab").size() == 2);
  CHECK(mentions(
      error_of(ErrorCode::unsupported, [&] { static_cast<void>(tokenizer.encode("abc")); }),
      "byte 99 has no token"));
  const std::vector<llama_ab::TokenId> beyond{2};
  CHECK(mentions(
      error_of(ErrorCode::out_of_range, [&] { static_cast<void>(tokenizer.decode(beyond)); }),
      "id is 2, expected 0 to 1"));
}
