#pragma once

#include <turboquant/device/arch/select.hpp>
#include <turboquant/device/paged_tiles.hpp>
#include <turboquant/device/register_encoder.hpp>
#include <turboquant/device/row_view.hpp>
#include <turboquant/device/team_encoder.hpp>
#include <turboquant/device/tile_codec.hpp>
#include <turboquant/device/tile_slots.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

namespace turboquant {

/// Tokens to encode into one tile of one sequence, all kv heads. A plain record that kernels read;
/// owns nothing.
struct EncodeJob {
  RowView keys{};                ///< (count, kv_heads, key_dim), row 0 is the first token
  RowView values{};              ///< (count, kv_heads, value_dim)
  std::byte* tile = nullptr;     ///< tile of head 0
  std::int64_t head_stride = 0;  ///< bytes from the tile of one head to that of the next
  int first_slot = 0;            ///< slot of the first token
  int count = 0;                 ///< 0 to tile_tokens - first_slot
  /// Slots from here on become zero first: 0 for a new tile, 64 to keep what is there.
  int clear_from = 64;
};

namespace detail {

/// Whether kernels of `ExecutionSpace` are host code.
template <class ExecutionSpace>
inline constexpr bool runs_on_host =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace,
                               typename ExecutionSpace::memory_space>::accessible;

/// Calls the host's tile encoder through its function pointer; annotated like its kernel, never
/// called on a device.
struct HostEncoder {
  const HostOperations* operations = nullptr;
  TURBOQUANT_FUNCTION void operator()(const TileTables& tables, const EncodeArguments& in) const {
    operations->encode(tables, in);
  }
};

/// Encodes one token after another, in any execution space.
struct PortableEncoder {
  bool parts_only = false;  ///< leaves jobs that fill their tile to others

  TURBOQUANT_FUNCTION void operator()(const TileTables& tables, const EncodeArguments& in) const {
    if (!parts_only || !is_whole(tables.format, in)) {
      encode_slots<PortableEncodeSteps<1>>(tables, in);
    }
  }
};

/// What one kv head has of a job.
[[nodiscard]] inline TURBOQUANT_FUNCTION EncodeArguments head_of_job(const EncodeJob& job,
                                                                     int head) noexcept {
  EncodeArguments in;
  in.keys = job.keys;
  in.values = job.values;
  in.head = head;
  in.first_slot = job.first_slot;
  in.count = job.count;
  in.clear_from = job.clear_from;
  in.tile = job.tile + head * job.head_stride;
  return in;
}

/// One work item encodes one tile of one kv head, so no two items touch the same dword.
template <class Encoder>
struct EncodeKernel {
  TileTables tables;
  const EncodeJob* jobs;
  int kv_heads = 1;
  Encoder encoder;

  TURBOQUANT_FUNCTION void operator()(std::int64_t item) const {
    encoder(tables, head_of_job(jobs[item / kv_heads], static_cast<int>(item % kv_heads)));
  }
};

/// One team encodes one tile of one kv head.
template <class Encoder>
struct TeamEncodeKernel {
  TileTables tables;
  const EncodeJob* jobs;
  int kv_heads = 1;
  Encoder encoder;

