#include "runtime/runtime_test_support.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

using namespace runtime_test;
using turboquant::CounterRng;
using turboquant::LayerOptions;

namespace {

/// What a sequence must hold: per token its seed, and how it came to be stored.
struct ModelSequence {
  std::vector<std::uint64_t> tokens;
  std::int64_t compressed = 0;  ///< tokens that have left the exact window
};

/// The plain model of a manager with one compressed and one exact layer.
class Model {
 public:
  explicit Model(std::int64_t window) : window_(window) {}

  void append(ModelSequence& sequence, std::uint64_t first, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i) {
      sequence.tokens.push_back(first + std::uint64_t(i));
    }
    const auto n = std::int64_t(sequence.tokens.size());
    if (n - sequence.compressed > window_) {
      sequence.compressed = (n - window_ + 63) / 64 * 64;
    }
  }
  static void truncate(ModelSequence& sequence, std::int64_t length) {
    sequence.tokens.resize(std::size_t(length));
    sequence.compressed = std::min(sequence.compressed, length);
  }

 private:
  std::int64_t window_;
};

constexpr KVShape shape{.kv_heads = 2, .key_dim = 16, .value_dim = 16};

/// The exact rows of the tokens of a sequence.
Tokens<float> rows_of(const std::vector<std::uint64_t>& seeds, std::size_t begin, std::size_t end) {
  Tokens<float> rows(0, 0, std::int64_t(end - begin), shape);
  for (std::size_t t = begin; t < end; ++t) {
    const CounterRng random(17, seeds[t]);
    for (std::size_t i = 0; i < 32; ++i) {
      const std::uint32_t word = random.bits32(i);
      rows.keys.data()[(t - begin) * 32 + i] = float(int(word & 0xFFFFU) - 32768) / 20000.0F;
      rows.values.data()[(t - begin) * 32 + i] = float(int(word >> 16U) - 32768) / 20000.0F;
    }
  }
  return rows;
}

/// Keys and values as they should be held, decoded from an independent encoding of each token.
HeldTokens expected_tokens(const ModelSequence& sequence, bool compressed_layer,
                           const turboquant::TileCodec<Host>& codec) {
  const auto compressed = compressed_layer ? std::size_t(sequence.compressed) : 0;
  HeldTokens held;
  if (compressed > 0) {
    turboquant::CompressedKVStore<Host> store(codec, shape.kv_heads);
    const Tokens<float> rows = rows_of(sequence.tokens, 0, compressed);
    store.append<float>(HostExec(), rows.keys, rows.values);
    turboquant::CaptureView<float> view;
    view.history = store.view(HostExec());
    held = read_back(view, shape, &codec);
  }
  const Tokens<float> rows = rows_of(sequence.tokens, compressed, sequence.tokens.size());
  for (std::size_t t = compressed; t < sequence.tokens.size(); ++t) {
    held.positions.push_back(std::int64_t(t));
    held.keys.insert(held.keys.end(), &rows.keys(t - compressed, 0, 0),
                     &rows.keys(t - compressed, 0, 0) + 32);
    held.values.insert(held.values.end(), &rows.values(t - compressed, 0, 0),
                       &rows.values(t - compressed, 0, 0) + 32);
  }
  return held;
}

}  // namespace

