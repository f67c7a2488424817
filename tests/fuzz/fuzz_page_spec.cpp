// Page sizes against the same arithmetic in 128 bits: equal where everything is in range, an Error
// where not.
#include "fuzz/fuzz_input.hpp"

#include <turboquant/model/page_spec.hpp>
#include <turboquant/model/unification.hpp>

#include <cstdint>
#include <limits>
#include <vector>

namespace {

__extension__ using Wide = __int128;

/// Small, large, negative or any number.
std::int64_t number(FuzzInput& input) {
  constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  switch (input.below(6)) {
    case 0: return input.take<std::int8_t>();
    case 1: return input.take<std::int16_t>();
    case 2: return std::int64_t{1} << input.below(63);
    case 3: return largest - input.take<std::uint8_t>();
    case 4: return input.take<std::int64_t>();
    default: return 1 + static_cast<std::int64_t>(input.below(128));
  }
}

/// `number`, or 0 where it is no positive 64-bit number.
Wide in_range(Wide number) {
  return number > 0 && number <= std::numeric_limits<std::int64_t>::max() ? number : 0;
}

/// `computed()` gives `expected`, or fails where that is 0.
template <class Compute>
void agrees(Wide expected, Compute computed) {
  std::int64_t value = 0;
  try {
    value = computed();
    expect(value > 0);
  } catch (const turboquant::Error& error) {
    expect(error.what()[0] != '\0');
  }
  expect(Wide{value} == expected);
}

void attention(FuzzInput& input) {
  turboquant::FullAttentionSpec spec;
  spec.block_size = number(input);
  spec.num_kv_heads = number(input);
  spec.head_size = number(input);
  if (input.below(2) == 1) {
    spec.head_size_v = number(input);
  }
  spec.dtype = static_cast<turboquant::CacheDType>(input.below(6));
  if (input.below(4) == 1) {
    spec.page_size_padded = number(input);
  }
  turboquant::SequenceLimits limits;
  limits.max_model_len = number(input);

  constexpr std::int64_t width = std::int64_t{1} << 40;
  const std::int64_t head_v = spec.head_size_v.value_or(spec.head_size);
  Wide page = 0;
  if (spec.block_size > 0 && spec.num_kv_heads > 0 && spec.head_size > 0 &&
      spec.head_size <= width && head_v > 0 && head_v <= width &&
      static_cast<int>(spec.dtype) < 5) {
    // In two steps, since a product of three could leave 128 bits.
    const Wide token = in_range(Wide{spec.num_kv_heads} * (Wide{spec.head_size} + head_v) *
                                turboquant::dtype_size_bytes(spec.dtype));
    page = in_range(token * spec.block_size);
  }
  agrees(page, [&] { return spec.real_page_size_bytes(); });
  if (page > 0 && spec.page_size_padded) {
    page = *spec.page_size_padded < page ? 0 : *spec.page_size_padded;
  }
  agrees(page, [&] { return spec.page_size_bytes(); });
  Wide context = 0;
  if (page > 0 && limits.max_model_len > 0) {
    context = in_range((Wide{limits.max_model_len} + spec.block_size - 1) / spec.block_size * page);
  }
  agrees(context, [&] { return spec.max_memory_usage_bytes(limits); });
  agrees(page, [&] {
    const std::vector<turboquant::FullAttentionSpec> two(2, spec);
    return turboquant::FullAttentionSpec::merge(two).page_size_bytes();
  });
}

/// What `unify_pages` promises of its result.
void unification(FuzzInput& input) {
  std::vector<turboquant::PageClass> classes(input.below(5));
  for (turboquant::PageClass& c : classes) {
    c.page_size_bytes = number(input);
    c.block_size = number(input);
    c.scales_with_block_size = input.below(3) > 0;
  }
  const auto strategy = static_cast<turboquant::UnificationStrategy>(input.below(4));
  const auto policy = static_cast<turboquant::BlockPolicy>(input.below(4));
  try {
    const turboquant::UnifiedPages unified = turboquant::unify_pages(classes, strategy, policy);
    expect(unified.classes.size() == classes.size() && unified.prefix_granularity > 0);
    for (const turboquant::UnifiedPage& page : unified.classes) {
      expect(page.page_size_bytes > 0 && page.block_size > 0);
      expect(page.padding_bytes >= 0 && page.padding_bytes < page.page_size_bytes);
      expect(!unified.page_size_bytes || page.page_size_bytes == *unified.page_size_bytes);
      expect(!page.scales_with_block_size || unified.prefix_granularity % page.block_size == 0);
    }
  } catch (const turboquant::Error& error) {
    expect(error.what()[0] != '\0');
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  if (input.below(2) == 0) {
    attention(input);
  } else {
    unification(input);
  }
  return 0;
}