  template <class Team>
  TURBOQUANT_FUNCTION void operator()(const Team& team) const {
    const auto item = static_cast<unsigned>(team.league_rank());
    const auto heads = static_cast<unsigned>(kv_heads);
    encoder(team, tables, head_of_job(jobs[item / heads], static_cast<int>(item % heads)));
  }
};

/// Scratch memory that a team has on every device, in bytes.
inline constexpr std::size_t team_scratch_limit = 47 * 1024;

/// Encodes jobs that fill their tile with a team each, where scratch memory can hold a tile.
/// @return false, and nothing is launched, where it cannot
template <class ExecutionSpace>
bool launch_team_encoder(const std::string& label, const ExecutionSpace& exec,
                         const TileTables& tables, const EncodeJob* jobs, std::int64_t num_jobs,
                         int kv_heads) {
  const TileFormat& format = tables.format;
  const std::int64_t teams = num_jobs * kv_heads;
  if (TeamEncoder::scratch_bytes(tables) > team_scratch_limit || teams > 0x7FFFFFFF) {
    return false;
  }
  const auto launch = [&](const auto& encoder, int threads, int width, auto bounds) {
    using Encoder = std::decay_t<decltype(encoder)>;
    using Policy = Kokkos::TeamPolicy<ExecutionSpace, decltype(bounds)>;
    const TeamEncodeKernel<Encoder> kernel{tables, jobs, kv_heads, encoder};
    const auto with_scratch = [&](int team_size) {
      Policy policy(exec, static_cast<int>(teams), team_size, width);
      policy.set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(Encoder::scratch_bytes(tables))));
      return for_many_teams(policy);
    };
    const int most = with_scratch(1).team_size_max(kernel, Kokkos::ParallelForTag());
    while (threads > most) {
      threads /= 2;
    }
    Kokkos::parallel_for(label, with_scratch(threads), kernel);
  };
  constexpr int width = lanes_of<ExecutionSpace>;
  const auto launch_registers =
      [&]<std::size_t Dim, std::size_t Group, bool Centred, std::size_t Tokens>() {
        constexpr int lanes_of_token = width > 1 ? (Dim > 64 ? 4 : 2) : 1;
        using Encoder = RegisterTeamEncoder<Dim, Group, lanes_of_token, width, Centred, Tokens>;
        if (Encoder::scratch_bytes(tables) > team_scratch_limit ||
            format.tile_tokens < Encoder::thread_tokens) {
          return false;
        }
        // 32 numbers of a lane and what their arithmetic needs fit 96 registers, 64 fit 168. Where
        // bounds mean something else, the compiler decides.
        constexpr int lanes = Encoder::most_threads * width;
        constexpr int teams_at_once =
            bounds_count_teams<ExecutionSpace> ? (Dim > 128 ? 384 : 640) / lanes : 1;
        launch(Encoder{static_cast<float>(
                           hadamard_factor(tables.key_rotation.dim, tables.key_rotation.rounds)),
                       TileSections(format)},
               Encoder::threads(tables), width, Kokkos::LaunchBounds<lanes, teams_at_once>{});
        return true;
      };
  const auto launch_group = [&]<std::size_t Dim, std::size_t Group>() {
    if (format.tile_tokens < 64) {
      return launch_registers.template operator()<Dim, Group, false, 32>();
    }
    return format.centres_keys() ? launch_registers.template operator()<Dim, Group, true, 64>()
                                 : launch_registers.template operator()<Dim, Group, false, 64>();
  };
  const auto launch_dim = [&]<std::size_t Dim>() {
    if (format.value_codec == ValueCodec::codebook) {
      return launch_group.template operator()<Dim, 0>();
    }
    return format.value_group == format.value_dim ? launch_group.template operator()<Dim, Dim>()
                                                  : launch_group.template operator()<Dim, 32>();
  };
  const bool values = format.value_codec == ValueCodec::codebook
                          ? tables.value_rotation.rounds == tables.key_rotation.rounds
                          : format.value_group == format.value_dim || format.value_group == 32;
  const bool registers = format.key_codec == KeyCodec::mse && values &&
                         tables.key_butterflies != nullptr && format.key_dim <= 256 &&
                         format.value_dim == format.key_dim;
  const bool launched =
      registers && (format.key_dim == 64    ? launch_dim.template operator()<64>()
                    : format.key_dim == 128 ? launch_dim.template operator()<128>()
                                            : launch_dim.template operator()<256>());
  if (!launched) {
    launch(TeamEncoder{}, format.tile_tokens, 1, Kokkos::LaunchBounds<>{});
  }
  return true;
}

