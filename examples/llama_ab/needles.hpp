#pragma once

// Facts hidden in a long text, asked for after it. Ten facts and a random string share a context;
// each question goes to a fork of the cache that has read it.

#include "decoder.hpp"
#include "progress.hpp"

#include <turboquant/base/random.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llama_ab {

/// A question to a context and the tokens of its answer.
struct Question {
  std::vector<TokenId> prompt;
  std::vector<TokenId> answer;
};

/// A context with what is hidden in it.
struct Haystack {
  std::vector<TokenId> tokens;
  std::vector<Question> facts;  ///< ten, by depth
  Question copy;                ///< of a random string in the middle
};

/// One cache's hits in one context.
struct NeedleRow {
  std::string cache;
  std::int64_t context = 0;
  std::vector<bool> hits;   ///< by depth
  std::int64_t copied = 0;  ///< tokens of the random string, up to the first wrong one
  std::int64_t copy_tokens = 0;
  double answer_loss = 0;  ///< mean -log probability of the answers' tokens, facts and string

  [[nodiscard]] std::int64_t num_hits() const { return std::count(hits.begin(), hits.end(), true); }
};

/// Beginnings of the ten facts, all of them different, which a four-digit number completes. A
/// question repeats the beginning.
inline constexpr std::array<std::string_view, 10> needle_facts{
    "The secret code of the red door is ",
    "The old clock in the hall was made in the year ",
    "The lucky number of the gardener is ",
    "The weight of the iron anchor in pounds is ",
    "The telephone of the baker answers to number ",
    "The green boat left the harbour carrying barrels to the number of ",
    "The height of the white tower in feet is ",
    "The winning ticket of the lottery bears number ",
    "The price of the golden ring in shillings is ",
    "The soldiers in the regiment of tin count "};

/// Hides ten facts and a string in a filler text, `context` tokens in all with room for questions.
/// @throws turboquant::Error(out_of_range) where the filler is too short
[[nodiscard]] inline Haystack make_haystack(const Tokenizer& tokenizer,
                                            std::span<const TokenId> filler, std::int64_t context,
                                            std::uint64_t seed) {
  constexpr std::int64_t room = 96;  // for a question and its answer
  const turboquant::CounterRng rng(seed, static_cast<std::uint64_t>(context));
  Haystack haystack;
  std::vector<std::vector<TokenId>> inserted;
  std::uint64_t draw = 0;
  for (const std::string_view beginning : needle_facts) {
    std::string digits;
    for (int i = 0; i < 4; ++i) {
      digits += static_cast<char>('0' + rng.bits64(draw++) % 10);
    }
    const std::string fact = "\n\n" + std::string(beginning);
    inserted.push_back(tokenizer.encode(fact + digits + ".\n\n"));
    haystack.facts.push_back({tokenizer.encode(fact), tokenizer.encode(digits)});
  }
  constexpr std::string_view letters = "ABCDEFGHJKLMNPQRSTUVWXYZ";
  std::string random;
  for (int i = 0; i < 16; ++i) {
    random += i == 0 ? "" : " ";
    random += letters[static_cast<std::size_t>(rng.bits64(draw++) % letters.size())];
  }
  const std::string spoken = "The password of the castle is: ";
  std::vector<TokenId> hidden = tokenizer.encode("\n\n" + spoken + random + ".\n\n");
  // The question ends before the blank, which belongs to the token of the first letter.
  haystack.copy = {tokenizer.encode("\n\n" + spoken.substr(0, spoken.size() - 1)),
                   tokenizer.encode(" " + random)};
  std::int64_t taken = static_cast<std::int64_t>(hidden.size());
  for (const std::vector<TokenId>& needle : inserted) {
    taken += static_cast<std::int64_t>(needle.size());
  }
  const std::int64_t straw = context - room - taken;
  const std::int64_t shortest = room + taken + 20;
  const std::int64_t longest = room + taken + static_cast<std::int64_t>(filler.size());
  require(context >= shortest && context <= longest, ErrorCode::out_of_range,
          "needles: context is ", context, ", expected ", shortest, " to ", longest,
          " tokens: facts, answers and the tokens of the text");
  // Needle i after (i + 1/2) tenths of the text, the string after half of it.
  std::size_t used = 0;
  const auto fill_to = [&](std::int64_t end) {
    for (; used < static_cast<std::size_t>(end); ++used) {
      haystack.tokens.push_back(filler[used]);
    }
  };
  for (std::size_t i = 0; i < inserted.size(); ++i) {
    if (i == inserted.size() / 2) {
      fill_to(straw / 2);
      haystack.tokens.insert(haystack.tokens.end(), hidden.begin(), hidden.end());
    }
    fill_to(straw * (2 * static_cast<std::int64_t>(i) + 1) / 20);
    haystack.tokens.insert(haystack.tokens.end(), inserted[i].begin(), inserted[i].end());
  }
  fill_to(straw);
  return haystack;
}

