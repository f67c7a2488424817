#pragma once

#include <turboquant/base/error.hpp>
#include <turboquant/device/kokkos_compat.hpp>

#include <string_view>

namespace turboquant {

/// How `KokkosScope` starts Kokkos. A value of -1 leaves the choice to Kokkos.
struct KokkosOptions {
  int num_threads = -1;  ///< host threads, 1 or more, or -1
  int device_id = -1;    ///< number of the accelerator, 0 or more, or -1
};

/// Throws unless Kokkos is running.
///
/// @param caller  name of the public function, which becomes the start of the message
/// @throws Error with `ErrorCode::not_initialized`
inline void require_initialized(std::string_view caller) {
  require(Kokkos::is_initialized(), ErrorCode::not_initialized, caller,
          ": Kokkos is not initialised; create a turboquant::KokkosScope (or call "
          "Kokkos::initialize) first, "
          "and keep it for as long as device data is in use");
}

/// Keeps Kokkos running for as long as it lives.
///
/// Starts Kokkos only if it is not running, and stops it only if this object started it; a program
/// that runs Kokkos itself keeps control of it. Create it on the main thread before any device data
/// and let it die after them. Scopes nest.
class KokkosScope {
 public:
  /// @param options  used only where this object starts Kokkos
  /// @throws Error  `invalid_argument` for an option outside its domain; `not_initialized` where
  /// Kokkos has
  ///         been finalised and its version cannot start twice
  explicit KokkosScope(const KokkosOptions& options = {}) {
    require(options.num_threads == -1 || options.num_threads >= 1, ErrorCode::invalid_argument,
            "KokkosScope: num_threads is ", options.num_threads, ", expected 1 or more, or -1");
    require(options.device_id >= -1, ErrorCode::invalid_argument, "KokkosScope: device_id is ",
            options.device_id, ", expected 0 or more, or -1");
    if (Kokkos::is_initialized()) {
      return;
    }
    require(!detail::kokkos_is_finalized(), ErrorCode::not_initialized,
            "KokkosScope: Kokkos has been finalised and this version of it cannot be initialised "
            "again");
    if (options.device_id >= 0) {
      const int devices = detail::kokkos_device_count();
      require(devices < 0 || options.device_id < devices, ErrorCode::invalid_argument,
              "KokkosScope: device_id is ", options.device_id, ", expected less than ", devices,
              ", the number of accelerators");
    }
    detail::kokkos_initialize(options.num_threads, options.device_id);
    owner_ = true;
  }

  KokkosScope(const KokkosScope&) = delete;
  KokkosScope& operator=(const KokkosScope&) = delete;

  ~KokkosScope() {
    if (owner_ && Kokkos::is_initialized()) {
      Kokkos::finalize();
    }
  }

  /// Whether this object started Kokkos and will stop it.
  [[nodiscard]] bool owns_kokkos() const noexcept { return owner_; }

 private:
  bool owner_ = false;
};

}  // namespace turboquant
