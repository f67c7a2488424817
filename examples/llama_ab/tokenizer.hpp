#pragma once

// Byte-level BPE from the tables of a GGUF file ("gpt2" tokenizers, pre-tokenizers "smollm" and
// "gpt-2").

#include "gguf.hpp"
#include "text_pieces.hpp"

#include <turboquant/base/error.hpp>
#include <turboquant/io/message_text.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <queue>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace llama_ab {

using TokenId = std::int32_t;

/// Text to token ids and back. Decoding what was encoded gives the same bytes, whatever they are.
class Tokenizer {
 public:
  /// @throws turboquant::Error(unsupported) for another tokenizer, Error(format) for broken tables
  explicit Tokenizer(const GgufFile& file) {
    const auto model = file.get<std::string_view>("tokenizer.ggml.model");
    require(model == "gpt2", ErrorCode::unsupported, file.name(), ": the tokenizer is ",
            turboquant::detail::in_quotes(model), ", expected 'gpt2' (byte-level BPE)");
    const auto pre = file.get<std::string_view>("tokenizer.ggml.pre");
    require(pre == "smollm" || pre == "gpt-2", ErrorCode::unsupported, file.name(),
            ": the pre-tokenizer is ", turboquant::detail::in_quotes(pre),
            ", expected 'smollm' or 'gpt-2'");
    constexpr std::string_view bos = "tokenizer.ggml.add_bos_token";
    require(!file.has(bos) || !file.get<bool>(bos), ErrorCode::unsupported, file.name(), ": ", bos,
            " is true, expected a model that takes text without a first token");
    single_digits_ = pre == "smollm";
    make_glyphs();
    const GgufArray& tokens = file.get<GgufArray>("tokenizer.ggml.tokens");
    require(tokens.type == detail::gguf_string && !tokens.strings.empty() &&
                tokens.strings.size() < std::size_t{1} << 24U,
            ErrorCode::format, file.name(),
            ": 'tokenizer.ggml.tokens' must hold 1 to 2^24 - 1 strings");
    for (const std::string_view token : tokens.strings) {
      ids_.emplace(std::string(token), static_cast<TokenId>(tokens_.size()));
      tokens_.emplace_back(token);
    }
    read_types(file);
    read_merges(file);
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const auto found = ids_.find(glyphs_[byte]);
      byte_ids_[byte] = found != ids_.end() ? found->second : -1;
    }
  }

  [[nodiscard]] std::size_t vocabulary() const noexcept { return tokens_.size(); }

  /// @param specials whether names of control tokens, such as <|im_start|>, stand for them
  /// @throws turboquant::Error(unsupported) for a byte that the vocabulary does not have
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text, bool specials = false) const {
    std::vector<TokenId> ids;
    std::size_t begin = 0;
    for (std::size_t at = 0; at <= text.size(); ++at) {
      const std::string* match = nullptr;
      if (specials && at < text.size()) {
        for (const std::string& special : specials_) {
          if (text.substr(at, special.size()) == special &&
              (match == nullptr || special.size() > match->size())) {
            match = &special;
          }
        }
      }
      if (match == nullptr && at < text.size()) {
        continue;
      }
      for (const std::string_view piece :
           split_pieces(text.substr(begin, at - begin), single_digits_)) {
        encode_piece(piece, ids);
      }
      if (match != nullptr) {
        ids.push_back(ids_.at(*match));
        begin = at + match->size();
        at = begin - 1;
      }
    }
    return ids;
  }

  /// The bytes of some tokens; control tokens give their names.
  /// @throws turboquant::Error(out_of_range)
  [[nodiscard]] std::string decode(std::span<const TokenId> ids) const {
    std::string text;
    for (const TokenId id : ids) {
      require(id >= 0 && static_cast<std::size_t>(id) < tokens_.size(), ErrorCode::out_of_range,
              "Tokenizer::decode: id is ", id, ", expected 0 to ", tokens_.size() - 1);
      const std::string& token = tokens_[static_cast<std::size_t>(id)];
      if (control_[static_cast<std::size_t>(id)]) {
        text += token;
        continue;
      }
      for (std::size_t i = 0; i < token.size();) {
        const std::size_t length = code_point_at(token, i).bytes;
        const auto found = bytes_.find(token.substr(i, length));
        if (found != bytes_.end()) {
          text += static_cast<char>(found->second);
        } else {
          text += token.substr(i, length);
        }
        i += length;
      }
    }
    return text;
  }

 private:
  struct Merge {
    std::uint32_t rank;
    TokenId merged;
  };

  static std::uint64_t pair_key(TokenId left, TokenId right) noexcept {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32U |
           static_cast<std::uint32_t>(right);
  }

  /// Bytes without a visible character of Latin-1 are written as the characters from U+0100 on.
  void make_glyphs() {
    unsigned next = 256;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool visible = (byte >= 33 && byte < 127) || (byte >= 161 && byte < 173) || byte >= 174;
      const unsigned point = visible ? byte : next++;
      std::string& glyph = glyphs_[byte];
      if (point < 128) {
        glyph = static_cast<char>(point);
      } else {
        glyph = static_cast<char>(0xC0U | point >> 6U);
        glyph += static_cast<char>(0x80U | (point & 63U));
      }
      bytes_.emplace(glyph, static_cast<unsigned char>(byte));
    }
  }

  void read_types(const GgufFile& file) {
    control_.assign(tokens_.size(), false);
    if (!file.has("tokenizer.ggml.token_type")) {
      return;
    }
    const std::vector<std::int64_t>& types =
        file.get<GgufArray>("tokenizer.ggml.token_type").integers;
    require(types.size() == tokens_.size(), ErrorCode::format, file.name(),
            ": 'tokenizer.ggml.token_type' has ", types.size(), " numbers, expected ",
            tokens_.size(), " as there are tokens");
    constexpr std::int64_t control = 3;
    for (std::size_t i = 0; i < types.size(); ++i) {
      control_[i] = types[i] == control;
      if (control_[i] && !tokens_[i].empty()) {
        specials_.push_back(tokens_[i]);
      }
    }
  }

  void read_merges(const GgufFile& file) {
    const GgufArray& merges = file.get<GgufArray>("tokenizer.ggml.merges");
    std::uint32_t rank = 0;
    for (const std::string_view merge : merges.strings) {
      const std::size_t blank = merge.find(' ', 1);
      const auto id = [&](const std::string& token) {
        const auto found = ids_.find(token);
        require(found != ids_.end(), ErrorCode::format, file.name(), ": merge ",
                turboquant::detail::in_quotes(merge), " names ",
                turboquant::detail::in_quotes(token), ", which is no token");
        return found->second;
      };
      require(blank != std::string_view::npos && blank + 1 < merge.size(), ErrorCode::format,
              file.name(), ": merge ", turboquant::detail::in_quotes(merge),
              " is not two tokens with a blank between them");
      const std::string left(merge.substr(0, blank));
      const std::string right(merge.substr(blank + 1));
      merges_.emplace(pair_key(id(left), id(right)), Merge{rank++, id(left + right)});
    }
  }

  /// Joins the neighbours of lowest rank, leftmost first, until none can be joined. O(n log n).
  void encode_piece(std::string_view piece, std::vector<TokenId>& out) const {
    struct Symbol {
      TokenId id;
      std::size_t previous;
      std::size_t next;
    };
    struct Candidate {
      std::uint32_t rank;
      std::size_t left;
      TokenId left_id;
      TokenId right_id;
      bool operator<(const Candidate& other) const {
        return rank != other.rank ? rank > other.rank : left > other.left;
      }
    };
    constexpr std::size_t none = static_cast<std::size_t>(-1);
    std::vector<Symbol> symbols;
    for (std::size_t i = 0; i < piece.size(); ++i) {
      const auto byte = static_cast<unsigned char>(piece[i]);
      require(byte_ids_[byte] >= 0, ErrorCode::unsupported, "Tokenizer::encode: byte ",
              static_cast<int>(byte), " has no token in this vocabulary");
      symbols.push_back(
          {byte_ids_[byte], i == 0 ? none : i - 1, i + 1 < piece.size() ? i + 1 : none});
    }
    std::priority_queue<Candidate> queue;
    const auto consider = [&](std::size_t left) {
      if (left == none || symbols[left].next == none) {
        return;
      }
      const TokenId a = symbols[left].id;
      const TokenId b = symbols[symbols[left].next].id;
      const auto found = merges_.find(pair_key(a, b));
      if (found != merges_.end()) {
        queue.push({found->second.rank, left, a, b});
      }
    };
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      consider(i);
    }
    while (!queue.empty()) {
      const Candidate best = queue.top();
      queue.pop();
      Symbol& left = symbols[best.left];
      // The pair may have been changed since: its members by other merges, a dead one has id -1.
      if (left.id != best.left_id || left.next == none || symbols[left.next].id != best.right_id) {
        continue;
      }
      Symbol& right = symbols[left.next];
      left.id = merges_.at(pair_key(best.left_id, best.right_id)).merged;
      left.next = right.next;
      right.id = -1;
      if (left.next != none) {
        symbols[left.next].previous = best.left;
      }
      consider(best.left);
      consider(left.previous);
    }
    for (const Symbol& symbol : symbols) {
      if (symbol.id >= 0) {
        out.push_back(symbol.id);
      }
    }
  }

  bool single_digits_ = false;
  std::array<std::string, 256> glyphs_;
  std::unordered_map<std::string, unsigned char> bytes_;  ///< of a glyph
  std::array<TokenId, 256> byte_ids_{};
  std::vector<std::string> tokens_;
  std::vector<bool> control_;
  std::vector<std::string> specials_;
  std::unordered_map<std::string, TokenId> ids_;
  std::unordered_map<std::uint64_t, Merge> merges_;
};

}  // namespace llama_ab
