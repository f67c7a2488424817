// A machine with 32-bit sizes, imitated where the compiler has no libraries for one.
#include <cstddef>
#include <cstdint>

#ifndef MUST_COMPILE
#undef SIZE_MAX
#define SIZE_MAX 0xFFFFFFFFU
#endif

#include <turboquant/base/config.hpp>