TEST_CASE("10,000 random operations over 50 sequences agree with a plain double-precision model") {
  constexpr std::int64_t window = 70;
  const LayerOptions compressed = layer(shape, 3, 4, window);
  const std::vector<LayerOptions> layers{compressed, layer(shape, 0)};
  Manager<float> manager({.layers = layers});
  // The same operations, every sequence in a call of its own.
  Manager<float> singles({.layers = layers});
  const turboquant::TileCodec<Host> codec(*compressed.codec);
  const Model model(window);
  std::map<SequenceId, ModelSequence> sequences;
  const CounterRng random(2024, 0);
  std::uint64_t draw = 0;
  const auto below = [&](std::size_t bound) {
    return std::size_t(random.below(draw++, std::uint32_t(bound)));
  };
  const auto pick = [&] {
    return std::next(sequences.begin(), std::ptrdiff_t(below(sequences.size())))->first;
  };
  std::uint64_t next_token = 0;
  std::int64_t reads = 0;
  double worst = 0;
  for (int operation = 0; operation < 10000; ++operation) {
    const std::size_t kind = below(20);
    if (sequences.size() < 50 && (kind < 2 || sequences.size() < 3)) {
      if (sequences.size() >= 3 && kind == 1) {
        const SequenceId parent = pick();
        const auto full = sequences.at(parent).tokens.size();
        const bool whole = below(2) == 0;
        const auto length =
            whole ? std::optional<std::int64_t>() : std::optional(std::int64_t(below(full + 1)));
        const SequenceId child = manager.fork(HostExec(), parent, length);
        REQUIRE(singles.fork(HostExec(), parent, length) == child);
        sequences[child] = sequences.at(parent);
        Model::truncate(sequences[child], length.value_or(std::int64_t(full)));
      } else {
        const SequenceId id = manager.open();
        REQUIRE(singles.open() == id);
        sequences[id];
      }
    } else if (kind < 3) {
      const SequenceId id = pick();
      manager.close(id);
      singles.close(id);
      sequences.erase(id);
    } else if (kind < 6) {
      const SequenceId id = pick();
      auto& sequence = sequences.at(id);
      const std::size_t n = sequence.tokens.size();
      const auto length = std::int64_t(
          n > 400 || below(3) == 0 ? below(n + 1) : n - below(std::min<std::size_t>(n, 8) + 1));
      manager.truncate(HostExec(), id, length);
      singles.truncate(HostExec(), id, length);
      Model::truncate(sequence, length);
    } else if (kind < 17) {
      // A batch of up to 6 sequences, mostly single tokens.
      std::vector<SequenceId> ids;
      std::vector<std::int64_t> offsets{0};
      std::vector<std::uint64_t> seeds;
      const std::size_t count = 1 + below(6);
      while (ids.size() < std::min(count, sequences.size())) {
        const SequenceId id = pick();
        if (std::find(ids.begin(), ids.end(), id) == ids.end()) {
          ids.push_back(id);
          const bool is_long = sequences.at(id).tokens.size() > 500;
          const std::size_t tokens = !is_long && below(8) == 0 ? below(150) : 1 + below(3);
          for (std::size_t t = 0; t < tokens; ++t) {
            seeds.push_back(next_token + t);
          }
          model.append(sequences.at(id), next_token, std::int64_t(tokens));
          next_token += tokens;
          offsets.push_back(std::int64_t(seeds.size()));
        }
      }
      const Tokens<float> rows = rows_of(seeds, 0, seeds.size());
      for (const std::int64_t l : {0, 1}) {
        manager.append(HostExec(), l, ids, offsets, rows.keys, rows.values);
        for (std::size_t i = 0; i < ids.size(); ++i) {
          append(singles, l, ids[i], rows, offsets[i], offsets[i + 1]);
        }
      }
    } else {
      // Attention of a batch, against the same alone, and one sequence against the model.
      const std::size_t m = 1 + below(4);
      std::vector<SequenceId> ids;
      for (const auto& [id, sequence] : sequences) {
        if (ids.size() < 4 && (sequence.tokens.empty() || sequence.tokens.size() >= m) &&
            below(3) == 0) {
          ids.push_back(id);
        }
      }
      const HostQueries q = queries(std::uint64_t(operation), ids.size(), m, 4, 16);
      for (const std::int64_t l : {0, 1}) {
        const Attention all = attend(manager, l, ids, q, 16);
        for (std::size_t i = 0; i < ids.size(); ++i) {
          HostQueries one("one", 1, m, 4, 16);
          std::copy_n(&q(i, 0, 0, 0), one.size(), one.data());
          const Attention single = attend(singles, l, {ids[i]}, one, 16);
          REQUIRE(std::memcmp(single.output.data(), &all.output(i, 0, 0, 0),
                              single.output.size() * 4) == 0);
          REQUIRE(std::memcmp(single.lse.data(), &all.lse(i, 0, 0), single.lse.size() * 4) == 0);
          if (i > 0) {
            continue;
          }
          const ModelSequence& sequence = sequences.at(ids[i]);
          const HeldTokens expected = expected_tokens(sequence, l == 0, codec);
          const auto n = std::int64_t(sequence.tokens.size());
          for (std::size_t j = 0; j < m; ++j) {
            for (std::size_t h = 0; h < 4; ++h) {
              const auto reference =
                  model_attention(expected, shape, &q(i, j, h, 0), int(h / 2),
                                  std::max<std::int64_t>(0, n - std::int64_t(m)) + std::int64_t(j));
              worst =
                  std::max(worst, difference(&all.output(i, j, h, 0), all.lse(i, j, h), reference));
            }
          }
          ++reads;
          // What is held is what the model says, bit by bit.
          const HeldTokens held = read_back(manager.view(HostExec(), l, ids[i]), shape, &codec);
          REQUIRE(held.positions == expected.positions);
          REQUIRE(cache_test::same_bits(held.keys, expected.keys));
          REQUIRE(cache_test::same_bits(held.values, expected.values));
        }
      }
    }
    bool all_agree = true;
    for (const auto& [id, sequence] : sequences) {
      all_agree = all_agree && manager.length(0, id) == std::int64_t(sequence.tokens.size()) &&
                  manager.engine(0, id).window_begin() == sequence.compressed;
    }
    REQUIRE(all_agree);
    REQUIRE(manager.num_sequences() == sequences.size());
  }
  MESSAGE(reads, " reads, worst difference to double precision ", worst, ", ", next_token,
          " tokens, ", sequences.size(), " sequences at the end");
  CHECK(worst < 5e-4);
  while (!sequences.empty()) {
    manager.close(sequences.begin()->first);
    sequences.erase(sequences.begin());
  }
  manager.trim();
  CHECK(manager.memory_use().total() == manager.memory_use().codec_tables);
}

