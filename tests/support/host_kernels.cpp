#include "host_kernels.hpp"

template struct turboquant::HostKernels<>;
