#pragma once

#include <concepts>
#include <cstdint>
#include <span>

namespace turboquant {

/// An orthogonal transform that quantizers can use: `HadamardRotation`, `HaarRotation` or the
/// caller's own.
///
/// `apply` and `apply_inverse` take (dim) in and (dim) out, and are safe to call from several
/// threads. A rotation with a `seed()` and a `kind` marks what it encodes, so that another one is
/// refused at decoding.
template <class R>
concept RandomRotation = std::copy_constructible<R> &&
    requires(const R& rotation, std::span<const float> in, std::span<float> out) {
  { rotation.dim() } -> std::convertible_to<int>;
  rotation.apply(in, out);
  rotation.apply_inverse(in, out);
};

namespace detail {

template <class T>
[[nodiscard]] std::uint64_t seed_of(const T& transform) noexcept {
  if constexpr (requires {
                  { transform.seed() } -> std::convertible_to<std::uint64_t>;
                }) {
    return transform.seed();
  } else {
    return 0;
  }
}

template <class T>
[[nodiscard]] constexpr int kind_of() noexcept {
  if constexpr (requires {
                  { T::kind } -> std::convertible_to<int>;
                }) {
    return T::kind;
  } else {
    return 0;
  }
}

}  // namespace detail

/// `rotation.seed()`, or 0 for a rotation that has none.
template <RandomRotation R>
[[nodiscard]] std::uint64_t rotation_seed(const R& rotation) noexcept {
  return detail::seed_of(rotation);
}

/// `R::kind`, or 0 for a rotation that has none; the library's own use 1 (Hadamard) and 2 (Haar).
template <RandomRotation R>
[[nodiscard]] constexpr int rotation_kind() noexcept {
  return detail::kind_of<R>();
}

}  // namespace turboquant
