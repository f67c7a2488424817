#include <math/same_bytes.hpp>
