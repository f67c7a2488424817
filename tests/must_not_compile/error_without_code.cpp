// target: core
// expect: no matching (function for call to|constructor for initialization of)
#include <turboquant/base/error.hpp>

void check(int value) {
#ifndef MUST_COMPILE
  const turboquant::Error error("value is wrong");
#else
  const turboquant::Error error(turboquant::ErrorCode::invalid_argument, "value is wrong");
#endif
  if (value < 0) {
    throw error;
  }
}