inline void require_job(const EncodeJob& job, std::int64_t index, const TileFormat& format,
                        int kv_heads) {
  const auto check_field = [&](bool good, const char* field, std::int64_t value,
                               const auto&... expected) {
    require(good, ErrorCode::invalid_argument, "encode_tiles: jobs[", index, "].", field, " is ",
            value, ", expected ", expected...);
  };
  check_field(job.first_slot >= 0 && job.first_slot <= format.tile_tokens, "first_slot",
              job.first_slot, "0 to tile_tokens = ", format.tile_tokens);
  check_field(job.count >= 0 && job.count <= format.tile_tokens - job.first_slot, "count",
              job.count, "0 to tile_tokens - first_slot = ", format.tile_tokens - job.first_slot);
  check_field(job.clear_from >= 0 && job.clear_from <= 64, "clear_from", job.clear_from, "0 to 64");
  check_field(kv_heads == 1 || job.head_stride >= static_cast<std::int64_t>(format.bytes()),
              "head_stride", job.head_stride, "at least the bytes of a tile");
  require(job.tile != nullptr, ErrorCode::invalid_argument, "encode_tiles: jobs[", index,
          "].tile is null, expected memory");
  require(reinterpret_cast<std::uintptr_t>(job.tile) % tile_alignment == 0,
          ErrorCode::invalid_argument, "encode_tiles: jobs[", index, "].tile is no multiple of ",
          tile_alignment, " bytes, expected one");
  check_field(kv_heads == 1 || job.head_stride % static_cast<std::int64_t>(tile_alignment) == 0,
              "head_stride", job.head_stride, "a multiple of 4 bytes");
  require(job.count == 0 || (job.keys.data != nullptr && job.values.data != nullptr),
          ErrorCode::invalid_argument, "encode_tiles: jobs[", index,
          "].keys or values is null, expected ", job.count, " rows");
  check_field(is_row_type(job.keys.type), "keys.type", static_cast<int>(job.keys.type),
              "float32, float16 or bfloat16");
  check_field(is_row_type(job.values.type), "values.type", static_cast<int>(job.values.type),
              "float32, float16 or bfloat16");
}

}  // namespace detail

/// Compresses tokens into tiles: key codes, value codes, scales and zero points of every kv head.
///
/// What a token becomes depends on its rows, on the codec and on the parity of its slot only. Slots
/// that a job neither clears nor writes keep their bits. With `KeyCentring::tile_mean` it depends
/// on the mean of its tile too, which a job with first_slot or clear_from 0 makes of its own keys;
/// other jobs use the one that is there.
/// @param exec     execution space instance that can reach the codec's memory space
/// @param codec    decides every bit written
/// @param kv_heads 1 or more
/// @param jobs     (num_jobs), no two for the same tile; rows must be finite (`first_non_finite`):
/// other numbers give
///                 unspecified codes, but no other harm
/// @param arch     host spaces only: which tile operations encode; all give the same bits
/// @throws Error(invalid_argument) for a job outside its domain, before anything is written
/// (checked on host spaces only;
///         on device spaces jobs are not read here), Error(unsupported) for tile operations that
///         cannot run here.
/// One kernel, two on devices, no allocation; asynchronous until `exec.fence()`. O(tokens kv_heads
/// (key_dim + value_dim) log dim). Same bits always.
template <class ExecutionSpace, class MemorySpace>
void encode_tiles(const ExecutionSpace& exec, const TileCodec<MemorySpace>& codec, int kv_heads,
                  const Kokkos::View<const EncodeJob*, MemorySpace>& jobs,
                  HostArch arch = HostArch::automatic) {
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, MemorySpace>::accessible,
                "the execution space cannot reach the codec's memory space");
  require_initialized("encode_tiles");
  require(kv_heads >= 1, ErrorCode::invalid_argument, "encode_tiles: kv_heads is ", kv_heads,
          ", expected 1 or more");
  const auto num_jobs = static_cast<std::int64_t>(jobs.extent(0));
  // Made once: a call that fails must fail before it has launched anything.
  static const std::string label("turboquant::encode_tiles");
  const auto launch = [&](const auto& encoder) {
    using Encoder = std::decay_t<decltype(encoder)>;
    Kokkos::parallel_for(
        label,
        Kokkos::RangePolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Dynamic>,
                            Kokkos::IndexType<std::int64_t>>(exec, 0, num_jobs * kv_heads),
        detail::EncodeKernel<Encoder>{codec.tables(), jobs.data(), kv_heads, encoder});
  };
  if constexpr (detail::runs_on_host<ExecutionSpace>) {
    const detail::HostOperations& operations = detail::host_operations(arch, codec.format());
    for (std::int64_t i = 0; i < num_jobs; ++i) {
      detail::require_job(jobs.data()[i], i, codec.format(), kv_heads);
    }
    launch(detail::HostEncoder{&operations});
  } else {
    const bool whole =
        detail::launch_team_encoder(label, exec, codec.tables(), jobs.data(), num_jobs, kv_heads);
    launch(detail::PortableEncoder{whole});
  }
}

