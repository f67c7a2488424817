#pragma once

#include <cstdio>
#include <cstdlib>

/// A check for programs that cannot run under doctest, because what they test is how a program
/// starts or ends.
inline void check(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "failed: %s\n", what);
    std::_Exit(1);
  }
}
