#pragma once

#include <turboquant/device/arch/host_operations.hpp>
#include <turboquant/device/arch/host_portable.hpp>
#include <turboquant/device/arch/x86_avx2.hpp>
#include <turboquant/device/arch/x86_avx512.hpp>

#include <cstdlib>
#include <string_view>

namespace turboquant {

/// The host's kernels. Every translation unit that encodes or attends on the host compiles them,
/// which takes longer than all else in it. A program may have them compiled once instead: all its
/// files declare, after including the library, what one of them defines:
///
///     extern template struct turboquant::HostKernels<>;  // all others
///     template struct turboquant::HostKernels<>;         // one
template <class Unused = void>
struct HostKernels {
  /// Null where the processor or the build lacks the instructions.
  [[nodiscard]] static const detail::HostOperations* find(HostArch arch);
};

template <class Unused>
const detail::HostOperations* HostKernels<Unused>::find(HostArch arch) {
#if TURBOQUANT_X86
  if (arch == HostArch::avx512 && detail::processor_has_avx512()) {
    return &detail::avx512::operations;
  }
  if (arch == HostArch::avx2 && detail::processor_has_avx2()) {
    return &detail::avx2::operations;
  }
#endif
  return arch == HostArch::portable ? &detail::portable_operations : nullptr;
}

namespace detail {

[[nodiscard]] inline HostArch arch_from_environment() {
  const char* text = std::getenv("TURBOQUANT_ARCH");
  if (text == nullptr || *text == '\0') {
    return HostArch::automatic;
  }
  for (const HostArch arch : {HostArch::portable, HostArch::avx2, HostArch::avx512}) {
    if (to_string(arch) == text) {
      return arch;
    }
  }
  fail(ErrorCode::invalid_argument, "TURBOQUANT_ARCH is \"", text,
       "\", expected portable, avx2 or avx512");
}

/// The operations of `arch`.
/// @throws Error(unsupported) where processor or build lack its instructions,
/// Error(invalid_argument) for an unknown
///         TURBOQUANT_ARCH.
[[nodiscard]] inline const HostOperations& host_operations(HostArch arch) {
  require(arch >= HostArch::automatic && arch <= HostArch::avx512, ErrorCode::invalid_argument,
          "HostArch: value is ", static_cast<int>(arch),
          ", expected automatic, portable, avx2 or avx512");
  const HostArch wanted = arch == HostArch::automatic ? arch_from_environment() : arch;
  if (wanted == HostArch::automatic) {
    for (const HostArch candidate : {HostArch::avx512, HostArch::avx2}) {
      if (const HostOperations* found = HostKernels<>::find(candidate)) {
        return *found;
      }
    }
    return *HostKernels<>::find(HostArch::portable);
  }
  const HostOperations* found = HostKernels<>::find(wanted);
  require(found != nullptr, ErrorCode::unsupported, "HostArch: ", to_string(wanted),
          " needs instructions that this processor or this build does not have");
  return *found;
}

/// The operations of `arch` for tiles of a format. Vector units work on host order; in other orders
/// only plain C++ does, which is what `automatic` then means, whatever the environment says.
/// @throws Error as above, Error(unsupported) for vector units on another order.
[[nodiscard]] inline const HostOperations& host_operations(HostArch arch,
                                                           const TileFormat& format) {
  if (format.order == TileOrder::host) {
    return host_operations(arch);
  }
  require(arch == HostArch::automatic || arch == HostArch::portable, ErrorCode::unsupported,
          "HostArch: ", to_string(arch), " works on tiles in host order, but their order is ",
          to_string(format.order));
  return *HostKernels<>::find(HostArch::portable);
}

}  // namespace detail

/// Whether the tile operations of `arch` can run here.
[[nodiscard]] inline bool host_arch_available(HostArch arch) {
  return arch == HostArch::automatic || HostKernels<>::find(arch) != nullptr;
}

}  // namespace turboquant
