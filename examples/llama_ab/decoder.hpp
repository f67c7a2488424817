#pragma once

// The forward pass of a Llama model over a KV cache.

#include "aligned.hpp"
#include "kernels.hpp"
#include "kv_cache.hpp"
#include "model.hpp"
#include "tokenizer.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace llama_ab {

class Decoder {
 public:
  /// @param model must outlive the decoder
  Decoder(const Model& model, const Exec& exec) : model_(model), exec_(exec) {
    // In double precision: positions are in the thousands.
    const ModelConfig& config = model.config;
    for (std::int64_t i = 0; i < config.rotated_dims / 2; ++i) {
      frequencies_.push_back(
          std::pow(config.rope_base,
                   -2.0 * static_cast<double>(i) / static_cast<double>(config.rotated_dims)));
    }
  }

  [[nodiscard]] const ModelConfig& config() const noexcept { return model_.config; }

  /// Takes the next tokens of a sequence and gives the logits of the newest `wanted` of them.
  /// @return (wanted, vocabulary), valid until the next call
  /// @throws turboquant::Error(out_of_range) for an unknown token or more tokens than the model's
  /// context
  std::span<const float> forward(SequenceCache& cache, std::span<const TokenId> tokens,
                                 std::int64_t wanted, Step kind = Step::prefill) {
    const ModelConfig& config = model_.config;
    const auto count = static_cast<std::int64_t>(tokens.size());
    require(count >= 1 && count <= config.context - cache.length(), ErrorCode::out_of_range,
            "Decoder::forward: ", count, " tokens after ", cache.length(),
            ", expected at least one and at most ", config.context, " in all");
    require(wanted >= 0 && wanted <= count, ErrorCode::out_of_range, "Decoder::forward: wanted is ",
            wanted, ", expected 0 to ", count);
    require(kind == Step::prefill || count == 1, ErrorCode::invalid_argument,
            "Decoder::forward: a decode step has ", count, " tokens, expected 1");
    for (const TokenId token : tokens) {
      require(token >= 0 && token < config.vocabulary, ErrorCode::out_of_range,
              "Decoder::forward: token is ", token, ", expected 0 to ", config.vocabulary - 1);
    }
    resize(count);
    for (std::int64_t t = 0; t < count; ++t) {
      const auto* const row =
          model_.embedding.data() + tokens[static_cast<std::size_t>(t)] * config.width;
      std::copy(row, row + config.width, stream_.data() + t * config.width);
    }
    set_angles(cache.length(), count);
    for (std::int64_t i = 0; i < config.layers; ++i) {
      layer(cache, i, count, kind);
    }
    cache.advance(count);
    if (wanted == 0) {
      return {};
    }
    const std::int64_t first = count - wanted;
    norm(stream_.data() + first * config.width, model_.output_norm, wanted);
    logits_.resize(static_cast<std::size_t>(wanted * config.vocabulary));
    product(normed_, wanted, model_.output_weights(), config.width, config.vocabulary,
            logits_.data());
    return logits_;
  }

 private:
  void resize(std::int64_t count) {
    const ModelConfig& config = model_.config;
    const auto rows = [&](Floats& buffer, std::int64_t width) {
      buffer.resize(static_cast<std::size_t>(count * width));
    };
    rows(stream_, config.width);
    rows(normed_, config.width);
    rows(added_, config.width);
    rows(queries_, config.query_heads * config.key_dim);
    rows(keys_, config.kv_heads * config.key_dim);
    rows(values_, config.kv_heads * config.value_dim);
    rows(attention_, config.query_heads * config.value_dim);
    rows(gate_, config.feed_forward);
    rows(up_, config.feed_forward);
    rows(cosines_, config.rotated_dims / 2);
    rows(sines_, config.rotated_dims / 2);
  }

