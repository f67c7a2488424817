#pragma once

#include <turboquant/device/kokkos_compat.hpp>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace turboquant::detail {

/// Shared ownership of a View by objects that may outlive Kokkos, such as those with static
/// storage. Kokkos ends the program where memory is freed after `Kokkos::finalize`; what is left
/// then stays until the program ends.
/// @tparam View a managed `Kokkos::View`
template <class View>
class LastingView {
 public:
  LastingView() = default;
  explicit LastingView(View view) : view_(new View(std::move(view)), &release) {}

  /// Without elements if there is none.
  [[nodiscard]] View get() const { return view_ == nullptr ? View() : *view_; }
  [[nodiscard]] std::size_t size() const noexcept { return view_ == nullptr ? 0 : view_->size(); }

 private:
  static void release(const View* view) {
    if (Kokkos::is_initialized()) {
      delete view;
      return;
    }
    // Reachable, so that tools that look for lost memory find it.
    static auto* const left = new std::vector<const View*>;
    left->push_back(view);
  }

  std::shared_ptr<const View> view_;
};

}  // namespace turboquant::detail
