#pragma once

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace turboquant::test {

/// While it lives the processor reads and writes subnormal floats as 0, as start-up code of
/// -ffast-math leaves it. Only on x86; elsewhere `active` is false.
class FlushSubnormals {
 public:
#if defined(__SSE2__)
  static constexpr bool active = true;
  FlushSubnormals() : saved_(_mm_getcsr()) {
    _mm_setcsr(saved_ | 0x8040U);
  }
  ~FlushSubnormals() {
    _mm_setcsr(saved_);
  }
#else
  static constexpr bool active = false;
  FlushSubnormals() = default;
  ~FlushSubnormals() = default;
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  unsigned saved_ = 0;
};

}  // namespace turboquant::test