  void layer(SequenceCache& cache, std::int64_t index, std::int64_t count, Step kind) {
    const ModelConfig& config = model_.config;
    const LayerWeights& weights = model_.layers[static_cast<std::size_t>(index)];
    const std::int64_t queries = config.query_heads * config.key_dim;
    const std::int64_t keys = config.kv_heads * config.key_dim;
    const std::int64_t outputs = config.query_heads * config.value_dim;
    norm(stream_.data(), weights.attention_norm, count);
    product(normed_, count, weights.query, config.width, queries, queries_.data());
    product(normed_, count, weights.key, config.width, keys, keys_.data());
    product(normed_, count, weights.value, config.width, config.kv_heads * config.value_dim,
            values_.data());
    rotate(queries_, count, config.query_heads);
    rotate(keys_, count, config.kv_heads);
    cache.attend({index, count, queries_.data(), keys_.data(), values_.data(), attention_.data()},
                 kind);
    product(attention_, count, weights.attention_output, outputs, config.width, added_.data());
    add(count);
    norm(stream_.data(), weights.feed_forward_norm, count);
    product(normed_, count, weights.gate, config.width, config.feed_forward, gate_.data());
    product(normed_, count, weights.up, config.width, config.feed_forward, up_.data());
    for_rows(count, [&](std::int64_t t) {
      kernels().swiglu(gate_.data() + t * config.feed_forward, up_.data() + t * config.feed_forward,
                       config.feed_forward);
    });
    product(gate_, count, weights.down, config.feed_forward, config.width, added_.data());
    add(count);
  }

  template <class Work>
  void for_rows(std::int64_t count, const Work& work) const {
    Kokkos::parallel_for(
        "llama_ab::rows",
        Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec_, 0, count), work);
    exec_.fence();
  }

  /// out (count, columns) = x (count, depth) times weights (columns, depth) transposed; a work item
  /// takes some of the columns.
  void product(const Floats& x, std::int64_t count, const Floats& weights, std::int64_t depth,
               std::int64_t columns, float* out) const {
    constexpr std::int64_t least = 96;  // a whole number of register blocks
    const std::int64_t tasks =
        std::clamp<std::int64_t>(columns / least, 1, std::int64_t{4} * exec_.concurrency());
    const std::int64_t each = (columns / tasks + least) / least * least;
    Kokkos::parallel_for("llama_ab::product",
                         Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>,
                                             Kokkos::IndexType<std::int64_t>>(
                             exec_, 0, (columns + each - 1) / each, Kokkos::ChunkSize(1)),
                         [&](const std::int64_t task) {
                           const std::int64_t first = task * each;
                           kernels().product(x.data(), count, depth, weights.data() + first * depth,
                                             (std::min)(each, columns - first), out + first,
                                             columns);
                         });
    exec_.fence();
  }

  void norm(const float* x, const Floats& weights, std::int64_t count) {
    const std::int64_t width = model_.config.width;
    for (std::int64_t t = 0; t < count; ++t) {
      kernels().rms_norm(x + t * width, weights.data(),
                         static_cast<float>(model_.config.norm_epsilon), width,
                         normed_.data() + t * width);
    }
  }

  void add(std::int64_t count) {
    for (std::int64_t i = 0; i < count * model_.config.width; ++i) {
      stream_[static_cast<std::size_t>(i)] += added_[static_cast<std::size_t>(i)];
    }
  }

  void set_angles(std::int64_t position, std::int64_t count) {
    for (std::int64_t t = 0; t < count; ++t) {
      for (std::size_t i = 0; i < frequencies_.size(); ++i) {
        const double angle = static_cast<double>(position + t) * frequencies_[i];
        const std::size_t at = static_cast<std::size_t>(t) * frequencies_.size() + i;
        cosines_[at] = static_cast<float>(std::cos(angle));
        sines_[at] = static_cast<float>(std::sin(angle));
      }
    }
  }

  /// RoPE of neighbours (2 i, 2 i + 1), for which GGUF files store these weights.
  void rotate(Floats& rows, std::int64_t count, std::int64_t heads) const {
    const std::size_t half = frequencies_.size();
    for (std::int64_t t = 0; t < count; ++t) {
      for (std::int64_t head = 0; head < heads; ++head) {
        float* const x = rows.data() + (t * heads + head) * model_.config.key_dim;
        for (std::size_t i = 0; i < half; ++i) {
          const float cosine = cosines_[static_cast<std::size_t>(t) * half + i];
          const float sine = sines_[static_cast<std::size_t>(t) * half + i];
          const float first = x[2 * i];
          const float second = x[2 * i + 1];
          x[2 * i] = first * cosine - second * sine;
          x[2 * i + 1] = first * sine + second * cosine;
        }
      }
    }
  }

  const Model& model_;
  Exec exec_;
  std::vector<double> frequencies_;
  Floats stream_;
  Floats normed_;
  Floats added_;
  Floats queries_;
  Floats keys_;
  Floats values_;
  Floats attention_;
  Floats gate_;
  Floats up_;
  Floats cosines_;
  Floats sines_;
  Floats logits_;
};

}  // namespace llama_ab
