#pragma once

// The KV cache of one sequence, as an engine drives a `CacheManager`: who computes attention, and
// whether the engine keeps rows of its own, is what the mode table says.

#include "aligned.hpp"
#include "cache_plan.hpp"
#include "kernels.hpp"

#include <turboquant/runtime/cache_manager.hpp>
#include <turboquant/runtime/shadow_compare.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace llama_ab {

using turboquant::AttentionBy;
using turboquant::bfloat16;
using turboquant::CacheMode;
using turboquant::EngineCache;
using turboquant::SequenceId;
using Space = Kokkos::HostSpace;
using Exec = Kokkos::DefaultHostExecutionSpace;

/// What a step of the engine is: new tokens of a prompt, or the next one of a generation.
enum class Step { prefill, decode };

/// One layer's new tokens and where their attention goes; all rows are contiguous.
struct AttentionStep {
  std::int64_t layer = 0;
  std::int64_t count = 0;          ///< tokens; 1 for a decode step
  const float* queries = nullptr;  ///< (count, query_heads, key_dim)
  const float* keys = nullptr;     ///< (count, kv_heads, key_dim)
  const float* values = nullptr;   ///< (count, kv_heads, value_dim)
  float* output = nullptr;         ///< (count, query_heads, value_dim)
};

/// What a decoder needs of a cache, and what is told about it.
class SequenceCache {
 public:
  SequenceCache() = default;
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;
  virtual ~SequenceCache() = default;

  /// Tokens that all layers have taken.
  [[nodiscard]] virtual std::int64_t length() const noexcept = 0;
  /// Whether prompts can still be processed: an engine in mode hybrid frees its rows when it begins
  /// to generate.
  [[nodiscard]] virtual bool can_prefill() const noexcept = 0;
  /// Stores new tokens of a layer and computes their attention over everything so far.
  virtual void attend(const AttentionStep& step, Step kind) = 0;
  /// After all layers have taken `count` tokens.
  virtual void advance(std::int64_t count) noexcept = 0;
  /// Lets `work` add tokens to a fork of the sequence, which is forgotten afterwards.
  virtual void branch(const std::function<void()>& work) = 0;
  /// Bytes of all tokens as they are allocated: codes, scales, exact windows, page tables, free
  /// pages, and the engine's own rows.
  [[nodiscard]] virtual std::size_t bytes() const = 0;
  /// The most bytes that the library has held at once, scratch memory included.
  [[nodiscard]] virtual std::size_t peak_bytes() const = 0;
  /// What a comparison with the compressed cache has found while the engine computed attention.
  [[nodiscard]] virtual turboquant::ShadowReport shadow_report() const = 0;
};

/// An engine's own cache of one layer: exact rows.
template <class T>
class ExactRows {
 public:
  ExactRows(std::int64_t key_numbers, std::int64_t value_numbers)
      : key_numbers_(key_numbers), value_numbers_(value_numbers) {}

  void append(std::span<const T> keys, std::span<const T> values) {
    keys_.insert(keys_.end(), keys.begin(), keys.end());
    values_.insert(values_.end(), values.begin(), values.end());
  }
  void truncate(std::int64_t length) {
    keys_.resize(static_cast<std::size_t>(length * key_numbers_));
    values_.resize(static_cast<std::size_t>(length * value_numbers_));
  }
  [[nodiscard]] const T* keys() const noexcept { return keys_.data(); }
  [[nodiscard]] const T* values() const noexcept { return values_.data(); }
  [[nodiscard]] std::size_t bytes() const noexcept {
    return (keys_.size() + values_.size()) * sizeof(T);
  }

 private:
  std::int64_t key_numbers_;
  std::int64_t value_numbers_;
  std::vector<T> keys_;
  std::vector<T> values_;
};

/// @tparam T number type of exact rows: `bfloat16` or `float`
template <class T>
class KvCache final : public SequenceCache {
 public:
  using Manager = turboquant::CacheManager<Space, T>;

  /// @param shadow of the decode steps that the engine computes itself, the share that is compared
  KvCache(const ModelConfig& config, const CachePlan& plan, CacheMode mode, const Exec& exec,
          double shadow)
      : config_(config),
        mode_(turboquant::traits_of(mode)),
        exec_(exec),
        manager_({.layers = plan.layers(config), .mode = mode}),
        shadow_(manager_, {.sample_fraction = shadow}),
        sequence_(manager_.open()) {
    if (mode_.engine_cache != EngineCache::none) {
      rows_.assign(
          static_cast<std::size_t>(config.layers),
          ExactRows<T>(config.kv_heads * config.key_dim, config.kv_heads * config.value_dim));
    }
  }