namespace {

/// Where the compressed tokens of a layer end, told by the rules of its options alone.
struct LayerModel {
  std::int64_t window = 0;
  std::int64_t sinks = 0;
  std::int64_t sliding = 0;
  std::int64_t rollback = 8;
  bool compressed = true;
  int page = 64;  ///< tokens, and those of a tile

  /// After an append that made the sequence `n` tokens long.
  [[nodiscard]] std::int64_t end_after(std::int64_t end, std::int64_t n) const {
    const std::int64_t surplus = n - window;
    if (surplus <= end) {
      return end;
    }
    return window < 63 ? surplus : sinks + (surplus - sinks + 63) / 64 * 64;
  }

  [[nodiscard]] LayerOptions options() const {
    LayerOptions made = layer(shape, compressed ? 3 : 0, 4, window, page);
    if (compressed) {
      made.codec->format.tile_tokens = page;
    }
    made.capture.sinks = sinks;
    made.capture.sliding_window = sliding;
    made.capture.rollback_tokens = rollback;
    return made;
  }
};

/// All tokens of a sequence as a layer stores them, those that a window has given up included.
HeldTokens all_tokens(const std::vector<std::uint64_t>& seeds, const LayerModel& model,
                      std::int64_t history_end, const turboquant::TileCodec<Host>& codec) {
  const auto n = std::int64_t(seeds.size());
  const std::int64_t sinks = std::min(model.sinks, n);
  const std::int64_t end = model.compressed && n > sinks ? history_end : sinks;
  HeldTokens held;
  const auto add_exact = [&](std::int64_t first, std::int64_t last) {
    const Tokens<float> rows = rows_of(seeds, std::size_t(first), std::size_t(last));
    for (std::int64_t t = first; t < last; ++t) {
      held.positions.push_back(t);
    }
    held.keys.insert(held.keys.end(), rows.keys.data(), rows.keys.data() + rows.keys.size());
    held.values.insert(held.values.end(), rows.values.data(),
                       rows.values.data() + rows.values.size());
  };
  add_exact(0, sinks);
  if (end > sinks) {
    turboquant::CompressedKVStore<Host> store(codec, shape.kv_heads, {.first_position = sinks});
    const Tokens<float> rows = rows_of(seeds, std::size_t(sinks), std::size_t(end));
    store.append<float>(HostExec(), rows.keys, rows.values);
    turboquant::CaptureView<float> view;
    view.history = store.view(HostExec());
    const HeldTokens middle = read_back(view, shape, &codec);
    held.positions.insert(held.positions.end(), middle.positions.begin(), middle.positions.end());
    held.keys.insert(held.keys.end(), middle.keys.begin(), middle.keys.end());
    held.values.insert(held.values.end(), middle.values.begin(), middle.values.end());
  }
  add_exact(end, n);
  return held;
}

}  // namespace

