// Macros that platform headers and users define: none of them may reach into this library. The
// headers of other libraries come first, because they make no such promise.
#include "foreign.hpp"

#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#define I hostile
#define E hostile
#define small hostile
#define near hostile
#define far hostile
#define major(x) hostile
#define minor(x) hostile
#define IN hostile
#define OUT hostile
#define ERROR hostile
#define DELETE hostile
#define OPTIONAL hostile
#define PI hostile
#define B0 hostile
#define B1 hostile
#define isnan(x) hostile
#define isinf(x) hostile

#include "everything.hpp"
