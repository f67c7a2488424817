#pragma once

#include <turboquant/device/arch/host_operations.hpp>
#include <turboquant/device/tile_attention.hpp>
#include <turboquant/device/tile_slots.hpp>

namespace turboquant::detail {

inline void encode_portable(const TileTables& tables, const EncodeArguments& in) noexcept {
  encode_slots<PortableEncodeSteps<16>>(tables, in);
}

/// Float arithmetic is within the bounds of every exactness.
[[nodiscard]] inline HostAttention portable_attention(const TileFormat&, Exactness) {
  using Operations = PortableAttention;
  return {"portable float",  Operations::query_bytes, Operations::state_bytes, Operations::prepare,
          Operations::reset, Operations::attend,      Operations::finish,      attend_rows};
}

inline constexpr HostOperations portable_operations{HostArch::portable, encode_portable,
                                                    portable_attention};

}  // namespace turboquant::detail