TEST_CASE(
    "random operations with sinks and sliding windows agree with a model that forgets nothing") {
  const std::vector<LayerModel> models{
      {.window = 70, .sinks = 5},
      {.window = 20, .sinks = 3, .sliding = 90, .rollback = 40, .page = 16},
      {.window = 128, .sliding = 7, .rollback = 8},
      {.window = 0, .sinks = 66, .sliding = 64, .rollback = 16, .page = 32},
      {.sinks = 2, .sliding = 50, .rollback = 10, .compressed = false},
  };
  struct Sequence {
    std::vector<std::uint64_t> tokens;
    std::vector<std::int64_t> ends;  ///< of the compressed tokens, one a layer
  };
  std::vector<LayerOptions> layers;
  for (const LayerModel& model : models) {
    layers.push_back(model.options());
  }
  Manager<float> manager({.layers = layers, .slab_pages = 2});
  const turboquant::TileCodec<Host> codec(*layers[0].codec);
  std::map<SequenceId, Sequence> sequences;
  const CounterRng random(4048, 0);
  std::uint64_t draw = 0;
  const auto below = [&](std::size_t bound) {
    return std::size_t(random.below(draw++, std::uint32_t(bound)));
  };
  const auto pick = [&] {
    return std::next(sequences.begin(), std::ptrdiff_t(below(sequences.size())))->first;
  };
  const auto cut = [&](Sequence& sequence, std::int64_t length) {
    sequence.tokens.resize(std::size_t(length));
    for (std::size_t l = 0; l < models.size(); ++l) {
      sequence.ends[l] = std::min(sequence.ends[l], std::max(length, models[l].sinks));
    }
  };
  std::uint64_t next_token = 0;
  std::int64_t reads = 0;
  std::int64_t refused_reads = 0;
  std::int64_t refused_cuts = 0;
  double worst = 0;
  for (int operation = 0; operation < 3000; ++operation) {
    const std::size_t kind = below(20);
    if (sequences.size() < 12 && (kind < 2 || sequences.size() < 2)) {
      if (sequences.size() >= 2 && kind == 1) {
        const SequenceId parent = pick();
        const SequenceId child = manager.fork(HostExec(), parent);
        sequences[child] = sequences.at(parent);
      } else {
        Sequence& sequence = sequences[manager.open()];
        for (const LayerModel& model : models) {
          sequence.ends.push_back(model.sinks);
        }
      }
    } else if (kind < 3) {
      const SequenceId id = pick();
      manager.close(id);
      sequences.erase(id);
    } else if (kind < 6) {
      const SequenceId id = pick();
      Sequence& sequence = sequences.at(id);
      const std::size_t n = sequence.tokens.size();
      const auto length = std::int64_t(
          n > 500 || below(6) == 0 ? below(n / 4 + 1) : n - below(std::min<std::size_t>(n, 8) + 1));
      const std::string error =
          cache_test::error_of([&] { manager.truncate(HostExec(), id, length); });
      if (error == "no error") {
        cut(sequence, length);
      } else {
        REQUIRE(cache_test::contains(error, "have left the sliding window"));
        ++refused_cuts;
        if (n > 500) {
          manager.truncate(HostExec(), id, 0);
          cut(sequence, 0);
        }
      }
    } else if (kind < 15) {
      const SequenceId id = pick();
      Sequence& sequence = sequences.at(id);
      const std::size_t count = below(6) == 0 ? below(200) : below(4);
      std::vector<std::uint64_t> seeds;
      for (std::size_t t = 0; t < count; ++t) {
        seeds.push_back(next_token++);
      }
      sequence.tokens.insert(sequence.tokens.end(), seeds.begin(), seeds.end());
      const Tokens<float> rows = rows_of(seeds, 0, count);
      for (std::size_t l = 0; l < models.size(); ++l) {
        append(manager, std::int64_t(l), id, rows, 0, std::int64_t(count));
        sequence.ends[l] =
            models[l].end_after(sequence.ends[l], std::int64_t(sequence.tokens.size()));
      }
    } else {
      const SequenceId id = pick();
      const Sequence& sequence = sequences.at(id);
      const auto n = std::int64_t(sequence.tokens.size());
      const std::size_t m = 1 + below(8);
      if (n < std::int64_t(m)) {
        continue;
      }
      const std::size_t l = below(models.size());
      const HostQueries q = queries(std::uint64_t(operation), 1, m, 4, 16);
      Attention result;
      const std::string error =
          cache_test::error_of([&] { result = attend(manager, std::int64_t(l), {id}, q, 16); });
      if (error != "no error") {
        REQUIRE(cache_test::contains(error, "has given up tokens before"));
        ++refused_reads;
        continue;
      }
      const HeldTokens held = all_tokens(sequence.tokens, models[l], sequence.ends[l], codec);
      ModelOptions options;
      options.window = models[l].sliding;
      options.sinks = models[l].sinks;
      for (std::size_t j = 0; j < m; ++j) {
        for (std::size_t h = 0; h < 4; ++h) {
          const auto expected = model_attention(held, shape, &q(0, j, h, 0), int(h / 2),
                                                n - std::int64_t(m) + std::int64_t(j), options);
          worst = std::max(worst,
                           difference(&result.output(0, j, h, 0), result.lse(0, j, h), expected));
        }
      }
      ++reads;
    }
    bool all_agree = manager.num_sequences() == sequences.size();
    for (const auto& [id, sequence] : sequences) {
      for (std::size_t l = 0; l < models.size(); ++l) {
        const auto& engine = manager.engine(std::int64_t(l), id);
        all_agree = all_agree && engine.length() == std::int64_t(sequence.tokens.size()) &&
                    (!models[l].compressed || engine.window_begin() == sequence.ends[l]) &&
                    (!models[l].compressed || engine.store().end() == sequence.ends[l]);
      }
    }
    REQUIRE(all_agree);
  }
  MESSAGE(reads, " reads, worst difference to double precision ", worst, "; ", refused_reads,
          " reads and ", refused_cuts, " truncations refused, because the window had moved on");
  CHECK(worst < 5e-4);
  CHECK(reads > 400);
  CHECK(refused_reads > 0);
  CHECK(refused_reads < reads / 4);
  CHECK(refused_cuts > 0);
  while (!sequences.empty()) {
    manager.close(sequences.begin()->first);
    sequences.erase(sequences.begin());
  }
  manager.trim();
  CHECK(manager.ledger()->total() == 0);
}
