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
#define DOMAIN hostile
#define OVERFLOW hostile
#define UNDERFLOW hostile
#define SING hostile
#define linux hostile
#define unix hostile
#define _(x) hostile
#define check(x) hostile
#define verify(x) hostile
#define STRICT hostile
#define TRUE hostile
#define FALSE hostile
#define VOID hostile
#define CONST hostile
#define BYTE hostile
#define Success hostile
#define Status hostile
#define Bool hostile
#define None hostile
#define Always hostile
#define Unsorted hostile
#define Complex hostile
#define block hostile

#include "everything.hpp"
