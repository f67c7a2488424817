#pragma once

#include <turboquant/cache/memory_ledger.hpp>

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace turboquant::detail {

/// Makes host arrays readable for kernels: as they are where kernels reach host memory, otherwise
/// through device buffers that are kept and grow.
///
/// An array must stay alive and unchanged until the execution space has been fenced.
template <class Space>
class JobUpload {
 public:
  static constexpr std::size_t slots = 6;

  explicit JobUpload(std::shared_ptr<MemoryLedger> ledger) : ledger_(std::move(ledger)) {}

  /// @param slot which of the arrays that are in use at the same time
  /// @throws Error(capacity) where the device buffer does not fit the memory limit
  template <class Exec, class Job>
  [[nodiscard]] const Job* put(const Exec& exec, std::size_t slot, const std::vector<Job>& jobs) {
    static_assert(std::is_trivially_copyable_v<Job>);
    if constexpr (Kokkos::SpaceAccessibility<Exec, Kokkos::HostSpace>::accessible) {
      return jobs.data();
    } else {
      if (jobs.empty()) {
        return nullptr;
      }
      const std::size_t bytes = jobs.size() * sizeof(Job);
      reserve(slot, bytes);
      using Bytes = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
      const Kokkos::View<std::byte*, Space, Bytes> to(buffers_[slot].memory.get(), bytes);
      const Kokkos::View<const std::byte*, Kokkos::HostSpace, Bytes> from(
          reinterpret_cast<const std::byte*>(jobs.data()), bytes);
      Kokkos::deep_copy(exec, to, from);
      return reinterpret_cast<const Job*>(buffers_[slot].memory.get());
    }
  }

  /// Allocates what `put` will need, so that it cannot fail.
  template <class Exec, class Job>
  void reserve_for(std::size_t slot, const std::vector<Job>& jobs) {
    if constexpr (!Kokkos::SpaceAccessibility<Exec, Kokkos::HostSpace>::accessible) {
      reserve(slot, jobs.size() * sizeof(Job));
    }
  }

  /// Device bytes kept.
  [[nodiscard]] std::size_t bytes() const noexcept {
    std::size_t total = 0;
    for (const Buffer& buffer : buffers_) {
      total += buffer.bytes;
    }
    return total;
  }

 private:
  struct Buffer {
    std::shared_ptr<std::byte> memory;
    std::size_t bytes = 0;
  };

  void reserve(std::size_t slot, std::size_t bytes) {
    Buffer& buffer = buffers_[slot];
    if (bytes > buffer.bytes) {
      const std::size_t size = round_up_bytes(bytes + bytes / 2);
      buffer.memory = allocate_bytes<Space>(ledger_, MemoryKind::workspace, size,
                                            "turboquant::JobUpload::buffer");
      buffer.bytes = size;
    }
  }

  std::shared_ptr<MemoryLedger> ledger_;
  std::array<Buffer, slots> buffers_{};
};

}  // namespace turboquant::detail