  [[nodiscard]] std::int64_t length() const noexcept override { return length_; }
  [[nodiscard]] Manager& manager() noexcept { return manager_; }
  [[nodiscard]] SequenceId sequence() const noexcept { return sequence_; }
  [[nodiscard]] const turboquant::CacheModeTraits& mode() const noexcept { return mode_; }
  [[nodiscard]] bool can_prefill() const noexcept override {
    return mode_.prefill == AttentionBy::library || !rows_.empty();
  }

  void attend(const AttentionStep& step, Step kind) override {
    store_rows(step);
    const AttentionBy by = kind == Step::prefill ? mode_.prefill : mode_.decode;
    if (kind == Step::decode && mode_.engine_cache == EngineCache::during_prefill) {
      rows_.clear();
    }
    require(by == AttentionBy::library || !rows_.empty(), ErrorCode::unsupported,
            "KvCache: a prompt after decode steps in mode ", mode_.name,
            ", in which the engine has freed its own rows; expected decode steps");
    const std::vector<SequenceId> sequence{sequence_};
    const std::vector<std::int64_t> offsets{0, step.count};
    const auto rows = static_cast<std::size_t>(step.count);
    const auto kv_heads = static_cast<std::size_t>(config_.kv_heads);
    const auto key_dim = static_cast<std::size_t>(config_.key_dim);
    const auto value_dim = static_cast<std::size_t>(config_.value_dim);
    const auto heads = static_cast<std::size_t>(config_.query_heads);
    const turboquant::TokenRows<Space, T> keys(keys_.data(), rows, kv_heads, key_dim);
    const turboquant::TokenRows<Space, T> values(values_.data(), rows, kv_heads, value_dim);
    lse_.resize(rows * heads);
    if (kind == Step::prefill && by == AttentionBy::library) {
      manager_.prefill(exec_, step.layer, sequence, offsets, keys, values, offsets,
                       View3<const float>(step.queries, rows, heads, key_dim),
                       View3<float>(step.output, rows, heads, value_dim),
                       View2(lse_.data(), rows, heads));
      return;
    }
    manager_.append(exec_, step.layer, sequence, offsets, keys, values);
    if (by == AttentionBy::library) {
      manager_.attend(exec_, step.layer, sequence,
                      View4<const float>(step.queries, 1, rows, heads, key_dim),
                      View4<float>(step.output, 1, rows, heads, value_dim),
                      View3<float>(lse_.data(), 1, rows, heads));
      return;
    }
    ExactRows<T>& own = rows_[static_cast<std::size_t>(step.layer)];
    own.append(keys_, values_);
    attend_exactly(step, own);
    if (kind == Step::decode && mode_.stores) {
      if (step.layer == 0) {
        static_cast<void>(shadow_.begin_step());
      }
      static_cast<void>(shadow_.compare(
          exec_, step.layer, sequence, View4<const float>(step.queries, 1, rows, heads, key_dim),
          View4<const float>(step.output, 1, rows, heads, value_dim)));
    }
  }

  void advance(std::int64_t count) noexcept override { length_ += count; }

  void branch(const std::function<void()>& work) override {
    const SequenceId trunk = sequence_;
    const std::int64_t length = length_;
    struct Back {
      KvCache* cache;
      SequenceId trunk;
      std::int64_t length;
      ~Back() {
        cache->manager_.close(cache->sequence_);
        cache->sequence_ = trunk;
        cache->length_ = length;
        for (ExactRows<T>& rows : cache->rows_) {
          rows.truncate(length);
        }
      }
    };
    sequence_ = manager_.fork(exec_, trunk);
    const Back back{this, trunk, length};
    work();
  }

  [[nodiscard]] std::size_t bytes() const override {
    const turboquant::MemoryUse use = manager_.memory_use();
    std::size_t total = use.total() - use.codec_tables - use.workspace;
    for (const ExactRows<T>& rows : rows_) {
      total += rows.bytes();
    }
    return total;
  }
  [[nodiscard]] std::size_t peak_bytes() const override { return manager_.ledger()->peak(); }
  [[nodiscard]] turboquant::ShadowReport shadow_report() const override { return shadow_.report(); }

