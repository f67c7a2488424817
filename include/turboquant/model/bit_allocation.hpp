#pragma once

#include <turboquant/model/bit_plan.hpp>
#include <turboquant/model/choice_knapsack.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace turboquant {

/// A way to store one layer, with what it takes and what it was measured to cost.
struct BitChoice {
  LayerCodec codec{};
  std::int64_t bytes = 0;  ///< of the layer, in the unit of the budget; usually per token
  double error = 0;        ///< finite, 0 or more; errors of different layers are added
};

/// A plan and what it takes and costs.
struct BitAllocation {
  BitPlan plan{};
  std::int64_t bytes = 0;
  double error = 0;
};

/// Mse keys and codebook values of 2, 3 and 4 bits in every combination, by rising bits.
/// @param key_centring of all of them
[[nodiscard]] inline std::vector<LayerCodec> default_codec_choices(
    KeyCentring key_centring = KeyCentring::none) {
  std::vector<LayerCodec> codecs;
  for (const int key_bits : {2, 3, 4}) {
    for (const int value_bits : {2, 3, 4}) {
      codecs.push_back(
          {.key_bits = key_bits, .value_bits = value_bits, .key_centring = key_centring});
    }
  }
  return codecs;
}

/// The choices of one layer: `codecs` with their bytes per token and `errors`.
/// @param errors (codecs.size()), for example from `measure_codec_errors`
/// @throws Error(shape_mismatch) for another number of errors, and what `layer_bytes_per_token`
/// throws
[[nodiscard]] inline std::vector<BitChoice> bit_choices(const LayerShape& shape,
                                                        std::span<const LayerCodec> codecs,
                                                        std::span<const double> errors) {
  require(errors.size() == codecs.size(), ErrorCode::shape_mismatch,
          "bit_choices: errors.size() is ", errors.size(), ", expected that of codecs, ",
          codecs.size());
  std::vector<BitChoice> choices;
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    choices.push_back({codecs[i], layer_bytes_per_token(codecs[i], shape), errors[i]});
  }
  return choices;
}

/// The plan of least total error within a budget of bytes, exactly (`solve_choice_knapsack`).
///
/// @param layers (num_layers); a layer without choices gets no codec and takes no part
/// @param budget_bytes for all layers with choices together
/// @throws Error(capacity) naming both numbers where even the smallest choices exceed the budget;
/// Error(invalid_argument), Error(non_finite), Error(unsupported), Error(overflow) for choices
/// outside their domain. Same result always.
[[nodiscard]] inline BitAllocation allocate_bits(std::span<const std::vector<BitChoice>> layers,
                                                 std::int64_t budget_bytes,
                                                 const KnapsackOptions& options = {}) {
  constexpr const char* caller = "allocate_bits";
  detail::require_plan_layers(caller, static_cast<std::int64_t>(layers.size()));
  std::vector<std::vector<KnapsackChoice>> groups;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    std::vector<KnapsackChoice> group;
    for (const BitChoice& choice : layers[layer]) {
      require_valid(choice.codec, caller, static_cast<std::int64_t>(layer));
      group.push_back({choice.bytes, choice.error});
    }
    if (!group.empty()) {
      groups.push_back(std::move(group));
    }
  }
  const KnapsackSolution solution = solve_choice_knapsack(groups, budget_bytes, options);
  BitAllocation allocation{{}, solution.bytes, solution.error};
  std::size_t group = 0;
  for (const auto& choices : layers) {
    allocation.plan.layers.push_back(
        choices.empty() ? std::nullopt : std::optional(choices[solution.chosen[group]].codec));
    group += choices.empty() ? 0U : 1U;
  }
  return allocation;
}

}  // namespace turboquant