namespace detail {

/// Index, in (token, head, dim) order, of the first number among rows that is NaN or more than
/// `limit` in magnitude; -1 if there is none. Waits for the result.
template <class ExecutionSpace>
[[nodiscard]] std::int64_t first_beyond(const ExecutionSpace& exec, const RowView& rows,
                                        std::int64_t num_tokens, int heads, int dim, float limit) {
  constexpr std::int64_t none = (std::numeric_limits<std::int64_t>::max)();
  std::int64_t first = none;
  Kokkos::parallel_reduce(
      "turboquant::first_beyond",
      Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>(exec, 0,
                                                                           num_tokens * heads),
      KOKKOS_LAMBDA(std::int64_t item, std::int64_t & lowest) {
        const std::int64_t start = rows.offset(item / heads, static_cast<int>(item % heads));
        int beyond = 0;
        for (int d = 0; d < dim; ++d) {
          beyond += is_within(rows.read(start + d), limit) ? 0 : 1;
        }
        if (beyond == 0) {
          return;
        }
        int d = 0;
        while (is_within(rows.read(start + d), limit)) {
          ++d;
        }
        const std::int64_t index = item * dim + d;
        lowest = index < lowest ? index : lowest;
      },
      Kokkos::Min<std::int64_t>(first));
  return first == none ? -1 : first;
}

}  // namespace detail

/// Index, in (token, head, dim) order, of the first NaN or infinity among rows; -1 if all numbers
/// are finite.
///
/// @param rows (num_tokens, heads, dim)
/// Waits for the result. O(tokens heads dim). Same result always.
template <class ExecutionSpace>
[[nodiscard]] std::int64_t first_non_finite(const ExecutionSpace& exec, const RowView& rows,
                                            std::int64_t num_tokens, int heads, int dim) {
  require_initialized("first_non_finite");
  require(num_tokens >= 0 && heads >= 1 && dim >= 1, ErrorCode::invalid_argument,
          "first_non_finite: num_tokens, heads and dim are ", num_tokens, ", ", heads, " and ", dim,
          ", expected 0 or more, 1 or more and 1 or more");
  require(num_tokens == 0 || rows.data != nullptr, ErrorCode::invalid_argument,
          "first_non_finite: rows.data is null, expected ", num_tokens, " rows");
  require(is_row_type(rows.type), ErrorCode::invalid_argument, "first_non_finite: rows.type is ",
          static_cast<int>(rows.type), ", expected float32, float16 or bfloat16");
  return detail::first_beyond(exec, rows, num_tokens, heads, dim,
                              (std::numeric_limits<float>::max)());
}

}  // namespace turboquant