 private:
  template <class Number>
  using View4 = Kokkos::View<Number****, Kokkos::LayoutRight, Space>;
  template <class Number>
  using View3 = Kokkos::View<Number***, Kokkos::LayoutRight, Space>;
  using View2 = Kokkos::View<float**, Kokkos::LayoutRight, Space>;

  void store_rows(const AttentionStep& step) {
    const auto convert = [](float number) {
      if constexpr (std::is_same_v<T, float>) {
        return number;
      } else {
        return T::from_float(number);
      }
    };
    keys_.resize(static_cast<std::size_t>(step.count * config_.kv_heads * config_.key_dim));
    values_.resize(static_cast<std::size_t>(step.count * config_.kv_heads * config_.value_dim));
    std::transform(step.keys, step.keys + keys_.size(), keys_.begin(), convert);
    std::transform(step.values, step.values + values_.size(), values_.begin(), convert);
  }

  void attend_exactly(const AttentionStep& step, const ExactRows<T>& own) {
    const std::int64_t group = config_.query_heads / config_.kv_heads;
    const std::int64_t blocks = (step.count + max_queries - 1) / max_queries;
    const std::int64_t tasks = blocks * config_.kv_heads;
    const auto each = static_cast<std::size_t>(
        attention_scratch(static_cast<int>(group), static_cast<int>(config_.key_dim),
                          static_cast<int>(config_.value_dim)));
    scratch_.resize(each * static_cast<std::size_t>(tasks));
    Kokkos::parallel_for(
        "llama_ab::exact_attention",
        Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>,
                            Kokkos::IndexType<std::int64_t>>(exec_, 0, tasks, Kokkos::ChunkSize(1)),
        [&](const std::int64_t task) {
          const std::int64_t head = task % config_.kv_heads;
          const std::int64_t first = task / config_.kv_heads * max_queries;
          ExactAttention part;
          part.keys = own.keys() + head * config_.key_dim;
          part.values = own.values() + head * config_.value_dim;
          part.key_stride = config_.kv_heads * config_.key_dim;
          part.value_stride = config_.kv_heads * config_.value_dim;
          part.query_stride = config_.query_heads * config_.key_dim;
          part.output_stride = config_.query_heads * config_.value_dim;
          part.queries = step.queries + first * part.query_stride + head * group * config_.key_dim;
          part.output = step.output + first * part.output_stride + head * group * config_.value_dim;
          part.count = (std::min)(max_queries, step.count - first);
          part.position = length_ + first;
          part.group = static_cast<int>(group);
          part.key_dim = static_cast<int>(config_.key_dim);
          part.value_dim = static_cast<int>(config_.value_dim);
          part.sm_scale = 1.0F / std::sqrt(static_cast<float>(config_.key_dim));
          part.scratch = scratch_.data() + each * static_cast<std::size_t>(task);
          if constexpr (std::is_same_v<T, float>) {
            kernels().attend_f32(part);
          } else {
            kernels().attend_bf16(part);
          }
        });
    exec_.fence();
  }

  ModelConfig config_;
  turboquant::CacheModeTraits mode_;
  Exec exec_;
  Manager manager_;
  turboquant::ShadowCompare<Space, T> shadow_;
  SequenceId sequence_;
  std::int64_t length_ = 0;
  std::vector<ExactRows<T>> rows_;  ///< one a layer, or none
  std::vector<T> keys_;
  std::vector<T> values_;
  Floats lse_;
  Floats scratch_;
};

/// The cache that a plan describes. Exact rows are the engine's own in every mode.
[[nodiscard]] inline std::unique_ptr<SequenceCache> make_cache(const ModelConfig& config,
                                                               const CachePlan& plan,
                                                               CacheMode mode, const Exec& exec,
                                                               double shadow = 0) {
  const CacheMode chosen = plan.exact() ? CacheMode::off : mode;
  if (plan.single_precision) {
    return std::make_unique<KvCache<float>>(config, plan, chosen, exec, shadow);
  }
  return std::make_unique<KvCache<bfloat16>>(config, plan, chosen, exec, shadow);
}

}  // namespace llama_ab