namespace detail {

struct Answer {
  std::int64_t right = 0;  ///< leading tokens
  double loss = 0;         ///< summed, of the true answer
};

/// Asks on a fork; the answer is greedy, token by token, while it is right. Its tokens are the true
/// ones in either case, so that all have a probability.
[[nodiscard]] inline Answer ask(Decoder& decoder, SequenceCache& cache, const Question& question) {
  Answer answer;
  const auto vocabulary = static_cast<std::size_t>(decoder.config().vocabulary);
  cache.branch([&] {
    std::span<const float> logits;
    if (cache.can_prefill()) {
      logits = decoder.forward(cache, question.prompt, 1);
    } else {
      for (const TokenId token : question.prompt) {
        logits = decoder.forward(cache, std::span(&token, 1), 1, Step::decode);
      }
    }
    bool right = true;
    for (std::size_t i = 0; i < question.answer.size(); ++i) {
      const TokenId token = question.answer[i];
      const LogitDistance row =
          kernels().compare(logits.data(), logits.data(), static_cast<std::int64_t>(vocabulary));
      right = right && row.exact_top == token;
      answer.right += right ? 1 : 0;
      answer.loss +=
          row.exact_log_sum - static_cast<double>(logits[static_cast<std::size_t>(token)]);
      if (i + 1 < question.answer.size()) {
        logits = decoder.forward(cache, std::span(&token, 1), 1, Step::decode);
      }
    }
  });
  return answer;
}

}  // namespace detail

/// Reads a haystack with each cache, exact rows in bfloat16 first, and asks all questions.
[[nodiscard]] inline std::vector<NeedleRow> measure_needles(const Model& model, const Exec& exec,
                                                            const Haystack& haystack,
                                                            const std::vector<CachePlan>& plans,
                                                            CacheMode mode, std::int64_t chunk,
                                                            std::int64_t context) {
  Decoder decoder(model, exec);
  std::vector<CachePlan> all{{.name = "bf16"}};
  all.insert(all.end(), plans.begin(), plans.end());
  std::vector<NeedleRow> rows;
  const auto tokens = static_cast<std::int64_t>(haystack.tokens.size());
  Progress progress("needles in " + std::to_string(context),
                    tokens * static_cast<std::int64_t>(all.size()));
  for (const CachePlan& plan : all) {
    const std::unique_ptr<SequenceCache> cache = make_cache(model.config, plan, mode, exec);
    for (std::int64_t at = 0; at < tokens;) {
      const std::int64_t count = (std::min)(chunk, tokens - at);
      static_cast<void>(decoder.forward(
          *cache,
          std::span(haystack.tokens)
              .subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)),
          0));
      at += count;
      progress.advance(count);
    }
    NeedleRow row;
    row.cache = plan.name;
    row.context = context;
    double loss = 0;
    std::size_t answers = 0;
    for (const Question& question : haystack.facts) {
      const detail::Answer answer = detail::ask(decoder, *cache, question);
      row.hits.push_back(answer.right == static_cast<std::int64_t>(question.answer.size()));
      loss += answer.loss;
      answers += question.answer.size();
    }
    const detail::Answer copied = detail::ask(decoder, *cache, haystack.copy);
    row.copied = copied.right;
    row.copy_tokens = static_cast<std::int64_t>(haystack.copy.answer.size());
    row.answer_loss =
        (loss + copied.loss) / static_cast<double>(answers + haystack.copy.answer.size());
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace llama_ab
